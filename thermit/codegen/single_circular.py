"""float32 mathematics: sin, cos, tan.

sin and cos stay in float32 with compensated sums; tan goes through float64.  Arguments beyond LARGE (tan: HUGE) are the C library's.
"""

from __future__ import annotations

import math

from thermit.codegen import coefficients as c
from thermit.codegen.arithmetic import bits, is_odd, narrow, negate_if_odd, polynomial, round_with, wide
from thermit.ir.build import abs_, add, div, eq, fma, ge, like, mul, neg, seldom, sub, where
from thermit.ir.node import Node

PI_LOW = 1.2246467991473532e-16  # pi - math.pi
PI_PARTS = (3.1415927410125732, -8.742277657347586e-08, -3.4302490200117637e-15)  # pi to 77 bits, each part a float32
HUGE = 2.0**40  # where a reduction with two constants of float64 stops being exact
LARGE = 2.0**17  # where the reduction of sin and cos in float32 leaves more than the polynomial covers


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
