"""The order and the merging of axes of a kernel, from how a probe saw them.

What comes in: the domain of the kernel's largest store, the index expressions that the probe used, and which axes each reduction
depends on.  What goes out: a `Layout`: groups of domain axes from the outermost loop to the innermost (the axes of a group are
one loop), how many of them every row owns, and the groups of the axes of each reduction.

Rows first: an axis that reductions depend on stands outside of one that they do not.  Then the strides of the store: the axis
written with step 1 is innermost.  Two neighbours merge when every index that matters sees them as one: a * n_b + b.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from thermit.ir import prims as p
from thermit.ir.node import Node
from thermit.ir.types import Shape
from thermit.loops.index import Indices

Groups = tuple[tuple[int, ...], ...]
AxisForm = tuple[int, tuple[tuple[int, int], ...]]  # const, (domain axis, coefficient): an index in terms of the domain


@dataclass(slots=True)
class Layout:
    """`order`: groups of domain axes, outermost first; the first `rows` of them are what reductions depend on."""

    order: Groups
    rows: int
    in_order: bool = False  # the outermost group is scanned: it is no parallel loop
    reductions: dict[Node, Groups] = field(default_factory=dict)
    first: list[tuple[Node, tuple[AxisForm, ...]]] = field(default_factory=list)  # what rows reduce, innermost reductions first

    def groups(self, node: Node) -> Groups:
        return self.reductions.get(node) or tuple((a,) for a in node.attrs.axes)


@dataclass(slots=True)
class Seen:
    """What a probe saw.  `variables[a]` is the variable of domain axis a (None: size 1)."""

    shape: Shape
    strides: Shape
    variables: tuple[Node | None, ...]
    uses: set[Node]
    reductions: list[tuple[Node, frozenset[Node], tuple[Node | None, ...]]]  # node, variables it depends on, variables of its axes
    scans: set[Node]  # variables that scans run along


def _coefficients(uses: set[Node], indices: Indices) -> dict[Node, dict[int, int]]:
    """For each variable its coefficient in each linear form that matters (absent: 0)."""
    columns: dict[Node, dict[int, int]] = {}
    pending, done, row = list(uses), set(uses), 0
    while pending:
        row += 1
        for atom, k in indices.form(pending.pop())[1].items():
            columns.setdefault(atom, {})[row] = k
            if atom.prim in (p.DIV, p.REM) and atom.args[1].prim is p.CONST and atom.args[0] not in done:
                done.add(atom.args[0])
                pending.append(atom.args[0])
    return columns


def _merged(axes: Sequence[int], variables: Mapping[int, Node], sizes: Mapping[int, int], columns: Mapping[Node, dict[int, int]]) -> Groups:
    groups: list[tuple[int, ...]] = []
    for axis in axes:
        if groups:
            outer, n = columns.get(variables[groups[-1][-1]], {}), sizes[axis]
            inner = columns.get(variables[axis], {})
            if outer.keys() == inner.keys() and all(outer[row] == n * k for row, k in inner.items()):
                groups[-1] += (axis,)
                continue
        groups.append((axis,))
    return tuple(groups)


def choose(seen: Seen, indices: Indices) -> Layout:
    columns = _coefficients(seen.uses, indices)
    counts = {a: sum(v in depends for _, depends, _ in seen.reductions) for a, v in enumerate(seen.variables) if v is not None}
    axes = sorted(counts, key=lambda a: (-counts[a], seen.variables[a] in seen.scans, -seen.strides[a], a))
    order: list[tuple[int, ...]] = []
    rows = 0
    for level in sorted({(counts[a], seen.variables[a] in seen.scans) for a in axes}, key=lambda k: (-k[0], k[1])):
        members = [a for a in axes if (counts[a], seen.variables[a] in seen.scans) == level]
        known = {a: v for a in members if (v := seen.variables[a]) is not None}
        groups = ((a,) for a in members) if level[1] else _merged(members, known, dict(enumerate(seen.shape)), columns)
        order += groups
        if level[0]:
            rows = len(order)
    layout = Layout(tuple(order), rows, bool(order) and not rows and seen.variables[order[0][0]] in seen.scans)
    for node, _, variables in seen.reductions:
        reduced = node.attrs.axes
        shape = node.args[0].shape
        known = {a: v for a, v in zip(reduced, variables, strict=True) if v is not None}
        groups = _merged([a for a in reduced if a in known], known, dict(enumerate(shape)), columns)
        ones = tuple((a,) for a in reduced if a not in known)
        if layout.reductions.get(node, ones + groups) != ones + groups:
            groups = tuple((a,) for a in known)
        layout.reductions[node] = ones + groups
    return layout
