"""Runs a whole schedule with the loop interpreter: what the compiler's front half means."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tests.loops import interpret
from thermit.ir.node import Graph
from thermit.loops.lower import lower
from thermit.loops.nest import LoopProgram
from thermit.schedule.fuse import fuse
from thermit.schedule.kernel import Kernel


def span(shape: Sequence[int], strides: Sequence[int]) -> int:
    return 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


def flat(x: np.ndarray, strides: Sequence[int]) -> np.ndarray:
    """x laid out with these strides (elements) in a flat buffer."""
    out = np.zeros(span(x.shape, strides), x.dtype)
    view(out, x.shape, strides)[...] = x
    return out


def view(buffer: np.ndarray, shape: Sequence[int], strides: Sequence[int]) -> np.ndarray:
    return np.lib.stride_tricks.as_strided(buffer, shape, [s * buffer.itemsize for s in strides])


def run(
    graph: Graph,
    inputs: Sequence[np.ndarray],
    stage: Callable[[LoopProgram], LoopProgram] = lambda program: program,
    execute: Callable[[LoopProgram, list[np.ndarray]], None] = interpret.run,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Outputs and updates of a graph without calls, through fuse, lower, `stage` and `execute`."""
    memory = {}
    for node, x, strides in zip(graph.inputs, inputs, graph.strides, strict=True):
        memory[node, strides] = flat(x, strides)
    updated = {u.input: memory[graph.inputs[u.input], graph.strides[u.input]] for u in graph.updates}
    outputs: dict[int, np.ndarray] = {}
    for step in fuse(graph).steps:
        assert isinstance(step, Kernel)
        buffers = [memory[load.node, load.strides] for load in step.loads]
        for s in step.stores:
            buffer = updated[s.index] if s.target == "update" else np.zeros(span(s.node.shape, s.strides), s.node.dtype.numpy)
            if s.target != "update":
                memory[s.node, s.strides] = buffer
            if s.target == "output":
                outputs[s.index] = buffer
            buffers.append(buffer)
        execute(stage(lower(step)), buffers)
    out = [view(outputs[j], o.value.shape, o.strides) for j, o in enumerate(graph.outputs)]
    return out, [view(updated[u.input], u.value.shape, graph.strides[u.input]) for u in graph.updates]
