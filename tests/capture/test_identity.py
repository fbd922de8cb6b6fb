"""Which tensors are one object, and which share memory: every pair of places where code can find a tensor, in every way of using them.

A `World` is one function with two places in it, written out as source text.  Two equal worlds make the same calls, one eagerly and one
jitted; the tensors in the places are one object at first and two later, or the other way round, or come to overlap.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import warnings
import weakref
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import thermit

Pair = namedtuple("Pair", "p q")


@dataclasses.dataclass
class Both:
    p: Any = None
    q: Any = None


class Thing:
    p: Any = None
    q: Any = None


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name in "pq":
            self.register_parameter(name, torch.nn.Parameter(torch.ones(1), requires_grad=False))


class Holds(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name in "pq":
            self.register_buffer(name, torch.ones(1))


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of places.  `text`: how code names the place number {n} ({c}: as a letter); `parameter`: of the function, or "".

    `put(world, n, tensor)` puts a tensor there.
    """

    text: str
    put: Callable[[World, int, torch.Tensor], None]
    parameter: str = ""
    parameters: bool = False


def _argument(world: World, n: int, tensor: torch.Tensor) -> None:
    world.positional[n] = tensor


def _keyword(world: World, n: int, tensor: torch.Tensor) -> None:
    world.keywords[f"k{n}"] = tensor


def _in(build: Callable[[Any, Any], Any]) -> Callable[[World, int, torch.Tensor], None]:
    """An argument that holds both."""

    def put(world: World, n: int, tensor: torch.Tensor) -> None:
        now = world.inside.setdefault(build, [torch.ones(1), torch.ones(1)])
        now[n] = tensor
        world.positional[2] = build(*now)

    return put


def _attribute(target: Callable[[World], Any]) -> Callable[[World, int, torch.Tensor], None]:
    return lambda world, n, tensor: setattr(target(world), "pq"[n], tensor)


def _item(target: Callable[[World], Any], keys: Sequence[Any]) -> Callable[[World, int, torch.Tensor], None]:
    return lambda world, n, tensor: target(world).__setitem__(keys[n], tensor)


def _object(world: World, n: int, tensor: torch.Tensor) -> None:
    setattr(world.thing, "pq"[n], tensor)
    world.positional[2] = world.thing


def _default(world: World, n: int, tensor: torch.Tensor) -> None:
    world.names[f"h{n}"].__kwdefaults__["v"] = tensor


KINDS = {
    "argument": Kind("a{n}", _argument, "a{n}"),
    "keyword": Kind("k{n}", _keyword, "*, k{n}"),
    "star": Kind("rest[{n}]", lambda w, n, t: w.star.__setitem__(n, t), "*rest"),
    "double star": Kind("more['z{n}']", lambda w, n, t: w.keywords.__setitem__(f"z{n}", t), "**more"),
    "list argument": Kind("box[{n}]", _in(lambda p, q: [p, q]), "box"),
    "tuple argument": Kind("box[{n}]", _in(lambda p, q: (p, q)), "box"),
    "dict argument": Kind("box['{c}']", _in(lambda p, q: {"p": p, "q": q}), "box"),
    "numbered dict argument": Kind("box[{n}]", _in(lambda p, q: {0: p, 1: q}), "box"),
    "ordered dict argument": Kind("box['{c}']", _in(lambda p, q: OrderedDict(p=p, q=q)), "box"),
    "nested argument": Kind("box[0]['x'][{n}]", _in(lambda p, q: ({"x": [p, q]},)), "box"),
    "namedtuple argument": Kind("box.{c}", _in(Pair), "box"),
    "dataclass argument": Kind("box.{c}", _in(Both), "box"),
    "object argument": Kind("box.{c}", _object, "box"),
    "default": Kind("h{n}()", _default),
    "closure": Kind("w{n}", lambda w, n, t: w.names["close"](n, t)),
    "global": Kind("G{n}", lambda w, n, t: w.names.__setitem__(f"G{n}", t)),
    "attribute": Kind("S.{c}", _attribute(lambda w: w.names["S"])),
    "attribute of a class": Kind("T.{c}", _attribute(lambda w: w.names["T"])),
    "list": Kind("L[{n}]", _item(lambda w: w.names["L"], (0, 1))),
    "dict": Kind("D['{c}']", _item(lambda w: w.names["D"], "pq")),
    "numbered dict": Kind("E[{n}]", _item(lambda w: w.names["E"], (0, 1))),
    "parameter": Kind("M.{c}", _attribute(lambda w: w.names["M"]), parameters=True),
    "buffer": Kind("B.{c}", _attribute(lambda w: w.names["B"])),
}

