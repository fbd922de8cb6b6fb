"""Sums, extremes, moments, norms over any axes, and running sums.

Half types accumulate in float32 and round once; integers add in int64; the order of a float sum is the loops' choice.  Variances
are sums of squared distances in float64: from one of the elements where that loses nothing (one pass over memory), else from the mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from thermit.aten import samples
from thermit.aten.logic import truth
from thermit.aten.table import (
    DTYPE_OF,
    Lowered,
    Number,
    axes_of,
    axis_of,
    compute_dtype,
    computed,
    float_type,
    keep_axes,
    lower,
    rounded,
)
from thermit.ir import build as b
from thermit.ir import prims as p
from thermit.ir.node import Node
from thermit.ir.prims import Prim
from thermit.ir.types import BOOL, FLOAT32, FLOAT64, INT64, DType

MOST_SHIFTED = 1 << 20  # elements of a variance in one pass
aten = torch.ops.aten
Axes = int | Sequence[int] | None


def reduced(prim: Prim, x: Node, axes: Sequence[int], keepdim: bool = False) -> Node:
    """x combined along axes."""
    result = b.reduce(prim, x, axes)
    return keep_axes(result, x.shape, axes) if keepdim else result


def spread(statistic: Node, x: Node) -> Node:
    """A statistic with its axes kept, seen in the shape of x."""
    return b.broadcast_to(statistic, x.shape)


def count_of(x: Node, axes: Sequence[int]) -> int:
    """How many elements a reduction combines."""
    return math.prod(x.shape[a] for a in axes)


# ---------------------------------------------------------------------------------------------- sums and products
def _accumulated(self: Node, dtype: torch.dtype | None) -> tuple[Node | None, DType | None]:
    """The operand in the type it adds up in, and the type of the result; None for complex."""
    target = DTYPE_OF[dtype] if dtype is not None else INT64 if not self.dtype.is_float else self.dtype
    return (None, None) if target.is_complex else (b.cast(b.cast(self, target), compute_dtype(target)), target)


@lower(aten.sum.dim_IntList)
def sum_(self: Node, dim: Axes, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Lowered:
    x, target = _accumulated(self, dtype)
    if x is None or target is None:
        return NotImplemented
    axes = axes_of(dim, self.type.ndim)
    if target is BOOL:
        return reduced(p.ANY, x, axes, keepdim)
    return rounded(reduced(p.SUM, x, axes, keepdim), target)


@lower(aten.sum.default)
def sum_all(self: Node, *, dtype: torch.dtype | None = None) -> Lowered:
    return sum_(self, None, dtype=dtype)


@lower(aten.nansum.default)
def nansum(self: Node, dim: Axes = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Lowered:
    """The sum with nan counted as 0."""
    x = b.where(b.ne(computed(self), computed(self)), b.like(0, self), self) if self.dtype.is_float else self
    return sum_(x, dim, keepdim, dtype=dtype)


@lower(aten.mean.dim)
def mean(self: Node, dim: Axes, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Lowered:
    """The sum divided by the number of elements."""
    target = DTYPE_OF[dtype] if dtype is not None else self.dtype
    if not target.is_float:
        return NotImplemented
    x = b.cast(b.cast(self, target), compute_dtype(target))
    axes = axes_of(dim, self.type.ndim)
    return rounded(mean_of(x, axes, keepdim), target)


@lower(aten.mean.default)
def mean_all(self: Node, *, dtype: torch.dtype | None = None) -> Lowered:
    return mean(self, None, dtype=dtype)


def mean_of(x: Node, axes: Sequence[int], keepdim: bool = False) -> Node:
    """The mean in the type of x (a float type that computes)."""
    return b.div(reduced(p.SUM, x, axes, keepdim), float(count_of(x, axes)))


@lower(aten.prod.dim_int)
def prod(self: Node, dim: int, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Lowered:
    return _prod(self, axes_of(dim, self.type.ndim), keepdim, dtype)


@lower(aten.prod.default)
def prod_all(self: Node, *, dtype: torch.dtype | None = None) -> Lowered:
    return _prod(self, axes_of(None, self.type.ndim), False, dtype)


def _prod(self: Node, axes: tuple[int, ...], keepdim: bool, dtype: torch.dtype | None) -> Lowered:
    x, target = _accumulated(self, dtype)
    if x is None or target is None:
        return NotImplemented
    if target is BOOL:
        return reduced(p.ALL, x, axes, keepdim)
    return rounded(reduced(p.PROD, x, axes, keepdim), target)


@lower(aten.count_nonzero.dim_IntList)
def count_nonzero(self: Node, dim: Sequence[int]) -> Node:
    return reduced(p.SUM, b.cast(truth(self), INT64), axes_of(dim, self.type.ndim))


@lower(aten.count_nonzero.default)
def count_nonzero_axis(self: Node, dim: int | None = None) -> Node:
    return reduced(p.SUM, b.cast(truth(self), INT64), axes_of(dim, self.type.ndim))


# ---------------------------------------------------------------------------------------------- any, all
def _logical(prim: Prim, self: Node, dim: Axes, keepdim: bool) -> Node:
    """bool for every type but uint8, which stays uint8."""
    found = reduced(prim, truth(self), axes_of(dim, self.type.ndim), keepdim)
    return b.cast(found, self.dtype) if self.dtype.name == "uint8" else found


@lower(aten.any.dim)
def any_dim(self: Node, dim: int, keepdim: bool = False) -> Node:
    return _logical(p.ANY, self, dim, keepdim)


@lower(aten.any.dims)
def any_dims(self: Node, dim: Sequence[int] | None = None, keepdim: bool = False) -> Node:
    return _logical(p.ANY, self, dim, keepdim) if dim is None or len(dim) else _logical_nothing(self)


@lower(aten.any.default)
def any_all(self: Node) -> Node:
    return _logical(p.ANY, self, None, False)


@lower(aten.all.dim)
def all_dim(self: Node, dim: int, keepdim: bool = False) -> Node:
    return _logical(p.ALL, self, dim, keepdim)


@lower(aten.all.dims)
def all_dims(self: Node, dim: Sequence[int] | None = None, keepdim: bool = False) -> Node:
    return _logical(p.ALL, self, dim, keepdim) if dim is None or len(dim) else _logical_nothing(self)


@lower(aten.all.default)
def all_all(self: Node) -> Node:
    return _logical(p.ALL, self, None, False)


def _logical_nothing(self: Node) -> Node:
    """An empty list of axes reduces nothing in any and all, unlike everywhere else."""
    found = truth(self)
    return b.cast(found, self.dtype) if self.dtype.name == "uint8" else found


# ---------------------------------------------------------------------------------------------- extremes
def extreme(prim: Prim, self: Node, axes: Sequence[int], keepdim: bool = False) -> Lowered:
    """The largest or smallest along axes; nan wins.  Of nothing: declined, eager raises."""
    if any(self.shape[a] == 0 for a in axes):
        if 0 in keep_axes_shape(self, axes):
            return b.const(0, self.dtype, keep_axes_shape(self, axes, keepdim))
        return NotImplemented
    if self.dtype is BOOL:
        return reduced(p.ANY if prim is p.AMAX else p.ALL, self, axes, keepdim)
    return rounded(reduced(prim, computed(self), axes, keepdim), self.dtype)


def keep_axes_shape(x: Node, axes: Sequence[int], keepdim: bool = False) -> tuple[int, ...]:
    """The shape after a reduction."""
    return tuple(1 if a in axes else n for a, n in enumerate(x.shape) if keepdim or a not in axes)


@lower(aten.amax.default)
def amax(self: Node, dim: Axes = (), keepdim: bool = False) -> Lowered:
    return extreme(p.AMAX, self, axes_of(dim, self.type.ndim), keepdim)


@lower(aten.amin.default)
def amin(self: Node, dim: Axes = (), keepdim: bool = False) -> Lowered:
    return extreme(p.AMIN, self, axes_of(dim, self.type.ndim), keepdim)


@lower(aten.max.default)
def max_all(self: Node) -> Lowered:
    return extreme(p.AMAX, self, axes_of(None, self.type.ndim))


@lower(aten.min.default)
def min_all(self: Node) -> Lowered:
    return extreme(p.AMIN, self, axes_of(None, self.type.ndim))


@lower(aten.aminmax.default)
def aminmax(self: Node, *, dim: int | None = None, keepdim: bool = False) -> Lowered:
    axes = axes_of(dim, self.type.ndim)
    low, high = extreme(p.AMIN, self, axes, keepdim), extreme(p.AMAX, self, axes, keepdim)
    return NotImplemented if low is NotImplemented else (low, high)


def _position(prim: Prim, self: Node, axis: int, keepdim: bool) -> Node:
    """Where along one axis the extreme stands: the first nan, or the first of equals."""
    x = b.cast(self, DTYPE_OF[torch.uint8]) if self.dtype is BOOL else computed(self)
    return reduced(prim, x, (axis,), keepdim)


def _with_position(extreme_of: Prim, position_of: Prim, self: Node, dim: int, keepdim: bool) -> Lowered:
    if self.type.ndim == 0:
        return self, b.const(0, INT64)
    axis = axis_of(dim, self.type.ndim)
    value = extreme(extreme_of, self, (axis,), keepdim)
    if value is NotImplemented:
        return value
    if self.type.numel == 0:
        return value, b.const(0, INT64, value.shape)
    return value, _position(position_of, self, axis, keepdim)


@lower(aten.max.dim)
def max_dim(self: Node, dim: int, keepdim: bool = False) -> Lowered:
    return _with_position(p.AMAX, p.ARGMAX, self, dim, keepdim)


@lower(aten.min.dim)
def min_dim(self: Node, dim: int, keepdim: bool = False) -> Lowered:
    return _with_position(p.AMIN, p.ARGMIN, self, dim, keepdim)


def _argument(prim: Prim, self: Node, dim: int | None, keepdim: bool) -> Lowered:
    if self.dtype is BOOL:
        return NotImplemented
    ndim = self.type.ndim
    if dim is None or ndim == 0:
        if self.type.numel == 0:
            return NotImplemented
        found = _position(prim, b.reshape(self, (self.type.numel,)), 0, False)
        return b.reshape(found, (1,) * ndim if keepdim else ())
    axis = axis_of(dim, ndim)
    if self.type.numel == 0:
        return b.const(0, INT64, keep_axes_shape(self, (axis,), keepdim)) if self.shape[axis] else NotImplemented
    return _position(prim, self, axis, keepdim)


@lower(aten.argmax.default)
def argmax(self: Node, dim: int | None = None, keepdim: bool = False) -> Lowered:
    return _argument(p.ARGMAX, self, dim, keepdim)


@lower(aten.argmin.default)
def argmin(self: Node, dim: int | None = None, keepdim: bool = False) -> Lowered:
    return _argument(p.ARGMIN, self, dim, keepdim)


# ---------------------------------------------------------------------------------------------- moments
def moments(x: Node, axes: Sequence[int], correction: float) -> tuple[Node, Node]:
    """Variance and mean of x in float64, their axes kept: in one pass or two."""
    count = count_of(x, axes)
    wide = b.cast(x, FLOAT64)
    shift = _first(x, axes) if x.dtype is not FLOAT64 and 1 < count <= MOST_SHIFTED else None
    if shift is not None:
        squares, mean = _shifted(wide, b.cast(shift, FLOAT64), axes)
    else:
        squares, mean = _squares_around_mean(x, wide, axes)
    if count > 1:  # as eager's where what comes before the last element is infinite
        mean = b.where(b.eq(squares, squares), mean, b.like(math.nan, mean))
    return b.div(squares, max(count - correction, 0.0) if count else 0.0), mean


def _first(x: Node, axes: Sequence[int]) -> Node | None:
    """The first of the elements that are combined, axes kept; None where that is not just read from memory."""
    source = x
    while source.prim.kind == "view" or source.prim is p.CAST:
        source = source.args[0]
    if source.prim is not p.INPUT:
        return None
    return b.slice_(x, (0,) * x.type.ndim, (1,) * x.type.ndim, tuple(1 if a in axes else n for a, n in enumerate(x.shape)))


def _shifted(wide: Node, shift: Node, axes: Sequence[int]) -> tuple[Node, Node]:
    """Sum of squares around the mean, and the mean, from the distances d to one of the elements: sum d^2 - (sum d)^2 / n.

    One of the n distances being 0, (sum d)^2 <= (n - 1) sum d^2: what is left is at least an n-th of sum d^2.  So rounding errors of
    2^-53 grow n times at most, and nothing is left for a narrower type to see up to MOST_SHIFTED elements.
    """
    distance = b.sub(wide, spread(shift, wide))
    total = reduced(p.SUM, distance, axes, keepdim=True)
    part = b.div(total, float(count_of(wide, axes)))
    return b.sub(reduced(p.SUM, b.mul(distance, distance), axes, keepdim=True), b.mul(total, part)), b.add(shift, part)


def _squares_around_mean(x: Node, wide: Node, axes: Sequence[int]) -> tuple[Node, Node]:
    """The same in two passes: first the mean, then the distances from it.

    The mean is rounded, so the distances from it have a small sum of their own, whose square is taken off again; unless x was a narrower type,
    of which float64 holds the mean well enough.
    """
    count = count_of(x, axes)
    mean = mean_of(wide, axes, keepdim=True)
    distance = b.sub(wide, spread(mean, wide))
    squares = reduced(p.SUM, b.mul(distance, distance), axes, keepdim=True)
    if count > 0 and x.dtype is FLOAT64:
        rest = reduced(p.SUM, distance, axes, keepdim=True)
        left = b.sub(squares, b.div(b.mul(rest, rest), float(count)))
        squares = b.where(b.lt(left, 0), b.like(0, left), left)
    return squares, mean


def _variance(self: Node, dim: Axes, correction: Number | None, keepdim: bool, root: bool, with_mean: bool) -> Lowered:
    """In float64 like eager's, so that the result is rounded once."""
    if not self.dtype.is_float:
        return NotImplemented
    axes = axes_of(dim, self.type.ndim)
    spread_of, mean = moments(self, axes, 1.0 if correction is None else float(correction))
    results = [b.sqrt(spread_of) if root else spread_of, mean]
    shape = keep_axes_shape(self, axes, keepdim)
    finished = tuple(b.cast(b.reshape(r, shape), self.dtype) for r in results)
    return finished if with_mean else finished[0]


