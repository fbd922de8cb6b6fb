"""Loss functions and their derivatives.

A loss is a map, rounded to the type of its operands, and then a reduction: none (0), mean (1) or sum (2).
"""

from __future__ import annotations

import torch

from thermit.aten import pointwise
from thermit.aten.activation import log_sigmoid_forward
from thermit.aten.reduction import mean_all, reduced, sum_all
from thermit.aten.table import Lowered, computed, each_rounded, lower, operands, result_type, rounded
from thermit.ir import build as b
from thermit.ir import prims as p
from thermit.ir.node import Node
from thermit.ir.types import FLOAT16, FLOAT32, INT64, DType, Shape

aten = torch.ops.aten
NONE, MEAN, SUM = 0, 1, 2


def _reduction(loss: Node, reduction: int) -> Node:
    return mean_all(loss) if reduction == MEAN else sum_all(loss) if reduction == SUM else loss


def _share(x: Node, reduction: int) -> float:
    """The factor that averaging puts on each element's gradient."""
    return 1.0 / x.type.numel if reduction == MEAN and x.type.numel else 1.0


@lower(aten.mse_loss.default, floats=True)
def mse_loss(self: Node, target: Node, reduction: int = MEAN) -> Lowered:
    """(x - y)^2; half types round the difference."""
    dtype = result_type(self, target)
    x, y = operands(self, target)
    difference = each_rounded(b.sub(x, y), dtype)
    return _reduction(rounded(b.mul(difference, difference), dtype), reduction)


@lower(aten.mse_loss_backward.default, floats=True)
def mse_loss_backward(grad_output: Node, self: Node, target: Node, reduction: int) -> Lowered:
    """2 / n (x - y) g."""
    dtype = result_type(self, target)
    if dtype.is_half:
        return NotImplemented
    x, y, grad = operands(self, target, grad_output)
    factor = 2.0 / x.type.numel if reduction == MEAN and x.type.numel else 2.0
    return rounded(b.mul(b.mul(b.sub(x, y), factor), grad), dtype)


@lower(aten.smooth_l1_loss.default, floats=True)
def smooth_l1_loss(self: Node, target: Node, reduction: int = MEAN, beta: float = 1.0) -> Lowered:
    """z^2 / (2 beta) below beta, z - beta / 2 above, with z = |x - y|.  float16 rounds each step."""
    dtype = result_type(self, target)
    x, y = operands(self, target)
    if beta == 0:
        return _reduction(rounded(b.abs_(b.sub(x, y)), dtype), reduction)
    step = dtype if dtype is FLOAT16 else FLOAT32
    z = b.abs_(each_rounded(b.sub(x, y), step))
    limit = each_rounded(b.like(beta, z), step)
    half_limit = each_rounded(b.mul(limit, 0.5), step)
    square = each_rounded(b.mul(each_rounded(b.mul(z, 0.5), step), z), step)
    loss = b.where(b.lt(z, limit), b.div(square, limit), b.sub(z, half_limit))
    return _reduction(rounded(loss, dtype), reduction)


@lower(aten.smooth_l1_loss_backward.default, floats=True)
def smooth_l1_loss_backward(grad_output: Node, self: Node, target: Node, reduction: int, beta: float) -> Lowered:
    dtype = result_type(self, target)
    if dtype.is_half:
        return NotImplemented
    x, y, grad = operands(self, target, grad_output)
    difference, norm = b.sub(x, y), _share(x, reduction)
    outside = b.mul(grad, norm)
    inside = b.div(b.mul(b.mul(difference, norm), grad), beta)
    below = b.where(b.le(difference, -beta), b.neg(outside), b.where(b.ge(difference, beta), outside, inside))
    return rounded(below, dtype)


