"""float32 mathematics: exp and what is made of it.

All stay in float32 and fill whole vectors.  What decides about their speed is the number of operations times the length of the longest chain
of them: polynomials are summed in pairs, powers of two are made of integers beside them, and only what one unit needs is compensated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from thermit.codegen import coefficients as c
from thermit.codegen.arithmetic import (
    Pair,
    at_least,
    at_most,
    bits,
    fast_two_sum,
    from_bits,
    integer,
    magic,
    paired,
    polynomial,
    power_of_two,
    powers_of_two,
    round_with,
    with_sign_of,
)
from thermit.ir.build import abs_, add, div, fma, like, lt, maximum, mul, neg, sub, where
from thermit.ir.node import Node
from thermit.ir.types import FLOAT32

LOG2_E = 1 / math.log(2)
LN2, LN2_REST = 0.6931471824645996, -1.904654299957768e-09  # ln 2 in float32, and the rest
LINE = (1.0302, 1.0201)  # LINE[0] + LINE[1] r is e^r to 0.031 for |r| <= ln 2 / 2
EXP_MOST = 89.0  # beyond: inf in float32
NONE = -254.0  # both powers_of_two of it are 0, so that e^-inf, of which masked rows are full, is a product of zeros: those that underflow are slow
NEAR_INVERSE = 0x7EF311C3  # less the bits of a float: those of its inverse, to an eighth of it
TANH_CUT = 0.9  # where tanh changes from x + x^3 times a polynomial to 1 - 2 / (1 + e^2x), whose roundings are small only beyond


def _rest_of_power(r: Node, coefficients: Sequence[float], first: Node) -> Node:
    """r^2 w(r) + first: e^r - 1 if `first` is r."""
    square = mul(r, r)
    return fma(square, paired(r, coefficients, square), first)


def _reduced(x: Node, n: Node) -> Pair:
    """x = n ln 2 + r: r less the rest of ln 2, which is exact (a multiple of 2^-24 below 1/2), and what that rest adds to e^r."""
    r = fma(n, like(-LN2, x), x)
    return r, mul(n, fma(r, like(-LN2_REST * LINE[1], x), like(-LN2_REST * LINE[0], x)))


def _times_power(shifted: Node, part: Node) -> Node:
    """2^n (1 + part), also where that is denormal: `shifted` is n + magic(FLOAT32, 2 * 127)."""
    half, other = powers_of_two(shifted)
    return mul(fma(half, part, half), other)


def exp(x: Node) -> Node:
    """e^x = 2^n (1 + r q).  r is rounded: all but its error is that of the last two roundings, so that nothing else need be compensated."""
    x = at_least(at_most(x, EXP_MOST), NONE * LN2)
    n, shifted = round_with(x, LOG2_E, 2 * 127)
    r = fma(n, like(-LN2_REST, x), fma(n, like(-LN2, x), x))
    half, other = powers_of_two(shifted)
    return mul(fma(mul(half, r), polynomial(r, [1.0, *c.EXP_SINGLE]), half), other)


def exp_falling(x: Node) -> Node:
    """2^64 e^x of x <= 0: its power of two is one float, no result is denormal unless it is next to nothing, and nothing is too large."""
    x = at_least(x, -(127 + 64) * LN2)  # there power is 0, as NONE
    n, shifted = round_with(x, LOG2_E, 127 + 64)
    r = fma(n, like(-LN2_REST, x), fma(n, like(-LN2, x), x))
    power = power_of_two(shifted)
    return fma(mul(power, r), polynomial(r, [1.0, *c.EXP_SINGLE]), power)


def exp2(x: Node) -> Node:
    """2^x = 2^n 2^f, the fraction f of x being exact."""
    x = at_least(at_most(x, 129.0), NONE)
    n, shifted = round_with(x, 1.0, 2 * 127)
    f = sub(x, n)
    square = mul(f, f)
    return _times_power(shifted, fma(f, like(LN2, x), mul(square, paired(f, c.EXP2_SINGLE, square))))


def expm1(x: Node) -> Node:
    """2^n (e^r - 1) + (2^n - 1), twice the half of it for the largest n.

    n is 0 up to |x| = 1/2, so that nothing cancels: r <= -0.19 with n = 1 would make its rounding errors twice as large beside the result.
    """
    t = at_least(at_most(x, EXP_MOST), -20.0)
    small = lt(abs_(x), 0.5)
    shift = like(magic(FLOAT32, 127 - 1), x)
    shifted = where(small, shift, fma(t, like(LOG2_E, x), shift))
    r, rest = _reduced(t, sub(shifted, shift))
    square = mul(r, r)
    w = paired(r, c.EXPM1_SINGLE, square)
    part = add(r, fma(square, w, rest))
    half = power_of_two(shifted)
    less = sub(half, 0.5)
    lost = sub(sub(half, less), 0.5)  # -1/2 from n = 25 on
    total = add(less, fma(half, part, lost))
    return with_sign_of(x, where(small, fma(square, w, r), add(total, total)))  # -0 is lost on the way


def sigmoid(x: Node) -> Node:
    """1 / (1 + e^-x) as p / (p + e^r) where p = 2^n and x = n ln 2 - r: no power overflows.

    All is 2^24 times as large, so that p is a normal number.  p + 1 is exact but for what `low` holds; the quotient q is corrected by
    what it misses of p, over the sum, for which four bits are enough: sum and quotient may round as they like.
    """
    t = at_least(at_most(x, 30.0), -(127 + 24) * LN2)  # there power is 0, as NONE
    scale = 2.0**24
    n, shifted = round_with(t, LOG2_E, 127 + 24)
    r = fma(n, like(LN2_REST, x), fma(n, like(LN2, x), neg(t)))
    power = power_of_two(shifted)
    one = add(power, scale)
    low = sub(power, sub(one, scale))
    part = fma(mul(r, r), polynomial(r, [scale * k for k in c.EXP_SINGLE]), fma(r, like(scale, x), low))
    total, lost = fast_two_sum(one, part)
    q = div(power, total)
    missing = fma(neg(q), lost, fma(neg(q), total, power))
    return fma(missing, from_bits(sub(integer(NEAR_INVERSE, x), bits(total))), q)


def tanh(x: Node) -> Node:
    """|x| + |x|^3 p(x^2) near 0, 1 - 2 / (1 + e^2|x|) beyond; the rest of ln 2 does not matter, n being 26 at most."""
    u = at_most(abs_(x), 9.1)
    n, shifted = round_with(u, 2 * LOG2_E, 127)
    half = fma(n, like(-LN2 / 2, x), u)  # 2 u = n ln 2 + 2 half
    power = power_of_two(shifted)
    part = _rest_of_power(half, [k * 2.0 ** (i + 2) for i, k in enumerate(c.EXP_SINGLE)], add(half, half))
    far = sub(like(1.0, x), div(like(2.0, x), fma(power, part, add(power, 1.0))))
    square = mul(u, u)
    near = fma(mul(u, square), paired(square, c.TANH_SINGLE), u)
    return with_sign_of(x, where(lt(u, TANH_CUT), near, far))


def _hyperbolic(x: Node) -> tuple[Node, Node]:
    """Half of sinh |x| (also near 0, but there not to one unit) and half of cosh |x|.

    |x| = n ln 2 + r: sums of products of sinh r and cosh r with sinh and cosh of n ln 2, of which the largest part is added last.
    """
    u = at_most(abs_(x), 89.5)
    n, shifted = round_with(u, LOG2_E, 127 - 2)
    r, rest = _reduced(u, n)
    power = power_of_two(shifted)
    inverse = from_bits(maximum(sub(integer((2 * (127 - 2)) << 23, x), bits(power)), 0))  # 2^(-n - 2), 0 where it is too small
    cosh_n, sinh_n = add(power, inverse), sub(power, inverse)
    cosh_lost, sinh_lost = sub(inverse, sub(cosh_n, power)), sub(sub(power, sinh_n), inverse)  # where n > 11
    square = mul(r, r)
    sinh_rest = mul(mul(r, square), paired(square, c.SINH_SINGLE))  # sinh r - r
    cosh_rest = fma(square, polynomial(square, c.COSH_SINGLE), rest)  # cosh r - 1; the rest of ln 2 matters only where sinh and cosh agree
    even = fma(cosh_n, r, fma(cosh_n, sinh_rest, fma(sinh_n, cosh_rest, fma(cosh_lost, r, sinh_lost))))
    odd = fma(sinh_n, r, fma(sinh_n, sinh_rest, fma(cosh_n, cosh_rest, cosh_lost)))
    return add(sinh_n, even), add(cosh_n, odd)


def sinh(x: Node) -> Node:
    half, _ = _hyperbolic(x)
    size = abs_(x)
    square = mul(size, size)
    near = fma(mul(size, square), paired(square, c.SINH_SINGLE), size)
    return with_sign_of(x, where(lt(size, 1.0), near, add(half, half)))


def cosh(x: Node) -> Node:
    _, half = _hyperbolic(x)
    return add(half, half)


def exp_wide(x: Node) -> Node:
    """e^x of a float64, |x| < 700, to 2^-29: for formulas that need more than float32 has."""
    n, shifted = round_with(x, LOG2_E, 1023)
    r = fma(n, like(-math.log(2), x), x)
    return mul(polynomial(r, c.EXP_SHORT), power_of_two(shifted))
