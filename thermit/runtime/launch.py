"""Running a plan natively: outputs are made, temporaries found, kernels, copies and ATen calls run, in one native function.

    NativePlan(plan, addresses)   the plan as tables of words, which `run_plan` and `make_tensor` (TEXT) read

An ATen call goes through PyTorch's dispatcher (`OpOverload._op`, a builtin function); temporaries that it reads are tensors of their own, from
the step that writes them to the last that reads them, all others share the arena.  What a call returns is checked against what the kernels
were compiled for, and copied where it lies differently.
Tables are arrays of signed 64-bit words that never change after they are made; `keep` holds them and the objects that they name.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from thermit.ir.prims import Slot
from thermit.ir.types import Shape
from thermit.runtime.results import fitted, without_autocast
from thermit.runtime.torch_abi import DLPACK_CODES, SCALAR_TYPES
from thermit.schedule.plan import Buffer, Plan, RunCall, RunCopy, RunKernel, Step

RELEASE_NS = 50_000  # work longer than this gives other Python threads the interpreter meanwhile (releasing it costs 0.1 us alone)
COPY_BYTES_PER_NS = 8
STACK_BYTES = 16 << 10  # arenas up to this size lie on the caller's stack

_ROLES = {"input": 0, "output": 1, "temp": 2, "result": 3, "tensor": 4}  # "tensor": a temp that calls read
_KINDS = ("KERNEL", "COPY", "CALL", "MAKE", "DROP")
_TAGS = ("CONSTANT", "BUFFER", "LIST")
_PLAN = ("BUFFERS", "TABLE", "STEPS", "STEP_TABLE", "ARENA", "COST", "MOST", "CALLS", "SAVE", "RESTORE")
_CALL = ("KIND", "FUNCTION", "COUNT", "ARGS", "NARGS", "NAMES", "RESULTS", "EXPECTED")
CONSTANTS = {
    "RELEASE_NS": RELEASE_NS, "STACK_BYTES": STACK_BYTES,
    **{f"ROLE_{name.upper()}": k for name, k in _ROLES.items()},
    **{f"KIND_{name}": k for k, name in enumerate(_KINDS)},
    **{f"TAG_{name}": k for k, name in enumerate(_TAGS)},
    **{f"P_{name}": 8 * k for k, name in enumerate(_PLAN)},
    **{f"C_{name}": 8 * k for k, name in enumerate(_CALL)},
    "DONE": 0, "STOP": 1, "NO_MEMORY": 2, "RAISED": 3,
}  # fmt: skip

LEAVES = '''
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

def raised():
    """STOP where an Exception is set, which is cleared: eager will raise it again.  RAISED for an interrupt."""
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
    """A call's result, copied if need be (a new reference); 0 with an error set."""
    argv = stack(8 * (2 + i64[step + C_COUNT]))
    i64[argv + 8] = value
    count = 1
    for k in range(0, i64[step + C_COUNT]):
        entry = i64[step + C_ARGS] + 16 * k
        if i64[entry] == TAG_BUFFER:
            count += 1
            i64[argv + 8 * count] = i64[objects + 8 * i64[entry + 8]]
    return vectorcall(function, argv + 8, count, 0)

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

def take_results(returned, step, objects, pointers):
    count = i64[step + C_RESULTS]
    expected = i64[step + C_EXPECTED]
    kind = i64[returned + 8]
    if kind != TUPLE_TYPE and kind != LIST_TYPE:
        if count == 0:
            return DONE
        return take_result(returned, expected, step, objects, pointers)
    items = returned + 24
    if kind == LIST_TYPE:
        items = i64[items]
    if i64[returned + 16] < count:
        return STOP
    for k in range(0, count):
        status = take_result(i64[items + 8 * k], expected + 24 * k, step, objects, pointers)
        if status != DONE:
            return status
    return DONE

def run_call(step, objects, pointers):
    """Calls an ATen operation.  Entries of its arguments: tag, value; those of a list follow it."""
    count = i64[step + C_COUNT]
    argv = stack(8 * (1 + 2 * count)) + 8
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
        returned = vectorcall(i64[step + C_FUNCTION], argv, i64[step + C_NARGS], i64[step + C_NAMES])
        if returned == 0:
            status = raised()
        else:
            status = take_results(returned, step, objects, pointers)
            decref(returned)
    for j in range(0, made):
        decref(i64[lists + 8 * j])
    return status

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
        if status == STOP:
            if restore(plan, state) == 0:
                status = RAISED
        decref(state)
    return status

