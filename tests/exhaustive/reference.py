"""What the mathematical primitives should give, and how far off a result is.

float32 is measured against float64 (PyTorch's own functions), float64 against long double (the C library's, and series of our own
where numpy has none; x86: 64 bits).  An error is counted in units of the last place of the true value; an infinite result counts as
the power of two that comes after the largest number.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from thermit.codegen.emit import emit
from thermit.codegen.legalize import MATHEMATICS, legalize
from thermit.codegen.target import Target, host_target
from thermit.ir import build as b
from thermit.ir import prims as p
from thermit.ir.node import Node
from thermit.ir.prims import Prim
from thermit.ir.types import FLOAT32, FLOAT64, INT64, UINT64, DType
from thermit.loops.nest import LoopProgram, Memory, Store
from thermit.runtime.machine import MachineCode

Array = np.ndarray
Function = Callable[..., Array]
NATIVE = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
LONG = np.longdouble
TWO_OVER_ROOT_PI = LONG("1.1283791670955125738961589031215451716881")


def functions(arity: int) -> list[Prim]:
    """Those that stand for a function of PyTorch's."""
    return [prim for prim in MATHEMATICS[FLOAT32] if prim.arity == arity and prim is not p.EXP_FALLING]


# ---------------------------------------------------------------------------------------------- the compiled function
class Kernel:
    """A primitive compiled for arrays of exactly `elems` elements."""

    def __init__(self, prim: Prim, dtype: DType, elems: int, width: int | None = None, target: Target | None = None) -> None:
        target = target or host_target()
        self.width = width or 2 * target.lanes(dtype.bits)
        index = b.index("i")
        loads = tuple(b.load(f"in{k}", dtype, index) for k in range(prim.arity or 0))
        memories = (*(Memory(f"in{k}", dtype, "in", elems) for k in range(len(loads))), Memory("out", dtype, "out", elems))
        body = (Store("out", index, Node(prim, loads, None, loads[0].type)),)
        program = LoopProgram("kernel", memories, index, elems, body, "vector" if self.width > 1 else "serial", self.width)
        self.code = MachineCode(emit([legalize(program, target)], target), target)
        self.call = NATIVE(self.code.address("kernel"))
        self.elems, self.dtype = elems, dtype

    def __call__(self, *inputs: Array) -> Array:
        out = np.empty(self.elems, self.dtype.numpy)
        assert all(a.shape == (self.elems,) and a.dtype == out.dtype and a.flags.c_contiguous for a in inputs)
        pointers = (ctypes.c_void_p * (len(inputs) + 1))(*[a.ctypes.data for a in inputs], out.ctypes.data)
        assert self.call(pointers, 0, self.elems) == 0
        return out


class ErrorKernel:
    """ulps32 of a float32 function of one argument, fused with the function: for 2^32 arguments numpy's passes take too long."""

    def __init__(self, prim: Prim, elems: int) -> None:
        target, index = host_target(), b.index("i")
        x, true = b.load("x", FLOAT32, index), b.load("true", FLOAT64, index)
        error = b.cast(_ulps32_of(b.cast(Node(prim, (x,), None, x.type), FLOAT64), true), FLOAT32)
        memories = (Memory("x", FLOAT32, "in", elems), Memory("true", FLOAT64, "in", elems), Memory("out", FLOAT32, "out", elems))
        program = LoopProgram("kernel", memories, index, elems, (Store("out", index, error),), "vector", target.lanes(32))
        self.code = MachineCode(emit([legalize(program, target)], target), target)
        self.call = NATIVE(self.code.address("kernel"))

    def __call__(self, x: Array, true: Array, out: Array) -> None:
        pointers = (ctypes.c_void_p * 3)(x.ctypes.data, true.ctypes.data, out.ctypes.data)
        assert self.call(pointers, 0, x.size) == 0


def _ulps32_of(got: Node, true: Node) -> Node:
    """As ulps32, in primitives."""
    nothing, infinite, limit = b.like(0.0, true), b.like(np.inf, true), b.like(2.0**128, true)

    def finite(x: Node) -> Node:
        return b.where(b.gt(b.abs_(x), limit), b.copysign(limit, x), x)

    exponent = b.and_(b.shr(b.bitcast(true, UINT64), 52), 0x7FF)
    exponent = b.minimum(b.maximum(exponent, 1023 - 126), 1023 + 127)
    per_unit = b.bitcast(b.shl(b.sub(b.like(2046 + 23, exponent), exponent), 52), FLOAT64)
    error = b.mul(b.abs_(b.sub(finite(got), finite(true))), per_unit)
    only_got, only_true = b.ne(got, got), b.ne(true, true)
    error = b.where(b.xor(only_got, only_true), infinite, b.where(only_true, nothing, error))
    signs = b.lt(b.xor(b.bitcast(got, INT64), b.bitcast(true, INT64)), 0)
    return b.where(b.and_(b.and_(b.eq(got, 0.0), b.eq(true, 0.0)), signs), infinite, error)


