"""Memory at a place that is data: `x[i]` with `i` a tensor without axes.

In:  a tensor, an axis and a position whose value the trace does not know.
Out: `Picked`, the cell behind `x[i]`: what is read there is gathered out of x as it is then, what is written there is scattered into x.
Idea: PyTorch's indexing reads the value of i and then selects.  It is told 0, and the selection of 0 that follows is taken for that of i.
Invariant: `Picked` has no value of its own, so x and x[i] are one memory, whichever of them is written.
"""

from __future__ import annotations

import dis
from types import FrameType
from typing import Any, NamedTuple

import torch

from thermit.aten.indexing import select_axis, wrapped
from thermit.capture.recording import GoLive
from thermit.capture.standin import StandIn
from thermit.capture.storage import Cell, Geometry, disjoint
from thermit.ir import build as b
from thermit.ir.node import Node
from thermit.ir.types import INT64, DType

aten = torch.ops.aten
_SUBSCRIPTS = frozenset(dis.opmap[name] for name in ("BINARY_SUBSCR", "STORE_SUBSCR") if name in dis.opmap)
_OPERATORS: list[Any] = [name for name, _ in getattr(dis, "_nb_ops", ())]
_SUBSCRIPT = _OPERATORS.index("NB_SUBSCR") if "NB_SUBSCR" in _OPERATORS else -1  # Python 3.14: an operator like others
_BINARY = dis.opmap["BINARY_OP"]
_SIGNED = (torch.int64, torch.int32, torch.int16, torch.int8)  # a bool or uint8 is a mask


class Asked(NamedTuple):
    """PyTorch has read the position at this instruction; the selection comes next."""

    position: StandIn
    frame: FrameType
    instruction: int

    @staticmethod
    def of(position: StandIn, frame: FrameType) -> Asked | None:
        """None where it is not the subscript of a tensor that reads: something else wants the value."""
        code, at = frame.f_code.co_code, frame.f_lasti
        subscript = code[at] in _SUBSCRIPTS or (code[at] == _BINARY and code[at + 1] == _SUBSCRIPT)
        return Asked(position, frame, at) if subscript and position.dtype in _SIGNED and not position.geometry.sizes else None

    def is_at(self, frame: FrameType) -> bool:
        """Whether the instruction that asked still runs."""
        return frame is self.frame and frame.f_lasti == self.instruction


def select_at(self: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    """What stands in the log: the selection at the value of `index`.  Raises what `self[index]` raises."""
    at, size = int(index.item()), self.shape[dim]
    if not -size <= at < size:
        raise IndexError(f"index {at} is out of bounds for dimension {dim} with size {size}")
    found: torch.Tensor = aten.select.int(self, dim, at)
    return found


class Picked(Cell):
    """The memory of `parent`, seen as `seen`, at a position along one axis; its base is where that lies, counted from the first element."""

    def __init__(self, parent: Cell, seen: Geometry, element: DType, axis: int, index: Node) -> None:
        sizes, strides = (values[:axis] + values[axis + 1 :] for values in (seen.sizes, seen.strides))
        self.parent, self.seen, self.element, self.axis, self.index = parent, seen, element, axis, index
        self.base, self.origin, self.inference = Geometry(sizes, strides, 0), -1, parent.inference
        self.writes, self.windows = 0, {}

    @property
    def root(self) -> Cell:
        return self.parent.root

    @property
    def value(self) -> Node:
        return select_axis(self._whole(), self.axis, self.index)

    @value.setter
    def value(self, new: Node) -> None:
        sizes = self.seen.sizes
        shape = (*sizes[: self.axis], 1, *sizes[self.axis + 1 :])
        places = [b.iota(shape, a, INT64) for a in range(len(shape))]
        places[self.axis] = b.broadcast_to(self.index, shape)
        self.parent.write(self.seen, self.element, b.scatter(self._whole(), b.reshape(new, shape), places))

    def _whole(self) -> Node:
        found = self.parent.read(self.seen, self.element)
        assert found is not None
        return found

    def is_as(self, parent: Cell, seen: Geometry, element: DType, axis: int, index: Node) -> bool:
        return self.parent is parent and (self.seen, self.element, self.axis, self.index) == (seen, element, axis, index)


def picked(cells: list[Picked], of: StandIn, axis: int, index: Node) -> Picked:
    """The cell of `of` at `index` along `axis`: one of `cells`, or a new one in them.  Raises GoLive."""
    sizes = of.geometry.sizes
    if of.cell.read(of.geometry, of.element) is None:
        raise GoLive("a view of memory that the trace does not know")
    if 0 in sizes:
        raise GoLive("a tensor as an index into a tensor without elements")
    found = of.cell, of.geometry, of.element, axis, wrapped(index, sizes[axis])
    cell = next((c for c in cells if c.is_as(*found)), None)
    if cell is None:
        cell = Picked(*found)
        cells.append(cell)
    return cell


def overlap(target: StandIn, other: StandIn, whole: bool) -> bool:
    """Whether what is written may lie where another tensor is read (conservative).  `whole`: the same elements throughout are no overlap."""
    one, two = target.cell, other.cell
    if one.root is not two.root:
        return False
    if one is not two:
        like = isinstance(one, Picked) and isinstance(two, Picked) and two.is_as(one.parent, one.seen, one.element, one.axis, two.index)
        if not like:
            return True
    if target.geometry == other.geometry:  # of two positions: the same elements, or none
        return not whole
    return not disjoint(one, target.geometry, other.geometry)
