"""Every fact about the binary interface of PyTorch and CPython that the native parts use, each found or confirmed by a probe.

In:  the libraries that are loaded.  Out: `abi()`: addresses of functions, offsets of fields, bit patterns; None where a probe fails.
Idea: what is exported or documented (the DLPack exchange capsule, the aoti_torch C functions) is taken from there; what is not (where
a TensorImpl keeps its dispatch keys, where a StorageImpl keeps its allocator) is found by comparing objects that differ in that one thing.
Invariant: a library that does not fit gives None and a reason, never a crash; the runtime then goes through Python.

Dispatch keys tell everything that DLPack does not: a tensor whose key set is that of a plain CPU tensor has no conj or neg bit and is not
sparse, quantized, meta, a subclass with __torch_dispatch__, wrapped by functorch, or functional.
"""

from __future__ import annotations

import builtins
import ctypes
import os
import struct
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from types import CellType
from typing import Any

import torch
from torch.autograd import forward_ad

from thermit.locks import lock
from thermit.records import dataclass
from thermit.runtime.native.parts import IMPL, OUTSIDE

_MANGLED = {
    # name in runtime/native/parts.py: symbol
    "grad_enabled": "_ZN3c108GradMode10is_enabledEv",
    "requires_grad": "_ZNK3c1010TensorImpl13requires_gradEv",
    "function_modes": "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv",
    "dispatch_modes": "_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv",
    "default_dtype": "_ZN3c1031get_default_dtype_as_scalartypeEv",
    "autocast_dtype": "_ZN2at8autocast18get_autocast_dtypeEN3c1010DeviceTypeE",
    "num_threads": "_ZN2at15get_num_threadsEv",
    "in_parallel_region": "_ZN2at18in_parallel_regionEv",
    "bump_version": "_ZN5torch8autograd4impl12bump_versionERKN2at6TensorE",
    "global_context": "_ZN2at13globalContextEv",
    "deterministic": "_ZNK2at7Context23deterministicAlgorithmsEv",
    "cpu_allocator": "_ZN3c1015GetCPUAllocatorEv",
    "wrap": "_Z16THPVariable_WrapON2at10TensorBaseE",  # takes the tensor out of its argument
    "empty_strided": "aoti_torch_empty_strided",
    "get_data_ptr": "aoti_torch_get_data_ptr",
    "delete_tensor": "aoti_torch_delete_tensor_object",
    "gomp_parallel": "GOMP_parallel",
}
# What makes a call faster where it is there; 0 where it is not.
_OPTIONAL = {
    "empty_in": "_ZN2at6detail21empty_strided_genericEN3c108ArrayRefIlEES3_PNS1_9AllocatorENS1_14DispatchKeySetENS1_10ScalarTypeE",
}
# What is never called, but tells whether that one can be (runtime/small.py).
SHAPE = {
    "allocator_table": "_ZTVN3c109AllocatorE",
    "default_allocator_table": "_ZTVN3c1019DefaultCPUAllocatorE",
    "is_simple_data": "_ZNK3c109Allocator18is_simple_data_ptrERKNS_7DataPtrE",
    "pure_virtual": "__cxa_pure_virtual",
}
_PYTHON = {
    "incref": "Py_IncRef",
    "decref": "Py_DecRef",
    "vectorcall": "PyObject_Vectorcall",
    "dict_get": "PyDict_GetItemWithError",
    "dict_keys": "PyDict_Keys",
    "get_attr": "PyObject_GetAttr",
    "get_item": "PyObject_GetItem",
    "error_clear": "PyErr_Clear",
    "exception_matches": "PyErr_ExceptionMatches",
    "error_occurred": "PyErr_Occurred",
    "compare": "PyObject_RichCompareBool",
    "is_true": "PyObject_IsTrue",
    "tuple_new": "PyTuple_New",
    "list_new": "PyList_New",
    "save_thread": "PyEval_SaveThread",
    "restore_thread": "PyEval_RestoreThread",
}
_SYSTEM = {
    "mmap": "mmap",
    "munmap": "munmap",
    "madvise": "madvise",
    "getpid": "getpid",
    "sched_yield": "sched_yield",
    "memmove": "memmove",
    "aligned_alloc": "posix_memalign",
    "free": "free",
}
_IMPL_BYTES = 192  # a TensorImpl is larger than this in every version so far
_STORAGE_BYTES = 96


