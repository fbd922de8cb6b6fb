"""The native part of the runtime, linked once per process: pool, threads, launches, guards, the entry.

`runtime()` links it at its first call and gives it, or None where PyTorch's binary interface is not as expected or nothing can be linked.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Mapping

from thermit.codegen.target import host_target
from thermit.locks import lock
from thermit.records import dataclass
from thermit.runtime.machine import link_forever, warm_up
from thermit.runtime.native.language import Source
from thermit.runtime.native.objects import object_code
from thermit.runtime.native.parts import SOURCE
from thermit.runtime.pool import Pool
from thermit.runtime.torch_abi import Abi, abi

_lock = lock()
_made: list[Runtime | None] = []


@dataclass(frozen=True, slots=True)
class Runtime:
    """`address` of each native function; `switch[0]` is not 0 while thermit is disabled."""

    abi: Abi
    pool: Pool
    address: dict[str, int]
    switch: ctypes.Array[ctypes.c_int64]


def runtime() -> Runtime | None:
    """The native part, linked at the first call; None if it does not fit this PyTorch (see torch_abi.mismatch) or cannot be linked."""
    if not _made:
        with _lock:
            if not _made:
                facts = abi()
                _made.append(None if facts is None else _linked(facts))
    return _made[0]


def _linked(facts: Abi) -> Runtime | None:
    """The process's own.  None where no memory may be made executable: kernels cannot be linked there either, and every call says so and is eager."""
    try:
        made = make(facts, Pool())
    except RuntimeError:
        return None
    warm_up(host_target())
    return made


def make(facts: Abi, pool: Pool) -> Runtime:
    """A native part with a pool of its own (a process needs one)."""
    switch = (ctypes.c_int64 * 1)()
    own = {"PID": os.getpid(), "SWITCH": ctypes.addressof(switch), "POOL": pool.address}
    address = load(SOURCE, {**facts.words, **facts.functions, **own})
    pool.use(address["pool_clear"])
    return Runtime(facts, pool, address, switch)


def load(source: Source, values: Mapping[str, int]) -> dict[str, int]:
    """The addresses of a source's functions, linked with these values of its words.  They stay until the process ends, also while the
    interpreter shuts down."""
    functions = re.findall(r"^def (\w+)", source.text, re.MULTILINE)
    linked = link_forever(object_code(source), ("words", *functions))
    table = (ctypes.c_uint64 * len(source.table)).from_address(linked["words"])
    table[:] = [values[name] & 0xFFFF_FFFF_FFFF_FFFF for name in source.table]
    return {name: linked[name] for name in functions}
