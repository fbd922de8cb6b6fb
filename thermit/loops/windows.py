"""Matrix products whose right side is made of windows: convolutions.

What comes in: a program that is one `Product`, the right side of which reads an image at places that are quotients and remainders of the
depth (the channel and the taps of the window) and of the column (where the window stands).  What goes out: the blocks of contraction.py, with
another way to copy the right side.

    x[column + 56 * (k / 3 % 3) + k % 3 - 57 + 3136 * (k / 9)]  where it is inside, else 0     column < 3136, k < 576
 -> inside[kh, kw, column] = -1 or 0                                       for the columns of the block, once a task
    for kh < 3: for kw < 3: for c < 64: for p: vector
        panel[p, 9 c + 3 kh + kw] = x[column + 56 kh + kw - 57 + 3136 c]  where inside[kh, kw, column]

With channels enough in a block, tiles over the channels of one tap copy their panel while they multiply it, and there is no loop that copies.

Two observations make it cheap.  The depth is cut where its quotients and remainders change, so that none is left.  Where the image is as wide
as the result, neighbouring columns read neighbouring elements, also from one row of the image to the next; what is not so at the borders is a
question that no channel changes, so its answers are kept as masks.  Invariant: nothing is read where the question is answered no.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

from thermit.ir import build
from thermit.ir import prims as p
from thermit.ir.node import Node, toposort
from thermit.ir.types import BOOL, INT32, INT64
from thermit.loops.blocking import Blocking, HasRegisters, blocking
from thermit.loops.contraction import MOST_UNROLLED, Packing, is_worth
from thermit.loops.index import ZERO, Indices, number
from thermit.loops.nest import For, LoopProgram, Memory, Product, Span, Stmt, Store, Tile
from thermit.loops.pull import ROWS_BYTES
from thermit.loops.rewrite import simplified

MOST_TAPS = 128  # of a window: so many rows of masks
LEAST_CHANNELS = 8  # of a block of the depth, so that tiles over one tap are worth beginning
MASK_BYTES = 128 << 10  # of a task, on the stack beside the blocks, all together at most ROWS_BYTES
INSIDE = "inside"


def convolved(program: LoopProgram, target: HasRegisters) -> LoopProgram | None:
    """The program with its product in blocks; None where the right side is not made of windows or not worth it."""
    if len(program.body) != 1 or not isinstance(s := program.body[0], Product) or not is_worth(program, s):
        return None
    cuts = _cuts(s.right, s.depth.index, s.depth.extent)
    for whole in dict.fromkeys((cuts[-1], s.depth.extent)) if cuts else ():
        steps = (*(c for c in cuts if c < whole), whole)
        if whole <= MOST_TAPS and s.depth.extent % whole == 0 and whole % steps[-2:][0] == 0:
            made = Windows(program, s, target, steps)
            if made.is_possible:
                return made.program()
    return None


def _cuts(root: Node, index: Node, extent: int) -> list[int]:
    """Where quotients and remainders of an index change, each a divisor of the next; empty where that is not so, or there are none."""
    steps: dict[Node, int] = {index: 1}  # the index divided by so much
    found: set[int] = set()
    for node in toposort([root]):
        if node.prim in (p.DIV, p.REM) and node.args[0] in steps and node.args[1].prim is p.CONST:
            divisor = steps[node.args[0]] * int(node.args[1].attrs.value)
            found.add(divisor)
            if node.prim is p.DIV:
                steps[node] = divisor
            else:
                found.add(steps[node.args[0]])
    cuts = sorted(c for c in found if 1 < c < extent)
    return cuts if all(b % a == 0 for a, b in itertools.pairwise(cuts)) else []


def cut(root: Node, new: dict[Node, Node], indices: Indices) -> Node:
    """The expression with nodes replaced, its indices made linear again as far as that goes; `new` grows to hold every node that was seen."""
    for node in toposort([root]):
        if node not in new:
            new[node] = _again(node, tuple(new[a] for a in node.args), indices)
    return new[root]


def _again(node: Node, args: tuple[Node, ...], indices: Indices) -> Node:
    prim = node.prim
    if args == node.args:
        return node
    if node.dtype is INT64 and prim in (p.ADD, p.SUB):
        return indices.linear([(1, args[0]), (1 if prim is p.ADD else -1, args[1])])
    if node.dtype is INT64 and prim in (p.MUL, p.DIV, p.REM) and args[1].prim is p.CONST:
        by = int(args[1].attrs.value)
        if prim is p.MUL:
            return indices.linear([(by, args[0])])
        if indices.bounds(args[0])[0] >= 0 and by > 0:
            return indices.divmod(args[0], by)[prim is p.REM]
    if prim in (p.GE, p.LT) and args[0].dtype is INT64 and args[1].prim is p.CONST:
        (low, high), limit = indices.bounds(args[0]), int(args[1].attrs.value)
        if low >= limit or high < limit:
            return build.const((low >= limit) == (prim is p.GE), BOOL)
    return simplified(node, args)


class Windows(Packing):
    """`cuts`: the products of the taps of a window, from the last axis on; the last of them is the number of all taps."""

    def __init__(self, program: LoopProgram, s: Product, target: HasRegisters, cuts: tuple[int, ...]) -> None:
        self.cuts, self.steps, self.taps = cuts, (1, *cuts[:-1]), cuts[-1]
        right = without_zeros(s.right)
        self.width = first_division([right], s.columns)
        super().__init__(program, replace(s, right=right), target)
        self.turns_right = False
        self.is_edge = self._is_edge()
        self.channel, self.tap = build.index("c"), tuple(build.index(f"t{n}") for n in range(len(cuts)))
        self.mask = INT32 if self.dtype.bits == 32 else INT64
        self.guard: Node | None = None
        self.is_possible = right.prim is p.LOAD and self._find()

    def _fills(self) -> bool:
        """Where a tap has channels enough in a block."""
        b, m = self.blocks, self.s.rows.extent
        rows = m - (self.row_blocks - 1) * b.rows - sum(b.last)
        return self.reads_left and rows >= b.tile_rows and b.depth >= LEAST_CHANNELS * self.taps

    def _adds_parts(self) -> bool:
        return self.fills

    def _step(self, side: Node, span: Span) -> int | None:
        """A register of masked columns costs as much as one that is turned."""
        return int(span is self.s.depth) if side is self.s.right else super()._step(side, span)

    def _blocking(self) -> Blocking:
        """Blocks of the depth are whole windows; those of columns are whole rows of the result where that is near: fewer masks."""
        b = blocking(self.s, self.origin.extent, self.target, self.reads_left, False, self.taps, self._masks_beside, self.reads_left)
        unit = math.lcm(self.width, b.tile_columns)
        columns = unit * max(1, round(b.columns / unit))
        is_near = b.columns < self.s.columns.extent and 2 * b.columns <= 3 * columns <= 5 * b.columns
        return replace(b, columns=columns) if is_near and self._elems(replace(b, columns=columns)) * self.dtype.itemsize <= ROWS_BYTES else b

    def _rows_beside(self, columns: int) -> tuple[int, int]:
        """Rows of masks for a block of so many columns, and how long they are."""
        n = self.s.columns.extent
        if self.width == n:  # not divided: what a block has
            return 1, min(columns, n)
        begun = int(columns % self.width != 0)  # a block may begin in the middle of a row
        return min(-(-columns // self.width) + begun, -(-n // self.width)), self.width

    def _masks_beside(self, columns: int) -> int:
        return self.taps * math.prod(self._rows_beside(columns)) if len(self.s.right.args) > 1 else 0

    def _elems(self, b: Blocking) -> int:
        """What stands on the stack; an element of a mask is as long as one of the product."""
        return b.columns * (b.rows + b.depth) + (0 if self.reads_left else b.group * b.depth) + self._masks_beside(b.columns)

    def _find(self) -> bool:
        """The right side in terms of channel, taps and column; whether neighbouring columns read neighbours, and no channel changes the guard."""
        s, indices = self.s, self.indices
        column = s.columns.index
        indices.extents |= {self.channel: s.depth.extent // self.taps, column: s.columns.extent, self.origin.index: self.origin.extent}
        indices.extents |= {index: whole // step for index, step, whole in zip(self.tap, self.steps, self.cuts, strict=True)}
        depth = indices.linear([(self.taps, self.channel), (1, self._tap())])
        made = cut(s.right, {s.depth.index: depth}, indices)
        if made.prim is not p.LOAD:
            return False
        self.offset, self.guard = made.args[0], made.args[1] if len(made.args) > 1 else None
        terms = indices.form(self.offset)[1]
        if terms.get(column) != 1 or any(column in toposort([atom]) for atom in terms if atom is not column):
            return False
        if self.blocks.depth % self.taps or self._elems(self.blocks) * self.dtype.itemsize > ROWS_BYTES:
            return False
        if self.guard is None:
            return True
        if self._masks_beside(self.blocks.columns) * self.mask.itemsize > MASK_BYTES:
            return False
        self.rows_of_masks, self.width = self._rows_beside(self.blocks.columns)
        asked = set(toposort([self.guard]))
        return not asked & {self.channel, self.origin.index} and not any(n.prim in (p.LOAD, p.LOCAL) for n in asked)

    def _tap(self) -> Node:
        """The tap, as its number in the window."""
        return self.indices.linear(zip(self.steps, self.tap, strict=True))

    def _over_taps(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """Loops over the axes of a window, not written out: an extent that is an expression is not."""
        for index, step, whole in zip(self.tap, self.steps, self.cuts, strict=True):
            body = (For(index, number(whole // step), body),)
        return body

    # ------------------------------------------------------------------ masks
    def program(self) -> LoopProgram:
        made = super().program()
        if self.guard is None:
            return made
        masks = Memory(INSIDE, self.mask, "row", self.taps * self.rows_of_masks * self.width)
        return replace(made, memories=(*made.memories, masks), body=(*self._masks(self.guard), *made.body))

    def _masks(self, guard: Node) -> tuple[Stmt, ...]:
        """Fills the masks for whole rows of the result, from the one on in which the block begins."""
        r, c = build.index("mr"), build.index("mc")
        self.indices.extents |= {r: self.rows_of_masks, c: self.width}
        place = self.indices.linear([(self.width, self._first_row_of_masks()), (self.width, r), (1, c)])
        inside = cut(guard, {self.s.columns.index: place}, self.indices)
        value = build.where(inside, build.const(-1, self.mask), build.const(0, self.mask))
        at = self.indices.linear([(self.rows_of_masks * self.width, self._tap()), (self.width, r), (1, c)])
        return self._over_taps((For(r, self.rows_of_masks, (For(c, self.width, (Store(INSIDE, at, value),)),)),))

    def _first_row_of_masks(self) -> Node:
        """The row of the result in which the block begins."""
        if self.column_blocks == 1:
            return ZERO
        row = build.div(self.first_column, number(self.width))
        self.indices.extents[row] = -(-self.s.columns.extent // self.width)
        return row

    # ------------------------------------------------------------------ the right side
    def _panels(self) -> tuple[Stmt, ...]:
        panel = build.index("p")
        made: list[Stmt] = []
        if self.panels != 0 and not self.fills:
            is_few = isinstance(self.panels, int) and self.panels <= MOST_UNROLLED
            made += self._over_channels((For(panel, self.panels, self._copies(panel, self.blocks.tile_columns), "unroll" if is_few else "serial"),))
        if self.rest_columns:
            panel = self._whole(self.panels, 1)
            rest = self._over_taps(self._edge_copies(panel)) if self.is_edge else self._over_channels(self._copies(panel, self.rest_columns))
            made += self._if_last(rest, self.column, self.column_blocks, "rp")
        return tuple(made)

    def _over_channels(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """For all taps and the channels of the block of the depth: where a tap reads is then known outside of the loop over channels."""
        return self._over_taps((For(self.channel, self._channels(), body),))

    def _copies(self, panel: Node, columns: int) -> tuple[Stmt, ...]:
        """Some columns of a panel at one step of the depth; zeros behind them, up to a whole vector."""
        lane = build.index("pc")
        depth = self._depth()
        made: list[Stmt] = []
        for v in range(0, columns, self.lanes):
            at = self._panel(panel, depth, self._plus(lane, v))
            if columns - v < self.lanes:
                made.append(For(lane, self.lanes, (Store("panel", at, build.const(0.0, self.dtype)),), "vector", self.lanes))
            value = self._seen(self.indices.linear([(self.blocks.tile_columns, panel), (1, lane)], v))
            made.append(For(lane, min(self.lanes, columns - v), (Store("panel", at, value),), "vector", self.lanes))
        return tuple(made)

    def _edge_copies(self, panel: Node) -> tuple[Stmt, ...]:
        """Columns that fill no register, at one tap: each along the channels of the block."""
        lane = build.index("pc")
        value = self._seen(self.indices.linear([(self.blocks.tile_columns, panel), (1, lane)]))
        one = Store("panel", self._line_of_edge(self._depth(), lane), value)
        return (For(lane, self.rest_columns, (For(self.channel, self._channels(), (one,), "vector", self.lanes),)),)

    def _depth(self) -> Node:
        """Channel and taps as a step of the depth."""
        return self.indices.linear([(self.taps, self.channel), (1, self._tap())])

    def _filling(self, tile: Tile, panel: Node) -> tuple[Stmt, ...]:
        """One for each tap, over the channels."""
        new = {tile.index: self._depth()}
        left, right = tuple(cut(x, dict(new), self.indices) for x in tile.left), cut(tile.right, dict(new), self.indices)
        ahead = tuple(replace(a, offset=cut(a.offset, dict(new), self.indices)) for a in tile.ahead)
        source = self._seen(self.indices.linear([(self.blocks.tile_columns, panel)]))
        made = replace(tile, index=self.channel, extent=self._channels(), left=left, right=right, ahead=ahead, copied=source)
        return self._over_taps((made,))

    def _channels(self) -> int | Node:
        """Of the block of the depth."""
        return self.size // self.taps if isinstance(self.size, int) else build.div(self.size, number(self.taps))

    def _seen(self, place: Node) -> Node:
        """The element of the right side at a column of the block, for the channel and the taps."""
        channel = self.indices.linear([(1, self.channel), (1, self._first_channel())])
        column = self.indices.linear([(1, self.first_column), (1, place)])
        offset = cut(self.offset, {self.channel: channel, self.s.columns.index: column, self.origin.index: self.batch}, self.indices)
        guard = None
        if self.guard is not None:
            start = self.indices.linear([(1, self.first_column), (-self.width, self._first_row_of_masks())])
            at = self.indices.linear([(self.rows_of_masks * self.width, self._tap()), (1, start), (1, place)])
            guard = build.lt(build.load(INSIDE, self.mask, at), 0)
        return build.load(self.s.right.attrs.name, self.dtype, offset, guard)

    def _first_channel(self) -> Node:
        """Of the block of the depth."""
        const, terms = self.indices.form(self.first)
        assert const % self.taps == 0 and all(k % self.taps == 0 for k in terms.values())
        return self.indices.linear([(k // self.taps, atom) for atom, k in terms.items()], const // self.taps)


def without_zeros(right: Node) -> Node:
    """A load that is 0 where its guard does not hold, for a choice between it and 0."""
    if right.prim is not p.WHERE:
        return right
    inside, load, fill = right.args
    is_zero = fill.prim is p.CONST and fill.attrs == build.const(0, fill.dtype).attrs
    return load if load.prim is p.LOAD and load.args[1:] == (inside,) and is_zero else right


def first_division(roots: Sequence[Node], columns: Span) -> int:
    """Columns to a row of the result: what the column is divided by first."""
    nodes = (n for n in toposort(roots) if n.prim in (p.DIV, p.REM) and n.args[0] is columns.index and n.args[1].prim is p.CONST)
    return min((int(n.args[1].attrs.value) for n in nodes), default=columns.extent)
