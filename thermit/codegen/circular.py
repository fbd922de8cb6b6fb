"""float64 mathematics: sin, cos, tan, their inverses, erf and erfc.

Angles are reduced to |r| <= pi / 4 with r as a pair; beyond HUGE the C library does it.
"""

from __future__ import annotations

import math

from thermit.codegen import coefficients as c
from thermit.codegen.arithmetic import (
    Pair,
    at_least,
    at_most,
    bits,
    fast_two_sum,
    from_bits,
    integer,
    is_odd,
    magic,
    pair_over,
    paired,
    polynomial,
    power_of_two,
    round_with,
    two_product,
    two_sum,
)
from thermit.codegen.double import exponential
from thermit.ir.build import abs_, add, and_, copysign, div, eq, fma, ge, gt, like, lt, mul, ne, neg, or_, seldom, shl, sqrt, sub, where, xor
from thermit.ir.node import Node
from thermit.ir.types import FLOAT64

HUGE = 2.0**40
HALF_PI = math.pi / 2
HALF_PI_1, HALF_PI_2 = 6.123233995736766e-17, -1.4973849048591833e-33  # pi / 2 = HALF_PI + HALF_PI_1 + HALF_PI_2 + ...
TAN_EIGHTH = 0.41421356237309503  # tan(pi / 8)


# ---------------------------------------------------------------------------------------------- sin
def _reduced(x: Node) -> tuple[Node, Node, Node]:
    """x = (r + low) + n pi / 2 with |r| <= pi / 4, |x| < HUGE: r, low, and the low bits of n."""
    n, shifted = round_with(x, 1 / HALF_PI)
    # exact: what is left of x after n * HALF_PI is a multiple of 2^-52 below 2
    first = fma(n, like(-HALF_PI, x), x)
    product, error = two_product(n, like(HALF_PI_1, x))
    r, low = two_sum(first, neg(product))
    r, low = fast_two_sum(r, fma(n, like(-HALF_PI_2, x), sub(low, error)))
    return r, low, bits(shifted)


def _sine(r: Node, low: Node, z: Node) -> Node:
    """sin(r + low)."""
    return add(r, fma(mul(z, r), polynomial(z, c.SIN), fma(mul(z, low), like(-0.5, r), low)))


def _cosine(r: Node, low: Node, z: Node) -> Node:
    """cos(r + low)."""
    one, rest = fast_two_sum(like(1.0, r), mul(z, -0.5))
    return add(one, fma(mul(z, z), polynomial(z, c.COS), fma(neg(r), low, rest)))


def _turned(s: Node, t: Node, n: Node) -> Node:
    """sin(r + n pi / 2) from s = sin r, t = cos r."""
    flip = shl(and_(n, 2), integer(62, n))
    return from_bits(xor(bits(where(is_odd(n), t, s)), flip))


def sin(x: Node) -> Node:
    r, low, n = _reduced(x)
    z = mul(r, r)
    usual = _turned(_sine(r, low, z), _cosine(r, low, z), n)
    return seldom(ge(abs_(x), HUGE), x, where(eq(x, 0.0), x, usual), "sin")


def cos(x: Node) -> Node:
    r, low, n = _reduced(x)
    z = mul(r, r)
    usual = _turned(_sine(r, low, z), _cosine(r, low, z), add(n, 1))
    return seldom(ge(abs_(x), HUGE), x, usual, "cos")


def _sine_pair(r: Node, low: Node, z: Node) -> Pair:
    return fast_two_sum(r, fma(mul(z, r), polynomial(z, c.SIN), fma(mul(z, low), like(-0.5, r), low)))


def _cosine_pair(r: Node, low: Node, z: Node) -> Pair:
    one, rest = fast_two_sum(like(1.0, r), mul(z, -0.5))
    error = fma(r, r, neg(z))
    rest = fma(error, like(-0.5, r), fma(neg(r), low, rest))
    return fast_two_sum(one, fma(mul(z, z), polynomial(z, c.COS), rest))


