"""Runs loop programs written by hand: emitted, compiled, called on numpy arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from thermit.codegen.emit import emit
from thermit.codegen.target import Target, host_target
from thermit.ir import build as b
from thermit.ir.node import Node
from thermit.ir.types import BFLOAT16, BOOL, FLOAT16, DType
from thermit.loops.nest import LoopProgram, Memory, Stmt, Store
from thermit.runtime.machine import MachineCode

NATIVE = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


def compiled(program: LoopProgram, target: Target | None = None) -> MachineCode:
    target = target or host_target()
    return MachineCode(emit([program], target), target)


def call(code: MachineCode, name: str, arrays: Sequence[np.ndarray], begin: int, end: int) -> int:
    pointers = (ctypes.c_void_p * max(len(arrays), 1))(*[a.ctypes.data for a in arrays])
    return int(NATIVE(code.address(name))(pointers, begin, end))


def run(program: LoopProgram, arrays: Sequence[np.ndarray], begin: int = 0, end: int | None = None, target: Target | None = None) -> int:
    """Calls the program on the arrays (those of its memories that are not rows, in order); gives what it returned."""
    return call(compiled(program, target), program.name, arrays, begin, program.extent if end is None else end)


def map_program(values: Sequence[Node], index: Node, loads: Sequence[tuple[str, DType]], extent: int, width: int) -> LoopProgram:
    """out k [i] = values[k] for all i; scalar where width is 1."""
    memories = [Memory(name, dtype, "in", extent) for name, dtype in loads]
    memories += [Memory(f"out{k}", v.dtype, "out", extent) for k, v in enumerate(values)]
    body: tuple[Stmt, ...] = tuple(Store(f"out{k}", index, v) for k, v in enumerate(values))
    return LoopProgram("kernel", tuple(memories), index, extent, body, "vector" if width > 1 else "serial", width)


def run_map(values: Sequence[Node], inputs: dict[str, tuple[DType, np.ndarray]], width: int, target: Target | None = None) -> list[np.ndarray]:
    """The arrays that `values` (expressions of loads at index("i")) give; half types as their bits in uint16."""
    extent = len(next(iter(inputs.values()))[1])
    program = map_program(values, b.index("i"), [(n, d) for n, (d, _) in inputs.items()], extent, width)
    outs = [np.zeros(extent, memory_numpy(v.dtype)) for v in values]
    assert run(program, [np.ascontiguousarray(a) for _, a in inputs.values()] + outs, target=target) == 0
    return outs


def memory_numpy(dtype: DType) -> np.dtype:
    return np.dtype(np.uint8 if dtype is BOOL else np.uint16 if dtype in (BFLOAT16, FLOAT16) else dtype.numpy)


def to_memory(x: np.ndarray, dtype: DType) -> np.ndarray:
    """An array of interp (bfloat16 held as float32) as it lies in memory."""
    if dtype is BFLOAT16:
        return (np.ascontiguousarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if dtype is FLOAT16:
        return np.ascontiguousarray(x, np.float16).view(np.uint16)
    return np.ascontiguousarray(x.astype(memory_numpy(dtype)))


def from_memory(x: np.ndarray, dtype: DType) -> np.ndarray:
    if dtype is BFLOAT16:
        return (x.astype(np.uint32) << 16).view(np.float32)
    return x.view(np.float16) if dtype is FLOAT16 else x.view(np.bool_) if dtype is BOOL else x


def same(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Where two arrays agree bit for bit (all nans are alike)."""
    if x.dtype.kind != "f":
        return x == y
    bits = {2: np.uint16, 4: np.uint32, 8: np.uint64}[x.dtype.itemsize]
    return (x.view(bits) == y.view(bits)) | (np.isnan(x) & np.isnan(y))
