"""The meaning of loop programs: numpy, lane by lane.  Slow and plain; the oracle for what the emitter makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from thermit.ir import interp
from thermit.ir import prims as p
from thermit.ir.node import Node, toposort
from thermit.loops.nest import Acc, Check, For, LoopProgram, Product, Stmt, Store, Tile

_FOLD = {p.ADD: np.add, p.MUL: np.multiply, p.MIN: np.minimum, p.MAX: np.maximum, p.AND: np.bitwise_and, p.OR: np.bitwise_or}


class Stopped(Exception):
    """A check did not hold."""


class OutOfBounds(Exception):
    """The program touched memory outside a buffer, or a row before it was written."""


class Machine:
    def __init__(self, program: LoopProgram, memories: dict[str, np.ndarray]) -> None:
        self.program, self.memories = program, dict(memories)
        self.env: dict[Node, Any] = {}
        self.mask: np.ndarray | None = None
        self.width = 1
        self.written = {m.name for m in program.memories if m.role in ("out", "inout", "row")}
        self.rows: dict[str, np.ndarray] = {}

    # ---------------------------------------------------------------- expressions
    def value(self, root: Node) -> Any:
        found: dict[Node, Any] = {}
        for node in toposort([root]):
            if node in self.env:
                found[node] = self.env[node]
            elif node.prim is p.LOAD:
                found[node] = self.load(node, [found[a] for a in node.args])
            elif node.prim in (p.INDEX, p.LOCAL):
                raise AssertionError(f"{node.attrs.name} is read outside of its loop")
            else:
                found[node] = interp.evaluate(node, [np.asarray(found[a]) for a in node.args])
        return found[root]

    def load(self, node: Node, args: list[Any]) -> np.ndarray:
        memory, name = self.memories[node.attrs.name], node.attrs.name
        offset = np.asarray(args[0])
        live = np.asarray(True) if len(args) < 2 else np.asarray(args[1])
        if self.mask is not None:
            live = live & self.mask
        offset, live = np.broadcast_arrays(offset, live)
        if (live & ((offset < 0) | (offset >= len(memory)))).any():
            raise OutOfBounds(f"load {name}[{offset}] of {len(memory)}")
        if name in self.rows and not (self.rows[name][np.where(live, offset, 0)] | ~live).all():
            raise OutOfBounds(f"row {name}[{offset}] is read before it is written")
        safe = np.where(live, offset, 0)
        if not len(memory):
            return np.zeros(offset.shape, memory.dtype)
        return np.where(live, memory[safe], np.zeros((), memory.dtype)).astype(memory.dtype)

    # ---------------------------------------------------------------- statements
    def store(self, s: Store, offset: Any, value: Any, guard: Any) -> None:
        lanes = (self.width,) if self.mask is not None else ()
        live = np.broadcast_to(np.asarray(True), lanes)
        if guard is not None:
            live = live & guard
        if self.mask is not None:
            live = live & self.mask
        offset, value = np.broadcast_to(offset, lanes), np.broadcast_to(value, lanes)
        memory = self.memories[s.memory]
        for k in np.ndindex(lanes):
            if live[k]:
                if not 0 <= offset[k] < len(memory):
                    raise OutOfBounds(f"store {s.memory}[{offset[k]}] of {len(memory)}")
                memory[offset[k]] = value[k]
                if s.memory in self.rows:
                    self.rows[s.memory][offset[k]] = True

    def body(self, body: tuple[Stmt, ...]) -> None:
        at = 0
        while at < len(body):
            s = body[at]
            if isinstance(s, Store):
                run = [s]
                while at + len(run) < len(body) and isinstance(after := body[at + len(run)], Store):
                    run.append(after)
                done = [(r, self.value(r.offset), self.value(r.value), None if r.guard is None else self.value(r.guard)) for r in run]
                for parts in done:
                    self.store(*parts)
                at += len(run)
                continue
            if isinstance(s, Check):
                ok = np.asarray(self.value(s.ok))
                if self.mask is not None:
                    ok = ok | ~self.mask
                if not ok.all():
                    raise Stopped
            elif isinstance(s, Product):
                self.product(s)
            elif isinstance(s, Tile):
                self.tile(s)
            else:
                self.loop(s)
            at += 1

    def product(self, s: Product) -> None:
        for i in range(s.rows.extent):
            for j in range(s.columns.extent):
                self.env |= {s.rows.index: np.int64(i), s.columns.index: np.int64(j), s.depth.index: np.arange(s.depth.extent)}
                left, right = (np.broadcast_to(self.value(x), s.depth.extent).astype(np.float64) for x in (s.left, s.right))
                self.env[s.local] = (left @ right).astype(s.local.dtype.numpy)
                self.body(s.body)

    def tile(self, s: Tile) -> None:
        extent = s.extent if isinstance(s.extent, int) else int(self.value(s.extent))
        if s.copied is not None:
            self.copy(s, s.copied, extent)
        self.env[s.index] = np.arange(extent)
        left = np.stack([np.broadcast_to(self.value(x), extent) for x in s.left])
        first = np.broadcast_to(self.value(s.right.args[0]), extent)
        right = np.stack([self.load(s.right, [first + c * s.apart]) for c in range(s.width)], -1)
        del self.env[s.index]
        made = left.astype(np.float64) @ right
        memory, rows, offset = self.memories[s.memory], self.rows.get(s.memory), int(self.value(s.offset))
        for r in range(len(s.left)):
            first = offset + r * s.step
            at = slice(first, first + (s.width - 1) * s.spread + 1, s.spread)
            if not 0 <= at.start <= at.stop <= len(memory):
                raise OutOfBounds(f"tile {s.memory}[{at.start}:{at.stop}] of {len(memory)}")
            if s.adds and rows is not None and not rows[at].all():
                raise OutOfBounds(f"row {s.memory}[{at.start}:{at.stop}] is added to before it is written")
            memory[at] = made[r] + (memory[at] if s.adds else 0)
            if rows is not None:
                rows[at] = True

    def copy(self, s: Tile, source: Node, extent: int) -> None:
        for k in range(extent):
            self.env[s.index] = np.int64(k)
            at = np.asarray(self.value(s.right.args[0])) + np.arange(s.width)
            guard = None
            if len(source.args) > 1:
                mask = source.args[1].args[0]
                guard = self.load(mask, [self.value(mask.args[0]) + np.arange(s.width)]) < 0
            args = [self.value(source.args[0]) + np.arange(s.width)]
            made = self.load(source, args if guard is None else [*args, guard])
            memory, rows = self.memories[s.right.attrs.name], self.rows.get(s.right.attrs.name)
            if not 0 <= at[0] <= at[-1] < len(memory):
                raise OutOfBounds(f"tile copies to {at} of {len(memory)}")
            memory[at] = made
            if rows is not None:
                rows[at] = True

    def loop(self, f: For) -> None:
        extent = f.extent if isinstance(f.extent, int) else int(self.value(f.extent))
        if f.mode == "vector":
            return self.vector(f, extent)
        lanes = (self.width,) if self.mask is not None else ()
        state = [self.start(a, lanes) for a in f.accs]
        for i in range(extent):
            self.env[f.index] = np.int64(i)
            for a, s in zip(f.accs, state, strict=True):
                self.env[a.local] = s[0]
            self.body(f.body)
            state = self.steps(f, state, self.mask)
        self.finish(f, state, None)

    def vector(self, f: For, extent: int) -> None:
        assert self.mask is None, "vector loops do not nest"
        self.width = f.width
        state = [self.start(a, (f.width,)) for a in f.accs]
        for i in range(0, extent, f.width):
            lanes = np.arange(i, i + f.width)
            self.mask = lanes < extent
            self.env[f.index] = lanes
            self.body(f.body)
            state = self.steps(f, state, self.mask)
        self.mask = None
        self.finish(f, state, f.width)

    def start(self, a: Acc, lanes: tuple[int, ...]) -> tuple[Any, Any]:
        return np.broadcast_to(self.value(a.init), lanes).copy() if lanes else self.value(a.init), np.zeros(lanes, np.int64)

    def steps(self, f: For, state: list[tuple[Any, Any]], mask: np.ndarray | None) -> list[tuple[Any, Any]]:
        new = [self.step(a, s) for a, s in zip(f.accs, state, strict=True)]
        if mask is None:
            return new
        return [tuple(np.where(mask, n, o) for n, o in zip(x, y, strict=True)) for x, y in zip(new, state, strict=True)]

    def step(self, a: Acc, state: tuple[Any, Any]) -> tuple[Any, Any]:
        value = self.value(a.value)
        if a.combine is None:
            return value, state[1]
        if a.combine in (p.ARGMAX, p.ARGMIN):
            assert a.position is not None
            return _better(a.combine, state, (np.asarray(value), np.asarray(self.value(a.position))))
        return _FOLD[a.combine](state[0], value), state[1]

    def finish(self, f: For, state: list[tuple[Any, Any]], width: int | None) -> None:
        self.env.pop(f.index, None)
        for a, (value, position) in zip(f.accs, state, strict=True):
            if a.combine in (p.ARGMAX, p.ARGMIN):
                if width is not None:
                    best = (value[0], position[0])
                    for k in range(1, width):
                        best = _better(a.combine, best, (value[k], position[k]))
                    position = best[1]
                self.env[a.local] = position
            elif width is not None:
                assert a.combine is not None
                out = value[0]
                for k in range(1, width):
                    out = _FOLD[a.combine](out, value[k])
                self.env[a.local] = out
            else:
                self.env[a.local] = value

    def run(self) -> None:
        program = self.program
        step = program.width if program.mode == "vector" else 1
        for i in range(0, program.extent, step):
            for m in program.memories:
                if m.role == "row":
                    self.memories[m.name] = np.zeros(m.elems, m.dtype.numpy)
                    self.rows[m.name] = np.zeros(m.elems, bool)
            self.env.clear()
            self.width = step
            if program.mode == "vector":
                lanes = np.arange(i, i + step)
                self.mask = lanes < program.extent
                self.env[program.index] = lanes
            else:
                self.env[program.index] = np.int64(i)
            self.body(program.body)
            self.mask = None


def _better(prim: p.Prim, x: tuple[Any, Any], y: tuple[Any, Any]) -> tuple[Any, Any]:
    """The better of two (value, position), the first of equals; a nan wins."""
    with np.errstate(all="ignore"):
        wins = y[0] > x[0] if prim is p.ARGMAX else y[0] < x[0]
        if np.asarray(x[0]).dtype.kind == "f":
            wins = (wins | np.isnan(y[0])) & ~np.isnan(x[0])
            tie = (y[0] == x[0]) | (np.isnan(y[0]) & np.isnan(x[0]))
        else:
            tie = y[0] == x[0]
    wins = wins | (tie & (y[1] < x[1]))
    return np.where(wins, y[0], x[0]), np.where(wins, y[1], x[1])


def run(program: LoopProgram, buffers: list[np.ndarray]) -> None:
    """Runs the program on flat arrays, one for each memory that is no row.  Raises Stopped, OutOfBounds."""
    names = [m.name for m in program.memories if m.role != "row"]
    with np.errstate(all="ignore"):
        Machine(program, dict(zip(names, buffers, strict=True))).run()
