"""What a kernel would compute again and again.

What comes in: a traced kernel.  What goes out: the value whose storing saves most, if any does.

Inline values are computed at every index at which they are read, in the innermost loop that the index depends on.  So

    exp(x)[1:] - exp(x)[:-1]             computes exp twice for each element          (two places)
    a[64, 256] + sin(b)[None, :]         computes sin 64 times for each element of b  (inside of a loop that it does not depend on)
    four gathers of f(image)             compute f one lane at a time, at four places (and write it out four times, which LLVM has to translate)

A place is a value with one key per axis: the variable that runs along it, shifted by slices, pads and parts of a concatenation,
or what else picks the index.  Equal keys are one computation.  The variables of reductions over axes of the same extent count as
one: the loops of a row follow one another, and what they share is kept in rows (see rows.py).

The work of a kernel is the sum over its values of cost x how often it is computed.  A value is stored if the work of the kernel
with it as a buffer, the work of a kernel of its own and the traffic between them are together less.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Sequence

from thermit.ir import prims as p
from thermit.ir.node import Node, toposort
from thermit.ir.types import contiguous_strides
from thermit.records import dataclass
from thermit.schedule.cost import (
    AGAIN_GAIN,
    AGAIN_TRIALS,
    COST_CODE,
    COST_KERNEL,
    COST_SCATTERED,
    COSTLY_AGAIN,
    LIMIT_CODE,
    TABLE_RUNS,
    cost_of,
    memory_cost,
)
from thermit.schedule.group import Group, Root
from thermit.schedule.trace import Labels, Trace, below

LIMIT_PLACES = 2000  # of all values of a kernel: beyond, nothing is weighed


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value is read.  `share`: the part of the loops around it in which the value is there (a part of a concatenation);
    `scattered`: below a gather, one lane at a time."""

    labels: Labels
    keys: tuple[int, ...]
    share: float = 1.0
    scattered: bool = False


class TooMany(Exception):
    """More places than are worth weighing."""


