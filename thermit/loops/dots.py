"""Matrix products with few rows, both sides of which lie along the depth: read where they are.

What comes in: a program that is one `Product`.  What goes out: tasks, each a block of columns; in it tiles whose lanes are steps of the depth.
Nothing is copied: with few rows a copy of the right side (the weights of a layer) costs as much as the product.

    product i < 8, j < 768: s = sum(k < 1024) x[i, k] * w[j, k];  out[i, j] = s + b[j]
 -> for task J:
        for j by 4: for i by 3:        tile[i.., j..] = x[i.., 0:1024] * w[J + j.., 0:1024]      in registers, the lanes added in the end
        for i: for j: vector           out[i, J + j] = tile[i, j] + b[J + j]

A tile of 3 x 4 reads 7 vectors for 12 multiply-adds, as one over panels does; adding its lanes costs what 4 steps of it do.  Measured (Zen 3, one
core, 768 x 768): 4 rows 122 us -> 73, 16 rows 263 -> 215, 48 rows 639 -> 600, 128 rows 1610 -> 1840.  Invariant: as in contraction.py.
"""

from __future__ import annotations

from thermit.ir import build
from thermit.ir.node import Node
from thermit.loops.blocking import Blocking, HasRegisters
from thermit.loops.contraction import Packing, is_worth, reads_data
from thermit.loops.nest import For, Load, LoopProgram, Memory, Product, Stmt, Tile

ROWS = 48  # from so many rows on the copy costs less than adding lanes and reading the left side as vectors
COLUMNS = 4  # of a tile: what 128 bits hold of float32
DEPTH = 1024  # terms at once: four columns are 16 KB of float32
STEPS_A_ROW = 4  # of the depth, at least: adding lanes costs as much as so many steps of a tile
LEAST_COLUMNS = 16  # of a task
TASKS = 32  # so many suffice ...
TILE_BYTES = 64 * 1024  # ... where their sums are not more


def dotted(program: LoopProgram, target: HasRegisters) -> LoopProgram | None:
    """The program with tiles over what lies in memory; None where that is not possible or not worth it."""
    if len(program.body) != 1 or not isinstance(s := program.body[0], Product) or not is_worth(program, s):
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
        most = TILE_BYTES // (m * self.dtype.itemsize) // COLUMNS * COLUMNS
        columns = min(-(-n // parts // COLUMNS) * COLUMNS, most)
        rows = (self.target.vector_registers - 1) // (COLUMNS + 1)
        depth = -(-k // -(-k // DEPTH) // self.lanes) * self.lanes
        return Blocking(rows, COLUMNS, m, columns, depth, (), rows)

    def _memories(self) -> list[Memory]:
        return [Memory("tile", self.dtype, "row", self.blocks.rows * self.blocks.columns)]

    def _summed(self, first: Node, size: int | Node) -> tuple[Stmt, ...]:
        self.first, self.size = first, size
        one, made = build.index("cg"), list[Stmt]()
        groups = self._count(self.s.columns.extent, self.blocks.columns, self.column, COLUMNS)
        if groups != 0:
            made.append(For(one, groups, self._column_tiles(self.indices.linear([(COLUMNS, one)]), COLUMNS)))
        rest = self.s.columns.extent % COLUMNS
        if rest:
            tiles = self._column_tiles(self._whole(groups, COLUMNS), rest)
            made += self._if_last(tiles, self.column, self.column_blocks, "rp")
        return tuple(made)

    def _column_tiles(self, at: Node, columns: int) -> tuple[Stmt, ...]:
        """The tiles of some columns: all rows, in parts of about a size."""
        m, most = self.s.rows.extent, self.blocks.tile_rows
        parts = -(-m // most)
        rows, more = m // parts, m % parts
        made, t = list[Stmt](), build.index("ti")
        for start, count, each in ((0, more, rows + 1), (more * (rows + 1), parts - more, rows)):
            if count:
                row = self.indices.linear([(each, t)], start)
                made.append(For(t, count, (self._dots(row, t, each, at, columns, parts),)))
        return tuple(made)

    def _dots(self, row: Node, t: Node, rows: int, column: Node, columns: int, parts: int) -> Tile:
        k = build.index("k")
        left = tuple(self._left(self._plus(row, r), k) for r in range(rows))
        offset = self.indices.linear([(self.blocks.columns, row), (1, column)])
        share = -(-COLUMNS // parts)  # of the next columns, fetched with each tile
        ahead = (self._right(k, self.indices.linear([(1, column), (share, t)], columns + c)) for c in range(share))
        loads = tuple(Load(x.attrs.name, x.args[0]) for x in ahead if not reads_data(x.args[0]))
        return Tile(k, self.size, left, self._right(k, column), "tile", offset, self.blocks.columns, columns, self.adds, loads, self.apart or 1)
