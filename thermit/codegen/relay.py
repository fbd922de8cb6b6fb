"""Long maps in legs: a chain of many operations becomes several short loops over a block that stays in the first-level cache.

    for i < n:  vector      out[i] = mish(x[i])
 -> for blocks of 512:      for i < 512:  vector     row0[i] = part of log(1 + e^x)
                            for i < 512:  vector     out[..] = the rest of row0[i] and x[..]

In: a legalized program.  Out: one with the same values; its parallel loop takes a block at a time (mode "block").  The one idea: a processor
has a hundred vector instructions or so in flight, so in the time that the longest chain among them takes it does no more than these.  Between
two legs stand all of the others' elements, so the chains in flight are as short as a leg.  It is cut where few values live, which wait in
rows: stores and loads have units of their own.  One or two registers a value are enough then, so there is less code to compile.

Measured (Zen 3, in L1, cycles for eight float32): softplus 33 -> 23, mish 52 -> 48, chain 45 -> 43; for four float64: sigmoid 30 -> 23, sin 27 -> 22,
log 25 -> 21, erfc of float32 50 -> 40, pow 118 -> 87.  The least cuts (a flow through some hundred nodes) take 1 to 4 ms; LLVM's time falls by up
to a third where four registers a value are no longer needed, else it grows by as much as the cut.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import field, replace

from thermit.codegen.emit import STREAM_NODES
from thermit.codegen.target import Target
from thermit.ir import build
from thermit.ir import prims as p
from thermit.ir.node import Node, toposort
from thermit.ir.types import BOOL, INT64
from thermit.loops.nest import For, LoopProgram, Memory, Store
from thermit.records import dataclass

LEAST_EXTENT = 1 << 15  # elements: below, a call is over before the code has paid
ROW_BYTES = 2048  # of one value in a block: ten of them fit beside what is read and written
LINE_BYTES = 64
LEAST_NODES = 8  # for each value that crosses, which costs a cycle to store
MOST_PARALLEL = 1.25  # operations a cycle of the longest chain, from which on the units are busy anyway (a polynomial in three variables)
REGISTERS = 2  # a value of the widest type
LEG = 50.0  # cycles of the longest chain of a leg, about
LEAST_CHAIN = 64.0  # cycles of a chain, from which on a second leg pays
MOST_NODES = 256  # of a map: the time to find the cuts grows faster than these
MOST_ROWS = 16  # of a program: half of them live at a time, in half of the first-level cache
READ = 7.0  # cycles until a leg has what it reads
SLACK = 2.0  # cycles by which a leg may be longer than its share, so that the cut may choose
LATENCY = {p.FMA: 4.0, p.MUL: 4.0, p.ADD: 3.0, p.SUB: 3.0, p.DIV: 13.0, p.SQRT: 18.0, p.CAST: 4.0, p.BITCAST: 0.0, p.NEG: 0.0}
ADDRESS = (p.ADD, p.SUB, p.MUL, p.NEG)
ALWAYS = 1 << 20  # a capacity that no cut goes through
FLAG = 1 << 10  # that of a flag, whose lanes would have to be packed


@dataclass(slots=True)
class Map:
    """The expressions of a program: all nodes, operands first; `free` are those that each leg has for itself (what does not depend on the
    index, addresses, loads from their usual place); for the others who uses them, and their latencies."""

    order: list[Node]
    free: set[Node]
    users: dict[Node, list[Node]] = field(default_factory=dict)
    latency: dict[Node, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.users = {n: [] for n in self.order if n not in self.free}
        for node in self.users:
            for arg in self.operands(node):
                self.users[arg].append(node)
        for node in self.users:
            self.latency[node] = 0.0 if self._is_part_of_extreme(node) else LATENCY.get(node.prim, 1.0) if node.dtype.is_float else 1.0

    def operands(self, node: Node) -> list[Node]:
        return [a for a in dict.fromkeys(node.args) if a not in self.free]

    def _is_part_of_extreme(self, node: Node) -> bool:
        """Whether it is the comparison in a minimum or maximum, which is one instruction with the selection."""
        users = self.users[node]
        return node.prim in (p.LT, p.GT) and len(users) == 1 and users[0].prim is p.WHERE and set(users[0].args[1:]) == set(node.args)


def in_legs(program: LoopProgram, target: Target) -> LoopProgram:
    """The program in legs, if it is a long map; else as it is."""
    made = _map_of(program)
    if made is None:
        return program
    longest = _longest(made)
    if longest < LEAST_CHAIN or len(made.users) > min(MOST_PARALLEL * longest, MOST_NODES):
        return program
    legs = _cut(made, max(2, round(longest / LEG)))
    kept = [n for n, leg in legs.items() if any(legs[u] > leg for u in made.users[n])]
    return _written(program, made, legs, kept, target) if 0 < len(kept) <= min(len(legs) // LEAST_NODES, MOST_ROWS) else program


# ---------------------------------------------------------------------------------------------- what is a map
def _map_of(program: LoopProgram) -> Map | None:
    """The expressions of a program that does nothing but store values at its index, each element from elements at fixed distances, and
    that may do elements twice; None of others."""
    stores = [s for s in program.body if isinstance(s, Store) and s.guard is None and _is_place(s.offset, program.index)]
    if program.mode != "vector" or program.extent < LEAST_EXTENT or len(stores) < len(program.body) or any(m.alias for m in program.memories):
        return None
    order = toposort([n for s in stores for n in (s.offset, s.value)])
    varying, free, addresses = {program.index}, set[Node](), set[Node]()
    written = {s.memory for s in stores}
    for node in order:
        if not varying.isdisjoint(node.args):
            varying.add(node)
        if node.prim is p.LOAD and (node.attrs.name in written or len(node.args) > 1):
            return None
        if node.dtype is INT64 and (node.prim in (p.CONST, p.INDEX) or (node.prim in ADDRESS and addresses.issuperset(node.args))):
            addresses.add(node)
        if node.prim is p.LOAD and node in varying and not _is_place(node.args[0], program.index):
            return None
        if node in addresses or node not in varying or node.prim is p.LOAD:
            free.add(node)
    return Map(order, free)


def _is_place(offset: Node, index: Node) -> bool:
    """Whether an offset is the index, or so many elements away from it."""
    return offset is index or (offset.prim is p.ADD and offset.args[0] is index and offset.args[1].prim is p.CONST)


# ---------------------------------------------------------------------------------------------- where it is cut
def _before(made: Map, nodes: Sequence[Node]) -> dict[Node, float]:
    """Cycles until each of the nodes is known, in a leg of just these."""
    known: dict[Node, float] = {}
    for node in nodes:
        known[node] = made.latency[node] + max([READ, *(known.get(a, READ) for a in made.operands(node))])
    return known


def _after(made: Map, nodes: Sequence[Node]) -> dict[Node, float]:
    """Cycles from the operands of each of the nodes to the end."""
    left: dict[Node, float] = {}
    for node in reversed(nodes):
        left[node] = made.latency[node] + max([0.0, *(left[u] for u in made.users[node])])
    return left


def _longest(made: Map) -> float:
    return max(_before(made, list(made.users)).values(), default=READ) - READ


def _cut(made: Map, count: int) -> dict[Node, int]:
    """The leg of each node: `count` legs of about equal chains, as few values as can be from each to the next."""
    legs: dict[Node, int] = {}
    rest, share = list(made.users), _longest(made) / count + SLACK
    for leg in range(count - 1):
        known, left = _before(made, rest), _after(made, rest)
        late = {n for n in rest if known[n] > READ + share}
        early = {n for n in rest if n not in late and left[n] > (count - 1 - leg) * share}
        for node in _early_side(made, rest, early, late):
            legs[node] = leg
        rest = [n for n in rest if n not in legs]
    legs.update(dict.fromkeys(rest, count - 1))
    used = sorted(set(legs.values()))
    return {n: used.index(k) for n, k in legs.items()}


def _early_side(made: Map, nodes: Sequence[Node], early: set[Node], late: set[Node]) -> list[Node]:
    """The nodes before the least cut.  A node is a vertex for its operation and one for its value, the edge between them is what a cut pays;
    a value that need not be kept has its users on its side, and an operation its operands."""
    number = {n: k for k, n in enumerate(nodes)}
    source, sink = 2 * len(nodes), 2 * len(nodes) + 1
    heads: list[int] = []
    room: list[int] = []
    out: list[list[int]] = [[] for _ in range(sink + 1)]

    def edge(tail: int, head: int, capacity: int) -> None:
        forth = len(heads)
        out[tail].append(forth)
        out[head].append(forth + 1)  # the other way, which has no room yet
        heads.extend((head, tail))
        room.extend((capacity, 0))

    for node, k in number.items():
        edge(k, len(nodes) + k, FLAG if node.dtype is BOOL else 1)
        for user in made.users[node]:
            edge(len(nodes) + k, number[user], ALWAYS)
        for arg in made.operands(node):
            if arg in number:
                edge(k, number[arg], ALWAYS)
        if node in early:
            edge(source, k, ALWAYS)
        elif node in late:
            edge(k, sink, ALWAYS)
    while True:
        came = {source: -1}
        waiting = deque([source])
        while waiting and sink not in came:
            at = waiting.popleft()
            for e in out[at]:
                if room[e] and heads[e] not in came:
                    came[heads[e]] = e
                    waiting.append(heads[e])
        if sink not in came:
            return [n for n, k in number.items() if k in came]
        path = []
        at = sink
        while at != source:
            path.append(came[at])
            at = heads[came[at] ^ 1]
        flow = min(room[e] for e in path)
        for e in path:
            room[e] -= flow
            room[e ^ 1] += flow


# ---------------------------------------------------------------------------------------------- the program
def _written(program: LoopProgram, made: Map, legs: dict[Node, int], kept: Sequence[Node], target: Target) -> LoopProgram:
    """`kept` values go through rows to later legs."""
    last = max(legs.values())
    widest = max(n.dtype.bits for n in legs)
    width = min(program.width, REGISTERS * target.lanes(widest))
    size = max(ROW_BYTES * 8 // widest, width)
    inside = build.index(f"{program.index.attrs.name}_in")
    here = build.add(program.index, inside)
    rows = {n: Memory(f"leg{k}", n.dtype, "row", size + LINE_BYTES // n.dtype.itemsize) for k, n in enumerate(kept)}
    loops = []
    for leg in range(last + 1):
        new = {program.index: here}
        for node in made.order:
            if node in made.free or legs[node] == leg:
                args = tuple(new[a] for a in node.args)
                new.setdefault(node, node if args == node.args else Node(node.prim, args, node.attrs, node.type))
            elif node in rows and legs[node] < leg:
                new[node] = build.load(rows[node].name, node.dtype, inside)
        body = [Store(rows[n].name, inside, new[n]) for n in rows if legs[n] == leg]
        body += [Store(s.memory, new[s.offset], new[s.value]) for s in program.body if isinstance(s, Store) and legs.get(s.value, last) == leg]
        loops.append(For(inside, size, tuple(body), "vector", width))
    streams = program.extent % size == 0 and len(made.order) < STREAM_NODES  # which needs blocks that start at multiples
    memories = (*(replace(m, stream=m.stream and streams) for m in program.memories), *rows.values())
    return replace(program, memories=memories, body=tuple(loops), mode="block", width=size)