@lower(aten.var.correction)
def var(self: Node, dim: Axes = None, *, correction: Number | None = None, keepdim: bool = False) -> Lowered:
    return _variance(self, dim, correction, keepdim, root=False, with_mean=False)


@lower(aten.std.correction)
def std(self: Node, dim: Axes = None, *, correction: Number | None = None, keepdim: bool = False) -> Lowered:
    return _variance(self, dim, correction, keepdim, root=True, with_mean=False)


@lower(aten.var_mean.correction)
def var_mean(self: Node, dim: Axes = None, *, correction: Number | None = None, keepdim: bool = False) -> Lowered:
    return _variance(self, dim, correction, keepdim, root=False, with_mean=True)


@lower(aten.std_mean.correction)
def std_mean(self: Node, dim: Axes = None, *, correction: Number | None = None, keepdim: bool = False) -> Lowered:
    return _variance(self, dim, correction, keepdim, root=True, with_mean=True)


# ---------------------------------------------------------------------------------------------- norms, log-sum-exp
@lower(aten.linalg_vector_norm.default)
def vector_norm(self: Node, ord: Number = 2, dim: Axes = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Lowered:
    """(sum |x|^ord)^(1/ord); inf and -inf: the largest and smallest |x|; 0: the number of elements that are not 0.  Of one element: |x|."""
    target = DTYPE_OF[dtype] if dtype is not None else self.dtype
    if not target.is_float or not self.dtype.is_float:
        return NotImplemented
    x = b.cast(b.cast(self, target), compute_dtype(target))
    axes = axes_of(dim, self.type.ndim)
    if ord != 0 and all(x.shape[a] == 1 for a in axes):
        return rounded(b.reshape(b.abs_(x), keep_axes_shape(x, axes, keepdim)), target)
    norm = norm_of(x, float(ord), axes, keepdim)
    return norm if norm is NotImplemented else rounded(norm, target)


def norm_of(x: Node, order: float, axes: Sequence[int], keepdim: bool) -> Lowered:
    size = b.abs_(x)
    if math.isinf(order):
        return extreme(p.AMAX if order > 0 else p.AMIN, size, axes, keepdim)
    if order == 0:
        return reduced(p.SUM, b.cast(b.ne(x, 0), x.dtype), axes, keepdim)
    if order == 1:
        return reduced(p.SUM, size, axes, keepdim)
    if order == 2:
        return b.sqrt(reduced(p.SUM, b.mul(x, x), axes, keepdim))
    if order < 0 and any(x.shape[a] == 0 for a in axes):
        return NotImplemented
    total = reduced(p.SUM, b.pow_(size, order), axes, keepdim)
    return b.pow_(total, 1.0 / order)


@lower(aten.norm.Scalar, floats=True)
def norm(self: Node, p: Number = 2) -> Lowered:
    return vector_norm(self, p)


@lower(aten.norm.ScalarOpt_dim, floats=True)
def norm_dim(self: Node, p: Number | None, dim: Axes, keepdim: bool = False) -> Lowered:
    return vector_norm(self, 2 if p is None else p, dim, keepdim)


@lower(aten.norm.ScalarOpt_dtype, floats=True, samples=samples.norm_dtype)
def norm_dtype(self: Node, p: Number | None, *, dtype: torch.dtype) -> Lowered:
    return vector_norm(self, 2 if p is None else p, dtype=dtype)


@lower(aten.norm.ScalarOpt_dim_dtype, floats=True, samples=samples.norm_dim_dtype)
def norm_dim_dtype(self: Node, p: Number | None, dim: Axes, keepdim: bool, *, dtype: torch.dtype) -> Lowered:
    return vector_norm(self, 2 if p is None else p, dim, keepdim, dtype=dtype)


@lower(aten.logsumexp.default)
def logsumexp(self: Node, dim: Axes, keepdim: bool = False) -> Lowered:
    """log(sum(exp(x - m))) + m with m the largest element, 0 in place of -inf: nothing is greater.  inf where that is the largest element."""
    target = float_type(self.dtype)
    x = b.cast(b.cast(self, target), compute_dtype(target))
    axes = axes_of(dim, self.type.ndim)
    shape = keep_axes_shape(x, axes, keepdim)
    if count_of(x, axes) == 0 or x.type.numel == 0:
        return b.const(-math.inf, target, shape)
    most = reduced(p.AMAX, x, axes, keepdim=True)
    least = b.where(b.eq(most, -math.inf), b.like(0, most), most)
    total = reduced(p.SUM, b.exp_falling(b.sub(x, spread(least, x))), axes, keepdim=True)
    found = b.add(b.log(b.mul(total, 2.0**-64)), least)
    return rounded(b.reshape(b.where(b.eq(most, math.inf), most, found), shape), target)


# ---------------------------------------------------------------------------------------------- running sums and products
def _scan(prim: Prim, self: Node, dim: int, dtype: torch.dtype | None) -> Lowered:
    """float32 runs in float64 and rounds at each element, as in eager."""
    x, target = _accumulated(self, dtype)
    if x is None or target is None or target is BOOL:
        return NotImplemented
    if self.type.ndim == 0 or self.type.numel == 0:
        return b.cast(x, target)
    wide = b.cast(x, FLOAT64) if target is FLOAT32 else x
    return b.cast(b.scan(prim, wide, axis_of(dim, self.type.ndim)), target)


@lower(aten.cumsum.default)
def cumsum(self: Node, dim: int, *, dtype: torch.dtype | None = None) -> Lowered:
    return _scan(p.CUMSUM, self, dim, dtype)


@lower(aten.cumprod.default)
def cumprod(self: Node, dim: int, *, dtype: torch.dtype | None = None) -> Lowered:
    return _scan(p.CUMPROD, self, dim, dtype)
