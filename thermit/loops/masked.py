"""Which keys of a row count at all: those that a mask by place lets through.

What comes in: the loops over a row of scores.  What goes out: how far behind its own row a row sees (causal attention: 0), where the loops tell it.

    row0[n] = where(row >= n, scores[n], -inf);  acc1 max= ...;  acc2 += exp(row0[n] - acc1);  weights[n] = row0[n] ...
 -> keys behind `row` count nothing: the maximum stays, the sum stays, their weights are 0

The one idea: the loops are run for one key that is masked.  Its score is minus infinity; if every accumulator then gets what leaves it as it is and
the weight is 0, the key may be skipped.  Maxima count as finite: where they are not, the keys that are seen make the row nan by themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from thermit.ir import prims as p
from thermit.ir.node import Node, toposort
from thermit.ir.types import INT64
from thermit.loops.chain import SCORES, WEIGHTS
from thermit.loops.index import Indices
from thermit.loops.nest import For, Store

Known = float | bool | None  # None: not known
_NEUTRAL: dict[p.Prim, Known] = {p.MAX: -math.inf, p.ADD: 0.0, p.AND: True, p.OR: False}
_COMPARE: dict[p.Prim, Callable[[float, float], bool]] = {p.EQ: lambda x, y: x == y, p.NE: lambda x, y: x != y, p.GT: lambda x, y: x > y,
                                                         p.GE: lambda x, y: x >= y, p.LT: lambda x, y: x < y, p.LE: lambda x, y: x <= y}  # fmt: skip


def seen_keys(loops: Sequence[For], row: Node, keys: int, indices: Indices) -> int | None:
    """`c`, where row i sees no key from i + c + 1 on, c >= 0 so that it sees one; None if it may see all."""
    masks: list[int] = []
    rows: dict[str, Known] = {}
    for loop in loops:
        stores = [s for s in loop.body if isinstance(s, Store)]
        values = _values([s.value for s in stores], rows, row, loop.index, indices, masks)
        rows.update((s.memory, values[s.value]) for s in stores)
        values = _values([a.value for a in loop.accs], rows, row, loop.index, indices, masks)
        if any(a.combine is None or a.combine not in _NEUTRAL or values[a.value] != _NEUTRAL[a.combine] for a in loop.accs):
            return None
    is_nothing = rows.get(WEIGHTS) == 0.0 and rows.get(SCORES) is None and masks
    return max(masks) if is_nothing and 0 <= max(masks) < keys - 1 else None


def _values(roots: Sequence[Node], rows: Mapping[str, Known], row: Node, key: Node, indices: Indices, masks: list[int]) -> dict[Node, Known]:
    """What expressions are at a masked key; what masks it is noted."""
    values: dict[Node, Known] = {}
    for node in toposort(roots):
        reach = _masked(node, row, key, indices)
        if reach is not None:
            masks.append(reach)
            values[node] = -math.inf
        elif node.prim is p.LOAD:
            values[node] = rows.get(node.attrs.name) if node.args[0] is key else None
        else:
            values[node] = _value(node, [values[a] for a in node.args])
    return values


def _masked(node: Node, row: Node, key: Node, indices: Indices) -> int | None:
    """Of a value that is minus infinity at all keys from row + c + 1 on: c."""
    if node.prim is not p.WHERE:
        return None
    condition, x, y = node.args
    if y.prim is p.CONST and y.attrs.value == -math.inf:
        return _reach(condition, row, key, indices, False)
    if x.prim is p.CONST and x.attrs.value == -math.inf:
        return _reach(condition, row, key, indices, True)
    return None


def _reach(condition: Node, row: Node, key: Node, indices: Indices, negated: bool) -> int | None:
    """c, if the condition (negated: its opposite) says key <= row + c, perhaps among other things."""
    if condition.prim is p.NOT:
        return _reach(condition.args[0], row, key, indices, not negated)
    if condition.prim is (p.OR if negated else p.AND):
        found = [c for c in (_reach(a, row, key, indices, negated) for a in condition.args) if c is not None]
        return min(found, default=None)
    if condition.prim not in (p.LT, p.LE, p.GT, p.GE) or condition.args[0].dtype is not INT64:
        return None
    less = (condition.prim in (p.LT, p.LE)) != negated
    strict = (condition.prim in (p.LT, p.GT)) != negated
    small, large = condition.args if less else condition.args[::-1]
    (a, left), (b, right) = indices.form(small), indices.form(large)
    terms = {n: left.get(n, 0) - right.get(n, 0) for n in left.keys() | right.keys()}
    if {n: k for n, k in terms.items() if k} != {key: 1, row: -1}:
        return None
    return b - a - strict


def _value(node: Node, args: list[Known]) -> Known:
    """What is made of a masked score; what is not known is finite."""
    if node.prim is p.CONST:
        return node.attrs.value if isinstance(node.attrs.value, bool) else float(node.attrs.value)
    if not args:
        return None
    x = args[0]
    match node.prim.name:
        case "exp" | "exp2" | "exp_falling":
            return 0.0 if x == -math.inf else None
        case "cast":
            return x if node.dtype.is_float and not isinstance(x, bool) else None
        case "sub" | "add":
            return x if x == -math.inf and args[1] not in (-math.inf, math.inf) else None
        case "mul":
            return 0.0 if 0.0 in (x, args[1]) and not any(isinstance(a, bool) for a in args) else _scaled(*args)
        case "div":
            return 0.0 if x == 0.0 and not isinstance(x, bool) and args[1] != 0 else None
        case "where":
            return args[1] if args[1] == args[2] else None
    if node.prim in _COMPARE and None not in args:
        return _COMPARE[node.prim](*args)  # type: ignore[arg-type]
    return None


def _scaled(x: Known, y: Known) -> Known:
    for a, b in ((x, y), (y, x)):
        if a == -math.inf and b is not None and 0 < b < math.inf:
            return a
    return None
