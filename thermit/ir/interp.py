"""The meaning of a graph: numpy, one call per node.  The oracle of the tests and the folder of constants, never the fast path.

Arrays hold bfloat16 as float32 with zero low bits.  Raises OutOfRange where a program would stop (gather, scatter, check).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from thermit.ir import prims as p
from thermit.ir.node import Graph, Node, toposort
from thermit.ir.types import BFLOAT16, BOOL, FLOAT16, INT64, UINT8, UINT32, UINT64, DType

Array = np.ndarray
_COMBINE = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


class OutOfRange(IndexError):
    """An index outside its axis, or a failed check."""


def round_bfloat16(x: Array) -> Array:
    """float32 to the nearest bfloat16, ties to even, held in float32."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(x), np.float32(np.nan), rounded.view(np.float32).reshape(x.shape))


def cast(x: Array, source: DType, target: DType) -> Array:
    """Conversion as PyTorch does it on x86: half types through float32; floats to integers truncate, by way of the integer that the
    processor converts to (32 bits, or 64 for uint8 and what is wider), whose value out of range is 0x80..0; uint64 in two halves."""
    if target is BOOL:
        return x != 0
    if target is BFLOAT16:
        return round_bfloat16(x.astype(np.float32))
    if target is FLOAT16:
        return x.astype(np.float32).astype(np.float16)
    if source.is_float and target.is_integer:
        wide = x.astype(np.float64)
        if target is UINT64:
            upper = wide >= 2.0**63
            return np.where(upper, _truncate(wide - 2.0**63, 64) ^ np.iinfo(np.int64).min, _truncate(wide, 64)).astype(np.uint64)
        return _truncate(wide, 64 if target in (UINT8, UINT32, INT64) else 32).astype(target.numpy)
    return x.astype(target.numpy)


def _truncate(x: Array, bits: int) -> Array:
    limit = 2.0 ** (bits - 1)
    inside = (np.trunc(x) >= -limit) & (np.trunc(x) < limit)
    return np.where(inside, np.where(inside, x, 0).astype(np.int64), -(2 ** (bits - 1)))


