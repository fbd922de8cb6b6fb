"""float32 mathematics: sin, cos, tan.

sin and cos stay in float32: the argument less a multiple of pi / 2 as a pair, the sine and the cosine of that, the one that is wanted.  tan goes
through float64.  Arguments beyond LARGE (tan: HUGE) are the C library's.
"""

from __future__ import annotations

import math

from thermit.codegen import coefficients as c
from thermit.codegen.arithmetic import bits, from_bits, integer, is_odd, narrow, polynomial, round_with, wide
from thermit.ir.build import abs_, and_, div, eq, fma, ge, like, lt, mul, neg, seldom, shl, sub, where, xor
from thermit.ir.node import Node

PI_LOW = 1.2246467991473532e-16  # pi - math.pi
# pi / 2 to 76 bits, each part a float32; the first two positive, so that sin(-0) is -0
HALF_PI_PARTS = (1.570796251296997, 7.549790126404332e-08, -1.7151245100058819e-15)
HUGE = 2.0**40  # where a reduction with two constants of float64 stops being exact
LARGE = 2.0**17  # where the reduction in float32 leaves more than the polynomials cover


def _turned(x: Node, quarters: int, function: str) -> Node:
    """sin(x + quarters pi / 2), known to the C library as `function`."""
    first, second, third = HALF_PI_PARTS
    n, shifted = round_with(x, 2 / math.pi, quarters)
    high = fma(n, like(-first, x), x)  # exact: a multiple of the last place of `first` or x, below 1
    r = sub(high, mul(n, second))
    low = fma(n, like(third, x), fma(n, like(second, x), sub(r, high)))  # x = n pi / 2 + r - low
    square = mul(r, r)
    sine = sub(r, fma(mul(square, r), polynomial(square, c.SIN_SINGLE), low))
    cosine = fma(r, fma(r, polynomial(square, c.COS_SINGLE), low), like(1.0, x))
    turns = bits(shifted)
    sign = and_(shl(turns, 30), integer(-(1 << 31), x))
    usual = from_bits(xor(bits(where(lt(shl(turns, 31), 0), cosine, sine)), sign))
    return seldom(ge(abs_(x), LARGE), x, usual, function)


def sin(x: Node) -> Node:
    """sin x to 0.87 ulp."""
    return _turned(x, 0, "sin")


def cos(x: Node) -> Node:
    """cos x to 0.87 ulp."""
    return _turned(x, 1, "cos")


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
