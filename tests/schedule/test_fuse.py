"""Which values are stored, in how many kernels, in which order."""

from __future__ import annotations

from typing import Any

import pytest

from tests.loops import test_lower as named
from tests.loops.graphs import graph_of, inputs_of, layer_norm, softmax, spread
from thermit.ir import build as b
from thermit.ir import prims as p
from thermit.ir.node import Graph, Node, Output, Update
from thermit.ir.prims import Call
from thermit.ir.types import FLOAT32, INT64, Shape, contiguous_strides
from thermit.loops.lower import lower
from thermit.loops.nest import program_text
from thermit.schedule.fuse import fuse
from thermit.schedule.kernel import CallStep, Kernel, Schedule

F = FLOAT32


def kernels(schedule: Schedule) -> list[Kernel]:
    return [s for s in schedule.steps if isinstance(s, Kernel)]


def call_on(x: Node, name: str = "op", strides: Shape | None = None) -> Node:
    """The result, of the same type, of a call that does nothing."""
    dense = contiguous_strides(x.shape)
    attrs = Call(name, (p.Slot(0),), (), (strides or dense,), ((x.type, dense),))
    return b.result(b.call(attrs, (x,)), 0)


def one(function: Any, *shapes: Shape) -> Graph:
    inputs = inputs_of(*((s, F) for s in shapes))
    out = function(*inputs)
    return graph_of(inputs, out if isinstance(out, tuple) else (out,))


def log_sum_exp(x: Node) -> Node:
    e = b.exp(b.sub(x, spread(p.AMAX, x, (1,))))
    return b.add(b.log(b.reduce(p.SUM, e, (1,))), b.reduce(p.AMAX, x, (1,)))


ONE_KERNEL: dict[str, Graph] = {
    "softmax": one(lambda x: softmax(x, 1), (64, 700)),
    "softmax over columns": one(lambda x: softmax(x, 0), (700, 64)),
    "layer norm": one(lambda x: layer_norm(x, (1,)), (64, 700)),
    "softmax then layer norm": one(lambda x: layer_norm(softmax(x, 1), (1,)), (64, 700)),
    "norm and its moments": named.norm_with_moments(),
    "residual and rms norm": named.rms_norm_with_residual(),
    "log-sum-exp": one(log_sum_exp, (64, 700)),
    "pairwise": named.rbf(),
    "stencil": named.stencil(),
    "batch norm": named.batch_norm(),
    "adam": named.adam(),
    "group norm": one(lambda x: layer_norm(b.reshape(x, (8, 4, 90)), (2,)), (8, 360)),
    "two functions of one input": one(lambda x: (b.sin(x), b.cos(x)), (1000,)),
}


@pytest.mark.parametrize("name", ONE_KERNEL)
def test_one_kernel(name: str) -> None:
    schedule = fuse(ONE_KERNEL[name])
    assert len(schedule.steps) == 1, schedule
    assert not schedule.refused


def test_rows_are_kept() -> None:
    """The exponentials of a softmax are computed once."""
    (kernel,) = kernels(fuse(ONE_KERNEL["softmax"]))
    assert [n.prim for n in kernel.rows] == [p.EXP]
    text = program_text(lower(kernel))
    assert text.count("row0[") == 2, text


def test_long_sum_is_split_and_says_so() -> None:
    schedule = fuse(one(lambda x: b.reduce(p.SUM, x, (0, 1)), (1024, 1024)))
    assert len(schedule.steps) == 2
    (refusal,) = schedule.refused
    assert "for several cores" in refusal.reason


def row_times(x: Node, w: Node) -> Node:
    return b.reduce(p.SUM, b.mul(b.expand(b.reshape(x, (x.shape[0], 1)), w.shape), w), (0,))


