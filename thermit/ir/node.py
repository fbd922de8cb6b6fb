"""Nodes and graphs.

    node  ::=  prim(args..., attrs) : type          immutable and interned: equal expressions are one object
    graph ::=  inputs, outputs, updates, effects, returns

Common subexpressions merge when they are built and dead code is what no output reaches; neither needs a pass.
Source lines do not live here (two functions may share a node): the trace keeps them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import field
from typing import Any

from thermit.ir.prims import Call, Pad, Prim, Scatter, Slice, Strided
from thermit.ir.types import DType, Shape, TensorType
from thermit.locks import reentrant_lock
from thermit.records import dataclass

Key = tuple[Prim, tuple["Node", ...], Any, TensorType]
_table: weakref.WeakValueDictionary[Key, Node] = weakref.WeakValueDictionary()
_lock = reentrant_lock()  # a finalizer or signal handler may make nodes while one is made


class Node:
    """An application of a primitive.  Make it with `ir.build`, which gives canonical form; compare with `is`."""

    __slots__ = ("__weakref__", "args", "attrs", "prim", "type")
    prim: Prim
    args: tuple[Node, ...]
    attrs: Any
    type: TensorType

    def __new__(cls, prim: Prim, args: tuple[Node, ...], attrs: Any, type: TensorType) -> Node:
        key = (prim, args, attrs, type)
        with _lock:
            known = _table.data.get(key)  # type: ignore[attr-defined]
            node = None if known is None else known()
            if node is None:
                node = object.__new__(cls)
                node.prim, node.args, node.attrs, node.type = key
                _table[key] = node
        return node

    @property
    def shape(self) -> Shape:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    def __repr__(self) -> str:
        return f"{self.prim.name}:{self.type}"

    def __reduce__(self) -> tuple[Any, ...]:
        return Node, (self.prim, self.args, self.attrs, self.type)


def toposort(roots: Iterable[Node], leaves: Iterable[Node] = (), within: Container[Node] | None = None) -> list[Node]:
    """Every node that the roots reach, args before users, each once: without the leaves and what only they reach, and, where `within`
    is given, through nodes in it alone."""
    order: list[Node] = []
    done: set[Node] = set(leaves)
    stack: list[tuple[Node, Iterator[Node]]] = []
    for root in roots:
        if root in done:
            continue
        done.add(root)
        stack.append((root, iter(root.args)))
        while stack:
            node, rest = stack[-1]
            for arg in rest:
                if arg not in done and (within is None or arg in within):
                    done.add(arg)
                    stack.append((arg, iter(arg.args)))
                    break
            else:
                order.append(node)
                stack.pop()
    return order


def users(order: Iterable[Node]) -> dict[Node, list[Node]]:
    """Who reads each node, in the given order; a reader that reads it twice stands there twice."""
    readers: dict[Node, list[Node]] = {}
    for node in order:
        readers.setdefault(node, [])
        for arg in node.args:
            readers.setdefault(arg, []).append(node)
    return readers


@dataclass(frozen=True, slots=True)
class Output:
    """A tensor with fresh storage: its value and the strides (in elements) that eager gives it; dense, no overlap."""

    value: Node
    strides: Shape


@dataclass(frozen=True, slots=True)
class Update:
    """Input number `input` is overwritten, through its own strides, with `value` when the call ends."""

    input: int
    value: Node


@dataclass(frozen=True, slots=True)
class Window:
    """Sizes, strides and storage offset (elements, absolute for inputs' storages, relative to 0 for outputs)."""

    sizes: Shape
    strides: Shape
    offset: int


@dataclass(frozen=True, slots=True)
class Return:
    """One tensor of the function's result: input number or output number `index`, seen through `window` (None: the tensor itself).

    `way`: a window is a view of the tensor, or, for autograd, of its `detach()` or its `data`.
    """

    source: str  # "input" | "output"
    index: int
    window: Window | None = None
    way: str = "view"  # | "detach" | "data"


@dataclass(frozen=True, slots=True)
class Graph:
    """A traced function.  `strides[i]` are the strides of input i; `effects` are calls that must happen, in order."""

    inputs: tuple[Node, ...]
    strides: tuple[Shape, ...]
    outputs: tuple[Output, ...]
    updates: tuple[Update, ...] = ()
    effects: tuple[Node, ...] = ()
    returns: tuple[Return, ...] = field(default=())

    @property
    def roots(self) -> tuple[Node, ...]:
        return (*(o.value for o in self.outputs), *(u.value for u in self.updates), *self.effects)

    def map_roots(self, function: Callable[[Node], Node]) -> Graph:
        """The graph with every root replaced by function(root); types must not change."""
        return Graph(
            self.inputs,
            self.strides,
            tuple(Output(function(o.value), o.strides) for o in self.outputs),
            tuple(Update(u.input, function(u.value)) for u in self.updates),
            tuple(function(e) for e in self.effects),
            self.returns,
        )


# ---------------------------------------------------------------------------------------------- text
def attrs_text(attrs: Any) -> str:
    """The attrs as they stand in the text of a graph: only what is not zero or obvious."""
    match attrs:
        case None:
            return ""
        case Slice(starts, steps):
            return "[" + ", ".join(f"{s}:" if t == 1 else f"{s}::{t}" for s, t in zip(starts, steps, strict=True)) + "]"
        case Pad(low, high, interior):
            return "[" + ", ".join(f"{a}+{b}" + (f"/{c}" if c else "") for a, b, c in zip(low, high, interior, strict=True)) + "]"
        case Strided(strides, offset):
            return f"[{offset} + {list(strides)}]"
        case Scatter(combine):
            return f"[{combine}]"
        case Call():
            return f"[{attrs.op}]"
    values = [getattr(attrs, name) for name in attrs.__slots__ if name != "key"]
    return "[" + ", ".join(str(list(v)) if isinstance(v, tuple) else str(v) for v in values) + "]"


def graph_text(graph: Graph) -> str:
    """The graph as readable lines: `%3 = mul %1 %2 : float32[4]`; constants stand where they are read."""
    names: dict[Node, str] = {}
    lines: list[str] = []
    for i, (node, strides) in enumerate(zip(graph.inputs, graph.strides, strict=True)):
        names[node] = f"%in{i}"
        lines.append(f"%in{i} : {node.type} strides {list(strides)}")
    for node in toposort(graph.roots):
        if node in names:
            continue
        if node.prim.kind == "const":
            names[node] = repr(node.attrs)
            continue
        names[node] = f"%{len(names)}"
        operands = "".join(" " + names[a] for a in node.args)
        lines.append(f"{names[node]} = {node.prim.name}{attrs_text(node.attrs)}{operands} : {node.type}")
    lines += [f"output {i} = {names[o.value]} strides {list(o.strides)}" for i, o in enumerate(graph.outputs)]
    lines += [f"update %in{u.input} = {names[u.value]}" for u in graph.updates]
    lines += [f"effect {names[e]}" for e in graph.effects]
    for r in graph.returns:
        seen = "" if r.window is None else f" sizes {list(r.window.sizes)} strides {list(r.window.strides)} offset {r.window.offset}"
        lines.append(f"return {r.source} {r.index}{seen}{'' if r.way == 'view' else ' ' + r.way}")
    return "\n".join(lines) + "\n"
