"""Operators of stand-ins: the recorder gets what PyTorch would hand to it, and whatever stands between is asked."""

import operator

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import thermit
from thermit.capture.operators import OF_TWO, WITH_NUMBER
from thermit.capture.recorder import Recorder

pytestmark = pytest.mark.filterwarnings("ignore::thermit.capture.recording.ThermitWarning")
TENSORS = {
    "float": torch.randn(3, 4),
    "turned": torch.randn(4, 3).t(),
    "row": torch.randn(4),
    "scalar": torch.tensor(1.5),
    "double": torch.randn(3, 1, dtype=torch.float64),
    "double scalar": torch.tensor(2.5, dtype=torch.float64),
    "half": torch.randn(3, 4).to(torch.bfloat16),
    "integers": torch.arange(12).view(3, 4) + 1,
    "bytes": torch.arange(12, dtype=torch.uint8).view(3, 4) + 1,
    "flags": torch.arange(12).view(3, 4) > 5,
}
NUMBERS = [2, 2.5, -0.0, 1e-45, 1e300, 1 << 40, -(1 << 63), float("inf"), True]
CALLS = {
    "__add__": operator.add, "__mul__": operator.mul, "__sub__": operator.sub, "__truediv__": operator.truediv,
    "__radd__": lambda x, y: y + x, "__rmul__": lambda x, y: y * x, "__rsub__": lambda x, y: y - x,
}  # fmt: skip


@pytest.fixture
def asked(monkeypatch):
    """Whether the short way gave a result, each time that it was tried."""
    answers = []
    short = Recorder.arithmetic

    def counted(*args):
        made = short(*args)
        answers.append(made is not None)
        return made

    monkeypatch.setattr(Recorder, "arithmetic", counted)
    return answers


def graph(f, *args):
    try:
        return thermit.jit(f).trace(*args).as_text()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("name", [*OF_TWO, *WITH_NUMBER])
def test_the_graph_is_that_of_pytorchs_way(name, asked, monkeypatch):
    call = CALLS[name]

    def with_tensor(x, y):
        return call(x, y)

    texts = []
    for short in (True, False):
        if not short:
            assert any(asked)
            monkeypatch.setattr(Recorder, "arithmetic", lambda *_: None)
        of_two = [graph(with_tensor, x, y) for x in TENSORS.values() for y in TENSORS.values()]
        texts.append([*of_two, *(graph(lambda x, n=n: call(x, n), x) for x in TENSORS.values() for n in NUMBERS)])
    assert texts[0] == texts[1]


def test_results_are_eagers(asked):
    def f(x, y):
        return 1 - x * 2 + y / 3 - (y - x) * (0.5 + x)

    x, y = torch.randn(5, 7), torch.randn(7)
    assert torch.equal(thermit.jit(f, strict=True)(x, y), f(x, y)) and sum(asked) == 8


def test_a_number_that_pytorch_refuses_is_refused(asked):
    x = torch.ones(3)
    for other in (1 << 70, None, "a"):
        with pytest.raises((RuntimeError, OverflowError, TypeError)):
            thermit.jit(lambda x, other=other: x * other)(x)
    assert not any(asked)


class Functions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return (
            func(*args, **(kwargs or {})) + 1
            if func is torch.Tensor.mul or getattr(func, "__name__", "") == "__mul__"
            else func(*args, **(kwargs or {}))
        )


class Calls(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result + 1 if func is torch.ops.aten.mul.Tensor else result


@pytest.mark.parametrize("mode", [Functions, Calls])
def test_modes_inside_the_function_see_the_operator(mode, asked):
    def f(x):
        with mode():
            return x * 2

    x = torch.randn(4)
    assert torch.equal(thermit.jit(f)(x), x * 2 + 1) and not asked[0]


def test_what_is_differentiated_takes_pytorchs_way(asked):
    def f(x):
        with torch.enable_grad():
            w = torch.ones(3, requires_grad=True)
            (g,) = torch.autograd.grad((w * x * 3).sum(), w)
        return g

    x = torch.randn(3)
    assert torch.equal(thermit.jit(f)(x), f(x))


@pytest.mark.parametrize("transform", [lambda g, x: torch.vmap(g)(x), lambda g, x: torch.func.jvp(g, (x,), (x,))[1]])
def test_transforms_see_the_operator(transform):
    def f(x):
        y = x.sum(0) * 1
        return transform(lambda row: row * y + y * y, x)

    x = torch.randn(3, 4)
    torch.testing.assert_close(thermit.jit(f)(x), f(x))


def test_the_watch_goes_on_behind_an_operator():
    factor = [2.0]

    def inner(x):
        return x * factor[0]

    def f(x):
        return inner(x + 1) + 1

    jitted, x = thermit.jit(f), torch.randn(3)
    assert torch.equal(jitted(x), f(x))
    factor[0] = 3.0
    assert torch.equal(jitted(x), f(x))
