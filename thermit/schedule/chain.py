"""Two matrix products with rows between them become one kernel: attention, whose scores are never stored.

What comes in: kernels and calls in order.  What goes out: the same, in which three kernels are one where

    k0: scores = scale(contract(q, k))          read by k1 alone
    k1: weights = softmax(scores + mask)        made of whole rows of the scores, each of its own; read by k2 alone, as the left side
    k2: out = contract(weights, v)

->  k2: out = contract(softmax(scale(contract(q, k)) + mask), v)

The one idea: a row of `out` needs one row of the scores, so a block of rows needs memory for its own scores only (see loops/chain.py).
Invariant: what the kernel reads is in memory before and is not overwritten until it runs; each row of weights is made of the same row of scores.
"""

from __future__ import annotations

import math
from collections import Counter

from thermit.aten.attention import MOST_KEYS, is_chained
from thermit.ir import build as b
from thermit.ir import prims as p
from thermit.ir.node import Node, toposort
from thermit.ir.types import FLOAT32, FLOAT64, Shape
from thermit.schedule.kernel import CallStep, Kernel
from thermit.schedule.trace import Labels, Trace, reshaped, trace

Steps = tuple[Kernel | CallStep, ...]


def chained(steps: Steps) -> Steps:
    """The steps, products with rows between them as one kernel."""
    makers = {s.node: k for k, step in enumerate(steps) if isinstance(step, Kernel) for s in step.stores}
    readers = Counter(load.node for step in steps for load in (step.loads if isinstance(step, Kernel) else step.arguments))
    gone: set[int] = set()
    made: dict[int, Kernel] = {}
    for k, step in enumerate(steps):
        found = _chain(steps, k, makers, readers) if isinstance(step, Kernel) else None
        if found is not None and not gone.intersection(found[0]):
            gone.update(found[0])
            made[k] = found[1]
    return tuple(made.get(k, step) for k, step in enumerate(steps) if k not in gone)


def _chain(steps: Steps, last: int, makers: dict[Node, int], readers: Counter[Node]) -> tuple[tuple[int, int], Kernel] | None:
    """The two kernels before kernel `last` that end in it, and the kernel that they make together."""
    end = steps[last]
    assert isinstance(end, Kernel)
    product = _product(end)
    weights = _below_reshapes(product.args[0], {load.node for load in end.loads}) if product is not None else None
    middle = _only(steps, weights, makers, readers) if weights is not None else None
    if product is None or weights is None or middle is None or _product(middle) is not None:
        return None
    for scores in (load.node for load in middle.loads):
        start = _only(steps, scores, makers, readers)
        first = _product(start) if start is not None else None
        if start is None or first is None or not _fit(first, scores, weights, product) or not _keeps_rows(weights, scores, middle):
            continue
        numbers = makers[scores], makers[weights]
        if any(_overwrites(step, (start, middle)) for step in steps[min(numbers) : last + 1]) or not numbers[0] < numbers[1] < last:
            continue
        loads = {load.node: load for kernel in (start, middle, end) for load in kernel.loads if load.node not in (scores, weights)}
        same = all(loads[load.node] == load for kernel in (start, middle, end) for load in kernel.loads if load.node in loads)
        if same:
            return numbers, Kernel(end.name, end.stores, tuple(loads.values()), middle.rows | _kept(scores), "scores stay in rows")
    return None


def _product(kernel: Kernel) -> Node | None:
    """The matrix product that a kernel computes; None also where it checks something."""
    leaves = {load.node: None for load in kernel.loads}
    inside = [n for n in toposort((s.node for s in kernel.stores), leaves=leaves) if n not in leaves]
    if any(n.prim in (p.GATHER, p.SCATTER, p.CHECK) or n.prim.kind == "scan" for n in inside):
        return None
    return next((n for n in inside if n.prim is p.CONTRACT), None)


def _below_reshapes(node: Node, leaves: set[Node]) -> Node | None:
    """The stored value that is read, its last two axes as they are."""
    rows = node.shape[-2:]
    while node not in leaves:
        if node.prim is not p.RESHAPE or node.args[0].shape[-2:] != rows:
            return None
        node = node.args[0]
    return node


def _only(steps: Steps, node: Node, makers: dict[Node, int], readers: Counter[Node]) -> Kernel | None:
    """The kernel that makes a value and nothing else, for one reader."""
    number = makers.get(node)
    step = steps[number] if number is not None else None
    if not isinstance(step, Kernel) or readers[node] != 1 or len(step.stores) != 1 or step.stores[0].target != "temp":
        return None
    return step


