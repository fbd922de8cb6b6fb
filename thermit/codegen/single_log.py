"""float32 logarithms and the inverse hyperbolic functions, which are logarithms.

Logarithms stay in float32.  The usual path is for normal positive numbers; the others take the same formula with what they need more, out of line
(`seldom`, codegen/rare.py).  The inverse hyperbolic functions go through float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from thermit.codegen import coefficients as c
from thermit.codegen.arithmetic import Pair, bits, from_bits, in_fours, integer, narrow, paired, split_exponent, wide
from thermit.codegen.ends import log_ends
from thermit.ir.build import abs_, add, and_, copysign, div, eq, fma, ge, gt, like, lt, mul, neg, seldom, sqrt, sub, where
from thermit.ir.node import Node

LOG2_E = 1 / math.log(2)
ROOT = 0x3F3504F3  # the bits of sqrt(1/2): mantissas lie from there to sqrt(2)
EXPONENT = -(1 << 23)  # the bits of a float's exponent (and sign)
UNIT = 2.0**-23  # exponents stay where they stand in the bits; the constants that they are multiplied with make up for that
LN2_HIGH, LN2_LOW = 0.6931471228599548, 5.7699990475432854e-08  # ln 2 in float32, and the rest, which must be positive: log1p(-0) is -0
LOG2_E_HIGH, LOG2_E_LOW = 1.4426950216293335, 1.92596298909109e-08  # 1 / ln 2
LOG10_E_HIGH, LOG10_E_LOW = 0.4342944920063019, -1.0103050052231683e-08  # 1 / ln 10
LOG10_2_HIGH, LOG10_2_LOW = 0.3010300099849701, -1.4320989e-08  # log10 2 in float32, and the rest


# ---------------------------------------------------------------------------------------------- the three bases
def _unusual(x: Node, most: int = 0x7F800000) -> Node:
    """Whether x is 0, negative, denormal, nan or has the bits `most` or more: everything but the floats whose bits lie between two bounds."""
    least = 0x00800000
    return gt(add(bits(x), integer((1 << 31) - least, x)), integer(most - least - (1 << 31) - 1, x))


def _split(x: Node) -> Pair:
    """x = 2^n (1 + f), normal and positive: the integer -n / UNIT, which is minus the exponent's bits, and 1 + f from sqrt(1/2) to sqrt(2)."""
    minus = and_(sub(integer(ROOT - EXPONENT - 1, x), bits(x)), EXPONENT)
    return minus, from_bits(add(bits(x), minus))


def _normal(x: Node) -> Pair:
    """x > 0 as a normal number, and what that takes from -n / UNIT."""
    tiny = lt(x, 2.0**-126)
    return where(tiny, mul(x, 2.0**23), x), where(tiny, like(23 / UNIT, x), like(0.0, x))


def _natural(n: Node, f: Node, lost: Node | None = None) -> Node:
    """ln(2^(-n UNIT) (1 + f - lost)).  The sum of n ln 2 and f is rounded, and what that takes is added to the rest, which is small."""
    top = fma(n, like(-LN2_HIGH * UNIT, f), f)
    rest = fma(n, like(-LN2_LOW * UNIT, f), sub(f, fma(n, like(LN2_HIGH * UNIT, f), top)))
    rest = rest if lost is None else sub(rest, lost)
    square = mul(f, f)
    return add(top, fma(square, _series(f, square, c.LOG_SINGLE), rest))


def _series(f: Node, square: Node, coefficients: Sequence[float]) -> Node:
    """The last step by itself: the first coefficient is rounded but once."""
    return fma(f, paired(f, coefficients[1:], square), like(coefficients[0], f))


def _binary(n: Node, f: Node) -> Node:
    """log2: the logarithm of 1 + f is below 1/2, and the exponent is exact."""
    square = mul(f, f)
    rest = fma(square, _series(f, square, c.LOG2_SINGLE), mul(f, LOG2_E_LOW))
    return fma(n, like(-UNIT, f), fma(f, like(LOG2_E_HIGH, f), rest))


def _decimal(n: Node, f: Node) -> Node:
    """log10: as ln, with f / ln 10 in the place of f."""
    part = mul(f, LOG10_E_HIGH)
    top = fma(n, like(-LOG10_2_HIGH * UNIT, f), part)
    rest = fma(f, like(LOG10_E_HIGH, f), neg(fma(n, like(LOG10_2_HIGH * UNIT, f), top)))
    rest = fma(f, like(LOG10_E_LOW, f), fma(n, like(-LOG10_2_LOW * UNIT, f), rest))
    square = mul(f, f)
    return add(top, fma(square, _series(f, square, c.LOG10_SINGLE), rest))


def _usual(base: Callable[[Node, Node], Node], x: Node) -> Node:
    minus, m = _split(x)
    return base(narrow(minus), sub(m, 1.0))


def _of_any(base: Callable[[Node, Node], Node], x: Node) -> Node:
    """The logarithm of every argument."""
    scaled, shift = _normal(x)
    minus, m = _split(scaled)
    return log_ends(x, base(add(narrow(minus), shift), sub(m, 1.0)))


def log(x: Node) -> Node:
    """ln x to 0.92 ulp."""
    return seldom(_unusual(x), x, _usual(_natural, x), "log")


def log2(x: Node) -> Node:
    return seldom(_unusual(x), x, _usual(_binary, x), "log2")


def log10(x: Node) -> Node:
    return seldom(_unusual(x), x, _usual(_decimal, x), "log10")


def log_of_any(x: Node) -> Node:
    return _of_any(_natural, x)


def log2_of_any(x: Node) -> Node:
    return _of_any(_binary, x)


def log10_of_any(x: Node) -> Node:
    return _of_any(_decimal, x)


# ---------------------------------------------------------------------------------------------- log1p
def log1p(x: Node) -> Node:
    """With 2^n near 1 + x: f is x 2^-n - (1 - 2^-n), and what its rounding took is known."""
    total = add(x, 1.0)
    minus, _ = _split(total)
    scale = from_bits(add(minus, integer(127 << 23, x)))
    less = sub(like(1.0, x), scale)
    f = fma(x, scale, neg(less))  # in this order -0 stays -0
    lost = fma(neg(x), scale, add(f, less))
    return seldom(_unusual(total, 0x7E800000), x, _natural(narrow(minus), f, lost), "log1p")


def log1p_if_rare(x: Node) -> Node:
    """ln(1 + x) where 1 + x is not positive, not finite or so large that it is x."""
    return log_of_any(add(x, 1.0))


# ---------------------------------------------------------------------------------------------- inverse hyperbolic functions
def log1p_wide(x: Node) -> Node:
    """ln(1 + x), -1 < x < 2^1000; small relative error also near 0."""
    total = add(x, 1.0)
    n, m = split_exponent(total, 2 / 3)
    f = sub(m, 1.0)
    # what adding 1 lost matters only near 0, where n is 0 and f may be replaced by x itself
    f = where(eq(n, 0.0), x, f)
    return fma(n, like(math.log(2), n), fma(mul(f, f), in_fours(f, c.LOG_SHORT), f))


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