COLUMNS: dict[str, tuple[Graph, int]] = {
    "few columns of many rows": (one(lambda x: b.reduce(p.SUM, x, (0,)), (4096, 512)), 2),
    "greatest of columns": (one(lambda x: b.reduce(p.AMAX, b.mul(x, x), (0,)), (4096, 512)), 2),
    "many columns": (one(lambda x: b.reduce(p.SUM, x, (0,)), (512, 8192)), 1),
    "few rows": (one(lambda x: b.reduce(p.SUM, x, (0,)), (500, 512)), 1),
    "along rows": (one(lambda x: b.reduce(p.SUM, x, (1,)), (4096, 512)), 1),
    "columns read again": (one(lambda x: b.sub(x, spread(p.SUM, x, (0,))), (4096, 512)), 1),
    "a row times a matrix": (one(row_times, (300,), (300, 3000)), 2),
    "a norm of it": (one(lambda x, w: layer_norm(row_times(x, w), (0,)), (300,), (300, 3000)), 2),
    "a norm of it and something": (one(lambda x, w, y: layer_norm(b.add(row_times(x, w), y), (0,)), (300,), (300, 3000), (3000,)), 2),
    "one made of a norm": (one(lambda x, w: row_times(layer_norm(x, (0,)), w), (300,), (300, 3000)), 3),
    "times a small matrix": (one(row_times, (300,), (300, 300)), 1),
    "times a wide matrix": (one(row_times, (300,), (300, 5000)), 1),
    "times a matrix that is computed": (one(lambda x, w: row_times(x, b.exp(w)), (300,), (300, 3000)), 1),
    "a row of each column": (
        one(lambda x, w: b.reduce(p.SUM, b.mul(w, b.expand(b.reshape(x, (1, 3000)), (300, 3000))), (0,)), (3000,), (300, 3000)),
        1,
    ),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_are_reduced_in_parts_of_whole_rows(name: str) -> None:
    graph, count = COLUMNS[name]
    assert len(fuse(graph).steps) == count


def test_a_long_chain_is_cut() -> None:
    (x,) = inputs_of(((50,), F))
    y = x
    for _ in range(3000):
        y = b.mul(b.add(y, 1.0), 0.5)
    schedule = fuse(graph_of((x,), (y,)))
    assert 10 <= len(schedule.steps) <= 40
    for kernel in kernels(schedule):
        lower(kernel)


def test_many_loads_are_cut() -> None:
    inputs = inputs_of(*(((50,), F) for _ in range(200)))
    y = inputs[0]
    for x in inputs[1:]:
        y = b.add(y, x)
    assert all(len(k.loads) <= 41 for k in kernels(fuse(graph_of(inputs, (y,)))))


def test_residual_stream_between_calls() -> None:
    """x + f(norm(x)) again and again: each sum is stored once, by the kernel of the norm that reads it."""
    (x,) = inputs_of(((4, 8, 64), F))
    h = x
    for k in range(6):
        rows = b.reshape(layer_norm(h, (2,)), (32, 64))
        h = b.add(h, b.reshape(call_on(rows, f"f{k}"), (4, 8, 64)))
    schedule = fuse(graph_of((x,), (h,)))
    assert len(kernels(schedule)) == 7, schedule
    assert all(len(k.loads) <= 3 for k in kernels(schedule))
    assert [s.node.attrs.op for s in schedule.steps if isinstance(s, CallStep)] == [f"f{k}" for k in range(6)]


def test_kernels_that_would_wait_for_each_other() -> None:
    """a and b have one domain, and so have c and d; a needs d through a call, c needs b through a call."""
    x, y = inputs_of(((40,), F), ((50,), F))
    d, e = b.sin(y), b.cos(x)
    a = b.add(b.mul(x, 2.0), b.slice_(call_on(d), (0,), (1,), (40,)))
    c = b.add(b.mul(y, 2.0), b.pad(call_on(e), (0,), (10,), 0))
    schedule = fuse(graph_of((x, y), (a, e, c, d)))
    made: set[Node] = set()
    for step in schedule.steps:
        loads = step.loads if isinstance(step, Kernel) else step.arguments
        assert all(load.node.prim is p.INPUT or load.node in made or load.node.args[0] in made for load in loads)
        made.update([s.node for s in step.stores] if isinstance(step, Kernel) else [step.node])


def test_effects_keep_their_order() -> None:
    (x,) = inputs_of(((5,), F))
    calls = [call_on(b.add(x, float(k)), f"draw{k}") for k in range(4)]
    out = b.add(calls[3], calls[0])
    dense = contiguous_strides((5,))
    graph = Graph((x,), (dense,), (Output(out, dense),), effects=tuple(c.args[0] for c in calls))
    assert [s.node.attrs.op for s in fuse(graph).steps if isinstance(s, CallStep)] == [f"draw{k}" for k in range(4)]


def test_arguments_of_calls() -> None:
    """An input with the strides that are asked for is passed as it is; another is stored."""
    (x,) = inputs_of(((4, 6), F))
    as_it_is, moved = call_on(x), call_on(x, "op2", (1, 4))
    schedule = fuse(graph_of((x,), (b.add(as_it_is, moved),)))
    first, second = (s for s in schedule.steps if isinstance(s, CallStep))
    assert {first.arguments[0].strides, second.arguments[0].strides} == {(6, 1), (1, 4)}
    assert len(kernels(schedule)) == 2


def test_result_of_a_call_is_handed_over() -> None:
    (x,) = inputs_of(((4, 6), F))
    y = call_on(x)
    schedule = fuse(graph_of((x,), (y, y)))
    (call,) = (s for s in schedule.steps if isinstance(s, CallStep))
    assert call.outputs == (0,)
    assert [s.target for k in kernels(schedule) for s in k.stores] == ["output"]


def test_inputs_are_overwritten_last_and_not_by_what_can_stop() -> None:
    x, y, index = inputs_of(((10,), F), ((10,), F), ((10,), INT64))
    picked = b.gather(y, (index,))
    schedule = fuse(graph_of((x, y, index), (b.mul(x, 3.0),), (Update(0, picked), Update(1, b.add(y, 1.0)))))
    steps = kernels(schedule)
    first = next(k for k, s in enumerate(steps) if any(t.target == "update" for t in s.stores))
    for kernel in steps[first:]:
        read = {load.node for load in kernel.loads}
        near = [n for s in kernel.stores for n in (s.node, *s.node.args) if n not in read]
        assert all(n.prim not in (p.GATHER, p.CHECK, p.SCATTER) for n in near)
    for k, kernel in enumerate(steps):
        for t in kernel.stores:
            if t.target == "update":
                assert all(load.node.prim is not p.INPUT or load.node.attrs.index != t.index for later in steps[k + 1 :] for load in later.loads)


def test_costly_value_that_two_kernels_need_is_stored() -> None:
    def two(x: Node) -> tuple[Node, Node]:
        y = b.exp(b.sin(b.exp(x)))
        return b.reduce(p.SUM, y, (0,)), b.reduce(p.SUM, y, (1,))

    schedule = fuse(one(two, (600, 500)))
    assert any("several kernels read it" in r.reason for r in schedule.refused)
    assert sum(s.node.prim is p.EXP for k in kernels(schedule) for s in k.stores) == 1
