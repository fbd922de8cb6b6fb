"""THE TABLE: one row per primitive.

A row holds all that the compiler knows about a primitive: name, arity, kind, attrs class, numpy meaning (`ref`), LLVM
spelling (`fp`, `integer`) and algebraic facts.  Primitives never broadcast and never promote: the aten layer does that.

Kinds
    input     a tensor handed to the graph                        const     one value at every index (the type gives the shape)
    iota      the index along one axis                            map       the same function at every index; args have one shape
    view      moves elements                                      reduce    combines along axes, which disappear
    scan      running combination along one axis                  contract  products of two args, summed along one axis of each
    index     gather, scatter: positions are data                 call      an opaque ATen call; `result` picks its k-th tensor
    loop      scalar expressions inside a loop program only

Arithmetic rows see float32, float64, integers and bool.  bfloat16 and float16 occur only in cast, bitcast, where and views:
the aten layer computes them in float32 and rounds after each operation, as eager does.

`fp` / `integer`: the LLVM instruction or intrinsic; "s/u" pairs are signed/unsigned.  None means that `codegen/legalize.py`
must have removed the primitive for that kind of operand before emission.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from thermit.ir.types import Shape, TensorType
from thermit.records import dataclass

PrimKind = Literal["input", "const", "iota", "map", "view", "reduce", "scan", "contract", "index", "call", "loop"]


# ---------------------------------------------------------------------------------------------- attrs
@dataclass(frozen=True, slots=True)
class Slot:
    """Position: of an input among the graph's inputs, of a tensor among the results of a call."""

    index: int


class Value:
    """A constant: bool, int or float.  Equality is by bits and type: 0.0 is not -0.0, 1 is not True, nan is nan."""

    __slots__ = ("key", "value")

    def __init__(self, value: bool | int | float) -> None:
        self.value = value
        self.key = (type(value), value.hex() if isinstance(value, float) else value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Value) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return repr(self.value)


@dataclass(frozen=True, slots=True)
class Axis:
    axis: int