class Weighing:
    """How often each value between the roots and the leaves is computed."""

    def __init__(self, roots: Sequence[Root], leaves: Container[Node], rows: Sequence[int]) -> None:
        self.root, self.leaves, self.rows = roots[0], leaves, rows
        self.found = Trace([], [])
        self.numbers: dict[Hashable, int] = {0: 0}
        self.meanings: list[Hashable] = [0]
        self.places: dict[Node, dict[tuple[int, ...], Place]] = {}
        self.enclosing: dict[int, int] = {}
        shape = self.root.node.shape
        labels = self.found.domain(shape)
        self.axes = [self.key(("axis", a)) for a in range(len(shape))]
        whole = Place(labels, tuple(k if n != 1 else 0 for k, n in zip(self.axes, shape, strict=True)))
        self.find([(r.node, whole) for r in roots if r.node.shape == shape])
        self.enclose(labels)
        self.code = self.written_out()
        self.trips: dict[Labels, float] = {}
        self.runs = {node: sum(map(self.times, places.values())) for node, places in self.places.items()}

    def key(self, meaning: Hashable) -> int:
        number = self.numbers.setdefault(meaning, len(self.meanings))
        if number == len(self.meanings):
            self.meanings.append(meaning)
        return number

    def find(self, stack: list[tuple[Node, Place]]) -> None:
        count, roots = 0, {node for node, _ in stack}
        while stack:
            node, place = stack.pop()
            known = self.places.setdefault(node, {})
            if place.keys in known:
                continue
            known[place.keys] = place
            count += 1
            if count > LIMIT_PLACES:
                raise TooMany
            if node.args and (node not in self.leaves or node in roots) and node.prim is not p.CONTRACT:  # which reads memory only
                stack += self.below(node, place)

    def enclose(self, labels: Labels) -> None:
        """Loops as the layout will choose them: rows of reductions, then the strides of the store; a stacked axis is written out."""
        counts = [sum(mask >> a & 1 for mask in self.rows) for a in range(len(labels))]
        stacked = set() if self.rows else self.stacked(labels)
        mask = 0
        for a in sorted(range(len(labels)), key=lambda a: (a in stacked, -counts[a], -self.root.strides[a], a)):
            self.enclosing[1 << a] = mask
            if a not in stacked:
                mask |= labels[a]

    def stacked(self, labels: Labels) -> set[int]:
        """Axes along which values of size 1 are put side by side."""
        out: set[int] = set()
        for node, places in self.places.items():
            if node.prim is p.CONCAT and all(part.shape[node.attrs.axis] == 1 for part in node.args):
                out |= {labels.index(at) for place in places.values() if (at := place.labels[node.attrs.axis]) and at in labels}
        return out

    # ------------------------------------------------------------------ places
    def below(self, node: Node, place: Place) -> list[tuple[Node, Place]]:
        pairs = below(node, place.labels, self.found)
        if node.prim is p.CONCAT:
            return self.parts(node, place, pairs)
        keys = place.keys
        if node.prim.kind == "view":
            keys = self.seen(node, keys)
        elif node.prim.kind == "reduce":
            keys = self.reduced(node, place)
        out = [(a, Place(at, keys, place.share, place.scattered)) for a, at in pairs]
        if node.prim is p.GATHER:
            keys = tuple(self.key((pick, place.keys)) for pick in node.args[1:])
            labels = tuple(_union(place.labels[a] for a in _varies(pick)) for pick in node.args[1:])
            out[-1] = (node.args[0], Place(labels, keys, place.share, place.scattered or not _runs_on(node.args[-1])))
        elif node.prim is p.PAD:
            share = place.share * node.args[0].type.numel / max(node.type.numel, 1)
            out = [(node.args[0], Place(pairs[0][1], keys, share, place.scattered)), (node.args[1], Place((), ()))]
        return out

    def seen(self, node: Node, keys: tuple[int, ...]) -> tuple[int, ...]:
        """Through a view of one value."""
        attrs, inner = node.attrs, node.args[0].shape
        match node.prim.name:
            case "expand":
                return tuple(k if n != 1 else 0 for k, n in zip(keys, inner, strict=True))
            case "permute":
                return tuple(keys[attrs.order.index(a)] for a in range(len(inner)))
            case "slice":
                return tuple(self.moved(k, s, t) for k, s, t in zip(keys, attrs.starts, attrs.steps, strict=True))
            case "pad":
                gaps = zip(keys, attrs.low, attrs.interior, strict=True)
                return tuple(self.key((k, low, gap)) if gap else self.moved(k, -low, 1) for k, low, gap in gaps)
            case "reshape" if [n for n in node.shape if n != 1] == [n for n in inner if n != 1]:
                rest = iter([k for k, n in zip(keys, node.shape, strict=True) if n != 1])
                return tuple(next(rest) if n != 1 else 0 for n in inner)
        return tuple(self.key((node.attrs, node.shape, inner, keys, a)) if n != 1 else 0 for a, n in enumerate(inner))

    def moved(self, key: int, start: int, step: int) -> int:
        """The key of an index times `step` plus `start`."""
        if step != 1:
            return self.key((key, start, step))
        meaning = self.meanings[key]
        if isinstance(meaning, tuple) and meaning[0] == "plus":
            key, start = meaning[1], meaning[2] + start
        return self.key(("plus", key, start)) if start else key

    def parts(self, node: Node, place: Place, pairs: list[tuple[Node, Labels]]) -> list[tuple[Node, Place]]:
        axis, start, out = node.attrs.axis, 0, []
        for part, labels in pairs:
            n, at, keys, share = part.shape[axis], list(labels), list(place.keys), place.share
            if n == 1:  # there at every index
                at[axis] = keys[axis] = 0
            else:
                keys[axis], share = self.moved(keys[axis], -start, 1), share * n / node.shape[axis]
            out.append((part, Place(tuple(at), tuple(keys), share, place.scattered)))
            start += n
        return out

    def reduced(self, node: Node, place: Place) -> tuple[int, ...]:
        """Keys of what is reduced: a loop over an axis of the domain that the row does not have is the same as the domain's."""
        used, rest, keys = set(place.keys), iter(place.keys), []
        for a, n in enumerate(node.args[0].shape):
            if a not in node.attrs.axes:
                keys.append(next(rest))
                continue
            free = (k for k, m in zip(self.axes, self.root.node.shape, strict=True) if m == n and k not in used)
            key = 0 if n == 1 else next(free, 0) or self.key(("reduced", n, a))
            used.add(key)
            keys.append(key)
        return tuple(keys)

    # ------------------------------------------------------------------ work
    def times(self, place: Place) -> float:
        labels = place.labels
        trips = self.trips.get(labels)
        if trips is None:
            mask = self.found.closed(labels)
            for variable, outer in self.enclosing.items():
                if mask & variable:
                    mask |= outer
            trips = self.trips[labels] = self.found.trips(mask)
        return trips * place.share

    def reads(self, node: Node) -> float:
        """What reading a buffer costs."""
        return sum(self.times(place) * (COST_SCATTERED if place.scattered else 1) for place in self.places[node].values())

    def work(self) -> float:
        total = 0.0
        for node, runs in self.runs.items():
            if node in self.leaves and node is not self.root.node:
                total += self.reads(node)
            elif node.prim.kind == "map":
                total += runs * cost_of(node)
        return total + COST_CODE * max(0, self.code - LIMIT_CODE)

    def written_out(self) -> int:
        """Operations as they are written out: an inline value once for each place."""
        mine = (n for n in self.places if n.prim.kind == "map" and (n not in self.leaves or n is self.root.node))
        return sum(cost_of(n) * len(self.places[n]) for n in mine)

    def repeated(self) -> set[Node]:
        """Maps that views, gathers and reductions read, and that are computed too often or one lane at a time."""
        roots = (self.root.node,)
        moved = {a for n in self.places if n.prim.kind != "map" and (n not in self.leaves or n in roots) for a in n.args}
        maps = (n for n in moved if n in self.places and n.prim.kind == "map" and n not in self.leaves and n not in roots and n.type.numel > 1)
        long = self.code > LIMIT_CODE

        def is_repeated(n: Node) -> bool:
            places = self.places[n]
            return self.runs[n] > 1.25 * n.type.numel or (long and len(places) > 1) or any(place.scattered for place in places.values())

        return {n for n in maps if is_repeated(n)}

    def waste(self, node: Node) -> float:
        """What computing a map more than once, and writing it out more than once in a long kernel, costs."""
        written = COST_CODE * (len(self.places[node]) - 1) if self.code > LIMIT_CODE else 0
        return (max(0.0, self.runs[node] - node.type.numel) + written) * cost_of(node)

    def candidates(self) -> list[tuple[float, Node]]:
        """Values with what storing them saves at most."""
        out = []
        again = self.repeated()
        waste: dict[Node, float] = {}
        inside: dict[Node, frozenset[Node]] = {}  # what a value is made of that is wasted: a small part of it

        def wasting(node: Node) -> frozenset[Node]:
            return frozenset((node,)) if waste[node] else frozenset()

        for node in toposort((self.root.node,), within=self.places) if again else ():
            if node in self.leaves and node is not self.root.node:
                waste[node] = self.reads(node) if any(place.scattered for place in self.places[node].values()) else 0.0
                inside[node] = wasting(node)
                continue
            waste[node] = self.waste(node) if node.prim.kind == "map" else 0.0
            inside[node] = wasting(node).union(*(inside[a] for a in node.args if a in inside))
            if node in again:
                out.append((sum(waste[n] for n in inside[node]) - self.reads(node) - node.type.numel * memory_cost(node), node))
        return out


