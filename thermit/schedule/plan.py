"""The plan of a compiled function: buffers and steps, in order.  Made by schedule/ and loops/, run by runtime/.

    plan   ::=  buffers, steps, outputs, arena_bytes
    buffer ::=  where it lives (input k | output k | temp at a byte offset of the arena | const), dtype, sizes, strides
    step   ::=  RunKernel(kernel, buffers, extent)    native code over [0, extent)
             |  RunCall(op, args, ...)                an ATen call on buffers seen as tensors
             |  RunCopy(source, target)               an update that could not be written in place
             |  Commit                                from here on inputs are written: no step after it may stop the program

Sizes and strides are in elements, offsets in the arena in bytes.
"""

from __future__ import annotations

from typing import Any, Literal

from thermit.ir.node import Return
from thermit.ir.types import DType, Shape
from thermit.records import dataclass


@dataclass(frozen=True, slots=True)
class Buffer:
    """`index`: number of the input, output or constant; for a temp its byte offset in the arena (64-byte aligned); for the result
    of a call (role "result") a running number.  Temps and outputs are dense; strides in elements."""

    role: Literal["input", "output", "temp", "result"]
    index: int
    dtype: DType
    sizes: Shape
    strides: Shape
    nbytes: int


@dataclass(frozen=True, slots=True)
class RunKernel:
    """Call `kernel` (its symbol) on the data pointers of `buffers`, for [0, extent), splits at multiples of `grain`.

    `cost_ns`: estimated time of the whole on one core, from bytes and operations: what decides threads and the GIL.
    `can_stop`: it contains a check and may return 1.
    """

    kernel: str
    buffers: tuple[int, ...]
    extent: int
    grain: int
    cost_ns: float
    can_stop: bool = False


@dataclass(frozen=True, slots=True)
class RunCall:
    """`op(*args, **kwargs)` with Slot(k) replaced by tensor number `buffers[k]`; its tensors become the buffers `results` (-1: not
    used).  Where a result is an output of the function its tensor is handed to the user as it is."""

    op: Any
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    buffers: tuple[int, ...]
    results: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RunCopy:
    """Every element of buffer `source` (a temp) goes to the same place of buffer `target` (an input): both have the same dtype, sizes and
    strides; gaps are left alone."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Commit:
    """Marks the first step that writes an input."""


Step = RunKernel | RunCall | RunCopy | Commit


@dataclass(frozen=True, slots=True)
class Plan:
    """`outputs[j]` is the buffer of output j (role "output", or "result" where a call made it); `updates` the inputs that are written."""

    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    returns: tuple[Return, ...]
    arena_bytes: int
    peak_bytes: int
    updates: tuple[int, ...] = ()
