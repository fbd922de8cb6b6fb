"""The short way through the guards: taken, seen through nothing, left when something changes, found again."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import types
import warnings
import weakref
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

import thermit
from thermit.capture.signature import Attr, Guard, Held, Item
from thermit.runtime import entry, shorten
from thermit.runtime.guard import GuardTable
from thermit.runtime.layout import layout
from thermit.runtime.native.calling import CONSTANTS
from thermit.runtime.unchanged import Unchanged

sys.path.insert(0, str(Path(__file__).parents[1] / "capture"))
import faults_classes
import faults_modules
import faults_names
import faults_objects
from watched import HANDLES, attempt, flat

FAULTS = {**faults_classes.FAULTS, **faults_names.FAULTS, **faults_objects.FAULTS, **faults_modules.FAULTS}
pytestmark = pytest.mark.skipif(layout() is None, reason="this Python does not tell versions")


@pytest.fixture(autouse=True)
def _always(monkeypatch):
    """Also where there are few guards."""
    monkeypatch.setattr(entry, "WORTH", 0)


@pytest.fixture(autouse=True)
def _restore():
    before = dict(vars(faults_names))
    table, weights = {"k": 1.0, "deep": {"list": [1, 2, (3, 4.0)]}}, [torch.ones(3), torch.zeros(3)]
    yield
    while HANDLES:
        HANDLES.pop().remove()
    for name in set(vars(faults_names)) - set(before):
        delattr(faults_names, name)
    vars(faults_names).update(before)
    vars(faults_names)["TABLE"], vars(faults_names)["WEIGHTS"] = table, weights


def ways(jitted):
    """For each variant whether calls take the short way, and what shortens it."""
    function = getattr(type(jitted), "__thermit_jitted__", jitted)
    found = [s for table in function._entry._keep for s in getattr(table, "keep", ()) if isinstance(s, shorten.Shortened)]
    return [(ctypes.c_int64.from_address(s.variant + CONSTANTS["V_SHORT"]).value != 0, s) for s in found]


def same(a, b):
    return len(a) == len(b) and all(map(alike, a, b))


def alike(x, y):
    if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
        return torch.allclose(x, y, equal_nan=True)
    return type(x) is type(y) and (x == y or x is y)


@pytest.mark.parametrize("name", FAULTS)
def test_a_change_is_seen_on_the_short_way(name):
    function, args, change = FAULTS[name]()
    jitted = thermit.jit(function)
    for _ in range(12):
        attempt(jitted, args)
    was_short = any(short for short, _ in ways(jitted))
    change()
    (a, error), (b, wanted) = attempt(jitted, args), attempt(function, args)
    assert type(error) is type(wanted)
    if name not in ("random_numbers", "dropout_probability", "training_flag") and error is None:
        assert same(flat(a), flat(b)), f"stale; it was on the short way: {was_short}"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)) for _ in range(3)])
        self.gains, self.table, self.names = [1.0, 2.0], {"k": 3.0}, {"a", "b"}

    def forward(self, x):
        for layer in self.layers:
            x = layer(x) * self.gains[0] + self.table["k"] + len(self.names)
        return x


def warm(twin, x):
    for _ in range(40):
        twin(x)
    return any(short for short, _ in ways(twin))


@torch.no_grad()
def test_it_is_found_left_and_found_again():
    twin, x = thermit.jit(Net()), torch.randn(2, 4)
    module = type(twin).__thermit_module__
    assert warm(twin, x)
    before = state(twin)
    changes = {
        "an attribute that nobody reads": lambda: setattr(module, "nothing", 3),
        "a parameter of the same kind": lambda: setattr(module.layers[0][0], "weight", nn.Parameter(torch.randn(4, 4))),
        "a list": lambda: module.gains.__setitem__(0, 5.0),
        "a dict": lambda: module.table.update(k=1.0),
        "a set": lambda: module.names.add("c"),
        "a child": lambda: module.layers.__setitem__(1, nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))),
        "values": lambda: module.layers[0][0].weight.mul_(2),
        "train": lambda: twin.train(False),
        "hook": lambda: HANDLES.append(module.layers[2].register_forward_hook(lambda m, a, o: o * 2)),
        "a global hook": lambda: HANDLES.append(nn.modules.module.register_module_forward_pre_hook(lambda m, a: None)),
        "the dict": lambda: object.__setattr__(module.layers[0][0], "__dict__", dict(vars(module.layers[0][0]))),
        "another bias in another dict": lambda: object.__setattr__(
            module.layers[0][0], "__dict__", {**vars(module.layers[0][0]), "_parameters": {"weight": torch.ones(4, 4), "bias": torch.ones(4)}}
        ),
    }
    for name, change in changes.items():
        change()
        torch.testing.assert_close(twin(x), module(x), msg=name)
        assert warm(twin, x), name
        torch.testing.assert_close(twin(x), module(x), msg=name)
    assert before <= state(twin) <= before + 7


def state(twin):
    return type(twin).__thermit_jitted__._state.compiled


@torch.no_grad()
def test_what_changes_at_each_call_is_not_looked_for_each_time():
    twin, x = thermit.jit(Net()), torch.randn(2, 4)
    for n in range(600):
        twin.step = n
        twin(x)
    ((_, shortened),) = ways(twin)
    assert shortened._wait > 200 and state(twin) == 1


@torch.no_grad()
def test_classes_and_functions_that_change():
    class Gain(nn.Linear):
        factor = 2.0

        def forward(self, x):
            return super().forward(x) * self.factor + helper(x)

    def helper(x):
        return x.sum()

    module = Gain(4, 4)
    twin, x = thermit.jit(module), torch.randn(2, 4)
    assert warm(twin, x)
    for change in (
        lambda: setattr(Gain, "factor", 3.0),
        lambda: setattr(Gain, "forward", lambda self, x: x * self.factor),
        lambda: setattr(Gain, "factor", property(lambda self: 7.0)),
        lambda: setattr(module, "__class__", type("Other", (Gain,), {"factor": 1.5})),
    ):
        change()
        torch.testing.assert_close(twin(x), module(x))
        assert warm(twin, x)
    f = thermit.jit(lambda x: helper(x) * 2)
    assert warm(f, x)
    helper.__code__ = (lambda x: x.amax()).__code__
    torch.testing.assert_close(f(x), x.amax() * 2)


class Registry(dict):
    pass


@dataclass
class Entry:
    scale: float


PACKAGE = """
import torch
TABLE = Registry(a={"k": Entry(2.0)})
NAMES = {"x", "y"}
OTHER = 1.0
def f(x):
    return x * TABLE["a"]["k"].scale + len(NAMES) + OTHER
