"""Runs the workers of a case in turns and collects what they say.

Each peer of a case is a fresh process with empty caches, held to the same cores.  Rounds are interleaved: in every round each
peer is timed once, so that a slow minute of the machine hits all of them.  The figure of a peer is the median over the rounds, of
the seconds of one call.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import Case

ROOT = Path(__file__).resolve().parent.parent
REFERENCES = ("copy", "one addition")
EXACT = "float64"
EXPORTING = ("onnxruntime", "openvino")
FIXED_SHAPES = ("torch.jit.trace", "torch.jit, frozen", *EXPORTING)  # what they were given is all that they take


@dataclass(frozen=True, slots=True)
class Settings:
    """`series_s`: how long one peer is timed in one round.  `pause_s`: rest before it, so that the threads of the last one sleep."""

    peers: tuple[str, ...]
    rounds: int
    threads: int
    jax_python: str
    peers_python: str = ""
    new_shapes: bool = True
    clock: str = "wall"
    series_s: float = 0.06
    pause_s: float = 0.02


@dataclass(slots=True)
class Measured:
    """One peer on one case; times in seconds, memory in MB.

    `difference` from eager and `inexact`, from eager in float64, are relative to the largest result.  `error`: why there is no more.
    """

    peer: str
    first_s: float | None = None
    new_shape_s: float | None = None
    rounds_s: list[float] = field(default_factory=list)
    memory_mb: float | None = None
    difference: float | None = None
    inexact: float | None = None
    error: str | None = None

    @property
    def call_s(self) -> float | None:
        return statistics.median(self.rounds_s) if self.rounds_s else None


def _worker(peer: str, case: Case, settings: Settings) -> tuple[str, str]:
    """The module that serves a peer, and the Python that runs it."""
    if peer == "jax":
        return "benchmarks.jax_worker", settings.jax_python
    if peer in EXPORTING:
        return "benchmarks.export_worker", settings.peers_python
    return "benchmarks.model_worker" if case.group == "model" else "benchmarks.torch_worker", sys.executable


class Conversation:
    """The measuring side of a worker."""

    def __init__(self, peer: str, case: Case, settings: Settings, caches: Path) -> None:
        module, python = _worker(peer, case, settings)
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(settings.threads),
            "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
            "TRITON_CACHE_DIR": str(caches / "triton"),
            "XDG_CACHE_HOME": str(caches / "home"),
            "THERMIT_EXPORTS": str(caches.parent),
            "PYTHONPATH": str(ROOT),
        }
        self.process = subprocess.Popen(
            [python, "-m", module, peer, case.name, str(settings.threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
            cwd=ROOT,
        )
        try:
            self._answer()
        except RuntimeError:
            self.close()
            raise

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker ended with status {self.process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer.get("value")

    def ask(self, command: str, *values: Any) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": command, "with": values}) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(OSError):  # of a worker that has ended
            self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


def hold_to_cores(count: int) -> None:
    """This process and its children run on the first `count` of the cores that it has."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])


def measure(case: Case, settings: Settings) -> dict[str, Measured]:
    """Every peer on one case, and the references that belong to it."""
    names = [*settings.peers]
    if case.moved_bytes:
        names.append("copy")
    if case.group == "call":
        names.append("one addition")
    measured = {name: Measured(name) for name in names}
    talks: dict[str, Conversation] = {}
    with tempfile.TemporaryDirectory() as place:
        caches = Path(place)
        try:
            if case.group in ("product", "model"):
                _exact(case, settings, caches)
            for name in names:
                _start(name, case, settings, caches, measured[name], talks)
            _compare(case, caches, measured, talks)
            _rounds(settings, measured, talks)
            _finish(case, settings, measured, talks)
        finally:
            for talk in talks.values():
                talk.close()
    return measured


def _start(name: str, case: Case, settings: Settings, caches: Path, entry: Measured, talks: dict[str, Conversation]) -> None:
    """The worker's process and its first call."""
    try:
        talk = talks[name] = Conversation(name, case, settings, caches / name.replace(" ", "_"))
        entry.first_s = talk.ask("first")
    except (RuntimeError, OSError, ValueError) as error:
        entry.error = str(error)
        if (failed := talks.pop(name, None)) is not None:
            failed.close()


def _exact(case: Case, settings: Settings, place: Path) -> None:
    """Saves the results of eager in float64; the worker ends before the others start."""
    talk = Conversation(EXACT, case, settings, place / EXACT)
    try:
        talk.ask("first")
        talk.ask("save", str(place / "exact.npz"))
    finally:
        talk.close()


def _compare(case: Case, place: Path, measured: dict[str, Measured], talks: dict[str, Conversation]) -> None:
    """The largest differences from eager and from the exact results."""
    eager, exact, path = place / "eager.npz", place / "exact.npz", place / "peer.npz"
    if "eager" in talks:
        talks["eager"].ask("save", str(eager))
    for name, talk in talks.items():
        if name in REFERENCES:
            continue
        try:
            talk.ask("save", str(path))
            if name != "eager" and eager.exists():
                measured[name].difference = _difference(eager, path)
            if exact.exists():
                measured[name].inexact = _difference(exact, path)
        except (RuntimeError, ValueError) as error:
            measured[name].error = str(error)
    for saved in (eager, exact, path):
        saved.unlink(missing_ok=True)


def _difference(want: Path, got: Path) -> float:
    worst = 0.0
    with np.load(want) as wants, np.load(got) as gots:
        if len(wants.files) != len(gots.files):
            return float("inf")
        for name in wants.files:
            w, g = wants[name].astype(np.float64), gots[name].astype(np.float64)
            if w.shape != g.shape or not np.array_equal(np.isnan(w), np.isnan(g)):
                return float("inf")
            scale = float(np.nanmax(np.abs(w))) if w.size else 0.0
            gap = float(np.nanmax(np.abs(w - g))) if w.size else 0.0
            worst = max(worst, gap / (scale or 1.0))
    return worst


def _rounds(settings: Settings, measured: dict[str, Measured], talks: dict[str, Conversation]) -> None:
    calls: dict[str, int] = {}
    for name, talk in talks.items():
        one = min(talk.ask("time", 1, "wall") for _ in range(3))
        if one < 1e-3:
            one = talk.ask("time", 200, "wall") / 200  # warm, and the clock's own cost spread
        calls[name] = max(1, round(settings.series_s / one))
    for _ in range(settings.rounds):
        for name, talk in talks.items():
            time.sleep(settings.pause_s)
            measured[name].rounds_s.append(talk.ask("time", calls[name], settings.clock) / calls[name])


def _finish(case: Case, settings: Settings, measured: dict[str, Measured], talks: dict[str, Conversation]) -> None:
    """What disturbs the timing comes last."""
    for name, talk in talks.items():
        if name in REFERENCES:
            continue
        try:
            measured[name].memory_mb = talk.ask("memory")
            if settings.new_shapes and case.other != case.inputs and name not in FIXED_SHAPES:
                measured[name].new_shape_s = talk.ask("new_shape")
        except RuntimeError as error:
            measured[name].error = str(error)


def import_seconds(modules: Sequence[str], times: int = 5) -> float:
    """The median time of a fresh process that imports these modules and ends."""
    code = "import " + ", ".join(modules)
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)
