"""A kernel with two matrix products and rows between them: its loop program, and the plain loops that it means.

What comes in: a kernel (of schedule/chain.py) whose stores are made, element by element, of a product whose left side is made of whole rows
of another product.  What goes out: a program over the batch whose body is one `Chain`; `plain` writes it out (see chain_blocks.py for blocks).

    contract(softmax(contract(q, k) * 0.125), v)
 -> for i0 < 12:
      chain for row < 128:
        for key < 128:   scores[key] = sum(k < 64) q[i0, row, k] * k[i0, key, k]
        for n < 128:     row0[n] = scores[n] * 0.125;  acc1 max= scores[n] * 0.125
        for n < 128:     row1[n] = exp(row0[n] - acc1);  acc2 += exp(row0[n] - acc1)
        for n < 128:     weights[n] = row1[n] * (1.0 / acc2)
        for column < 64: out[i0, row, column] = sum(key < 128) weights[key] * v[i0, key, column]

The rows between are pulled like any value (see pull.py) in the scope of a row, where the first product is a load of `scores`.
"""

from __future__ import annotations

import math
from dataclasses import replace

from thermit.ir import build
from thermit.ir import prims as p
from thermit.ir.node import Node, toposort
from thermit.ir.types import TensorType
from thermit.loops.index import ZERO
from thermit.loops.layout import Layout
from thermit.loops.nest import Acc, Chain, For, LoopProgram, Memory, Product, Span, Stmt, Store
from thermit.loops.product import seen_from
from thermit.loops.pull import Pull, Scope
from thermit.loops.rewrite import substitute
from thermit.schedule.kernel import Kernel

SCORES, WEIGHTS = "scores", "weights"
Outer = list[Scope]  # the loops over the batch and over the rows, if there are several


def products_in(kernel: Kernel) -> list[Node]:
    """The matrix products that a kernel computes, what they are made of first."""
    leaves = {load.node: None for load in kernel.loads}
    return [n for n in toposort((s.node for s in kernel.stores), leaves=leaves) if n.prim is p.CONTRACT and n not in leaves]


def lower_chain(kernel: Kernel, first: Node, second: Node) -> LoopProgram:
    """The program of a kernel whose product `second` has rows of the product `first` on its left side."""
    pull = Pull(kernel, Layout((), 0))
    pull.declare()
    *batch, rows, _ = second.shape
    top = pull.open(build.index("i0"), math.prod(batch), 1)
    outer = [top] if rows == 1 else [top, pull.open(build.index("row"), rows, 2)]
    pull.outer, pull.owned = len(outer), {scope.variable for scope in outer}
    at = (*pull.indices.delinearize(top.variable, tuple(batch)), _row(outer))
    scores = _first(pull, first, outer)
    between = _between(pull, second.args[0], at, outer)
    chain = Chain(scores, between, _second(pull, second, at, outer))
    return LoopProgram(kernel.name, tuple(pull.memories), top.variable, math.prod(batch), (chain,))


def _row(outer: Outer) -> Node:
    return outer[1].variable if len(outer) > 1 else ZERO


def _rows(outer: Outer) -> Span:
    return _span(outer[1]) if len(outer) > 1 else Span(build.index("row"), 1)


def _sides(pull: Pull, node: Node, outer: Outer, column: Scope, depth: Scope, *, reads_left: bool) -> tuple[Node | None, Node]:
    """The left side at (batch, row, k), if it is wanted, and the right side at (batch, k, column)."""
    at = pull.indices.delinearize(outer[0].variable, tuple(node.shape[:-2]))
    j = ZERO if column.extent == 1 else column.variable
    pull.active = [*outer, depth]
    left = pull.pull(node.args[0], (*at, _row(outer), depth.variable), None) if reads_left else None
    pull.active = [outer[0], column, depth]
    return left, pull.pull(node.args[1], (*at, depth.variable, j), None)


