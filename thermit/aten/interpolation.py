"""Resizing of images: nearest, linear, cubic, along the last axes.

What comes in: [n, c, spatial...], the sizes of the result, perhaps the scale factors.  What goes out: reads at computed places
and a weighted sum of them.  Places and weights follow eager's kernels operation by operation (where those are compiled to a
fused multiply-add the row says fma), so nearest and linear agree bit for bit, cubic within rounding.
Nearest by a whole factor is a view.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from thermit.aten import samples
from thermit.aten.table import TORCH_OF, Lowered, computed, each_rounded, lower, rounded
from thermit.aten.view import along, insert_axis, slice_axis
from thermit.ir import build as b
from thermit.ir.node import Node
from thermit.ir.types import FLOAT32, FLOAT64, INT64, UINT8, DType

aten = torch.ops.aten

Places = list[tuple[Node, Node]]  # along one axis: the index read and its weight, each of shape [out]


def place_dtype(dtype: DType) -> DType:
    """The type in which eager computes places and weights."""
    return FLOAT64 if dtype is FLOAT64 else FLOAT32


def _scale(size: int, out: int, given: float | None, dtype: DType) -> float:
    """Input elements for each output element."""
    return b.round_to(1.0 / given if given is not None and given > 0 else size / out, dtype)


# ---------------------------------------------------------------------------------------------- nearest
def _nearest_list(size: int, out: int, scale: float, exact: bool, dtype: DType) -> list[int]:
    """The place that each output element reads; the products are rounded in `dtype`, the floor is taken in float32."""
    at = torch.arange(out, dtype=TORCH_OF[dtype], device="cpu")
    places = (at.add(0.5) if exact else at).mul(scale).to(torch.float32).floor()
    return [int(place) for place in places.clamp(max=size - 1).tolist()]


def _nearest_node(size: int, out: int, scale: float, exact: bool, dtype: DType) -> Node:
    """The same as `_nearest_list`, computed when the program runs."""
    place = b.iota((out,), 0, dtype)
    if exact:
        place = b.add(place, 0.5)
    place = b.cast(b.floor(b.cast(b.mul(place, scale), FLOAT32)), INT64)
    return b.minimum(b.maximum(place, 0), size - 1)


def _as_view(x: Node, axis: int, places: list[int]) -> Node | None:
    """x read at the places along one axis, where a view can: every place repeated, or every k-th."""
    size, out = x.shape[axis], len(places)
    if out % size == 0 and places == [i // (out // size) for i in range(out)]:
        wide = b.broadcast_to(insert_axis(x, axis + 1), (*x.shape[: axis + 1], out // size, *x.shape[axis + 1 :]))
        return b.reshape(wide, (*x.shape[:axis], out, *x.shape[axis + 1 :]))
    step = places[1] - places[0] if out > 1 else 1
    if step > 0 and places == [places[0] + i * step for i in range(out)]:
        return slice_axis(x, axis, places[0], places[-1] + 1, step)
    return None


def _nearest(x: Node, output_size: Sequence[int], scales: Sequence[float | None], exact: bool) -> Lowered:
    if not (x.dtype.is_float or x.dtype is UINT8):
        return NotImplemented
    rank = len(output_size)
    dtype = FLOAT32 if rank == 2 else place_dtype(x.dtype)
    if 0 in x.shape or 0 in output_size:
        return NotImplemented
    computed_places: dict[int, Node] = {}
    for k, (out, given) in enumerate(zip(output_size, scales, strict=True)):
        axis = x.type.ndim - rank + k
        size = x.shape[axis]
        scale = _scale(size, out, given, dtype)
        places = _nearest_list(size, out, scale, exact, dtype)
        if rank == 2 and out in (size, 2 * size) and places != [i * size // out for i in range(out)]:
            return NotImplemented  # a scale that contradicts the sizes: some of eager's kernels follow the one, some the other
        view = _as_view(x, axis, places)
        if view is None:
            computed_places[axis] = _nearest_node(size, out, scale, exact, dtype)
        else:
            x = view
    return _read(x, computed_places) if computed_places else x


def _read(x: Node, places: dict[int, Node]) -> Node:
    """x at computed places along some axes."""
    shape = tuple(places[a].shape[0] if a in places else n for a, n in enumerate(x.shape))
    return b.gather(x, [along(places[a], shape, a) if a in places else b.iota(shape, a, INT64) for a in range(len(shape))])


@lower(aten.upsample_nearest1d.default)
def upsample_nearest1d(self: Node, output_size: Sequence[int], scales: float | None = None) -> Lowered:
    return _nearest(self, output_size, (scales,), False)


@lower(aten._upsample_nearest_exact1d.default)
def upsample_nearest_exact1d(self: Node, output_size: Sequence[int], scales: float | None = None) -> Lowered:
    return _nearest(self, output_size, (scales,), True)


@lower(aten.upsample_nearest2d.default)
def upsample_nearest2d(self: Node, output_size: Sequence[int], scales_h: float | None = None, scales_w: float | None = None) -> Lowered:
    return _nearest(self, output_size, (scales_h, scales_w), False)


@lower(aten._upsample_nearest_exact2d.default)
def upsample_nearest_exact2d(self: Node, output_size: Sequence[int], scales_h: float | None = None, scales_w: float | None = None) -> Lowered:
    return _nearest(self, output_size, (scales_h, scales_w), True)


@lower(aten.upsample_nearest3d.default)
def upsample_nearest3d(
    self: Node, output_size: Sequence[int], scales_d: float | None = None, scales_h: float | None = None, scales_w: float | None = None
) -> Lowered:
    return _nearest(self, output_size, (scales_d, scales_h, scales_w), False)


@lower(aten._upsample_nearest_exact3d.default, samples=samples.nearest_exact3d)
def upsample_nearest_exact3d(
    self: Node, output_size: Sequence[int], scales_d: float | None = None, scales_h: float | None = None, scales_w: float | None = None
) -> Lowered:
    return _nearest(self, output_size, (scales_d, scales_h, scales_w), True)


# ---------------------------------------------------------------------------------------------- linear, cubic
def _source(size: int, out: int, align_corners: bool, given: float | None, dtype: DType) -> Node:
    """The (fractional) place of each output element, [out]: corners upon corners, or centres upon centres."""
    at = b.iota((out,), 0, dtype)
    if align_corners:
        return b.mul(at, b.round_to((size - 1) / (out - 1), dtype) if out > 1 else 0.0)
    half = b.add(at, 0.5)
    return b.fma(b.like(_scale(size, out, given, dtype), half), half, b.like(-0.5, half))


def _linear_places(size: int, out: int, align_corners: bool, given: float | None, dtype: DType, kept: DType) -> Places:
    """The two neighbours of each output element and their weights, computed in `dtype`, the second's kept in another."""
    if size == out:
        same = b.iota((out,), 0, INT64)
        return [(same, b.const(1, dtype, (out,))), (same, b.const(0, dtype, (out,)))]
    source = _source(size, out, align_corners, given, dtype)
    if not align_corners:
        source = b.where(b.lt(source, 0), b.like(0, source), source)
    first = b.minimum(b.maximum(b.cast(b.floor(b.cast(source, FLOAT32)), INT64), 0), size - 1)  # 0: so that no check is needed
    second = b.minimum(b.add(first, 1), size - 1)
    weight = b.minimum(b.maximum(b.sub(source, b.cast(first, dtype)), 0), 1)
    weight = each_rounded(weight, kept)
    return [(first, b.sub(b.like(1, weight), weight)), (second, weight)]


