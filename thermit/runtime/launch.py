"""Running the kernels of a plan natively: outputs are made, temporaries found, kernels and copies run, in one native function.

    NativePlan(plan, addresses)   the plan as tables of words, which `run_plan` and `make_output` (TEXT) read

Tables are arrays of signed 64-bit words that never change after they are made; `keep` holds them.  Only plans without calls have this form.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from thermit.ir.types import Shape
from thermit.runtime.torch_abi import DLPACK_CODES, SCALAR_TYPES
from thermit.schedule.plan import Buffer, Commit, Plan, RunCopy, RunKernel

RELEASE_NS = 50_000  # work longer than this gives other Python threads the interpreter meanwhile (releasing it costs 0.1 us alone)
STACK_BYTES = 16 << 10  # arenas up to this size lie on the caller's stack
_ROLES = {"input": 0, "output": 1, "temp": 2}

CONSTANTS = {"RELEASE_NS": RELEASE_NS, "STACK_BYTES": STACK_BYTES}

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
'''

TEXT = '''
def make_output(output, object):
    """Stores a new tensor in i64[object] and its data in i64[object + 8]; 1 if there is none.
    output: axes, sizes, strides, dtype, DLPack dtype, bytes."""
    handle = stack(16)
    if i64[output + 40] >= LARGE_BYTES:
        data = pool_tensor(i64[output + 40], i64[output], i64[output + 8], i64[output + 16], i64[output + 32], object)
        i64[object + 8] = data
        if data == 0:
            i64[object] = 0
            return 1
        return 0
    if empty_strided(i64[output], i64[output + 8], i64[output + 16], i64[output + 24], 0, 0, handle) != 0:
        return 1
    get_data_ptr(i64[handle], object + 8)
    i64[object] = wrap(i64[handle])
    delete_tensor(i64[handle])
    return i64[object] == 0

def run_steps(plan, pointers, scratch):
    """1 if a kernel stopped.  step: kind, function, number of buffers, their numbers, extent, grain, cost."""
    step = i64[plan + 24]
    last = step + 64 * i64[plan + 16]
    while step < last:
        numbers = i64[step + 24]
        if i64[step] == 0:
            for k in range(0, i64[step + 16]):
                i64[scratch + 8 * k] = i64[pointers + 8 * i64[numbers + 8 * k]]
            if run_kernel(i64[step + 8], scratch, i64[step + 32], i64[step + 40], i64[step + 48]) != 0:
                return 1
        else:
            source = i64[pointers + 8 * i64[numbers]]
            to = i64[pointers + 8 * i64[numbers + 8]]
            copy_strided(to, source, i64[step + 16], i64[step + 32], i64[step + 40], i64[step + 8])
        step += 64
    return 0

def run_plan(plan, inputs, outputs):
    """Runs on the data of inputs (words) and of outputs (pairs object, data).  0, or 1 if it stopped, 2 if there is no memory."""
    buffers = i64[plan]
    pointers = stack(8 * buffers + 8 * i64[plan + 48])
    arena = 0
    large = 0
    if i64[plan + 32] > STACK_BYTES:
        large = pool_take(i64[plan + 32])
        arena = large
        if large == 0:
            return 2
    elif i64[plan + 32] > 0:
        arena = stack(i64[plan + 32])
    record = i64[plan + 8]
    for k in range(0, buffers):
        role = i64[record]
        index = i64[record + 8]
        if role == 0:
            i64[pointers + 8 * k] = i64[inputs + 8 * index]
        elif role == 1:
            i64[pointers + 8 * k] = i64[outputs + 16 * index + 8]
        else:
            i64[pointers + 8 * k] = arena + index
        record += 16
    if i64[plan + 40] > RELEASE_NS:
        thread = save_thread()
        stopped = run_steps(plan, pointers, pointers + 8 * buffers)
        restore_thread(thread)
    else:
        stopped = run_steps(plan, pointers, pointers + 8 * buffers)
    if large != 0:
        pool_give(large)
    return stopped
'''


def words(values: Sequence[int]) -> Any:
    """An array of 64-bit words in memory; unsigned values wrap."""
    return (ctypes.c_int64 * max(1, len(values)))(*(v - (1 << 64) if v >= 1 << 63 else v for v in values))


class Tables:
    """Arrays of words that stay where they are as long as this object lives."""

    def __init__(self) -> None:
        self.keep: list[Any] = []

    def add(self, values: Sequence[int]) -> int:
        """Address of a new array."""
        array = words(values)
        self.keep.append(array)
        return ctypes.addressof(array)


class NativePlan(Tables):
    """`address` of the plan's words: buffers, their table, steps, their table, arena bytes, cost, most buffers of one step.
    `output_table` has eight words for each of `outputs`."""

    def __init__(self, plan: Plan, addresses: Mapping[str, int]) -> None:
        super().__init__()
        steps: list[int] = []
        for step in plan.steps:
            if isinstance(step, RunKernel):
                numbers = self.add(step.buffers)
                steps += [0, addresses[step.kernel], len(step.buffers), numbers, step.extent, step.grain, min(int(step.cost_ns), 1 << 62), 0]
            elif isinstance(step, RunCopy):
                steps += self._copy(plan.buffers[step.source], step)
            else:
                assert isinstance(step, Commit), f"{step} has no native form"
        made = sorted((b for b in plan.buffers if b.role == "output"), key=lambda b: b.index)
        outputs = [word for buffer in made for word in self._output(buffer)]
        kernels = [s for s in plan.steps if isinstance(s, RunKernel)]
        table = self.add([word for b in plan.buffers for word in (_ROLES[b.role], b.index)])
        most = max((len(s.buffers) for s in kernels), default=1)
        cost = min(sum(int(s.cost_ns) for s in kernels), 1 << 62)
        self.outputs, self.output_table = len(made), self.add(outputs)
        self.address = self.add([len(plan.buffers), table, len(steps) // 8, self.add(steps), plan.arena_bytes, cost, most])

    def _copy(self, buffer: Buffer, step: RunCopy) -> list[int]:
        run, sizes, strides = runs(buffer.sizes, buffer.strides, buffer.dtype.itemsize)
        return [1, run, len(sizes), self.add([step.source, step.target]), self.add(sizes), self.add(strides), 0, 0]

    def _output(self, buffer: Buffer) -> list[int]:
        dtype = getattr(torch, buffer.dtype.name)
        sizes, strides = self.add(buffer.sizes), self.add(buffer.strides)
        return [len(buffer.sizes), sizes, strides, SCALAR_TYPES[dtype], DLPACK_CODES.get(dtype, 0), buffer.nbytes, 0, 0]


def is_native(plan: Plan) -> bool:
    """Whether a plan consists of kernels and copies only."""
    known = all(getattr(torch, b.dtype.name) in DLPACK_CODES for b in plan.buffers)
    return known and all(isinstance(s, (RunKernel, RunCopy, Commit)) for s in plan.steps)


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
