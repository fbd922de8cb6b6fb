"""Every mode of For, statement, and kind of memory access, on programs written by hand, against numpy."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from tests.codegen.native import map_program, run
from tests.codegen.test_spelling import spelled
from thermit.codegen.emit import emit
from thermit.codegen.register_tile import Shape
from thermit.codegen.target import host_target, x86_target
from thermit.codegen.tile_calls import is_multiple, name_of, text_of
from thermit.ir import build as b
from thermit.ir import prims as p
from thermit.ir.node import Node
from thermit.ir.types import BOOL, DTYPES, FLOAT32, FLOAT64, INT8, INT32, INT64, DType
from thermit.loops.nest import Acc, Check, For, LoopProgram, Memory, Store
from thermit.runtime.machine import MachineCode

i, j, k = b.index("i"), b.index("j"), b.index("k")
SIZES = [0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 70]


def c(value: int) -> Node:
    return b.const(value, INT64)


def f32(name: str, offset: Node, guard: Node | None = None) -> Node:
    return b.load(name, FLOAT32, offset, guard)


def one(name: str, dtype: DType, elems: int, role: str = "in", alias: tuple[str, ...] = ()) -> Memory:
    return Memory(name, dtype, role, elems, alias)  # type: ignore[arg-type]


def whole(memories: list[Memory], body: list, name: str = "kernel") -> LoopProgram:
    """A program without parallelism."""
    return LoopProgram(name, tuple(memories), b.index("p"), 1, tuple(body))


def samples(n: int, dtype: DType = FLOAT32, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if dtype is BOOL:
        return rng.integers(0, 2, n).astype(np.uint8)
    return rng.integers(0, 100, n).astype(dtype.numpy) if dtype.is_integer else rng.standard_normal(n).astype(dtype.numpy)


# ---------------------------------------------------------------------------------------------- modes and tails
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64, INT8, INT64, BOOL], ids=str)
@pytest.mark.parametrize("mode,width", [("serial", 1), ("vector", 4), ("vector", 8), ("vector", 16)])
def test_parallel_loop_at_every_tail(mode: str, width: int, dtype: DType) -> None:
    for n in SIZES:
        value = b.load("x", dtype, i)
        value = b.not_(value) if dtype is BOOL else b.add(value, b.const(1, dtype))
        program = LoopProgram("kernel", (one("x", dtype, n), one("o", dtype, n, "out")), i, n, (Store("o", i, value),), mode, width)  # type: ignore[arg-type]
        x = samples(n, dtype)
        out = np.full(n + 20, 7, x.dtype)
        assert run(program, [x, out]) == 0
        assert np.array_equal(out[:n], 1 - x if dtype is BOOL else x + 1)
        assert (out[n:] == 7).all()


def test_a_part_of_the_parallel_loop() -> None:
    program = LoopProgram("kernel", (one("x", FLOAT32, 45), one("o", FLOAT32, 45, "out")), i, 45, (Store("o", i, b.neg(f32("x", i))),), "vector", 8)
    x, out = samples(45), np.zeros(45, np.float32)
    assert run(program, [x, out], 16, 32) == 0
    assert np.array_equal(out, np.where((np.arange(45) >= 16) & (np.arange(45) < 32), -x, 0))
    assert run(program, [x, out], 40, 45) == 0 and run(program, [x, out], 8, 8) == 0
    assert np.array_equal(out[40:], -x[40:])


@pytest.mark.parametrize("inner", [("serial", 1), ("unroll", 1), ("vector", 8), ("vector", 4)])
@pytest.mark.parametrize("n", [0, 1, 5, 8, 12, 19])
def test_inner_loop(inner: tuple[str, int], n: int) -> None:
    rows, at = 3, b.add(b.mul(i, c(n)), j)
    body = For(j, n, (Store("o", at, b.mul(f32("x", at), f32("y", j))),), *inner)  # type: ignore[arg-type]
    program = LoopProgram("kernel", (one("x", FLOAT32, rows * n), one("y", FLOAT32, n), one("o", FLOAT32, rows * n, "out")), i, rows, (body,))
    x, y, out = samples(rows * n), samples(n, seed=1), np.zeros(rows * n, np.float32)
    assert run(program, [x, y, out]) == 0
    assert np.array_equal(out.reshape(rows, n), x.reshape(rows, n) * y)


@pytest.mark.parametrize("mode,width", [("serial", 1), ("vector", 8)])
@pytest.mark.parametrize("lanes", [1, 4])
def test_an_extent_that_is_known_at_run_time(mode: str, width: int, lanes: int) -> None:
    """Triangles: row i sums its first i elements."""
    n = 45
    total = b.local("t", FLOAT32)
    acc = Acc(total, p.ADD, b.const(0.0, FLOAT32), f32("x", b.add(b.mul(i, c(n)), j)), lanes=lanes if mode == "vector" else 1)
    loop = For(j, i, (), mode, width, (acc,))  # type: ignore[arg-type]
    program = LoopProgram("kernel", (one("x", FLOAT32, n * n), one("o", FLOAT32, n, "out")), i, n, (loop, Store("o", i, total)))
    x, out = samples(n * n, FLOAT64).round().astype(np.float32), np.zeros(n, np.float32)
    assert run(program, [x, out]) == 0
    assert np.array_equal(out, np.tril(x.reshape(n, n), -1).sum(1))


def test_what_is_hoisted_is_there_when_the_loop_does_not_run() -> None:
    square = b.mul(f32("y", c(0)), f32("y", c(0)))
    total = b.local("t", FLOAT32)
    loop = For(j, b.load("n", INT64, i), (), "vector", 8, (Acc(total, p.ADD, square, b.mul(square, f32("x", j))),))
    program = LoopProgram("kernel", (one("x", FLOAT32, 20), one("y", FLOAT32, 1), one("n", INT64, 3), one("o", FLOAT32, 3, "out")), i, 3,
                          (loop, Store("o", i, b.add(total, square))))  # fmt: skip
    x, y, n, out = np.ones(20, np.float32), np.array([2], np.float32), np.array([0, 20, 3]), np.zeros(3, np.float32)
    assert run(program, [x, y, n, out]) == 0
    assert out.tolist() == [8, 88, 20]


# ---------------------------------------------------------------------------------------------- accumulators
_COMBINE = {p.ADD: np.add, p.MUL: np.multiply, p.MIN: np.minimum, p.MAX: np.maximum, p.AND: np.bitwise_and, p.OR: np.bitwise_or}
_ACCUMULATED = [d for d in DTYPES.values() if not d.is_complex and not d.is_half]


@pytest.mark.parametrize("dtype", _ACCUMULATED, ids=str)
@pytest.mark.parametrize("mode,width,lanes", [("serial", 1, 1), ("unroll", 1, 1), ("vector", 8, 1), ("vector", 4, 3), ("vector", 8, 4)])
def test_reductions(mode: str, width: int, lanes: int, dtype: DType) -> None:
    """Of integers (floats with integer values: any order gives the same), at several sizes."""
    prims = [q for q in _COMBINE if not (dtype.is_float and q in (p.AND, p.OR)) and not (dtype is BOOL and q in (p.ADD, p.MUL))]
    for n in (1, 7, 8, 40, 67):
        x = samples(n, dtype).round() % 3 + (0 if dtype is BOOL else 1)
        x = (x % 2 if dtype is BOOL else x).astype(samples(1, dtype).dtype)
        x[: n // 2] = x[0]
        accs, stores = [], []
        for m, q in enumerate(prims):
            init = b.const(1 if q is p.MUL else 2 if dtype is not BOOL else 0, dtype)
            accs.append(Acc(b.local(f"t{m}", dtype), q, init, b.load("x", dtype, j), lanes=lanes))
            stores.append(Store("o", c(m), accs[-1].local))
        loop = For(j, n, (), mode, width, tuple(accs))  # type: ignore[arg-type]
        out = np.zeros(len(prims), x.dtype)
        assert run(whole([one("x", dtype, n), one("o", dtype, len(prims), "out")], [loop, *stores]), [x, out]) == 0
        with np.errstate(all="ignore"):
            want = [
                _COMBINE[q].reduce(np.concatenate([[1 if q is p.MUL else 2 if dtype is not BOOL else 0], x]).astype(x.dtype), dtype=x.dtype)
                for q in prims
            ]
        assert np.array_equal(out, np.array(want, x.dtype)), (n, prims, out, want)


@pytest.mark.parametrize("mode,width", [("serial", 1), ("vector", 8)])
def test_extrema_of_special_values(mode: str, width: int) -> None:
    accs = [
        Acc(b.local("hi", FLOAT32), p.MAX, b.const(-np.inf, FLOAT32), f32("x", j)),
        Acc(b.local("lo", FLOAT32), p.MIN, b.const(np.inf, FLOAT32), f32("x", j)),
    ]
    for values in ([1, 2, np.nan, 3], [-np.inf] * 3, [np.inf, -np.inf], [np.nan] * 17, [-np.inf] * 20 + [np.nan]):
        x, out = np.array(values, np.float32), np.zeros(2, np.float32)
        loop = For(j, len(x), (), mode, width, tuple(accs))  # type: ignore[arg-type]
        program = whole(
            [one("x", FLOAT32, len(x)), one("o", FLOAT32, 2, "out")], [loop, Store("o", c(0), accs[0].local), Store("o", c(1), accs[1].local)]
        )
        assert run(program, [x, out]) == 0
        assert np.array_equal(out, [x.max(), x.min()], equal_nan=True)


@pytest.mark.parametrize("level", ["sse4", "avx2", "avx512"])
def test_only_squares_are_added_with_one_rounding(level: str) -> None:
    """With another factor the product may be infinite where the sum is not."""
    for other, start, is_fused in (("x", 0.0, True), ("y", 0.0, False), ("x", -1.0, False)):
        total = b.local("t", FLOAT32)
        acc = Acc(total, p.ADD, b.const(start, FLOAT32), b.mul(f32("x", j), f32(other, j)))
        memories = [one("x", FLOAT32, 64), one("y", FLOAT32, 64), one("o", FLOAT32, 1, "out")]
        text = emit([whole(memories, [For(j, 64, (), "vector", 16, (acc,)), Store("o", c(0), total)])], x86_target(level))
        assert ("llvm.fma" in text) is (is_fused and x86_target(level).has_fma)


@pytest.mark.parametrize("width", [1, 8])
@pytest.mark.parametrize("least", [0.0, -0.0, 1.0])
def test_squares_that_are_added_where_a_flag_is_set(width: int, least: float) -> None:
    """Some of 45 elements; what is not counted may be anything.  Zero of the other sign, and what is not zero, are no part of it."""
    total, flag = b.local("t", FLOAT32), b.load("m", BOOL, j)
    value = b.where(flag, b.mul(f32("x", j), f32("x", j)), b.const(least, FLOAT32))
    acc = Acc(total, p.ADD, b.const(0.0, FLOAT32), value, lanes=2 if width > 1 else 1)
    loop = For(j, 45, (), "vector" if width > 1 else "serial", width, (acc,))
    program = whole([one("x", FLOAT32, 45), one("m", BOOL, 45), one("o", FLOAT32, 1, "out")], [loop, Store("o", c(0), total)])
    is_fused = least == 0 and not np.signbit(least)
    assert ("llvm.fma" in emit([program], x86_target("avx2"))) is is_fused
    for flags, want in ((np.arange(45) % 3 == 0, 15 * 9 + 30 * least), (np.zeros(45, bool), 45 * least)):
        out = np.ones(1, np.float32)
        assert run(program, [np.where(flags, np.float32(3), np.float32(np.nan)), flags, out]) == 0
        assert out[0] == want and not np.signbit(out[0])


@pytest.mark.parametrize("width", [1, 8])
def test_a_wide_sum_is_rounded_once(width: int) -> None:
    """Of rows, one scalar or eight lanes at a time: 2^24 + 1 + 1 + ... is lost in float32."""
    rows, n = 24, 9
    total = b.local("t", FLOAT32)
    sums = For(j, n, (), accs=(Acc(total, p.ADD, b.const(0.0, FLOAT32), f32("x", b.add(b.mul(j, c(rows)), i)), wide=True),))
    around = For(i, rows, (sums, Store("o", i, total)), "vector" if width > 1 else "serial", width)
    x = np.where(np.arange(n)[:, None] == 0, np.float32(2**24), np.float32(1))
    x = np.repeat(x, rows, axis=1)
    out = np.zeros(rows, np.float32)
    assert run(whole([one("x", FLOAT32, rows * n), one("o", FLOAT32, rows, "out")], [around]), [x.astype(np.float32), out]) == 0
    assert np.array_equal(out, np.full(rows, 2**24 + n - 1, np.float32))


def test_a_sum_of_squares_overflows_where_a_square_does() -> None:
    total = b.local("t", FLOAT32)
    acc = Acc(total, p.ADD, b.const(0.0, FLOAT32), b.mul(f32("x", j), f32("x", j)), lanes=2)
    program = whole([one("x", FLOAT32, 45), one("o", FLOAT32, 1, "out")], [For(j, 45, (), "vector", 8, (acc,)), Store("o", c(0), total)])
    for value, want in ((1e19, np.inf), (2e19, np.inf), (-1e-23, 0.0), (3.0, 405.0), (-0.0, 0.0), (np.nan, np.nan), (-np.inf, np.inf)):
        out = np.zeros(1, np.float32)
        assert run(program, [np.full(45, value, np.float32), out]) == 0
        np.testing.assert_equal(out[0], np.float32(want))


def test_a_sum_keeps_the_sign_of_zero() -> None:
    total = b.local("t", FLOAT32)
    loop = For(j, 11, (), "vector", 8, (Acc(total, p.ADD, b.const(-0.0, FLOAT32), f32("x", j), lanes=2),))
    out = np.ones(1, np.float32)
    assert (
        run(whole([one("x", FLOAT32, 11), one("o", FLOAT32, 1, "out")], [loop, Store("o", c(0), total)]), [np.full(11, -0.0, np.float32), out]) == 0
    )
    assert out[0] == 0 and np.signbit(out[0])


@pytest.mark.parametrize("dtype", _ACCUMULATED, ids=str)
@pytest.mark.parametrize("mode,width,lanes", [("serial", 1, 1), ("unroll", 1, 1), ("vector", 8, 1), ("vector", 4, 2)])
def test_arguments_of_extrema(mode: str, width: int, lanes: int, dtype: DType) -> None:
    rng = np.random.default_rng(3)
    for n in (1, 3, 8, 9, 30, 67):
        for trial in range(3):
            x = rng.integers(0, 2 if dtype is BOOL else 5, n).astype(samples(1, dtype).dtype)
            if dtype.is_float and trial:
                x[rng.integers(0, n)] = np.nan if trial == 1 else -np.inf
            if trial == 2:
                x[:] = x[0] if not dtype.is_float else -np.inf
            accs = [Acc(b.local(q.name, INT64), q, c(0), b.load("x", dtype, j), j, lanes) for q in (p.ARGMAX, p.ARGMIN)]
            loop = For(j, n, (), mode, width, tuple(accs))  # type: ignore[arg-type]
            out = np.full(2, -1, np.int64)
            stores = [Store("o", c(m), a.local) for m, a in enumerate(accs)]
            assert run(whole([one("x", dtype, n), one("o", INT64, 2, "out")], [loop, *stores]), [x, out]) == 0
            assert out.tolist() == [x.argmax(), x.argmin()], x


@pytest.mark.parametrize("mode,width", [("serial", 1), ("vector", 8)])
def test_a_serial_loop_inside_a_vector_loop(mode: str, width: int) -> None:
    """Column sums, products with a carried value (a scan), and the row of each column's largest element."""
    rows, cols = 6, 21
    total, running, best, count = b.local("t", FLOAT32), b.local("s", FLOAT32), b.local("m", INT64), b.local("n", INT64)
    value = f32("x", b.add(b.mul(j, c(cols)), i))
    accs = (
        Acc(total, p.ADD, b.const(0.0, FLOAT32), value),
        Acc(running, None, b.const(1.0, FLOAT32), b.add(b.mul(running, b.const(0.5, FLOAT32)), value)),
        Acc(best, p.ARGMAX, c(0), value, j),
        Acc(count, p.ADD, c(0), c(2)),
    )
    body = (For(j, rows, (Store("y", b.add(b.mul(j, c(cols)), i), running),), "serial", 1, accs),
            Store("o", i, total), Store("q", i, running), Store("a", i, best), Store("b", i, count))  # fmt: skip
    memories = (one("x", FLOAT32, rows * cols), one("o", FLOAT32, cols, "out"), one("q", FLOAT32, cols, "out"), one("a", INT64, cols, "out"),
                one("b", INT64, cols, "out"), one("y", FLOAT32, rows * cols, "out"))  # fmt: skip
    x = samples(rows * cols)
    o, q, a, n, y = (
        np.zeros(cols, np.float32),
        np.zeros(cols, np.float32),
        np.zeros(cols, np.int64),
        np.zeros(cols, np.int64),
        np.zeros(rows * cols, np.float32),
    )
    assert run(LoopProgram("kernel", memories, i, cols, body, mode, width), [x, o, q, a, n, y]) == 0  # type: ignore[arg-type]
    grid, carried = x.reshape(rows, cols), np.ones(cols, np.float32)
    sums = np.zeros(cols, np.float32)
    for r in range(rows):
        assert np.array_equal(y.reshape(rows, cols)[r], carried)
        sums, carried = sums + grid[r], carried * np.float32(0.5) + grid[r]
    assert np.array_equal(o, sums) and np.array_equal(q, carried) and np.array_equal(a, grid.argmax(0)) and (n == 2 * rows).all()


