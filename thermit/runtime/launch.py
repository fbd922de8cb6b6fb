"""Running a plan natively: outputs are made, temporaries found, kernels, copies and ATen calls run, in one native function.

    NativePlan(plan, addresses)   the plan as tables of words, which `run_plan` and `make_tensor` read (runtime/native/steps.py)

Temporaries that ATen calls read are tensors of their own, from the step that writes them to the last that reads them; all others share
the arena.
Tables are arrays of signed 64-bit words that never change after they are made; `keep` holds them and the objects that they name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from thermit.ir.types import Shape
from thermit.runtime.aten_calls import call_words, is_flat
from thermit.runtime.native.steps import KINDS, PLAN, ROLES
from thermit.runtime.tables import Tables
from thermit.runtime.torch_abi import DLPACK_CODES, SCALAR_TYPES
from thermit.schedule.plan import Buffer, Plan, RunCall, RunCopy, RunKernel, Step

COPY_BYTES_PER_NS = 8


class NativePlan(Tables):
    """`address` of the plan's words (P_*).  `output_table` has eight words for each of `outputs`; a call makes those whose first word is -1.
    `calls` is the native function that runs a plan with calls."""

    def __init__(self, plan: Plan, addresses: Mapping[str, int], random: tuple[Callable[..., Any], Callable[..., Any]] | None, calls: int) -> None:
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
            "MOST": max((len(s.buffers) for s in kernels), default=0), "CALLS": calls if any(isinstance(s, RunCall) for s in plan.steps) else 0,
            "SAVE": self.object(random[0]) if random else 0, "RESTORE": self.object(random[1]) if random else 0,
        }  # fmt: skip
        self.address = self.add([values[name] for name in PLAN])

    def _buffers(self) -> int:
        """The table of buffers: role, index, the output that a call's result is (else -1)."""
        outputs = {b: j for j, b in enumerate(self._plan.outputs)}
        return self.add(
            [
                word
                for k, b in enumerate(self._plan.buffers)
                for word in (ROLES["tensor" if k in self._tensors else b.role], b.index, outputs.get(k, -1) if b.role == "result" else -1)
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
                before += [KINDS.index("MAKE"), buffer, spec, 0, 0, 0, 0, 0]
            if last == number:
                after += [KINDS.index("DROP"), buffer, 0, 0, 0, 0, 0, 0]
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
        return [KINDS.index("COPY"), run, len(sizes), numbers, self.add(sizes), self.add(strides), buffer.nbytes // COPY_BYTES_PER_NS, 0]

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
