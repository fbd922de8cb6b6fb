"""Running a plan natively: outputs are made, temporaries found, kernels, copies and ATen calls run, in one native function.

    NativePlan(plan, addresses)   the plan as tables of words, which `run_plan` and `make_tensor` (TEXT) read

Temporaries that ATen calls read are tensors of their own, from the step that writes them to the last that reads them; all others share
the arena.
Tables are arrays of signed 64-bit words that never change after they are made; `keep` holds them and the objects that they name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from thermit.ir.types import Shape
from thermit.runtime.aten_calls import KIND_CALL, call_words, is_flat
from thermit.runtime.tables import Tables
from thermit.runtime.torch_abi import DLPACK_CODES, SCALAR_TYPES
from thermit.schedule.plan import Buffer, Plan, RunCall, RunCopy, RunKernel, Step

RELEASE_NS = 50_000  # work longer than this gives other Python threads the interpreter meanwhile (releasing it costs 0.1 us alone)
COPY_BYTES_PER_NS = 8
STACK_BYTES = 16 << 10  # tables and arenas up to this size lie on the caller's stack, larger ones in the pool
PROBE_BYTES = 2 << 10  # from here on stack memory is touched in order, see `touch`

_ROLES = {"input": 0, "output": 1, "temp": 2, "result": 3, "tensor": 4}  # "tensor": a temp that calls read
_KINDS = ("KERNEL", "COPY", "CALL", "MAKE", "DROP")  # the first word of a step
_PLAN = ("BUFFERS", "TABLE", "STEPS", "STEP_TABLE", "ARENA", "COST", "MOST", "CALLS", "SAVE", "RESTORE")
CONSTANTS = {
    "RELEASE_NS": RELEASE_NS, "STACK_BYTES": STACK_BYTES, "PROBE_BYTES": PROBE_BYTES,
    **{f"ROLE_{name.upper()}": k for name, k in _ROLES.items()},
    **{f"KIND_{name}": k for k, name in enumerate(_KINDS)},
    **{f"P_{name}": 8 * k for k, name in enumerate(_PLAN)},
    "DONE": 0, "STOP": 1, "NO_MEMORY": 2, "RAISED": 3,
}  # fmt: skip
assert CONSTANTS["KIND_CALL"] == KIND_CALL

LEAVES = '''
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
'''

STEPS = '''
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


class NativePlan(Tables):
    """`address` of the plan's words (P_*).  `output_table` has eight words for each of `outputs`; a call makes those whose first word is -1.
    `calls` gives the native function that runs a plan with calls."""

    def __init__(
        self, plan: Plan, addresses: Mapping[str, int], random: tuple[Callable[..., Any], Callable[..., Any]] | None, calls: Callable[[], int]
    ) -> None:
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
            "MOST": max((len(s.buffers) for s in kernels), default=0), "CALLS": calls() if any(isinstance(s, RunCall) for s in plan.steps) else 0,
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
                this = call_words(self, self._plan, step)
        return before + this + after

    def _copy(self, buffer: Buffer, step: RunCopy) -> list[int]:
        run, sizes, strides = runs(buffer.sizes, buffer.strides, buffer.dtype.itemsize)
        numbers = self.add([step.source, step.target])
        return [_KINDS.index("COPY"), run, len(sizes), numbers, self.add(sizes), self.add(strides), buffer.nbytes // COPY_BYTES_PER_NS, 0]

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
    return known and all(is_flat(s) for s in plan.steps if isinstance(s, RunCall))


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
