"""An interrupt in the middle of a first call, wherever it arrives, leaves no mode, hook or open trace, and the next call is right."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path

import pytest
import torch

import thermit
from thermit.capture.trace import active

HOUSE = Path(thermit.__file__).parent
ROOMS = ("api.py", *(f"capture/{name}.py" for name in ("trace", "facts", "frames", "recorder", "structure")))
WHERE = {str(HOUSE / name) for name in ROOMS}
WHERE.add(torch.utils._python_dispatch.__file__)
# a line event of these comes where Python looks for no signal: between a body and its exit
BETWEEN = ("with ", "finally", "try")


class Interrupter:
    """Raises KeyboardInterrupt at the n-th line that runs in these files; never for n = 0."""

    def __init__(self, n):
        self.n, self.count = n, 0

    def __enter__(self):
        sys.settrace(self.called)
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    def called(self, frame, event, arg):
        return self.line if frame.f_code.co_filename in WHERE else None

    def line(self, frame, event, arg):
        if event == "line" and not linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith(BETWEEN):
            self.count += 1
            if self.count == self.n:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self.line


def compiled(x):
    return x.sin() * 2 + torch.rand(3)


def live(x):
    return x * 2 if x.sum() > 0 else x


def written(x, held):
    x.add_(1)
    held["made"] = x * 2
    return held["given"] + x


def state():
    return sys.getprofile(), torch._C._len_torch_dispatch_stack(), active(), torch.compiler._is_compiling_flag


@pytest.mark.filterwarnings("ignore::thermit.ThermitWarning")
@pytest.mark.parametrize(("function", "more"), [(compiled, 0), (live, 0), (written, 1)])
def test_an_interrupt_anywhere(function, more):
    def arguments():
        return torch.ones(3), *[{"given": torch.ones(3)} for _ in range(more)]

    def drawn(fn):
        torch.manual_seed(0)
        given = arguments()
        return fn(*given), given[0], *(given[1]["made"] for _ in range(more))

    assert sys.gettrace() is None, "a debugger or a coverage tool is at work"
    before = state()
    with Interrupter(0) as whole:
        thermit.jit(function)(*arguments())
    met = 0
    for n in range(1, whole.count, max(1, whole.count // 50)):
        jitted = thermit.jit(function)
        try:
            with Interrupter(n):
                jitted(*arguments())
        except KeyboardInterrupt:
            met += 1
        assert state() == before, n
        assert all(map(torch.equal, drawn(jitted), drawn(function))), n
    assert met > 20
