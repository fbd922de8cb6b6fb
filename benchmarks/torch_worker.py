"""`python -m benchmarks.torch_worker PEER CASE THREADS`: eager, torch.compile, torch.jit.trace, thermit, or a reference.

References: `copy` moves as many bytes as the case does, into memory that is kept; `one addition` adds two tensors of 16 elements.
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
from benchmarks.cases import CASES, Case
from benchmarks.torch_functions import FUNCTIONS
from benchmarks.worker import Peer, serve


def _copy(case: Case, _: Sequence[torch.Tensor]) -> Callable[..., Any]:
    source = torch.ones(max(case.moved_bytes // 2, 4) // 4)
    target = torch.zeros_like(source)
    return lambda *_: target.copy_(source)


def _one_addition(*_: Any) -> Callable[..., Any]:
    x, y = torch.ones(16), torch.ones(16)
    return lambda *_: torch.add(x, y)


PEERS: dict[str, Callable[[Case, Sequence[torch.Tensor]], Callable[..., Any]]] = {
    "eager": lambda case, _: FUNCTIONS[case.function],
    "torch.compile": lambda case, _: torch.compile(FUNCTIONS[case.function]),
    "torch.jit.trace": lambda case, inputs: torch.jit.trace(FUNCTIONS[case.function], tuple(inputs), check_trace=False),
    "thermit": lambda case, _: thermit.jit(FUNCTIONS[case.function]),
    "copy": _copy,
    "one addition": _one_addition,
}


def _to_numpy(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().contiguous().numpy()


def make(peer: str, case_name: str, threads: str) -> tuple[Peer, Case]:
    warnings.simplefilter("ignore")
    torch.set_num_threads(int(threads))
    if peer == "torch.compile":  # so that its first call does not count imports
        importlib.import_module("torch._inductor.compile_fx")
    case = CASES[case_name]
    return Peer(partial(PEERS[peer], case), torch.from_numpy, _to_numpy), case


if __name__ == "__main__":
    serve(lambda: make(*sys.argv[1:]))
