"""Keys of calls: what must be told apart is, what must not be is not; what cannot be compiled says so."""

from __future__ import annotations

import collections
import dataclasses
import decimal
import enum
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from thermit.capture.known import argument_guards
from thermit.capture.signature import (
    Arg,
    Attr,
    Call,
    Cell,
    Class,
    Global,
    Guard,
    Held,
    Item,
    argument_tensors,
    flatten_call,
    holds,
    snapshot,
)
from thermit.capture.specs import input_specs
from thermit.capture.values import NotStatic


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclasses.dataclass
class Box:
    value: Any
    k: Any = 0


@dataclasses.dataclass(frozen=True)
class Frozen:
    value: Any


class Plain:
    def run(self) -> None: ...


class Options(dict):  # type: ignore[type-arg]
    pass


def key(*args: Any, **kwargs: Any) -> Any:
    flat = flatten_call(args, kwargs)
    assert flat.eager is None, flat.eager
    hash(flat.key)
    return flat.key


BASE = torch.arange(24.0)
THING, OTHER = Plain(), Plain()
T = torch.ones

# Pairs of calls that must have different keys.
DIFFERENT: list[tuple[str, Callable[[], tuple[Any, ...]], Callable[[], tuple[Any, ...]]]] = [
    ("sizes", lambda: (T(3),), lambda: (T(4),)),
    ("axes", lambda: (T(3),), lambda: (T(3, 1),)),
    ("strides", lambda: (T(3, 4),), lambda: (T(4, 3).t(),)),
    ("dtype", lambda: (T(3),), lambda: (T(3).double(),)),
    ("half types", lambda: (T(3).half(),), lambda: (T(3).bfloat16(),)),
    ("parameter", lambda: (T(3),), lambda: (torch.nn.Parameter(T(3), requires_grad=False),)),
    ("int and float", lambda: (1,), lambda: (1.0,)),
    ("int and bool", lambda: (1,), lambda: (True,)),
    ("int and enum", lambda: (1,), lambda: (Level.LOW,)),
    ("zeros", lambda: (0.0,), lambda: (-0.0,)),
    ("complex zeros", lambda: (complex(0.0, 0.0),), lambda: (complex(0.0, -0.0),)),
    ("nan and number", lambda: (math.nan,), lambda: (1.0,)),
    ("str and bytes", lambda: ("a",), lambda: (b"a",)),
    ("none and nothing", lambda: (None,), lambda: ()),
    ("tensor and number", lambda: (T(()),), lambda: (1.0,)),
    ("list and tuple", lambda: ([1],), lambda: ((1,),)),
    ("tuple and size", lambda: ((1,),), lambda: (torch.Size((1,)),)),
    ("tuple and named tuple", lambda: ((1, 2),), lambda: (Pair(1, 2),)),
    ("nesting", lambda: ([1, [2]],), lambda: ([[1], 2],)),
    ("nesting of empties", lambda: ([[], []],), lambda: ([[[]]],)),
    ("tensors in other places", lambda: ([T(2), 1],), lambda: ([1, T(2)],)),
    ("keys", lambda: ({"a": 1},), lambda: ({"b": 1},)),
    ("types of keys", lambda: ({1: 1},), lambda: ({True: 1},)),
    ("order of keys", lambda: ({"a": 1, "b": 2},), lambda: ({"b": 2, "a": 1},)),
    ("dict and ordered dict", lambda: ({"a": 1},), lambda: (collections.OrderedDict(a=1),)),
    ("dict and its subclass", lambda: ({"a": 1},), lambda: (Options(a=1),)),
    ("contents of a subclass", lambda: (Options(a=1),), lambda: (Options(a=2),)),
    ("default dict", lambda: (collections.defaultdict(int, a=1),), lambda: (collections.defaultdict(list, a=1),)),
    ("counter", lambda: (collections.Counter("a"),), lambda: (collections.Counter("aa"),)),
    ("dataclass field", lambda: (Box(T(2), 1),), lambda: (Box(T(2), 2),)),
    ("frozen dataclass", lambda: (Frozen(1),), lambda: (Frozen(1.0),)),
    ("enum", lambda: (Color.RED,), lambda: (Color.BLUE,)),
    ("dtype argument", lambda: (torch.float32,), lambda: (torch.float64,)),
    ("slices", lambda: (slice(0, 2),), lambda: (slice(0, 3),)),
    ("ranges", lambda: (range(2),), lambda: (range(3),)),
    ("sets", lambda: ({1, 2},), lambda: ({1, 3},)),
    ("set and frozen set", lambda: ({1},), lambda: (frozenset((1,)),)),
    ("numpy scalars", lambda: (np.float32(1),), lambda: (np.float64(1),)),
    ("decimals", lambda: (decimal.Decimal("1"),), lambda: (decimal.Decimal("2"),)),
    ("objects", lambda: (THING,), lambda: (OTHER,)),
    ("functions", lambda: (math.sin,), lambda: (math.cos,)),
    ("partials", lambda: (functools.partial(math.pow, 2),), lambda: (functools.partial(math.pow, 3),)),
    ("bound methods", lambda: (THING.run,), lambda: (OTHER.run,)),
    ("method wrappers", lambda: (THING.__init__,), lambda: (OTHER.__init__,)),
    ("same tensor twice", lambda: (BASE, BASE), lambda: (BASE, BASE.clone())),
    ("same tensor and an alias", lambda: (BASE, BASE), lambda: (BASE, BASE[:])),
    ("overlap", lambda: (BASE[:4], BASE[2:6]), lambda: (BASE[:4], BASE.clone()[2:6])),
    ("other overlap", lambda: (BASE[:4], BASE[2:6]), lambda: (BASE[:4], BASE[3:7])),
    ("overlap of three", lambda: (BASE[:4], BASE[2:6], T(4)), lambda: (BASE[:4], T(4), BASE[2:6])),
    ("one storage", lambda: (BASE[:4], BASE[8:12]), lambda: (BASE[:4], BASE.clone()[8:12])),
    ("one list twice", lambda: (lambda a: (a, a))([1]), lambda: ([1], [1])),
]


