"""The results of CPU kernels that do not lie as PyTorch's metas say.

In:  an overload, its arguments (tensors as Meta), what the meta says.  Out: the same with the strides of the CPU kernel.
Idea: some kernels lay out their result as a model's (empty_like), in row-major order, in the format that an operand suggests, or in an
order of their own; some are written in terms of others, whose metas are right, and are then composed of these (COMPOSED).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from thermit.capture.storage import Geometry, is_dense
from thermit.capture.strides import (
    Meta,
    channels_last_strides,
    dense_strides,
    is_channels_last,
    is_contiguous,
    iterated_strides,
    suggests_channels_last,
)
from thermit.ir.types import contiguous_strides

aten = torch.ops.aten


def _like(result: Any, args: Sequence[Any], kwargs: dict[str, Any], place: int = 0) -> Any:
    """A result made by empty_like lies as its model (an argument) does, axes of size 1 included, which the metas forget."""
    model = args[place].geometry
    if kwargs.get("memory_format") not in (None, torch.preserve_format) or result.geometry.sizes != model.sizes:
        return result
    strides = model.strides if is_dense(model) else dense_strides(model.sizes, model.strides)
    return result._replace(geometry=Geometry(model.sizes, strides, 0))


def _all_like(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Every tensor returned lies as the first operand does."""
    return tuple(_like(m, args, kwargs) for m in result)


