"""Transposed reads in blocks: at sizes with and without a rest, of several ranks and types, mixed with what is not transposed."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.native import run, to_memory
from thermit.ir import build as b
from thermit.ir.node import Node
from thermit.ir.types import BOOL, FLOAT32, FLOAT64, INT64, UINT8, DType
from thermit.loops.blocks import blocked
from thermit.loops.nest import Check, For, LoopProgram, Memory, Store, program_text
from thermit.loops.tile import tile


class Bits:
    vector_bits = 256
    l2_bytes = 1 << 19


i, j, k = b.index("i"), b.index("j"), b.index("k")


def at(*terms: tuple[Node, int]) -> Node:
    total = b.const(0, INT64)
    for index, step in terms:
        total = b.add(total, b.mul(index, step))
    return total


def samples(shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    return to_memory(np.random.default_rng(0).integers(0, 2 if dtype is BOOL else 100, shape).astype(dtype.numpy), dtype)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64, UINT8, BOOL], ids=str)
@pytest.mark.parametrize("rows,cols", [(16, 64), (64, 128), (33, 70), (17, 200), (129, 65)])
def test_a_transposed_matrix_and_one_that_is_not(rows: int, cols: int, dtype: DType) -> None:
    """out[i, j] = choose(x[j, i] == z[j], y[i, j], x[j, i]), x being [cols, rows]."""
    x, y = b.load("x", dtype, at((j, rows), (i, 1))), b.load("y", dtype, at((i, cols), (j, 1)))
    value = b.where(b.eq(x, b.load("z", dtype, j)), y, x)
    memories = (
        Memory("x", dtype, "in", rows * cols),
        Memory("y", dtype, "in", rows * cols),
        Memory("z", dtype, "in", cols),
        Memory("o", dtype, "out", rows * cols),
    )
    program = LoopProgram("kernel", memories, i, rows, (For(j, cols, (Store("o", at((i, cols), (j, 1)), value),)),))
    made = tile(program, Bits())
    assert "block" in program_text(made)
    a, c, z, out = (
        samples((cols, rows), dtype),
        samples((rows, cols), dtype),
        samples((cols,), dtype),
        np.zeros((rows, cols), samples((1,), dtype).dtype),
    )
    assert run(made, [a, c, z, out]) == 0
    assert np.array_equal(out, np.where(z == a.T, c, a.T))


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0)])
def test_other_loops_stay_around(order: tuple[int, int, int]) -> None:
    """out[k, i, j] = x[k, j, i] + w[k], the loops in any order."""
    batch, rows, cols = 3, 40, 65
    value = b.add(b.load("x", FLOAT32, at((k, rows * cols), (j, rows), (i, 1))), b.load("w", FLOAT32, k))
    loops = [(k, batch), (i, rows), (j, cols)]
    (outer, size), middle, inner = (loops[a] for a in order)
    store = Store("o", at((k, rows * cols), (i, cols), (j, 1)), value)
    n = batch * rows * cols
    memories = (Memory("x", FLOAT32, "in", n), Memory("w", FLOAT32, "in", batch), Memory("o", FLOAT32, "out", n))
    made = blocked(LoopProgram("kernel", memories, outer, size, (For(*middle, (For(*inner, (store,)),)),)), 256)
    assert made is not None
    x, w, out = samples((batch, cols, rows), FLOAT32), samples((batch,), FLOAT32), np.zeros((batch, rows, cols), np.float32)
    assert run(made, [x, w, out]) == 0
    assert np.array_equal(out, x.transpose(0, 2, 1) + w[:, None, None])


def test_guards_of_loads_and_stores_hold() -> None:
    n = 50
    outside = b.lt(i, n - 2)
    x = b.load("x", FLOAT32, at((j, n), (i, 1)), outside)
    program = LoopProgram("kernel", (Memory("x", FLOAT32, "in", n * n), Memory("o", FLOAT32, "out", n * n)), i, n,
                          (For(j, n, (Store("o", at((i, n), (j, 1)), x, b.ge(j, 3)),)),))  # fmt: skip
    made = blocked(program, 256)
    assert made is not None
    a, out = samples((n, n), FLOAT32), np.full((n, n), -1, np.float32)
    assert run(made, [a, out]) == 0
    want = a.T.copy()
    want[n - 2 :] = 0
    want[:, :3] = -1
    assert np.array_equal(out, want)


def test_what_is_not_transposed_or_not_safe_stays() -> None:
    n = 64
    x, o = Memory("x", FLOAT32, "in", n * n), Memory("o", FLOAT32, "out", n * n)
    turned, straight = b.load("x", FLOAT32, at((j, n), (i, 1))), b.load("x", FLOAT32, at((i, n), (j, 1)))
    place = at((i, n), (j, 1))

    def nest(body: tuple, memories: tuple = (x, o), extent: int = n) -> LoopProgram:
        return LoopProgram("kernel", memories, i, extent, (For(j, extent, body),))

    assert blocked(nest((Store("o", place, turned),)), 256) is not None
    assert blocked(nest((Store("o", place, straight),)), 256) is None
    assert blocked(nest((Store("o", place, turned),), extent=8), 256) is None  # small
    assert blocked(nest((Check(b.lt(turned, 3.0)), Store("o", place, turned))), 256) is None
    assert blocked(nest((Store("x", place, turned),), (Memory("x", FLOAT32, "inout", n * n),)), 256) is None  # reads what it writes
    aliased = (Memory("x", FLOAT32, "in", n * n, ("o",)), o)
    assert blocked(nest((Store("o", place, turned),), aliased), 256) is None
