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
from thermit.runtime import small
from thermit.runtime.layout import layout
from thermit.runtime.machine import link_forever, warm_up
from thermit.runtime.native.language import Source
from thermit.runtime.native.objects import object_code
from thermit.runtime.native.parts import SOURCE
from thermit.runtime.pool import Pool
from thermit.runtime.torch_abi import Abi, abi, for_ever

_lock = lock()
_made: list[Runtime | None] = []


@dataclass(frozen=True, slots=True)
class Runtime:
    """`address` of each native function; `switch[0]` is not 0 while thermit is disabled (`switch[1]`: guards.py, `ambient_holds`)."""

    abi: Abi
    pool: Pool
    address: dict[str, int]
    switch: ctypes.Array[ctypes.c_int64]

    def set(self, word: str, value: int) -> None:
        """Gives a word of its own a value, before anything runs that reads it."""
        ctypes.c_int64.from_address(self.address["words"] + 8 * SOURCE.table.index(word)).value = value


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
    switch, found = for_ever((ctypes.c_int64 * 2)()), layout()
    own = {"PID": os.getpid(), "SWITCH": ctypes.addressof(switch), "POOL": pool.address, "SMALL": 0}
    own |= {"DICT_VERSION": 0 if found is None else found.dict_version, "BOUND": 0, "GONE": 0}  # the latter are set by runtime/entry.py
    address = load(SOURCE, {**facts.words, **facts.functions, **own})
    pool.use(address)
    made = Runtime(facts, pool, address, switch)
    if small.fits(facts, pool, address["small_tensor"]):
        made.set("SMALL", 1)
    return made


def load(source: Source, values: Mapping[str, int]) -> dict[str, int]:
    """The addresses of a source's functions, and of its `words`, linked with these values.  They stay until the process ends, also while
    the interpreter shuts down."""
    functions = re.findall(r"^def (\w+)", source.text, re.MULTILINE)
    linked = link_forever(object_code(source), ("words", *functions))
    table = (ctypes.c_uint64 * len(source.table)).from_address(linked["words"])
    table[:] = [values[name] & 0xFFFF_FFFF_FFFF_FFFF for name in source.table]
    return linked
