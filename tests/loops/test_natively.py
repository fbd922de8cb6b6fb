"""The same graphs as machine code, in two pieces of the parallel loop."""

from __future__ import annotations

import numpy as np
import pytest

from tests.loops import graphs, natively, schedules
from tests.loops.test_lower import NAMED
from thermit.codegen.target import host_target
from thermit.ir import interp
from thermit.ir.node import Graph
from thermit.loops import layout
from thermit.loops.lower import _lowered
from thermit.loops.tile import tile
from thermit.schedule import split


def check(graph: Graph, seed: int = 0) -> None:
    target = host_target()
    arrays = graphs.arrays_for(graph, seed)
    want, want_updates = interp.run(graph, arrays)
    got, got_updates = schedules.run(graph, arrays, lambda program: tile(program, target), natively.execute)
    for x, y in zip(want + want_updates, got + got_updates, strict=True):
        np.testing.assert_allclose(np.asarray(y, np.float64), np.asarray(x, np.float64), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("name", NAMED)
def test_named(name: str) -> None:
    check(NAMED[name]())


@pytest.mark.parametrize("first", range(0, 100, 20))
def test_random(first: int) -> None:
    for seed in range(first, first + 20):
        check(graphs.random_graph(seed), seed)


@pytest.mark.parametrize("first", range(2000, 2060, 20))
def test_random_with_narrow_strips_and_small_parts(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "STRIP_LEAST", 4)
    monkeypatch.setattr(layout, "STRIP_ROWS", 2)
    monkeypatch.setattr(layout, "STRIP_ELEMS", 1)
    monkeypatch.setattr(split, "SPLIT_ELEMS", 40)
    _lowered.cache_clear()  # what was lowered under other limits
    for seed in range(first, first + 20):
        check(graphs.random_graph(seed), seed)
