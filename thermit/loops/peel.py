"""Boundaries taken out of vector loops, so that the middle needs no masks.

What comes in: a vector loop whose loads and selects ask where its index is (the border of a padded image, the parts of a
concatenation).  What goes out: the loop in pieces, in each of which the questions have a known answer.

    for j < 100 (vector): o[j] = where(j >= 1 & j < 99, x[j - 1] if ..., 0)
    ->  for j < 1: o[j] = where(...)     for j < 98 (vector): o[j + 1] = x[j]      for j < 1: o[j + 99] = where(...)

Questions about outer indices are answered by the value that is usual: the pieces run where it holds (else zero times), and the
loop as it was runs where it does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from thermit.ir import build
from thermit.ir import prims as p
from thermit.ir.node import Node, toposort
from thermit.ir.types import BOOL, INT64, TensorType
from thermit.loops.index import Indices, number
from thermit.loops.nest import For, Stmt, exprs_of
from thermit.loops.rewrite import substitute
from thermit.records import dataclass

PIECES = 5  # more would be more code than it saves
TRUE, FALSE = build.const(True, BOOL), build.const(False, BOOL)


@dataclass(frozen=True, slots=True)
class Question:
    """coefficient * (the loop's index) + outer + inner >= 0, with inner in [low, high], the loop variables of the body."""

    node: Node
    is_lt: bool  # the question is asked the other way round: not of this
    coefficient: int
    outer: tuple[tuple[int, Node], ...]
    low: int
    high: int

    def always(self, first: int, last: int) -> bool | None:
        """The answer for all indices in [first, last] of a question without outer indices."""
        ends = (self.coefficient * first, self.coefficient * last)
        if min(ends) + self.low >= 0:
            return not self.is_lt
        return self.is_lt if max(ends) + self.high < 0 else None

    def turning_points(self) -> list[int]:
        """The first index from which on the answer is another, for the least and the greatest of the rest."""
        k = self.coefficient
        if k > 0:
            return [-(self.low // k), -(self.high // k)]
        return [self.low // -k + 1, self.high // -k + 1]


def questions(loop: For, outer: Mapping[Node, int], indices: Indices) -> list[Question]:
    """The comparisons with constants in the body that depend on loop variables only."""
    inner = _inner_extents(loop.body)
    found = []
    for node in toposort(exprs_of(loop.body)):
        if node.prim not in (p.GE, p.LT) or node.args[0].dtype is not INT64 or node.args[1].prim is not p.CONST:
            continue
        const, terms = indices.form(node.args[0])
        rest = {a: k for a, k in terms.items() if a is not loop.index and a not in outer}
        if any(a not in inner for a in rest):
            continue
        low = high = const - int(node.args[1].attrs.value)
        for a, k in rest.items():
            low, high = low + min(0, k * (inner[a] - 1)), high + max(0, k * (inner[a] - 1))
        found.append(Question(node, node.prim is p.LT, terms.get(loop.index, 0), tuple((k, a) for a, k in terms.items() if a in outer), low, high))
    return found


def _inner_extents(body: tuple[Stmt, ...]) -> dict[Node, int]:
    out: dict[Node, int] = {}
    for s in body:
        if isinstance(s, For):
            if isinstance(s.extent, int):
                out[s.index] = s.extent
            out |= _inner_extents(s.body)
    return out


def peel(loop: For, outer: Mapping[Node, int], indices: Indices) -> tuple[Stmt, ...]:
    """The loop, or its pieces.  `outer`: the extents of the indices around it."""
    if loop.accs or not isinstance(loop.extent, int) or loop.extent < 2 * loop.width:
        return (loop,)
    asked = questions(loop, outer, indices)
    own = [q for q in asked if q.coefficient and not q.outer]
    usual, holds = _usual([q for q in asked if not q.coefficient and q.outer], outer)
    points = _aligned(sorted({t for q in own for t in q.turning_points() if 0 < t < loop.extent}), loop)
    if not (own or usual) or len(points) + 1 > PIECES:
        return (loop,)
    pieces: list[Stmt] = []
    for first, stop in zip([0, *points], [*points, loop.extent], strict=True):
        answers = dict(usual)
        for q in own:
            known = q.always(first, stop - 1)
            if known is not None:
                answers[q.node] = TRUE if known else FALSE
        pieces.append(_piece(loop, first, stop - first, answers))
    if holds is None:
        return tuple(pieces)
    name = loop.index.attrs.name
    return (  # loops that run once or not at all: an "if"
        For(build.index(name + "usual"), _choose(holds, 1, 0), tuple(pieces)),
        For(build.index(name + "else"), _choose(holds, 0, 1), (loop,)),
    )


def _aligned(points: list[int], loop: For) -> list[int]:
    """The first of the points moved up to a whole step, so that what follows a narrow border is aligned."""
    if points and points[0] < loop.width and (len(points) == 1 or points[1] >= 4 * loop.width):
        return [loop.width, *points[1:]]
    return points


def _choose(condition: Node, yes: int, no: int) -> Node:
    return Node(p.WHERE, (condition, number(yes), number(no)), None, TensorType((), INT64))


def _piece(loop: For, first: int, count: int, answers: dict[Node, Node]) -> For:
    index = build.index(f"{loop.index.attrs.name}p{first}") if first else loop.index
    body = substitute(loop.body, {**answers, **({loop.index: build.add(index, first)} if first else {})})
    if count * 2 < loop.width:
        return replace(loop, index=index, extent=count, body=body, mode="serial", width=1)
    return replace(loop, index=index, extent=count, body=body)


def _usual(asked: list[Question], outer: Mapping[Node, int]) -> tuple[dict[Node, Node], Node | None]:
    """For questions about one outer index each the answer that most of its values give, and the condition that all of it holds."""
    answers: dict[Node, Node] = {}
    holds: Node | None = None
    share = 1.0
    for q in asked:
        if len(q.outer) != 1:
            continue
        (k, index), n = q.outer[0], outer[q.outer[0][1]]
        yes = sum(k * i + q.low >= 0 for i in range(n)) if n <= 64 else _count(k, q.low, n)
        no = n - sum(k * i + q.high >= 0 for i in range(n)) if n <= 64 else n - _count(k, q.high, n)
        if 2 * max(yes, no) < n or max(yes, no) == 0:
            continue
        share *= max(yes, no) / n
        reach = q.low if yes >= no else q.high
        sure = Node(p.GE, (build.add(build.mul(index, k), reach), number(0)), None, TensorType((), BOOL))
        if max(yes, no) < n:
            here = sure if yes >= no else Node(p.NOT, (sure,), None, sure.type)
            holds = here if holds is None else Node(p.AND, (holds, here), None, here.type)
        answers[q.node] = TRUE if (yes >= no) != q.is_lt else FALSE
    return (answers, holds) if share >= 0.5 else ({}, None)


def _count(k: int, least: int, n: int) -> int:
    """How many i in [0, n) have k * i + least >= 0."""
    if k > 0:
        return n - min(max(-(least // k), 0), n)
    return min(max(least // -k + 1, 0), n)
