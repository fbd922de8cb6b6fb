"""From a kernel to its loop program: values are pulled.

What comes in: a `Kernel` (stores, loads, rows).  What goes out: a `LoopProgram` of serial loops; `tile` chooses vectors.

    pull(value, index, guard)  gives the scalar expression of a value at an index, valid where the guard (None: everywhere) holds.
Views change the index, maps pull their args at the same index, a load ends the descent, and a reduction becomes a loop placed in
the outermost scope in which its index is known.  Scopes of the same parent, extents and rank (how many reductions stand under
one another) are one loop with several accumulators: so the maximum of a softmax row, then its sum, then its stores are three
loops inside the loop over rows.

The kernel is pulled twice: a probe in which every axis is a variable of its own tells how each axis is seen (which reductions
depend on it, in which linear forms it occurs); then axes are ordered and merged, and the real pull makes the statements.
Loads under a guard are guarded, so that nothing outside a buffer is read; integer divisors under a guard are made 1 elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from thermit.ir import build
from thermit.ir import prims as p
from thermit.ir.node import Node, toposort
from thermit.ir.prims import Prim
from thermit.ir.types import BOOL, DType, Shape, TensorType
from thermit.loops.index import ZERO, Indices, number
from thermit.loops.layout import Layout, Seen, choose
from thermit.loops.nest import Acc, Check, For, LoopProgram, Memory, Stmt, Store
from thermit.schedule.kernel import Kernel, Stored, match

COMBINE: dict[Prim, Prim] = {p.SUM: p.ADD, p.PROD: p.MUL, p.AMAX: p.MAX, p.AMIN: p.MIN, p.ANY: p.OR, p.ALL: p.AND, p.ARGMAX: p.ARGMAX, p.ARGMIN: p.ARGMIN}
SCATTER: dict[str, Prim] = {"add": p.ADD, "mul": p.MUL, "min": p.MIN, "max": p.MAX}
Index = tuple[Node, ...]


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
    extent: int
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
        self.depths: dict[Node, int] = {}
        self.active: list[Scope] = []
        self.uses: set[Node] = set()  # index expressions whose values matter, for the layout
        self.reached: list[tuple[Node, Index, tuple[Node | None, ...]]] = []  # reductions: where they were pulled, the variables of their axes
        self.unguarded: list[tuple[Node, Index]] = []
        self.scans: set[Node] = set()
        self.rows: dict[tuple[Node, Index], tuple[str, Node, int]] = {}
        self.ranks = _ranks([s.node for s in kernel.stores], {load.node for load in kernel.loads})
        self.counter = 0
        self.outer = 1  # scopes that every row owns
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
        return self.active[max(depth, 1) - 1]

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

    def load(self, node: Node, index: Index, guard: Node | None) -> Node:
        name, strides = self.names[node]
        offset = self.indices.linear(zip(strides, index, strict=True))
        return build.load(name, node.dtype, self.use(offset), guard)

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
                return self.pull(x, tuple(ZERO if n == 1 else i for i, n in zip(index, x.shape, strict=True)), guard)
            case "slice":
                picked = (indices.linear([(t, i)], s) for i, s, t in zip(index, attrs.starts, attrs.steps, strict=True))
                return self.pull(x, tuple(picked), guard)
            case "strided":
                return self.pull(x, (indices.linear(zip(attrs.strides, index, strict=True), attrs.offset),), guard)
            case "pad":
                return self.pad(node, index, guard)
        return self.concat(node, index, guard)

    def pad(self, node: Node, index: Index, guard: Node | None) -> Node:
        x, fill = node.args
        inside: Node | None = None
        inner: list[Node] = []
        for i, low, gap, n in zip(index, node.attrs.low, node.attrs.interior, x.shape, strict=True):
            moved = self.indices.linear([(1, i)], -low)
            if gap:
                inside = _both(inside, self.between(moved, (n - 1) * (gap + 1) + 1))
                moved, left = self.indices.divmod(moved, gap + 1)
                inside = _both(inside, _compare(p.EQ, self.use(left), ZERO))
            else:
                inside = _both(inside, self.between(moved, n))
            inner.append(moved)
        filler = self.pull(fill, (), None)
        if inside is None:
            return self.pull(x, tuple(inner), guard)
        return build.where(inside, self.pull(x, tuple(inner), _both(guard, inside)), filler)

    def between(self, index: Node, size: int) -> Node | None:
        """Whether 0 <= index < size; None where that is sure."""
        low, high = self.indices.bounds(index)
        ok = _compare(p.GE, self.use(index), ZERO) if low < 0 else None
        return _both(ok, _compare(p.LT, self.use(index), number(size))) if high >= size else ok

    def concat(self, node: Node, index: Index, guard: Node | None) -> Node:
        axis = node.attrs.axis
        at = index[axis]
        low, high = self.indices.bounds(at)
        start, pieces = 0, []
        for part in node.args:
            size = part.shape[axis]
            if low < start + size and start <= high:
                pieces.append((start, size, part))
            start += size
        value: Node | None = None
        for start, size, part in reversed(pieces):
            moved = self.indices.linear([(1, at)], -start)
            inner = (*index[:axis], moved, *index[axis + 1 :])
            here = self.pull(part, inner, _both(guard, self.between(moved, size)))
            value = here if value is None else build.where(_compare(p.LT, self.use(at), number(start + size)), here, value)
        assert value is not None, f"{node!r} at {at!r}"
        return value

    # ------------------------------------------------------------------ reductions
    def reduce(self, node: Node, index: Index, guard: Node | None) -> Node:
        parent = self.scope_at(index, guard)
        x, axes = node.args[0], node.attrs.axes
        groups = self.layout.groups(node) if self.layout else tuple((a,) for a in axes)
        sizes = tuple(_product(x.shape[a] for a in group) for group in groups)
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
        self.active = [*saved[: parent.depth], *scopes]
        value = self.pull(x, tuple(inner), guard)
        self.active = saved
        return self.accumulate(node, scopes, parent, value)

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
        scope = self.active[self.depth(at) - 1]
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
            ok = _both(ok, self.between(at, n))
        if ok is not None:
            self.check(ok, guard, max(self.ranks[pick] for pick in picks))
        return self.pull(x, inner, _both(guard, ok))

    def check(self, ok: Node, guard: Node | None, rank: int) -> None:
        """A statement that stops the program unless ok holds wherever the guard does."""
        if ok.prim is p.CONST and ok.attrs.value:
            return
        if guard is not None:
            ok = Node(p.OR, (ok, Node(p.NOT, (guard,), None, ok.type)), None, ok.type)
        statement = Check(ok)
        scope = self.active[max(self.depth(ok), 1) - 1]
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
        inner = [i for i in index if self.depth(i) > self.outer]
        bare = [i for i in inner if i.prim is p.INDEX]
        if guard is not None or self.layout is None or not bare or len(set(bare)) != len(inner) or node in self.kept:
            return value
        self.kept.add(node)
        scope = self.scope_at(index, guard)
        offset = self.indices.linearize(bare, tuple(self.indices.extents[i] for i in bare))
        name = f"row{len(self.rows)}"
        self.memories.append(Memory(name, node.dtype, "row", _product(self.indices.extents[i] for i in bare)))
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
            alias = (aliases[own],) if own in updated else ()
            self.names[load.node] = (f"in{k}", load.strides)
            self.memories.append(Memory(f"in{k}", load.node.dtype, "in", _span(load.node.shape, load.strides), alias))
        for k, s in enumerate(self.kernel.stores):
            alias = tuple(m.name for m in self.memories if f"out{k}" in m.alias)
            role: Literal["out", "inout"] = "inout" if s.node.prim is p.SCATTER else "out"
            self.memories.append(Memory(f"out{k}", s.node.dtype, role, _span(s.node.shape, s.strides), alias))

    def store(self, position: int, s: Stored, index: Index, scope: Scope) -> None:
        value = self.pull(s.node, index, None)
        offset = self.use(self.indices.linear(zip(s.strides, index, strict=True)))
        scope.items.append((2 * self.rank_of(s) + 1, Store(f"out{position}", offset, value)))

    def rank_of(self, s: Stored) -> int:
        """The rank of the loop that stores: an input is overwritten last, when every loop of the row has read it."""
        return 1 + (max(self.ranks.values()) if s.target == "update" else self.ranks[s.node])


def lower(kernel: Kernel) -> LoopProgram:
    """The kernel as serial loops; stores and reductions of one row stand in one iteration of the parallel loop."""
    if any(s.node.prim is p.SCATTER for s in kernel.stores) and all(load.node is not kernel.stores[0].node for load in kernel.loads):
        return lower_scatter(kernel)
    pull = Pull(kernel, _layout(kernel))
    return _build(pull)


def _main(kernel: Kernel) -> Stored:
    """The store whose domain is the kernel's."""
    return max(kernel.stores, key=lambda s: s.node.type.numel)


