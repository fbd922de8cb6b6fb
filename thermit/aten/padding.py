"""Padding: a constant, the reflected or the nearest elements around a tensor.

What comes in: `pad`, two numbers per axis, the last axis first; negative ones cut.  What goes out: pad, concat, slice; exact.
A pad with reflected or repeated edges is, axis after axis, the middle between two slices of itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from thermit.aten.table import Lowered, Number, fits, lower
from thermit.aten.view import slice_axis
from thermit.ir import build as b
from thermit.ir.node import Node
from thermit.ir.types import BOOL

aten = torch.ops.aten


def _sides(pad: Sequence[int], ndim: int) -> list[tuple[int, int, int]]:
    """(axis, before, after) of each padded axis, the last axis first."""
    return [(ndim - 1 - k, pad[2 * k], pad[2 * k + 1]) for k in range(len(pad) // 2)]


@lower(aten.constant_pad_nd.default)
def constant_pad_nd(self: Node, pad: Sequence[int], value: Number = 0) -> Lowered:
    if not fits(value, self.dtype):
        return NotImplemented
    x, ndim = self, self.type.ndim
    low, high = [0] * ndim, [0] * ndim
    for axis, before, after in _sides(pad, ndim):
        size = x.shape[axis]
        x = slice_axis(x, axis, min(max(-before, 0), size), max(size - max(-after, 0), 0))
        low[axis], high[axis] = max(before, 0), max(after, 0)
    return b.pad(x, low, high, value)


def _extend(x: Node, pad: Sequence[int], edge: Callable[[Node, int, int, bool], Node]) -> Node:
    """x between its edges along each axis; `edge(x, axis, count, front)` makes one.  Negative counts cut afterwards, as eager's index does."""
    for axis, before, after in _sides(pad, x.type.ndim):
        parts = [x]
        if before > 0:
            parts.insert(0, edge(x, axis, before, True))
        if after > 0:
            parts.append(edge(x, axis, after, False))
        whole = b.concat(parts, axis)
        x = slice_axis(whole, axis, max(-before, 0), whole.shape[axis] - max(-after, 0))
    return x


def _reflected(x: Node, axis: int, count: int, front: bool) -> Node:
    """The `count` elements beside the border (which is not repeated), mirrored."""
    size = x.shape[axis]
    part = slice_axis(x, axis, 1, count + 1) if front else slice_axis(x, axis, size - 1 - count, size - 1)
    return b.flip(part, [axis])


def _repeated(x: Node, axis: int, count: int, front: bool) -> Node:
    """The border element `count` times."""
    size = x.shape[axis]
    border = slice_axis(x, axis, 0, 1) if front else slice_axis(x, axis, size - 1, size)
    return b.expand(border, (*x.shape[:axis], count, *x.shape[axis + 1 :]))


@lower(aten.reflection_pad1d.default, aten.reflection_pad2d.default, aten.reflection_pad3d.default)
def reflection_pad(self: Node, padding: Sequence[int]) -> Lowered:
    return NotImplemented if self.dtype is BOOL else _extend(self, padding, _reflected)


@lower(aten.replication_pad1d.default, aten.replication_pad2d.default, aten.replication_pad3d.default)
def replication_pad(self: Node, padding: Sequence[int]) -> Lowered:
    return _extend(self, padding, _repeated)