def _runs_on(pick: Node) -> bool:
    """Whether an index is a plain count, so that neighbours are read by neighbours."""
    while pick.prim.kind == "view" and pick.prim is not p.CONCAT:
        pick = pick.args[0]
    return pick.prim is p.IOTA


def _union(labels: Iterable[int]) -> int:
    mask = 0
    for label in labels:
        mask |= label
    return mask


def _varies(node: Node) -> set[int]:
    """The axes along which a value may vary."""
    wide = {a for a, n in enumerate(node.shape) if n != 1}
    if node.prim.kind in ("iota", "const"):
        return wide & {node.attrs.axis} if node.prim is p.IOTA else set()
    if node.prim is p.EXPAND:
        return {a for a in _varies(node.args[0]) if node.args[0].shape[a] != 1}
    if node.prim is p.RESHAPE and [n for n in node.shape if n != 1] == [n for n in node.args[0].shape if n != 1]:
        inner = _varies(node.args[0])
        return {a for a, b in zip(sorted(wide), (b for b, n in enumerate(node.args[0].shape) if n != 1), strict=True) if b in inner}
    return wide


def _may_repeat(group: Group) -> bool:
    """Whether something costly stands below a view or a reduction: a glance that spares most kernels the weighing."""
    visits = group.trace.visits
    if sum(cost_of(n) for n in visits if n.prim.kind == "map") < COSTLY_AGAIN:
        return False
    inside = (a for n in visits if n.prim.kind in ("view", "reduce") or n.prim is p.GATHER for a in n.args)
    return any(a in visits and a.prim.kind not in ("const", "iota") for a in inside)


