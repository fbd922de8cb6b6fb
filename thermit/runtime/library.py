"""The native part of the runtime, compiled once per process: pool, threads, launches, guards, the entry.

`runtime()` compiles it at its first call (milliseconds) and gives it, or None where PyTorch's binary interface is not as expected.
"""

from __future__ import annotations

import ctypes
import os
import threading
from dataclasses import dataclass

from thermit.runtime import calling, guard, launch, threads
from thermit.runtime.native import Library
from thermit.runtime.pool import LARGE_BYTES, Pool
from thermit.runtime.torch_abi import Abi, abi

_lock = threading.Lock()
_made: list[Runtime | None] = []


@dataclass(frozen=True, slots=True)
class Runtime:
    """`address` of each native function; `switch[0]` is not 0 while thermit is disabled."""

    abi: Abi
    pool: Pool
    address: dict[str, int]
    switch: ctypes.Array[ctypes.c_int64]


def runtime() -> Runtime | None:
    """The native part, compiled at the first call; None if it does not fit this PyTorch (see torch_abi.mismatch)."""
    if not _made:
        with _lock:
            if not _made:
                _made.append(_compile())
    return _made[0]


def _compile() -> Runtime | None:
    facts = abi()
    if facts is None:
        return None
    pool = Pool(facts)
    switch = (ctypes.c_int64 * 1)()
    constants = {**facts.constants, **threads.CONSTANTS, **launch.CONSTANTS, **guard.CONSTANTS, **calling.CONSTANTS, "LARGE_BYTES": LARGE_BYTES}
    addresses = {**facts.addresses, "PID": os.getpid(), "SWITCH": ctypes.addressof(switch)}
    externs = {**facts.externs, **pool.externs}
    leaves = Library("\n".join((threads.TEXT, launch.LEAVES, guard.LEAVES, calling.LEAVES)), constants, addresses, externs, opt=0)
    main = Library("\n".join((launch.TEXT, guard.TEXT, calling.TEXT)), constants, addresses, {**externs, **leaves.externs}, opt=1)
    for library in (leaves, main):
        library.keep()  # entries may be called as long as the process lives
    return Runtime(facts, pool, {**leaves.address, **main.address}, switch)
