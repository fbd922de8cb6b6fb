"""Softmax and normalisation, forward and backward.

Each row is written over axes that are kept at size 1, so that a reduction followed by a map over the same row is one kernel.
Half types compute in float32 from end to end and round once at each tensor that the schema returns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from thermit.aten import samples
from thermit.aten.reduction import count_of, mean_of, reduced, spread
from thermit.aten.table import DTYPE_OF, Lowered, axis_of, compute_dtype, computed, each_rounded, lower, rounded
from thermit.ir import build as b
from thermit.ir import prims as p
from thermit.ir.node import Node
from thermit.ir.types import BFLOAT16, FLOAT32, DType, Shape

aten = torch.ops.aten


# ---------------------------------------------------------------------------------------------- softmax
def _row_of(self: Node, dim: int) -> tuple[Node, int]:
    """The operand in its compute dtype with at least one axis, and the axis."""
    x = computed(self)
    return (b.reshape(x, (1,)) if x.type.ndim == 0 else x), axis_of(dim, self.type.ndim)


def _result_dtype(self: Node, half_to_float: bool) -> DType:
    return FLOAT32 if half_to_float else self.dtype


def _exponentials(x: Node, axis: int) -> tuple[Node, Node, Node]:
    """x - max, 2^64 times its exponential (none is denormal, unless it is nothing beside their sum), and the sum of those, axes kept."""
    shifted = b.sub(x, spread(reduced(p.AMAX, x, (axis,), keepdim=True), x))
    powers = b.exp_falling(shifted)
    return shifted, powers, reduced(p.SUM, powers, (axis,), keepdim=True)


def _finished(result: Node, self: Node, dtype: DType) -> Node:
    return rounded(b.reshape(result, self.shape), dtype)


@lower(aten._softmax.default, floats=True)
def softmax(self: Node, dim: int, half_to_float: bool) -> Node:
    """exp(x - max) * (1 / sum): one division a row.  The rounding more vanishes beside that of x - max (measured against float64: as eager)."""
    dtype = _result_dtype(self, half_to_float)
    if self.type.numel == 0:
        return b.const(0, dtype, self.shape)
    x, axis = _row_of(self, dim)
    _, powers, total = _exponentials(x, axis)
    return _finished(b.mul(powers, spread(b.div(b.like(1, total), total), x)), self, dtype)


@lower(aten._safe_softmax.default, floats=True)
def safe_softmax(self: Node, dim: int, dtype: torch.dtype | None = None) -> Node:
    """The softmax with 0 in rows that are minus infinity throughout."""
    value = self if dtype is None else b.cast(self, DTYPE_OF[dtype])
    if value.type.numel == 0:
        return value
    plain = softmax(value, dim, False)
    x, axis = _row_of(value, dim)
    masked = reduced(p.ALL, b.eq(x, -math.inf), (axis,), keepdim=True)
    return b.where(b.reshape(spread(masked, x), plain.shape), b.like(0, plain), plain)


@lower(aten._log_softmax.default, floats=True)
def log_softmax(self: Node, dim: int, half_to_float: bool) -> Node:
    """(x - max) - log(sum).  Along the last axis eager keeps the sum and its logarithm in the half type."""
    dtype = _result_dtype(self, half_to_float)
    if self.type.numel == 0:
        return b.const(0, dtype, self.shape)
    x, axis = _row_of(self, dim)
    shifted, _, total = _exponentials(x, axis)
    kept = self.dtype if axis == x.type.ndim - 1 else x.dtype
    return _finished(b.sub(shifted, spread(each_rounded(b.log(each_rounded(b.mul(total, 2.0**-64), kept)), kept), x)), self, dtype)


@lower(aten._softmax_backward_data.default, floats=True)
def softmax_backward(grad_output: Node, output: Node, dim: int, input_dtype: torch.dtype) -> Node:
    """(g - sum(g y)) y."""
    if output.type.numel == 0:
        return b.const(0, DTYPE_OF[input_dtype], output.shape)
    (grad, axis), (y, _) = _row_of(grad_output, dim), _row_of(output, dim)
    product = b.mul(grad, y)
    total = reduced(p.SUM, product, (axis,), keepdim=True)
    return _finished(b.sub(product, b.mul(y, spread(total, y))), output, DTYPE_OF[input_dtype])


@lower(aten._log_softmax_backward_data.default, floats=True)
def log_softmax_backward(grad_output: Node, output: Node, dim: int, input_dtype: torch.dtype) -> Node:
    """g - exp(y) sum(g)."""
    if output.type.numel == 0:
        return b.const(0, DTYPE_OF[input_dtype], output.shape)
    (grad, axis), (y, _) = _row_of(grad_output, dim), _row_of(output, dim)
    total = reduced(p.SUM, grad, (axis,), keepdim=True)
    return _finished(b.sub(grad, b.mul(b.exp(y), spread(total, y))), output, DTYPE_OF[input_dtype])


# ---------------------------------------------------------------------------------------------- normalisation
def variance_about(x: Node, mean: Node, axes: Sequence[int]) -> Node:
    """The mean squared distance from `mean`, axes kept."""
    distance = b.sub(x, spread(mean, x))
    return mean_of(b.mul(distance, distance), axes, keepdim=True)


def inverse_root(variance: Node, eps: float) -> Node:
    """1 / sqrt(variance + eps)."""
    return b.div(b.like(1, variance), b.sqrt(b.add(variance, eps)))


def along(values: Node, x: Node, axis: int) -> Node:
    """A vector laid along one axis of x, in the compute dtype of x."""
    shape = tuple(n if a == axis else 1 for a, n in enumerate(x.shape))
    return b.broadcast_to(b.reshape(b.cast(values, x.dtype), shape), x.shape)


def _statistics_dtype(input: Node, *params: Node | None) -> DType:
    """Statistics of half inputs with float32 parameters are float32, else of the input's type."""
    return FLOAT32 if input.dtype.is_half and any(q is not None and q.dtype is FLOAT32 for q in params) else input.dtype


