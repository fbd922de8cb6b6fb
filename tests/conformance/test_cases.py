"""Cases from public bug reports of compilers: `jit` does what eager does in all of them."""

import json

import pytest

from tests.conformance.suite import needs_suite, run


@needs_suite
@pytest.mark.timeout(600)
def test_every_case(tmp_path):
    results = tmp_path / "results.json"
    done = run("cases/run.py", "--json", str(results))
    assert results.exists(), done.stdout[-2000:] + done.stderr[-2000:]
    failed = {case["name"]: case["fail"] for case in json.loads(results.read_text()) if case["fail"] is not None}
    assert not failed
    assert len(json.loads(results.read_text())) > 100, "the suite has lost cases"