@pytest.mark.parametrize("mode", ["serial", "unroll"])
def test_a_scan_reads_what_it_carries(mode: str) -> None:
    s = b.local("s", INT32)
    value = b.add(s, b.load("x", INT32, j))
    loop = For(j, 9, (Store("o", j, value),), mode, 1, (Acc(s, None, b.const(10, INT32), value),))  # type: ignore[arg-type]
    x, out = samples(9, INT32), np.zeros(10, np.int32)
    assert run(whole([one("x", INT32, 9), one("o", INT32, 10, "out")], [loop, Store("o", c(9), s)]), [x, out]) == 0
    assert np.array_equal(out[:9], 10 + np.cumsum(x)) and out[9] == 10 + x.sum()


# ---------------------------------------------------------------------------------------------- memory
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64, INT8, BOOL, INT64], ids=str)
@pytest.mark.parametrize("width", [1, 4, 8])
def test_strides_of_loads_and_stores(width: int, dtype: DType) -> None:
    """Steps 1, 0, -1, 3, -2 from lane to lane, and offsets that are data, loaded and stored."""
    n = 21
    x = samples(3 * n, dtype)
    indices = np.random.default_rng(0).permutation(n)
    offsets = {"1": (b.add(i, c(2)), np.arange(n) + 2), "0": (c(5), np.full(n, 5)), "-1": (b.sub(c(n - 1), i), n - 1 - np.arange(n)),
               "3": (b.mul(i, c(3)), 3 * np.arange(n)), "-2": (b.add(b.mul(i, c(-2)), c(2 * n)), 2 * n - 2 * np.arange(n)),
               "data": (b.load("at", INT64, i), indices)}  # fmt: skip
    mode = "vector" if width > 1 else "serial"
    for name, (offset, positions) in offsets.items():
        memories = (one("x", dtype, 3 * n), one("at", INT64, n), one("o", dtype, n, "out"), one("s", dtype, 3 * n, "out"))
        body = [Store("o", i, b.load("x", dtype, offset))] + ([Store("s", offset, b.load("x", dtype, i))] if name != "0" else [])
        out, scattered = np.zeros(n, x.dtype), np.zeros(3 * n, x.dtype)
        assert run(LoopProgram("kernel", memories, i, n, tuple(body), mode, width), [x, indices, out, scattered]) == 0  # type: ignore[arg-type]
        assert np.array_equal(out, x[positions]), name
        want = np.zeros(3 * n, x.dtype)
        if name != "0":
            want[positions] = x[:n]
        assert np.array_equal(scattered, want), name


