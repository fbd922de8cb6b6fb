"""Typed constructors: the only way to make a Node.

Each checks its operands (TypeRuleError) and gives canonical form: a view of a constant is a constant, a reshape of a reshape
is one reshape, a permute of a permute one permute, a slice of a slice one slice; views that change nothing vanish.
Constants carry the full type of the place they stand in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from ctypes import c_float

from thermit.errors import TypeRuleError
from thermit.ir import prims as p
from thermit.ir.node import Node
from thermit.ir.prims import Axes, Axis, Call, Order, Pad, Prim, Scatter, Slice, Slot, Strided, Symbol, Value, Windows
from thermit.ir.types import BOOL, FLOAT32, FLOAT64, FORMATS, INT64, DType, Shape, TensorType


# ---------------------------------------------------------------------------------------------- leaves
def graph_input(index: int, type: TensorType) -> Node:
    return Node(p.INPUT, (), Slot(index), type)


def const(value: bool | int | float, dtype: DType, shape: Shape = ()) -> Node:
    """`value` at every index.  Integers wrap around to the type, floats round to it, as PyTorch's casts do."""
    if dtype is BOOL:
        exact: bool | int | float = bool(value)
    elif dtype.is_float:
        exact = round_to(value, dtype)
    elif dtype.is_integer:
        exact = wrap(int(value), dtype)
    else:
        raise TypeRuleError(f"no constants of {dtype}")
    return Node(p.CONST, (), Value(exact), TensorType(tuple(shape), dtype))


def wrap(value: int, dtype: DType) -> int:
    """The integer modulo 2^bits, in the range of the type."""
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if dtype.kind == "int" and value >> (dtype.bits - 1) else value


def round_to(value: int | float, dtype: DType) -> float:
    """The nearest value of a float type, ties to even; of a half type by way of float32, as PyTorch goes.

    >>> from thermit.ir.types import FLOAT16
    >>> round_to(1 / 3, FLOAT16)
    0.333251953125
    """
    if dtype.is_half:
        value = round_to(value, FLOAT32)
    digits, least, limit = FORMATS[dtype]
    if isinstance(value, int):
        value = float(value) if dtype is FLOAT64 else _to_odd(value)
    if dtype is FLOAT64 or value == 0 or not math.isfinite(value):
        return value
    if dtype is FLOAT32 and abs(value) >= 2.0**-126:  # the processor may have been told to make zeros of denormal numbers
        return c_float(value).value
    _, exponent = math.frexp(value)
    step = max(exponent - digits, least)
    rounded = math.ldexp(round(math.ldexp(value, -step)), step) if step > -1000 else math.copysign(0.0, value)
    if rounded == 0:
        return math.copysign(0.0, value)
    return math.copysign(math.inf, value) if abs(rounded) >= math.ldexp(1.0, limit) else rounded


def _to_odd(value: int) -> float:
    """The integer cut to 53 bits, the last one set where something was lost: rounded once more it is as if that were the only time."""
    lost = max(abs(value).bit_length() - 53, 0)
    kept = abs(value) >> lost
    kept |= kept << lost != abs(value)
    return math.copysign(math.ldexp(kept, lost), value)


def like(value: bool | int | float, x: Node) -> Node:
    """A constant of the type of x."""
    return const(value, x.dtype, x.shape)


def iota(shape: Shape, axis: int, dtype: DType = INT64) -> Node:
    """The index along `axis`."""
    if not 0 <= axis < len(shape):
        raise TypeRuleError(f"iota: axis {axis} of {len(shape)}")
    if shape[axis] == 1:
        return const(0, dtype, shape)
    index = Node(p.IOTA, (), Axis(axis), TensorType(tuple(shape), INT64))
    return cast(index, dtype)


def is_const(x: Node, value: bool | int | float | None = None) -> bool:
    """Whether x is a constant, and if a value is given, that one bit for bit."""
    if x.prim is not p.CONST or value is None:
        return x.prim is p.CONST
    expected = type(x.attrs.value)(value)
    return (x.attrs.value == expected or expected != expected) and x.attrs == Value(expected)


