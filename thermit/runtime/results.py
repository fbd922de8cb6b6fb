"""What an ATen call returns, made to fit what the kernels behind it were compiled for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from thermit.ir.node import Return
from thermit.schedule.plan import Buffer


class Stopped(Exception):
    """The program stopped before it wrote any input: a check failed, or a call raised what eager will raise again."""


def flat(results: Sequence[Any]) -> list[Any]:
    """The tensors (or None) that a call returns, lists opened."""
    opened: list[Any] = []
    for result in results:
        opened += flat(result) if isinstance(result, (tuple, list)) else [result]
    return opened


def fitted(buffer: Buffer) -> Callable[..., torch.Tensor]:
    """A function of a call's result and operands: the result with the buffer's strides, in memory of its own.

    It raises Stopped for another shape or type: tracing on meta tensors foresaw something else.
    """
    dtype = getattr(torch, buffer.dtype.name)

    def fit(result: Any, *operands: torch.Tensor) -> torch.Tensor:
        if not isinstance(result, torch.Tensor) or tuple(result.shape) != buffer.sizes or result.dtype is not dtype:
            raise Stopped(f"a call returned {result!r:.80}, not {buffer.dtype}{list(buffer.sizes)}")
        storage = result.untyped_storage().data_ptr()
        shares = storage != 0 and any(o.untyped_storage().data_ptr() == storage for o in operands)
        odd = result.is_conj() or result.is_neg()
        strides = zip(buffer.sizes, result.stride(), buffer.strides, strict=True)
        if not shares and not odd and all(n == 1 or a == b or 0 in buffer.sizes for n, a, b in strides):
            return result
        return torch.empty_strided(buffer.sizes, buffer.strides, dtype=dtype).copy_(result)

    return fit


def seen(tensor: torch.Tensor, r: Return) -> torch.Tensor:
    """An input or output as the function returns it."""
    w = r.window
    if w is None:
        return tensor
    if r.way == "view":
        return tensor.as_strided(w.sizes, w.strides, w.offset)
    cut = tensor.detach() if r.way == "detach" else tensor.data
    if (tuple(cut.shape), cut.stride(), cut.storage_offset()) == (w.sizes, w.strides, w.offset):
        return cut
    return cut.as_strided(w.sizes, w.strides, w.offset)


def without_autocast(op: torch._ops.OpOverload) -> Callable[..., Any]:
    """The operation as it was recorded, after autocast had its say: it must not cast again."""
    plain: Callable[..., Any] = op._op
    if not torch.is_autocast_enabled("cpu"):
        return plain

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            return plain(*args, **kwargs)

    return call
