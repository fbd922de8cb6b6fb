"""Register tiles: the inner loop of matrix products.

What comes in: a Tile of loops/nest.py.  What goes out: a loop of fused multiply-adds runs over the index,
its sums in registers, which are then added to what is in memory.

    loop:  r0, r1 = right[0:8], right[8:16]                       two vectors
           a0 += splat(left[0]) * r0;  a1 += splat(left[0]) * r1     each row: one element read into all lanes, used at once
           ...

The one idea: everything but the sums is read where it is used, at a base that no iteration changes plus an index and a constant, so that
no register holds an address of its own or an element longer than one row.  Invariant: only elements of the tile are touched.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

from thermit.codegen import access
from thermit.codegen.expressions import ExpressionWriter
from thermit.codegen.literals import intrinsic, memory_type, scalar_type, type_suffix, vector
from thermit.errors import CompileError
from thermit.ir import build
from thermit.ir import prims as p
from thermit.ir.node import Node
from thermit.ir.types import INT64, DType
from thermit.loops.nest import Tile
from thermit.records import dataclass

UNROLL = 2  # steps of an iteration (4: no faster, twice the code)


@dataclass(frozen=True, slots=True)
class Place:
    """Where an operand is read: at the step k of the loop `base` + (k * `step` + `start`) elements of its memory."""

    base: str
    start: int
    step: int
    kind: str


def linear(node: Node) -> tuple[int, dict[Node, int]]:
    """An offset as a constant and how often it holds each of its other parts."""
    if node.prim is p.CONST:
        return int(node.attrs.value), {}
    if node.prim in (p.ADD, p.SUB):
        (const, terms), (more, others) = linear(node.args[0]), linear(node.args[1])
        sign = 1 if node.prim is p.ADD else -1
        for atom, k in others.items():
            terms[atom] = terms.get(atom, 0) + sign * k
        return const + sign * more, {atom: k for atom, k in terms.items() if k}
    if node.prim is p.MUL and node.args[1].prim is p.CONST:
        by = int(node.args[1].attrs.value)
        const, terms = linear(node.args[0])
        return const * by, {atom: k * by for atom, k in terms.items() if by}
    return 0, {node: 1}


def is_multiple(extent: Node, unit: int) -> bool:
    """Whether an extent is certainly a multiple."""
    if extent.prim is p.MIN:
        return all(is_multiple(a, unit) for a in extent.args)
    const, terms = linear(extent)
    return const % unit == 0 and all(k % unit == 0 for k in terms.values())


def summed(terms: dict[Node, int]) -> Node:
    parts = [build.mul(atom, k) if k != 1 else atom for atom, k in terms.items()]
    return functools.reduce(build.add, parts) if parts else build.const(0, INT64)


class Writer:
    """One tile while it is written."""

    def __init__(self, w: ExpressionWriter, s: Tile) -> None:
        self.w, self.s = w, s
        self.dtype: DType = s.right.dtype
        self.kind = scalar_type(self.dtype)
        self.lanes = w.target.lanes(self.dtype.bits)
        while s.width % self.lanes:
            self.lanes //= 2
        self.vectors = s.width // self.lanes
        self.of = vector(self.kind, self.lanes)
        self.bases: dict[tuple[str, Node], str] = {}
        self.copied: Place | None = None
        self.mask_of: Place | None = None  # of what is copied

    def place(self, load: Node) -> Place:
        if len(load.args) > 1 or load.dtype is not self.dtype:
            raise CompileError("a tile reads loads without guards, of one type")
        return self.place_of(load.attrs.name, load.args[0])

    def place_of(self, name: str, at: Node) -> Place:
        memory = self.w.memories[name]
        const, terms = linear(at)
        step = terms.pop(self.s.index, 0)
        offset = summed(terms)
        key = (memory.name, offset)
        if key not in self.bases:
            value = self.w.value(offset).text
            self.w.here()
            kind = memory_type(memory.dtype)  # of what is only fetched the address may lie outside of the memory
            self.bases[key] = f"%m.{name}" if value == "0" else self.w.op(f"getelementptr {kind}, ptr %m.{name}, i64 {value}")
        return Place(self.bases[key], const, step, memory_type(memory.dtype))

    # ------------------------------------------------------------------ the sums in memory
    def sums(self) -> Iterator[str]:
        """The addresses of the vectors of sums, row by row."""
        memory = self.w.memories[self.s.memory]
        const, terms = linear(self.s.offset)
        value = self.w.value(summed(terms)).text
        self.w.here()
        base = f"%m.{memory.name}" if value == "0" else access.address(self.w, memory, value)
        for r in range(len(self.s.left)):
            for c in range(self.vectors):
                at = const + r * self.s.step + c * self.lanes
                yield self.w.op(f"getelementptr inbounds {self.kind}, ptr {base}, i64 {at}") if at else base

    # ------------------------------------------------------------------ one step
    def address(self, place: Place, at: str, k: int, more: int = 0) -> str:
        """Of an operand `k` steps behind the step `at`."""
        start = place.start + k * place.step + more
        moved = place.base
        if place.step and at != "0":
            scaled = at if place.step == 1 else self.scaled(at, place.step)
            moved = self.w.op(f"getelementptr {place.kind}, ptr {place.base}, i64 {scaled}")
        return self.w.op(f"getelementptr {place.kind}, ptr {moved}, i64 {start}") if start else moved

    def scaled(self, at: str, step: int) -> str:
        return self.w.op(f"mul nuw nsw i64 {at}, {step}")

    def step(self, left: list[Place], right: Place, sums: list[str], at: str, k: int) -> list[str]:
        w, align = self.w, self.dtype.itemsize
        across = [self.across(self.address(right, at, k, c * self.lanes), at, k, c * self.lanes) for c in range(self.vectors)]
        out = []
        for r, place in enumerate(left):
            one = w.op(f"load {self.kind}, ptr {self.address(place, at, k)}, align {align}")
            one = w.splat(one, self.kind, self.lanes)
            for c, x in enumerate(across):
                out.append(self.multiply_add(one, x, sums[r * self.vectors + c]))
        return out

    def across(self, where: str, at: str, k: int, more: int) -> str:
        """A vector of the right side, which is at `where`, or comes there now."""
        w, align = self.w, self.dtype.itemsize
        if self.copied is None:
            return w.op(f"load {self.of}, ptr {where}, align {align}")
        source = self.address(self.copied, at, k, more)
        if self.mask_of is None:
            value = w.op(f"load {self.of}, ptr {source}, align {align}")
        else:
            flags = vector(self.mask_of.kind, self.lanes)
            read = w.op(f"load {flags}, ptr {self.address(self.mask_of, at, k, more)}, align {align}")
            value = access.masked_load(w, self.kind, self.lanes, align, source, w.op(f"icmp slt {flags} {read}, zeroinitializer"))
        w.line(f"  store {self.of} {value}, ptr {where}, align {align}")
        return value

    def from_source(self, load: Node) -> None:
        """What is copied: a load, and the mask that its guard asks."""
        if len(load.args) > 1:
            mask = load.args[1].args[0]
            if load.args[1].prim is not p.LT or mask.prim is not p.LOAD or mask.dtype.bits != self.dtype.bits:
                raise CompileError("a tile copies under masks as wide as what it copies")
            self.mask_of = self.place_of(mask.attrs.name, mask.args[0])
        self.copied = self.place_of(load.attrs.name, load.args[0])

    def multiply_add(self, x: str, y: str, total: str) -> str:
        w, of = self.w, self.of
        if w.target.has_fma:
            return w.op(f"call {of} {intrinsic('llvm.fma', type_suffix(self.dtype), self.lanes)}({of} {x}, {of} {y}, {of} {total})")
        return w.op(f"fadd {of} {total}, {w.op(f'fmul {of} {x}, {y}')}")

    # ------------------------------------------------------------------ loops
    def write(self) -> None:
        w, s = self.w, self.s
        left, right = [self.place(x) for x in s.left], self.place(s.right)
        if s.copied is not None:
            self.from_source(s.copied)
        self.ahead = [self.place_of(a.memory, a.offset) for a in s.ahead]
        stop = str(s.extent) if isinstance(s.extent, int) else w.value(s.extent).text
        addresses = list(self.sums())
        align = self.dtype.itemsize
        sums = ["zeroinitializer"] * len(addresses)
        if isinstance(s.extent, int):
            whole = str(s.extent // UNROLL * UNROLL)
            if s.extent >= UNROLL:
                sums = self.loop(left, right, sums, "0", whole, UNROLL, s.extent >= 2 * UNROLL)
            for k in range(s.extent // UNROLL * UNROLL, s.extent):
                sums = self.step(left, right, sums, "0", k)
        else:
            whole = w.op(f"and i64 {stop}, {-UNROLL}")
            sums = self.guarded(left, right, sums, "0", whole, UNROLL)
            if not is_multiple(s.extent, UNROLL):
                sums = self.guarded(left, right, sums, whole, stop, 1)
        for a, x in zip(addresses, sums, strict=True):
            if s.adds:
                x = w.op(f"fadd {self.of} {w.op(f'load {self.of}, ptr {a}, align {align}')}, {x}")
            w.line(f"  store {self.of} {x}, ptr {a}, align {align}")

    def guarded(self, left: list[Place], right: Place, sums: list[str], start: str, stop: str, unroll: int) -> list[str]:
        """The loop, which may have no iteration."""
        w = self.w
        enter, after = w.label("some"), w.label("none")
        w.line(f"  br i1 {w.op(f'icmp slt i64 {start}, {stop}')}, label %{enter}, label %{after}")
        before = w.block_of(w.innermost)
        w.begin_block(enter)
        made = self.loop(left, right, sums, start, stop, unroll, True)
        last = w.block_of(w.innermost)
        w.line(f"  br label %{after}")
        w.begin_block(after)
        return [w.op(f"phi {self.of} [ {old}, %{before} ], [ {new}, %{last} ]") for old, new in zip(sums, made, strict=True)]

    def loop(self, left: list[Place], right: Place, sums: list[str], start: str, stop: str, unroll: int, again: bool) -> list[str]:
        return self.repeated(left, right, sums, start, stop, range(unroll), unroll, again)

    def repeated(
        self, left: list[Place], right: Place, sums: list[str], start: str, stop: str, steps: Sequence[int], by: int, again: bool
    ) -> list[str]:
        """Steps from `start` below `stop`, `by` of them at a time, at least once; `again`: more than once."""
        w = self.w
        if not again:
            for k in steps:
                sums = self.step(left, right, sums, start, k)
            return sums
        head, after = w.label("loop"), w.label("done")
        entered, index = w.block_of(w.innermost), f"%i.{head}"
        w.line(f"  br label %{head}")
        w.begin_block(head)
        w.line(f"  {index} = phi i64 [ {start}, %{entered} ], [ {index}.next, %{head} ]")
        names = [f"%t{j}.{head}" for j in range(len(sums))]
        place = len(w.at)
        made = names
        for k in steps:
            made = self.step(left, right, made, index, k)
        for a in self.ahead:
            w.line(f"  call void @llvm.prefetch.p0(ptr {self.address(a, index, 0)}, i32 0, i32 3, i32 1)")
        w.at[place:place] = [f"  {n} = phi {self.of} [ {x}, %{entered} ], [ {y}, %{head} ]" for n, x, y in zip(names, sums, made, strict=True)]
        w.line(f"  {index}.next = add nuw nsw i64 {index}, {by}\n  {index}.more = icmp slt i64 {index}.next, {stop}")
        w.line(f"  br i1 {index}.more, label %{head}, label %{after}")
        w.begin_block(after)
        return made


class DotWriter(Writer):
    """One tile whose lanes are steps of the index."""

    def __init__(self, w: ExpressionWriter, s: Tile) -> None:
        super().__init__(w, s)
        self.lanes = w.target.lanes(self.dtype.bits)
        self.of = vector(self.kind, self.lanes)
        self.mask: str | None = None

    def read(self, place: Place, at: str, k: int, more: int) -> str:
        if place.step != 1:
            raise CompileError("a tile whose lanes are steps reads what grows with them")
        where, align = self.address(place, at, k, more), self.dtype.itemsize
        if self.mask is None:
            return self.w.op(f"load {self.of}, ptr {where}, align {align}")
        return access.masked_load(self.w, self.kind, self.lanes, align, where, self.mask)

    def step(self, left: list[Place], right: Place, sums: list[str], at: str, k: int) -> list[str]:
        rows, out = [self.read(place, at, k, 0) for place in left], list(sums)
        for c in range(self.s.width):
            column = self.read(right, at, k, c * self.s.apart)
            for r, row in enumerate(rows):
                j = r * self.s.width + c
                out[j] = self.multiply_add(row, column, out[j])
        return out

    def write(self) -> None:
        w, s, lanes = self.w, self.s, self.lanes
        left, right = [self.place(x) for x in s.left], self.place(s.right)
        self.ahead = [self.place_of(a.memory, a.offset) for a in s.ahead]
        stop = str(s.extent) if isinstance(s.extent, int) else w.value(s.extent).text
        memory, (const, terms) = w.memories[s.memory], linear(s.offset)
        first = w.value(summed(terms)).text
        w.here()
        base = access.address(w, memory, first)
        sums = ["zeroinitializer"] * (len(s.left) * s.width)
        if isinstance(s.extent, int):
            whole, rest = str(s.extent // lanes * lanes), bool(s.extent % lanes)
            if s.extent >= lanes:
                sums = self.loop(left, right, sums, "0", whole, lanes, s.extent >= 2 * lanes)
        else:
            whole, rest = w.op(f"and i64 {stop}, {-lanes}"), True
            sums = self.guarded(left, right, sums, "0", whole, lanes)
        if rest:
            self.mask = self.first_lanes(whole, stop)
            sums = self.step(left, right, sums, whole, 0)
        for r in range(len(s.left)):
            self.store(base, const + r * s.step, sums[r * s.width : (r + 1) * s.width])

    def first_lanes(self, at: str, stop: str) -> str:
        """The lanes below stop - at."""
        left = self.w.op(f"trunc i64 {self.w.op(f'sub i64 {stop}, {at}')} to i32")
        ramp = ", ".join(f"i32 {k}" for k in range(self.lanes))
        return self.w.op(f"icmp sgt {vector('i32', self.lanes)} {self.w.splat(left, 'i32', self.lanes)}, <{ramp}>")

    def loop(self, left: list[Place], right: Place, sums: list[str], start: str, stop: str, unroll: int, again: bool) -> list[str]:
        return self.repeated(left, right, sums, start, stop, (0,), unroll, again)

    # ------------------------------------------------------------------ lanes to sums
    def store(self, base: str, at: int, sums: list[str]) -> None:
        """The sums of a row: as many as 128 bits hold at once."""
        w, several = self.w, 128 // self.dtype.bits
        for c in range(0, len(sums), several):
            group = sums[c : c + several]
            total = self.added(group + ["zeroinitializer"] * (several - len(group)))
            where = w.op(f"getelementptr inbounds {self.kind}, ptr {base}, i64 {at + c * self.s.spread}")
            if len(group) == several and self.s.spread == 1:
                self.put(where, total, vector(self.kind, several))
                continue
            for k in range(len(group)):
                one = w.op(f"extractelement {vector(self.kind, several)} {total}, i32 {k}")
                self.put(w.op(f"getelementptr inbounds {self.kind}, ptr {where}, i64 {k * self.s.spread}"), one, self.kind)

    def put(self, where: str, value: str, of: str) -> None:
        if self.s.adds:
            value = self.w.op(f"fadd {of} {self.w.op(f'load {of}, ptr {where}, align {self.dtype.itemsize}')}, {value}")
        self.w.line(f"  store {of} {value}, ptr {where}, align {self.dtype.itemsize}")

    def added(self, sums: list[str]) -> str:
        """The sum of the lanes of each of the vectors, side by side: halves of pairs inside of each 128 bits, then the halves of what is left."""
        several = len(sums)
        while len(sums) > 1:
            step = several // 2 if len(sums) == several else 1
            orders = ((0, 1, 4, 5), (2, 3, 6, 7)) if step == 2 else ((0, 2, 4, 6), (1, 3, 5, 7)) if several == 4 else ((0, 2), (1, 3))
            sums = [self.pair(x, y, several, orders) for x, y in zip(sums[::2], sums[1::2], strict=True)]
        total, lanes = sums[0], self.lanes
        while lanes > several:
            halves = [access.part(self.w, total, self.kind, lanes, start, lanes // 2) for start in (0, lanes // 2)]
            lanes //= 2
            total = self.w.op(f"fadd {vector(self.kind, lanes)} {halves[0]}, {halves[1]}")
        return total

    def pair(self, x: str, y: str, several: int, orders: tuple[tuple[int, ...], ...]) -> str:
        parts = [access.within(self.w, x, y, self.kind, self.lanes, several, order) for order in orders]
        return self.w.op(f"fadd {self.of} {parts[0]}, {parts[1]}")


def register_tile(w: ExpressionWriter, s: Tile) -> None:
    """Writes the tile where the innermost scope ends."""
    if w.lanes is not None:
        raise CompileError("a tile inside a vector loop")
    (Writer(w, s) if s.apart == 1 else DotWriter(w, s)).write()
