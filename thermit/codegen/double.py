"""float64 mathematics: exponentials, logarithms, hyperbolic functions and their inverses, powers, hypot.

The two kernels give their results as pairs, some 4 bits better than float64, so that what is built on them stays within one ulp:
`exponential` 2^n (1 + high + tail), `_logarithm` top + rest.  Powers need a logarithm of 66 bits: `_long_logarithm`.
"""

from __future__ import annotations

import math

from thermit.codegen import coefficients as c
from thermit.codegen.arithmetic import (
    Pair,
    at_least,
    at_most,
    fast_two_sum,
    magic,
    pair_over,
    pair_times,
    paired,
    power_of_two,
    round_with,
    split_exponent,
    two_product,
    two_sum,
)
from thermit.codegen.ends import log_ends, pow_ends
from thermit.ir.build import abs_, add, copysign, div, eq, fma, gt, like, lt, mul, neg, or_, sqrt, sub, where
from thermit.ir.node import Node
from thermit.ir.types import FLOAT64

LOG2_E = 1 / math.log(2)
LN2_REST = 2.3190468138462996e-17  # ln 2 - math.log(2)
LN2_HIGH, LN2_LOW = 0.6931471805598903, 5.497923018708371e-14  # 42 bits: products with exponents are exact; and the rest
LOG2_E_LOW = 2.0355273740931033e-17  # 1 / ln 2 - LOG2_E
LOG10_E, LOG10_E_LOW = 0.4342944819032518, 1.098319650216765e-17
LOG10_2_HIGH, LOG10_2_LOW = 0.30102999566383914, 1.42050232272661e-13  # 42 bits, and the rest
EXP_LEAST, EXP_MOST = -746.0, 710.0  # beyond: 0 and inf in float64


# ---------------------------------------------------------------------------------------------- exp
def exponential(x: Node, extra: Node | None, shift: Node | float) -> tuple[Node, Node, Node, Node]:
    """e^(x + extra) = 2^n (1 + high + tail): n + shift, n, high and tail."""
    shifted = fma(x, like(LOG2_E, x), shift if isinstance(shift, Node) else like(shift, x))
    n = sub(shifted, shift)
    high = fma(n, like(-math.log(2), x), x)  # exact: a multiple of 2^-53 below 1/2
    low = mul(n, -LN2_REST)
    low = low if extra is None else add(low, extra)
    tail = mul(mul(high, high), paired(high, c.EXP))
    return shifted, n, high, fma(low, add(add(high, tail), 1.0), tail)


def _exp_of(x: Node, extra: Node | None = None) -> Node:
    """e^(x + extra), EXP_LEAST <= x <= EXP_MOST; the scale is applied in two steps so that only the last product leaves the range."""
    negative = lt(x, 0.0)
    shift = where(negative, like(magic(FLOAT64, 1023 + 100), x), like(magic(FLOAT64, 1023 - 1), x))
    shifted, _, high, tail = exponential(x, extra, shift)
    one, rest = fast_two_sum(like(1.0, x), high)
    power = add(one, add(rest, tail))
    return mul(mul(power, power_of_two(shifted)), where(negative, like(2.0**-100, x), like(2.0, x)))


def exp(x: Node) -> Node:
    return _exp_of(at_least(at_most(x, EXP_MOST), EXP_LEAST))


def exp_falling(x: Node) -> Node:
    """2^64 e^x of x <= 0: its power of two is one float."""
    x = at_least(x, -(1023 + 64) * math.log(2))  # there power is 0
    shifted, _, high, tail = exponential(x, None, magic(FLOAT64, 1023 + 64))
    one, rest = fast_two_sum(like(1.0, x), high)
    return mul(add(one, add(rest, tail)), power_of_two(shifted))


def exp2(x: Node) -> Node:
    """2^x: the fraction of x times ln 2 as a pair."""
    x = at_least(at_most(x, 1025.0), -1076.0)
    negative = lt(x, 0.0)
    shift = where(negative, like(magic(FLOAT64, 1023 + 100), x), like(magic(FLOAT64, 1023 - 1), x))
    shifted = add(x, shift)
    fraction = sub(x, sub(shifted, shift))
    high, low = two_product(fraction, like(math.log(2), x))
    low = fma(fraction, like(LN2_REST, x), low)
    one, rest = fast_two_sum(like(1.0, x), high)
    power = add(one, fma(mul(high, high), paired(high, c.EXP), add(rest, low)))
    return mul(mul(power, power_of_two(shifted)), where(negative, like(2.0**-100, x), like(2.0, x)))


