"""Runs loop programs as machine code: legalized, emitted, compiled, called on flat arrays."""

from __future__ import annotations

import ctypes

import numpy as np

from tests.loops.interpret import Stopped
from thermit.codegen.emit import emit
from thermit.codegen.legalize import legalize
from thermit.codegen.target import Target, host_target
from thermit.loops.nest import LoopProgram
from thermit.runtime.machine import MachineCode

NATIVE = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


def execute(program: LoopProgram, buffers: list[np.ndarray], target: Target | None = None) -> None:
    """Calls the program (already tiled) in two pieces of its parallel loop.  Raises Stopped."""
    target = target or host_target()
    code = MachineCode(emit([legalize(program, target)], target), target)
    pointers = (ctypes.c_void_p * max(len(buffers), 1))(*[x.ctypes.data for x in buffers])
    grain = program.width if program.mode == "vector" else 1
    middle = program.extent // 2 // grain * grain
    for begin, end in ((0, middle), (middle, program.extent)):
        if begin < end and NATIVE(code.address(program.name))(pointers, begin, end):
            raise Stopped
