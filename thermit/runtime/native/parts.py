"""All native parts as one source: what is compiled when the package is built, and what a process has to fill in.

In:  the texts and constants of the modules beside this one.  Out: `SOURCE`.
Invariant: nothing here depends on PyTorch or on the process, so one object per architecture serves every PyTorch that the probes accept.
"""

from __future__ import annotations

from thermit.runtime.native import aten_calls, calling, guards, pool, steps, threads
from thermit.runtime.native.language import Source

PARTS = (pool, threads, steps, guards, calling, aten_calls)

# Where PyTorch keeps things in its objects, bit patterns, objects to compare with: found by runtime/torch_abi.py.
ABI_WORDS = (
    *("KEYS", "STORAGE", "AXES", "OFFSET", "KIND", "DATA", "RESIZABLE", "ALLOCATOR", "DLPACK_VERSION", "PLAIN_KEYS", "INFERENCE_KEYS"),
    *("CPU_ALLOCATOR", "FLOAT_TYPE", "TUPLE_TYPE", "LIST_TYPE", "DICT_TYPE", "TENSOR_TYPE", "NONE", "NOT_IMPLEMENTED", "EXCEPTION", "BUILTINS"),
    *("FORWARD_AD", "CURRENT_LEVEL", "NO_LEVEL", "TLS_INDEX", "DEVICE"),
)
OWN_WORDS = ("PID", "SWITCH", "POOL", "SMALL", "DICT_VERSION", "BOUND", "GONE")  # of the process: see runtime/library.py
IMPL = 16  # a tensor object holds its TensorImpl behind the header; torch_abi confirms it

# Functions outside, and what their machine code leaves in the return register.
PYTORCH = {
    "grad_enabled": "bool",
    "requires_grad": "bool",
    "function_modes": "i64",
    "dispatch_modes": "i64",
    "default_dtype": "bool",
    "autocast_dtype": "bool",
    "num_threads": "i32",
    "in_parallel_region": "bool",
    "bump_version": "void",
    "global_context": "i64",
    "deterministic": "bool",
    "cpu_allocator": "i64",
    "wrap": "i64",
    "empty_strided": "i32",
    "empty_in": "void",
    "get_data_ptr": "i32",
    "delete_tensor": "i32",
    "gomp_parallel": "void",
    "dl_to_object": "i32",
}
PYTHON = {
    "incref": "void",
    "decref": "void",
    "vectorcall": "i64",
    "dict_get": "i64",
    "dict_keys": "i64",
    "get_attr": "i64",
    "get_item": "i64",
    "error_clear": "void",
    "exception_matches": "i32",
    "error_occurred": "i64",
    "compare": "i32",
    "is_true": "i32",
    "tuple_new": "i64",
    "list_new": "i64",
    "save_thread": "i64",
    "restore_thread": "void",
}
SYSTEM = {
    "mmap": "i64",
    "munmap": "i32",
    "madvise": "i32",
    "getpid": "i32",
    "sched_yield": "i32",
    "memmove": "i64",
    "aligned_alloc": "i32",
    "free": "void",
    "tls_get_addr": "i64",
}
OUTSIDE = {**PYTORCH, **PYTHON, **SYSTEM}


def _merged() -> dict[str, int]:
    constants = {"IMPL": IMPL}
    for part in PARTS:
        assert not constants.keys() & part.CONSTANTS.keys(), f"{part.__name__}: a constant of this name exists"
        constants |= part.CONSTANTS
    return constants


SOURCE = Source("\n".join(part.TEXT for part in PARTS), _merged(), (*ABI_WORDS, *OWN_WORDS), OUTSIDE)
