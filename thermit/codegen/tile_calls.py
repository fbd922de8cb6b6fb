"""Register tiles in kernels: each is a call of a function that all kernels share.

What comes in: a Tile of loops/nest.py.  What goes out: where its operands are, and a call of the function of its shape, whose text is
register_tile.py's; where that would not do, the text itself.

    declare void @tile.f32.6x16....(ptr %left, i64 %left.row, ptr %right, ptr %sums, i64 %sums.row, i64 %stop, ...)

The one idea: tiles are most of the code of a product, and products differ in little else than addresses and counts; to compile a tile once a
process costs a few cycles a call (about 3 % of a network of convolutions on one core).  Invariant: the text of a function follows from its name
and the target.
"""

from __future__ import annotations

import functools

from thermit.codegen import access
from thermit.codegen.expressions import ExpressionWriter
from thermit.codegen.literals import memory_type
from thermit.codegen.register_tile import UNROLL, Operands, Place, Shape, write_tile
from thermit.codegen.target import Target
from thermit.codegen.writer import FunctionWriter
from thermit.errors import CompileError
from thermit.ir import build
from thermit.ir import prims as p
from thermit.ir.node import Node
from thermit.ir.types import INT64
from thermit.loops.nest import Tile

LEAST_STEPS = 32  # of a loop that is worth a call


def register_tile(w: ExpressionWriter, tile: Tile) -> None:
    """Writes the tile where the innermost scope ends."""
    if w.lanes is not None:
        raise CompileError("a tile inside a vector loop")
    located = _Locator(w, tile)
    shape, operands = located.shape(), located.operands()
    if located.may_call():
        w.here()
        w.line(f"  call void {w.shared_function(name_of(shape), lambda: text_of(shape, w.target))}({located.arguments()})")
    else:
        write_tile(w, shape, operands)


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


class _Locator:
    """Where the operands of one tile are."""

    def __init__(self, w: ExpressionWriter, tile: Tile) -> None:
        self.w, self.tile, self.dtype = w, tile, tile.right.dtype
        self.bases: dict[tuple[str, Node], str] = {}
        self.left, self.right = tuple(self._side(x) for x in tile.left), self._side(tile.right)
        self.copied: Place | None = None
        self.mask: Place | None = None
        if tile.copied is not None:
            self._find_copied(tile.copied)
        self.ahead = tuple(self._place(a.memory, a.offset) for a in tile.ahead)
        self.stop = str(tile.extent) if isinstance(tile.extent, int) else w.value(tile.extent).text
        self.sums = self._place(tile.memory, tile.offset)

    def _side(self, load: Node) -> Place:
        if len(load.args) > 1 or load.dtype is not self.dtype:
            raise CompileError("a tile reads loads without guards, of one type")
        return self._place(load.attrs.name, load.args[0])

    def _place(self, name: str, at: Node) -> Place:
        memory = self.w.memories[name]
        const, terms = linear(at)
        step = terms.pop(self.tile.index, 0)
        offset = summed(terms)
        key = (memory.name, offset)
        if key not in self.bases:
            value = self.w.value(offset).text
            self.w.here()
            kind = memory_type(memory.dtype)  # of what is only fetched the address may lie outside of the memory
            self.bases[key] = f"%m.{name}" if value == "0" else self.w.op(f"getelementptr {kind}, ptr %m.{name}, i64 {value}")
        return Place(self.bases[key], const, step, memory_type(memory.dtype))

    def _find_copied(self, load: Node) -> None:
        """What is copied: a load, and the mask that its guard asks."""
        if len(load.args) > 1:
            mask = load.args[1].args[0]
            if load.args[1].prim is not p.LT or mask.prim is not p.LOAD or mask.dtype.bits != self.dtype.bits:
                raise CompileError("a tile copies under masks as wide as what it copies")
            self.mask = self._place(mask.attrs.name, mask.args[0])
        self.copied = self._place(load.attrs.name, load.args[0])

    # ------------------------------------------------------------------ what a tile is
    def shape(self) -> Shape:
        tile, extent, mask = self.tile, self.tile.extent, self.mask
        steps = [p.step for p in (self.left[0], self.right, *([mask] if mask else []), *self.ahead)]
        left, right, *others = [k for k in steps if isinstance(k, int)]
        is_even = extent % UNROLL == 0 if isinstance(extent, int) else is_multiple(extent, UNROLL)
        asked = (mask.kind, others[0], tuple(others[1:])) if mask else ("", 0, tuple(others))
        dots = tile.apart != 1
        copies = tile.copied is not None
        return Shape(self.dtype, len(self.left), tile.width, left, right, tile.adds, is_even or dots, dots, tile.spread, copies, *asked)

    def operands(self) -> Operands:
        """As they are inside of the kernel."""
        tile = self.tile
        sums = [Place(self.sums.base, self.sums.start + r * tile.step, 0, self.sums.kind) for r in range(len(tile.left))]
        right = [self.right]
        if tile.apart != 1:
            right = [Place(self.right.base, self.right.start + c * tile.apart, self.right.step, self.right.kind) for c in range(tile.width)]
        return Operands(self.left, right, sums, self.stop, self.copied, self.mask, self.ahead)

    # ------------------------------------------------------------------ calls
    def may_call(self) -> bool:
        """Whether rows are evenly apart, what is written is memory of the kernel's own that is not read otherwise, and the call is worth it."""
        first, tile, memories = self.left[0], self.tile, self.w.memories
        written = {tile.memory, *([tile.right.attrs.name] if tile.copied is not None else [])}
        read = [load.attrs.name for load in (*tile.left, tile.right, *([tile.copied] if tile.copied is not None else []))]
        if any(memories[name].role != "row" for name in written) or read.count(tile.memory):
            return False
        if tile.copied is not None and read.count(tile.right.attrs.name) > 1:
            return False
        if (self.mask or tile.apart != 1) and not access.has_masks(self.w.target, self.dtype.itemsize):
            return False  # they are private functions of a module
        even = all(x.base == first.base and x.start == first.start + r * self._apart() for r, x in enumerate(self.left))
        return even and (not isinstance(tile.extent, int) or tile.extent >= LEAST_STEPS)

    def _apart(self) -> int:
        return self.left[1].start - self.left[0].start if len(self.left) > 1 else 0

    def arguments(self) -> str:
        """Of the call, in the order of `_parameters`."""
        tile, made = self.tile, [f"ptr {self._address(self.left[0])}", f"i64 {self._apart()}", f"ptr {self._address(self.right)}"]
        made += [f"i64 {tile.apart}"] if tile.apart != 1 else []
        made += [f"ptr {self._address(self.sums)}", f"i64 {tile.step}", f"i64 {self.stop}"]
        if self.copied is not None:
            made += [f"ptr {self._address(self.copied)}", f"i64 {self.copied.step}"]
        made += [f"ptr {self._address(x)}" for x in (*([self.mask] if self.mask else []), *self.ahead)]
        return ", ".join(made)

    def _address(self, place: Place) -> str:
        return self.w.op(f"getelementptr {place.kind}, ptr {place.base}, i64 {place.start}") if place.start else place.base


