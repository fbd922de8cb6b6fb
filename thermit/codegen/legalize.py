"""Expressions that the target has instructions for.

    before    out[i] = (tanh(x[i]) * 2.0)
    after     out[i] = (where((x[i] == 0.0), x[i], float32(div(...))) * 2.0)

In: a loop program whose expressions use any map primitive.  Out: the same program in which every primitive has an LLVM spelling
for its operands (`fp` or `integer` in ir/prims.py).  The one idea: a mathematical function is an expression like any other, so
it is inlined, vectorised and shared with its neighbours by the same emitter.  Everything else of the program is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from thermit.codegen import circular, double, single_arcs, single_circular, single_erf, single_exp, single_log, single_pow
from thermit.codegen.target import Target
from thermit.codegen.unfused import without_fma
from thermit.errors import CompileError
from thermit.ir import prims as p
from thermit.ir.build import rebuild
from thermit.ir.node import Node, toposort
from thermit.ir.prims import Prim
from thermit.ir.types import FLOAT32, FLOAT64, DType
from thermit.loops.nest import Acc, Chain, Check, For, LoopProgram, Product, Stmt, Store, Tile

Function = Callable[..., Node]

MATHEMATICS: dict[DType, dict[Prim, Function]] = {
    FLOAT32: {
        p.EXP: single_exp.exp, p.EXP_FALLING: single_exp.exp_falling, p.EXP2: single_exp.exp2, p.EXPM1: single_exp.expm1,
        p.LOG: single_log.log, p.LOG2: single_log.log2, p.LOG10: single_log.log10, p.LOG1P: single_log.log1p,
        p.SIN: single_circular.sin, p.COS: single_circular.cos, p.TAN: single_circular.tan,
        p.ASIN: single_arcs.asin, p.ACOS: single_arcs.acos, p.ATAN: single_arcs.atan,
        p.SINH: single_exp.sinh, p.COSH: single_exp.cosh, p.TANH: single_exp.tanh,
        p.ASINH: single_log.asinh, p.ACOSH: single_log.acosh, p.ATANH: single_log.atanh,
        p.ERF: single_erf.erf, p.ERFC: single_erf.erfc, p.SIGMOID: single_exp.sigmoid,
        p.POW: single_pow.pow_, p.ATAN2: single_arcs.atan2, p.HYPOT: single_pow.hypot,
    },
    FLOAT64: {
        p.EXP: double.exp, p.EXP_FALLING: double.exp_falling, p.EXP2: double.exp2, p.EXPM1: double.expm1,
        p.LOG: double.log, p.LOG2: double.log2, p.LOG10: double.log10, p.LOG1P: double.log1p,
        p.SIN: circular.sin, p.COS: circular.cos, p.TAN: circular.tan, p.ASIN: circular.asin, p.ACOS: circular.acos, p.ATAN: circular.atan,
        p.SINH: double.sinh, p.COSH: double.cosh, p.TANH: double.tanh, p.ASINH: double.asinh, p.ACOSH: double.acosh, p.ATANH: double.atanh,
        p.ERF: circular.erf, p.ERFC: circular.erfc, p.SIGMOID: double.sigmoid,
        p.POW: double.pow_, p.ATAN2: circular.atan2, p.HYPOT: double.hypot,
    },
}  # fmt: skip


class Legalizer:
    """Rewrites expressions, each shared node once."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.legal: dict[Node, Node] = {}

    def expression(self, root: Node) -> Node:
        for node in toposort([root]):
            if node not in self.legal:
                self.legal[node] = self._node(rebuild(node, tuple(self.legal[a] for a in node.args)))
        return self.legal[root]

    def _node(self, node: Node) -> Node:
        """The node, its args legal already, in primitives that have a spelling."""
        if node.prim.kind != "map":
            return node
        kind = node.args[0].dtype
        function = MATHEMATICS.get(kind, {}).get(node.prim)
        if function is not None:
            return self._without_fma(function(*node.args), node.args)
        if node.prim in (p.CAST, p.BITCAST, p.WHERE, p.SELDOM) or (node.prim.fp if kind.is_float else node.prim.integer) is not None:
            return self._without_fma(node, node.args)
        raise CompileError(f"{node.prim} of {kind} has no code", advice="This is a fault of thermit's: please report it with explain().")

    def _without_fma(self, root: Node, known: Iterable[Node]) -> Node:
        """The expression with fused operations spelled out where the target has none; `known` are legal and stay."""
        return root if self.target.has_fma else without_fma(root, known)

    def _optional(self, root: Node | None) -> Node | None:
        return None if root is None else self.expression(root)

    def _acc(self, acc: Acc) -> Acc:
        return replace(acc, init=self.expression(acc.init), value=self.expression(acc.value), position=self._optional(acc.position))

    def statement(self, s: Stmt) -> Stmt:
        match s:
            case Store():
                return replace(s, offset=self.expression(s.offset), value=self.expression(s.value), guard=self._optional(s.guard))
            case Check():
                return replace(s, ok=self.expression(s.ok))
            case For():
                extent = s.extent if isinstance(s.extent, int) else self.expression(s.extent)
                return replace(s, extent=extent, body=tuple(map(self.statement, s.body)), accs=tuple(map(self._acc, s.accs)))
            case Tile():
                return s  # addresses and loads only
            case Product() | Chain():
                raise CompileError("a product that was not tiled", advice="This is a fault of thermit's: please report it with explain().")


def legalize(program: LoopProgram, target: Target) -> LoopProgram:
    """The program in primitives that have a spelling on the target."""
    legalizer = Legalizer(target)
    return replace(program, body=tuple(map(legalizer.statement, program.body)))
