"""Native text of a call: the variants in turn, guards, outputs, kernels, results.

    call(bound, args, nargs, kwnames)          the METH_FASTCALL | METH_KEYWORDS function of every entry
    call_object(self, args, nargs, kwnames)    the vectorcall function of objects that have `bound` in a slot

`bound` is a Python object whose first slot is a bytes object with the entry's words (E_*); a table of variants is an array {count,
addresses}, replaced as a whole and never changed; of a variant only V_WHOLE (calls since the short check last served) and V_SHORT are written.
What no variant takes goes to the slow path with the same arguments.
A call returns a new reference, or 0 with a Python error set.
"""

from __future__ import annotations

_ENTRY = ("TABLE", "SLOW", "HITS", "MISSES", "RUNNING")
_VARIANT = (
    "NARGS", "KEYWORDS", "AMBIENT", "INSTRUCTIONS", "COUNT", "SLOTS", "TENSORS", "SPECS", "DIRECT", "GROUPS", "UPDATES", "UPDATED",
    "PLAN", "OUTPUTS", "OUTPUT_TABLE", "RUNNER", "STOP", "RETURNS", "RETURN_TABLE", "FORM", "FINISH",
    "SHORT", "WHOLE", "SHORTEN",
)  # fmt: skip
FORMS = ("none", "one", "tuple", "list", "finish")
ENTRY_WORDS, VARIANT_WORDS = len(_ENTRY), _VARIANT
CONSTANTS = {
    **{f"E_{name}": 8 * k for k, name in enumerate(_ENTRY)},
    **{f"V_{name}": 8 * k for k, name in enumerate(_VARIANT)},
    **{f"FORM_{name.upper()}": k for k, name in enumerate(FORMS)},
}
CONSTANTS["WHOLE_CALLS"] = 8  # so many calls pay for the way to a shorter check
MISS, STOPPED, ERROR = 0, 1, 2  # what `try_variant` returns instead of an object
CONSTANTS["COUNT_BITS"] = (1 << 63) - 1  # of the number of arguments of a vectorcall; the highest one says that args[-1] may be written
CONSTANTS |= {"MISS": MISS, "STOPPED": STOPPED, "ERROR": ERROR}

