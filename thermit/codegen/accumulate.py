"""Accumulators of loops -> LLVM instructions: their start, one iteration, the combination across lanes.

What comes in: an Acc of loops/nest.py.  A `Running` holds the names of its state while the loop is written: one register, or two
for argmax and argmin (the best value and where it stood).  Where the position is the loop's own index, which only grows, it is
kept in 32 bits, lane 0's for all lanes, and an equal value never replaces the one before: a third of the work.  The extreme of floats
in a vector loop passes over nan, which flags beside it remember: half of the work of asking in each step whether the state is one.
Long sums of floats are cascades (cascade.py): some terms in a register, the registers of blocks in a total, which errs by nothing that counts:
float32 in float64, float64 in two numbers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import field

from thermit.codegen.expressions import ExpressionWriter
from thermit.codegen.literals import constant, register_type, scalar_type, type_suffix, vector
from thermit.codegen.spelling import apply, greatest_value, identity, least_value
from thermit.codegen.writer import Value
from thermit.errors import CompileError
from thermit.ir import prims as p
from thermit.ir.node import Node, toposort
from thermit.ir.types import BOOL, FLOAT32, FLOAT64, INT32, INT64, DType
from thermit.loops.nest import Acc, For, exprs_of
from thermit.records import dataclass

LEAST_FLAGS = 4  # lanes of nan flags in a register of their own
_ADDERS = (p.ADD, p.SUB, p.CAST, p.FLOOR, p.CEIL, p.TRUNC, p.ROUND)  # what is not done where products are, on processors that add elsewhere


@dataclass(slots=True)
class Running:
    """An accumulator inside its loop: the registers of its state, their types.  `counts`: its position is the loop's index.
    `flags`: the lanes of the second register, which are not zero where a nan was; 0: there is none.  `by_fma`: it adds by
    multiply-add, where the processor adds and multiplies in different places and additions are what it waits for.
    `total`: where the sum of earlier blocks is kept, if it is a cascade."""

    acc: Acc
    lanes: int
    values: list[str]
    types: list[str]
    counts: bool = False
    flags: int = 0
    by_fma: bool = False
    total: list[str] = field(default_factory=list)


def is_argument(acc: Acc) -> bool:
    """Whether it keeps a position."""
    return acc.combine is p.ARGMAX or acc.combine is p.ARGMIN


def is_idempotent(acc: Acc) -> bool:
    """Whether an element may be taken twice."""
    return is_argument(acc) or (acc.combine is not None and "idempotent" in acc.combine.algebra)


def kinds(acc: Acc) -> list[DType]:
    return [acc.value.dtype, INT64] if is_argument(acc) else [acc.local.dtype]


def counts(acc: Acc, loop: For) -> bool:
    """Whether the position is the loop's index, in 32 bits."""
    return acc.position is loop.index and isinstance(loop.extent, int) and loop.extent < 1 << 31


def neutral(acc: Acc, lanes: int, loop: For, first: int = 0) -> Running:
    """The state to which nothing was added yet; `first` is the index of the first iteration."""
    types = [register_type(k, lanes) for k in kinds(acc)]
    if acc.combine is None:
        raise CompileError("a scan cannot be a vector loop")
    if not is_argument(acc):
        start = constant(identity(acc.combine, acc.local.dtype), acc.local.dtype, lanes)
        if acc.combine in (p.MAX, p.MIN) and acc.local.dtype in (FLOAT32, FLOAT64):
            flags = _flag_lanes(lanes)
            return Running(acc, lanes, [start, "zeroinitializer"], [*types, vector(f"i{acc.local.dtype.bits}", flags)], flags=flags)
        return Running(acc, lanes, [start], types, by_fma=acc in sums_by_fma(loop))
    worst = constant(least_value(acc.value.dtype) if acc.combine is p.ARGMAX else greatest_value(acc.value.dtype), acc.value.dtype, lanes)
    if counts(acc, loop):  # nothing better than the worst: the first
        return Running(acc, lanes, [worst, constant(first, INT32, lanes)], [types[0], register_type(INT32, lanes)], True)
    # a position greater than any: the first element wins the tie against the start
    return Running(acc, lanes, [worst, constant(INT64.max, INT64, lanes)], types)


