"""A compiled function: runs a plan on tensors.

    Program(plan, addresses).run(inputs)  ->  results, one tensor for each of plan.returns

A plan runs natively (runtime/launch.py); through Python, kernel by kernel, where PyTorch's binary interface is not as expected or a
call has no native form.  A kernel that stops (a failed check) or a call that raises becomes `Stopped`: nothing was written to the inputs
yet and the random generators are put back, so the caller can run the function eagerly and the user gets PyTorch's own exception.
Several threads may run one program at once: each call has its own temporaries.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch

from thermit.capture.overloads import is_random
from thermit.ir.prims import Slot
from thermit.runtime.launch import NativePlan, is_native
from thermit.runtime.library import Runtime, runtime
from thermit.runtime.native.calling import FORMS, MISS, STOPPED, VARIANT_WORDS
from thermit.runtime.results import Stopped, fitted, flat, seen
from thermit.schedule.plan import Buffer, Commit, Plan, RunCall, RunCopy, RunKernel

_KERNEL = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
_RUN_NATIVE = ctypes.PYFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 3)  # holds the interpreter, raises what is set
_RUN_KERNEL = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 5)


class _Arena:
    """Memory for the temps of one running call, and the tensors that calls see over it."""

    def __init__(self, plan: Plan, seen: frozenset[int]) -> None:
        with torch.inference_mode(False):
            self.memory = torch.empty(plan.arena_bytes + 64, dtype=torch.uint8)
            base = self.memory.data_ptr()
            skip = -base % 64
            self.base = base + skip
            self.views = {i: self._view(plan.buffers[i], skip) for i in seen if plan.buffers[i].role == "temp"}

    def _view(self, buffer: Buffer, skip: int) -> torch.Tensor:
        dtype = getattr(torch, buffer.dtype.name)
        whole = self.memory[skip + buffer.index : skip + buffer.index + buffer.nbytes].view(dtype)
        return whole.as_strided(buffer.sizes, buffer.strides)


class Program:
    """`addresses` gives the native function of every kernel that the plan runs; `code` is what must stay alive for them."""

    def __init__(self, plan: Plan, addresses: Mapping[str, int], code: Sequence[object] = ()) -> None:
        self.plan = plan
        self.code = code
        self._addresses = addresses
        self._start = _starter(runtime(), {s.kernel: addresses[s.kernel] for s in plan.steps if isinstance(s, RunKernel)})
        self._seen = frozenset(b for s in plan.steps if isinstance(s, RunCall) for b in s.buffers) | frozenset(
            b for s in plan.steps if isinstance(s, RunCopy) for b in (s.source, s.target)
        )
        self._arenas: list[_Arena] = []
        self._generators = _generators_of(plan)

    @cached_property
    def native(self) -> NativePlan:
        """The plan as native code reads it (only a plan of kernels and copies has this form)."""
        native = runtime()
        assert native is not None
        return NativePlan(self.plan, self._addresses, self._random(), native.address["run_with_calls"])

    def _random(self) -> tuple[Callable[[], Any], Callable[[Any], Any]] | None:
        """Functions that save and restore the generators, where a step behind the first random call may stop the program."""
        steps = self.plan.steps
        draws = [k for k, s in enumerate(steps) if isinstance(s, RunCall) and is_random(s.op)]
        if not draws or not any(isinstance(s, RunCall) or (isinstance(s, RunKernel) and s.can_stop) for s in steps[draws[0] + 1 :]):
            return None
        return self._save, self._restore

    def _save(self) -> list[torch.Tensor]:
        return [g.get_state() for g in self._generators]

    def _restore(self, states: list[torch.Tensor]) -> None:
        for generator, state in zip(self._generators, states, strict=True):
            generator.set_state(state)

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors of plan.returns.  Raises Stopped before anything was written to an input."""
        outputs = self.outputs(inputs)
        return [_result(r, inputs, outputs) for r in self.plan.returns]

    def outputs(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors of plan.outputs."""
        if not torch.is_inference_mode_enabled() and any(inputs[i].is_inference() for i in self.plan.updates):
            raise Stopped("an inference tensor is updated outside inference mode")
        if self._variant is not None:
            return self._run_native(inputs)
        try:
            arena = self._arenas.pop()
        except IndexError:
            arena = _Arena(self.plan, self._seen)
        try:
            outputs = self._run(inputs, arena)
        finally:
            self._arenas.append(arena)
        if self.plan.updates:
            torch.autograd.graph.increment_version([inputs[i] for i in self.plan.updates])
        return outputs

    @cached_property
    def _variant(self) -> int | None:
        """The words of a variant without guards that returns the list of plan.outputs; None where the plan has no native form."""
        if runtime() is None or not is_native(self.plan):
            return None
        native, count = self.native, len(self.plan.outputs)
        words = dict.fromkeys(VARIANT_WORDS, 0) | {
            "PLAN": native.address, "OUTPUTS": native.outputs, "OUTPUT_TABLE": native.output_table, "FORM": FORMS.index("list"),
            "UPDATES": len(self.plan.updates), "UPDATED": native.add(self.plan.updates),
            "RETURNS": count, "RETURN_TABLE": native.add([-1 - j for j in range(count)]),
        }  # fmt: skip
        return native.add(list(words.values()))

    def _run_native(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        native = runtime()
        assert native is not None and self._variant is not None
        objects = (ctypes.c_int64 * (len(inputs) + 1))(*map(id, inputs))
        data = (ctypes.c_int64 * (len(inputs) + 1))(*(t.data_ptr() for t in inputs))
        found = _RUN_NATIVE(native.address["run_native"])(self._variant, ctypes.addressof(objects), ctypes.addressof(data))
        if found == STOPPED:
            raise Stopped("a kernel or a call")
        if found == MISS:
            raise Stopped("no memory for the results or the temporaries")  # eager says so in its own words, or needs less
        result: list[torch.Tensor] = ctypes.cast(found, ctypes.py_object).value
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(result))
        return result

    def _run(self, inputs: Sequence[torch.Tensor], arena: _Arena) -> list[torch.Tensor]:
        plan = self.plan
        tensors: list[Any] = [None] * len(plan.buffers)
        pointers: list[int] = [0] * len(plan.buffers)
        for i, buffer in enumerate(plan.buffers):
            if buffer.role == "input":
                tensors[i] = inputs[buffer.index]
            elif buffer.role == "output":
                tensors[i] = torch.empty_strided(buffer.sizes, buffer.strides, dtype=getattr(torch, buffer.dtype.name), device="cpu")
            elif buffer.role == "temp":
                tensors[i] = arena.views.get(i)
                pointers[i] = arena.base + buffer.index
            if buffer.role in ("input", "output"):
                pointers[i] = tensors[i].data_ptr()
        states = self._save()
        try:
            self._steps(tensors, pointers)
        except Stopped:
            self._restore(states)
            raise
        return [tensors[b] for b in plan.outputs]

    def _steps(self, tensors: list[Any], pointers: list[int]) -> None:
        for step in self.plan.steps:
            match step:
                case RunKernel():
                    array = (ctypes.c_void_p * len(step.buffers))(*(pointers[b] for b in step.buffers))
                    if self._start(step, ctypes.addressof(array)):
                        raise Stopped(f"kernel {step.kernel}")
                case RunCall():
                    _call(step, self.plan, tensors, pointers)
                case RunCopy():
                    tensors[step.target].data.copy_(tensors[step.source])  # .data: the version is bumped once, at the end
                case Commit():
                    pass


def _starter(native: Runtime | None, addresses: Mapping[str, int]) -> Callable[[RunKernel, int], int]:
    """A function that runs a kernel on an array of pointers; 1 if it stopped."""
    if native is None:
        kernels = {name: _KERNEL(address) for name, address in addresses.items()}
        return lambda step, array: int(kernels[step.kernel](array, 0, step.extent))
    start = _RUN_KERNEL(native.address["run_kernel"])
    return lambda step, array: int(start(addresses[step.kernel], array, step.extent, step.grain, min(int(step.cost_ns), 1 << 62)))


def _generators_of(plan: Plan) -> list[torch.Generator]:
    """The generators that the plan's calls draw from."""
    found: list[torch.Generator] = []
    for step in plan.steps:
        if isinstance(step, RunCall) and is_random(step.op):
            given = [v for v in (*step.args, *(v for _, v in step.kwargs)) if isinstance(v, torch.Generator)]
            found += [g for g in given or [torch.default_generator] if not any(g is f for f in found)]
    return found


def _call(step: RunCall, plan: Plan, tensors: list[Any], pointers: list[int]) -> None:
    """Runs the call and puts its results in their buffers.  Raises Stopped from what the call raised."""
    operands = [tensors[b] for b in step.buffers]
    args = [_fill(a, operands) for a in step.args]
    kwargs = {name: _fill(a, operands) for name, a in step.kwargs}
    try:
        returned = _below_autocast(step.op, args, kwargs)
    except Exception as error:
        raise Stopped(f"call {step.op}") from error
    results = returned if isinstance(returned, (tuple, list)) else (returned,)
    for buffer, result in zip(step.results, flat(results), strict=False):
        if buffer >= 0:
            tensors[buffer] = fitted(plan.buffers[buffer])(result, *operands)
            pointers[buffer] = tensors[buffer].data_ptr()


def _below_autocast(op: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The call was recorded after autocast had its say: it must not cast again."""
    if not torch.is_autocast_enabled("cpu"):
        return op(*args, **kwargs)
    with torch.autocast("cpu", enabled=False):
        return op(*args, **kwargs)


def _fill(value: Any, operands: list[Any]) -> Any:
    if isinstance(value, Slot):
        return operands[value.index]
    if isinstance(value, (list, tuple)):
        return [_fill(v, operands) for v in value]
    return value


def _result(r: Any, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> torch.Tensor:
    tensor = inputs[r.index] if r.source == "input" else outputs[r.index]
    return seen(tensor, r)
