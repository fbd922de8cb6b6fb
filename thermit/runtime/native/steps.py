"""Native text of a plan: outputs are made, temporaries found, kernels and copies run.

`run_plan` and `make_tensor` read the tables that runtime/launch.py makes.
"""

from __future__ import annotations

RELEASE_NS = 50_000  # work longer than this gives other Python threads the interpreter meanwhile (releasing it costs 0.1 us alone)
STACK_BYTES = 16 << 10  # tables and arenas up to this size lie on the caller's stack, larger ones in the pool
PROBE_BYTES = 2 << 10  # from here on stack memory is touched in order, see `touch`
assert STACK_BYTES < 1 << 20  # well inside the stack of any thread

ROLES = {"input": 0, "output": 1, "temp": 2, "result": 3, "tensor": 4}  # "tensor": a temp that calls read
KINDS = ("KERNEL", "COPY", "CALL", "MAKE", "DROP")  # the first word of a step
PLAN = ("BUFFERS", "TABLE", "STEPS", "STEP_TABLE", "ARENA", "COST", "MOST", "CALLS", "SAVE", "RESTORE")
CONSTANTS = {
    "RELEASE_NS": RELEASE_NS, "STACK_BYTES": STACK_BYTES, "PROBE_BYTES": PROBE_BYTES,
    **{f"ROLE_{name.upper()}": k for name, k in ROLES.items()},
    **{f"KIND_{name}": k for k, name in enumerate(KINDS)},
    **{f"P_{name}": 8 * k for k, name in enumerate(PLAN)},
    "DONE": 0, "STOP": 1, "NO_MEMORY": 2, "RAISED": 3,
}  # fmt: skip

TEXT = '''
def touch(memory, bytes):
    """Touches every page of new stack memory, what lies next to the memory in use first: a stack that is too small faults, and nothing
    beyond its guard page is hit."""
    while bytes > PROBE_BYTES:
        bytes -= PROBE_BYTES
        u8[memory + bytes] = 0
    return memory

def copy_strided(to, source, axes, sizes, strides, run):
    """Copies runs of `run` bytes; sizes and strides (bytes) of `axes` outer axes."""
    if axes == 0:
        memmove(to, source, run)
        return 0
    size = i64[sizes]
    stride = i64[strides]
    for i in range(0, size):
        copy_strided(to + i * stride, source + i * stride, axes - 1, sizes + 8, strides + 8, run)
    return 0

def make_tensor(spec, object):
    """Stores a new tensor in i64[object] and its data in i64[object + 8]; 1 if there is none.
    spec: axes, sizes, strides, element type, DLPack dtype, bytes."""
    handle = stack(16)
    if i64[spec + 40] >= LARGE_BYTES:
        data = pool_tensor(i64[spec + 40], i64[spec], i64[spec + 8], i64[spec + 16], i64[spec + 32], object)
        i64[object + 8] = data
        if data == 0:
            i64[object] = 0
            return 1
        return 0
    if SMALL != 0 and i64[spec + 40] <= SMALL_BYTES and i64[spec + 40] > 0:
        return small_tensor(spec, object)
    if empty_strided(i64[spec], i64[spec + 8], i64[spec + 16], i64[spec + 24], 0, 0, handle) != 0:
        return 1
    get_data_ptr(i64[handle], object + 8)
    i64[object] = wrap(i64[handle])
    delete_tensor(i64[handle])
    return i64[object] == 0

def run_step(step, pointers, scratch):
    """A kernel or a copy; 1 if it stopped.  step: kind, function, number of buffers, their numbers, extent, grain, cost."""
    numbers = i64[step + 24]
    if i64[step] == KIND_KERNEL:
        for k in range(0, i64[step + 16]):
            i64[scratch + 8 * k] = i64[pointers + 8 * i64[numbers + 8 * k]]
        return run_kernel(i64[step + 8], scratch, i64[step + 32], i64[step + 40], i64[step + 48])
    source = i64[pointers + 8 * i64[numbers]]
    to = i64[pointers + 8 * i64[numbers + 8]]
    copy_strided(to, source, i64[step + 16], i64[step + 32], i64[step + 40], i64[step + 8])
    return 0

def run_steps(plan, pointers, scratch):
    """A plan of kernels and copies; 1 if one stopped."""
    step = i64[plan + P_STEP_TABLE]
    last = step + 64 * i64[plan + P_STEPS]
    while step < last:
        if run_step(step, pointers, scratch) != 0:
            return STOP
        step += 64
    return DONE

def run_plan(plan, tensors, data, outputs):
    """Runs on the inputs (objects and their data) and outputs (pairs object, data; 0 where a call makes it).  DONE, STOP, NO_MEMORY, RAISED."""
    bytes = 8 * (2 * i64[plan + P_BUFFERS] + i64[plan + P_MOST])
    if bytes > STACK_BYTES:
        memory = pool_take(bytes)
        if memory == 0:
            return NO_MEMORY
        status = run_in(plan, tensors, data, outputs, memory)
        pool_give(memory)
        return status
    pointers = stack(bytes)
    if bytes > PROBE_BYTES:
        touch(pointers, bytes)
    return run_in(plan, tensors, data, outputs, pointers)

def run_in(plan, tensors, data, outputs, pointers):
    buffers = i64[plan + P_BUFFERS]
    calls = i64[plan + P_CALLS]
    objects = pointers + 8 * buffers
    scratch = objects + 8 * buffers
    arena = 0
    large = 0
    if i64[plan + P_ARENA] > STACK_BYTES:
        large = pool_take(i64[plan + P_ARENA])
        arena = large
        if large == 0:
            return NO_MEMORY
    elif i64[plan + P_ARENA] > 0:
        arena = stack(i64[plan + P_ARENA])
        if i64[plan + P_ARENA] > PROBE_BYTES:
            touch(arena, i64[plan + P_ARENA])
    record = i64[plan + P_TABLE]
    for k in range(0, buffers):
        role = i64[record]
        index = i64[record + 8]
        if role == ROLE_INPUT:
            i64[pointers + 8 * k] = i64[data + 8 * index]
            i64[objects + 8 * k] = i64[tensors + 8 * index]
        elif role == ROLE_OUTPUT:
            i64[pointers + 8 * k] = i64[outputs + 16 * index + 8]
            i64[objects + 8 * k] = i64[outputs + 16 * index]
        else:
            i64[pointers + 8 * k] = arena + index
            i64[objects + 8 * k] = 0
        record += 24
    if calls:
        status = invoke_i64(calls, plan, objects, pointers, scratch, outputs)
    elif i64[plan + P_COST] > RELEASE_NS:
        thread = save_thread()
        status = run_steps(plan, pointers, scratch)
        restore_thread(thread)
    else:
        status = run_steps(plan, pointers, scratch)
    if large != 0:
        pool_give(large)
    return status
'''