def name_of(s: Shape) -> str:
    """Of the function of a shape."""
    flags = "".join(letter for letter, is_set in (("a", s.adds), ("e", s.is_even), ("d", s.dots), ("c", s.copies)) if is_set)
    mask = f".{s.mask}.{s.mask_step}" if s.mask else ""
    return f"tile.{s.dtype}.{s.rows}x{s.width}.{s.left}.{s.right}.{s.spread}.{flags}{mask}.ahead{''.join(f'.{k}' for k in s.ahead)}"


@functools.lru_cache(maxsize=256)
def text_of(s: Shape, target: Target) -> str:
    """The function of a shape: what follows its name."""
    w, kind = FunctionWriter(target, {}), memory_type(s.dtype)

    def rows(name: str, step: int) -> list[Place]:
        """Of an operand whose rows are `name`.row apart."""
        made = [Place(f"%{name}", 0, step, kind)]
        for r in range(1, s.rows):
            apart = f"%{name}.row" if r == 1 else w.op(f"mul nsw i64 %{name}.row, {r}")
            made.append(Place(w.op(f"getelementptr {kind}, ptr %{name}, i64 {apart}"), 0, step, kind))
        return made

    left, sums, right = rows("left", s.left), rows("sums", 0), [Place("%right", 0, s.right, kind)]
    for c in range(1, s.width if s.dots else 1):
        apart = w.op(f"mul nsw i64 %apart, {c}")
        right.append(Place(w.op(f"getelementptr {kind}, ptr %right, i64 {apart}"), 0, s.right, kind))
    copied = Place("%source", 0, "%source.step", kind) if s.copies else None
    mask = Place("%mask", 0, s.mask_step, s.mask) if s.mask else None
    ahead = [Place(f"%ahead{k}", 0, step, kind) for k, step in enumerate(s.ahead)]
    write_tile(w, s, Operands(left, right, sums, "%stop", copied, mask, ahead))
    return "\n".join((f"({_parameters(s)}) nounwind {{\nentry:", *w.scopes[0].lines, "  ret void\n}\n"))


def _parameters(s: Shape) -> str:
    own = "ptr noalias nocapture"  # memory of the kernel (so is %right where it is written; but loads would be moved in front of that)
    made = ["ptr nocapture readonly %left", "i64 %left.row", f"ptr nocapture{'' if s.copies else ' readonly'} %right"]
    made += ["i64 %apart"] if s.dots else []
    made += [f"{own} %sums", "i64 %sums.row", "i64 %stop"]
    made += ["ptr nocapture readonly %source", "i64 %source.step"] if s.copies else []
    made += ["ptr nocapture readonly %mask"] if s.mask else []
    return ", ".join([*made, *(f"ptr nocapture %ahead{k}" for k in range(len(s.ahead)))])