@lower(aten.huber_loss.default, floats=True)
def huber_loss(self: Node, target: Node, reduction: int = MEAN, delta: float = 1.0) -> Lowered:
    """z^2 / 2 below delta, delta (z - delta / 2) above, with z = |x - y|.  bfloat16 rounds each step."""
    dtype = result_type(self, target)
    x, y = operands(self, target)
    step = FLOAT32 if dtype is FLOAT16 else dtype
    z = b.abs_(each_rounded(b.sub(x, y), step))
    limit = each_rounded(b.like(delta, z), step)
    half_limit = each_rounded(b.mul(limit, 0.5), step)
    inside = b.mul(each_rounded(b.mul(z, 0.5), step), z)
    outside = b.mul(limit, each_rounded(b.sub(z, half_limit), step))
    return _reduction(rounded(b.where(b.lt(z, limit), inside, outside), dtype), reduction)


@lower(aten.huber_loss_backward.default, floats=True)
def huber_loss_backward(grad_output: Node, self: Node, target: Node, reduction: int, delta: float) -> Lowered:
    dtype = result_type(self, target)
    if dtype.is_half:
        return NotImplemented
    x, y, grad = operands(self, target, grad_output)
    difference, norm = b.sub(x, y), _share(x, reduction)
    far = b.mul(b.mul(grad, norm), delta)
    inside = b.mul(b.mul(difference, norm), grad)
    return rounded(b.where(b.le(difference, -delta), b.neg(far), b.where(b.ge(difference, delta), far, inside)), dtype)


@lower(aten.soft_margin_loss.default, floats=True)
def soft_margin_loss(self: Node, target: Node, reduction: int = MEAN) -> Lowered:
    """log(1 + exp(-x y)), eager's chain of operations."""
    product = pointwise.mul(pointwise.neg(self), target)
    dtype = product.dtype
    powers = each_rounded(b.exp(computed(product)), dtype)
    return _reduction(rounded(b.log1p(powers), dtype), reduction)


# ---------------------------------------------------------------------------------------------- binary cross entropy
@lower(aten.binary_cross_entropy.default, floats=True)
def binary_cross_entropy(self: Node, target: Node, weight: Node | None = None, reduction: int = MEAN) -> Lowered:
    """(y - 1) max(log(1 - x), -100) - y max(log x, -100).  Stops unless 0 <= x <= 1: eager raises."""
    if self.dtype is not target.dtype or self.shape != target.shape:
        return NotImplemented
    dtype = self.dtype
    x, y = operands(self, target)
    x = b.check(x, b.and_(b.ge(x, 0), b.le(x, 1)))
    other = b.mul(each_rounded(b.sub(y, 1), dtype), _floored(b.log1p(b.neg(x)), dtype))
    loss = b.sub(each_rounded(other, dtype), each_rounded(b.mul(y, _floored(b.log(x), dtype)), dtype))
    value = rounded(loss, dtype)
    return _reduction(value if weight is None else pointwise.mul(value, weight), reduction)


def _floored(logarithm: Node, dtype: DType) -> Node:
    value = each_rounded(logarithm, dtype)
    return b.where(b.lt(value, -100), b.like(-100, value), value)


@lower(aten.binary_cross_entropy_backward.default, floats=True)
def binary_cross_entropy_backward(grad_output: Node, self: Node, target: Node, weight: Node | None = None, reduction: int = MEAN) -> Lowered:
    """g (x - y) / max((1 - x) x, 1e-12)."""
    if self.dtype.is_half:
        return NotImplemented
    x, y, grad = operands(self, target, grad_output)
    room = b.mul(b.sub(b.like(1, x), x), x)
    room = b.where(b.lt(room, 1e-12), b.like(1e-12, room), room)
    result = rounded(b.div(b.mul(grad, b.sub(x, y)), room), self.dtype)
    result = result if weight is None else pointwise.mul(result, weight)
    return pointwise.div(result, self.type.numel) if reduction == MEAN else result


@lower(aten.binary_cross_entropy_with_logits.default, floats=True)
def binary_cross_entropy_with_logits(
    self: Node,
    target: Node,
    weight: Node | None = None,
    pos_weight: Node | None = None,
    reduction: int = MEAN,
) -> Lowered:
    """(1 - y) x - log_sigmoid(x), with y's share weighted: eager's chain of operations."""
    inner = log_sigmoid_forward(self)[0]
    if pos_weight is not None:
        shares = pointwise.add(pointwise.mul(pointwise.sub(pos_weight, 1), target), 1)
        inner = pointwise.mul(inner, shares)
    loss = pointwise.sub(pointwise.mul(pointwise.rsub(target, 1), self), inner)
    return _reduction(loss if weight is None else pointwise.mul(loss, weight), reduction)


