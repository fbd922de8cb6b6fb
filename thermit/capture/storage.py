"""Storage cells: memory that tensors view and write, as values.

In:  geometries (sizes, strides, offset in elements) of tensors that lie in one storage.
Out: for reading, a chain of view primitives from the cell's value to the tensor's; for writing, the cell's new value.
Idea: aliasing is decided by geometry alone, whatever chain of view operations led there: `window` finds where a view lies in the
tensor that the cell was made for (its base), in whole axes where it can, else by cutting the line of memory into blocks, else
element by element (STRIDED).  A write runs the chain backwards.
Invariant: `cell.value` is what the storage holds now, at the base's sizes; a window that reads elements outside the base does not exist.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from typing import NamedTuple

from thermit.ir import build as b
from thermit.ir.node import Node
from thermit.ir.types import BOOL, INT64, DType, Shape
from thermit.records import dataclass


class Geometry(NamedTuple):
    """Where a tensor's elements lie in its storage, in elements."""

    sizes: Shape
    strides: Shape
    offset: int

    @property
    def numel(self) -> int:
        return math.prod(self.sizes)

    @property
    def extent(self) -> int:
        """One past the last element that it touches."""
        if self.numel == 0:
            return self.offset
        return self.offset + 1 + sum((n - 1) * s for n, s in zip(self.sizes, self.strides, strict=True))


def overlaps_itself(geometry: Geometry) -> bool:
    """Whether two indices may mean one element (conservative: True where the axes do not nest)."""
    reach = 0
    for stride, size in sorted((s, n) for n, s in zip(geometry.sizes, geometry.strides, strict=True) if n > 1):
        if stride <= reach:
            return True
        reach += (size - 1) * stride
    return False


def is_dense(geometry: Geometry) -> bool:
    """Whether it fills its extent, each element once, in some order of the axes."""
    step = 1
    for stride, size in sorted((s, n) for n, s in zip(geometry.sizes, geometry.strides, strict=True) if n != 1):
        if stride != step:
            return geometry.numel == 0
        step *= size
    return True


# ---------------------------------------------------------------------------------------------- steps
class Reshape(NamedTuple):
    before: Shape
    after: Shape


class Permute(NamedTuple):
    order: tuple[int, ...]


class Cut(NamedTuple):
    """A slice of `before`."""

    before: Shape
    starts: Shape
    steps: Shape
    after: Shape


class Expand(NamedTuple):
    after: Shape


class Pick(NamedTuple):
    """Elements of a line, at offset + sum(i * strides)."""

    after: Shape
    strides: Shape
    offset: int


class Empty(NamedTuple):
    """No element at all."""

    after: Shape


class Reinterpret(NamedTuple):
    """The bits as another type of the same width."""

    before: DType
    after: DType


Step = Reshape | Permute | Cut | Expand | Pick | Empty | Reinterpret
Steps = tuple[Step, ...]


class CannotWrite(Exception):
    """Several indices of the view mean one element: what a write leaves there is eager's affair."""


def read(value: Node, steps: Steps) -> Node:
    """What stands in the window."""
    for step in steps:
        value = _forward(value, step)
    return value


def _forward(x: Node, step: Step) -> Node:
    match step:
        case Reshape(_, after):
            return b.reshape(x, after)
        case Permute(order):
            return b.permute(x, order)
        case Cut(_, starts, strides, after):
            return b.slice_(x, starts, strides, after)
        case Expand(after):
            return b.expand(x, after)
        case Pick(after, strides, offset):
            return b.strided(x, after, strides, offset)
        case Empty(after):
            return b.const(0, x.dtype, after)
        case Reinterpret(_, dtype):
            return b.bitcast(x, dtype)


def write(value: Node, steps: Steps, new: Node) -> Node:
    """The cell's value once `new` stands in the window.  Raises CannotWrite."""
    seen = [value]
    for step in steps[:-1]:
        seen.append(_forward(seen[-1], step))
    for step, inner in zip(reversed(steps), reversed(seen), strict=False):
        new = _backward(inner, step, new)
    return new


