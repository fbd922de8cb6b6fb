"""float32 erf and erfc."""

from __future__ import annotations

from thermit.codegen import coefficients as c
from thermit.codegen.arithmetic import at_most, bits, narrow, paired, polynomial, wide, with_sign_of
from thermit.codegen.single_exp import exp_wide
from thermit.ir.build import abs_, add, div, fma, like, lt, mul, neg, sub, where
from thermit.ir.node import Node

ERF_CUT = 1.09375  # where erf changes from x times a polynomial to 1 - g^3


def erf(x: Node) -> Node:
    """x + x p(x^2 - 1/2) near 0, 1 - g^3 with g = erfc^(1/3) a polynomial in |x| - ERF_CUT farther out; beyond 4 it rounds to 1."""
    near = fma(polynomial(fma(x, x, like(-0.5, x)), c.ERF_SINGLE), x, x)
    v = sub(at_most(abs_(x), 4.0), ERF_CUT)
    root = paired(v, c.ERFC_ROOT_SINGLE)
    far = with_sign_of(x, fma(neg(mul(root, root)), root, like(1.0, x)))
    return where(lt(bits(v), 0), near, far)


def erfc(x: Node) -> Node:
    """e^(-x^2) times a polynomial for |x|; 2 minus that below 0."""
    w = wide(at_most(abs_(x), 10.2))
    t = div(sub(w, 2.0), add(w, 2.0))
    part = mul(exp_wide(neg(mul(w, w))), polynomial(t, c.ERFCX_SHORT))
    return narrow(where(lt(wide(x), 0.0), sub(like(2.0, part), part), part))
