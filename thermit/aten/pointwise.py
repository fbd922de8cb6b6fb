"""Arithmetic, comparisons, bits and mathematical functions, element by element.

Each row follows the formula of eager's CPU kernel, step for step, so that arithmetic agrees bit for bit; where that kernel is
compiled to a fused multiply-add (addcmul, lerp, add with alpha) the row says fma.  Which operand of a half type is rounded
when is part of the formula: see `operands`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from thermit.aten import samples
from thermit.aten.table import (
    Lowered,
    Number,
    Operand,
    broadcast_shape,
    dtype_of,
    each_rounded,
    fits,
    float_type,
    lower,
    operands,
    result_type,
    rounded,
    scalar,
)
from thermit.ir import build as b
from thermit.ir.node import Node
from thermit.ir.types import BFLOAT16, BOOL, DTYPES, FLOAT16, FLOAT32, DType

aten = torch.ops.aten


# ---------------------------------------------------------------------------------------------- functions of one argument
def _float_function(build: Callable[[Node], Node]) -> Callable[[Node], Node]:
    """Integers and bool compute in the default dtype."""

    def row(self: Node) -> Node:
        (x,) = operands(self, kind="float")
        return rounded(build(x), float_type(self.dtype))

    return row


for _name in ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh",
              "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "sigmoid", "sqrt"):  # fmt: skip
    lower(getattr(aten, _name).default)(_float_function(getattr(b, _name)))


@lower(aten.cosh.default)
def cosh(self: Node) -> Node:
    """Between 88.72 and 89.42 only the halving keeps float32 from overflow, and the call is eager's: its vector loop overflows there on some
    processors and its scalar loop does not, so that one row may hold both."""
    (x,) = operands(self, kind="float")
    if x.dtype is FLOAT32:
        size = b.abs_(x)
        x = b.check(x, b.not_(b.and_(b.gt(size, 88.7), b.lt(size, 89.5))))
    return rounded(b.cosh(x), float_type(self.dtype))


def reciprocal_of(x: Node) -> Node:
    """1 / x."""
    return b.div(b.like(1, x), x)


lower(aten.reciprocal.default)(_float_function(reciprocal_of))
lower(aten.rsqrt.default)(_float_function(lambda x: reciprocal_of(b.sqrt(x))))


@lower(aten.sinc.default)
def sinc(self: Node) -> Node:
    """sin(pi x) / (pi x), 1 at 0; the product with pi is formed in the compute dtype."""
    (x,) = operands(self, kind="float")
    product = b.mul(x, math.pi)
    return rounded(b.where(b.eq(x, 0), b.like(1, x), b.div(b.sin(product), product)), float_type(self.dtype))


@lower(aten.deg2rad.default)
def deg2rad(self: Node) -> Node:
    return _scaled(self, math.pi / 180)


@lower(aten.rad2deg.default)
def rad2deg(self: Node) -> Node:
    return _scaled(self, 180 / math.pi)


def _scaled(self: Node, factor: float) -> Node:
    x, c = operands(self, factor, kind="float", exact_scalars=True)
    return rounded(b.mul(x, c), float_type(self.dtype))


@lower(aten.angle.default)
def angle(self: Node) -> Node:
    """pi below 0, else 0; nan stays."""
    (x,) = operands(self, kind="float")
    direction = b.where(b.lt(x, 0), b.like(math.pi, x), b.like(0, x))
    return rounded(b.where(b.ne(x, x), x, direction), float_type(self.dtype))


@lower(aten.special_entr.default)
def entr(self: Node) -> Node:
    """-x log(x), 0 at 0, minus infinity below."""
    (x,) = operands(self, kind="float")
    half = float_type(self.dtype)
    inside = b.mul(b.neg(x), each_rounded(b.log(x), half))
    outside = b.where(b.eq(x, 0), b.like(0, x), b.where(b.ne(x, x), x, b.like(-math.inf, x)))
    return rounded(b.where(b.gt(x, 0), inside, outside), half)


def _integral(build: Callable[[Node], Node]) -> Callable[[Node], Lowered]:
    """floor and the like: integers are themselves."""

    def row(self: Node) -> Lowered:
        if not self.dtype.is_float:
            return NotImplemented if self.dtype is BOOL else self
        (x,) = operands(self)
        return rounded(build(x), self.dtype)

    return row


lower(aten.floor.default)(_integral(b.floor))
lower(aten.ceil.default)(_integral(b.ceil))
lower(aten.trunc.default)(_integral(b.trunc))
lower(aten.round.default)(_integral(b.round_))


@lower(aten.round.decimals)
def round_decimals(self: Node, *, decimals: int) -> Lowered:
    """Scaled by a power of ten, rounded half to even, scaled back, each step in the compute dtype."""
    if not self.dtype.is_float:
        return NotImplemented
    (x,) = operands(self)
    if decimals == 0:
        return rounded(b.round_(x), self.dtype)
    ten = b.const(10.0 ** abs(decimals), x.dtype, x.shape)
    scaled = b.round_(b.mul(x, ten) if decimals > 0 else b.div(x, ten))
    return rounded(b.div(scaled, ten) if decimals > 0 else b.mul(scaled, ten), self.dtype)


@lower(aten.frac.default)
def frac(self: Node) -> Lowered:
    if not self.dtype.is_float:
        return NotImplemented
    (x,) = operands(self)
    return rounded(b.sub(x, b.trunc(x)), self.dtype)


@lower(aten.neg.default)
def neg(self: Node) -> Lowered:
    """A change of the sign bit; exact, so half types need no rounding beyond the cast back."""
    if self.dtype is BOOL:
        return NotImplemented
    (x,) = operands(self)
    return rounded(b.neg(x), self.dtype)


@lower(aten.abs.default)
def abs_(self: Node) -> Lowered:
    if self.dtype is BOOL or self.dtype.kind == "uint":
        return NotImplemented if self.dtype is BOOL else self
    (x,) = operands(self)
    return rounded(b.abs_(x), self.dtype)


@lower(aten._conj_physical.default)
def conj_physical(self: Node) -> Node:
    return self


@lower(aten.sign.default, aten.sgn.default)
def sign(self: Node) -> Node:
    """(0 < x) - (x < 0): 0 for nan."""
    if self.dtype is BOOL:
        return self
    (x,) = operands(self)
    one, zero = b.like(1, x), b.like(0, x)
    return rounded(b.sub(b.where(b.gt(x, 0), one, zero), b.where(b.lt(x, 0), one, zero)), self.dtype)


@lower(aten.signbit.default)
def signbit(self: Node) -> Node:
    if self.dtype.is_float:
        integer = DTYPES[f"int{self.dtype.bits}"]
        return b.lt(b.bitcast(self, integer), 0)
    return b.like(False, b.cast(self, BOOL)) if self.dtype is BOOL else b.lt(self, 0)


@lower(aten.isnan.default)
def isnan(self: Node) -> Node:
    (x,) = operands(self)
    return b.ne(x, x) if self.dtype.is_float else b.const(False, BOOL, self.shape)


def _infinite(values: tuple[float, ...]) -> Callable[[Node], Node]:
    def row(self: Node) -> Node:
        if not self.dtype.is_float:
            return b.const(False, BOOL, self.shape)
        (x,) = operands(self)
        return b.eq(b.abs_(x), math.inf) if len(values) == 2 else b.eq(x, values[0])

    return row


lower(aten.isinf.default)(_infinite((math.inf, -math.inf)))
lower(aten.isposinf.default)(_infinite((math.inf,)))
lower(aten.isneginf.default)(_infinite((-math.inf,)))


@lower(aten.nan_to_num.default)
def nan_to_num(self: Node, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Node:
    if not self.dtype.is_float:
        return self
    limits = torch.finfo(getattr(torch, self.dtype.name))
    (x,) = operands(self)

    def of(value: float | None, default: float) -> Node:
        return b.broadcast_to(b.cast(b.const(default if value is None else value, self.dtype), x.dtype), x.shape)

    finite = b.where(b.eq(x, math.inf), of(posinf, limits.max), b.where(b.eq(x, -math.inf), of(neginf, limits.min), x))
    return rounded(b.where(b.ne(x, x), of(nan, 0.0), finite), self.dtype)


@lower(aten.logit.default)
def logit(self: Node, eps: float | None = None) -> Node:
    """log(x / (1 - x)), x first held inside [eps, 1 - eps]."""
    (x,) = operands(self, kind="float")
    half = float_type(self.dtype)
    if eps is not None:
        low = b.cast(b.const(eps, half), x.dtype)
        high = each_rounded(b.sub(b.like(1, low), low), half)
        low, high = b.broadcast_to(low, x.shape), b.broadcast_to(high, x.shape)
        x = b.where(b.lt(x, low), low, b.where(b.gt(x, high), high, x))
    ratio = each_rounded(b.div(x, each_rounded(b.sub(b.like(1, x), x), half)), half)
    return rounded(b.log(b.where(b.eq(x, 1), b.like(math.inf, x), ratio)), half)


# ---------------------------------------------------------------------------------------------- arithmetic
def _depends_on_place(alpha: Number, dtype: DType) -> bool:
    """Whether eager rounds the product of half types in one of its loops, over vectors or at the end of a row, and not in the other."""
    return dtype.is_half and alpha not in (-1, 0, 1)


@lower(aten.add.Tensor, aten.add.Scalar)
def add(self: Operand, other: Operand, alpha: Number = 1) -> Lowered:
    """self + alpha * other; the product is fused into the sum, as in eager's kernel."""
    dtype = result_type(self, other)
    if _depends_on_place(alpha, dtype):
        return NotImplemented
    x, y = operands(self, other)
    if dtype is BOOL:
        return b.or_(x, y) if alpha else x
    return rounded(_multiply_add(x, y, alpha, dtype), dtype)


