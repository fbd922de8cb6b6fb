"""Objects that are called natively: every way to call one, what they are, what is left of one that the collector takes."""

import gc
import inspect
import os
import subprocess
import sys
import weakref

import pytest
import torch

import thermit
from thermit.api import JitFunction


def test_every_way_to_call():
    def f(x, *, scale=2.0):
        """Scales."""
        return x * scale

    jitted, x = thermit.jit(f), torch.ones(3)
    for _ in range(3):
        assert (
            jitted(x).tolist() == [2.0] * 3 and jitted(x, scale=3.0).tolist() == [3.0] * 3 and jitted(*(x,), **{"scale": 4.0}).tolist() == [4.0] * 3
        )
        assert jitted.__call__(x).tolist() == [2.0] * 3 and [t.tolist() for t in map(jitted, [x])] == [[2.0] * 3]
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        jitted()
    assert (
        isinstance(jitted, JitFunction)
        and callable(jitted)
        and jitted.__doc__ == "Scales."
        and list(inspect.signature(jitted).parameters) == ["x", "scale"]
    )
    assert jitted._entry.hits >= 12


def test_one_class_for_all_and_each_its_own_function():
    f, g, x = thermit.jit(lambda x: x + 1), thermit.jit(lambda x: x - 1), torch.zeros(2)
    assert type(f) is type(g) and f(x).tolist() == [1.0, 1.0] and g(x).tolist() == [-1.0, -1.0] and f(x).tolist() == [1.0, 1.0]


def test_functions_die_with_what_they_hold():
    held = torch.ones(2)
    f = thermit.jit(lambda x: x + held)
    f(torch.zeros(2))
    seen, inside = weakref.ref(f), weakref.ref(f._entry)
    del f
    gc.collect()
    assert seen() is None and inside() is None


AFTER = """
import gc, sys
import torch, thermit
kept = {}
class Last:
    def __del__(self):
        kept["again"] = self.f, self.entry
last = Last()
last.f = thermit.jit(lambda x: x + 1)
last.entry = last.f._entry.callable
last.f.last = last
last.f(torch.zeros(2))
del last
gc.collect()
for call in kept["again"]:
    try:
        print(call(torch.zeros(2)))
    except RuntimeError as error:
        print(error)
empty = type(kept["again"][0]).__new__(type(kept["again"][0]))
try:
    empty(1)
except TypeError as error:
    print("TypeError")
"""


def test_a_slot_that_is_written_does_no_harm():
    f, x = thermit.jit(lambda x: x + 1), torch.zeros(2)
    f(x)
    bound = f._thermit_bound
    for wrong in (5, "bound", f, object.__new__(type(bound))):
        f._thermit_bound = wrong
        with pytest.raises(RuntimeError, match="being destroyed"):
            f(x)
    del f._thermit_bound
    with pytest.raises(RuntimeError, match="being destroyed"):
        f(x)
    f._thermit_bound = bound
    assert f(x).tolist() == [1.0, 1.0]


ENDING = """
import sys
import torch, thermit
def add(x):
    x.add_(1)  # PyTorch itself cannot free tensors then: no results
f, x = thermit.jit(add), torch.zeros(4)
for _ in range(12):
    f(x)
class Last:
    def __init__(self, f):
        self.f, self.x = f, x
    def __del__(self):
        try:
            self.f(self.x)
        except Exception as error:
            pass
        print("called")
place = sys.modules[sys.argv[1]]
place.last = Last(f), Last(f._entry.callable)
"""


@pytest.mark.parametrize("module", ["__main__", "builtins", "torch", "torch.autograd.forward_ad", "thermit.runtime.library", "thermit.runtime.entry"])
def test_calls_while_modules_are_taken_apart(module):
    """Freed memory of Python is overwritten here, so what the native parts still look at must not be freed."""
    environment = {**os.environ, "PYTHONMALLOC": "debug"}
    done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", ENDING, module], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["called"] * 2


def test_one_that_the_collector_has_begun_to_take_raises():
    done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", AFTER], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["this jitted function is being destroyed"] * 2 + ["TypeError"]
