"""What a tensor knows of itself and no spec says (gradient, version, attributes hung on it), wherever the function finds the tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import thermit

Function = Callable[[torch.Tensor], Any]
pytestmark = pytest.mark.filterwarnings("ignore::thermit.ThermitWarning")


class Holder:
    def __init__(self, t: torch.Tensor) -> None:
        self.t = t


class Module(torch.nn.Module):
    def __init__(self, t: torch.Tensor) -> None:
        super().__init__()
        self.t = torch.nn.Parameter(t, requires_grad=False)
        object.__setattr__(self, "plain", t)


T = torch.zeros(3)


def _marked(t: torch.Tensor) -> Any:
    return getattr(t, "mark", 1)


WAYS: dict[str, Callable[[torch.Tensor, Callable[[torch.Tensor], Any]], Function]] = {
    "closed over": lambda t, ask: lambda x: x * ask(t),
    "list": lambda t, ask: (lambda a: lambda x: x * ask(a[0]))([t]),
    "dict": lambda t, ask: (lambda a: lambda x: x * ask(a["k"]))({"k": t}),
    "object": lambda t, ask: (lambda a: lambda x: x * ask(a.t))(Holder(t)),
    "comprehension": lambda t, ask: (lambda a: lambda x: x * sum(ask(u) for u in a))((t, t)),
    "used too": lambda t, ask: lambda x: (x + t) * ask(t),
}
ASKED: dict[str, Callable[[torch.Tensor], Any]] = {
    "grad": lambda t: 1 if t.grad is None else 2,
    "grad by name": lambda t: 1 if getattr(t, "grad") is None else 2,  # noqa: B009
    "gradient's values": lambda t: 1 if t.grad is None else t.grad.sum() * 3,
    "version": lambda t: t._version + 1,
    "mark": _marked,
    "has": lambda t: 2 if hasattr(t, "mark") else 3,
    "private": lambda t: getattr(t, "_mark", 1),
    "vars": lambda t: len(vars(t)) + 1,
    "dict": lambda t: len(t.__dict__) + 1,
    "dir": lambda t: 2 if "mark" in dir(t) else 3,
}


def _change(t: torch.Tensor) -> None:
    t.grad, t.mark, t._mark = torch.ones(3), 5, 6  # type: ignore[attr-defined]
    with torch.no_grad():
        t.add_(1)


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("way", WAYS)
def test_of_a_tensor_found_outside(way: str, asked: str) -> None:
    t, x = torch.ones(3), torch.ones(3)
    function = WAYS[way](t, ASKED[asked])
    jitted = thermit.jit(function)
    for _ in range(2):
        assert torch.equal(jitted(x), function(x))
    _change(t)
    for _ in range(2):
        assert torch.equal(jitted(x), function(x))


@pytest.mark.parametrize("asked", ASKED)
def test_of_an_argument(asked: str) -> None:
    def function(x: torch.Tensor) -> Any:
        return T + ASKED[asked](x)

    jitted, x, other = thermit.jit(function), torch.ones(3), torch.ones(3)
    _change(other)
    for t in (x, x, other, other, x):
        assert torch.equal(jitted(t), function(t))


def test_attributes_that_tensors_lack_are_compiled() -> None:
    """As libraries ask for the classes of other libraries; a stranger may hang one on an argument later."""

    def function(x: torch.Tensor) -> Any:
        y = x * 2
        if hasattr(y, "jax") or hasattr(y[1:], "_jax"):
            return y
        return y + 1 if hasattr(x, "jax") else y - getattr(x, "other", 3)

    jitted, x, other = thermit.jit(function), torch.ones(3), torch.ones(3)
    assert torch.equal(thermit.jit(function, strict=True)(x), function(x))
    other.jax = True  # type: ignore[attr-defined]
    for t in (x, other, x, other):
        assert torch.equal(jitted(t), function(t))
    x.other = 5  # type: ignore[attr-defined]
    assert torch.equal(jitted(x), function(x))


@pytest.mark.parametrize("asked", [*ASKED, "shared"])
def test_of_the_parameters_of_a_module(asked: str) -> None:
    ask = ASKED.get(asked, lambda t: 2 if t.is_shared() else 3)
    module, x = Module(torch.ones(3)), torch.ones(3)

    def function(x: torch.Tensor) -> Any:
        return x * sum(ask(p) for p in module.parameters())

    jitted = thermit.jit(function)
    for _ in range(2):
        assert torch.equal(jitted(x), function(x))
    _change(module.t)
    module.t.share_memory_()
    for _ in range(2):
        assert torch.equal(jitted(x), function(x))


def _all_of(tensors: Any, ask: Callable[[torch.Tensor], Any]) -> Any:
    return sum(ask(t) for t in tensors)


HANDED: dict[str, Callable[[Module, Callable[[torch.Tensor], Any]], Any]] = {
    "one by name": lambda m, ask: ask(m.get_parameter("t")),
    "the first": lambda m, ask: ask(next(m.parameters())),
    "named": lambda m, ask: sum(ask(p) for _, p in m.named_parameters()),
    "in a list": lambda m, ask: _all_of([*m.parameters()], ask),
    "in a dict": lambda m, ask: _all_of(dict(m.named_parameters()).values(), ask),
    "through a generator": lambda m, ask: _all_of((p for p in m.parameters()), ask),
    "mapped": lambda m, ask: sum(map(ask, m.parameters())),
    "of its state": lambda m, ask: _all_of(m.state_dict(keep_vars=True).values(), ask),
}


@pytest.mark.parametrize("way", HANDED)
@pytest.mark.parametrize("asked", ["mark", "has", "private", "vars", "dir"])
def test_of_tensors_that_a_module_hands_out(asked: str, way: str) -> None:
    module, x = Module(torch.ones(3)), torch.ones(3)
    function = lambda x: x * HANDED[way](module, ASKED[asked])  # noqa: E731
    jitted = thermit.jit(function)
    for _ in range(2):
        assert torch.equal(jitted(x), function(x))
    _change(module.t)
    for _ in range(2):
        assert torch.equal(jitted(x), function(x))


def test_a_walk_over_parameters_is_compiled() -> None:
    module, x = Module(torch.ones(3)), torch.ones(3)

    def function(x: torch.Tensor) -> Any:
        kinds = {p.dtype for p in module.parameters() if not hasattr(x, "none")}
        return x.to(next(iter(kinds))) * getattr(x, "none", 2)

    assert torch.equal(thermit.jit(function, strict=True)(x), function(x))


def test_of_a_tensor_at_two_places() -> None:
    a, b = torch.ones(3), torch.ones(3)
    a.mark = b.mark = 2  # type: ignore[attr-defined]
    places = [a, a]

    def function(x: torch.Tensor) -> Any:
        return x * (places[0].mark + places[1].mark)  # type: ignore[attr-defined]

    jitted, x = thermit.jit(function), torch.ones(3)
    assert torch.equal(jitted(x), function(x))
    b.mark = 3  # type: ignore[attr-defined]
    places[1] = b
    assert torch.equal(jitted(x), function(x))


def test_what_is_not_changed_stays_compiled() -> None:
    t = torch.ones(3)
    t.mark = 2  # type: ignore[attr-defined]
    jitted = thermit.jit(lambda x: x * t.mark + getattr(t, "other", 3) + t, strict=True)  # type: ignore[attr-defined]
    assert torch.equal(jitted(torch.ones(3)), torch.full((3,), 6.0))


def test_a_gradient_written_to_a_tensor_outside() -> None:
    t, x = torch.ones(3), torch.ones(3)

    def function(x: torch.Tensor) -> Any:
        t.grad = x * 2
        return x + t.grad

    jitted = thermit.jit(function)
    for _ in range(3):
        t.grad = None
        assert torch.equal(jitted(x), torch.full((3,), 3.0))
        made: Any = t.grad
        assert type(made) is torch.Tensor
        assert torch.equal(made, torch.full((3,), 2.0))


def test_a_mark_written_by_the_function() -> None:
    t, x = torch.ones(3), torch.ones(3)

    def function(x: torch.Tensor) -> Any:
        t.mark = getattr(t, "mark", 0) + 1  # type: ignore[attr-defined]
        return x * t.mark  # type: ignore[attr-defined]

    jitted = thermit.jit(function)
    assert [float(jitted(x).sum()) for _ in range(4)] == [3.0, 6.0, 9.0, 12.0]


G = torch.ones(3)


class Masked(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", G)
        self.kept = G

    def which(self, x: torch.Tensor) -> int:
        return (2 if x is self.mask else 3) * (5 if self.kept is x else 7)


def test_whether_an_argument_is_a_tensor_found_outside() -> None:
    h, masked = G, Masked()
    functions: tuple[Function, ...] = (
        lambda x: x * (2 if x is G else 3),
        lambda x: (x + h) * (2 if x is not h else 3),
        lambda x: x * masked.which(x),
        lambda x: x * (2 if G is x else 3) if x is not None else None,
    )
    other = torch.ones(3)
    for function in functions:
        for order in ((G, other, G), (other, G, other)):
            jitted = thermit.jit(function)
            for x in order:
                assert torch.equal(jitted(x), function(x))


def test_is_none_stays_compiled() -> None:
    def function(x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        return x + G if y is None else x

    assert torch.equal(thermit.jit(function, strict=True)(torch.ones(3)), torch.full((3,), 2.0))