@lower(aten.native_layer_norm.default, floats=True)
def layer_norm(input: Node, normalized_shape: Sequence[int], weight: Node | None, bias: Node | None, eps: float) -> tuple[Node, Node, Node]:
    """((x - mean) / sqrt(variance + eps)) * weight + bias over the last axes; also mean and 1 / sqrt."""
    x = computed(input)
    axes = range(x.type.ndim - len(normalized_shape), x.type.ndim)
    statistics = _statistics_dtype(input, weight, bias)
    if x.type.numel == 0:
        stat = b.const(0, statistics, tuple(1 if a in axes else n for a, n in enumerate(x.shape)))
        return input, stat, stat
    mean = mean_of(x, axes, keepdim=True)
    scale = inverse_root(variance_about(x, mean, axes), eps)
    if input.dtype.is_half:  # as eager's kernel for them
        y = b.fma(x, spread(scale, x), spread(b.neg(b.mul(mean, scale)), x))
    else:
        y = b.mul(b.sub(x, spread(mean, x)), spread(scale, x))
    y = y if weight is None else b.mul(y, b.broadcast_to(b.cast(weight, x.dtype), x.shape))
    y = y if bias is None else b.add(y, b.broadcast_to(b.cast(bias, x.dtype), x.shape))
    return rounded(y, input.dtype), rounded(mean, statistics), rounded(scale, statistics)


@lower(aten.native_layer_norm_backward.default, floats=True)
def layer_norm_backward(
    grad_out: Node,
    input: Node,
    normalized_shape: Sequence[int],
    mean: Node,
    rstd: Node,
    weight: Node | None,
    bias: Node | None,
    output_mask: Sequence[bool],
) -> Lowered:
    """Gradients of input, weight and bias, those that the mask wants."""
    if input.type.numel == 0:
        return NotImplemented
    x, grad = computed(input), computed(grad_out)
    first = x.type.ndim - len(normalized_shape)
    axes, outer = range(first, x.type.ndim), range(first)
    normal = b.mul(b.sub(x, spread(computed(mean), x)), spread(b.cast(rstd, x.dtype), x))
    scaled = grad if weight is None else b.mul(grad, b.broadcast_to(b.cast(weight, x.dtype), x.shape))
    of_input = rounded(_through_normal(scaled, normal, b.cast(rstd, x.dtype), axes), input.dtype)
    of_weight = reduced(p.SUM, b.mul(grad, normal), outer)
    of_bias = reduced(p.SUM, grad, outer)
    parameter = input.dtype if weight is None else weight.dtype
    results = (of_input, rounded(of_weight, parameter), rounded(of_bias, bias.dtype if bias is not None else parameter))
    return tuple(r if wanted else None for r, wanted in zip(results, output_mask, strict=True))


def _through_normal(grad: Node, normal: Node, scale: Node, axes: Sequence[int]) -> Node:
    """The gradient before x -> normal = (x - mean) scale: scale (g - mean(g) - normal mean(g normal))."""
    plain = spread(mean_of(grad, axes, keepdim=True), grad)
    along_normal = spread(mean_of(b.mul(grad, normal), axes, keepdim=True), grad)
    return b.mul(b.sub(b.sub(grad, plain), b.mul(normal, along_normal)), spread(scale, grad))


