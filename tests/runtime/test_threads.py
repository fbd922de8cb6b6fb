"""Kernels over several threads: every index once, chunks at multiples of the grain, stops, nesting, many callers."""

import ctypes
import itertools
import threading

import pytest
import torch
from kernels import compile_text

from thermit.runtime.library import runtime

# buffers: log (int64 pairs), counter (int64). Appends [begin, end) of each chunk.
LOG = """
define i32 @log(ptr %buffers, i64 %begin, i64 %end) {
  %pairs = load ptr, ptr %buffers
  %b1 = getelementptr ptr, ptr %buffers, i64 1
  %counter = load ptr, ptr %b1
  %n = atomicrmw add ptr %counter, i64 1 seq_cst
  %k = mul i64 %n, 2
  %p = getelementptr i64, ptr %pairs, i64 %k
  store i64 %begin, ptr %p
  %q = getelementptr i64, ptr %p, i64 1
  store i64 %end, ptr %q
  ret i32 0
}
define i32 @stop(ptr %buffers, i64 %begin, i64 %end) {
  %low = icmp sle i64 %begin, 50
  %high = icmp sgt i64 %end, 50
  %both = and i1 %low, %high
  %r = zext i1 %both to i32
  ret i32 %r
}
"""
ADDRESSES = compile_text(LOG)
RUN = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 5)(runtime().address["run_kernel"])


def chunks(extent, grain, cost_ns):
    log, counter = torch.zeros(2 * (extent + 1), dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    buffers = (ctypes.c_int64 * 2)(log.data_ptr(), counter.data_ptr())
    assert RUN(ADDRESSES["log"], ctypes.addressof(buffers), extent, grain, cost_ns) == 0
    return sorted((int(a), int(b)) for a, b in log[: 2 * int(counter)].view(-1, 2))


@pytest.fixture(autouse=True)
def several_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("extent", [1, 7, 8, 9, 100, 1000, 1001])
@pytest.mark.parametrize("grain", [1, 3, 8, 64, 5000])
@pytest.mark.parametrize("cost_ns", [10, 29_999, 30_000, 100_000, 10**7, 1 << 62])
def test_chunks_cover_the_extent_once(extent, grain, cost_ns):
    found = chunks(extent, grain, cost_ns)
    assert found[0][0] == 0 and found[-1][1] == extent
    assert all(a[1] == b[0] for a, b in itertools.pairwise(found)) and all(a % grain == 0 for a, _ in found)
    if cost_ns < 30_000 or extent <= grain:
        assert found == [(0, extent)]


def test_large_work_is_split_and_the_number_of_threads_is_read_at_the_call():
    assert len(chunks(1000, 8, 10**7)) >= 4
    torch.set_num_threads(1)
    assert chunks(1000, 8, 10**7) == [(0, 1000)]


def test_a_stop_in_any_chunk_stops_the_whole():
    none = (ctypes.c_int64 * 2)()
    for cost_ns in (10, 10**7):
        assert RUN(ADDRESSES["stop"], ctypes.addressof(none), 100, 1, cost_ns) == 1
        assert RUN(ADDRESSES["stop"], ctypes.addressof(none), 50, 1, cost_ns) == 0


def test_many_threads_run_at_once():
    faults = []

    def work():
        for _ in range(30):
            found = chunks(997, 8, 10**6)
            if found[0][0] != 0 or found[-1][1] != 997 or any(a[1] != b[0] for a, b in itertools.pairwise(found)):
                faults.append(found)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not faults
