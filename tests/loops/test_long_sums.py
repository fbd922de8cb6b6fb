"""A long row is added up in blocks, the blocks in float64: its sum errs by no more than that of one block."""

from __future__ import annotations

import numpy as np
import pytest

from tests.loops import natively, schedules
from tests.loops.graphs import graph_of, inputs_of
from thermit.codegen.target import host_target
from thermit.ir import build as b
from thermit.ir import prims as p
from thermit.ir.types import FLOAT32
from thermit.loops.tile import tile

BLOCK = 4096  # elements, more than any block has


def test_blocks_are_added_in_float64() -> None:
    """Ones behind a block whose sum is 2^24 are lost in float32."""
    n = 100 * BLOCK
    (x,) = inputs_of(((9, n), FLOAT32))
    values = np.zeros((9, n), np.float32)
    values[:, 0], values[:, BLOCK::BLOCK] = 2**24, 1
    (got,), _ = schedules.run(graph_of((x,), (b.reduce(p.SUM, x, (1,)),)), [values], lambda q: tile(q, host_target()), natively.execute)
    np.testing.assert_array_equal(got, np.full(9, 2**24 + 99, np.float32))


@pytest.mark.parametrize(("shape", "axis"), [((1000, 24), 0), ((40, 30000), 1)], ids=["one after another", "in lanes"])
def test_sums_beside_positions_err_no_more(shape: tuple[int, int], axis: int) -> None:
    """Equal terms are rounded in one direction: all of a row in one float32 are wrong by some hundred units."""
    (x,) = inputs_of((shape, FLOAT32))
    values = np.full(shape, 0.1, np.float32)
    values[5, 7] = 0.3
    graph = graph_of((x,), (b.reduce(p.SUM, x, (axis,)), b.reduce(p.ARGMAX, x, (axis,))))
    (total, place), _ = schedules.run(graph, [values], lambda q: tile(q, host_target()), natively.execute)
    np.testing.assert_allclose(total, values.sum(axis, dtype=np.float64), rtol=10 * 2**-23)
    np.testing.assert_array_equal(place, values.argmax(axis))
