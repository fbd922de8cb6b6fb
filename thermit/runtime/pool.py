"""Memory that is kept: blocks for temporaries and for large results, handed out natively.

A fresh 64 MB costs more in page faults than a pass over it; a block that comes back is warm.  Blocks have one of four sizes per power of
two; what is returned waits in the list of its size.  A large result is an ordinary tensor whose storage lies in a block: when the storage dies,
from whatever thread, its deleter puts the block back.

Layout of a block: a page with the header {next, bytes, list, mapping, mapping bytes} and, at 64, the DLPack record of the
tensor that lies there; then the payload, which starts on a page, or on a huge page if it is larger than two of them.
Invariant: idle blocks never hold more than `limit` bytes: when they would, all of them go back to the system.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from dataclasses import dataclass

from thermit.runtime.native import Library
from thermit.runtime.torch_abi import Abi

PAGE = 4096
HUGE_PAGE = 2 << 20
LARGE_BYTES = 1 << 20  # results from here on live in the pool; below, malloc keeps what is freed by itself
IDLE_BYTES = 512 << 20
_LISTS = 256
# words of the pool's state
_LOCK, _IDLE, _USED, _LIMIT, _HITS, _MISSES, _HEADS = 0, 8, 16, 24, 32, 40, 64

TEXT = '''
def lock():
    tries = 0
    while swap(POOL + LOCK, 1) != 0:
        tries += 1
        if tries & 63 == 0:
            sched_yield()
    return 0

def unlock():
    return swap(POOL + LOCK, 0)

def pool_map(bytes, list):
    """A new block from the system; 0 if there is none."""
    align = PAGE
    if bytes >= 2 * HUGE_PAGE:
        align = HUGE_PAGE
    length = bytes + PAGE + align - PAGE
    base = mmap(0, length, 3, MAP_FLAGS, -1, 0)
    if base == -1:
        return 0
    payload = (base + PAGE + align - 1) & -align
    begin = payload - PAGE
    end = payload + bytes
    if begin > base:
        munmap(base, begin - base)
    if base + length > end:
        munmap(end, base + length - end)
    if align == HUGE_PAGE:
        madvise(payload, bytes, HUGE_ADVICE)
    i64[begin + 8] = bytes
    i64[begin + 16] = list
    return payload

def pool_take(nbytes):
    """A block of at least nbytes: the address of its payload; 0 if there is no memory."""
    last = nbytes - 1
    if last < PAGE - 1:
        last = PAGE - 1
    power = 63 - leading_zeros(last)
    shift = power - 2
    bytes = ((last >> shift) + 1) << shift
    bytes = (bytes + PAGE - 1) & -PAGE
    list = (power << 2) + ((last >> shift) & 3)
    head = POOL + HEADS + 8 * list
    lock()
    payload = i64[head]
    i64[POOL + USED] += bytes
    if payload != 0:
        i64[head] = i64[payload - PAGE]
        i64[POOL + IDLE] -= bytes
        i64[POOL + HITS] += 1
        unlock()
        return payload
    i64[POOL + MISSES] += 1
    unlock()
    payload = pool_map(bytes, list)
    if payload == 0:
        pool_clear()
        payload = pool_map(bytes, list)
        if payload == 0:
            lock()
            i64[POOL + USED] -= bytes
            unlock()
    return payload

def pool_give(payload):
    """Takes a block back."""
    begin = payload - PAGE
    bytes = i64[begin + 8]
    head = POOL + HEADS + 8 * i64[begin + 16]
    lock()
    if i64[POOL + IDLE] + bytes > i64[POOL + LIMIT]:
        unlock()
        pool_clear()
        lock()
    i64[POOL + USED] -= bytes
    if bytes > i64[POOL + LIMIT]:
        unlock()
        return munmap(begin, bytes + PAGE)
    i64[begin] = i64[head]
    i64[head] = payload
    i64[POOL + IDLE] += bytes
    unlock()
    return 0

def pool_clear():
    """Gives all idle blocks back to the system."""
    all = 0
    lock()
    for list in range(0, LISTS):
        payload = i64[POOL + HEADS + 8 * list]
        i64[POOL + HEADS + 8 * list] = 0  # before the blocks are linked anew: a fork in between loses them, nothing worse
        while payload != 0:
            next = i64[payload - PAGE]
            i64[payload - PAGE] = all
            all = payload
            payload = next
    i64[POOL + IDLE] = 0
    unlock()
    while all != 0:
        next = i64[all - PAGE]
        munmap(all - PAGE, i64[all - PAGE + 8] + PAGE)
        all = next
    return 0

def pool_delete(record):
    """Deleter of a DLPack record: the tensor's storage has died."""
    pool_give(record - 64 + PAGE)
    return 0

def pool_tensor(nbytes, ndim, sizes, strides, dtype, result):
    """Stores a new tensor over a block in i64[result]; its data, or 0 (with a Python error set, unless memory has run out)."""
    payload = pool_take(nbytes)
    if payload == 0:
        return 0
    record = payload - PAGE + 64
    i64[record] = DLPACK_VERSION
    i64[record + 8] = 0
    i64[record + 16] = pool_delete
    i64[record + 24] = 0
    i64[record + 32] = payload
    i64[record + 40] = 1
    i32[record + 48] = ndim
    i32[record + 52] = dtype
    i64[record + 56] = sizes
    i64[record + 64] = strides
    i64[record + 72] = 0
    if dl_to_object(record, result) != 0:
        pool_give(payload)
        return 0
    storage = i64[i64[i64[result] + IMPL] + STORAGE]
    u8[storage + RESIZABLE] = 1
    i64[storage + ALLOCATOR] = CPU_ALLOCATOR
    return payload
'''


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """`idle_bytes` wait for the next call, `used_bytes` are in use; how often a block was there (`hits`) and was not (`misses`)."""

    idle_bytes: int
    used_bytes: int
    limit_bytes: int
    hits: int
    misses: int


class Pool:
    """The pool of this process (one is made by `runtime.entry`)."""

    def __init__(self, abi: Abi, limit_bytes: int | None = None) -> None:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self._state = (ctypes.c_int64 * (_HEADS // 8 + _LISTS))()
        self._state[_LIMIT // 8] = min(IDLE_BYTES, memory // 8) if limit_bytes is None else limit_bytes
        constants = {
            "LOCK": _LOCK, "IDLE": _IDLE, "USED": _USED, "LIMIT": _LIMIT, "HITS": _HITS,
            "MISSES": _MISSES, "HEADS": _HEADS, "LISTS": _LISTS, "PAGE": PAGE, "HUGE_PAGE": HUGE_PAGE,
            "MAP_FLAGS": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, "HUGE_ADVICE": getattr(mmap, "MADV_HUGEPAGE", 0),
        }  # fmt: skip
        self._library = Library(TEXT, abi.constants | constants, abi.addresses | {"POOL": ctypes.addressof(self._state)}, abi.externs, opt=0)
        self._library.keep()  # deleters run until the process ends
        self.externs = self._library.externs
        self._clear = ctypes.CFUNCTYPE(ctypes.c_int64)(self._library.address["pool_clear"])
        os.register_at_fork(after_in_child=self._unlock)

    def _unlock(self) -> None:
        """In a child process no other thread holds the lock."""
        self._state[_LOCK // 8] = 0

    def empty_cache(self) -> None:
        """Gives idle memory back to the system."""
        self._clear()

    def statistics(self) -> PoolStatistics:
        return PoolStatistics(*(self._state[i // 8] for i in (_IDLE, _USED, _LIMIT, _HITS, _MISSES)))
