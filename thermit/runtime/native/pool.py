"""Native text of the pool: blocks of memory that are handed out, taken back and kept.

Small blocks, for small results, come from the C library and wait in lists of their own, one per power of two, each of bounded size: its aligned
allocation takes longer than all else that a small result costs.

Layout of a block: a page with the header {next, bytes, list, settled} and, at 64, the DLPack record of the
tensor that lies there; then the payload, which starts on a page, or on a huge page if it is larger than two of them.

A block becomes huge pages while it is used again, an eighth at a time (`settled`: so many bytes have been asked for).  A fresh one is of ordinary
pages: where the host of a virtual machine has taken back what lay idle, one huge page may take 40 ms (64 MB: half a second, all in the first
call), and ordinary ones come from what was in use a moment ago; elsewhere both take as long.  What is read again and again gains up to a tenth.
Invariant: idle blocks never hold more than `limit` bytes: when they would, all of them go back to the system.
"""

from __future__ import annotations

import mmap

PAGE = 4096
HUGE_PAGE = 2 << 20
LARGE_BYTES = 1 << 20  # results from here on live in the pool; below, malloc keeps what is freed by itself
LISTS = 256
SMALL_BYTES = 32 << 10  # results up to here lie in small blocks
SMALL_LISTS = 16  # of 2^k bytes, k < 16
SMALL_KEPT = 256 << 10  # bytes that wait in a list of small blocks at most
SMALL_HEADER = 64  # before a block's payload: {next, list}
# words of the pool's state, as offsets in bytes.  FUNCTIONS: of a c10::Allocator that gives small blocks (runtime/small.py)
# ADVISED: whether the system gives huge pages where they are asked for, and only there
STATE = {"LOCK": 0, "IDLE": 8, "USED": 16, "LIMIT": 24, "HITS": 32, "MISSES": 40, "ADVISED": 48, "HEADS": 64}
STATE |= {"SMALL_HEADS": 64 + 8 * LISTS, "SMALL_COUNTS": 64 + 8 * (LISTS + SMALL_LISTS), "FUNCTIONS": 64 + 8 * (LISTS + 2 * SMALL_LISTS)}
STATE_WORDS = STATE["FUNCTIONS"] // 8 + 8
assert SMALL_BYTES < 1 << SMALL_LISTS
CONSTANTS = {
    **STATE, "LISTS": LISTS, "PAGE": PAGE, "HUGE_PAGE": HUGE_PAGE, "LARGE_BYTES": LARGE_BYTES,
    "SMALL_BYTES": SMALL_BYTES, "SMALL_LISTS": SMALL_LISTS, "SMALL_KEPT": SMALL_KEPT, "SMALL_HEADER": SMALL_HEADER,
    "MAP_FLAGS": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, "HUGE_ADVICE": getattr(mmap, "MADV_HUGEPAGE", 0),
    "FORGET": getattr(mmap, "MADV_DONTNEED", 0),
}  # fmt: skip

TEXT = '''
def lock():
    tries = 0
    while swap(POOL + LOCK, 1) != 0:
        tries += 1
        if tries & 63 == 0:
            sched_yield()
    return 0

def unlock():
    return publish(POOL + LOCK, 0)

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
    i64[begin + 8] = bytes
    i64[begin + 16] = list
    i64[begin + 24] = bytes
    if align == HUGE_PAGE and i64[POOL + ADVISED] != 0:
        i64[begin + 24] = 0
    return payload

def pool_settle(payload):
    """Huge pages for the next part of a block that is taken again; what stood there is lost."""
    begin = payload - PAGE
    bytes = i64[begin + 8]
    settled = i64[begin + 24]
    part = (bytes // HUGE_PAGE + 7) // 8 * HUGE_PAGE
    if part > bytes - settled:
        part = bytes - settled
    madvise(payload + settled, part, FORGET)
    madvise(payload + settled, part, HUGE_ADVICE)
    i64[begin + 24] = settled + part
    return 0

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
        if i64[payload - PAGE + 24] < i64[payload - PAGE + 8]:
            pool_settle(payload)
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
    small = 0
    for list in range(0, SMALL_LISTS):
        payload = i64[POOL + SMALL_HEADS + 8 * list]
        i64[POOL + SMALL_HEADS + 8 * list] = 0
        i64[POOL + SMALL_COUNTS + 8 * list] = 0
        while payload != 0:
            next = i64[payload - SMALL_HEADER]
            i64[payload - SMALL_HEADER] = small
            small = payload
            payload = next
    unlock()
    while all != 0:
        next = i64[all - PAGE]
        munmap(all - PAGE, i64[all - PAGE + 8] + PAGE)
        all = next
    while small != 0:
        next = i64[small - SMALL_HEADER]
        free(small - SMALL_HEADER)
        small = next
    return 0

def small_take(nbytes):
    """A block of at least nbytes: the address of its payload, a multiple of 64; 0 if there is no memory."""
    list = 64 - leading_zeros((nbytes - 1) | 63)
    head = POOL + SMALL_HEADS + 8 * list
    lock()
    payload = i64[head]
    if payload != 0:
        i64[head] = i64[payload - SMALL_HEADER]
        i64[POOL + SMALL_COUNTS + 8 * list] -= 1
        unlock()
        return payload
    unlock()
    place = stack(16)
    if aligned_alloc(place, 64, SMALL_HEADER + (1 << list)) != 0:
        return 0
    payload = i64[place] + SMALL_HEADER
    i64[payload - SMALL_HEADER + 8] = list
    return payload

def small_give(payload):
    """Takes a small block back; the deleter of storages that lie there."""
    list = i64[payload - SMALL_HEADER + 8]
    count = POOL + SMALL_COUNTS + 8 * list
    lock()
    if i64[count] << list >= SMALL_KEPT:
        unlock()
        free(payload - SMALL_HEADER)
        return 0
    i64[count] += 1
    i64[payload - SMALL_HEADER] = i64[POOL + SMALL_HEADS + 8 * list]
    i64[POOL + SMALL_HEADS + 8 * list] = payload
    unlock()
    return 0

def small_allocate(result, allocator, nbytes):
    """`allocate` of a c10::Allocator: stores a DataPtr {data, deleter, context, device}; data is 0 if there is no such block."""
    payload = 0
    if nbytes > 0 and nbytes <= SMALL_BYTES:
        payload = small_take(nbytes)
    i64[result] = payload
    i64[result + 8] = small_give
    i64[result + 16] = payload
    i64[result + 24] = DEVICE
    return result

def small_other():
    """The other virtual functions, which nobody calls."""
    return 0

def small_tensor(spec, object):
    """`make_tensor` in a small block."""
    allocator = stack(16)
    i64[allocator] = POOL + FUNCTIONS
    made = allocator + 8
    axes = i64[spec]
    empty_in(made, i64[spec + 8], axes, i64[spec + 16], axes, allocator, INFERENCE_KEYS, i64[spec + 24])
    storage = i64[i64[made] + STORAGE]
    i64[storage + ALLOCATOR] = CPU_ALLOCATOR
    data = i64[storage + DATA]
    i64[object + 8] = data
    i64[object] = wrap(made)
    return data == 0 or i64[object] == 0

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
