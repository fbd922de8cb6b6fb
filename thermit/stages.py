"""The stages of a function as values: Traced, Lowered, Compiled.  Each prints itself with `as_text()`.

    f.trace(x)      Traced      what the function does: a graph, before any pass
     .lower()       Lowered     kernels, loops, LLVM, assembly; flops, bytes, memory
     .compile()     Compiled    a callable for exactly this kind of call

What a call of the jitted function goes through by itself, one step at a time, for whoever wants to look or to compile ahead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from thermit import config
from thermit.capture.difference import difference, found
from thermit.capture.recording import Line
from thermit.capture.signature import Call, Guard, Source, TensorSpec, flatten_call, holds
from thermit.capture.specs import input_specs
from thermit.capture.structure import Template
from thermit.capture.trace import Trace
from thermit.compiler import Compilation, Stages, compile_graph
from thermit.ir.node import Graph, Node, graph_text, toposort
from thermit.loops.nest import program_text
from thermit.records import dataclass
from thermit.runtime.program import Stopped
from thermit.schedule.kernel import Kernel, schedule_text


@dataclass(frozen=True)
class Expected:
    """What an input of the program must be, and where it comes from; `constant`: the tensor itself, where the function made it."""

    source: Source | None
    shape: tuple[int, ...]
    dtype: torch.dtype
    strides: tuple[int, ...]
    constant: torch.Tensor | None


@dataclass(frozen=True)
class Traced:
    """A function captured for one signature.  The tensors that it was captured with are not kept."""

    name: str
    graph: Graph
    inputs: tuple[Expected, ...]
    template: Template
    lines: dict[Node, Line]
    function: Callable[..., Any]
    key: Any
    guards: tuple[Guard, ...]
    specs: tuple[TensorSpec, ...]
    calls: tuple[str, ...]
    needs_call: bool

    @staticmethod
    def of(name: str, trace: Trace, function: Callable[..., Any], key: Any, guards: tuple[Guard, ...]) -> Traced:
        """`key`, `guards`: of the call that was traced, and what the trace read."""
        inputs = [
            Expected(slot.source, tuple(slot.tensor.shape), slot.tensor.dtype, slot.tensor.stride(), slot.tensor if slot.source is None else None)
            for slot in trace.inputs
        ]
        specs = input_specs([slot.tensor for slot in trace.inputs])
        return Traced(name, trace.graph, tuple(inputs), trace.template, trace.lines, function, key, guards, specs, trace.calls, trace.needs_call)

    def __repr__(self) -> str:
        return f"<Traced {self.name}: {len(self.inputs)} inputs, {len(self.graph.outputs)} outputs; as_text() prints the graph>"

    def as_text(self) -> str:
        """The graph as the function made it."""
        return graph_text(self.graph)

    def lower(self) -> Lowered:
        """Kernels, loops and code for this machine."""
        return Lowered(self, compile_graph(self.graph, config.current, Stages(config.current)))


_TEXTS: dict[str, Callable[[Compilation], str]] = {
    "graph": lambda c: graph_text(c.graph),
    "kernels": lambda c: schedule_text(c.schedule),
    "loops": lambda c: "".join(program_text(p) for p in c.loops.values()),
    "llvm": lambda c: "\n".join(_each_module(c, "text")),
    "asm": lambda c: "\n".join(_each_module(c, "assembly")),
}


def _each_module(compilation: Compilation, what: str) -> list[str]:
    modules = {id(m): m for code in compilation.codes.values() for m in (*code.module.imports.values(), code.module)}.values()
    found = [getattr(m, what) for m in modules]
    return [f() if callable(f) else f for f in found]


@dataclass(frozen=True)
class Lowered:
    """A captured function after all stages of the compiler."""

    traced: Traced
    compilation: Compilation

    def __repr__(self) -> str:
        return f"<Lowered {self.traced.name}: as_text() prints the kernels, as_text(stage) {', '.join(_TEXTS)}>"

    def as_text(self, stage: str = "kernels") -> str:
        """The text of one stage: "graph", "kernels", "loops", "llvm" or "asm"."""
        if stage not in _TEXTS:
            raise ValueError(f"no stage {stage!r}; there are {', '.join(_TEXTS)}")
        return _TEXTS[stage](self.compilation)

    def cost_analysis(self) -> dict[str, int]:
        """`flops`: arithmetic on floats and integers, products counted as 2 m n k; `bytes`: what kernels and calls read and write."""
        return cost_analysis(self.compilation)

    def memory_analysis(self) -> dict[str, int]:
        """Bytes: of inputs, of outputs, of the arena for temporaries, and of the peak that one call allocates."""
        return memory_analysis(self.compilation)

    def compile(self) -> Compiled:
        """The callable."""
        return Compiled(self)


@dataclass(frozen=True)
class Compiled:
    """A compiled function.  A call that is not of the kind that was traced raises TypeError: other shapes, dtypes, strides, Python arguments,
    memory shared in another way, tensors that require grad, another grad mode, or what the function read from outside has changed.
    Nothing is traced again."""

    lowered: Lowered

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        traced = self.lowered.traced
        call = Call(args, kwargs)
        inputs = self._inputs(call)
        try:
            results = self.lowered.compilation.program.run(inputs)
        except Stopped:
            return traced.function(*args, **kwargs)
        return traced.template.build(results, call)

    def __repr__(self) -> str:
        return f"<Compiled {self.lowered.traced.name}: as_text() prints the program>"

    def _inputs(self, call: Call) -> list[torch.Tensor]:
        """The program's inputs.  Raises TypeError."""
        traced = self.lowered.traced
        flat = flatten_call(call.args, call.kwargs)
        if flat.eager is not None:
            raise TypeError(f"{traced.name} was compiled for another kind of call; this one can only run eagerly: {flat.eager}")
        if flat.key != traced.key:
            raise TypeError(f"{traced.name} was compiled for another kind of call: {difference(traced.function, traced.key, flat.key)}")
        failed = holds(traced.guards, call)
        if failed is not None:
            raise TypeError(f"{traced.name} was compiled for what it read at that time: {found(failed, call)}")
        inputs: list[Any] = [slot.source.read(call) if slot.source is not None else slot.constant for slot in traced.inputs]
        if input_specs(inputs) != traced.specs:
            raise TypeError(f"{traced.name} was compiled for tensors that shared memory in another way")
        return inputs

    def as_text(self) -> str:
        """The program: kernels, then the plan's memory."""
        memory = "".join(f"{name}: {value}\n" for name, value in self.lowered.memory_analysis().items())
        return self.lowered.as_text("kernels") + memory