def _expm1_parts(x: Node, halvings: int) -> Pair:
    """(e^x - 1) / 2^halvings for x < 710.7 as a pair; small relative error also near 0."""
    n, shifted = round_with(x, LOG2_E, 1023 - halvings)
    high = fma(n, like(-math.log(2), x), x)
    low = mul(n, -LN2_REST)
    square = mul(high, high)
    # r^2 / 2 apart: what is left of the series is small, and so is its error
    cube = mul(mul(square, high), paired(high, c.EXP[1:]))
    power = add(add(fma(square, like(0.5, x), cube), high), 1.0)
    rest = fma(low, power, fma(fma(high, high, neg(square)), like(0.5, x), cube))
    scale = power_of_two(shifted)
    less, lost = fast_two_sum(scale, like(-(2.0**-halvings), x))  # exact also where scale is the smaller one: it has one bit
    total, error = two_sum(less, mul(scale, high))
    total, second = two_sum(total, mul(scale, mul(square, 0.5)))
    return fast_two_sum(total, fma(scale, rest, add(second, add(error, lost))))


def expm1(x: Node) -> Node:
    high, low = _expm1_parts(at_least(at_most(x, EXP_MOST), -50.0), 1)
    return where(lt(abs_(x), 2.0**-54), x, mul(add(high, low), 2.0))


def sigmoid(x: Node) -> Node:
    """a / (1 + a) or 1 / (1 + a) with a = e^-|x|, as pairs."""
    y = at_least(neg(abs_(x)), EXP_LEAST)
    shifted, _, high, tail = exponential(y, None, magic(FLOAT64, 1023 + 100))
    one, rest = fast_two_sum(like(1.0, x), high)
    a, b = fast_two_sum(one, add(rest, tail))
    scale = power_of_two(shifted)
    a, b = mul(mul(a, scale), 2.0**-100), mul(mul(b, scale), 2.0**-100)
    below, error = fast_two_sum(like(1.0, x), a)
    negative = lt(x, 0.0)
    inverse = div(like(1.0, x), below)
    top = where(negative, a, like(1.0, x))
    first = mul(top, inverse)
    left = fma(neg(first), add(error, b), where(negative, b, like(0.0, x)))
    return fma(add(fma(neg(first), below, top), left), inverse, first)


def tanh(x: Node) -> Node:
    """e / (e + 2) with e = e^(2 |x|) - 1."""
    size = at_most(abs_(x), 22.0)
    e = _expm1_parts(add(size, size), 0)
    high, low = two_sum(e[0], like(2.0, x))
    top, rest = pair_over(e, (high, add(low, e[1])))
    return copysign(where(lt(abs_(x), 2.0**-28), abs_(x), add(top, rest)), x)


def sinh(x: Node) -> Node:
    """(e + e / (e + 1)) / 2 with e = e^|x| - 1, all of it divided by 4 so that it does not overflow early."""
    size = at_most(abs_(x), 710.6)
    e = _expm1_parts(size, 2)
    high, low = two_sum(mul(e[0], 4.0), like(1.0, x))
    large = gt(size, 40.0)
    top, rest = pair_over(e, (where(large, like(1.0, x), high), fma(e[1], like(4.0, x), low)))
    zero = like(0.0, x)
    total, error = fast_two_sum(e[0], where(large, zero, top))
    result = mul(add(total, add(error, add(e[1], where(large, zero, rest)))), 2.0)
    return copysign(where(lt(abs_(x), 2.0**-28), abs_(x), result), x)


def cosh(x: Node) -> Node:
    """(e + 1 / e) / 2 with e = e^|x|, divided by 4 as above."""
    size = at_most(abs_(x), 710.6)
    shifted, _, high, tail = exponential(size, None, magic(FLOAT64, 1023 - 2))
    scale = power_of_two(shifted)
    one, rest = fast_two_sum(like(1.0, x), high)
    high, low = fast_two_sum(one, add(rest, tail))
    high, low = mul(high, scale), mul(low, scale)
    total, error = fast_two_sum(high, div(like(1 / 16, x), high))
    return mul(add(total, add(error, low)), 2.0)


