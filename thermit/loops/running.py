"""Two products with a softmax between them, a block of keys at a time: scores are kept for one block only, however many keys there are.

What comes in: a program that is one `Chain`.  What goes out: loops over tasks, each a few blocks of rows of one batch; other rows between than those
of a softmax are left to chain_blocks.py, which keeps them whole.

    scores[n] = ...;  acc1 max= f(scores[n]);  acc2 += e^(f(scores[n]) - acc1);  weights[n] = e^(...) * g(acc2)
 -> for task: for each block of keys:
        copies of the block, where its rows lie apart and several blocks of rows read them
        for each block of rows:
            for key by 6:                scores[key, lane] = x[key.., k] * panel[k, lane]      tiles
            for lane: vector             most' = max(most, f(scores[.., lane]));  shrink = e^(most - most')
                                         scores[key, lane] = e^(f(scores[key, lane]) - most');  total = total * shrink + their sum
            for row: for column: vector  sums[row, column] *= shrink[row]
            for columns by 16:           sums[lane.., columns] += scores[key, lane..] * v[key, columns]     tiles
    for row: for column: vector          out[row, column] = sums[row, column] * g(total[row])

The one idea: e^(x - m) is e^(x - m') e^(m' - m), so what was added up with the greatest score so far is scaled when a greater one comes; and what
all weights of a row are multiplied with may be multiplied with their sum.  Where it is minus infinity (all keys masked so far) 0 takes its
place.
Invariant: as in chain_blocks.py.  Source: Milakov, Gimelshein, Online normalizer calculation for softmax (2018); Dao, FlashAttention-2 (2023).
"""

from __future__ import annotations

import math
from dataclasses import replace

from thermit.ir import build
from thermit.ir import prims as p
from thermit.ir.node import Node, toposort
from thermit.loops.blocking import CORES, DEPTH, HasRegisters
from thermit.loops.chain import SCORES, WEIGHTS
from thermit.loops.chain_blocks import MOST_VECTORS, Blocks
from thermit.loops.index import ZERO, number
from thermit.loops.masked import seen_keys
from thermit.loops.nest import Acc, Chain, For, Load, LoopProgram, Memory, Stmt, Store, Tile
from thermit.loops.pull import ROWS_BYTES
from thermit.loops.rewrite import replaced, substitute
from thermit.records import dataclass

MOST_GROUP = 8  # blocks of rows of a task, which share the copies of a block of keys and find it in L2
LEAST_TASKS = 2 * CORES
APART_BYTES = 1024  # rows of a side that are further apart than this are copied: they share few sets of L1 and take a page each


def chained(program: LoopProgram, target: HasRegisters) -> LoopProgram | None:
    """The program in blocks of rows; None where that is not possible (one row fills no lanes)."""
    if len(program.body) != 1 or not isinstance(s := program.body[0], Chain) or s.first.rows.extent == 1:
        return None
    softmax = softmax_of(s.between)
    for vectors in range(MOST_VECTORS, 0, -1):
        blocks = Running(program, s, target, vectors, softmax) if softmax is not None else Blocks(program, s, target, vectors)
        if blocks.is_possible():
            return blocks.program()
    return None


# ---------------------------------------------------------------------------------------------- what stands between
@dataclass(frozen=True, slots=True)
class Softmax:
    """`score`: what is made of a score at `key`; `power` of it less `most`, its greatest, adds up to `total`; a weight is `last` of it and `share`.

    `scale`: how much larger the power is than e^x.  Not divided out before the weights are multiplied with values, it would make large ones infinite.
    """

    score: Node
    key: Node
    power: p.Prim
    most: Node
    total: Node
    last: p.Prim
    share: Node

    @property
    def scale(self) -> float:
        return 2.0**64 if self.power is p.EXP_FALLING else 1.0


def softmax_of(loops: tuple[For, ...]) -> Softmax | None:
    """The softmax that loops over a row of scores compute, if that is what they do."""
    if [len(loop.accs) for loop in loops] != [1, 1, 0] or not all(_is_plain(loop) for loop in loops):
        return None
    (most,), (total,), (key, *_) = loops[0].accs, loops[1].accs, [loop.index for loop in loops]
    if most.combine is not p.MAX or not build.is_const(most.init, -math.inf) or total.combine is not p.ADD or not build.is_const(total.init, 0):
        return None
    made: dict[str, Node] = {}
    values: list[Node] = []
    for loop, root in zip(loops, (most.value, total.value, None), strict=True):
        stores = {s.memory: _seen(s.value, loop.index, key, made) for s in loop.body if isinstance(s, Store)}
        values.append(stores[WEIGHTS] if root is None else _seen(root, loop.index, key, made))
        made |= stores
    score, power, weights = values
    if power.prim not in (p.EXP, p.EXP_FALLING) or power.args[0].prim is not p.SUB or weights.prim not in (p.MUL, p.DIV):
        return None
    x, less = power.args[0].args
    is_softmax = x is score and less in (most.local, _finite(most.local)) and weights.args[0] is power
    share = weights.args[1]
    names = {n.attrs.name for n in toposort([score, share]) if n.prim is p.LOAD and (n.attrs.name in made or n.attrs.name == SCORES)}
    depends = {n for n in toposort([share]) if n in (key, power) or n.prim is p.LOAD}
    if not is_softmax or names - {SCORES} or depends or most.local in toposort([score]):
        return None
    return Softmax(score, key, power.prim, most.local, total.local, weights.prim, share)


