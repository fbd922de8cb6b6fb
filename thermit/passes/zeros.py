"""Horner's scheme that begins with zeros.

What comes in: a graph.  What goes out: the same, in which the zeros that such schemes add are added once, behind them.

    total = zeros; total = total * x + c2; total = total * x + c1        ((0 * x + c2) * x + c1)  ->  (c2 * x + c1) + 0 * x

0 * x is 0.0, -0.0 or, where x is not finite, nan: it is added only so that nan is not lost.  A sum that is never -0.0 (one of its terms is not)
is what it was with either zero added, before or after.  One walk from the leaves up: each node is known as a `core` and the zeros
that are still to be added to it; who reads the node in any other way than a sum or a product in a sum gets them added.

Invariant: bit for bit, nan for nan.
"""

from __future__ import annotations

from collections.abc import Sequence

from thermit.ir import build as b
from thermit.ir import prims as p
from thermit.ir.node import Graph, Node, toposort

State = tuple[Node, tuple[Node, ...]]  # core, zeros


def zeros_behind(graph: Graph) -> Graph:
    """The graph with zeros added behind sums of products."""
    order = toposort(graph.roots)
    if not any(map(_is_zero, order)):
        return graph
    walk = _Walk(order)
    moved = graph.map_roots(walk.final.__getitem__)
    return moved if walk.sums else graph


def _is_zero(x: Node) -> bool:
    """0.0 times something."""
    return x.prim is p.MUL and x.dtype.is_float and any(b.is_const(a, 0.0) for a in x.args)


def _in_order(zero: Node) -> Node:
    """The same zero is the same node, with the constant behind."""
    x, constant = zero.args
    return b.mul(constant, x) if b.is_const(x, 0.0) else zero


class _Walk:
    """What nodes become."""

    def __init__(self, order: Sequence[Node]) -> None:
        self.final: dict[Node, Node] = {}
        self.sums: dict[Node, State] = {}  # final[node] is the core, which is never -0.0, plus the zeros
        self.products: dict[Node, State] = {}  # so are the factors of a core that may be -0.0
        self.solid: set[Node] = set()  # never -0.0
        for node in order:
            self._visit(node)

    def _visit(self, node: Node) -> None:
        if node.prim is p.ADD and node.dtype.is_float:
            state = self._sum(*node.args)
            if state is not None:
                made, zeros = state
                for zero in zeros:
                    made = b.add(made, zero)
                self.final[node] = made
                self.sums[node] = state
                self.solid |= {made, state[0]}
                return
        made = self.final[node] = b.rebuild(node, tuple(self.final[a] for a in node.args))
        if (made.prim is p.CONST and made.attrs.value != 0) or (made.prim is p.ADD and not self.solid.isdisjoint(made.args)):
            self.solid.add(made)
        elif node.prim is p.MUL and node.dtype.is_float and not self.sums.keys().isdisjoint(node.args):
            (x, first), (y, second) = (self.sums.get(a, (self.final[a], ())) for a in node.args)
            self.products[node] = b.mul(x, y), _joined(first, second)

    def _sum(self, x: Node, y: Node) -> State | None:
        """A sum of which one term adds zeros, or is one."""
        for a, zero in ((x, y), (y, x)):
            core, zeros = self.sums.get(a, (self.final[a], ()))
            if core in self.solid and _is_zero(self.final[zero]):
                return core, _joined(zeros, (_in_order(self.final[zero]),))
        for a, other in ((x, y), (y, x)):
            core, zeros = self.sums.get(other, (self.final[other], ()))
            if a in self.products and core in self.solid:
                product, more = self.products[a]
                return b.add(product, core), _joined(more, zeros)
        if x in self.sums or y in self.sums:
            (core, zeros), (other, more) = (self.sums.get(a, (self.final[a], ())) for a in (x, y))
            return b.add(core, other), _joined(zeros, more)
        return None


def _joined(zeros: tuple[Node, ...], more: tuple[Node, ...]) -> tuple[Node, ...]:
    return zeros + tuple(z for z in more if z not in zeros)
