"""How a value changes from lane to lane of a vector loop.

What comes in: expressions and the open vector loop.  What goes out: `step`, the constant difference between neighbouring lanes
(0: uniform; None: no such constant), and intervals that hold the values of integer expressions.  From these follow whether a
load is a vector, a splat or a gather, and whether 64-bit comparisons can be made in 32 bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from thermit.ir import prims as p
from thermit.ir.node import Node
from thermit.ir.types import BOOL, INT64
from thermit.records import dataclass

Interval = tuple[int, int]
EVERYTHING: Interval = (INT64.min, INT64.max)


@dataclass(frozen=True, slots=True)
class Range:
    """What a vector loop runs over: [start, whole) in full steps, [whole, stop) masked; `overlap`: instead [start, stop) in full
    steps, the last one moved back to `last`.  `is_constant`: the bounds are numbers.  `aligned`: an offset
    that is a multiple of the width at `start`; [0, start) is done before in one masked step.  `edge`: where a full step ends at `stop`;
    it and one at 0 then do both ends, and only their stores are masked (elements may be done twice): a third less to compile."""

    start: str
    whole: str
    stop: str
    has_main: bool
    has_tail: bool
    is_constant: bool
    last: str | None = None
    aligned: Node | None = None
    edge: str | None = None


@dataclass(slots=True)
class Lanes:
    """The open vector loop: its index, the register with the index of lane 0 (a multiple of `multiple`), known from scope `depth`
    on, and the mask of the lanes that are inside (None: all)."""

    index: Node
    width: int
    base: str
    depth: int
    mask: str | None
    multiple: int


class LaneSteps:
    """The analysis; one for each function, `enter`ed for each vector loop."""

    def __init__(self) -> None:
        self.lanes: Lanes | None = None
        self.extents: dict[Node, int] = {}  # of indices, where they are known
        self.multiples: dict[Node, int] = {}  # numbers that divide indices of loops around
        self._steps: dict[Node, int | None] = {}
        self._varying: set[Node] = set()  # accumulators with one value per lane

    def enter(self, lanes: Lanes | None) -> None:
        self.lanes, self._steps, self._varying = lanes, {}, set()

    def set_varying(self, local: Node) -> None:
        self._varying.add(local)
        self._steps.clear()

    def step(self, root: Node) -> int | None:
        if self.lanes is None:
            return 0
        steps = self._steps
        if root in steps:
            return steps[root]
        stack = [root]
        while stack:
            node = stack[-1]
            missing = [a for a in node.args if a not in steps]
            if missing:
                stack += missing
                continue
            stack.pop()
            if node not in steps:
                steps[node] = self._step(node, [steps[a] for a in node.args], self.lanes)
        return steps[root]

    def _step(self, node: Node, steps: list[int | None], lanes: Lanes) -> int | None:
        prim = node.prim
        if prim is p.INDEX:
            return 1 if node is lanes.index else 0
        if prim is p.LOCAL:
            return None if node in self._varying else 0
        if all(s == 0 for s in steps):
            return 0
        if node.dtype is not INT64 or prim is p.LOAD:
            return None
        if prim in (p.DIV, p.REM):
            return (0 if prim is p.DIV else 1) if self._in_one_block(node, steps[0], lanes) else None
        known = [s for s in steps if s is not None]
        if len(known) < len(steps):
            return None
        match prim.name:
            case "add":
                return known[0] + known[1]
            case "sub":
                return known[0] - known[1]
            case "neg":
                return -known[0]
            case "mul":
                for x, y in ((0, 1), (1, 0)):
                    if node.args[x].prim is p.CONST:
                        return known[y] * int(node.args[x].attrs.value)
        return None

    def _in_one_block(self, node: Node, step: int | None, lanes: Lanes) -> bool:
        """Whether the lanes of x / c (x % c) all have the quotient of lane 0: they count up from a multiple of the width, which divides c."""
        x, divisor = node.args
        if step != 1 or divisor.prim is not p.CONST:
            return False
        return divisor.attrs.value > 0 and divisor.attrs.value % lanes.width == 0 and self.multiple(x) % lanes.width == 0 and self.interval(x)[0] >= 0

    def multiple(self, node: Node) -> int:
        """A number that divides the value of lane 0 (a large one for 0)."""
        if self.lanes is not None and node is self.lanes.index:
            return self.lanes.multiple
        if node in self.multiples:
            return self.multiples[node]
        if node.prim is p.CONST:
            return abs(node.attrs.value) or 1 << 40
        if node.prim in (p.ADD, p.SUB):
            return math.gcd(self.multiple(node.args[0]), self.multiple(node.args[1]))
        if node.prim is p.MUL:
            both = self.multiple(node.args[0]) * self.multiple(node.args[1])
            return both if both <= 1 << 40 else math.gcd(both, 1 << 40)
        return 1

    def interval(self, node: Node) -> Interval:
        """Bounds of an int64 expression."""
        prim = node.prim
        if prim is p.CONST:
            return (node.attrs.value, node.attrs.value)
        if prim is p.INDEX:
            return (0, max(self.extents.get(node, INT64.max) - 1, 0))
        if prim not in (p.ADD, p.SUB, p.MUL, p.NEG, p.DIV, p.REM, p.MIN, p.MAX):
            return EVERYTHING
        low, high = _combined(prim.name, [self.interval(a) for a in node.args])
        return (low, high) if low >= INT64.min and high <= INT64.max else EVERYTHING  # it may have wrapped

    def fits_32_bits(self, node: Node) -> bool:
        low, high = self.interval(node)
        return low >= -(1 << 31) and high < 1 << 31


def _combined(name: str, args: list[Interval]) -> Interval:
    a = args[0]
    if name == "neg":
        return (-a[1], -a[0])
    b = args[1]
    match name:
        case "add":
            return (a[0] + b[0], a[1] + b[1])
        case "sub":
            return (a[0] - b[1], a[1] - b[0])
        case "mul":
            corners = [x * y for x in a for y in b]
            return (min(corners), max(corners))
        case "min":
            return (min(a[0], b[0]), min(a[1], b[1]))
        case "max":
            return (max(a[0], b[0]), max(a[1], b[1]))
    if a[0] < 0 or b[0] <= 0:  # a quotient or remainder whose signs are not known
        return EVERYTHING
    return (a[0] // b[1], a[1] // b[0]) if name == "div" else (0, min(a[1], b[1] - 1))


def contains(roots: Iterable[Node], *prims: p.Prim) -> bool:
    """Whether one of the expressions contains one of the primitives on int64."""
    seen: set[Node] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.prim in prims and node.dtype in (INT64, BOOL):
            return True
        stack += node.args
    return False
