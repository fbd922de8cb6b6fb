"""fuse, lower and tile against the meaning of the graph, with the loop interpreter in between."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.loops import graphs, natively, schedules
from tests.loops.graphs import graph_of, inputs_of, layer_norm, moments, softmax, spread
from tests.loops.interpret import Stopped
from thermit.ir import build as b
from thermit.ir import interp
from thermit.ir import prims as p
from thermit.ir.node import Graph, Node, Update
from thermit.ir.types import BOOL, FLOAT32, FLOAT64, INT32, INT64, UINT8
from thermit.loops import layout
from thermit.loops.lower import _lowered, lower
from thermit.loops.nest import For, LoopProgram, Stmt, program_text
from thermit.loops.tile import cost, tile
from thermit.schedule import split
from thermit.schedule.fuse import fuse
from thermit.schedule.kernel import Kernel

F, D = FLOAT32, FLOAT64


class Avx2:
    vector_bits = 256
    l2_bytes = 1 << 19


class Avx512:
    vector_bits = 512
    l2_bytes = 1 << 19


class Sse:
    vector_bits = 128
    l2_bytes = 1 << 19


TARGETS = [None, Sse, Avx2, Avx512]


def stage_for(target: type | None) -> Callable[[LoopProgram], LoopProgram]:
    return lambda program: program if target is None else tile(program, target)


def check(graph: Graph, target: type | None, seed: int = 0, rtol: float = 2e-4) -> None:
    arrays = graphs.arrays_for(graph, seed)
    want, want_updates = interp.run(graph, arrays)
    got, got_updates = schedules.run(graph, arrays, stage_for(target))
    for x, y in zip(want + want_updates, got + got_updates, strict=True):
        assert x.shape == y.shape
        np.testing.assert_allclose(np.asarray(y, np.float64), np.asarray(x, np.float64), rtol=rtol, atol=rtol)


def rms_norm_with_residual() -> Graph:
    x, r, w = inputs_of(((6, 40), F), ((6, 40), F), ((40,), F))
    h = b.add(x, r)
    mean = b.div(spread(p.SUM, b.mul(h, h), (1,)), 40.0)
    return graph_of((x, r, w), (h, b.mul(b.div(h, b.sqrt(b.add(mean, 1e-6))), b.broadcast_to(w, (6, 40)))))


def norm_with_moments() -> Graph:
    (x,) = inputs_of(((5, 33), F))
    d, mean, scale = moments(x, (1,))
    return graph_of((x,), (b.mul(d, b.broadcast_to(scale, x.shape)), mean, b.reshape(scale, (5,))))


def rbf() -> Graph:
    x, y = inputs_of(((9, 3), F), ((21, 3), F))
    xx = b.expand(b.reshape(x, (9, 1, 3)), (9, 21, 3))
    yy = b.expand(b.reshape(y, (1, 21, 3)), (9, 21, 3))
    d = b.sub(xx, yy)
    return graph_of((x, y), (b.reduce(p.SUM, b.exp(b.neg(b.reduce(p.SUM, b.mul(d, d), (2,)))), (1,)),))


def stencil() -> Graph:
    (x,) = inputs_of(((9, 37), F))

    def moved(i: int, j: int) -> Node:
        return b.slice_(x, (i, j), (1, 1), (7, 35))

    s = b.add(b.add(moved(0, 1), moved(2, 1)), b.add(moved(1, 0), b.add(moved(1, 2), b.mul(moved(1, 1), -4.0))))
    return graph_of((x,), (b.add(x, b.pad(s, (1, 1), (1, 1), 0.0)),))


def windows() -> Graph:
    """Sums and the largest of windows, with padding, strides and dilations; and the windows themselves."""
    (x,) = inputs_of(((2, 9, 21), F))
    padded = b.window(b.pad(x, (0, 1, 2), (0, 1, 0), 0.5), (5, 19), (3, 3), (2, 1), (1, 2))
    plain = b.window(x, (6,), (4,), (2,), (3,))
    return graph_of((x,), (b.reduce(p.SUM, b.mul(padded, 1.5), (3, 4)), b.reduce(p.AMAX, padded, (3, 4)), b.permute(plain, (3, 0, 1, 2))))


def adam() -> Graph:
    w, g, m, v = inputs_of(*(((7, 9), F),) * 4)
    decayed = b.add(g, b.mul(w, 0.1))
    m1 = b.add(b.mul(m, 0.9), b.mul(decayed, 0.1))
    v1 = b.add(b.mul(v, 0.99), b.mul(b.mul(decayed, decayed), 0.01))
    w1 = b.sub(w, b.div(m1, b.add(b.sqrt(v1), 1e-3)))
    return graph_of((w, g, m, v), (), (Update(0, w1), Update(2, m1), Update(3, v1)))


def swap() -> Graph:
    x, y = inputs_of(((11,), F), ((11,), F))
    return graph_of((x, y), (b.add(x, y),), (Update(0, y), Update(1, x)))


def shifted_update() -> Graph:
    (x,) = inputs_of(((11,), F))
    return graph_of((x,), (), (Update(0, b.concat([b.slice_(x, (1,), (1,), (10,)), b.slice_(x, (0,), (1,), (1,))], 0)),))


def row_update() -> Graph:
    """A softmax written into its own input."""
    (x,) = inputs_of(((5, 21), F))
    return graph_of((x,), (), (Update(0, softmax(x, 1)),))


def scans() -> Graph:
    (x,) = inputs_of(((5, 7, 3), F))
    a, c = b.scan(p.CUMSUM, b.mul(x, 2.0), 1), b.scan(p.CUMPROD, x, 0)
    return graph_of((x,), (b.add(a, 1.0), c, b.scan(p.CUMSUM, b.flip(a, (1,)), 2)))


def embedding() -> Graph:
    table, index = inputs_of(((10, 16), F), ((6,), INT64))
    inside = b.rem(b.abs_(index), 10)
    rows = b.broadcast_to(b.reshape(inside, (6, 1)), (6, 16))
    return graph_of((table, index), (b.mul(b.gather(table, (rows, b.iota((6, 16), 1))), 2.0),))


def scatters() -> Graph:
    x, value, index = inputs_of(((10, 4), F), ((30,), F), ((30,), INT64))
    inside = b.rem(b.abs_(index), 10)
    columns = b.rem(inside, 4)
    out = b.scatter(x, b.sin(value), (inside, columns), "add")
    return graph_of((x, value, index), (out, b.mul(out, 2.0), b.scatter(b.const(0.0, F, (10, 4)), value, (inside, columns), "set")))


def argmax_of_equal() -> Graph:
    (x,) = inputs_of(((4, 50), INT32))
    return graph_of((x,), (b.reduce(p.ARGMAX, x, (1,)), b.reduce(p.ARGMIN, x, (0,))))


def booleans() -> Graph:
    x, y = inputs_of(((5, 19), BOOL), ((5, 19), UINT8))
    return graph_of((x, y), (b.reduce(p.ANY, x, (1,)), b.reduce(p.ALL, b.or_(x, b.lt(y, 5)), (0,)), b.where(x, y, b.like(7, y))))


def columns() -> Graph:
    """Reductions along the strided axis, of several kinds over one another."""
    (x,) = inputs_of(((20, 18), F))
    return graph_of((x,), (softmax(x, 0), layer_norm(x, (0,)), b.reduce(p.ARGMAX, x, (0,))))


def batch_norm() -> Graph:
    x, w = inputs_of(((3, 5, 4, 6), F), ((5,), F))
    d, mean, scale = moments(x, (0, 2, 3))
    weight = b.broadcast_to(b.reshape(w, (1, 5, 1, 1)), x.shape)
    return graph_of((x, w), (b.mul(b.mul(d, b.broadcast_to(scale, x.shape)), weight), b.reshape(mean, (5,))))


def two_outputs_one_value() -> Graph:
    (x,) = inputs_of(((6, 5), D))
    y = b.add(x, 1.0)
    return graph_of((x,), (y, y, b.permute(y, (1, 0)), x, b.reduce(p.SUM, y, (0, 1))))


def checked_division() -> Graph:
    x, y = inputs_of(((6, 5), INT64), ((6, 5), INT64))
    safe = b.where(b.eq(y, 0), b.like(3, y), y)
    return graph_of((x, y), (b.pad(b.div(b.check(x, b.ne(safe, 0)), safe), (1, 0), (0, 2), 5), b.check(x, b.lt(b.reduce(p.SUM, y, (1,)), 10**6))))


def stack_of(axis: int, update: bool) -> Graph:
    """Three values, each made of the one before, side by side, and a map over all of them; two outputs, or an update."""
    shape = [5, 21]
    shape.insert(axis, 3)
    x, y = inputs_of(((5, 21), F), (tuple(shape), F))
    row = b.reshape(x, (*shape[:axis], 1, *shape[axis + 1 :]))
    parts = [row]
    for k in range(2):
        parts.append(b.mul(b.add(parts[-1], 0.5 + k), row))
    whole = b.concat(parts, axis)
    out = b.add(b.flip(whole, (axis,)), y)
    return graph_of((x, y), (), (Update(1, out),)) if update else graph_of((x, y), (whole, out))


def stack_between() -> Graph:
    return stack_of(1, False)


def stack_innermost() -> Graph:
    return stack_of(2, False)


def stack_as_update() -> Graph:
    return stack_of(0, True)


def stack_of_scalars() -> Graph:
    x, y = inputs_of(((), F), ((1,), F))
    return graph_of((x, y), (b.concat((b.reshape(x, (1,)), b.mul(y, y), y), 0),))


NAMED: dict[str, Callable[[], Graph]] = {
    f.__name__: f
    for f in (rms_norm_with_residual, norm_with_moments, rbf, stencil, windows, adam, swap, shifted_update, row_update, scans, embedding, scatters,
              argmax_of_equal, booleans, columns, batch_norm, two_outputs_one_value, checked_division,
              stack_between, stack_innermost, stack_as_update, stack_of_scalars)
}  # fmt: skip


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.__name__ if t else "serial")
@pytest.mark.parametrize("name", NAMED)
def test_named(name: str, target: type | None) -> None:
    check(NAMED[name](), target)


def test_a_stack_is_written_out() -> None:
    """One loop with a store for each of the stacked values, not a choice between all of them at every place."""
    (kernel,) = fuse(stack_of(0, True)).steps
    text = program_text(lower(kernel))
    assert "where" not in text and text.count("out0[") == 3


def test_small_loops_in_one_another_are_not_all_written_out() -> None:
    """Six loops of two to five: 800 copies took LLVM a minute."""
    (x,) = inputs_of(((8, 7, 9, 10), F))
    cut = b.reshape(b.pad(x, (0, 0, 0, 0), (0, 1, 1, 0), 0.0), (8, 4, 2, 5, 2, 5, 2))
    (kernel,) = fuse(graph_of((x,), (b.permute(cut, (0, 2, 4, 6, 1, 3, 5)),))).steps

    def copies(body: tuple[Stmt, ...]) -> int:
        inner = [copies(s.body) * (s.extent if s.mode == "unroll" and isinstance(s.extent, int) else 1) for s in body if isinstance(s, For)]
        return max(inner, default=1)

    assert copies(tile(lower(kernel), Avx2()).body) <= 160


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_random(first: int) -> None:
    for seed in range(first, first + 20):
        check(graphs.random_graph(seed), TARGETS[seed % 4], seed)


@pytest.mark.parametrize("first", range(1000, 1060, 20))
def test_random_with_narrow_strips_and_small_parts(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "STRIP_LEAST", 4)
    monkeypatch.setattr(layout, "STRIP_ROWS", 2)
    monkeypatch.setattr(layout, "STRIP_ELEMS", 1)
    monkeypatch.setattr(split, "SPLIT_ELEMS", 40)
    _lowered.cache_clear()  # what was lowered under other limits
    for seed in range(first, first + 20):
        check(graphs.random_graph(seed), TARGETS[seed % 4], seed)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3), (), (1,), (1, 1)])
def test_empty_and_scalar(shape: tuple[int, ...]) -> None:
    (x,) = inputs_of((shape, F))
    y = b.mul(b.sin(x), 2.0)
    outputs = [y, b.reduce(p.SUM, y, range(len(shape))), b.broadcast_to(y, (2, *shape))]
    outputs += [b.reduce(p.SUM, y, (0,)), b.concat([y, y], 0), b.flip(y, (0,))] if shape else []
    check(graph_of((x,), outputs), Avx2)


def test_out_of_range_stops() -> None:
    table, index = inputs_of(((10,), F), ((4,), INT64))
    graph = graph_of((table, index), (b.gather(table, (index,)),))
    for bad in (10, -1, 1 << 40):
        with pytest.raises(Stopped):
            schedules.run(graph, [np.zeros(10, np.float32), np.array([1, 2, bad, 3])], stage_for(Avx2))


def test_long_float32_sums_are_accurate() -> None:
    for shape, axes in (((300_000,), (0,)), ((2, 200_000), (1,)), ((40_000, 16), (0,))):
        (x,) = inputs_of((shape, F))
        rng = np.random.default_rng(0)
        data = rng.random(shape).astype(np.float32)
        exact = data.astype(np.float64).sum(axis=axes)
        (got,), _ = schedules.run(graph_of((x,), (b.reduce(p.SUM, x, axes),)), [data], stage_for(Avx2), fast)
        np.testing.assert_allclose(got, exact, rtol=3e-7)


def fast(program: LoopProgram, buffers: list[np.ndarray]) -> None:
    natively.execute(program, buffers)


@pytest.mark.parametrize("name", NAMED)
def test_cost_is_positive_and_checks_are_found(name: str) -> None:
    for step in fuse(NAMED[name]()).steps:
        assert isinstance(step, Kernel)
        nanoseconds, can_stop = cost(tile(lower(step), Avx2))
        assert nanoseconds > 0
        reads_at_data = name in ("embedding", "scatters", "checked_division")
        assert reads_at_data or not can_stop