def computed_again(group: Group) -> list[tuple[Node, str]]:
    """The values of a kernel to be stored, with the reason; none where nothing is computed so often that it pays."""
    root = group.roots[0]
    if root.node.prim is p.SCATTER or not _may_repeat(group):
        return []
    leaves = group.trace.leaves
    try:
        whole = Weighing(group.roots, leaves, group.rows)
        candidates = whole.candidates()
        if not candidates:
            return []
        work = whole.work()
        least = max(COST_KERNEL, AGAIN_GAIN * work)
        best: tuple[float, Node] | None = None
        for bound, node in sorted(candidates, key=lambda item: -item[0])[:AGAIN_TRIALS]:
            if bound <= least or any(r.node is node for r in group.roots):
                continue
            rest = Weighing(group.roots, {*leaves, node}, group.rows).work()
            alone = Weighing([Root(node, contiguous_strides(node.shape))], leaves, []).work()
            gain = work - rest - alone - node.type.numel * memory_cost(node)
            if gain > least and (best is None or gain > best[0]):
                best = gain, node
        found = [best[1]] if best is not None else _tables(whole, group, [node for _, node in candidates], work)
    except TooMany:
        return []
    return [(node, _reason(whole.runs[node] / node.type.numel)) for node in found]


def _tables(whole: Weighing, group: Group, candidates: list[Node], work: float) -> list[Node]:
    """Small values that are needed over and over (the places and weights along an axis of an image): what they are made of they share,
    so that none pays alone, but all of them together."""
    tables = [n for n in candidates if whole.runs[n] >= TABLE_RUNS * n.type.numel and all(r.node is not n for r in group.roots)]
    tables = [n for n in tables if cost_of(n) > 1 or any(a not in tables and a.prim is not p.CONST for a in n.args)]
    if len(tables) < 2:
        return []
    rest = Weighing(group.roots, {*group.trace.leaves, *tables}, group.rows).work()
    made = sum(n.type.numel * (cost_of(n) + memory_cost(n)) for n in tables) + COST_KERNEL * len(tables)
    return tables if rest + made < work else []


def _reason(times: float) -> str:
    return f"would be computed {times:.1f} times" if times >= 1.25 else "would be computed one lane at a time"
