"""Objects that are made anew for each use: compiled once for all of a kind, and nothing about one of them is taken for granted of another."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import thermit

X = torch.ones(2)
GLOBAL: Any = None
SEEN: Any = None


class Memory:
    def __init__(self, scale: Any = 2.0, inner: Any = None) -> None:
        self.scale, self.inner = scale, inner
        self.first, self.parts = torch.ones(2), [torch.ones(2), torch.zeros(2)]
        self.second = torch.ones(2)


class Other(Memory):
    scaled = True


def run(x: torch.Tensor, m: Any) -> torch.Tensor:
    y = x * m.scale + m.first * m.parts[1] + m.parts[0]
    return y if m.inner is None else y + m.inner.first * m.inner.scale


def is_global(x: torch.Tensor, m: Any) -> torch.Tensor:
    return x * 2 if m is GLOBAL else x


def is_seen(x: torch.Tensor, m: Any) -> torch.Tensor:
    return x * 2 if m in SEEN else x


def has_seen(x: torch.Tensor, m: Any) -> torch.Tensor:
    return x * 2 if m.inner is SEEN[0] else x


def agrees(jitted: Any, *calls: Any) -> None:
    for m in calls:
        for _ in range(2):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                assert torch.equal(jitted(X, m), jitted.__wrapped__(X, m))


def test_one_compilation_for_all_objects_of_a_kind() -> None:
    jitted = thermit.jit(run, strict=True)
    objects = [Memory(inner=Memory(3.0)) for _ in range(20)]
    for k, m in enumerate(objects):
        m.first.fill_(k)
        m.inner.first.fill_(2 * k)
    agrees(jitted, *objects, *objects)
    assert jitted._state.compiled == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda m: setattr(m, "scale", 5.0),
        lambda m: setattr(m, "scale", 2),
        lambda m: setattr(m, "inner", None),
        lambda m: setattr(m, "inner", Memory(7.0)),
        lambda m: setattr(m.inner, "scale", 9.0),
        lambda m: setattr(m, "parts", [torch.ones(2) * 3, torch.ones(2) * 4, torch.ones(2)]),
        lambda m: m.parts.reverse(),
        lambda m: setattr(m, "first", torch.ones(2, dtype=torch.float64)),
        lambda m: setattr(m, "first", m.parts[0]),
        lambda m: setattr(m, "inner", m),
        lambda m: setattr(m, "__class__", Other),
    ],
)
def test_a_change_of_any_of_them_is_seen(change: Callable[[Any], Any]) -> None:
    for which in range(3):
        jitted = thermit.jit(run)
        objects = [Memory(inner=Memory(3.0)) for _ in range(3)]
        agrees(jitted, *objects)
        assert jitted._state.compiled == 1
        change(objects[which])
        agrees(jitted, *objects, Memory(inner=Memory(3.0)))


def test_another_object_may_have_been_changed_before() -> None:
    jitted = thermit.jit(run)
    agrees(jitted, Memory(), Memory(4.0), Memory(inner=Memory()), Other(), Memory(inner=Memory(1.0)), Memory(4.0))


def test_which_object_it_is_stays_a_fact() -> None:
    global GLOBAL, SEEN
    one, two = Memory(), Memory()
    for other in (one, two):
        GLOBAL = other
        agrees(thermit.jit(is_global), one, two, Memory(), two, one)
    for others in ([two], {two}, {two: 1}, (two,), [one], {one: 1}):
        SEEN = others
        agrees(thermit.jit(is_seen), one, two, Memory(), two, one)
    SEEN = [one]
    agrees(thermit.jit(has_seen), Memory(inner=two), Memory(inner=one), Memory(inner=Memory()), Memory(inner=one))
    SEEN = None


def test_tensors_of_an_object_that_are_one() -> None:
    jitted = thermit.jit(lambda x, m: x + (m.first is m.second) + m.first * m.second)
    shared = Memory()
    shared.second = shared.first
    agrees(jitted, Memory(), shared, Memory(), shared)


def test_writes_and_results_are_of_the_object_that_was_given() -> None:
    def step(x: torch.Tensor, m: Any) -> Any:
        m.first.add_(x)
        return m, m.parts, m.first * 2

    jitted = thermit.jit(step, strict=True)
    for k in range(20):
        m = Memory()
        for count in (1, 2):
            got, parts, doubled = jitted(X * k, m)
            assert got is m and parts is m.parts
            assert torch.equal(m.first, X + count * k * X) and torch.equal(doubled, m.first * 2)
    assert jitted._state.compiled == 1


def test_objects_are_let_go() -> None:
    jitted = thermit.jit(run)
    alive = []
    for _ in range(60):
        m = Memory()
        jitted(X, m)
        alive.append(weakref.ref(m))
    del m
    gc.collect()
    assert sum(r() is not None for r in alive) < 30


def test_what_each_call_changes_is_traced_twice_and_told_once() -> None:
    class Counting:
        def __init__(self) -> None:
            self.calls, self.on = 0, True

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            if self.on:
                self.calls += 1
            return x * 2 + self.calls

    counting = Counting()
    jitted = thermit.jit(lambda x: counting(x))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for k in range(40):
            assert torch.equal(jitted(X), X * 3 + k)
    assert counting.calls == 40 and len(caught) == 1 and "calls" in str(caught[0].message)
    assert jitted._state.live[True] == 2
    counting.on = False
    for _ in range(40):
        assert torch.equal(jitted(X), X * 42)
    assert jitted._state.compiled == 1


def test_a_list_that_grows_is_traced_twice() -> None:
    log: list[Any] = []

    def append(x: torch.Tensor) -> torch.Tensor:
        log.append(x.shape)
        return x * len(log)

    jitted = thermit.jit(append)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for k in range(1, 20):
            assert torch.equal(jitted(torch.ones(k)), torch.ones(k) * k)
    assert len(log) == 19 and len(caught) == 1 and jitted._state.live[True] == 2


def test_sizes_that_change_nothing_are_compiled_in_the_end() -> None:
    log: list[Any] = []

    def short(x: torch.Tensor) -> torch.Tensor:
        if x.numel() < 4:
            log.append(1)
        return x * 2

    jitted = thermit.jit(short)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for k in range(1, 4):
            jitted(torch.ones(k))
        for _ in range(12):
            assert torch.equal(jitted(torch.ones(5)), torch.ones(5) * 2)
    assert len(log) == 3 and jitted._state.compiled == 1
