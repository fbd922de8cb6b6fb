"""Which values of a kernel are kept in a row buffer between its loops.

What comes in: a traced kernel.  What goes out: the values that more than one loop over the row needs and that cost more to
compute again than to write and read in L1.  Where the innermost axis of a value belongs to the rows themselves (a softmax over
columns) vectors run across rows, and nothing is kept.
"""

from __future__ import annotations

from thermit.ir.node import Node, toposort, users
from thermit.schedule.cost import COST_ROW, ROW_BYTES, cost_of
from thermit.schedule.group import Group
from thermit.schedule.trace import Labels, Trace


def rows(group: Group) -> frozenset[Node]:
    found = group.trace
    if all(n.prim.kind != "reduce" for n in found.visits):
        return frozenset()
    row_axes = 0
    for mask in group.rows:
        row_axes |= mask
    order = toposort(found.visits, within=found.visits)
    readers = users(order)
    costs: dict[Node, int] = {}
    kept: list[Node] = []
    room = ROW_BYTES
    for node in order:
        costs[node] = sum(costs.get(a, 0) for a in set(node.args)) + (cost_of(node) if node.prim.kind == "map" else 0)
        visits = found.visits[node]
        if node.prim.kind == "reduce":
            costs[node] = 0
        if node.prim.kind != "map" or len(visits) < 2 or (len(visits) - 1) * costs[node] < COST_ROW:
            continue
        same = all(r in found.visits and len(found.visits[r]) == len(visits) and r.prim.kind == "map" for r in readers[node])
        if same and readers[node]:  # its readers are needed as often: rather keep those
            continue
        elems = max(_row_elems(found, labels, row_axes) for labels in visits)
        if elems * node.dtype.itemsize <= room and all(_fits(found, node, labels, row_axes) for labels in visits):
            room -= elems * node.dtype.itemsize
            kept.append(node)
            costs[node] = 0
    return frozenset(kept)


def _row_elems(found: Trace, labels: Labels, row_axes: int) -> int:
    mask = 0
    for label in labels:
        mask |= label
    return found.trips(mask & ~row_axes)


def _fits(found: Trace, node: Node, labels: Labels, row_axes: int) -> bool:
    """Every axis is one loop, the innermost is no row axis."""
    used = [label for label, n in zip(labels, node.shape, strict=True) if n != 1]
    single = all(label and not label & (label - 1) for label in used) and len(set(used)) == len(used)
    return bool(used) and single and not used[-1] & row_axes
