"""Loops get their modes: which one is a vector loop, how wide, what is unrolled, what the parallel loop is.

What comes in: a program of serial loops.  What goes out: the same program with, on each path from the outermost loop to the
innermost, at most one vector loop; the parallel loop long enough to be shared between cores.

The choice is by count: `Weigher` knows, for every loop, the values computed in its body (each in the outermost loop that its
indices and locals allow) and how each load and store moves with each loop variable.  Step 1 and step 0 are one instruction a
register, anything else one a lane.  The cheapest assignment is found from the leaves up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field, replace

from thermit.ir import build
from thermit.ir import prims as p
from thermit.ir.node import Node, toposort
from thermit.ir.types import BOOL, FLOAT32, FLOAT64, INT64
from thermit.loops.ahead import fetched_ahead
from thermit.loops.blocking import HasRegisters
from thermit.loops.blocks import blocked
from thermit.loops.chain import plain as plain_chain
from thermit.loops.contraction import packed
from thermit.loops.depthwise import depthwise
from thermit.loops.dots import dotted
from thermit.loops.index import Indices, number
from thermit.loops.narrow import narrowed
from thermit.loops.nest import Acc, Check, For, LoopProgram, Stmt, Store, Tile, exprs_of
from thermit.loops.peel import peel
from thermit.loops.product import plain
from thermit.loops.rewrite import replaced, substitute
from thermit.loops.running import chained
from thermit.loops.windows import convolved
from thermit.records import dataclass

UNROLL_EXTENT = 8  # serial loops of at most so many iterations are written out
UNROLL_NODES = 160
LONG_LOOP = 1 << 15  # iterations in all, from which two registers a value pay for heavy bodies too: a tenth less time, twice the code
HEAVY = 18.0  # instructions of a body that hide latency by themselves: one register a value, no second accumulator (exp: same speed, 1/4 of the code)
ACC_REGISTERS = 8  # for the accumulators of a loop: half of what most processors have
LONG = 100  # cheap operations of a body, from which on one register a value does not keep the processor busy: its queues see a part of the body
LONG_LOADS = 4  # of such a body: with more, two registers a value spill
REGISTERS = 2  # a value of the widest type takes so many: enough to hide the latency of dependent operations
SEVERAL = 50.0  # instructions of several functions: four registers a value, a tenth less time (chain, mish; one function gains nothing) ...
SEVERAL_LOOP = 1 << 18  # ... and half as long again to compile, which so many iterations pay back within some fifty calls
MOST_GATHERED = 3  # loads of a body lane by lane; with more one register a value: no lane waits for another, and each is code of its own (image: 1/4)
SHORT = 1024  # iterations in all, below which one accumulator is as fast as several and less code (the sum of some parts)
PARALLEL_EXTENT = 32  # a parallel loop of fewer iterations is made longer from what is inside
CHUNK_ELEMS = 4096  # of an inner vector loop, when it is shared between iterations of the parallel loop
SUM_TERMS = 32  # of a block of a float sum one after the other (half of it in short sums): as accurate as eager's cascade of 16
GATHER = 3.0  # cycles a lane of a gather or scatter
APART = 2.0  # cycles a register of what lies between lanes that are two to four elements apart
USUAL_EXTENT = 64  # of a loop whose extent is not known
CYCLE_NS = 0.3
BYTE_NS = 0.08  # of memory that is streamed, on one core
COSTS = {p.DIV: 5.0, p.SQRT: 6.0, p.REM: 20.0, p.WHERE: 1.0, p.CAST: 1.0, p.MIN: 2.0, p.MAX: 2.0}
COST_COSTLY = 20.0  # exp, sin, ...: a polynomial and its range reduction


def operation_cost(node: Node) -> float:
    """Cycles of one register of results."""
    prim = node.prim
    if prim.kind != "map":
        return 0.0
    found = COSTS.get(prim)
    if found is not None:
        return found if prim is not p.DIV or node.dtype.is_float else 25.0
    return 1.0 if prim.fp or prim.integer or prim is p.BITCAST else COST_COSTLY


@dataclass(slots=True, eq=False)
class Work:
    """A loop with what its body computes itself."""

    loop: For
    extent: int
    nodes: set[Node]
    stores: list[Store]
    children: list[Work]
    tiles: list[Tile] = field(default_factory=list)
    trips: int = 1  # of the loop and those around it
    vector: bool = False
    width: int = 1
    lanes: int = 1  # independent accumulators


class Weigher:
    """Costs of the loops of a program, serial and as vectors."""

    def __init__(self, program: LoopProgram, vector_bits: int) -> None:
        self.program, self.vector_bits = program, vector_bits
        self.indices = Indices()
        self.local_depth: dict[Node, int] = {}
        top = For(program.index, program.extent, program.body)
        self.path: list[Work] = []
        self.row_names = {m.name for m in program.memories if m.role == "row"}
        self.top = self.collect(top)
        self.steps: dict[tuple[Node, Node], int | None] = {}

    # ------------------------------------------------------------------ what is computed where
    def collect(self, loop: For) -> Work:
        extent = _extent(loop.extent)
        work = Work(loop, extent, set(), [], [], trips=extent * (self.path[-1].trips if self.path else 1))
        self.path.append(work)
        depth = {w.loop.index: d for d, w in enumerate(self.path)}
        for a in loop.accs:
            depth[a.local] = self.local_depth[a.local] = len(self.path) - 1
        roots: list[Node] = []
        for s in loop.body:
            if isinstance(s, For):
                work.children.append(self.collect(s))
                for a in s.accs:  # from here on the result, known in this loop
                    self.local_depth[a.local] = len(self.path) - 1
            elif isinstance(s, Store):
                work.stores.append(s)
                roots += [s.offset, s.value] if s.guard is None else [s.offset, s.value, s.guard]
            elif isinstance(s, Check):
                roots.append(s.ok)
            elif isinstance(s, Tile):
                work.tiles.append(s)
                roots.append(s.offset)
        for a in loop.accs:
            roots += [a.value] if a.position is None else [a.value, a.position]
        levels: dict[Node, int] = {}
        for node in toposort(roots):
            if node.prim is p.INDEX:
                levels[node] = depth[node]
            elif node.prim is p.LOCAL:
                levels[node] = self.local_depth[node]
            elif node.args:
                level = levels[node] = max(levels[a] for a in node.args)
                self.path[max(level, 0)].nodes.add(node)
            else:
                levels[node] = -1
        self.path.pop()
        return work

    # ------------------------------------------------------------------ how things move
    def step(self, offset: Node, index: Node) -> int | None:
        """By how much an offset grows with a loop variable; None if not linearly."""
        key = (offset, index)
        if key not in self.steps:
            terms = self.indices.form(offset)[1]
            odd = any(a is not index and self.reads(a, index) for a in terms)
            self.steps[key] = None if odd else terms.get(index, 0)
        return self.steps[key]

    def reads(self, atom: Node, index: Node) -> bool:
        return bool(atom.args) and any(node is index for node in toposort([atom]))

    def accesses(self, work: Work) -> Iterable[tuple[Node, int, bool]]:
        """Offsets of loads and stores of a body, with the bits of the element and whether they are guarded."""
        for node in work.nodes:
            if node.prim is p.LOAD:
                yield node.args[0], node.dtype.bits, len(node.args) > 1
        for s in work.stores:
            yield s.offset, s.value.dtype.bits, s.guard is not None

    # ------------------------------------------------------------------ costs
    def registers(self, bits: int, width: int) -> float:
        return max(1.0, bits * width / self.vector_bits)

    def own_cost(self, work: Work, index: Node | None, width: int) -> float:
        """Cycles of what the body itself computes, once: on one index, or on `width` of them."""
        total = 0.0
        addresses = {node.args[0] for node in work.nodes if node.prim is p.LOAD} | {s.offset for s in work.stores}
        for node in work.nodes:
            if node not in addresses:
                total += operation_cost(node) * (1.0 if index is None else self.registers(node.dtype.bits, width))
        for offset, bits, guarded in self.accesses(work):
            if index is None:
                total += 1.0
                continue
            step = self.step(offset, index)
            each = self.registers(bits, width)
            if step not in (0, 1):  # lanes a few elements apart are picked out of whole vectors
                each = min(APART * step * each, GATHER * width) if step is not None and 2 <= step <= 4 and not guarded else GATHER * width
            total += each + (1.0 if guarded else 0.0)
        for a in work.loop.accs:
            bits = a.value.dtype.bits
            total += (1.0 if a.combine not in (p.ARGMAX, p.ARGMIN) else 4.0) * (1.0 if index is None else self.registers(bits, width))
        for t in work.tiles:  # two multiply-adds a cycle
            total += _extent(t.extent) * len(t.left) * self.registers(t.right.dtype.bits, t.width) / 2
        return total

    def inside(self, work: Work, index: Node | None, width: int) -> float:
        """One run of the loop, its index not the vector index."""
        return work.extent * (1.0 + self.own_cost(work, index, width) + sum(self.inside(c, index, width) for c in work.children))

    def width_for(self, work: Work) -> int:
        """Lanes: what is computed takes REGISTERS registers in its usual type, and at most twice as many in the widest."""
        counts: dict[int, float] = {}
        stack = [work]
        while stack:
            w = stack.pop()
            stack += w.children
            for node in w.nodes:
                if node.prim is p.LOAD or (node.prim.kind == "map" and node.dtype is not BOOL and (node.dtype is not INT64 or self.is_data(node))):
                    counts[node.dtype.bits] = counts.get(node.dtype.bits, 0.0) + max(1.0, operation_cost(node))
            for s in w.stores:
                counts[s.value.dtype.bits] = counts.get(s.value.dtype.bits, 0.0) + 1
        bits = max(counts, key=lambda k: (counts[k], k), default=32)
        bits = max(bits, max(counts, default=8) // 2)
        registers = 1 if self.gathered(work, work.loop.index) > MOST_GATHERED else _registers_for(work)
        width = registers * self.vector_bits // bits
        while width > 2 and width // 2 >= work.extent:
            width //= 2
        return max(width, 2)

    def gathered(self, work: Work, index: Node) -> int:
        """Loads that take their lanes one by one."""
        loads = [node.args[0] for node in work.nodes if node.prim is p.LOAD]
        return sum(self.step(offset, index) is None for offset in loads) + sum(self.gathered(c, index) for c in work.children)

    def is_data(self, node: Node) -> bool:
        """Whether int64 arithmetic is on data and not on addresses."""
        return any(a.prim is p.LOAD for a in node.args)

    def can_vectorize(self, work: Work) -> bool:
        stack = [work]
        while stack:
            w = stack.pop()
            if w.tiles or (w is not work and w.loop.mode == "vector"):
                return False
            if any(a.combine is None for a in w.loop.accs) and w is work:
                return False
            if any(s.memory in self.row_names and not self.step(s.offset, work.loop.index) for s in w.stores):
                return False
            if any(self.writes_meet(s, work.loop.index) for s in w.stores):
                return False
            stack += w.children
        return True

    def writes_meet(self, s: Store, index: Node) -> bool:
        """Whether two lanes may write one element, or a lane may read what another writes: then the order matters."""
        return self.step(s.offset, index) in (0, None) and s.memory not in self.row_names

    def best(self, work: Work) -> float:
        """Marks the loops of the subtree that become vectors; the cost of one run."""
        serial = work.extent * (1.0 + self.own_cost(work, None, 1) + sum(self.best(c) for c in work.children))
        if work.loop.mode == "vector":  # it has been decided
            work.vector, work.width = True, work.loop.width
            return work.extent / work.width * (1.0 + self.own_cost(work, work.loop.index, work.width))
        if work.extent < 2 or not self.can_vectorize(work):
            return serial
        width = self.width_for(work)
        body = self.own_cost(work, work.loop.index, width) + sum(self.inside(c, work.loop.index, width) for c in work.children)
        vector = -(-work.extent // width) * (1.0 + body) + 4.0 + 12.0 * len(work.loop.accs)
        if vector >= serial:
            return serial
        work.vector, work.width = True, width
        work.lanes = self.lanes_for(work)
        return vector

    def lanes_for(self, work: Work) -> int:
        """Independent accumulators: enough registers to hide the latency of the combination, not so many that they spill."""
        if work.children or _node_count(work) >= HEAVY or work.trips < SHORT:
            return 1
        each = sum(self.registers(bits, work.width) for a in work.loop.accs for bits in _state_bits(a))
        lanes = 4
        while lanes > 1 and (work.extent < 2 * lanes * work.width or lanes * each > ACC_REGISTERS):
            lanes //= 2
        return lanes


# ---------------------------------------------------------------------------------------------- rewriting
def _extent(extent: int | Node) -> int:
    """How often a loop runs, at most or usually."""
    limit = extent if isinstance(extent, int) else _limit(extent)
    return USUAL_EXTENT if limit is None else max(limit, 0)


def _limit(extent: Node) -> int | None:
    """What an extent does not exceed; None if that is not to be seen."""
    if extent.prim is p.CONST:
        return int(extent.attrs.value)
    if extent.prim is p.WHERE:  # one of two versions of a loop (see peel.py)
        limits = [_limit(a) for a in extent.args[1:]]
        return None if None in limits else max(n for n in limits if n is not None)
    if extent.prim is p.MIN:
        return min((n for a in extent.args if (n := _limit(a)) is not None), default=None)
    if extent.prim in (p.ADD, p.SUB, p.DIV) and extent.args[1].prim is p.CONST:
        limit, by = _limit(extent.args[0]), int(extent.args[1].attrs.value)
        return None if limit is None else limit + by if extent.prim is p.ADD else limit - by if extent.prim is p.SUB else limit // by
    return None


def _node_count(work: Work) -> float:
    """Instructions of a body, roughly."""
    return sum(max(1.0, operation_cost(n)) for n in work.nodes) + sum(_node_count(c) for c in work.children)


def _copies(body: tuple[Stmt, ...]) -> int:
    """How often the innermost body of loops that are written out stands there."""
    return max(
        (_copies(s.body) * (s.extent if s.mode == "unroll" and isinstance(s.extent, int) else 1) for s in body if isinstance(s, For)), default=1
    )


def _registers_for(work: Work) -> int:
    """Registers a value: what a body does at once hides the latency of its operations."""
    count, iterations = _node_count(work), work.extent if work.children else work.trips
    if count >= SEVERAL and iterations >= SEVERAL_LOOP and not work.children and not work.loop.accs:
        return 2 * REGISTERS
    return REGISTERS if count < HEAVY or _is_long(work) or iterations >= LONG_LOOP else 1


def _is_long(work: Work) -> bool:
    """Whether a body is a long expression of cheap operations on few values (a polynomial in three variables: a seventh faster in pairs)."""
    operations = [n for n in work.nodes if n.prim.kind == "map" and n.dtype is not INT64]
    loads = sum(n.prim is p.LOAD for n in work.nodes)
    is_plain = not work.children and not work.loop.accs and loads <= LONG_LOADS
    return len(operations) >= LONG and is_plain and all(operation_cost(n) < COST_COSTLY for n in operations)


def _state_bits(a: Acc) -> list[int]:
    """Of one lane of an accumulator; positions are kept in 32 bits."""
    return [a.value.dtype.bits, 32] if a.combine in (p.ARGMAX, p.ARGMIN) else [a.local.dtype.bits]


def _has_tile(work: Work) -> bool:
    return bool(work.tiles) or any(_has_tile(c) for c in work.children)


def _has_vector(loop: For) -> bool:
    return loop.mode == "vector" or any(isinstance(s, For) and _has_vector(s) for s in loop.body)


def _modes(work: Work, in_vector: bool, outer: dict[Node, int], indices: Indices) -> For:
    inner = in_vector or work.vector
    children = iter(work.children)
    body: list[Stmt] = []
    for s in work.loop.body:
        if isinstance(s, For):
            made = _modes(next(children), inner, {**outer, work.loop.index: work.extent}, indices)
            body += _refined(made, {**outer, work.loop.index: work.extent}, indices)
        else:
            body.append(s)
    loop = replace(work.loop, body=tuple(body))
    if work.vector and not in_vector:
        accs = tuple(replace(a, lanes=work.lanes) if a.combine is not None else a for a in loop.accs)
        return replace(loop, mode="vector", width=work.width, accs=accs)
    size = _node_count(work) * _copies(loop.body)
    small = isinstance(loop.extent, int) and loop.extent <= UNROLL_EXTENT and loop.extent * size <= UNROLL_NODES
    vector_below = any(isinstance(s, For) and _has_vector(s) for s in loop.body)
    return replace(loop, mode="unroll") if small and not vector_below and not _has_tile(work) and loop.extent != 1 else loop


def _refined(loop: For, outer: dict[Node, int], indices: Indices) -> tuple[Stmt, ...]:
    """A vector loop without its boundaries, or a serial one that sums in blocks."""
    if loop.mode == "serial" and loop.accs:
        return (_in_blocks(loop),)
    return peel(loop, outer, indices) if loop.mode == "vector" and not loop.accs and isinstance(loop.extent, int) else (loop,)


def _in_blocks(loop: For) -> For:
    """A long float sum of a serial loop: the sums of blocks, then their sum kept wide, so that no partial sum takes many terms.  Scans and positions
    are not in blocks: sums beside them are kept wide.  (Vector loops: see codegen/accumulate.py.)"""
    extent = _extent(loop.extent)
    size = SUM_TERMS if extent >= 4 * SUM_TERMS else SUM_TERMS // 2
    if not any(map(_is_long_sum, loop.accs)) or extent <= size:
        return loop
    if any(a.combine in (None, p.ARGMAX, p.ARGMIN) for a in loop.accs):
        return replace(loop, accs=tuple(replace(a, wide=_is_long_sum(a)) for a in loop.accs))
    name = loop.index.attrs.name
    block = build.index(name + "b")
    blocks = -(-extent // size) if isinstance(loop.extent, int) else build.div(build.add(loop.extent, size - 1), size)
    start = build.mul(block, size)
    new = {loop.index: build.add(start, loop.index)}
    body = substitute(loop.body, new)
    inner = tuple(replace(a, local=build.local(f"{a.local.attrs.name}b", a.local.dtype), value=replaced(a.value, new)) for a in loop.accs)
    whole = isinstance(loop.extent, int) and extent % size == 0
    rest = size if whole else build.minimum(build.sub(number(extent) if isinstance(loop.extent, int) else loop.extent, start), size)
    outer = tuple(replace(a, value=i.local, lanes=1, wide=_is_long_sum(a)) for a, i in zip(loop.accs, inner, strict=True))
    return For(block, blocks, (replace(loop, extent=rest, body=body, accs=inner),), accs=outer)


def _is_long_sum(a: Acc) -> bool:
    """Whether many terms would make it inaccurate."""
    return a.combine is p.ADD and a.local.dtype in (FLOAT32, FLOAT64)


def _lengthen(program: LoopProgram) -> LoopProgram:
    """A short parallel loop takes in the loop inside it, or pieces of it (what is written here and there is written in order)."""
    if any(m.role == "inout" for m in program.memories):
        return program
    while program.mode == "serial" and program.extent < PARALLEL_EXTENT and len(program.body) == 1:
        (inner,) = program.body
        if not isinstance(inner, For) or inner.accs or not isinstance(inner.extent, int):
            break
        whole = build.index("p" + program.index.attrs.name)
        if inner.mode != "vector":
            if inner.extent * program.extent == 0:
                break
            split = {program.index: build.div(whole, inner.extent), inner.index: build.rem(whole, inner.extent)}
            program = replace(program, index=whole, extent=program.extent * inner.extent, body=substitute(inner.body, split))
            continue
        if program.extent == 1:
            body = substitute(inner.body, {program.index: number(0)})
            return replace(program, index=inner.index, extent=inner.extent, body=body, mode="vector", width=inner.width)
        if inner.extent < 2 * CHUNK_ELEMS:
            break
        chunks = -(-inner.extent // CHUNK_ELEMS)
        row, chunk = build.div(whole, chunks), build.rem(whole, chunks)
        start = build.mul(chunk, CHUNK_ELEMS)
        body = substitute(inner.body, {program.index: row, inner.index: build.add(inner.index, start)})
        rest = build.sub(number(inner.extent), start)
        piece = replace(inner, extent=build.minimum(rest, CHUNK_ELEMS), body=body)
        return replace(program, index=whole, extent=program.extent * chunks, body=(piece,))
    return program


def tile(program: LoopProgram, target: HasRegisters) -> LoopProgram:
    """The program with vector, unrolled and parallel loops for the target."""
    product = chained(program, target) or depthwise(program) or convolved(program, target) or dotted(program, target) or packed(program, target)
    made = blocked(program, target.vector_bits) if product is None else None
    if made is not None:
        return made
    program = product or narrowed(plain(plain_chain(program)))
    weigher = Weigher(program, target.vector_bits)
    weigher.best(weigher.top)
    top = _modes(weigher.top, False, {}, weigher.indices)
    made = _lengthen(replace(program, body=top.body, mode="vector" if top.mode == "vector" else "serial", width=top.width))
    return fetched_ahead(made, target.l2_bytes, _cycles_of_body)


def _cycles_of_body(loop: For) -> float:
    """What one register of float32 elements takes to compute, roughly, accumulators included."""
    varying, cycles = {loop.index}, 0.0
    for node in toposort(exprs_of(loop.body) + [a.value for a in loop.accs]):
        if not varying.isdisjoint(node.args):
            varying.add(node)
            cycles += operation_cost(node) * max(node.dtype.bits / FLOAT32.bits, 1.0) if node.dtype is not INT64 else 0.0
    return cycles


def cost(program: LoopProgram) -> tuple[float, bool]:
    """Estimated nanoseconds of the whole on one core, and whether the program contains a check."""
    vector_bits = 256
    weigher = Weigher(program, vector_bits)
    cycles = _cycles(weigher, weigher.top, None, 1)
    memory = sum(m.elems * m.dtype.itemsize for m in program.memories if m.role != "row")
    return max(cycles * CYCLE_NS, memory * BYTE_NS), _has_check(program.body)


def _cycles(weigher: Weigher, work: Work, index: Node | None, width: int) -> float:
    loop = work.loop
    trips: float = work.extent
    if work is weigher.top and weigher.program.mode == "vector":
        index, width = loop.index, weigher.program.width
        trips = -(-trips // width)
    elif loop.mode == "vector":
        index, width = loop.index, loop.width
        trips = -(-trips // width)
    return trips * (1.0 + weigher.own_cost(work, index, width) + sum(_cycles(weigher, c, index, width) for c in work.children))


def _has_check(body: tuple[Stmt, ...]) -> bool:
    return any(isinstance(s, Check) or (isinstance(s, For) and _has_check(s.body)) for s in body)
