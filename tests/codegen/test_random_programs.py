"""Random loop programs, emitted and run, against the oracle: nests, modes, memories, guards and accumulators in every mixture."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.codegen.native import from_memory, memory_numpy, run, same, to_memory
from tests.codegen.nest_oracle import Machine, Stopped
from thermit.codegen.target import x86_target
from thermit.ir import build as b
from thermit.ir import prims as p
from thermit.ir.node import Node
from thermit.ir.types import BFLOAT16, BOOL, FLOAT32, FLOAT64, INT8, INT32, INT64, DType
from thermit.loops.nest import Acc, Check, For, LoopProgram, Memory, Stmt, Store, program_text

DTYPES = (FLOAT32, FLOAT64, INT32, INT64, INT8, BOOL, BFLOAT16)
ELEMS = 97  # of every memory: offsets are folded into it
SEEDS = 40


class Maker:
    """Makes a program whose sums are exact (small integers in floats), so that their order does not matter."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.inputs = [Memory(f"in{k}", self.rng.choice(DTYPES), "in", ELEMS) for k in range(3)] + [Memory("at", INT64, "in", ELEMS)]
        self.outputs: list[Memory] = []  # one for each store: lanes write in no order
        self.both = [
            Memory("both", self.rng.choice((FLOAT32, INT32)), "inout", ELEMS),
            Memory("row", self.rng.choice((FLOAT32, INT64, BOOL)), "row", ELEMS),
        ]
        self.indices: list[tuple[Node, int]] = []  # with their extents
        self.locals: list[Node] = []
        self.names = 0
        self.has_vector = False

    def name(self, stem: str) -> str:
        self.names += 1
        return f"{stem}{self.names}"

    # -------------------------------------------------------------------------------- expressions
    def offset(self) -> Node:
        """An int64 within a memory: affine in the indices, or data."""
        rng = self.rng
        if rng.random() < 0.2:
            return b.load("at", INT64, self.affine())
        return self.affine()

    def affine(self) -> Node:
        total, reach = b.const(0, INT64), 0
        for index, extent in self.rng.sample(self.indices, min(len(self.indices), self.rng.choice((1, 1, 2)))):
            step = self.rng.choice((1, 1, 1, 2, 3, -1, 0))
            if reach + abs(step) * (extent - 1) >= ELEMS or extent < 1:
                continue
            reach += abs(step) * (extent - 1)
            term = b.sub(b.const(extent - 1, INT64), index) if step < 0 else index
            total = b.add(total, b.mul(term, abs(step)))
        return b.add(total, self.rng.randrange(ELEMS - reach))

    def condition(self) -> Node:
        rng = self.rng
        if rng.random() < 0.5 and self.indices:
            x, y = self.affine(), self.affine() if rng.random() < 0.5 else b.const(rng.randrange(ELEMS), INT64)
            return rng.choice((b.lt, b.le, b.ge, b.eq, b.ne))(x, y)
        return b.lt(self.expression(FLOAT32, 1), b.const(rng.randrange(-2, 4), FLOAT32))

    def leaf(self, dtype: DType) -> Node:
        rng = self.rng
        local = [n for n in self.locals if n.dtype is dtype]
        if local and rng.random() < 0.4:
            return rng.choice(local)
        if rng.random() < 0.2:
            return b.const(rng.randrange(-3, 4), dtype)
        memory = rng.choice(self.inputs + self.both)
        guard = self.condition() if rng.random() < 0.2 else None
        return b.cast(b.load(memory.name, memory.dtype, self.offset(), guard), dtype)

    def expression(self, dtype: DType, depth: int) -> Node:
        rng = self.rng
        if dtype is BFLOAT16:
            return b.cast(self.expression(FLOAT32, depth), dtype)
        if depth == 0:
            return self.leaf(dtype)
        if dtype is BOOL:
            return rng.choice((b.and_, b.or_, b.xor))(self.condition(), self.leaf(BOOL)) if rng.random() < 0.5 else b.not_(self.condition())
        kind = rng.randrange(6)
        if kind == 0:
            return b.where(self.condition(), self.expression(dtype, depth - 1), self.expression(dtype, depth - 1))
        if kind == 1:
            return b.cast(self.expression(rng.choice((INT32, INT64, FLOAT64)), depth - 1), dtype)
        if kind == 2 and not dtype.is_float:
            return rng.choice((b.div, b.rem))(self.expression(dtype, depth - 1), b.const(rng.choice((2, 3, 5, -2)), dtype))
        return rng.choice((b.add, b.sub, b.minimum, b.maximum))(self.expression(dtype, depth - 1), self.expression(dtype, depth - 1))

    # -------------------------------------------------------------------------------- statements
    def body(self, depth: int, in_vector: bool) -> tuple[Stmt, ...]:
        statements: list[Stmt] = []
        for _ in range(self.rng.choice((1, 1, 2, 3))):
            roll = self.rng.random()
            if depth > 0 and roll < 0.55:
                statements.append(self.loop(depth - 1, in_vector))
            elif roll < 0.62:
                statements.append(Check(b.or_(self.condition(), b.le(self.leaf(INT64), b.const(1 << 40, INT64)))))
            else:
                statements.append(self.store(in_vector))
        return tuple(statements)

    def store(self, in_vector: bool) -> Store:
        """To a place of its own for each iteration of all loops around; a vector loop must not read what its other lanes write."""
        rng = self.rng
        total, size = b.const(0, INT64), 1
        for index, extent in self.indices:
            total, size = b.add(b.mul(total, max(extent, 1)), index), size * max(extent, 1)
        guard = self.condition() if rng.random() < 0.25 else None
        if in_vector or size > ELEMS or rng.random() < 0.6:
            memory = Memory(self.name("out"), rng.choice(DTYPES), "out", size)
            self.outputs.append(memory)
            if rng.random() < 0.2:
                total = b.sub(b.const(size - 1, INT64), total)
        else:
            memory = rng.choice(self.both)
        return Store(memory.name, total, self.expression(memory.dtype, rng.randrange(3)), guard)

    def loop(self, depth: int, in_vector: bool) -> For:
        rng = self.rng
        index = b.index(self.name("i"))
        mode = rng.choice(("serial", "unroll", "vector", "vector")) if not in_vector else rng.choice(("serial", "unroll"))
        extent = rng.choice((0, 1, 2, 3, 5)) if mode == "unroll" else rng.choice((0, 1, 3, 7, 8, 11, 16, 19) if depth else (1, 2, 5, 9, 17))
        width = rng.choice((2, 4, 8, 16)) if mode == "vector" else 1
        inits = [self.accumulator(mode, extent) for _ in range(rng.choice((0, 0, 1, 2)))]
        outer = len(self.locals)
        self.indices.append((index, extent))
        if mode != "vector":
            self.locals += [local for local, combine, _ in inits if combine not in (p.ARGMAX, p.ARGMIN)]
        body = self.body(depth, in_vector or mode == "vector")
        del self.locals[outer:]
        lanes = rng.choice((1, 1, 2, 4)) if mode == "vector" else 1
        accs = [self.finished(local, combine, init, index, lanes) for local, combine, init in inits]
        self.indices.pop()
        self.locals += [a.local for a in accs]
        dynamic = mode != "unroll" and rng.random() < 0.25
        size: int | Node = b.minimum(b.const(extent, INT64), b.load("at", INT64, b.const(rng.randrange(ELEMS), INT64))) if dynamic else extent
        if dynamic and any(a.position is not None for a in accs):
            size = extent
        return For(index, size, body, mode, width, tuple(accs))  # type: ignore[arg-type]

    def accumulator(self, mode: str, extent: int) -> tuple[Node, p.Prim | None, Node]:
        dtype = self.rng.choice((FLOAT32, FLOAT64, INT32, INT8, BOOL, INT64))
        prims: list[p.Prim | None] = [p.AND, p.OR] if dtype is BOOL else [p.ADD, p.MIN, p.MAX] + ([] if dtype.is_float else [p.MUL, p.AND, p.OR])
        combine = self.rng.choice(prims + ([None] if mode != "vector" else []) + ([p.ARGMAX, p.ARGMIN] if extent else []))
        if combine in (p.ARGMAX, p.ARGMIN):
            return b.local(self.name("t"), INT64), combine, b.const(0, INT64)
        return b.local(self.name("t"), dtype), combine, self.expression(dtype, 1)

    def finished(self, local: Node, combine: p.Prim | None, init: Node, index: Node, lanes: int) -> Acc:
        if combine in (p.ARGMAX, p.ARGMIN):
            worst = b.const(-np.inf if combine is p.ARGMAX else np.inf, FLOAT32)
            position = index if self.rng.random() < 0.6 else b.add(b.mul(index, 2), 1)
            return Acc(local, combine, worst, self.expression(FLOAT32, 1), position, lanes)
        return Acc(local, combine, init, self.expression(local.dtype, 1), None, lanes)

    def program(self) -> LoopProgram:
        rng = self.rng
        index, extent = b.index("p"), rng.choice((1, 2, 3, 5, 9))
        vector = rng.random() < 0.3
        self.indices.append((index, extent))
        if vector:
            self.both = self.inputs[:1]
        fill = b.index("f")  # a row holds nothing before it is written
        start = () if vector else (For(fill, ELEMS, (Store("row", fill, b.cast(b.rem(b.add(fill, index), 3), self.both[1].dtype)),), "vector", 8),)
        body = (*start, *self.body(2, vector))
        memories = self.inputs + self.outputs + ([] if vector else self.both)
        return LoopProgram("kernel", tuple(memories), index, extent, body, "vector" if vector else "serial", rng.choice((4, 8)) if vector else 1)


