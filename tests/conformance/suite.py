"""Where the conformance suite lies, and how a part of it is run: in processes of their own, so that a crash is a failure like any other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUITE = ROOT.parent / "shared" / "conformance"

needs_suite = pytest.mark.skipif(not SUITE.is_dir(), reason=f"the conformance suite is not beside the checkout (../{SUITE.relative_to(ROOT.parent)})")


def run(script: str, *options: str) -> subprocess.CompletedProcess[str]:
    """A script of the suite against this checkout; its last line of output is 'N passed, M failed'."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SUITE / script), "--jit", "thermit:jit", *options]
    return subprocess.run(command, capture_output=True, text=True, cwd=(SUITE / script).parent, env=environment)


def counts(done: subprocess.CompletedProcess[str]) -> tuple[int, int]:
    """How many passed and failed."""
    lines = done.stdout.split("\n")
    assert lines[-1] == "" and "passed" in lines[-2], done.stdout[-2000:] + done.stderr[-2000:]
    passed, _, failed, _ = lines[-2].split()
    return int(passed), int(failed)