@pytest.mark.parametrize("name, first, second", DIFFERENT, ids=[d[0] for d in DIFFERENT])
def test_told_apart(name: str, first: Callable[[], Any], second: Callable[[], Any]) -> None:
    assert key(*first()) != key(*second())
    for make in (first, second):
        one = make()
        assert key(*one) == key(*one)


EQUAL: list[tuple[str, Callable[[], tuple[Any, ...]], Callable[[], tuple[Any, ...]]]] = [
    ("values of a tensor", lambda: (T(3),), lambda: (T(3) * 2,)),
    ("rows of a tensor", lambda: (torch.ones(4, 3)[0],), lambda: (torch.ones(4, 3)[2],)),
    ("rows of two tensors", lambda: (torch.ones(4, 3)[0], T(2)), lambda: (torch.ones(4, 3)[2], T(2))),
    ("two parts of a storage", lambda: (BASE[:4], BASE[8:12]), lambda: (lambda b: (b[:4], b[8:12]))(BASE.clone())),
    ("nan", lambda: (math.nan,), lambda: (float("nan"),)),
    ("equal containers", lambda: ({"a": [1, (2.0, None)], "b": Box(T(2), "s")},), lambda: ({"a": [1, (2.0, None)], "b": Box(T(2), "s")},)),
    ("strings", lambda: ("ab",), lambda: ("".join(("a", "b")),)),
    ("large numbers", lambda: (10**30,), lambda: (10**30,)),
    ("named tuples", lambda: (Pair(T(1), 2),), lambda: (Pair(T(1), 2),)),
    ("frozen", lambda: (Frozen((1, 2)),), lambda: (Frozen((1, 2)),)),
    ("bound methods", lambda: (THING.run,), lambda: (THING.run,)),
    ("method wrappers", lambda: (THING.__init__,), lambda: (THING.__init__,)),
    ("empty tensors of one storage", lambda: (BASE[:0], BASE[3:3]), lambda: (T(0), T(0))),
]


@pytest.mark.parametrize("name, first, second", EQUAL, ids=[d[0] for d in EQUAL])
def test_not_told_apart(name: str, first: Callable[[], Any], second: Callable[[], Any]) -> None:
    assert key(*first()) == key(*second())


def test_keywords_are_part_of_the_key() -> None:
    assert key(1, 2) != key(1, b=2)
    assert key(a=1, b=2) != key(b=2, a=1)
    assert key(1, b=2) == key(1, b=2)


def test_an_object_that_died_is_no_object_of_today() -> None:
    kept = []
    for _ in range(50):
        thing = Plain()
        made = key(thing)
        assert all(made != old for old in kept)
        kept.append(made)
        del thing


