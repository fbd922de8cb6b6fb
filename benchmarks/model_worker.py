"""`python -m benchmarks.model_worker PEER CASE THREADS`: a model under eager, torch.compile, torch.jit, thermit, or in float64.

The module is made, with its weights, before the first call; what the peer does to it is part of that call.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

import thermit
from benchmarks.cases import Case, find
from benchmarks.torch_models import Model, Plain, make, tensors
from benchmarks.torch_worker import double, to_numpy
from benchmarks.worker import Peer, serve

Function = Callable[..., Any]


def _eager(model: Model, *_: Any) -> Function:
    return partial(model.call, model.module)


def _compiled(model: Model, *_: Any) -> Function:
    return partial(model.call, torch.compile(model.module))


def _frozen_trace(model: Model, inputs: Sequence[torch.Tensor], _: Any) -> Function:
    traced = torch.jit.trace(Plain(model).eval(), (*inputs, *model.state), strict=False, check_trace=False)
    optimised = torch.jit.optimize_for_inference(torch.jit.freeze(traced))
    return lambda *given: optimised(*given, *model.state)


def _jitted(model: Model, *_: Any) -> Function:
    return partial(model.call, thermit.jit(model.module))


PEERS: dict[str, Callable[[Model, Sequence[torch.Tensor], Any], Function]] = {
    "eager": _eager,
    "torch.compile": _compiled,
    "torch.compile, frozen": _compiled,
    "torch.jit, frozen": _frozen_trace,
    "thermit": _jitted,
    "float64": _eager,
}
GROWING = ("eager", "float64")  # what keeps keys and values in a cache that grows


def serving(peer: str, case_name: str, threads: str) -> tuple[Peer, Case]:
    warnings.simplefilter("ignore")
    torch.set_num_threads(int(threads))
    torch.set_grad_enabled(False)
    if peer.startswith("torch.compile"):  # so that its first call does not count imports
        importlib.import_module("torch._inductor.compile_fx")
        importlib.import_module("torch._inductor.config").freezing = peer.endswith("frozen")
    case = find(case_name)
    name = "gpt2_step_growing" if case.function == "gpt2_step" and peer in GROWING else case.function
    exact = peer == "float64"
    model = make(name, torch.float64 if exact else torch.float32)
    made = partial(PEERS[peer], model)
    return Peer(made, double if exact else torch.from_numpy, to_numpy, results=lambda output: tensors(output)[:2]), case


if __name__ == "__main__":
    serve(lambda: serving(*sys.argv[1:]))
