"""Images and filters that convolutions read lie in row-major order.

What comes in: a graph.  What goes out: the same, in which an input (or the result of a call) that lies otherwise (channels innermost, a part
of a larger image) is copied once before a product reads its windows.

    window(pad(%in0)) with %in0: [1, 64, 56, 56] strides [200704, 1, 3584, 64]   ->   window(pad(add %in0 0.0))

The one idea: windows are read as vectors along a row of the image, each element once for each tap, so a copy costs a fraction of the first
reading; no value between two convolutions is ever laid out otherwise.  Invariant: values stay the same (a sum that begins with 0.0 does not
see that -0.0 became 0.0); only what nothing but convolutions read through this path is replaced.
"""

from __future__ import annotations

from thermit.ir import build
from thermit.ir import prims as p
from thermit.ir.node import Graph, Node, toposort
from thermit.ir.types import Shape, contiguous_strides

_VIEWS = (p.RESHAPE, p.PERMUTE, p.EXPAND, p.SLICE, p.PAD, p.WINDOW)


def lay_out(graph: Graph) -> Graph:
    """The graph with copies where images and filters lie badly."""
    order = toposort(graph.roots)
    if all(node.prim is not p.CONTRACT for node in order):
        return graph
    strides = dict(zip(graph.inputs, graph.strides, strict=True))
    new: dict[Node, Node] = {}
    for node in order:
        args = tuple(new[a] for a in node.args)
        again = build.rebuild(node, args)
        if node.prim is p.CONTRACT and _sees_windows(node.args[1]):
            again = build.contract(*(_copied(side, strides) for side in again.args))
        new[node] = again
    return graph.map_roots(new.__getitem__)


def _sees_windows(side: Node) -> bool:
    while side.prim in _VIEWS:
        if side.prim is p.WINDOW:
            return True
        side = side.args[0]
    return False


def _copied(side: Node, strides: dict[Node, Shape]) -> Node:
    """A side of a product, made of a copy of what it reads where that lies badly."""
    if side.prim in _VIEWS:
        return build.rebuild(side, (_copied(side.args[0], strides), *side.args[1:]))
    if side.prim is p.RESULT:
        lies: Shape | None = tuple(side.args[0].attrs.results[side.attrs.index][1])
    else:
        lies = strides.get(side)
    return side if lies is None or _is_row_major(lies, side.shape) else build.add(side, 0.0)


def _is_row_major(strides: Shape, shape: Shape) -> bool:
    return all(n == 1 or s == c for n, s, c in zip(shape, strides, contiguous_strides(shape), strict=True))
