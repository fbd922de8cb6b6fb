"""Rows fetched ahead.

What comes in: a tiled program.  What goes out: the same, in which a loop that reads a row for the second time, out of L1, brings
the next row into the cache meanwhile.

    for i < 4096:                                 for i < 4096:
        for k < 1024: vector  s += x[i, k]            for k < 1024: vector  s += x[i, k]
        for k < 1024: vector  q += f(x[i, k])   ->    for k < 1024: vector  q += f(x[i, k])      ahead x[i + 1, k]
        for k < 1024: vector  o[i, k] = ...           for k < 1024: vector  o[i, k] = ...

Memory rests while a row is worked on, and the processor waits for memory at the start of the next one: its own prefetching follows
a stream for a page at most, and a row often is one.  Measured (Zen 3, layer norm 4096 x 1024): 1.38 ms -> 1.0 ms (a copy: 0.82).
Rows longer than SHORT_BYTES are fetched only by loops that compute much, elsewhere memory has no rest and the processor sees for itself
where such a row goes on (softmax of rows of 8192: 6.6 ms -> 4.8; of 50257, which does not stay in L2 with the next one, 2.4 -> 2.15).  A row that
is read once is fetched LEAD_BYTES ahead by a loop that computes a little (variance: a tenth to a third less).
Fetching past the end of a buffer is harmless: it never faults.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from thermit.ir import prims as p
from thermit.ir.node import Node, toposort
from thermit.loops.index import Indices
from thermit.loops.nest import For, Load, LoopProgram, Stmt, Store, exprs_of
from thermit.records import dataclass

SHORT_BYTES = 8192  # of a row that any loop fetches
HEAVY = 18.0  # cycles of a loop that computes so much that memory has time for the next row, however long
SOME = 4.0  # of one that reads a row only once and still does not keep up with memory
LEAD_BYTES = 4096  # at least so far ahead: what memory brings in the time that shorter rows take would come too late
Stream = tuple[str, int, tuple[tuple[Node, int], ...]]  # memory, the linear form of its offset


def fetched_ahead(program: LoopProgram, l2_bytes: int, cycles_of: Callable[[For], float]) -> LoopProgram:
    """The program with loads of what comes next in its vector loops; `cycles_of`: what one register of a loop's elements takes to compute."""
    if program.mode == "vector":
        return program
    rows = {m.name for m in program.memories if m.role == "row"}
    return replace(program, body=_body(program.body, (program.index,), Search(rows, 2 * l2_bytes, cycles_of, Indices())))


@dataclass(slots=True, eq=False)
class Search:
    """`most`: bytes of rows that may still be fetched beside the present ones."""

    private: set[str]
    most: int
    cycles_of: Callable[[For], float]
    indices: Indices


def _body(body: tuple[Stmt, ...], around: tuple[Node, ...], search: Search) -> tuple[Stmt, ...]:
    """`around`: the indices of the loops around, the last one that of the rows."""
    row = around[-1]
    body = tuple(replace(s, body=_body(s.body, (*around, s.index), search)) if isinstance(s, For) and s.mode == "serial" else s for s in body)
    loops = [_vector_loop(s) for s in body]
    streams = [_streams(*found, around, search) if found is not None else {} for found in loops]
    times = Counter(key for these in streams for key in these)
    most, seen, out = search.most, set[Stream](), []
    for s, found, these in zip(body, loops, streams, strict=True):
        if found is not None and these:
            loop, block = found
            cycles = search.cycles_of(loop)
            longest = most if cycles >= HEAVY else min(most, SHORT_BYTES)
            again = [key for key in these if key in seen and times[key] > 0 and these[key][1] <= longest]
            most -= sum(these[key][1] for key in again)
            fetched = [_next(*these[key], row, search.indices) for key in again]
            fetched += [
                _soon(these[key][0], search.indices)
                for key in these
                if times[key] == 1 and loop.accs and cycles >= SOME and _is_dense(*these[key], row, search)
            ]
            for key in again:
                times[key] = 0
            seen |= these.keys()
            if fetched:
                loop = replace(loop, ahead=tuple(fetched))
                s = loop if block is None else replace(block, body=(loop,))
        out.append(s)
    return tuple(out)


def _vector_loop(s: Stmt) -> tuple[For, For | None] | None:
    """A vector loop over a row, and the loop around it that gives it its blocks, if there is one."""
    block = s if isinstance(s, For) and s.mode == "serial" and len(s.body) == 1 else None
    loop = block.body[0] if block is not None else s
    is_found = isinstance(loop, For) and loop.mode == "vector" and isinstance((block or loop).extent, int)
    return (loop, block) if is_found and isinstance(loop, For) else None


def _streams(loop: For, block: For | None, around: tuple[Node, ...], search: Search) -> dict[Stream, tuple[Node, int]]:
    """The loads that walk along a row, one element after another (where `block` is a loop around: one block after another), and start elsewhere
    in the next one; with the bytes that they pass."""
    found: dict[Stream, tuple[Node, int]] = {}
    written = {s.memory for s in loop.body if isinstance(s, Store)}
    along = (loop.index,) if block is None else (loop.index, block.index)
    roots = exprs_of(loop.body) + [n for a in loop.accs for n in (a.value, a.position) if n is not None]
    for node in toposort(roots):
        if node.prim is not p.LOAD or node.attrs.name in search.private or node.attrs.name in written or len(node.args) > 1:
            continue
        const, terms = search.indices.form(node.args[0])
        elems = loop.extent if block is None else terms.get(block.index, 0) * _extent(block)
        if terms.get(loop.index) == 1 and terms.get(around[-1], 0) > 0 and all(atom in around or atom in along for atom in terms):
            place = tuple((atom, k) for atom, k in terms.items() if atom not in along)
            if isinstance(elems, int) and elems > 0:
                found[node.attrs.name, const, place] = node, elems * node.dtype.itemsize
    return found


def _extent(loop: For) -> int:
    return loop.extent if isinstance(loop.extent, int) else 0


def _next(load: Node, passed: int, row: Node, indices: Indices) -> Load:
    """Where the row after this one is read, or a later one if rows are short."""
    step = indices.form(load.args[0])[1][row]
    return Load(load.attrs.name, indices.linear([(1, load.args[0])], step * -(-LEAD_BYTES // passed)))


def _soon(load: Node, indices: Indices) -> Load:
    """What is read next but a little, in this row or the one after it."""
    return Load(load.attrs.name, indices.linear([(1, load.args[0])], LEAD_BYTES // load.dtype.itemsize))


def _is_dense(load: Node, passed: int, row: Node, search: Search) -> bool:
    """Whether a row starts where the one before it ends."""
    return 0 < search.indices.form(load.args[0])[1][row] * load.dtype.itemsize <= passed
