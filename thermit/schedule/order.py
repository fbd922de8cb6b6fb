"""The order of kernels and calls, and what may be written where.

What comes in: groups of stores.  What goes out: steps in an order in which data is made before it is read, effects keep their
order, and inputs are overwritten last: after every call and after every kernel that can stop the program or that reads them.
An update that cannot be written by its kernel (others read the input at other places, or the value, or the kernel can stop) is
stored first and copied at the end.  Where few elements of an input are new (a scatter into it: a cache of keys), they are written where they lie,
and what reads the new value reads the input: once all that can stop has run, and all that reads the old value.
"""

from __future__ import annotations

import itertools

from thermit.ir import prims as p
from thermit.ir.node import Node, toposort
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
        self.in_place: dict[Group, list[Unit]] = {}  # with the others that read the old value
        self.find_homes()

    def find_homes(self) -> None:
        """Where each stored value is read from: a temp or an output, never an input that is updated."""
        self.home.clear()
        self.makers: dict[tuple[Node, Shape], Group] = {}
        for group in self.groups:
            for root in group.roots:
                if root.target != "update" or group in self.in_place:
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
    def write_in_place(self) -> None:
        """Finds the scatters that may write into their inputs: they cannot stop, and nothing that can waits for them."""
        for group in self.groups:
            if (update := self.scattered(group)) is None:
                continue
            x = self.graph.inputs[update.index]
            others = [g for g in self.groups if g is not group and x in g.reads]
            if not any(r.target == "update" for g in others for r in g.roots):
                self.in_place[group] = [*others, *(call for call in self.calls if x in call.args)]
        while self.in_place:
            for group in self.in_place:
                group.roots = [r for r in group.roots if r.target == "update"]
            self.find_homes()
            early = self.below([*(g for g in self.groups if self.stops(g)), *self.calls])
            bad = [g for g in self.in_place if g in early] or self.waiting()
            if not bad:
                return
            for group in bad:
                del self.in_place[group]
            self.find_homes()

    def scattered(self, group: Group) -> Root | None:
        """The update of a group that does nothing but write some elements of an input, at places that are known to be there."""
        update = group.roots[0]
        if any(r.node is not update.node or r.target == "output" for r in group.roots) or update.node.prim is not p.SCATTER:
            return None
        update = next((r for r in group.roots if r.target == "update"), update)
        x = self.graph.inputs[update.index] if update.target == "update" else None
        if x is None or update.node.args[0] is not x or x in toposort(update.node.args[1:], leaves=(n for n in group.trace.leaves if n is not x)):
            return None
        places = zip(update.node.args[2:], x.shape, strict=True)
        return update if all(self.is_sure(place, size, group) for place, size in places) else None

    def is_sure(self, place: Node, size: int, group: Group) -> bool:
        """Whether an index of elements lies in range, so that the kernel need not check it."""
        while place not in group.trace.leaves and place.prim in (p.RESHAPE, p.EXPAND, p.PERMUTE):
            place = place.args[0]
        if place.prim is p.IOTA:
            return place.shape[place.attrs.axis] <= size
        limits = (place.attrs.value, place.attrs.value) if place.prim is p.CONST else _limits(place) if place in group.trace.leaves else None
        return limits is not None and limits[0] >= 0 and limits[1] < size

    def stops(self, group: Group) -> bool:
        return group not in self.in_place and can_stop(group)

    def waiting(self) -> list[Group]:
        """Those in-place writers that wait for each other."""
        state: dict[Unit, int] = {}
        for start in self.in_place:
            stack: list[tuple[Unit, list[Unit]]] = []
            if start not in state:
                state[start] = 1
                stack.append((start, self.needs(start)))
            while stack:
                unit, rest = stack[-1]
                if not rest:
                    state[unit] = 2
                    stack.pop()
                    continue
                below = rest.pop()
                if state.get(below) == 1:
                    return list(self.in_place)
                if below not in state:
                    state[below] = 1
                    stack.append((below, self.needs(below)))
        return []

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
        self.write_in_place()
        inputs = self.graph.inputs
        changed = True
        while changed:
            changed = False
            writers = [g for g in self.groups if any(r.target == "update" for r in g.roots)]
            if not writers:
                return
            before = self.below([*(g for g in self.groups if g not in writers or g in self.in_place), *self.calls])
            for g in (g for g in writers if g not in self.in_place):
                for r in [r for r in g.roots if r.target == "update"]:
                    x = inputs[r.index]
                    bad = g in before or can_stop(g) or (x in g.reads and not _is_pointwise(g, x))
                    if bad or any(x in other.reads for other in writers if other is not g):  # two such kernels have no order in general
                        self.defer(g, r)
                        changed = True

    def needs(self, unit: Unit) -> list[Unit]:
        loads = self.arguments(unit) if isinstance(unit, Node) else [self.load(node) for node in unit.reads]
        out: list[Unit] = [node for node in unit.args if node.prim is p.CALL] if isinstance(unit, Node) else list(self.in_place.get(unit, ()))
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

        first = [*effects, *self.calls, *(g for g in self.groups if self.stops(g))] if self.in_place else effects
        everything: list[Unit] = [*first, *reversed([g for g in self.groups if g not in late]), *self.calls, *late]
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
