"""Register tiles: the inner loop of matrix products.

What comes in: the shape of a tile and where its operands are.  What goes out: a loop of fused multiply-adds runs over the index,
its sums in registers, which are then added to what is in memory.

    loop:  r0, r1 = right[0:8], right[8:16]                       two vectors
           a0 += splat(left[0]) * r0;  a1 += splat(left[0]) * r1     each row: one element read into all lanes, used at once
           ...

The one idea: everything but the sums is read where it is used, at a base that no iteration changes plus an index and a constant, so that
no register holds an address of its own or an element longer than one row.  Invariant: only elements of the tile are touched.
"""

from __future__ import annotations

from collections.abc import Sequence

from thermit.codegen import access
from thermit.codegen.literals import intrinsic, scalar_type, type_suffix, vector
from thermit.codegen.writer import FunctionWriter
from thermit.errors import CompileError
from thermit.ir.types import DType
from thermit.records import dataclass

UNROLL = 2  # steps of an iteration (4: no faster, twice the code)


@dataclass(frozen=True, slots=True)
class Shape:
    """What the code of a tile depends on besides addresses and counts.

    left, right   how far an operand is from one step of the loop to the next; `ahead`: what is fetched
    adds          to what is in memory; else the sums replace it
    is_even       the number of steps certainly is
    dots          lanes are steps of the loop, and the sums of a row `spread` apart
    copies        the right side is written first, under masks of this type where there is one, which are `mask_step` apart
    """

    dtype: DType
    rows: int
    width: int
    left: int
    right: int
    adds: bool
    is_even: bool
    dots: bool = False
    spread: int = 1
    copies: bool = False
    mask: str = ""
    mask_step: int = 0
    ahead: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """Where an operand is: at the step k of the loop `base` + (k * `step` + `start`) elements of its memory."""

    base: str
    start: int
    step: int | str
    kind: str


@dataclass(frozen=True, slots=True)
class Operands:
    """`left` and `sums` for each row, `right` for each column or only the first; `stop`: the number of steps."""

    left: Sequence[Place]
    right: Sequence[Place]
    sums: Sequence[Place]
    stop: str
    copied: Place | None = None
    mask: Place | None = None
    ahead: Sequence[Place] = ()


