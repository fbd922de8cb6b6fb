"""How many registers a value takes: by what a body computes and how often, in the target's own lanes."""

from __future__ import annotations

import pytest

from tests.loops.graphs import graph_of, inputs_of, softmax
from thermit.codegen.target import Target, x86_target
from thermit.ir import build as b
from thermit.ir.node import Graph
from thermit.ir.types import FLOAT32, INT64
from thermit.loops.lower import lower
from thermit.loops.nest import For
from thermit.loops.tile import tile
from thermit.schedule.fuse import fuse
from thermit.schedule.kernel import Kernel


def registers(graph: Graph, target: Target) -> list[float]:
    """Registers of float32 that a value takes in each vector loop."""
    (kernel,) = [step for step in fuse(graph).steps if isinstance(step, Kernel)]
    program = tile(lower(kernel), target)
    widths = [program.width] if program.mode == "vector" else [s.width for s in program.body if isinstance(s, For)]
    return [width / target.lanes(32) for width in widths]


def chained(n: int, functions: int) -> Graph:
    (x,) = inputs_of(((n,), FLOAT32))
    y = x
    for k in range(functions):
        y = b.add(b.sin(y) if k % 2 else b.exp(y), x)
    return graph_of((x,), (y,))


@pytest.mark.parametrize("level", ["sse4", "avx2", "avx512"])
def test_functions(level: str) -> None:
    target = x86_target(level)
    assert registers(chained(1 << 12, 1), target) == [1]
    assert registers(chained(1 << 16, 1), target) == [2]
    assert registers(chained(1 << 20, 1), target) == [2]
    assert registers(chained(1 << 16, 4), target) == [2]
    assert registers(chained(1 << 20, 4), target) == [4]


@pytest.mark.parametrize("level", ["sse4", "avx2", "avx512"])
def test_rows_count_together(level: str) -> None:
    target = x86_target(level)
    for rows, heavy in ((8, 1), (1024, 2)):
        (x,) = inputs_of(((rows, 1024), FLOAT32))
        assert registers(graph_of((x,), (softmax(x, 1),)), target) == [2, heavy, 2]


@pytest.mark.parametrize("level", ["sse4", "avx2", "avx512"])
def test_bodies_that_read_lane_by_lane_take_one_register(level: str) -> None:
    for places, expected in ((3, 2), (4, 1)):
        x, *at = inputs_of(((64,), FLOAT32), *[((4096,), INT64)] * places)
        total = b.gather(x, (at[0],))
        for where in at[1:]:
            total = b.add(total, b.gather(x, (where,)))
        assert registers(graph_of((x, *at), (total,)), x86_target(level)) == [expected]
