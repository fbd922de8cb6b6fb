"""float32 powers and hypot."""

from __future__ import annotations

import math

from thermit.codegen import coefficients as c
from thermit.codegen.arithmetic import at_least, at_most, in_fours, narrow, paired, power_of_two, round_with, split_exponent, wide, with_sign_of
from thermit.codegen.ends import pow_ends
from thermit.codegen.single_log import LOG2_E
from thermit.ir.build import abs_, eq, fma, ge, is_const, like, mul, ne, or_, sqrt, sub, where
from thermit.ir.node import Node

LEAST_POWER = 0.15  # from here on (in size) |x|^y is 0 or infinite if |x| is taken for 2^-1023 or 2^1024
MOST_EXPONENT = 200.0


def _power_of_size(size: Node, y: Node) -> Node:
    """size^y by 2^(y log2 size) in float64, where denormal numbers of float32 are normal; 0 counts as 2^-1023 and infinity as 2^1024."""
    n, m = split_exponent(wide(size), 2 / 3)
    f = sub(m, 1.0)
    logarithm = fma(mul(f, f), in_fours(f, c.LOG2_MEDIUM), fma(f, like(LOG2_E, f), n))
    exponent = at_least(at_most(mul(logarithm, wide(y)), MOST_EXPONENT), -MOST_EXPONENT)
    whole, shifted = round_with(exponent, 1.0, 1023)
    return narrow(mul(paired(sub(exponent, whole), c.EXP2_SHORT), power_of_two(shifted)))


def _constant_power(x: Node, y: Node, value: float) -> Node:
    """x^y where y is finite, not 0 and known: most of the ends are decided here and not in each lane."""
    size = abs_(x)
    result = _power_of_size(size, y)
    if abs(value) < LEAST_POWER:
        zero, infinite = like(0.0, x), like(math.inf, x)
        result = where(eq(size, 0.0), zero if value > 0 else infinite, result)
        result = where(eq(size, math.inf), infinite if value > 0 else zero, result)
    if value.is_integer():
        return where(ne(x, x), x, with_sign_of(x, result) if value % 2 else result)
    return where(or_(ge(x, 0.0), eq(x, -math.inf)), result, like(math.nan, x))


def pow_(x: Node, y: Node) -> Node:
    """Signs and ends as C's pow."""
    if is_const(y) and math.isfinite(y.attrs.value) and y.attrs.value:
        return _constant_power(x, y, y.attrs.value)
    return pow_ends(x, y, _power_of_size(abs_(x), y))


def hypot(x: Node, y: Node) -> Node:
    """sqrt(x^2 + y^2); inf if either is infinite."""
    a, b = wide(x), wide(y)
    result = narrow(sqrt(fma(a, a, mul(b, b))))
    return where(or_(eq(abs_(x), math.inf), eq(abs_(y), math.inf)), like(math.inf, x), result)