USES = {
    "read": "return {p}, {q}, {p} * 2 - {q}",
    "write": "{p}.add_(1); return {p} * {q}",
    "write the other": "{q}.mul_(3); return {p} + {q}, {p}",
    "is": "return {p} + 1 if {p} is {q} else {p} - 1",
    "id": "return {p} + 1 if id({p}) == id({q}) else {p} - 1",
    "in a list": "return {p} + 1 if any(t is {p} for t in [{q}]) else {p} - 1",
    "in a set": "return {p} + 1 if {q} in {{{p}}} else {p} - 1",
    "key": "return {p} + {{{p}: 1, {q}: 2}}[{p}]",
    "helper": "return same({p}, {q})",
}

BOTH = ("read", "write")
OTHERS = tuple(use for use in USES if use not in BOTH)

SOURCE = """
def same(x, y):
    return x * 2 if x is y else x * 3

def h0(*, v=None):
    return v

def h1(*, v=None):
    return v

def make(w0, w1):
    def f({parameters}):
        {use}

    def close(n, tensor):
        nonlocal w0, w1
        if n == 0:
            w0 = tensor
        else:
            w1 = tensor

    return f, close
"""


class World:
    def __init__(self, p: str, q: str, use: str, jitted: bool) -> None:
        self.kinds = KINDS[p], KINDS[q]
        texts = [kind.text.format(n=n, c="pq"[n]) for n, kind in enumerate(self.kinds)]
        order = _parameters({kind.parameter.format(n=n) for n, kind in enumerate(self.kinds)})
        self.positional: dict[int, Any] = {}
        self.star: dict[int, Any] = {}
        self.keywords: dict[str, Any] = {}
        self.inside: dict[Any, list[Any]] = {}
        self.thing = Thing()
        self.names: dict[str, Any] = {
            **{
                "G0": None,
                "G1": None,
                "S": SimpleNamespace(),
                "T": type("T", (), {}),
                "L": [torch.ones(1), torch.ones(1)],
                "M": Model(),
                "B": Holds(),
            },
            **{"D": {"p": torch.ones(1), "q": torch.ones(1)}, "E": {0: torch.ones(1), 1: torch.ones(1)}},
        }
        text = SOURCE.format(parameters=order, use=USES[use].format(p=texts[0], q=texts[1]))
        exec(text, self.names)
        f, self.names["close"] = self.names["make"](None, None)
        self.f = thermit.jit(f, max_variants=20) if jitted else f

    def call(self, tensors: Sequence[torch.Tensor]) -> Any:
        self.positional.clear()
        self.keywords.clear()
        self.star.clear()
        for n, (kind, tensor) in enumerate(zip(self.kinds, tensors, strict=True)):
            kind.put(self, n, tensor)
        star = [self.star.get(n, tensors[0]) for n in range(max(self.star, default=-1) + 1)]
        return self.f(*[self.positional[n] for n in sorted(self.positional)], *star, **self.keywords)


def _parameters(texts: set[str]) -> str:
    """The parameters of the function: positional ones, those by keyword only, the rest."""
    keywords = sorted(text.removeprefix("*, ") for text in texts if text.startswith("*, "))
    star = ["*rest"] if "*rest" in texts else ["*"] if keywords else []
    plain = sorted(text for text in texts if text and "*" not in text)
    return ", ".join([*plain, *star, *keywords, *(text for text in texts if text == "**more")])


def _tensors(same: str, parameters: bool) -> list[torch.Tensor]:
    """The tensors of one call."""

    def fresh(values: list[float]) -> torch.Tensor:
        made = torch.tensor(values)
        return torch.nn.Parameter(made, requires_grad=False) if parameters else made

    x = fresh([1.0, 2.0, 3.0])
    if same == "one":
        return [x, x]
    if same in ("overlap", "views"):
        base = torch.tensor([1.0, 2.0, 3.0, 4.0])
        both = [base[:3], base[1:] if same == "overlap" else base[:3]]
        return [torch.nn.Parameter(t, requires_grad=False) for t in both] if parameters else both
    return [x, fresh([4.0, 5.0, 6.0])]