# ---------------------------------------------------------------------------------------------- log
def _logarithm(n: Node, f: Node, extra: Node | None = None) -> Pair:
    """n ln 2 + ln(1 + f + extra), 2/3 <= 1 + f <= 4/3, to some 2^-58."""
    s = div(f, add(f, 2.0))
    z = mul(s, s)
    square, error = two_product(f, f)
    high, low = fast_two_sum(mul(n, LN2_HIGH), f)
    top = fma(square, like(-0.5, f), high)
    rest = fma(square, like(-0.5, f), sub(high, top))
    rest = add(rest, fma(n, like(LN2_LOW, f), fma(error, like(-0.5, f), low)))
    if extra is not None:
        rest = add(rest, fma(neg(extra), f, extra))
    # ln(1 + f) = f - f^2 / 2 + s (f^2 / 2 + z P(z))
    return top, add(rest, mul(s, fma(z, paired(z, c.LOG), mul(square, 0.5))))


def _normal(x: Node) -> Pair:
    """x as a normal number times 2^shift."""
    tiny = lt(x, 2.0**-1022)
    return where(tiny, mul(x, 2.0**52), x), where(tiny, like(-52.0, x), like(0.0, x))


def _log_parts(x: Node, least: float = 2 / 3) -> tuple[Node, Node]:
    """x > 0: exponent, mantissa (from `least` on) - 1."""
    scaled, shift = _normal(x)
    n, m = split_exponent(scaled, least)
    return add(n, shift), sub(m, 1.0)


def log(x: Node) -> Node:
    top, rest = _logarithm(*_log_parts(x))
    return log_ends(x, add(top, rest))


def log2(x: Node) -> Node:
    n, f = _log_parts(x)
    top, rest = _logarithm(like(0.0, x), f)
    high, low = two_product(top, like(LOG2_E, x))
    low = fma(rest, like(LOG2_E, x), fma(top, like(LOG2_E_LOW, x), low))
    total, error = fast_two_sum(n, high)
    return log_ends(x, add(where(eq(n, 0.0), high, total), add(where(eq(n, 0.0), like(0.0, x), error), low)))


def log10(x: Node) -> Node:
    n, f = _log_parts(x)
    top, rest = _logarithm(like(0.0, x), f)
    high, low = two_product(top, like(LOG10_E, x))
    low = fma(rest, like(LOG10_E, x), fma(top, like(LOG10_E_LOW, x), low))
    total, error = two_sum(mul(n, LOG10_2_HIGH), high)
    return log_ends(x, add(total, add(error, fma(n, like(LOG10_2_LOW, x), low))))


def _log_of_pair(high: Node, low: Node) -> Pair:
    """ln(high + low), high normal and at least |low| * 2^52; small relative error also near 1."""
    n, m = split_exponent(high, 2 / 3)
    f, extra = two_sum(sub(m, 1.0), mul(low, power_of_two(sub(like(magic(FLOAT64, 1023), n), n))))
    return _logarithm(n, f, extra)


def _log_of_pair_or(large: Node, size: Node, doublings: int, high: Node, low: Node) -> Node:
    """ln(high + low), but ln(size * 2^doublings) where large."""
    top, rest = _log_of_pair(where(large, mul(size, 2.0**-10), high), where(large, like(0.0, size), low))
    return add(top, where(large, add(rest, (10 + doublings) * math.log(2)), rest))


def log1p(x: Node) -> Node:
    large = gt(x, 2.0**500)
    result = _log_of_pair_or(large, x, 0, *two_sum(like(1.0, x), x))
    result = where(or_(lt(abs_(x), 2.0**-54), eq(x, math.inf)), x, result)
    return where(gt(x, -1.0), result, where(eq(x, -1.0), like(-math.inf, x), like(math.nan, x)))


def _root(x: Pair) -> Pair:
    """sqrt(x) to some 2^-100, x > 0."""
    top = sqrt(x[0])
    rest = add(fma(neg(top), top, x[0]), x[1])
    return top, div(rest, add(top, top))


def asinh(x: Node) -> Node:
    """ln(|x| + sqrt(x^2 + 1)); beyond 2^500 ln(2 |x|)."""
    size = abs_(x)
    large = gt(size, 2.0**500)
    w = where(large, like(1.0, x), size)
    square, error = two_product(w, w)
    total, rest = two_sum(square, like(1.0, x))
    root = _root((total, add(rest, error)))
    high, low = two_sum(w, root[0])
    result = _log_of_pair_or(large, size, 1, *fast_two_sum(high, add(low, root[1])))
    result = where(lt(size, 2.0**-28), size, where(eq(size, math.inf), size, result))
    return copysign(result, x)


