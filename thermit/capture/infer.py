"""The metadata that eager gives to results: sizes, strides, dtype of what an ATen call returns.

In:  an overload and its arguments, tensors as `Meta` (geometry and dtype).
Out: a Meta for each tensor returned; whatever eager raises, raised.
Idea: PyTorch itself decides, on meta tensors.  Its Python implementations take 50 to 150 us a call for pointwise operations, so these have
a short way: the dtype comes from the real kernel run once on one element and is remembered, sizes and strides follow TensorIterator's
rule, which is written down here and tested against the real kernels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

from thermit.capture.plain_sizes import plain_sizes
from thermit.capture.storage import Geometry, is_dense
from thermit.ir.types import Shape, contiguous_strides

aten = torch.ops.aten


class Meta(NamedTuple):
    """What is known of a tensor without its elements."""

    geometry: Geometry
    dtype: torch.dtype


# Tagged pointwise, but their results do not lie as TensorIterator would lay them.
_NOT_ITERATED = {
    aten.clone.default, aten.masked_fill.Scalar, aten.nan_to_num.default, aten.pow.Scalar, aten.frexp.Tensor, aten.hardtanh.default,
    aten.deg2rad.default, aten.rad2deg.default, aten.fill.Tensor, aten.fill.Scalar, aten.zero.default,
}  # fmt: skip
# Not tagged pointwise, and yet one iteration over their operands.
_ITERATED = {aten.floor_divide.default, aten.floor_divide.Scalar, aten.hardswish_backward.default, aten.hardtanh_backward.default}
# Their kernels name the operands to the iterator in another order than the schema.
_SWAPPED = {aten.threshold_backward.default, aten.rsub.Tensor}


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


def _is_contiguous(sizes: Shape, strides: Shape) -> bool:
    expected = 1
    for n, s in zip(reversed(sizes), reversed(strides), strict=True):
        if n != 1:
            if s != expected:
                return False
            expected *= n
    return True


_CHANNELS = {4: (1, 3, 2, 0), 5: (1, 4, 3, 2, 0)}


def _is_channels_last(sizes: Shape, strides: Shape) -> bool:
    if len(sizes) not in _CHANNELS:
        return False
    expected = 1
    for axis in _CHANNELS[len(sizes)]:
        if sizes[axis] != 1:
            if strides[axis] != expected:
                return False
            expected *= sizes[axis]
    return True


def _channels_last_strides(sizes: Shape) -> Shape:
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
    """The strides of TensorIterator's result for operands of these geometries; the shape has elements."""
    if all(g.sizes == shape for g in operands):
        if all(_is_contiguous(g.sizes, g.strides) for g in operands):
            return contiguous_strides(shape)
        if all(_is_channels_last(g.sizes, g.strides) for g in operands):
            return _channels_last_strides(shape)
        last = operands[-1].strides
        if all(g.strides == last and is_dense(g) for g in operands):
            return last
    perm = _sorted_axes(shape, [_spread(g.sizes, g.strides, shape) for g in operands])
    out, step = [0] * len(shape), 1
    for axis in perm:
        out[axis] = step
        step *= shape[axis]
    return contiguous_strides(shape) if perm == list(range(len(shape) - 1, -1, -1)) else tuple(out)


def broadcast(shapes: Sequence[Shape]) -> Shape | None:
    """The common shape; None where there is none (eager raises)."""
    first = shapes[0]
    if all(s == first for s in shapes):
        return first
    rank = max(map(len, shapes))
    out = []
    for axis in range(-rank, 0):
        sizes = {s[axis] for s in shapes if -axis <= len(s)} - {1}
        if len(sizes) > 1:
            return None
        out.append(sizes.pop() if sizes else 1)
    return tuple(out)


# ---------------------------------------------------------------------------------------------- pointwise
_dtypes: dict[Any, torch.dtype] = {}


