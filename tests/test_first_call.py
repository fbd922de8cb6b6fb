"""A fresh process: importing thermit and the first calls of common functions load nothing heavy, and the collector is as it was."""

import subprocess
import sys

import pytest

HEAVY = ("sympy", "torch._dynamo", "torch._inductor", "torch._decomp", "torch._refs", "torch.fx.experimental", "torch.distributed", "llvmlite.tests")

FIRST_CALLS = """
import sys
import torch
import torch.nn.functional as F
loaded = set(sys.modules)
import thermit
after_import = set(sys.modules)
v, x, i = torch.randn(4, 32), torch.randn(2, 6, 8, 8), torch.tensor([2, 0, 1])
functions = [
    (lambda v: torch.softmax(v, -1), v), (lambda v: F.layer_norm(v, (32,)), v), (lambda v: F.rms_norm(v, (32,)), v),
    (lambda x: F.batch_norm(x, torch.zeros(6), torch.ones(6)), x), (lambda x: F.group_norm(x, 2), x),
    (lambda x: F.pad(x, (1, 2, 1, 1)), x), (lambda x: F.pad(x, (1, 2, 1, 1), mode="reflect"), x),
    (lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"), x), (lambda x: F.interpolate(x, size=(5, 5)), x),
    (lambda x: F.max_pool2d(x, 2), x), (lambda x: F.adaptive_avg_pool2d(x, 3), x), (lambda v: v[i], v), (lambda v: F.embedding(i, v), v),
    (lambda v: torch.cat((v, v * 2)), v), (lambda v: v.var(-1) + v.std(), v), (lambda v: torch.logsumexp(v, -1), v),
    (lambda v: v.cumsum(-1), v), (lambda v: F.mse_loss(v, v + 1), v), (lambda v: F.cross_entropy(v, torch.tensor([1, 2, 3, 4])), v),
    (lambda v: v.index_put((i,), torch.zeros(32)), v), (lambda v: F.gelu(v) * torch.sigmoid(v) + torch.sqrt(v * v + 1), v),
    (lambda v: v @ v.T, v), (lambda x: F.conv2d(x, torch.ones(3, 6, 3, 3)), x), (lambda v: v + torch.arange(32) + torch.linspace(0, 1, 32), v),
]
results = [thermit.jit(f)(argument) for f, argument in functions]
print(*sorted(after_import - loaded))
print(*sorted(set(sys.modules) - after_import))
for number, (f, argument) in enumerate(functions):
    torch.testing.assert_close(results[number], f(argument), msg=lambda text: f"function {number}: {text}")
"""

COLLECTOR = """
import gc
import torch
{before}
enabled, frozen = gc.isenabled(), gc.get_freeze_count()
import thermit
assert gc.isenabled() == enabled
assert frozen - 1000 <= gc.get_freeze_count() <= frozen, (frozen, gc.get_freeze_count())  # some objects have died
class Knot:
    pass
import weakref
knot = Knot()
knot.itself, seen = knot, weakref.ref(knot)
del knot
gc.collect()
assert seen() is None
"""


def run(program: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_nothing_heavy_is_loaded() -> None:
    by_import, by_calls = (line.split() for line in run(FIRST_CALLS))
    assert "thermit.api" in by_import
    assert [m for m in (*by_import, *by_calls) if m.startswith(HEAVY)] == []
    assert [m for m in by_calls if m.startswith("thermit")] == [], "modules of thermit's are loaded with it, not by calls"


@pytest.mark.parametrize("before", ["", "gc.disable()", "gc.freeze()"])
def test_the_collector_is_as_it_was(before: str) -> None:
    run(COLLECTOR.format(before=before))
