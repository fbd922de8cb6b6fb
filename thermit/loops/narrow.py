"""Counts in narrow integers.

What comes in: a program of serial loops.  What goes out: the same program, in which a count of at most 65535 flags (also one in
floats, for a mean) is kept in 16 bits, four times the lanes of int64, and widened once, behind its loop.  Flags that select among
32-bit elements besides are counted in 32 bits, as wide as the masks that they are.

    acc: int64 = 0;  for k < 1000: acc add= int64(flag[k])       ->   n: uint16 = 0;  for k < 1000: n add= uint16(flag[k])
    out = acc                                                          out = int64(n)
"""

from __future__ import annotations

from dataclasses import replace

from thermit.ir import build
from thermit.ir import prims as p
from thermit.ir.node import Node, toposort
from thermit.ir.types import BOOL, INT32, UINT16, DType
from thermit.loops.nest import Acc, For, LoopProgram, Stmt, exprs_of
from thermit.loops.rewrite import substitute

MOST = 65535


def narrowed(program: LoopProgram) -> LoopProgram:
    """The program with its counts of flags in 16 bits."""
    wide: dict[Node, Node] = {}
    body = tuple(_narrowed(s, wide) for s in program.body)
    return replace(program, body=substitute(body, dict(wide))) if wide else program


def _narrowed(s: Stmt, wide: dict[Node, Node]) -> Stmt:
    if not isinstance(s, For):
        return s
    body = tuple(_narrowed(t, wide) for t in s.body)
    accs = tuple(_count(a, wide, _width(a.value.args[0], s)) if _counts_flags(a, s) else a for a in s.accs)
    return replace(s, body=body, accs=accs)


def _counts_flags(a: Acc, loop: For) -> bool:
    """Whether this is a sum of flags as wide numbers that starts at zero and cannot leave 16 bits."""
    few = isinstance(loop.extent, int) and loop.extent <= MOST
    flags = a.value.prim is p.CAST and a.value.args[0].dtype is BOOL
    real = a.local.dtype.is_integer or a.local.dtype.is_float  # float32 holds every such count: its order does not matter
    wide = real and a.local.dtype.bits > UINT16.bits
    return few and flags and wide and a.combine is p.ADD and a.init.prim is p.CONST and a.init.attrs.value == 0


def _width(flag: Node, loop: For) -> DType:
    """The type of a count."""
    roots = exprs_of(loop.body) + [a.value for a in loop.accs]
    selects = any(n.prim is p.WHERE and n.args[0] is flag and n.dtype.bits == INT32.bits for n in toposort(roots))
    return INT32 if selects else UINT16


def _count(a: Acc, wide: dict[Node, Node], narrow: DType) -> Acc:
    """The same in fewer bits; `wide` learns what the old local is from now on."""
    local = build.local(a.local.attrs.name + "n", narrow)
    wide[a.local] = build.cast(local, a.local.dtype)
    return replace(a, local=local, init=build.const(0, narrow), value=build.cast(a.value.args[0], narrow))
