"""Operations that move elements to a new tensor: concatenation, repetition, rotation, triangles, blocks of channels.

What comes in: tensors of any element type.  What goes out: their elements, each unchanged, in another place; so everything
here is exact and nothing is computed.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from thermit.aten.table import DTYPE_OF, Lowered, axis_of, lower, promote_types
from thermit.aten.view import axes_last, drop_axis, flattened, insert_axis, inverse, on_diagonal, slice_axis, spread_diagonal
from thermit.ir import build as b
from thermit.ir.node import Node
from thermit.ir.types import BOOL, INT64, DType, Shape

aten = torch.ops.aten


# ---------------------------------------------------------------------------------------------- joining
def common_dtype(tensors: Sequence[Node]) -> DType:
    """The type that holds the elements of all tensors (their ranks do not count here)."""
    return functools.reduce(promote_types, (t.dtype for t in tensors))


@lower(aten.cat.default)
def cat(tensors: Sequence[Node], dim: int = 0) -> Lowered:
    """Tensors of shape [0] are left out whatever the rank of the others, as eager does."""
    dtype = common_dtype(tensors)
    kept = [t for t in tensors if t.shape != (0,)] or [tensors[0]]
    return b.concat([b.cast(t, dtype) for t in kept], axis_of(dim, kept[0].type.ndim))


@lower(aten.stack.default)
def stack(tensors: Sequence[Node], dim: int = 0) -> Lowered:
    dtype = common_dtype(tensors)
    axis = dim % (tensors[0].type.ndim + 1)
    return b.concat([insert_axis(b.cast(t, dtype), axis) for t in tensors], axis)


@lower(aten.block_diag.default)
def block_diag(tensors: Sequence[Node]) -> Lowered:
    """Matrices (vectors and scalars as rows) along a diagonal, zeros elsewhere."""
    dtype = common_dtype(tensors)
    blocks = [b.cast(b.reshape(t, (1,) * (2 - t.type.ndim) + t.shape), dtype) for t in tensors]
    total = sum(block.shape[1] for block in blocks)
    rows, before = [], 0
    for block in blocks:
        width = block.shape[1]
        rows.append(b.pad(block, (0, before), (0, total - before - width), 0))
        before += width
    return b.concat(rows, 0)


# ---------------------------------------------------------------------------------------------- rotating, repeating
@lower(aten.flip.default)
def flip(self: Node, dims: Sequence[int]) -> Lowered:
    return b.flip(self, [axis_of(d, self.type.ndim) for d in dims])


@lower(aten.rot90.default)
def rot90(self: Node, k: int = 1, dims: Sequence[int] = (0, 1)) -> Lowered:
    first, second = (axis_of(d, self.type.ndim) for d in dims)
    order = list(range(self.type.ndim))
    order[first], order[second] = second, first
    match k % 4:
        case 0:
            return self
        case 1:
            return b.permute(b.flip(self, [second]), order)
        case 2:
            return b.flip(self, [first, second])
    return b.permute(b.flip(self, [first]), order)


@lower(aten.roll.default)
def roll(self: Node, shifts: int | Sequence[int], dims: int | Sequence[int] = ()) -> Lowered:
    shifts = (shifts,) if isinstance(shifts, int) else shifts
    dims = (dims,) if isinstance(dims, int) else dims
    if self.type.numel == 0:
        return self
    if not dims:
        return b.reshape(_roll_axis(flattened(self), shifts[0], 0), self.shape)
    x = self
    for shift, dim in zip(shifts, dims, strict=True):
        x = _roll_axis(x, shift, axis_of(dim, self.type.ndim))
    return x


def _roll_axis(x: Node, shift: int, axis: int) -> Node:
    size = x.shape[axis]
    cut = -shift % size
    return b.concat((slice_axis(x, axis, cut, size), slice_axis(x, axis, 0, cut)), axis)


@lower(aten.repeat.default)
def repeat(self: Node, repeats: Sequence[int]) -> Lowered:
    """Each axis n becomes [times, n], then times * n."""
    shape = (1,) * (len(repeats) - self.type.ndim) + self.shape
    apart: list[int] = [m for n in shape for m in (1, n)]
    together: list[int] = [m for times, n in zip(repeats, shape, strict=True) for m in (times, n)]
    x = b.expand(b.reshape(self, tuple(apart)), tuple(together))
    return b.reshape(x, tuple(times * n for times, n in zip(repeats, shape, strict=True)))


# ---------------------------------------------------------------------------------------------- triangles, diagonals
def _below(shape: Shape, diagonal: int) -> Node:
    """bool: column - row <= diagonal."""
    rows, columns = len(shape) - 2, len(shape) - 1
    return b.le(b.sub(b.iota(shape, columns, INT64), b.iota(shape, rows, INT64)), diagonal)


@lower(aten.tril.default)
def tril(self: Node, diagonal: int = 0) -> Lowered:
    return b.where(_below(self.shape, diagonal), self, b.like(0, self))


@lower(aten.triu.default)
def triu(self: Node, diagonal: int = 0) -> Lowered:
    return b.where(_below(self.shape, diagonal - 1), b.like(0, self), self)


@lower(aten.diag_embed.default)
def diag_embed(self: Node, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Lowered:
    ndim = self.type.ndim + 1
    size = self.shape[-1] + abs(offset)
    there = spread_diagonal(self, size, size, offset)
    placed = b.where(on_diagonal(there.shape, offset), there, b.like(0, there))
    return b.permute(placed, inverse(axes_last(ndim, axis_of(dim1, ndim), axis_of(dim2, ndim))))


def _triangle_indices(row: int, col: int, offset: int, dtype: Any, lower_part: bool) -> Lowered:
    """The positions of a triangle of a [row, col] matrix, [2, count]; only small ones, whose values become constants."""
    inside = [(i, j) for i in range(row) for j in range(col) if (j - i <= offset if lower_part else j - i >= offset)] if row * col <= 64 else None
    kind = DTYPE_OF[dtype or torch.int64]
    if inside is None:
        return NotImplemented
    if not inside:
        return b.const(0, kind, (2, 0))
    values = [b.const(position[axis], kind, (1, 1)) for axis in (0, 1) for position in inside]
    return b.reshape(b.concat(values, 0), (2, len(inside)))


@lower(aten.tril_indices.default)
def tril_indices(
    row: int, col: int, offset: int = 0, *, dtype: Any = torch.int64, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> Lowered:
    return _triangle_indices(row, col, offset, dtype, True)


@lower(aten.triu_indices.default)
def triu_indices(
    row: int, col: int, offset: int = 0, *, dtype: Any = torch.int64, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> Lowered:
    return _triangle_indices(row, col, offset, dtype, False)


# ---------------------------------------------------------------------------------------------- channels
@lower(aten.pixel_shuffle.default)
def pixel_shuffle(self: Node, upscale_factor: int) -> Lowered:
    """[..., c*r*r, h, w] -> [..., c, h*r, w*r]."""
    *batch, channels, height, width = self.shape
    r, n = upscale_factor, len(batch)
    x = b.reshape(self, (*batch, channels // (r * r), r, r, height, width))
    x = b.permute(x, (*range(n), n, n + 3, n + 1, n + 4, n + 2))
    return b.reshape(x, (*batch, channels // (r * r), height * r, width * r))


@lower(aten.pixel_unshuffle.default)
def pixel_unshuffle(self: Node, downscale_factor: int) -> Lowered:
    """[..., c, h*r, w*r] -> [..., c*r*r, h, w]."""
    *batch, channels, height, width = self.shape
    r, n = downscale_factor, len(batch)
    x = b.reshape(self, (*batch, channels, height // r, r, width // r, r))
    x = b.permute(x, (*range(n), n, n + 2, n + 4, n + 1, n + 3))
    return b.reshape(x, (*batch, channels * r * r, height // r, width // r))


@lower(aten.channel_shuffle.default)
def channel_shuffle(self: Node, groups: int) -> Lowered:
    batch, channels, *rest = self.shape
    x = b.reshape(self, (batch, groups, channels // groups, *rest))
    return b.reshape(b.permute(x, (0, 2, 1, *range(3, x.type.ndim))), self.shape)


@lower(aten.im2col.default)
def im2col(self: Node, kernel_size: Sequence[int], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]) -> Lowered:
    """[n, c, h, w] -> [n, c*kh*kw, positions]: one strided slice per element of the window, stacked."""
    if not (self.dtype.is_float or self.dtype is BOOL):
        return NotImplemented
    if self.type.ndim == 3:
        one = im2col(insert_axis(self, 0), kernel_size, dilation, padding, stride)
        return one if one is NotImplemented else drop_axis(one, 0)
    (kh, kw), (dh, dw), (ph, pw), (sh, sw) = (_pair(v) for v in (kernel_size, dilation, padding, stride))
    if kh * kw > 49:
        return NotImplemented
    batch, channels, height, width = self.shape
    x = b.pad(self, (0, 0, ph, pw), (0, 0, ph, pw), 0)
    rows, columns = (height + 2 * ph - dh * (kh - 1) - 1) // sh + 1, (width + 2 * pw - dw * (kw - 1) - 1) // sw + 1
    shape = (batch, channels, rows, columns)
    parts = [insert_axis(b.slice_(x, (0, 0, i * dh, j * dw), (1, 1, sh, sw), shape), 2) for i in range(kh) for j in range(kw)]
    return b.reshape(b.concat(parts, 2), (batch, channels * kh * kw, rows * columns))


def _pair(value: Sequence[int]) -> tuple[int, int]:
    return (value[0], value[0]) if len(value) == 1 else (value[0], value[1])
