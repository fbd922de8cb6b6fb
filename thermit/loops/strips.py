"""Reductions along strided axes: strips of columns, rows streamed in order.

    sum over r of x[r, k]   ->   parallel over strips of k:  acc[kk] = 0, for all kk in the strip
                                     for blocks of 8 rows:  for kk (vector):  s = x[r, k] + ... + x[r + 7, k];  acc[kk] += s
                                     out[k] = acc[kk], for all kk

The strip variable is the innermost loop of every nest, so memory is read in rows of whole cache lines, and what is reduced waits
in a small row memory.  The sums of 8 rows are taken in registers; long float32 sums collect them in float64, long float64 sums that somebody
sees in two numbers, the second one what additions lost.  Where a strip is the whole axis,
a row begins where the one before it ends: these rows are taken far from each other, each a stream without end (Zen 3, one core, from memory:
19 -> 24 GB/s).
What depends on the column only (a mean, a standard deviation) is computed once a column and kept the same way.
"""

from __future__ import annotations

from thermit.ir import build
from thermit.ir import prims as p
from thermit.ir.node import Node
from thermit.ir.types import FLOAT32, FLOAT64, INT64, DType, TensorType
from thermit.loops.index import ZERO, number
from thermit.loops.layout import Layout
from thermit.loops.nest import Acc, Memory, Store
from thermit.loops.pull import COMBINE, Index, Pull, Scope, product, worst
from thermit.schedule.kernel import Kernel

STRIP = 1 << 20  # the depth of the strip variable: inside of every loop over rows
BLOCK = 8  # rows summed in registers: so many streams the hardware follows at once
FAR = (6, 8, 7, 5, 4)  # rows summed in registers where they are far from each other: eight crowd one set of L1
WIDE_ELEMS = 64  # longer float sums are collected in a wider type
KEEP = frozenset((p.DIV, p.SQRT, p.REM))