@dataclass(frozen=True, slots=True)
class Axes:
    """Axes in increasing order, each once."""

    axes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Order:
    """out axis k is in axis order[k]."""

    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Slice:
    """Element i of axis a is element starts[a] + i * steps[a]; steps may be negative, never 0."""

    starts: tuple[int, ...]
    steps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pad:
    """Element j of the arg stands at low + j * (interior + 1) of the result; low, high, interior >= 0, one per axis."""

    low: tuple[int, ...]
    high: tuple[int, ...]
    interior: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Strided:
    """Element i of the result is element offset + sum(i * strides) of the arg, which has one axis."""

    strides: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows over the last axes of the arg, one stride and one dilation an axis: element (o, t) is element o * stride + t * dilation."""

    strides: tuple[int, ...]
    dilations: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Scatter:
    """How values meet what stands there: "set" (the last in row-major order stays), "add", "mul", "min", "max"."""

    combine: str


@dataclass(frozen=True, eq=False, slots=True)
class Call:
    """An ATen call.  Compared by identity unless `key` says that it is pure (equal keys: one call).

    `op` is the OpOverload; `args`, `kwargs` are its arguments with tensors replaced by `Slot(k)`, the k-th arg of the node;
    `results` the type and strides of each tensor it returns (None where it returns None); `strides` the strides that each
    tensor argument must have (as in eager), so that the result has eager's strides and numerics.
    """

    op: Any
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    strides: tuple[tuple[int, ...], ...]
    results: tuple[tuple[TensorType, Shape] | None, ...]
    key: tuple[Any, ...] | None = None

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Call) and self.key is not None and self.key == other.key)

    def __hash__(self) -> int:
        return hash(self.key) if self.key is not None else id(self)


@dataclass(frozen=True, slots=True)
class Symbol:
    """Name of a loop index or of a local (an accumulator)."""

    name: str


@dataclass(frozen=True, slots=True)
class Memory:
    """A buffer of the loop program, by name."""

    name: str


# ---------------------------------------------------------------------------------------------- rows
@dataclass(frozen=True, eq=False, slots=True)
class Prim:
    """One row.  `arity` None: any number of args.  `result`: "same" as the first arg, "bool", or "attrs" (given when built)."""

    name: str
    arity: int | None
    kind: PrimKind
    ref: Callable[..., Any] | None = None
    attrs: type | None = None
    fp: str | None = None
    integer: str | None = None
    algebra: frozenset[str] = frozenset()
    identity: float | None = None
    result: Literal["same", "bool", "attrs"] = "same"

    @property
    def is_function(self) -> bool:
        """Whether no processor has an instruction for it: exp, sin, ..., which `legalize` makes an expression of."""
        return self.kind == "map" and self.result == "same" and self.ref is not None and self.fp is None and self.integer is None

    def __repr__(self) -> str:
        return self.name


PRIMS: dict[str, Prim] = {}


def row(name: str, arity: int | None, kind: PrimKind, ref: Callable[..., Any] | None = None, *, algebra: str = "", **columns: Any) -> Prim:
    assert name not in PRIMS, f"two rows named {name}"
    prim = Prim(name, arity, kind, ref, algebra=frozenset(algebra.split()), **columns)
    PRIMS[name] = prim
    return prim


def _each(function: Callable[[float], float], nan: float = math.nan) -> Callable[[np.ndarray], np.ndarray]:
    """A scalar function of the math module at every element, its domain errors as nan."""

    def at(x: float) -> float:
        try:
            return function(x)
        except ValueError:
            return nan
        except OverflowError:
            return math.inf

    vectorized = np.vectorize(at, otypes=[np.float64])
    return lambda x: vectorized(x.astype(np.float64)).astype(x.dtype) if x.size else x.copy()


def _truncated_quotient(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if x.dtype.kind == "f":
        return x / y
    safe = np.where(y == 0, np.ones_like(y), y)
    return (x - np.fmod(x, safe)) // safe


def _sigmoid(x: np.ndarray) -> np.ndarray:
    wide = x.astype(np.longdouble)
    return (1 / (1 + np.exp(-wide))).astype(x.dtype)


def _scaled_exp(x: np.ndarray) -> np.ndarray:
    return (np.exp(x.astype(np.longdouble)) * 2.0**64).astype(x.dtype)


def _wide(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """The function computed in long double and rounded once."""
    return lambda *args: function(*(a.astype(np.longdouble) for a in args)).astype(args[0].dtype)


def _shift(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda x, y: function(x, y.astype(x.dtype))


def _matrix_product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Sums of float32 are kept in float64, of float64 in long double, and rounded once."""
    wide = np.float64 if left.dtype == np.float32 else np.longdouble
    return np.matmul(left.astype(wide), right.astype(wide)).astype(left.dtype)


# leaves
INPUT = row("input", 0, "input", attrs=Slot, result="attrs")
CONST = row("const", 0, "const", attrs=Value, result="attrs")
IOTA = row("iota", 0, "iota", attrs=Axis, result="attrs")

