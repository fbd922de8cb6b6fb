"""How often each value of a kernel is needed: which loop variables its index depends on.

What comes in: a root and the set of leaves.  What goes out: every value between them with its labels, one per axis: the variable
that runs along it, none, or several (the axis is a mixture).  A reduction starts a variable for each of its axes, a product one.  No index
arithmetic happens here: labels are enough to count how often a loop would compute a value.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import field

from thermit.ir import prims as p
from thermit.ir.node import Node
from thermit.ir.types import Shape, reshape_blocks
from thermit.records import dataclass

Labels = tuple[int, ...]  # each a set of variables as a bit mask; 0: none


@dataclass(slots=True)
class Trace:
    """What a root reaches.  Variables 0..rank-1 are the axes of the root's domain; `closure[v]` are all the variables whose loops
    enclose v's, itself included."""

    extents: list[int]
    closure: list[int]
    visits: dict[Node, list[Labels]] = field(default_factory=dict)
    leaves: dict[Node, None] = field(default_factory=dict)

    def copy(self) -> Trace:
        visits = {node: list(labels) for node, labels in self.visits.items()}
        return Trace(list(self.extents), list(self.closure), visits, dict(self.leaves))

    def closed(self, labels: Labels) -> int:
        """The variables of all loops around a value with these labels."""
        mask = 0
        for label in labels:
            mask |= label
        out, rest = mask, mask
        while rest:
            v = (rest & -rest).bit_length() - 1
            out |= self.closure[v]
            rest &= rest - 1
        return out

    def moved(self) -> set[Node]:
        """What is read below a view, a reduction or a gather, and so perhaps at another index than the root's."""
        return self._below([a for n in self.visits if n.prim.kind not in ("map", "scan") and n.prim is not p.CHECK for a in n.args])

    def below_gathers(self) -> set[Node]:
        """What is read at indices that are data."""
        return self._below([n.args[0] for n in self.visits if n.prim is p.GATHER])

    def _below(self, stack: list[Node]) -> set[Node]:
        found: set[Node] = set()
        while stack:
            node = stack.pop()
            if node not in found:
                found.add(node)
                if node in self.visits:
                    stack += node.args
        return found

    def trips(self, mask: int) -> int:
        """How often loops over these variables run their body."""
        return math.prod(n for v, n in enumerate(self.extents) if mask >> v & 1)

    def domain(self, shape: Shape) -> Labels:
        """Labels of a root: variable a (from the next free one on) runs along axis a; an axis of size 1 has none."""
        variables = [self.variable(n, 0) for n in shape]
        return tuple(v if n != 1 else 0 for v, n in zip(variables, shape, strict=True))

    def variable(self, extent: int, enclosing: int) -> int:
        self.extents.append(extent)
        self.closure.append(enclosing | 1 << (len(self.extents) - 1))
        return 1 << (len(self.extents) - 1)


def reshaped(labels: Labels, shape: Shape, inner: Shape) -> Labels:
    """Labels of `inner`, blocks of axes with the same product apart from each other."""
    if 0 in shape:
        return (0,) * len(inner)
    out = [0] * len(inner)
    for outer, own in reshape_blocks(shape, inner):
        mixed = 0
        for a in outer:
            mixed |= labels[a]
        for k in own:
            out[k] = mixed
    return tuple(out)


def below(node: Node, labels: Labels, trace: Trace) -> list[tuple[Node, Labels]]:
    """The args of a value with the labels at which it reads them."""
    args, attrs, prim = node.args, node.attrs, node.prim
    if prim.kind in ("map", "scan") or prim is p.CHECK:
        return [(a, labels) for a in args]
    match prim.name:
        case "reshape":
            return [(args[0], reshaped(labels, node.shape, args[0].shape))]
        case "permute":
            moved = [0] * len(labels)
            for k, axis in enumerate(attrs.order):
                moved[axis] = labels[k]
            return [(args[0], tuple(moved))]
        case "expand":
            return [(args[0], tuple(0 if n == 1 else label for label, n in zip(labels, args[0].shape, strict=True)))]
        case "slice":
            return [(args[0], tuple(0 if n == 1 else label for label, n in zip(labels, node.shape, strict=True)))]
        case "pad":
            return [(args[0], labels), (args[1], ())]
        case "concat":
            return [(a, labels) for a in args]
        case "window":
            rank = len(attrs.strides)
            lead = len(labels) - 2 * rank
            return [(args[0], (*labels[:lead], *(o | t for o, t in zip(labels[lead : lead + rank], labels[lead + rank :], strict=True))))]
    if prim is p.CONTRACT:
        inner = trace.variable(args[0].shape[-1], trace.closed(labels))
        return [(args[0], (*labels[:-1], inner)), (args[1], (*labels[:-2], inner, labels[-1]))]
    everything = 0
    for label in labels:
        everything |= label
    match prim.name:
        case "strided":
            return [(args[0], (everything,))]
        case "gather":
            return [*((a, labels) for a in args[1:]), (args[0], (everything,) * args[0].type.ndim)]
    assert prim.kind == "reduce", f"{node!r} inside a kernel"
    enclosing, rest = trace.closed(labels), iter(labels)
    x = args[0]
    return [(x, tuple((trace.variable(n, enclosing) if n != 1 else 0) if a in attrs.axes else next(rest) for a, n in enumerate(x.shape)))]


def trace(root: Node, leaf: Callable[[Node, Labels, Trace], bool], start: Trace | None = None, labels: Labels | None = None) -> Trace:
    """Everything below the root.  `leaf(node, labels, trace)` says where to stop; the root itself is never one."""
    if start is None:
        start = Trace([], [])
        labels = start.domain(root.shape)
    assert labels is not None
    stack: list[tuple[Node, Labels]] = [(root, labels)]
    while stack:
        node, at = stack.pop()
        seen = start.visits.get(node)
        if seen is not None and at in seen:
            continue
        if node is not root and leaf(node, at, start):
            start.leaves[node] = None
            continue
        if node.prim in (p.INPUT, p.RESULT):
            start.leaves[node] = None
            continue
        start.visits.setdefault(node, []).append(at)
        if node.args:
            stack += below(node, at, start)
    return start