def block_of(extent: int) -> int:
    """Rows to a block: a divisor of the extent if there is a good one, else BLOCK with a shorter last block."""
    return next((k for k in range(BLOCK, BLOCK // 2, -1) if extent % k == 0), min(BLOCK, extent))


class StripPull(Pull):
    """A descent in which the innermost row group is cut into strips."""

    def __init__(self, kernel: Kernel, layout: Layout) -> None:
        super().__init__(kernel, layout)
        self.width = layout.strip
        self.column: Node = ZERO  # the strip variable
        self.columns: int | Node = self.width
        self.is_whole = False  # one strip is the whole axis
        self.sums: dict[tuple[Node, Index], tuple[str, int, DType]] = {}
        self.lost: dict[str, str] = {}  # what the additions to a memory lost
        self.shows_float64 = any(s.node.dtype is FLOAT64 for s in kernel.stores)  # else float64 is wide enough for what is rounded later

    def cut(self, size: int, scope: Scope) -> Node:
        """Makes `scope` the loop over strips of an axis; gives the index along the axis."""
        self.column = build.index("c")
        self.indices.extents[self.column] = self.width
        self.depths[self.column] = STRIP
        self.is_whole = size == self.width
        if size % self.width:
            self.columns = build.minimum(build.sub(number(size), build.mul(scope.variable, self.width)), self.width)
        return self.indices.linear([(self.width, scope.variable), (1, self.column)])

    def strip(self, parent: Scope, rank: int, order: int) -> Scope:
        """The loop over the columns inside `parent` for things of this rank."""
        key = (order, (-1,))
        found = parent.inner.get(key)
        if found is None:
            scope = Scope(self.column, self.columns, STRIP, rank)
            parent.items.append((order, scope))
            found = parent.inner[key] = [scope]
        return found[0]

    def loops_to_columns(self, parent: Scope, extents: tuple[int, ...], rank: int) -> list[Scope]:
        rows = self.loops(parent, extents, rank)
        return [*rows, self.strip(rows[-1] if rows else parent, rank, 2 * rank)]

    # ------------------------------------------------------------------ reductions
    def reduce(self, node: Node, index: Index, guard: Node | None) -> Node:
        depth = max((self.depth(i) for i in index), default=0)
        if depth != STRIP or guard is not None:
            return super().reduce(node, index, guard)
        rank = self.ranks[node]
        kept = self.sums.get((node, index))
        current = self.active[-1].rank if len(self.active) > self.outer else 1 << 30
        if kept is not None and kept[1] < current:
            return self.waiting(kept[0], kept[2], node.dtype)
        parent = self.parent()
        groups = [g for g in self.groups_of(node) if product(node.args[0].shape[a] for a in g) != 1]
        if not groups:
            return super().reduce(node, index, guard)
        if node.prim in (p.ARGMAX, p.ARGMIN):
            return self.keep(node, index, parent, rank)
        return self.sum_up(node, index, parent, rank, groups)

    def parent(self) -> Scope:
        """The innermost loop that all rows and columns share: over strips."""
        return self.active[self.outer - 1]

    def waiting(self, name: str, kept: DType, wanted: DType) -> Node:
        total = build.load(name, kept, self.column)
        if name in self.lost:  # nan where the total is not finite
            lost = build.load(self.lost[name], kept, self.column)
            total = build.where(build.eq(lost, lost), build.add(total, lost), total)
        return build.cast(total, wanted)

    def keep(self, node: Node, index: Index, parent: Scope, rank: int) -> Node:
        """A value of each column, computed in a loop of its own over the columns."""
        scope = self.strip(parent, rank, 2 * rank)
        saved = self.active
        self.active = [*saved[: self.outer], scope]
        value = super().reduce(node, index, None) if node.prim.kind == "reduce" else self.body_of(node, index, None)
        self.active = saved
        name = self.memory(node.dtype)
        scope.items.append((1 << 29, Store(name, self.column, value)))
        self.sums[node, index] = (name, rank, node.dtype)
        return self.waiting(name, node.dtype, node.dtype)

    def memory(self, dtype: DType) -> str:
        name = f"column{len(self.memories)}"
        self.memories.append(Memory(name, dtype, "row", self.width))
        self.room -= self.width * dtype.itemsize
        return name

    def sum_up(self, node: Node, index: Index, parent: Scope, rank: int, groups: list[tuple[int, ...]]) -> Node:
        x, axes = node.args[0], node.attrs.axes
        sizes = [product(x.shape[a] for a in g) for g in groups]
        far = next((k for k in FAR if sizes[-1] % k == 0), None) if self.is_whole else None
        block = far or block_of(sizes[-1])
        blocks = -(-sizes[-1] // block)
        is_long = node.prim is p.SUM and product(sizes) > WIDE_ELEMS
        total = FLOAT64 if is_long and node.dtype is FLOAT32 else node.dtype
        name = self.memory(total)
        start = self.strip(parent, rank, 2 * rank - 1)
        start.items.append((0, Store(name, self.column, worst(node.prim, total))))
        if is_long and node.dtype is FLOAT64 and self.shows_float64:
            self.lost[name] = self.memory(total)
            start.items.append((0, Store(self.lost[name], self.column, build.const(0.0, total))))
        *outer, columns = self.loops_to_columns(parent, (*sizes[:-1], blocks), rank)
        (inside,) = self.loops(columns, (block,), rank)
        if blocks * block != sizes[-1]:
            inside.extent = build.minimum(build.sub(number(sizes[-1]), build.mul(outer[-1].variable, block)), block)
        inner = [ZERO] * x.type.ndim
        for group, scope in zip(groups[:-1], outer, strict=False):
            inner[group[-1]] = scope.variable
        steps = (1, blocks) if far else (block, 1)
        inner[groups[-1][-1]] = self.indices.linear([(steps[0], outer[-1].variable), (steps[1], inside.variable)])
        rest = iter(index)
        for a in range(x.type.ndim):
            if a not in axes:
                inner[a] = next(rest)
        saved = self.active
        self.active = [*saved[: self.outer], *outer, columns, inside]
        value = self.pull(x, tuple(inner), None)
        self.active = saved
        combine, part = COMBINE[node.prim], build.local(self.fresh("acc"), node.dtype)
        self.depths[part] = STRIP
        inside.accs.append(Acc(part, combine, worst(node.prim, node.dtype), value))
        so_far = build.load(name, total, self.column)
        added = Node(combine, (so_far, build.cast(part, total)), None, TensorType((), total))
        columns.items.append((1 << 29, Store(name, self.column, added)))
        if name in self.lost:
            behind = build.sub(added, so_far)
            lost = build.add(build.sub(so_far, build.sub(added, behind)), build.sub(part, behind))
            columns.items.append((1 << 29, Store(self.lost[name], self.column, build.add(build.load(self.lost[name], total, self.column), lost))))
        self.sums[node, index] = (name, rank, total)
        return self.waiting(name, total, node.dtype)

    # ------------------------------------------------------------------ what a column shares
    def map(self, node: Node, args: tuple[Node, ...], guard: Node | None) -> Node:
        value = super().map(node, args, guard)
        inside_rows = len(self.active) > self.outer + 1
        if guard is not None or not inside_rows or not (node.prim in KEEP or node.prim.fp is None) or node.prim in (p.CAST, p.WHERE, p.BITCAST):
            return value
        if node.dtype is INT64 or self.depth(value) != STRIP or self.reads_rows(value):
            return value
        rank = self.ranks[node]
        key = (value, ())
        if key not in self.sums and self.width * node.dtype.itemsize > self.room:
            return value
        if key not in self.sums:
            name = self.memory(node.dtype)
            scope = Scope(self.column, self.columns, STRIP, rank)  # its own loop: it may read what the one before it keeps
            scope.items.append((0, Store(name, self.column, value)))
            self.parent().items.append((2 * rank + 1, scope))
            self.sums[key] = (name, rank, node.dtype)
        return build.load(self.sums[key][0], node.dtype, self.column)

    def reads_rows(self, value: Node) -> bool:
        """Whether a value depends on a loop over rows."""
        known = {scope.variable for scope in self.active[: self.outer]} | {self.column}
        stack, done = [value], {value}
        while stack:
            node = stack.pop()
            if node.prim is p.LOCAL or (node.prim is p.INDEX and node not in known):
                return True
            fresh = [a for a in node.args if a not in done]
            done.update(fresh)
            stack += fresh
        return False