def _first_like(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The first tensor returned lies as the first operand does."""
    return (_like(result[0], args, kwargs), *result[1:])


def _huber(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The loss of each element lies as the input; where that is too small, it is made anew."""
    if result.geometry.sizes == () or result.geometry.sizes == args[0].geometry.sizes:
        return _like(result, args, kwargs)
    return result._replace(geometry=Geometry(result.geometry.sizes, iterated_strides(result.geometry.sizes, [a.geometry for a in args[:2]]), 0))


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
    strides = channels_last_strides(sizes) if suggests_channels_last(args[place].geometry) else contiguous_strides(sizes)
    first = first._replace(geometry=Geometry(sizes, strides, 0))
    return first if isinstance(result, Meta) else (first, *result[1:])


def _normed(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Batch norm asks in turn: is the operand contiguous, is it channels last, what does it suggest."""
    sizes, strides, _ = args[0].geometry
    last = not is_contiguous(sizes, strides) and (is_channels_last(sizes, strides) or suggests_channels_last(args[0].geometry))
    laid = channels_last_strides(sizes) if last else contiguous_strides(sizes)
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
    return result._replace(geometry=Geometry(sizes, channels_last_strides(sizes), 0)) if suggests_channels_last(args[0].geometry) else result


def _copied(meta: Meta, dtype: torch.dtype) -> Geometry:
    """Where it lies once it is of this type: a copy has no gaps."""
    x = meta.geometry
    return x if meta.dtype == dtype or is_dense(x) else x._replace(strides=dense_strides(x.sizes, x.strides))


def _ldexp(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """A product with a power, which lies in row-major order."""
    power = args[1].geometry
    seen = [_copied(args[0], result.dtype), Geometry(power.sizes, contiguous_strides(power.sizes), 0)]
    sizes = result.geometry.sizes
    return result._replace(geometry=Geometry(sizes, iterated_strides(sizes, seen), 0))


def _masked(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """A product with a mask, then with a number."""
    sizes = result.geometry.sizes
    seen = [args[0].geometry, _copied(args[1], args[0].dtype)]
    return result._replace(geometry=Geometry(sizes, iterated_strides(sizes, seen), 0))


def _shuffled(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Without elements it is the operand."""
    return _unshuffled(_suggested(result, args, kwargs), args, kwargs)


def _unshuffled(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    model = args[0].geometry
    empty = 0 in model.sizes and result.geometry.sizes == model.sizes
    return result._replace(geometry=model._replace(offset=0)) if empty else result


def _softmax(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The meta takes any axis of a tensor without elements, the kernel does not."""
    rank = max(len(args[0].geometry.sizes), 1)
    if not -rank <= args[1] < rank:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got {args[1]})")
    return result


def _index_put(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The meta does not look at types where there is nothing to put."""
    if args[0].dtype != args[2].dtype:
        raise RuntimeError("Index put requires the source and destination dtypes match")
    return _like(result, args, kwargs)


def _reduced(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Without elements, it lies in row-major order."""
    return _contiguous(result, args, kwargs) if 0 in result.geometry.sizes else result


def _convolved(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The backend decides the format: PyTorch itself is asked.  A convolution over one axis is one over two, of an image in row-major order."""
    sizes = result.geometry.sizes
    if len(sizes) not in (3, 4, 5) or len(args) != 9 or 0 in sizes:
        return result
    x, weight, bias, stride, padding, dilation, transposed, output_padding, groups = args
    image, filters = (torch.empty_strided(m.geometry.sizes, m.geometry.strides, dtype=m.dtype) for m in (x, weight))
    ones = None if bias is None else torch.empty(bias.geometry.sizes, dtype=bias.dtype)
    how = stride, padding, dilation, transposed, output_padding, groups
    if len(sizes) == 3:
        image, filters = torch.empty_like(image, memory_format=torch.contiguous_format).unsqueeze(2), filters.unsqueeze(2)
        how = [1, *stride], [0, *padding], [1, *dilation], transposed, [0, *output_padding], groups
    wide = (*sizes[:2], 1, sizes[2]) if len(sizes) == 3 else sizes
    backend = torch._C._select_conv_backend(image, filters, ones, *how)
    found = torch._C._conv_determine_backend_memory_format(image, filters, backend)
    last = found in (torch.channels_last, torch.channels_last_3d)
    strides = channels_last_strides(wide) if last else contiguous_strides(wide)
    return result._replace(geometry=Geometry(sizes, (*strides[:2], *strides[-len(sizes) + 2 :]), 0))


# Where PyTorch's metas differ from its CPU kernels.
CORRECTED: dict[OpOverload, Callable[[Any, Sequence[Any], dict[str, Any]], Any]] = {
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
            aten.hardtanh.default,
            aten.log_sigmoid_backward.default,
            aten.deg2rad.default,
            aten.rad2deg.default,
            aten.fill.Tensor,
            aten.fill.Scalar,
            aten.zero.default,
            aten._prelu_kernel.default,
            aten.isinf.default,
            aten._unsafe_masked_index_put_accumulate.default,
            aten.cauchy.default,
            aten.exponential.default,
            aten.geometric.default,
            aten.log_normal.default,
            aten.uniform.default,
        ),
        _like,
    ),
    **dict.fromkeys((aten.binary_cross_entropy_backward.default, aten.nll_loss2d_backward.default), _like_second),
    **dict.fromkeys(
        (
            aten.index_add.default,
            aten.index_copy.default,
            aten.masked_fill.Scalar,
            aten.masked_fill.Tensor,
            aten.pow.Scalar,
            aten.log_sigmoid_forward.default,
            aten.native_layer_norm_backward.default,
            aten._log_softmax.default,
            aten._log_softmax_backward_data.default,
            aten.mse_loss_backward.default,
            aten.smooth_l1_loss_backward.default,
            aten.huber_loss_backward.default,
            aten.tril.default,
            aten.triu.default,
            aten.diag_embed.default,
            aten._softmax_backward_data.default,
            aten.grid_sampler_2d.default,
            aten.linalg_vector_norm.default,
            aten.mvlgamma.default,
            aten.normal.Tensor_Tensor,
            aten.renorm.default,
            aten.var.correction,
            aten.var_mean.correction,
            aten.aminmax.default,
        ),
        _contiguous,
    ),
    **dict.fromkeys(
        (
            aten.native_group_norm.default,
            aten.pixel_shuffle.default,
            aten.replication_pad2d.default,
            aten.reflection_pad2d.default,
            aten.reflection_pad3d.default,
            aten.replication_pad3d.default,
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
    **dict.fromkeys((aten.frexp.Tensor, aten.sort.default, aten.sort.stable), _all_like),
    aten.huber_loss.default: _huber,
    aten.ldexp.Tensor: _ldexp,
    aten.native_dropout_backward.default: _masked,
    aten.channel_shuffle.default: _shuffled,
    aten.pixel_unshuffle.default: _unshuffled,
    aten.convolution.default: _convolved,
    aten._softmax.default: _softmax,
    aten.index_put.default: _index_put,
    **dict.fromkeys((aten.sum.dim_IntList, aten.prod.dim_int, aten.amax.default, aten.amin.default), _reduced),
    aten._scaled_dot_product_flash_attention_for_cpu.default: _first_like,
}


# ---------------------------------------------------------------------------------------------- composed of others
def _roll(self: torch.Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> torch.Tensor:
    if self.numel() == 0:
        return self.clone()
    if not dims:
        return torch.empty_like(self, memory_format=torch.contiguous_format)
    for shift, dim in zip(shifts, dims, strict=True):
        size = self.size(dim)
        start = -shift % size
        self = torch.cat([self.narrow(dim, start, size - start), self.narrow(dim, 0, start)], dim)
    return self


def _rot90(self: torch.Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> torch.Tensor:
    aten.rot90.default(self, k, dims)  # for what it raises
    if k % 4 == 0:
        return self.clone(memory_format=torch.contiguous_format)
    turned = _empty_like(self)
    return turned if k % 4 == 2 else turned.transpose(*dims)


def _empty_like(model: torch.Tensor) -> torch.Tensor:
    """empty_like as a CPU makes it, axes of size 1 included."""
    geometry = Geometry(tuple(model.shape), model.stride(), 0)
    strides = geometry.strides if is_dense(geometry) else dense_strides(geometry.sizes, geometry.strides)
    return torch.empty_strided(geometry.sizes, strides, dtype=model.dtype, device="meta")


def _view_copy(self: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    return torch.empty_like(self.reshape(size), memory_format=torch.contiguous_format)


# PyTorch's metas of these are Python that takes 2 to 15 ms; the usual cases are sizes alone, all others are asked.
def _resized(op: OpOverload) -> Callable[..., Any]:
    def resized(self: torch.Tensor, output_size: Sequence[int], *options: Any, **named: Any) -> torch.Tensor:
        known = self.dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.uint8)
        if self.dim() == 4 and 0 not in self.shape[1:] and len(output_size) == 2 and min(output_size) > 0 and known:
            return self.new_empty((*self.shape[:2], *output_size))
        return op(self, output_size, *options, **named)

    return resized


def _normed_layer(self: torch.Tensor, shape: Sequence[int], weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float) -> Any:
    lead = self.dim() - len(shape)
    given = [t for t in (weight, bias) if t is not None]
    plain = self.dtype in (torch.float32, torch.float64) and all(t.dtype is self.dtype and t.shape == tuple(shape) for t in given)
    if plain and lead >= 0 and len(shape) > 0 and 0 not in self.shape and tuple(shape) == self.shape[lead:]:
        each = (*self.shape[:lead], *[1] * len(shape))
        return self.new_empty(self.shape), self.new_empty(each), self.new_empty(each)
    return aten.native_layer_norm.default(self, shape, weight, bias, eps)


def _summed_exponents(self: torch.Tensor, dim: Sequence[int], keepdim: bool = False) -> torch.Tensor:
    axes = {a % self.dim() for a in dim if -self.dim() <= a < self.dim()}
    if self.dtype in (torch.float32, torch.float64) and 0 not in self.shape and len(axes) == len(dim) > 0:
        return self.new_empty([1 if a in axes else n for a, n in enumerate(self.shape) if keepdim or a not in axes])
    return aten.logsumexp.default(self, dim, keepdim)


_RESIZED = (
    aten.upsample_bilinear2d.default,
    aten.upsample_bicubic2d.default,
    aten.upsample_nearest2d.default,
    aten._upsample_nearest_exact2d.default,
)

COMPOSED: dict[OpOverload, Callable[..., Any]] = {
    **{op: _resized(op) for op in _RESIZED},
    aten.native_layer_norm.default: _normed_layer,
    aten.logsumexp.default: _summed_exponents,
    aten.roll.default: _roll,
    aten.rot90.default: _rot90,
    aten.view_copy.default: _view_copy,
}
