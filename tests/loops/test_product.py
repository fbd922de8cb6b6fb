"""From a kernel with a matrix product to its statement, and what it means without packing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.loops import graphs, natively, schedules
from tests.loops.graphs import graph_of, inputs_of
from thermit.codegen.target import host_target
from thermit.ir import build as b
from thermit.ir import interp
from thermit.ir.node import Graph, Node, Output, Update
from thermit.ir.types import FLOAT32, FLOAT64, Shape
from thermit.loops.lower import lower
from thermit.loops.nest import Product, program_text
from thermit.loops.product import plain
from thermit.loops.tile import tile
from thermit.schedule.fuse import fuse
from thermit.schedule.kernel import Kernel

F, D = FLOAT32, FLOAT64


def one(function: Any, *shapes: Shape, dtype: Any = F) -> Graph:
    inputs = inputs_of(*((s, dtype) for s in shapes))
    out = function(*inputs)
    return graph_of(inputs, out if isinstance(out, tuple) else (out,))


def heads(x: Node, w: Node, c: Node, r: Node) -> tuple[Node, Node]:
    """A linear layer whose rows and columns are two axes each, with a bias by column and a residual."""
    y = b.add(b.contract(b.reshape(x, (12, 5)), b.permute(w, (1, 0))), b.broadcast_to(c, (12, 6)))
    apart = b.reshape(y, (3, 4, 2, 3))
    return b.mul(b.add(apart, r), b.expand(b.reshape(c, (1, 1, 2, 3)), (3, 4, 2, 3))), y


def updated() -> Graph:
    x, w, c = inputs_of(((6, 5), F), ((5, 7), F), ((6, 7), F))
    return Graph((x, w, c), ((5, 1), (1, 5), (9, 1)), (), (Update(2, b.add(b.mul(c, 0.5), b.contract(x, w))),))


def laid_out() -> Graph:
    """Every buffer in an order of its own."""
    x, w = inputs_of(((2, 3, 6, 5), F), ((3, 5, 7), F))
    y = b.exp(b.contract(x, b.expand(b.reshape(w, (1, 3, 5, 7)), (2, 3, 5, 7))))
    return Graph((x, w), ((1, 2, 6, 36), (1, 3, 15)), (Output(y, (1, 2, 6, 36)), Output(b.reshape(y, (6, 6, 7)), (42, 1, 6))))


def turned() -> Graph:
    """Rows and heads apart, heads first, as they lie."""
    x, w = inputs_of(((12, 5), F), ((5, 6), F))
    y = b.exp(b.contract(x, w))
    return Graph((x, w), ((5, 1), (6, 1)), (Output(b.permute(b.reshape(y, (3, 4, 2, 3)), (0, 2, 1, 3)), (24, 3, 6, 1)), Output(y, (6, 1))))


GRAPHS: dict[str, Graph] = {
    "alone": one(b.contract, (7, 5), (5, 9)),
    "float64": one(b.contract, (7, 5), (5, 9), dtype=D),
    "heads": one(heads, (3, 4, 5), (6, 5), (6,), (3, 4, 2, 3)),
    "batch": one(lambda x, y: b.contract(x, b.permute(y, (0, 1, 3, 2))), (2, 3, 4, 5), (2, 3, 6, 5)),
    "one row, one column, one batch": one(lambda x, y: (b.contract(x, y), b.exp(b.contract(y, x))), (1, 1, 5), (1, 5, 1)),
    "cut and flipped": one(lambda x, y: b.contract(b.slice_(x, (8, 1), (-2, 2), (4, 5)), b.flip(y, (0, 1))), (9, 12), (5, 6)),
    "cast": one(lambda x, y: b.cast(b.contract(b.cast(x, D), b.cast(y, D)), F), (7, 5), (5, 9)),
    "numbers": one(lambda x: b.contract(b.cast(b.iota((7, 5), 1), F), b.add(x, 1.0)), (5, 9)),
    "updated": updated(),
    "laid out": laid_out(),
    "turned": turned(),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_means_the_product(name: str) -> None:
    graph, target = GRAPHS[name], host_target()
    arrays = graphs.arrays_for(graph)
    want, want_updates = interp.run(graph, arrays)
    ways = [schedules.run(graph, arrays), schedules.run(graph, arrays, plain)]
    ways.append(schedules.run(graph, arrays, lambda program: tile(program, target), natively.execute))
    for got, got_updates in ways:
        for x, y in zip(want + want_updates, got + got_updates, strict=True):
            np.testing.assert_allclose(y, x, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", GRAPHS)
def test_each_product_is_one_statement(name: str) -> None:
    bodies = [lower(k).body for k in fuse(GRAPHS[name]).steps if isinstance(k, Kernel)]
    assert all(len(body) == 1 for body in bodies) and any(isinstance(s, Product) for body in bodies for s in body)


def test_text() -> None:
    """Indices of reshaped stores are joined again: offsets are linear in row and column."""
    (kernel,) = fuse(GRAPHS["heads"]).steps
    assert isinstance(kernel, Kernel)
    assert program_text(lower(kernel)).splitlines()[1:] == [
        "  parallel for i0 < 1:",
        "    product row < 12, column < 6:",
        "      sum1 = sum(k < 5) in3[(k + (row * 5))] * in2[(k + (column * 5))]",
        "      out0[((row * 6) + column)] = (((sum1 + in0[column]) + in1[((row * 6) + column)]) * in0[column])",
        "      out1[((row * 6) + column)] = (sum1 + in0[column])",
    ]
