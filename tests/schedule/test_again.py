"""What would be computed again and again is stored; what would not stays inline."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import thermit
from tests.loops.graphs import graph_of, inputs_of, softmax
from thermit.ir import build as b
from thermit.ir import prims as p
from thermit.ir.node import Node
from thermit.ir.types import FLOAT32, INT64, Shape
from thermit.schedule.fuse import fuse
from thermit.schedule.kernel import Kernel

N = 600


def cut(x: Node, *starts: int) -> Node:
    """All but the last two along every axis, moved."""
    return b.slice_(x, starts, (1,) * x.type.ndim, tuple(n - 2 for n in x.shape))


def row(y: Node, n: int) -> Node:
    return b.expand(b.reshape(y, (1, *y.shape)), (n, *y.shape))


def column(y: Node, n: int) -> Node:
    return b.expand(b.reshape(y, (*y.shape, 1)), (*y.shape, n))


def taps(x: Node) -> Node:
    return b.add(b.sub(cut(x, 0, 0), cut(x, 2, 0)), b.sub(cut(x, 0, 2), cut(x, 2, 2)))


def picked(x: Node) -> Node:
    """Two elements of x in each place, each read at an index that is computed."""
    down, across = (b.sub(b.const(N - 1, INT64, x.shape), b.iota(x.shape, a)) for a in (0, 1))
    return b.add(b.gather(x, [down, across]), b.gather(x, [across, down]))


def product(x: Node, y: Node) -> Node:
    return b.reduce(p.SUM, b.mul(column_of_rows(x, y.shape[0]), row(y, x.shape[0])), (2,))


def column_of_rows(x: Node, n: int) -> Node:
    return b.expand(b.reshape(x, (x.shape[0], 1, x.shape[1])), (x.shape[0], n, x.shape[1]))


STORED: dict[str, tuple[Callable[..., Node], tuple[Shape, ...], set[str]]] = {
    "read at four places": (lambda x: taps(b.exp(x)), ((N, N),), {"exp"}),
    "cheap, read at four places": (lambda x: taps(b.mul(x, 2.0)), ((N, N),), set()),
    "along the inner axis": (lambda x, y: b.add(x, row(b.sin(y), N)), ((N, N), (N,)), {"sin"}),
    "along the outer axis": (lambda x, y: b.add(x, column(b.sin(y), N)), ((N, N), (N,)), set()),
    "small": (lambda x, y: b.add(x, row(b.sin(y), 4)), ((4, 8), (8,)), set()),
    "in front of a softmax": (lambda x, y: softmax(b.add(x, row(b.sin(y), N)), 1), ((N, N), (N,)), {"sin"}),
    "softmax": (lambda x: softmax(b.tanh(x), 1), ((N, N),), set()),
    "factors of a product": (lambda x, y: product(b.exp(x), b.sin(y)), ((128, 64), (96, 64)), {"exp", "sin"}),
    "parts side by side": (lambda x, y: b.concat([b.exp(x), b.sin(y)], 1), ((N, N), (N, N)), set()),
    "each part at half of the places": (lambda x: b.concat([cut(b.exp(x), 0, 0), cut(b.exp(x), 2, 2)], 1), ((N, N),), {"exp"}),
    "padded": (lambda x: b.pad(b.exp(x), (1, 1), (1, 1), 0.0), ((N, N),), set()),
    "by indices": (lambda x: picked(b.exp(x)), ((N, N),), {"exp"}),
    "turned": (lambda x: b.permute(b.exp(x), (1, 0)), ((N, N),), set()),
}


@pytest.mark.parametrize("name", STORED)
def test_stored(name):
    function, shapes, expected = STORED[name]
    inputs = inputs_of(*((s, FLOAT32) for s in shapes))
    schedule = fuse(graph_of(inputs, (function(*inputs),)))
    stored = {s.node.prim.name for k in schedule.steps if isinstance(k, Kernel) for s in k.stores if s.target == "temp"}
    assert stored == expected
    assert {r.node.prim.name for r in schedule.refused} == expected


def test_places_and_weights_along_an_axis_are_made_once() -> None:
    kernels = thermit.jit(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear")).trace(torch.randn(2, 4, 32, 48)).lower()
    loops = kernels.as_text("loops")
    assert kernels.as_text("kernels").count("would be computed") >= 3
    assert "check" not in loops
    x = torch.randn(2, 4, 33, 47)
    found, expected = thermit.jit(F.interpolate)(x, scale_factor=1.7, mode="bilinear"), F.interpolate(x, scale_factor=1.7, mode="bilinear")
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