def bitcast(x: Array, source: DType, target: DType) -> Array:
    if source is BFLOAT16:
        x = (np.ascontiguousarray(x).view(np.uint32) >> 16).astype(np.uint16)
    if target is BFLOAT16:
        return (np.ascontiguousarray(x).view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.ascontiguousarray(x).view(target.numpy)


def _positions(node: Node, shape: tuple[int, ...], indices: Sequence[Array]) -> tuple[Array, ...]:
    for size, index in zip(shape, indices, strict=True):
        if index.size and (index.min() < 0 or index.max() >= size):
            raise OutOfRange(f"{node!r}: an index is outside [0, {size})")
    return tuple(indices)


def _view(node: Node, args: Sequence[Array]) -> Array:
    x, a = args[0], node.attrs
    match node.prim.name:
        case "reshape":
            return x.reshape(node.shape)
        case "permute":
            return x.transpose(a.order)
        case "expand":
            return np.broadcast_to(x, node.shape)
        case "slice":
            picks = [s + t * np.arange(n) for s, t, n in zip(a.starts, a.steps, node.shape, strict=True)]
            return x[np.ix_(*picks)] if picks else x
        case "concat":
            return np.concatenate(args, a.axis)
        case "strided":
            at = np.full(node.shape, a.offset, np.int64)
            for axis, step in enumerate(a.strides):
                at = at + step * np.arange(node.shape[axis]).reshape([-1 if k == axis else 1 for k in range(len(node.shape))])
            return x[at]
        case "window":
            lead, along = x.strides[: x.ndim - len(a.strides)], x.strides[x.ndim - len(a.strides) :]
            steps = [s * k for each in (a.strides, a.dilations) for s, k in zip(along, each, strict=True)]
            return np.lib.stride_tricks.as_strided(x, node.shape, (*lead, *steps)).copy()
    out = np.full(node.shape, args[1], x.dtype)  # pad
    out[tuple(slice(lo, lo + (n - 1) * (c + 1) + 1, c + 1) for lo, c, n in zip(a.low, a.interior, x.shape, strict=True))] = x
    return out


def _scatter(node: Node, args: Sequence[Array]) -> Array:
    out, value = args[0].copy(), args[1]
    at = _positions(node, out.shape, args[2:])
    if node.attrs.combine == "set":
        for k in np.ndindex(value.shape):
            out[tuple(i[k] for i in at)] = value[k]
    else:
        _COMBINE[node.attrs.combine].at(out, at, value)
    return out


def _fma(x: Array, y: Array, z: Array) -> Array:
    """x * y + z rounded once (float64: the exact product as two numbers, summed in long double, so twice at worst)."""
    if x.dtype == np.float32:
        return _sum_to_odd(x.astype(np.float64) * y, z.astype(np.float64)).astype(np.float32)
    product = x * y
    split_x, split_y = (np.float64(134217729.0) * a for a in (x, y))  # 2^27 + 1: halves of 26 bits
    high_x, high_y = split_x - (split_x - x), split_y - (split_y - y)
    low_x, low_y = x - high_x, y - high_y
    error = low_x * low_y - (((product - high_x * high_y) - low_x * high_y) - high_x * low_y)
    error = np.where(np.isfinite(error), error, 0.0)
    return (product.astype(np.longdouble) + z + error).astype(np.float64)


def _sum_to_odd(x: Array, y: Array) -> Array:
    """x + y in float64, rounded to the neighbour with an odd last bit: a second rounding to float32 is then as if it were the only one."""
    total = np.ascontiguousarray(x + y)
    rest = total - x
    error = (x - (total - rest)) + (y - rest)
    bits = total.view(np.int64)
    inexact = np.isfinite(error) & (error != 0) & (bits & 1 == 0)
    return np.where(inexact, bits + np.where((error > 0) == (total > 0), 1, -1), bits).view(np.float64)


def evaluate(node: Node, args: Sequence[Array]) -> Array:
    """The array that a node (not input, call, result, loop) means for the arrays of its args."""
    prim, dtype = node.prim, node.dtype
    with np.errstate(all="ignore"):
        match prim.name:
            case "const":
                return np.full(node.shape, node.attrs.value, dtype.numpy)
            case "iota":
                axis = node.attrs.axis
                return np.broadcast_to(np.arange(node.shape[axis]).reshape([-1 if k == axis else 1 for k in range(node.type.ndim)]), node.shape)
            case "cast":
                return cast(args[0], node.args[0].dtype, dtype)
            case "bitcast":
                return bitcast(args[0], node.args[0].dtype, dtype)
            case "fma":
                return _fma(*args)
            case "seldom":
                function = getattr(np, node.attrs.name)
                return np.where(args[0], function(args[1].astype(np.longdouble)).astype(dtype.numpy), args[2])
            case "gather":
                return args[0][_positions(node, args[0].shape, args[1:])]
            case "scatter":
                return _scatter(node, args)
            case "check":
                if not args[1].all():
                    raise OutOfRange(f"{node!r}: the check does not hold")
                return args[0]
        if prim.kind == "view":
            return _view(node, args)
        assert prim.ref is not None, f"{prim} has no meaning in numpy"
        if prim.kind == "reduce":
            axes = node.attrs.axes
            if prim in (p.ARGMAX, p.ARGMIN):
                return np.asarray(prim.ref(args[0], axis=axes[0])).astype(np.int64)
            return np.asarray(prim.ref(args[0], axis=axes)).astype(dtype.numpy)
        if prim.kind == "scan":
            return np.asarray(prim.ref(args[0], axis=node.attrs.axis)).astype(dtype.numpy)
        return np.asarray(prim.ref(*args), dtype.numpy)


def run(graph: Graph, inputs: Sequence[Array]) -> tuple[list[Array], list[Array]]:
    """Values of the outputs and of the updates.  A graph with calls has no meaning here."""
    values: dict[Node, Array] = dict(zip(graph.inputs, inputs, strict=True))
    for node in toposort(graph.roots):
        if node not in values:
            values[node] = evaluate(node, [values[a] for a in node.args])
    return [values[o.value] for o in graph.outputs], [values[u.value] for u in graph.updates]