def acosh(x: Node) -> Node:
    """ln(x + sqrt(x^2 - 1)); beyond 2^500 ln(2 x)."""
    large = gt(x, 2.0**500)
    w = where(large, like(2.0, x), x)
    square, error = two_product(w, w)
    total, rest = fast_two_sum(square, like(-1.0, x))
    root = _root((total, add(rest, error)))
    high, low = two_sum(w, root[0])
    result = _log_of_pair_or(large, x, 1, *fast_two_sum(high, add(low, root[1])))
    return where(gt(x, 1.0), where(eq(x, math.inf), x, result), where(eq(x, 1.0), like(0.0, x), like(math.nan, x)))


def atanh(x: Node) -> Node:
    """ln((1 + |x|) / (1 - |x|)) / 2."""
    size = abs_(x)
    one = like(1.0, x)
    high, low = pair_over(fast_two_sum(one, size), fast_two_sum(one, neg(size)))
    top, rest = _log_of_pair(high, low)
    result = where(lt(size, 2.0**-28), size, mul(add(top, rest), 0.5))
    return copysign(where(lt(size, 1.0), result, where(eq(size, 1.0), like(math.inf, x), like(math.nan, x))), x)


# ---------------------------------------------------------------------------------------------- pow
def _long_logarithm(n: Node, f: Node) -> Pair:
    """n ln 2 + ln(1 + f), sqrt(1/2) <= 1 + f <= sqrt(2), to some 2^-66: 2 s + s z (2/3 + z P(z)) with s = f / (f + 2), z = s^2 as pairs."""
    below = add(f, 2.0)
    error = sub(f, sub(below, 2.0))
    s = div(f, below)
    s_low = div(fma(neg(s), error, fma(neg(s), below, f)), below)
    z = pair_times((s, s_low), (s, s_low))
    inner = fast_two_sum(like(2 / 3, f), fma(z[0], paired(z[0], c.LOG_TAIL), like(3.700743415417188e-17, f)))
    cube = pair_times(pair_times((s, s_low), z), inner)
    twice = (add(s, s), add(s_low, s_low))
    total, rest = fast_two_sum(twice[0], cube[0])
    rest = add(rest, add(twice[1], cube[1]))
    high, low = two_sum(mul(n, LN2_HIGH), total)
    return fast_two_sum(high, add(low, fma(n, like(LN2_LOW, f), rest)))


def pow_(x: Node, y: Node) -> Node:
    """|x|^y = e^(y ln |x|) with the logarithm and the product as pairs."""
    high, low = _long_logarithm(*_log_parts(abs_(x), math.sqrt(0.5)))
    top, error = two_product(high, y)
    extra = fma(low, y, error)
    over, under = gt(top, 800.0), lt(top, -800.0)
    usual = or_(over, under)
    top = where(usual, where(over, like(800.0, x), like(-800.0, x)), top)
    result = _exp_of(at_least(at_most(top, EXP_MOST), EXP_LEAST), where(usual, like(0.0, x), extra))
    return pow_ends(x, y, result)


def hypot(x: Node, y: Node) -> Node:
    """sqrt(a^2 + b^2), a >= b, both scaled by the exponent of a; inf if either is infinite."""
    p, q = abs_(x), abs_(y)
    swap = lt(p, q)
    a, b = where(swap, q, p), where(swap, p, q)
    scale = where(gt(a, 2.0**500), like(2.0**-600, a), where(lt(a, 2.0**-500), like(2.0**600, a), like(1.0, a)))
    back = where(gt(a, 2.0**500), like(2.0**600, a), where(lt(a, 2.0**-500), like(2.0**-600, a), like(1.0, a)))
    a, b = mul(a, scale), mul(b, scale)
    square, error = two_product(a, a)
    other, rest = two_product(b, b)
    total, lost = fast_two_sum(square, other)
    root = sqrt(total)
    left = add(fma(neg(root), root, total), add(lost, add(error, rest)))
    result = mul(add(root, where(gt(root, 0.0), div(left, add(root, root)), like(0.0, a))), back)
    return where(or_(eq(p, math.inf), eq(q, math.inf)), like(math.inf, x), result)