# ---------------------------------------------------------------------------------------------- map
def map1(prim: Prim, x: Node) -> Node:
    return Node(prim, (x,), None, x.type)


def map2(prim: Prim, x: Node, y: Node) -> Node:
    if x.type != y.type:
        raise TypeRuleError(f"{prim}: {x.type} and {y.type}")
    return Node(prim, (x, y), None, x.type.with_dtype(BOOL) if prim.result == "bool" else x.type)


def cast(x: Node, dtype: DType) -> Node:
    """x in another element type, by the rules of PyTorch's conversions on CPU; nothing if it has it already."""
    if x.dtype is dtype:
        return x
    if x.dtype.is_complex or dtype.is_complex:
        raise TypeRuleError(f"cast: {x.dtype} to {dtype}")
    if is_const(x):
        value = x.attrs.value
        if not (isinstance(value, float) and dtype.is_integer and not abs(value) < 2.0**31):  # out of range: the machine decides
            return const(value, dtype, x.shape)
    return Node(p.CAST, (x,), None, x.type.with_dtype(dtype))


def bitcast(x: Node, dtype: DType) -> Node:
    """The same bits read as another type of the same width."""
    if not (x.dtype.bits == dtype.bits and BOOL not in (x.dtype, dtype)):
        raise TypeRuleError(f"bitcast: {x.dtype} to {dtype}")
    if x.dtype is dtype:
        return x
    return Node(p.BITCAST, (x,), None, x.type.with_dtype(dtype))


def where(condition: Node, x: Node, y: Node) -> Node:
    if not (condition.dtype is BOOL and x.type == y.type and condition.shape == x.shape):
        raise TypeRuleError(f"where: {condition.type}, {x.type}, {y.type}")
    if is_const(condition):
        return x if condition.attrs.value else y
    return x if x is y else Node(p.WHERE, (condition, x, y), None, x.type)


def fma(x: Node, y: Node, z: Node) -> Node:
    """x * y + z rounded once.  For legalize: the user's products and sums are never contracted."""
    if not (x.type == y.type == z.type and x.dtype.is_float):
        raise TypeRuleError(f"fma: {x.type}, {y.type}, {z.type}")
    return Node(p.FMA, (x, y, z), None, x.type)


def seldom(condition: Node, x: Node, usual: Node, function: str) -> Node:
    """usual, but the C library's function of x where condition holds.  For legalize: arguments whose treatment would cost too much."""
    if not (condition.dtype is BOOL and x.type == usual.type and x.dtype.is_float and condition.shape == x.shape):
        raise TypeRuleError(f"seldom: {x.type}")
    return Node(p.SELDOM, (condition, x, usual), Symbol(function), x.type)


def _binary(prim: Prim) -> Callable[[Node, Node | bool | int | float], Node]:
    def build(x: Node, y: Node | bool | int | float) -> Node:
        return map2(prim, x, y if isinstance(y, Node) else like(y, x))

    build.__name__ = build.__qualname__ = prim.name
    build.__doc__ = f"The primitive {prim.name}; y may be a number, taken in the type of x."
    return build


def _unary(prim: Prim) -> Callable[[Node], Node]:
    def build(x: Node) -> Node:
        return map1(prim, x)

    build.__name__ = build.__qualname__ = prim.name
    build.__doc__ = f"The primitive {prim.name}."
    return build


