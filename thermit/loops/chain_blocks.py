"""Two products with rows between them, a block of rows at a time: the rows of the first (scores) are never stored.

What comes in: a program that is one `Chain`.  What goes out: loops over tasks, each a block of as many rows as stand in the lanes of two registers
(16 of float32 with AVX2).  In a task the rows of the left side are turned into a panel; tiles then make the scores with rows in the lanes, so that
the right side is read where it lies, one element into all lanes; what stands between runs along the scores with a row in each lane, so that
maxima and sums of rows are of whole registers; and a second set of tiles reads the weights as elements and its right side as vectors.

    chain row < 128: scores[key] = sum(k < 64) q[row, k] * x[key, k];  ...;  out[row, column] = sum(key < 128) weights[key] * v[key, column]
 -> for task I:
        for k: vector                    panel[k, lane] = q[16 I + lane, k]                   turned in registers
        for key by 6:                    scores[key.., lane] = x[key.., k] * panel[k, lane]    a tile
        for lane: vector x 16            for key: maximum; for key: exp, sum; for key: weights[key, lane] = ...
        for columns by 16:               sums[lane.., columns] = weights[key, lane..] * v[key, columns]     tiles
        for lane: for column: vector     out[16 I + lane, column] = sums[lane, column]

So neither side is copied, unless it is to be cast or does not lie as the tiles read it: per block of rows the whole of both is read once, from L2.
What row memories hold is written over what nothing reads any more, so that the scores of a block take one buffer.  Where keys are masked by
their place (causal), those that no row of the block sees are skipped (masked.py).  Invariant: nothing is read or stored beyond the rows and columns
there are; the last block is moved back, so its first rows may be made twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from thermit.ir import build
from thermit.ir import prims as p
from thermit.ir.node import Node, toposort
from thermit.loops.blocking import DEPTH, HasRegisters
from thermit.loops.chain import SCORES, WEIGHTS
from thermit.loops.index import ZERO, Indices, number
from thermit.loops.masked import seen_keys
from thermit.loops.nest import Acc, Chain, For, Load, LoopProgram, Memory, Stmt, Store, Tile
from thermit.loops.pull import ROWS_BYTES
from thermit.loops.rewrite import replaced, substitute

Loops = tuple[For, ...]
MOST_VECTORS = 2  # of rows of a block: a tile of 6 x 2 registers


class Blocks:
    """One chain while it is taken apart."""

    def __init__(self, program: LoopProgram, s: Chain, target: HasRegisters, vectors: int) -> None:
        self.origin, self.s, self.target = program, s, target
        self.dtype = s.first.local.dtype
        self.lanes = target.lanes(self.dtype.bits)
        self.rows = vectors * self.lanes
        self.tile_rows = (target.vector_registers - 1 - vectors) // vectors
        self.indices = Indices()
        self.keys, self.columns, self.depth = s.first.columns.extent, s.second.columns.extent, s.first.depth.extent
        self.block = -(-self.keys // -(-self.keys // DEPTH))  # keys whose terms are added in registers, and that are copied at once
        self.copies_first = None in self._steps(s.first.right, s.first.columns.index, s.first.depth.index)
        steps = self._steps(s.second.right, s.second.depth.index, s.second.columns.index)
        self.copies_second = None in steps or steps[1] != 1
        self.between, self.slots = in_place(s.between)
        count = s.first.rows.extent
        self.row_blocks = -(-count // self.rows)
        self.task, self.lane = build.index("task"), build.index("lane")
        self.batch = build.div(self.task, number(self.row_blocks)) if program.extent > 1 else ZERO
        block = build.rem(self.task, number(self.row_blocks)) if program.extent > 1 else self.task
        start = self.indices.linear([(self.rows, block)])
        self.first_row = build.minimum(start, count - self.rows) if count % self.rows else start

    def is_possible(self) -> bool:
        if self.s.first.rows.extent < self.rows or {m.dtype for m in self.origin.memories if m.role == "row"} - {self.dtype}:
            return False
        return sum(m.elems for m in self._memories()) * self.dtype.itemsize <= ROWS_BYTES

    def _steps(self, side: Node, *indices: Node) -> tuple[int | None, ...]:
        """How far apart the neighbours of a side along indices are; None if it is no plain load, or they are not evenly apart."""
        if side.prim is not p.LOAD or len(side.args) > 1 or any(n.prim is p.LOAD for n in toposort(side.args)):
            return (None,) * len(indices)
        terms = self.indices.form(side.args[0])[1]
        odd = [atom for atom in terms if atom.args]
        return tuple(None if any(index in toposort([atom]) for atom in odd) else terms.get(index, 0) for index in indices)

    # ------------------------------------------------------------------ the program
    def program(self) -> LoopProgram:
        used = seen_keys(self.between, self.s.first.rows.index, self.keys, self.indices)
        self.used: int | Node = self.keys
        if used is not None:
            last = self.indices.linear([(1, self.first_row)], self.rows + used)
            self.used = build.minimum(last, self.keys)
        body = (*self._panel(), *self._scores(), self._rows_between(), *self._sums(), self._rest())
        kept = [m for m in self.origin.memories if m.role != "row"]
        extent = self.origin.extent * self.row_blocks
        return replace(self.origin, memories=(*kept, *self._memories()), index=self.task, extent=extent, body=body)

    def _memories(self) -> list[Memory]:
        sizes = dict.fromkeys(self.slots.values(), self.keys * self.rows)
        sizes |= {"panel": self.depth * self.rows, "sums": self.rows * self.columns}
        copied = max(self.depth if self.copies_first else 0, self.columns if self.copies_second else 0)
        sizes |= {"side": self.block * copied} if copied else {}
        return [Memory(name, self.dtype, "row", elems) for name, elems in sizes.items()]

    # ------------------------------------------------------------------ the first product
    def _left(self, row: Node, k: Node) -> Node:
        s = self.s.first
        return replaced(s.left, {s.rows.index: self._plus(self.first_row, row), s.depth.index: k, self.origin.index: self.batch})

    def _plus(self, *parts: Node | int) -> Node:
        more = sum(x for x in parts if isinstance(x, int))
        return self.indices.linear([(1, x) for x in parts if isinstance(x, Node)], more)

    def _panel(self, start: Node = ZERO) -> tuple[Stmt, ...]:
        """The rows of the block, step by step of the depth, from the place `start` on."""
        depth, made = self.depth, list[Stmt]()
        step, lane, rest = build.index("ks"), build.index("kl"), build.index("kr")

        def stores(k: Node) -> tuple[Store, ...]:
            place = self.indices.linear([(self.rows, k), (1, start)])
            return tuple(Store("panel", self._plus(place, c), self._left(number(c), k)) for c in range(self.rows))

        if depth >= self.lanes:
            whole = self.indices.linear([(self.lanes, step), (1, lane)])
            made.append(For(step, depth // self.lanes, (For(lane, self.lanes, stores(whole), "vector", self.lanes),)))
        if depth % self.lanes:
            made.append(For(rest, depth % self.lanes, stores(self._plus(rest, depth - depth % self.lanes))))
        return tuple(made)

    def _scores(self) -> tuple[Stmt, ...]:
        """Tiles of keys; where the right side is copied, in blocks of keys."""
        if not self.copies_first:
            return self._score_tiles(ZERO, self.keys, self.used)
        block, k, key = build.index("kb"), build.index("sk"), build.index("sj")
        first = self.indices.linear([(self.block, block)])
        count, left = self._key_blocks(first)
        copy = Store("side", self.indices.linear([(self.depth, key), (1, k)]), self._right(self._plus(first, key), k))
        copies = For(key, left, (For(k, self.depth, (copy,)),))
        return (For(block, count, (copies, *self._score_tiles(first, self.block, left))),)

    def _key_blocks(self, first: Node) -> tuple[int | Node, int | Node]:
        """How many blocks of keys there are, and how many keys the one from `first` on has."""
        if isinstance(self.used, int) and self.keys % self.block == 0:
            return self.keys // self.block, self.block
        if isinstance(self.used, int):
            return -(-self.keys // self.block), build.minimum(self.indices.linear([(-1, first)], self.keys), self.block)
        count = build.div(self._plus(self.used, self.block - 1), number(self.block))
        return count, build.minimum(self.indices.linear([(1, self.used), (-1, first)]), self.block)

    def _score_tiles(self, start: Node, most: int, count: int | Node) -> tuple[Stmt, ...]:
        """Tiles of `count` keys (at most `most`) from `start` on; of the depth as many terms at once as are accurate."""
        size = -(-self.depth // -(-self.depth // DEPTH))
        made = list[Stmt]()
        for first in range(0, self.depth, size):
            terms, t, r = min(size, self.depth - first), build.index("ti"), build.index("tr")
            whole = count // self.tile_rows if isinstance(count, int) else build.div(count, number(self.tile_rows))
            if whole != 0:
                key = self.indices.linear([(1, start), (self.tile_rows, t)])
                made.append(For(t, whole, (self._score_tile(key, start, self.tile_rows, first, terms),)))
            done = number(whole * self.tile_rows) if isinstance(whole, int) else self.indices.linear([(self.tile_rows, whole)])
            if isinstance(count, int) and count % self.tile_rows:
                made.append(self._score_tile(self._plus(start, done), start, count % self.tile_rows, first, terms))
            elif isinstance(count, Node):
                left = build.minimum(self.indices.linear([(1, count), (-1, done)]), self.tile_rows - 1)
                made.append(For(r, left, (self._score_tile(self._plus(start, done, r), start, 1, first, terms),)))
        return tuple(made)

    def _right(self, key: Node, k: Node) -> Node:
        s = self.s.first
        return replaced(s.right, {s.columns.index: key, s.depth.index: k, self.origin.index: self.batch})

    def _score_tile(self, key: Node, start: Node, count: int, first: int, size: int) -> Tile:
        k = build.index("k")
        at = self._plus(k, first)

        def right(r: int) -> Node:
            if self.copies_first:
                place = self.indices.linear([(self.depth, key), (-self.depth, start), (1, at)], r * self.depth)
                return build.load("side", self.dtype, place)
            return self._right(self._plus(key, r), at)

        panel = build.load("panel", self.dtype, self.indices.linear([(self.rows, at)]))
        offset = self.indices.linear([(self.rows, key)])
        ahead = () if self.copies_first else tuple(Load(x.attrs.name, x.args[0]) for x in map(right, range(count, 2 * count)))
        left = tuple(map(right, range(count)))
        return Tile(k, size, left, panel, self.slots[SCORES], offset, self.rows, self.rows, first > 0, ahead)

    # ------------------------------------------------------------------ rows
    def _rows_between(self) -> For:
        """The loops between, with a row in each lane."""
        new = {self.s.first.rows.index: self._plus(self.first_row, self.lane), self.origin.index: self.batch}
        loops = tuple(replace(loop, extent=self.used) for loop in self.between)
        for node in toposort([n for loop in loops for n in _expressions(loop)]):
            if node.prim is p.LOAD and node.attrs.name in self.slots:
                new[node] = build.load(self.slots[node.attrs.name], node.dtype, self._wide(node.args[0]))
        widened = tuple(replace(loop, body=tuple(map(self._widened, loop.body))) for loop in loops)
        return For(self.lane, self.rows, substitute(widened, new), "vector", self.rows)

    def _wide(self, key: Node) -> Node:
        return self.indices.linear([(self.rows, key), (1, self.lane)])

    def _widened(self, s: Stmt) -> Stmt:
        assert isinstance(s, Store)
        return replace(s, memory=self.slots[s.memory], offset=self._wide(s.offset))

    # ------------------------------------------------------------------ the second product
    def _sums(self) -> tuple[Stmt, ...]:
        zero, block = build.index("z"), build.index("nb")
        zeros = For(zero, self.rows * self.columns, (Store("sums", zero, build.const(0.0, self.dtype)),), "vector", self.lanes)
        first = self.indices.linear([(self.block, block)])
        count, left = self._key_blocks(first)
        if not self.copies_second:
            return zeros, For(block, count, self._panels(first, left))
        key, column = build.index("sk"), build.index("sj")
        copy = Store("side", self.indices.linear([(self.columns, key), (1, column)]), self._value(self._plus(first, key), column))
        copies = For(key, left, (For(column, self.columns, (copy,)),))
        return zeros, For(block, count, (copies, *self._panels(first, left)))

    def _value(self, key: Node, column: Node) -> Node:
        s = self.s.second
        return replaced(s.right, {s.depth.index: key, s.columns.index: column, self.origin.index: self.batch})

    def _panels(self, first: Node, size: int | Node) -> tuple[Stmt, ...]:
        """Tiles of columns, as wide as those of the first product, then narrower ones."""
        made, c, column = list[Stmt](), build.index("cp"), 0
        width = self.rows
        while width:
            count = (self.columns - column) // width
            if count:
                at = self.indices.linear([(width, c)], column)
                made.append(For(c, count, self._row_tiles(first, size, at, width)))
                column += count * width
            width //= 2
        return tuple(made)

    def _row_tiles(self, first: Node, size: int | Node, column: Node, width: int) -> tuple[Tile, ...]:
        n = build.index("n")
        key = self._plus(first, n)
        if self.copies_second:
            right = build.load("side", self.dtype, self.indices.linear([(self.columns, n), (1, column)]))
        else:
            right = self._value(key, column)
        parts = -(-self.rows // self.tile_rows)
        made, row = list[Tile](), 0
        for part in range(parts):
            count = -(-(self.rows - row) // (parts - part))
            weights = [build.load(self.slots[WEIGHTS], self.dtype, self.indices.linear([(self.rows, key)], row + r)) for r in range(count)]
            offset = self.indices.linear([(1, column)], row * self.columns)
            made.append(Tile(n, size, tuple(weights), right, "sums", offset, self.columns, width))
            row += count
        return tuple(made)

    def _rest(self) -> Stmt:
        """What follows the sums, over the block."""
        i, j, s = build.index("i"), build.index("j"), self.s.second
        new = {
            self.origin.index: self.batch,
            s.rows.index: self._plus(self.first_row, i),
            s.columns.index: j,
            s.local: build.load("sums", self.dtype, self.indices.linear([(self.columns, i), (1, j)])),
        }
        return For(i, self.rows, (For(j, self.columns, substitute(s.body, new)),))


# ---------------------------------------------------------------------------------------------- row memories
def in_place(loops: Loops) -> tuple[Loops, dict[str, str]]:
    """The loops, and for each row memory the buffer that it shares with others: what is stored is written over what only this loop still reads.

    For that a loop's accumulators read again what the loop stores."""
    loops = tuple(replace(loop, accs=tuple(_again(a, loop.body) for a in loop.accs)) for loop in loops)
    last: dict[str, int] = {WEIGHTS: len(loops)}
    for k, loop in enumerate(loops):
        for name in _loaded(_expressions(loop)):
            last[name] = max(last.get(name, k), k)
    slots, holders, since = {SCORES: "rows0"}, {"rows0": SCORES}, {SCORES: -1}
    for k, loop in enumerate(loops):
        by_accs = _loaded([a.value for a in loop.accs])
        for name in dict.fromkeys(s.memory for s in loop.body if isinstance(s, Store)):
            free = (
                slot for slot, held in holders.items() if since[held] < k and (last.get(held, -1) < k or (last[held] == k and held not in by_accs))
            )
            slot = next(free, f"rows{len(holders)}")
            slots[name], holders[slot], since[name] = slot, name, k
    return loops, slots


def _again(a: Acc, body: Sequence[Stmt]) -> Acc:
    stores = {s.value: build.load(s.memory, s.value.dtype, s.offset) for s in body if isinstance(s, Store)}
    return replace(a, value=replaced(a.value, dict(stores)))


def _expressions(loop: For) -> list[Node]:
    stores = [s for s in loop.body if isinstance(s, Store)]
    return [n for s in stores for n in (s.offset, s.value)] + [n for a in loop.accs for n in (a.init, a.value)]


def _loaded(roots: Sequence[Node]) -> set[str]:
    return {n.attrs.name for n in toposort(roots) if n.prim is p.LOAD}
