"""The compiler on one page: graph in, program out, one line a stage.

    graph     simplify, layout          exact rules, bit for bit; images and filters that convolutions read lie in row-major order
    schedule  fuse                      which values are stored, in which kernels
    loops     lower, tile               each kernel as a loop nest, then with vectors and blocks
    code      legalize, relay, emit,    exp and friends as polynomials; long maps in legs; LLVM text;
              machine                   machine code
    plan      plan                      buffers, lifetimes, steps in order
    program   link                      what a call runs

`Stages` times, verifies, records and prints each stage; no stage calls another.  Kernels are compiled once per process: equal
loop programs, of the same or of another function, share machine code, and so do programs with the same LLVM text (another number of rows).
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field, replace
from typing import Any, TypeVar

from thermit.codegen.emit import Function, function, module, shared_module
from thermit.codegen.legalize import legalize
from thermit.codegen.relay import in_legs
from thermit.codegen.target import Target, host_target
from thermit.config import Config
from thermit.ir.node import Graph, graph_text
from thermit.ir.verify import verify
from thermit.locks import lock
from thermit.loops.lower import lower
from thermit.loops.nest import LoopProgram, program_text
from thermit.loops.tile import cost, tile
from thermit.passes.layout import lay_out
from thermit.passes.simplify import simplify
from thermit.records import dataclass
from thermit.runtime.machine import MachineCode
from thermit.runtime.program import Program
from thermit.schedule.fuse import fuse
from thermit.schedule.kernel import CallStep, Kernel, Launch, Refusal, Schedule, schedule_text
from thermit.schedule.memory import plan
from thermit.schedule.plan import Plan

T = TypeVar("T")

CODE_CACHE_KERNELS = 2048  # machine code kept for reuse, by loop program and by text; a kernel is some 4 to 40 KiB
THREADS = 8  # that compile at once, if there are so many cores
MODULES = 6  # for each of them, at most: the last to end keeps the others waiting no longer than one takes
LEAST_TEXT = 60_000  # letters worth a module of its own (3 milliseconds, where so much text takes 70)


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
_functions: OrderedDict[tuple[bytes, Target], tuple[MachineCode, str]] = OrderedDict()  # by the digest of the text
_shared: OrderedDict[tuple[str, Target], MachineCode] = OrderedDict()  # functions that kernels call, by their names
_lock = lock()


def compile_graph(graph: Graph, config: Config, stages: Stages | None = None, target: Target | None = None) -> Compilation:
    """Graph in, program out.  Raises VerifyError, TypeRuleError or CompileError: faults of thermit's own, nothing half done."""
    stages = Stages(config) if stages is None else stages
    target = host_target() if target is None else target
    stages.show(2, "graph as traced", lambda: graph_text(graph))
    if "simplify" not in config.skip:
        graph = stages.run("simplify", simplify, graph, stages.fired)
        stages.show(2, "graph, simplified", lambda: graph_text(graph))
    graph = stages.run("layout", lay_out, graph)
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
    tiled = stages.run("tile", tile_each, lowered, target)
    stages.show(4, "loops", lambda: "".join(program_text(p) for p in tiled.values()))
    return tiled


def tile_each(lowered: dict[str, LoopProgram], target: Target) -> dict[str, LoopProgram]:
    """The programs, tiled; equal ones (the layers of a network) once."""
    made: dict[LoopProgram, LoopProgram] = {}
    tiled: dict[str, LoopProgram] = {}
    for name, program in lowered.items():
        key = replace(program, name="kernel")
        if key not in made:
            made[key] = tile(key, target)
        tiled[name] = replace(made[key], name=name)
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
        legal = stages.run("legalize", lambda: [legalize(program, target) for program, _ in new])
        legs = stages.run("relay", lambda: [in_legs(program, target) for program in legal])
        launches = [Launch("", cut.extent, cut.width, *cost(program)) for (program, _), cut in zip(new, legs, strict=True)]
        texts = stages.run("emit", lambda: [function(program, target) for program in legs])
        made = stages.run("machine", compiled, texts, target)
        for key, launch, (machine, symbol) in zip(new, launches, made, strict=True):
            codes[key] = Code(machine, symbol, replace(launch, symbol=symbol))
        modules = list(dict.fromkeys(m for machine, _ in made for m in (*machine.imports.values(), machine)))
        stages.show(5, "LLVM", lambda: "".join(m.text for m in modules))
        stages.show(6, "assembly", lambda: "".join(m.assembly() for m in modules))
        with _lock:
            _codes.update((key, codes[key]) for key in new)
            _trim(_codes)
    return {name: codes[key] for name, key in keys.items()}


