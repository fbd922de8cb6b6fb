"""Comparisons, logic, bits, and selection: where, masked_fill, clamp.

Selection moves values and never computes, so half types stay as they are there.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from thermit.aten.table import (
    Lowered,
    Number,
    Operand,
    broadcast_shape,
    fits,
    lower,
    operands,
    result_type,
    rounded,
    scalar,
)
from thermit.ir import build as b
from thermit.ir.node import Node
from thermit.ir.types import BOOL, DTYPES

aten = torch.ops.aten


# ---------------------------------------------------------------------------------------------- comparison, logic, bits
def _comparison(build: Callable[[Node, Node], Node]) -> Callable[[Node, Operand], Lowered]:
    def row(self: Node, other: Operand) -> Lowered:
        """A number must fit the type of the tensor; eager raises otherwise."""
        if not isinstance(other, Node) and not fits(other, self.dtype):
            return NotImplemented
        x, y = operands(self, other)
        if x.dtype is BOOL:
            x, y = b.cast(x, DTYPES["uint8"]), b.cast(y, DTYPES["uint8"])
        return build(x, y)

    return row


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    lower(getattr(aten, _name).Tensor, getattr(aten, _name).Scalar)(_comparison(getattr(b, _name)))


def truth(x: Node) -> Node:
    """Whether each element is not zero (nan is true)."""
    return b.cast(x, BOOL)


def _logical_2(build: Callable[[Node, Node], Node]) -> Callable[[Node, Node], Node]:
    def row(self: Node, other: Node) -> Node:
        shape = broadcast_shape(self.shape, other.shape)
        return build(b.broadcast_to(truth(self), shape), b.broadcast_to(truth(other), shape))

    return row


lower(aten.logical_and.default)(_logical_2(b.and_))
lower(aten.logical_or.default)(_logical_2(b.or_))
lower(aten.logical_xor.default)(_logical_2(b.xor))


@lower(aten.logical_not.default)
def logical_not(self: Node) -> Node:
    return b.not_(truth(self))


@lower(aten.bitwise_not.default)
def bitwise_not(self: Node) -> Lowered:
    return NotImplemented if self.dtype.is_float else b.not_(self)


def _bitwise(build: Callable[[Node, Node], Node]) -> Callable[[Operand, Operand], Lowered]:
    def row(self: Operand, other: Operand) -> Lowered:
        if result_type(self, other).is_float:
            return NotImplemented
        return build(*operands(self, other))

    return row


for _name, _build in (("bitwise_and", b.and_), ("bitwise_or", b.or_), ("bitwise_xor", b.xor)):
    lower(*(getattr(getattr(aten, _name), o) for o in ("Tensor", "Scalar", "Scalar_Tensor")))(_bitwise(_build))


def _shift(left: bool) -> Callable[[Operand, Operand], Lowered]:
    def row(self: Operand, other: Operand) -> Lowered:
        """Shifts by less than 0 or by the width and more give 0, or copies of the sign to the right."""
        dtype = result_type(self, other)
        if not dtype.is_integer:
            return NotImplemented
        x, y = operands(self, other)
        most = dtype.bits if left or dtype.kind == "uint" else dtype.bits - 1
        outside = b.or_(b.lt(y, 0), b.ge(y, most)) if dtype.kind == "int" else b.ge(y, most)
        if left or dtype.kind == "uint":
            return b.where(outside, b.like(0, x), (b.shl if left else b.shr)(x, b.where(outside, b.like(0, y), y)))
        return b.shr(x, b.where(outside, b.like(most, y), y))

    return row


lower(*(getattr(aten.bitwise_left_shift, o) for o in ("Tensor", "Tensor_Scalar", "Scalar_Tensor")))(_shift(True))
lower(*(getattr(aten.bitwise_right_shift, o) for o in ("Tensor", "Tensor_Scalar", "Scalar_Tensor")))(_shift(False))
lower(aten.__lshift__.Tensor, aten.__lshift__.Scalar)(_shift(True))
lower(aten.__rshift__.Tensor, aten.__rshift__.Scalar)(_shift(False))


# ---------------------------------------------------------------------------------------------- selection
@lower(aten.where.self)
def where(condition: Node, self: Operand, other: Operand) -> Lowered:
    """Moves values, never computes: half types stay as they are."""
    if condition.dtype is not BOOL and condition.dtype.name != "uint8":
        return NotImplemented
    dtype = result_type(self, other)
    shape = broadcast_shape(*(n.shape for n in (condition, self, other) if isinstance(n, Node)))
    x, y = (b.broadcast_to(b.cast(n, dtype) if isinstance(n, Node) else scalar(n, dtype), shape) for n in (self, other))
    return b.where(b.broadcast_to(truth(condition), shape), x, y)


@lower(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(self: Node, mask: Node, value: Operand) -> Lowered:
    if mask.dtype is not BOOL or (value.type.ndim if isinstance(value, Node) else not fits(value, self.dtype)):
        return NotImplemented
    shape = broadcast_shape(self.shape, mask.shape)
    fill = b.cast(value, self.dtype) if isinstance(value, Node) else scalar(value, self.dtype)
    return b.where(b.broadcast_to(mask, shape), b.broadcast_to(fill, shape), b.broadcast_to(self, shape))


def _at_least(x: Node, low: Node) -> Node:
    """low where x is below it; nan and -0 stay."""
    return b.where(b.lt(x, low), low, x)


def _at_most(x: Node, high: Node) -> Node:
    return b.where(b.gt(x, high), high, x)


@lower(aten.clamp.default)
def clamp(self: Node, min: Number | None = None, max: Number | None = None) -> Lowered:
    """max(min) first, then min(max); a nan bound makes everything nan."""
    bounds = [n for n in (min, max) if n is not None]
    dtype = result_type(self, *bounds)
    if not all(fits(n, dtype) for n in bounds):
        return NotImplemented
    if any(isinstance(n, float) and math.isnan(n) for n in bounds):
        return b.const(math.nan, dtype, self.shape)
    (x,) = operands(self, common=dtype)
    if min is not None:
        x = _at_least(x, operands(self, min, common=dtype)[1])
    if max is not None:
        x = _at_most(x, operands(self, max, common=dtype)[1])
    return rounded(x, dtype)


@lower(aten.clamp_min.default)
def clamp_min(self: Node, min: Number) -> Lowered:
    return clamp(self, min)


@lower(aten.clamp_max.default)
def clamp_max(self: Node, max: Number) -> Lowered:
    return clamp(self, None, max)


@lower(aten.clamp.Tensor)
def clamp_tensor(self: Node, min: Node | None = None, max: Node | None = None) -> Lowered:
    """As above with bounds element by element; a nan anywhere gives nan."""
    bounds = [n for n in (min, max) if n is not None]
    dtype = result_type(self, *bounds)
    if dtype is BOOL and len(bounds) == 2:
        return NotImplemented
    x, *limits = operands(self, *bounds)
    result = x
    if min is not None:
        result = _at_least(result, limits[0])
    if max is not None:
        result = _at_most(result, limits[-1])
    if dtype.is_float:
        for limit in limits:
            result = b.where(b.ne(limit, limit), limit, result)
        result = b.where(b.ne(x, x), x, result)
    return rounded(result, dtype)


@lower(aten.clamp_min.Tensor)
def clamp_min_tensor(self: Node, min: Node) -> Node:
    return clamp_tensor(self, min)


@lower(aten.clamp_max.Tensor)
def clamp_max_tensor(self: Node, max: Node) -> Node:
    return clamp_tensor(self, None, max)