neg, abs_, sqrt, floor, ceil, trunc, round_, not_ = (_unary(r) for r in (p.NEG, p.ABS, p.SQRT, p.FLOOR, p.CEIL, p.TRUNC, p.ROUND, p.NOT))
exp, exp_falling, exp2, expm1, log, log2, log10, log1p = (_unary(r) for r in (p.EXP, p.EXP_FALLING, p.EXP2, p.EXPM1, p.LOG, p.LOG2, p.LOG10, p.LOG1P))
sin, cos, tan, asin, acos, atan = (_unary(r) for r in (p.SIN, p.COS, p.TAN, p.ASIN, p.ACOS, p.ATAN))
sinh, cosh, tanh, asinh, acosh, atanh = (_unary(r) for r in (p.SINH, p.COSH, p.TANH, p.ASINH, p.ACOSH, p.ATANH))
erf, erfc, sigmoid = (_unary(r) for r in (p.ERF, p.ERFC, p.SIGMOID))
add, sub, mul, div, rem, pow_, atan2, hypot = (_binary(r) for r in (p.ADD, p.SUB, p.MUL, p.DIV, p.REM, p.POW, p.ATAN2, p.HYPOT))
minimum, maximum, copysign = (_binary(r) for r in (p.MIN, p.MAX, p.COPYSIGN))
eq, ne, lt, le, gt, ge = (_binary(r) for r in (p.EQ, p.NE, p.LT, p.LE, p.GT, p.GE))
and_, or_, xor, shl, shr = (_binary(r) for r in (p.AND, p.OR, p.XOR, p.SHL, p.SHR))


# ---------------------------------------------------------------------------------------------- view
def reshape(x: Node, shape: Shape) -> Node:
    shape = tuple(shape)
    if math.prod(shape) != x.type.numel:
        raise TypeRuleError(f"reshape: {x.type} to {list(shape)}")
    if shape == x.shape:
        return x
    if x.prim is p.CONST:
        return const(x.attrs.value, x.dtype, shape)
    if x.prim is p.RESHAPE:
        return reshape(x.args[0], shape)
    return Node(p.RESHAPE, (x,), None, x.type.with_shape(shape))


def permute(x: Node, order: Sequence[int]) -> Node:
    """Axis k of the result is axis order[k] of x."""
    order = tuple(order)
    if sorted(order) != list(range(x.type.ndim)):
        raise TypeRuleError(f"permute: {x.type} by {list(order)}")
    shape = tuple(x.shape[a] for a in order)
    if order == tuple(range(len(order))):
        return x
    if x.prim is p.CONST:
        return const(x.attrs.value, x.dtype, shape)
    if x.prim is p.PERMUTE:
        return permute(x.args[0], tuple(x.attrs.order[a] for a in order))
    return Node(p.PERMUTE, (x,), Order(order), x.type.with_shape(shape))


def expand(x: Node, shape: Shape) -> Node:
    """Axes of size 1 repeated; the rank stays (reshape first to add axes)."""
    shape = tuple(shape)
    if not (len(shape) == x.type.ndim and all(a == b or a == 1 for a, b in zip(x.shape, shape, strict=True))):
        raise TypeRuleError(f"expand: {x.type} to {list(shape)}")
    if shape == x.shape:
        return x
    if x.prim is p.CONST:
        return const(x.attrs.value, x.dtype, shape)
    if x.prim is p.EXPAND:
        return expand(x.args[0], shape)
    return Node(p.EXPAND, (x,), None, x.type.with_shape(shape))


def broadcast_to(x: Node, shape: Shape) -> Node:
    """x seen in `shape` by PyTorch's rule: missing axes in front, size 1 repeats."""
    shape = tuple(shape)
    if x.shape == shape:
        return x
    missing = len(shape) - x.type.ndim
    if missing < 0:
        raise TypeRuleError(f"broadcast: {x.type} to {list(shape)}")
    if x.prim is p.CONST and x.type.ndim == 0:  # a number: not by way of a constant for each step
        return Node(p.CONST, (), x.attrs, x.type.with_shape(shape))
    return expand(reshape(x, (1,) * missing + x.shape), shape)