TEXT = '''
def returned(variant, tensors, outputs, k):
    """The k-th tensor that the function returns (borrowed).  An entry of the table: input number, or -1 - output number."""
    index = i64[i64[variant + V_RETURN_TABLE] + 8 * k]
    if index >= 0:
        return i64[tensors + 8 * index]
    return i64[outputs + 16 * (-1 - index)]

def give(variant, tensors, outputs):
    """The function's result: a new reference, or ERROR."""
    form = i64[variant + V_FORM]
    if form == FORM_NONE:
        incref(NONE)
        return NONE
    if form == FORM_ONE:
        value = returned(variant, tensors, outputs, 0)
        incref(value)
        return value
    count = i64[variant + V_RETURNS]
    if form == FORM_TUPLE:
        container = tuple_new(count)
    else:
        container = list_new(count)
    if container == 0:
        return ERROR
    items = container + 24
    if form != FORM_TUPLE:
        items = i64[items]
    for k in range(0, count):
        value = returned(variant, tensors, outputs, k)
        incref(value)
        i64[items + 8 * k] = value
    if form != FORM_FINISH:
        return container
    argument = stack(16)
    i64[argument + 8] = container
    value = vectorcall(i64[variant + V_FINISH], argument + 8, 1, 0)
    decref(container)
    if value == 0:
        return ERROR
    return value

def run_python(variant, tensors):
    """Hands the list of the program's inputs to a Python function; it returns NotImplemented if the program stopped."""
    count = i64[variant + V_TENSORS]
    list = list_new(count)
    if list == 0:
        return ERROR
    for k in range(0, count):
        incref(i64[tensors + 8 * k])
        i64[i64[list + 24] + 8 * k] = i64[tensors + 8 * k]
    argument = stack(16)
    i64[argument + 8] = list
    value = vectorcall(i64[variant + V_RUNNER], argument + 8, 1, 0)
    decref(list)
    if value == 0:
        return ERROR
    if value == NOT_IMPLEMENTED:
        decref(value)
        return STOPPED
    return value

def shorten(variant, args, nargs, kwnames):
    """The last calls looked at every guard: Python looks for a shorter way (runtime/shorten.py)."""
    done = vectorcall(i64[variant + V_SHORTEN], args, nargs, kwnames)
    if done == 0:
        error_clear()
    else:
        decref(done)
    return 0

def call_object(self, args, nargs, kwnames):
    bound = i64[self + BOUND]
    if bound == 0 or i64[bound + 8] != i64[GONE + 8]:  # the slot is written by who writes all attributes of objects
        bound = GONE
    return call(bound, args, nargs & COUNT_BITS, kwnames)

def call(bound, args, nargs, kwnames):
    words = i64[bound + 16]
    if words == 0:
        words = i64[GONE + 16]
    words += 32
    table = i64[words + E_TABLE]
    if table != 0 and i64[SWITCH] == 0:
        for k in range(1, i64[table] + 1):
            variant = i64[table + 8 * k]
            if nargs == i64[variant + V_NARGS] and keywords_match(i64[variant + V_KEYWORDS], kwnames):
                i64[words + E_RUNNING] += 1
                result = try_variant(variant, args, nargs, kwnames)
                if result > ERROR and i64[variant + V_WHOLE] >= WHOLE_CALLS and i64[variant + V_SHORTEN] != 0:
                    shorten(variant, args, nargs, kwnames)
                i64[words + E_RUNNING] -= 1
                if result > ERROR:
                    i64[words + E_HITS] += 1
                    return result
                if result == STOPPED:
                    return vectorcall(i64[variant + V_STOP], args, nargs, kwnames)
                if result == ERROR:
                    return 0
    i64[words + E_MISSES] += 1
    return vectorcall(i64[words + E_SLOW], args, nargs, kwnames)

def try_variant(variant, args, nargs, kwnames):
    """The result, or MISS, STOPPED, ERROR."""
    if ambient_holds(i64[variant + V_AMBIENT]) == 0:
        return MISS
    bytes = 8 * (i64[variant + V_SLOTS] + 2 * i64[variant + V_TENSORS] + 1)
    if bytes > STACK_BYTES:
        memory = pool_take(bytes)
        if memory == 0:
            return MISS
        result = try_in(variant, args, nargs, kwnames, memory)
        pool_give(memory)
        return result
    slots = stack(bytes)
    if bytes > PROBE_BYTES:
        touch(slots, bytes)
    return try_in(variant, args, nargs, kwnames, slots)

def try_in(variant, args, nargs, kwnames, slots):
    count = i64[variant + V_SLOTS]
    number = i64[variant + V_TENSORS]
    tensors = slots + 8 * count
    data = tensors + 8 * number
    for k in range(0, count):
        i64[slots + 8 * k] = 0
    result = MISS
    if check(variant, args, nargs, kwnames, slots, tensors, data):
        if i64[variant + V_PLAN] != 0:
            result = run_native(variant, tensors, data)
        else:
            result = run_python(variant, tensors)
    for k in range(0, count):
        if i64[slots + 8 * k] != 0:
            decref(i64[slots + 8 * k])
    return result

def run_native(variant, tensors, data):
    bytes = 16 * i64[variant + V_OUTPUTS]
    if bytes > STACK_BYTES:
        memory = pool_take(bytes)
        if memory == 0:
            return MISS
        result = run_on(variant, tensors, data, memory)
        pool_give(memory)
        return result
    outputs = stack(bytes)
    if bytes > PROBE_BYTES:
        touch(outputs, bytes)
    return run_on(variant, tensors, data, outputs)

def run_on(variant, tensors, data, outputs):
    number = i64[variant + V_OUTPUTS]
    for k in range(0, 2 * number):
        i64[outputs + 8 * k] = 0
    result = MISS
    status = DONE
    k = 0
    while k < number and status == DONE:
        spec = i64[variant + V_OUTPUT_TABLE] + 64 * k
        if i64[spec] >= 0:
            if make_tensor(spec, outputs + 16 * k) != 0:
                error_clear()
                status = NO_MEMORY
        k += 1
    if status == DONE:
        status = run_plan(i64[variant + V_PLAN], tensors, data, outputs)
        if status == STOP:
            result = STOPPED
        elif status == RAISED:
            result = ERROR
        elif status == DONE:
            for u in range(0, i64[variant + V_UPDATES]):
                bump_version(i64[tensors + 8 * i64[i64[variant + V_UPDATED] + 8 * u]] + IMPL)
            result = give(variant, tensors, outputs)
    for k in range(0, number):
        if i64[outputs + 16 * k] != 0:
            decref(i64[outputs + 16 * k])
    return result
'''
