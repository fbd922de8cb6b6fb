"""Activation functions and their derivatives, as eager's CPU kernels compute them: half types in float32, rounded once.

Each row is the kernel's formula.  The derivatives (`*_backward`) take the incoming gradient first, as in the schemas.
"""

from __future__ import annotations

import math

import torch

from thermit.aten import samples
from thermit.aten.logic import clamp
from thermit.aten.table import Lowered, Number, broadcast, computed, each_rounded, fits, lower, operands, rounded, scalar
from thermit.ir import build as b
from thermit.ir.node import Node
from thermit.ir.types import BOOL, FLOAT16, FLOAT32

aten = torch.ops.aten


def _clamped(x: Node, low: float, high: float) -> Node:
    """min(max(x, low), high); nan stays."""
    x = b.where(b.lt(x, low), b.like(low, x), x)
    return b.where(b.gt(x, high), b.like(high, x), x)


# ---------------------------------------------------------------------------------------------- piecewise linear
@lower(aten.relu.default)
def relu(self: Node) -> Lowered:
    """max(x, 0); nan and -0 stay."""
    return NotImplemented if self.dtype is BOOL else clamp(self, 0)


@lower(aten.hardtanh.default)
def hardtanh(self: Node, min_val: Number = -1, max_val: Number = 1) -> Lowered:
    if self.dtype is BOOL or not (self.dtype.is_float or (isinstance(min_val, int) and isinstance(max_val, int))):
        return NotImplemented
    return clamp(self, min_val, max_val)


@lower(aten.threshold.default)
def threshold(self: Node, threshold: Number, value: Number) -> Lowered:
    """x where it is above the threshold (or nan), else value."""
    if self.dtype is BOOL or not fits(threshold, self.dtype) or not fits(value, self.dtype):
        return NotImplemented
    x, limit = operands(self, threshold, common=self.dtype)
    return b.where(b.le(x, limit), b.broadcast_to(scalar(value, self.dtype), self.shape), self)


@lower(aten.threshold_backward.default)
def threshold_backward(grad_output: Node, self: Node, threshold: Number) -> Lowered:
    if self.dtype is BOOL or grad_output.dtype is not self.dtype or not fits(threshold, self.dtype):
        return NotImplemented
    grad, self = broadcast(grad_output, self)
    x, limit = operands(self, threshold, common=self.dtype)
    return b.where(b.le(x, limit), b.like(0, grad), grad)


@lower(aten.leaky_relu.default, floats=True)
def leaky_relu(self: Node, negative_slope: Number = 0.01) -> Node:
    """x times 1 or the slope: so 0 times an infinite slope is nan, as in eager."""
    (x,) = operands(self)
    return rounded(b.where(b.gt(x, 0), x, b.mul(x, negative_slope)), self.dtype)


@lower(aten.leaky_relu_backward.default, floats=True)
def leaky_relu_backward(grad_output: Node, self: Node, negative_slope: Number, self_is_result: bool) -> Node:
    grad, x = operands(grad_output, self)
    return rounded(b.where(b.gt(x, 0), grad, b.mul(grad, negative_slope)), self.dtype)


@lower(aten._prelu_kernel.default, floats=True)
def prelu(self: Node, weight: Node) -> Node:
    x, w = operands(self, weight)
    return rounded(b.where(b.gt(x, 0), x, b.mul(w, x)), self.dtype)


@lower(aten._prelu_kernel_backward.default, floats=True)
def prelu_backward(grad_output: Node, self: Node, weight: Node) -> tuple[Node, Node]:
    grad, x, w = operands(grad_output, self, weight)
    positive = b.gt(x, 0)
    return (
        rounded(b.where(positive, grad, b.mul(w, grad)), self.dtype),
        rounded(b.where(positive, b.like(0, x), b.mul(x, grad)), self.dtype),
    )


@lower(aten.rrelu_with_noise_functional.default, floats=True)
def rrelu(self: Node, noise: Node, lower: Number = 0.125, upper: Number = 1 / 3, training: bool = False, generator: object = None) -> Lowered:
    """Outside training a leaky relu with the mean slope; in training it draws, which is a call."""
    return NotImplemented if training else (leaky_relu(self, (lower + upper) / 2), noise)


@lower(aten.hardsigmoid.default, floats=True)
def hardsigmoid(self: Node) -> Node:
    (x,) = operands(self)
    return rounded(b.div(_clamped(b.add(x, 3), 0, 6), 6), self.dtype)


