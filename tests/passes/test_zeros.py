"""Zeros that Horner's scheme begins with: added once, and the same bits for every special value."""

from __future__ import annotations

import random
import warnings

import numpy as np
import pytest

from tests.codegen.native import same
from tests.codegen.specials import specials
from tests.loops.graphs import graph_of
from thermit.ir import build as b
from thermit.ir import interp
from thermit.ir import prims as p
from thermit.ir.node import Node, toposort
from thermit.ir.types import FLOAT32, FLOAT64, DType, TensorType
from thermit.ir.verify import verify
from thermit.passes.zeros import zeros_behind


def pairs(dtype: DType) -> list[np.ndarray]:
    """Every special value with every other."""
    values = specials(dtype)
    return [np.repeat(values, len(values)), np.tile(values, len(values))]


def random_sums(dtype: DType, size: int, rng: random.Random) -> list[Node]:
    x, y = (b.graph_input(k, TensorType((size,), dtype)) for k in range(2))
    pool = [x, y, b.mul(x, 0.0), b.mul(b.like(0.0, y), y), *(b.like(c, x) for c in (1.5, -0.75, 0.0, -0.0))]
    for _ in range(14):
        u, v = rng.choice(pool), rng.choice(pool)
        pool += [b.add(u, v), b.mul(u, v)] if rng.random() < 0.6 else [b.add(b.mul(u, rng.choice([x, y])), v), b.mul(u, 0.0)]
    return pool[-12:]


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
def test_sums_with_zeros_have_the_same_bits(dtype: DType) -> None:
    arrays, rng, changed = pairs(dtype), random.Random(3), 0
    x, y = (b.graph_input(k, TensorType((arrays[0].size,), dtype)) for k in range(2))
    for _ in range(150):
        graph = graph_of((x, y), random_sums(dtype, arrays[0].size, rng))
        moved = zeros_behind(graph)
        verify(moved, "zeros")
        changed += moved is not graph
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            before, after = interp.run(graph, arrays)[0], interp.run(moved, arrays)[0]
        for old, new in zip(before, after, strict=True):
            assert same(old, new).all()
    assert changed > 50


def test_a_polynomial_in_two_variables() -> None:
    """Of 2 * 3 additions of zeros two stay."""
    x, y = (b.graph_input(k, TensorType((7,), FLOAT32)) for k in range(2))
    total = b.const(0.0, FLOAT32, (7,))
    for row in ((1.0, 2.0, 3.0), (4.0, 5.0, 6.0), (7.0, 8.0, 9.0)):
        inner = b.const(0.0, FLOAT32, (7,))
        for c in row:
            inner = b.add(b.mul(inner, x), b.const(c, FLOAT32, (7,)))
        total = b.add(b.mul(total, y), inner)
    graph = zeros_behind(graph_of((x, y), (total,)))
    prims = [n.prim for n in toposort(graph.roots)]
    assert prims.count(p.ADD) == 3 * 2 + 2 + 2
    assert prims.count(p.MUL) == 3 * 2 + 2 + 2


def test_what_may_be_minus_zero_stays() -> None:
    x, y = (b.graph_input(k, TensorType((7,), FLOAT32)) for k in range(2))
    for root in (b.add(b.add(x, b.mul(y, 0.0)), y), b.add(b.mul(b.add(b.like(1.5, x), b.mul(x, 0.0)), y), x), b.mul(x, 0.0)):
        graph = graph_of((x, y), (root,))
        assert zeros_behind(graph).outputs[0].value is root