@pytest.mark.parametrize("width", [1, 8])
def test_flat_index_split_by_division(width: int) -> None:
    """Where blocks are multiples of the width a quotient is uniform and a remainder has step 1; elsewhere both are data."""
    for inner, n in ((16, 64), (16, 53), (5, 33), (24, 24 * 3)):
        row, col = b.div(i, c(inner)), b.rem(i, c(inner))
        value = b.add(f32("x", b.add(b.mul(col, c(7)), row)), f32("y", b.add(col, c(1))))
        program = LoopProgram("kernel", (one("x", FLOAT32, 7 * inner + 7), one("y", FLOAT32, inner + 1), one("o", FLOAT32, n, "out")), i, n,
                              (Store("o", i, value),), "vector" if width > 1 else "serial", width)  # fmt: skip
        x, y, out, at = samples(7 * inner + 7), samples(inner + 1, seed=4), np.zeros(n, np.float32), np.arange(n)
        assert run(program, [x, y, out]) == 0
        assert np.array_equal(out, x[at % inner * 7 + at // inner] + y[at % inner + 1])


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64, INT8, BOOL], ids=str)
@pytest.mark.parametrize("width", [1, 8])
def test_guards(width: int, dtype: DType) -> None:
    """Of loads (0 where they fail) and stores (nothing), varying and uniform, on every kind of access."""
    n = 27
    x, mask = samples(n, dtype, 5), samples(n, BOOL, 6)
    on, off = b.load("m", BOOL, c(0)), b.not_(b.load("m", BOOL, c(0)))
    varying = b.load("m", BOOL, i)
    mask[0] = 1
    values = [b.load("x", dtype, i, varying), b.load("x", dtype, i, on), b.load("x", dtype, i, off), b.load("x", dtype, c(3), varying),
              b.load("x", dtype, b.sub(c(n - 1), i), varying), b.load("x", dtype, b.load("at", INT64, i), varying), b.load("x", dtype, c(3), off),
              b.load("x", dtype, i, b.lt(i, c(5)))]  # fmt: skip
    at = np.random.default_rng(1).permutation(n)
    flag, zero = mask.astype(bool), np.zeros(n, x.dtype)
    wants = [
        np.where(flag, x, 0),
        x,
        zero,
        np.where(flag, x[3], 0),
        np.where(flag, x[::-1], 0),
        np.where(flag, x[at], 0),
        zero,
        np.where(np.arange(n) < 5, x, 0),
    ]
    guards = [(varying, flag), (on, np.ones(n, bool)), (off, np.zeros(n, bool))]
    memories = [one("x", dtype, n), one("m", BOOL, n), one("at", INT64, n)]
    memories += [one(f"o{v}", dtype, n, "out") for v in range(len(values))] + [one(f"g{v}", dtype, n, "out") for v in range(len(guards))]
    body = [Store(f"o{v}", i, value) for v, value in enumerate(values)] + [
        Store(f"g{v}", i, b.load("x", dtype, i), g) for v, (g, _) in enumerate(guards)
    ]
    outs, kept = [np.full(n, 9, x.dtype) for _ in values], [np.full(n, 9, x.dtype) for _ in guards]
    mode = "vector" if width > 1 else "serial"
    assert run(LoopProgram("kernel", tuple(memories), i, n, tuple(body), mode, width), [x, mask, at, *outs, *kept]) == 0  # type: ignore[arg-type]
    for v, want in enumerate(wants):
        assert np.array_equal(outs[v], want.astype(x.dtype)), v
    for v, (_, holds) in enumerate(guards):
        assert np.array_equal(kept[v], np.where(holds, x, 9).astype(x.dtype)), v