def slice_(x: Node, starts: Sequence[int], steps: Sequence[int], shape: Shape) -> Node:
    """Element i of axis a is element starts[a] + i * steps[a] of x."""
    starts, steps, shape = tuple(starts), tuple(steps), tuple(shape)
    if not (len(starts) == len(steps) == len(shape) == x.type.ndim and all(steps)):
        raise TypeRuleError(f"slice: {x.type} by {starts}, {steps}")
    for size, start, step, length in zip(x.shape, starts, steps, shape, strict=True):
        inside = length == 0 or (0 <= start < size and 0 <= start + (length - 1) * step < size)
        if not inside:
            raise TypeRuleError(f"slice: {start} + {length} * {step} leaves {x.type}")
    if shape == x.shape and all(step == 1 or length <= 1 for step, length in zip(steps, shape, strict=True)):
        return x
    if x.prim is p.CONST:
        return const(x.attrs.value, x.dtype, shape)
    if x.prim is p.SLICE and 0 not in shape:
        inner = x.attrs
        starts = tuple(b + s * t for b, s, t in zip(inner.starts, starts, inner.steps, strict=True))
        steps = tuple(s * t for s, t in zip(steps, inner.steps, strict=True))
        return slice_(x.args[0], starts, steps, shape)
    return Node(p.SLICE, (x,), Slice(starts, steps), x.type.with_shape(shape))


def pad(x: Node, low: Sequence[int], high: Sequence[int], fill: Node | bool | int | float, interior: Sequence[int] | None = None) -> Node:
    """x surrounded by `fill` (a scalar); `interior` of them between two neighbours along each axis."""
    low, high = tuple(low), tuple(high)
    interior = (0,) * x.type.ndim if interior is None else tuple(interior)
    scalar = fill if isinstance(fill, Node) else const(fill, x.dtype)
    if not (len(low) == len(high) == len(interior) == x.type.ndim and min((0, *low, *high, *interior)) == 0):
        raise TypeRuleError(f"pad: {x.type} by {low}, {high}, {interior}")
    if scalar.type != TensorType((), x.dtype):
        raise TypeRuleError(f"pad: fill is {scalar.type}")
    shape = tuple(a + b + (n - 1) * c + n if n else a + b for n, a, b, c in zip(x.shape, low, high, interior, strict=True))
    if shape == x.shape:
        return x
    if x.prim is p.CONST and scalar.prim is p.CONST and x.attrs == scalar.attrs:
        return const(x.attrs.value, x.dtype, shape)
    if x.type.numel == 0:
        return broadcast_to(scalar, shape)
    return Node(p.PAD, (x, scalar), Pad(low, high, interior), x.type.with_shape(shape))


def concat(parts: Sequence[Node], axis: int) -> Node:
    """The parts one after another along `axis`; empty ones vanish."""
    if not (len(parts) > 0 and 0 <= axis < parts[0].type.ndim):
        raise TypeRuleError(f"concat: axis {axis}")
    first = parts[0]
    for part in parts:
        same = part.dtype is first.dtype and part.shape[:axis] + part.shape[axis + 1 :] == first.shape[:axis] + first.shape[axis + 1 :]
        if not same:
            raise TypeRuleError(f"concat: {first.type} and {part.type} along {axis}")
    shape = (*first.shape[:axis], sum(part.shape[axis] for part in parts), *first.shape[axis + 1 :])
    kept = tuple(part for part in parts if part.shape[axis]) or (first,)
    if len(kept) == 1:
        return kept[0]
    if all(is_const(part) and part.attrs == kept[0].attrs for part in kept):
        return const(kept[0].attrs.value, first.dtype, shape)
    return Node(p.CONCAT, kept, Axis(axis), first.type.with_shape(shape))