# map, one arg
NEG = row("neg", 1, "map", np.negative, fp="fneg", integer="neg")
ABS = row("abs", 1, "map", np.abs, fp="llvm.fabs", integer="abs")
SQRT = row("sqrt", 1, "map", np.sqrt, fp="llvm.sqrt")
FLOOR = row("floor", 1, "map", np.floor, fp="llvm.floor")
CEIL = row("ceil", 1, "map", np.ceil, fp="llvm.ceil")
TRUNC = row("trunc", 1, "map", np.trunc, fp="llvm.trunc")
ROUND = row("round", 1, "map", np.rint, fp="llvm.roundeven")
NOT = row("not", 1, "map", np.invert, integer="not")
EXP = row("exp", 1, "map", _wide(np.exp))
EXP_FALLING = row("exp_falling", 1, "map", _scaled_exp)  # 2^64 e^x; of x <= 0 only, and 0 may stand for a denormal
EXP2 = row("exp2", 1, "map", _wide(np.exp2))
EXPM1 = row("expm1", 1, "map", _wide(np.expm1))
LOG = row("log", 1, "map", _wide(np.log))
LOG2 = row("log2", 1, "map", _wide(np.log2))
LOG10 = row("log10", 1, "map", _wide(np.log10))
LOG1P = row("log1p", 1, "map", _wide(np.log1p))
SIN = row("sin", 1, "map", _wide(np.sin))
COS = row("cos", 1, "map", _wide(np.cos))
TAN = row("tan", 1, "map", _wide(np.tan))
ASIN = row("asin", 1, "map", _wide(np.arcsin))
ACOS = row("acos", 1, "map", _wide(np.arccos))
ATAN = row("atan", 1, "map", _wide(np.arctan))
SINH = row("sinh", 1, "map", _wide(np.sinh))
COSH = row("cosh", 1, "map", _wide(np.cosh))
TANH = row("tanh", 1, "map", _wide(np.tanh))
ASINH = row("asinh", 1, "map", _wide(np.arcsinh))
ACOSH = row("acosh", 1, "map", _wide(np.arccosh))
ATANH = row("atanh", 1, "map", _wide(np.arctanh))
ERF = row("erf", 1, "map", _each(math.erf))
ERFC = row("erfc", 1, "map", _each(math.erfc))
SIGMOID = row("sigmoid", 1, "map", _sigmoid)
CAST = row("cast", 1, "map", result="attrs")  # meaning in interp: depends on both types
BITCAST = row("bitcast", 1, "map", result="attrs")

# map, two args.  div and rem on integers truncate as C does; a zero divisor must have been caught before (see build.check)
ADD = row("add", 2, "map", np.add, algebra="commutative", fp="fadd", integer="add", identity=0)
SUB = row("sub", 2, "map", np.subtract, fp="fsub", integer="sub")
MUL = row("mul", 2, "map", np.multiply, algebra="commutative", fp="fmul", integer="mul", identity=1)
DIV = row("div", 2, "map", _truncated_quotient, fp="fdiv", integer="sdiv/udiv")
REM = row(
    "rem", 2, "map", lambda x, y: np.fmod(x, y if x.dtype.kind == "f" else np.where(y == 0, np.ones_like(y), y)), fp="frem", integer="srem/urem"
)
POW = row("pow", 2, "map", _wide(np.power))
ATAN2 = row("atan2", 2, "map", _wide(np.arctan2))
HYPOT = row("hypot", 2, "map", _wide(np.hypot))
MIN = row("min", 2, "map", np.minimum, algebra="commutative associative idempotent", fp="llvm.minimum", integer="llvm.smin/llvm.umin")  # nan wins
MAX = row("max", 2, "map", np.maximum, algebra="commutative associative idempotent", fp="llvm.maximum", integer="llvm.smax/llvm.umax")  # nan wins
EQ = row("eq", 2, "map", np.equal, algebra="commutative", fp="fcmp oeq", integer="icmp eq", result="bool")
NE = row("ne", 2, "map", np.not_equal, algebra="commutative", fp="fcmp une", integer="icmp ne", result="bool")
LT = row("lt", 2, "map", np.less, fp="fcmp olt", integer="icmp slt/icmp ult", result="bool")
LE = row("le", 2, "map", np.less_equal, fp="fcmp ole", integer="icmp sle/icmp ule", result="bool")
GT = row("gt", 2, "map", np.greater, fp="fcmp ogt", integer="icmp sgt/icmp ugt", result="bool")
GE = row("ge", 2, "map", np.greater_equal, fp="fcmp oge", integer="icmp sge/icmp uge", result="bool")
AND = row("and", 2, "map", np.bitwise_and, algebra="commutative associative idempotent", integer="and")
OR = row("or", 2, "map", np.bitwise_or, algebra="commutative associative idempotent", integer="or")
XOR = row("xor", 2, "map", np.bitwise_xor, algebra="commutative associative", integer="xor")
SHL = row("shl", 2, "map", _shift(np.left_shift), integer="shl")  # 0 <= y < bits; the aten layer handles the rest as eager does
SHR = row("shr", 2, "map", _shift(np.right_shift), integer="ashr/lshr")
COPYSIGN = row("copysign", 2, "map", np.copysign, fp="llvm.copysign")