@pytest.mark.parametrize("mode,width", [("serial", 1), ("vector", 8)])
def test_a_load_sees_the_stores_before_it(mode: str, width: int) -> None:
    """Across loops, and through an alias; not those after it, and not its neighbours: they act at once."""
    n = 19
    before = f32("x", j)
    doubled = b.add(f32("t", j), f32("t", j))
    loops = [
        For(j, n, (Store("t", j, b.mul(before, b.const(3.0, FLOAT32))),), mode, width),  # type: ignore[arg-type]
        For(j, n, (Store("o", j, doubled),), mode, width),  # type: ignore[arg-type]
        For(j, n, (Store("x", j, b.add(doubled, before)), Store("y", j, before)), mode, width),  # type: ignore[arg-type]
        For(j, n, (Store("z", j, b.add(f32("u", j), doubled)),), mode, width),  # type: ignore[arg-type]
    ]
    memories = [one("x", FLOAT32, n, "inout", ("u",)), one("u", FLOAT32, n), *[one(m, FLOAT32, n, "out") for m in "oyz"], one("t", FLOAT32, n, "row")]
    x = samples(n)
    start, (o, y, z) = x.copy(), np.zeros((3, n), np.float32)
    assert run(whole(memories, loops), [x, x, o, y, z]) == 0
    t = start * np.float32(3)
    assert np.array_equal(o, t + t) and np.array_equal(x, t + t + start) and np.array_equal(y, start) and np.array_equal(z, x + (t + t))