def initial(w: ExpressionWriter, acc: Acc, lanes: int, loop: For) -> Running:
    """The state in front of a serial loop."""
    if is_argument(acc):
        return neutral(acc, lanes, loop)
    start = (w.spread(acc.init) if lanes else w.value(acc.init)).text
    if acc.wide:
        w.here()
        return _total_from(w, acc, start, lanes)
    return Running(acc, lanes, [start], [register_type(acc.local.dtype, lanes)])


# ---------------------------------------------------------------------------------------------- long sums
def is_sum(acc: Acc) -> bool:
    """Whether it adds up floats."""
    return acc.combine is p.ADD and acc.local.dtype in (FLOAT32, FLOAT64)


def is_long_sum(acc: Acc, shows_float64: bool) -> bool:
    """Whether many terms would make it inaccurate: not where float64 is rounded to less in the end."""
    return is_sum(acc) and (shows_float64 or acc.local.dtype is not FLOAT64)


def _total_from(w: ExpressionWriter, acc: Acc, start: str, lanes: int) -> Running:
    """A total that is what a register holds: the sum in float64, and beside a float64 sum what its additions have lost."""
    of = register_type(FLOAT64, lanes)
    if acc.local.dtype is FLOAT32:
        return Running(acc, lanes, [_widened(w, start, lanes)], [of])
    return Running(acc, lanes, [start, constant(0.0, FLOAT64, lanes)], [of, of])


def _widened(w: ExpressionWriter, value: str, lanes: int) -> str:
    return w.op(f"fpext {register_type(FLOAT32, lanes)} {value} to {register_type(FLOAT64, lanes)}")


def _added_to_total(w: ExpressionWriter, total: Sequence[str], new: str, acc: Acc, lanes: int) -> list[str]:
    """The total with a register more."""
    if acc.local.dtype is FLOAT32:
        return [apply(w, p.ADD, FLOAT64, [total[0], _widened(w, new, lanes)], lanes)]

    def op(name: str, x: str, y: str) -> str:
        return w.op(f"{name} {register_type(FLOAT64, lanes)} {x}, {y}")

    old, lost = total
    result = op("fadd", old, new)
    part = op("fsub", result, old)
    rest = op("fadd", op("fsub", old, op("fsub", result, part)), op("fsub", new, part))
    return [result, op("fadd", lost, rest)]


def _total_of(w: ExpressionWriter, total: Sequence[str], lanes: int) -> str:
    """The sum in float64.  Where it is not finite, what was lost is nan."""
    if len(total) == 1:
        return total[0]
    of, (result, lost) = register_type(FLOAT64, lanes), total
    whole = w.op(f"fadd {of} {result}, {lost}")
    is_nan = w.op(f"fcmp uno {of} {lost}, {lost}")
    flags = vector("i1", lanes) if lanes else "i1"
    return w.op(f"select {flags} {is_nan}, {of} {result}, {of} {whole}")


def begin_total(w: ExpressionWriter, copies: Sequence[Running]) -> None:
    """The copies of a sum become a cascade: what they hold is its total, on the stack: registers are for what the loop does in each step."""
    first = copies[0]
    start = _total_from(w, first.acc, first.values[0], first.lanes)
    first.total = [w.slot(t) for t in start.types]
    _store_total(w, first, start.values)
    begin_block(copies)


def begin_block(copies: Sequence[Running]) -> None:
    for r in copies:
        r.values = [constant(identity(p.ADD, r.acc.local.dtype), r.acc.local.dtype, r.lanes)]


def end_block(w: ExpressionWriter, copies: Sequence[Running]) -> None:
    """The total takes in what the copies have added up."""
    first = copies[0]
    (block,) = _joined([r.values for r in copies], lambda x, y: combined(w, first.acc, x, y, first.lanes))
    _store_total(w, first, _added_to_total(w, _load_total(w, first), block, first.acc, first.lanes))
    begin_block(copies)


def _load_total(w: ExpressionWriter, r: Running) -> list[str]:
    return [w.op(f"load {register_type(FLOAT64, r.lanes)}, ptr {slot}, align 8") for slot in r.total]