@lower(aten.hardsigmoid_backward.default, floats=True)
def hardsigmoid_backward(grad_output: Node, self: Node) -> Node:
    grad, x = operands(grad_output, self)
    sixth = b.round_to(1 / 6, FLOAT32)  # a float32 constant in eager, for float64 too
    inside = b.and_(b.gt(x, -3), b.lt(x, 3))
    return rounded(b.where(inside, b.mul(grad, sixth), b.like(0, x)), self.dtype)


@lower(aten.hardswish.default, floats=True)
def hardswish(self: Node) -> Node:
    (x,) = operands(self)
    return rounded(b.div(b.mul(x, _clamped(b.add(x, 3), 0, 6)), 6), self.dtype)


@lower(aten.hardswish_backward.default, floats=True)
def hardswish_backward(grad_output: Node, self: Node) -> Node:
    grad, x = operands(grad_output, self)
    middle = b.mul(grad, b.add(b.div(x, 3), 0.5))
    return rounded(b.where(b.le(x, -3), b.like(0, x), b.where(b.ge(x, 3), grad, middle)), self.dtype)


@lower(aten.hardtanh_backward.default, floats=True)
def hardtanh_backward(grad_output: Node, self: Node, min_val: Number, max_val: Number) -> Node:
    grad, x = operands(grad_output, self)
    return rounded(b.where(b.and_(b.gt(x, min_val), b.lt(x, max_val)), grad, b.like(0, x)), self.dtype)


@lower(aten.hardshrink.default, floats=True)
def hardshrink(self: Node, lambd: Number = 0.5) -> Lowered:
    if not fits(lambd, self.dtype):
        return NotImplemented
    x, limit = operands(self, lambd, common=self.dtype)
    inside = b.and_(b.ge(x, b.neg(limit)), b.le(x, limit))
    return b.where(inside, b.like(0, self), self)


@lower(aten.softshrink.default, floats=True)
def softshrink(self: Node, lambd: Number = 0.5) -> Lowered:
    """Drawn towards 0 by lambd, inside x * 0, so that nan stays."""
    if not fits(lambd, self.dtype) or lambd < 0:
        return NotImplemented
    (x,) = operands(self)
    moved = b.where(b.gt(x, lambd), b.sub(x, lambd), b.where(b.lt(x, -lambd), b.add(x, lambd), b.mul(x, 0)))
    return rounded(moved, self.dtype)


@lower(aten.hardshrink_backward.default, floats=True)
def hardshrink_backward(grad_out: Node, self: Node, lambd: Number) -> Lowered:
    if not fits(lambd, self.dtype):
        return NotImplemented
    grad, x = operands(grad_out, self)
    limit = operands(self, lambd, common=self.dtype)[1]
    limit = b.broadcast_to(limit, x.shape)
    return rounded(b.where(b.and_(b.ge(x, b.neg(limit)), b.le(x, limit)), b.like(0, grad), grad), self.dtype)


@lower(aten.softshrink_backward.default, floats=True)
def softshrink_backward(grad_output: Node, self: Node, lambd: Number) -> Lowered:
    return hardshrink_backward(grad_output, self, lambd)