def test_a_value_read_before_a_loop_that_writes_it_is_read_again() -> None:
    """x[0] is read, the loop adds it to x, and each iteration reads it anew."""
    first = f32("x", c(0))
    loop = For(j, 4, (Store("x", c(0), b.add(first, b.const(1.0, FLOAT32))),))
    program = whole([one("x", FLOAT32, 1, "inout"), one("o", FLOAT32, 2, "out")], [Store("o", c(0), first), loop, Store("o", c(1), first)])
    x, out = np.array([5], np.float32), np.zeros(2, np.float32)
    assert run(program, [x, out]) == 0
    assert out.tolist() == [5, 9] and x[0] == 9


def test_rows_are_private_to_an_iteration() -> None:
    n, cols = 4, 13
    load = f32("x", b.add(b.mul(i, c(cols)), j))
    body = (For(j, cols, (Store("t", j, b.mul(load, load)),), "vector", 8),
            For(j, cols, (Store("o", b.add(b.mul(i, c(cols)), j), f32("t", b.sub(c(cols - 1), j))),), "vector", 8))  # fmt: skip
    program = LoopProgram("kernel", (one("x", FLOAT32, n * cols), one("o", FLOAT32, n * cols, "out"), one("t", FLOAT32, cols, "row")), i, n, body)
    x, out = samples(n * cols), np.zeros(n * cols, np.float32)
    assert run(program, [x, out]) == 0
    assert np.array_equal(out.reshape(n, cols), (x * x).reshape(n, cols)[:, ::-1])


# ---------------------------------------------------------------------------------------------- checks
@pytest.mark.parametrize("mode,width", [("serial", 1), ("vector", 8)])
def test_a_failed_check_stops_and_masked_lanes_do_not_fail(mode: str, width: int) -> None:
    n = 21
    at = b.load("at", INT64, i)
    body = (Check(b.and_(b.ge(at, 0), b.lt(at, n))), Store("o", i, f32("x", at)))
    program = LoopProgram("kernel", (one("x", FLOAT32, n), one("at", INT64, n), one("o", FLOAT32, n, "out")), i, n, body, mode, width)  # type: ignore[arg-type]
    x, good = samples(n), np.random.default_rng(0).permutation(n)
    out = np.zeros(n, np.float32)
    padded = np.concatenate([good, np.full(10, 1 << 40)])
    assert run(program, [x, padded, out]) == 0
    assert np.array_equal(out, x[good])
    for bad_at, bad in ((0, -1), (20, n), (13, 1 << 60)):
        wrong = good.copy()
        wrong[bad_at] = bad
        assert run(program, [x, wrong, out]) == 1


def test_a_load_stays_behind_the_check_of_its_offset() -> None:
    """x[at[i]] does not depend on j, yet it must not be read in front of the loop that holds the check."""
    at = b.load("at", INT64, i)
    body = (For(j, 5, (Check(b.and_(b.ge(at, 0), b.lt(at, 4))), Store("o", b.add(b.mul(i, c(5)), j), f32("x", at))), "vector", 4),)
    program = LoopProgram("kernel", (one("x", FLOAT32, 4), one("at", INT64, 3), one("o", FLOAT32, 15, "out")), i, 3, body)
    x, out = samples(4), np.zeros(15, np.float32)
    assert run(program, [x, np.array([3, 0, 1]), out]) == 0
    assert np.array_equal(out, np.repeat(x[[3, 0, 1]], 5))
    assert run(program, [x, np.array([3, 1 << 50, 1]), out]) == 1


@pytest.mark.parametrize("mode,width", [("serial", 1), ("vector", 4), ("vector", 8)])
def test_a_guard_that_repeats_a_check_still_holds_in_masked_lanes_and_behind_it(mode: str, width: int) -> None:
    """The load needs no guard any more, but must not move in front of the check; the next iteration checks anew."""
    n = 21
    at = b.load("at", INT64, i)
    inside, small = b.and_(b.ge(at, 0), b.lt(at, n)), b.lt(at, 5)
    value = b.add(f32("x", at, inside), f32("x", at, b.lt(at, n)))
    body = (Store("p", i, b.cast(inside, FLOAT32)), Check(inside), Store("o", i, value), Store("q", i, b.cast(b.and_(inside, small), FLOAT32)),
            Store("s", i, value, inside))  # fmt: skip
    memories = (one("x", FLOAT32, n), one("at", INT64, n), *[one(m, FLOAT32, n, "out") for m in "opqs"])
    program = LoopProgram("kernel", memories, i, n, body, mode, width)  # type: ignore[arg-type]
    x, good, (o, ok, q, s) = samples(n), np.random.default_rng(0).permutation(n), np.zeros((4, n), np.float32)
    assert run(program, [x, np.concatenate([good, np.full(8, -(1 << 50))]), o, ok, q, s]) == 0
    assert np.array_equal(o, 2 * x[good]) and (ok == 1).all() and np.array_equal(q, good < 5) and np.array_equal(s, o)
    for bad in (-1, n, 1 << 60):
        wrong = good.copy()
        wrong[17] = bad
        assert run(program, [x, wrong, o, ok, q, s]) == 1