def _store_total(w: ExpressionWriter, r: Running, values: Sequence[str]) -> None:
    for value, slot in zip(values, r.total, strict=True):
        w.append(f"  store {register_type(FLOAT64, r.lanes)} {value}, ptr {slot}, align 8")


def _joined(states: Sequence[list[str]], merged: Callable[[list[str], list[str]], list[str]]) -> list[str]:
    """Pairs, pairs of pairs, ... down to one."""
    while len(states) > 1:
        pairs = [states[k : k + 2] for k in range(0, len(states), 2)]
        states = [merged(pair[0], pair[1]) if len(pair) == 2 else pair[0] for pair in pairs]
    return states[0]


def _sum_across(w: ExpressionWriter, init: str, parts: Sequence[Running], width: int) -> str:
    """A sum over lanes, of a total in float64.  Neighbours first, at last: what stands side by side in memory often has different signs,
    and no sum on the way is larger than it must be."""
    acc, dtype = parts[0].acc, parts[0].acc.local.dtype
    (value,) = _joined([r.values for r in parts], lambda x, y: combined(w, acc, x, y, width))
    if parts[0].total:
        value, dtype = _total_of(w, _added_to_total(w, _load_total(w, parts[0]), value, acc, width), width), FLOAT64
    while width > 1 and width * dtype.bits > w.target.vector_bits:
        width //= 2
        value = apply(w, p.ADD, dtype, [_part(w, value, scalar_type(dtype), width, first) for first in (0, width)], width)
    apart, of = 1, vector(scalar_type(dtype), width)
    while apart < width:
        order = ", ".join(f"i32 {k ^ apart}" for k in range(width))
        other = w.op(f"shufflevector {of} {value}, {of} poison, <{width} x i32> <{order}>")
        value = apply(w, p.ADD, dtype, [value, other], width)
        apart *= 2
    value = w.op(f"extractelement {of} {value}, i32 0")
    if dtype is acc.local.dtype:
        return apply(w, p.ADD, dtype, [init, value], 0)
    return w.op(f"fptrunc double {apply(w, p.ADD, dtype, [_widened(w, init, 0), value], 0)} to float")


# ---------------------------------------------------------------------------------------------- one iteration


def advanced(w: ExpressionWriter, r: Running, at: str, mask: str | None = None) -> list[str]:
    """The state after one iteration (in the lanes of the mask), written in the innermost scope; `at` is the loop's index (of lane 0)."""
    if r.flags:
        return _advanced_with_flags(w, r, mask)
    if r.lanes and _counts_flags(r.acc):
        state = [_counted(w, r)]
        return state if mask is None else _where_inside(w, r, mask, state)
    root, inside = (None, None) if r.acc.wide or not w.target.has_fma else _squared(r.acc)
    roots = [r.acc.value if root is None else root] if r.acc.position is None or r.counts else [r.acc.value, r.acc.position]
    flag = (w.spread(inside) if r.lanes else w.value(inside)).text if inside is not None else None
    new = [(w.spread(n) if r.lanes else w.value(n)).text for n in roots]
    w.here()
    if r.acc.wide:
        state = _added_to_total(w, r.values, new[0], r.acc, r.lanes)
    elif root is not None:
        if flag is not None:
            new[0] = w.op(f"select {vector('i1', r.lanes)} {flag}, {r.types[0]} {new[0]}, {r.types[0]} {constant(0, root.dtype, r.lanes)}")
        state = [apply(w, p.FMA, root.dtype, [new[0], new[0], r.values[0]], r.lanes)]
    elif r.counts:
        place = w.op(f"trunc i64 {at} to i32")
        state = _better_later(w, r.acc, r.values, [new[0], w.splat(place, "i32", r.lanes) if r.lanes else place], r.lanes)
    elif r.by_fma and w.target.adds_apart:
        state = [apply(w, p.FMA, r.acc.local.dtype, [new[0], _one(w, r.acc.local.dtype, r.lanes), r.values[0]], r.lanes)]
    else:
        state = combined(w, r.acc, r.values, new, r.lanes)
    return state if mask is None else _where_inside(w, r, mask, state)


