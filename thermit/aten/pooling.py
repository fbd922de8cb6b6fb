"""Pooling over windows.

What comes in: [..., h, w] (or with one or three spatial axes) and the window's geometry.  What goes out: an element-by-element
combination of one strided slice for each element of the window, so that a pooling fuses with what surrounds it; the slices
are taken in eager's order (row-major), so sums round as eager's do.  Large windows that tile their axes become one reduction;
other large windows are declined.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch

from thermit.aten.table import Lowered, computed, lower, rounded
from thermit.ir import build as b
from thermit.ir import prims as p
from thermit.ir.node import Node
from thermit.ir.types import BOOL, INT64, Shape
from thermit.records import dataclass

aten = torch.ops.aten

# Beyond so many elements a window is no longer written out: the code of one kernel grows with it, and a loop is as fast.
WINDOW_ELEMS = 49


@dataclass(frozen=True, slots=True)
class Windows:
    """The geometry along the spatial axes, which are the last ones: sizes of the input, the window, the result."""

    size: Shape
    kernel: Shape
    stride: Shape
    padding: Shape
    dilation: Shape
    out: Shape

    @property
    def rank(self) -> int:
        return len(self.size)

    @property
    def elems(self) -> int:
        return math.prod(self.kernel)

    @property
    def tiles(self) -> bool:
        """Whether the windows lie side by side and cover whole axes."""
        plain = self.kernel == self.stride and not any(self.padding) and set(self.dilation) == {1}
        return plain and all(n * k == size for n, k, size in zip(self.out, self.kernel, self.size, strict=True))

    def offsets(self) -> list[tuple[int, ...]]:
        """Position of each element in the window, row-major."""
        return list(itertools.product(*(range(k) for k in self.kernel)))


def _all(value: int | Sequence[int], rank: int) -> Shape:
    """One number per spatial axis; a single one stands for all."""
    listed = (value,) if isinstance(value, int) else tuple(value)
    return listed * rank if len(listed) == 1 else listed


def _out_size(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> int:
    """PyTorch's pooling_output_shape: in ceil mode the last window must start inside the input or its left padding."""
    out = (size + 2 * padding - dilation * (kernel - 1) - 1 + (stride - 1 if ceil_mode else 0)) // stride + 1
    return out - 1 if ceil_mode and (out - 1) * stride >= size + padding else out


def _windows(
    x: Node,
    rank: int,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: int | Sequence[int],
    dilation: int | Sequence[int],
    ceil_mode: bool,
) -> Windows:
    kernel = _all(kernel_size, rank)
    steps = _all(stride, rank) if stride else kernel
    pads, dilations = _all(padding, rank), _all(dilation, rank)
    size = x.shape[-rank:]
    out = tuple(_out_size(*axis, ceil_mode) for axis in zip(size, kernel, steps, pads, dilations, strict=True))
    return Windows(size, kernel, steps, pads, dilations, out)


def _padded(x: Node, w: Windows, fill: bool | int | float) -> Node:
    """x with its padding, and behind it what the last window needs."""
    outer = x.type.ndim - w.rank
    low, high = [0] * outer, [0] * outer
    for size, kernel, stride, padding, dilation, out in zip(w.size, w.kernel, w.stride, w.padding, w.dilation, w.out, strict=True):
        low.append(padding)
        high.append(max((out - 1) * stride + dilation * (kernel - 1) + 1 - size - padding, 0))
    return b.pad(x, low, high, fill)


def _part(padded: Node, w: Windows, offset: tuple[int, ...]) -> Node:
    """The element at `offset` of every window."""
    outer = padded.shape[: padded.type.ndim - w.rank]
    starts = (*(0 for _ in outer), *(k * d for k, d in zip(offset, w.dilation, strict=True)))
    return b.slice_(padded, starts, (*(1 for _ in outer), *w.stride), (*outer, *w.out))


# ---------------------------------------------------------------------------------------------- max
def _place(w: Windows, shape: Shape, axis: int, offset: int) -> Node:
    """Coordinate in the input, along one spatial axis, of the element `offset` of each window (negative in the padding)."""
    start = b.mul(b.iota(shape, len(shape) - w.rank + axis, INT64), w.stride[axis])
    return b.add(start, offset * w.dilation[axis] - w.padding[axis])


def _first_inside(w: Windows, shape: Shape, axis: int) -> Node:
    """Coordinate of the first element of each window that is not padding."""
    place = _place(w, shape, axis, 0)
    step = w.dilation[axis]
    ahead = b.mul(b.div(b.add(b.neg(place), step - 1), step), step)
    return b.where(b.lt(place, 0), b.add(place, ahead), place)


def _flat(w: Windows, places: Sequence[Node]) -> Node:
    """The index into the flattened spatial axes."""
    total = places[0]
    for size, place in zip(w.size[1:], places[1:], strict=True):
        total = b.add(b.mul(total, size), place)
    return total


