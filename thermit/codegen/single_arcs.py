"""float32 inverse circular functions."""

from __future__ import annotations

import math

from thermit.codegen import coefficients as c
from thermit.codegen.arithmetic import narrow, polynomial, wide
from thermit.ir.build import abs_, add, copysign, div, eq, fma, gt, like, lt, mul, ne, or_, sqrt, sub, where
from thermit.ir.node import Node


def atan2(y: Node, x: Node) -> Node:
    """The angle of the point (x, y)."""
    a, b = wide(abs_(x)), wide(abs_(y))
    steep = gt(b, a)
    q = div(where(steep, a, b), where(steep, b, a))
    # 0 / 0 is the angle 0, inf / inf 45 degrees
    q = where(eq(a, b), where(eq(a, 0.0), a, like(1.0, a)), q)
    angle = mul(q, polynomial(mul(q, q), c.ATAN_SHORT))
    angle = where(steep, sub(like(math.pi / 2, a), angle), angle)
    angle = where(lt(copysign(like(1.0, a), wide(x)), 0.0), sub(like(math.pi, a), angle), angle)
    return where(or_(ne(x, x), ne(y, y)), like(math.nan, x), copysign(narrow(angle), y))


def atan(x: Node) -> Node:
    w = wide(abs_(x))
    steep = gt(w, 1.0)
    q = where(steep, div(like(1.0, w), w), w)
    angle = mul(q, polynomial(mul(q, q), c.ATAN_SHORT))
    return copysign(narrow(where(steep, sub(like(math.pi / 2, w), angle), angle)), x)


def _arc(x: Node) -> tuple[Node, Node, Node]:
    """|x|, whether it is above 1/2, and asin of it, or (above) half of acos of it."""
    w = wide(abs_(x))
    above = gt(w, 0.5)
    z = where(above, mul(sub(like(1.0, w), w), 0.5), mul(w, w))
    return w, above, mul(where(above, sqrt(z), w), polynomial(z, c.ASIN_SHORT))


def asin(x: Node) -> Node:
    w, above, arc = _arc(x)
    return copysign(narrow(where(above, fma(arc, like(-2.0, w), like(math.pi / 2, w)), arc)), x)


def acos(x: Node) -> Node:
    w, above, arc = _arc(x)
    negative = lt(wide(x), 0.0)
    arc = where(above, add(arc, arc), sub(like(math.pi / 2, w), arc))  # acos |x|
    return narrow(where(negative, sub(like(math.pi, w), arc), arc))
