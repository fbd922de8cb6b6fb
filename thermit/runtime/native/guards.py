"""Native text of the checks before a call: `check` reads the instructions that runtime/guard.py makes.

Invariant: `check` returns 1 only if every fact holds, leaves no Python error behind, and takes no reference but those in the slots.
"""

from __future__ import annotations

# instructions of six words: operation, place, three operands, and for NAMED the version of the dict when it last was as expected.
# A place >= 0 is a slot, place -1 - k is argument k.
FETCHES = ("HELD", "CELL", "GLOBAL", "ATTR", "ITEM")
TESTS = ("IS", "TYPE", "FLOAT", "EQUAL", "LENGTH", "KEYS", "ABSENT", "TENSOR", "PYTHON", "NAMED", "SAME", "APART", "ABSENT_FROM", "SPEC", "WORD")
OPERATIONS = {name: number for number, name in enumerate((*FETCHES, *TESTS))}
CONSTANTS = {f"OP_{name}": number for name, number in OPERATIONS.items()}
GOLDEN = CONSTANTS["GOLDEN"] = -7046029254386353131  # 2^64 / golden ratio, odd: spreads addresses over the high bits

TEXT = '''
def keywords_match(names, kwnames):
    """Whether the keywords of a call are the expected ones, in order."""
    if names == kwnames:
        return 1
    if names == 0 or kwnames == 0:
        return 0
    count = i64[names + 16]
    if count != i64[kwnames + 16]:
        return 0
    for k in range(0, count):
        if i64[names + 24 + 8 * k] != i64[kwnames + 24 + 8 * k]:
            if compare(i64[names + 24 + 8 * k], i64[kwnames + 24 + 8 * k], 2) != 1:
                error_clear()
                return 0
    return 1

def placed(place, slots, args):
    """The value at a place."""
    if place < 0:
        return i64[args + 8 * (-1 - place)]
    return i64[slots + 8 * place]

def apart(instruction, slots, args):
    """Whether the objects at these places all differ: the places, how many, bits of the table of those seen."""
    places = i64[instruction + 16]
    count = i64[instruction + 24]
    if count > 8:
        return apart_in_table(places, count, i64[instruction + 32], slots, args)
    for k in range(1, count):
        value = placed(i64[places + 8 * k], slots, args)
        for j in range(0, k):
            if placed(i64[places + 8 * j], slots, args) == value:
                return 0
    return 1

def apart_in_table(places, count, bits, slots, args):
    bytes = 8 << bits
    if bytes > STACK_BYTES:
        memory = pool_take(bytes)
        if memory == 0:
            return 0
        answer = all_new(places, count, bits, memory, slots, args)
        pool_give(memory)
        return answer
    table = stack(bytes)
    if bytes > PROBE_BYTES:
        touch(table, bytes)
    return all_new(places, count, bits, table, slots, args)

def absent_from(table, bits, value):
    """Whether an address is not in a table."""
    at = ((value >> 4) * GOLDEN) >> (64 - bits)
    while i64[table + 8 * at] != 0:
        if i64[table + 8 * at] == value:
            return 0
        at = (at + 1) & ((1 << bits) - 1)
    return 1

def all_new(places, count, bits, table, slots, args):
    for k in range(0, 1 << bits):
        i64[table + 8 * k] = 0
    for k in range(0, count):
        value = placed(i64[places + 8 * k], slots, args)
        at = ((value >> 4) * GOLDEN) >> (64 - bits)
        while i64[table + 8 * at] != 0:
            if i64[table + 8 * at] == value:
                return 0
            at = (at + 1) & ((1 << bits) - 1)
        i64[table + 8 * at] = value
    return 1

def fetch(operation, instruction, slots, args):
    """Puts a value into its slot, with a reference; 1 if it is there."""
    base = i64[instruction + 16]
    if base < 0:
        base = i64[args + 8 * (-1 - base)]
    elif operation >= OP_ATTR:
        base = i64[slots + 8 * base]
    operand = i64[instruction + 24]
    value = 0
    owned = 0
    if operation == OP_HELD:
        value = operand
    elif operation == OP_CELL:
        value = i64[operand + 16]
    elif operation == OP_GLOBAL:
        value = dict_get(operand, i64[instruction + 32])
        if value == 0 and not error_occurred():
            value = dict_get(BUILTINS, i64[instruction + 32])
    elif operation == OP_ATTR:
        value = get_attr(base, operand)
        owned = 1
    elif i64[base + 8] == DICT_TYPE:
        value = dict_get(base, operand)
    else:
        value = get_item(base, operand)
        owned = 1
    if value == 0:
        error_clear()
        return 0
    if owned == 0:
        incref(value)
    i64[slots + 8 * i64[instruction + 8]] = value
    return 1

def keys_hold(value, expected):
    """Whether a dict has the keys of a list, in this order."""
    if i64[value + 8] != DICT_TYPE or i64[value + 16] != i64[expected + 16]:
        return 0
    keys = dict_keys(value)
    if keys == 0:
        error_clear()
        return 0
    equal = compare(keys, expected, 2)
    decref(keys)
    if equal < 0:
        error_clear()
    return equal == 1

def absent(value, names):
    """Whether a dict has none of the keys in a tuple."""
    if i64[value + 8] != DICT_TYPE:
        return 0
    for k in range(0, i64[names + 16]):
        if dict_get(value, i64[names + 24 + 8 * k]) != 0:
            return 0
    if error_occurred():
        error_clear()
        return 0
    return 1

def test(operation, instruction, value):
    """Whether a value is as expected."""
    expected = i64[instruction + 16]
    if operation == OP_IS:
        return value == expected
    if operation == OP_TYPE:
        return i64[value + 8] == expected
    if operation == OP_FLOAT:
        return i64[value + 8] == FLOAT_TYPE and i64[value + 16] == expected
    if operation == OP_LENGTH:
        return i64[value + 8] == expected and i64[value + 16] == i64[instruction + 24]
    if operation == OP_KEYS:
        return keys_hold(value, expected)
    if operation == OP_ABSENT_FROM:
        return absent_from(expected, i64[instruction + 24], value)
    if operation == OP_ABSENT:
        return absent(value, expected)
    if value == expected:
        return 1
    if i64[value + 8] != i64[expected + 8]:
        return 0
    equal = compare(value, expected, 2)
    if equal < 0:
        error_clear()
    return equal == 1

def python_holds(function, args, nargs, kwnames):
    answer = vectorcall(function, args, nargs, kwnames)
    if answer == 0:
        error_clear()
        return 0
    true = is_true(answer)
    decref(answer)
    if true < 0:
        error_clear()
    return true == 1

def named(names, name, expected, seen):
    """Whether a dict has an object under a name; i64[seen] is the version of the dict when it last had."""
    version = i64[names + DICT_VERSION]
    if DICT_VERSION != 0 and version == i64[seen]:
        return 1
    if dict_get(names, name) != expected:
        error_clear()
        return 0
    i64[seen] = version
    return 1

def ambient_holds(state):
    """Whether operations are dispatched as they were: state has the words of torch_abi.ambient."""
    keys = tls_get_addr(TLS_INDEX)
    if i64[keys] != i64[state] or i64[keys + 8] != i64[state + 8]:
        return 0
    if grad_enabled() != i64[state + 16] or default_dtype() != i64[state + 24]:
        return 0
    if i64[keys + 8] != 0 and autocast_dtype(0) != i64[state + 32]:
        return 0
    if deterministic(global_context()) != i64[state + 40]:
        return 0
    if function_modes() != 0 or dispatch_modes() != 0:
        return 0
    return named(FORWARD_AD, CURRENT_LEVEL, NO_LEVEL, SWITCH + 8)

def tensor_holds(tensor, spec, data):
    """Whether a tensor is as expected; its data in i64[data].
    spec: type, keys, requires_grad, element type, axes, item bytes, bytes spanned, group, offset in the group, whether it is written,
    sizes, strides."""
    if i64[tensor + 8] != i64[spec]:
        return 0
    this = i64[tensor + IMPL]
    axes = i64[spec + 32]
    if i64[this + KEYS] != i64[spec + 8] or u16[this + KIND] != i64[spec + 24] or i64[this + AXES] != axes:
        return 0
    sizes = this + AXES + 8
    strides = sizes + 40
    if axes > 5:
        sizes = i64[sizes]
        strides = sizes + 8 * axes
    expected = spec + 80
    for k in range(0, axes):
        if i64[sizes + 8 * k] != i64[expected + 8 * k]:
            return 0
    expected += 8 * axes
    for k in range(0, axes):
        if i64[strides + 8 * k] != i64[expected + 8 * k]:
            return 0
    if requires_grad(this) != i64[spec + 16]:
        return 0
    if i64[spec + 72]:
        if get_data_ptr(tensor + IMPL, data) != 0:
            return 0
    else:
        i64[data] = i64[i64[this + STORAGE] + DATA] + i64[this + OFFSET] * i64[spec + 40]
    return i64[data] & (i64[spec + 40] - 1) & 7 == 0

def unchanged(pair, last):
    """Whether each word is as it was: pairs of an address and what was there."""
    while pair < last:
        if i64[i64[pair]] != i64[pair + 8]:
            return 0
        pair += 16
    return 1

def check(variant, args, nargs, kwnames, slots, tensors, data):
    """1 if all facts hold.  Slots must be zero; tensors and their data are stored, and one word of data is for tensors that are no inputs."""
    short = i64[variant + V_SHORT]
    if short != 0:
        if unchanged(i64[short], i64[short + 8]):
            i64[variant + V_WHOLE] = 0
            return perform(variant, i64[short + 16], i64[short + 24], args, nargs, kwnames, slots, tensors, data)
    i64[variant + V_WHOLE] += 1
    return perform(variant, i64[variant + V_INSTRUCTIONS], i64[variant + V_COUNT], args, nargs, kwnames, slots, tensors, data)

def perform(variant, instruction, count, args, nargs, kwnames, slots, tensors, data):
    """1 if the facts of these instructions hold."""
    last = instruction + 48 * count
    while instruction < last:
        operation = i64[instruction]
        if operation < OP_IS:
            if fetch(operation, instruction, slots, args) == 0:
                return 0
        elif operation == OP_NAMED:
            if named(i64[instruction + 16], i64[instruction + 24], i64[instruction + 32], instruction + 40) == 0:
                return 0
        elif operation == OP_WORD:
            if i64[i64[instruction + 16]] != i64[instruction + 24]:
                return 0
        elif operation == OP_APART:
            if apart(instruction, slots, args) == 0:
                return 0
        elif operation == OP_PYTHON:
            if python_holds(i64[instruction + 16], args, nargs, kwnames) == 0:
                return 0
        else:
            value = placed(i64[instruction + 8], slots, args)
            if operation == OP_TENSOR:
                number = 8 * i64[instruction + 24]
                if tensor_holds(value, i64[instruction + 16], data + number) == 0:
                    return 0
                i64[tensors + number] = value
            elif operation == OP_SPEC:
                if tensor_holds(value, i64[instruction + 16], data + 8 * i64[variant + V_TENSORS]) == 0:
                    return 0
            elif operation == OP_SAME:
                if value != placed(i64[instruction + 16], slots, args):
                    return 0
            elif test(operation, instruction, value) == 0:
                return 0
        instruction += 48
    return aliasing_holds(variant, tensors, data)

def aliasing_holds(variant, tensors, data):
    """Whether groups lie as they lay, and what is written overlaps nothing else; where all are arguments, whether all differ."""
    count = i64[variant + V_TENSORS]
    specs = i64[variant + V_SPECS]
    direct = i64[variant + V_DIRECT]
    for k in range(1, direct):
        tensor = i64[tensors + 8 * k]
        for j in range(0, k):
            if i64[tensors + 8 * j] == tensor:
                return 0
    if i64[variant + V_GROUPS]:
        for k in range(0, count):
            spec = i64[specs + 8 * k]
            leader = i64[spec + 56]
            if leader >= 0:
                if i64[data + 8 * k] - i64[data + 8 * leader] != i64[spec + 64]:
                    return 0
    for u in range(0, i64[variant + V_UPDATES]):
        number = i64[i64[variant + V_UPDATED] + 8 * u]
        spec = i64[specs + 8 * number]
        begin = i64[data + 8 * number]
        end = begin + i64[spec + 48]
        for j in range(0, count):
            other = i64[specs + 8 * j]
            at = i64[data + 8 * j]
            if j != number and at < end and begin < at + i64[other + 48] and (i64[spec + 56] < 0 or i64[other + 56] != i64[spec + 56]):
                return 0
    return 1
'''
