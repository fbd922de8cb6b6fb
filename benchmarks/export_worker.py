"""`python -m benchmarks.export_worker PEER CASE THREADS`: a product or a model under ONNX Runtime or OpenVINO, in float32.

PyTorch's exporter writes the ONNX file (once for both, in the folder THERMIT_EXPORTS), which is not timed; reading it is part of the
first call.  Run by a Python of its own: the environment variables and the packages are those of .venv-peers.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import openvino
import torch

from benchmarks.cases import Case, arrays, find
from benchmarks.torch_functions import FUNCTIONS
from benchmarks.torch_models import Plain, make
from benchmarks.worker import Peer, serve


class _Bound(torch.nn.Module):
    """A function whose last inputs are constants."""

    def __init__(self, function: Callable[..., Any], weights: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.function, self.count = function, len(weights)
        for k, weight in enumerate(weights):
            self.register_buffer(f"weight{k}", weight)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs, *(self.get_buffer(f"weight{k}") for k in range(self.count)))


def _exported(case: Case) -> tuple[Path, list[np.ndarray]]:
    """The ONNX file of a case, and the inputs that are no input of the case (keys and values of a cache)."""
    path = Path(os.environ["THERMIT_EXPORTS"]) / (case.name.replace(" ", "_").replace(",", "") + ".onnx")
    inputs = [torch.from_numpy(a) for a in arrays(case.inputs)]
    state: tuple[torch.Tensor, ...] = ()
    if case.group == "model":
        model = make(case.function)
        module: torch.nn.Module = Plain(model)
        state = model.state
    else:
        changing = len(inputs) - case.fixed
        module = _Bound(FUNCTIONS[case.function], inputs[changing:])
        inputs = inputs[:changing]
    if not path.exists():
        torch.onnx.export(module.eval(), (*inputs, *state), path, dynamo=True, external_data=True, verbose=False)
    return path, [t.numpy() for t in state]


def _onnxruntime(path: Path, threads: int, state: list[np.ndarray]) -> Callable[..., Any]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    return lambda *inputs: session.run(None, dict(zip(names, (*inputs, *state), strict=True)))


def _openvino(path: Path, threads: int, state: list[np.ndarray]) -> Callable[..., Any]:
    options = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    request = openvino.Core().compile_model(path, "CPU", options).create_infer_request()
    return lambda *inputs: request.infer([*inputs, *state], share_inputs=True, share_outputs=True)


PEERS = {"onnxruntime": _onnxruntime, "openvino": _openvino}


def serving(peer: str, case_name: str, threads: str) -> tuple[Peer, Case]:
    warnings.simplefilter("ignore")
    torch.set_num_threads(int(threads))
    torch.set_grad_enabled(False)
    case = find(case_name)
    path, state = _exported(case)

    def results(output: Any) -> list[np.ndarray]:
        """The first results, as many as the others save: a cache is left out."""
        found = [np.asarray(a) for a in (output if isinstance(output, list) else output.values())]
        return found[:1] if state else found[:2]

    made = Peer(lambda *_: PEERS[peer](path, int(threads), state), lambda array: array, lambda array: array, results=results)
    return made, case


if __name__ == "__main__":
    serve(lambda: serving(*sys.argv[1:]))