def _layout(kernel: Kernel) -> Layout:
    """Pulls every store with one variable an axis and chooses the loops from what was seen."""
    probe, main = Pull(kernel, None), _main(kernel)
    probe.declare()
    scope = probe.open(build.index("p"), 1, 1)
    probe.active = [scope]
    shape = main.node.shape
    variables = tuple(None if n == 1 else probe.open(build.index(f"d{a}"), n, 1).variable for a, n in enumerate(shape))
    for k, s in sorted(enumerate(kernel.stores), key=lambda item: -item[1].node.type.numel):
        rows = {v for _, index, _ in probe.reached for v in index}
        free = [a for a, v in enumerate(variables) if v is not None and (s.node.type.numel == main.node.type.numel or v in rows)]
        probe.store(k, s, _placed(s.node.shape, shape, free, variables), scope)
    reductions = [(node, frozenset(atom for i in index for atom in _variables(i)), own) for node, index, own in probe.reached]
    layout = choose(Seen(shape, main.strides, variables, probe.uses, reductions, probe.scans), probe.indices)
    axes = {v: a for a, v in enumerate(variables) if v is not None}
    rows = {a for group in layout.order[: layout.rows] for a in group}
    for node, index in sorted(probe.unguarded, key=lambda item: probe.ranks[item[0]]):
        forms = [probe.indices.form(i) for i in index]
        if all(axes.get(atom, -1) in rows for _, terms in forms for atom in terms):
            layout.first.append((node, tuple((const, tuple((axes[atom], k) for atom, k in terms.items())) for const, terms in forms)))
    return layout