class TileWriter:
    """One tile while it is written."""

    def __init__(self, w: FunctionWriter, s: Shape, o: Operands) -> None:
        self.w, self.s, self.o = w, s, o
        self.kind = scalar_type(s.dtype)
        self.lanes = w.target.lanes(s.dtype.bits)
        while s.width % self.lanes:
            self.lanes //= 2
        self.vectors = s.width // self.lanes
        self.of = vector(self.kind, self.lanes)

    # ------------------------------------------------------------------ one step
    def address(self, place: Place, at: str, k: int, more: int = 0) -> str:
        """Of an operand `k` steps behind the step `at`."""
        moved, start = place.base, place.start + more
        if place.step and at != "0":
            scaled = at if place.step == 1 else self.w.op(f"mul nuw nsw i64 {at}, {place.step}")
            moved = self.w.op(f"getelementptr {place.kind}, ptr {place.base}, i64 {scaled}")
        if isinstance(place.step, int):
            start += k * place.step
        elif k:
            moved = self.w.op(f"getelementptr {place.kind}, ptr {moved}, i64 {self.w.op(f'mul nuw nsw i64 {place.step}, {k}')}")
        return self.w.op(f"getelementptr {place.kind}, ptr {moved}, i64 {start}") if start else moved

    def step(self, sums: list[str], at: str, k: int) -> list[str]:
        w, align = self.w, self.s.dtype.itemsize
        across = [self.across(self.address(self.o.right[0], at, k, c * self.lanes), at, k, c * self.lanes) for c in range(self.vectors)]
        out = []
        for r, place in enumerate(self.o.left):
            one = w.op(f"load {self.kind}, ptr {self.address(place, at, k)}, align {align}")
            one = w.splat(one, self.kind, self.lanes)
            for c, x in enumerate(across):
                out.append(self.multiply_add(one, x, sums[r * self.vectors + c]))
        return out

    def across(self, where: str, at: str, k: int, more: int) -> str:
        """A vector of the right side, which is at `where`, or comes there now."""
        w, align, mask = self.w, self.s.dtype.itemsize, self.o.mask
        if self.o.copied is None:
            return w.op(f"load {self.of}, ptr {where}, align {align}")
        source = self.address(self.o.copied, at, k, more)
        if mask is None:
            value = w.op(f"load {self.of}, ptr {source}, align {align}")
        else:
            flags = vector(mask.kind, self.lanes)
            read = w.op(f"load {flags}, ptr {self.address(mask, at, k, more)}, align {align}")
            value = access.masked_load(w, self.kind, self.lanes, align, source, w.op(f"icmp slt {flags} {read}, zeroinitializer"))
        w.line(f"  store {self.of} {value}, ptr {where}, align {align}")
        return value

    def multiply_add(self, x: str, y: str, total: str) -> str:
        w, of = self.w, self.of
        if w.target.has_fma:
            return w.op(f"call {of} {intrinsic('llvm.fma', type_suffix(self.s.dtype), self.lanes)}({of} {x}, {of} {y}, {of} {total})")
        return w.op(f"fadd {of} {total}, {w.op(f'fmul {of} {x}, {y}')}")

    # ------------------------------------------------------------------ loops
    def write(self) -> None:
        w, stop = self.w, self.o.stop
        sums = ["zeroinitializer"] * (self.s.rows * self.vectors)
        if stop.isdigit():
            steps, whole = int(stop), int(stop) // UNROLL * UNROLL
            if whole:
                sums = self.loop(sums, "0", str(whole), UNROLL, steps >= 2 * UNROLL)
            for k in range(whole, steps):
                sums = self.step(sums, "0", k)
        else:
            unroll = 1 if self.s.copies else UNROLL  # of two steps that copy, sums leave the registers
            end = stop if self.s.is_even or unroll == 1 else w.op(f"and i64 {stop}, {-UNROLL}")
            sums = self.guarded(sums, "0", end, unroll)
            if end != stop:
                sums = self.guarded(sums, end, stop, 1)
        for r, place in enumerate(self.o.sums):
            for c in range(self.vectors):
                self.put(self.address(place, "0", 0, c * self.lanes), sums[r * self.vectors + c], self.of)

    def put(self, where: str, value: str, of: str) -> None:
        align = self.s.dtype.itemsize
        if self.s.adds:
            value = self.w.op(f"fadd {of} {self.w.op(f'load {of}, ptr {where}, align {align}')}, {value}")
        self.w.line(f"  store {of} {value}, ptr {where}, align {align}")

    def guarded(self, sums: list[str], start: str, stop: str, unroll: int) -> list[str]:
        """The loop, which may have no iteration."""
        w = self.w
        enter, after = w.label("some"), w.label("none")
        w.line(f"  br i1 {w.op(f'icmp slt i64 {start}, {stop}')}, label %{enter}, label %{after}")
        before = w.block_of(w.innermost)
        w.begin_block(enter)
        made = self.loop(sums, start, stop, unroll, True)
        last = w.block_of(w.innermost)
        w.line(f"  br label %{after}")
        w.begin_block(after)
        return [w.op(f"phi {self.of} [ {old}, %{before} ], [ {new}, %{last} ]") for old, new in zip(sums, made, strict=True)]

    def loop(self, sums: list[str], start: str, stop: str, unroll: int, again: bool) -> list[str]:
        return self.repeated(sums, start, stop, range(unroll), unroll, again)

    def repeated(self, sums: list[str], start: str, stop: str, steps: Sequence[int], by: int, again: bool) -> list[str]:
        """Steps from `start` below `stop`, `by` of them at a time, at least once; `again`: more than once."""
        w = self.w
        if not again:
            for k in steps:
                sums = self.step(sums, start, k)
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
            made = self.step(made, index, k)
        for a in self.o.ahead:
            w.line(f"  call void @llvm.prefetch.p0(ptr {self.address(a, index, 0)}, i32 0, i32 3, i32 1)")
        w.at[place:place] = [f"  {n} = phi {self.of} [ {x}, %{entered} ], [ {y}, %{head} ]" for n, x, y in zip(names, sums, made, strict=True)]
        w.line(f"  {index}.next = add nuw nsw i64 {index}, {by}\n  {index}.more = icmp slt i64 {index}.next, {stop}")
        w.line(f"  br i1 {index}.more, label %{head}, label %{after}")
        w.begin_block(after)
        return made