def _taps(x: Node, axes: Sequence[Places]) -> list[tuple[Node, tuple[Node, ...]]]:
    """For every combination of neighbours: the value read, and its weight along each axis; all in the result's shape."""
    first = x.type.ndim - len(axes)
    shape = (*x.shape[:first], *(places[0][0].shape[0] for places in axes))
    taps = []
    for picks in itertools.product(*axes):
        value = _read(x, {first + k: index for k, (index, _) in enumerate(picks)})
        taps.append((value, tuple(along(weight, shape, first + k) for k, (_, weight) in enumerate(picks))))
    return taps


def _kept(places: Places, dtype: DType) -> Places:
    """The places with weights as eager's kernel for any number of axes keeps them: in the type of the image."""
    return [(index, each_rounded(weight, dtype)) for index, weight in places]


def _weighted(terms: Sequence[tuple[Node, Node]]) -> Node:
    """The sum of value * weight: the second product rounded, all others fused onto it, as eager's compiler arranges it."""
    (value0, weight0), (value1, weight1), *rest = terms
    total = b.fma(value0, weight0, b.mul(value1, weight1))
    for value, weight in rest:
        total = b.fma(value, weight, total)
    return total


def _linear(x: Node, output_size: Sequence[int], align_corners: bool, scales: Sequence[float | None]) -> Lowered:
    rank = len(output_size)
    if not x.dtype.is_float or 0 in x.shape or 0 in output_size:
        return NotImplemented
    wide = computed(x)
    sizes = x.shape[-rank:]
    kept = wide.dtype if rank == 2 else x.dtype
    options = zip(sizes, output_size, (align_corners,) * rank, scales, strict=True)
    axes = [_kept(_linear_places(*axis, place_dtype(x.dtype), kept), kept) for axis in options]
    taps = _taps(wide, axes)
    if rank == 1:
        total = _weighted([(value, weights[0]) for value, weights in taps])
    elif rank == 2:
        total = _weighted([(value, b.mul(*weights)) for value, weights in taps])
    else:
        lines = [_weighted([(value, weights[2]) for value, weights in taps[i : i + 2]]) for i in range(0, 8, 2)]
        planes = [_weighted([(lines[i], taps[2 * i][1][1]), (lines[i + 1], taps[2 * i + 2][1][1])]) for i in (0, 2)]
        total = _weighted([(planes[0], taps[0][1][0]), (planes[1], taps[4][1][0])])
    return rounded(total, x.dtype)


