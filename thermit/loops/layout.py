"""The order and the merging of axes of a kernel, from how a probe saw them.

What comes in: the domain of the kernel's largest store, the index expressions that the probe used, and which axes each reduction
depends on.  What goes out: a `Layout`: groups of domain axes from the outermost loop to the innermost (the axes of a group are
one loop), how many of them every row owns, and the groups of the axes of each reduction.

Rows first: an axis that reductions depend on stands outside of one that they do not.  Then the strides of the store: the axis
written with step 1 is innermost.  Two neighbours merge when every index that matters sees them as one: a * n_b + b.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field

from thermit.ir import prims as p
from thermit.ir.node import Node
from thermit.ir.types import Shape
from thermit.loops.index import Indices
from thermit.records import dataclass

STRIP_LEAST = 16  # columns: a cache line of float32
STRIP_MOST = 4096  # columns: longer streams gain more than accumulators in L1 (1024 to 3072 columns, from memory: 21 to 25 GB/s on one core)
STRIP_AGAIN = 512  # columns of rows that are read more than once: in L2 until then
STRIP_ROWS = 16
STRIP_ELEMS = 1 << 15  # fewer stay in L1 in any order
STRIP_PARALLEL = 4  # strips at least, if they do not get too narrow
Groups = tuple[tuple[int, ...], ...]
AxisForm = tuple[int, tuple[tuple[int, int], ...]]  # const, (domain axis, coefficient): an index in terms of the domain


@dataclass(slots=True)
class Layout:
    """`order`: groups of domain axes, outermost first; the first `rows` of them are what reductions depend on."""

    order: Groups
    rows: int
    strip: int = 0  # the innermost row group is cut into strips of so many (see strips.py)
    in_order: bool = False  # the outermost group is scanned: it is no parallel loop
    apart: int | None = None  # an axis that is no loop: every place on it has a store of its own
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
    loads: set[Node]
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
    layout = Layout(tuple(order), rows, in_order=bool(order) and not rows and seen.variables[order[0][0]] in seen.scans)
    for node, _, variables in seen.reductions:
        reduced = node.attrs.axes
        shape = node.args[0].shape
        known = {a: v for a, v in zip(reduced, variables, strict=True) if v is not None}
        groups = _merged([a for a in reduced if a in known], known, dict(enumerate(shape)), columns)
        ones = tuple((a,) for a in reduced if a not in known)
        if layout.reductions.get(node, ones + groups) != ones + groups:
            groups = tuple((a,) for a in known)
        layout.reductions[node] = ones + groups
    layout.strip = _strip_width(seen, layout, columns, indices)
    return layout


def _strip_width(seen: Seen, layout: Layout, columns: Mapping[Node, dict[int, int]], indices: Indices) -> int:
    """The width of strips where the innermost row axis moves with step 1 and the reductions do not; 0 where strips do not pay."""
    if not layout.rows or seen.scans:
        return 0
    group = layout.order[layout.rows - 1]
    own = seen.variables[group[-1]]
    size = math.prod(seen.shape[a] for a in group)
    inner = {v for _, _, axes in seen.reductions for v in axes if v is not None}
    inner |= {v for groups in layout.order[layout.rows :] for a in groups if (v := seen.variables[a]) is not None}
    along = across = 0
    forms = [indices.form(offset)[1] for offset in seen.loads]
    both = [terms for terms in forms if own in terms and not inner.isdisjoint(terms)]  # what moves with one only is small and stays near
    for terms in both or forms:
        along += own is not None and terms.get(own) == 1
        across += any(terms.get(v) == 1 for v in inner)
    reduced = max((math.prod(n for n in (node.args[0].shape[a] for a in node.attrs.axes)) for node, _, _ in seen.reductions), default=0)
    everywhere = own is not None and all(own in depends for _, depends, _ in seen.reductions)
    if not everywhere or along <= across or size < STRIP_LEAST or reduced < STRIP_ROWS or size * reduced < STRIP_ELEMS:
        return 0
    outer = math.prod(seen.shape[a] for g in layout.order[: layout.rows - 1] for a in g)
    wanted = max(1, STRIP_PARALLEL // outer)
    width = -(-size // wanted)
    width = -(-width // STRIP_LEAST) * STRIP_LEAST
    most = STRIP_MOST if len(seen.reductions) == 1 and layout.rows == len(layout.order) else STRIP_AGAIN
    return min(max(width, 4 * STRIP_LEAST), most, -(-size // STRIP_LEAST) * STRIP_LEAST)
