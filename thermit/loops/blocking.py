"""How a matrix product is cut: the shape of a register tile, the rows, columns and depth of a block.

What comes in: the extents of a product and what is known of the target.  What goes out: `Blocking`.  The one idea: count cycles.  A tile takes
two multiply-adds or two loads a cycle, and never less than the latency of one; copies take what was measured; a block must fit the rows of a
kernel; blocks are many enough for some cores and large enough that copying is little.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from thermit.loops.nest import Product
from thermit.loops.pull import ROWS_BYTES
from thermit.records import dataclass

DEPTH = 192  # terms of a sum in registers: as accurate as eager; a panel of 24 columns of float32 is 18 KB
EDGE = 4  # columns more than whole panels, up to which their lanes are steps of the depth
EDGE_CYCLES = 0.8  # of a multiply-add then, the sum of its lanes counted
LATENCY = 4.0  # cycles of a multiply-add
STREAM = 0.1  # cycles of a vector of a panel, which comes from L2
TILE_CYCLES = 12.0  # to begin and end the loop of a tile
TASK_CYCLES = 400.0  # to begin a task, with the first lines of its operands
COPY = 5.0  # cycles a register of the right side, read along its columns, what it pushes out of the cache counted ...
FILL = 2.0  # ... by the tiles that read it first ...
TURN = 6.0  # ... or turned in registers
READ = 3.0  # ... of the left side, read where it lies, from beyond L2
LINE = 6.0  # ... or copied first
CORES = 8  # blocks are many enough to keep so many busy, if there are so many
CORE_CYCLES = 100_000.0  # of work that is worth a second core
GROUP = 48  # rows of the left side that are copied at once, about
PARTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128, 192, 256, 512, 1024)


class HasRegisters(Protocol):
    """What a product knows of a target."""

    @property
    def vector_bits(self) -> int: ...
    @property
    def vector_registers(self) -> int: ...
    @property
    def l2_bytes(self) -> int: ...
    def lanes(self, bits: int) -> int: ...


@dataclass(frozen=True, slots=True)
class Blocking:
    """`tile_rows` x `tile_columns` sums in registers; blocks of `rows` x `columns` (multiples of these, or all there are) x `depth`.
    `last`: rows of the tiles that take what is left of the rows; all others have `tile_rows`.
    Rows of the left side that are copied are so in groups of `group`."""

    tile_rows: int
    tile_columns: int
    rows: int
    columns: int
    depth: int
    last: tuple[int, ...]
    group: int


def blocking(
    s: Product,
    batch: int,
    target: HasRegisters,
    reads_left: bool,
    turns_right: bool,
    window: int = 1,
    beside: Callable[[int], int] | None = None,
    fills: bool = False,
) -> Blocking:
    """The cheapest blocks of those that are tried.  Their depth is a multiple of `window`; `beside`: elements that stand beside a block of so
    many columns; `fills`: tiles copy the right side as they read it.  Where no such blocks fit, those without: it is for the caller to see that."""
    m, n, k = s.rows.extent, s.columns.extent, s.depth.extent
    bits = s.local.dtype.bits
    lanes = target.lanes(bits)
    edge = min(EDGE, lanes // 2) if reads_left and not turns_right else 0
    rows, vectors = min(_shapes(target), key=lambda shape: _cycles(m, n, lanes, edge, *shape))
    width = vectors * lanes
    depth = _up(-(-k // -(-k // DEPTH)), 2 * lanes)
    if window > 1:
        depth = window * -(-k // window // -(-k // depth))
    unit = rows if reads_left else math.lcm(rows, lanes)
    group = min(max(GROUP // unit, 1) * unit, _up(m, unit))
    most = ROWS_BYTES * 8 // bits - (0 if reads_left else group * depth)
    work = batch * _cycles(m, n, lanes, edge, rows, vectors) * k
    cores = max(1, min(CORES, int(work / CORE_CYCLES)))
    shares = [c for c in (1, 2, 4, CORES) if c <= cores]  # whoever shares the tasks: none should wait for the last one
    best: tuple[float, int, int] | None = None
    for columns in _sizes(n, width):
        for block_rows in _sizes(m, unit):
            if columns * (block_rows + depth) + (beside(columns) if beside else 0) > most:
                continue
            tasks = batch * -(-m // block_rows) * -(-n // columns)
            filled = fills and m - (-(-m // block_rows) - 1) * block_rows >= 2 * rows  # also in the last block
            copies = columns * k * (TURN if turns_right else FILL if filled else COPY) + block_rows * k * (READ if reads_left else LINE)
            tile = _cycles(min(block_rows, m), min(columns, n), lanes, edge, rows, vectors) * k
            task = TASK_CYCLES + tile + (copies + 3.0 * block_rows * columns) / lanes
            cost = sum(c * -(-tasks // c) for c in shares) * task
            if best is None or cost < best[0]:
                best = cost, block_rows, columns
    if best is None:
        assert beside is not None, "the smallest block fits"
        return blocking(s, batch, target, reads_left, turns_right)
    last_rows = m - (-(-m // best[1]) - 1) * best[1]
    return Blocking(rows, width, best[1], best[2], depth, _last(last_rows, rows, vectors) if reads_left else (), group)


def _sizes(extent: int, unit: int) -> list[int]:
    """Sizes of blocks to try: parts of about a size, and some units, which fit however large the whole is."""
    parts = {_up(-(-extent // parts), unit) for parts in PARTS}
    return sorted(parts | {units * unit for units in (1, 4, 16) if units * unit < extent}, reverse=True)


def _up(x: int, unit: int) -> int:
    return -(-x // unit) * unit


def _shapes(target: HasRegisters) -> list[tuple[int, int]]:
    """Rows and vectors of tiles whose sums, one row of vectors and one element stand in registers."""
    shapes = []
    for vectors in (1, 2, 3, 4):
        most = (target.vector_registers - 1 - vectors) // vectors
        shapes += [(rows, vectors) for rows in range(1, most + 1)]
    return shapes


def _last(m: int, rows: int, vectors: int) -> tuple[int, ...]:
    """Of m rows what tiles of `rows` leave over: as one tile, or, with one more tile's rows, as two of about a size."""
    rest = m % rows
    if rest == 0 or m < rows:
        return (rest,) if rest else ()
    both = rows + rest
    halves = (both - both // 2, both // 2)
    return halves if sum(_tile(r, vectors) for r in halves) < _tile(rows, vectors) + _tile(rest, vectors) else (rest,)


def _tile(rows: int, vectors: int) -> float:
    """Cycles of a step of the depth; beginning and ending counts as if the depth were 256."""
    if not rows or not vectors:
        return 0.0
    return max(rows * vectors / 2, (rows + vectors) / 2, LATENCY) + STREAM * vectors + (TILE_CYCLES + 2 * rows * vectors) / 256


def _cycles(m: int, n: int, lanes: int, edge: int, rows: int, vectors: int) -> float:
    """Of one step of the depth, for all tiles of m x n; up to `edge` columns more than whole panels take one lane each."""
    panels, rest = divmod(-(-n // lanes), vectors)
    more = n % (vectors * lanes)
    if 0 < more <= edge:
        return _cycles(m, n - more, lanes, 0, rows, vectors) + EDGE_CYCLES * m * more / lanes
    last = _last(m, rows, vectors)
    tiles = (m - sum(last)) // rows
    return sum(count * (panels * _tile(r, vectors) + _tile(r, rest)) for count, r in ((tiles, rows), *((1, r) for r in last)))
