"""Matrix products in blocks that stay in the cache.

What comes in: a program that is one `Product`.  What goes out: loops over tasks, each a block of rows and columns of the result.  In a task
the right side is copied into panels of a few columns, the left side where its rows do not lie as the tile reads them, and `Tile`s add up the
block in a row memory; then the body runs over the block, as vectors.

    product i < 512, j < 768: s = sum(k < 1024) x[i, k] * w[j, k];  out[i, j] = gelu(s + b[j])
 -> for task (I, J):
        for kb < 2:
            for p: for k: vector       panel[p, k, c] = w[J + 24 p + c, 512 kb + k]     for all c < 24, turned in registers
            for i by 4: for p:         tile[i, p] += x[I + i.., 512 kb + k] * panel[p, k, ..]                       in registers
        for i: for j: vector           out[I + i, J + j] = gelu(tile[i, j] + b[J + j])

Every element of the right side is computed once for each block of rows, every element of the left side once for each block of columns (read
once where it is a plain load).  Each side may be any expression.  Sums are taken in blocks of some terms, which are then added:
no less accurate than a library's.  A right side that lies in rows is copied by the first tiles that multiply it.  One to four columns beyond
whole panels are copied along the depth, and the lanes of their tiles are steps of it.  Invariant: nothing is read or stored beyond the rows and
columns there are; the columns that fill a panel are zeros.  Source: Goto, van de Geijn, Anatomy of High-Performance Matrix Multiplication (2008).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from thermit.ir import build
from thermit.ir import prims as p
from thermit.ir.node import Node, toposort
from thermit.ir.types import FLOAT32, FLOAT64
from thermit.loops.blocking import EDGE, Blocking, HasRegisters, blocking
from thermit.loops.index import ZERO, Indices, number
from thermit.loops.nest import For, Load, LoopProgram, Memory, Product, Span, Stmt, Store, Tile
from thermit.loops.rewrite import replaced, substitute

TURNED = 2  # vectors of a column that are turned at once
MOST_UNROLLED = 8  # panels of a row that is copied
LEAST_WORK = 4096  # multiply-adds; fewer are not worth a copy


def packed(program: LoopProgram, target: HasRegisters) -> LoopProgram | None:
    """The program with its product in blocks; None where that is not possible or not worth it."""
    if len(program.body) != 1 or not isinstance(s := program.body[0], Product) or not is_worth(program, s):
        return None
    return Packing(program, s, target).program()


def is_worth(program: LoopProgram, s: Product, least_rows: int = 2) -> bool:
    """Whether a product may be taken apart, and is large enough (one row makes no use of a copy)."""
    m, n, k = s.rows.extent, s.columns.extent, s.depth.extent
    types = {s.left.dtype, s.right.dtype, s.local.dtype}
    return len(types) == 1 and s.local.dtype in (FLOAT32, FLOAT64) and m * n * k >= LEAST_WORK and m >= least_rows and not is_updated(program, s)


def is_updated(program: LoopProgram, s: Product) -> bool:
    """Whether what the body stores may be read by another task."""
    written = {t.memory for t in s.body if isinstance(t, Store)}
    read = {node.attrs.name for node in toposort([s.left, s.right]) if node.prim is p.LOAD}
    aliases = {other for m in program.memories if m.name in written for other in m.alias}
    aliases |= {m.name for m in program.memories if written & set(m.alias)}
    return bool(read & (written | aliases)) or not all(isinstance(t, Store) for t in s.body)


class Packing:
    """One product while it is taken apart.  `first`, `size`: the block of the depth that is written."""

    first: Node
    size: int | Node

    def __init__(self, program: LoopProgram, s: Product, target: HasRegisters) -> None:
        self.origin, self.s, self.target = program, s, target
        self.indices = Indices()
        self.dtype = s.local.dtype
        self.lanes = target.lanes(self.dtype.bits)
        left, right = self._step(s.left, s.depth), self._step(s.right, s.depth)
        self.reads_left = left == 1  # where it lies
        self.left_by_rows = not self.reads_left and self._step(s.left, s.rows) == 1  # neighbours are rows
        self.turns_right = right == 1 and self._step(s.right, s.columns) != 1
        self.blocks = self._blocking()
        self._place_task()
        self.fills = self._fills()
        self.is_edge = self._is_edge()

    def _blocking(self) -> Blocking:
        return blocking(self.s, self.origin.extent, self.target, self.reads_left, self.turns_right, fills=self._lies_in_rows())

    def _fills(self) -> bool:
        """Whether the first tiles of a block copy the panels that they read.  With one tile of rows the copy is all there is to do, and it is
        faster in the order of memory, through all panels (2 x 768 x 3072, weights from memory: 1.28 ms -> 0.94)."""
        b, s = self.blocks, self.s
        rows = s.rows.extent - (self.row_blocks - 1) * b.rows - sum(b.last)  # of the last block, in whole tiles
        return rows >= b.tile_rows and s.rows.extent > b.tile_rows and self._lies_in_rows()

    def _lies_in_rows(self) -> bool:
        """Whether neighbours of the right side are columns, and tiles may read it."""
        right, s = self.s.right, self.s
        return self.reads_left and self._step(right, s.columns) == 1 and self._step(right, s.depth) is not None

    def _is_edge(self) -> bool:
        """Whether the columns that fill no panel are so few that their lanes are steps of the depth."""
        return self.reads_left and not self.turns_right and 0 < self.rest_columns <= min(EDGE, self.lanes // 2)

    def _step(self, side: Node, span: Span) -> int | None:
        """How far apart the neighbours of a side along an index are; None if it is no plain load, or they are not evenly apart."""
        if side.prim is not p.LOAD or len(side.args) > 1:
            return None
        terms = self.indices.form(side.args[0])[1]
        if any(atom is not span.index and atom.args and any(x is span.index for x in toposort([atom])) for atom in terms):
            return None
        return terms.get(span.index, 0)

    # ------------------------------------------------------------------ sizes
    def _place_task(self) -> None:
        """The task as an index; its first row and column; how much of its block there is."""
        b, s = self.blocks, self.s
        m, n = s.rows.extent, s.columns.extent
        self.row_blocks, self.column_blocks = -(-m // b.rows), -(-n // b.columns)
        self.task = build.index("task")
        self.extent = self.origin.extent * self.row_blocks * self.column_blocks
        rest, row = _split(self.task, self.row_blocks)
        batch, column = _split(rest, self.column_blocks)
        self.batch = batch if self.origin.extent > 1 else ZERO
        self.row, self.column = row, column
        self.first_row = self.indices.linear([(b.rows, row)])
        self.first_column = self.indices.linear([(b.columns, column)])
        self.row_count = self._count(m, b.rows, row, 1)
        self.column_count = self._count(n, b.columns, column, 1)
        self.tiles = self._count(m, b.rows, row, b.tile_rows, sum(b.last))
        self.panels = self._count(n, b.columns, column, b.tile_columns)
        self.rest_columns = n % b.tile_columns

    def _count(self, extent: int, block: int, number_of_block: Node, unit: int, rest: int = 0) -> int | Node:
        """How many whole units of an extent without its rest stand in a block (at most block / unit)."""
        if extent % block == 0 or extent < block:
            return (min(extent, block) - rest) // unit
        left = self.indices.linear([(-block, number_of_block)], extent - rest)
        return build.minimum(_div(left, unit), block // unit)

    def _if_last(self, body: tuple[Stmt, ...], block: Node, blocks: int, name: str) -> tuple[Stmt, ...]:
        """The statements, in the last block only."""
        if blocks == 1:
            return body
        return (For(build.index(name), build.minimum(_div(block, blocks - 1), 1), body),)

    # ------------------------------------------------------------------ the program
    def program(self) -> LoopProgram:
        self.adds = self.s.depth.extent > self.blocks.depth or self._adds_parts()
        body = (*(self._zeros() if self.adds else ()), *self._sums(), self._rest())
        return replace(self.origin, memories=(*self.origin.memories, *self._memories()), index=self.task, extent=self.extent, body=body)

    def _sums(self) -> tuple[Stmt, ...]:
        """What adds up the block."""
        return self._over_depth(self._summed)

    def _over_depth(self, summed: Callable[[], tuple[Stmt, ...]]) -> tuple[Stmt, ...]:
        """Statements for one block of the depth, which begins at `self.first` and has `self.size` steps, for all of them."""
        k, depth = self.s.depth.extent, self.blocks.depth
        if k <= depth:
            self.first, self.size = ZERO, k
            return summed()
        block = build.index("kb")
        self.first = self.indices.linear([(depth, block)])
        self.size = build.minimum(self.indices.linear([(-depth, block)], k), depth) if k % depth else depth
        return (For(block, -(-k // depth), summed()),)

    def _adds_parts(self) -> bool:
        """Whether a block of the depth is added up in several parts."""
        return False

    def _memories(self) -> list[Memory]:
        b, d = self.blocks, self.dtype
        memories = [Memory("tile", d, "row", b.rows * b.columns), Memory("panel", d, "row", b.depth * b.columns)]
        return memories if self.reads_left else [*memories, Memory("lines", d, "row", b.group * b.depth)]

    def _zeros(self) -> tuple[Stmt, ...]:
        i = build.index("z")
        zero = build.const(0.0, self.dtype)
        return (For(i, self.blocks.rows * self.blocks.columns, (Store("tile", i, zero),), "vector", self.lanes),)

    def _rest(self) -> Stmt:
        """What follows the sum, over the block."""
        i, j = build.index("i"), build.index("j")
        at = self.indices.linear([(self.blocks.columns, i), (1, j)])
        new = {
            self.origin.index: self.batch,
            self.s.rows.index: self.indices.linear([(1, self.first_row), (1, i)]),
            self.s.columns.index: self.indices.linear([(1, self.first_column), (1, j)]),
            self.s.local: build.load("tile", self.dtype, at),
        }
        return For(i, self.row_count, (For(j, self.column_count, substitute(self.s.body, new)),))

    # ------------------------------------------------------------------ a block of the depth
    def _summed(self) -> tuple[Stmt, ...]:
        """What adds up the terms of a block of the depth."""
        b = self.blocks
        if not self.reads_left:
            return (*self._panels(), self._chunks())
        body, t, at = list(self._panels()), build.index("ti"), self._whole(self.tiles, b.tile_rows)
        begun = int(self.fills)
        if self.fills:
            body += self._rows(ZERO, b.tile_rows, True)
        if self.tiles not in (0, begun):
            count = self.tiles - begun if isinstance(self.tiles, int) else self._plus(self.tiles, -begun)
            body.append(For(t, count, self._rows(self.indices.linear([(b.tile_rows, t)], begun * b.tile_rows), b.tile_rows)))
        if self.is_edge and self.tiles != 0:
            edges = For(t, self.tiles, self._edge(self.indices.linear([(b.tile_rows, t)]), b.tile_rows))
            body += self._if_last((edges,), self.column, self.column_blocks, "rt")
        if b.last:
            body += self._if_last(self._last_rows(at), self.row, self.row_blocks, "rr")
        return tuple(body)

    def _last_rows(self, at: Node) -> tuple[Stmt, ...]:
        first, *others = self.blocks.last
        if others == [first]:
            t = build.index("tl")
            return (For(t, 2, self._rows(self.indices.linear([(1, at), (first, t)]), first)),)
        return (*self._rows(at, first), *(s for r in others for s in self._rows(self._plus(at, first), r)))

    def _whole(self, count: int | Node, unit: int) -> Node:
        return number(count * unit) if isinstance(count, int) else self.indices.linear([(unit, count)])

    # ------------------------------------------------------------------ the right side
    def _right(self, k: Node, j: Node) -> Node:
        """An element of the right side; j counts from the first column of the block."""
        depth = self.indices.linear([(1, self.first), (1, k)])
        column = self.indices.linear([(1, self.first_column), (1, j)])
        return replaced(self.s.right, {self.s.depth.index: depth, self.s.columns.index: column, self.origin.index: self.batch})

    def _panel(self, panel: Node, k: Node, c: Node | int) -> Node:
        """Where column c of a panel stands."""
        width = self.blocks.tile_columns
        parts = [(self.blocks.depth * width, panel), (width, k)]
        return self.indices.linear(parts, c) if isinstance(c, int) else self.indices.linear([*parts, (1, c)])

    def _panels(self) -> tuple[Stmt, ...]:
        """The right side in panels; the last one is filled up with zeros, to whole vectors."""
        made: list[Stmt] = []
        if self.turns_right:
            groups = self._count(self.s.columns.extent, self.blocks.columns, self.column, self.lanes)
            one, rest = build.index("cg"), self.s.columns.extent % self.lanes
            if groups != 0:
                made.append(For(one, groups, self._turned(one, self.lanes)))
            body = self._turned(self._whole(groups, 1), rest) if rest else ()
        else:
            if self.panels != 0:
                made += [] if self.fills else [self._copied_panels()]
            body = self._copied_rest(self._whole(self.panels, 1)) if self.rest_columns else ()
        return (*made, *self._if_last(body, self.column, self.column_blocks, "rp")) if body else tuple(made)

    def _plus(self, x: Node, more: int) -> Node:
        return self.indices.linear([(1, x)], more)

    def _copied_panels(self) -> Stmt:
        """Row by row of the right side, each through all panels."""
        width, one, k, c = self.blocks.tile_columns, build.index("p"), build.index("pk"), build.index("pc")
        stores = tuple(
            Store("panel", self._panel(one, k, self._plus(c, v)), self._right(k, self.indices.linear([(width, one), (1, c)], v)))
            for v in range(0, width, self.lanes)
        )
        vector = For(c, self.lanes, stores, "vector", self.lanes)
        is_few = isinstance(self.panels, int) and self.panels <= MOST_UNROLLED
        return For(k, self.size, (For(one, self.panels, (vector,), "unroll" if is_few else "serial"),))

    def _copied_rest(self, panel: Node) -> tuple[Stmt, ...]:
        k, c = build.index("rk"), build.index("rc")
        if self.is_edge:
            at = self.indices.linear([(self.blocks.tile_columns, panel), (1, c)])
            one = Store("panel", self._line_of_edge(k, c), self._right(k, at))
            return (For(c, self.rest_columns, (For(k, self.size, (one,), "vector", self.lanes),)),)
        width = -(-self.rest_columns // self.lanes) * self.lanes
        column = self.indices.linear([(self.blocks.tile_columns, panel), (1, c)])
        body: list[Stmt] = [For(c, self.rest_columns, (Store("panel", self._panel(panel, k, c), self._right(k, column)),))]
        if width > self.rest_columns:
            zero = Store("panel", self._panel(panel, k, self._plus(c, width - self.lanes)), build.const(0.0, self.dtype))
            body.insert(0, For(c, self.lanes, (zero,), "vector", self.lanes))
        return (For(k, self.size, tuple(body)),)

    def _turned(self, group: Node, columns: int) -> tuple[Stmt, ...]:
        """As many columns as there are lanes, which lie along the depth: turned in registers, two vectors of a column at once (a cache line)."""
        b, lanes = self.blocks, self.lanes
        step, lane, more, rest = build.index("ks"), build.index("kl"), build.index("km"), build.index("kr")
        vectors = b.tile_columns // lanes
        panel, first = (ZERO, group) if b.columns == b.tile_columns else _split(group, vectors)
        place, column = self.indices.linear([(lanes, first)]), self.indices.linear([(lanes, group)])

        def stores(k: Node, c: int) -> Store:
            value = self._right(k, self._plus(column, c)) if c < columns else build.const(0.0, self.dtype)
            return Store("panel", self.indices.linear([(1, self._panel(panel, k, c)), (1, place)]), value)

        def vector(first: Node, count: int) -> Stmt:
            at = self.indices.linear([(1, first), (1, lane)])
            return For(lane, lanes, tuple(stores(self._plus(at, v * lanes), c) for v in range(count) for c in range(lanes)), "vector", lanes)

        whole = self._part(self.size, TURNED * lanes)
        made: list[Stmt] = []
        if whole != 0:
            made.append(For(step, whole, (vector(self.indices.linear([(TURNED * lanes, step)]), TURNED),)))
        k = self.s.depth.extent
        start = self._whole(whole, TURNED * lanes)
        if k % (TURNED * lanes) >= lanes:
            made.append(For(more, self._left_over(start, lanes, TURNED - 1), (vector(self.indices.linear([(1, start), (lanes, more)]), 1),)))
        if k % lanes:
            start = self._whole(self._part(self.size, lanes), lanes)
            at = self.indices.linear([(1, start), (1, rest)])
            made.append(For(rest, self._left_over(start, 1, lanes - 1), tuple(stores(at, c) for c in range(lanes))))
        return tuple(made)

    def _part(self, size: int | Node, unit: int) -> int | Node:
        return size // unit if isinstance(size, int) else _div(size, unit)

    def _left_over(self, start: Node, unit: int, most: int) -> int | Node:
        """How many units of the depth there are from `start` on, at most `most`."""
        left = self.indices.linear([(1, _node(self.size)), (-1, start)])
        return int(left.attrs.value) // unit if left.prim is p.CONST else build.minimum(_div(left, unit), most)

    # ------------------------------------------------------------------ the left side
    def _left(self, i: Node, k: Node) -> Node:
        """An element of the left side; i counts from the first row of the block."""
        row = self.indices.linear([(1, self.first_row), (1, i)])
        depth = self.indices.linear([(1, self.first), (1, k)])
        return replaced(self.s.left, {self.s.rows.index: row, self.s.depth.index: depth, self.origin.index: self.batch})

    def _rows(self, at: Node, count: int, fills: bool = False) -> tuple[Stmt, ...]:
        """The tiles of `count` rows from row `at` of the block on; `fills`: they copy the panels."""
        k = build.index("k")
        return self._tiles(at, k, tuple(self._left(self._plus(at, r), k) for r in range(count)), fills)

    def _chunks(self) -> Stmt:
        """Rows are copied, as many as stay near; then come their tiles."""
        b, chunk, t = self.blocks, build.index("lc"), build.index("lt")
        first = self.indices.linear([(b.group, chunk)])
        if isinstance(self.row_count, int):
            chunks: int | Node = -(-self.row_count // b.group)
            count = build.minimum(self.indices.linear([(-1, first)], self.row_count), b.group) if self.row_count % b.group else b.group
        else:
            chunks = build.minimum(_div(self._plus(self.row_count, b.group - 1), b.group), -(-b.rows // b.group))
            count = build.minimum(self.indices.linear([(1, self.row_count), (-1, first)]), b.group)
        if chunks == 1 and isinstance(self.row_count, int):
            count = self.row_count
        tiles, rest = self._part(count, b.tile_rows), self.s.rows.extent % b.tile_rows
        body = [*self._lines(first, count)]
        row = self.indices.linear([(b.tile_rows, t)])
        if tiles != 0:
            body.append(For(t, tiles, self._tiles_of_lines(first, row, b.tile_rows)))
        if rest:
            made = self._tiles_of_lines(first, self._whole(tiles, b.tile_rows), rest)
            left = self.indices.linear([(1, _node(count)), (-1, self._whole(tiles, b.tile_rows))])
            body += made if left.prim is p.CONST else (For(build.index("lr"), build.minimum(left, 1), made),)
        return For(chunk, chunks, tuple(body))

    def _line(self, r: Node, k: Node) -> Node:
        """Where an element of a copied row stands."""
        return self.indices.linear([(1, k), (self.blocks.depth, r)])

    def _lines(self, at: Node, count: int | Node) -> tuple[Stmt, ...]:
        if self.left_by_rows:
            return self._turned_lines(at, count)
        r, k = build.index("lr"), build.index("lk")
        return (For(r, count, (For(k, self.size, (self._copy(at, r, k),)),)),)

    def _copy(self, at: Node, r: Node, k: Node) -> Store:
        return Store("lines", self._line(r, k), self._left(self.indices.linear([(1, at), (1, r)]), k))

    def _turned_lines(self, at: Node, count: int | Node) -> tuple[Stmt, ...]:
        """Rows whose neighbours are rows: as many steps of the depth as there are lanes are turned in registers, for all rows."""
        lanes = self.lanes
        step, group, lane, rest, r = (build.index(name) for name in ("ls", "lg", "ll", "lk", "lr"))
        groups, steps, made = self._part(count, lanes), self._part(self.size, lanes), list[Stmt]()
        if groups != 0:
            row = self.indices.linear([(lanes, group), (1, lane)])

            def copies(first: Node, count: int) -> Stmt:
                stores = tuple(self._copy(at, row, self._plus(first, k)) for k in range(count))
                return For(group, groups, (For(lane, lanes, stores, "vector", lanes),))

            if steps != 0:
                made.append(For(step, steps, (copies(self.indices.linear([(lanes, step)]), lanes),)))
            if self.s.depth.extent % lanes:
                start = self._whole(steps, lanes)
                made.append(For(rest, self._left_over(start, 1, lanes - 1), (copies(self.indices.linear([(1, start), (1, rest)]), 1),)))
        if self.s.rows.extent % lanes:
            first = self._whole(groups, lanes)
            left = self.indices.linear([(1, _node(count)), (-1, first)])
            extent = int(left.attrs.value) if left.prim is p.CONST else build.minimum(left, lanes - 1)
            made.append(For(rest, self.size, (For(r, extent, (self._copy(at, self.indices.linear([(1, first), (1, r)]), rest),)),)))
        return tuple(made)

    def _tiles_of_lines(self, at: Node, first: Node, count: int) -> tuple[Stmt, ...]:
        k = build.index("k")
        lines = (build.load("lines", self.dtype, self._line(self._plus(first, r), k)) for r in range(count))
        return self._tiles(self.indices.linear([(1, at), (1, first)]), k, tuple(lines))

    def _tiles(self, at: Node, k: Node, left: tuple[Node, ...], fills: bool = False) -> tuple[Stmt, ...]:
        """The tiles of some rows, one for each panel."""
        b, made, panel = self.blocks, list[Stmt](), build.index("tp")
        if self.panels != 0:
            tile = self._tile(at, k, left, panel, b.tile_columns)
            made.append(For(panel, self.panels, self._filling(tile, panel) if fills else (tile,)))
        if self.is_edge:  # of whole tiles: all in one loop, less code
            made += self._if_last(self._edge(at, len(left)), self.column, self.column_blocks, "rt") if len(left) < b.tile_rows else ()
        elif self.rest_columns:
            width = -(-self.rest_columns // self.lanes) * self.lanes
            tile = self._tile(at, k, left, self._whole(self.panels, 1), width)
            made += self._if_last((tile,), self.column, self.column_blocks, "rt")
        return tuple(made)

    def _tile(self, at: Node, k: Node, left: tuple[Node, ...], panel: Node, width: int) -> Tile:
        b = self.blocks
        offset = self.indices.linear([(b.columns, at), (b.tile_columns, panel)])
        right = build.load("panel", self.dtype, self._panel(panel, k, 0))
        return Tile(k, self.size, left, right, "tile", offset, b.columns, width, self.adds, self._ahead(at, k, panel))

    def _filling(self, tile: Tile, panel: Node) -> tuple[Stmt, ...]:
        """The same, which copies its panel."""
        return (replace(tile, copied=self._right(tile.index, self.indices.linear([(self.blocks.tile_columns, panel)]))),)

    # ------------------------------------------------------------------ a few columns more than panels have
    def _line_of_edge(self, k: Node, c: Node) -> Node:
        """Where a column stands that fills no register: along the depth, where its panel would be."""
        panels = self._whole(self.panels, self.blocks.depth * self.blocks.tile_columns)
        return self.indices.linear([(1, panels), (self.blocks.depth, c), (1, k)])

    def _edge(self, at: Node, count: int) -> tuple[Stmt, ...]:
        """The tiles of such columns and some rows; their lanes are steps of the depth."""
        b, width, k, part = self.blocks, self.rest_columns, build.index("k"), build.index("te")
        most = (self.target.vector_registers - 1) // (width + 1)
        rows = next(r for r in range(count, 0, -1) if count % r == 0 and r <= most)
        first = at if rows == count else self.indices.linear([(1, at), (rows, part)])
        left = tuple(self._left(self._plus(first, r), k) for r in range(rows))
        offset = self.indices.linear([(b.columns, first), (1, self._whole(self.panels, b.tile_columns))])
        right = build.load("panel", self.dtype, self._line_of_edge(k, ZERO))
        tile = Tile(k, self.size, left, right, "tile", offset, b.columns, width, self.adds, (), b.depth)
        return (tile,) if rows == count else (For(part, count // rows, (tile,)),)

    def _ahead(self, at: Node, k: Node, panel: Node) -> tuple[Load, ...]:
        """What is read next, near before it is asked for: of the left side a row below, another one with each panel; of a right side that is
        turned a column in the next block of the depth, another one with each tile.  (Columns that are copied: the processor does it as well.)"""
        b, made = self.blocks, list[Node]()
        if self.reads_left:
            share = -(-b.tile_rows * b.tile_columns // b.columns)  # of these rows with each panel
            rows = [build.minimum(self.indices.linear([(share, panel)], r), b.tile_rows - 1) for r in range(share)]
            made += [self._left(self.indices.linear([(1, at), (1, row)], b.tile_rows), k) for row in rows]
        if self.turns_right and self.adds:
            tile = _div(at, b.tile_rows)
            column = self.indices.linear([(b.columns // b.tile_columns, tile), (1, panel)])
            made.append(self._right(self._plus(k, b.depth), column))
        return tuple(Load(load.attrs.name, load.args[0]) for load in made if not reads_data(load.args[0]))


def reads_data(offset: Node) -> bool:
    """Whether an offset is data."""
    return any(n.prim is p.LOAD for n in toposort([offset]))


def _node(x: int | Node) -> Node:
    return number(x) if isinstance(x, int) else x


def _div(x: Node, divisor: int) -> Node:
    return build.div(x, number(divisor)) if divisor != 1 else x


def _split(x: Node, count: int) -> tuple[Node, Node]:
    """Quotient and remainder."""
    return (x, ZERO) if count == 1 else (build.div(x, number(count)), build.rem(x, number(count)))
