"""Replacing scalar expressions in loop programs."""

from __future__ import annotations

from dataclasses import replace

from thermit.ir import build
from thermit.ir import prims as p
from thermit.ir.node import Node, toposort
from thermit.loops.nest import Acc, Chain, Check, For, Product, Stmt, Store, Tile


def simplified(node: Node, args: tuple[Node, ...]) -> Node:
    """The node with other args; where conditions have become constants it is what they choose."""
    prim = node.prim
    if prim is p.WHERE and args[0].prim is p.CONST:
        return args[1] if args[0].attrs.value else args[2]
    if prim in (p.AND, p.OR) and args[0].type == args[1].type:
        for x, y in (args, args[::-1]):
            if x.prim is p.CONST and isinstance(x.attrs.value, bool):
                return y if x.attrs.value is (prim is p.AND) else x
    if prim is p.NOT and args[0].prim is p.CONST and isinstance(args[0].attrs.value, bool):
        return build.const(not args[0].attrs.value, args[0].dtype)
    if prim is p.LOAD and len(args) == 2 and args[1].prim is p.CONST:
        return build.load(node.attrs.name, node.dtype, args[0]) if args[1].attrs.value else build.const(0, node.dtype)
    return Node(prim, args, node.attrs, node.type)


def replaced(root: Node, new: dict[Node, Node]) -> Node:
    """The expression with nodes replaced; `new` grows to hold every node that was seen."""
    for node in toposort([root]):
        if node not in new:
            args = tuple(new[a] for a in node.args)
            new[node] = node if args == node.args else simplified(node, args)
    return new[root]


def substitute(body: tuple[Stmt, ...], new: dict[Node, Node]) -> tuple[Stmt, ...]:
    """The statements with nodes replaced; `new` grows to hold every node that was seen."""

    def expression(root: Node) -> Node:
        return replaced(root, new)

    def acc(a: Acc) -> Acc:
        return replace(a, init=expression(a.init), value=expression(a.value), position=None if a.position is None else expression(a.position))

    def product(s: Product) -> Product:
        return replace(s, left=expression(s.left), right=expression(s.right), body=tuple(statement(t) for t in s.body))

    def statement(s: Stmt) -> Stmt:
        match s:
            case Store():
                return Store(s.memory, expression(s.offset), expression(s.value), None if s.guard is None else expression(s.guard))
            case Check():
                return Check(expression(s.ok))
            case Product():
                return product(s)
            case Chain():
                between = tuple(t for t in map(statement, s.between) if isinstance(t, For))
                return Chain(product(s.first), between, product(s.second))
        extent = s.extent if isinstance(s.extent, int) else expression(s.extent)
        if isinstance(s, Tile):
            left, ahead = tuple(expression(x) for x in s.left), tuple(replace(a, offset=expression(a.offset)) for a in s.ahead)
            copied = None if s.copied is None else expression(s.copied)
            return replace(s, extent=extent, left=left, right=expression(s.right), offset=expression(s.offset), ahead=ahead, copied=copied)
        inner = tuple(statement(t) for t in s.body)
        return replace(s, extent=extent, body=inner, accs=tuple(acc(a) for a in s.accs))

    return tuple(statement(s) for s in body)
