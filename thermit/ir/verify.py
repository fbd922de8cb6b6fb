"""Invariants of a graph, checked after every stage in tests and when THERMIT_DEBUG is set.

A node's type must be what its constructor gives; inputs stand in their slots; outputs' strides fit their shapes.
"""

from __future__ import annotations

from thermit.errors import TypeRuleError, VerifyError
from thermit.ir import build
from thermit.ir import prims as p
from thermit.ir.node import Graph, Node, toposort
from thermit.ir.prims import PRIMS


def _node(node: Node) -> str | None:
    prim = node.prim
    if PRIMS.get(prim.name) is not prim:
        return "is no primitive of the table"
    if prim.kind == "loop":
        return "belongs in a loop program"
    if prim.arity is not None and len(node.args) != prim.arity:
        return f"takes {prim.arity} args, has {len(node.args)}"
    if prim.attrs is not None and not isinstance(node.attrs, prim.attrs):
        return f"has attrs {node.attrs!r}, not {prim.attrs.__name__}"
    if prim.kind == "map" and prim.result == "same" and any(a.type != node.type for a in node.args):
        return f"maps {[str(a.type) for a in node.args]} to {node.type}"
    if prim.kind == "map" and any(a.shape != node.shape for a in node.args):
        return f"maps shapes {[a.shape for a in node.args]} to {node.shape}"
    arithmetic = prim.kind in ("map", "reduce", "scan", "contract") and prim not in (p.CAST, p.BITCAST, p.WHERE)
    if arithmetic and any(a.dtype.is_half for a in node.args):
        return f"computes in {node.args[0].dtype}"
    try:
        again = build.construct(node, node.args)
    except TypeRuleError as fault:
        return f"cannot be built: {fault}"
    return None if again.type == node.type else f"has type {node.type}, its constructor gives {again.type}"


def verify(graph: Graph, stage: str = "") -> None:
    """Raises VerifyError that names the stage, the node and the fault."""

    def fail(what: str) -> None:
        raise VerifyError(f"after {stage or 'building'}: {what}", advice="This is a fault of thermit's: please report it with explain().")

    for i, node in enumerate(graph.inputs):
        if node.prim is not p.INPUT or node.attrs.index != i:
            fail(f"input {i} is {node!r}")
    known = set(graph.inputs)
    for node in toposort(graph.roots):
        if node.prim is p.INPUT and node not in known:
            fail(f"{node!r} {node.attrs} is not among the inputs")
        if (what := _node(node)) is not None:
            fail(f"{node!r} {what}")
    for output in graph.outputs:
        if len(output.strides) != output.value.type.ndim:
            fail(f"output {output.value!r} has strides {output.strides}")
    for update in graph.updates:
        if graph.inputs[update.input].type != update.value.type:
            fail(f"input {update.input} of type {graph.inputs[update.input].type} is updated with {update.value.type}")
