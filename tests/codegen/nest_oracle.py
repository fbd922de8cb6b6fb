"""The meaning of a loop program: one index after another, one scalar expression at a time.  Slow and plain: the oracle of emit."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from thermit.ir import prims as p
from thermit.ir.interp import evaluate
from thermit.ir.node import Node, toposort
from thermit.loops.nest import Acc, Check, For, LoopProgram, Stmt, Store


class Stopped(Exception):
    """A check failed."""


class Machine:
    """Memories (by name, as interp holds their values) and what indices and locals now are."""

    def __init__(self, program: LoopProgram, memories: dict[str, np.ndarray]) -> None:
        self.program, self.memories = program, memories
        self.bound: dict[Node, Any] = {}

    def value(self, root: Node) -> Any:
        values: dict[Node, Any] = {}

        def get(node: Node) -> Any:
            if node in values:
                return values[node]
            if node in self.bound:
                found = self.bound[node]
            elif node.prim is p.LOAD:
                guard = len(node.args) < 2 or bool(get(node.args[1]))
                found = self.memories[node.attrs.name][int(get(node.args[0]))] if guard else np.zeros((), node.dtype.numpy)[()]
            else:
                found = evaluate(node, [np.asarray(get(a)) for a in node.args])[()]
            values[node] = found
            return found

        for node in toposort([root]):
            if node.prim not in (p.LOAD, p.INDEX, p.LOCAL) and not any(a.prim is p.LOAD for a in toposort(node.args)):
                get(node)
        return get(root)

    def run(self, begin: int, end: int) -> None:
        for index in range(begin, end):
            self.bound[self.program.index] = np.int64(index)
            for m in self.program.memories:
                if m.role == "row":
                    self.memories[m.name] = np.zeros(m.elems, m.dtype.numpy)
            self.body(self.program.body)

    def body(self, statements: tuple[Stmt, ...]) -> None:
        for is_store, group in itertools.groupby(statements, lambda s: isinstance(s, Store)):
            if is_store:
                writes = [(s.memory, int(self.value(s.offset)), self.value(s.value)) for s in group if s.guard is None or self.value(s.guard)]
                for memory, offset, value in writes:
                    self.memories[memory][offset] = value
                continue
            for s in group:
                if isinstance(s, For):
                    self.loop(s)
                elif isinstance(s, Check) and not self.value(s.ok):
                    raise Stopped

    def loop(self, s: For) -> None:
        extent = s.extent if isinstance(s.extent, int) else int(self.value(s.extent))
        state: dict[Acc, Any] = {a: (None, 0) if a.position is not None else self.value(a.init) for a in s.accs}
        for index in range(extent):
            self.bound[s.index] = np.int64(index)
            for a in s.accs:
                if a.position is None:
                    self.bound[a.local] = state[a]
            self.body(s.body)
            state = {a: self.step(a, state[a]) for a in s.accs}
        for a in s.accs:
            self.bound[a.local] = np.int64(state[a][1]) if a.position is not None else state[a]

    def step(self, a: Acc, old: Any) -> Any:
        new = self.value(a.value)
        if a.combine is None:
            return new
        if a.position is not None:
            best, _ = old
            better = best is None or (np.isnan(new) and not np.isnan(best)) or (new > best if a.combine is p.ARGMAX else new < best)
            return (new, int(self.value(a.position))) if better else old
        with np.errstate(all="ignore"):
            assert a.combine.ref is not None
            return a.combine.ref(old, new)