def values(dtype: DType, n: int, rng: np.random.Generator) -> np.ndarray:
    return (rng.integers(0, 2, n).astype(bool) if dtype is BOOL else rng.integers(-3, 4, n)).astype(dtype.numpy)


def check(seed: int) -> None:
    program = Maker(seed).program()
    rng = np.random.default_rng(seed)
    held = {m.name: values(m.dtype, m.elems, rng) for m in program.memories}
    held["at"] = rng.integers(0, ELEMS, ELEMS)
    native = [to_memory(held[m.name], m.dtype).copy() for m in program.memories if m.role != "row"]
    stopped = False
    try:
        Machine(program, held).run(0, program.extent)
    except Stopped:
        stopped = True
    target = x86_target("sse4") if seed % 3 == 2 else None  # masks without hardware
    assert run(program, native, target=target) == int(stopped), program_text(program)
    if stopped:
        return
    for m, array in zip([m for m in program.memories if m.role != "row"], native, strict=True):
        got = from_memory(array.view(memory_numpy(m.dtype)), m.dtype)
        assert same(got, held[m.name]).all(), f"seed {seed}, {m.name}: {np.flatnonzero(~same(got, held[m.name]))[:9]}\n{program_text(program)}"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_programs(seed: int) -> None:
    check(seed)