def _where_inside(w: ExpressionWriter, r: Running, mask: str, state: list[str]) -> list[str]:
    """The new state in the lanes of the mask, the old in the others."""
    flags = vector("i1", r.lanes)
    return [w.op(f"select {flags} {mask}, {t} {n}, {t} {v}") for n, v, t in zip(state, r.values, r.types, strict=True)]


def _squared(acc: Acc) -> tuple[Node | None, Node | None]:
    """x where x * x is added up, and the flag where that is 0 unless a flag is set: then with one rounding.  The sum of squares is never less
    than the square, so that one overflows where the other does; of other products that is not true, and a user's arithmetic is never contracted."""
    value, flag = acc.value, None
    if acc.combine is not p.ADD or value.dtype not in (FLOAT32, FLOAT64) or not _is_zero(acc.init):
        return None, None
    if value.prim is p.WHERE and _is_zero(value.args[2]) and math.copysign(1, value.args[2].attrs.value) > 0:  # as 0 * 0 is
        flag, value = value.args[:2]
    is_square = value.prim is p.MUL and value.args[0] is value.args[1]
    return (value.args[0], flag) if is_square else (None, None)


def _is_zero(node: Node) -> bool:
    return node.prim is p.CONST and bool(node.attrs.value == 0)


def _counts_flags(acc: Acc) -> bool:
    """Whether it adds up flags as integers."""
    value = acc.value
    return acc.combine is p.ADD and acc.local.dtype.is_integer and value.prim is p.CAST and value.args[0].dtype is BOOL


def _counted(w: ExpressionWriter, r: Running) -> str:
    """A flag as a mask is -1, which is subtracted."""
    flag = w.spread(r.acc.value.args[0]).text
    w.here()
    mask = w.op(f"sext {vector('i1', r.lanes)} {flag} to {r.types[0]}")
    return w.op(f"sub {r.types[0]} {r.values[0]}, {mask}")


def _advanced_with_flags(w: ExpressionWriter, r: Running, mask: str | None) -> list[str]:
    """The extreme of what is not nan, and flags.  compare and select in this order is one maxps / minps, which keeps the old if the new is nan."""
    new = w.spread(r.acc.value).text
    w.here()
    dtype, of = r.acc.local.dtype, r.types[0]
    if mask is not None:
        neutral_text = constant(identity(r.acc.combine or p.MAX, dtype), dtype, r.lanes)
        new = w.op(f"select {vector('i1', r.lanes)} {mask}, {of} {new}, {of} {neutral_text}")
    best = _extreme(w, r.acc, new, r.values[0], r.lanes)
    low, high = new, new
    if r.flags < r.lanes:
        low, high = (_part(w, new, scalar_type(dtype), r.flags, first) for first in (0, r.flags))
    unordered = w.op(f"fcmp uno {vector(scalar_type(dtype), r.flags)} {low}, {high}")
    found = w.op(f"sext {vector('i1', r.flags)} {unordered} to {r.types[1]}")
    return [best, w.op(f"or {r.types[1]} {r.values[1]}, {found}")]


def _extreme(w: ExpressionWriter, acc: Acc, new: str, old: str, lanes: int) -> str:
    """The better of two, the old where one is nan: one instruction on x86."""
    of = register_type(acc.local.dtype, lanes)
    better = w.op(f"fcmp {'ogt' if acc.combine is p.MAX else 'olt'} {of} {new}, {old}")
    return w.op(f"select {vector('i1', lanes)} {better}, {of} {new}, {of} {old}")


@functools.lru_cache(maxsize=64)
def sums_by_fma(loop: For) -> tuple[Acc, ...]:
    """The sums of a vector loop that had better be multiply-adds: until they are as many as the additions, subtractions and conversions."""
    sums = [a for a in loop.accs if a.combine is p.ADD and not a.wide and a.local.dtype in (FLOAT32, FLOAT64) and _squared(a)[0] is None]
    excess, varying = sum(a.local.dtype.bits for a in sums), {loop.index}
    for node in toposort(exprs_of(loop.body) + [a.value for a in loop.accs]) if sums else ():
        if varying.isdisjoint(node.args):
            continue
        varying.add(node)
        if node.prim.kind == "map" and (node.dtype.is_float or node.args[0].dtype.is_float):
            bits = max(node.dtype.bits, node.args[0].dtype.bits)
            excess += bits if node.prim in _ADDERS else -bits
    found = []
    for a in sums:
        if excess >= 2 * a.local.dtype.bits:
            found.append(a)
            excess -= 2 * a.local.dtype.bits
    return tuple(found)


