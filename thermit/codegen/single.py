"""float32 mathematics.

exp, log, sin, cos, sigmoid and erf stay in float32 with compensated sums, so they fill whole vectors.  The others go through float64, where a plain
formula with a short polynomial is right to 2^-28 or better before the one rounding at the end: half the lanes, but no
compensation, no overflow and no denormals on the way.  Functions named `_wide` take and give float64 of that accuracy.
"""

from __future__ import annotations

import math

from thermit.codegen import coefficients as c
from thermit.codegen.arithmetic import (
    at_least,
    at_most,
    bits,
    fast_two_sum,
    is_odd,
    magic,
    negate_if_odd,
    polynomial,
    power_of_two,
    round_with,
)
from thermit.ir.build import (
    abs_,
    add,
    cast,
    copysign,
    div,
    eq,
    fma,
    ge,
    gt,
    like,
    lt,
    mul,
    neg,
    seldom,
    sub,
    where,
)
from thermit.ir.node import Node
from thermit.ir.types import FLOAT32, FLOAT64

LOG2_E = 1 / math.log(2)
LN2, LN2_REST = 0.6931471824645996, -1.904654299957768e-09  # ln 2 in float32, and the rest
PI_LOW = 1.2246467991473532e-16  # pi - math.pi
PI_PARTS = (3.1415927410125732, -8.742277657347586e-08, -3.4302490200117637e-15)  # pi to 77 bits, each part a float32
EXP_LEAST, EXP_MOST = -104.0, 89.0  # beyond: 0 and inf in float32
HUGE = 2.0**40  # where a reduction with two constants of float64 stops being exact
LARGE = 2.0**17  # where the reduction of sin and cos in float32 leaves more than the polynomial covers


def wide(x: Node) -> Node:
    return cast(x, FLOAT64)


def narrow(x: Node) -> Node:
    return cast(x, FLOAT32)


# ---------------------------------------------------------------------------------------------- exp
def exp(x: Node) -> Node:
    """e^x to 0.61 ulp (0.77 where the result is denormal)."""
    x = at_least(at_most(x, EXP_MOST), EXP_LEAST)
    # 2^n reaches from 2^-150 to 2^128: it is applied as 2^(n + 100) * 2^-100, or 2^(n - 1) * 2, so that only the last product leaves the range
    negative = lt(x, 0.0)
    shift = where(negative, like(magic(FLOAT32, 127 + 100), x), like(magic(FLOAT32, 127 - 1), x))
    shifted = fma(x, like(LOG2_E, x), shift)
    n = sub(shifted, shift)
    high = fma(n, like(-LN2, x), x)  # exact: a multiple of 2^-24 below 1/2
    low = mul(n, -LN2_REST)
    one, rest = fast_two_sum(like(1.0, x), high)
    tail = fma(mul(high, high), polynomial(high, c.EXP_SINGLE), rest)
    power = add(one, fma(low, add(one, tail), tail))
    return mul(mul(power, power_of_two(shifted)), where(negative, like(2.0**-100, x), like(2.0, x)))


def exp_wide(x: Node) -> Node:
    """e^x, |x| < 700."""
    n, shifted = round_with(x, LOG2_E, 1023)
    r = fma(n, like(-math.log(2), x), x)
    return mul(polynomial(r, c.EXP_SHORT), power_of_two(shifted))


def expm1_wide(x: Node) -> Node:
    """e^x - 1, small relative error also near 0, |x| < 700."""
    n, shifted = round_with(x, LOG2_E, 1023)
    r = fma(n, like(-math.log(2), x), x)
    scale = power_of_two(shifted)
    return fma(scale, mul(r, polynomial(r, c.EXPM1_SHORT)), sub(scale, 1.0))


def exp2_wide(x: Node) -> Node:
    """2^x, |x| < 1000."""
    n, shifted = round_with(x, 1.0, 1023)
    return mul(polynomial(sub(x, n), c.EXP2_SHORT), power_of_two(shifted))


def exp2(x: Node) -> Node:
    return narrow(exp2_wide(wide(at_least(at_most(x, 129.0), -151.0))))


def expm1(x: Node) -> Node:
    return where(eq(x, 0.0), x, narrow(expm1_wide(wide(at_least(at_most(x, EXP_MOST), -30.0)))))


