"""A long row is added up in blocks, the blocks in float64: its sum errs by no more than that of one block."""

from __future__ import annotations

import numpy as np

from tests.loops import natively, schedules
from tests.loops.graphs import graph_of, inputs_of
from thermit.codegen.target import host_target
from thermit.ir import build as b
from thermit.ir import prims as p
from thermit.ir.types import FLOAT32
from thermit.loops.tile import SUM_ELEMS, tile


def test_blocks_are_added_in_float64() -> None:
    """Ones behind a block whose sum is 2^24 are lost in float32."""
    n = 100 * SUM_ELEMS
    (x,) = inputs_of(((9, n), FLOAT32))
    values = np.zeros((9, n), np.float32)
    values[:, 0], values[:, SUM_ELEMS::SUM_ELEMS] = 2**24, 1
    (got,), _ = schedules.run(graph_of((x,), (b.reduce(p.SUM, x, (1,)),)), [values], lambda q: tile(q, host_target()), natively.execute)
    np.testing.assert_array_equal(got, np.full(9, 2**24 + 99, np.float32))
