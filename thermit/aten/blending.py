"""Three operands in one step: interpolation between two, sums with a product or a quotient.

Each row follows the formula of eager's kernel, its fused steps included.
"""

from __future__ import annotations

import torch

from thermit.aten.table import (
    Lowered,
    Number,
    Operand,
    broadcast_shape,
    compute_dtype,
    fits,
    lower,
    operands,
    result_type,
    rounded,
    scalar,
)
from thermit.ir import build as b
from thermit.ir.node import Node
from thermit.ir.types import BOOL

aten = torch.ops.aten


def _lerp(x: Node, y: Node, weight: Node) -> Node:
    """x + weight (y - x), counted from the nearer end; each end one fused step."""
    difference = b.sub(y, x)
    from_end = b.fma(b.neg(difference), b.sub(b.like(1, weight), weight), y)
    return b.where(b.lt(b.abs_(weight), 0.5), b.fma(weight, difference, x), from_end)


@lower(aten.lerp.Tensor, aten.lerp.Scalar, floats=True)
def lerp(self: Node, end: Node, weight: Operand) -> Node:
    dtype = self.dtype
    shape = broadcast_shape(*(n.shape for n in (self, end, weight) if isinstance(n, Node)))
    compute = compute_dtype(dtype)
    w = weight if isinstance(weight, Node) else b.const(weight, compute)
    return rounded(_lerp(*(b.broadcast_to(b.cast(n, compute), shape) for n in (self, end, w))), dtype)


@lower(aten.addcmul.default)
def addcmul(self: Node, tensor1: Node, tensor2: Node, *, value: Number = 1) -> Lowered:
    """self + value * tensor1 * tensor2, the last product fused into the sum."""
    dtype = result_type(self, tensor1, tensor2)
    if dtype is BOOL or not fits(value, dtype):
        return NotImplemented
    x, y, z = operands(self, tensor1, tensor2)
    factor = b.broadcast_to(scalar(value, x.dtype), x.shape)
    product = y if value == 1 else b.mul(factor, y)
    return rounded(b.fma(product, z, x) if dtype.is_float else b.add(x, b.mul(product, z)), dtype)


@lower(aten.addcdiv.default)
def addcdiv(self: Node, tensor1: Node, tensor2: Node, *, value: Number = 1) -> Lowered:
    """self + value * tensor1 / tensor2."""
    dtype = result_type(self, tensor1, tensor2)
    if not dtype.is_float:
        return NotImplemented
    x, y, z = operands(self, tensor1, tensor2)
    return rounded(b.add(x, b.div(b.mul(b.broadcast_to(scalar(value, x.dtype), x.shape), y), z)), dtype)
