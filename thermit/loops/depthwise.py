"""Convolutions of each channel by itself.

What comes in: a program that is one `Product` of one row, the right side of which is made of windows as in windows.py.  What goes out: loops
over tasks of some channels; in a task the masks are made once, then each channel is a loop over the places, all taps written out.

    product row < 1, column < 196: s = sum(k < 9) w[9 channel + k] * x[196 channel + column + 14 (k / 3) + k % 3 - 15]  where inside
 -> for task:
        inside[k, column] = -1 or 0
        for c < 16: for j < 196: vector
            out[...] = fma(x[... + 15] where inside[8, j], w[... + 8], fma(... x[... - 15] where inside[0, j] * w[...]))

Invariant: nothing is read where it is not inside; terms are added in the order of the taps.
"""

from __future__ import annotations

from dataclasses import replace

from thermit.ir import build
from thermit.ir import prims as p
from thermit.ir.node import Node, toposort
from thermit.ir.types import FLOAT32, FLOAT64, INT32, INT64
from thermit.loops.contraction import is_updated
from thermit.loops.index import ZERO, Indices, number
from thermit.loops.nest import For, LoopProgram, Memory, Product, Stmt, Store
from thermit.loops.rewrite import substitute
from thermit.loops.windows import INSIDE, cut, first_division, without_zeros

MOST_TAPS = 64  # all are written out
MOST_MASKS = 64 << 10  # elements, on the stack
CHANNELS = 32  # of a task: to make the masks costs as much as two channels or so
TASKS = 8


def depthwise(program: LoopProgram) -> LoopProgram | None:
    """The program as loops over channels; None where its product is none of this kind."""
    if len(program.body) != 1 or not isinstance(s := program.body[0], Product) or s.rows.extent != 1 or s.depth.extent > MOST_TAPS:
        return None
    right = without_zeros(s.right)
    same = s.left.dtype is s.right.dtype is s.local.dtype
    if not same or s.local.dtype not in (FLOAT32, FLOAT64) or right.prim is not p.LOAD or is_updated(program, s):
        return None
    made = Channels(program, s, right)
    return made.program() if made.is_possible() else None


class Channels:
    """One such product while it is taken apart."""

    def __init__(self, program: LoopProgram, s: Product, right: Node) -> None:
        self.origin, self.s, self.right = program, s, right
        self.indices = Indices()
        column = s.columns.index
        self.indices.extents |= {column: s.columns.extent, program.index: program.extent}
        self.dtype = s.local.dtype
        self.mask = INT32 if self.dtype.bits == 32 else INT64
        self.seen = [cut(right, {s.depth.index: number(k)}, self.indices) for k in range(s.depth.extent)]
        self.guards = [load.args[1] if load.prim is p.LOAD and len(load.args) > 1 else None for load in self.seen]

    def is_possible(self) -> bool:
        """Whether neighbouring columns read neighbours at every tap, and the guards are the same for all channels."""
        column = self.s.columns.index
        for load, guard in zip(self.seen, self.guards, strict=True):
            if load.prim is not p.LOAD:
                return False
            terms = self.indices.form(load.args[0])[1]
            if terms.get(column) != 1 or any(column in toposort([atom]) for atom in terms if atom is not column):
                return False
            asked = toposort([guard]) if guard is not None else []
            if self.origin.index in asked or any(n.prim in (p.LOAD, p.LOCAL) for n in asked):
                return False
        return any(g is not None for g in self.guards) and self.s.depth.extent * self.s.columns.extent <= MOST_MASKS

    def program(self) -> LoopProgram:
        s, batch = self.s, self.origin.extent
        channels = -(-batch // max(TASKS, -(-batch // CHANNELS)))
        task, c, j = build.index("task"), build.index("c"), build.index("j")
        tasks = -(-batch // channels)
        count = channels if batch % channels == 0 else build.minimum(self.indices.linear([(-channels, task)], batch), channels)
        here = self.indices.linear([(channels, task), (1, c)])
        self.indices.extents |= {task: tasks, c: channels}
        new = {self.origin.index: here, s.rows.index: ZERO, s.columns.index: j}
        body = (For(c, count, (For(j, s.columns.extent, substitute(s.body, {**new, s.local: self.sum(new)})),)),)
        memory = Memory(INSIDE, self.mask, "row", s.depth.extent * s.columns.extent)
        return replace(self.origin, memories=(*self.origin.memories, memory), index=task, extent=tasks, body=(*self.masks(), *body))

    def masks(self) -> tuple[Stmt, ...]:
        """For each tap, row by row of the result."""
        r, w = build.index("mr"), build.index("mc")
        made: list[Stmt] = []
        for k, guard in enumerate(self.guards):
            if guard is not None:
                width = first_division([guard], self.s.columns)
                rows = -(-self.s.columns.extent // width)
                self.indices.extents |= {r: rows, w: width}
                place = self.indices.linear([(width, r), (1, w)])
                inside = cut(guard, {self.s.columns.index: place}, self.indices)
                value = build.where(inside, build.const(-1, self.mask), build.const(0, self.mask))
                at = self.indices.linear([(1, place)], k * self.s.columns.extent)
                made.append(For(r, number(rows), (For(w, width, (Store(INSIDE, at, value),)),)))
        return tuple(made)

    def sum(self, new: dict[Node, Node]) -> Node:
        """Of all taps at a place."""
        total: Node | None = None
        j = new[self.s.columns.index]
        for k, (load, guard) in enumerate(zip(self.seen, self.guards, strict=True)):
            at = self.indices.linear([(1, j)], k * self.s.columns.extent)
            mask = None if guard is None else build.lt(build.load(INSIDE, self.mask, at), 0)
            x = build.load(load.attrs.name, self.dtype, cut(load.args[0], dict(new), self.indices), mask)
            w = cut(self.s.left, {**new, self.s.depth.index: number(k)}, self.indices)
            total = build.mul(x, w) if total is None else build.fma(x, w, total)
        assert total is not None
        return total
