"""Positions that are data: gather, scatter, indexing with tensors, masks.

What comes in: tensors and index tensors.  What goes out: the primitives gather and scatter with one int64 index per axis, or
a selection where a mask has the shape of what it selects from.  Indices wrap where eager wraps (index, index_put, take, put, index_fill); elsewhere
a negative index is out of range.  The primitives stop the program at an index out of range, and eager then raises its own error.
A scatter goes through its values in row-major order, as eager's kernels do where the order shows.

Results whose shape depends on data (a mask as an index, nonzero, unique) are declined.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from thermit.aten import samples
from thermit.aten.table import (
    Lowered,
    Number,
    Operand,
    axis_of,
    broadcast,
    computed,
    fits,
    lower,
    rounded,
)
from thermit.aten.view import along, flattened
from thermit.ir import build as b
from thermit.ir import prims as p
from thermit.ir.node import Node
from thermit.ir.types import BOOL, INT32, INT64, UINT8, DType, Shape

aten = torch.ops.aten


# ---------------------------------------------------------------------------------------------- positions
def wrapped(index: Node, size: int) -> Node:
    """Negative indices count from the end."""
    index = b.cast(index, INT64)
    return b.where(b.lt(index, 0), b.add(index, size), index)


def positions(shape: Shape, axis: int, index: Node) -> tuple[Node, ...]:
    """One index per axis: `index` (of `shape`) along `axis`, the place itself along the others."""
    index = b.cast(index, INT64)
    return tuple(index if a == axis else b.iota(shape, a, INT64) for a in range(len(shape)))


def at_least_1d(x: Node) -> Node:
    """x, a scalar as a tensor with one axis."""
    return x if x.type.ndim else b.reshape(x, (1,))


def gather_axis(x: Node, axis: int, index: Node) -> Node:
    """x[..., index[...], ...]: index has x's rank and at most its sizes in the other axes."""
    return b.gather(x, positions(index.shape, axis, index))