def _fit(first: Node, scores: Node, weights: Node, second: Node) -> bool:
    """Whether sizes and types are those of a chain that is worth it."""
    rows, keys = first.shape[-2:]
    if {n.dtype for n in (first, scores, second, second.args[0])} not in ({FLOAT32}, {FLOAT64}):
        return False
    bits = first.dtype.bits
    fit = is_chained(rows, keys, first.args[0].shape[-1], bits) and (keys <= MOST_KEYS * 32 // bits or _is_softmax(weights))
    return fit and scores.shape[-2:] == (rows, keys) == weights.shape[-2:] and second.shape[-2] == rows


def _is_softmax(weights: Node) -> bool:
    """Whether rows are powers of what is less than its greatest, times or over what is made of their sum: blocks of keys are enough then."""
    if _below_spread(weights).prim not in (p.MUL, p.DIV):
        return False
    powers, factor = map(_below_spread, _below_spread(weights).args)
    if powers.prim not in (p.EXP, p.EXP_FALLING) or powers.args[0].prim is not p.SUB:
        return False
    score, most = powers.args[0].args
    most = _below_spread(most)
    if most.prim is p.WHERE:  # 0 where it is minus infinity
        condition, zero, most = most.args
        if condition.prim is not p.EQ or condition.args[0] is not most or not b.is_const(zero, 0) or not b.is_const(condition.args[1], -math.inf):
            return False
    above = toposort([factor], leaves=(total := dict.fromkeys(n for n in toposort([factor]) if n.prim is p.SUM and n.args[0] is powers)))
    only = all(n in total or n.prim.kind in ("map", "const") or n.prim in (p.RESHAPE, p.EXPAND) for n in above)
    most = _below_spread(most)
    return bool(total) and only and most.prim is p.AMAX and most.args[0] is score


def _below_spread(node: Node) -> Node:
    while node.prim in (p.RESHAPE, p.EXPAND):
        node = node.args[0]
    return node


def _keeps_rows(weights: Node, scores: Node, kernel: Kernel) -> bool:
    """Whether each row of the weights is made of the same row of the scores."""
    leaves = {load.node for load in kernel.loads}
    seen: list[Labels] = []

    def leaf(node: Node, labels: Labels, _: Trace) -> bool:
        if node is scores:
            seen.append(labels)
        return node in leaves

    found = trace(weights, leaf)
    above = {scores}
    for node in toposort([weights], leaves=dict.fromkeys(leaves)):
        if any(a in above for a in node.args) and node not in leaves:
            above.add(node)
    for node in found.visits:
        if node.prim in (p.GATHER, p.SCATTER, p.CHECK, p.CONTRACT) or node.prim.kind == "scan":
            return False
        if node.prim.kind == "view" and node in above and node.prim not in (p.RESHAPE, p.EXPAND):
            return False
        if node.prim.kind == "reduce" and not (node in above and _is_of_rows(node, scores.shape)):
            return False
    rank = weights.type.ndim
    outer = _outer(weights.shape)
    along = {1 << (rank - 1), *(1 << v for v in range(rank, len(found.extents)))}
    return all(labels[:-1] == reshaped(outer, weights.shape[:-1], scores.shape[:-1]) and labels[-1] in along for labels in seen)


def _is_of_rows(node: Node, shape: Shape) -> bool:
    own = node.args[0].shape
    return tuple(node.attrs.axes) == (len(own) - 1,) and own[-2:] == shape[-2:]


def _outer(shape: Shape) -> Labels:
    return tuple(1 << a if n != 1 else 0 for a, n in enumerate(shape[:-1]))


def _overwrites(step: Kernel | CallStep, kernels: tuple[Kernel, ...]) -> bool:
    """Whether a step writes an input that one of the kernels reads."""
    read = {load.node.attrs.index for kernel in kernels for load in kernel.loads if load.node.prim is p.INPUT}
    return isinstance(step, Kernel) and any(s.target == "update" and s.index in read for s in step.stores)


def _kept(scores: Node) -> frozenset[Node]:
    """What was done with each score is done once."""
    while scores.prim is p.RESHAPE:
        scores = scores.args[0]
    return frozenset() if scores.prim is p.CONTRACT else frozenset((scores,))
