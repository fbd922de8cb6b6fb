"""x * y + z with one rounding, on targets that have no instruction for it; expressions with it spelled out.

float32: the product is exact in float64, so only the sum rounds twice.  float64: product and sum as exact pairs (Dekker, Knuth), whose
last sum rounds nearly once.  Both are what the mathematics needs: the error of a product comes out exactly.
"""

from __future__ import annotations

from collections.abc import Iterable

from thermit.codegen.arithmetic import Pair, two_sum
from thermit.ir import prims as p
from thermit.ir.build import abs_, add, cast, gt, like, mul, rebuild, sub, where
from thermit.ir.node import Node, toposort
from thermit.ir.types import FLOAT32, FLOAT64

SPLITTER = 2.0**27 + 1


def _halves(x: Node) -> Pair:
    """x as a sum of two numbers of 26 bits."""
    large = gt(abs_(x), 2.0**990)
    scaled = where(large, mul(x, 2.0**-60), x)
    part = mul(scaled, SPLITTER)
    high = sub(part, sub(part, scaled))
    back = where(large, like(2.0**60, x), like(1.0, x))
    return mul(high, back), mul(sub(scaled, high), back)


def fma_without_instruction(x: Node, y: Node, z: Node) -> Node:
    if x.dtype is FLOAT32:
        return cast(add(mul(cast(x, FLOAT64), cast(y, FLOAT64)), cast(z, FLOAT64)), FLOAT32)
    product = mul(x, y)
    (a, b), (c, d) = _halves(x), _halves(y)
    error = add(mul(b, d), sub(add(mul(a, d), mul(b, c)), sub(product, mul(a, c))))
    total, rest = two_sum(product, z)
    return where(gt(like(float("inf"), x), abs_(total)), add(total, add(rest, error)), total)


def without_fma(root: Node, known: Iterable[Node]) -> Node:
    """The expression with fused operations spelled out; `known` stay as they are."""
    done = {node: node for node in toposort(known)}
    for node in toposort([root]):
        if node not in done:
            args = tuple(done[a] for a in node.args)
            done[node] = fma_without_instruction(*args) if node.prim is p.FMA else rebuild(node, args)
    return done[root]
