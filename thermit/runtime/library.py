"""The native part of the runtime, compiled once per process: pool, threads, launches, guards, the entry.

`runtime()` compiles it at its first call (milliseconds) and gives it, or None where PyTorch's binary interface is not as expected.
`run_with_calls()` compiles what only programs with ATen calls need, when the first of them is made.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass

from thermit.locks import lock
from thermit.runtime import aten_calls, calling, guard, launch, threads
from thermit.runtime.native import Library
from thermit.runtime.pool import LARGE_BYTES, Pool
from thermit.runtime.torch_abi import Abi, abi

# each calls only what stands above it; optimized (1) is what every call goes through
_LAYERS = (
    (0, "\n".join((threads.TEXT, launch.LEAVES, guard.LEAVES, calling.LEAVES))),
    (1, launch.STEPS),
    (1, "\n".join((launch.TEXT, guard.TEXT, calling.TEXT))),
)
_lock = lock()
_made: list[Runtime | None] = []
_calls: list[int] = []


@dataclass(frozen=True, slots=True)
class Runtime:
    """`address` of each native function; `switch[0]` is not 0 while thermit is disabled.  `load` compiles further functions, which may
    call these: optimized or not, their text; their addresses."""

    abi: Abi
    pool: Pool
    address: dict[str, int]
    switch: ctypes.Array[ctypes.c_int64]
    load: Callable[[int, str], dict[str, int]]


def runtime() -> Runtime | None:
    """The native part, compiled at the first call; None if it does not fit this PyTorch (see torch_abi.mismatch)."""
    if not _made:
        with _lock:
            if not _made:
                _made.append(_compile())
    return _made[0]


def run_with_calls() -> int:
    """The address of the native function that runs a plan with ATen calls (aten_calls.TEXT); only where `runtime()` is not None."""
    native = runtime()
    assert native is not None
    with _lock:
        if not _calls:
            _calls.append(native.load(0, aten_calls.TEXT)["run_with_calls"])
    return _calls[0]


def _compile() -> Runtime | None:
    facts = abi()
    if facts is None:
        return None
    pool = Pool(facts)
    switch = (ctypes.c_int64 * 1)()
    parts = threads.CONSTANTS | launch.CONSTANTS | aten_calls.CONSTANTS | guard.CONSTANTS | calling.CONSTANTS
    constants = facts.constants | parts | {"LARGE_BYTES": LARGE_BYTES}
    addresses = {**facts.addresses, "PID": os.getpid(), "SWITCH": ctypes.addressof(switch)}
    externs = {**facts.externs, **pool.externs}

    def load(opt: int, text: str) -> dict[str, int]:
        library = Library(text, constants, addresses, externs, opt)
        library.keep()  # entries may be called as long as the process lives
        externs.update(library.externs)
        return library.address

    address: dict[str, int] = {}
    for opt, text in _LAYERS:
        address |= load(opt, text)
    return Runtime(facts, pool, address, switch, load)
