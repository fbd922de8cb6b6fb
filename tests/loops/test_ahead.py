"""Rows fetched ahead: which loops do it, how far, and that the last row's fetch leaves the buffer alone."""

from __future__ import annotations

import numpy as np
import pytest

from tests.loops import natively, schedules
from tests.loops.graphs import graph_of, inputs_of, layer_norm
from thermit.codegen.emit import emit
from thermit.codegen.legalize import legalize
from thermit.codegen.target import Target, host_target, x86_target
from thermit.ir import build as b
from thermit.ir import interp
from thermit.ir import prims as p
from thermit.ir.node import Graph
from thermit.ir.types import FLOAT32, FLOAT64, Shape
from thermit.loops.ahead import LEAD_BYTES
from thermit.loops.lower import lower
from thermit.loops.nest import For, Load, LoopProgram, program_text
from thermit.loops.tile import tile
from thermit.schedule.fuse import fuse
from thermit.schedule.kernel import Kernel


def normed(shape: Shape) -> Graph:
    (x,) = inputs_of((shape, FLOAT32))
    return graph_of((x,), (layer_norm(x, (1,)),))


def tiled(graph: Graph, target: Target) -> LoopProgram:
    (kernel,) = [step for step in fuse(graph).steps if isinstance(step, Kernel)]
    return tile(lower(kernel), target)


def ahead(program: LoopProgram) -> list[tuple[Load, ...]]:
    return [s.ahead for s in program.body if isinstance(s, For)]


def test_the_second_loop_over_a_row_fetches_the_next_row() -> None:
    program = tiled(normed((64, 2048)), host_target())
    first, second, third = ahead(program)
    assert not first and len(second) == 1 and not third
    assert "+ 2048)]" in program_text(program)


@pytest.mark.parametrize("columns", [64, 100, 1000])
def test_short_rows_fetch_further(columns: int) -> None:
    program = tiled(normed((640, columns)), host_target())
    rows = -(-LEAD_BYTES // (4 * columns))
    assert rows > 1 and f"+ {rows * columns})]" in program_text(program)


def test_a_long_row_is_fetched_by_a_loop_that_computes_much() -> None:
    (x,) = inputs_of(((64, 8192), FLOAT32))
    exps = b.exp(b.sub(x, b.broadcast_to(b.reshape(b.reduce(p.AMAX, x, (1,)), (64, 1)), (64, 8192))))
    most, sums = tiled(graph_of((x,), (b.reduce(p.SUM, exps, (1,)),)), host_target()).body[:2]
    assert isinstance(most, For) and isinstance(sums, For)
    assert not most.ahead and len(sums.ahead) == 1
    assert not any(ahead(tiled(normed((64, 8192)), host_target())))


def test_a_row_read_once_by_a_loop_that_computes_a_little_is_fetched_a_little_ahead() -> None:
    (x,) = inputs_of(((64, 2048), FLOAT32))
    wide = b.sub(b.cast(x, FLOAT64), 1.5)
    (loads,) = ahead(tiled(graph_of((x,), (b.reduce(p.SUM, b.mul(wide, wide), (1,)),)), host_target()))
    assert len(loads) == 1 and loads[0].memory == "in0"
    (y,) = inputs_of(((64, 2048), FLOAT32))
    half = b.slice_(y, (0, 0), (1, 1), (64, 1024))  # the next row is not what comes next in memory
    wide = b.sub(b.cast(half, FLOAT64), 1.5)
    assert not any(ahead(tiled(graph_of((y,), (b.reduce(p.SUM, b.mul(wide, wide), (1,)),)), host_target())))


def test_rows_that_do_not_fit_beside_each_other_fetch_nothing() -> None:
    assert not any(ahead(tiled(normed((32, host_target().l2_bytes // 4)), host_target())))


def test_a_row_read_once_is_left_to_the_processor() -> None:
    (x,) = inputs_of(((64, 2048), FLOAT32))
    assert not any(ahead(tiled(graph_of((x,), (b.reduce(p.SUM, x, (1,)),)), host_target())))


@pytest.mark.parametrize("level", ["sse2", "avx2", "avx512"])
def test_each_line_is_fetched_once(level: str) -> None:
    target = x86_target(level)
    program = tiled(normed((64, 2048)), target)
    loop = next(s for s in program.body if isinstance(s, For) and s.ahead)
    step_bytes = 4 * loop.width * max(a.lanes for a in loop.accs)
    assert emit([legalize(program, target)], target).count("call void @llvm.prefetch") == -(-step_bytes // 64)


def test_right_up_to_the_last_row() -> None:
    graph = normed((40, 1003))
    x = np.random.default_rng(0).random((40, 1003), np.float32)
    (want,), _ = interp.run(graph, [x])
    (got,), _ = schedules.run(graph, [x], lambda program: tile(program, host_target()), natively.execute)
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)