def _one(w: ExpressionWriter, dtype: DType, lanes: int) -> str:
    """1.0 in a register, from memory: LLVM would make an addition of a multiply-add with a constant one."""
    key = ("one", dtype, lanes)
    found = w.values.get(key)
    if found is None:
        of, name = scalar_type(dtype), f"one.{type_suffix(dtype)}"
        where = w.helper(name, lambda: f"@{name} = private unnamed_addr global {of} {constant(1.0, dtype, 0)}\n")
        w.go(0)
        found = w.bind(key, Value(w.splat(w.op(f"load {of}, ptr {where}"), of, lanes), lanes, 0))
        w.here()
    return found.text


def finished(w: ExpressionWriter, r: Running, in_lanes: bool) -> list[str]:
    """The state with positions in 64 bits, for each lane its own if the loop was a vector loop.  Written where `at` points."""
    if r.acc.wide:
        total = _total_of(w, r.values, r.lanes)
        return [w.op(f"fptrunc {r.types[0]} {total} to {register_type(FLOAT32, r.lanes)}") if r.acc.local.dtype is FLOAT32 else total]
    if not r.counts:
        return r.values
    place = r.values[1]
    if in_lanes:
        ramp = ", ".join(f"i32 {k}" for k in range(r.lanes))
        place = w.op(f"add {r.types[1]} {place}, <{ramp}>")
    return [r.values[0], w.op(f"sext {r.types[1]} {place} to {register_type(INT64, r.lanes)}")]


def combined(w: ExpressionWriter, acc: Acc, old: list[str], new: list[str], lanes: int) -> list[str]:
    if acc.combine is None:
        return new
    if not is_argument(acc):
        return [apply(w, acc.combine, acc.local.dtype, [old[0], new[0]], lanes)]
    return _better(w, acc, old, new, lanes)


def _better(w: ExpressionWriter, acc: Acc, old: list[str], new: list[str], lanes: int) -> list[str]:
    """The better of two values with its position: nan is best, of equals the earlier."""
    dtype = acc.value.dtype
    kind, flags, place = register_type(dtype, lanes), vector("i1", lanes), vector("i64", lanes)
    better = apply(w, p.GT if acc.combine is p.ARGMAX else p.LT, dtype, [new[0], old[0]], lanes)
    equal = apply(w, p.EQ, dtype, [new[0], old[0]], lanes)
    if dtype.is_float:
        new_nan, old_nan = (w.op(f"fcmp uno {kind} {v[0]}, {v[0]}") for v in (new, old))
        only_new = w.op(f"and {flags} {new_nan}, {w.op(f'xor {flags} {old_nan}, {constant(True, BOOL, lanes)}')}")
        better = w.op(f"or {flags} {better}, {only_new}")
        equal = w.op(f"or {flags} {equal}, {w.op(f'and {flags} {new_nan}, {old_nan}')}")
    earlier = w.op(f"icmp slt {place} {new[1]}, {old[1]}")
    better = w.op(f"or {flags} {better}, {w.op(f'and {flags} {equal}, {earlier}')}")
    best = w.op(f"select {flags} {better}, {kind} {new[0]}, {kind} {old[0]}")
    return [best, w.op(f"select {flags} {better}, {place} {new[1]}, {place} {old[1]}")]


