"""Rows fetched ahead.

What comes in: a tiled program.  What goes out: the same, in which a loop that reads a row for the second time, out of L1, brings
the next row into the cache meanwhile.

    for i < 4096:                                 for i < 4096:
        for k < 1024: vector  s += x[i, k]            for k < 1024: vector  s += x[i, k]
        for k < 1024: vector  q += f(x[i, k])   ->    for k < 1024: vector  q += f(x[i, k])      ahead x[i + 1, k]
        for k < 1024: vector  o[i, k] = ...           for k < 1024: vector  o[i, k] = ...

Memory rests while a row is worked on, and the processor waits for memory at the start of the next one: its own prefetching follows
a stream for a page at most, and a row often is one.  Measured (Zen 3, layer norm 4096 x 1024): 1.38 ms -> 1.0 ms (a copy: 0.82).
Rows longer than SHORT_BYTES are fetched only by loops that compute much (softmax of rows of 8192: 6.6 ms -> 4.8; also where the
row does not stay in L2: of 50257 2.4 ms -> 2.15, of 140000 8.9 -> 7.8): memory has no rest
elsewhere, and the processor sees for itself where such a row goes on.  Fetching past the end of a buffer is harmless: it never faults.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from thermit.ir import prims as p
from thermit.ir.node import Node, toposort
from thermit.loops.index import Indices
from thermit.loops.nest import For, Load, LoopProgram, Stmt, Store, exprs_of

SHORT_BYTES = 8192  # of a row that any loop fetches
LEAD_BYTES = 4096  # at least so far ahead: what memory brings in the time that shorter rows take would come too late
Stream = tuple[str, int, tuple[tuple[Node, int], ...]]  # memory, the linear form of its offset


def fetched_ahead(program: LoopProgram, l2_bytes: int, is_heavy: Callable[[For], bool]) -> LoopProgram:
    """The program with the loads of the next rows in its vector loops; `is_heavy`: a loop that computes much."""
    if program.mode == "vector":
        return program
    rows = {m.name for m in program.memories if m.role == "row"}
    return replace(program, body=_body(program.body, program.index, rows, 2 * l2_bytes, is_heavy, Indices()))


def _body(body: tuple[Stmt, ...], row: Node, private: set[str], most: int, is_heavy: Callable[[For], bool], indices: Indices) -> tuple[Stmt, ...]:
    body = tuple(
        replace(s, body=_body(s.body, s.index, private, most, is_heavy, indices)) if isinstance(s, For) and s.mode == "serial" else s for s in body
    )
    seen: set[Stream] = set()
    fetched: set[Stream] = set()
    out: list[Stmt] = []
    for s in body:
        block = s if isinstance(s, For) and s.mode == "serial" and len(s.body) == 1 else None
        loop = block.body[0] if block is not None else s
        if isinstance(loop, For) and loop.mode == "vector" and isinstance(loop.extent if block is None else block.extent, int):
            streams = _streams(loop, block, row, private, indices)
            longest = most if is_heavy(loop) else min(most, SHORT_BYTES)
            again = [k for k in streams if k in seen and k not in fetched and streams[k][1] <= longest]
            most -= sum(streams[k][1] for k in again)
            seen |= streams.keys()
            fetched |= set(again)
            if again:
                loop = replace(loop, ahead=tuple(_next(*streams[k], row, indices) for k in again))
                s = loop if block is None else replace(block, body=(loop,))
        out.append(s)
    return tuple(out)


def _streams(loop: For, block: For | None, row: Node, private: set[str], indices: Indices) -> dict[Stream, tuple[Node, int]]:
    """The loads that walk along a row, one element after another (where `block` is a loop around: one block after another), and start elsewhere
    in the next one; with the bytes that they pass."""
    found: dict[Stream, tuple[Node, int]] = {}
    written = {s.memory for s in loop.body if isinstance(s, Store)}
    inner = _indices_of(loop.body)
    roots = exprs_of(loop.body) + [n for a in loop.accs for n in (a.value, a.position) if n is not None]
    for node in toposort(roots):
        if node.prim is not p.LOAD or node.attrs.name in private or node.attrs.name in written or len(node.args) > 1:
            continue
        const, terms = indices.form(node.args[0])
        elems = loop.extent if block is None else terms.get(block.index, 0) * _extent(block)
        if terms.get(loop.index) == 1 and terms.get(row, 0) > 0 and all(atom.prim is p.INDEX and atom not in inner for atom in terms):
            along = (loop.index,) if block is None else (loop.index, block.index)
            place = tuple((atom, k) for atom, k in terms.items() if atom not in along)
            if isinstance(elems, int) and elems > 0:
                found[node.attrs.name, const, place] = node, elems * node.dtype.itemsize
    return found


def _extent(loop: For) -> int:
    return loop.extent if isinstance(loop.extent, int) else 0


def _indices_of(body: tuple[Stmt, ...]) -> set[Node]:
    """The indices of the loops in a body, which mean nothing outside them."""
    return {index for s in body if isinstance(s, For) for index in (s.index, *_indices_of(s.body))}


def _next(load: Node, passed: int, row: Node, indices: Indices) -> Load:
    """Where the row after this one is read, or a later one if rows are short."""
    step = indices.form(load.args[0])[1][row]
    return Load(load.attrs.name, indices.linear([(1, load.args[0])], step * -(-LEAD_BYTES // passed)))
