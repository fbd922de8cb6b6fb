"""float32 powers and hypot."""

from __future__ import annotations

import math

from thermit.codegen import coefficients as c
from thermit.codegen.arithmetic import Pair, at_least, at_most, narrow, polynomial, split_exponent, wide
from thermit.codegen.ends import pow_ends
from thermit.codegen.single_exp import exp2_wide
from thermit.codegen.single_log import LOG2_E
from thermit.ir.build import abs_, add, eq, fma, like, lt, mul, or_, sqrt, sub, where
from thermit.ir.node import Node


def normal(x: Node) -> Pair:
    """x as a normal number times 2^shift."""
    tiny = lt(x, 2.0**-126)
    return where(tiny, mul(x, 2.0**23), x), where(tiny, like(-23.0, x), like(0.0, x))


def pow_(x: Node, y: Node) -> Node:
    """|x|^y by 2^(y log2 |x|) in float64; signs and ends as C's pow."""
    size = abs_(x)
    scaled, shift = normal(size)
    n, m = split_exponent(scaled, 2 / 3)
    f = wide(sub(m, 1.0))
    part = fma(mul(f, f), polynomial(f, c.LOG_MEDIUM), f)
    exponent = mul(fma(part, like(LOG2_E, part), wide(add(n, shift))), wide(y))
    return pow_ends(x, y, narrow(exp2_wide(at_least(at_most(exponent, 200.0), -200.0))))


def hypot(x: Node, y: Node) -> Node:
    """sqrt(x^2 + y^2); inf if either is infinite."""
    a, b = wide(x), wide(y)
    result = narrow(sqrt(fma(a, a, mul(b, b))))
    return where(or_(eq(abs_(x), math.inf), eq(abs_(y), math.inf)), like(math.inf, x), result)