# map, three args
WHERE = row("where", 3, "map", np.where, result="attrs")  # bool, x, y
SELDOM = row("seldom", 3, "map", attrs=Symbol, result="attrs")  # bool, x, y: y, and where bool holds, which is seldom, the C library's function of x
FMA = row("fma", 3, "map", fp="llvm.fma")  # made by legalize only: the user's a * b + c is never contracted

# view
RESHAPE = row("reshape", 1, "view", result="attrs")
PERMUTE = row("permute", 1, "view", attrs=Order, result="attrs")
EXPAND = row("expand", 1, "view", result="attrs")  # axes of size 1 repeat; the rank stays
SLICE = row("slice", 1, "view", attrs=Slice, result="attrs")
PAD = row("pad", 2, "view", attrs=Pad, result="attrs")  # x, fill (a scalar of shape ())
CONCAT = row("concat", None, "view", attrs=Axis, result="attrs")
STRIDED = row("strided", 1, "view", attrs=Strided, result="attrs")
WINDOW = row("window", 1, "view", attrs=Windows, result="attrs")  # [*lead, *sizes] -> [*lead, *places, *taps]

# reduce: the axes disappear; accumulates in the type it is given.  Of an empty axis: the identity (max, min, argmax, argmin: not allowed)
SUM = row("sum", 1, "reduce", np.sum, attrs=Axes, result="attrs", identity=0)
PROD = row("prod", 1, "reduce", np.prod, attrs=Axes, result="attrs", identity=1)
AMAX = row("amax", 1, "reduce", np.max, attrs=Axes, result="attrs")  # nan wins
AMIN = row("amin", 1, "reduce", np.min, attrs=Axes, result="attrs")
ANY = row("any", 1, "reduce", np.any, attrs=Axes, result="attrs", identity=0)  # of bool
ALL = row("all", 1, "reduce", np.all, attrs=Axes, result="attrs", identity=1)
ARGMAX = row("argmax", 1, "reduce", np.argmax, attrs=Axes, result="attrs")  # exactly one axis; int64; the first nan or the first of equals
ARGMIN = row("argmin", 1, "reduce", np.argmin, attrs=Axes, result="attrs")

# scan
CUMSUM = row("cumsum", 1, "scan", np.cumsum, attrs=Axis)
CUMPROD = row("cumprod", 1, "scan", np.cumprod, attrs=Axis)

# contract: left [*batch, M, K], right [*batch, K, N], both float32 or float64 -> [*batch, M, N].  The order of the sums is the loops' choice
CONTRACT = row("contract", 2, "contract", _matrix_product, result="attrs")

# index.  gather: x, then one int64 index per axis of x, all of the result's shape.  scatter: base, value, then one int64
# index per axis of base, all of value's shape, taken in row-major order.  An index outside [0, size) stops the program,
# which is then run by eager so that the user gets PyTorch's own exception.
GATHER = row("gather", None, "index", result="attrs")
SCATTER = row("scatter", None, "index", attrs=Scatter, result="attrs")
CHECK = row("check", 2, "index")  # x, ok (bool, any shape): x, and the program stops as above unless all of ok holds

# call
CALL = row("call", None, "call", attrs=Call, result="attrs")
RESULT = row("result", 1, "call", attrs=Slot, result="attrs")

# loop: scalars inside a loop program (loops/nest.py)
INDEX = row("index", 0, "loop", attrs=Symbol, result="attrs")  # a loop variable, int64
LOCAL = row("local", 0, "loop", attrs=Symbol, result="attrs")  # what a loop accumulated
LOAD = row("load", None, "loop", attrs=Memory, result="attrs")  # offset[, guard]: where guard is false nothing is read and 0 results