def _better_later(w: ExpressionWriter, acc: Acc, old: list[str], new: list[str], lanes: int) -> list[str]:
    """The same where `new` comes later, so that an equal value does not count."""
    dtype = acc.value.dtype
    kind, flags = register_type(dtype, lanes), vector("i1", lanes)
    if dtype.is_float:  # "greater or a nan", unless the old is a nan
        better = w.op(f"fcmp {'ugt' if acc.combine is p.ARGMAX else 'ult'} {kind} {new[0]}, {old[0]}")
        better = w.op(f"and {flags} {better}, {w.op(f'fcmp ord {kind} {old[0]}, {old[0]}')}")
    else:
        better = apply(w, p.GT if acc.combine is p.ARGMAX else p.LT, dtype, [new[0], old[0]], lanes)
    place = register_type(INT32, lanes)
    best = w.op(f"select {flags} {better}, {kind} {new[0]}, {kind} {old[0]}")
    return [best, w.op(f"select {flags} {better}, {place} {new[1]}, {place} {old[1]}")]


def across(w: ExpressionWriter, parts: Sequence[Running], init: str | None, width: int) -> str:
    """The lanes of all copies combined to one scalar, in halves, then with the initial value.  Written where `at` points."""
    acc = parts[0].acc
    if is_sum(acc) and init is not None:
        return _sum_across(w, init, parts, width)
    states = [finished(w, r, True) for r in parts]
    has_flags = len(states[0]) > len(kinds(acc))
    found_nan = _found_nan(w, acc, states, width) if has_flags else None
    states = [state[:1] for state in states] if has_flags else states

    def merged(x: list[str], y: list[str], lanes: int) -> list[str]:
        return [_extreme(w, acc, y[0], x[0], lanes)] if has_flags else combined(w, acc, x, y, lanes)

    state, types = _joined(states, lambda x, y: merged(x, y, width)), [scalar_type(k) for k in kinds(acc)]
    while width > 1:
        width //= 2
        if width == 1:
            low, high = ([w.op(f"extractelement {vector(t, 2)} {v}, i32 {k}") for v, t in zip(state, types, strict=True)] for k in (0, 1))
        else:
            low, high = ([_part(w, v, t, width, first) for v, t in zip(state, types, strict=True)] for first in (0, width))
        state = merged(low, high, width if width > 1 else 0)
    if init is None:
        return state[-1]
    assert acc.combine is not None
    result = apply(w, acc.combine, acc.local.dtype, [init, state[0]], 0)
    if found_nan is None:
        return result
    of = scalar_type(acc.local.dtype)
    return w.op(f"select i1 {found_nan}, {of} {constant(float('nan'), acc.local.dtype, 0)}, {of} {result}")


def _found_nan(w: ExpressionWriter, acc: Acc, states: list[list[str]], width: int) -> str:
    """Whether a flag is set; the states are then those of what is not nan."""
    lanes = _flag_lanes(width)
    of, flags = vector(f"i{acc.local.dtype.bits}", lanes), states[0][1]
    for state in states[1:]:
        flags = w.op(f"or {of} {flags}, {state[1]}")
    some = w.op(f"icmp slt {of} {flags}, zeroinitializer")
    return w.op(f"call i1 @llvm.vector.reduce.or.v{lanes}i1({vector('i1', lanes)} {some})")


def _flag_lanes(width: int) -> int:
    """One comparison asks for two lanes, where they are many."""
    return width // 2 if width >= 2 * LEAST_FLAGS else width


def _part(w: ExpressionWriter, value: str, type_text: str, width: int, first: int) -> str:
    """`width` lanes of twice as many, from `first` on."""
    of = vector(type_text, 2 * width)
    order = ", ".join(f"i32 {first + k}" for k in range(width))
    return w.op(f"shufflevector {of} {value}, {of} poison, <{width} x i32> <{order}>")


def find_varying(w: ExpressionWriter, loop: For) -> set[Node]:
    """The accumulators of a serial loop, and of the loops inside it, that have one value per lane of the vector loop around it."""
    found: set[Node] = set()
    accs = accs_of(loop)
    changed = w.lanes is not None
    while changed:
        changed = False
        for a in accs:
            roots = [a.value, a.init if a.position is None else a.position]
            if a.local not in found and any(w.steps.step(n) != 0 for n in roots):
                found.add(a.local)
                w.steps.set_varying(a.local)
                changed = True
    return found


def accs_of(loop: For) -> list[Acc]:
    """Innermost first."""
    return [a for s in loop.body if isinstance(s, For) for a in accs_of(s)] + list(loop.accs)
