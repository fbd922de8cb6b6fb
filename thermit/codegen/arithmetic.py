"""Building blocks of the mathematics: polynomials, exact sums and products, powers of two, selections that cost one instruction.

Every function takes and gives scalar expressions (nodes of shape ()) of float32 or float64 made of basic primitives only.
A pair (hi, lo) stands for the unevaluated sum hi + lo, hi being that sum rounded: some 48 (float32) or 106 (float64) bits.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from thermit.ir.build import add, and_, bitcast, cast, const, div, fma, gt, like, lt, mul, ne, neg, or_, shl, shr, sub, where
from thermit.ir.node import Node
from thermit.ir.types import FLOAT32, FLOAT64, INT32, INT64, UINT32, UINT64, DType

Pair = tuple[Node, Node]

INTEGER: dict[DType, DType] = {FLOAT32: INT32, FLOAT64: INT64}
FRACTION_BITS = {FLOAT32: 23, FLOAT64: 52}
BIAS = {FLOAT32: 127, FLOAT64: 1023}


def wide(x: Node) -> Node:
    return cast(x, FLOAT64)


def narrow(x: Node) -> Node:
    return cast(x, FLOAT32)


def polynomial(x: Node, coefficients: Sequence[float]) -> Node:
    """c[0] + c[1] x + ... by Horner's rule, one fma a coefficient."""
    total = like(coefficients[-1], x)
    for c in reversed(coefficients[:-1]):
        total = fma(total, x, like(c, x))
    return total


def paired(x: Node, coefficients: Sequence[float], square: Node | None = None) -> Node:
    """c[0] + c[1] x + ... as a polynomial in x^2 whose coefficients are c[0] + c[1] x and so on: half the steps one after another."""
    square = mul(x, x) if square is None else square
    total: Node | None = None
    for k in reversed(range(0, len(coefficients), 2)):
        pair = polynomial(x, coefficients[k : k + 2])
        total = pair if total is None else fma(total, square, pair)
    assert total is not None
    return total


def in_fours(x: Node, coefficients: Sequence[float]) -> Node:
    """As paired, twice: a polynomial in x^4 whose coefficients are polynomials of degree 3."""
    parts = [like(c, x) for c in coefficients]
    for _ in range(2):
        parts = [fma(parts[k + 1], x, parts[k]) if k + 1 < len(parts) else parts[k] for k in range(0, len(parts), 2)]
        x = mul(x, x)
    total = parts[-1]
    for part in reversed(parts[:-1]):
        total = fma(total, x, part)
    return total


def fast_two_sum(x: Node, y: Node) -> Pair:
    """x + y exactly, where |x| >= |y| (or x is 0)."""
    total = add(x, y)
    return total, sub(y, sub(total, x))


def two_sum(x: Node, y: Node) -> Pair:
    """x + y exactly."""
    total = add(x, y)
    part = sub(total, x)
    return total, add(sub(x, sub(total, part)), sub(y, part))


def two_product(x: Node, y: Node) -> Pair:
    """x * y exactly (unless the product is so small that its error has no float)."""
    product = mul(x, y)
    return product, fma(x, y, neg(product))


def pair_times(x: Pair, y: Pair) -> Pair:
    """x * y to some 2^-104 (float64)."""
    product, error = two_product(x[0], y[0])
    return fast_two_sum(product, fma(x[0], y[1], fma(x[1], y[0], error)))


def pair_over(x: Pair, y: Pair) -> Pair:
    """x / y to some 2^-100."""
    inverse = div(like(1.0, y[0]), y[0])
    first = mul(x[0], inverse)
    rest = add(fma(neg(first), y[0], x[0]), fma(neg(first), y[1], x[1]))
    return fast_two_sum(first, mul(rest, inverse))


def at_most(x: Node, limit: float) -> Node:
    """min(x, limit), nan where x is nan: one instruction on x86."""
    bound = like(limit, x)
    return where(lt(bound, x), bound, x)


def at_least(x: Node, limit: float) -> Node:
    """max(x, limit), nan where x is nan."""
    bound = like(limit, x)
    return where(gt(bound, x), bound, x)


def bits(x: Node) -> Node:
    """The bits of a float as a signed integer."""
    return bitcast(x, INTEGER[x.dtype])


def from_bits(x: Node) -> Node:
    return bitcast(x, FLOAT32 if x.dtype is INT32 else FLOAT64)


def integer(value: int, x: Node) -> Node:
    """A constant of the integer type as wide as the float x."""
    return const(value, INTEGER.get(x.dtype, x.dtype))


def magic(dtype: DType, low_bits: int = 0) -> float:
    """A number so large that adding it rounds to integers (ties to even) and leaves integer + low_bits in the low bits of the sum."""
    return 1.5 * 2.0 ** FRACTION_BITS[dtype] + low_bits


def power_of_two(shifted: Node) -> Node:
    """2^n, where `shifted` is n + magic(dtype, BIAS): -BIAS < n <= BIAS."""
    return from_bits(shl(bits(shifted), integer(FRACTION_BITS[shifted.dtype], shifted)))


def powers_of_two(shifted: Node) -> Pair:
    """Two powers, near the square root of 2^n, whose product is 2^n, for n beyond the range of one: `shifted` is n + magic(dtype, 2 * BIAS)."""
    places, exponents = FRACTION_BITS[shifted.dtype], ((2 * BIAS[shifted.dtype] + 1) << FRACTION_BITS[shifted.dtype])
    n = bits(shifted)
    half = and_(shl(n, integer(places - 1, shifted)), integer(exponents, shifted))
    return from_bits(half), from_bits(sub(shl(n, integer(places, shifted)), half))


def with_sign_of(x: Node, y: Node) -> Node:
    """y >= 0, negated where x is negative: one instruction less than copysign."""
    return from_bits(or_(bits(y), and_(bits(x), integer(-(1 << (x.dtype.bits - 1)), x))))


def is_odd(n: Node) -> Node:
    return ne(and_(n, 1), 0)


def round_with(x: Node, factor: float, low_bits: int = 0, minus_half: bool = False) -> Pair:
    """The integer n nearest to x * factor (- 1/2) as a float, and n + magic: its low bits are n + low_bits."""
    shift = magic(x.dtype, low_bits)
    shifted = add(fma(x, like(factor, x), like(-0.5, x)), shift) if minus_half else fma(x, like(factor, x), like(shift, x))
    return sub(shifted, shift), shifted


def split_exponent(x: Node, least: float) -> Pair:
    """x = m * 2^n, x normal and positive: n as a float, m from `least` (0.5 to 1) up to 2 * least."""
    kind, fraction, bias = x.dtype, FRACTION_BITS[x.dtype], BIAS[x.dtype]
    unsigned = UINT32 if kind is FLOAT32 else UINT64
    offset = bits_of(least, kind)
    mask = (1 << fraction) - 1
    distance = add(bitcast(x, unsigned), const((bias << fraction) - offset, unsigned))
    m = bitcast(add(and_(distance, const(mask, unsigned)), const(offset, unsigned)), kind)
    # an integer below 2^fraction in the low bits of 2^fraction: conversion by a subtraction
    n = bitcast(or_(shr(distance, const(fraction, unsigned)), const((bias + fraction) << fraction, unsigned)), kind)
    return sub(n, 2.0**fraction + bias), m


def bits_of(value: float, dtype: DType) -> int:
    """The bits of a constant as an unsigned integer."""
    return int.from_bytes(struct.pack("<f" if dtype is FLOAT32 else "<d", value), "little")