def strided(x: Node, shape: Shape, strides: Sequence[int], offset: int) -> Node:
    """as_strided of a tensor with one axis: element i is x[offset + sum(i * strides)]."""
    shape, strides = tuple(shape), tuple(strides)
    if not (x.type.ndim == 1 and len(shape) == len(strides)):
        raise TypeRuleError(f"strided: {x.type}")
    if 0 not in shape:
        least = offset + sum(min(0, (n - 1) * s) for n, s in zip(shape, strides, strict=True))
        most = offset + sum(max(0, (n - 1) * s) for n, s in zip(shape, strides, strict=True))
        if not (least >= 0 and most < x.shape[0]):
            raise TypeRuleError(f"strided: {offset} + {strides} leaves {x.type}")
    if x.prim is p.CONST:
        return const(x.attrs.value, x.dtype, shape)
    return Node(p.STRIDED, (x,), Strided(strides, offset), x.type.with_shape(shape))


def window(x: Node, places: Shape, taps: Shape, strides: Sequence[int], dilations: Sequence[int]) -> Node:
    """Windows over the last axes: [*lead, *sizes] -> [*lead, *places, *taps], element (o, t) is x[o * stride + t * dilation]."""
    places, taps, strides, dilations = tuple(places), tuple(taps), tuple(strides), tuple(dilations)
    lead = x.type.ndim - len(places)
    if not (lead >= 0 and len(places) == len(taps) == len(strides) == len(dilations)):
        raise TypeRuleError(f"window: {x.type} by {places}, {taps}")
    shape = (*x.shape[:lead], *places, *taps)
    for size, n, k, stride, dilation in zip(x.shape[lead:], places, taps, strides, dilations, strict=True):
        if not (stride > 0 and dilation > 0 and (n == 0 or k == 0 or (n - 1) * stride + (k - 1) * dilation < size)):
            raise TypeRuleError(f"window: {n} * {stride} + {k} * {dilation} leaves {x.type}")
    if x.prim is p.CONST:
        return const(x.attrs.value, x.dtype, shape)
    if 0 not in shape and all(n == 1 for n in taps):
        return reshape(slice_(x, (0,) * x.type.ndim, (1,) * lead + strides, shape[: x.type.ndim]), shape)
    return Node(p.WINDOW, (x,), Windows(strides, dilations), x.type.with_shape(shape))


def flip(x: Node, axes: Sequence[int]) -> Node:
    starts = tuple(max(n - 1, 0) if a in axes else 0 for a, n in enumerate(x.shape))
    return slice_(x, starts, tuple(-1 if a in axes else 1 for a in range(x.type.ndim)), x.shape)


# ---------------------------------------------------------------------------------------------- reduce, scan
def reduce(prim: Prim, x: Node, axes: Sequence[int]) -> Node:
    """x combined along `axes`, which disappear.  argmax and argmin take one axis and give int64.

    An axis of size 1 combines nothing: it is reshaped away, so that every reduction node has a loop of its own."""
    axes = tuple(sorted(axes))
    if not (prim.kind == "reduce" and len(set(axes)) == len(axes) and all(0 <= a < x.type.ndim for a in axes)):
        raise TypeRuleError(f"{prim}: {x.type} over {axes}")
    if prim in (p.ANY, p.ALL) and x.dtype is not BOOL:
        raise TypeRuleError(f"{prim}: {x.type} is not bool")
    if x.dtype.is_half:
        raise TypeRuleError(f"{prim}: {x.dtype} has no arithmetic; cast to float32")
    shape = tuple(n for a, n in enumerate(x.shape) if a not in axes)
    if prim in (p.ARGMAX, p.ARGMIN):
        if not (len(axes) == 1 and x.shape[axes[0]] > 0):
            raise TypeRuleError(f"{prim}: {x.type} over {axes}")
        if x.shape[axes[0]] == 1 or 0 in shape:
            return const(0, INT64, shape)
        return Node(prim, (x,), Axes(axes), TensorType(shape, INT64))
    if prim.identity is None and not all(x.shape[a] for a in axes):
        raise TypeRuleError(f"{prim}: {x.type} over the empty {axes}")
    if x.type.numel == 0:  # also where the result has no elements: nothing is to be read, not even once for all of them
        return const(prim.identity or 0, x.dtype, shape)
    kept = tuple(a for a in axes if x.shape[a] != 1)
    if not kept:
        return reshape(_nothing_added(x) if prim is p.SUM else x, shape)
    if kept != axes:
        return reshape(reduce(prim, x, kept), shape)
    return Node(prim, (x,), Axes(axes), x.type.with_shape(shape))


