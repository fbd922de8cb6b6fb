"""Scatters into inputs (caches of keys): written where they lie, unless something that can stop, or reads the old value, comes afterwards."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import thermit

Step = Callable[..., Tensor]


def appended(c: Tensor, i: Tensor, x: Tensor, y: Tensor) -> Tensor:
    c.index_copy_(1, i, x)
    return (c * y).sum(-1)


def old_is_read(c: Tensor, i: Tensor, x: Tensor, y: Tensor) -> Tensor:
    before = c.sum(1)
    c.index_copy_(1, i, x)
    return before - c.sum(1)


def value_is_old(c: Tensor, i: Tensor, x: Tensor, y: Tensor) -> Tensor:
    c.index_copy_(1, i, c[:, :3].flip(1) + x)
    return c.sum(-1)


def added(c: Tensor, i: Tensor, x: Tensor, y: Tensor) -> Tensor:
    c.index_add_(1, i, x)
    return c.amax(1)


def put(c: Tensor, i: Tensor, x: Tensor, y: Tensor) -> Tensor:
    c[:, i] = x
    return c * 2


def only_written(c: Tensor, i: Tensor, x: Tensor, y: Tensor) -> Tensor:
    c.index_copy_(1, i, x)
    return y + 1


def each_other(c: Tensor, i: Tensor, x: Tensor, y: Tensor) -> Tensor:
    d = y.sum(-1)
    c.index_copy_(1, i, x + d[:, :3, None])
    y.index_copy_(1, i, c[:, -3:])
    return c.sum() + y.sum()


def old_of_each_other(c: Tensor, i: Tensor, x: Tensor, y: Tensor) -> Tensor:
    a, b = c.flip(1).sum(-1), y.flip(1).sum(-1)
    c.index_copy_(1, i, x + b[:, :3, None])
    y.index_copy_(1, i, x + a[:, :3, None])
    return c.sum(-1) + y.sum(-1) + a + b


def looked_up(c: Tensor, i: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """What is found at the end may not be there."""
    c.index_copy_(1, i, x)
    return y[0, c[0, i, 0].long().remainder(20) + 0 * i]


def called(c: Tensor, i: Tensor, x: Tensor, y: Tensor) -> Tensor:
    c.index_copy_(1, i, x)
    return torch.linalg.vector_norm(c, 3) + torch.histc(c).sum()


STEPS: list[Step] = [appended, old_is_read, value_is_old, added, put, only_written, each_other, old_of_each_other, looked_up, called]


def given(gaps: bool) -> list[Tensor]:
    torch.manual_seed(1)
    c, y = (torch.randn(2, 40, 16)[:, ::2, :8] if gaps else torch.randn(2, 20, 8) for _ in range(2))
    return [c, torch.tensor([3, 17, 9]), torch.randn(2, 3, 8), y]


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("places", [[3, 17, 9], [5, 5, 5], [19, 0, 19]])
@pytest.mark.parametrize("step", STEPS)
def test_as_eager(step: Step, places: list[int], gaps: bool) -> None:
    jitted = thermit.jit(step)
    ours, eager = given(gaps), given(gaps)
    for args in (ours, eager):
        args[1] = torch.tensor(places)
    for _ in range(3):
        torch.testing.assert_close(jitted(*ours), step(*eager))
        for a, b in zip(ours, eager, strict=True):
            torch.testing.assert_close(a, b)
            b.copy_(a)


@pytest.mark.parametrize("step", [appended, put, added, each_other, looked_up, old_of_each_other])
@pytest.mark.parametrize("wrong", [20, -21])
def test_a_place_that_is_not_there_leaves_all_as_eager_does(step: Step, wrong: int) -> None:
    jitted = thermit.jit(step)
    jitted(*given(False))
    ours, eager = given(False), given(False)
    for args, function in ((ours, jitted), (eager, step)):
        args[1][1] = wrong
        with pytest.raises((IndexError, RuntimeError)):
            function(*args)
    for a, b in zip(ours, eager, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_nothing_is_written_before_the_last_check() -> None:
    """Two caches, the place in the second is wrong: nothing that eager does not write is written by us before eager runs again."""

    def step(c: Tensor, d: Tensor, i: Tensor, j: Tensor, x: Tensor) -> Tensor:
        c.index_add_(0, i, x)
        d.index_add_(0, j, x + c.sum(0))
        return d.sum()

    def args(j: int) -> list[Tensor]:
        return [torch.ones(30, 4), torch.ones(30, 4), torch.tensor([7]), torch.tensor([j]), torch.ones(1, 4)]

    jitted = thermit.jit(step)
    jitted(*args(3))
    ours, eager = args(30), args(30)
    for given_, function in ((ours, jitted), (eager, step)):
        with pytest.raises((IndexError, RuntimeError)):
            function(*given_)
    assert torch.equal(ours[0], eager[0]) and torch.equal(ours[1], eager[1])


def test_a_cache_is_neither_copied_nor_stored() -> None:
    lowered = thermit.jit(appended).trace(*given(False)).lower()
    kinds = [type(s).__name__ for s in lowered.compilation.plan.steps]
    assert kinds == ["RunKernel", "Commit", "RunKernel", "RunKernel"]
    assert lowered.memory_analysis()["temp_bytes"] <= 64  # the places
    assert "-> update 0  from  %in0" in lowered.as_text("kernels")


@pytest.mark.parametrize("cut", [slice(0, 20), slice(2, 12), slice(17, 18)])
def test_another_input_in_the_same_memory(cut: slice) -> None:
    def step(c: Tensor, d: Tensor, i: Tensor, x: Tensor) -> Tensor:
        before = d.flip(1).cumsum(1)
        c.index_copy_(1, i, x)
        return (c.sum(1) + d.sum(1))[:, None] - before

    c, i, x, _ = given(False)
    a, b = c.clone(), c.clone()
    torch.testing.assert_close(thermit.jit(step)(a, a[:, cut], i, x), step(b, b[:, cut], i, x))
    torch.testing.assert_close(a, b, rtol=0, atol=0)