def test_the_state_around_is_part_of_the_key() -> None:
    x = T(2)
    keys = [key(x)]
    with torch.no_grad():
        keys.append(key(x))
    with torch.inference_mode():
        keys.append(key(x))
        keys.append(key(T(2)))
    with torch.autocast("cpu"):
        keys.append(key(x))
    with torch.autocast("cpu", dtype=torch.float16):
        keys.append(key(x))
    torch.set_default_dtype(torch.float64)
    try:
        keys.append(key(x))
    finally:
        torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(True)
    try:
        keys.append(key(x))
    finally:
        torch.use_deterministic_algorithms(False)
    assert len(set(keys)) == len(keys)
    assert key(x) == keys[0]


class Sub(torch.Tensor):
    pass


class Numbers:
    def __iter__(self) -> Any:
        return iter(())


EAGER: dict[str, Callable[[], Any]] = {
    "requires grad": lambda: T(2, requires_grad=True),
    "parameter that requires grad": lambda: torch.nn.Parameter(T(2)),
    "subclass": lambda: T(2).as_subclass(Sub),
    "conjugate": lambda: torch.ones(2, dtype=torch.complex64).conj(),
    "negative bit": lambda: torch.ones(2, dtype=torch.complex64).conj().imag,
    "meta": lambda: T(2, device="meta"),
    "sparse": lambda: T(2, 2).to_sparse(),
    "numpy array": lambda: np.ones(2),
    "iterator": lambda: iter([1]),
    "generator": lambda: (k for k in range(2)),
    "file": lambda: open(__file__),  # noqa: SIM115
    "in a list": lambda: [1, {"a": iter([])}],
    "nested": lambda: functools.reduce(lambda inner, _: [inner], range(100), [1]),
}


@pytest.mark.parametrize("name", EAGER)
def test_left_to_eager(name: str) -> None:
    value = EAGER[name]()
    assert flatten_call((value,)).eager
    assert flatten_call((), {"x": value}).eager
    if hasattr(value, "close"):
        value.close()


def test_a_container_in_itself_is_left_to_eager() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert flatten_call((loop,)).eager


def test_transforms_and_modes_are_left_to_eager() -> None:
    seen: list[Any] = []

    def f(x: Any) -> Any:
        seen.append(flatten_call((x,)).eager)
        return x * 2

    torch.vmap(f)(T(2, 2))
    torch.func.jvp(f, (T(2),), (T(2),))
    with torch.autograd.forward_ad.dual_level():
        seen.append(flatten_call((torch.autograd.forward_ad.make_dual(T(2), T(2)),)).eager)
    with torch.device("meta"):
        seen.append(flatten_call((1,)).eager)
    assert all(seen) and len(seen) == 4
    assert flatten_call((1,)).eager is None


def test_requires_grad_without_grad_mode() -> None:
    x = T(2, requires_grad=True)
    with torch.no_grad():
        assert key(x) != key(x.detach())


def test_places_of_tensors() -> None:
    def f(x: Any, rest: Any, *more: Any, named: Any = None) -> None: ...

    a, b, c, d, e = (T(k + 1) for k in range(5))
    call = Call((a, {"p": [b, 1, (c,)], "q": Box(d)}, e), {"named": Pair(a, 2)})
    flat = flatten_call(call.args, call.kwargs)
    places = argument_tensors(f, call.args, call.kwargs)
    assert [p.read(call) is t for p, t in zip(places, flat.tensors, strict=True)] == [True] * 6
    assert [str(p) for p in places] == ["x", "rest['p'][0]", "rest['p'][2][0]", "rest['q'].value", "more[0]", "named[0]"]


# ---------------------------------------------------------------------------------------------- aliasing
def test_groups_and_offsets() -> None:
    x = torch.zeros(4, 5)
    specs = input_specs([T(3), x[1], x.t(), x[3], T(2)])
    assert [s.group for s in specs] == [-1, 1, 1, 1, -1]
    assert [s.offset for s in specs] == [0, 20, 0, 60, 0]
    specs = input_specs([x, x])
    assert [s.flags for s in specs] == [0, 8] and specs[0].group == specs[1].group == 0


def test_memory_shared_under_two_storages() -> None:
    array = np.zeros(10, dtype=np.float32)
    low, high = torch.from_numpy(array[:6]), torch.from_numpy(array[4:])
    assert [s.group for s in input_specs([low, high])] == [0, 0]
    assert [s.group for s in input_specs([torch.from_numpy(array[:4]), high])] == [-1, -1]