def _nothing_added(x: Node) -> Node:
    """A sum of one term: that of -0.0 is 0.0."""
    return add(x, const(0.0, x.dtype, x.shape)) if x.dtype.is_float else x


def scan(prim: Prim, x: Node, axis: int) -> Node:
    if not (prim.kind == "scan" and 0 <= axis < x.type.ndim and not x.dtype.is_half):
        raise TypeRuleError(f"{prim}: {x.type} along {axis}")
    if x.type.numel == 0:
        return x
    if x.shape[axis] == 1:
        return _nothing_added(x) if prim is p.CUMSUM else x
    return Node(prim, (x,), Axis(axis), x.type)


# ---------------------------------------------------------------------------------------------- contract
def contract(left: Node, right: Node) -> Node:
    """left: [*batch, M, K], right: [*batch, K, N] -> [*batch, M, N]: matrix products, one for each index of the batch."""
    batch, (rows, depth), (inner, columns) = left.shape[:-2], left.shape[-2:], right.shape[-2:]
    if not (left.type.ndim >= 2 and right.shape[:-2] == batch and depth == inner and left.dtype is right.dtype):
        raise TypeRuleError(f"contract: {left.type} and {right.type}")
    if left.dtype.name not in ("float32", "float64"):
        raise TypeRuleError(f"contract: {left.dtype} has no products; cast to float32")
    shape = (*batch, rows, columns)
    if depth == 0 or 0 in shape:
        return const(0, left.dtype, shape)
    if depth == 1:
        return _nothing_added(mul(expand(left, shape), expand(right, shape)))
    return Node(p.CONTRACT, (left, right), None, left.type.with_shape(shape))


# ---------------------------------------------------------------------------------------------- index
def gather(x: Node, indices: Sequence[Node]) -> Node:
    """x[indices[0], indices[1], ...]: one int64 index per axis of x, all of one shape, which is the result's."""
    if not (len(indices) == x.type.ndim > 0):
        raise TypeRuleError(f"gather: {len(indices)} indices for {x.type}")
    shape = indices[0].shape
    if not all(i.type == TensorType(shape, INT64) for i in indices):
        raise TypeRuleError(f"gather: indices {[i.type for i in indices]}")
    return Node(p.GATHER, (x, *indices), None, x.type.with_shape(shape))


def scatter(base: Node, value: Node, indices: Sequence[Node], combine: str = "set") -> Node:
    """base with value[k] put at (or combined with what stands at) indices[...][k], k in row-major order."""
    if combine not in ("set", "add", "mul", "min", "max"):
        raise TypeRuleError(f"scatter: {combine}")
    if not (len(indices) == base.type.ndim > 0 and value.dtype is base.dtype):
        raise TypeRuleError(f"scatter: {value.type} into {base.type}")
    if not all(i.type == TensorType(value.shape, INT64) for i in indices):
        raise TypeRuleError(f"scatter: indices {[i.type for i in indices]}")
    if combine != "set" and base.dtype.is_half:
        raise TypeRuleError(f"scatter: {base.dtype} has no arithmetic; cast to float32")
    if value.type.numel == 0:
        return base
    return Node(p.SCATTER, (base, value, *indices), Scatter(combine), base.type)


def check(x: Node, ok: Node) -> Node:
    """x, provided that all of `ok` (bool) holds; otherwise the program stops and eager runs the call."""
    if ok.dtype is not BOOL:
        raise TypeRuleError(f"check: {ok.type}")
    return x if is_const(ok, True) or ok.type.numel == 0 else Node(p.CHECK, (x, ok), None, x.type)


