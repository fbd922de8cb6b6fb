"""Rewrites that make a graph easier to schedule; the values stay the same (a sum's order is ours).

    check(x, ok) with ok of another shape   ->  check(x, all(ok) repeated)      so that a check is tested where it is read
    an output or update that is an input    ->  a copy of it                    so that every stored value is a node of its own
    a long reduction into few elements      ->  parts, stored; then the parts   so that cores share it, and sums stay accurate
    a vector times a matrix, down columns   ->  the same                        so that memory is read in whole rows
    places where an input is written        ->  clamp(check(places)), stored    so that the kernel that writes them cannot stop

    sum of float32[1048576]                 ->  %1 = reshape float32[64,16384];  %2 = sum[[1]] %1 (stored);  sum of %2 in float64

Invariant: every output, update and part is a node that a kernel can store.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from thermit.ir import build
from thermit.ir import prims as p
from thermit.ir.node import Graph, Node, toposort
from thermit.ir.types import FLOAT32, FLOAT64
from thermit.schedule.cost import (
    IN_PLACE_SHARE,
    ROW_COLUMNS,
    ROW_PARTS,
    SPLIT_ELEMS,
    SPLIT_PARTS,
    SPLIT_ROWS,
    TALL_COLUMNS,
    TALL_ELEMS,
    TALL_LEAST,
    TALL_PARTS,
)
from thermit.schedule.products import below_views

_SPREAD = (p.RESHAPE, p.EXPAND, p.PERMUTE)


def split(graph: Graph) -> tuple[Graph, dict[Node, str]]:
    """The graph in the form that fusion expects, and the parts that must be stored, with the reason."""
    new: dict[Node, Node] = {}
    parts: dict[Node, str] = {}
    order = toposort(graph.roots)
    tall = _tall(order)
    written = {u.value for u in graph.updates if is_in_place(u.value, graph.inputs[u.input])}
    for node in order:
        args = tuple(new[a] for a in node.args)
        again = build.rebuild(node, args) if args != node.args else node
        if again.prim is p.CHECK and again.args[0].shape != again.args[1].shape:
            x, ok = again.args
            whole = build.reduce(p.ALL, ok, range(ok.type.ndim))
            again = build.check(x, build.broadcast_to(whole, x.shape))
        elif node in written:
            again = _with_sure_places(again, parts)
        elif again.prim.kind == "reduce" and again.type.numel < SPLIT_ROWS and again.args[0].type.numel >= SPLIT_ELEMS:
            again = in_parts(again, parts, SPLIT_PARTS)
        elif _is_row_times_matrix(again):
            again = in_parts(again, parts, ROW_PARTS, _side_by_side)
        elif node in tall:
            again = in_parts(again, parts, TALL_PARTS)
        new[node] = again
    return graph.map_roots(lambda root: copied(new[root])), parts


def copied(node: Node) -> Node:
    """A node with the value of an input or of a call's result that is not that tensor: a reshape to its own shape, which the
    constructors would drop."""
    return Node(p.RESHAPE, (node,), None, node.type) if node.prim in (p.INPUT, p.RESULT) else node


def is_in_place(value: Node, old: Node) -> bool:
    """Whether the new value of an input differs from the old one in few places."""
    return value.prim is p.SCATTER and value.args[0] is old and value.args[1].type.numel * IN_PLACE_SHARE <= value.type.numel


def _with_sure_places(node: Node, parts: dict[Node, str]) -> Node:
    """A scatter whose places have been checked before: what is an index of elements reads them clamped."""
    base, value, *places = node.args
    sure = [_sure(place, n, parts) for place, n in zip(places, base.shape, strict=True)]
    return build.scatter(base, value, sure, node.attrs.combine)


def _sure(place: Node, size: int, parts: dict[Node, str]) -> Node:
    if place.prim in _SPREAD:
        return build.rebuild(place, (_sure(place.args[0], size, parts),))
    is_sure = place.prim is p.CONST and 0 <= place.attrs.value < size
    if is_sure or (place.prim is p.IOTA and place.shape[place.attrs.axis] <= size):
        return place
    zero, most = build.like(0, place), build.like(size - 1, place)
    checked = build.check(place, build.and_(build.ge(place, zero), build.le(place, most)))
    clamped = build.minimum(build.maximum(checked, zero), most)
    parts[clamped] = "places of an input that is written: checked before"
    return clamped


def _tall(order: Sequence[Node]) -> set[Node]:
    """Reductions of few columns of many rows, where nothing is made of the same rows afterwards: rows are best read whole, in one go,
    so cores share them and not the columns."""
    found = {node for node in order if node.prim.kind == "reduce" and _is_tall(node)}
    if not found:
        return found
    reduced: dict[Node, bool] = {}
    for node in order:
        if node in found and any(reduced[a] for a in node.args):
            found.discard(node)
        reduced[node] = node.prim not in (p.CALL, p.RESULT) and (node.prim.kind == "reduce" or any(reduced[a] for a in node.args))
    largest = dict.fromkeys(order, 0)  # of what is made of a value
    for node in reversed(order):
        if node in found and largest[node] * 4 > node.args[0].type.numel:
            found.discard(node)
        for arg in node.args if node.prim is not p.CALL else ():
            largest[arg] = max(largest[arg], largest[node], node.type.numel)
    return found


def _is_tall(node: Node) -> bool:
    x, axes = node.args[0], node.attrs.axes
    columns = math.prod(x.shape[max(axes) + 1 :])
    if node.prim in (p.ARGMAX, p.ARGMIN) or columns < TALL_LEAST or node.type.numel > TALL_COLUMNS:
        return False
    return x.type.numel >= TALL_ELEMS and max(x.shape[a] for a in axes) >= 4 * TALL_PARTS


def _is_row_times_matrix(node: Node) -> bool:
    """Whether a reduction is a vector times a large matrix, added up along its columns: whole rows of the matrix are one stream of memory,
    a part of each of them is as slow as its beginnings (Zen 3, one core: 192 of 768 columns 11 GB/s, all 22)."""
    if node.prim is not p.SUM or node.args[0].prim is not p.MUL or node.args[0].type.numel < TALL_ELEMS:
        return False
    x, axes = node.args[0], node.attrs.axes
    rows, columns = math.prod(x.shape[a] for a in axes), math.prod(x.shape[max(axes) + 1 :])
    if rows * columns != x.type.numel or not TALL_LEAST <= columns <= ROW_COLUMNS or max(x.shape[a] for a in axes) < 4 * ROW_PARTS:
        return False
    one, other = (below_views(side) for side in x.args)
    return any(
        vector.type.numel == rows and matrix.type.numel >= x.type.numel and matrix.prim in (p.INPUT, p.RESULT)
        for vector, matrix in ((one, other), (other, one))
    )


def _side_by_side(prim: p.Prim, pieces: Node, axes: Sequence[int]) -> Node:
    """The sum of a few parts as a map, in float64, in order: a reduction of its own would be stored, or computed with each element of a row."""
    (axis,) = axes
    shape = (*pieces.shape[:axis], *pieces.shape[axis + 1 :])
    slices = [build.reshape(_cut(pieces, axis, k, k + 1), shape) for k in range(pieces.shape[axis])]
    return _join(prim, [build.cast(x, FLOAT64) if x.dtype is FLOAT32 else x for x in slices])


def in_parts(node: Node, parts: dict[Node, str], most: int, total: Callable[[p.Prim, Node, Sequence[int]], Node] | None = None) -> Node:
    """The reduction as one of its parts, `most` of them or somewhat fewer; `total`: what adds them up (else a reduction)."""
    x, axes = node.args[0], node.attrs.axes
    axis = next((a for a in axes if x.shape[a] >= most), max(axes, key=lambda a: x.shape[a]))
    n = x.shape[axis]
    if n < 2:
        return node
    count = next((k for k in range(min(most, n), min(most, n) // 4, -1) if n % k == 0), min(most, n))
    size = n // count
    main = _cut(x, axis, 0, count * size)
    folded = build.reshape(main, (*x.shape[:axis], count, size, *x.shape[axis + 1 :]))
    rest = [_cut(x, axis, count * size, n)] if count * size < n else []
    if node.prim in (p.ARGMAX, p.ARGMIN):
        return _best(node, folded, axis, size, rest, parts)
    moved = [a if a <= axis else a + 1 for a in axes if a != axis] + [axis + 1]
    pieces = build.reduce(node.prim, folded, moved)  # the kept axes with the parts among them
    parts[pieces] = f"{x.type.numel} elements into {node.type.numel}: in {count} parts, for several cores"
    place = sum(1 for a in range(axis) if a not in axes)
    found = [(total or _reduce)(node.prim, pieces, (place,))] + [_reduce(node.prim, r, axes) for r in rest]
    return _cast_back(_join(node.prim, found), node)


def _cut(x: Node, axis: int, start: int, stop: int) -> Node:
    starts = [0] * x.type.ndim
    starts[axis] = start
    return build.slice_(x, starts, [1] * x.type.ndim, (*x.shape[:axis], stop - start, *x.shape[axis + 1 :]))


def _reduce(prim: p.Prim, x: Node, axes: Sequence[int]) -> Node:
    """Of parts of a float32 sum: in float64."""
    return build.reduce(prim, build.cast(x, FLOAT64) if prim is p.SUM and x.dtype is FLOAT32 else x, axes)


def _join(prim: p.Prim, values: Sequence[Node]) -> Node:
    combine = {p.SUM: build.add, p.PROD: build.mul, p.AMAX: build.maximum, p.AMIN: build.minimum, p.ANY: build.or_, p.ALL: build.and_}[prim]
    out = values[0]
    for v in values[1:]:
        out = combine(out, v)
    return out


def _cast_back(x: Node, node: Node) -> Node:
    return build.cast(x, node.dtype) if x.dtype is not node.dtype else x


def _best(node: Node, folded: Node, axis: int, size: int, rest: Sequence[Node], parts: dict[Node, str]) -> Node:
    """argmax: the best of each part and where it stands; then the part with the best."""
    extreme = p.AMAX if node.prim is p.ARGMAX else p.AMIN
    best, at = build.reduce(extreme, folded, (axis + 1,)), build.reduce(node.prim, folded, (axis + 1,))
    for piece in (best, at):
        parts[piece] = f"{folded.type.numel} elements into {node.type.numel}: in {folded.shape[axis]} parts, for several cores"
    at = build.add(at, build.mul(build.iota(at.shape, axis), size))
    for r in rest:
        shape = (*r.shape[:axis], 1, *r.shape[axis + 1 :])
        best = build.concat([best, build.reshape(build.reduce(extreme, r, (axis,)), shape)], axis)
        last = build.add(build.reshape(build.reduce(node.prim, r, (axis,)), shape), size * folded.shape[axis])
        at = build.concat([at, last], axis)
    winner = build.reduce(node.prim, best, (axis,))
    index = [build.iota(winner.shape, a if a < axis else a - 1) if a != axis else winner for a in range(at.type.ndim)]
    return build.gather(at, index)