class AbiMismatch(Exception):
    """A probe found something else than it expected."""


@dataclass(frozen=True, slots=True)
class Abi:
    """What a process fills in for the native parts: `words` (offsets, bit patterns, addresses of objects) and `functions` (their addresses)."""

    words: dict[str, int]
    functions: dict[str, int]
    plain_keys: int
    inference_keys: int
    default_include: int
    default_exclude: int


# ---------------------------------------------------------------------------------------------- memory
def word(address: int) -> int:
    """The unsigned 64-bit word at an address."""
    return ctypes.c_uint64.from_address(address).value


def for_ever(value: Any) -> Any:
    """An object whose address the native parts hold: calls may come until the process ends, when modules have been taken apart."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
    return value


def _words(address: int, nbytes: int) -> tuple[int, ...]:
    return struct.unpack(f"{nbytes // 8}Q", ctypes.string_at(address, nbytes))


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise AbiMismatch(what)


def _symbol(library: ctypes.CDLL, name: str) -> int:
    try:
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
    except AttributeError:
        raise AbiMismatch(f"no symbol {name}") from None


def _symbols(library: ctypes.CDLL, table: dict[str, str]) -> dict[str, int]:
    return {name: _symbol(library, symbol) for name, symbol in table.items()}


# ---------------------------------------------------------------------------------------------- probes
def _samples() -> list[torch.Tensor]:
    """Tensors whose key sets differ."""
    with torch.inference_mode():
        inference = torch.zeros(2)
    complex_ = torch.zeros(2, dtype=torch.complex64)
    return [
        torch.zeros(2, 3), torch.zeros((), dtype=torch.int64), torch.zeros(2, requires_grad=True), torch.nn.Parameter(torch.zeros(1)), inference,
        complex_.conj(), complex_.conj().imag, torch.zeros(2, device="meta"), torch.zeros(2).to_sparse(), torch._efficientzerotensor(2),
    ]  # fmt: skip


def _keys(tensor: torch.Tensor) -> int:
    return int(torch._C._dispatch_keys(tensor).raw_repr())


def _offset(objects: Iterable[tuple[int, int]], nbytes: int, what: str) -> int:
    """The one offset at which every (address, word) holds its word."""
    found = [
        {8 * i for i, w in enumerate(_words(address, nbytes)) if w == value and i >= 2}  # the first words: vtable, reference counts
        for address, value in objects
    ]
    common = set.intersection(*found)
    _require(len(common) == 1, f"{what}: {len(common)} places")
    return common.pop()


def _tensor_layout() -> dict[str, int]:
    samples = _samples()
    _require(object.__basicsize__ == 16, "object header")
    for t in samples:
        _require(word(id(t) + IMPL) == t._cdata and word(id(t) + 8) == id(type(t)), "a tensor object does not hold its TensorImpl behind the header")
    strided = [t for t in samples if t.layout is torch.strided and t.device.type == "cpu" and not t._is_zerotensor()]
    return {
        "KEYS": _offset([(t._cdata, _keys(t)) for t in samples], _IMPL_BYTES, "dispatch keys"),
        "STORAGE": _offset([(t._cdata, t.untyped_storage()._cdata) for t in strided], _IMPL_BYTES, "storage"),
    }


def _geometry() -> dict[str, int]:
    """Where a TensorImpl keeps sizes, strides, storage offset and element type, and a StorageImpl its memory.

    Sizes and strides: the number of axes, then five sizes and five strides in place, or the address of an array of both.
    """
    base = torch.zeros(40000)
    t = base.as_strided((3, 5, 7), (997, 83, 11), 1234)
    words = _words(t._cdata, _IMPL_BYTES)
    places = [8 * i for i, w in enumerate(words) if w == 3 and words[i + 1 : i + 4] == (3, 5, 7) and words[i + 6 : i + 9] == (997, 83, 11)]
    _require(len(places) == 1, f"sizes: {len(places)} places")
    axes = places[0]
    many = base.as_strided((2, 3, 1, 2, 1, 4), (997, 83, 11, 5, 3, 2), 7)
    _require(word(many._cdata + axes) == 6 and _words(word(many._cdata + axes + 8), 96) == (*many.shape, *many.stride()), "sizes of many axes")
    offset = _offset([(t._cdata, 1234), (many._cdata, 7)], _IMPL_BYTES, "storage offset")
    typed = [(torch.zeros(1, dtype=dtype), number) for dtype, number in SCALAR_TYPES.items()]
    images = [(ctypes.string_at(t._cdata, _IMPL_BYTES), number.to_bytes(2, "little")) for t, number in typed]
    kinds = [i for i in range(16, _IMPL_BYTES, 2) if all(image[i : i + 2] == number for image, number in images)]
    _require(len(kinds) == 1, f"element type: {len(kinds)} places")
    storages = [torch.zeros(n).untyped_storage() for n in (3, 5000)]
    data = [{8 * i for i, w in enumerate(_words(s._cdata, _STORAGE_BYTES)) if w == s.data_ptr()} for s in storages]
    _require(len(set.intersection(*data)) >= 1, "data of a storage")
    return {"AXES": axes, "OFFSET": offset, "KIND": kinds[0], "DATA": min(set.intersection(*data))}


def _storage_layout(allocator: int, data: int) -> dict[str, int]:
    """Where a storage says that it can be resized, and by which allocator: compared with storages over foreign memory."""
    own = [torch.zeros(n).untyped_storage() for n in (3, 5, 7)]
    foreign = [torch.frombuffer(bytearray(4 * n), dtype=torch.float32).untyped_storage() for n in (3, 5, 7)]
    _require(all(s.resizable() for s in own) and not any(s.resizable() for s in foreign), "resizable")
    at = _offset([(s._cdata, allocator) for s in own], _STORAGE_BYTES, "allocator")
    _require(all(word(s._cdata + at) in (0, allocator) for s in foreign), "allocator of foreign memory")
    bytes_own = [ctypes.string_at(s._cdata, _STORAGE_BYTES) for s in own]
    bytes_foreign = [ctypes.string_at(s._cdata, _STORAGE_BYTES) for s in foreign]
    flags = [
        i for i in range(16, _STORAGE_BYTES)
        if not at <= i < at + 8 and all(b[i] == 1 for b in bytes_own) and all(b[i] == 0 for b in bytes_foreign)
    ]  # fmt: skip
    flags = [i for i in flags if _flips(foreign[0], i)]
    _require(len(flags) == 1, f"resizable: {len(flags)} places")
    device = word(own[0]._cdata + data + 24) & 0xFFFF  # behind data, deleter and context; confirmed by runtime/small.py
    return {"RESIZABLE": flags[0], "ALLOCATOR": at, "DEVICE": device}


def _flips(storage: torch.UntypedStorage, at: int) -> bool:
    """Whether the byte is what `resizable()` reads."""
    flag = ctypes.c_uint8.from_address(storage._cdata + at)
    flag.value = 1
    answer = storage.resizable()
    flag.value = 0
    return answer and not storage.resizable()


def _dlpack() -> tuple[int, int]:
    """The DLPack exchange interface: {u32 major, u32 minor, previous} and five functions; the third makes a tensor over foreign memory."""
    capsule = torch.Tensor.__dlpack_c_exchange_api__
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    header = _words(get(capsule, b"dlpack_exchange_api"), 56)
    major = header[0] & 0xFFFFFFFF
    _require(major == 1, f"DLPack {major}")
    to_object, borrow = header[4:6]
    read = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(borrow)
    memory = (ctypes.c_uint64 * 6)()
    for dtype, code in DLPACK_CODES.items():
        t = torch.zeros(4, 6, dtype=dtype)[1:3, ::2]
        _require(read(t, ctypes.addressof(memory)) == 0, f"DLPack of {dtype}")
        data, device, kind, sizes, strides, offset = memory
        _require(data + offset == t.data_ptr() and device == 1 and kind == 2 | code << 32, f"DLPack of {dtype}")
        _require(_words(sizes, 16) == (2, 3) and _words(strides, 16) == (6, 2), f"DLPack of {dtype}")
    return header[0], to_object


def _thread_keys(library: ctypes.CDLL) -> tuple[int, int, tuple[int, int]]:
    """Where each thread keeps the dispatch keys that modes include and exclude: two words, both 0 when nothing is active.

    They tell inference mode, autocast, functorch, functionalization, tracing: whatever changes how operations are dispatched.
    """
    name = "_ZN3c104impl26raw_local_dispatch_key_setE"
    here = ctypes.addressof(ctypes.c_uint64.in_dll(library, name))
    dlinfo = ctypes.CDLL(None).dlinfo
    dlinfo.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    module, base = ctypes.c_uint64(), ctypes.c_uint64()
    _require(dlinfo(library._handle, 9, ctypes.addressof(module)) == 0 and dlinfo(library._handle, 10, ctypes.addressof(base)) == 0, "dlinfo")
    index = (ctypes.c_uint64 * 2)(module.value, here - base.value)
    for_ever(index)
    address = _symbol(ctypes.CDLL(None), "__tls_get_addr")
    get = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(address)

    def differences() -> tuple[int, int, bool]:
        include, exclude = _words(get(ctypes.addressof(index)), 16)
        known = torch._C._dispatch_tls_local_include_set().raw_repr(), torch._C._dispatch_tls_local_exclude_set().raw_repr()
        return include ^ known[0], exclude ^ known[1], (include, exclude) == (0, 0)

    seen: list[tuple[int, int, bool]] = []
    thread = threading.Thread(target=lambda: seen.append(differences()))
    thread.start()
    thread.join()
    seen.append(differences())
    with torch.inference_mode(not torch.is_inference_mode_enabled()):
        seen.append(differences())
    _require(len({s[:2] for s in seen}) == 1 and seen[0][2] and seen[1][2] != seen[2][2], "thread-local dispatch keys")
    return ctypes.addressof(index), address, seen[0][:2]


def _check_functions(functions: dict[str, int]) -> None:
    """The functions without side effects give the answers that Python gives."""

    def ask(name: str, *args: int) -> int:
        kind = {"bool": ctypes.c_uint8, "i32": ctypes.c_int32, "i64": ctypes.c_int64}[OUTSIDE[name]]
        return int(ctypes.PYFUNCTYPE(kind, *([ctypes.c_int64] * len(args)))(functions[name])(*args))

    for value in (True, False):
        with torch.set_grad_enabled(value):
            _require(ask("grad_enabled") == value, "grad mode")
        t = torch.zeros(2, requires_grad=value)
        _require(ask("requires_grad", t._cdata) == value, "requires_grad")
    _require(ask("num_threads") == torch.get_num_threads(), "number of threads")
    with torch._C.DisableTorchFunction():
        _require(ask("function_modes") == torch._C._len_torch_function_stack(), "modes")
    _require(ask("dispatch_modes") == torch._C._len_torch_dispatch_stack(), "modes")
    _require(ask("default_dtype") == SCALAR_TYPES[torch.get_default_dtype()], "default dtype")
    _require(ask("autocast_dtype", 0) == SCALAR_TYPES[torch.get_autocast_dtype("cpu")], "autocast dtype")
    _require(ask("deterministic", ask("global_context")) == torch.are_deterministic_algorithms_enabled(), "deterministic algorithms")
    _require(ask("getpid") == os.getpid(), "getpid")


def _check_tensors(functions: dict[str, int]) -> None:
    """A tensor made by the C interface and wrapped is an ordinary one; a version that is bumped counts."""
    t = torch.zeros(2)
    ctypes.PYFUNCTYPE(None, ctypes.c_int64)(functions["bump_version"])(id(t) + 16)
    _require(t._version == 1, "bump_version")
    handle, data, sizes, strides = ctypes.c_int64(), ctypes.c_int64(), (ctypes.c_int64 * 2)(2, 3), (ctypes.c_int64 * 2)(1, 2)
    make = ctypes.PYFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * 7)(functions["empty_strided"])
    status = make(2, ctypes.addressof(sizes), ctypes.addressof(strides), SCALAR_TYPES[torch.float64], 0, 0, ctypes.addressof(handle))
    _require(status == 0, "empty_strided")
    read = ctypes.PYFUNCTYPE(ctypes.c_int32, ctypes.c_int64, ctypes.c_int64)(functions["get_data_ptr"])
    status = read(handle.value, ctypes.addressof(data))
    wrapped = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_int64)(functions["wrap"])(handle.value)
    _require(status == 0 and data.value == wrapped.data_ptr(), "data_ptr")
    ctypes.PYFUNCTYPE(ctypes.c_int32, ctypes.c_int64)(functions["delete_tensor"])(handle.value)
    _require(type(wrapped) is torch.Tensor and wrapped.dtype is torch.float64 and wrapped.stride() == (1, 2) and wrapped.shape == (2, 3), "wrap")
    _require(sys.getrefcount(wrapped) == 2 and wrapped._use_count() == 1, "reference counts of a wrapped tensor")


def _objects() -> dict[str, int]:
    """Addresses of Python objects that are compared with.  First: CPython keeps a cell's content, the items of tuples and lists, a
    float's bits where the native parts read them."""
    value = object()
    cell, pair, items, number = CellType(value), (None, value), [None, value], 1.5
    _require(word(id(cell) + 16) == id(value), "cell")
    _require(word(id(pair) + 16) == 2 and word(id(pair) + 32) == id(value), "tuple")
    _require(word(id(items) + 16) == 2 and word(word(id(items) + 24) + 8) == id(value), "list")
    _require(word(id(number) + 16) == struct.unpack("Q", struct.pack("d", number))[0], "float")
    objects: dict[str, object] = {"FLOAT_TYPE": float, "TUPLE_TYPE": tuple, "LIST_TYPE": list, "DICT_TYPE": dict, "TENSOR_TYPE": torch.Tensor}
    objects |= {"NONE": None, "NOT_IMPLEMENTED": NotImplemented, "EXCEPTION": Exception}
    return {name: id(for_ever(value)) for name, value in {**objects, "BUILTINS": vars(builtins)}.items()}