def select_axis(x: Node, axis: int, index: Node) -> Node:
    """x at the positions `index`, of any shape, which takes the place of the axis."""
    shape = (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
    after = x.type.ndim - axis - 1
    picks: list[Node] = []
    for a in range(x.type.ndim):
        if a == axis:
            picks.append(b.broadcast_to(b.reshape(b.cast(index, INT64), (*index.shape, *(1,) * after)), shape))
        else:
            picks.append(b.iota(shape, a if a < axis else a + index.type.ndim - 1, INT64))
    return b.gather(x, picks)


# ---------------------------------------------------------------------------------------------- reading
@lower(aten.gather.default)
def gather(self: Node, dim: int, index: Node, *, sparse_grad: bool = False) -> Lowered:
    if index.type.numel == 0:  # of any rank
        return b.const(0, self.dtype, index.shape)
    x, at = at_least_1d(self), at_least_1d(index)
    return b.reshape(gather_axis(x, axis_of(dim, x.type.ndim), at), index.shape)


@lower(aten.index_select.default)
def index_select(self: Node, dim: int, index: Node) -> Lowered:
    if index.dtype not in (INT32, INT64):
        return NotImplemented
    x = at_least_1d(self)
    axis = axis_of(dim, x.type.ndim)
    picked = select_axis(x, axis, at_least_1d(index))
    return picked if self.type.ndim else b.reshape(picked, ())


@lower(aten.embedding.default)
def embedding(weight: Node, indices: Node, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False) -> Lowered:
    return select_axis(weight, 0, indices)


@lower(aten.take.default)
def take(self: Node, index: Node) -> Lowered:
    return b.gather(flattened(self), (wrapped(index, self.type.numel),))


def _index_shape(x: Node, indices: Sequence[Node | None]) -> tuple[Shape, tuple[Node, ...]] | None:
    """Shape of x[indices] and one index of that shape per axis of x; None where an index is a mask or nothing is indexed.

    The axes of the indices (broadcast together) stand where the first was if they are neighbours, in front otherwise.
    """
    given = [a for a, index in enumerate(indices) if index is not None]
    tensors = [index for index in indices if index is not None]
    if not tensors or any(index.dtype not in (INT32, INT64) for index in tensors):
        return None
    tensors = list(broadcast(*tensors))
    picked, count = tensors[0].shape, tensors[0].type.ndim
    rest = [a for a in range(x.type.ndim) if a not in given]
    neighbours = given == list(range(given[0], given[-1] + 1))
    before = len([a for a in rest if a < given[0]]) if neighbours else 0
    shape = (*(x.shape[a] for a in rest[:before]), *picked, *(x.shape[a] for a in rest[before:]))
    at: list[Node] = []
    for a in range(x.type.ndim):
        if a in given:
            index = wrapped(tensors[given.index(a)], x.shape[a])
            at.append(b.broadcast_to(b.reshape(index, (*picked, *(1,) * (len(rest) - before))), shape))
        else:
            k = rest.index(a)
            at.append(b.iota(shape, k if k < before else k + count, INT64))
    return shape, tuple(at)


@lower(aten.index.Tensor, aten._unsafe_index.Tensor, samples=samples.index)
def index_tensor(self: Node, indices: Sequence[Node | None]) -> Lowered:
    found = _index_shape(self, indices)
    return NotImplemented if found is None else b.gather(self, found[1])


# ---------------------------------------------------------------------------------------------- writing
def combined(base: Node, value: Node, at: Sequence[Node], combine: str) -> Lowered:
    """A scatter in the compute dtype, rounded back at the end; bool knows only "set"."""
    if combine == "set":
        return b.scatter(base, value, at)
    if base.dtype is BOOL:
        return NotImplemented
    return rounded(b.scatter(computed(base), computed(value), at, combine), base.dtype)


def _scatter(self: Node, dim: int, index: Node, src: Node | Number, combine: str = "set") -> Lowered:
    """src[k] put at index[k] along one axis; src may be larger than index."""
    base, at = at_least_1d(self), at_least_1d(index)
    if isinstance(src, Node):
        values = at_least_1d(src)
        value = b.slice_(values, (0,) * at.type.ndim, (1,) * at.type.ndim, at.shape) if at.type.numel else b.const(0, self.dtype, at.shape)
    elif fits(src, self.dtype):
        value = b.const(src, self.dtype, at.shape)
    else:
        return NotImplemented
    found = combined(base, value, positions(at.shape, axis_of(dim, base.type.ndim), at), combine) if at.type.numel else base
    return found if found is NotImplemented else b.reshape(found, self.shape)


_MODES = {"add": "add", "multiply": "mul", "sum": "add", "prod": "mul", "amax": "max", "amin": "min", "mean": "add"}


@lower(aten.scatter.src)
def scatter_src(self: Node, dim: int, index: Node, src: Node) -> Lowered:
    return _scatter(self, dim, index, src)


@lower(aten.scatter.value)
def scatter_value(self: Node, dim: int, index: Node, value: Number) -> Lowered:
    return _scatter(self, dim, index, value)


@lower(aten.scatter.reduce)
def scatter_src_reduce(self: Node, dim: int, index: Node, src: Node, *, reduce: str) -> Lowered:
    return _scatter(self, dim, index, src, _MODES[reduce])


@lower(aten.scatter.value_reduce, samples=samples.scatter_value_reduce)
def scatter_value_reduce(self: Node, dim: int, index: Node, value: Number, *, reduce: str) -> Lowered:
    return _scatter(self, dim, index, value, _MODES[reduce])


@lower(aten.scatter_add.default)
def scatter_add(self: Node, dim: int, index: Node, src: Node) -> Lowered:
    return _scatter(self, dim, index, src, "add")


def _identity(mode: str, dtype: DType) -> Number:
    """What a place starts from when its own value does not take part."""
    if mode in ("amax", "amin"):
        low = mode == "amax"
        return (float("-inf") if low else float("inf")) if dtype.is_float else (dtype.min if low else dtype.max)
    return 1 if mode == "prod" else 0


def _reduced(base: Node, value: Node, at: Sequence[Node], mode: str, include_self: bool) -> Lowered:
    """Values combined at their places: sum, prod, amax, amin, or mean over what met there."""
    if base.dtype is BOOL or mode not in _MODES:
        return NotImplemented
    start = base if include_self else b.scatter(base, b.like(_identity(mode, base.dtype), value), at)
    total = combined(start, value, at, _MODES[mode])
    if mode != "mean":
        return total
    one = b.const(1, computed(base).dtype, value.shape)
    count = b.scatter(b.const(int(include_self), one.dtype, base.shape), one, at, "add")
    count = b.maximum(count, 1)
    if base.dtype.is_float:
        return rounded(b.div(computed(total), count), base.dtype)
    quotient = b.div(total, count)
    return b.where(b.lt(b.sub(total, b.mul(quotient, count)), 0), b.sub(quotient, 1), quotient) if base.dtype.kind == "int" else quotient


@lower(aten.scatter_reduce.two)
def scatter_reduce(self: Node, dim: int, index: Node, src: Node, reduce: str, *, include_self: bool = True) -> Lowered:
    base, at = at_least_1d(self), at_least_1d(index)
    if at.type.numel == 0:
        return self
    value = b.slice_(at_least_1d(src), (0,) * at.type.ndim, (1,) * at.type.ndim, at.shape)
    found = _reduced(base, value, positions(at.shape, axis_of(dim, base.type.ndim), at), reduce, include_self)
    return found if found is NotImplemented else b.reshape(found, self.shape)


def _rows(self: Node, dim: int, index: Node, source: Node) -> tuple[Node, Node, tuple[Node, ...]]:
    """The base and the values with at least one axis, and the place of every value: index[k] along `dim` for slice k of source."""
    base, values = at_least_1d(self), at_least_1d(source)
    axis = axis_of(dim, base.type.ndim)
    at = along(at_least_1d(index), values.shape, axis)
    return base, values, positions(values.shape, axis, at)


@lower(aten.index_add.default)
def index_add(self: Node, dim: int, index: Node, source: Node, *, alpha: Number = 1) -> Lowered:
    if index.dtype not in (INT32, INT64):
        return NotImplemented
    base, values, at = _rows(self, dim, index, b.cast(source, self.dtype))
    if values.type.numel == 0:
        return self
    if alpha != 1:
        if self.dtype is BOOL or self.dtype.is_half or not fits(alpha, self.dtype):
            return NotImplemented  # where eager rounds the product of half types depends on the place
        values = rounded(b.mul(computed(values), alpha), values.dtype)
    found = combined(base, values, at, "add")
    return found if found is NotImplemented else b.reshape(found, self.shape)


@lower(aten.index_copy.default)
def index_copy(self: Node, dim: int, index: Node, source: Node) -> Lowered:
    if index.dtype is not INT64:
        return NotImplemented
    base, values, at = _rows(self, dim, index, source)
    return b.reshape(b.scatter(base, values, at), self.shape)


@lower(aten.index_reduce.default)
def index_reduce(self: Node, dim: int, index: Node, source: Node, reduce: str, *, include_self: bool = True) -> Lowered:
    if index.dtype not in (INT32, INT64):
        return NotImplemented
    base, values, at = _rows(self, dim, index, source)
    if values.type.numel == 0:
        return self
    if self.dtype.is_half and reduce in ("mean", "prod"):
        return NotImplemented  # eager rounds after each value, in the order of the index
    found = _reduced(base, values, at, reduce, include_self)
    return found if found is NotImplemented else b.reshape(found, self.shape)


@lower(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def index_fill(self: Node, dim: int, index: Node, value: Operand) -> Lowered:
    if index.dtype is not INT64 or (not isinstance(value, Node) and not fits(value, self.dtype)):
        return NotImplemented
    base, at = at_least_1d(self), at_least_1d(index)
    axis = axis_of(dim, base.type.ndim)
    shape = (*base.shape[:axis], at.shape[0], *base.shape[axis + 1 :])
    scalar = b.cast(b.reshape(value, ()), self.dtype) if isinstance(value, Node) else b.const(value, self.dtype)
    places = positions(shape, axis, along(wrapped(at, base.shape[axis]), shape, axis))
    return b.reshape(b.scatter(base, b.broadcast_to(scalar, shape), places), self.shape)


@lower(aten.put.default)
def put(self: Node, index: Node, source: Node, accumulate: bool = False) -> Lowered:
    if index.dtype is not INT64:
        return NotImplemented
    base = flattened(self)
    at = wrapped(flattened(index), self.type.numel)
    found = combined(base, flattened(source), (at,), "add" if accumulate else "set")
    return found if found is NotImplemented else b.reshape(found, self.shape)


@lower(aten.index_put.default, aten._unsafe_index_put.default, samples=samples.index_put)
def index_put(self: Node, indices: Sequence[Node | None], values: Node, accumulate: bool = False) -> Lowered:
    values = b.cast(values, self.dtype)
    if [index.dtype for index in indices if index is not None] in ([BOOL], [UINT8]):
        return _put_mask(self, indices, values, accumulate)
    found = _index_shape(self, indices)
    if found is None:
        return NotImplemented
    shape, at = found
    values = _without_leading_ones(values, len(shape))
    return combined(self, b.broadcast_to(values, shape), at, "add" if accumulate else "set")


def _without_leading_ones(x: Node, ndim: int) -> Node:
    """x with at most `ndim` axes, dropping axes of size 1 in front."""
    extra = max(x.type.ndim - ndim, 0)
    return b.reshape(x, x.shape[extra:])


def _put_mask(self: Node, indices: Sequence[Node | None], values: Node, accumulate: bool) -> Lowered:
    """x[..., mask] = values, where values do not vary along the elements that the mask picks."""
    axis, mask = next((a, index) for a, index in enumerate(indices) if index is not None)
    after = self.type.ndim - axis - mask.type.ndim
    if self.type.ndim == 0 or self.shape[axis : axis + mask.type.ndim] != mask.shape or (accumulate and self.dtype is BOOL):
        return NotImplemented
    values = _without_leading_ones(values, axis + 1 + after)
    if values.type.ndim > after:
        cut = values.type.ndim - after
        if values.shape[cut - 1] != 1:
            return NotImplemented
        values = b.reshape(values, (*values.shape[: cut - 1], *(1,) * mask.type.ndim, *values.shape[cut:]))
    there = b.broadcast_to(b.reshape(b.cast(mask, BOOL), (*mask.shape, *(1,) * after)), self.shape)
    values = b.broadcast_to(values, self.shape)
    if accumulate:
        values = rounded(b.add(computed(self), computed(values)), self.dtype)
    return b.where(there, values, self)


@lower(aten.embedding_dense_backward.default)
def embedding_dense_backward(grad_output: Node, indices: Node, num_weights: int, padding_idx: int, scale_grad_by_freq: bool) -> Lowered:
    """[..., d], [...] -> [num_weights, d]: the sum of the rows of each index; those of padding_idx do not count."""
    if scale_grad_by_freq or not grad_output.dtype.is_float or indices.dtype not in (INT32, INT64):
        return NotImplemented
    width = grad_output.shape[-1]
    rows = b.reshape(grad_output, (indices.type.numel, width))
    index = along(flattened(b.cast(indices, INT64)), rows.shape, 0)
    if padding_idx >= 0:
        rows = b.where(b.eq(index, padding_idx), b.like(0, rows), rows)
    return combined(b.const(0, rows.dtype, (num_weights, width)), rows, (index, b.iota(rows.shape, 1, INT64)), "add")


@lower(aten.masked_scatter.default)
def masked_scatter(self: Node, mask: Node, source: Node) -> Lowered:
    """The k-th true of the mask (row-major) takes source's k-th element; too few of them stop the program."""
    if mask.dtype is not BOOL:
        return NotImplemented
    x, there = broadcast(self, b.cast(mask, BOOL))
    if x.type.numel == 0 or source.type.numel == 0:
        return NotImplemented
    line = flattened(there)
    count = b.scan(p.CUMSUM, b.cast(line, INT64), 0)
    at = b.where(line, b.sub(count, 1), b.like(0, count))
    return b.where(there, b.reshape(b.gather(flattened(source), (at,)), x.shape), x)