class DotWriter(TileWriter):
    """One tile whose lanes are steps of the index."""

    def __init__(self, w: FunctionWriter, s: Shape, o: Operands) -> None:
        super().__init__(w, s, o)
        self.lanes = w.target.lanes(s.dtype.bits)
        self.of = vector(self.kind, self.lanes)
        self.mask: str | None = None

    def read(self, place: Place, at: str, k: int) -> str:
        if place.step != 1:
            raise CompileError("a tile whose lanes are steps reads what grows with them")
        where, align = self.address(place, at, k), self.s.dtype.itemsize
        if self.mask is None:
            return self.w.op(f"load {self.of}, ptr {where}, align {align}")
        return access.masked_load(self.w, self.kind, self.lanes, align, where, self.mask)

    def step(self, sums: list[str], at: str, k: int) -> list[str]:
        rows, out = [self.read(place, at, k) for place in self.o.left], list(sums)
        for c, place in enumerate(self.o.right):
            column = self.read(place, at, k)
            for r, row in enumerate(rows):
                j = r * self.s.width + c
                out[j] = self.multiply_add(row, column, out[j])
        return out

    def write(self) -> None:
        w, stop, lanes = self.w, self.o.stop, self.lanes
        sums = ["zeroinitializer"] * (self.s.rows * self.s.width)
        if stop.isdigit():
            steps = int(stop)
            whole, rest = str(steps // lanes * lanes), bool(steps % lanes)
            if steps >= lanes:
                sums = self.loop(sums, "0", whole, lanes, steps >= 2 * lanes)
        else:
            whole, rest = w.op(f"and i64 {stop}, {-lanes}"), True
            sums = self.guarded(sums, "0", whole, lanes)
        if rest:
            self.mask = self.first_lanes(whole, stop)
            sums = self.step(sums, whole, 0)
        for r, place in enumerate(self.o.sums):
            self.store(place, sums[r * self.s.width : (r + 1) * self.s.width])

    def first_lanes(self, at: str, stop: str) -> str:
        """The lanes below stop - at."""
        left = self.w.op(f"trunc i64 {self.w.op(f'sub i64 {stop}, {at}')} to i32")
        ramp = ", ".join(f"i32 {k}" for k in range(self.lanes))
        return self.w.op(f"icmp sgt {vector('i32', self.lanes)} {self.w.splat(left, 'i32', self.lanes)}, <{ramp}>")

    def loop(self, sums: list[str], start: str, stop: str, unroll: int, again: bool) -> list[str]:
        return self.repeated(sums, start, stop, (0,), unroll, again)

    # ------------------------------------------------------------------ lanes to sums
    def store(self, place: Place, sums: list[str]) -> None:
        """The sums of a row: as many as 128 bits hold at once."""
        w, several, bits = self.w, 128 // self.s.dtype.bits, vector(self.kind, 128 // self.s.dtype.bits)
        for c in range(0, len(sums), several):
            group = sums[c : c + several]
            total = self.added(group + ["zeroinitializer"] * (several - len(group)))
            if len(group) == several and self.s.spread == 1:
                self.put(self.address(place, "0", 0, c), total, bits)
                continue
            for k in range(len(group)):
                one = w.op(f"extractelement {bits} {total}, i32 {k}")
                self.put(self.address(place, "0", 0, (c + k) * self.s.spread), one, self.kind)

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


def write_tile(w: FunctionWriter, s: Shape, o: Operands) -> None:
    """Writes the tile where the innermost scope ends."""
    (DotWriter if s.dots else TileWriter)(w, s, o).write()
