"""Facts about PyTorch's binary interface: found here, told apart where they must be, and survived where they do not fit."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from thermit.runtime import torch_abi
from thermit.runtime.native import parts


def test_every_probe_fits_this_pytorch():
    assert torch_abi.abi() is not None, torch_abi.mismatch


def test_the_probes_find_what_the_native_parts_read():
    facts = torch_abi.abi()
    assert set(facts.words) == set(parts.ABI_WORDS) and set(facts.functions) == {*parts.OUTSIDE, *torch_abi.SHAPE}


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
    "a symbol is missing": lambda m: m.setitem(torch_abi._MANGLED, "wrap", "_ZNothing"),
    "keys are elsewhere": lambda m: m.setattr(torch_abi, "_keys", lambda t: 0x1234567),
    "words are elsewhere": lambda m: m.setattr(torch_abi, "_words", lambda a, n, words=torch_abi._words: words(a, n)[::-1]),
    "another DLPack": lambda m: m.setitem(torch_abi.DLPACK_CODES, torch.float32, 77),
    "another number of a dtype": lambda m: m.setitem(torch_abi.SCALAR_TYPES, torch.float32, 7),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_does_not_fit_is_found(fault, monkeypatch):
    FAULTS[fault](monkeypatch)
    monkeypatch.setattr(torch_abi, "_cache", [])
    assert torch_abi.abi() is None and torch_abi.mismatch


UNUSUAL = """
import torch, thermit
from thermit.runtime import torch_abi
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.forward_ad import dual_level
modes = (torch.inference_mode(), torch.autocast("cpu", dtype=torch.float16), FakeTensorMode(), dual_level(), torch.device("meta"))
for mode in modes:
    torch_abi._cache.clear()
    with mode:
        assert torch_abi.abi() is not None, (mode, torch_abi.mismatch)
torch_abi._cache.clear()
torch.func.vmap(lambda x: x * bool(torch_abi.abi()))(torch.ones(3))
assert torch_abi.abi() is not None, torch_abi.mismatch
"""


def test_it_does_not_matter_where_the_first_call_is_made():
    done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", UNUSUAL], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr


SCRIPT = """
import sys
import torch, thermit
from thermit.runtime import library, torch_abi
torch_abi._MANGLED["wrap"] = "_ZNothing"
torch_abi._cache.clear()  # as if thermit were imported only now
library._made.clear()
f = thermit.jit(lambda x, y: ((x * 2).sin() + y, (x @ y).relu(), x.add_(1)))
for _ in range(3):
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    z = x.clone()
    made, expected = f(x, y), ((z * 2).sin() + y, (z @ y).relu(), z + 1)
    assert all(torch.allclose(a, b) for a, b in zip(made, expected)) and made[2] is x
assert torch_abi.abi() is None
"""


def test_everything_runs_through_python_where_something_does_not_fit():
    done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", SCRIPT], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