def _grouped(x: Node, n: int, groups: int) -> Node:
    """x as [n, groups, what a group holds]."""
    return b.reshape(x, (n, groups, x.type.numel // (n * groups)))


@lower(aten.native_group_norm.default, floats=True)
def group_norm(input: Node, weight: Node | None, bias: Node | None, N: int, C: int, HxW: int, group: int, eps: float) -> Lowered:
    """Layer norm over the channels of each group; mean and 1 / sqrt are [N, group]."""
    if input.type.numel == 0:
        return NotImplemented
    x = _grouped(computed(input), N, group)
    mean = mean_of(x, (2,), keepdim=True)
    scale = inverse_root(variance_about(x, mean, (2,)), eps)
    y = b.reshape(b.mul(b.sub(x, spread(mean, x)), spread(scale, x)), (N, C, HxW))
    y = y if weight is None else b.mul(y, along(weight, y, 1))
    y = y if bias is None else b.add(y, along(bias, y, 1))
    statistics = _statistics_dtype(input, weight, bias)
    flat = (N, group)
    return rounded(b.reshape(y, input.shape), input.dtype), rounded(b.reshape(mean, flat), statistics), rounded(b.reshape(scale, flat), statistics)


@lower(aten.native_group_norm_backward.default, floats=True)
def group_norm_backward(
    grad_out: Node,
    input: Node,
    mean: Node,
    rstd: Node,
    weight: Node | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    output_mask: Sequence[bool],
) -> Lowered:
    if input.type.numel == 0:
        return NotImplemented
    x = _grouped(computed(input), N, group)
    grad = b.reshape(computed(grad_out), (N, C, HxW))
    scale = b.reshape(b.cast(rstd, x.dtype), (N, group, 1))
    normal = b.mul(b.sub(x, spread(b.reshape(b.cast(mean, x.dtype), (N, group, 1)), x)), spread(scale, x))
    scaled = grad if weight is None else b.mul(grad, along(weight, grad, 1))
    of_input = _through_normal(_grouped(scaled, N, group), normal, scale, (2,))
    of_weight = reduced(p.SUM, b.mul(grad, b.reshape(normal, grad.shape)), (0, 2))
    parameter = input.dtype if weight is None else weight.dtype
    results = (
        rounded(b.reshape(of_input, input.shape), input.dtype),
        rounded(of_weight, parameter),
        rounded(reduced(p.SUM, grad, (0, 2)), parameter),
    )
    return tuple(r if wanted else None for r, wanted in zip(results, output_mask, strict=True))


# ---------------------------------------------------------------------------------------------- batch norm
def _channel_axes(x: Node) -> tuple[int, ...]:
    return tuple(a for a in range(x.type.ndim) if a != 1)


def _affine(x: Node, mean: Node, scale: Node, weight: Node | None, bias: Node | None) -> Node:
    """x * (scale * weight) + (bias - mean * scale * weight): one fused step for each element, as in eager."""
    factor = scale if weight is None else b.mul(scale, b.cast(weight, x.dtype))
    shift = b.neg(b.mul(mean, factor)) if bias is None else b.sub(b.cast(bias, x.dtype), b.mul(mean, factor))
    return b.fma(x, along(factor, x, 1), along(shift, x, 1))


def _batch_eval(input: Node, weight: Node | None, bias: Node | None, mean: Node, var: Node, eps: float) -> tuple[Node, Node, Node]:
    x = computed(input)
    nothing = b.const(0, _statistics_dtype(input, weight, bias, mean), (0,))
    y = _affine(x, b.cast(mean, x.dtype), inverse_root(b.cast(var, x.dtype), eps), weight, bias)
    return rounded(y, input.dtype), nothing, nothing


def _batch_train(input: Node, weight: Node | None, bias: Node | None, eps: float, statistics: DType) -> tuple[Node, Node, Node, Node]:
    """y, mean, 1 / sqrt(variance + eps), variance: the last three in the compute dtype, one for each channel.

    What normalises is rounded to the type of the statistics, in bfloat16 also on the way from the squares to the root.
    """
    x = computed(input)
    axes, channels = _channel_axes(x), (x.shape[1],)
    mean = mean_of(x, axes, keepdim=True)
    distance = b.sub(x, spread(mean, x))
    squares = b.reshape(reduced(p.SUM, b.mul(distance, distance), axes), channels)
    count = count_of(input, axes)
    step = statistics if statistics is BFLOAT16 else x.dtype
    scale = inverse_root(each_rounded(b.div(each_rounded(squares, step), count), step), eps)
    mean, scale = each_rounded(b.reshape(mean, channels), statistics), each_rounded(scale, statistics)
    return _affine(x, mean, scale, weight, bias), mean, scale, b.div(squares, count)


def _refused(input: Node, *parameters: Node | None) -> bool:
    """Whether eager's kernel may refuse the dtypes: parameters are of the input's, or float32 where that is a half type."""
    mixed = {t.dtype for t in parameters if t is not None} - {input.dtype}
    return bool(mixed) and (mixed != {FLOAT32} or compute_dtype(input.dtype) is not FLOAT32)


@lower(aten.native_batch_norm.default, floats=True)
def batch_norm(
    input: Node,
    weight: Node | None,
    bias: Node | None,
    running_mean: Node | None,
    running_var: Node | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Lowered:
    """Training with running statistics writes them, which a row cannot: declined, the decomposition does."""
    if input.type.numel == 0 or input.type.ndim < 2 or _refused(input, weight, bias, running_mean, running_var):
        return NotImplemented
    if training and running_mean is None and running_var is None:
        return batch_norm_no_stats(input, weight, bias, True, momentum, eps)
    if training or running_mean is None or running_var is None:
        return NotImplemented
    return _batch_eval(input, weight, bias, running_mean, running_var, eps)


@lower(aten._native_batch_norm_legit_no_training.default, floats=True, samples=samples.batch_norm_no_training)
def batch_norm_no_training(
    input: Node,
    weight: Node | None,
    bias: Node | None,
    running_mean: Node,
    running_var: Node,
    momentum: float,
    eps: float,
) -> Lowered:
    return batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps)


@lower(aten._native_batch_norm_legit.no_stats, floats=True)
def batch_norm_no_stats(input: Node, weight: Node | None, bias: Node | None, training: bool, momentum: float, eps: float) -> Lowered:
    if not training or input.type.numel == 0 or input.type.ndim < 2 or _refused(input, weight, bias):
        return NotImplemented
    statistics = _statistics_dtype(input, weight, bias)
    y, mean, scale, _ = _batch_train(input, weight, bias, eps, statistics)
    return rounded(y, input.dtype), rounded(mean, statistics), rounded(scale, statistics)


@lower(aten._native_batch_norm_legit_functional.default, floats=True, samples=samples.batch_norm_functional)
def batch_norm_functional(
    input: Node,
    weight: Node | None,
    bias: Node | None,
    running_mean: Node,
    running_var: Node,
    training: bool,
    momentum: float,
    eps: float,
) -> Lowered:
    """As above, with the new running statistics as results: momentum * new + (1 - momentum) * old, the variance unbiased."""
    if input.type.numel == 0 or input.type.ndim < 2 or _refused(input, weight, bias, running_mean, running_var):
        return NotImplemented
    if not training:
        return (*_batch_eval(input, weight, bias, running_mean, running_var, eps), running_mean, running_var)
    statistics = _statistics_dtype(input, weight, bias, running_mean)
    y, mean, scale, variance = _batch_train(input, weight, bias, eps, statistics)
    count = count_of(input, _channel_axes(input))
    unbiased = b.mul(variance, count / (count - 1)) if count > 1 else b.div(b.mul(variance, float(count)), 0.0)
    return (
        rounded(y, input.dtype),
        rounded(mean, statistics),
        rounded(scale, statistics),
        _running(running_mean, mean, momentum),
        _running(running_var, unbiased, momentum),
    )


def _running(old: Node, new: Node, momentum: float) -> Node:
    compute = compute_dtype(old.dtype)
    kept = b.mul(b.cast(old, compute), 1.0 - momentum)
    return rounded(b.add(b.mul(b.cast(new, compute), momentum), kept), old.dtype)


@lower(aten.native_batch_norm_backward.default, floats=True)
def batch_norm_backward(
    grad_out: Node,
    input: Node,
    weight: Node | None,
    running_mean: Node | None,
    running_var: Node | None,
    save_mean: Node | None,
    save_invstd: Node | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> Lowered:
    if input.type.numel == 0 or input.type.ndim < 2:
        return NotImplemented
    x, grad = computed(input), computed(grad_out)
    axes = _channel_axes(x)
    middle, inverse = (save_mean, save_invstd) if train else (running_mean, running_var)
    if middle is None or inverse is None:
        return NotImplemented
    mean, scale = b.cast(middle, x.dtype), b.cast(inverse, x.dtype)
    scale = scale if train else inverse_root(scale, eps)
    kept: Shape = tuple(1 if a in axes else n for a, n in enumerate(x.shape))
    normal = b.mul(b.sub(x, along(mean, x, 1)), along(scale, x, 1))
    scaled = grad if weight is None else b.mul(grad, along(weight, x, 1))
    of_input = _through_normal(scaled, normal, b.reshape(scale, kept), axes) if train else b.mul(scaled, along(scale, x, 1))
    parameter = input.dtype if weight is None else weight.dtype
    results = (
        rounded(of_input, input.dtype),
        rounded(reduced(p.SUM, b.mul(grad, normal), axes), parameter),
        rounded(reduced(p.SUM, grad, axes), parameter),
    )
    return tuple(r if wanted else None for r, wanted in zip(results, output_mask, strict=True))
