"""Every sum is as accurate as eager's, also of data that sums dislike: equal terms (each rounding errs in the same direction), growing ones,
large ones of both signs; of any length; along rows, down columns, between axes; in float32 and float64, measured in long double."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

import thermit

pytestmark = pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="no wider type than float64")
Array = np.ndarray
LONG = np.longdouble
SMALL = 4.0  # halves of a unit: two units in the last place, the function of each term included
KINDS = ("equal", "far", "growing", "alternating", "normal")
ROWS = 12
LENGTHS = (777, 20011)


def _softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _logsumexp(x: Array) -> Array:
    most = x.max(-1, keepdims=True)
    return np.log(np.exp(x - most).sum(-1)) + most[..., 0]


# along the last axis: ours, the truth
FUNCTIONS: dict[str, tuple[Callable, Callable]] = {
    "sum": (lambda x: x.sum(-1), lambda x: x.sum(-1)),
    "mean of exp": (lambda x: x.exp().mean(-1), lambda x: np.exp(x).mean(-1)),
    "sum of silu": (lambda x: (x.sigmoid() * x).sum(-1), lambda x: (x / (1 + np.exp(-x))).sum(-1)),
    "variance": (lambda x: x.var(-1), lambda x: x.var(-1, ddof=1)),
    "norm": (lambda x: torch.linalg.vector_norm(x, dim=-1), lambda x: np.sqrt((x * x).sum(-1))),
    "norm of order 1": (lambda x: torch.linalg.vector_norm(x, 1, dim=-1), lambda x: np.abs(x).sum(-1)),
    "logsumexp": (lambda x: torch.logsumexp(x, -1), _logsumexp),
    "softmax": (lambda x: x.softmax(-1), _softmax),
    "two sums": (lambda x: torch.stack([x.sum(-1), (x * x).sum(-1)]), lambda x: np.stack([x.sum(-1), (x * x).sum(-1)])),
    "sum and maximum": (lambda x: torch.stack([x.sum(-1), x.amax(-1)]), lambda x: np.stack([x.sum(-1), x.max(-1)])),
    "sum and place": (lambda x: (x.sum(-1), x.argmax(-1))[0], lambda x: x.sum(-1)),
    "cumulated": (lambda x: x.cumsum(-1), lambda x: np.cumsum(x, -1)),
    "products": (lambda x: (x * x.flip(0)).sum(-1), lambda x: (x * x[::-1]).sum(-1)),
}


def _kinds(name: str) -> tuple[str, ...]:
    """What does not vary has a test of its own."""
    return KINDS[1:] if name == "variance" else KINDS


def _rows(kind: str, rows: int, length: int, dtype: torch.dtype) -> torch.Tensor:
    rng = np.random.default_rng(length)
    level, place = rng.random(rows)[:, None] * 2 + 0.05, np.arange(length)[None, :]
    data = {
        "equal": level + 0 * place,
        "growing": level * (1 + 3 * place / length),
        "far": 10 + rng.standard_normal((rows, length)),
        "alternating": np.where(place % 2, -8.0, 8.0) + rng.standard_normal((rows, length)),
        "normal": rng.standard_normal((rows, length)),
    }[kind]
    return torch.from_numpy(np.ascontiguousarray(data)).to(dtype)


def _error(got: torch.Tensor, true: Array, terms: Array) -> float:
    """Root mean square, in halves of a unit in the last place of the result; where terms cancel, of a part of what was added up."""
    scale = np.maximum(np.maximum(np.abs(true), np.sqrt((true * true).mean())), np.abs(terms).sum(-1).max() / 16 if terms.size else 0)
    errors = (got.numpy().astype(LONG) - true) / (scale * LONG(torch.finfo(got.dtype).eps / 2))
    return float(np.sqrt((errors * errors).mean()))


def _compare(function: Callable, true: Callable, rows: torch.Tensor, seen: Callable, cancels: bool) -> None:
    want, x = true(rows.numpy().astype(LONG)), seen(rows)
    terms = rows.numpy().astype(LONG) if cancels else np.zeros(0)
    ours, eager = _error(thermit.jit(function)(x), want, terms), _error(function(x), want, terms)
    assert ours <= max(1.5 * eager, SMALL)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_rows(name: str, dtype: torch.dtype) -> None:
    function, true = FUNCTIONS[name]
    for length in LENGTHS:
        for kind in _kinds(name):
            cancels = "sum" in name and "logsumexp" not in name and kind in ("alternating", "normal")
            _compare(function, true, _rows(kind, ROWS, length, dtype), lambda x: x, cancels)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["sum", "mean of exp", "variance", "norm", "logsumexp", "sum and maximum", "two sums"])
def test_columns_and_axes_between(name: str, dtype: torch.dtype) -> None:
    """The same functions along the first axis, and along the middle one."""
    function, true = FUNCTIONS[name]
    for length in LENGTHS:
        for kind in _kinds(name):
            rows, cancels = _rows(kind, ROWS, length, dtype), "sum" in name and "logsumexp" not in name
            _compare(lambda x: function(x.transpose(0, -1)), true, rows, lambda x: x.t().contiguous(), cancels)
            _compare(lambda x: function(x.transpose(1, 2))[..., 0, :], true, rows, lambda x: torch.stack([x.t(), x.t()]).contiguous(), cancels)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("length", [5000, 70001, 1000003])
def test_all_elements_into_one(length: int, dtype: torch.dtype) -> None:
    levels = torch.tensor([0.1, 0.23, 1 / 3, 0.7, 0.9, 1.1, 1.9, 2.6], dtype=dtype)
    for function, each in ((torch.sum, lambda v: v * length), (lambda x: x.exp().mean(), np.exp)):
        true, jitted = each(levels.numpy().astype(LONG)), thermit.jit(function)
        ours, eager = (_error(torch.stack([f(level.expand(length).contiguous()) for level in levels]), true, np.zeros(0)) for f in (jitted, function))
        assert ours <= max(1.5 * eager, SMALL)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("length", [40, 1003, 20011])
@pytest.mark.parametrize("extra", [[float("inf")], [float("-inf")], [float("nan")], [float("inf"), float("-inf")]], ids=str)
def test_what_is_not_finite(extra: list[float], length: int, dtype: torch.dtype) -> None:
    """What blocks lose is nan there; the sum is eager's."""
    x = torch.ones(9, length, dtype=dtype)
    x[3, 17 : 17 + len(extra)] = torch.tensor(extra, dtype=dtype)
    x[5, length - 1] = extra[0]
    x[7] = extra[0]
    for function in (
        lambda x: x.sum(-1),
        lambda x: x.t().contiguous().sum(0),
        lambda x: torch.stack([x.sum(-1), x.amax(-1)]),
        lambda x: x.softmax(-1),
    ):
        torch.testing.assert_close(thermit.jit(function)(x), function(x), equal_nan=True)
    columns = x.t().contiguous()
    torch.testing.assert_close(thermit.jit(lambda x: x.sum(0))(columns), columns.sum(0), equal_nan=True)
