"""Rewrites that make a graph easier to schedule, same values.

    check(x, ok) with ok of another shape   ->  check(x, all(ok) repeated)      so that a check is tested where it is read
    an output or update that is an input    ->  a copy of it                    so that every stored value is a node of its own
"""

from __future__ import annotations

from thermit.ir import build
from thermit.ir import prims as p
from thermit.ir.node import Graph, Node, toposort


def split(graph: Graph) -> Graph:
    """The graph in the form that fusion expects."""
    new: dict[Node, Node] = {}
    for node in toposort(graph.roots):
        args = tuple(new[a] for a in node.args)
        again = build.rebuild(node, args) if args != node.args else node
        if again.prim is p.CHECK and again.args[0].shape != again.args[1].shape:
            x, ok = again.args
            whole = build.reduce(p.ALL, ok, range(ok.type.ndim))
            again = build.check(x, build.broadcast_to(whole, x.shape))
        new[node] = again
    return graph.map_roots(lambda root: copied(new[root]))


def copied(node: Node) -> Node:
    """A node with the value of an input or of a call's result that is not that tensor: a reshape to its own shape, which the
    constructors would drop."""
    return Node(p.RESHAPE, (node,), None, node.type) if node.prim in (p.INPUT, p.RESULT) else node