def _variables(expression: Node) -> list[Node]:
    return [node for node in toposort([expression]) if node.prim is p.INDEX]


def _placed(shape: Shape, domain: Shape, free: Sequence[int], variables: Sequence[Node | None]) -> Index:
    """The index of a store in terms of the variables of the domain axes that it runs over."""
    axes = match(shape, domain, free)
    assert axes is not None, f"a store of {shape} does not fit the domain {domain}"
    return tuple(ZERO if a is None else variables[a] or ZERO for a in axes)


def _build(pull: Pull) -> LoopProgram:
    kernel, layout, main = pull.kernel, pull.layout, _main(pull.kernel)
    assert layout is not None
    pull.declare()
    shape = main.node.shape
    extents = [_product(shape[a] for a in group) for group in layout.order]
    reduces = any(rank > 0 for rank in pull.ranks.values())
    outer = layout.rows or (0 if reduces or layout.in_order else min(1, len(extents)))
    chain = [pull.open(build.index("i0"), extents[0] if outer else 1, 1)]
    for k in range(1, outer):  # after what the outer rows compute
        chain.append(pull.open(build.index(f"i{k}"), extents[k], k + 1))
        chain[k - 1].items.append((1 << 30, chain[k]))
    pull.outer = len(chain)
    variables: list[Node | None] = [None] * len(shape)
    for group, scope in zip(layout.order[:outer], chain, strict=False):
        variables[group[-1]] = scope.variable
    pull.active = chain
    for node, forms in layout.first:  # so that what is kept in rows is written by the first loop that needs it
        index = tuple(pull.indices.linear([(k, variables[a] or ZERO) for a, k in terms], const) for const, terms in forms)
        pull.pull(node, index, None)
    for k, s in enumerate(kernel.stores):
        inside = list(chain)
        named = list(variables)
        free = [a for group in layout.order[:outer] for a in group]
        if s.node.type.numel == main.node.type.numel:
            inside += pull.loops(chain[-1], tuple(extents[outer:]), pull.rank_of(s))
            free = [a for group in layout.order for a in group]
            for group, scope in zip(layout.order[outer:], inside[len(chain) :], strict=True):
                named[group[-1]] = scope.variable
        index = _placed(s.node.shape, shape, sorted(free), named)
        pull.active = inside
        pull.store(k, s, index, inside[max((pull.depth(i) for i in index), default=1) - 1 if any(i is not ZERO for i in index) else 0])
    top = chain[0]
    return LoopProgram(kernel.name, tuple(pull.memories), top.variable, top.extent, top.body())