def _is_plain(loop: For) -> bool:
    return all(isinstance(s, Store) and s.guard is None and s.offset is loop.index for s in loop.body) and len(loop.body) <= 1


def _seen(value: Node, index: Node, key: Node, made: dict[str, Node]) -> Node:
    """A value of a loop, in terms of the scores, its index `key`."""
    new: dict[Node, Node] = {index: key}
    for node in toposort([value]):
        if node.prim is p.LOAD and node.attrs.name in made and node.args[0] is index:
            new[node] = made[node.attrs.name]
    return replaced(value, new)


def _finite(most: Node) -> Node:
    return build.where(build.eq(most, -math.inf), build.const(0.0, most.dtype), most)


# ---------------------------------------------------------------------------------------------- blocks
class Running(Blocks):
    """One chain with a softmax while it is taken apart."""

    def __init__(self, program: LoopProgram, s: Chain, target: HasRegisters, vectors: int, softmax: Softmax) -> None:
        super().__init__(program, s, target, vectors)
        self.softmax = softmax
        self.tile_keys = min(self.tile_rows, self.keys)
        self.reads_apart = (
            self._is_apart(s.first.right, s.first.columns.index),
            self._is_apart(s.second.right, s.second.depth.index),
        )
        self.group, self.block = self._sizes()
        if self.group > 1:
            self.copies_first, self.copies_second = (
                copies or apart for copies, apart in zip((self.copies_first, self.copies_second), self.reads_apart, strict=True)
            )
        self.blocks = -(-self.keys // self.block)
        self.groups = -(-self.row_blocks // self.group)
        self.batch = build.div(self.task, number(self.groups)) if program.extent > 1 else ZERO
        self.place = build.rem(self.task, number(self.groups)) if program.extent > 1 else self.task
        self.one = build.index("rg")  # a block of rows in its group
        start = self.indices.linear([(self.group * self.rows, self.place), (self.rows, self.one)])
        count = s.first.rows.extent
        self.first_row = build.minimum(start, count - self.rows) if count % self.rows else start
        self.first_key = self.indices.linear([(self.block, build.index("kb"))]) if self.blocks > 1 else ZERO

    def _is_apart(self, side: Node, along: Node) -> bool:
        (step,) = self._steps(side, along)
        return step is not None and step * self.dtype.itemsize > APART_BYTES

    def _sizes(self) -> tuple[int, int]:
        """Blocks of rows in a group and keys in a block, so that rows fit and tasks are many enough."""
        most = max(1, min(MOST_GROUP, self.row_blocks * self.origin.extent // LEAST_TASKS, self.row_blocks))
        sizes = self._key_sizes(DEPTH)
        for least in (DEPTH // 2, 1):
            for group in range(most, 0, -1):
                for block in sizes:
                    if block >= min(least, self.keys) and self._elems(group, block) * self.dtype.itemsize <= ROWS_BYTES:
                        return -(-self.row_blocks // -(-self.row_blocks // group)), block
        return 1, self.tile_keys

    def _key_sizes(self, most: int) -> list[int]:
        """Keys of a block: all, or whole tiles of them, so that the last block has a tile at least."""
        if self.keys <= most:
            return [self.keys]
        sizes = range(most // self.tile_keys * self.tile_keys, 0, -self.tile_keys)
        fit = [n for n in sizes if self.keys % n == 0 or self.keys % n >= self.tile_keys]
        return sorted(fit, key=lambda n: (-(-self.keys // n), -(self.keys % n or n)))

    def _elems(self, group: int, block: int) -> int:
        return sum(self._memory_sizes(group, block).values())

    def _memory_sizes(self, group: int, block: int) -> dict[str, int]:
        rows = group * self.rows
        sizes = {
            "scores": block * self.rows,
            "panel": self.depth * rows,
            "sums": rows * self.columns,
            "most": rows,
            "total": rows,
            "shrink": self.rows,
        }
        if self.copies_first or (group > 1 and self.reads_apart[0]):
            sizes["side"] = block * self.depth
        if self.copies_second or (group > 1 and self.reads_apart[1]):
            sizes["values"] = block * self.columns
        return sizes

    def _memories(self) -> list[Memory]:
        return [Memory(name, self.dtype, "row", elems) for name, elems in self._memory_sizes(self.group, self.block).items()]

    # ------------------------------------------------------------------ the program
    def program(self) -> LoopProgram:
        self.behind = seen_keys(self.between, self.s.first.rows.index, self.keys, self.indices)
        rows, width = self.s.first.rows.extent, self.group * self.rows
        last = self.indices.linear([(width, self.place)], width)
        blocks: int | Node = self.blocks
        if self.behind is not None:
            used = self._used(build.minimum(last, rows) if rows % width else last)
            blocks = build.div(self._plus(used, self.block - 1), number(self.block))
        kept = [m for m in self.origin.memories if m.role != "row"]
        body = (
            *self._zeros(),
            self._each(self._panel(self.indices.linear([(self.depth * self.rows, self.one)]))),
            For(build.index("kb"), blocks, self._key_block()),
            self._each((self._rest(),)),
        )
        extent = self.origin.extent * self.groups
        return replace(self.origin, memories=(*kept, *self._memories()), index=self.task, extent=extent, body=body)

    def _each(self, body: tuple[Stmt, ...]) -> For:
        """For each block of rows of the group."""
        count: int | Node = self.group
        if self.row_blocks % self.group:
            count = build.minimum(self.indices.linear([(-self.group, self.place)], self.row_blocks), self.group)
        return For(self.one, count, body)

    def _used(self, stop: Node) -> Node:
        """How many keys rows below `stop` see."""
        return build.minimum(self._plus(stop, self.behind or 0), self.keys)

    def _zeros(self) -> tuple[Stmt, ...]:
        z, dtype = build.index("z"), self.dtype
        fills = {"sums": (self.columns, 0.0), "most": (1, -math.inf), "total": (1, 0.0)}
        return tuple(
            For(z, self.group * self.rows * each, (Store(name, z, build.const(value, dtype)),), "vector", self.lanes)
            for name, (each, value) in fills.items()
        )

    def _count(self) -> tuple[int | Node, int | Node]:
        """Keys of the block that there are, and those of them that the rows see (perhaps less than none)."""
        there: int | Node = self.block
        if self.keys % self.block:
            there = build.minimum(self.indices.linear([(-1, self.first_key)], self.keys), self.block)
        if self.behind is None:
            return there, there
        used = self._used(self._plus(self.first_row, self.rows))
        return there, build.minimum(self.indices.linear([(1, used), (-1, self.first_key)]), self.block)

    def _key_block(self) -> tuple[Stmt, ...]:
        there, count = self._count()
        key, k, column = build.index("sk"), build.index("sj"), build.index("sj")
        copies: list[Stmt] = []
        if self.copies_first:
            copy = Store("side", self.indices.linear([(self.depth, key), (1, k)]), self._right(self._plus(self.first_key, key), k))
            copies.append(For(key, there, (For(k, self.depth, (copy,)),)))
        if self.copies_second:
            copy = Store("values", self.indices.linear([(self.columns, key), (1, column)]), self._value(self._plus(self.first_key, key), column))
            copies.append(For(key, there, (For(column, self.columns, (copy,)),)))
        rows: tuple[Stmt, ...] = (*self._tiles_of_scores(count), self._softmax(count), *self._shrunk(), *self._panels(ZERO, count))
        if isinstance(count, Node) and self.behind is not None:
            rows = (For(build.index("any"), build.minimum(count, 1), rows),)
        return (*copies, self._each(rows))

    # ------------------------------------------------------------------ the first product
    def _tiles_of_scores(self, count: int | Node) -> tuple[Stmt, ...]:
        """Whole tiles; the last is moved back where keys end, and makes some scores twice."""
        size = -(-self.depth // -(-self.depth // DEPTH))
        most, t = self.tile_keys, build.index("ti")
        tiles = -(-count // most) if isinstance(count, int) else build.div(self._plus(count, most - 1), number(most))
        key = self.indices.linear([(most, t)])  # in the block
        if self.keys % self.block % most if self.keys % self.block else self.block % most:
            end = self.indices.linear([(-1, self.first_key)], self.keys - most)
            key = build.minimum(key, end)
        return (For(t, tiles, tuple(self._tile(key, first, min(size, self.depth - first)) for first in range(0, self.depth, size))),)

    def _tile(self, key: Node, first: int, size: int) -> Tile:
        k, count = build.index("k"), self.tile_keys
        at = self._plus(k, first)

        def right(r: int) -> Node:
            if self.copies_first:
                return build.load("side", self.dtype, self.indices.linear([(self.depth, key), (1, at)], r * self.depth))
            return self._right(self._plus(self.first_key, key, r), at)

        panel = build.load("panel", self.dtype, self.indices.linear([(self.depth * self.rows, self.one), (self.rows, at)]))
        ahead = () if self.copies_first else tuple(Load(x.attrs.name, x.args[0]) for x in map(right, range(count, 2 * count)))
        left = tuple(map(right, range(count)))
        return Tile(k, size, left, panel, SCORES, self.indices.linear([(self.rows, key)]), self.rows, self.rows, first > 0, ahead)

    # ------------------------------------------------------------------ rows
    def _softmax(self, count: int | Node) -> For:
        """The powers of the scores of a block, with a row in each lane."""
        f, dtype, key = self.softmax, self.dtype, build.index("n")
        place = self.indices.linear([(self.rows, self.one), (1, self.lane)])
        at = self.indices.linear([(self.rows, key), (1, self.lane)])
        score = build.load(SCORES, dtype, at)
        row = {self.s.first.rows.index: self._plus(self.first_row, self.lane), self.origin.index: self.batch}
        made = replaced(f.score, {**row, f.key: self._plus(self.first_key, key), build.load(SCORES, dtype, f.key): score})
        old = build.load("most", dtype, place) if self.blocks > 1 else build.const(-math.inf, dtype)
        most, total = build.local("most", dtype), build.local("total", dtype)
        stores = () if made is score else (Store(SCORES, at, made),)
        greatest = For(key, count, stores, accs=(Acc(most, p.MAX, old, score),))
        power = build.mul(Node(f.power, (build.sub(score, _finite(most)),), None, score.type), 1 / f.scale)
        powers = For(key, count, (Store(SCORES, at, power),), accs=(Acc(total, p.ADD, build.const(0.0, dtype), score),))
        body: tuple[Stmt, ...] = (greatest, powers, Store("most", place, most), Store("total", place, total))
        if self.blocks > 1:
            shrink = build.where(build.eq(old, most), build.const(1.0, dtype), build.exp(build.sub(old, most)))
            more = build.add(build.mul(build.load("total", dtype, place), build.load("shrink", dtype, self.lane)), total)
            scaled = Store("shrink", self.lane, shrink), Store("most", place, most)
            body = greatest, *scaled, powers, Store("total", place, more)
        return For(self.lane, self.rows, body, "vector", self.rows)

    def _shrunk(self) -> tuple[Stmt, ...]:
        """The sums so far, for the greatest score so far."""
        if self.blocks == 1:
            return ()
        i, j = build.index("i"), build.index("j")
        at = self.indices.linear([(self.rows * self.columns, self.one), (self.columns, i), (1, j)])
        value = build.mul(build.load("sums", self.dtype, at), build.load("shrink", self.dtype, i))
        return (For(i, self.rows, (For(j, self.columns, (Store("sums", at, value),)),)),)

    # ------------------------------------------------------------------ the second product
    def _row_tiles(self, first: Node, size: int | Node, column: Node, width: int) -> tuple[Tile, ...]:
        n = build.index("n")
        if self.copies_second:
            right = build.load("values", self.dtype, self.indices.linear([(self.columns, n), (1, column)]))
        else:
            right = self._value(self._plus(self.first_key, n), column)
        parts = -(-self.rows // self.tile_rows)
        made, row = list[Tile](), 0
        for part in range(parts):
            count = -(-(self.rows - row) // (parts - part))
            weights = [build.load(SCORES, self.dtype, self.indices.linear([(self.rows, n)], row + r)) for r in range(count)]
            offset = self.indices.linear([(self.rows * self.columns, self.one), (1, column)], row * self.columns)
            made.append(Tile(n, size, tuple(weights), right, "sums", offset, self.columns, width))
            row += count
        return tuple(made)

    def _rest(self) -> Stmt:
        """What all weights are multiplied with, and what follows the sums."""
        i, j, s = build.index("i"), build.index("j"), self.s.second
        row = self.indices.linear([(self.rows, self.one), (1, i)])
        total = build.load("sums", self.dtype, self.indices.linear([(self.rows * self.columns, self.one), (self.columns, i), (1, j)]))
        f = self.softmax
        state = {f.most: build.load("most", self.dtype, row), f.total: build.mul(build.load("total", self.dtype, row), f.scale)}
        share = build.mul(replaced(f.share, state), f.scale if f.last is p.MUL else 1 / f.scale)
        new = {
            self.origin.index: self.batch,
            s.rows.index: self._plus(self.first_row, i),
            s.columns.index: j,
            s.local: Node(f.last, (total, share), None, total.type),
        }
        return For(i, self.rows, (For(j, self.columns, substitute(s.body, new)),))
