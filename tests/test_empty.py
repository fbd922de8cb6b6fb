"""Tensors without elements: what eager raises, how the results lie, and that no memory is read (there is none)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import thermit

SHAPES = ((0,), (0, 3), (3, 0), (2, 0, 3), (2, 3, 0), (2, 3, 4, 0))
REDUCTIONS: tuple[Callable[..., Any], ...] = (
    torch.sum, torch.prod, torch.amax, torch.amin, torch.mean, torch.var, torch.std, torch.argmax, torch.logsumexp, torch.all, torch.any,
)  # fmt: skip
NORMS: tuple[Callable[..., Any], ...] = (torch.softmax, torch.log_softmax, torch.cumsum, torch.nn.functional.softmin)


def outcome(function: Callable[[], Any]) -> Any:
    try:
        result = function()
    except Exception as error:
        return type(error), str(error)
    return result.shape, result.stride(), result.dtype, str(result.tolist())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_reductions(reduction: Callable[..., Any]) -> None:
    for shape in SHAPES:
        for dim in range(-1, 3):
            for keepdim in (False, True):
                x = torch.zeros(shape)
                jitted = thermit.jit(lambda x: reduction(x, dim=dim, keepdim=keepdim))  # noqa: B023
                assert outcome(lambda: jitted(x)) == outcome(lambda: reduction(x, dim=dim, keepdim=keepdim)), (shape, dim, keepdim)  # noqa: B023


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("norm", NORMS)
def test_along_an_axis(norm: Callable[..., Any]) -> None:
    for shape in SHAPES:
        for dim in range(-5, 4):
            x = torch.zeros(shape)
            jitted = thermit.jit(lambda x: norm(x, dim=dim))  # noqa: B023
            assert outcome(lambda: jitted(x)) == outcome(lambda: norm(x, dim=dim)), (shape, dim)  # noqa: B023


@pytest.mark.filterwarnings("ignore")
def test_nothing_put_of_another_type() -> None:
    x, place = torch.zeros(3, 0), torch.tensor([0])
    jitted = thermit.jit(lambda x: x.index_put((place,), torch.tensor(1)))
    assert outcome(lambda: jitted(x)) == outcome(lambda: x.index_put((place,), torch.tensor(1)))


@pytest.mark.filterwarnings("ignore")
def test_statistics_beside_an_empty_axis_and_a_sum_of_them() -> None:
    def statistics(x: torch.Tensor) -> Any:
        return torch.var(x, 2), torch.softmax(x, 2), torch.layer_norm(x, (4, 0)).sum(), torch.var(x, 2).sum(), x.argmax(1), x.cumsum(2)

    x = torch.zeros(2, 3, 4, 0)
    for got, want in zip(thermit.jit(statistics, strict=True)(x), statistics(x), strict=True):
        assert torch.equal(got, want)
        assert got.stride() == want.stride()
