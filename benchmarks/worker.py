"""One case under one peer, in a process of its own: answers the commands of measure.py, one JSON object a line.

    first            seconds of the first call (everything imported, inputs made, caches empty)
    new_shape        seconds of the first call at other sizes
    save path        the results, as numpy arrays, in one .npz file
    time calls clock seconds of that many calls, by the wall or by the processor ("cpu": all threads of the process)
    memory           MB: peak resident size of a call above the resident size before the first call

Needs the standard library and numpy.  The peer is a `Peer`; the other workers make one and call `serve`.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.cases import Case, Input, arrays


@dataclass(frozen=True, slots=True)
class Peer:
    """How a peer runs a case.  `make(inputs, weights)` gives its callable of the inputs, and is part of the first call.

    `wait_each`: every call is waited for (else only the last of a series, where calls are asynchronous).  `results`: the arrays of a result.
    """

    make: Callable[[Sequence[Any], Sequence[Any]], Callable[..., Any]]
    from_numpy: Callable[[np.ndarray], Any]
    to_numpy: Callable[[Any], np.ndarray]
    wait: Callable[[Any], Any] | None = None
    wait_each: bool = True
    results: Callable[[Any], Sequence[Any]] = lambda result: result if isinstance(result, (tuple, list)) else (result,)


def _status_mb(field: str) -> float:
    """A line of /proc/self/status in MB; nan where there is none."""
    try:
        with open("/proc/self/status") as lines:
            return next(float(line.split()[1]) / 1024 for line in lines if line.startswith(field + ":"))
    except (OSError, StopIteration):
        return float("nan")


def _reset_peak() -> None:
    """Peak resident size starts anew from the present one."""
    try:
        with open("/proc/self/clear_refs", "w") as control:
            control.write("5")
    except OSError:
        pass


def _not_made(*_: Any) -> Any:
    raise RuntimeError("the first command must be `first`")


class Worker:
    """The state of one conversation."""

    def __init__(self, peer: Peer, case: Case) -> None:
        self.peer, self.case = peer, case
        self.function: Callable[..., Any] = _not_made
        self.inputs, self.weights = self._inputs(case.inputs)
        if peer.wait is not None:  # copies may still be under way
            peer.wait(self.inputs)
        gc.collect()
        self.resident_mb = _status_mb("VmRSS")

    def _inputs(self, specs: tuple[Input, ...]) -> tuple[list[Any], list[Any]]:
        """What changes from call to call, and the weights."""
        made = [self.peer.from_numpy(a) for a in arrays(specs)]
        changing = len(made) - self.case.fixed
        return made[:changing], made[changing:]

    def _call(self, inputs: Sequence[Any]) -> Any:
        result = self.function(*inputs)
        return result if self.peer.wait is None else self.peer.wait(result)

    def first(self) -> float:
        start = time.perf_counter()
        self.function = self.peer.make(self.inputs, self.weights)
        self._call(self.inputs)
        return time.perf_counter() - start

    def new_shape(self) -> float:
        inputs, _ = self._inputs(self.case.other)
        start = time.perf_counter()
        self._call(inputs)
        return time.perf_counter() - start

    def save(self, path: str) -> int:
        result = self._call(self.inputs)
        results = self.peer.results(result)
        np.savez(path, *(self.peer.to_numpy(r) for r in results))
        return len(results)

    def time(self, calls: int, clock: str) -> float:
        now = time.process_time if clock == "cpu" else time.perf_counter
        function, inputs, wait = self.function, self.inputs, self.peer.wait
        gc.collect()
        gc.disable()
        start = now()
        if wait is None:
            for _ in range(calls):
                function(*inputs)
        elif self.peer.wait_each:
            for _ in range(calls):
                wait(function(*inputs))
        else:
            for _ in range(calls - 1):
                function(*inputs)
            wait(function(*inputs))
        seconds = now() - start
        gc.enable()
        return seconds

    def memory(self) -> float:
        _reset_peak()
        for _ in range(3):
            self._call(self.inputs)
        return _status_mb("VmHWM") - self.resident_mb


def bound(function: Callable[..., Any], weights: Sequence[Any]) -> Callable[..., Any]:
    """The function of its inputs alone."""
    return (lambda *inputs: function(*inputs, *weights)) if weights else function


def serve(make: Callable[[], tuple[Peer, Case]]) -> None:
    """Answers until the input ends.  What libraries print goes to stderr, so that answers stand alone on stdout."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**fields: Any) -> None:
        answers.write(json.dumps(fields) + "\n")
        answers.flush()

    try:
        worker = Worker(*make())
        answer(ok=True)
    except Exception as error:
        answer(error=f"{type(error).__name__}: {error}")
        return
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer(value=getattr(worker, command["do"])(*command.get("with", ())))
        except Exception as error:
            answer(error=f"{type(error).__name__}: {error}"[:500])