# ---------------------------------------------------------------------------------------------- exponential
@lower(aten.elu.default, floats=True)
def elu(self: Node, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> Node:
    """scale * x above 0, alpha * scale * (exp(input_scale * x) - 1) below."""
    (x,) = operands(self)
    negative = b.mul(b.expm1(b.mul(x, input_scale)), _product(alpha, scale, x))
    return rounded(b.where(b.lt(x, 0), negative, b.mul(x, scale)), self.dtype)


def _product(first: Number, second: Number, x: Node) -> Node:
    """The product of two numbers, each first in the dtype of x."""
    return b.mul(b.like(first, x), b.like(second, x))


@lower(aten.elu_backward.default, floats=True)
def elu_backward(grad_output: Node, alpha: Number, scale: Number, input_scale: Number, is_result: bool, self_or_result: Node) -> Node:
    grad, x = operands(grad_output, self_or_result)
    factor = _product(alpha, scale, x)
    if is_result:
        negative = b.mul(b.mul(grad, input_scale), b.add(x, factor))
    else:
        negative = b.mul(b.mul(b.mul(grad, input_scale), factor), b.exp(b.mul(x, input_scale)))
    return rounded(b.where(b.le(x, 0), negative, b.mul(grad, scale)), self_or_result.dtype)


@lower(aten.celu.default, floats=True)
def celu(self: Node, alpha: Number = 1.0) -> Lowered:
    return NotImplemented if alpha == 0 else elu(self, alpha, 1, 1.0 / alpha)


@lower(aten.silu.default, floats=True)
def silu(self: Node) -> Node:
    """x / (1 + exp(-x))."""
    (x,) = operands(self)
    return rounded(b.div(x, b.add(b.exp(b.neg(x)), 1)), self.dtype)


@lower(aten.silu_backward.default, floats=True)
def silu_backward(grad_output: Node, self: Node) -> Node:
    grad, x = operands(grad_output, self)
    one, s = b.like(1, x), b.sigmoid(x)
    return rounded(b.mul(b.mul(grad, s), b.add(one, b.mul(x, b.sub(one, s)))), self.dtype)


@lower(aten.mish.default, floats=True)
def mish(self: Node) -> Node:
    (x,) = operands(self)
    return rounded(b.mul(x, b.tanh(b.log1p(b.exp(x)))), self.dtype)


@lower(aten.mish_backward.default, floats=True)
def mish_backward(grad_output: Node, self: Node) -> Node:
    grad, x = operands(grad_output, self)
    t = b.tanh(b.log1p(b.exp(x)))
    slope = b.mul(b.mul(x, b.sigmoid(x)), b.sub(b.like(1, x), b.mul(t, t)))
    return rounded(b.mul(grad, b.add(t, slope)), self.dtype)


@lower(aten.softplus.default, floats=True)
def softplus(self: Node, beta: Number = 1, threshold: Number = 20) -> Node:
    """log(1 + exp(beta x)) / beta; x itself where beta x is above the threshold."""
    (x,) = operands(self)
    scaled = b.mul(x, beta)
    return rounded(b.where(b.gt(scaled, threshold), x, b.div(b.log1p(b.exp(scaled)), beta)), self.dtype)


@lower(aten.softplus_backward.default, floats=True)
def softplus_backward(grad_output: Node, self: Node, beta: Number, threshold: Number) -> Node:
    grad, x = operands(grad_output, self)
    scaled = b.mul(x, beta)
    z = b.exp(scaled)
    return rounded(b.where(b.gt(scaled, threshold), grad, b.div(b.mul(grad, z), b.add(z, 1))), self.dtype)


@lower(aten.log_sigmoid_forward.default, floats=True)
def log_sigmoid_forward(self: Node) -> tuple[Node, Node]:
    """min(x, 0) - log(1 + exp(-|x|)), and the exponential, which the derivative wants."""
    (x,) = operands(self)
    z = b.exp(b.neg(b.abs_(x)))
    below = b.where(b.gt(x, 0), b.like(0, x), x)
    return rounded(b.sub(below, b.log1p(z)), self.dtype), rounded(z, self.dtype)


@lower(aten.log_sigmoid_backward.default, floats=True)
def log_sigmoid_backward(grad_output: Node, self: Node, buffer: Node) -> Lowered:
    if buffer.shape != self.shape:
        return NotImplemented
    grad, x, z = operands(grad_output, self, buffer)
    one, negative = b.like(1, x), b.lt(x, 0)
    most = b.where(negative, one, b.like(0, x))
    share = b.div(z, b.add(one, z))
    return rounded(b.mul(b.sub(most, b.where(negative, share, b.neg(share))), grad), self.dtype)


@lower(aten.gelu.default, floats=True)
def gelu(self: Node, *, approximate: str = "none") -> Node:
    """x times the normal distribution function, by erf or by the tanh approximation."""
    (x,) = operands(self)
    if approximate == "tanh":
        return rounded(b.mul(b.mul(x, 0.5), b.add(b.tanh(_gelu_inner(x)), 1)), self.dtype)
    return rounded(b.mul(b.mul(x, 0.5), b.add(b.erf(b.mul(x, math.sqrt(0.5))), 1)), self.dtype)


def _gelu_inner(x: Node) -> Node:
    cube = b.mul(b.mul(x, x), x)
    return b.mul(b.add(x, b.mul(cube, 0.044715)), math.sqrt(2 / math.pi))


@lower(aten.gelu_backward.default, floats=True)
def gelu_backward(grad_output: Node, self: Node, *, approximate: str = "none") -> Node:
    grad, x = operands(grad_output, self)
    one = b.like(1, x)
    if approximate == "tanh":
        t = b.tanh(_gelu_inner(x))
        outer = b.mul(b.add(t, one), 0.5)
        inner = b.mul(b.add(b.mul(b.mul(x, x), _rounded_product(3, 0.044715, x)), one), math.sqrt(2 / math.pi))
        slope = b.mul(b.mul(b.mul(x, 0.5), b.sub(one, b.mul(t, t))), inner)
        return rounded(b.mul(grad, b.add(outer, slope)), self.dtype)
    distribution = b.mul(b.add(b.erf(b.mul(x, math.sqrt(0.5))), one), 0.5)
    density = b.mul(b.exp(b.mul(b.mul(x, x), -0.5)), 1 / math.sqrt(2 * math.pi))
    return rounded(b.mul(grad, b.add(distribution, b.mul(x, density))), self.dtype)


def _rounded_product(first: float, second: float, x: Node) -> float:
    """The product of two numbers, each rounded to the dtype of x."""
    return b.round_to(b.round_to(first, x.dtype) * b.round_to(second, x.dtype), x.dtype)


# ---------------------------------------------------------------------------------------------- gates, other derivatives
def _halves(x: Node, dim: int) -> tuple[Node, Node]:
    axis, half = dim % x.type.ndim, x.shape[dim] // 2
    shape = tuple(half if a == axis else n for a, n in enumerate(x.shape))
    starts = [0] * x.type.ndim
    first = b.slice_(x, starts, [1] * x.type.ndim, shape)
    starts[axis] = half
    return first, b.slice_(x, starts, [1] * x.type.ndim, shape)


@lower(aten.glu.default, floats=True)
def glu(self: Node, dim: int = -1) -> Node:
    """The first half times the sigmoid of the second."""
    x, gate = _halves(computed(self), dim)
    return rounded(b.mul(x, b.sigmoid(gate)), self.dtype)


@lower(aten.glu_backward.default, floats=True)
def glu_backward(grad_output: Node, self: Node, dim: int) -> Node:
    x, gate = _halves(computed(self), dim)
    grad, s = computed(grad_output), b.sigmoid(gate)
    one = b.like(1, s)
    first = rounded(b.mul(s, grad), self.dtype)
    second = rounded(b.mul(b.mul(b.mul(b.sub(one, s), s), grad), x), self.dtype)
    return b.concat([first, second], dim % self.type.ndim)


@lower(aten.sigmoid_backward.default, floats=True)
def sigmoid_backward(grad_output: Node, output: Node) -> Node:
    """grad * (1 - y) * y; float16 rounds each step, bfloat16 once."""
    grad, y = operands(grad_output, output)
    step = output.dtype if output.dtype is FLOAT16 else FLOAT32
    left = each_rounded(b.mul(grad, each_rounded(b.sub(b.like(1, y), y), step)), step)
    return rounded(b.mul(left, y), output.dtype)


@lower(aten.tanh_backward.default, floats=True)
def tanh_backward(grad_output: Node, output: Node) -> Node:
    """grad * (1 - y * y), with y * y fused into the difference as in eager's kernel."""
    grad, y = operands(grad_output, output)
    return rounded(b.mul(grad, b.fma(b.neg(y), y, b.like(1, y))), output.dtype)


@lower(aten.logit_backward.default, floats=True)
def logit_backward(grad_output: Node, self: Node, eps: float | None = None) -> Node:
    """grad / (x (1 - x)) inside the limits; outside 0, or nan without limits.  Half types round each step."""
    grad, x = operands(grad_output, self)
    one, half = b.like(1, x), self.dtype
    limit = each_rounded(b.like(eps or 0, x), half)
    outside = b.or_(b.lt(x, limit), b.gt(x, each_rounded(b.sub(one, limit), half)))
    there = b.like(math.nan if eps is None else 0.0, x)
    slope = each_rounded(b.mul(x, each_rounded(b.sub(one, x), half)), half)
    return rounded(b.where(outside, there, b.div(grad, slope)), half)


@lower(aten.native_dropout_backward.default, floats=True, samples=samples.dropout_backward)
def dropout_backward(grad_output: Node, mask: Node, scale: float) -> Node:
    """grad times the mask times the scale; the mask is of the type of grad."""
    grad, kept = broadcast(computed(grad_output), b.cast(mask, computed(grad_output).dtype))
    factor = each_rounded(b.mul(kept, scale), grad_output.dtype)
    return rounded(b.mul(grad, factor), grad_output.dtype)
