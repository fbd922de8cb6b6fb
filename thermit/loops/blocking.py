"""How a matrix product is cut: the shape of a register tile, the rows, columns and depth of a block.

What comes in: the extents of a product and what is known of the target.  What goes out: `Blocking`.  The one idea: count cycles.  A tile takes
two multiply-adds or two loads a cycle, and never less than the latency of one; copies take what was measured; a block must fit the rows of a
kernel; blocks are many enough for some cores and large enough that copying is little.
"""

from __future__ import annotations

from typing import Protocol

from thermit.loops.nest import Product
from thermit.loops.pull import ROWS_BYTES
from thermit.records import dataclass

DEPTH_BYTES = 2048  # of a row of a block: a panel of 24 columns of float32 then is 48 KB, a tile's rows stay in L1
LATENCY = 4.0  # cycles of a multiply-add
TILE_CYCLES = 12.0  # to begin and end the loop of a tile
TASK_CYCLES = 400.0  # to begin a task, with the first lines of its operands
COPY = 1.0  # cycles a register of the right side, read along its columns ...
TURN = 3.0  # ... or turned in registers
LINE = 1.0  # ... of the left side
CORES = 8  # blocks are many enough to keep so many busy
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
    Rows of the left side are copied in groups of `group`."""

    tile_rows: int
    tile_columns: int
    rows: int
    columns: int
    depth: int
    group: int


def blocking(s: Product, target: HasRegisters, reads_left: bool, left_by_rows: bool, turns_right: bool) -> Blocking:
    """The cheapest blocks of those that are tried."""
    m, n, k = s.rows.extent, s.columns.extent, s.depth.extent
    bits = s.local.dtype.bits
    lanes = target.lanes(bits)
    rows, vectors = min(_shapes(target, left_by_rows), key=lambda shape: (_cycles(m, n, lanes, *shape), -shape[0]))
    width = vectors * lanes
    blocks = -(-k * bits // 8 // DEPTH_BYTES) if k * bits // 8 >= DEPTH_BYTES else 1
    depth = _up(-(-k // blocks), lanes)
    group = 2 * lanes if left_by_rows else rows
    most = ROWS_BYTES * 8 // bits - (0 if reads_left else group * depth)
    best: tuple[float, int, int] | None = None
    for columns in dict.fromkeys(_up(-(-n // parts), width) for parts in PARTS):
        for block_rows in dict.fromkeys(_up(-(-m // parts), max(rows, group)) for parts in PARTS):
            if columns * (block_rows + depth) > most:
                continue
            tasks = -(-m // block_rows) * -(-n // columns)
            copies = columns * k * (TURN if turns_right else COPY) + (0.0 if reads_left else block_rows * k * LINE)
            tile = _cycles(min(block_rows, m), min(columns, n), lanes, rows, vectors) * k
            task = TASK_CYCLES + tile + (copies + 3.0 * block_rows * columns) / lanes
            cost = tasks * task + CORES * -(-tasks // CORES) * task
            if best is None or cost < best[0]:
                best = cost, block_rows, columns
    assert best is not None, "the smallest block fits"
    return Blocking(rows, width, best[1], best[2], depth, group)


def _up(x: int, unit: int) -> int:
    return -(-x // unit) * unit


def _shapes(target: HasRegisters, left_by_rows: bool) -> list[tuple[int, int]]:
    """Rows and vectors of tiles whose sums, one row of vectors and one element stand in registers."""
    shapes = []
    for vectors in (1, 2, 3, 4):
        most = (target.vector_registers - 1 - vectors) // vectors
        shapes += [(rows, vectors) for rows in range(1, most + 1) if not left_by_rows or rows in (1, 2, 4, 8)]
    return shapes


def _cycles(m: int, n: int, lanes: int, rows: int, vectors: int) -> float:
    """Of one step of the depth, for all tiles of m x n; beginning and ending counts as if the depth were 256."""

    def tile(r: int, v: int) -> float:
        return (max(r * v / 2, (r + v) / 2, LATENCY) + (TILE_CYCLES + 2 * r * v) / 256) if r and v else 0.0

    panels, rest = divmod(-(-n // lanes), vectors)
    tiles, last = divmod(m, rows)
    return tiles * (panels * tile(rows, vectors) + tile(rows, rest)) + panels * tile(last, vectors) + tile(last, rest)
