"""`python -m benchmarks.torch_worker PEER CASE THREADS`: eager, torch.compile, torch.jit.trace, thermit, or a reference.

`eager, channels last`: images and filters lie so before the first call.  References: `copy` moves as many bytes as the case does, into
memory that is kept; `one addition` adds two tensors of 16 elements; `float64` is eager in float64.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

import thermit
from benchmarks.cases import Case, find
from benchmarks.torch_functions import FUNCTIONS
from benchmarks.worker import Peer, bound, serve

Function = Callable[..., Any]


def _copy(case: Case, *_: Any) -> Function:
    source = torch.ones(max(case.moved_bytes // 2, 4) // 4)
    target = torch.zeros_like(source)
    return lambda *_: target.copy_(source)


def _one_addition(*_: Any) -> Function:
    x, y = torch.ones(16), torch.ones(16)
    return lambda *_: torch.add(x, y)


def _function(case: Case, weights: Sequence[torch.Tensor]) -> Function:
    return bound(FUNCTIONS[case.function], weights)


PEERS: dict[str, Callable[[Case, Sequence[torch.Tensor], Sequence[torch.Tensor]], Function]] = {
    "eager": lambda case, _, weights: _function(case, weights),
    "eager, channels last": lambda case, _, weights: _function(case, weights),
    "torch.compile": lambda case, _, weights: torch.compile(_function(case, weights)),
    "torch.jit.trace": lambda case, inputs, weights: torch.jit.trace(_function(case, weights), tuple(inputs), check_trace=False),
    "thermit": lambda case, _, weights: thermit.jit(_function(case, weights)),
    "copy": _copy,
    "one addition": _one_addition,
    "float64": lambda case, _, weights: _function(case, weights),
}


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().contiguous().numpy()


def double(array: np.ndarray) -> torch.Tensor:
    """The input of a run that others are compared with: its float32 as float64."""
    tensor = torch.from_numpy(array)
    return tensor.double() if tensor.is_floating_point() else tensor


def innermost(array: np.ndarray) -> torch.Tensor:
    """As in a network whose images and filters all lie with channels innermost."""
    tensor = torch.from_numpy(array)
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor


INPUTS: dict[str, Callable[[np.ndarray], torch.Tensor]] = {"float64": double, "eager, channels last": innermost}


def make(peer: str, case_name: str, threads: str) -> tuple[Peer, Case]:
    warnings.simplefilter("ignore")
    torch.set_num_threads(int(threads))
    if peer == "torch.compile":  # so that its first call does not count imports
        importlib.import_module("torch._inductor.compile_fx")
    case = find(case_name)
    return Peer(partial(PEERS[peer], case), INPUTS.get(peer, torch.from_numpy), to_numpy), case


if __name__ == "__main__":
    serve(lambda: make(*sys.argv[1:]))
