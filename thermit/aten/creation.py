"""Tensors made from numbers, and copies: full, arange, eye, linspace, fill, clone, casts.

Only dense CPU tensors of real types; everything else is declined.  Uninitialised memory (empty) is 0 here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from thermit.aten import samples
from thermit.aten.table import DTYPE_OF, TORCH_OF, Lowered, Number, default_dtype, dtype_of, fits, lower, scalar
from thermit.ir import build as b
from thermit.ir.node import Node
from thermit.ir.types import BOOL, FLOAT64, INT64, DType

aten = torch.ops.aten


def _dense(options: dict[str, Any]) -> bool:
    """Whether the options ask for an ordinary CPU tensor."""
    device, layout = options.get("device"), options.get("layout")
    return (device is None or torch.device(device).type == "cpu") and layout in (None, torch.strided) and not options.get("pin_memory")


def _chosen(options: dict[str, Any], default: DType) -> DType | None:
    """The dtype asked for, or the default; None where the row must decline."""
    dtype = DTYPE_OF.get(options["dtype"]) if options.get("dtype") is not None else default
    return dtype if dtype is not None and not dtype.is_complex and _dense(options) else None


def _filled(value: Number, dtype: DType | None, size: Sequence[int]) -> Lowered:
    if dtype is None or isinstance(value, complex) or not fits(value, dtype):
        return NotImplemented
    return b.broadcast_to(scalar(value, dtype), tuple(size))


# ---------------------------------------------------------------------------------------------- one value everywhere
@lower(aten.full.default)
def full(size: Sequence[int], fill_value: Number, **options: Any) -> Lowered:
    if isinstance(fill_value, complex):
        return NotImplemented
    return _filled(fill_value, _chosen(options, dtype_of(fill_value)), size)


@lower(aten.full_like.default)
def full_like(self: Node, fill_value: Number, **options: Any) -> Lowered:
    return _filled(fill_value, _chosen(options, self.dtype), self.shape)


@lower(aten.new_full.default)
def new_full(self: Node, size: Sequence[int], fill_value: Number, **options: Any) -> Lowered:
    return _filled(fill_value, _chosen(options, self.dtype), size)


def _constant(value: int) -> Callable[..., Lowered]:
    def row(size: Sequence[int], **options: Any) -> Lowered:
        return _filled(value, _chosen(options, default_dtype()), size)

    return row


def _constant_like(value: int) -> Callable[..., Lowered]:
    def row(self: Node, **options: Any) -> Lowered:
        return _filled(value, _chosen(options, self.dtype), self.shape)

    return row


def _new_constant(value: int) -> Callable[..., Lowered]:
    def row(self: Node, size: Sequence[int], **options: Any) -> Lowered:
        return _filled(value, _chosen(options, self.dtype), size)

    return row


lower(aten.zeros.default, aten.empty.memory_format)(_constant(0))
lower(aten.ones.default)(_constant(1))
lower(aten.zeros_like.default, aten.empty_like.default)(_constant_like(0))
lower(aten.ones_like.default)(_constant_like(1))
lower(aten.new_zeros.default, aten.new_empty.default)(_new_constant(0))
lower(aten.new_ones.default)(_new_constant(1))


@lower(aten.empty_strided.default, aten.empty_permuted.default)
def empty_strided(size: Sequence[int], stride: Sequence[int], **options: Any) -> Lowered:
    return _filled(0, _chosen(options, default_dtype()), size)


@lower(aten.new_empty_strided.default)
def new_empty_strided(self: Node, size: Sequence[int], stride: Sequence[int], **options: Any) -> Lowered:
    return _filled(0, _chosen(options, self.dtype), size)


@lower(aten.scalar_tensor.default)
def scalar_tensor(s: Number, **options: Any) -> Lowered:
    return _filled(s, _chosen(options, default_dtype()), ())


@lower(aten.fill.Scalar)
def fill(self: Node, value: Number) -> Lowered:
    return _filled(value, self.dtype, self.shape)


@lower(aten.fill.Tensor, samples=samples.filled)
def fill_tensor(self: Node, value: Node) -> Lowered:
    return b.broadcast_to(b.reshape(b.cast(value, self.dtype), ()), self.shape) if value.type.numel == 1 else NotImplemented


@lower(aten.zero.default)
def zero(self: Node) -> Lowered:
    return b.like(0, self)


# ---------------------------------------------------------------------------------------------- counting
@lower(aten.arange.default)
def arange_end(end: Number, **options: Any) -> Lowered:
    return arange(0, end, 1, **options)


@lower(aten.arange.start)
def arange_start(start: Number, end: Number, **options: Any) -> Lowered:
    return arange(start, end, 1, **options)


@lower(aten.arange.start_step)
def arange(start: Number, end: Number, step: Number = 1, **options: Any) -> Lowered:
    """start + step * i, for float types formed in float64 and rounded once."""
    numbers = (start, end, step)
    dtype = _chosen(options, INT64 if all(isinstance(n, int) for n in numbers) else default_dtype())
    if dtype is None or dtype is BOOL:
        return NotImplemented
    size = torch.arange(*numbers, dtype=TORCH_OF[dtype], device="meta").shape[0]
    wide = FLOAT64 if dtype.is_float else INT64
    first, stride = (float(start), float(step)) if dtype.is_float else (int(start), int(step))
    index = b.iota((size,), 0, wide)
    return b.cast(b.add(b.mul(index, stride), first), dtype)


@lower(aten.linspace.default)
def linspace(start: Number, end: Number, steps: int, **options: Any) -> Lowered:
    """Counted from the nearer end; integers in float64, truncated."""
    dtype = _chosen(options, default_dtype())
    if dtype is None or dtype is BOOL or dtype.is_half:
        return NotImplemented
    shape = (steps,)
    if steps == 0:
        return b.const(0, dtype, shape)
    compute = dtype if dtype.is_float else FLOAT64
    first, last = (b.broadcast_to(b.cast(scalar(n, dtype), compute), shape) for n in (start, end))
    if steps == 1:
        return b.cast(first, dtype)
    step = b.div(b.sub(last, first), float(steps - 1))
    index = b.iota(shape, 0)
    up = b.add(first, b.mul(step, b.cast(index, compute)))
    down = b.sub(last, b.mul(step, b.cast(b.sub(b.like(steps - 1, index), index), compute)))
    return b.cast(b.where(b.lt(index, steps // 2), up, down), dtype)


@lower(aten.eye.default)
def eye(n: int, **options: Any) -> Lowered:
    return eye_m(n, n, **options)


@lower(aten.eye.m)
def eye_m(n: int, m: int, **options: Any) -> Lowered:
    dtype = _chosen(options, default_dtype())
    return NotImplemented if dtype is None else b.cast(b.eq(b.iota((n, m), 0), b.iota((n, m), 1)), dtype)


# ---------------------------------------------------------------------------------------------- copies
@lower(aten.clone.default, aten.lift_fresh_copy.default)
def clone(self: Node, *, memory_format: torch.memory_format | None = None) -> Lowered:
    return self


@lower(aten.copy.default)
def copy(self: Node, src: Node, non_blocking: bool = False) -> Lowered:
    return b.broadcast_to(b.cast(src, self.dtype), self.shape)


@lower(aten._to_copy.default)
def to_copy(self: Node, *, non_blocking: bool = False, **options: Any) -> Lowered:
    dtype = _chosen(options, self.dtype)
    return NotImplemented if dtype is None else b.cast(self, dtype)
