"""What logarithms and powers give at the ends: 0, infinities, nan, negative arguments.  For float32 and float64 alike."""

from __future__ import annotations

import math

from thermit.ir.build import abs_, and_, copysign, eq, gt, like, lt, mul, ne, neg, not_, or_, round_, where
from thermit.ir.node import Node


def log_ends(x: Node, result: Node) -> Node:
    """A logarithm's result, with -inf at 0, nan below, inf at inf, nan at nan."""
    result = where(eq(x, math.inf), x, result)
    return where(gt(x, 0.0), result, where(eq(x, 0.0), like(-math.inf, x), like(math.nan, x)))


def pow_ends(x: Node, y: Node, result: Node) -> Node:
    """x^y from result = |x|^y where x and y are finite and x is not 0: signs, 0, 1, inf and nan as in C."""
    size = abs_(x)
    half = mul(y, 0.5)
    whole = eq(round_(y), y)
    odd = and_(whole, ne(round_(half), half))  # of y finite: an infinite y is "even"
    zero, infinite = like(0.0, x), like(math.inf, x)
    grows = gt(y, 0.0)
    result = where(eq(size, 0.0), where(grows, zero, infinite), result)
    result = where(eq(size, math.inf), where(grows, infinite, zero), result)
    # y infinite: by whether |x| is above or below 1
    result = where(eq(abs_(y), math.inf), where(eq(size, 1.0), like(1.0, x), where(eq(gt(size, 1.0), grows), infinite, zero)), result)
    negative = lt(copysign(like(1.0, x), x), 0.0)
    result = where(and_(negative, odd), neg(result), result)
    outside = and_(and_(lt(x, 0.0), not_(whole)), lt(size, math.inf))
    result = where(or_(outside, or_(ne(x, x), ne(y, y))), like(math.nan, x), result)
    return where(or_(eq(y, 0.0), eq(x, 1.0)), like(1.0, x), result)
