"""The order of kernels and calls, and what may be written where.

What comes in: groups of stores.  What goes out: steps in an order in which data is made before it is read, effects keep their
order, and inputs are overwritten last: after every call and after every kernel that can stop the program or that reads them.
An update that cannot be written by its kernel (others read the input at other places, or the value, or the kernel can stop) is
stored first and copied at the end.
"""

from __future__ import annotations

import itertools

from thermit.ir import prims as p
from thermit.ir.node import Node
from thermit.ir.types import INT64, Shape, contiguous_strides
from thermit.schedule.group import Decisions, Group, Root
from thermit.schedule.kernel import CallStep, Kernel, Load, Stored
from thermit.schedule.rows import rows
from thermit.schedule.trace import Trace

Unit = Group | Node
UNBOUNDED = 1 << 62  # no place in memory
Steps = tuple[Kernel | CallStep, ...]


def can_stop(group: Group) -> bool:
    """Whether the kernel checks something; what only copies a value that another one stores does not."""
    if group.roots[0].node in group.reads:
        return False
    return any(n.prim in (p.GATHER, p.SCATTER, p.CHECK) for n in (*group.trace.visits, *(r.node for r in group.roots)))


def _is_pointwise(group: Group, node: Node) -> bool:
    """Whether the kernel reads `node` (an input) only at the index at which it writes."""
    moved = group.trace.moved()
    scans = any(n.prim.kind == "scan" for n in group.trace.visits)
    return node not in moved and not scans and all(r.node.shape == group.roots[0].node.shape for r in group.roots)


def _limits(node: Node) -> tuple[int, int] | None:
    """Bounds of an index that is clamped between constants; None where its expression tells none."""
    if node.dtype is not INT64 or node.prim not in (p.MIN, p.MAX):
        return None
    low, high = _bounds(node, 8)
    return (low, high) if low > -UNBOUNDED and high < UNBOUNDED else None


def _bounds(node: Node, depth: int) -> tuple[int, int]:
    if node.prim is p.CONST:
        return int(node.attrs.value), int(node.attrs.value)
    if not depth or node.prim not in (p.MIN, p.MAX, p.ADD):
        return -UNBOUNDED, UNBOUNDED
    (a, b), (c, d) = (_bounds(arg, depth - 1) for arg in node.args)
    if node.prim is p.ADD:
        is_known = max(-a, b, -c, d) < UNBOUNDED
        return (a + c, b + d) if is_known else (-UNBOUNDED, UNBOUNDED)
    return (min(a, c), min(b, d)) if node.prim is p.MIN else (max(a, c), max(b, d))