def sigmoid(x: Node) -> Node:
    """1 / (1 + e^-x) as c / (c + e^-r) where c = 2^n and x = n ln 2 + r: no power overflows."""
    t = at_least(at_most(x, 30.0), EXP_LEAST)
    n, shifted = round_with(t, LOG2_E, 127 + 24)
    r = fma(n, like(LN2_REST, x), fma(n, like(LN2, x), neg(t)))
    power = mul(power_of_two(shifted), 2.0**-24)
    part = polynomial(r, c.EXPM1_SINGLE)
    e = fma(r, part, like(1.0, x))
    e_low = fma(r, part, sub(like(1.0, x), e))
    above = gt(power, e)
    total, low = fast_two_sum(where(above, power, e), where(above, e, power))
    inverse = div(like(1.0, x), total)
    missing = fma(neg(inverse), add(low, e_low), fma(neg(inverse), total, like(1.0, x)))
    return mul(fma(missing, inverse, inverse), power)


def tanh(x: Node) -> Node:
    w = wide(at_least(at_most(x, 10.0), -10.0))
    e = expm1_wide(add(w, w))
    return where(eq(x, 0.0), x, narrow(div(e, add(e, 2.0))))


def sinh(x: Node) -> Node:
    e = expm1_wide(wide(at_most(abs_(x), 91.0)))
    return copysign(narrow(mul(add(e, div(e, add(e, 1.0))), 0.5)), x)


def cosh(x: Node) -> Node:
    e = exp_wide(wide(at_most(abs_(x), 91.0)))
    return narrow(mul(add(e, div(like(1.0, e), e)), 0.5))


# ---------------------------------------------------------------------------------------------- sin
def _sine_of_turned(x: Node, n: Node, parity: Node, half: bool) -> Node:
    """sin(x - n pi), negated where `parity` is odd; |x - n pi| < 1.58, |x| < LARGE; n is an integer, or one and a half."""
    first, second, third = (like(-part, x) for part in PI_PARTS)
    high = fma(n, first, x)  # exact where |x| > 1 or n is 0: a multiple of the last place of `first` or x, below 2
    step = mul(n, second)
    step_low = fma(n, third, fma(n, second, neg(step)))
    if half:
        step_low = add(step_low, sub(x, fma(n, neg(first), high)))
    r = add(high, step)
    low = add(sub(step, sub(r, high)), step_low)
    return negate_if_odd(_sine(r, low), parity)


def _sine(r: Node, low: Node) -> Node:
    """sin(r + low), low a rounding error of r: 3/4 r + r (p(t) - t / 8) + low cos(r), of which only the first rounds to much."""
    t = fma(r, r, like(-1.5, r))
    cosine = fma(t, like(-0.405, r), like(0.3925, r))  # to 0.06, 1 where r is 0
    rest = fma(t, like(-0.125, r), polynomial(t, c.SIN_SINGLE))
    return fma(r, like(0.75, r), fma(r, rest, mul(low, cosine)))


def sin(x: Node) -> Node:
    n, shifted = round_with(x, 1 / math.pi)
    usual = _sine_of_turned(x, n, bits(shifted), half=False)
    return seldom(ge(abs_(x), LARGE), x, where(eq(x, 0.0), x, usual), "sin")


def cos(x: Node) -> Node:
    """cos(r + n pi + pi / 2) is -sin(r) for even n."""
    n, shifted = round_with(x, 1 / math.pi, 1, minus_half=True)
    return seldom(ge(abs_(x), LARGE), x, _sine_of_turned(x, add(n, 0.5), bits(shifted), half=True), "cos")


def _tangent(r: Node, n: Node) -> Node:
    """tan(r + n pi / 2)."""
    z = mul(r, r)
    s, t = mul(r, polynomial(z, c.SIN_QUARTER_SHORT)), polynomial(z, c.COS_QUARTER_SHORT)
    odd = is_odd(n)
    return div(where(odd, t, s), where(odd, neg(s), t))


def tan(x: Node) -> Node:
    w = wide(x)
    n, shifted = round_with(w, 2 / math.pi)
    r = fma(n, like(-math.pi / 2, w), w)
    usual = narrow(_tangent(fma(n, like(-PI_LOW / 2, w), r), bits(shifted)))
    return where(eq(x, 0.0), x, seldom(ge(abs_(x), HUGE), x, usual, "tan"))