@lower(aten.sub.Tensor, aten.sub.Scalar)
def sub(self: Operand, other: Operand, alpha: Number = 1) -> Lowered:
    dtype = result_type(self, other)
    if BOOL in (dtype, dtype_of(self), dtype_of(other)) or _depends_on_place(alpha, dtype):
        return NotImplemented
    x, y = operands(self, other)
    return rounded(b.sub(x, y) if alpha == 1 else _multiply_add(x, y, -alpha, dtype), dtype)


@lower(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(self: Operand, other: Operand, alpha: Number = 1) -> Lowered:
    return sub(other, self, alpha)


def _multiply_add(x: Node, y: Node, alpha: Number, dtype: DType) -> Node:
    if alpha == 1:
        return b.add(x, y)
    factor = b.broadcast_to(b.cast(scalar(alpha, dtype), x.dtype), x.shape)
    return b.fma(y, factor, x) if dtype.is_float else b.add(x, b.mul(y, factor))


@lower(aten.mul.Tensor, aten.mul.Scalar)
def mul(self: Operand, other: Operand) -> Node:
    dtype = result_type(self, other)
    x, y = operands(self, other, exact_scalars=True)
    return b.and_(x, y) if dtype is BOOL else rounded(b.mul(x, y), dtype)


@lower(aten.div.Tensor, aten.div.Scalar)
def div(self: Operand, other: Operand) -> Node:
    dtype = float_type(result_type(self, other))
    x, y = operands(self, other, kind="float", exact_scalars=True)
    return rounded(b.div(x, y), dtype)


@lower(aten.div.Tensor_mode, aten.div.Scalar_mode, samples=samples.rounding_modes)
def div_mode(self: Operand, other: Operand, *, rounding_mode: str | None) -> Lowered:
    """None: true division; "trunc": towards zero; "floor": Python's //."""
    if rounding_mode is None:
        return div(self, other)
    return _div_trunc(self, other) if rounding_mode == "trunc" else floor_divide(self, other)


def _div_trunc(self: Operand, other: Operand) -> Lowered:
    dtype = result_type(self, other)
    x, y = operands(self, other, exact_scalars=True)
    if dtype is BOOL:
        return NotImplemented
    if not dtype.is_float:
        return _integer_quotient(x, y)
    quotient = b.div(x, y)
    return rounded(b.trunc(quotient if _has_one_element(other) else each_rounded(quotient, dtype)), dtype)


def _has_one_element(x: Operand) -> bool:
    return not isinstance(x, Node) or x.type.numel == 1


def _integer_quotient(x: Node, y: Node) -> Node:
    """Truncated.  A zero divisor stops the program: eager then raises.  -1 negates, since the division of the least number by it traps."""
    if b.is_const(y):
        return NotImplemented if y.attrs.value == 0 else b.neg(x) if y.attrs.value == -1 else b.div(x, y)
    y = b.check(y, b.ne(y, 0))
    if x.dtype.kind == "uint":
        return b.div(x, y)
    minus = b.eq(y, -1)
    return b.where(minus, b.neg(x), b.div(x, b.where(minus, b.like(1, y), y)))


def _integer_remainder(x: Node, y: Node) -> Node:
    """With the sign of x; as above, and 0 for the divisor -1."""
    if b.is_const(y):
        return NotImplemented if y.attrs.value == 0 else b.like(0, x) if y.attrs.value == -1 else b.rem(x, y)
    y = b.check(y, b.ne(y, 0))
    return b.rem(x, y if x.dtype.kind == "uint" else b.where(b.eq(y, -1), b.like(1, y), y))


@lower(aten.floor_divide.default, aten.floor_divide.Scalar)
def floor_divide(self: Operand, other: Operand) -> Lowered:
    """Rounded towards minus infinity.  Floats by the remainder, which is exact where the quotient is not (Python's algorithm)."""
    dtype = result_type(self, other)
    if dtype is BOOL:
        return NotImplemented
    x, y = operands(self, other, exact_scalars=True)
    if dtype.is_float:
        step = (lambda n: n) if _has_one_element(other) else (lambda n: each_rounded(n, dtype))
        return rounded(_floor_quotient(x, y, step), dtype)
    quotient = _integer_quotient(x, y)
    if dtype.kind == "uint" or quotient is NotImplemented:
        return quotient
    inexact = b.and_(b.ne(b.mul(quotient, y), x), b.xor(b.lt(x, 0), b.lt(y, 0)))
    return b.where(inexact, b.sub(quotient, 1), quotient)


def _floor_quotient(x: Node, y: Node, step: Callable[[Node], Node]) -> Node:
    remainder = step(fmod_of(x, y))
    quotient = step(b.div(step(b.sub(x, remainder)), y))
    against = b.and_(b.ne(remainder, 0), b.xor(b.lt(y, 0), b.lt(remainder, 0)))
    quotient = b.where(against, step(b.sub(quotient, 1)), quotient)
    floor = b.floor(quotient)
    floor = b.where(b.gt(step(b.sub(quotient, floor)), 0.5), step(b.add(floor, 1)), floor)
    plain = step(b.div(x, y))
    floor = b.where(b.eq(quotient, 0), b.copysign(b.like(0, plain), plain), floor)
    return b.where(b.eq(y, 0), plain, floor)


def fmod_of(x: Node, y: Node) -> Node:
    """The remainder of x / y with the sign of x; floats exactly."""
    return b.rem(x, y)


@lower(aten.fmod.Tensor, aten.fmod.Scalar)
def fmod(self: Operand, other: Operand) -> Lowered:
    dtype = result_type(self, other)
    if dtype is BOOL:
        return NotImplemented
    x, y = operands(self, other)
    return rounded(fmod_of(x, y), dtype) if dtype.is_float else _integer_remainder(x, y)


@lower(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)
def remainder(self: Operand, other: Operand) -> Lowered:
    """The remainder with the sign of the divisor (Python's %)."""
    dtype = result_type(self, other)
    if dtype is BOOL:
        return NotImplemented
    x, y = operands(self, other)
    left = fmod_of(x, y) if dtype.is_float else _integer_remainder(x, y)
    if dtype.kind == "uint" or left is NotImplemented:
        return left
    against = b.and_(b.ne(left, 0), b.xor(b.lt(y, 0), b.lt(left, 0)))
    return rounded(b.where(against, b.add(left, y), left), dtype)


# ---------------------------------------------------------------------------------------------- powers
@lower(aten.pow.Tensor_Scalar)
def pow_tensor_scalar(self: Node, exponent: Number) -> Lowered:
    """Eager's special cases of the exponent: 0.5, 2, 3, -0.5, -1, -2 are products, roots (not of float16) and quotients."""
    dtype = result_type(self, exponent)
    if not fits(exponent, dtype):
        return NotImplemented
    (x,) = operands(self, common=dtype)
    if exponent == 0:
        return b.const(1, dtype, self.shape)
    if exponent == 1:
        return rounded(x, dtype)
    if not dtype.is_float:
        return _integer_power(x, int(exponent)) if dtype is not BOOL and exponent > 0 else NotImplemented
    special: dict[float, Callable[[], Node]] = {
        0.5: lambda: b.sqrt(x),
        2.0: lambda: b.mul(x, x),
        3.0: lambda: b.mul(b.mul(x, x), x),
        -0.5: lambda: reciprocal_of(b.sqrt(x)),
        -1.0: lambda: reciprocal_of(x),
        -2.0: lambda: reciprocal_of(b.mul(x, x)),
    }
    if float(exponent) in special and (dtype is not FLOAT16 or float(exponent).is_integer()):
        return rounded(special[float(exponent)](), dtype)
    return rounded(b.pow_(x, operands(self, exponent, common=dtype)[1]), dtype)


def _integer_power(x: Node, exponent: int) -> Node:
    """By squaring; wraps around like every product."""
    power: Node | None = None
    while exponent:
        if exponent & 1:
            power = x if power is None else b.mul(power, x)
        exponent >>= 1
        if exponent:
            x = b.mul(x, x)
    assert power is not None
    return power


@lower(aten.pow.Scalar)
def pow_scalar(self: Number, exponent: Node) -> Lowered:
    """number ** tensor: 1 is 1 whatever the exponent."""
    dtype = result_type(self, exponent)
    if self == 1:
        return b.const(1, dtype, exponent.shape)
    return pow_tensor_tensor(self, exponent)


@lower(aten.pow.Tensor_Tensor)
def pow_tensor_tensor(self: Operand, exponent: Operand) -> Lowered:
    dtype = result_type(self, exponent)
    x, y = operands(self, exponent, common=dtype)
    if dtype.is_float:
        return rounded(b.pow_(x, y), dtype)
    return NotImplemented if dtype is BOOL else _integer_powers(x, y)


def _integer_powers(x: Node, y: Node) -> Node:
    """By squaring over all bits of the exponent; a negative one gives 0 but for the bases 1 and -1."""
    power, square = b.like(1, x), x
    for bit in range(x.dtype.bits - (x.dtype.kind == "int")):
        odd = b.ne(b.and_(b.shr(y, bit), b.like(1, y)), 0)
        power = b.where(odd, b.mul(power, square), power)
        square = b.mul(square, square)
    if x.dtype.kind == "uint":
        return power
    one = b.like(1, x)
    alternating = b.where(b.ne(b.and_(y, one), 0), b.like(-1, x), one)
    negative = b.where(b.eq(x, 1), one, b.where(b.eq(x, -1), alternating, b.like(0, x)))
    return b.where(b.lt(y, 0), negative, power)


@lower(aten.ldexp.Tensor)
def ldexp(self: Node, other: Node) -> Lowered:
    """x * 2^y, in eager's two steps."""
    power = pow_scalar(2.0, other)
    return power if power is NotImplemented else mul(self, power)


# ---------------------------------------------------------------------------------------------- functions of two arguments
def _float_function_2(build: Callable[[Node, Node], Node]) -> Callable[[Operand, Operand], Node]:
    def row(self: Operand, other: Operand) -> Node:
        dtype = float_type(result_type(self, other))
        x, y = operands(self, other, kind="float")
        return rounded(build(x, y), dtype)

    return row


lower(aten.atan2.default)(_float_function_2(b.atan2))
lower(aten.hypot.default, floats=True)(_float_function_2(b.hypot))
lower(aten.copysign.Tensor, aten.copysign.Scalar)(_float_function_2(b.copysign))


def _log_add(exponential: Callable[[Node], Node], scale: float | None) -> Callable[[Node, Node], Node]:
    def build(x: Node, y: Node) -> Node:
        greater = b.maximum(x, y)
        correction = b.log1p(exponential(b.neg(b.abs_(b.sub(x, y)))))
        total = b.add(greater, correction) if scale is None else b.fma(correction, b.like(scale, x), greater)
        return b.where(b.and_(b.eq(x, y), b.eq(b.abs_(x), math.inf)), x, total)

    return build


lower(aten.logaddexp.default, floats=True)(_float_function_2(_log_add(b.exp, None)))
lower(aten.logaddexp2.default, floats=True)(_float_function_2(_log_add(b.exp2, 1 / math.log(2))))


def _times_log(logarithm: Callable[[Node], Node]) -> Callable[[Operand, Operand], Node]:
    def row(self: Operand, other: Operand) -> Node:
        """x * log(y), 0 where x is 0, nan where y is nan."""
        dtype = float_type(result_type(self, other))
        x, y = operands(self, other, kind="float")
        product = b.mul(x, each_rounded(logarithm(y), dtype))
        return rounded(b.where(b.ne(y, y), b.like(math.nan, x), b.where(b.eq(x, 0), b.like(0, x), product)), dtype)

    return row


lower(aten.xlogy.Tensor, aten.xlogy.Scalar_Self, aten.xlogy.Scalar_Other)(_times_log(b.log))
lower(aten.special_xlog1py.default, aten.special_xlog1py.self_scalar, aten.special_xlog1py.other_scalar)(_times_log(b.log1p))


@lower(aten.nextafter.default)
def nextafter(self: Node, other: Node) -> Lowered:
    """The neighbour of x towards y, by adding one to its bits: float bits grow with the magnitude."""
    dtype = result_type(self, other)
    if not dtype.is_float:
        return NotImplemented
    integer = DTYPES[f"int{dtype.bits}"]
    shape = broadcast_shape(self.shape, other.shape)
    x, y = (b.broadcast_to(b.cast(n, dtype), shape) for n in (self, other))
    wide_x, wide_y = operands(x, y)
    bits = b.bitcast(x, integer)
    outward = b.eq(b.gt(wide_y, wide_x), b.gt(wide_x, 0))
    moved = b.where(outward, b.add(bits, 1), b.sub(bits, 1))
    least = b.or_(b.and_(b.bitcast(y, integer), b.const(integer.min, integer, shape)), b.const(1, integer, shape))
    moved = b.where(b.eq(wide_x, 0), least, moved)
    there = b.where(b.eq(wide_x, wide_y), y, b.bitcast(moved, dtype))
    unordered = b.or_(b.ne(wide_x, wide_x), b.ne(wide_y, wide_y))
    return b.where(unordered, b.const(math.nan, dtype, shape), there)


@lower(aten.heaviside.default)
def heaviside(self: Node, values: Node) -> Node:
    """values where x is 0, else 1 for x > 0 and 0 otherwise."""
    dtype = result_type(self, values)
    x, v = operands(self, values)
    if dtype is BOOL:
        return b.or_(x, v)
    return rounded(b.where(b.eq(x, 0), v, b.where(b.gt(x, 0), b.like(1, x), b.like(0, x))), dtype)


def _extreme(build: Callable[[Node, Node], Node], logical: Callable[[Node, Node], Node]) -> Callable[[Node, Node], Node]:
    def row(self: Node, other: Node) -> Node:
        dtype = result_type(self, other)
        x, y = operands(self, other)
        return logical(x, y) if dtype is BOOL else rounded(build(x, y), dtype)

    return row


def _number_wins(build: Callable[[Node, Node], Node], extreme: Callable[[Node, Node], Node]) -> Callable[[Node, Node], Node]:
    """fmax and fmin: a nan counts as missing; of equal ones (0.0 and -0.0) the first, but the second of bfloat16."""

    def row(self: Node, other: Node) -> Node:
        dtype = result_type(self, other)
        x, y = operands(self, other)
        if not dtype.is_float:
            return extreme(self, other)
        chosen = build(x, y) if dtype is BFLOAT16 else build(y, x)
        return rounded(b.where(b.ne(x, x), y, b.where(b.ne(y, y), x, chosen)), dtype)

    return row


_maximum = lower(aten.maximum.default)(_extreme(b.maximum, b.or_))
_minimum = lower(aten.minimum.default)(_extreme(b.minimum, b.and_))
lower(aten.fmax.default)(_number_wins(b.maximum, _maximum))
lower(aten.fmin.default)(_number_wins(b.minimum, _minimum))