def _pointwise(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Meta | None:
    """The short way; None where it does not apply."""
    metas = [a for a in (*args, *kwargs.values()) if isinstance(a, Meta)]
    if not metas or any(isinstance(a, list | tuple) and not isinstance(a, Meta) for a in (*args, *kwargs.values())):
        return None
    shape = broadcast([m.geometry.sizes for m in metas])
    if shape is None or 0 in shape:
        return None
    key = (op, torch.get_default_dtype(), tuple(_kind(a) for a in args), tuple((k, _kind(a)) for k, a in kwargs.items()))
    dtype = _dtypes.get(key)
    if dtype is None:
        dtype = _dtypes[key] = _probe(op, args, kwargs)
    if op in _SWAPPED:
        metas.reverse()
    strides = iterated_strides(shape, [*_converted(metas, dtype), *_numbers(op, args)])
    return Meta(Geometry(shape, strides, 0), dtype)


def _converted(metas: Sequence[Meta], result: torch.dtype) -> list[Geometry]:
    """The operands as the iterator sees them: those of another type than the common one have been copied, without gaps and repeats."""
    if all(m.dtype == result for m in metas) or all(is_dense(m.geometry) for m in metas):
        return [m.geometry for m in metas]
    common = result
    if result is torch.bool:
        common = functools.reduce(torch.promote_types, [m.dtype for m in metas])
    return [
        m.geometry if m.dtype == common or is_dense(m.geometry) else m.geometry._replace(strides=dense_strides(m.geometry.sizes, m.geometry.strides))
        for m in metas
    ]


def _numbers(op: OpOverload, args: Sequence[Any]) -> list[Geometry]:
    """The numbers that eager makes operands of (tensors without axes): they decide the strides of axes of size 1."""
    wrapped = (a.name in ("self", "other") or isinstance(a.type, torch.TensorType) for a in op._schema.arguments)
    return [Geometry((), (), 0) for w, value in zip(wrapped, args, strict=False) if w and isinstance(value, int | float)]


def _kind(arg: Any) -> Any:
    return (arg.dtype, len(arg.geometry.sizes) > 0) if isinstance(arg, Meta) else (type(arg), arg)


def _probe(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> torch.dtype:
    """The dtype of the real kernel's result on one element; raises what eager raises."""

    def one(arg: Any) -> Any:
        return torch.ones((1,) if arg.geometry.sizes else (), dtype=arg.dtype) if isinstance(arg, Meta) else arg

    return op(*map(one, args), **{k: one(a) for k, a in kwargs.items()}).dtype


# ---------------------------------------------------------------------------------------------- anything
def meta_tensor(meta: Meta) -> torch.Tensor:
    """A tensor without elements of this geometry, on a storage of its own."""
    sizes, strides, offset = meta.geometry
    if offset == 0:
        return torch.empty_strided(sizes, strides, dtype=meta.dtype, device="meta")
    return torch.empty(meta.geometry.extent, dtype=meta.dtype, device="meta").as_strided(sizes, strides, offset)


def convert(value: Any, function: Callable[[Any], Any]) -> Any:
    """The value with `function` applied to every leaf of its lists and tuples."""
    if type(value) in (list, tuple):
        return type(value)([convert(v, function) for v in value])
    return function(value)


def _like(result: Any, args: Sequence[Any], kwargs: dict[str, Any], place: int = 0) -> Any:
    """A result made by empty_like lies as its model (an argument) does, axes of size 1 included, which the metas forget."""
    model = args[place].geometry
    if kwargs.get("memory_format") not in (None, torch.preserve_format) or result.geometry.sizes != model.sizes or 0 in model.sizes:
        return result
    strides = model.strides if is_dense(model) else dense_strides(model.sizes, model.strides)
    return result._replace(geometry=Geometry(model.sizes, strides, 0))


def _like_second(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    return _like(result, args, kwargs, 1)


def _contiguous(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Every tensor returned lies without gaps in row-major order, whatever the operands do."""
    if not isinstance(result, Meta):
        return tuple(m if m is None else _contiguous(m, args, kwargs) for m in result)
    sizes = result.geometry.sizes
    return result._replace(geometry=Geometry(sizes, contiguous_strides(sizes), 0))


def _suggested(result: Any, args: Sequence[Any], kwargs: dict[str, Any], place: int = 0) -> Any:
    """The first tensor returned lies in the format that an operand suggests: channels last or contiguous."""
    first = result if isinstance(result, Meta) else result[0]
    if first is None:
        return result
    sizes = first.geometry.sizes
    strides = _channels_last_strides(sizes) if _suggests_channels_last(args[place].geometry) else contiguous_strides(sizes)
    first = first._replace(geometry=Geometry(sizes, strides, 0))
    return first if isinstance(result, Meta) else (first, *result[1:])


def _normed(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Batch norm asks in turn: is the operand contiguous, is it channels last, what does it suggest."""
    sizes, strides, _ = args[0].geometry
    last = not _is_contiguous(sizes, strides) and (_is_channels_last(sizes, strides) or _suggests_channels_last(args[0].geometry))
    laid = _channels_last_strides(sizes) if last else contiguous_strides(sizes)
    return (result[0]._replace(geometry=Geometry(sizes, laid, 0)), *result[1:])


def _suggested_by_second(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    return _suggested(result, args, kwargs, 1)


def _statistics(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Norms of half types save their statistics in the type of the weight, which the metas do not know."""
    x, weight = args[0], next((a for a in args[1:] if isinstance(a, Meta)), None)
    dtype = x.dtype if weight is None else weight.dtype
    running = [m._replace(dtype=given.dtype) if isinstance(given, Meta) else m for m, given in zip(result[3:], args[3:5], strict=False)]
    return (result[0], *(m._replace(dtype=dtype) for m in result[1:3]), *running)


def _batch_norm(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """In evaluation the kernel saves no statistics."""
    result = _normed(_statistics(result, args, kwargs), args, kwargs)
    return result if args[5] else _without_statistics(result)


def _without_statistics(result: Any) -> Any:
    empty = Geometry((0,), (1,), 0)
    return (result[0], *(Meta(empty, m.dtype) for m in result[1:3]), *result[3:])


def _batch_norm_evaluation(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    return _without_statistics(_normed(result, args, kwargs))


def _layer_norm(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    return _contiguous(_statistics(result, args, kwargs), args, kwargs)


def _norm_without_running(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    return _normed(_statistics(result, args, kwargs), args, kwargs)


def _by_columns(*places: int) -> Callable[[Any, Sequence[Any], dict[str, Any]], Any]:
    """The matrices at these places of the result lie column after column, as LAPACK writes them."""

    def corrected(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        return tuple(_columns(m) if k in places else m for k, m in enumerate(result))

    return corrected


def _columns(meta: Meta) -> Meta:
    sizes = meta.geometry.sizes
    if len(sizes) < 2:
        return meta
    *batch, rows, _ = sizes
    strides = (*contiguous_strides(sizes)[: len(batch)], 1, max(rows, 1))
    return meta._replace(geometry=Geometry(sizes, strides, 0))


def _transformed(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """A Fourier transform on a CPU: MKL writes the axes transformed innermost, sorted by strides but for the last of a real one."""
    x, dim = args[0].geometry, list(args[1])
    sizes = result.geometry.sizes
    if not dim or not torch.backends.mkl.is_available():
        return result._replace(geometry=Geometry(sizes, contiguous_strides(sizes), 0)) if dim else result
    last = [] if args[0].dtype.is_complex else [dim.pop()]

    def outer_first(axes: Sequence[int]) -> list[int]:
        return sorted(axes, key=lambda axis: x.strides[axis], reverse=True)

    order = [*outer_first([a for a in range(len(sizes)) if a not in (*dim, *last)]), *outer_first(dim), *last]
    strides = dict(zip(order, contiguous_strides(tuple(sizes[a] for a in order)), strict=True))
    return result._replace(geometry=Geometry(sizes, tuple(strides[a] for a in range(len(sizes))), 0))


def _channels_kept(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Channels last where the operand may be seen so."""
    sizes = result.geometry.sizes
    return result._replace(geometry=Geometry(sizes, _channels_last_strides(sizes), 0)) if _suggests_channels_last(args[0].geometry) else result


def _suggests_channels_last(geometry: Geometry) -> bool:
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


# Where PyTorch's metas differ from its CPU kernels.
_CORRECTED: dict[OpOverload, Callable[[Any, Sequence[Any], dict[str, Any]], Any]] = {
    **dict.fromkeys(
        (
            aten.flip.default,
            aten.empty_like.default,
            aten.zeros_like.default,
            aten.ones_like.default,
            aten.full_like.default,
            aten.rand_like.default,
            aten.randn_like.default,
            aten.randint_like.default,
            aten.randint_like.low_dtype,
            aten.nan_to_num.default,
            aten.index_fill.int_Scalar,
            aten.index_fill.int_Tensor,
            aten.index_put.default,
            aten.hardtanh.default,
            aten.log_sigmoid_backward.default,
            aten.deg2rad.default,
            aten.rad2deg.default,
            aten.fill.Tensor,
            aten.fill.Scalar,
            aten.zero.default,
        ),
        _like,
    ),
    **dict.fromkeys((aten.binary_cross_entropy_backward.default, aten.nll_loss2d_backward.default), _like_second),
    **dict.fromkeys(
        (
            aten.masked_fill.Scalar,
            aten.masked_fill.Tensor,
            aten.pow.Scalar,
            aten.log_sigmoid_forward.default,
            aten.native_layer_norm_backward.default,
            aten._log_softmax.default,
            aten._log_softmax_backward_data.default,
            aten.tril.default,
            aten.triu.default,
            aten.diag_embed.default,
        ),
        _contiguous,
    ),
    **dict.fromkeys(
        (
            aten.native_group_norm.default,
            aten.pixel_shuffle.default,
            aten.channel_shuffle.default,
            aten.replication_pad2d.default,
            aten._upsample_nearest_exact2d.default,
            aten.upsample_nearest2d.default,
            aten.upsample_bilinear2d.default,
            aten.upsample_bicubic2d.default,
            aten.upsample_trilinear3d.default,
        ),
        _suggested,
    ),
    **dict.fromkeys((aten.native_batch_norm_backward.default, aten.native_group_norm_backward.default), _suggested_by_second),
    aten.native_batch_norm.default: _batch_norm,
    aten._native_batch_norm_legit_functional.default: _batch_norm,
    aten._native_batch_norm_legit_no_training.default: _batch_norm_evaluation,
    aten._native_batch_norm_legit.no_stats: _norm_without_running,
    aten.native_layer_norm.default: _layer_norm,
    aten._linalg_svd.default: _by_columns(2),
    aten.linalg_eig.default: _by_columns(1),
    **dict.fromkeys((aten._fft_r2c.default, aten._fft_c2c.default), _transformed),
    aten.nonzero_static.default: _contiguous,
    aten.max_unpool2d.default: _channels_kept,
}


def _to_meta(value: Any) -> Any:
    if isinstance(value, Meta):
        return meta_tensor(value)
    return value


def infer(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], *, pointwise: bool, device: bool) -> Any:
    """The call's result with a Meta in place of each tensor.  `device`: the call must be told to stay on meta."""
    if (pointwise and op not in _NOT_ITERATED) or op in _ITERATED:
        found = _pointwise(op, args, kwargs)
        if found is not None:
            return found
    metas = [convert(a, _to_meta) for a in args]
    named = {k: convert(a, _to_meta) for k, a in kwargs.items()}
    if device:
        named["device"] = "meta"
    with plain_sizes():
        result = convert(op(*metas, **named), describe)
    corrected = _CORRECTED.get(op)
    return result if corrected is None else corrected(result, args, kwargs)


def describe(value: Any) -> Any:
    """The Meta of a tensor; anything else as it is."""
    if isinstance(value, torch.Tensor):
        return Meta(Geometry(tuple(value.shape), tuple(value.stride()), int(value.storage_offset())), value.dtype)
    return value
