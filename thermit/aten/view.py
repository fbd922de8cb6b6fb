"""Views: what aliases its argument in eager.

What comes in: one tensor.  What goes out: a chain of view primitives (reshape, permute, expand, slice, strided) over that
tensor and nothing else (`view.dtype`: a bitcast), for several results a tuple of such chains.  Which memory a view shares is
capture's affair, which goes by sizes and strides; so there is no row for as_strided, whose meaning depends on them.

The `*_copy` overloads, the `*_scatter` overloads (functional writes through a view) and the backward of a view stand here too,
because their positions are the view's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from thermit.aten import samples
from thermit.aten.table import DTYPE_OF, Lowered, axis_of, lower
from thermit.ir import build as b
from thermit.ir.node import Node
from thermit.ir.types import BOOL, INT64, Shape, contiguous_strides

aten = torch.ops.aten


# ---------------------------------------------------------------------------------------------- positions
def slice_axis(x: Node, axis: int, start: int, stop: int, step: int = 1) -> Node:
    """Elements start, start + step, ... before stop of one axis; 0 <= start, stop <= size, step > 0."""
    length = max(0, -(-(stop - start) // step))
    starts, steps = [0] * x.type.ndim, [1] * x.type.ndim
    starts[axis], steps[axis] = (start if length else 0), step
    return b.slice_(x, starts, steps, (*x.shape[:axis], length, *x.shape[axis + 1 :]))


def insert_axis(x: Node, axis: int) -> Node:
    """x with an axis of size 1 before `axis`."""
    return b.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:]))


def drop_axis(x: Node, axis: int) -> Node:
    """x without an axis of size 1."""
    return b.reshape(x, x.shape[:axis] + x.shape[axis + 1 :])


def along(x: Node, shape: Shape, axis: int) -> Node:
    """x, which has one axis (or none), lying along `axis` of `shape` and repeated over the others."""
    ones = [1] * len(shape)
    if x.type.ndim:
        ones[axis] = x.shape[0]
    return b.broadcast_to(b.reshape(x, tuple(ones)), shape)


def slice_bounds(size: int, start: int | None, end: int | None) -> tuple[int, int]:
    """Start and stop of `x[start:end]`, clamped into 0 <= start <= stop <= size."""
    first, last = (0 if start is None else start), (size if end is None else end)
    first = min(max(first + size if first < 0 else first, 0), size)
    last = min(max(last + size if last < 0 else last, first), size)
    return first, last


def diagonal_span(rows: int, columns: int, offset: int) -> tuple[int, int, int]:
    """First row, first column and length of a diagonal."""
    row, column = max(-offset, 0), max(offset, 0)
    return row, column, max(0, min(rows - row, columns - column))


def axes_last(ndim: int, dim1: int, dim2: int) -> tuple[int, ...]:
    """The order that puts two axes last."""
    rest = [a for a in range(ndim) if a not in (dim1, dim2)]
    return (*rest, dim1, dim2)


def inverse(order: Sequence[int]) -> tuple[int, ...]:
    """The permutation that undoes `order`."""
    return tuple(order.index(a) for a in range(len(order)))


# ---------------------------------------------------------------------------------------------- shape only
@lower(aten.alias.default, aten.detach.default, aten.lift_fresh.default, aten.lift.default)
@lower(aten.alias_copy.default, aten.detach_copy.default)
def alias(self: Node) -> Lowered:
    return self


@lower(aten.view.default, aten._unsafe_view.default, aten.view_copy.default, aten._reshape_copy.default)
def view(self: Node, size: Sequence[int]) -> Lowered:
    known = math.prod(n for n in size if n != -1)
    return b.reshape(self, tuple(n if n != -1 else self.type.numel // max(known, 1) for n in size))


@lower(aten._reshape_alias.default, samples=samples.reshape_alias)
def reshape_alias(self: Node, size: Sequence[int], stride: Sequence[int]) -> Lowered:
    return b.reshape(self, tuple(size))


@lower(aten.view.dtype, aten.view_copy.dtype)
def view_dtype(self: Node, dtype: torch.dtype) -> Lowered:
    """The same bits as another type of the same width; other widths and bytes that may not be a bool are declined."""
    target = DTYPE_OF.get(dtype)
    if target is self.dtype:
        return self
    if target is None or target.is_complex or target.bits != self.dtype.bits or BOOL in (target, self.dtype):
        return NotImplemented
    return b.bitcast(self, target)


@lower(aten.unsqueeze.default, aten.unsqueeze_copy.default)
def unsqueeze(self: Node, dim: int) -> Lowered:
    return insert_axis(self, dim % (self.type.ndim + 1))


@lower(aten.squeeze.default, aten.squeeze_copy.default)
def squeeze(self: Node) -> Lowered:
    return b.reshape(self, tuple(n for n in self.shape if n != 1))


@lower(aten.squeeze.dim, aten.squeeze_copy.dim)
@lower(aten.squeeze.dims, aten.squeeze_copy.dims, samples=samples.squeeze_dims)
def squeeze_dims(self: Node, dim: int | Sequence[int]) -> Lowered:
    axes = {axis_of(d, self.type.ndim) for d in ((dim,) if isinstance(dim, int) else dim)}
    return b.reshape(self, tuple(n for a, n in enumerate(self.shape) if n != 1 or a not in axes))


@lower(aten.permute.default, aten.permute_copy.default)
def permute(self: Node, dims: Sequence[int]) -> Lowered:
    return b.permute(self, [axis_of(d, self.type.ndim) for d in dims])


@lower(aten.transpose.int, aten.transpose_copy.int)
def transpose(self: Node, dim0: int, dim1: int) -> Lowered:
    order = list(range(self.type.ndim))
    if order:
        i, j = axis_of(dim0, len(order)), axis_of(dim1, len(order))
        order[i], order[j] = order[j], order[i]
    return b.permute(self, order)


@lower(aten.t.default, aten.t_copy.default)
def t(self: Node) -> Lowered:
    return b.permute(self, tuple(reversed(range(self.type.ndim))))


@lower(aten.expand.default, aten.expand_copy.default)
def expand(self: Node, size: Sequence[int], *, implicit: bool = False) -> Lowered:
    missing = len(size) - self.type.ndim
    return b.broadcast_to(self, tuple(self.shape[a - missing] if n == -1 else n for a, n in enumerate(size)))


# ---------------------------------------------------------------------------------------------- parts
@lower(aten.slice.Tensor, aten.slice_copy.Tensor)
def slice_(self: Node, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Lowered:
    axis = axis_of(dim, self.type.ndim)
    first, last = slice_bounds(self.shape[axis], start, end)
    return slice_axis(self, axis, first, last, step)


@lower(aten.select.int, aten.select_copy.int)
def select(self: Node, dim: int, index: int) -> Lowered:
    axis = axis_of(dim, self.type.ndim)
    at = index % self.shape[axis]
    return drop_axis(slice_axis(self, axis, at, at + 1), axis)


@lower(aten.narrow_copy.default)
def narrow(self: Node, dim: int, start: int, length: int) -> Lowered:
    axis = axis_of(dim, self.type.ndim)
    first = start + self.shape[axis] if start < 0 else start
    return slice_axis(self, axis, first, first + length)


@lower(aten.split.Tensor, aten.split_copy.Tensor, aten.unsafe_split.Tensor)
def split(self: Node, split_size: int, dim: int = 0) -> Lowered:
    axis = axis_of(dim, self.type.ndim)
    size = self.shape[axis]
    if size == 0 or split_size == 0:
        return (self,)
    return tuple(slice_axis(self, axis, i, min(i + split_size, size)) for i in range(0, size, split_size))


@lower(aten.split_with_sizes.default, aten.split_with_sizes_copy.default, aten.unsafe_split_with_sizes.default, samples=samples.split_with_sizes)
def split_with_sizes(self: Node, split_sizes: Sequence[int], dim: int = 0) -> Lowered:
    axis = axis_of(dim, self.type.ndim)
    stops = [sum(split_sizes[: i + 1]) for i in range(len(split_sizes))]
    return tuple(slice_axis(self, axis, stop - size, stop) for size, stop in zip(split_sizes, stops, strict=True))


@lower(aten.unbind.int, aten.unbind_copy.int)
def unbind(self: Node, dim: int = 0) -> Lowered:
    return tuple(select(self, dim, i) for i in range(self.shape[axis_of(dim, self.type.ndim)]))


@lower(aten.diagonal.default, aten.diagonal_copy.default)
def diagonal(self: Node, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Lowered:
    """[..., n, m] -> [..., k]: the square that the diagonal crosses, flattened, every (k+1)-th element of it."""
    ndim = self.type.ndim
    x = b.permute(self, axes_last(ndim, axis_of(dim1, ndim), axis_of(dim2, ndim)))
    *batch, rows, columns = x.shape
    row, column, length = diagonal_span(rows, columns, offset)
    square = slice_axis(x, ndim - 2, min(row, rows), min(row, rows) + length)
    square = slice_axis(square, ndim - 1, min(column, columns), min(column, columns) + length)
    flat = b.reshape(square, (*batch, length * length))
    return slice_axis(flat, ndim - 2, 0, length * length, length + 1)


@lower(aten.unfold.default, aten.unfold_copy.default)
def unfold(self: Node, dimension: int, size: int, step: int) -> Lowered:
    """[..., n, ...] -> [..., windows, ..., size].  Windows that do not overlap are a reshape, others a strided view."""
    if self.type.ndim == 0:
        return b.reshape(slice_axis(b.reshape(self, (1,)), 0, 0, size), (size,))
    axis = axis_of(dimension, self.type.ndim)
    count = (self.shape[axis] - size) // step + 1
    if size <= step and count * step <= self.shape[axis]:
        x = slice_axis(self, axis, 0, count * step)
        x = b.reshape(x, (*x.shape[:axis], count, step, *x.shape[axis + 1 :]))
        x = slice_axis(x, axis + 1, 0, size)
        order = [a for a in range(x.type.ndim) if a != axis + 1]
        return b.permute(x, (*order, axis + 1))
    strides = contiguous_strides(self.shape)
    shape = (*self.shape[:axis], count, *self.shape[axis + 1 :], size)
    return b.strided(flattened(self), shape, (*strides[:axis], strides[axis] * step, *strides[axis + 1 :], strides[axis]), 0)


def flattened(x: Node) -> Node:
    return b.reshape(x, (x.type.numel,))


# ---------------------------------------------------------------------------------------------- functional writes
def put_slice(base: Node, value: Node, axis: int, start: int, step: int = 1) -> Node:
    """base with `value` at start, start + step, ... of one axis; value has base's other sizes."""
    size, count = base.shape[axis], value.shape[axis]
    if count == 0:
        return base
    if step == 1 or count == 1:
        return b.concat((slice_axis(base, axis, 0, start), value, slice_axis(base, axis, start + count, size)), axis)
    low, high, interior = ([0] * base.type.ndim for _ in range(3))
    low[axis], interior[axis] = start, step - 1
    high[axis] = size - start - (count - 1) * step - 1
    there = b.pad(b.const(True, BOOL, value.shape), low, high, False, interior)
    return b.where(there, b.pad(value, low, high, 0, interior), base)


