"""A kernel with a matrix product: its loop program, and the plain loops that it means.

What comes in: a kernel in which one value is a product and the stores are made of it element by element.  What goes out: a program over the
batch whose body is one `Product`; `plain` writes it out, for products that are not worth packing (see contraction.py).

    gelu(contract(x, permute(w)) + expand(b))
 -> for i0 < 1:
      product row < 64, column < 768:  sum = sum(k < 256) x[row * 256 + k] * w[column * 256 + k]
        out[row * 768 + column] = gelu(sum + b[column])

The product is pulled like any value (see pull.py): at (batch, row, column) it is the local that holds the sum; its sides are pulled at
(batch, row, k) and (batch, k, column).  A store of another shape is a view of the product's: its index is the product's, seen through that.
"""

from __future__ import annotations

import math
from dataclasses import replace

from thermit.ir import build
from thermit.ir import prims as p
from thermit.ir.node import Node, toposort
from thermit.ir.types import TensorType
from thermit.loops.index import ZERO, Indices
from thermit.loops.layout import Layout
from thermit.loops.nest import Acc, For, LoopProgram, Product, Span
from thermit.loops.pull import Index, Pull, Scope
from thermit.loops.rewrite import substitute
from thermit.schedule.kernel import Kernel


def product_in(kernel: Kernel) -> Node | None:
    """The matrix product that a kernel computes."""
    leaves = {load.node: None for load in kernel.loads}
    return next((n for n in toposort((s.node for s in kernel.stores), leaves=leaves) if n.prim is p.CONTRACT and n not in leaves), None)


def lower_product(kernel: Kernel, node: Node) -> LoopProgram:
    """The program of a kernel with the product `node`."""
    pull = Pull(kernel, Layout((), 0))
    pull.declare()
    left, right = node.args
    *batch, rows, columns = node.shape
    top = pull.open(build.index("i0"), math.prod(batch), 1)
    row, column = pull.open(build.index("row"), rows, 2), pull.open(build.index("column"), columns, 3)
    depth = pull.open(build.index("k"), left.shape[-1], 4)
    at = pull.indices.delinearize(top.variable, tuple(batch))
    i, j = (ZERO if scope.extent == 1 else scope.variable for scope in (row, column))
    pull.active = [top, row, depth]
    one = pull.pull(left, (*at, i, depth.variable), None)
    pull.active = [top, column, depth]
    other = pull.pull(right, (*at, depth.variable, j), None)
    local = build.local(pull.fresh("sum"), node.dtype)
    pull.depths[local] = column.depth
    pull.active = [top, row, column]
    pull.scope_at((*at, i, j), None).memo[node, (*at, i, j), None] = local
    for k, s in enumerate(kernel.stores):
        pull.store(k, s, seen_from(s.node, node, (*at, i, j), pull.indices), column)
    body = column.body()
    assert not (row.items or top.items or depth.items), f"{kernel.name} is not made of its product element by element"
    statement = Product(_span(row), _span(column), _span(depth), one, other, local, body)
    return LoopProgram(kernel.name, tuple(pull.memories), top.variable, math.prod(batch), (statement,))


def seen_from(top: Node, product: Node, index: Index, indices: Indices) -> Index:
    """The index in a value made of a product, element by element, of what stands at `index` in the product."""
    order = toposort([top])
    above = {product}
    for node in order:
        above |= {node} if any(a in above for a in node.args) else set()
    views, node = [], top
    while node is not product:
        views += [node] if node.prim.kind == "view" else []
        node = next(a for a in node.args if a in above)
    shape = product.shape
    for view in reversed(views):
        if view.prim is p.PERMUTE:
            index = indices.reshape(index, shape, view.args[0].shape)
            index, shape = tuple(index[a] for a in view.attrs.order), view.shape
    return indices.reshape(index, shape, top.shape)


def _span(scope: Scope) -> Span:
    assert isinstance(scope.extent, int)
    return Span(scope.variable, scope.extent)


def plain(program: LoopProgram) -> LoopProgram:
    """A product as loops: rows in parallel, over columns a sum over the depth and what is done with it."""
    if len(program.body) != 1 or not isinstance(s := program.body[0], Product):
        return program
    whole = build.index("p" + program.index.attrs.name)
    split = {program.index: build.div(whole, s.rows.extent), s.rows.index: build.rem(whole, s.rows.extent)}
    if program.extent == 1:
        split = {program.index: ZERO, s.rows.index: whole}
    term = Node(p.MUL, (s.left, s.right), None, TensorType((), s.left.dtype))
    total = For(s.depth.index, s.depth.extent, (), accs=(Acc(s.local, p.ADD, build.const(0, s.local.dtype), term),))
    columns = For(s.columns.index, s.columns.extent, (total, *s.body))
    return replace(program, index=whole, extent=program.extent * s.rows.extent, body=substitute((columns,), split))
