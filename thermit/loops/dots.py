"""Matrix products with few rows, both sides of which lie along the depth: read where they are.

What comes in: a program that is one `Product`.  What goes out: tasks, each a block of columns; in it tiles whose lanes are steps of the depth.
Nothing is copied: with few rows a copy of the right side (the weights of a layer) costs as much as the product.

    product i < 8, j < 768: s = sum(k < 1024) x[i, k] * w[j, k];  out[i, j] = s + b[j]
 -> for task J:
        for g < 6: for i by 3:         tile[i.., g + 6 c] = x[i.., 0:1024] * w[J + g + 6 c, 0:1024] for c < 4; the lanes are added in the end
        for i: for j: vector           out[i, J + j] = tile[i, j] + b[J + j]

The four columns of a tile are a quarter of the task's columns apart, so that a task reads four long streams: with one row memory is the bound,
and one stream is as fast as the processor looks ahead (Zen 3, one core, weights of 9 MB from memory: one stream 18 GB/s, two 24, four 26;
prefetch instructions: slower).
The depth is cut inside of a tile's columns, so that the streams go on.

A tile of 3 x 4 reads 7 vectors for 12 multiply-adds, as one over panels does; adding its lanes costs what 4 steps of it do.  Measured (Zen 3, one
core, 768 x 768): 4 rows 122 us -> 73, 16 rows 263 -> 215, 48 rows 639 -> 600, 128 rows 1610 -> 1840.  Invariant: as in contraction.py.
"""

from __future__ import annotations

from thermit.ir import build
from thermit.ir.node import Node
from thermit.loops.blocking import Blocking, HasRegisters
from thermit.loops.contraction import Packing, is_worth
from thermit.loops.index import number
from thermit.loops.nest import For, LoopProgram, Memory, Product, Stmt, Tile

ROWS = 48  # from so many rows on the copy costs less than adding lanes and reading the left side as vectors
COLUMNS = 4  # of a tile: what 128 bits hold of float32
DEPTH = 1024  # terms at once: four columns are 16 KB of float32
STEPS_A_ROW = 4  # of the depth, at least: adding lanes costs as much as so many steps of a tile
LEAST_COLUMNS = 16  # of a task
TASKS = 32  # so many suffice ...
TILE_BYTES = 64 * 1024  # ... where their sums are not more
STREAM_BYTES = 64 * 1024  # of the right side that a task reads in one go, at four places; if there are at least ...
LEAST_TASKS = 8


def dotted(program: LoopProgram, target: HasRegisters) -> LoopProgram | None:
    """The program with tiles over what lies in memory; None where that is not possible or not worth it."""
    if len(program.body) != 1 or not isinstance(s := program.body[0], Product) or not is_worth(program, s, 1):
        return None
    if s.rows.extent > min(ROWS, s.depth.extent // STEPS_A_ROW) or s.columns.extent < COLUMNS:
        return None
    made = Dots(program, s, target)
    return made.program() if made.is_possible else None


class Dots(Packing):
    """One product while it is taken apart."""

    def __init__(self, program: LoopProgram, s: Product, target: HasRegisters) -> None:
        super().__init__(program, s, target)
        self.apart = self._step(s.right, s.columns)
        self.is_possible = self.reads_left and self._step(s.right, s.depth) == 1 and (self.apart or 0) > 1

    def _blocking(self) -> Blocking:
        m, n, k = self.s.rows.extent, self.s.columns.extent, self.s.depth.extent
        parts = max(1, min(n // LEAST_COLUMNS, -(-TASKS // self.origin.extent)))
        least = min(-(-STREAM_BYTES // (k * self.dtype.itemsize)) * COLUMNS, n * self.origin.extent // LEAST_TASKS)
        most = TILE_BYTES // (m * self.dtype.itemsize) // COLUMNS * COLUMNS
        columns = min(-(-max(-(-n // parts), least) // COLUMNS) * COLUMNS, most)
        rows = (self.target.vector_registers - 1) // (COLUMNS + 1)
        depth = -(-k // -(-k // DEPTH) // self.lanes) * self.lanes
        return Blocking(rows, COLUMNS, m, columns, depth, (), rows)

    def _memories(self) -> list[Memory]:
        return [Memory("tile", self.dtype, "row", self.blocks.rows * self.blocks.columns)]

    def _sums(self) -> tuple[Stmt, ...]:
        n, block, one = self.s.columns.extent, self.blocks.columns, build.index("cg")
        whole, left = n // block, n % block
        made: list[Stmt] = []
        if whole:
            far = (For(one, block // COLUMNS, self._column_tiles(one, COLUMNS, block // COLUMNS)),)
            made += far if not left else (For(build.index("wb"), build.minimum(self.indices.linear([(-1, self.column)], whole), 1), far),)
        near: list[Stmt] = []
        if left >= COLUMNS:
            near.append(For(one, left // COLUMNS, self._column_tiles(self.indices.linear([(COLUMNS, one)]), COLUMNS, 1)))
        if left % COLUMNS:
            near += self._column_tiles(number(left // COLUMNS * COLUMNS), left % COLUMNS, 1)
        return (*made, *self._if_last(tuple(near), self.column, self.column_blocks, "rp")) if near else tuple(made)

    def _column_tiles(self, at: Node, columns: int, spread: int) -> tuple[Stmt, ...]:
        """The tiles of columns that are `spread` from each other, the first at `at`, over the whole depth: streams go on."""
        return self._over_depth(lambda: self._row_tiles(at, columns, spread))

    def _row_tiles(self, at: Node, columns: int, spread: int) -> tuple[Stmt, ...]:
        """All rows, in parts of about a size."""
        m, most = self.s.rows.extent, self.blocks.tile_rows
        parts = -(-m // most)
        rows, more = m // parts, m % parts
        made, t = list[Stmt](), build.index("ti")
        for start, count, each in ((0, more, rows + 1), (more * (rows + 1), parts - more, rows)):
            if count:
                row = self.indices.linear([(each, t)], start)
                made.append(For(t, count, (self._dots(row, each, at, columns, spread),)))
        return tuple(made)

    def _dots(self, row: Node, rows: int, column: Node, columns: int, spread: int) -> Tile:
        k = build.index("k")
        left = tuple(self._left(self._plus(row, r), k) for r in range(rows))
        offset = self.indices.linear([(self.blocks.columns, row), (1, column)])
        apart = (self.apart or 1) * spread
        return Tile(k, self.size, left, self._right(k, column), "tile", offset, self.blocks.columns, columns, self.adds, (), apart, spread)
