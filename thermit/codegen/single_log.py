"""float32 logarithms and the inverse hyperbolic functions, which are logarithms."""

from __future__ import annotations

import math

from thermit.codegen import coefficients as c
from thermit.codegen.arithmetic import Pair, fast_two_sum, narrow, polynomial, split_exponent, wide
from thermit.codegen.ends import log_ends
from thermit.ir.build import abs_, add, copysign, div, eq, fma, ge, gt, like, lt, mul, neg, or_, sqrt, sub, where
from thermit.ir.node import Node

LOG2_E = 1 / math.log(2)
LN2_HIGH = 0.693145751953125  # 16 bits of ln 2: its products with the exponents of float32 are exact
LN2_LOW = 1.428606820309417e-06  # ln 2 - LN2_HIGH


def normal(x: Node) -> Pair:
    """x as a normal number times 2^shift."""
    tiny = lt(x, 2.0**-126)
    return where(tiny, mul(x, 2.0**23), x), where(tiny, like(-23.0, x), like(0.0, x))


def log(x: Node) -> Node:
    """ln x to 0.62 ulp."""
    scaled, shift = normal(x)
    n, m = split_exponent(scaled, math.sqrt(0.5))
    n, f = add(n, shift), sub(m, 1.0)
    high, low = fast_two_sum(mul(n, LN2_HIGH), f)
    square = mul(f, f)
    error = fma(f, f, neg(square))
    top = fma(square, like(-0.5, x), high)
    rest = fma(square, like(-0.5, x), sub(high, top))
    rest = fma(error, like(-0.5, x), add(rest, fma(n, like(LN2_LOW, x), low)))
    rest = fma(mul(square, f), polynomial(f, c.LOG_SINGLE), rest)
    return log_ends(x, add(top, rest))


def _log_parts(x: Node) -> Pair:
    """x > 0 in float32: exponent and ln of the mantissa, in float64."""
    scaled, shift = normal(x)
    n, m = split_exponent(scaled, 2 / 3)
    f = wide(sub(m, 1.0))
    return wide(add(n, shift)), fma(mul(f, f), polynomial(f, c.LOG_SHORT), f)


def log2(x: Node) -> Node:
    n, part = _log_parts(x)
    return log_ends(x, narrow(fma(part, like(LOG2_E, part), n)))


def log10(x: Node) -> Node:
    n, part = _log_parts(x)
    return log_ends(x, narrow(fma(n, like(math.log10(2), n), mul(part, 1 / math.log(10)))))


def log1p_wide(x: Node) -> Node:
    """ln(1 + x), -1 < x < 2^1000; small relative error also near 0."""
    total = add(x, 1.0)
    n, m = split_exponent(total, 2 / 3)
    f = sub(m, 1.0)
    # what adding 1 lost matters only near 0, where n is 0 and f may be replaced by x itself
    f = where(eq(n, 0.0), x, f)
    return fma(n, like(math.log(2), n), fma(mul(f, f), polynomial(f, c.LOG_SHORT), f))


def log1p(x: Node) -> Node:
    result = narrow(log1p_wide(wide(x)))
    result = where(or_(eq(x, math.inf), eq(x, 0.0)), x, result)
    return where(gt(x, -1.0), result, where(eq(x, -1.0), like(-math.inf, x), like(math.nan, x)))


def asinh(x: Node) -> Node:
    w = wide(abs_(x))
    square = mul(w, w)
    result = log1p_wide(add(w, div(square, add(sqrt(add(square, 1.0)), 1.0))))
    return copysign(where(lt(abs_(x), math.inf), narrow(result), x), x)


def acosh(x: Node) -> Node:
    w = wide(x)
    t = sub(w, 1.0)
    result = narrow(log1p_wide(add(t, sqrt(mul(t, add(w, 1.0))))))
    return where(lt(x, math.inf), where(ge(x, 1.0), result, like(math.nan, x)), x)


def atanh(x: Node) -> Node:
    w = wide(abs_(x))
    result = narrow(mul(log1p_wide(div(add(w, w), sub(like(1.0, w), w))), 0.5))
    result = where(lt(abs_(x), 1.0), result, where(eq(abs_(x), 1.0), like(math.inf, x), like(math.nan, x)))
    return copysign(result, x)
