"""Whether small results may lie in small blocks (`small_tensor`, runtime/native/pool.py).

In:  the facts about PyTorch, the pool with its functions.  Out: `fits(...)`.
Idea: PyTorch makes an ordinary tensor with an allocator of ours, which gives it a block and whose deleter takes the block back; then the storage is
told that PyTorch's own allocator made it, so that it resizes as usual.  Such a tensor must not differ from an ordinary one.
PyTorch calls our allocator by its place in a table of virtual functions and gets a structure from it: both are compared with what PyTorch exports
and with ordinary tensors first (`_allocators_fit`), by reading alone, so that a library of another shape is left alone.
Invariant: every word of the storage but those that differ among ordinary tensors is as PyTorch has it, in and outside inference mode.
"""

from __future__ import annotations

import ctypes
import platform
import sys
import threading
from typing import Any

import torch

from thermit.runtime.pool import Pool
from thermit.runtime.torch_abi import SCALAR_TYPES, Abi, word

_STORAGE_BYTES = 96
_KINDS: tuple[tuple[tuple[int, ...], tuple[int, ...], torch.dtype], ...] = (
    ((16,), (1,), torch.float32), ((3, 5), (1, 3), torch.int64), ((), (), torch.bool), ((1, 2, 1, 2, 3, 1), (12, 6, 6, 3, 1, 1), torch.bfloat16),
)  # fmt: skip


def fits(facts: Abi, pool: Pool, make: int) -> bool:
    """Probed in a thread of its own: what this one is inside of is no fact about the library.  Elsewhere results are returned in other registers."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64") or not facts.functions["empty_in"] or not _allocators_fit(facts):
        return False
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(_all_fit(facts, pool, make)))
    thread.start()
    thread.join()
    return answers == [True]


def _allocators_fit(facts: Abi) -> bool:
    """Whether a c10::Allocator has two destructors, then allocate, which is abstract, is_simple_data_ptr, raw_deleter, and copy_data, abstract too;
    whether PyTorch's own one is at work; and whether storages keep {data, deleter, context, device}."""
    abstract, own, simple, pure = (facts.functions[name] for name in ("allocator_table", "default_allocator_table", "is_simple_data", "pure_virtual"))
    if not (abstract and own and simple and pure) or word(facts.words["CPU_ALLOCATOR"]) != own + 16:
        return False
    functions = [[word(table + 16 + 8 * k) for k in range(6)] for table in (abstract, own)]
    if [functions[0][k] for k in (2, 3, 5)] != [pure, simple, pure] or functions[1][3] != simple or functions[0][4] in (pure, simple):
        return False
    tensors = [torch.empty_strided(*kind[:2], dtype=kind[2], device="cpu") for kind in _KINDS]
    at = facts.words["DATA"]
    parts = [[word(t.untyped_storage()._cdata + at + 8 * k) for k in range(4)] for t in tensors]
    alike = {(deleter, device & 0xFFFF) for _, deleter, _, device in parts}
    kept = all(data == context == t.data_ptr() for t, (data, _, context, _) in zip(tensors, parts, strict=True))
    return kept and len(alike) == 1 and alike.pop()[0] not in (0, *(t.data_ptr() for t in tensors))


def _all_fit(facts: Abi, pool: Pool, make: int) -> bool:
    for inference in (False, True):
        with torch.inference_mode(inference):
            for kind in _KINDS:
                if not _same(facts, [_made(make, *kind), *(torch.empty_strided(kind[0], kind[1], dtype=kind[2], device="cpu") for _ in range(2))]):
                    return False
    return pool.small_blocks() > 0 and _resizes(_made(make, *_KINDS[0]))


def _made(make: int, sizes: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Any:
    size, stride = (ctypes.c_int64 * max(1, len(sizes)))(*sizes), (ctypes.c_int64 * max(1, len(sizes)))(*strides)
    nbytes = dtype.itemsize * (1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True)))
    spec = (ctypes.c_int64 * 8)(len(sizes), ctypes.addressof(size), ctypes.addressof(stride), SCALAR_TYPES[dtype], 0, nbytes)
    result = (ctypes.c_int64 * 2)()
    if ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(make)(ctypes.addressof(spec), ctypes.addressof(result)):
        return None
    tensor = ctypes.cast(result[0], ctypes.py_object).value
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(tensor))
    return tensor if result[1] == tensor.data_ptr() else None


def _same(facts: Abi, tensors: list[Any]) -> bool:
    """Whether the first is as the others: what these agree on must be so there too."""
    if type(tensors[0]) is not torch.Tensor or len({sys.getrefcount(t) for t in tensors}) != 1:
        return False
    storages = [t.untyped_storage() for t in tensors]  # held, so that no two of these objects have one address
    ours, known, others = (_facts(t) + _words(facts, t, storage) for t, storage in zip(tensors, storages, strict=True))
    return ours[0] == known[0] and all(a == b or b != c for a, b, c in zip(ours, known, others, strict=True))


def _facts(t: Any) -> tuple[Any, ...]:
    storage, keys = t.untyped_storage(), torch._C._dispatch_keys(t).raw_repr()
    geometry = t.shape, t.stride(), t.dtype, t.device, keys, t._use_count(), t.is_inference(), storage.nbytes(), storage.resizable(), storage.device
    return (geometry,)


def _words(facts: Abi, t: torch.Tensor, storage: torch.UntypedStorage) -> tuple[Any, ...]:
    """The words of the storage: data and context are where the tensor's data is, the deleter is ours."""
    at, data = storage._cdata, facts.words["DATA"]
    words = [word(at + k) for k in range(16, _STORAGE_BYTES, 8) if k not in (data, data + 8, data + 16, data + 24)]
    return word(at + data) == t.data_ptr(), word(at + data + 16) == t.data_ptr(), word(at + data + 24) & 0xFFFF, *words


def _resizes(t: torch.Tensor) -> bool:
    t.fill_(3)
    return bool((t.resize_(100_000)[:16] == 3).all())