def _first(pull: Pull, node: Node, outer: Outer) -> Product:
    """The product whose sums are kept in rows: from here on it is a load of them."""
    keys = node.shape[-1]
    column, depth = pull.open(build.index("key"), keys, 3), pull.open(build.index("k"), node.args[0].shape[-1], 4)
    left, right = _sides(pull, node, outer, column, depth, reads_left=True)
    assert left is not None and not any(scope.items for scope in outer), f"{pull.kernel.name} has a side that is made in loops"
    local = build.local(pull.fresh("sum"), node.dtype)
    _kept_row(pull, node, SCORES)
    return Product(_rows(outer), _span(column), _span(depth), left, right, local, (Store(SCORES, column.variable, local),))


def _kept_row(pull: Pull, node: Node, name: str) -> None:
    pull.memories.append(Memory(name, node.dtype, "row", node.shape[-1]))
    pull.names[node] = name, (*(0 for _ in node.shape[:-1]), 1)


def _between(pull: Pull, weights: Node, at: tuple[Node, ...], outer: Outer) -> tuple[For, ...]:
    """Loops over a row of scores that leave the left side of the second product."""
    rank = pull.ranks[weights] + 1
    row = outer[-1]
    loops = pull.loops(row, (weights.shape[-1],), rank)
    pull.active = [*outer, *loops]
    key = loops[0].variable
    value = pull.pull(weights, (*at, key), None)
    loops[0].items.append((2 * rank + 1, Store(WEIGHTS, key, value)))
    made = row.body()
    assert not any(scope.items for scope in outer[:-1]) and all(isinstance(s, For) for s in made), f"{pull.kernel.name} makes more than rows"
    row.items, row.inner, row.memo = [], {}, {}
    _kept_row(pull, weights, WEIGHTS)
    return tuple(s for s in made if isinstance(s, For))


def _second(pull: Pull, node: Node, at: tuple[Node, ...], outer: Outer) -> Product:
    """The product that is left, and what is done with each element of it."""
    column, depth = pull.open(build.index("column"), node.shape[-1], 3), pull.open(build.index("n"), node.args[0].shape[-1], 4)
    _, right = _sides(pull, node, outer, column, depth, reads_left=False)
    left = build.load(WEIGHTS, node.dtype, depth.variable)
    local = build.local(pull.fresh("sum"), node.dtype)
    pull.depths[local] = column.depth
    index = (*at, ZERO if column.extent == 1 else column.variable)
    pull.active = [*outer, column]
    pull.scope_at(index, None).memo[node, index, None] = local
    for k, s in enumerate(pull.kernel.stores):
        pull.store(k, s, seen_from(s.node, node, index, pull.indices), column)
    body = column.body()
    assert not any(scope.items for scope in (*outer, depth)), f"{pull.kernel.name} is not made of its product element by element"
    return Product(_rows(outer), _span(column), _span(depth), left, right, local, body)


def _span(scope: Scope) -> Span:
    assert isinstance(scope.extent, int)
    return Span(scope.variable, scope.extent)


def plain(program: LoopProgram) -> LoopProgram:
    """A chain as loops: rows in parallel, in each the one product after the other."""
    if len(program.body) != 1 or not isinstance(s := program.body[0], Chain):
        return program
    rows = s.first.rows
    whole = build.index("p" + program.index.attrs.name)
    split = {program.index: build.div(whole, rows.extent), rows.index: build.rem(whole, rows.extent)}
    if program.extent == 1:
        split = {program.index: ZERO, rows.index: whole}
    body: tuple[Stmt, ...] = (_loops(s.first), *s.between, _loops(s.second))
    return replace(program, index=whole, extent=program.extent * rows.extent, body=substitute(body, split))


def _loops(s: Product) -> For:
    term = Node(p.MUL, (s.left, s.right), None, TensorType((), s.left.dtype))
    total = For(s.depth.index, s.depth.extent, (), accs=(Acc(s.local, p.ADD, build.const(0, s.local.dtype), term),))
    return For(s.columns.index, s.columns.extent, (total, *s.body))
