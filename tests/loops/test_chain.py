"""Two products with rows between them: as plain loops, in blocks of rows, for other targets; what is no such chain stays three kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from tests.loops import graphs, natively, schedules
from tests.loops.graphs import graph_of, inputs_of
from thermit.codegen.target import Target, host_target, make_target, x86_target
from thermit.ir import build as b
from thermit.ir import interp
from thermit.ir import prims as p
from thermit.ir.node import Graph, Node, Output, Update, toposort
from thermit.ir.types import BOOL, FLOAT32, FLOAT64, DType, Shape, contiguous_strides
from thermit.loops.chain import plain
from thermit.loops.lower import lower
from thermit.loops.nest import Chain, For, LoopProgram, Stmt, Tile, program_text
from thermit.loops.running import chained, softmax_of
from thermit.loops.tile import tile
from thermit.schedule.fuse import fuse
from thermit.schedule.kernel import Kernel

AARCH64 = make_target("aarch64-unknown-linux-gnu", "generic", {"neon": True})
Rows = Callable[[Node], Node]


def softmax(x: Node) -> Node:
    return graphs.softmax(x, x.type.ndim - 1)


def causal(x: Node, offset: int = 0) -> Node:
    seen = b.ge(b.add(b.iota(x.shape, x.type.ndim - 2), offset), b.iota(x.shape, x.type.ndim - 1))
    return softmax(b.where(seen, x, b.like(-math.inf, x)))


def attention(q: Node, k: Node, v: Node, rows: Rows = softmax) -> Node:
    return b.contract(rows(b.mul(b.contract(q, b.permute(k, (0, 2, 1))), 0.3)), v)


def made(rows: int, keys: int, depth: int, columns: int, between: Rows = softmax, batch: int = 2, dtype: DType = FLOAT32) -> Graph:
    q, k, v = inputs_of(((batch, rows, depth), dtype), ((batch, keys, depth), dtype), ((batch, keys, columns), dtype))
    return graph_of((q, k, v), (attention(q, k, v, between),))


def heads() -> Graph:
    """Heads that lie between rows and columns, as a linear layer leaves them; the result lies likewise, with a residual."""
    shape, strides = (2, 3, 18, 5), (270, 5, 15, 1)
    q, k, v, r = inputs_of(*[(shape, FLOAT32)] * 4)
    flat = [b.reshape(x, (6, 18, 5)) for x in (q, k, v)]
    out = b.add(b.reshape(attention(*flat), shape), r)
    return Graph((q, k, v, r), (strides,) * 4, (Output(out, strides),))


def grouped() -> Graph:
    q, k, v = inputs_of(((6, 17, 4), FLOAT32), ((2, 9, 4), FLOAT32), ((2, 9, 7), FLOAT32))

    def each(x: Node) -> Node:
        n, *own = x.shape
        return b.reshape(b.expand(b.reshape(x, (n, 1, *own)), (n, 3, *own)), (3 * n, *own))

    return graph_of((q, k, v), (attention(q, each(k), each(v)),))


def turned() -> Graph:
    """Sides of which no neighbours are columns or steps of the depth, and one that is computed."""
    q, k, v = inputs_of(((2, 5, 19), FLOAT32), ((2, 4, 11, 5), FLOAT32), ((2, 7, 11), FLOAT64))
    keys = b.slice_(k, (0, 2, 0, 0), (1, 1, 1, 1), (2, 1, 11, 5))
    return graph_of((q, k, v), (attention(b.permute(q, (0, 2, 1)), b.reshape(keys, (2, 11, 5)), b.cast(b.permute(v, (0, 2, 1)), FLOAT32)),))


def with_mask(shape: Shape, dtype: DType) -> Graph:
    q, k, v, m = inputs_of(((2, 20, 6), FLOAT32), ((2, 13, 6), FLOAT32), ((2, 13, 8), FLOAT32), (shape, dtype))

    def rows(x: Node) -> Node:
        mask = b.broadcast_to(m, x.shape)
        return softmax(b.add(x, mask) if dtype.is_float else b.where(mask, x, b.like(-3.0, x)))

    return graph_of((q, k, v, m), (attention(q, k, v, rows),))


def shared_maximum(x: Node) -> Node:
    """Rows that are read again after they have been made: the buffer of the scores is not free."""
    e = b.exp(b.sub(x, graphs.spread(p.AMAX, x, (2,))))
    return b.mul(b.div(e, graphs.spread(p.SUM, e, (2,))), x)


GRAPHS: dict[str, Graph] = {
    "whole blocks": made(32, 12, 16, 16),
    "odd": made(19, 13, 7, 11),
    "few rows": made(9, 13, 7, 11),
    "one row": made(1, 40, 16, 24),
    "one row, one batch, two keys": made(1, 2, 2, 2, batch=1),
    "two keys, two columns": made(17, 2, 2, 2),
    "one batch": made(16, 7, 8, 24, batch=1),
    "float64": made(19, 13, 7, 11, dtype=FLOAT64),
    "many terms": made(16, 230, 300, 5, batch=1),
    "causal": made(35, 35, 6, 10, causal),
    "causal, more keys": made(20, 41, 6, 10, partial(causal, offset=21)),
    "causal, fewer keys": made(40, 13, 6, 10, causal),
    "causal, rows that see nothing": made(24, 24, 6, 10, partial(causal, offset=-2)),
    "causal, many keys": made(24, 210, 6, 10, partial(causal, offset=180), batch=1),
    "read again": made(18, 9, 6, 10, shared_maximum),
    "heads": heads(),
    "grouped": grouped(),
    "turned": turned(),
    "a mask for all": with_mask((20, 13), FLOAT32),
    "a mask of keys": with_mask((2, 1, 13), FLOAT32),
    "a mask of flags": with_mask((2, 20, 13), BOOL),
}


SMALL: dict[str, Graph] = {
    "small": made(9, 7, 3, 5, batch=1),
    "small causal": made(9, 9, 3, 5, causal, batch=1),
    "small turned": turned(),
}


def kernels(graph: Graph) -> list[Kernel]:
    return [k for k in fuse(graph).steps if isinstance(k, Kernel)]


def chains(graph: Graph) -> list[LoopProgram]:
    programs = [lower(k) for k in kernels(graph)]
    return [x for x in programs if any(isinstance(s, Chain) for s in x.body)]


@pytest.mark.parametrize("name", GRAPHS)
def test_means_the_products(name: str) -> None:
    graph, target = GRAPHS[name], host_target()
    assert len(chains(graph)) == 1
    arrays = graphs.arrays_for(graph)
    with np.errstate(invalid="ignore"):
        want, _ = interp.run(graph, arrays)
        ways = [schedules.run(graph, arrays, stage, natively.execute) for stage in (lambda x: tile(x, target), lambda x: tile(plain(x), target))]
    for got, _ in ways:
        np.testing.assert_allclose(got[0], want[0], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("target", [x86_target("avx2"), x86_target("sse2"), AARCH64], ids=["avx2", "sse2", "aarch64"])
@pytest.mark.parametrize("name", ["small", "small causal", "small turned"])
def test_stays_in_its_memory(name: str, target: Target) -> None:
    """Interpreted: nothing outside of buffers, nothing read before it is written."""
    graph, least = SMALL[name], target.lanes(32)
    arrays = graphs.arrays_for(graph)
    assert graph.outputs[0].value.shape[1] >= least
    got, _ = schedules.run(graph, arrays, lambda program: chained(program, target) or program)
    np.testing.assert_allclose(got[0], interp.run(graph, arrays)[0][0], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("target", [x86_target("avx2"), x86_target("avx512"), x86_target("sse2"), AARCH64], ids=["avx2", "avx512", "sse2", "aarch64"])
@pytest.mark.parametrize("keys", [1024, 2048, 5000])
def test_the_largest_fits(target: Target, keys: int) -> None:
    (program,) = chains(made(64, keys, 64, 64, causal))
    assert chained(program, target) is not None


def test_the_scores_take_one_buffer() -> None:
    (program,) = chains(GRAPHS["whole blocks"])
    blocks = chained(program, x86_target("avx2"))
    assert blocks is not None and [m.elems for m in blocks.memories if m.name == "scores"] == [12 * 16]
    (program,) = chains(GRAPHS["read again"])
    blocks = chained(program, x86_target("avx2"))
    assert blocks is not None and sum(m.name.startswith("rows") for m in blocks.memories) == 2


@pytest.mark.parametrize("keys", [193, 250, 391])
@pytest.mark.parametrize("rows", [16, 37])
def test_blocks_of_keys(rows: int, keys: int) -> None:
    """Greater scores come in later blocks, and smaller ones; causal rows see a part of a block."""
    for between in (softmax, partial(causal, offset=keys - rows), partial(causal, offset=190 - rows)):
        graph = made(rows, keys, 5, 20, between, batch=3)
        q, k, v = graphs.arrays_for(graph)
        arrays = [q, k * np.linspace(-9, 9, keys, dtype=np.float32)[None, :, None], v]
        got, _ = schedules.run(graph, arrays, lambda program: tile(program, host_target()), natively.execute)
        np.testing.assert_allclose(got[0], interp.run(graph, arrays)[0][0], rtol=3e-5, atol=3e-5)


def test_blocks_are_shared_where_rows_lie_apart() -> None:
    """Copies are made once a block of keys, for several blocks of rows; tasks stay many enough."""
    graph = apart(512)
    (program,) = chains(graph)
    blocks = chained(program, x86_target("avx2"))
    assert blocks is not None and {"side", "values"} <= {m.name for m in blocks.memories}
    assert 16 <= blocks.extent <= 12 * 512 // 16 // 4
    arrays = graphs.arrays_for(apart(131))
    got, _ = schedules.run(apart(131), arrays, lambda program: tile(program, host_target()), natively.execute)
    np.testing.assert_allclose(got[0], interp.run(apart(131), arrays)[0][0].reshape(got[0].shape), rtol=3e-5, atol=3e-5)


def apart(rows: int) -> Graph:
    """Twelve heads whose rows lie 3 KB from each other."""
    shape, strides = (12, rows, 64), (64, 768, 1)
    q, k, v = inputs_of(*[(shape, FLOAT32)] * 3)
    return Graph((q, k, v), (strides,) * 3, (Output(attention(q, k, v), strides),))


@pytest.mark.parametrize("where", ["maximum", "shift", "factor", "order"])
def test_what_is_no_softmax_is_kept_whole(where: str) -> None:
    """Each differs from a softmax in one thing; long rows of it stay three kernels."""

    def rows(x: Node) -> Node:
        most = graphs.spread(p.AMIN if where == "maximum" else p.AMAX, x, (2,))
        most = b.mul(most, 0.5) if where == "shift" else most
        e = b.exp(b.sub(most, x) if where == "order" else b.sub(x, most))
        return b.mul(e, x if where == "factor" else b.div(b.like(1, x), graphs.spread(p.SUM, e, (2,))))

    (program,) = chains(made(16, 20, 4, 4, rows))
    assert isinstance(s := program.body[0], Chain) and softmax_of(s.between) is None
    assert not chains(made(16, 2500, 4, 4, rows)) and chains(made(16, 2500, 4, 4))
    graph = made(16, 200, 4, 4, rows)
    arrays = graphs.arrays_for(graph)
    got, _ = schedules.run(graph, arrays, lambda program: tile(program, host_target()), natively.execute)
    np.testing.assert_allclose(got[0], interp.run(graph, arrays)[0][0], rtol=2e-4, atol=2e-4)


def counted(x: Node) -> Node:
    """Powers times a sum to which masked keys add something."""
    return b.mul(b.exp(x), graphs.spread(p.SUM, b.map2(p.MAX, x, b.like(-0.5, x)), (2,)))


def node_names(extent: int | Node) -> list[str]:
    """Of the indices that an extent depends on."""
    return [n.attrs.name for n in toposort([extent]) if n.prim is p.INDEX] if isinstance(extent, Node) else []


def tiles(body: tuple[Stmt, ...]) -> list[Tile]:
    return [t for s in body for t in ([s] if isinstance(s, Tile) else tiles(s.body) if isinstance(s, For) else [])]


@pytest.mark.parametrize(
    "name, skips",
    [("causal", True), ("causal, more keys", True), ("odd", False), ("causal, fewer keys", True), ("causal, rows that see nothing", False)],
)
def test_keys_that_no_row_sees_are_skipped(name: str, skips: bool) -> None:
    (program,) = chains(GRAPHS[name])
    blocks = chained(program, x86_target("avx2"))
    assert blocks is not None and any("task" in node_names(t.extent) for t in tiles(blocks.body)) is skips


def test_what_masked_keys_would_change_is_not_skipped() -> None:
    """A weight that is not 0, a sum that counts them, a mask of another value."""

    def masked(value: float, x: Node) -> Node:
        return b.where(b.ge(b.iota(x.shape, 1), b.iota(x.shape, 2)), x, b.like(value, x))

    between: list[Rows] = [
        lambda x: softmax(masked(-1e30, x)),
        lambda x: b.add(softmax(masked(-math.inf, x)), 1.0),
        lambda x: counted(b.sub(masked(-math.inf, x), graphs.spread(p.AMAX, masked(-math.inf, x), (2,)))),
    ]
    for rows in between:
        graph = made(32, 32, 4, 4, rows)
        (program,) = chains(graph)
        blocks = chained(program, x86_target("avx2"))
        assert blocks is not None and all(isinstance(t.extent, int) for t in tiles(blocks.body))
        arrays = graphs.arrays_for(graph)
        got, _ = schedules.run(graph, arrays, lambda program: tile(program, host_target()), natively.execute)
        np.testing.assert_allclose(got[0], interp.run(graph, arrays)[0][0], rtol=1e-4, atol=1e-4)


def shifted(x: Node) -> Node:
    """Each row from the row before (relative positions)."""
    moved = b.pad(b.slice_(x, (0, 0, 0), (1, 1, 1), (x.shape[0], x.shape[1] - 1, x.shape[2])), (0, 1, 0), (0, 0, 0), 0.0)
    return softmax(moved)


def across(x: Node) -> Node:
    return graphs.softmax(x, 1)


@pytest.mark.parametrize(
    "between", [shifted, across, lambda x: b.flip(softmax(x), (2,)), lambda x: softmax(b.reshape(b.permute(x, (0, 2, 1)), x.shape))]
)
def test_other_rows_are_stored(between: Rows) -> None:
    graph = made(16, 16, 4, 4, between)
    assert not chains(graph)
    arrays = graphs.arrays_for(graph)
    got, _ = schedules.run(graph, arrays, lambda program: tile(program, host_target()), natively.execute)
    np.testing.assert_allclose(got[0], interp.run(graph, arrays)[0][0], rtol=1e-4, atol=1e-4)


def test_what_others_read_is_stored() -> None:
    q, k, v = inputs_of(((2, 16, 4), FLOAT32), ((2, 12, 4), FLOAT32), ((2, 12, 4), FLOAT32))
    scores = b.mul(b.contract(q, b.permute(k, (0, 2, 1))), 0.3)
    weights = softmax(scores)
    out = b.contract(weights, v)
    for also in (scores, weights, b.reduce(p.SUM, scores, (2,))):
        assert not chains(graph_of((q, k, v), (out, also)))
    assert not chains(graph_of((q, k, v), (b.contract(b.permute(v, (0, 2, 1)), b.permute(weights, (0, 2, 1))),)))


def test_an_update_of_what_is_read_comes_later() -> None:
    q, k, v = inputs_of(((2, 16, 4), FLOAT32), ((2, 16, 4), FLOAT32), ((2, 16, 4), FLOAT32))
    out = attention(q, k, v)
    strides = tuple(contiguous_strides(x.shape) for x in (q, k, v))
    graph = Graph((q, k, v), strides, (), (Update(0, b.add(out, q)), Update(2, b.mul(v, 2.0))))
    arrays = graphs.arrays_for(graph)
    _, want = interp.run(graph, arrays)
    _, got = schedules.run(graph, arrays, lambda program: tile(program, host_target()), natively.execute)
    for x, y in zip(want, got, strict=True):
        np.testing.assert_allclose(y, x, rtol=1e-5, atol=1e-5)


def test_long_sums_of_rows_are_in_blocks() -> None:
    """Also where their number is not constant: the sum of many equal powers is as accurate as one of blocks."""
    keys = 2048
    q, k, v = inputs_of(((1, 16, 2), FLOAT32), ((1, keys, 2), FLOAT32), ((1, keys, 1), FLOAT32))
    graph = graph_of((q, k, v), (attention(q, k, v, partial(causal, offset=keys - 20)),))
    arrays = [x.astype(np.float32) for x in graphs.arrays_for(graph)]
    got, _ = schedules.run(graph, arrays, lambda program: tile(program, host_target()), natively.execute)
    exact, _ = interp.run(_in_float64(graph), [x.astype(np.float64) for x in arrays])
    assert np.abs(got[0] - exact[0]).max() < 4e-7


def _in_float64(graph: Graph) -> Graph:
    """The same graph on wide inputs."""
    (q, k, v) = inputs_of(*((x.shape, FLOAT64) for x in graph.inputs))
    return graph_of((q, k, v), (attention(q, k, v, partial(causal, offset=k.shape[1] - 20)),))


def test_text() -> None:
    (program,) = chains(made(16, 6, 4, 5, batch=1))
    assert program_text(program).splitlines()[4:9] == [
        "  row weights: float32[6]",
        "  parallel for i0 < 1:",
        "    product row < 16, key < 6:",
        "      sum1 = sum(k < 4) in1[((row * 4) + k)] * in0[(k + (key * 4))]",
        "      scores[key] = sum1",
    ]
