"""Convolutions over one, two or three axes.

What comes in: x [N, C, *sizes], weight [O, C / groups, *taps].  What goes out: [N, O, *places], a matrix product:

    x padded (pad) -> its windows (window) [N, C, *places, *taps] -> right side [N, groups, C / groups * taps, places]
    weight -> left side [N, groups, O / groups, C / groups * taps], which is how it lies: nothing is moved

so rows are channels and columns are places, as in the result: what follows (bias, normalisation, activation, residual) is fused behind the
product, and all values of a network lie as PyTorch's do.  Neither the padded nor the windowed x is in memory: both are views.  With one channel
in and out of each group (depthwise) the sums of a product would have nothing to share: they are written out, one multiply-add for each tap.

float32 and float64.  Transposed convolutions are left to PyTorch: over a padded image, an infinite weight would meet zeros and give nan where eager
multiplies nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch

from thermit.aten.contraction import matrix_product
from thermit.aten.table import Lowered, lower
from thermit.ir import build as b
from thermit.ir.node import Node
from thermit.ir.types import FLOAT32, FLOAT64, Shape

aten = torch.ops.aten

EXACT_WORK = 1 << 16  # multiply-adds: up to so many are done in float64, in some microseconds: eager's sums are in many orders, some of them accurate
LEAST_VOLUME = 1 << 20  # multiply-adds over three axes: of less, eager's sums differ more from the true ones than what agrees with them
MOST_PLACES = 1024  # of a depthwise convolution whose windows are read under masks: the masks stay in L2
MOST_MASK_BYTES = 60 << 10  # of one row of the result, one element a tap: two rows of masks must fit (loops/windows.py)
MOST_TAPS = 25  # of a depthwise convolution: with more, PyTorch's is faster (7 x 7: 0.24 ms over 14 x 14, 0.32 here; 0.9 over 56 x 56, 2.2 here)
MOST_WASTE = 1.25  # times the places that are asked for: windows without padding over small images are left to PyTorch
MOST_WINDOW = 128  # taps (13 x 13: twice as fast in PyTorch)


@lower(aten.convolution.default)
def convolution(
    input: Node,
    weight: Node,
    bias: Node | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Lowered:
    rank, types = input.type.ndim - 2, {t.dtype for t in (input, weight, bias) if t is not None}
    if transposed or rank not in (1, 2, 3) or types not in ({FLOAT32}, {FLOAT64}) or 0 in (*input.shape, *weight.shape):
        return NotImplemented
    stride, padding, dilation = (_each(v, rank) for v in (stride, padding, dilation))
    taps = weight.shape[2:]
    places = tuple((n + 2 * q - d * (k - 1) - 1) // s + 1 for n, q, d, k, s in zip(input.shape[2:], padding, dilation, taps, stride, strict=True))
    if min(places) < 1:
        return NotImplemented
    work = math.prod(places) * input.shape[0] * weight.type.numel
    if rank == 3 and work < LEAST_VOLUME:
        return NotImplemented
    exact = input.dtype is FLOAT32 and work <= EXACT_WORK
    is_depthwise = weight.shape[:2] == (groups, 1)
    if is_depthwise and math.prod(taps) > MOST_TAPS:
        return NotImplemented
    if not is_depthwise and work > EXACT_WORK and math.prod(taps) > 1 and not _is_apart(taps, stride, padding, dilation):
        masks = math.prod(taps) * places[-1] * input.dtype.itemsize if rank > 1 else 0
        if masks > MOST_MASK_BYTES or math.prod(taps) > MOST_WINDOW or _waste(input, places, stride) > MOST_WASTE:
            return NotImplemented
    if exact:
        input, weight = _value(b.cast(input, FLOAT64)), _value(b.cast(weight, FLOAT64))
    if is_depthwise:
        made = _depthwise(input, weight, places, stride, padding, dilation)
    else:
        made = _product(input, weight, places, stride, padding, dilation, groups)
    if bias is not None:
        column = b.reshape(b.cast(bias, made.dtype), (bias.shape[0], *(1 for _ in places)))
        made = b.add(made, b.broadcast_to(column, made.shape))
    return b.cast(made, FLOAT32) if exact else made


def _each(value: Sequence[int], rank: int) -> Shape:
    """One number an axis; a single one stands for all."""
    return tuple(value) * rank if len(value) == 1 else tuple(value)


def _product(x: Node, weight: Node, places: Shape, stride: Shape, padding: Shape, dilation: Shape, groups: int) -> Node:
    rank, taps = len(places), weight.shape[2:]
    ones = (1,) * rank
    if taps == ones != stride and not any(padding):
        x, stride = _value(b.slice_(x, (0,) * (rank + 2), (1, 1, *stride), (*x.shape[:2], *places))), ones
    if taps != ones and _is_apart(taps, stride, padding, dilation):
        turned, computed = _patches(x, places, taps), places
    else:
        x, computed = _aligned(x, places, stride)
        turned = _windows(x, computed, taps, stride, padding, dilation)
    (count, channels), rows = x.shape[:2], weight.shape[0] // groups
    depth = channels // groups * math.prod(taps)
    batch = tuple(n for n in (count, groups) if n != 1)
    right = b.reshape(turned, (*batch, depth, math.prod(computed)))
    left = b.reshape(weight, (*(1 if k == 0 and count != 1 else n for k, n in enumerate(batch)), rows, depth))
    made = b.reshape(matrix_product(b.expand(left, (*batch, rows, depth)), right), (count, weight.shape[0], *computed))
    return b.slice_(made, (0,) * (rank + 2), (1,) * (rank + 2), (*made.shape[:2], *places))


def _windows(x: Node, places: Shape, taps: Shape, stride: Shape, padding: Shape, dilation: Shape) -> Node:
    """[N, C, *taps, *places], a view; zeros around x."""
    rank = len(places)
    needed = ((n - 1) * s + d * (k - 1) + 1 - low for n, s, d, k, low in zip(places, stride, dilation, taps, padding, strict=True))
    high = tuple(max(n - size, 0) for n, size in zip(needed, x.shape[2:], strict=True))
    windows = b.window(b.pad(x, (0, 0, *padding), (0, 0, *high), 0.0), places, taps, stride, dilation)
    return b.permute(windows, (0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank)))


def _is_apart(taps: Shape, stride: Shape, padding: Shape, dilation: Shape) -> bool:
    """Whether windows stand side by side."""
    return stride == taps and not any(padding) and all(d == 1 for d in dilation)


def _patches(x: Node, places: Shape, taps: Shape) -> Node:
    """Windows side by side, copied: [N, C, *taps, *places]."""
    rank = len(places)
    whole = b.slice_(x, (0,) * (rank + 2), (1,) * (rank + 2), (*x.shape[:2], *(n * k for n, k in zip(places, taps, strict=True))))
    cut = b.reshape(whole, (*x.shape[:2], *itertools.chain(*zip(places, taps, strict=True))))
    return _value(b.permute(cut, (0, 1, *range(3, 3 + 2 * rank, 2), *range(2, 2 + 2 * rank, 2))))


def _waste(x: Node, places: Shape, stride: Shape) -> float:
    """How many places `_aligned` computes, times those that are asked for."""
    return math.prod(max(1.0, -(-size // s) / n) for size, n, s in zip(x.shape[3:], places[1:], stride[1:], strict=True))


def _value(x: Node) -> Node:
    """x as a value of its own, in memory as it is seen here: a view would be read through.  (No sum that begins with 0.0 sees that -0.0 is 0.0.)"""
    return b.add(x, 0.0)


def _aligned(x: Node, places: Shape, stride: Shape) -> tuple[Node, Shape]:
    """x as loops read it best, and the places to compute, of which some are not asked for.

    Neighbouring places then read neighbouring elements, also from the end of a row to the beginning of the next: along each axis but the first
    the image is as long as the result, zeros behind it, or the result is as long as the image.  With strides, every `stride`-th element
    stands beside the next: [N, C, *strides, *sizes / strides] in memory.
    """
    wide = tuple(-(-n // s) for n, s in zip(x.shape[2:], stride, strict=True))
    computed = (places[0], *(max(n, w) for n, w in zip(places[1:], wide[1:], strict=True)))
    wide = (wide[0], *computed[1:])
    more = tuple(w * s - n for w, s, n in zip(wide, stride, x.shape[2:], strict=True))
    if not any(more) and all(s == 1 for s in stride):
        return x, computed
    rank = len(places)
    x = b.pad(x, (0,) * (rank + 2), (0, 0, *more), 0.0)
    cut = b.reshape(x, (*x.shape[:2], *itertools.chain(*zip(wide, stride, strict=True))))
    apart = _value(b.permute(cut, (0, 1, *range(3, 3 + 2 * rank, 2), *range(2, 2 + 2 * rank, 2))))
    back = b.permute(apart, (0, 1, *itertools.chain(*((2 + rank + a, 2 + a) for a in range(rank)))))
    return b.reshape(back, x.shape), computed


def _depthwise(x: Node, weight: Node, places: Shape, stride: Shape, padding: Shape, dilation: Shape) -> Node:
    """Each channel by itself: a product of one row where the image is as long as the result and small, else a sum of slices."""
    (count, channels), taps = x.shape[:2], weight.shape[2:]
    shape = (count, channels, *places)
    wide = tuple(-(-n // s) for n, s in zip(x.shape[2:], stride, strict=True))
    if math.prod(taps) > 1 and wide == places and math.prod(places) <= MOST_PLACES:
        turned = _windows(_aligned(x, places, stride)[0], places, taps, stride, padding, dilation)
        right = b.reshape(turned, (count, channels, math.prod(taps), math.prod(places)))
        left = b.reshape(weight, (1, channels, 1, math.prod(taps)))
        return b.reshape(b.contract(b.expand(left, (count, *left.shape[1:])), right), shape)
    padded = b.pad(x, (0, 0, *padding), (0, 0, *padding), 0.0)
    total: Node | None = None
    for at in itertools.product(*(range(k) for k in taps)):
        seen = b.slice_(padded, (0, 0, *(k * d for k, d in zip(at, dilation, strict=True))), (1, 1, *stride), shape)
        factor = b.slice_(weight, (0, 0, *at), (1,) * weight.type.ndim, (channels, *(1 for _ in range(weight.type.ndim - 1))))
        factor = b.broadcast_to(b.reshape(factor, (channels, *(1 for _ in places))), shape)
        total = b.mul(seen, factor) if total is None else b.fma(seen, factor, total)
    assert total is not None
    return total
