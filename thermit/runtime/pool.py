"""Memory that is kept: blocks for temporaries and for large results, handed out natively (runtime/native/pool.py).

A fresh 64 MB costs more in page faults than a pass over it; a block that comes back is warm.  Blocks have one of four sizes per power of
two; what is returned waits in the list of its size (small blocks, for small results, in lists of their own).  A large result is an ordinary
tensor whose storage lies in a block: when the storage dies, from whatever thread, its deleter puts the block back.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

from thermit.records import dataclass
from thermit.runtime.native.pool import SMALL_LISTS, STATE, STATE_WORDS
from thermit.runtime.torch_abi import for_ever

IDLE_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """`idle_bytes` wait for the next call, `used_bytes` are in use; how often a block was there (`hits`) and was not (`misses`)."""

    idle_bytes: int
    used_bytes: int
    limit_bytes: int
    hits: int
    misses: int


def _advised() -> bool:
    """Whether the system gives huge pages to those who ask, and only to them: else there is nothing to ask for."""
    try:
        with open("/sys/kernel/mm/transparent_hugepage/enabled") as words:
            return "[madvise]" in words.read()
    except OSError:
        return False


class Pool:
    """The state of a pool, at `address`; runtime/library.py links the code that works on it."""

    def __init__(self, limit_bytes: int | None = None) -> None:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self._state = (ctypes.c_int64 * STATE_WORDS)()
        self._state[STATE["LIMIT"] // 8] = min(IDLE_BYTES, memory // 8) if limit_bytes is None else limit_bytes
        self._state[STATE["ADVISED"] // 8] = _advised()
        self.address = ctypes.addressof(self._state)
        for_ever(self._state)  # deleters run until the process ends
        os.register_at_fork(after_in_child=self._unlock)

    def use(self, address: Mapping[str, int]) -> None:
        """Takes the addresses of the native functions.  Of a c10::Allocator the third virtual function allocates, after two destructors."""
        self._clear = ctypes.CFUNCTYPE(ctypes.c_int64)(address["pool_clear"])
        for k in range(8):
            self._state[STATE["FUNCTIONS"] // 8 + k] = address["small_allocate" if k == 2 else "small_other"]

    def small_blocks(self) -> int:
        """How many small blocks wait."""
        return sum(self._state[STATE["SMALL_COUNTS"] // 8 + k] for k in range(SMALL_LISTS))

    def _unlock(self) -> None:
        """In a child process no other thread holds the lock."""
        self._state[STATE["LOCK"] // 8] = 0

    def empty_cache(self) -> None:
        """Gives idle memory back to the system."""
        self._clear()

    def statistics(self) -> PoolStatistics:
        return PoolStatistics(*(self._state[STATE[name] // 8] for name in ("IDLE", "USED", "LIMIT", "HITS", "MISSES")))