def _forward_ad() -> dict[str, int]:
    """The module that keeps the level of forward-mode derivatives; outside it is -1, an integer of which there is one object."""
    level, none = forward_ad._current_level, int("-1")
    _require(type(level) is int and level >= none and int("-1") is none, "level of forward mode")
    key = sys.intern("_current_level")
    return {name: id(for_ever(value)) for name, value in (("FORWARD_AD", vars(forward_ad)), ("CURRENT_LEVEL", key), ("NO_LEVEL", none))}


# dtype: DLPack's code | bits << 8 | lanes << 16
DLPACK_CODES: dict[torch.dtype, int] = {
    dtype: code | bits << 8 | 1 << 16
    for dtype, code, bits in (
        (torch.bool, 6, 8), (torch.uint8, 1, 8), (torch.uint16, 1, 16), (torch.uint32, 1, 32), (torch.uint64, 1, 64),
        (torch.int8, 0, 8), (torch.int16, 0, 16), (torch.int32, 0, 32), (torch.int64, 0, 64),
        (torch.float16, 2, 16), (torch.bfloat16, 4, 16), (torch.float32, 2, 32), (torch.float64, 2, 64),
        (torch.complex64, 5, 64), (torch.complex128, 5, 128),
    )
}  # fmt: skip
# dtype: PyTorch's own number, as the C interface takes it
SCALAR_TYPES: dict[torch.dtype, int] = {
    torch.uint8: 0, torch.int8: 1, torch.int16: 2, torch.int32: 3, torch.int64: 4, torch.float16: 5, torch.float32: 6, torch.float64: 7,
    torch.complex64: 9, torch.complex128: 10, torch.bool: 11, torch.bfloat16: 15,
    torch.uint16: 27, torch.uint32: 28, torch.uint64: 29,
}  # fmt: skip

