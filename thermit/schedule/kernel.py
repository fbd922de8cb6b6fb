"""What fusion decides: which values are stored, in which kernels, and where the others live.

    schedule ::=  (kernel | call)* in order, refusals
    kernel   ::=  stores, loads, rows                          one loop nest, one native function

Every value has a place: inline (recomputed in a register where it is read), row (kept in a small buffer for one iteration of
the kernel's outer loops), buffer (stored: a kernel boundary).  A kernel's values are what its stores reach down to its loads;
those in `rows` have place row, the others are inline; a reduction is computed once at the loop level that its index depends on.
Params of the native function, in order: `loads`, then `stores` (LoopProgram memories "in0", "in1", ..., "out0", ...).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from thermit.ir.node import Node, toposort
from thermit.ir.types import Shape
from thermit.records import dataclass


@dataclass(frozen=True, slots=True)
class Stored:
    """`node` written with `strides` (elements).  target: "temp", "output" (number `index`) or "update" (of input `index`, through
    that input's own strides, which may have gaps)."""

    node: Node
    strides: Shape
    target: Literal["temp", "output", "update"] = "temp"
    index: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    """A graph input, a stored node or a call's result that a kernel reads, with its strides (elements).  `limits`: of an index (int64)
    that was clamped before it was stored, its smallest and largest value: it needs no check."""

    node: Node
    strides: Shape
    limits: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Kernel:
    name: str
    stores: tuple[Stored, ...]
    loads: tuple[Load, ...]
    rows: frozenset[Node] = frozenset()
    why: str = ""


@dataclass(frozen=True, slots=True)
class CallStep:
    """An ATen call; its tensor arguments are stored with the strides that node.attrs.strides asks for.  `arguments` are loads.

    `outputs[k]`: the number of the graph output that the k-th result is (handed to the user as it is), or None."""

    node: Node
    arguments: tuple[Load, ...]
    outputs: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """A fusion that was not done: the value that was stored instead, and why."""

    node: Node
    reason: str


@dataclass(frozen=True, slots=True)
class Schedule:
    steps: tuple[Kernel | CallStep, ...]
    refused: tuple[Refusal, ...] = ()


@dataclass(frozen=True, slots=True)
class Launch:
    """How a lowered kernel is started: its symbol, the range of its parallel loop, the multiple at which the range may be split,
    the estimated time of the whole on one core, whether it can stop the program."""

    symbol: str
    extent: int
    grain: int
    cost_ns: float
    can_stop: bool


def schedule_text(schedule: Schedule) -> str:
    """The kernels and calls in order, one line each with what they read, write and keep in rows; then the refusals."""
    names: dict[Node, str] = {}

    def name(node: Node) -> str:
        if node.prim.name == "input":
            return f"%in{node.attrs.index}"
        return names.setdefault(node, f"%v{len(names)}")

    lines: list[str] = []
    for step in schedule.steps:
        if isinstance(step, CallStep):
            read = ", ".join(name(load.node) for load in step.arguments)
            lines.append(f"{name(step.node)} = call {step.node.attrs.op}({read})")
            continue
        stores = ", ".join(f"{name(s.node)}: {s.node.type}" + (f" -> {s.target} {s.index}" if s.target != "temp" else "") for s in step.stores)
        reads = ", ".join(f"{name(load.node)}: {load.node.type}" for load in step.loads)
        values = [n for n in toposort(s.node for s in step.stores) if n.prim.kind not in ("input", "const")]
        kept = f", {len(step.rows)} in rows" if step.rows else ""
        lines.append(f"{step.name}: {stores}  from  {reads or 'nothing'}  ({len(values)} values{kept})")
        if step.why:
            lines.append(f"    {step.why}")
    lines += [f"stored {r.node!r}: {r.reason}" for r in schedule.refused]
    return "\n".join(lines) + "\n"


def match(shape: Shape, domain: Shape, free: Sequence[int]) -> tuple[int | None, ...] | None:
    """For each axis of `shape` the domain axis that it runs over (None: size 1), such that every axis in `free` is used; None if
    it does not fit.

    >>> match((8, 1), (8, 4), [0])
    (0, None)
    """
    axes = [a for a in free if domain[a] != 1]
    sizes = [n for n in shape if n != 1]
    if sizes != [domain[a] for a in axes]:
        return None
    place = iter(axes)
    return tuple(None if n == 1 else next(place) for n in shape)
