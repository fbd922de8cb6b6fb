"""Graph to graph: exact rules, bit for bit.

    before    %2 = neg %1        %3 = neg %2        %4 = mul %3 1.0        %5 = cast %4 : float64        %6 = cast %5 : float32
    after     everything is %1

Each rule holds for every value of every type that fits: zeros with their signs, infinities, nan, denormals, wrapping integers
(`tests/tables/test_every_rule.py` tries them all).  What only holds for most numbers (x + 0.0 is x, but not for -0.0) is no rule.
Structure that constructors make canonical by themselves (views of views, casts to the same type) needs no rule either.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

from thermit import rewrite as r
from thermit.ir import build as b
from thermit.ir import interp
from thermit.ir import prims as p
from thermit.ir.node import Graph, Node
from thermit.ir.prims import PRIMS, Prim
from thermit.ir.types import BFLOAT16, BOOL, DTYPES, FLOAT16, FLOAT32, FLOAT64, DType, TensorType
from thermit.passes.zeros import zeros_behind
from thermit.rewrite import Rewriter, Rule, Rules, rule

MANTISSA_BITS = {FLOAT64: 53, FLOAT32: 24, FLOAT16: 11, BFLOAT16: 8}


def simplify(graph: Graph, fired: Counter[str]) -> Graph:
    """The graph after all rules; `fired` counts them by name."""
    moved = zeros_behind(graph)
    fired.update({"zeros behind": 1} if moved is not graph else {})
    return moved.map_roots(Rewriter(RULES, fired))


def when(condition: bool, node: Callable[[], Node]) -> Node | None:
    """The node where the condition holds."""
    return node() if condition else None


def is_signed(x: Node) -> bool:
    return x.dtype.kind in ("int", "float")


# ---------------------------------------------------------------------------------------------- arithmetic
def inverse(c: Node) -> float | None:
    """1 / c where that is exact and neither is denormal: c is a power of two of moderate size."""
    value = c.attrs.value
    if not c.dtype.is_float or c.dtype.is_half or value == 0 or not math.isfinite(value):
        return None
    mantissa, exponent = math.frexp(value)
    return 1 / value if abs(mantissa) == 0.5 and abs(exponent) < (126 if c.dtype is FLOAT32 else 1022) else None


def _times_inverse(x: Node, c: Node) -> Node | None:
    factor = inverse(c)
    return None if factor is None else b.mul(x, factor)


ARITHMETIC = Rules([
    rule("neg neg", lambda x: r.neg(r.neg(x)), lambda x: x),
    rule("abs abs", lambda x: r.abs_(r.abs_(x)), lambda x: b.abs_(x)),
    rule("abs neg", lambda x: r.abs_(r.neg(x)), lambda x: when(is_signed(x), lambda: b.abs_(x))),
    rule("abs of unsigned", lambda x: r.abs_(x), lambda x: when(x.dtype.kind == "uint", lambda: x)),
    rule("abs copysign", lambda x, y: r.abs_(r.copysign(x, y)), lambda x, y: b.abs_(x)),
    rule("copysign neg", lambda x, y: r.copysign(r.neg(x), y), lambda x, y: b.copysign(x, y)),
    rule("copysign abs", lambda x, y: r.copysign(r.abs_(x), y), lambda x, y: b.copysign(x, y)),
    rule("add zero", lambda x: r.add(x, -0.0), lambda x: x),
    rule("sub zero", lambda x: r.sub(x, 0.0), lambda x: x),
    rule("zero sub", lambda x: r.sub(-0.0, x), lambda x: b.neg(x)),
    rule("mul one", lambda x: r.mul(x, 1), lambda x: x),
    rule("div one", lambda x: r.div(x, 1), lambda x: x),
    rule("mul minus one", lambda x: r.mul(x, -1), lambda x: when(is_signed(x), lambda: b.neg(x))),
    rule("mul zero", lambda x: r.mul(x, 0), lambda x: when(x.dtype.is_integer, lambda: b.like(0, x))),
    rule("div minus one", lambda x: r.div(x, -1.0), lambda x: when(x.dtype.is_float, lambda: b.neg(x))),
    rule("div power of two", lambda x, c: r.div(x, c), _times_inverse),
    rule("add neg", lambda x, y: r.add(x, r.neg(y)), lambda x, y: b.sub(x, y)),
    rule("sub neg", lambda x, y: r.sub(x, r.neg(y)), lambda x, y: b.add(x, y)),
    rule("mul neg neg", lambda x, y: r.mul(r.neg(x), r.neg(y)), lambda x, y: b.mul(x, y)),
    rule("div neg neg", lambda x, y: r.div(r.neg(x), r.neg(y)), lambda x, y: when(x.dtype.is_float, lambda: b.div(x, y))),
    rule("sub itself", lambda x: r.sub(x, x), lambda x: when(x.dtype.is_integer, lambda: b.like(0, x))),
    rule("min itself", lambda x: r.minimum(x, x), lambda x: x),
    rule("max itself", lambda x: r.maximum(x, x), lambda x: x),
    rule("floor floor", lambda x: r.floor(r.floor(x)), lambda x: b.floor(x)),
    rule("ceil ceil", lambda x: r.ceil(r.ceil(x)), lambda x: b.ceil(x)),
    rule("trunc trunc", lambda x: r.trunc(r.trunc(x)), lambda x: b.trunc(x)),
    rule("round round", lambda x: r.round_(r.round_(x)), lambda x: b.round_(x)),
])  # fmt: skip


# ---------------------------------------------------------------------------------------------- bits, comparisons, selection
def _bool(x: Node, node: Callable[[], Node]) -> Node | None:
    return when(x.dtype is BOOL, node)


def _ordered(x: Node, node: Callable[[], Node]) -> Node | None:
    """Where there is no nan."""
    return when(not x.dtype.is_float, node)


def _flag(value: bool, x: Node) -> Node:
    return b.const(value, BOOL, x.shape)


LOGIC = Rules([
    rule("not not", lambda x: r.not_(r.not_(x)), lambda x: x),
    rule("and itself", lambda x: r.and_(x, x), lambda x: x),
    rule("or itself", lambda x: r.or_(x, x), lambda x: x),
    rule("xor itself", lambda x: r.xor(x, x), lambda x: b.like(0, x)),
    rule("and nothing", lambda x: r.and_(x, 0), lambda x: b.like(0, x)),
    rule("and all", lambda x: r.and_(x, -1), lambda x: x),
    rule("or nothing", lambda x: r.or_(x, 0), lambda x: x),
    rule("or all", lambda x: r.or_(x, -1), lambda x: b.like(-1, x)),
    rule("xor nothing", lambda x: r.xor(x, 0), lambda x: x),
    rule("xor true", lambda x: r.xor(x, True), lambda x: _bool(x, lambda: b.not_(x))),
    rule("shl nothing", lambda x: r.shl(x, 0), lambda x: x),
    rule("shr nothing", lambda x: r.shr(x, 0), lambda x: x),
    rule("is true", lambda x: r.eq(x, True), lambda x: _bool(x, lambda: x)),
    rule("is false", lambda x: r.eq(x, False), lambda x: _bool(x, lambda: b.not_(x))),
    rule("is not false", lambda x: r.ne(x, False), lambda x: _bool(x, lambda: x)),
    rule("is not true", lambda x: r.ne(x, True), lambda x: _bool(x, lambda: b.not_(x))),
    rule("lt itself", lambda x: r.lt(x, x), lambda x: _flag(False, x)),
    rule("gt itself", lambda x: r.gt(x, x), lambda x: _flag(False, x)),
    rule("le itself", lambda x: r.le(x, x), lambda x: _ordered(x, lambda: _flag(True, x))),
    rule("ge itself", lambda x: r.ge(x, x), lambda x: _ordered(x, lambda: _flag(True, x))),
    rule("eq itself", lambda x: r.eq(x, x), lambda x: _ordered(x, lambda: _flag(True, x))),
    rule("ne itself", lambda x: r.ne(x, x), lambda x: _ordered(x, lambda: _flag(False, x))),
    rule("not eq", lambda x, y: r.not_(r.eq(x, y)), lambda x, y: b.ne(x, y)),
    rule("not ne", lambda x, y: r.not_(r.ne(x, y)), lambda x, y: b.eq(x, y)),
    rule("not lt", lambda x, y: r.not_(r.lt(x, y)), lambda x, y: _ordered(x, lambda: b.ge(x, y))),
    rule("not le", lambda x, y: r.not_(r.le(x, y)), lambda x, y: _ordered(x, lambda: b.gt(x, y))),
    rule("not gt", lambda x, y: r.not_(r.gt(x, y)), lambda x, y: _ordered(x, lambda: b.le(x, y))),
    rule("not ge", lambda x, y: r.not_(r.ge(x, y)), lambda x, y: _ordered(x, lambda: b.lt(x, y))),
    rule("where not", lambda k, x, y: r.where(r.not_(k), x, y), lambda k, x, y: b.where(k, y, x)),
    rule("where true false", lambda k: r.where(k, True, False), lambda root, k: _bool(root, lambda: k)),
    rule("where false true", lambda k: r.where(k, False, True), lambda root, k: _bool(root, lambda: b.not_(k))),
    rule("where where then", lambda k, x, y, z: r.where(k, r.where(k, x, y), z), lambda k, x, y, z: b.where(k, x, z)),
    rule("where where else", lambda k, x, y, z: r.where(k, x, r.where(k, y, z)), lambda k, x, y, z: b.where(k, x, z)),
])  # fmt: skip


# ---------------------------------------------------------------------------------------------- casts
def keeps_values(source: DType, target: DType) -> bool:
    """Whether every value of source is one of target."""
    if source is target or source is BOOL:
        return True
    if source.is_float:
        return target.is_float and target.bits > source.bits
    digits = source.bits - (source.kind == "int")
    if target.is_float:
        return digits <= MANTISSA_BITS[target]
    return target.is_integer and target.bits - (target.kind == "int") >= digits and (source.kind == "uint" or target.kind == "int")


def _cast_cast(root: Node, x: Node) -> Node | None:
    """One cast instead of two, where the first keeps values or (between integers) the bits that the second keeps."""
    source, middle, target = x.dtype, root.args[0].dtype, root.dtype
    wraps = source.is_integer and middle.is_integer and target.is_integer and middle.bits >= target.bits
    kept = keeps_values(source, middle)
    if target.is_integer and (source.is_float or middle.is_float):  # what is out of range depends on what it comes from
        kept = kept and keeps_values(source, target)
    return b.cast(x, target) if wraps or kept else None


def _cast_examples() -> Iterator[Node]:
    kinds = [d for d in DTYPES.values() if not d.is_complex]
    for source in kinds:
        x = b.graph_input(0, TensorType((2,), source))
        for middle in kinds:
            for target in kinds:
                if middle not in (source, target):
                    yield b.cast(b.cast(x, middle), target)


CASTS = Rules([
    rule("cast cast", lambda x: r.cast(r.cast(x)), _cast_cast, _cast_examples),
    rule("bitcast bitcast", lambda x: r.bitcast(r.bitcast(x)), lambda root, x: b.bitcast(x, root.dtype), lambda: _bitcast_examples()),
])  # fmt: skip


def _bitcast_examples() -> Iterator[Node]:
    for names in (("float32", "int32", "uint32"), ("int64", "float64", "uint64"), ("bfloat16", "int16", "uint16"), ("float16", "uint16", "float16")):
        source, middle, target = (DTYPES[n] for n in names)
        yield b.bitcast(b.bitcast(b.graph_input(0, TensorType((2,), source)), middle), target)


# ---------------------------------------------------------------------------------------------- views
def _slice_of_concat(root: Node) -> Node | None:
    """A slice that lies in one part is a slice of that part."""
    whole, (starts, steps) = root.args[0], (root.attrs.starts, root.attrs.steps)
    if whole.prim is not p.CONCAT or 0 in root.shape:
        return None
    axis = whole.attrs.axis
    ends = (starts[axis], starts[axis] + (root.shape[axis] - 1) * steps[axis])
    offset = 0
    for part in whole.args:
        if offset <= min(ends) and max(ends) < offset + part.shape[axis]:
            moved = tuple(s - offset if a == axis else s for a, s in enumerate(starts))
            return b.slice_(part, moved, steps, root.shape)
        offset += part.shape[axis]
    return None


def _slice_of_pad(root: Node) -> Node | None:
    """A slice that shows nothing of the padding is a slice of what was padded."""
    whole, (starts, steps) = root.args[0], (root.attrs.starts, root.attrs.steps)
    if whole.prim is not p.PAD or 0 in root.shape or any(whole.attrs.interior):
        return None
    x, low = whole.args[0], whole.attrs.low
    for start, step, length, before, size in zip(starts, steps, root.shape, low, x.shape, strict=True):
        ends = (start - before, start - before + (length - 1) * step)
        if min(ends) < 0 or max(ends) >= size:
            return None
    return b.slice_(x, tuple(s - before for s, before in zip(starts, low, strict=True)), steps, root.shape)


def _view_examples() -> Iterator[Node]:
    x, y = (b.graph_input(k, TensorType((2, 3), FLOAT32)) for k in range(2))
    joined = b.concat([x, y, x], 0)
    yield b.slice_(joined, (2, 0), (1, 1), (2, 3))
    yield b.slice_(joined, (3, 2), (-1, -2), (2, 2))
    yield b.slice_(joined, (1, 0), (1, 1), (2, 3))
    padded = b.pad(x, (1, 2), (3, 0), 7.0)
    yield b.slice_(padded, (1, 2), (1, 1), (2, 3))
    yield b.slice_(padded, (2, 4), (-1, -1), (2, 2))
    yield b.slice_(padded, (0, 2), (1, 1), (2, 3))


VIEWS = Rules([
    rule("slice concat", lambda x: r.slice_(x), lambda root, x: _slice_of_concat(root), _view_examples),
    rule("slice pad", lambda x: r.slice_(x), lambda root, x: _slice_of_pad(root), _view_examples),
])  # fmt: skip


# ---------------------------------------------------------------------------------------------- constants
def folded(root: Node) -> Node | None:
    """The constant that a map of constants is; none where a program would stop."""
    operands = [np.full((), a.attrs.value, a.dtype.numpy) for a in root.args]
    if root.prim in (p.DIV, p.REM) and root.args[0].dtype.is_integer and operands[1] == 0:
        return None
    scalar = Node(root.prim, tuple(b.const(a.attrs.value, a.dtype) for a in root.args), root.attrs, root.type.with_shape(()))
    return b.const(interp.evaluate(scalar, operands).item(), root.dtype, root.shape)


def _fold(prim: Prim) -> Rule:
    variables = tuple(f"c{k}" for k in range(prim.arity or 0))
    pattern = r.Application(prim, tuple(r.Variable(v) for v in variables))
    return Rule(f"fold {prim}", pattern, lambda root, *constants: folded(root), variables, takes_root=True)


_FOLDED = [prim for prim in PRIMS.values() if prim.kind == "map" and prim.ref is not None and prim is not p.WHERE]
CONSTANTS = Rules(map(_fold, _FOLDED))

RULES = CONSTANTS + ARITHMETIC + LOGIC + CASTS + VIEWS