# ---------------------------------------------------------------------------------------------- call
CALL_TYPE = TensorType((), BOOL)  # the type of a call node itself, which is no tensor


def call(attrs: Call, args: Sequence[Node]) -> Node:
    return Node(p.CALL, tuple(args), attrs, CALL_TYPE)


def result(node: Node, index: int) -> Node:
    """The index-th tensor that a call returns."""
    if node.prim is not p.CALL:
        raise TypeRuleError(f"result of {node!r}")
    return Node(p.RESULT, (node,), Slot(index), node.attrs.results[index][0])


# ---------------------------------------------------------------------------------------------- loop
def index(name: str) -> Node:
    """A loop variable."""
    return Node(p.INDEX, (), Symbol(name), TensorType((), INT64))


def local(name: str, dtype: DType) -> Node:
    """What a loop accumulated under this name."""
    return Node(p.LOCAL, (), Symbol(name), TensorType((), dtype))


def load(memory: str, dtype: DType, offset: Node, guard: Node | None = None) -> Node:
    """Element `offset` of a buffer; with a guard, 0 where it is false, and nothing is read there."""
    return Node(p.LOAD, (offset,) if guard is None else (offset, guard), p.Memory(memory), TensorType((), dtype))


# ---------------------------------------------------------------------------------------------- again
def rebuild(node: Node, args: tuple[Node, ...]) -> Node:
    """The node with other args of the same types, in canonical form."""
    return node if args == node.args else construct(node, args)


def construct(node: Node, args: tuple[Node, ...]) -> Node:
    """What the constructor of the node's primitive makes of these args."""
    by_prim = _CONSTRUCTORS.get(node.prim)
    return by_prim(node, args) if by_prim is not None else Node(node.prim, args, node.attrs, node.type)


def _window(node: Node, args: tuple[Node, ...]) -> Node:
    attrs: Windows = node.attrs
    rank = len(attrs.strides)
    return window(args[0], node.shape[-2 * rank : -rank], node.shape[-rank:], attrs.strides, attrs.dilations)


_CONSTRUCTORS: dict[Prim, Callable[[Node, tuple[Node, ...]], Node]] = {
    p.CAST: lambda node, args: cast(args[0], node.dtype),
    p.BITCAST: lambda node, args: bitcast(args[0], node.dtype),
    p.WHERE: lambda node, args: where(*args),
    p.FMA: lambda node, args: fma(*args),
    p.SELDOM: lambda node, args: seldom(args[0], args[1], args[2], node.attrs.name),
    p.RESHAPE: lambda node, args: reshape(args[0], node.shape),
    p.PERMUTE: lambda node, args: permute(args[0], node.attrs.order),
    p.EXPAND: lambda node, args: expand(args[0], node.shape),
    p.SLICE: lambda node, args: slice_(args[0], node.attrs.starts, node.attrs.steps, node.shape),
    p.PAD: lambda node, args: pad(args[0], node.attrs.low, node.attrs.high, args[1], node.attrs.interior),
    p.CONCAT: lambda node, args: concat(args, node.attrs.axis),
    p.STRIDED: lambda node, args: strided(args[0], node.shape, node.attrs.strides, node.attrs.offset),
    p.WINDOW: _window,
    p.CONTRACT: lambda node, args: contract(*args),
    p.GATHER: lambda node, args: gather(args[0], args[1:]),
    p.SCATTER: lambda node, args: scatter(args[0], args[1], args[2:], node.attrs.combine),
    p.CHECK: lambda node, args: check(*args),
    **{prim: lambda node, args: reduce(node.prim, args[0], node.attrs.axes) for prim in p.PRIMS.values() if prim.kind == "reduce"},
    **{prim: lambda node, args: scan(node.prim, args[0], node.attrs.axis) for prim in p.PRIMS.values() if prim.kind == "scan"},
    **{prim: lambda node, args: map2(node.prim, *args) for prim in p.PRIMS.values() if prim.kind == "map" and prim.arity == 2},
}
