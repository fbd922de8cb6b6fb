"""Facts about PyTorch's binary interface: found here, told apart where they must be, and survived where they do not fit."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from thermit.runtime import torch_abi

HERE = Path(__file__).parent


def test_every_probe_fits_this_pytorch():
    assert torch_abi.abi() is not None, torch_abi.mismatch


def test_ambient_tells_modes_apart():
    plain = torch_abi.ambient()
    assert plain == torch_abi.ambient() and plain[:2] == (0, 0)
    seen = {plain}

    def modes():
        yield torch.no_grad()
        yield torch.inference_mode()
        yield torch.autocast("cpu", dtype=torch.bfloat16)
        yield torch.autocast("cpu", dtype=torch.float16)

    for mode in modes():
        with mode:
            assert torch_abi.ambient() not in seen
            seen.add(torch_abi.ambient())
    assert torch_abi.ambient() == plain


FAULTS = {
    "a symbol is missing": "torch_abi._MANGLED['wrap'] = ('_ZNothing', 'i64')",
    "keys are elsewhere": "torch_abi._keys = lambda t: 0x1234567",
    "sizes are elsewhere": "torch_abi._words = lambda a, n, w=torch_abi._words: w(a, n)[::-1]",
    "another DLPack": "torch_abi.DLPACK_CODES[torch.float32] = 77",
    "no thread-local keys": "torch_abi._thread_keys = lambda c: (_ for _ in ()).throw(torch_abi.AbiMismatch('tls'))",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_probe_that_fails_switches_to_python(fault):
    """The same program gives the same result through Python."""
    script = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import torch
from thermit.runtime import torch_abi
{FAULTS[fault]}
assert torch_abi.abi() is None and torch_abi.mismatch
from thermit.runtime.entry import Entry
from kernels import add_text, compile_text
from thermit.ir.node import Return
from thermit.ir.types import FLOAT32
from thermit.runtime.program import Program
from thermit.schedule.plan import Buffer, Plan, RunKernel
buffers = tuple(Buffer(role, 0, FLOAT32, (10,), (1,), 40) for role in ("input", "output"))
plan = Plan(buffers, (RunKernel("add1", (0, 1), 10, 1, 10.0),), (1,), (Return("output", 0),), 0, 0)
program = Program(plan, compile_text(add_text("add1", 1)))
x = torch.randn(10)
assert torch.equal(program.run([x])[0], 1 + x)
entry = Entry(lambda x: program.run([x])[0])
assert torch.equal(entry.callable(x), 1 + x)
"""
    done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", script], capture_output=True, text=True, cwd=HERE.parents[1])
    assert done.returncode == 0, done.stderr
