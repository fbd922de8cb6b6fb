"""How PyTorch orders memory: the strides of results, from the geometries of operands.

In:  geometries.  Out: strides.
Idea: TensorIterator's rule and the questions that kernels ask (contiguous? channels last? which format does it suggest?), written down
here and tested against the real kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from thermit.capture.storage import Geometry, is_dense
from thermit.ir.types import Shape, contiguous_strides


class Meta(NamedTuple):
    """What is known of a tensor without its elements."""

    geometry: Geometry
    dtype: torch.dtype


# ---------------------------------------------------------------------------------------------- TensorIterator's strides
def _sorted_axes(shape: Shape, operands: Sequence[Shape]) -> list[int]:
    """Axes from the fastest to the slowest, as TensorIterator::reorder_dimensions finds them (an insertion sort with ties)."""
    perm = list(range(len(shape) - 1, -1, -1))

    def order(a: int, b: int) -> int:
        for strides in operands:
            x, y = strides[a], strides[b]
            if x == 0 or y == 0:
                continue
            if x != y:
                return -1 if x < y else 1
            if shape[a] > shape[b]:
                return 1
        return 0

    for i in range(1, len(perm)):
        moving = i
        for j in range(i - 1, -1, -1):
            found = order(perm[j], perm[moving])
            if found > 0:
                perm[j], perm[moving] = perm[moving], perm[j]
                moving = j
            elif found < 0:
                break
    return perm


def _spread(sizes: Shape, strides: Shape, shape: Shape) -> Shape:
    """The strides of an operand in the broadcast shape."""
    missing = len(shape) - len(sizes)
    return (0,) * missing + tuple(0 if n == 1 and m != 1 else s for n, s, m in zip(sizes, strides, shape[missing:], strict=True))


def is_contiguous(sizes: Shape, strides: Shape) -> bool:
    expected = 1
    if 0 in sizes:
        return True
    for n, s in zip(reversed(sizes), reversed(strides), strict=True):
        if n != 1:
            if s != expected:
                return False
            expected *= n
    return True


_CHANNELS = {4: (1, 3, 2, 0), 5: (1, 4, 3, 2, 0)}


def is_channels_last(sizes: Shape, strides: Shape) -> bool:
    if len(sizes) not in _CHANNELS:
        return False
    expected = 1
    for axis in _CHANNELS[len(sizes)]:
        if sizes[axis] != 1:
            if strides[axis] != expected:
                return False
            expected *= sizes[axis]
    return True


def channels_last_strides(sizes: Shape) -> Shape:
    strides, step = [0] * len(sizes), 1
    for axis in _CHANNELS[len(sizes)]:
        strides[axis] = step
        step *= max(sizes[axis], 1)
    return tuple(strides)


def dense_strides(sizes: Shape, strides: Shape) -> Shape:
    """The strides of a dense tensor whose axes lie in the order of these (at::infer_dense_strides)."""
    out, step = [0] * len(sizes), 1
    for axis in _sorted_axes(sizes, (strides,)):
        out[axis] = step
        if sizes[axis] > 1:
            step *= sizes[axis]
    return tuple(out)


def iterated_strides(shape: Shape, operands: Sequence[Geometry]) -> Shape:
    """The strides of TensorIterator's result for operands of these geometries."""
    if all(g.sizes == shape for g in operands):
        if all(is_contiguous(g.sizes, g.strides) for g in operands):
            return contiguous_strides(shape)
        if all(is_channels_last(g.sizes, g.strides) for g in operands):
            return channels_last_strides(shape)
        last = operands[-1].strides
        if all(g.strides == last and is_dense(g) for g in operands):
            return last
    perm = _sorted_axes(shape, [_spread(g.sizes, g.strides, shape) for g in operands])
    out, step = [0] * len(shape), 1
    for axis in perm:
        out[axis] = step
        step *= shape[axis]
    return contiguous_strides(shape) if perm == list(range(len(shape) - 1, -1, -1)) else tuple(out)


def suggests_channels_last(geometry: Geometry) -> bool:
    """The question that suggest_memory_format asks: strides that grow from channels over the inner axes to the outermost."""
    sizes, strides, _ = geometry
    if len(sizes) not in _CHANNELS or strides[1] == 0:
        return False
    least = 0
    for axis in _CHANNELS[len(sizes)]:
        if sizes[axis] == 0 or strides[axis] < least or (axis == 0 and least == strides[1]):
            return False
        least = strides[axis] * max(sizes[axis], 1)
    return True