def drop_handed(plan, objects):
    """Drops results that would have become outputs."""
    record = i64[plan + P_TABLE]
    for k in range(0, i64[plan + P_BUFFERS]):
        if i64[record] == ROLE_RESULT and i64[record + 16] >= 0 and i64[objects + 8 * k] != 0:
            decref(i64[objects + 8 * k])
        record += 24
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
'''

TEXT = '''
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
    buffers = i64[plan + P_BUFFERS]
    calls = i64[plan + P_CALLS]
    pointers = stack(8 * (2 * buffers + i64[plan + P_MOST]))
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
        status = run_with_calls(plan, objects, pointers, scratch, outputs)
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


def words(values: Sequence[int]) -> Any:
    """An array of 64-bit words in memory; unsigned values wrap."""
    return (ctypes.c_int64 * max(1, len(values)))(*(v - (1 << 64) if v >= 1 << 63 else v for v in values))


class Tables:
    """Arrays of words, and objects, that stay where they are as long as this object lives."""

    def __init__(self) -> None:
        self.keep: list[Any] = []

    def add(self, values: Sequence[int]) -> int:
        """Address of a new array."""
        array = words(values)
        self.keep.append(array)
        return ctypes.addressof(array)

    def object(self, value: Any) -> int:
        """Address of a Python object."""
        self.keep.append(value)
        return id(value)


