"""float32 mathematics: exp and what is made of it.

exp and sigmoid stay in float32 with compensated sums; the others go through float64.  Functions named `_wide` take and give float64, right to
2^-28 or better.
"""

from __future__ import annotations

import math

from thermit.codegen import coefficients as c
from thermit.codegen.arithmetic import (
    at_least,
    at_most,
    fast_two_sum,
    magic,
    narrow,
    polynomial,
    power_of_two,
    round_with,
    wide,
)
from thermit.ir.build import abs_, add, copysign, div, eq, fma, gt, like, lt, mul, neg, sub, where
from thermit.ir.node import Node
from thermit.ir.types import FLOAT32

LOG2_E = 1 / math.log(2)
LN2, LN2_REST = 0.6931471824645996, -1.904654299957768e-09  # ln 2 in float32, and the rest
EXP_LEAST, EXP_MOST = -104.0, 89.0  # beyond: 0 and inf in float32


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