def _max_pool(x: Node, w: Windows) -> Lowered:
    """The largest of each window and where it stands.  A nan beats all, the first of equals stays, the last nan is reported."""
    if w.elems > WINDOW_ELEMS or x.dtype is BOOL or x.type.numel == 0 or 0 in w.out:
        return NotImplemented
    wide = computed(x)
    padded = _padded(wide, w, -math.inf if x.dtype.is_float else x.dtype.min)
    shape = (*x.shape[: x.type.ndim - w.rank], *w.out)
    best: Node = b.const(-math.inf if x.dtype.is_float else x.dtype.min, wide.dtype, shape)
    at = _flat(w, [_first_inside(w, shape, a) for a in range(w.rank)])
    for offset in w.offsets():
        value = _part(padded, w, offset)
        better = b.gt(value, best)
        if x.dtype.is_float:
            better = b.or_(better, b.ne(value, value))
        best = b.where(better, value, best)
        at = b.where(better, _flat(w, [_place(w, shape, a, k) for a, k in enumerate(offset)]), at)
    return rounded(best, x.dtype), at


@lower(aten.max_pool2d_with_indices.default)
def max_pool2d_with_indices(
    self: Node,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
) -> Lowered:
    return _max_pool(self, _windows(self, 2, kernel_size, stride, padding, dilation, ceil_mode))


@lower(aten.max_pool3d_with_indices.default)
def max_pool3d_with_indices(
    self: Node,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
) -> Lowered:
    return _max_pool(self, _windows(self, 3, kernel_size, stride, padding, dilation, ceil_mode))


def _adaptive(x: Node, output_size: Sequence[int]) -> Windows | None:
    """Windows of equal size; None where the sizes do not divide."""
    out = tuple(output_size)
    size = x.shape[-len(out) :]
    if any(n == 0 or s % n for s, n in zip(size, out, strict=True)):
        return None
    kernel = tuple(s // n for s, n in zip(size, out, strict=True))
    return Windows(size, kernel, kernel, (0,) * len(out), (1,) * len(out), out)


@lower(aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default, floats=True)
def adaptive_max_pool(self: Node, output_size: Sequence[int]) -> Lowered:
    w = _adaptive(self, output_size)
    return NotImplemented if w is None else _max_pool(self, w)


# ---------------------------------------------------------------------------------------------- average
def _sums(x: Node, w: Windows) -> Node | None:
    """The sum of each window, in x's type."""
    if w.elems <= WINDOW_ELEMS:
        padded = _padded(x, w, 0)
        total = b.const(0, x.dtype, (*x.shape[: x.type.ndim - w.rank], *w.out))
        for offset in w.offsets():
            total = b.add(total, _part(padded, w, offset))
        return total
    if not w.tiles:
        return None
    outer = x.shape[: x.type.ndim - w.rank]
    apart = b.reshape(x, (*outer, *itertools.chain(*zip(w.out, w.kernel, strict=True))))
    return b.reduce(p.SUM, apart, [len(outer) + 2 * a + 1 for a in range(w.rank)])


def _counts(w: Windows, shape: Shape, include_pad: bool) -> Node:
    """How many elements each window has (int64): with the padding, or inside the input only."""
    total = b.const(1, INT64, shape)
    for a in range(w.rank):
        begin = _place(w, shape, a, 0)
        end = b.minimum(b.add(begin, w.kernel[a]), w.size[a] + w.padding[a])
        if not include_pad:
            begin, end = b.maximum(begin, 0), b.minimum(end, w.size[a])
        if _whole(w, a, include_pad):
            total = b.mul(total, w.kernel[a]) if w.kernel[a] != 1 else total
        else:
            total = b.mul(total, b.sub(end, begin))
    return total


def _whole(w: Windows, a: int, include_pad: bool) -> bool:
    """Whether along one axis every window has all of its elements."""
    last = (w.out[a] - 1) * w.stride[a] - w.padding[a] + w.kernel[a]
    return last <= w.size[a] + w.padding[a] if include_pad else w.padding[a] == 0 and last <= w.size[a]


def _avg_pool(x: Node, w: Windows, count_include_pad: bool, divisor_override: int | None) -> Lowered:
    if x.dtype is BOOL or x.type.numel == 0 or 0 in w.out:
        return NotImplemented
    total = _sums(computed(x), w)
    if total is None:
        return NotImplemented
    if divisor_override:
        return rounded(b.div(total, divisor_override), x.dtype)
    if all(_whole(w, a, count_include_pad) for a in range(w.rank)):
        return rounded(b.div(total, w.elems), x.dtype)
    return rounded(b.div(total, b.cast(_counts(w, total.shape, count_include_pad), total.dtype)), x.dtype)


@lower(aten.avg_pool2d.default)
def avg_pool2d(
    self: Node,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Lowered:
    if not (self.dtype.is_float or self.dtype is INT64):
        return NotImplemented
    return _avg_pool(self, _windows(self, 2, kernel_size, stride, padding, 1, ceil_mode), count_include_pad, divisor_override)


@lower(aten.avg_pool3d.default)
def avg_pool3d(
    self: Node,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Lowered:
    if self.dtype.is_half or not (self.dtype.is_float or self.dtype is INT64):
        return NotImplemented
    return _avg_pool(self, _windows(self, 3, kernel_size, stride, padding, 1, ceil_mode), count_include_pad, divisor_override)


@lower(aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default)
def adaptive_avg_pool(self: Node, output_size: Sequence[int]) -> Lowered:
    """The sum divided by one size of the window after another, as eager's kernel does (in three dimensions rounding halves at each step)."""
    w = _adaptive(self, output_size)
    if self.dtype.is_half and len(output_size) == 3:
        return NotImplemented
    total = None if w is None or self.type.numel == 0 or not self.dtype.is_float else _sums(computed(self), w)
    if w is None or total is None:
        return NotImplemented
    for size in w.kernel:
        total = b.div(total, size)
    return rounded(total, self.dtype)