def _answer(value: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """What a result says: values, and which of the tensors it is."""
    parts = value if isinstance(value, tuple) else (value,)
    return [(next((n for n, t in enumerate(tensors) if t is part), None), part.tolist()) for part in parts], [t.tolist() for t in tensors]


ORDERS = (("one", "two", "one", "overlap"), ("two", "one", "overlap"), ("overlap", "two", "views", "one"))


def check(p: str, q: str, use: str, order: Sequence[str]) -> None:
    parameters = KINDS[p].parameters or KINDS[q].parameters
    worlds = [World(p, q, use, jitted) for jitted in (False, True)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", thermit.ThermitWarning)
        for number, same in enumerate((*order, *order[:2])):
            answers = []
            for world in worlds:
                tensors = _tensors(same, parameters)
                answers.append(_answer(world.call(tensors), tensors))
            assert answers[1] == answers[0], f"call {number} ({same})"


def _cases() -> list[Any]:
    """Every pair of places, read and written and used in one way of the others; where both are of one kind, in all ways."""
    boxes = [name for name in KINDS if KINDS[name].parameter == "box"]
    pairs = [(p, q) for p, q in itertools.product(KINDS, KINDS) if p == q or not (p in boxes and q in boxes)]
    turn = itertools.count()
    cases = []
    for p, q in pairs:
        third = OTHERS if p == q or os.environ.get("THERMIT_TEST_ALL") else (OTHERS[next(turn) % len(OTHERS)],)
        first = BOTH if list(KINDS).index(p) <= list(KINDS).index(q) else BOTH[next(turn) % len(BOTH) :][:1]
        cases += [pytest.param(p, q, use, ORDERS[next(turn) % len(ORDERS)], id=f"{p}-{q}-{use}".replace(" ", "_")) for use in (*first, *third)]
    return cases


@pytest.mark.parametrize("p, q, use, order", _cases())
def test_two_places(p: str, q: str, use: str, order: Sequence[str]) -> None:
    check(p, q, use, order)


# ---------------------------------------------------------------------------------------------- more than two, and containers
def _follow(function: Callable[..., Any], calls: Sequence[Callable[[], Any]], jit: bool = True) -> list[Any]:
    """What the calls give; each makes its arguments."""
    made = thermit.jit(function, max_variants=20) if jit else function
    answers = []
    for arguments in (*calls, *calls):
        args = arguments()
        value = made(*args)
        parts = value if isinstance(value, tuple) else (value,)
        tensors = [t for a in args for t in (a if isinstance(a, list | tuple) else [a]) if isinstance(t, torch.Tensor)]
        answers.append([p.tolist() if isinstance(p, torch.Tensor) else p for p in parts] + [t.tolist() for t in tensors])
    return answers


def agree(function: Callable[..., Any], *calls: Callable[[], Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", thermit.ThermitWarning)
        assert _follow(function, calls) == _follow(function, calls, jit=False)


def _vectors(count: int) -> list[torch.Tensor]:
    return [torch.arange(3.0) + n for n in range(count)]


def _twins() -> list[torch.Tensor]:
    base = torch.arange(4.0)
    return [base[:2], base[:2]]


def _which(a: Any, b: Any, c: Any) -> Any:
    return a + (10 if a is b else 0) + (20 if b is c else 0) + (40 if a is c else 0)


@pytest.mark.parametrize("pack", [lambda *t: t, lambda *t: (list(t),), lambda *t: (t,)], ids=["arguments", "list", "tuple"])
@pytest.mark.parametrize("made", [_vectors, lambda count: [*_twins(), torch.ones(2)][:count]], ids=["apart", "views"])
def test_three_tensors(pack: Any, made: Any) -> None:
    def which(*given: Any) -> Any:
        return _which(*(given if len(given) == 3 else given[0]))

    patterns = ((0, 0, 1), (0, 0, 0), (0, 1, 0), (0, 1, 1), (0, 1, 2))
    agree(which, *[lambda p=p: pack(*[ts[n] for ts in [made(3)] for n in p]) for p in patterns])


@pytest.mark.parametrize("count", [7, 20, 300, 3000])
def test_many_tensors(count: int) -> None:
    tensors = [torch.full((2,), float(n)) for n in range(count)]
    jitted: Any = thermit.jit(lambda box: box[0] + 1 if box[0] is box[-1] else box[0] - 1)
    assert torch.equal(jitted(tensors), tensors[0] - 1)
    assert torch.equal(jitted(tensors), tensors[0] - 1)
    assert jitted._entry.hits == 1
    for again in range(count - 1):
        if again % max(1, count // 5) == 0:
            assert torch.equal(jitted([*tensors[:-1], tensors[again]]), tensors[0] + (1 if again == 0 else -1))
    assert torch.equal(jitted(tensors), tensors[0] - 1)


def test_two_steps_of_a_simulation() -> None:
    state = SimpleNamespace(now=torch.ones(2))
    state.before = state.now
    step = thermit.jit(lambda: state.now * 2 - state.before)
    assert step().tolist() == [1, 1]
    state.now = torch.full((2,), 5.0)
    assert step().tolist() == [9, 9] and step().tolist() == [9, 9]
    state.before = state.now
    assert step().tolist() == [5, 5]


LIST: list[Any] = [torch.ones(3), torch.ones(3)]
OTHER: list[Any] = [torch.ones(3)]


@pytest.mark.parametrize(
    "function",
    [
        lambda box: box[0] + 1 if box is LIST else box[0] - 1,
        lambda box: (box.append(box[0]), len(LIST), box.pop())[1] + box[0],
        lambda box: box[0] * LIST[0],
        lambda box: box[0] + len([item for item in LIST if item is box[0]]),
    ],
    ids=["is", "changes", "reads", "looks"],
)
def test_a_list_that_is_an_argument_and_a_global(function: Any) -> None:
    agree(function, lambda: (LIST,), lambda: ([torch.ones(3), torch.ones(3)],), lambda: ([LIST[0]],), lambda: (OTHER,))


def test_lists_of_an_argument() -> None:
    def same(pair: Any) -> Any:
        return pair[0][0] + (1 if pair[0] is pair[1] else 2)

    def one() -> Any:
        box = _vectors(1)
        return ((box, box),)

    def equal() -> Any:
        tensors = _vectors(1)
        return (([*tensors], [*tensors]),)

    agree(same, one, equal, one)
    agree(same, equal, one)


def test_lists_outside() -> None:
    space = SimpleNamespace(a=[1], b=[1])
    jitted = thermit.jit(lambda x: x + (1 if space.a is space.b else 2))
    x = torch.ones(2)
    assert jitted(x).tolist() == [3, 3]
    space.b = space.a
    assert jitted(x).tolist() == [2, 2]
    space.b = [1]
    assert jitted(x).tolist() == [3, 3]


def test_a_dataclass_that_is_an_argument_and_a_global() -> None:
    for first in (True, False):
        both, other = Both(torch.ones(2), 1), Both(torch.ones(2), 1)
        bare, plain = Both(1, 2), Both(1, 2)

        def reads(c: Any) -> Any:
            return c.p + (1 if c is both or c is bare else 2) + torch.zeros(2)  # noqa: B023

        def writes(c: Any) -> Any:
            c.q = 5
            return torch.ones(2) + both.q  # noqa: B023

        for function in (reads, writes):
            jitted = thermit.jit(function)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", thermit.ThermitWarning)
                for argument in (both, other, bare, plain) if first else (other, both, plain, bare):
                    both.q = 1
                    expected = function(argument)
                    both.q = 1
                    assert torch.equal(jitted(argument), expected)


KEPT = torch.ones(1)
KEY: Any = {KEPT: 3}
NUMBER: Any = {id(KEPT): 4}
HASH: Any = {hash(KEPT): 4}
SET: Any = {KEPT}
FROZEN = frozenset([KEPT])
IN_KEY: Any = {(KEPT, 1): 2}
IN_LIST = [KEPT]
WEAK = weakref.WeakKeyDictionary({KEPT: 7})
LOOKED_UP: dict[str, Callable[[Any], Any]] = {
    "key": lambda a: a + KEY.get(a, 5),
    "weak key": lambda a: a + WEAK.get(a, 5),
    "in keys": lambda a: a + (3 if a in KEY else 7),
    "in a key": lambda a: a + IN_KEY.get((a, 1), 9),
    "set": lambda a: a + (1 if a in SET else 2),
    "frozen": lambda a: a + (1 if a in FROZEN else 2),
    "id": lambda a: a + NUMBER.get(id(a), 5),
    "hash": lambda a: a + HASH.get(hash(a), 5),
    "equal ids": lambda a: (a + 1, id(a) == id(KEPT)),
    "list": lambda a: a + sum(a is t for t in IN_LIST),
    "count": lambda a: a + IN_LIST.count(a),
    "equal": lambda a: a + (1 if [a] == IN_LIST else 2),
}


@pytest.mark.parametrize("way", LOOKED_UP)
def test_what_is_looked_up_by_identity(way: str) -> None:
    others = [torch.ones(1), torch.full((1,), 7.0)]
    for order in ((KEPT, *others), (*others, KEPT)):
        agree(LOOKED_UP[way], *[lambda t=t: (t,) for t in order])


@pytest.mark.parametrize(
    "argument",
    [lambda x: {x: 2}, lambda x: {x}, lambda x: frozenset([x]), lambda x: {(x, 1): 2}, lambda x: [{x: 2}]],
    ids=["key", "set", "frozenset", "in a key", "nested"],
)
def test_arguments_that_are_looked_up_by_identity(argument: Any) -> None:
    def function(box: Any, a: Any) -> Any:
        while isinstance(box, list):
            box = box[0]
        return a + (1 if a in box or (a, 1) in box else 2)

    x, y = torch.ones(3), torch.ones(3)
    agree(function, lambda: (argument(x), x), lambda: (argument(x), y))


def test_before_it_runs_again_nothing_is_changed() -> None:
    def helper(a: Any) -> Any:
        return a + 1 if a is KEPT else a + 2

    def function(box: Any) -> Any:
        box.append(1)
        return helper(box[0])

    jitted = thermit.jit(function)
    for _ in range(2):
        box: list[Any] = [torch.ones(3)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", thermit.ThermitWarning)
            assert jitted(box).tolist() == [3, 3, 3] and len(box) == 2


def test_tied_weights() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3, bias=False)).requires_grad_(False)
    model[1].weight = model[0].weight
    jitted, x = thermit.jit(lambda x: model(x)), torch.ones(1, 3)
    for _ in range(2):
        assert torch.equal(jitted(x), model(x))
    model[1].weight = torch.nn.Parameter(torch.eye(3) * 2, requires_grad=False)
    for _ in range(2):
        assert torch.equal(jitted(x), model(x))
    model[0].weight = model[1].weight
    for _ in range(2):
        assert torch.equal(jitted(x), model(x))


def test_many_facts_that_hardly_ever_change() -> None:
    """Guards that are vouched for by versions of dicts (runtime/shorten.py) leave only the arguments to compare."""
    space = Thing()
    names = [f"w{n}" for n in range(40)]
    for name in names:
        setattr(space, name, torch.full((2,), float(name[1:])))
    body = " + ".join(f"space.{name}" for name in names)
    checks = " + ".join(f"(x is space.{name})" for name in names)
    f = eval(f"lambda x, y: x + y * 0 + {body} + ({checks}) * 1000 + (x is y) * 5000 + (space.w3 is space.w4) * 100", {"space": space})
    jitted: Any = thermit.jit(f, max_variants=20)
    x, y = torch.ones(2), torch.zeros(2)

    def agrees(*args: torch.Tensor) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", thermit.ThermitWarning)
            assert torch.equal(jitted(*args), f(*args))

    for _ in range(30):
        agrees(x, y)
    assert jitted._entry.hits == 29
    agrees(space.w7, y)  # type: ignore[attr-defined]
    agrees(x, space.w7)  # type: ignore[attr-defined]
    agrees(x, x)
    for _ in range(30):
        agrees(x, y)
    space.w3 = space.w4  # type: ignore[attr-defined]
    for _ in range(30):
        agrees(x, y)
    space.w3 = torch.full((2,), 3.0)  # type: ignore[attr-defined]
    for _ in range(30):
        agrees(x, y)
    agrees(space.w39, y)  # type: ignore[attr-defined]


def _compared_later(a: Any, box: Any = None) -> Any:
    given = a if box is None else box[0]
    inner = lambda: given is KEPT  # noqa: E731
    same = [given is KEPT, any(t is given for t in IN_LIST), inner()]
    return given + sum(same) + (10 if given in {KEPT} else 20)


@pytest.mark.parametrize("boxed", [False, True])
@pytest.mark.parametrize(
    "before", [lambda a: a.sum().item(), lambda a: print(end=""), lambda a: setattr(Thing, "seen", object())], ids=["value", "effect", "state"]
)
def test_compared_when_it_is_too_late_to_begin_again(before: Any, boxed: bool) -> None:
    def function(a: Any) -> Any:
        before(a[0] if boxed else a)
        b = (a[0] if boxed else a) * 2
        return b + (_compared_later(None, a) if boxed else _compared_later(a))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", thermit.ThermitWarning)
        for tensor in (KEPT, torch.ones(1)):
            jitted, argument = thermit.jit(function), [tensor] if boxed else tensor
            for _ in range(2):
                assert torch.equal(jitted(argument), function(argument))
                assert not boxed or (len(argument) == 1 and argument[0] is tensor)
