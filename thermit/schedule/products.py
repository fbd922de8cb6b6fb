"""Matrix products: what is done with each element before it is stored, and what their sides are read from.

What comes in: the values of a graph in order.  What goes out: `Products`.

    x = contract(permute(a), b);  y = gelu(x + bias);  z = softmax(y)

A product shares its kernel with its *epilogue*: the maps and reshapes above it that read it element by element, in order, together
with values that are not made of it (x, x + bias, gelu).  What others read of an epilogue (y) goes to memory, and so does what a side is
made of, up to views and casts: a product reads each element many times.  What an epilogue reads beside its product is computed in
place, unless it takes loops of its own (a norm).

Invariant: an epilogue has one product, and no value is in two epilogues; so no kernel has two products, and none is computed twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

from thermit.ir import prims as p
from thermit.ir.node import Node
from thermit.ir.types import Shape, contiguous_strides, reshape_blocks
from thermit.records import dataclass

_SEEN_THROUGH = (p.RESHAPE, p.PERMUTE, p.EXPAND, p.SLICE, p.STRIDED, p.PAD, p.WINDOW, p.CAST)


@dataclass(frozen=True, slots=True)
class Products:
    """`home`: the product of each value of an epilogue, of the product itself too; `operands`: what the sides of a product are read from;
    `stored`: values that go to memory, with the reason."""

    home: dict[Node, Node] = field(default_factory=dict)
    operands: dict[Node, set[Node]] = field(default_factory=dict)
    stored: dict[Node, str] = field(default_factory=dict)


def find(
    order: Sequence[Node], readers: Mapping[Node, Sequence[Node]], below: Mapping[Node, int], bit: Mapping[Node, int], roots: Mapping[Node, Shape]
) -> Products:
    """The products of a graph; `below`: what each value is made of, as bits; `roots`: strides of what goes to memory anyhow."""
    found = Products()
    products = [node for node in order if node.prim is p.CONTRACT]
    if not products:
        return found
    for node in order:
        product = node if node.prim is p.CONTRACT else _product_of(node, found.home, below, bit)
        if product is not None:
            found.home[node] = product
    for node in reversed(order):  # a reshape at the end is a way to read what is below
        home = found.home.get(node)
        if node.prim is p.RESHAPE and home is not None and node not in roots and all(found.home.get(r) is not home for r in readers.get(node, ())):
            del found.home[node]
    for node, strides in roots.items():
        _settle(node, strides, found.home, readers)
    for product in products:
        found.operands[product] = set(_operands(product))
        found.stored.update(dict.fromkeys(found.operands[product], "a matrix product reads it many times"))
    for node, product in found.home.items():
        if any(found.home.get(r) is not product for r in readers.get(node, ())):
            found.stored.setdefault(node, "the end of what a matrix product does with each element")
    found.stored.update(dict.fromkeys(_beside(order, found), "combined with a matrix product, and made in loops of its own"))
    return found


def _product_of(node: Node, home: Mapping[Node, Node], below: Mapping[Node, int], bit: Mapping[Node, int]) -> Node | None:
    """The product in whose epilogue a map or reshape is: of several, the last, whose kernel then reads the others from memory."""
    if node.prim.kind != "map" and node.prim is not p.RESHAPE:
        return None
    candidates = {home[a] for a in node.args if a in home}
    for product in sorted(candidates, key=lambda c: -bit[c]):
        apart = all(home.get(a) is product or not below[a] & bit[product] for a in node.args)
        if apart and _keeps_columns(node.shape, product.shape[-1]):
            return product
    return None


def _settle(node: Node, strides: Shape, home: dict[Node, Node], readers: Mapping[Node, Sequence[Node]]) -> None:
    """A value that is to lie in memory as its product does, but is seen with other axes (heads before rows), is stored by the product."""
    views: list[Node] = []
    laid: Shape | None = strides
    while node not in home and node.prim in (p.RESHAPE, p.PERMUTE) and (not views or len(readers.get(node, ())) == 1) and laid is not None:
        views.append(node)
        laid = _strides_below(node, laid)
        node = node.args[0]
    dense = contiguous_strides(node.shape)
    if views and node in home and laid is not None and all(n == 1 or a == b for a, b, n in zip(laid, dense, node.shape, strict=True)):
        home.update(dict.fromkeys(views, home[node]))


def _strides_below(view: Node, strides: Shape) -> Shape | None:
    """The strides of what a reshape or permute sees, when it is laid out with these; None if it has none."""
    inner = [0] * view.args[0].type.ndim
    if view.prim is p.PERMUTE:
        for k, axis in enumerate(view.attrs.order):
            inner[axis] = strides[k]
        return tuple(inner)
    for outer, own in reshape_blocks(view.shape, view.args[0].shape):
        axes = [a for a in outer if view.shape[a] != 1]
        if any(strides[a] != strides[b] * view.shape[b] for a, b in itertools.pairwise(axes)):
            return None
        step = strides[axes[-1]] if axes else 1
        for k in reversed(own):
            inner[k] = step
            step *= view.args[0].shape[k]
    return tuple(inner)


def _beside(order: Sequence[Node], found: Products) -> list[Node]:
    """What epilogues read that is made of reductions or of places that are data."""
    loops: dict[Node, bool] = {}
    for node in order:
        own = node.prim.kind in ("reduce", "scan") or node.prim in (p.GATHER, p.CHECK)
        loops[node] = node not in found.home and node not in found.stored and (own or any(loops[a] for a in node.args))
    sides = {below_views(a) for node, product in found.home.items() if node is not product for a in node.args if found.home.get(a) is not product}
    return [node for node in order if node in sides and loops[node]]


def _keeps_columns(shape: Shape, columns: int) -> bool:
    """Whether the last axes of a shape are those of a row."""
    size = 1
    for n in reversed(shape):
        if size == columns:
            return True
        size *= n
    return size == columns


def below_views(node: Node) -> Node:
    """What stands below views and casts."""
    while node.prim in _SEEN_THROUGH and (node.prim is not p.PAD or node.args[1].prim is p.CONST):
        node = node.args[0]
    return node


def _operands(product: Node) -> Iterator[Node]:
    """What the sides are made of."""
    for side in map(below_views, product.args):
        if side.prim not in (p.INPUT, p.RESULT, p.CONST, p.IOTA):
            yield side