_AT_THE_EDGE = """
import ctypes, mmap, sys
import numpy as np
from tests.codegen.native import call, compiled
from tests.codegen.test_emit import edge_programs
libc = ctypes.CDLL(None, use_errno=True)
page = mmap.PAGESIZE
def fenced(nbytes):
    '''nbytes that end (or start) where a page that may not be touched starts (ends)'''
    area = mmap.mmap(-1, page * 3)
    base = ctypes.addressof(ctypes.c_char.from_buffer(area))
    for guard in (base, base + 2 * page):
        assert libc.mprotect(ctypes.c_void_p(guard), page, 0) == 0
    return area, base + page
areas = []
for program in edge_programs():
    code = compiled(program)
    for at_end in (False, True):
        pointers = []
        for m in program.memories:
            area, start = fenced(page)
            areas.append(area)
            nbytes = m.elems * m.dtype.itemsize
            if m.name == "far":
                pointers.append(16)
                continue
            pointers.append(start + page - nbytes if at_end else start)
        arrays = [type("P", (), {"ctypes": type("C", (), {"data": q})}) for q in pointers]
        assert call(code, program.name, arrays, 0, program.extent) == 0
print("ok", len(areas))
"""


def edge_programs() -> list[LoopProgram]:
    """Programs whose memories end (and start) at a page that may not be touched; `far` may not be touched at all."""
    programs = []
    for dtype in (FLOAT32, FLOAT64, INT8, DTYPES["int16"], BOOL):
        for n in (3, 37):
            backward, never = b.sub(c(n - 1), i), b.lt(i, c(0))
            values = [b.load("x", dtype, i), b.load("x", dtype, backward), b.load("far", dtype, i, never), b.load("far", dtype, c(0), never),
                      b.load("x", dtype, b.mul(i, c(2)), b.lt(b.mul(i, c(2)), c(n))), b.load("x", dtype, b.add(i, c(4)), b.lt(b.add(i, c(4)), c(n))),
                      b.load("x", dtype, b.sub(i, c(4)), b.ge(i, c(4)))]  # fmt: skip
            memories = [one("x", dtype, n), one("far", dtype, n), *[one(f"o{v}", dtype, n, "out") for v in range(len(values) + 2)]]
            body = [Store(f"o{v}", i, value) for v, value in enumerate(values)]
            body += [
                Store(f"o{len(values)}", backward, values[0]),
                Store(f"o{len(values) + 1}", b.add(i, c(4)), values[0], b.lt(b.add(i, c(4)), c(n))),
            ]
            body += [Store("far", i, values[0], never)]
            for mode, width in (("serial", 1), ("vector", 8)):
                programs.append(LoopProgram("kernel", tuple(memories), i, n, tuple(body), mode, width))  # type: ignore[arg-type]
    return programs


def test_nothing_is_touched_outside_of_memories() -> None:
    """In a process of its own: a stray access would end it."""
    done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", _AT_THE_EDGE], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.startswith("ok"), done.stderr[-2000:]