# ---------------------------------------------------------------------------------------------- negative log likelihood
def _picked(self: Node, target: Node, axis: int, ignore_index: int) -> tuple[Node, Node, Node]:
    """The element of each sample that its target names (in the compute dtype), the target made safe, and whether it counts."""
    index = b.cast(target, INT64)
    counts = b.ne(index, ignore_index)
    safe = b.where(counts, index, b.like(0, index))
    x, others = computed(self), [a for a in range(self.type.ndim) if a != axis]
    places = {a: b.iota(target.shape, k) if target.type.ndim else b.const(0, INT64) for k, a in enumerate(others)}
    return b.gather(x, [safe if a == axis else places[a] for a in range(x.type.ndim)]), safe, counts


def _nll_loss(self: Node, target: Node, weight: Node | None, reduction: int, ignore_index: int) -> Lowered:
    axis = 1 if self.type.ndim > 1 else 0
    expected: Shape = self.shape[:axis] + self.shape[axis + 1 :]
    if target.shape != expected or self.shape[axis] == 0 or not target.dtype.is_integer:
        return NotImplemented
    if self.dtype.is_half and reduction != NONE:
        return NotImplemented  # eager adds up in the half type, in partial sums
    picked, safe, counts = _picked(self, target, axis, ignore_index)
    share = b.like(1, picked) if weight is None else b.gather(b.cast(weight, picked.dtype), [safe])
    share = b.where(counts, share, b.like(0, share))
    loss = b.where(counts, b.neg(each_rounded(b.mul(picked, share), self.dtype)), b.like(0, picked))
    if reduction == NONE:  # the weight is reported for a single sample only
        return rounded(loss, self.dtype), rounded(share, self.dtype) if target.type.ndim == 0 else b.const(0, self.dtype)
    axes = range(loss.type.ndim)
    total, weights = reduced(p.SUM, loss, axes), reduced(p.SUM, share, axes)
    return rounded(b.div(total, weights) if reduction == MEAN else total, self.dtype), rounded(weights, self.dtype)


@lower(aten.nll_loss_forward.default, floats=True)
def nll_loss_forward(self: Node, target: Node, weight: Node | None, reduction: int, ignore_index: int) -> Lowered:
    """-x[target] by weight of the target's class, and the sum of the weights.  A target outside the classes stops: eager raises."""
    return _nll_loss(self, target, weight, reduction, ignore_index)


@lower(aten.nll_loss2d_forward.default, floats=True)
def nll_loss2d_forward(self: Node, target: Node, weight: Node | None, reduction: int, ignore_index: int) -> Lowered:
    return _nll_loss(self, target, weight, reduction, ignore_index)


@lower(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default, floats=True)
def nll_loss_backward(
    grad_output: Node,
    self: Node,
    target: Node,
    weight: Node | None,
    reduction: int,
    ignore_index: int,
    total_weight: Node,
) -> Lowered:
    """-weight * g where the class is the target, 0 elsewhere."""
    axis = 1 if self.type.ndim > 1 else 0
    kept = tuple(1 if a == axis else n for a, n in enumerate(self.shape))
    grad = computed(grad_output)
    if reduction == MEAN:
        grad = each_rounded(b.div(grad, b.reshape(b.cast(total_weight, grad.dtype), grad.shape)), self.dtype)
    shape = self.shape
    grad = b.broadcast_to(b.reshape(grad, kept) if reduction == NONE else grad, shape)
    index = b.broadcast_to(b.reshape(b.cast(target, INT64), kept), shape)
    hit = b.and_(b.eq(b.iota(shape, axis), index), b.ne(index, ignore_index))
    if weight is not None:
        along = tuple(n if a == axis else 1 for a, n in enumerate(shape))
        grad = b.mul(grad, b.broadcast_to(b.reshape(b.cast(weight, grad.dtype), along), shape))
    return rounded(b.where(hit, b.neg(grad), b.like(0, grad)), self.dtype)