def compiled(prim: Prim, *inputs: Array, width: int | None = None, target: Target | None = None) -> Array:
    """The primitive of arrays of any equal size."""
    dtype = FLOAT32 if inputs[0].dtype == np.float32 else FLOAT64
    return Kernel(prim, dtype, inputs[0].size, width, target)(*[np.ascontiguousarray(a) for a in inputs])


# ---------------------------------------------------------------------------------------------- the truth
def eager(prim: Prim) -> Function:
    """PyTorch's function, of float32 or float64."""
    function = getattr(torch, prim.name)
    return lambda *args: function(*(torch.from_numpy(a) for a in args)).numpy()


def _exp_of_minus_square(x: Array) -> Array:
    high = x.astype(np.float32).astype(LONG)
    return np.exp(-high * high) * np.exp(-(x - high) * (x + high))


def _erf_by_series(x: Array, terms: int) -> Array:
    """2 / sqrt(pi) e^(-x^2) sum of 2^n x^(2n+1) / (2n+1)!!, all terms positive."""
    square, total = x * x, np.ones_like(x)
    for n in range(terms, 0, -1):
        total = 1 + total * (square * (LONG(2) / (2 * n + 1)))
    return x * total * TWO_OVER_ROOT_PI * _exp_of_minus_square(x)


def _erfc_by_fraction(x: Array, terms: int) -> Array:
    """The continued fraction of Laplace; what is cut off is about what would repeat itself."""
    tail = (np.sqrt(x * x + 2 * LONG(terms + 1)) - x) / 2
    for k in range(terms, 0, -1):
        tail = LONG(k) / 2 / (x + tail)
    return _exp_of_minus_square(x) / (x + tail) * (TWO_OVER_ROOT_PI / 2)


# up to where which of the two with how many terms is right to 60 bits
_SERIES = ((1.0, 22), (1.5, 32), (2.0, 44))
_FRACTION = ((2.0, 100), (2.5, 64), (4.0, 48), (np.inf, 28))


def _in_pieces(size: Array, cut: float, near: Function, far: Function) -> Array:
    """near(size, terms) below `cut` and far(size, terms) above, each with as many terms as its arguments need."""
    value, low = np.empty_like(size), 0.0
    pieces = [(high, near, n) for high, n in _SERIES if high <= cut] + [(high, far, n) for high, n in _FRACTION if high > cut]
    for high, function, terms in pieces:
        inside = (size >= low) & (size < high)
        value[inside], low = function(size[inside], terms), high
    return value


def _erf(x: Array) -> Array:
    value = _in_pieces(np.minimum(np.abs(x), LONG(30)), 2.0, _erf_by_series, lambda w, terms: 1 - _erfc_by_fraction(w, terms))
    return np.where(np.isnan(x), x, np.copysign(value, x))


def _erfc(x: Array) -> Array:
    value = _in_pieces(np.minimum(np.abs(x), LONG(150)), 1.5, lambda w, terms: 1 - _erf_by_series(w, terms), _erfc_by_fraction)
    return np.where(np.isnan(x), x, np.where(x < 0, 2 - value, value))


_LONG: dict[str, Function] = {"erf": _erf, "erfc": _erfc, "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "pow": np.power, "atan2": np.arctan2}


def in_long_double(prim: Prim) -> Function:
    name = prim.name
    found = _LONG.get(name) or getattr(np, name, None) or getattr(np, "arc" + name.lstrip("a"))
    return lambda *args: found(*(a.astype(LONG) for a in args))


# ---------------------------------------------------------------------------------------------- errors
def ulps32(got: Array, true: Array) -> Array:
    """|got - true| in units of float32 at true (float64); inf where only one is nan or a zero has the wrong sign."""
    exponent = ((true.view(np.int64) >> 52) & 0x7FF).clip(1023 - 126, 1023 + 127)
    per_unit = ((2046 + 23 - exponent) << 52).view(np.float64)
    error = np.abs(_finite(got.astype(np.float64), 2.0**128) - _finite(true, 2.0**128)) * per_unit
    return _with_nan_and_zero(error, got, true)


def ulps64(got: Array, true: Array) -> Array:
    """|got - true| in units of float64 at true (long double)."""
    limit = np.ldexp(LONG(1), 1024)
    _, exponent = np.frexp(_finite(true, limit))
    unit = np.ldexp(LONG(1), np.clip(exponent, -1021, 1024) - 53)
    return _with_nan_and_zero((np.abs(_finite(got.astype(LONG), limit) - _finite(true, limit)) / unit).astype(np.float64), got, true)


def _finite(x: Array, limit: float) -> Array:
    return np.clip(x, -limit, limit)


def _with_nan_and_zero(error: Array, got: Array, true: Array) -> Array:
    nan = np.isnan(true)
    if nan.any() or np.isnan(error).any():
        error = np.where(nan, np.where(np.isnan(got), 0, np.inf), np.where(np.isnan(error), np.inf, error))
    zero = (got == 0) & (true == 0)
    return np.where(zero & (np.signbit(got) != np.signbit(true)), np.inf, error) if zero.any() else error


# ---------------------------------------------------------------------------------------------- arguments
def _specials() -> list[float]:
    whole = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 7.0, 10.0, 16.0, 100.0, 1000.0, 2.0**23, 2.0**24 - 1, 2.0**52, 2.0**53 - 1, 2.0**60]
    ends = [88.72, 88.73, 103.9, 104.1, 128.0, 149.5, 150.5, 709.7, 709.8, 710.4, 710.5, 745.1, 745.2, 1024.0, 1074.5, 1075.5, 9.0, 10.1, 26.6, 27.3]
    tiny = [2.0**-149, 2.0**-127, 2.0**-126, 1e-20, 5e-324, 1e-310, 2.2250738585072014e-308, 2.0**-30, 2.0**-13, 2.0**-54]
    huge = [2.0**39.9, 2.0**40, 1e15, 1e20, 3.4028234e38, 1e300, 1.7976931348623157e308, np.inf]
    near = [k * np.pi / 4 for k in (1, 2, 3, 4, 5, 100, 10**6, 10**9)] + [
        1 - 2.0**-24,
        1 + 2.0**-23,
        1 - 2.0**-53,
        1 + 2.0**-52,
        2 / 3,
        4 / 3,
        0.75,
        1.25,
    ]
    return [s * v for v in whole + ends + tiny + huge + near for s in (1, -1)] + [np.nan]


