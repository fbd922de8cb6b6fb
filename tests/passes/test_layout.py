"""Copies of images and filters that lie badly, and only of these."""

import numpy as np
import pytest

from tests.loops.graphs import graph_of, inputs_of
from thermit.ir import build as b
from thermit.ir import interp
from thermit.ir import prims as p
from thermit.ir.node import Graph, toposort
from thermit.ir.types import FLOAT32
from thermit.passes.layout import lay_out

ROWS, LAST = (192, 24, 4, 1), (192, 1, 48, 8)  # of [2, 8, 6, 4]: row-major, channels innermost


def convolution(image: tuple[int, ...], taps: int) -> Graph:
    """x [2, 8, 6, 4] with these strides, w [5, 8, taps, taps] with channels innermost; w is also returned."""
    x, w = inputs_of(((2, 8, 6, 4), FLOAT32), ((5, 8, taps, taps), FLOAT32))
    padding = (0, 0, taps // 2, taps // 2)
    windows = b.window(b.pad(x, padding, padding, 0.0), (6, 4), (taps, taps), (1, 1), (1, 1))
    right = b.reshape(b.permute(windows, (0, 1, 4, 5, 2, 3)), (2, 8 * taps * taps, 24))
    left = b.expand(b.reshape(w, (1, 5, 8 * taps * taps)), (2, 5, 8 * taps * taps))
    strides = (image, (8 * taps * taps, 1, 8 * taps, 8))
    return graph_of((x, w), (b.contract(left, right), b.neg(w)), strides=strides)


@pytest.mark.parametrize("image, taps, copies", [(ROWS, 3, 1), (LAST, 3, 2), ((400, 48, 8, 1), 3, 2), (LAST, 1, 0)])
def test_what_lies_badly_is_copied(image, taps, copies):
    graph = convolution(image, taps)
    made = lay_out(graph)
    assert sum(n.prim is p.ADD for n in toposort(made.roots)) == copies
    assert made.outputs[1] == graph.outputs[1]
    arrays = [np.random.default_rng(0).standard_normal(x.shape).astype(np.float32) for x in graph.inputs]
    for a, c in zip(interp.run(graph, arrays)[0], interp.run(made, arrays)[0], strict=True):
        assert np.array_equal(a, c)


def test_without_products_nothing_changes():
    (x,) = inputs_of(((2, 8, 6, 4), FLOAT32))
    graph = graph_of((x,), (b.neg(x),), strides=(LAST,))
    assert lay_out(graph) is graph