class NativePlan(Tables):
    """`address` of the plan's words (P_*).  `output_table` has eight words for each of `outputs`; a call makes those whose first word is -1."""

    def __init__(self, plan: Plan, addresses: Mapping[str, int], random: tuple[Callable[..., Any], Callable[..., Any]] | None = None) -> None:
        super().__init__()
        self._plan, self._addresses = plan, addresses
        self._tensors = _read_by_calls(plan)
        steps = [word for number, step in enumerate(plan.steps) for word in self._step(number, step)]
        made = {plan.buffers[b].index: plan.buffers[b] for b in range(len(plan.buffers)) if plan.buffers[b].role == "output"}
        outputs = [word for j in range(len(plan.outputs)) for word in (self._tensor(made[j]) if j in made else [-1] * 8)]
        self.outputs, self.output_table = len(plan.outputs), self.add(outputs)
        kernels = [s for s in plan.steps if isinstance(s, RunKernel)]
        copied = sum(plan.buffers[s.source].nbytes for s in plan.steps if isinstance(s, RunCopy))
        values = {
            "BUFFERS": len(plan.buffers), "TABLE": self._buffers(), "STEPS": len(steps) // 8, "STEP_TABLE": self.add(steps),
            "ARENA": self._arena_bytes(), "COST": min(sum(int(s.cost_ns) for s in kernels) + copied // COPY_BYTES_PER_NS, 1 << 62),
            "MOST": max((len(s.buffers) for s in kernels), default=0), "CALLS": int(any(isinstance(s, RunCall) for s in plan.steps)),
            "SAVE": self.object(random[0]) if random else 0, "RESTORE": self.object(random[1]) if random else 0,
        }  # fmt: skip
        self.address = self.add([values[name] for name in _PLAN])

    def _buffers(self) -> int:
        """The table of buffers: role, index, the output that a call's result is (else -1)."""
        outputs = {b: j for j, b in enumerate(self._plan.outputs)}
        return self.add(
            [
                word
                for k, b in enumerate(self._plan.buffers)
                for word in (_ROLES["tensor" if k in self._tensors else b.role], b.index, outputs.get(k, -1) if b.role == "result" else -1)
            ]
        )

    def _arena_bytes(self) -> int:
        temps = [b for k, b in enumerate(self._plan.buffers) if b.role == "temp" and k not in self._tensors]
        return max((b.index + b.nbytes for b in temps), default=0)

    # ------------------------------------------------------------------------------------------ steps
    def _step(self, number: int, step: Step) -> list[int]:
        """The words of a step, between those that make and drop the tensors that calls read."""
        before: list[int] = []
        this: list[int] = []
        after: list[int] = []
        for buffer, (first, last) in self._tensors.items():
            if first == number:
                spec = self.add(self._tensor(self._plan.buffers[buffer]))
                before += [_KINDS.index("MAKE"), buffer, spec, 0, 0, 0, 0, 0]
            if last == number:
                after += [_KINDS.index("DROP"), buffer, 0, 0, 0, 0, 0, 0]
        match step:
            case RunKernel():
                numbers, cost = self.add(step.buffers), min(int(step.cost_ns), 1 << 62)
                this = [0, self._addresses[step.kernel], len(step.buffers), numbers, step.extent, step.grain, cost, 0]
            case RunCopy():
                this = self._copy(self._plan.buffers[step.source], step)
            case RunCall():
                this = self._call(step)
        return before + this + after

    def _copy(self, buffer: Buffer, step: RunCopy) -> list[int]:
        run, sizes, strides = runs(buffer.sizes, buffer.strides, buffer.dtype.itemsize)
        numbers = self.add([step.source, step.target])
        return [_KINDS.index("COPY"), run, len(sizes), numbers, self.add(sizes), self.add(strides), buffer.nbytes // COPY_BYTES_PER_NS, 0]

    def _call(self, step: RunCall) -> list[int]:
        entries: list[int] = []
        for value in (*step.args, *(v for _, v in step.kwargs)):
            entries += self._argument(value, step.buffers)
        names = tuple(name for name, _ in step.kwargs)
        expected: list[int] = []
        for buffer in step.results:
            if buffer < 0:
                expected += [-1, 0, 0]
                continue
            b = self._plan.buffers[buffer]
            type_ = self.add([SCALAR_TYPES[getattr(torch, b.dtype.name)], len(b.sizes), *b.sizes, *b.strides])
            expected += [buffer, type_, self.object(fitted(b))]
        function = without_autocast(step.op)
        return [
            _KINDS.index("CALL"), self.object(function), len(entries) // 2, self.add(entries), len(step.args),
            self.object(names) if names else 0, len(step.results), self.add(expected),
        ]  # fmt: skip

    def _argument(self, value: Any, buffers: Sequence[int]) -> list[int]:
        if isinstance(value, Slot):
            return [_TAGS.index("BUFFER"), buffers[value.index]]
        if isinstance(value, (list, tuple)) and any(isinstance(v, Slot) for v in value):
            return [_TAGS.index("LIST"), len(value), *(word for v in value for word in self._argument(v, buffers))]
        return [_TAGS.index("CONSTANT"), self.object(value)]

    def _tensor(self, buffer: Buffer) -> list[int]:
        dtype = getattr(torch, buffer.dtype.name)
        sizes, strides = self.add(buffer.sizes), self.add(buffer.strides)
        return [len(buffer.sizes), sizes, strides, SCALAR_TYPES[dtype], DLPACK_CODES[dtype], buffer.nbytes, 0, 0]


def _read_by_calls(plan: Plan) -> dict[int, tuple[int, int]]:
    """The temps that calls read, with the numbers of the first and the last step that use them."""
    read = {b for s in plan.steps if isinstance(s, RunCall) for b in s.buffers if plan.buffers[b].role == "temp"}
    uses: dict[int, list[int]] = {}
    for number, step in enumerate(plan.steps):
        used = step.buffers if isinstance(step, (RunKernel, RunCall)) else (step.source, step.target) if isinstance(step, RunCopy) else ()
        for b in used:
            if b in read:
                uses.setdefault(b, []).append(number)
    return {b: (min(u), max(u)) for b, u in uses.items()}


def is_native(plan: Plan) -> bool:
    """Whether a plan can run natively: known element types, and calls whose results are tensors or one list of them."""
    known = all(getattr(torch, b.dtype.name, None) in DLPACK_CODES for b in plan.buffers)
    return known and all(_is_flat(s) for s in plan.steps if isinstance(s, RunCall))


def _is_flat(step: RunCall) -> bool:
    if not isinstance(step.op, torch._ops.OpOverload):
        return False
    types = [str(r.type) for r in step.op._schema.returns]
    nested = any("List" in t or "[]" in t for t in types) and len(types) > 1
    deep = any(isinstance(w, (list, tuple)) for v in (*step.args, *dict(step.kwargs).values()) if isinstance(v, (list, tuple)) for w in v)
    return not nested and not deep


def runs(sizes: Shape, strides: Shape, itemsize: int) -> tuple[int, Shape, Shape]:
    """Bytes of the contiguous runs of a tensor, then sizes and strides (bytes) of the axes that enumerate them, outermost first.

    >>> runs((4, 3, 2), (12, 2, 1), 4)
    (24, (4,), (48,))
    """
    if 0 in sizes:
        return 0, (), ()
    axes = sorted(((s * itemsize, n) for n, s in zip(sizes, strides, strict=True) if n > 1), key=lambda axis: axis[0])
    run = itemsize
    while axes and axes[0][0] == run:
        run *= axes.pop(0)[1]
    axes.reverse()
    return run, tuple(n for _, n in axes), tuple(s for s, _ in axes)
