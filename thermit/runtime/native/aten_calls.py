"""Native text of the ATen calls of a plan: arguments collected, results checked and put in their buffers.

`run_with_calls` runs a plan that has calls; their words are made by runtime/aten_calls.py.
"""

from __future__ import annotations

TAGS = ("CONSTANT", "BUFFER", "LIST")
CALL = ("KIND", "FUNCTION", "COUNT", "ARGS", "NARGS", "NAMES", "RESULTS", "EXPECTED")
CONSTANTS = {**{f"TAG_{name}": k for k, name in enumerate(TAGS)}, **{f"C_{name}": 8 * k for k, name in enumerate(CALL)}}

TEXT = '''
def raised():
    """STOP where an Exception is set, which is cleared: eager will raise it again.  RAISED for an interrupt."""
    if error_occurred() == 0:
        return NO_MEMORY
    if exception_matches(EXCEPTION):
        error_clear()
        return STOP
    return RAISED

def is_expected(tensor, expected):
    """Whether a call's result has the type that kernels were compiled for.  expected: element type, axes, sizes, strides."""
    if i64[tensor + 8] != TENSOR_TYPE:
        return 0
    this = i64[tensor + IMPL]
    axes = i64[expected + 8]
    keys = i64[this + KEYS]
    if (keys != PLAIN_KEYS and keys != INFERENCE_KEYS) or u16[this + KIND] != i64[expected] or i64[this + AXES] != axes:
        return 0
    sizes = this + AXES + 8
    strides = sizes + 40
    if axes > 5:
        sizes = i64[sizes]
        strides = sizes + 8 * axes
    for k in range(0, axes):
        if i64[sizes + 8 * k] != i64[expected + 16 + 8 * k]:
            return 0
        if i64[strides + 8 * k] != i64[expected + 16 + 8 * axes + 8 * k]:
            return 0
    return 1

def shares(tensor, step, objects):
    """Whether a call's result lies in the storage of one of its operands."""
    storage = i64[i64[tensor + IMPL] + STORAGE]
    for k in range(0, i64[step + C_COUNT]):
        entry = i64[step + C_ARGS] + 16 * k
        if i64[entry] == TAG_BUFFER:
            if i64[i64[i64[objects + 8 * i64[entry + 8]] + IMPL] + STORAGE] == storage:
                return 1
    return 0

def fit(value, function, step, objects):
    """A call's result, copied if need be (a new reference); 0 with an error set, or without one where memory has run out."""
    bytes = 8 * (2 + i64[step + C_COUNT])
    if bytes > STACK_BYTES:
        argv = pool_take(bytes)
        if argv == 0:
            return 0
    else:
        argv = stack(bytes)
        if bytes > PROBE_BYTES:
            touch(argv, bytes)
    i64[argv + 8] = value
    count = 1
    for k in range(0, i64[step + C_COUNT]):
        entry = i64[step + C_ARGS] + 16 * k
        if i64[entry] == TAG_BUFFER:
            count += 1
            i64[argv + 8 * count] = i64[objects + 8 * i64[entry + 8]]
    made = vectorcall(function, argv + 8, count, 0)
    if bytes > STACK_BYTES:
        pool_give(argv)
    return made

def take_result(value, expected, step, objects, pointers):
    """Puts one result of a call in its buffer.  expected: buffer or -1, its type, function that fits it."""
    buffer = i64[expected]
    if buffer < 0:
        return DONE
    incref(value)
    if is_expected(value, i64[expected + 8]) == 0 or shares(value, step, objects):
        made = fit(value, i64[expected + 16], step, objects)
        decref(value)
        if made == 0:
            return raised()
        value = made
    i64[objects + 8 * buffer] = value
    get_data_ptr(value + IMPL, pointers + 8 * buffer)
    return DONE

def take_results(answer, step, objects, pointers):
    count = i64[step + C_RESULTS]
    expected = i64[step + C_EXPECTED]
    kind = i64[answer + 8]
    if kind != TUPLE_TYPE and kind != LIST_TYPE:
        if count == 0:
            return DONE
        return take_result(answer, expected, step, objects, pointers)
    items = answer + 24
    if kind == LIST_TYPE:
        items = i64[items]
    if i64[answer + 16] < count:
        return STOP
    for k in range(0, count):
        status = take_result(i64[items + 8 * k], expected + 24 * k, step, objects, pointers)
        if status != DONE:
            return status
    return DONE

def run_call(step, objects, pointers):
    """Calls an ATen operation.  Entries of its arguments: tag, value; those of a list follow it."""
    count = i64[step + C_COUNT]
    bytes = 8 * (1 + 2 * count)
    if bytes > STACK_BYTES:
        memory = pool_take(bytes)
        if memory == 0:
            return NO_MEMORY
    else:
        memory = stack(bytes)
        if bytes > PROBE_BYTES:
            touch(memory, bytes)
    argv = memory + 8
    lists = argv + 8 * count
    made = 0
    n = 0
    k = 0
    status = DONE
    while k < count and status == DONE:
        entry = i64[step + C_ARGS] + 16 * k
        value = i64[entry + 8]
        if i64[entry] == TAG_LIST:
            length = value
            value = list_new(length)
            if value == 0:
                status = RAISED
            else:
                i64[lists + 8 * made] = value
                made += 1
                for j in range(0, length):
                    k += 1
                    entry = i64[step + C_ARGS] + 16 * k
                    item = i64[entry + 8]
                    if i64[entry] == TAG_BUFFER:
                        item = i64[objects + 8 * item]
                    incref(item)
                    i64[i64[value + 24] + 8 * j] = item
        elif i64[entry] == TAG_BUFFER:
            value = i64[objects + 8 * value]
        i64[argv + 8 * n] = value
        n += 1
        k += 1
    if status == DONE:
        answer = vectorcall(i64[step + C_FUNCTION], argv, i64[step + C_NARGS], i64[step + C_NAMES])
        if answer == 0:
            status = raised()
        else:
            status = take_results(answer, step, objects, pointers)
            decref(answer)
    for j in range(0, made):
        decref(i64[lists + 8 * j])
    if bytes > STACK_BYTES:
        pool_give(memory)
    return status

def run_mixed(plan, objects, pointers, scratch):
    """A plan with calls.  Holds the interpreter except in long kernels."""
    step = i64[plan + P_STEP_TABLE]
    last = step + 64 * i64[plan + P_STEPS]
    made = stack(16)
    while step < last:
        kind = i64[step]
        status = DONE
        if kind == KIND_CALL:
            status = run_call(step, objects, pointers)
        elif kind == KIND_MAKE:
            buffer = i64[step + 8]
            if make_tensor(i64[step + 16], made) != 0:
                error_clear()
                return NO_MEMORY
            i64[objects + 8 * buffer] = i64[made]
            i64[pointers + 8 * buffer] = i64[made + 8]
        elif kind == KIND_DROP:
            buffer = i64[step + 8]
            decref(i64[objects + 8 * buffer])
            i64[objects + 8 * buffer] = 0
        elif i64[step + 48] > RELEASE_NS:
            thread = save_thread()
            status = run_step(step, pointers, scratch)
            restore_thread(thread)
        else:
            status = run_step(step, pointers, scratch)
        if status != DONE:
            return status
        step += 64
    return DONE

def release(plan, objects):
    """Drops what the plan made for itself."""
    record = i64[plan + P_TABLE]
    for k in range(0, i64[plan + P_BUFFERS]):
        if i64[record + 16] < 0 and i64[record] >= ROLE_RESULT and i64[objects + 8 * k] != 0:
            decref(i64[objects + 8 * k])
        record += 24
    return 0

def hand_over(plan, objects, outputs):
    """Results of calls that are outputs of the function."""
    record = i64[plan + P_TABLE]
    for k in range(0, i64[plan + P_BUFFERS]):
        output = i64[record + 16]
        if i64[record] == ROLE_RESULT and output >= 0 and i64[objects + 8 * k] != 0:
            i64[outputs + 16 * output] = i64[objects + 8 * k]
        record += 24
    return 0

def drop_handed(plan, objects):
    """Drops results that would have become outputs."""
    record = i64[plan + P_TABLE]
    for k in range(0, i64[plan + P_BUFFERS]):
        if i64[record] == ROLE_RESULT and i64[record + 16] >= 0 and i64[objects + 8 * k] != 0:
            decref(i64[objects + 8 * k])
        record += 24
    return 0

def restore(plan, state):
    """Puts the random generators back."""
    argv = stack(16)
    i64[argv + 8] = state
    done = vectorcall(i64[plan + P_RESTORE], argv + 8, 1, 0)
    if done == 0:
        return 0
    decref(done)
    return 1

def run_with_calls(plan, objects, pointers, scratch, outputs):
    state = 0
    if i64[plan + P_SAVE] != 0:
        state = vectorcall(i64[plan + P_SAVE], 0, 0, 0)
        if state == 0:
            return RAISED
    status = run_mixed(plan, objects, pointers, scratch)
    if status == DONE:
        hand_over(plan, objects, outputs)
    else:
        drop_handed(plan, objects)
    release(plan, objects)
    if state != 0:
        if status == STOP or status == NO_MEMORY:
            if restore(plan, state) == 0:
                status = RAISED
        decref(state)
    return status
'''