def _ranks(roots: Sequence[Node], leaves: set[Node]) -> dict[Node, int]:
    """How many reductions stand under one another below each node; scans and what is loaded count nothing."""
    ranks: dict[Node, int] = {}
    for node in toposort(roots):
        below = 0 if node in leaves else max((ranks[a] for a in node.args), default=0)
        ranks[node] = below + (node.prim.kind == "reduce" and node not in leaves)
    return ranks


def _both(x: Node | None, y: Node | None) -> Node | None:
    if x is None or y is None or x is y:
        return x if y is None else y
    return Node(p.AND, (x, y), None, TensorType((), BOOL))


def _compare(prim: Prim, x: Node, y: Node) -> Node:
    return Node(prim, (x, y), None, TensorType((), BOOL))


def _product(sizes: object) -> int:
    out = 1
    for n in sizes:  # type: ignore[attr-defined]
        out *= n
    return out


def _span(shape: Shape, strides: Shape) -> int:
    """Elements from the first to the last that the strides reach."""
    return 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


# ---------------------------------------------------------------------------------------------- scatter
def lower_scatter(kernel: Kernel) -> LoopProgram:
    """One scatter: the base is copied, then the values are put one after another, in row-major order."""
    (s,) = kernel.stores
    node = s.node
    base, value, picks = node.args[0], node.args[1], node.args[2:]
    pull = Pull(kernel, Layout((), 0))
    pull.declare()
    top = pull.open(build.index("i0"), 1, 1)
    pull.active = [top]
    copies = pull.loops(top, tuple(node.shape), pull.ranks[base] + 1)
    pull.active = [top, *copies]
    at = tuple(scope.variable for scope in copies)
    copied = Store("out0", pull.indices.linear(zip(s.strides, at, strict=True)), pull.pull(base, at, None))
    pull.active[-1].items.append((2 * pull.ranks[base] + 3, copied))
    last = 1 << 20
    puts = pull.loops(top, tuple(value.shape), last)
    pull.active = [top, *puts]
    index = tuple(scope.variable for scope in puts)
    places = tuple(pull.pull(pick, index, None) for pick in picks)
    ok: Node | None = None
    for place, n in zip(places, node.shape, strict=True):
        ok = _both(ok, pull.between(place, n))
    if ok is not None:
        pull.check(ok, None, last)
    offset = pull.indices.linear(zip(s.strides, places, strict=True))
    put = pull.pull(value, index, None)
    if node.attrs.combine != "set":
        put = Node(SCATTER[node.attrs.combine], (build.load("out0", node.dtype, offset, ok), put), None, TensorType((), node.dtype))
    pull.active[-1].items.append((4 * last, Store("out0", offset, put, ok)))
    return LoopProgram(kernel.name, tuple(pull.memories), top.variable, 1, top.body())
