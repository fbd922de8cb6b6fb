"""The text of each stage for small programs: a change of a stage shows as a diff.  --update-golden writes them anew."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import thermit
from tests.golden.targets import AVX2
from thermit.compiler import Stages, lower_kernels
from thermit.config import Config
from thermit.ir.node import graph_text
from thermit.loops.nest import program_text
from thermit.passes.simplify import simplify
from thermit.schedule.fuse import fuse
from thermit.schedule.kernel import schedule_text

HERE = Path(__file__).parent


def rms_norm_with_residual(x, residual, weight):
    h = x + residual
    return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * weight, h


def stencil(u):
    return u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1]


def in_place(x, y):
    x[1:].add_(y)
    return x.sum()


def rbf(x, y):
    return torch.exp(-((x[:, None] - y[None, :]) ** 2)).sum(1)


def linear_gelu_residual(x, w, c, r):
    return F.gelu(F.linear(x, w, c)) + r


def convolution(x, w, mean, var):
    return F.relu(F.batch_norm(F.conv2d(x, w, padding=1), mean, var))


CASES = {
    "chain": (lambda x, y: F.gelu(x * 2 + y.sin()) * torch.sigmoid(y), [(1000,), (1000,)]),
    "broadcast": (lambda x, y: x * 2 + y, [(8, 33), (33,)]),
    "transposed": (lambda x, y: x + y.T, [(40, 24), (24, 40)]),
    "softmax": (lambda x: torch.softmax(x, -1), [(64, 100)]),
    "layer_norm": (lambda x, w, c: F.layer_norm(x, (100,), w, c), [(64, 100), (100,), (100,)]),
    "rms_norm_with_residual": (rms_norm_with_residual, [(64, 100), (64, 100), (100,)]),
    "column_sum": (lambda x: x.sum(0), [(500, 300)]),
    "full_sum": (lambda x: x.sum(), [(500, 300)]),
    "variance": (lambda x: x.var(-1), [(64, 100)]),
    "stencil": (stencil, [(34, 66)]),
    "in_place": (in_place, [(10, 16), (16,)]),
    "rbf": (rbf, [(300,), (200,)]),
    "embedding": (lambda w: F.embedding(torch.arange(4), w) + 1, [(10, 16)]),
    "linear_gelu_residual": (linear_gelu_residual, [(2, 5, 8), (12, 8), (12,), (2, 5, 12)]),
    "convolution": (convolution, [(1, 16, 14, 14), (24, 16, 3, 3), (24,), (24,)]),
    "pad_and_concat": (lambda x, y: torch.cat([F.pad(x, (1, 2)), y]), [(4, 10), (3, 13)]),
}


@pytest.mark.parametrize("name", CASES)
def test_stages(name, request):
    function, shapes = CASES[name]
    graph = thermit.jit(function).trace(*(torch.ones(s) for s in shapes)).graph
    stages = Stages(Config(verify=True))
    simple = simplify(graph, stages.fired)
    schedule = fuse(simple)
    loops = lower_kernels(schedule, stages, AVX2)
    text = f"== graph\n{graph_text(simple)}== kernels\n{schedule_text(schedule)}== loops\n{''.join(map(program_text, loops.values()))}"
    path = HERE / f"{name}.txt"
    if request.config.getoption("--update-golden"):
        path.write_text(text)
    assert path.read_text() == text, f"{path.name} differs: read the diff, then --update-golden"
