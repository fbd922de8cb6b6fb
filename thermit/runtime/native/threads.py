"""Running kernels: on the caller's thread, or split over the threads of PyTorch's own pool.

`GOMP_parallel` of the OpenMP library that PyTorch has loaded starts the workers, so there is one pool and no oversubscription.  The number of
threads is read at each call, as eager does.  Chunks are taken from a shared counter: a thread that is held up by something else
does not hold up the others.  Nested regions and children of a fork run serially.

A kernel: i32 kernel(ptr buffers, i64 begin, i64 end), 0 or 1 = stop.  Chunks begin at multiples of its grain.
"""

from __future__ import annotations

# Waking the workers and joining them takes 5 to 10 microseconds (2 cores, libgomp).
PARALLEL_NS = 30_000  # work smaller than this stays on the caller's thread
THREAD_NS = 10_000  # a thread is worth waking for this much work
CHUNK_NS = 5_000  # a chunk is at least this long: taking one costs an atomic addition on a shared line
CHUNKS_PER_THREAD = 8

CONSTANTS = {"PARALLEL_NS": PARALLEL_NS, "THREAD_NS": THREAD_NS, "CHUNK_NS": CHUNK_NS, "CHUNKS_PER_THREAD": CHUNKS_PER_THREAD}

TEXT = '''
def run_chunks(job):
    """What each thread does.  job: kernel, buffers, extent, chunk, next begin, stopped."""
    kernel = i64[job]
    extent = i64[job + 16]
    chunk = i64[job + 24]
    while 1:
        begin = add(job + 32, chunk)
        if begin >= extent or i64[job + 40] != 0:
            return 0
        end = begin + chunk
        if end > extent:
            end = extent
        if invoke_i32(kernel, i64[job + 8], begin, end) != 0:
            i64[job + 40] = 1
    return 0

def run_kernel(kernel, buffers, extent, grain, cost_ns):
    """Runs the kernel over [0, extent); 1 if it stopped."""
    if cost_ns < PARALLEL_NS or extent <= grain:
        return invoke_i32(kernel, buffers, 0, extent)
    return run_parallel(kernel, buffers, extent, grain, cost_ns)

def run_parallel(kernel, buffers, extent, grain, cost_ns):
    job = stack(64)
    threads = num_threads()
    if threads > cost_ns // THREAD_NS:
        threads = cost_ns // THREAD_NS
    pieces = cost_ns // CHUNK_NS
    if pieces > threads * CHUNKS_PER_THREAD:
        pieces = threads * CHUNKS_PER_THREAD
    if threads < 2 or pieces < 2 or in_parallel_region() or getpid() != PID:
        return invoke_i32(kernel, buffers, 0, extent)
    chunk = (extent + pieces - 1) // pieces
    chunk = (chunk + grain - 1) // grain * grain
    if (extent + chunk - 1) // chunk < threads:
        threads = (extent + chunk - 1) // chunk
    if threads < 2:
        return invoke_i32(kernel, buffers, 0, extent)
    i64[job] = kernel
    i64[job + 8] = buffers
    i64[job + 16] = extent
    i64[job + 24] = chunk
    i64[job + 32] = 0
    i64[job + 40] = 0
    gomp_parallel(run_chunks, job, threads, 0)
    return i64[job + 40]
'''