_cache: list[Abi | None] = []
_cache_lock = lock()
mismatch: str | None = None


def _probe_undisturbed() -> Abi:
    """Probes in a thread of its own: what this one is inside of (inference mode, autocast, a dispatch mode, vmap, another default device) is
    no fact about the library."""
    found: list[Abi | Exception] = []

    def probe() -> None:
        try:
            found.append(_probe())
        except Exception as error:  # whatever a probe meets: this is another PyTorch
            found.append(error)

    thread = threading.Thread(target=probe)
    thread.start()
    thread.join()
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


def _probe() -> Abi:
    _require(sys.implementation.name == "cpython" and sys.maxsize > 2**32, "not CPython on 64 bits")
    _require(sys.byteorder == "little" and getattr(sys, "_is_gil_enabled", lambda: True)(), "this build of Python")
    folder = Path(torch.__file__).parent / "lib"
    python, c10 = ctypes.CDLL(str(folder / "libtorch_python.so")), ctypes.CDLL(str(folder / "libc10.so"))
    functions = {**_symbols(python, _MANGLED), **_symbols(ctypes.pythonapi, _PYTHON), **_symbols(ctypes.CDLL(None), _SYSTEM)}
    functions |= {name: _symbol(python, symbol) if hasattr(python, symbol) else 0 for name, symbol in {**_OPTIONAL, **SHAPE}.items()}
    _check_functions(functions)
    _check_tensors(functions)
    allocator = ctypes.CFUNCTYPE(ctypes.c_uint64)(functions["cpu_allocator"])()
    index, tls_get_addr, defaults = _thread_keys(c10)
    version, to_object = _dlpack()
    functions |= {"tls_get_addr": tls_get_addr, "dl_to_object": to_object}
    with torch.inference_mode():
        inference = _keys(torch.zeros(2))
    with torch.inference_mode(False):
        plain = _keys(torch.zeros(2))
    geometry = _geometry()
    words = {**_tensor_layout(), **geometry, **_storage_layout(allocator, geometry["DATA"]), **_objects(), **_forward_ad()}
    words |= {"CPU_ALLOCATOR": allocator, "TLS_INDEX": index, "DLPACK_VERSION": version, "PLAIN_KEYS": plain, "INFERENCE_KEYS": inference}
    return Abi(words, functions, plain, inference, defaults[0], defaults[1])


