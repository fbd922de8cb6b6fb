"""Tensors as inputs: which ones can be compiled for, what code may depend on, which of them share memory.

In:  tensors. Out: a TensorSpec each, or the reason why the call belongs to eager.
Idea: the dispatch key set says in one look-up that a tensor is a plain CPU one (no conj or neg bit, no subclass with its own
dispatch, not sparse, quantized, nested, wrapped by a transform); memory is compared by the bytes that a tensor can reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from thermit.capture.values import NotStatic


class TensorSpec(NamedTuple):
    """Everything about an input tensor that code may depend on.  Only plain strided CPU tensors without conj or neg bit get one.

    `flags`: 1 requires_grad, 2 is a Parameter, 4 is an inference tensor, 8 is the same object as an earlier tensor of the call.
    `group`: inputs whose memory overlaps (or whose storages start at one place) share a number, all others have -1.
    `offset`: within a group, distance in bytes from the lowest storage of the group to this tensor's first element;
    0 outside groups, so that f(x[0]) and f(x[1]) are one signature.
    """

    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    flags: int
    group: int
    offset: int

    def __str__(self) -> str:
        dims = ",".join(map(str, self.sizes))
        return f"{str(self.dtype).removeprefix('torch.')}[{dims}] strides {list(self.strides)}"


_FULL_KEYS: dict[int, int] = {}  # dispatch key set of a plain CPU tensor -> its flag: ordinary 0, inference 4


def _learn_plain_keys() -> None:
    dispatch_keys = torch._C._dispatch_keys
    for dtype in (torch.float32, torch.complex64):
        with torch.inference_mode(False):
            _FULL_KEYS[dispatch_keys(torch.empty(0, dtype=dtype)).raw_repr()] = 0
        with torch.inference_mode():
            _FULL_KEYS[dispatch_keys(torch.empty(0, dtype=dtype)).raw_repr()] = 4


_learn_plain_keys()
_dispatch_keys = torch._C._dispatch_keys
_Tensor, _Parameter = torch.Tensor, torch.nn.Parameter
_grad_enabled = torch.is_grad_enabled
DTYPES = frozenset(
    (
        torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32, torch.int64,
        torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex32, torch.complex64, torch.complex128,
    )
)  # fmt: skip


def tensor_facts(tensor: torch.Tensor) -> tuple[torch.dtype, tuple[int, ...], tuple[int, ...], int] | str:
    """dtype, sizes, strides, flags of a plain tensor; else the reason why it must be left to eager."""
    flags = _FULL_KEYS.get(_dispatch_keys(tensor).raw_repr())
    if flags is None:
        return _why_not_plain(tensor)
    if type(tensor) is not _Tensor:
        if type(tensor) is not _Parameter:
            return f"a tensor of class {type(tensor).__qualname__}"
        flags += 2
    if tensor.requires_grad:
        if _grad_enabled():
            return "a tensor that requires grad"
        flags += 1
    dtype = tensor.dtype
    if dtype not in DTYPES:
        return f"a tensor of {dtype}"
    return dtype, tensor.shape, tensor.stride(), flags


def _why_not_plain(tensor: torch.Tensor) -> str:
    if type(tensor) not in (_Tensor, _Parameter):
        return f"a tensor of class {type(tensor).__qualname__}"
    if tensor.device.type != "cpu":
        return f"a tensor on {tensor.device}"
    if tensor.layout is not torch.strided:
        return f"a tensor of layout {tensor.layout}"
    if tensor.is_conj() or tensor.is_neg():
        return "a tensor whose conj or neg bit is set"
    if type(tensor) is not _Tensor and type(tensor) is not _Parameter:  # a stand-in says that it is equal to a tensor's class
        return "a tensor that the function has put there (as torch.func.functional_call does)"
    return "a tensor that is not a plain one"


def tensor_spec(tensor: torch.Tensor) -> TensorSpec:
    """The spec of one tensor alone.  Raises NotStatic where it must be left to eager."""
    facts = tensor_facts(tensor)
    if isinstance(facts, str):
        raise NotStatic(facts)
    return TensorSpec(*facts, -1, 0)


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """First byte of the storage and the byte after the last one that the tensor can reach."""
    itemsize, pointer = tensor.itemsize, tensor.data_ptr()
    start = pointer - tensor.storage_offset() * itemsize
    if tensor.is_contiguous():
        return start, pointer + tensor.nbytes  # type: ignore[return-value]
    return start, pointer + itemsize * (1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)))  # type: ignore[return-value]


def alias_groups(tensors: Sequence[torch.Tensor]) -> list[tuple[int, int, int]] | None:
    """For each tensor (group, offset, flag 8 or 0) as in TensorSpec; None when nothing overlaps, which is the common case."""
    if len(tensors) < 2:
        return None
    extents = [_extent(t) for t in tensors]
    if len(tensors) == 2:  # the most common call, without sorting
        (low, low_end), (high, high_end) = extents
        if (low_end <= high or high_end <= low) and tensors[0] is not tensors[1]:
            return None
    order = sorted(range(len(tensors)), key=extents.__getitem__)
    apart, end = True, 0
    for i in order:
        if extents[i][0] < end and extents[i][1] > extents[i][0]:
            apart = False
            break
        end = max(end, extents[i][1])
    if apart and len({id(t) for t in tensors}) == len(tensors):
        return None
    return _groups(tensors, extents, order)


def _groups(tensors: Sequence[torch.Tensor], extents: list[tuple[int, int]], order: list[int]) -> list[tuple[int, int, int]]:
    runs: list[list[int]] = []
    end = -1
    for i in order:
        if runs and extents[i][0] < end and extents[i][1] > extents[i][0]:
            runs[-1].append(i)
        else:
            runs.append([i])
        end = max(end, extents[i][1])
    seen: set[int] = set()
    again = [8 if (id(t) in seen or seen.add(id(t))) else 0 for t in tensors]  # type: ignore[func-returns-value]
    result = [(-1, 0, flag) for flag in again]
    for run in sorted((sorted(run) for run in runs if len(run) > 1), key=lambda run: run[0]):
        base = min(extents[i][0] for i in run)
        for i in run:
            result[i] = (run[0], tensors[i].data_ptr() - base, again[i])
    return result


_new: Any = tuple.__new__  # twice as fast as the constructor of a named tuple


def input_specs(tensors: Sequence[torch.Tensor]) -> tuple[TensorSpec, ...]:
    """The specs of all inputs of a variant (arguments, then those by reference) with their aliasing.  Raises NotStatic."""
    facts = []
    for tensor in tensors:
        fact = tensor_facts(tensor)
        if isinstance(fact, str):
            raise NotStatic(fact)
        facts.append(fact)
    groups = alias_groups(tensors)
    if groups is None:
        return tuple([_new(TensorSpec, (*fact, -1, 0)) for fact in facts])
    return tuple(TensorSpec(f[0], f[1], f[2], f[3] + g[2], g[0], g[1]) for f, g in zip(facts, groups, strict=True))
