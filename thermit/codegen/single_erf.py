"""float32 erf and erfc."""

from __future__ import annotations

import math

from thermit.codegen import coefficients as c
from thermit.codegen.arithmetic import at_most, narrow, polynomial, wide
from thermit.codegen.single_exp import exp_wide
from thermit.ir.build import abs_, add, copysign, div, fma, like, lt, mul, neg, sub, where
from thermit.ir.node import Node

ERF_CUT = 1.296875  # where erf changes from x times a polynomial to 1 - g^8


def erf(x: Node) -> Node:
    """29/32 x + x (p(t) - t / 4) near 0, t = x^2 - 7/8; 1 - g^8 with g = erfc^(1/8) a polynomial farther out; beyond 3.93 it rounds to 1."""
    size = abs_(x)
    t = fma(x, x, like(-0.875, x))
    near = fma(x, like(0.90625, x), mul(x, fma(t, like(-0.25, x), polynomial(t, c.ERF_SINGLE))))
    near = where(lt(size, 2.0**-100), fma(x, like(2 / math.sqrt(math.pi) - 1, x), x), near)  # where the product has few bits
    u = at_most(size, 3.93)
    first, slope = like(c.ERFC_ROOT_SINGLE[0], x), polynomial(u, c.ERFC_ROOT_SINGLE[1:])
    root = fma(u, slope, first)
    low = fma(u, slope, sub(first, root))  # what rounding took from the root: the eighth power would take it eight times
    square = fma(root, root, mul(root, add(low, low)))
    fourth = mul(square, square)
    far = copysign(fma(neg(fourth), fourth, like(1.0, x)), x)
    return where(lt(size, ERF_CUT), near, far)


def erfc(x: Node) -> Node:
    """e^(-x^2) times a polynomial for |x|; 2 minus that below 0."""
    w = wide(at_most(abs_(x), 10.2))
    t = div(sub(w, 2.0), add(w, 2.0))
    part = mul(exp_wide(neg(mul(w, w))), polynomial(t, c.ERFCX_SHORT))
    return narrow(where(lt(wide(x), 0.0), sub(like(2.0, part), part), part))