def tan(x: Node) -> Node:
    """sin / cos, or - cos / sin, as pairs."""
    r, low, n = _reduced(x)
    z = mul(r, r)
    s, t, odd = _sine_pair(r, low, z), _cosine_pair(r, low, z), is_odd(n)
    over = (where(odd, t[0], s[0]), where(odd, t[1], s[1]))
    under = (where(odd, neg(s[0]), t[0]), where(odd, neg(s[1]), t[1]))
    top, rest = pair_over(over, under)
    return seldom(ge(abs_(x), HUGE), x, where(lt(abs_(x), 2.0**-27), x, add(top, rest)), "tan")


# ---------------------------------------------------------------------------------------------- arcs
def _angle(b: Node, a: Node) -> Pair:
    """atan(b / a), 0 <= b <= a, as a pair; b / a below 2^-900 is not to be had with more than its own 53 bits."""
    upper = gt(b, mul(a, TAN_EIGHTH))
    over, under = two_sum(b, neg(a)), two_sum(b, a)
    zero = like(0.0, a)
    num = (where(upper, over[0], b), where(upper, over[1], zero))
    den = (where(upper, under[0], a), where(upper, under[1], zero))
    t = div(num[0], den[0])
    rest = add(fma(neg(t), den[0], num[0]), fma(neg(t), den[1], num[1]))
    rest = where(lt(abs_(t), 2.0**-900), zero, div(rest, den[0]))
    z = mul(t, t)
    tail = fma(mul(z, t), paired(z, c.ATAN), fma(neg(rest), z, rest))
    high, low = fast_two_sum(where(upper, like(math.pi / 4, a), zero), t)
    high, low = where(upper, high, t), where(upper, add(low, HALF_PI_1 / 2), zero)
    return fast_two_sum(high, add(low, tail))


def _from_half_pi(angle: Pair) -> Pair:
    """pi / 2 - angle."""
    high, low = fast_two_sum(like(HALF_PI, angle[0]), neg(angle[0]))
    return high, add(low, sub(like(HALF_PI_1, angle[1]), angle[1]))


def _choose(condition: Node, x: Pair, y: Pair) -> Pair:
    return where(condition, x[0], y[0]), where(condition, x[1], y[1])


def atan(x: Node) -> Node:
    size = at_most(abs_(x), 2.0**70)
    steep, one = gt(size, 1.0), like(1.0, x)
    angle = _angle(where(steep, one, size), where(steep, size, one))
    top, rest = _choose(steep, _from_half_pi(angle), angle)
    return copysign(where(lt(size, 2.0**-28), size, add(top, rest)), x)


def atan2(y: Node, x: Node) -> Node:
    """The angle of the point (x, y)."""
    a, b = abs_(x), abs_(y)
    steep = gt(b, a)
    big, small = where(steep, b, a), where(steep, a, b)
    # scaled so that sums do not overflow and remainders of the division do not vanish
    scale = where(gt(big, 2.0**1000), like(2.0**-100, x), where(lt(big, 2.0**-800), like(2.0**200, x), like(1.0, x)))
    big, small = mul(big, scale), mul(small, scale)
    # 0 / 0 is the angle 0, inf / inf 45 degrees, anything / inf 0
    infinite, zero, one = eq(big, math.inf), like(0.0, x), like(1.0, x)
    small = where(infinite, where(eq(small, math.inf), one, zero), small)
    big = where(or_(infinite, eq(big, 0.0)), one, big)
    angle = _angle(small, big)
    angle = _choose(steep, _from_half_pi(angle), angle)
    high, low = fast_two_sum(like(math.pi, x), neg(angle[0]))
    back = (high, add(low, sub(like(2 * HALF_PI_1, x), angle[1])))
    top, rest = _choose(lt(copysign(one, x), 0.0), back, angle)
    return where(or_(ne(x, x), ne(y, y)), like(math.nan, x), copysign(add(top, rest), y))