"""


@torch.no_grad()
def test_globals_of_packages():
    """Versions of the names of a package, of a dict of dicts of dataclasses in it; of a set by its contents; a builtin that is hidden."""
    module = types.ModuleType("somewhere")
    module.__file__ = "/lib/site-packages/somewhere.py"
    vars(module).update(Registry=Registry, Entry=Entry)
    exec(compile(PACKAGE, module.__file__, "exec"), vars(module))
    f, x = thermit.jit(lambda x: module.f(x) * 2), torch.ones(2)
    assert warm(f, x)
    ((_, shortened),) = ways(f)
    (table,) = [t for t in shortened._kept if isinstance(t, GuardTable)]
    assert not table.rest, table.rest
    for change in (
        lambda: setattr(module, "OTHER", 5.0),
        lambda: setattr(module.TABLE["a"]["k"], "scale", 3.0),
        lambda: module.TABLE["a"].update(k=Entry(4.0)),
        lambda: module.TABLE.update(a={"k": Entry(6.0)}),
        lambda: module.NAMES.add("z"),
        lambda: setattr(module, "len", lambda names: 100),
    ):
        change()
        assert torch.equal(f(x), module.f(x) * 2)
        assert warm(f, x)


def test_the_words_of_what_holds_something_come_first():
    """What is held may be gone once its holder has changed: then it must not be looked at."""
    inner = {"k": 1}
    holder = types.SimpleNamespace(table={"a": inner, "b": (Registry(c=inner), Entry(3.0))})
    unchanged = Unchanged(layout())
    source = Item(Attr(Held(holder, "holder"), "__dict__"), "table")
    assert unchanged.holds(Guard(source, "deep", None)) and unchanged.stand()
    entry = holder.table["b"][1]
    order = [id(vars(holder)), id(holder.table), id(inner), id(holder.table["b"][0]), id(vars(entry))]
    places = [list(unchanged.words).index(address + layout().dict_version) for address in order]
    assert places[0] < places[1] < min(places[2:])
    assert list(unchanged.words).index(id(entry) + 8) > places[1]
    for change in (lambda: inner.update(k=2), lambda: setattr(entry, "scale", 4.0), lambda: holder.table.pop("a"), lambda: setattr(holder, "x", 1)):
        unchanged = Unchanged(layout())
        unchanged.holds(Guard(source, "deep", None))
        change()
        assert not unchanged.stand()


@torch.no_grad()
def test_replaced_parameters_are_freed():
    twin, x = thermit.jit(Net()), torch.randn(2, 4)
    assert warm(twin, x)
    module = type(twin).__thermit_module__
    gone = []
    for _ in range(5):
        old = module.layers[0][0].weight
        module.layers[0][0].weight = nn.Parameter(torch.randn(4, 4))
        torch.testing.assert_close(twin(x), module(x))
        warm(twin, x)
        gone.append(weakref.ref(old))
        del old
    gc.collect()
    assert [r() for r in gone] == [None] * 5


@torch.no_grad()
def test_threads_that_call_and_one_that_changes():
    """A call sees one state or the other, never a mixture, whichever way it takes."""
    twin, x = thermit.jit(Net()), torch.zeros(2, 4)
    module = type(twin).__thermit_module__
    for p in module.parameters():
        p.fill_(0.5)
    wrong, stop = [], threading.Event()
    allowed = []
    for k in (3.0, 4.0):
        module.table["k"] = k
        allowed.append(module(x))
        twin(x)

    def call():
        with torch.no_grad():
            while not stop.is_set():
                y = twin(x)
                if not any(torch.allclose(y, a) for a in allowed):
                    wrong.append(y)

    threads = [threading.Thread(target=call) for _ in range(3)]
    for t in threads:
        t.start()
    for n in range(300):
        module.table["k"] = (3.0, 4.0)[n % 2]
        for _ in range(10):
            twin(x)
        torch.testing.assert_close(twin(x), allowed[n % 2])
    stop.set()
    for t in threads:
        t.join()
    assert not wrong


def test_without_versions_every_guard_is_looked_at(monkeypatch):
    monkeypatch.setattr(shorten, "layout", lambda: None)
    twin, x = thermit.jit(Net().requires_grad_(False)), torch.randn(2, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not warm(twin, x)
    torch.testing.assert_close(twin(x), type(twin).__thermit_module__(x))