def abi() -> Abi | None:
    """The facts, probed at the first call; None when something does not fit (then `mismatch` says what)."""
    global mismatch
    if not _cache:
        with _cache_lock:
            if not _cache:
                try:
                    _cache.append(_probe_undisturbed())
                except Exception as error:
                    mismatch = f"{type(error).__name__}: {error}"
                    _cache.append(None)
    return _cache[0]


def ambient() -> tuple[int, ...]:
    """How operations are dispatched in this thread now, in the words that `guard.ambient_holds` compares; only where `abi()` is not None.

    Dispatch keys included and excluded (inference mode, autocast, functorch, tracing), grad mode, default dtype, autocast's dtype,
    deterministic algorithms.
    """
    include, exclude = torch._C._dispatch_tls_local_include_set().raw_repr(), torch._C._dispatch_tls_local_exclude_set().raw_repr()
    facts = abi()
    assert facts is not None, mismatch
    dtypes = SCALAR_TYPES[torch.get_default_dtype()], SCALAR_TYPES[torch.get_autocast_dtype("cpu")]
    flags = int(torch.is_grad_enabled()), int(torch.are_deterministic_algorithms_enabled())
    return include ^ facts.default_include, exclude ^ facts.default_exclude, flags[0], *dtypes, flags[1]