def _backward(inner: Node, step: Step, new: Node) -> Node:
    """`inner` with `new` standing where the step looks."""
    match step:
        case Reshape(before, _):
            return b.reshape(new, before)
        case Permute(order):
            return b.permute(new, [order.index(a) for a in range(len(order))])
        case Cut():
            return _put(inner, step, new)
        case Pick(after, strides, offset):
            return b.scatter(inner, new, (_positions(after, strides, offset),))
        case Empty():
            return inner
        case Reinterpret(before, _):
            return b.bitcast(new, before)
        case Expand():
            raise CannotWrite


def _put(inner: Node, cut: Cut, new: Node) -> Node:
    if new.shape == inner.shape:
        return new
    low = cut.starts
    interior = tuple(s - 1 if n > 1 else 0 for s, n in zip(cut.steps, cut.after, strict=True))
    high = tuple(size - a - (n - 1) * (c + 1) - 1 for size, a, n, c in zip(cut.before, low, cut.after, interior, strict=True))
    there = b.pad(b.const(True, BOOL, new.shape), low, high, False, interior)
    return b.where(there, b.pad(new, low, high, 0, interior), inner)


def _positions(shape: Shape, strides: Shape, offset: int) -> Node:
    at = b.const(offset, INT64, shape)
    for axis, stride in enumerate(strides):
        at = b.add(at, b.mul(b.iota(shape, axis), stride))
    return at


# ---------------------------------------------------------------------------------------------- windows
def window(base: Geometry, view: Geometry) -> Steps | None:
    """How `view` is read out of a value that lies as `base`; None where it reaches elements that are not base's.

    >>> window(Geometry((4, 6), (6, 1), 0), Geometry((6, 2), (1, 6), 6))
    (Cut(before=(4, 6), starts=(1, 0), steps=(1, 1), after=(2, 6)), Permute(order=(1, 0)))
    """
    if view == base:
        return ()
    if view.numel == 0:
        return (Empty(view.sizes),)
    core = [a for a, (n, s) in enumerate(zip(view.sizes, view.strides, strict=True)) if n > 1 and s != 0]
    dims = [(view.sizes[a], view.strides[a]) for a in core]
    found = _whole_axes(base, dims, view.offset) or _blocks(base, dims, view.offset)
    return None if found is None else _arranged(*found, view, core)


def _arranged(steps: list[Step], order: list[int], view: Geometry, core: list[int]) -> Steps:
    """`steps` give the view's core axes, axis k of the value being core axis order[k]; this adds the order, the 1s and the repeats."""
    back = tuple(order.index(k) for k in range(len(order)))
    if back != tuple(range(len(back))):
        steps = [*steps, Permute(back)]
    sizes = tuple(view.sizes[a] for a in core)
    ones = tuple(view.sizes[a] if a in core else 1 for a in range(len(view.sizes)))
    if ones != sizes:
        steps = [*steps, Reshape(sizes, ones)]
    if ones != view.sizes:
        steps = [*steps, Expand(view.sizes)]
    return tuple(steps)


Found = tuple[list[Step], list[int]]


