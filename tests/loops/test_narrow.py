"""Counts of flags: kept narrow where they fit, right where they just fit and where they do not."""

from __future__ import annotations

import numpy as np
import pytest

from tests.loops import natively, schedules
from tests.loops.graphs import graph_of, inputs_of
from thermit.codegen.target import host_target
from thermit.ir import build as b
from thermit.ir import prims as p
from thermit.ir.node import Graph, Node
from thermit.ir.types import BOOL, FLOAT32, INT64, Shape
from thermit.loops.lower import lower
from thermit.loops.narrow import MOST, narrowed
from thermit.loops.nest import program_text
from thermit.loops.tile import tile
from thermit.schedule.fuse import fuse
from thermit.schedule.kernel import Kernel


def count(x: Node, axes: tuple[int, ...]) -> Node:
    return b.reduce(p.SUM, b.cast(x, INT64), axes)


def counts(shape: Shape, axes: tuple[int, ...]) -> Graph:
    (x,) = inputs_of((shape, BOOL))
    return graph_of((x,), (count(x, axes),))


SHAPES: list[tuple[Shape, tuple[int, ...], bool]] = [
    ((9, MOST), (1,), True),
    ((9, MOST + 1), (1,), False),
    ((9, 1000), (1,), True),
    ((300, 300), (0,), True),
    ((9, 300, 300), (1, 2), False),
    ((64 * 1024 * 3,), (0,), True),
]


@pytest.mark.parametrize(("shape", "axes", "is_narrow"), SHAPES)
def test_counts(shape: Shape, axes: tuple[int, ...], is_narrow: bool) -> None:
    graph = counts(shape, axes)
    kernels = [step for step in fuse(graph).steps if isinstance(step, Kernel)]
    assert any("uint16(" in program_text(narrowed(lower(k))) for k in kernels) is is_narrow
    for flags in (np.ones(shape, bool), np.random.default_rng(1).random(shape) > 0.3):
        (got,), _ = schedules.run(graph, [flags], lambda program: tile(program, host_target()), natively.execute)
        np.testing.assert_array_equal(got, flags.sum(axes))


def test_count_beside_a_sum_and_read_afterwards() -> None:
    x, flag = inputs_of(((40, 777), FLOAT32), ((40, 777), BOOL))
    n = b.cast(count(flag, (1,)), FLOAT32)
    total = b.reduce(p.SUM, b.where(flag, x, b.const(0.0, FLOAT32, x.shape)), (1,))
    graph = graph_of((x, flag), (b.div(total, n), count(flag, (1,))))
    rng = np.random.default_rng(0)
    a, m = rng.random((40, 777), np.float32), rng.random((40, 777)) > 0.5
    (mean, got), _ = schedules.run(graph, [a, m], lambda program: tile(program, host_target()), natively.execute)
    np.testing.assert_array_equal(got, m.sum(1))
    np.testing.assert_allclose(mean, (a * m).sum(1) / m.sum(1), rtol=1e-5)


def test_mean_of_flags() -> None:
    (flag,) = inputs_of(((40, 777), BOOL))
    graph = graph_of((flag,), (b.reduce(p.SUM, b.cast(flag, FLOAT32), (1,)),))
    (kernel,) = (k for k in fuse(graph).steps if isinstance(k, Kernel))
    assert "uint16(" in program_text(narrowed(lower(kernel)))
    m = np.random.default_rng(0).random((40, 777)) > 0.5
    (got,), _ = schedules.run(graph, [m], lambda program: tile(program, host_target()), natively.execute)
    np.testing.assert_array_equal(got, m.sum(1).astype(np.float32))


def test_other_sums_stay_wide() -> None:
    x, flag = inputs_of(((9, 100), INT64), ((9, 100), BOOL))
    picked = b.where(flag, x, b.const(0, INT64, x.shape))
    (kernel,) = (k for k in fuse(graph_of((x, flag), (b.reduce(p.SUM, picked, (1,)),))).steps if isinstance(k, Kernel))
    assert narrowed(lower(kernel)) == lower(kernel)