def _trim(cache: OrderedDict[Any, Any]) -> None:
    while len(cache) > CODE_CACHE_KERNELS:
        cache.popitem(last=False)


def compiled(functions: list[Function], target: Target) -> list[tuple[MachineCode, str]]:
    """Module and symbol of each function; those of an equal text where there is one."""
    keys = [(hashlib.sha256(f.body.encode()).digest(), target) for f in functions]
    with _lock:
        found = {key: _functions[key] for key in keys if key in _functions}
        for key in found:
            _functions.move_to_end(key)
    new = {key: f for key, f in zip(keys, functions, strict=True) if key not in found}
    named = {f"kernel{i}": f for i, f in enumerate(new.values())}
    groups = shared_out(named, _threads())
    shared = shared_code(list(new.values()), target)
    texts = [module(group, target, is_whole=False) for group in groups]
    modules = machine_code(texts, target, [{name: shared[name] for f in group.values() for name in f.shared} for group in groups])
    where = {symbol: made for group, made in zip(groups, modules, strict=True) for symbol in group}
    for key, symbol in zip(new, named, strict=True):
        found[key] = where[symbol], symbol
    with _lock:
        _functions.update((key, found[key]) for key in new)
        _trim(_functions)
    return [found[key] for key in keys]


def shared_code(functions: list[Function], target: Target) -> dict[str, MachineCode]:
    """The code of the functions that these call, by their names: each is compiled once."""
    texts = {name: text for f in functions for name, text in f.shared.items()}
    with _lock:
        found = {name: _shared[name, target] for name in texts if (name, target) in _shared}
        for name in found:
            _shared.move_to_end((name, target))
    new = [(name, text) for name, text in texts.items() if name not in found]
    groups = [dict(new[k :: _threads()]) for k in range(min(_threads(), len(new)))]
    for group, made in zip(groups, machine_code([shared_module(group, target) for group in groups], target, [{}] * len(groups)), strict=True):
        found |= dict.fromkeys(group, made)
    with _lock:
        _shared.update(((name, target), found[name]) for name, _ in new)
        _trim(_shared)
    return found


def shared_out(named: dict[str, Function], threads: int) -> list[dict[str, Function]]:
    """The functions in modules, the longest first; time goes by the length of the text."""
    most = max(LEAST_TEXT, sum(len(f.body) for f in named.values()) / (threads * MODULES))
    groups: list[dict[str, Function]] = []
    size: float = most
    for symbol, f in sorted(named.items(), key=lambda item: -len(item[1].body)):
        if size + len(f.body) > most:
            groups.append({})
            size = 0
        groups[-1][symbol] = f
        size += len(f.body)
    return groups


def _threads() -> int:
    return min(THREADS, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def machine_code(texts: list[str], target: Target, imports: list[dict[str, MachineCode]]) -> list[MachineCode]:
    """One module a text; several at once where there are several (LLVM releases the GIL).  `imports`: what each calls."""

    def one(text: str, called: dict[str, MachineCode]) -> MachineCode:
        return MachineCode(text, target, called)

    if len(texts) < 2 or _threads() < 2:
        return list(map(one, texts, imports))
    with ThreadPoolExecutor(max_workers=min(_threads(), len(texts))) as threads:
        return list(threads.map(one, texts, imports))


def kernel_count(compilation: Compilation) -> tuple[int, int]:
    """How many kernels and how many calls a program has."""
    steps = compilation.schedule.steps
    calls = sum(isinstance(step, CallStep) for step in steps)
    return len(steps) - calls, calls