# ---------------------------------------------------------------------------------------------- costs
def cost_analysis(compilation: Compilation) -> dict[str, int]:
    """See Lowered.cost_analysis."""
    flops = sum(_flops(node) for node in toposort(compilation.graph.roots))
    moved = 0
    for step in compilation.schedule.steps:
        if isinstance(step, Kernel):
            moved += sum(s.node.type.nbytes for s in step.stores) + sum(load.node.type.nbytes for load in step.loads)
        else:
            moved += sum(load.node.type.nbytes for load in step.arguments)
            moved += sum(r[0].nbytes for r in step.node.attrs.results if r is not None)
    return {"flops": flops, "bytes": moved}


_PRODUCTS = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2), "mv": (0, 1), "dot": (0, 1), "addmv": (1, 2)}


def _flops(node: Node) -> int:
    if node.prim.kind in ("map", "reduce", "scan") and node.prim.name not in ("cast", "bitcast", "where"):
        return node.args[0].type.numel
    if node.prim.kind == "contract":
        return 2 * node.type.numel * node.args[0].shape[-1]
    if node.prim.kind == "call":
        if node.prim.name != "call":
            return 0
        name = str(node.attrs.op).split(".")[1]
        results = sum(r[0].numel for r in node.attrs.results if r is not None)
        if name in _PRODUCTS:
            return 2 * results * node.args[_PRODUCTS[name][0]].shape[-1]
        if name == "convolution":
            weight = node.args[1].shape
            return 2 * results * max(1, node.args[1].type.numel // max(weight[0], 1))
    return 0


def memory_analysis(compilation: Compilation) -> dict[str, int]:
    """See Lowered.memory_analysis."""
    plan = compilation.plan

    def total(role: str) -> int:
        return sum(buffer.nbytes for buffer in plan.buffers if buffer.role == role)

    return {
        "input_bytes": total("input"),
        "output_bytes": total("output") + total("result"),
        "temp_bytes": plan.arena_bytes,
        "peak_bytes": plan.peak_bytes,
    }
