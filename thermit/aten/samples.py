"""Sample calls for the rows that PyTorch's own samples do not reach: the tests run them through the row and through eager.

Each function yields `(args, kwargs)` of real tensors, small and without randomness of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

Sample = tuple[tuple[Any, ...], dict[str, Any]]


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Numbers of both signs, all different, some whole."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * 37 % (2 * count + 1) - count).double() / 2).reshape(shape).to(dtype)


def rounding_modes() -> Iterator[Sample]:
    for mode in (None, "trunc", "floor"):
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            yield (values(3, 5, dtype=dtype), 3), {"rounding_mode": mode}


def filled() -> Iterator[Sample]:
    for dtype in (torch.float32, torch.int32, torch.bool):
        yield (values(2, 3, dtype=dtype), torch.tensor(2.5)), {}


def norm_dtype() -> Iterator[Sample]:
    for p in (None, 0, 1, 2, 3, float("inf")):
        yield (values(3, 4), p), {"dtype": torch.float64}


def norm_dim_dtype() -> Iterator[Sample]:
    for keepdim in (False, True):
        yield (values(3, 4), 2, [1], keepdim), {"dtype": torch.float64}


def _batch_norm_operands() -> tuple[torch.Tensor, ...]:
    return values(4, 3, 5), values(3), values(3) + 1, values(3) / 4, values(3).abs() + 0.5


def batch_norm_no_training() -> Iterator[Sample]:
    yield (*_batch_norm_operands(), 0.1, 1e-5), {}
    x, _, _, mean, var = _batch_norm_operands()
    yield (x, None, None, mean, var, 0.1, 1e-5), {}


def batch_norm_functional() -> Iterator[Sample]:
    for training in (True, False):
        yield (*_batch_norm_operands(), training, 0.1, 1e-5), {}


def dropout_backward() -> Iterator[Sample]:
    yield (values(3, 4), values(3, 4) > 0, 1.25), {}


def distances() -> Iterator[Sample]:
    for p in (0.0, 1.0, 2.0, 3.0, float("inf")):
        for mode in (None, 2):
            yield (values(5, 3), values(4, 3) / 3 + 0.25, p, mode), {}
    yield (values(2, 5, 3), values(1, 4, 3) + 0.25, 2.0, None), {}
    yield (values(5, 0), values(4, 0), 2.0, None), {}
    yield (values(30, 3), values(4, 3), 2.0, None), {}


def index() -> Iterator[Sample]:
    rows = torch.tensor([2, -1, 0])
    yield (values(3, 4), [rows, None]), {}
    yield (values(3, 4, 2), [None, torch.tensor([[0], [-4]]), torch.tensor([1, 0, -1])]), {}


def index_put() -> Iterator[Sample]:
    rows = torch.tensor([2, -1, 0])
    for accumulate in (False, True):
        yield (values(3, 4), [rows, None], values(4) / 4, accumulate), {}


def scatter_value_reduce() -> Iterator[Sample]:
    for reduce in ("add", "multiply"):
        yield (values(3, 4), 1, torch.tensor([[0, 3], [1, 1]]), 2.5), {"reduce": reduce}


def reshape_alias() -> Iterator[Sample]:
    yield (values(3, 4), [2, 6], [6, 1]), {}


def squeeze_dims() -> Iterator[Sample]:
    yield (values(1, 3, 1), [0, 2]), {}
    yield (values(1, 3, 1), [-1]), {}


def split_with_sizes() -> Iterator[Sample]:
    yield (values(5, 2), [2, 0, 3]), {}


def nearest_exact3d() -> Iterator[Sample]:
    yield (values(1, 2, 3, 2, 4), [5, 3, 2]), {}