def _digits(strides: Sequence[int], sizes: Sequence[int], distance: int) -> list[int] | None:
    """The index whose element lies `distance` behind the first one, taking whole steps of the longest strides first."""
    if distance < 0:
        return None
    digits = [0] * len(sizes)
    for axis in sorted(range(len(sizes)), key=lambda a: -strides[a]):
        if strides[axis] > 0:
            digits[axis] = min(distance // strides[axis], sizes[axis] - 1)
            distance -= digits[axis] * strides[axis]
    return digits if distance == 0 else None


def _whole_axes(base: Geometry, dims: list[tuple[int, int]], offset: int) -> Found | None:
    """Each axis of the view as a slice of one axis of the base; the other axes of the base at one index."""
    starts = _digits(base.strides, base.sizes, offset - base.offset)
    if starts is None:
        return None
    rank = len(base.sizes)
    steps, lengths, taken = [1] * rank, [1] * rank, [-1] * rank
    longest_first = sorted(range(rank), key=lambda a: -base.strides[a])
    for k, (size, stride) in enumerate(dims):
        for axis in longest_first:
            unit = base.strides[axis]
            fits = unit > 0 and stride % unit == 0 and starts[axis] + (size - 1) * (stride // unit) < base.sizes[axis]
            if fits and taken[axis] < 0:
                taken[axis], steps[axis], lengths[axis] = k, stride // unit, size
                break
        else:
            return None
    found: list[Step] = []
    after = tuple(lengths)
    if after != base.sizes:
        found.append(Cut(base.sizes, tuple(starts), tuple(steps), after))
    kept = tuple(n for n, k in zip(lengths, taken, strict=True) if k >= 0)
    if kept != after:
        found.append(Reshape(after, kept))
    return found, [k for k in taken if k >= 0]


def _blocks(base: Geometry, dims: list[tuple[int, int]], offset: int) -> Found | None:
    """The base as lines of memory without gaps, each cut into the view's axes."""
    steps, lines = _lines(base)
    if any(unit == 0 for _, unit in lines):
        return None
    order = sorted(range(len(dims)), key=lambda k: -dims[k][1])
    starts = _digits([unit for _, unit in lines], [n for n, _ in lines], offset - base.offset)
    if starts is None:
        return None
    mine: list[list[int]] = [[] for _ in lines]
    for k in order:
        home = next((i for i, (_, unit) in enumerate(lines) if dims[k][1] >= unit and dims[k][1] % unit == 0), None)
        if home is None:
            return None
        mine[home].append(k)
    shape, axis, found = [n for n, _ in lines], 0, list(steps)
    for i, (length, unit) in enumerate(lines):
        parts = _merged([(dims[k][0], dims[k][1] // unit) for k in mine[i]])
        made = _cut(shape, axis, starts[i], parts, found)
        if made is None:
            if len(lines) == 1:
                return [*steps, *_pick(length, unit, dims, starts[0])], list(range(len(dims)))
            return None
        axis += made
    sizes = tuple(dims[k][0] for group in mine for k in group)
    if tuple(shape) != sizes:
        found.append(Reshape(tuple(shape), sizes))
    return found, [k for group in mine for k in group]


def _lines(base: Geometry) -> tuple[list[Step], list[tuple[int, int]]]:
    """Steps that turn the base into one axis for each run of memory without gaps, longest strides first, and (length, stride) of each."""
    steps: list[Step] = []
    sizes = tuple(n if s or n <= 1 else 1 for n, s in zip(base.sizes, base.strides, strict=True))
    if sizes != base.sizes:  # repeats: the first of each
        steps.append(Cut(base.sizes, (0,) * len(sizes), (1,) * len(sizes), sizes))
    order = sorted(range(len(sizes)), key=lambda a: (sizes[a] > 1, -base.strides[a] if sizes[a] > 1 else a))
    if order != sorted(order):
        steps.append(Permute(tuple(order)))
    lines: list[tuple[int, int]] = []
    for a in order:
        if sizes[a] == 1:
            continue
        if lines and lines[-1][1] == sizes[a] * base.strides[a]:
            lines[-1] = (lines[-1][0] * sizes[a], base.strides[a])
        else:
            lines.append((sizes[a], base.strides[a]))
    lines = lines or [(1, 1)]
    before, after = tuple(sizes[a] for a in order), tuple(n for n, _ in lines)
    if before != after:
        steps.append(Reshape(before, after))
    return steps, lines


def _merged(dims: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Axes that follow each other in memory as one; longest strides first."""
    out: list[tuple[int, int]] = []
    for size, stride in dims:
        if out and out[-1][1] == size * stride:
            out[-1] = (out[-1][0] * size, stride)
        else:
            out.append((size, stride))
    return out


def _cut(shape: list[int], axis: int, start: int, dims: list[tuple[int, int]], steps: list[Step]) -> int | None:
    """Cuts one axis of `shape` (changed in place) into `dims` (size, stride), whose first element is `start`; how many axes that made.

    The line start .. start + size * stride is taken, moved back where it would run over the end, and folded into [size, stride].
    """

    def take(first: int, step: int, length: int) -> None:
        if length != shape[axis]:
            starts, by, after = [0] * len(shape), [1] * len(shape), list(shape)
            starts[axis], by[axis], after[axis] = first, step, length
            steps.append(Cut(tuple(shape), tuple(starts), tuple(by), tuple(after)))
            shape[axis] = length

    if not dims:
        take(start, 1, 1)
        return 1
    (size, stride), rest = dims[0], dims[1:]
    if not rest:
        if start + (size - 1) * stride >= shape[axis]:
            return None
        take(start, stride, size)
        return 1
    back = max(0, start + size * stride - shape[axis])
    reach = sum((n - 1) * s for n, s in rest)
    if back > start or back + reach >= stride:
        return None
    take(start - back, 1, size * stride)
    before = tuple(shape)
    shape[axis : axis + 1] = [size, stride]
    steps.append(Reshape(before, tuple(shape)))
    made = _cut(shape, axis + 1, back, rest, steps)
    return None if made is None else made + 1


def _pick(length: int, unit: int, dims: list[tuple[int, int]], start: int) -> list[Step]:
    strides = tuple(s // unit for _, s in dims)
    if start + sum((n - 1) * s for (n, _), s in zip(dims, strides, strict=True)) >= length:
        raise OutsideBase
    return [Pick(tuple(n for n, _ in dims), strides, start)]


class OutsideBase(Exception):
    """A view reaches memory that the base does not hold."""


def disjoint(cell: Cell, one: Geometry, other: Geometry) -> bool:
    """Whether two views of a cell have no element in common (conservative: False where that is not seen)."""
    if one.extent <= other.offset or other.extent <= one.offset or 0 in (one.numel, other.numel):
        return True
    first, second = _whole_cut(cell.base, one), _whole_cut(cell.base, other)
    return any(_apart(*a, *b) for a, b in zip(first, second, strict=True)) if first and second else False


def _whole_cut(base: Geometry, view: Geometry) -> list[tuple[int, int, int]] | None:
    """(start, step, length) along each axis of the base, where the view takes whole axes."""
    core = [(n, s) for n, s in zip(view.sizes, view.strides, strict=True) if n > 1 and s != 0]
    found = _whole_axes(base, core, view.offset)
    if found is None:
        return None
    cut = next((s for s in found[0] if isinstance(s, Cut)), None)
    if cut is None:
        return [(0, 1, n) for n in base.sizes]
    return list(zip(cut.starts, cut.steps, cut.after, strict=True))


def _apart(start: int, step: int, length: int, start2: int, step2: int, length2: int) -> bool:
    last, last2 = start + (length - 1) * step, start2 + (length2 - 1) * step2
    return last < start2 or last2 < start or (start - start2) % math.gcd(step, step2) != 0


# ---------------------------------------------------------------------------------------------- cells
@dataclass(eq=False)
class Cell:
    """One storage.  `origin`: the number of the graph input that it came with, or -1 where the trace made it."""

    value: Node
    base: Geometry
    origin: int = -1
    writes: int = 0
    inference: bool = False
    windows: dict[tuple[Geometry, DType], Steps | None] = field(default_factory=dict)

    @property
    def root(self) -> Cell:
        """The cell whose memory it is (position.py has cells that see others')."""
        return self

    def steps(self, view: Geometry, dtype: DType) -> Steps | None:
        """The window through which a tensor of this geometry and type sees the value, or None."""
        key = (view, dtype)
        if key not in self.windows:
            self.windows[key] = self._steps(view, dtype)
        return self.windows[key]

    def _steps(self, view: Geometry, dtype: DType) -> Steps | None:
        try:
            found = window(self.base, view)
        except OutsideBase:
            return None
        stored = self.value.dtype
        if found is None or dtype is stored:
            return found
        if dtype.bits != stored.bits or BOOL in (dtype, stored) or dtype.is_complex or stored.is_complex:
            return None
        return (*found, Reinterpret(stored, dtype))

    def read(self, view: Geometry, dtype: DType) -> Node | None:
        """What a tensor of this geometry and type holds, or None where that is not known."""
        if view == self.base and dtype is self.value.dtype:
            return self.value
        steps = self.steps(view, dtype)
        return None if steps is None else read(self.value, steps)

    def write(self, view: Geometry, dtype: DType, new: Node) -> None:
        """Puts `new` there.  Raises CannotWrite."""
        steps = self.steps(view, dtype)
        if steps is None or overlaps_itself(view) or overlaps_itself(self.base):
            raise CannotWrite
        self.value = write(self.value, steps, new)
        self.writes += 1
