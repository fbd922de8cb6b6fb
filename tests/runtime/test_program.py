"""Programs run from Python: kernels, calls, updates, stops, random draws."""

import pytest
import torch
from kernels import add_text, compile_text, stop_text

from thermit.ir.node import Return, Window
from thermit.ir.prims import Slot
from thermit.ir.types import FLOAT32
from thermit.runtime.program import Program, Stopped
from thermit.schedule.plan import Buffer, Commit, Plan, RunCall, RunCopy, RunKernel

ADDRESSES = compile_text(add_text("add1", 1) + add_text("add2", 2) + stop_text("stop"))
aten = torch.ops.aten


@pytest.fixture(autouse=True, params=["native", "python"])
def path(request, monkeypatch):
    """Both ways to run a plan: natively, and through Python where PyTorch's binary interface is not as expected."""
    if request.param == "python":
        monkeypatch.setattr(Program, "_variant", None)


def buffer(role, index, n=10):
    return Buffer(role, index, FLOAT32, (n,), (1,), 4 * n)


def kernel(name, *buffers, n=10):
    return RunKernel(name, buffers, n, 4, 10.0, name == "stop")


def test_kernels_with_a_temp():
    plan = Plan((buffer("input", 0), buffer("input", 1), buffer("temp", 64), buffer("output", 0)),
                (kernel("add2", 0, 1, 2), kernel("add1", 2, 3)), (3,), (Return("output", 0), Return("input", 1)), 128, 168)  # fmt: skip
    program = Program(plan, ADDRESSES)
    for _ in range(3):
        x, y = torch.randn(10), torch.randn(10)
        out, same = program.run([x, y])
        assert same is y and torch.equal(out, 1 + x + y + 1) and out._version == 0


def test_call_between_kernels():
    buffers = (buffer("input", 0), buffer("temp", 0), buffer("result", 0), buffer("output", 0), buffer("result", 1, 20))
    steps = (kernel("add1", 0, 1), RunCall(aten.cat.default, ([Slot(0), Slot(1)],), (), (1, 0), (4,)),
             RunCall(aten.cumsum.default, (Slot(0), 0), (), (1,), (2,)), kernel("add1", 2, 3))  # fmt: skip
    plan = Plan(buffers, steps, (3,), (Return("output", 0, Window((2, 2), (1, 2), 1)),), 64, 200)
    x = torch.randn(10)
    (out,) = Program(plan, ADDRESSES).run([x])
    assert torch.equal(out, ((x + 1).cumsum(0) + 1).as_strided((2, 2), (1, 2), 1)) and out._base is not None


@pytest.mark.parametrize("copy", [False, True])
def test_update_bumps_the_version(copy):
    steps = (kernel("add1", 0, 1), Commit(), RunCopy(1, 0)) if copy else (Commit(), kernel("add1", 0, 0))
    plan = Plan((buffer("input", 0), buffer("temp", 0)), steps, (), (Return("input", 0),), 64, 64, (0,))
    x = torch.randn(10)
    expected = x + 1
    (out,) = Program(plan, ADDRESSES).run([x])
    assert out is x and torch.equal(x, expected) and x._version == 1


def test_stop_leaves_inputs_and_generators_alone():
    plan = Plan((buffer("input", 0), buffer("result", 0)),
                (RunCall(aten.rand_like.default, (Slot(0),), (), (0,), (1,)), kernel("stop", 0), Commit(), kernel("add1", 0, 0)),
                (), (), 0, 0, (0,))  # fmt: skip
    program = Program(plan, ADDRESSES)
    x = torch.full((10,), -1.0)
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    with pytest.raises(Stopped):
        program.run([x])
    assert torch.equal(torch.rand(4), expected) and torch.equal(x, torch.full((10,), -1.0)) and x._version == 0


def test_call_that_raises_stops():
    step = RunCall(aten.cumsum.default, (Slot(0), 7), (), (0,), (1,))
    plan = Plan((buffer("input", 0), buffer("result", 0)), (step,), (1,), (Return("output", 0),), 0, 0)
    with pytest.raises(Stopped):
        Program(plan, ADDRESSES).run([torch.zeros(10)])


def test_result_that_aliases_an_operand_is_copied():
    plan = Plan((buffer("input", 0), buffer("temp", 0), buffer("result", 0)),
                (kernel("add1", 0, 1), RunCall(aten.alias.default, (Slot(0),), (), (1,), (2,))), (2,), (Return("output", 0),), 64, 64)  # fmt: skip
    program = Program(plan, ADDRESSES)
    (first,) = program.run([torch.zeros(10)])
    program.run([torch.ones(10)])
    assert torch.equal(first, torch.ones(10))
