"""Every map primitive with a spelling, on special values of every element type, against ir/interp bit for bit."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from tests.codegen.native import from_memory, run_map, same, to_memory
from tests.codegen.specials import pairs, specials
from thermit.codegen.target import x86_target
from thermit.ir import build as b
from thermit.ir import prims as p
from thermit.ir.interp import evaluate
from thermit.ir.node import Node
from thermit.ir.prims import PRIMS, Prim
from thermit.ir.types import BFLOAT16, BOOL, DTYPES, FLOAT32, FLOAT64, DType

REAL = [d for d in DTYPES.values() if not d.is_complex]
ARITHMETIC = [d for d in REAL if not d.is_half]
I = b.index("i")  # noqa: E741
WIDTHS = (1, 8)
_BOOLEAN = {"not", "and", "or", "xor", "eq", "ne", "lt", "le", "gt", "ge", "min", "max", "add", "mul"}


def spelled(arity: int, dtype: DType) -> list[Prim]:
    """The primitives that have an instruction for this type."""
    rows = [r for r in PRIMS.values() if r.kind == "map" and r.arity == arity and r not in (p.CAST, p.BITCAST, p.WHERE, p.FMA)]
    if dtype is BOOL:
        return [r for r in rows if r.name in _BOOLEAN]
    return [r for r in rows if (r.fp if dtype.is_float else r.integer)]


def load(name: str, dtype: DType) -> Node:
    return b.load(name, dtype, I)


def check(values: list[Node], inputs: dict[str, tuple[DType, np.ndarray]], expected: list[np.ndarray], width: int, target=None, valid=None) -> None:
    memory = {n: (d, to_memory(a, d)) for n, (d, a) in inputs.items()}
    for node, got, want in zip(values, run_map(values, memory, width, target), expected, strict=True):
        agree = same(from_memory(got, node.dtype), np.ascontiguousarray(want)) | (False if valid is None else ~valid(node))
        k = int(np.argmin(agree))
        assert agree.all(), f"{node} of {[a.dtype for a in node.args]}: {[a[k] for _, a in inputs.values()]} gives {got[k]}, not {want[k]}"


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", ARITHMETIC, ids=str)
def test_one_argument(dtype: DType, width: int) -> None:
    values = [Node(r, (load("x", dtype),), None, load("x", dtype).type) for r in spelled(1, dtype)]
    x = specials(dtype)
    check(values, {"x": (dtype, x)}, [evaluate(v, [x]) for v in values], width)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", ARITHMETIC, ids=str)
def test_two_arguments(dtype: DType, width: int) -> None:
    x, y = pairs(dtype)
    values = [b.map2(r, load("x", dtype), load("y", dtype)) for r in spelled(2, dtype)]

    def valid(node: Node) -> np.ndarray:
        """Division by zero and shifts by too much have no meaning; they only must not trap."""
        if dtype.is_integer and node.prim in (p.DIV, p.REM):
            return y != 0
        if node.prim in (p.SHL, p.SHR):
            return (y >= 0) & (y.astype(object) < dtype.bits)
        return np.ones(len(y), bool)

    check(values, {"x": (dtype, x), "y": (dtype, y)}, [evaluate(v, [x, y]) for v in values], width, valid=valid)


@pytest.mark.parametrize("dtype", [d for d in ARITHMETIC if d is not BOOL], ids=str)
def test_a_constant_second_argument(dtype: DType) -> None:
    x = specials(dtype)
    values = [b.map2(r, load("x", dtype), b.const(k, dtype)) for r in spelled(2, dtype) for k in (1, 3, 7, -1, 2)]
    valid = [v for v in values if not (v.prim in (p.SHL, p.SHR) and v.args[1].attrs.value not in range(dtype.bits))]
    check(valid, {"x": (dtype, x)}, [evaluate(v, [x, np.full_like(x, v.args[1].attrs.value)]) for v in valid], 8)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", REAL, ids=str)
def test_where(dtype: DType, width: int) -> None:
    x = specials(dtype)
    condition = np.arange(len(x)) % 3 == 0
    value = b.where(load("c", BOOL), load("x", dtype), load("y", dtype))
    inputs = {"c": (BOOL, condition), "x": (dtype, x), "y": (dtype, x[::-1].copy())}
    check([value], inputs, [np.where(condition, x, x[::-1])], width)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
def test_fma(dtype: DType, width: int) -> None:
    x, y = pairs(dtype)
    rng = np.random.default_rng(0)
    z = rng.permutation(np.resize(specials(dtype), len(x)))
    x, y, z = (np.concatenate([a, rng.standard_normal(500).astype(a.dtype)]) for a in (x, y, z))
    x[-100:], z[-100:] = y[-100:], -y[-100:] * y[-100:]
    value = b.fma(load("x", dtype), load("y", dtype), load("z", dtype))
    with np.errstate(all="ignore"):
        want = np.array([_exact_fma(a, m, c) for a, m, c in zip(x, y, z, strict=True)], x.dtype)
    check([value], {"x": (dtype, x), "y": (dtype, y), "z": (dtype, z)}, [want], width)


def _exact_fma(x: np.floating, y: np.floating, z: np.floating) -> np.floating:
    if not (np.isfinite(x) and np.isfinite(y) and np.isfinite(z)):
        return x * y + z if not (np.isfinite(x) and np.isfinite(y)) else z
    exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
    if exact == 0:
        return x * y + z if x == 0 or y == 0 else type(x)(0.0)
    try:
        return type(x)(float(exact)) if x.dtype == np.float64 else _round32(exact)
    except OverflowError:
        return type(x)(np.inf if exact > 0 else -np.inf)


def _round32(exact: Fraction) -> np.float32:
    """Rounded once to float32: through float64 with the last bit made odd where it is not exact."""
    wide = float(exact)
    if Fraction(wide) != exact and not np.float64(wide).view(np.uint64) & 1:
        wide = float(np.nextafter(wide, np.inf if exact > Fraction(wide) else -np.inf))
    return np.float32(wide)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_remainder_of_random_floats(dtype: DType, width: int) -> None:
    rng = np.random.default_rng(1)
    word = np.uint32 if dtype is FLOAT32 else np.uint64
    x, y = (rng.integers(0, np.iinfo(word).max, 4000, word, endpoint=True).view(dtype.numpy) for _ in range(2))
    with np.errstate(all="ignore"):
        y[:1500] = x[:1500] * rng.uniform(-2, 2, 1500).astype(dtype.numpy)
    y[1500:1600] = rng.integers(1, 9, 100).astype(word).view(dtype.numpy)  # denormals
    value = b.rem(load("x", dtype), load("y", dtype))
    check([value], {"x": (dtype, x), "y": (dtype, y)}, [evaluate(value, [x, y])], width)


def _torch(x: np.ndarray, dtype: DType) -> torch.Tensor:
    tensor = torch.from_numpy(x.copy())
    return tensor.bfloat16() if dtype is BFLOAT16 else tensor


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("source", REAL, ids=str)
def test_casts_are_those_of_eager_and_interp(source: DType, width: int) -> None:
    x = specials(source)
    values = [b.cast(load("x", source), target) for target in REAL if target is not source]
    check(values, {"x": (source, x)}, [evaluate(v, [x]) for v in values], width)
    for value in values:
        got = from_memory(run_map([value], {"x": (source, to_memory(x, source))}, width)[0], value.dtype)
        eager = torch.cat([_torch(x, source)[k : k + 1].to(getattr(torch, value.dtype.name)) for k in range(len(x))])
        want = eager.float().numpy() if value.dtype is BFLOAT16 else eager.numpy()
        agree = same(got, want)
        assert agree.all(), f"{source} to {value.dtype}: {x[~agree]} gives {got[~agree]}, eager {want[~agree]}"


@pytest.mark.parametrize("source", [d for d in REAL if d is not BOOL], ids=str)
def test_bitcasts(source: DType) -> None:
    x = specials(source)
    x = x[~np.isnan(x)] if source.is_float else x
    values = [b.bitcast(load("x", source), d) for d in REAL if d is not source and d is not BOOL and d.bits == source.bits]
    check(values, {"x": (source, x)}, [evaluate(v, [x]) for v in values], 8)


def test_every_bfloat16_and_float16_is_widened_and_narrowed() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    for dtype in (BFLOAT16, DTYPES["float16"]):
        wide = run_map([b.cast(load("x", dtype), FLOAT32)], {"x": (dtype, bits)}, 8)[0]
        assert same(wide, from_memory(bits, dtype).astype(np.float32)).all()
        back = run_map([b.cast(load("x", FLOAT32), dtype)], {"x": (FLOAT32, wide)}, 8)[0]
        assert same(from_memory(back, dtype), from_memory(bits, dtype)).all()


@pytest.mark.parametrize("level", ["sse2", "sse4", "avx2"])
def test_older_processors_give_the_same(level: str) -> None:
    """Code for a processor with fewer instructions runs on the host: half types, rounding, masks without hardware."""
    target = x86_target(level)
    for dtype in (FLOAT32, FLOAT64, DTYPES["float16"], BFLOAT16, DTYPES["int8"], DTYPES["int64"]):
        x = specials(dtype)
        values = [b.cast(load("x", dtype), d) for d in REAL if d is not dtype]
        if not dtype.is_half:
            values += [Node(r, (load("x", dtype),), None, load("x", dtype).type) for r in spelled(1, dtype)]
        check(values, {"x": (dtype, x)}, [evaluate(v, [x]) for v in values], 4, target)