def _arc(x: Node) -> tuple[Node, Pair]:
    """Whether |x| is above 1/2, and asin of |x|, or (above) half of acos of it, as a pair."""
    size, zero = abs_(x), like(0.0, x)
    above = gt(size, 0.5)
    z = where(above, mul(sub(like(1.0, x), size), 0.5), mul(size, size))
    root = sqrt(z)
    root_low = where(gt(root, 0.0), div(fma(neg(root), root, z), add(root, root)), zero)
    s, low = where(above, root, size), where(above, root_low, zero)
    return above, fast_two_sum(s, fma(mul(s, z), paired(z, c.ASIN), low))


def asin(x: Node) -> Node:
    above, arc = _arc(x)
    twice = (add(arc[0], arc[0]), add(arc[1], arc[1]))
    top, rest = _choose(above, _from_half_pi(twice), arc)
    return copysign(where(lt(abs_(x), 2.0**-28), abs_(x), add(top, rest)), x)


def acos(x: Node) -> Node:
    above, arc = _arc(x)
    twice = (add(arc[0], arc[0]), add(arc[1], arc[1]))
    angle = _choose(above, twice, _from_half_pi(arc))  # acos |x|
    high, low = fast_two_sum(like(math.pi, x), neg(angle[0]))
    back = (high, add(low, sub(like(2 * HALF_PI_1, x), angle[1])))
    top, rest = _choose(lt(x, 0.0), back, angle)
    return add(top, rest)


# ---------------------------------------------------------------------------------------------- erf
ERF_NEAR, ERFC_NEAR = 0.75, 0.625  # below: a polynomial of its own


def _erf_near(size: Node) -> Pair:
    """erf(size) = size + size P(size^2), size <= ERF_NEAR."""
    return fast_two_sum(size, mul(size, paired(mul(size, size), c.ERF)))


def _erfc_far(size: Node) -> tuple[Pair, Node]:
    """erfc(size) * 2^100 / scale as a pair, and scale; ERFC_NEAR <= size <= 27.5: e^(-size^2) (1 + h) / (1 + 13/8 size)."""
    square, error = two_product(size, size)
    shifted, _, high, tail = exponential(neg(square), neg(error), magic(FLOAT64, 1023 + 100))
    one, rest = fast_two_sum(like(1.0, size), high)
    power = fast_two_sum(one, add(rest, tail))
    under, under_low = two_product(size, like(13 / 8, size))
    under, lost = two_sum(under, like(1.0, size))
    top, rest = pair_over(power, (under, add(under_low, lost)))
    t = div(sub(size, 4.0), add(size, 4.0))
    return fast_two_sum(top, fma(top, paired(t, c.ERFC), rest)), power_of_two(shifted)


def _less(value: float, x: Pair, scale: Node) -> Node:
    """value - x * scale."""
    high, low = fast_two_sum(like(value, scale), mul(neg(x[0]), scale))
    return add(high, fma(neg(x[1]), scale, low))


def erf(x: Node) -> Node:
    """Beyond ERF_NEAR 1 - e^(-x^2 + Q(x)): there erfc is small, and so is what its error does."""
    size = abs_(x)
    near, rest = _erf_near(size)
    w = at_most(size, 5.95)
    square, error = two_product(w, w)
    top, low = two_sum(neg(square), paired(w, c.LOG_ERFC))
    shifted, _, high, tail = exponential(top, sub(low, error), magic(FLOAT64, 1023))
    scale = power_of_two(shifted)
    one, less = fast_two_sum(like(1.0, x), neg(scale))
    far = add(one, sub(less, mul(scale, add(high, tail))))
    return copysign(where(lt(size, ERF_NEAR), add(near, rest), far), x)


def erfc(x: Node) -> Node:
    size = abs_(x)
    far, scale = _erfc_far(at_least(at_most(size, 27.5), ERFC_NEAR))
    right = mul(mul(add(*far), scale), 2.0**-100)
    left = _less(2.0, far, mul(scale, 2.0**-100))
    negative, one = lt(x, 0.0), like(1.0, x)
    near, rest = _erf_near(size)
    middle = _less(1.0, (where(negative, neg(near), near), where(negative, neg(rest), rest)), one)
    return where(lt(size, ERFC_NEAR), middle, where(negative, left, right))