# ---------------------------------------------------------------------------------------------- sources and guards
def test_sources_read_and_print() -> None:
    w = [1]

    def f() -> Any:
        return w

    cell = f.__closure__[0]  # type: ignore[index]
    o = Plain()
    o.table = {"k": [1, 2]}  # type: ignore[attr-defined]
    call = Call((o,), {"y": 5})
    table: dict[str, Any] = {"name": 3}
    cases = [
        (Arg(0, "x"), "x", o),
        (Arg("y", "y"), "y", 5),
        (Held(o, "self"), "self", o),
        (Global(table, "name"), "name", 3),
        (Global(table, "len"), "len", len),
        (Cell(cell, "f.closure.w"), "f.closure.w", w),
        (Item(Item(Attr(Arg(0, "x"), "table"), "k"), 1), "x.table['k'][1]", 2),
        (Class(Plain, "__init__"), "Plain.__init__", object.__init__),
    ]
    for source, text, value in cases:
        assert source.read(call) is value or source.read(call) == value
        assert str(source) == text
        assert {source: 1}[source] == 1
    assert Held(o, "a") == Held(o, "b") and Held(o, "a") != Held(Plain(), "a")
    assert Global(table, "name") != Global(dict(table), "name")


GUARDS: list[tuple[str, Any, Any, Any]] = [
    ("is", None, None, 0),
    ("equals", 2.0, 2.0, 2),
    ("equals", 0.0, 0.0, -0.0),
    ("equals", math.nan, float("nan"), 1.0),
    ("equals", (1, (2.0, "a")), (1, (2.0, "a")), (1, (2.0, "b"))),
    ("equals", 1, 1, True),
    ("equals", "a", "a", b"a"),
    ("equals", slice(1, 2), slice(1, 2), slice(1, 3)),
    ("equals", Color.RED, Color.RED, Color.BLUE),
    ("type", list, [2], (2,)),
    ("empty", dict, {}, {"a": 1}),
    ("empty", list, [], ()),
    ("length", (list, 2), [1, 2], [1]),
    ("length", (tuple, 0), (), []),
    ("keys", ["a", "b"], {"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ("absent", frozenset(("a", "b")), {"c": 1}, {"b": 1}),
    ("absent", frozenset(("a",)), Plain(), Box),
    ("deep", snapshot({"a": [1, T(2)]})[0], {"a": [1, T(2) * 3]}, {"a": [1, T(3)]}),
    ("deep", snapshot([THING])[0], [THING], [OTHER]),
    ("tensor", input_specs([T(2, 3)])[0], T(2, 3), T(3, 2)),
    ("tensor", input_specs([T(2)])[0], T(2), T(2, requires_grad=True)),
    ("tensor", input_specs([T(2)])[0], T(2), torch.nn.Parameter(T(2), requires_grad=False)),
]


@pytest.mark.parametrize("kind, expected, good, bad", GUARDS)
def test_guards(kind: Any, expected: Any, good: Any, bad: Any) -> None:
    Box.a = 1  # type: ignore[attr-defined]
    guard = Guard(Arg(0, "x"), kind, expected)
    assert holds([guard], Call((good,), {})) is None
    assert holds([guard], Call((bad,), {})) is guard
    assert holds([guard], Call((), {})) is guard, "the place is gone"
    assert "x" in str(guard)


def test_missing() -> None:
    guard = Guard(Attr(Arg(0, "x"), "later"), "missing", None)
    o = Plain()
    assert holds([guard], Call((o,), {})) is None
    o.later = 1  # type: ignore[attr-defined]
    assert holds([guard], Call((o,), {})) is guard


def test_argument_guards_say_what_the_key_says() -> None:
    def f(*args: Any) -> None: ...

    for _, first, second in DIFFERENT:
        one, other = first(), second()
        if any(isinstance(v, torch.Tensor) for v in (*one, *other)) or len(one) != len(other) or len(one) == 2:
            continue
        guards = argument_guards(f, Call(one, {}))
        assert holds(guards, Call(one, {})) is None
        assert holds(guards, Call(other, {})) is not None, (one, other, list(map(str, guards)))
    with pytest.raises(NotStatic):
        argument_guards(f, Call((iter([]),), {}))
