"""Simplifying whole graphs."""

from __future__ import annotations

from collections import Counter

import numpy as np

from thermit.ir import build as b
from thermit.ir import interp
from thermit.ir import prims as p
from thermit.ir.node import Graph, Node, Output, Update, toposort
from thermit.ir.prims import Call
from thermit.ir.types import BFLOAT16, BOOL, FLOAT16, FLOAT32, FLOAT64, INT32, TensorType
from thermit.ir.verify import verify
from thermit.passes.simplify import inverse, keeps_values, simplify

x, y = (b.graph_input(k, TensorType((4, 6), FLOAT32)) for k in range(2))


def simplified(*values: Node, updates: tuple[Update, ...] = (), effects: tuple[Node, ...] = ()) -> tuple[Graph, Counter[str]]:
    graph = Graph((x, y), ((6, 1), (6, 1)), tuple(Output(v, tuple(np.cumprod((1, *v.shape[:0:-1]))[::-1])) for v in values), updates, effects)
    fired: Counter[str] = Counter()
    result = simplify(graph, fired)
    verify(result, "simplify")
    inputs = [np.linspace(-3, 3, 24, dtype=np.float32).reshape(4, 6), np.full((4, 6), 0.5, np.float32)]
    if not effects:
        before, after = interp.run(graph, inputs), interp.run(result, inputs)
        for old, new in zip(before[0] + before[1], after[0] + after[1], strict=True):
            assert np.array_equal(old, new)
    return result, fired


def test_chains_collapse() -> None:
    root = b.cast(b.cast(b.mul(b.neg(b.neg(b.sub(x, 0.0))), 1.0), FLOAT64), FLOAT32)
    graph, fired = simplified(root)
    assert graph.outputs[0].value is x
    assert set(fired) == {"cast cast", "mul one", "neg neg", "sub zero"}


def test_inexact_looks_stay() -> None:
    for root in (b.add(x, 0.0), b.sub(x, x), b.mul(x, 0.0), b.div(x, 3.0), b.div(x, 2.0**-149), b.add(b.add(x, 1.0), -1.0), b.mul(b.div(x, y), y)):
        graph, fired = simplified(root)
        assert graph.outputs[0].value is root and not fired


def test_division_by_powers_of_two() -> None:
    graph, _ = simplified(b.div(x, 8.0))
    assert graph.outputs[0].value is b.mul(x, 0.125)
    assert inverse(b.const(-0.25, FLOAT64)) == -4.0
    assert [inverse(b.const(v, FLOAT32)) for v in (0.0, 3.0, float("inf"), float("nan"), 2.0**127, 2.0**-127)] == [None] * 6


def test_half_types_keep_their_rounding() -> None:
    rounded = b.cast(b.cast(b.add(x, y), BFLOAT16), FLOAT32)
    graph, _ = simplified(rounded)
    assert graph.outputs[0].value is rounded
    assert not keeps_values(BFLOAT16, FLOAT16) and not keeps_values(FLOAT32, BFLOAT16) and keeps_values(FLOAT16, FLOAT32)
    assert keeps_values(INT32, FLOAT64) and not keeps_values(INT32, FLOAT32)


def test_constants_fold() -> None:
    two = b.like(2.0, x)
    graph, _ = simplified(b.mul(x, b.sqrt(b.add(b.mul(two, 3.0), b.neg(two)))), b.where(b.lt(two, 3.0), x, y))
    assert graph.outputs[0].value is b.mul(x, 2.0)
    assert graph.outputs[1].value is x


def test_what_stops_a_program_is_not_folded() -> None:
    root = b.div(b.const(1, INT32, (2,)), b.const(0, INT32, (2,)))
    graph, _ = simplified(root)
    assert graph.outputs[0].value is root


def test_split_of_joined_and_slice_of_padded() -> None:
    joined = b.concat([x, y], 1)
    graph, _ = simplified(b.slice_(joined, (0, 6), (1, 1), (4, 6)), b.slice_(b.pad(x, (1, 1), (1, 1), 0.0), (1, 2), (1, 2), (4, 2)))
    assert graph.outputs[0].value is y
    assert graph.outputs[1].value is b.slice_(x, (0, 1), (1, 2), (4, 2))


def test_updates_and_calls_are_rewritten_once() -> None:
    call = b.call(Call("op", (), (), ((6, 1),), ((TensorType((4, 6), FLOAT32), (6, 1)),)), [b.neg(b.neg(x))])
    graph, _ = simplified(b.mul(b.result(call, 0), 1.0), updates=(Update(1, b.mul(y, 1.0)),), effects=(call,))
    (effect,) = graph.effects
    assert effect.args == (x,)
    assert graph.outputs[0].value is b.result(effect, 0)
    assert graph.updates[0].value is y


def test_a_graph_without_anything_to_do_is_the_same() -> None:
    root = b.exp(b.add(x, y))
    graph, fired = simplified(root, b.eq(x, y))
    assert graph.outputs[0].value is root and not fired and graph.outputs[1].value.dtype is BOOL
    assert p.FMA not in {n.prim for n in graph.roots}


def test_zeros_in_front_of_a_polynomial_are_added_once() -> None:
    total = b.const(0.0, FLOAT32, (4, 6))
    for c in (1.5, -0.5, 0.25, 3.0):
        total = b.add(b.mul(total, x), b.const(c, FLOAT32, (4, 6)))
    zero = b.mul(x, 0.0)
    graph, _ = simplified(total)
    assert zero in graph.outputs[0].value.args
    assert sum(n.prim is p.ADD for n in toposort([graph.outputs[0].value])) == 4
    graph, _ = simplified(b.add(total, b.add(b.mul(x, 2.0), b.add(zero, 7.0))))
    assert sum(zero in n.args for n in toposort([graph.outputs[0].value])) == 1