def test_stores_around_the_cache_are_aligned() -> None:
    """Only whole vectors at multiples of the width go around it; tails, backward and shifted ones do not: they would fault."""
    for n in (64, 45, 16):
        for dtype in (FLOAT32, INT8, FLOAT64):
            backward = b.sub(c(n - 1), i)
            memories = [one("x", dtype, n)] + [Memory(m, dtype, "out", n + 3, (), True) for m in "oprs"]
            value = b.load("x", dtype, i)
            row = For(j, 4, (Store("s", b.add(b.mul(b.div(i, c(16)), c(4)), j), b.load("x", dtype, j)),), "vector", 4)
            body = (Store("o", i, value), Store("p", backward, value), Store("r", b.add(i, c(1)), value))
            space = np.zeros((5, 1024), samples(1, dtype).dtype)
            arrays = [a[(-a.ctypes.data % 64) // a.itemsize :] for a in space]
            arrays[0][:n] = samples(n, dtype)
            assert run(LoopProgram("kernel", tuple(memories), i, n, body, "vector", 16), arrays) == 0
            assert run(LoopProgram("kernel", tuple(memories), i, n, (row,)), arrays) == 0
            x = arrays[0][:n]
            assert np.array_equal(arrays[1][:n], x) and np.array_equal(arrays[2][:n], x[::-1]) and np.array_equal(arrays[3][1 : n + 1], x)


# ---------------------------------------------------------------------------------------------- text
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64, INT8], ids=str)
@pytest.mark.parametrize("n", [512, 513, 519, 520, 1003])
@pytest.mark.parametrize("width", [8, 16])
def test_rows_of_any_length_are_stored_around_the_cache(width: int, n: int, dtype: DType) -> None:
    """Each row starts at another place in a line: its sum counts every element once, and every element is written once."""
    rows, at = 20, b.add(b.mul(i, c(n)), j)
    value, total = b.add(b.load("x", dtype, at), b.const(1, dtype)), b.local("t", dtype)
    body = For(j, n, (Store("o", at, value),), "vector", width, (Acc(total, p.ADD, b.const(0, dtype), b.load("x", dtype, at), lanes=2),))
    memories = (one("x", dtype, rows * n), Memory("o", dtype, "out", rows * n, stream=True), one("s", dtype, rows, "out"))
    program = LoopProgram("kernel", memories, i, rows, (body, Store("s", i, total)))
    text = emit([program], host_target())
    assert ("!nontemporal" in text) is (width * dtype.itemsize >= host_target().vector_bits // 8)
    x = np.arange(rows * n) % 5
    whole_lines = np.full(rows * n * dtype.itemsize + 256, 7, np.uint8)
    start = -whole_lines.ctypes.data % 64
    out = whole_lines[start : start + rows * n * dtype.itemsize].view(dtype.numpy)
    sums = np.zeros(rows, dtype.numpy)
    assert run(program, [x.astype(dtype.numpy), out, sums]) == 0
    assert np.array_equal(out, (x + 1).astype(dtype.numpy))
    assert np.array_equal(sums, x.reshape(rows, n).sum(1).astype(dtype.numpy))
    assert (whole_lines[:start] == 7).all() and (whole_lines[start + out.nbytes :] == 7).all()


@pytest.mark.parametrize("dtype", [FLOAT32, INT8], ids=str)
@pytest.mark.parametrize("n", [509, 513, 519, 520, 1003])
@pytest.mark.parametrize("width", [16, 32])
def test_edges_of_rows_are_computed_whole_and_written_in_part(width: int, n: int, dtype: DType) -> None:
    """Where elements may be done twice: no load is masked, and what lies beside a row stays; a maximum and two results at once."""
    rows, at = 20, b.add(b.mul(i, c(n)), j)
    x, most = b.load("x", dtype, at), b.local("t", dtype)
    stores = (Store("o", at, b.add(x, b.const(1, dtype))), Store("p", b.add(b.mul(i, c(n + 3)), b.sub(c(n + 1), j)), x))
    body = For(j, n, stores, "vector", width, (Acc(most, p.MAX, b.const(0, dtype), x, lanes=1),))
    out = Memory("o", dtype, "out", rows * n, stream=True)
    memories = (one("x", dtype, rows * n), out, one("p", dtype, rows * (n + 3), "out"), one("s", dtype, rows, "out"))
    program = LoopProgram("kernel", memories, i, rows, (body, Store("s", i, most)))
    text = emit([program], host_target())
    assert "masked.load" not in text and "@load." not in text
    given = (np.arange(rows * n) % 97).astype(dtype.numpy)
    whole = np.full(rows * n * dtype.itemsize + 64, 7, np.uint8)
    start = -whole.ctypes.data % 64
    results = whole[start : start + rows * n * dtype.itemsize].view(dtype.numpy), np.full(rows * (n + 3), 5, dtype.numpy), np.zeros(rows, dtype.numpy)
    assert run(program, [given, *results]) == 0
    backward = results[1].reshape(rows, n + 3)
    assert np.array_equal(results[0], given + given.dtype.type(1)) and np.array_equal(backward[:, 2 : n + 2], given.reshape(rows, n)[:, ::-1])
    assert (backward[:, :2] == 5).all() and (backward[:, n + 2 :] == 5).all()
    assert np.array_equal(results[2], given.reshape(rows, n).max(1))
    assert (whole[:start] == 7).all() and (whole[start + results[0].nbytes :] == 7).all()


@pytest.mark.parametrize("level", ["sse2", "sse4", "avx2", "avx512"])
def test_nothing_outside_of_the_module_is_called(level: str) -> None:
    """Neither by arithmetic, conversions or masks: LLVM calls libm for what a processor lacks."""
    target = x86_target(level)
    for width in (1, target.lanes(32)):
        for dtype in (FLOAT32, FLOAT64, DTYPES["float16"], DTYPES["bfloat16"], INT8, INT64, BOOL):
            x, y = b.load("x", dtype, i), b.load("y", dtype, i)
            prims = [] if dtype.is_half else spelled(1, dtype)
            values = [Node(q, (x,), None, x.type) for q in prims] + [b.cast(x, d) for d in DTYPES.values() if not d.is_complex and d is not dtype]
            values += [] if dtype.is_half else [b.map2(q, x, y) for q in spelled(2, dtype)]
            assembly = MachineCode(emit([map_program(values, i, [("x", dtype), ("y", dtype)], 19, width)], target), target).assembly()
            called = set(re.findall(r"\b(?:call|jmp)q?\s+([a-zA-Z_][\w.@]*)", assembly))
            assert all(f"\n{name.removesuffix('@PLT')}:" in assembly for name in called), called


def test_a_branch_inside_of_an_expression_that_is_hoisted() -> None:
    """`seldom` has blocks of its own: in front of a loop, in a loop, in copies of a body, in a loop that may not run."""
    once, each = f32("y", i), f32("x", j)
    outer = b.seldom(b.gt(once, 2.0), once, b.neg(once), "sin")
    inner = b.seldom(b.gt(each, 2.0), each, b.neg(each), "sin")
    for mode, width, lanes, extent in (("serial", 1, 1, 37), ("unroll", 1, 1, 5), ("vector", 8, 1, 37), ("vector", 8, 3, 37), ("vector", 8, 2, i)):
        total = b.local("t", FLOAT32)
        accs = (Acc(total, p.ADD, outer, b.mul(inner, outer), lanes=lanes),)
        loop = For(j, extent, (Store("o", j, b.mul(inner, outer)),), mode, width, accs)  # type: ignore[arg-type]
        program = LoopProgram("kernel", tuple(one(m, FLOAT32, 38, r) for m, r in (("x", "in"), ("y", "in"), ("o", "out"), ("t", "out"))), i, 38,
                              (loop, Store("t", i, b.add(total, outer))))  # fmt: skip
        x, y, out, sums = (
            np.linspace(-3, 3, 37, dtype=np.float32),
            np.linspace(3, -3, 38, dtype=np.float32),
            np.zeros(37, np.float32),
            np.zeros(38, np.float32),
        )
        assert run(program, [x, y, out, sums]) == 0
        fx, fy = (np.where(v > 2, np.sin(v.astype(np.float64)), -v).astype(np.float32) for v in (x, y))
        for row in range(38):
            n = extent if isinstance(extent, int) else row
            assert np.allclose(sums[row], fy[row] * 2 + (fx[:n] * fy[row]).sum(), rtol=1e-5, atol=1e-5), (mode, lanes, row)


def test_equal_programs_give_equal_text() -> None:
    program = edge_programs()[1]
    assert emit([program], host_target()) == emit([program], host_target())


# ---------------------------------------------------------------------------------------------- constants
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
def test_many_constants_stand_in_memory(dtype: DType) -> None:
    def polynomial(terms: int) -> LoopProgram:
        x = b.load("x", dtype, i)
        value = x
        for at in range(terms):
            value = b.add(b.mul(value, x), b.const(0.25 * at - 0.3, dtype))
        return map_program([b.mul(value, b.const(-0.3, dtype))], i, [("x", dtype)], 37, 8)

    few, many = polynomial(3), polynomial(12)
    avx2, avx512 = x86_target("avx2"), x86_target("avx512")
    assert "@k." not in emit([few], avx2) and "@k." not in emit([many], avx512)
    assert len(re.findall(r"load <8 x \w+>, ptr @k\.", emit([many], avx2))) == 13
    x, out = samples(37, dtype), np.zeros(37, dtype.numpy)
    assert run(many, [x, out]) == 0
    expected = x
    for at in range(12):
        expected = expected * x + dtype.numpy.type(0.25 * at - 0.3)
    assert np.array_equal(out, expected * dtype.numpy.type(-0.3))


# ---------------------------------------------------------------------------------------------- lanes a few elements apart
@pytest.mark.parametrize("level", ["sse2", "sse4", "avx2"])
@pytest.mark.parametrize("step", [2, 3, 4])
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64, INT8, INT64, BOOL], ids=str)
def test_lanes_apart_are_read_and_written_whole(dtype: DType, step: int, level: str) -> None:
    target = x86_target(level)
    for n in (3, 8, 16, 29):
        at = [b.add(b.mul(i, c(step)), c(k)) if k else b.mul(i, c(step)) for k in range(step)]
        loads = [b.load("x", dtype, offset) for offset in at]
        body = tuple(Store("o", offset, value) for offset, value in zip(at, reversed(loads), strict=True))
        program = LoopProgram("kernel", (one("x", dtype, step * n), one("o", dtype, step * n, "out")), i, n, body, "vector", 8)
        if n >= 8:
            text = emit([program], target)
            assert f"load <{8 * step} x " in text and f"store <{8 * step} x " in text
        x, out = samples(step * n, dtype), np.zeros(step * n, samples(1, dtype).dtype)
        assert run(program, [x, out], target=target) == 0
        assert np.array_equal(out.reshape(n, step), x.reshape(n, step)[:, ::-1])