SPECIALS = _specials()
# how far from 0 a function has something to tell; 20 where none stands
LIMITS = {
    "exp": 750, "exp2": 1100, "expm1": 750, "sinh": 720, "cosh": 720, "tanh": 25, "sigmoid": 760, "erf": 7, "erfc": 28,
    "sin": 1e6, "cos": 1e6, "tan": 1e6,
}  # fmt: skip


def batches(prim: Prim, dtype: DType, elems: int, count: int, seed: int = 0) -> Iterator[tuple[Array, ...]]:
    """`count` tuples of `elems` arguments: any bits, every exponent near 0, about 1, over the range in which the function lives."""
    rng = np.random.default_rng(seed)
    kind, integer = dtype.numpy, np.dtype(f"uint{dtype.bits}")
    limit = float(LIMITS.get(prim.name, 20.0))

    def column(style: int) -> Array:
        sign = rng.choice([-1.0, 1.0], elems)
        match style % 6:
            case 0:
                return rng.integers(0, 1 << dtype.bits, elems, dtype=integer).view(kind)
            case 1:
                return rng.uniform(-limit, limit, elems)
            case 2:
                return rng.uniform(-3, 3, elems)
            case 3:
                return sign * np.exp2(rng.uniform(-70, 10, elems))
            case 4:
                return 1 + sign * np.exp2(rng.uniform(-dtype.bits, 0, elems))
        return rng.uniform(-1, 1, elems)

    def second(style: int, first: Array) -> Array:
        if prim is not p.POW:
            return column(style // 2)
        reach = np.log(np.finfo(kind).max) / np.maximum(np.abs(np.log(np.abs(first.astype(np.float64)))), 1e-300)  # so that the power has a value
        return rng.uniform(-1, 1, elems) * np.clip(reach, 0, 1e30) if style % 3 else rng.integers(-40, 40, elems).astype(np.float64)

    for k in range(count):
        with np.errstate(all="ignore"):
            columns = [column(k)]
            if prim.arity == 2:
                columns.append(second(k, columns[0]))
            yield tuple(np.ascontiguousarray(x.astype(kind)) for x in columns)


def specials(prim: Prim, dtype: DType) -> tuple[Array, ...]:
    """All special values, or all pairs of them."""
    with np.errstate(all="ignore"):
        values = np.array(SPECIALS).astype(dtype.numpy)
    if prim.arity == 1:
        return (values,)
    x, y = np.meshgrid(values, values)
    return np.ascontiguousarray(x.ravel()), np.ascontiguousarray(y.ravel())


def differences(prim: Prim, dtype: DType) -> list[str]:
    """Special arguments at which the kind of result (nan, infinity, zero with its sign, finite) is neither eager's nor the true one."""
    args = specials(prim, dtype)
    got, theirs = compiled(prim, *args), eager(prim)(*args)
    with np.errstate(all="ignore"):
        true = in_long_double(prim)(*args).astype(got.dtype)

    def kind(x: Array) -> Array:
        return np.where(np.isnan(x), 9.0, np.copysign(np.where(np.isinf(x), 5.0, np.where(x == 0, 2.0, 3.0)), x))

    wrong = (kind(got) != kind(theirs)) & (kind(got) != kind(true))
    return [f"{prim}({', '.join(str(a[k]) for a in args)}) = {got[k]}, eager {theirs[k]}" for k in np.flatnonzero(wrong)]


def worst_of(results: Sequence[tuple[float, tuple[float, ...]]]) -> tuple[float, tuple[float, ...]]:
    return max(results, key=lambda r: r[0])
