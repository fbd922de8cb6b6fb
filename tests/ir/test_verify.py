"""A node that its constructor would not make is found."""

import pytest

from thermit.errors import VerifyError
from thermit.ir import build as b
from thermit.ir import prims as p
from thermit.ir.node import Graph, Node, Output
from thermit.ir.prims import Axes, Axis, Order, Slice
from thermit.ir.types import BOOL, FLOAT32, TensorType, contiguous_strides
from thermit.ir.verify import verify

x = b.graph_input(0, TensorType((2, 3), FLOAT32))


def wrong(prim, attrs, *shape, args=(x,), dtype=FLOAT32):
    return Node(prim, args, attrs, TensorType(shape, dtype))


def graph(node):
    return Graph((x,), ((3, 1),), (Output(node, contiguous_strides(node.shape)),))


@pytest.mark.parametrize(
    "node",
    [
        wrong(p.RESHAPE, None, 7),
        wrong(p.PERMUTE, Order((1, 0)), 2, 3),
        wrong(p.SLICE, Slice((0, 1), (1, 1)), 2, 3),
        wrong(p.SUM, Axes((1,)), 3),
        wrong(p.ARGMAX, Axes((1,)), 2),
        wrong(p.CUMSUM, Axis(1), 2, 2),
        wrong(p.CONCAT, Axis(0), 2, 3, args=(x, x)),
        wrong(p.CONTRACT, None, 2, 3, args=(x, x)),
        wrong(p.CONTRACT, None, 3, 2, args=(x, b.permute(x, (1, 0)))),
        wrong(p.LT, None, 2, 3, args=(x, x)),
        wrong(p.ADD, None, 2, 3, args=(x, x), dtype=BOOL),
        wrong(p.ADD, None, 2, 3, args=(x, b.const(1, FLOAT32))),
    ],
    ids=lambda node: node.prim.name,
)
def test_a_node_of_a_wrong_type_is_found(node):
    with pytest.raises(VerifyError, match=node.prim.name):
        verify(graph(node))


def test_a_right_graph_passes():
    verify(graph(b.contract(b.exp(x), b.permute(b.pad(x, (0, 0), (0, 0), 0.0), (1, 0)))))
