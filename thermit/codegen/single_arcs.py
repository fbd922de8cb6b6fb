"""float32 inverse circular functions: atan in float32, the others by way of float64."""

from __future__ import annotations

import math

from thermit.codegen import coefficients as c
from thermit.codegen.arithmetic import at_least, at_most, bits, from_bits, in_fours, narrow, paired, polynomial, wide, with_sign_of
from thermit.ir.build import abs_, add, copysign, div, fma, gt, like, lt, mul, ne, neg, or_, sqrt, sub, where, xor
from thermit.ir.node import Node

FAR = 2.0**1000  # takes the place of infinity and, inverted, of 0 where float32 numbers are divided in float64
HALF_PI_HIGH, HALF_PI_LOW = 1.5707963705062866, -4.371139000186241e-08  # pi / 2 in float32, and the rest


def atan2(y: Node, x: Node) -> Node:
    """The angle of the point (x, y): quarters of a turn and atan of the smaller coordinate by the larger, turned back in two octants of four."""
    a, b = abs_(x), abs_(y)
    steep, negative = gt(b, a), lt(bits(x), 0)
    smaller, larger = where(steep, a, b), where(steep, b, a)
    above = wide(where(xor(steep, negative), neg(smaller), smaller))
    # 0 / 0 is the angle 0, inf / inf 45 degrees
    q = div(at_least(at_most(above, FAR), -FAR), at_least(at_most(wide(larger), FAR), 1 / FAR))
    quarters = where(steep, like(1.0, x), where(negative, like(2.0, x), like(0.0, x)))
    angle = fma(wide(quarters), like(math.pi / 2, q), mul(q, in_fours(mul(q, q), c.ATAN_SHORT)))
    return where(or_(ne(x, x), ne(y, y)), like(math.nan, x), with_sign_of(y, narrow(angle)))


def atan(x: Node) -> Node:
    """atan q or pi / 2 - atan q, where q is |x| or 1 / |x|: 7/8 q is added to the base exactly, as a pair, and the rest, q p(q^2), is small."""
    size = at_most(abs_(x), 2.0**100)
    steep = gt(size, 1.0)
    above, below = at_most(size, 1.0), at_least(size, 1.0)
    q = div(above, below)
    left = fma(neg(q), below, above)  # what the division left
    zero = like(0.0, x)
    signed = from_bits(xor(bits(q), bits(where(steep, like(-0.0, x), zero))))
    base = where(steep, like(HALF_PI_HIGH, x), zero)
    top = fma(signed, like(0.875, x), base)
    rest = add(fma(signed, like(0.875, x), sub(base, top)), where(steep, like(HALF_PI_LOW, x), zero))
    rest = fma(left, mul(signed, 0.5), rest)  # 1 / below is q, and the slope of atan 1/2 where this counts
    return with_sign_of(x, add(top, fma(signed, paired(mul(q, q), c.ATAN_SINGLE), rest)))


def _arc(x: Node) -> tuple[Node, Node, Node]:
    """|x|, whether it is above 1/2, and asin of it, or (above) half of acos of it."""
    w = wide(abs_(x))
    above = gt(w, 0.5)
    z = where(above, mul(sub(like(1.0, w), w), 0.5), mul(w, w))
    return w, above, mul(where(above, sqrt(z), w), polynomial(z, c.ASIN_SHORT))


def asin(x: Node) -> Node:
    w, above, arc = _arc(x)
    return copysign(narrow(where(above, fma(arc, like(-2.0, w), like(math.pi / 2, w)), arc)), x)


def acos(x: Node) -> Node:
    w, above, arc = _arc(x)
    negative = lt(wide(x), 0.0)
    arc = where(above, add(arc, arc), sub(like(math.pi / 2, w), arc))  # acos |x|
    return narrow(where(negative, sub(like(math.pi, w), arc), arc))