def test_the_last_lane_does_not_read_behind_the_end() -> None:
    """x[2 * i] of 2 n - 1 elements: a whole vector would take one more."""
    program = LoopProgram(
        "kernel", (one("x", FLOAT32, 31), one("o", FLOAT32, 16, "out")), i, 16, (Store("o", i, f32("x", b.mul(i, c(2)))),), "vector", 8
    )
    assert "load <16 x float>" not in emit([program], host_target())
    x, out = samples(31), np.zeros(16, np.float32)
    assert run(program, [x, out]) == 0 and np.array_equal(out, x[::2])


@pytest.mark.parametrize("level", ["sse2", "avx2"])
@pytest.mark.parametrize("step", [8, 11, 24])
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64, INT32, INT64], ids=str)
def test_columns_side_by_side_are_turned(dtype: DType, step: int, level: str) -> None:
    """o[n, step] = x[step, n] transposed: vectors of rows become vectors of columns."""
    target = x86_target(level)
    for n in (3, 16, 29):
        for width in sorted({target.lanes(dtype.bits), 128 // dtype.bits}):
            body = tuple(Store("o", b.add(b.mul(i, c(step)), c(k)), b.load("x", dtype, b.add(i, c(k * n)))) for k in range(step))
            program = LoopProgram("kernel", (one("x", dtype, step * n), one("o", dtype, step * n, "out")), i, n, body, "vector", width)
            if n >= width:
                assert f"shufflevector <{width} x " in emit([program], target)
            x, out = samples(step * n, dtype), np.zeros(step * n, dtype.numpy)
            assert run(program, [x, out], target=target) == 0
            assert np.array_equal(out.reshape(n, step), x.reshape(step, n).T)


def test_turned_columns_that_are_read_by_their_neighbours_are_read_first() -> None:
    """x[n, 8] = x[n, 8] with the columns the other way round, in place."""
    at = [b.add(b.mul(i, c(8)), c(k)) for k in range(8)]
    body = tuple(Store("x", offset, f32("x", other)) for offset, other in zip(at, reversed(at), strict=True))
    program = LoopProgram("kernel", (one("x", FLOAT32, 8 * 24, "inout"),), i, 24, body, "vector", 8)
    x = samples(8 * 24)
    before = x.copy()
    assert run(program, [x]) == 0
    assert np.array_equal(x.reshape(24, 8), before.reshape(24, 8)[:, ::-1])


def test_an_even_extent_needs_no_single_step() -> None:
    task = b.index("task")
    rest = b.add(b.mul(task, -192), 1024)
    assert is_multiple(b.minimum(rest, 192), 2) and is_multiple(b.const(6, INT64), 2)
    assert not any(is_multiple(x, 2) for x in (b.minimum(rest, 191), b.minimum(task, 192), b.div(b.minimum(rest, 192), 3)))


def test_tile_functions_of_different_shapes_have_different_names() -> None:
    """Modules share them by their names."""
    shape = Shape(FLOAT32, 3, 16, 1, 16, adds=True, is_even=True)
    others = (
        {"dtype": FLOAT64}, {"rows": 2}, {"width": 8}, {"left": 9}, {"right": 8}, {"adds": False}, {"is_even": False}, {"copies": True},
        {"dots": True, "right": 1}, {"dots": True, "right": 1, "spread": 5}, {"copies": True, "mask": "i32"}, {"ahead": (1,)}, {"ahead": (1, 9)},
        {"copies": True, "mask": "i32", "mask_step": 2},
    )  # fmt: skip
    shapes = [shape, *(replace(shape, **other) for other in others)]
    assert len({name_of(s) for s in shapes}) == len(shapes) == len({text_of(s, x86_target("avx2")) for s in shapes})
