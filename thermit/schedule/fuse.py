"""Fusion: which values are stored, and which stores share a kernel.

What comes in: a graph.  What goes out: a `Schedule` of kernels and calls in an order that respects data, effects and updates.

    wanted    what must be in memory anyhow: outputs, updates, arguments of calls, scatters
    absorbed  a wanted value that another kernel computes on its way is written by that kernel
    stored    what a rule takes out of a kernel; each such decision is a Refusal with its reason

Kernels are grown from the consumers down: a root pulls in everything below it until a leaf.  A reduction stays inside if the
loops of the kernel compute it once per element (see trace.py); it is stored if it would be computed again and again, if its rows
run across those of the others, or if two kernels need it.  Whenever a rule stores a value, the kernels are grown again; every
rule only ever adds to what is stored, so this ends.  A matrix product shares its kernel with what is done with each element of it,
and nothing else (see products.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from thermit.ir import prims as p
from thermit.ir.node import Graph, Node, toposort, users
from thermit.ir.types import Shape, contiguous_strides
from thermit.schedule.again import computed_again
from thermit.schedule.chain import chained
from thermit.schedule.cost import COST_SHARED, LIMIT_LOADS, LIMIT_NODES, SMALL_ELEMS, SPLIT_ELEMS, cost_of
from thermit.schedule.group import Group, Root
from thermit.schedule.join import join
from thermit.schedule.kernel import Refusal, Schedule
from thermit.schedule.order import arrange
from thermit.schedule.products import find
from thermit.schedule.split import copied, split
from thermit.schedule.trace import Labels, Trace, reshaped, trace


class Fusion:
    """The decisions about one graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.order = toposort(graph.roots)
        self.readers = users(self.order)
        self.strides = dict(zip(graph.inputs, graph.strides, strict=True))  # of inputs and results
        self.refused: dict[Node, str] = {}
        self.stored: dict[Node, None] = {}  # hard: a leaf for every kernel but its own
        self.apart: set[Node] = set()  # wanted values that are not absorbed and absorb nothing
        self.roots: dict[Root, int] = {}  # numbered in the order in which they were wanted
        self.roots_of: dict[Node, list[Root]] = {}
        self.outputs_of_calls: dict[Node, int] = {}
        self.grown: dict[Root, tuple[list[set[Node]], Group]] = {}  # kernels of the last round, with what they depended on
        self.place = {node: k for k, node in enumerate(self.order)}
        self.bit = {node: 1 << k for k, node in enumerate(self.order)}
        self.below: dict[Node, int] = {}  # everything that a value is made of, as bits
        for node in self.order:
            self.below[node] = self.bit[node]
            for arg in node.args:
                self.below[node] |= self.below[arg]
        self.want()
        self.products = find(self.order, self.readers, self.below, self.bit, {r.node: r.strides for r in self.roots})
        for node, reason in self.products.stored.items():
            self.want_shared(node, reason)

    # ------------------------------------------------------------------ what must be stored
    def want(self) -> None:
        for node in self.order:
            if node.prim is p.CALL:
                self.want_arguments(node)
            elif node.prim is p.RESULT:
                self.strides[node] = tuple(node.args[0].attrs.results[node.attrs.index][1])
        for j, output in enumerate(self.graph.outputs):
            inner = output.value.args[0] if output.value.args else None  # of a copy of a result: the tensor itself will do
            handed = inner is not None and inner.prim is p.RESULT and copied(inner) is output.value and inner not in self.outputs_of_calls
            if handed and inner is not None and _same(self.strides[inner], output.strides, inner.shape):
                self.outputs_of_calls[inner] = j
            else:
                self.add(Root(output.value, output.strides, "output", j))
        for update in self.graph.updates:
            if update.value is not copied(self.graph.inputs[update.input]):
                self.add(Root(update.value, self.graph.strides[update.input], "update", update.input))
        for node in self.order:
            if node.prim is p.SCATTER:
                self.store(node, "a scatter writes here and there")

    def want_arguments(self, call: Node) -> None:
        for k, node in enumerate(call.args):
            if node.prim is p.CALL:
                continue
            strides = tuple(call.attrs.strides[k])
            known = self.strides.get(node)
            if known is not None and _same(known, strides, node.shape):
                continue
            if all(r.strides != strides for r in self.roots_of.get(node, ())):
                self.add(Root(node, strides))

    def add(self, root: Root) -> None:
        """From now on `root` goes to memory."""
        self.roots[root] = len(self.roots)
        self.roots_of.setdefault(root.node, []).append(root)

    def store(self, node: Node, reason: str) -> None:
        """From now on `node` is a buffer."""
        if node in self.stored:
            return
        if node not in self.readers:  # nothing reads it any more
            return
        self.stored[node] = None
        self.want_buffer(node, reason)

    def want_buffer(self, node: Node, reason: str) -> None:
        if node not in self.roots_of:
            self.add(Root(node, contiguous_strides(node.shape)))
            self.refused[node] = reason

    # ------------------------------------------------------------------ growing
    def grow(self) -> list[Group]:
        """Kernels for all roots, grown until no rule stores anything more."""
        self.cut_large()
        while True:
            before = self.size()
            groups = self.grow_once()
            if self.size() == before:
                self.store_shared(groups)
            if self.size() == before:
                return groups

    def size(self) -> int:
        """How much is decided: it only grows."""
        return len(self.stored) + len(self.apart) + len(self.roots)

    def grow_once(self) -> list[Group]:
        pending = sorted(self.roots, key=lambda r: (-r.node.type.numel, -self.place.get(r.node, -1)))  # a value is absorbed by no smaller one
        wanted = set(self.roots_of)
        groups: list[Group] = []
        done: set[Root] = set()
        taken: set[Node] = set()
        size, open_to = -1, wanted
        for root in pending:
            if root in done:
                continue
            if self.size() != size:
                size, open_to = self.size(), wanted - taken - self.apart - self.stored.keys()
            group = self.group_again(root, wanted, taken, open_to)
            done.update(group.roots)
            taken.update(r.node for r in group.roots)
            open_to.difference_update(r.node for r in group.roots)
            groups.append(group)
        return join(groups, self.below, self.bit, self.apart)

    def group_again(self, root: Root, wanted: set[Node], taken: set[Node], open_to: set[Node]) -> Group:
        """The kernel of the last round, if nothing that it reaches has changed."""
        kept = self.grown.get(root)
        if kept is not None:
            seen = set(kept[1].trace.visits)
            if kept[0] == self.facts(seen, wanted, taken):
                return kept[1]
        before = self.size()
        group = self.group(root, wanted, taken, open_to)
        if self.size() == before:  # else what it was grown by has changed already
            self.grown[root] = (self.facts(set(group.trace.visits), wanted, taken), group)
        return group

    def facts(self, seen: set[Node], wanted: set[Node], taken: set[Node]) -> list[set[Node]]:
        """All that decides where the trace of a kernel ends and what it absorbs."""
        return [seen & wanted, seen & taken, seen & self.apart, seen & self.stored.keys(), seen & self.roots_of.keys()]

    def group(self, root: Root, wanted: set[Node], taken: set[Node], open_to: set[Node]) -> Group:
        """The kernel that computes `root`, with what it absorbs: of the wanted values those that are open to it."""
        if root.node.prim is p.SCATTER and root.node in taken:  # stands in memory once: this is a copy
            return Group([root], Trace([], [], leaves={root.node: None}), reads={root.node})
        if root.node in self.apart:
            open_to = set()
        absorbed: set[Node] = set()
        product = self.products.home.get(root.node)
        operands = self.products.operands[product] if product is not None else ()

        def leaf(node: Node, labels: Labels, so_far: Trace) -> bool:
            if node.prim in (p.INPUT, p.RESULT) or node in self.stored or (node in wanted and node not in open_to):
                return True
            home = self.products.home.get(node)
            if node in operands or (home is not None and home is not product):  # made by the kernel of another product
                return True
            if product is not None and home is None and node in wanted:
                return True
            if product is not None and (node.prim.kind in ("reduce", "scan") or node.prim in (p.GATHER, p.CHECK)):
                self.store(node, "a matrix product does with each element what is done with it alone")
                return True
            return node.prim.kind == "reduce" and self.refuses(node, labels, so_far, root)

        found = self.trace_root(root.node, leaf)
        if any(n in open_to and n is not root.node for n in found.visits):  # some were needed on the way: which can be written here?
            absorbed = {n for n in found.visits if n in open_to and n is not root.node and self.joins(n, found, root)}
            if not all(n in absorbed or n is root.node for n in found.visits if n in open_to):
                open_to = absorbed
                found = self.trace_root(root.node, leaf)
                absorbed = {n for n in absorbed if n in found.visits and self.joins(n, found, root)}
        group = Group([root], found)
        more = [r for node in absorbed if node not in taken for r in self.roots_of[node] if r is not root]
        group.roots += sorted(more, key=lambda r: self.roots[r])
        if root.node.prim is not p.SCATTER:
            group.roots += [r for r in self.roots_of[root.node] if r is not root]
        group.reads = set(found.leaves)
        self.check_alignment(group)
        self.set_rows(group)
        for node, reason in computed_again(group):
            self.store(node, reason)
        return group

    def trace_root(self, node: Node, leaf: Callable[[Node, Labels, Trace], bool]) -> Trace:
        if node.prim is p.SCATTER:
            start = Trace([], [])
            for arg in dict.fromkeys(node.args):
                labels = start.domain(arg.shape)
                if leaf(arg, labels, start):
                    start.leaves[arg] = None
                else:
                    trace(arg, leaf, start, labels)
            return start
        return trace(node, leaf)

    def joins(self, node: Node, found: Trace, root: Root) -> bool:
        """Whether a wanted value can be written by the kernel that needs it: somewhere it is needed over the whole domain, or once a row."""
        if root.node.prim is p.SCATTER or node.prim.kind == "scan":
            return False
        if any(self.below[leaf] & self.bit[node] for leaf in found.leaves):  # what the kernel reads waits for this value
            return False
        domain = (1 << len(root.node.shape)) - 1
        for labels in found.visits[node]:
            mask = 0
            for label in labels:
                mask |= label
            everywhere = all(label for label, n in zip(labels, node.shape, strict=True) if n != 1)
            if everywhere and mask & domain == mask and found.trips(mask) == node.type.numel and self.in_order(labels, node, mask, root):
                return True
        return False

    def in_order(self, labels: Labels, node: Node, mask: int, root: Root) -> bool:
        """Whether the axes are those of the domain, in its order, perhaps reshaped."""
        kept = [a for a in range(len(root.node.shape)) if mask >> a & 1]
        return labels == reshaped(tuple(1 << a for a in kept), tuple(root.node.shape[a] for a in kept), node.shape)

    def refuses(self, node: Node, labels: Labels, so_far: Trace, root: Root) -> bool:
        """Whether a reduction is stored instead of computed inside; if so it says why."""
        mask = so_far.closed(labels)
        trips, numel = so_far.trips(mask), node.type.numel
        inner = node.args[0].type.numel
        domain = root.node.type.numel
        if root.node.prim is p.SCATTER and inner > numel:
            self.store(node, "a scatter computes its values one by one")
        elif trips > max(numel, 1) * 5 // 4 and (trips // max(numel, 1) - 1) * inner > SMALL_ELEMS:
            self.store(node, f"would be computed {trips / max(numel, 1):.0f} times")
        elif so_far.trips(mask & ((1 << len(root.node.shape)) - 1)) < 4 and max(inner, domain) > SPLIT_ELEMS and domain > numel:
            self.store(node, "few long rows: a kernel of its own lets cores share it")
        return node in self.stored

    def check_alignment(self, group: Group) -> None:
        """Scans and checks run in the order of the domain; rows of reductions enclose each other.  What does not fit is stored."""
        root, found = group.roots[0].node, group.trace
        rank = len(root.shape)
        moved = found.moved()
        along = 1 << root.attrs.axis if root.prim.kind == "scan" else 0
        sets: list[int] = []
        for node, visits in found.visits.items():
            if node.prim.kind == "reduce":
                for labels in visits:
                    mask = found.closed(labels) & ((1 << rank) - 1)
                    if any(mask & other not in (mask, other) for other in sets) and root.prim is not p.SCATTER:
                        self.store(node, "its rows run across those of another reduction")
                    sets.append(mask)
        for node in found.visits:
            if node.prim.kind == "scan" and node is not root:
                here = 1 << node.attrs.axis
                if root.prim is p.SCATTER or node in moved or (along and along != here) or any(mask & here for mask in sets):
                    self.store(node, "a scan read out of its order")
                    if any(r.node is node for r in group.roots):  # an output: it was absorbed
                        self.apart.add(node)
                along = along or here
            elif node.prim is p.CHECK and node is not root and (node in moved or root.prim is p.SCATTER):
                self.store(node, "a check that part of the kernel would skip")
        for node in found.below_gathers():
            if node.prim.kind in ("reduce", "scan"):
                self.store(node, "read at places that are data")
        if root.prim.kind == "scan" and any(mask & (1 << root.attrs.axis) for mask in sets):
            for node in found.visits:
                if node.prim.kind == "reduce":
                    self.store(node, "a scan runs along its rows")
                    if any(r.node is node for r in group.roots):
                        self.apart.add(node)

    def set_rows(self, group: Group) -> None:
        root, found = group.roots[0].node, group.trace
        domain = (1 << len(root.shape)) - 1 if root.prim is not p.SCATTER else 0
        masks = {found.closed(labels) & domain for n, visits in found.visits.items() if n.prim.kind == "reduce" for labels in visits}
        group.rows = sorted(masks, key=int.bit_count)
        union = 0
        for mask in masks:
            union |= mask
        axes = [a for a in range(len(root.shape)) if union >> a & 1]
        for r in list(group.roots[1:]):  # an absorbed value must be a domain or a row of it
            row = math.prod(root.shape[a] for a in axes)
            if r.node.type.numel != root.type.numel and not (axes and r.node.type.numel == row):
                self.apart.add(r.node)
                group.roots.remove(r)

    # ------------------------------------------------------------------ rules over all kernels
    def cut_large(self) -> None:
        """Stores values so that no kernel has more nodes or loads than the limits."""
        inside: dict[Node, int] = {}
        reads: dict[Node, int] = {}
        bit = self.bit
        for node in self.order:
            if node.prim in (p.INPUT, p.RESULT, p.SCATTER, p.CALL):
                inside[node], reads[node] = 0, bit[node]
                continue
            if node.prim is p.CONTRACT:  # what its sides are made of is in memory
                inside[node], reads[node] = bit[node], sum({bit[a] for a in node.args})
                continue
            inside[node] = 0 if node.prim is p.CONST else bit[node]
            reads[node] = 0
            product = self.products.home.get(node)
            for arg in sorted(set(node.args), key=lambda a: (inside[a].bit_count(), bit[a])):
                if self.products.home.get(arg, product) is not product:  # made by the kernel of another product
                    reads[node] |= bit[arg]
                    continue
                i, r = inside[node] | inside[arg], reads[node] | reads[arg]
                if i.bit_count() > LIMIT_NODES or r.bit_count() > LIMIT_LOADS:
                    self.store(arg, "the kernel would be too large")
                    inside[arg], reads[arg] = 0, bit[arg]
                    r = reads[node] | bit[arg]
                    i = inside[node]
                inside[node], reads[node] = i, r

    def store_shared(self, groups: list[Group]) -> None:
        """A reduction, or a costly value, that two kernels would compute is stored."""
        counts: dict[Node, int] = {}
        for group in groups:
            for node in group.trace.visits:
                counts[node] = counts.get(node, 0) + 1
        own = {r.node for r in self.roots}
        shared = {n for n, c in counts.items() if c > 1 and n not in own and n.prim.kind not in ("const", "iota")}
        if not shared:
            return
        costs: dict[Node, int] = {}
        leaves: dict[Node, int] = {}
        for node in self.order:
            if node not in shared:
                leaves[node] = 0 if node.prim.kind in ("const", "iota") else self.bit[node]
                continue
            costs[node] = sum(costs.get(a, 0) for a in set(node.args)) + (cost_of(node) if node.prim.kind == "map" else 0)
            leaves[node] = 0
            for arg in node.args:
                leaves[node] |= leaves[arg]
        for node in self.order:
            if node not in shared:
                continue
            more, loads = counts[node] - 1, leaves[node].bit_count()
            if node.prim.kind in ("reduce", "scan", "contract") or (node.prim is p.CHECK):
                self.want_shared(node, "several kernels read it")
            elif all(r in shared for r in self.readers[node]) or node.prim.kind != "map":
                continue
            elif costs[node] >= COST_SHARED:
                self.want_shared(node, "costly, and several kernels read it")
            elif more * loads > 1 + more:
                self.want_shared(node, f"{counts[node]} kernels would read {loads} buffers for it")
                leaves[node] = self.bit[node]

    def want_shared(self, node: Node, reason: str) -> None:
        """A buffer that one of the kernels which need the value writes, if it can."""
        if node.prim is p.CHECK:
            self.store(node, reason)
        else:
            self.want_buffer(node, reason)


def _same(a: Sequence[int], b: Sequence[int], shape: Shape) -> bool:
    """Whether two strides mean the same for this shape."""
    return all(n == 1 or s == t for s, t, n in zip(a, b, shape, strict=True)) or 0 in shape


def fuse(graph: Graph) -> Schedule:
    """The schedule of a graph: what is stored does not depend on the machine."""
    graph, parts = split(graph)
    fusion = Fusion(graph)
    for node, reason in parts.items():
        fusion.store(node, reason)
    while True:
        groups = fusion.grow()
        steps, cycle = arrange(fusion, groups)
        if steps is not None:
            break
        fusion.apart |= cycle
    return Schedule(chained(steps), tuple(Refusal(node, reason) for node, reason in fusion.refused.items()))
