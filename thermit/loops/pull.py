"""Values are pulled: from a kernel to scalar expressions and loops.

What comes in: a `Kernel` (stores, loads, rows) and the layout of its axes.  What goes out: scopes, which are loops to be.

    pull(value, index, guard)  gives the scalar expression of a value at an index, valid where the guard (None: everywhere) holds.
Views change the index, maps pull their args at the same index, a load ends the descent, and a reduction becomes a loop placed in
the outermost scope in which its index is known.  Scopes of the same parent, extents and rank (how many reductions stand under
one another) are one loop with several accumulators: so the maximum of a softmax row, then its sum, then its stores are three
loops inside the loop over rows.

Loads under a guard are guarded, so that nothing outside a buffer is read; integer divisors under a guard are made 1 elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Literal

from thermit.ir import build
from thermit.ir import prims as p
from thermit.ir.node import Node, toposort
from thermit.ir.prims import Prim
from thermit.ir.types import BOOL, DType, Shape, TensorType
from thermit.loops.index import ZERO, Indices, number
from thermit.loops.layout import Groups, Layout
from thermit.loops.nest import Acc, Check, For, Memory, Stmt, Store
from thermit.records import dataclass
from thermit.schedule.kernel import Kernel, Stored

COMBINE: dict[Prim, Prim] = {p.SUM: p.ADD, p.PROD: p.MUL, p.AMAX: p.MAX, p.AMIN: p.MIN, p.ANY: p.OR, p.ALL: p.AND,
                             p.ARGMAX: p.ARGMAX, p.ARGMIN: p.ARGMIN}  # fmt: skip
Index = tuple[Node, ...]
ROWS_BYTES = 256 << 10  # of all rows of a kernel: they stand on the stack and should stay in L2
# From how many bytes on a store goes around the cache.  An output of 16 MB is written in 0.95 ms instead of 1.5, one of 64 MB in
# 4.0 instead of 7.3, one of 4 MB in 0.20 instead of 0.13 (copy kernel, Zen 3 with 32 MB of L3).  A temp is read again soon; an
# input that is updated need not be aligned.
STREAM_BYTES = {"output": 8 << 20, "temp": 32 << 20, "update": 0}


def worst(prim: Prim, dtype: DType) -> Node:
    """What an accumulator of a reduction starts from."""
    if prim.identity is not None:
        return build.const(prim.identity, dtype)
    largest = prim in (p.AMIN, p.ARGMIN)
    if dtype is BOOL:
        return build.const(largest, dtype)
    if dtype.is_float:
        return build.const(float("inf") if largest else float("-inf"), dtype)
    return build.const(dtype.max if largest else dtype.min, dtype)


@dataclass(slots=True, eq=False)
class Scope:
    """A loop under construction.  `items` are (order, statement or inner scope); depth 1 is the parallel loop."""

    variable: Node
    extent: int | Node
    depth: int
    rank: int = 0
    items: list[tuple[int, Stmt | Scope]] = field(default_factory=list)
    accs: list[Acc] = field(default_factory=list)
    memo: dict[tuple[Node, Index, Node | None], Node] = field(default_factory=dict)
    inner: dict[tuple[int, Shape], list[Scope]] = field(default_factory=dict)

    def close(self) -> For:
        return For(self.variable, self.extent, self.body(), accs=tuple(self.accs))

    def body(self) -> tuple[Stmt, ...]:
        # Statements are pulled in any order; an item of rank r reads only what items of a smaller rank left behind.
        self.items.sort(key=lambda item: item[0])
        return tuple(item.close() if isinstance(item, Scope) else item for _, item in self.items)


class Pull:
    """One descent through a kernel."""

    def __init__(self, kernel: Kernel, layout: Layout | None) -> None:
        self.kernel, self.layout = kernel, layout
        self.indices = Indices()
        self.memories: list[Memory] = []
        self.names: dict[Node, tuple[str, Shape]] = {}
        self.limits: dict[Node, tuple[int, int]] = {}
        self.depths: dict[Node, int] = {}
        self.active: list[Scope] = []
        self.uses: set[Node] = set()  # index expressions whose values matter, for the layout
        self.unread: set[Node] = set()  # parts of an index that are not read
        self.loads: set[Node] = set()  # offsets in buffers
        self.reached: list[tuple[Node, Index, tuple[Node | None, ...]]] = []  # reductions: where they were pulled, the variables of their axes
        self.unguarded: list[tuple[Node, Index]] = []
        self.scans: set[Node] = set()
        self.stacked: set[Node] = set()  # variables that pick one of several values put side by side
        self.rows: dict[tuple[Node, Index], tuple[str, Node, int]] = {}
        self.ranks = ranks_of([s.node for s in kernel.stores], {load.node for load in kernel.loads})
        self.counter = 0
        self.outer = 1  # scopes that every row owns
        self.owned: set[Node] = set()  # their variables
        self.room = ROWS_BYTES
        self.kept: set[Node] = set()

    # ------------------------------------------------------------------ scopes
    def fresh(self, prefix: str) -> str:
        self.counter += 1
        return f"{prefix}{self.counter}"

    def depth(self, node: Node) -> int:
        """Depth of the innermost scope that an expression reads."""
        found = self.depths.get(node)
        if found is None:
            found = max((self.depth(a) for a in node.args), default=0)
            self.depths[node] = found
        return found

    def scope_at(self, index: Index, guard: Node | None) -> Scope:
        depth = max((self.depth(i) for i in index), default=0)
        if guard is not None:
            depth = max(depth, self.depth(guard))
        return self.scope_of(depth)

    def scope_of(self, depth: int) -> Scope:
        """The innermost open scope that is no deeper."""
        return next(scope for scope in reversed(self.active) if scope.depth <= max(depth, 1))

    def open(self, variable: Node, extent: int, depth: int, rank: int = 0) -> Scope:
        self.indices.extents[variable] = extent
        self.depths[variable] = depth
        return Scope(variable, extent, depth, rank)

    def loops(self, parent: Scope, extents: Shape, rank: int) -> list[Scope]:
        """The nest of loops over `extents` inside `parent` for things of this rank, made when it is not there."""
        key = (rank, extents)
        found = parent.inner.get(key)
        if found is None:
            found, above = [], parent
            for k, extent in enumerate(extents):
                name = f"{parent.variable.attrs.name}_{'x'.join(map(str, extents))}_{k}"
                scope = self.open(build.index(name), extent, above.depth + 1, rank)
                above.items.append((2 * rank, scope))
                found.append(scope)
                above = scope
            parent.inner[key] = found
        return found

    # ------------------------------------------------------------------ pulling
    def pull(self, node: Node, index: Index, guard: Node | None) -> Node:
        """The expression of `node` at `index`.  Chains of maps are walked with a stack: they may be long."""
        memo = self.scope_at(index, guard).memo
        found = memo.get((node, index, guard))
        if found is not None:
            return found
        stack = [node]
        while stack:
            top = stack[-1]
            if (top, index, guard) in memo:
                stack.pop()
                continue
            if top.prim.kind == "map" and top not in self.names and top not in self.kernel.rows:
                missing = [a for a in top.args if (a, index, guard) not in memo]
                if missing:
                    stack += missing
                    continue
                memo[top, index, guard] = self.map(top, tuple(memo[a, index, guard] for a in top.args), guard)
            else:
                memo[top, index, guard] = self.leaf_or_view(top, index, guard)
            stack.pop()
        return memo[node, index, guard]

    def map(self, node: Node, args: tuple[Node, ...], guard: Node | None) -> Node:
        if node.prim in (p.DIV, p.REM) and guard is not None and node.dtype.is_integer:
            args = (args[0], build.where(guard, args[1], build.const(1, node.dtype)))
        return Node(node.prim, args, node.attrs, TensorType((), node.dtype))

    def leaf_or_view(self, node: Node, index: Index, guard: Node | None) -> Node:
        if node in self.names:
            return self.load(node, index, guard)
        prim = node.prim
        if node in self.kernel.rows:
            return self.row(node, index, guard)
        if prim.kind == "map":
            return self.map(node, tuple(self.pull(a, index, guard) for a in node.args), guard)
        if prim is p.CONST:
            return build.const(node.attrs.value, node.dtype)
        if prim is p.IOTA:
            self.unread.update(i for a, i in enumerate(index) if a != node.attrs.axis)
            return self.use(index[node.attrs.axis])
        if prim.kind == "view":
            return self.view(node, index, guard)
        if prim.kind == "reduce":
            return self.reduce(node, index, guard)
        if prim.kind == "scan":
            return self.scan(node, index, guard)
        if prim is p.GATHER:
            return self.gather(node, index, guard)
        if prim is p.CHECK:
            self.check(self.pull(node.args[1], index, guard), guard, self.ranks[node.args[1]])
            return self.pull(node.args[0], index, guard)
        raise AssertionError(f"{node!r} must be stored: fuse left it inside {self.kernel.name}")

    def use(self, expression: Node) -> Node:
        self.uses.add(expression)
        return expression

    def needed(self) -> set[Node]:
        """The index expressions by which loops may be merged: what matters, and remainders by which an index was taken apart of which a part is
        not read.  (Of merged loops the range says less, and what is read would no longer be the part.)"""
        variables = {v for i in self.unread for v in toposort([i]) if v.prim is p.INDEX}
        relied = (pair for pair in self.indices.relied if not variables.isdisjoint(toposort(pair)))
        return self.uses | {remainder for _, remainder in relied}

    def load(self, node: Node, index: Index, guard: Node | None) -> Node:
        name, strides = self.names[node]
        self.unread.update(i for s, i in zip(strides, index, strict=True) if s == 0)
        offset = self.indices.linear(zip(strides, index, strict=True))
        self.loads.add(offset)
        made = build.load(name, node.dtype, self.use(offset), guard)
        if guard is None and node in self.limits:
            self.indices.limits[made] = self.limits[node]
        return made

    # ------------------------------------------------------------------ views
    def view(self, node: Node, index: Index, guard: Node | None) -> Node:
        x, attrs = node.args[0], node.attrs
        indices = self.indices
        match node.prim.name:
            case "reshape":
                return self.pull(x, indices.reshape(index, node.shape, x.shape), guard)
            case "permute":
                inner = [ZERO] * len(index)
                for k, axis in enumerate(attrs.order):
                    inner[axis] = index[k]
                return self.pull(x, tuple(inner), guard)
            case "expand":
                self.unread.update(i for i, n in zip(index, x.shape, strict=True) if n == 1)
                return self.pull(x, tuple(ZERO if n == 1 else i for i, n in zip(index, x.shape, strict=True)), guard)
            case "slice":
                picked = (indices.linear([(t, i)], s) for i, s, t in zip(index, attrs.starts, attrs.steps, strict=True))
                return self.pull(x, tuple(picked), guard)
            case "strided":
                return self.pull(x, (indices.linear(zip(attrs.strides, index, strict=True), attrs.offset),), guard)
            case "window":
                rank = len(attrs.strides)
                lead = len(index) - 2 * rank
                both_ways = zip(attrs.strides, index[lead : lead + rank], attrs.dilations, index[lead + rank :], strict=True)
                return self.pull(x, (*index[:lead], *(indices.linear([(s, o), (d, t)]) for s, o, d, t in both_ways)), guard)
            case "pad":
                return self.pad(node, index, guard)
        return self.concat(node, index, guard)

    def pad(self, node: Node, index: Index, guard: Node | None) -> Node:
        x, fill = node.args
        inside: Node | None = None
        inner: list[Node] = []
        for i, low, gap, n, padded in zip(index, node.attrs.low, node.attrs.interior, x.shape, node.shape, strict=True):
            if n == padded:
                inner.append(i)
                continue
            moved = self.indices.linear([(1, i)], -low)
            spread = (n - 1) * (gap + 1) + 1
            first, last = self.indices.bounds(moved)
            if last < 0 or first >= spread:  # nothing but fill is seen
                self.use(moved)
                return self.pull(fill, (), None)
            if gap:
                inside = both(inside, self.between(moved, spread))
                moved, left = self.indices.divmod(moved, gap + 1)
                inside = both(inside, _compare(p.EQ, self.use(left), ZERO))
            else:
                inside = both(inside, self.between(moved, n))
            inner.append(moved)
        filler = self.pull(fill, (), None)
        if inside is None:
            return self.pull(x, tuple(inner), guard)
        return build.where(inside, self.pull(x, tuple(inner), both(guard, inside)), filler)

    def between(self, index: Node, size: int) -> Node | None:
        """Whether 0 <= index < size; None where that is sure."""
        self.use(index)  # also where it is sure: of merged axes it would not be
        low, high = self.indices.bounds(index)
        ok = _compare(p.GE, index, ZERO) if low < 0 else None
        return both(ok, _compare(p.LT, index, number(size))) if high >= size else ok

    def concat(self, node: Node, index: Index, guard: Node | None) -> Node:
        axis = node.attrs.axis
        at = self.use(index[axis])
        if all(part.shape[axis] == 1 for part in node.args) and len(self.indices.form(at)[1]) == 1:
            self.stacked |= set(self.indices.form(at)[1])
        low, high = self.indices.bounds(at)
        start, pieces = 0, []
        for part in node.args:
            size = part.shape[axis]
            if low < start + size and start <= high:
                pieces.append((start, size, part))
            start += size
        value: Node | None = None
        for start, size, part in reversed(pieces):
            if size == 1:  # its one place along the axis is there at every index: no guard, so that the parts share what they share
                here = self.pull(part, (*index[:axis], ZERO, *index[axis + 1 :]), guard)
            else:
                moved = self.indices.linear([(1, at)], -start)
                here = self.pull(part, (*index[:axis], moved, *index[axis + 1 :]), both(guard, self.between(moved, size)))
            value = here if value is None else build.where(_compare(p.LT, self.use(at), number(start + size)), here, value)
        return build.const(0, node.dtype) if value is None else value  # never seen: every guard around it is false

    # ------------------------------------------------------------------ reductions
    def reduce(self, node: Node, index: Index, guard: Node | None) -> Node:
        parent = self.scope_at(index, guard)
        x, axes = node.args[0], node.attrs.axes
        groups = self.groups_of(node)
        sizes = tuple(product(x.shape[a] for a in group) for group in groups)
        kept = [(group, n) for group, n in zip(groups, sizes, strict=True) if n != 1]
        if not kept:  # every axis has one element
            place = iter(index)
            value = self.pull(x, tuple(ZERO if a in axes else next(place) for a in range(x.type.ndim)), guard)
            return ZERO if node.prim in (p.ARGMAX, p.ARGMIN) else value
        scopes = self.loops(parent, tuple(n for _, n in kept), self.ranks[node])
        inner: list[Node] = [ZERO] * x.type.ndim
        for (group, _), scope in zip(kept, scopes, strict=True):
            inner[group[-1]] = scope.variable
        rest = iter(index)
        for a in range(x.type.ndim):
            if a not in axes:
                inner[a] = next(rest)
        if self.layout is None:
            self.reached.append((node, index, tuple(None if x.shape[a] == 1 else inner[a] for a in axes)))
            if guard is None:
                self.unguarded.append((node, index))
        saved = self.active
        self.active = [*saved[: saved.index(parent) + 1], *scopes]
        value = self.pull(x, tuple(inner), guard)
        self.active = saved
        return self.accumulate(node, scopes, parent, value)

    def groups_of(self, node: Node) -> Groups:
        """The axes of a reduction, those of a group being one loop."""
        return self.layout.groups(node) if self.layout else tuple((a,) for a in node.attrs.axes)

    def accumulate(self, node: Node, scopes: Sequence[Scope], parent: Scope, value: Node) -> Node:
        combine, init = COMBINE[node.prim], worst(node.prim, node.args[0].dtype)
        for scope, above in zip(reversed(scopes), [*reversed(scopes[:-1]), parent], strict=True):
            result = build.local(self.fresh("acc"), node.dtype)
            self.depths[result] = above.depth
            position = scope.variable if node.prim in (p.ARGMAX, p.ARGMIN) else None
            scope.accs.append(Acc(result, combine, init, value, position))
            value = result
        return value

    def scan(self, node: Node, index: Index, guard: Node | None) -> Node:
        at = index[node.attrs.axis]
        n = node.shape[node.attrs.axis]
        scope = self.scope_of(self.depth(at))
        aligned = scope.variable is at and scope.extent == n and guard is None
        aligned = aligned and all(self.depth(i) < scope.depth for k, i in enumerate(index) if k != node.attrs.axis)
        if self.layout is not None and not aligned:
            raise AssertionError(f"{node!r} is read out of order in {self.kernel.name}: fuse must store it")
        self.scans.add(at)
        carried = build.local(self.fresh("acc"), node.dtype)
        self.depths[carried] = scope.depth
        prim, first = (p.ADD, 0) if node.prim is p.CUMSUM else (p.MUL, 1)
        value = Node(prim, (carried, self.pull(node.args[0], index, guard)), None, TensorType((), node.dtype))
        scope.accs.append(Acc(carried, None, build.const(first, node.dtype), value))
        return value

    # ------------------------------------------------------------------ gather, check
    def gather(self, node: Node, index: Index, guard: Node | None) -> Node:
        x, picks = node.args[0], node.args[1:]
        inner = tuple(self.pull(pick, index, guard) for pick in picks)
        ok: Node | None = None
        for at, n in zip(inner, x.shape, strict=True):
            ok = both(ok, self.between(at, n))
        if ok is not None:
            self.check(ok, guard, max(self.ranks[pick] for pick in picks))
        return self.pull(x, inner, both(guard, ok))

    def check(self, ok: Node, guard: Node | None, rank: int) -> None:
        """A statement that stops the program unless ok holds wherever the guard does."""
        if ok.prim is p.CONST and ok.attrs.value:
            return
        if guard is not None:
            ok = Node(p.OR, (ok, Node(p.NOT, (guard,), None, ok.type)), None, ok.type)
        statement = Check(ok)
        scope = self.scope_of(self.depth(ok))
        if all(item != statement for _, item in scope.items):
            scope.items.append((2 * rank + 1, statement))

    # ------------------------------------------------------------------ rows
    def row(self, node: Node, index: Index, guard: Node | None) -> Node:
        """A value kept for later loops of the same row: written where it is first computed, read afterwards."""
        key = (node, index)
        if key in self.rows and guard is None:
            name, offset, written = self.rows[key]
            if self.scope_at(index, guard).rank > written:
                return build.load(name, node.dtype, offset)
        value = self.body_of(node, index, guard)
        # By variables, not by depth: a loop of a reduction may stand as deep as the second of the loops that every row owns.
        inner = [i for i in index if any(v.prim is p.INDEX and v not in self.owned for v in toposort([i]))]
        bare = [i for i in inner if i.prim is p.INDEX]
        if guard is not None or self.layout is None or not bare or len(set(bare)) != len(inner) or node in self.kept:
            return value
        room = self.room - product(self.indices.extents[i] for i in bare) * node.dtype.itemsize
        if room < 0:
            return value
        self.room = room
        self.kept.add(node)
        scope = self.scope_at(index, guard)
        offset = self.indices.linearize(bare, tuple(self.indices.extents[i] for i in bare))
        name = f"row{len(self.rows)}"
        self.memories.append(Memory(name, node.dtype, "row", product(self.indices.extents[i] for i in bare)))
        self.rows[key] = (name, offset, scope.rank)
        scope.items.append((2 * self.ranks.get(node, 0) + 1, Store(name, offset, value)))
        return value

    def body_of(self, node: Node, index: Index, guard: Node | None) -> Node:
        if node.prim.kind == "map":
            return self.map(node, tuple(self.pull(a, index, guard) for a in node.args), guard)
        if node.prim.kind == "view":
            return self.view(node, index, guard)
        return self.reduce(node, index, guard)

    # ------------------------------------------------------------------ the kernel
    def declare(self) -> None:
        updated = {s.index for s in self.kernel.stores if s.target == "update"}
        aliases: dict[int, str] = {s.index: f"out{k}" for k, s in enumerate(self.kernel.stores) if s.target == "update"}
        for k, load in enumerate(self.kernel.loads):
            own = load.node.attrs.index if load.node.prim is p.INPUT else -1
            alias: tuple[str, ...] = (aliases[own],) if own in updated else ()
            self.names[load.node] = (f"in{k}", load.strides)
            if load.limits is not None:
                self.limits[load.node] = load.limits
            self.memories.append(Memory(f"in{k}", load.node.dtype, "in", span(load.node.shape, load.strides), alias))
        for k, s in enumerate(self.kernel.stores):
            alias = tuple(m.name for m in self.memories if f"out{k}" in m.alias)
            role: Literal["out", "inout"] = "inout" if s.node.prim is p.SCATTER else "out"
            limit = STREAM_BYTES[s.target]
            stream = role == "out" and bool(limit) and s.node.type.nbytes >= limit
            self.memories.append(Memory(f"out{k}", s.node.dtype, role, span(s.node.shape, s.strides), alias, stream))

    def store(self, position: int, s: Stored, index: Index, scope: Scope) -> None:
        value = self.pull(s.node, index, None)
        offset = self.use(self.indices.linear(zip(s.strides, index, strict=True)))
        scope.items.append((2 * self.rank_of(s) + 1, Store(f"out{position}", offset, value)))

    def rank_of(self, s: Stored) -> int:
        """The rank of the loop that stores: an input is overwritten last, when every loop of the row has read it."""
        return 1 + (max(self.ranks.values()) if s.target == "update" else self.ranks[s.node])


def ranks_of(roots: Sequence[Node], leaves: set[Node]) -> dict[Node, int]:
    """How many reductions stand under one another below each node; scans and what is loaded count nothing."""
    ranks: dict[Node, int] = {}
    for node in toposort(roots):
        below = 0 if node in leaves else max((ranks[a] for a in node.args), default=0)
        ranks[node] = below + (node.prim.kind == "reduce" and node not in leaves)
    return ranks


def both(x: Node | None, y: Node | None) -> Node | None:
    if x is None or y is None or x is y:
        return x if y is None else y
    return Node(p.AND, (x, y), None, TensorType((), BOOL))


def _compare(prim: Prim, x: Node, y: Node) -> Node:
    return Node(prim, (x, y), None, TensorType((), BOOL))


def product(sizes: object) -> int:
    out = 1
    for n in sizes:  # type: ignore[attr-defined]
        out *= n
    return out


def span(shape: Shape, strides: Shape) -> int:
    """Elements from the first to the last that the strides reach."""
    return 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