def on_diagonal(shape: Shape, offset: int) -> Node:
    """bool [..., n, m]: column - row == offset."""
    rows, columns = len(shape) - 2, len(shape) - 1
    return b.eq(b.sub(b.iota(shape, columns, INT64), b.iota(shape, rows, INT64)), offset)


def spread_diagonal(value: Node, rows: int, columns: int, offset: int) -> Node:
    """[..., k] -> [..., rows, columns]: value i at row first + i of every column, so right where `on_diagonal`."""
    row, _, length = diagonal_span(rows, columns, offset)
    last = value.type.ndim - 1
    low, high = [0] * value.type.ndim, [0] * value.type.ndim
    low[last], high[last] = min(row, rows), rows - min(row, rows) - length
    padded = b.pad(value, low, high, 0)
    return b.expand(insert_axis(padded, last + 1), (*padded.shape, columns))


def _same_type(x: Node, base: Node) -> Node:
    return b.cast(x, base.dtype)


@lower(aten.slice_scatter.default)
def slice_scatter(self: Node, src: Node, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Lowered:
    axis = axis_of(dim, self.type.ndim)
    first, _ = slice_bounds(self.shape[axis], start, end)
    there = slice_(self, dim, start, end, step)
    return put_slice(self, b.broadcast_to(_same_type(src, self), there.shape), axis, first, step)


@lower(aten.select_scatter.default)
def select_scatter(self: Node, src: Node, dim: int, index: int) -> Lowered:
    axis = axis_of(dim, self.type.ndim)
    return put_slice(self, insert_axis(_same_type(src, self), axis), axis, index % self.shape[axis])


@lower(aten.diagonal_scatter.default)
def diagonal_scatter(self: Node, src: Node, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Lowered:
    ndim = self.type.ndim
    order = axes_last(ndim, axis_of(dim1, ndim), axis_of(dim2, ndim))
    x = b.permute(self, order)
    there = spread_diagonal(_same_type(src, self), x.shape[-2], x.shape[-1], offset)
    return b.permute(b.where(on_diagonal(x.shape, offset), there, x), inverse(order))


# ---------------------------------------------------------------------------------------------- backward of views
def _zeros(shape: Sequence[int], like: Node) -> Node:
    return b.const(0, like.dtype, tuple(shape))


@lower(aten.slice_backward.default)
def slice_backward(grad_output: Node, input_sizes: Sequence[int], dim: int, start: int, end: int, step: int) -> Lowered:
    return slice_scatter(_zeros(input_sizes, grad_output), grad_output, dim, start, end, step)


@lower(aten.select_backward.default)
def select_backward(grad_output: Node, input_sizes: Sequence[int], dim: int, index: int) -> Lowered:
    return select_scatter(_zeros(input_sizes, grad_output), grad_output, dim, index)


@lower(aten.diagonal_backward.default)
def diagonal_backward(grad_output: Node, input_sizes: Sequence[int], offset: int, dim1: int, dim2: int) -> Lowered:
    return diagonal_scatter(_zeros(input_sizes, grad_output), grad_output, offset, dim1, dim2)


@lower(aten.unfold_backward.default)
def unfold_backward(grad_in: Node, input_sizes: Sequence[int], dim: int, size: int, step: int) -> Lowered:
    """The windows added where they were cut out; declined where there are many offsets in a window."""
    if len(input_sizes) == 0 or size > 16 or grad_in.dtype.is_half:
        return NotImplemented
    axis = axis_of(dim, len(input_sizes))
    total = _zeros(input_sizes, grad_in)
    for k in range(size):
        part = drop_axis(slice_axis(grad_in, grad_in.type.ndim - 1, k, k + 1), grad_in.type.ndim - 1)
        total = b.add(total, put_slice(_zeros(input_sizes, grad_in), part, axis, k, step))
    return total
