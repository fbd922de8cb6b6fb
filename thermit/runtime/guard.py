"""The facts that a compiled variant depends on, as a table that native code checks.

    GuardTable(positional, keywords, tensors, guards, ...)  ->  a list of small instructions, read by `check` (TEXT)

Two kinds of instructions: fetches put a value (the content of a cell, a global, an attribute, an item) into a slot, tests
compare what is in a slot, or an argument, with what was baked in.  What has no native form is left to a Python function, called last.
Invariant: `check` returns 1 only if every fact holds, leaves no Python error behind, and takes no reference but those in the slots.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch

from thermit.capture.signature import Arg, Attr, Call, Cell, Global, Guard, Held, Item, Source, TensorSpec, holds
from thermit.runtime.tables import Tables
from thermit.runtime.torch_abi import SCALAR_TYPES, Abi

# instructions of six words: operation, place, three operands, unused.  A place >= 0 is a slot, place -1 - k is argument k.
FETCHES = ("HELD", "CELL", "GLOBAL", "ATTR", "ITEM")
TESTS = ("IS", "TYPE", "FLOAT", "EQUAL", "LENGTH", "KEYS", "ABSENT", "TENSOR", "PYTHON")
OPERATIONS = {name: number for number, name in enumerate((*FETCHES, *TESTS))}
CONSTANTS = {f"OP_{name}": number for name, number in OPERATIONS.items()}

LEAVES = '''
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
'''

TEXT = '''
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
    return dict_get(FORWARD_AD, CURRENT_LEVEL) == NO_LEVEL

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

def check(variant, args, nargs, kwnames, slots, tensors, data):
    """1 if all facts hold.  Slots must be zero; tensors and their data are stored."""
    instruction = i64[variant + V_INSTRUCTIONS]
    last = instruction + 48 * i64[variant + V_COUNT]
    while instruction < last:
        operation = i64[instruction]
        if operation < OP_IS:
            if fetch(operation, instruction, slots, args) == 0:
                return 0
        elif operation == OP_PYTHON:
            if python_holds(i64[instruction + 16], args, nargs, kwnames) == 0:
                return 0
        else:
            value = i64[instruction + 8]
            if value < 0:
                value = i64[args + 8 * (-1 - value)]
            else:
                value = i64[slots + 8 * value]
            if operation == OP_TENSOR:
                number = 8 * i64[instruction + 24]
                if tensor_holds(value, i64[instruction + 16], data + number) == 0:
                    return 0
                i64[tensors + number] = value
            elif test(operation, instruction, value) == 0:
                return 0
        instruction += 48
    return aliasing_holds(variant, tensors, data)

def aliasing_holds(variant, tensors, data):
    """Whether different tensors are different objects, groups lie as they lay, and what is written overlaps nothing else."""
    count = i64[variant + V_TENSORS]
    specs = i64[variant + V_SPECS]
    direct = i64[variant + V_DIRECT]
    for k in range(1, direct):
        tensor = i64[tensors + 8 * k]
        for j in range(0, k):
            if i64[tensors + 8 * j] == tensor and i64[i64[specs + 8 * j] + 56] < 0:
                return 0
    if i64[variant + V_GROUPS]:
        for k in range(0, count):
            spec = i64[specs + 8 * k]
            leader = i64[spec + 56]
            if leader >= 0 and i64[data + 8 * k] - i64[data + 8 * leader] != i64[spec + 64]:
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

_EQUAL_TYPES = (int, str, bytes)
_SIZED = (list, tuple, dict, OrderedDict)  # their word after the header is how many elements they have


class GuardTable(Tables):
    """The instructions of a variant; tensors become the inputs 0, 1, ... of the program, in the given order; `updates` are written."""

    def __init__(
        self,
        abi: Abi,
        positional: int,
        keywords: Sequence[str],
        tensors: Sequence[tuple[Source, TensorSpec]],
        guards: Sequence[Guard],
        updates: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self._abi, self._positional, self._keywords = abi, positional, list(keywords)
        self._places: dict[Any, int] = {}
        self._list: list[list[int]] = []
        self.slots = 0
        self.rest: list[Guard] = []
        leaders: dict[int, int] = {}
        for number, (_, spec) in enumerate(tensors):
            leaders.setdefault(spec.group, number)
        self.specs = [self._spec(s, leaders[s.group], tensors, k in updates) for k, (_, s) in enumerate(tensors)]
        order = sorted(range(len(tensors)), key=lambda k: not isinstance(tensors[k][0], Arg))
        for number in order:
            self._emit("TENSOR", self._place(tensors[number][0]), self.specs[number], number)
        self.direct = len(tensors) if all(isinstance(s, Arg) for s, _ in tensors) else 0
        for guard in guards:
            if not self._guard(guard):
                self.rest.append(guard)
        if self.rest:
            self._emit("PYTHON", 0, self.object(self._in_python()))

    @property
    def count(self) -> int:
        return len(self._list)

    def address(self) -> int:
        return self.add([word for instruction in self._list for word in instruction])

    def _emit(self, operation: str, place: int, *operands: int) -> None:
        self._list.append([OPERATIONS[operation], place, *operands, *[0] * (4 - len(operands))])

    def _spec(self, spec: TensorSpec, leader: int, tensors: Sequence[tuple[Source, TensorSpec]], written: bool) -> int:
        group = leader if spec.group >= 0 else -1
        offset = spec.offset - tensors[leader][1].offset if spec.group >= 0 else 0
        kind = torch.nn.Parameter if spec.flags & 2 else torch.Tensor
        keys = self._abi.inference_keys if spec.flags & 4 else self._abi.plain_keys
        itemsize = spec.dtype.itemsize
        last = sum((n - 1) * s for n, s in zip(spec.sizes, spec.strides, strict=True))
        span = 0 if 0 in spec.sizes else (last + 1) * itemsize
        head = [id(kind), keys, spec.flags & 1, SCALAR_TYPES[spec.dtype], len(spec.sizes), itemsize, span, group, offset, int(written)]
        return self.add([*head, *spec.sizes, *spec.strides])

    # ------------------------------------------------------------------------------------------ fetches
    def _place(self, source: Source) -> int:
        """Where the value of a source is: an argument, or a slot that an instruction fills."""
        if isinstance(source, Arg):
            number = source.slot if isinstance(source.slot, int) else self._positional + self._keywords.index(source.slot)
            return -1 - number
        if source not in self._places:
            self._fetch(source)
        return self._places[source]

    def _fetch(self, source: Source) -> None:
        operands: tuple[Any, ...]
        match source:
            case Held(value=value):
                operands = ("HELD", 0, self.object(value))
            case Cell(cell=cell):
                operands = ("CELL", 0, self.object(cell))
            case Global(names=names, name=name):
                operands = ("GLOBAL", 0, self.object(names), self.object(name))
            case Attr(base=base, name=name):
                operands = ("ATTR", self._place(base), self.object(name))
            case Item(base=base, key=key):
                operands = ("ITEM", self._place(base), self.object(key))
            case _:
                raise TypeError(f"no native form of {source}")
        self._places[source] = slot = self.slots
        self.slots += 1
        self._emit(operands[0], slot, *operands[1:])

    # ------------------------------------------------------------------------------------------ tests
    def _guard(self, guard: Guard) -> bool:
        """Whether the guard has a native form; then it is emitted."""
        if not _is_native(guard.source):
            return False
        expected = guard.expected
        match guard.kind:
            case "is":
                self._emit("IS", self._place(guard.source), self.object(expected))
            case "type":
                self._emit("TYPE", self._place(guard.source), self.object(expected))
            case "equals":
                return self._equals(guard.source, expected)
            case "length":
                self._emit("LENGTH", self._place(guard.source), self.object(expected[0]), expected[1])
            case "empty" if expected in _SIZED:
                self._emit("LENGTH", self._place(guard.source), self.object(expected), 0)
            case "keys":
                self._emit("KEYS", self._place(guard.source), self.object(expected))
            case "absent":
                self._emit("ABSENT", self._place(guard.source), self.object(tuple(expected)))
            case _:
                return False
        return True

    def _equals(self, source: Source, expected: Any) -> bool:
        if expected is None or isinstance(expected, (bool, torch.dtype)):
            self._emit("IS", self._place(source), self.object(expected))
        elif type(expected) is float:
            self._emit("FLOAT", self._place(source), struct.unpack("q", struct.pack("d", expected))[0])
        elif type(expected) in _EQUAL_TYPES:
            self._emit("EQUAL", self._place(source), self.object(expected))
        else:
            return False
        return True

    def _in_python(self) -> Callable[..., bool]:
        guards = tuple(self.rest)

        def rest_holds(*args: Any, **kwargs: Any) -> bool:
            return holds(guards, Call(args, kwargs)) is None

        return rest_holds


def _is_native(source: Source) -> bool:
    """Whether every step of the way can be fetched natively."""
    while isinstance(source, Attr | Item):
        source = source.base
    return isinstance(source, Held | Cell | Global | Arg)
