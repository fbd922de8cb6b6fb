"""Cases from public bug reports of compilers: `jit` does what eager does in all of them."""

import json

import pytest
import torch

import thermit
from tests.conformance.suite import needs_suite, run

COSH = "case_115_cosh_near_overflow"  # it compares with eager, which on some processors is wrong there: docs/numerics.md


def eager_cosh_overflows(x: torch.Tensor) -> bool:
    """Whether eager's cosh has lost values that float32 can hold."""
    true = torch.cosh(x.double()).float()
    return bool((torch.isinf(torch.cosh(x)) & torch.isfinite(true)).any())


@needs_suite
@pytest.mark.timeout(600)
def test_every_case(tmp_path):
    results = tmp_path / "results.json"
    done = run("cases/run.py", "--json", str(results))
    assert results.exists(), done.stdout[-2000:] + done.stderr[-2000:]
    failed = {case["name"]: case["fail"] for case in json.loads(results.read_text()) if case["fail"] is not None}
    if COSH in failed and eager_cosh_overflows(NEAR_OVERFLOW):
        del failed[COSH]
    assert not failed
    assert len(json.loads(results.read_text())) > 100, "the suite has lost cases"


NEAR_OVERFLOW = torch.tensor([88.8, 88.95, 89.3, -89.05]).repeat(16)


def test_cosh_near_overflow_is_right_whatever_eager_does():
    got = thermit.jit(torch.cosh)(NEAR_OVERFLOW)
    torch.testing.assert_close(got, torch.cosh(NEAR_OVERFLOW.double()).float(), rtol=1.2e-7, atol=0)