def _near_weight(t: Node) -> Node:
    """The cubic kernel (a = -0.75) at a distance t <= 1: ((a + 2) t - (a + 3)) t t + 1."""
    return b.add(b.mul(b.mul(b.sub(b.mul(t, 1.25), 2.25), t), t), 1)


def _far_weight(t: Node) -> Node:
    """The same at 1 <= t <= 2: ((a t - 5 a) t + 8 a) t - 4 a."""
    return b.add(b.mul(b.add(b.mul(b.add(b.mul(t, -0.75), 3.75), t), -6), t), 3)


def _cubic_places(size: int, out: int, align_corners: bool, given: float | None, dtype: DType) -> Places:
    """The four neighbours of each output element (the border repeated) and their weights."""
    source = _source(size, out, align_corners, given, dtype)
    floor = b.floor(source)
    t = b.minimum(b.maximum(b.sub(source, floor), 0), 1)
    rest = b.sub(b.like(1, t), t)
    weights = (_far_weight(b.add(t, 1)), _near_weight(t), _near_weight(rest), _far_weight(b.add(rest, 1)))
    first = b.cast(floor, INT64)
    return [(b.minimum(b.maximum(b.add(first, k - 1), 0), size - 1), weight) for k, weight in enumerate(weights)]


@lower(aten.upsample_linear1d.default)
def upsample_linear1d(self: Node, output_size: Sequence[int], align_corners: bool, scales: float | None = None) -> Lowered:
    return _linear(self, output_size, align_corners, (scales,))


@lower(aten.upsample_bilinear2d.default)
def upsample_bilinear2d(
    self: Node, output_size: Sequence[int], align_corners: bool, scales_h: float | None = None, scales_w: float | None = None
) -> Lowered:
    return _linear(self, output_size, align_corners, (scales_h, scales_w))


@lower(aten.upsample_trilinear3d.default)
def upsample_trilinear3d(
    self: Node,
    output_size: Sequence[int],
    align_corners: bool,
    scales_d: float | None = None,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Lowered:
    return _linear(self, output_size, align_corners, (scales_d, scales_h, scales_w))


@lower(aten.upsample_bicubic2d.default)
def upsample_bicubic2d(
    self: Node, output_size: Sequence[int], align_corners: bool, scales_h: float | None = None, scales_w: float | None = None
) -> Lowered:
    """Sixteen reads: the rows first, then across them."""
    if not self.dtype.is_float or 0 in self.shape or 0 in output_size:
        return NotImplemented
    x, scales = computed(self), (scales_h, scales_w)
    axes = [_cubic_places(*axis, place_dtype(self.dtype)) for axis in zip(self.shape[-2:], output_size, (align_corners,) * 2, scales, strict=True)]
    taps = _taps(x, [_kept(places, self.dtype) for places in axes])
    rows = [_weighted([(value, weights[1]) for value, weights in taps[4 * i : 4 * i + 4]]) for i in range(4)]
    return rounded(_weighted([(row, taps[4 * i][1][0]) for i, row in enumerate(rows)]), self.dtype)
