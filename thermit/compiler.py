"""The compiler on one page: graph in, program out, one line a stage.

    graph     simplify                  exact rules, bit for bit
    schedule  fuse                      which values are stored, in which kernels
    loops     lower, tile               each kernel as a loop nest, then with vectors and blocks
    code      legalize, emit, machine   exp and friends as polynomials; LLVM text; machine code
    plan      plan                      buffers, lifetimes, steps in order
    program   link                      what a call runs

`Stages` times, verifies, records and prints each stage; no stage calls another.  Kernels are compiled once per process: equal
loop programs, of the same or of another function, share machine code.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field, replace
from typing import Any, TypeVar

from thermit.codegen.emit import emit
from thermit.codegen.legalize import legalize
from thermit.codegen.target import Target, host_target
from thermit.config import Config
from thermit.ir.node import Graph, graph_text
from thermit.ir.verify import verify
from thermit.locks import lock
from thermit.loops.lower import lower
from thermit.loops.nest import LoopProgram, program_text
from thermit.loops.tile import cost, tile
from thermit.passes.simplify import simplify
from thermit.records import dataclass
from thermit.runtime.machine import MachineCode
from thermit.runtime.program import Program
from thermit.schedule.fuse import fuse
from thermit.schedule.kernel import CallStep, Kernel, Launch, Refusal, Schedule, schedule_text
from thermit.schedule.memory import plan
from thermit.schedule.plan import Plan

T = TypeVar("T")

CODE_CACHE_KERNELS = 2048  # machine code kept for reuse, by loop program; a kernel is some 4 to 40 KiB
KERNELS_PER_MODULE = 12  # more than this many new kernels are compiled in several modules, on several threads


@dataclass
class Stages:
    """The record behind `explain`: what each stage made and how long it took, rules that fired, fusions refused."""

    config: Config
    results: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    fired: Counter[str] = field(default_factory=Counter)
    refused: tuple[Refusal, ...] = ()

    def run(self, name: str, function: Callable[..., T], *args: Any) -> T:
        """The result of a stage, timed, recorded, and (graphs) verified where the options ask for it."""
        start = time.perf_counter()
        result = function(*args)
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
        self.results[name] = result
        if self.config.verify and isinstance(result, Graph):
            verify(result, name)
        return result

    def show(self, level: int, title: str, text: Callable[[], str]) -> None:
        """Prints to stderr where THERMIT_DEBUG asks for this level or more."""
        if self.config.debug >= level:
            sys.stderr.write(f"--- thermit: {title}\n{text()}")


@dataclass(frozen=True)
class Code:
    """One kernel's machine code: where it is and how it is started."""

    module: MachineCode
    symbol: str
    launch: Launch


@dataclass(frozen=True)
class Compilation:
    """All that compiling a graph gave."""

    graph: Graph
    schedule: Schedule
    loops: dict[str, LoopProgram]
    codes: dict[str, Code]
    plan: Plan
    program: Program
    stages: Stages


_codes: OrderedDict[tuple[LoopProgram, Target], Code] = OrderedDict()
_lock = lock()


def compile_graph(graph: Graph, config: Config, stages: Stages | None = None, target: Target | None = None) -> Compilation:
    """Graph in, program out.  Raises VerifyError, TypeRuleError or CompileError: faults of thermit's own, nothing half done."""
    stages = Stages(config) if stages is None else stages
    target = host_target() if target is None else target
    stages.show(2, "graph as traced", lambda: graph_text(graph))
    if "simplify" not in config.skip:
        graph = stages.run("simplify", simplify, graph, stages.fired)
        stages.show(2, "graph, simplified", lambda: graph_text(graph))
    schedule = stages.run("fuse", fuse, graph)
    stages.refused = schedule.refused
    stages.show(3, "kernels", lambda: schedule_text(schedule))
    loops = lower_kernels(schedule, stages, target)
    codes = generate_code(loops, stages, target)
    launches = {name: replace(code.launch, symbol=name) for name, code in codes.items()}
    buffers = stages.run("plan", plan, graph, schedule, launches)
    addresses = {name: code.module.address(code.symbol) for name, code in codes.items()}
    program = stages.run("link", Program, buffers, addresses, tuple(code.module for code in codes.values()))
    return Compilation(graph, schedule, loops, codes, buffers, program, stages)


def lower_kernels(schedule: Schedule, stages: Stages, target: Target) -> dict[str, LoopProgram]:
    """The loop program of each kernel, tiled for the target."""
    kernels = [step for step in schedule.steps if isinstance(step, Kernel)]
    lowered = stages.run("lower", lambda: {k.name: lower(k) for k in kernels})
    tiled = stages.run("tile", lambda: {name: tile(program, target) for name, program in lowered.items()})
    stages.show(4, "loops", lambda: "".join(program_text(p) for p in tiled.values()))
    return tiled


def generate_code(loops: dict[str, LoopProgram], stages: Stages, target: Target) -> dict[str, Code]:
    """Machine code for each loop program, taken from the cache where an equal one has been compiled."""
    keys = {name: (replace(program, name="kernel"), target) for name, program in loops.items()}
    codes: dict[tuple[LoopProgram, Target], Code] = {}
    with _lock:
        for key in keys.values():
            if key in _codes:
                _codes.move_to_end(key)
                codes[key] = _codes[key]
    new = list({key: None for key in keys.values() if key not in codes})
    if new:
        costs = [cost(program) for program, _ in new]
        named = [replace(program, name=f"kernel{i}") for i, (program, _) in enumerate(new)]
        legal = stages.run("legalize", lambda: [legalize(program, target) for program in named])
        groups = [legal[i : i + KERNELS_PER_MODULE] for i in range(0, len(legal), KERNELS_PER_MODULE)]
        texts = stages.run("emit", lambda: [emit(group, target) for group in groups])
        stages.show(5, "LLVM", lambda: "".join(texts))
        modules = stages.run("machine", machine_code, texts, target)
        for i, (key, program, (cost_ns, can_stop)) in enumerate(zip(new, named, costs, strict=True)):
            launch = Launch(program.name, program.extent, program.width, cost_ns, can_stop)
            codes[key] = Code(modules[i // KERNELS_PER_MODULE], program.name, launch)
        stages.show(6, "assembly", lambda: "".join(m.assembly() for m in modules))
        with _lock:
            _codes.update((key, codes[key]) for key in new)
            while len(_codes) > CODE_CACHE_KERNELS:
                _codes.popitem(last=False)
    return {name: codes[key] for name, key in keys.items()}


def machine_code(texts: list[str], target: Target) -> list[MachineCode]:
    """One module a text; several at once where there are several (LLVM releases the GIL)."""
    if len(texts) == 1:
        return [MachineCode(texts[0], target)]
    with ThreadPoolExecutor(max_workers=2) as threads:
        return list(threads.map(lambda text: MachineCode(text, target), texts))


def kernel_count(compilation: Compilation) -> tuple[int, int]:
    """How many kernels and how many calls a program has."""
    steps = compilation.schedule.steps
    calls = sum(isinstance(step, CallStep) for step in steps)
    return len(steps) - calls, calls