class Arrangement:
    """Groups and calls with what each of them needs."""

    def __init__(self, fusion: Decisions, groups: list[Group]) -> None:
        self.graph, self.strides = fusion.graph, fusion.strides
        self.groups = groups
        self.copies: list[Group] = []
        self.calls: list[Node] = [n for n in fusion.order if n.prim is p.CALL]
        self.handed: dict[Node, int] = fusion.outputs_of_calls
        self.home: dict[Node, Root] = {}
        self.find_homes()

    def find_homes(self) -> None:
        """Where each stored value is read from: a temp or an output, never an input that is updated."""
        self.home.clear()
        self.makers: dict[tuple[Node, Shape], Group] = {}
        for group in self.groups:
            for root in group.roots:
                if root.target != "update":
                    self.makers.setdefault((root.node, root.strides), group)
                    self.home.setdefault(root.node, root)
        read = {n for g in (*self.groups, *self.copies) for n in g.reads if n not in self.strides and n not in self.home}
        for group in self.groups:
            for node in dict.fromkeys(r.node for r in group.roots if r.node in read):
                root = Root(node, contiguous_strides(node.shape))
                group.roots.append(root)
                self.home[node] = root
                self.makers[node, root.strides] = group

    # ------------------------------------------------------------------ updates
    def defer(self, group: Group, root: Root) -> None:
        """The value goes to a buffer first (if it is not in one already) and is copied into the input at the end."""
        group.roots.remove(root)
        if all(r.node is not root.node for r in group.roots):
            group.roots.insert(0, Root(root.node, contiguous_strides(root.node.shape)))
        found = Trace([], [])
        found.leaves[root.node] = None
        self.copies.append(Group([root], found, reads={root.node}))
        self.find_homes()

    def settle_updates(self) -> None:
        inputs = self.graph.inputs
        changed = True
        while changed:
            changed = False
            writers = [g for g in self.groups if any(r.target == "update" for r in g.roots)]
            if not writers:
                return
            before = self.below([*(g for g in self.groups if g not in writers), *self.calls])
            for g in writers:
                for r in [r for r in g.roots if r.target == "update"]:
                    x = inputs[r.index]
                    bad = g in before or can_stop(g) or (x in g.reads and not _is_pointwise(g, x))
                    if bad or any(x in other.reads for other in writers if other is not g):  # two such kernels have no order in general
                        self.defer(g, r)
                        changed = True

    def needs(self, unit: Unit) -> list[Unit]:
        loads = self.arguments(unit) if isinstance(unit, Node) else [self.load(node) for node in unit.reads]
        out: list[Unit] = [node for node in unit.args if node.prim is p.CALL] if isinstance(unit, Node) else []
        for load in loads:
            maker = self.makers.get((load.node, load.strides))
            if load.node.prim is p.RESULT and load.strides == self.strides[load.node]:
                out.append(load.node.args[0])
            elif maker is not None and maker is not unit:
                out.append(maker)
        return out

    def below(self, units: list[Unit]) -> set[Unit]:
        """Everything that the units need."""
        found: set[Unit] = set()
        stack = [need for unit in units for need in self.needs(unit)]
        while stack:
            u = stack.pop()
            if u not in found:
                found.add(u)
                stack += self.needs(u)
        return found

    # ------------------------------------------------------------------ order
    def sorted_units(self) -> tuple[list[Unit], set[Node]]:
        """Units in order, or the wanted values of a cycle."""
        previous: dict[Node, Node] = {}
        effects = list(self.graph.effects)
        for a, b in itertools.pairwise(effects):
            previous[b] = a
        late = [g for g in self.groups if any(r.target == "update" for r in g.roots)]
        out: list[Unit] = []
        state: dict[Unit, int] = {}

        def visit(start: Unit) -> set[Node]:
            stack: list[tuple[Unit, list[Unit]]] = []

            def push(unit: Unit) -> None:
                state[unit] = 1
                more: list[Unit] = [previous[unit]] if isinstance(unit, Node) and unit in previous else []
                stack.append((unit, self.needs(unit) + more))

            push(start)
            while stack:
                unit, rest = stack[-1]
                if not rest:
                    state[unit] = 2
                    out.append(unit)
                    stack.pop()
                    continue
                below = rest.pop(0)
                if state.get(below) == 1:
                    return {r.node for u, _ in stack if isinstance(u, Group) and len(u.roots) > 1 for r in u.roots}
                if below not in state:
                    push(below)
            return set()

        everything: list[Unit] = [*effects, *reversed([g for g in self.groups if g not in late]), *self.calls, *late]
        for unit in everything:
            if unit not in state and (cycle := visit(unit)):
                return [], cycle
        out.extend(self.copies)
        return out, set()

    # ------------------------------------------------------------------ steps
    def load(self, node: Node) -> Load:
        return Load(node, self.strides[node] if node in self.strides else self.home[node].strides, _limits(node))

    def arguments(self, call: Node) -> list[Load]:
        """What a call reads: the tensor as it is if its strides are what is asked for, else one that was stored for it."""
        pairs = [(node, tuple(call.attrs.strides[k])) for k, node in enumerate(call.args) if node.prim is not p.CALL]
        return [Load(node, self.strides[node] if self.fits(node, asked) else asked) for node, asked in pairs]

    def step(self, unit: Unit, number: int) -> Kernel | CallStep:
        if isinstance(unit, Node):
            results = [self.find_result(unit, k) for k in range(len(unit.attrs.results))]
            return CallStep(unit, tuple(self.arguments(unit)), tuple(results))
        stores = tuple(Stored(r.node, r.strides, r.target, r.index) for r in unit.roots)
        loads = tuple(self.load(n) for n in unit.trace.leaves)
        return Kernel(f"k{number}", stores, loads, rows(unit))

    def fits(self, node: Node, asked: tuple[int, ...]) -> bool:
        return node in self.strides and all(n == 1 or a == b for a, b, n in zip(self.strides[node], asked, node.shape, strict=True))

    def find_result(self, call: Node, k: int) -> int | None:
        for node, output in self.handed.items():
            if node.args[0] is call and node.attrs.index == k:
                return output
        return None


def arrange(fusion: Decisions, groups: list[Group]) -> tuple[Steps | None, set[Node]]:
    """The steps, or the wanted values that must be stored apart because their kernels wait for each other."""
    arrangement = Arrangement(fusion, groups)
    _, cycle = arrangement.sorted_units()
    if cycle:
        return None, cycle
    arrangement.settle_updates()
    units, _ = arrangement.sorted_units()
    return tuple(arrangement.step(unit, k) for k, unit in enumerate(units)), set()
