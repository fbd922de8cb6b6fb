"""Where every stored value lives, and in which order the steps run.

    (graph, schedule, launches)  ->  Plan: buffers, steps, outputs

Temps share one arena: each gets the first gap (64-byte aligned) that is free from the step that writes it to the last step that reads it.
An input that is updated is written directly only where that cannot be seen: by a kernel that reads the old value at the very
element it writes, after every other reader, and when nothing that still has to run can stop the program.  Otherwise the new value
goes to a temp of the same strides and is copied at the end.

Invariant: no step after Commit can stop or raise, no step before it writes an input.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from thermit.errors import CompileError
from thermit.ir import build
from thermit.ir import prims as p
from thermit.ir.node import Graph, Node, toposort
from thermit.ir.types import Shape, TensorType
from thermit.records import dataclass
from thermit.schedule.kernel import CallStep, Kernel, Launch, Load, Schedule, Stored
from thermit.schedule.plan import Buffer, Commit, Plan, RunCall, RunCopy, RunKernel, Step

ALIGNMENT = 64  # bytes: a cache line, and the widest vector
Place = tuple[Node, Shape]


def plan(graph: Graph, schedule: Schedule, launches: Mapping[str, Launch]) -> Plan:
    """The plan of a schedule; `launches` by kernel name."""
    can_stop = [not isinstance(s, Kernel) or launches[s.name].can_stop for s in schedule.steps]
    order = _sink_updates(schedule.steps, can_stop)
    builder = _Builder(graph, launches, {load.node for step in schedule.steps for load in _loads(step)})
    steps = [schedule.steps[i] for i in order]
    direct = _direct_updates(graph, steps, [can_stop[i] for i in order])
    for number, step in enumerate(steps):
        if isinstance(step, Kernel):
            builder.kernel(step, number, direct)
        else:
            builder.call(step)
    return builder.finish()


def span_elems(sizes: Shape, strides: Shape) -> int:
    """Elements from the first to the last one that a tensor touches, gaps included."""
    return 0 if 0 in sizes else 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))


# ---------------------------------------------------------------------------------------------- order
def _loads(step: Kernel | CallStep) -> tuple[Load, ...]:
    return step.loads if isinstance(step, Kernel) else step.arguments


def _sink_updates(steps: tuple[Kernel | CallStep, ...], can_stop: list[bool]) -> list[int]:
    """The order of the steps: kernels that update inputs, cannot stop and whose values nobody reads afterwards go to the end."""
    read = [{load.node for load in _loads(step)} for step in steps]
    sunk: list[int] = []
    for i, step in enumerate(steps):
        if not isinstance(step, Kernel) or can_stop[i] or not any(s.target == "update" for s in step.stores):
            continue
        if not any(s.node in later for s in step.stores for later in read[i + 1 :]):
            sunk.append(i)
    return [i for i in range(len(steps)) if i not in sunk] + sunk


def _direct_updates(graph: Graph, steps: list[Kernel | CallStep], can_stop: list[bool]) -> set[tuple[int, int]]:
    """(number of the step, number of the store) of the updates that may be written into the input itself."""
    direct = set()
    for number, step in enumerate(steps):
        if not isinstance(step, Kernel) or any(can_stop[number:]):
            continue
        for k, stored in enumerate(step.stores):
            if stored.target != "update":
                continue
            old, strides = graph.inputs[stored.index], graph.strides[stored.index]
            later = any(load.node is old for after in steps[number + 1 :] for load in _loads(after))
            moved = any(load.node is old and load.strides != strides for load in step.loads)
            if not later and not moved and stored.strides == strides and _same_element(step, old):
                direct.add((number, k))
            elif stored.node.prim is p.SCATTER and all(load.node is not stored.node for load in step.loads):
                raise CompileError(f"{step.name} writes some elements of an input and cannot do so where it lies")
    return direct


def _same_element(kernel: Kernel, old: Node) -> bool:
    """Whether every store of the kernel that depends on `old` reads it only at the element that it writes.

    Then writing in place cannot be seen: stores of one body act at once, and lowering puts those of inputs last (loops/nest.py, loops/pull.py).
    A scatter into `old` reads and writes some elements one after another, whatever is made of `old` elsewhere.
    """
    seen: set[Node] = set()
    elsewhere = {load.node for load in kernel.loads if load.node is not old}  # read from buffers, whatever they were made of
    pending = [s.node for s in kernel.stores]
    while pending:
        node = pending.pop()
        if node in seen or node is old or node in elsewhere:
            continue
        seen.add(node)
        if node.prim is p.SCATTER and node.args[0] is old:  # what it does not write is what was there
            if old in toposort(node.args[1:], leaves=elsewhere):
                return False
        elif node.prim.kind == "map" and node not in kernel.rows:
            pending += node.args
        elif old in toposort([node], leaves=elsewhere):
            return False
    return True


# ---------------------------------------------------------------------------------------------- buffers
@dataclass
class _Temp:
    """A temp while its place in the arena is open: the steps from the one that writes it to the last that reads it."""

    buffer: int
    nbytes: int
    first: int
    last: int


def _canonical(node: Node, strides: Shape) -> Place:
    """Strides of axes of size 1 (or of an empty tensor) do not matter."""
    empty = 0 in node.shape
    return node, tuple(0 if empty or n == 1 else s for n, s in zip(node.shape, strides, strict=True))


@dataclass
class _Builder:
    graph: Graph
    launches: Mapping[str, Launch]
    read: set[Node]
    buffers: list[Buffer] = field(default_factory=list)
    steps: list[RunKernel | RunCall] = field(default_factory=list)
    copies: list[RunCopy] = field(default_factory=list)
    places: dict[Place, int] = field(default_factory=dict)
    temps: dict[int, _Temp] = field(default_factory=dict)
    outputs: dict[int, int] = field(default_factory=dict)
    results: int = 0
    first_write: int | None = None

    def __post_init__(self) -> None:
        for i, (node, strides) in enumerate(zip(self.graph.inputs, self.graph.strides, strict=True)):
            self.places[_canonical(node, strides)] = self._buffer("input", i, node.type, strides)

    def _buffer(self, role: str, index: int, type: TensorType, strides: Shape) -> int:
        nbytes = span_elems(type.shape, strides) * type.dtype.itemsize
        self.buffers.append(Buffer(role, index, type.dtype, type.shape, strides, nbytes))  # type: ignore[arg-type]
        return len(self.buffers) - 1

    def _temp(self, node: Node, strides: Shape) -> int:
        buffer = self._buffer("temp", 0, node.type, strides)
        now = len(self.steps)
        self.temps[buffer] = _Temp(buffer, self.buffers[buffer].nbytes, now, now)
        return buffer

    def _read(self, load: Load) -> int:
        buffer = self.places[_canonical(load.node, load.strides)]
        if buffer in self.temps:
            self.temps[buffer].last = len(self.steps)
        return buffer

    def _store(self, stored: Stored, direct: bool) -> int:
        if stored.target == "output":
            buffer = self.outputs[stored.index] = self._buffer("output", stored.index, stored.node.type, stored.strides)
        elif stored.target == "temp":
            buffer = self._temp(stored.node, stored.strides)
        elif direct:
            buffer = stored.index  # inputs are the first buffers
            if self.first_write is None:
                self.first_write = len(self.steps)
        else:
            buffer = self._temp(stored.node, stored.strides)
            self.copies.append(RunCopy(buffer, stored.index))
        self.places.setdefault(_canonical(stored.node, stored.strides), buffer)
        return buffer

    def kernel(self, kernel: Kernel, number: int, direct: set[tuple[int, int]]) -> None:
        launch = self.launches[kernel.name]
        reads = [self._read(load) for load in kernel.loads]
        writes = [self._store(stored, (number, k) in direct) for k, stored in enumerate(kernel.stores)]
        step = RunKernel(launch.symbol, (*reads, *writes), launch.extent, launch.grain, launch.cost_ns, launch.can_stop)
        if launch.can_stop or any(stored.node.type.numel for stored in kernel.stores):  # else there is nothing to do, and perhaps no memory to read
            self.steps.append(step)

    def call(self, step: CallStep) -> None:
        attrs = step.node.attrs
        reads = tuple(self._read(load) for load in step.arguments)
        results = []
        for k, result in enumerate(attrs.results):
            output = step.outputs[k] if k < len(step.outputs) else None
            if result is None or (output is None and build.result(step.node, k) not in self.read):
                results.append(-1)  # a workspace may have another shape than on meta tensors: nobody looks at it
                continue
            type, strides = result
            buffer = self._buffer("result", self.results, type, strides)
            self.results += 1
            self.places[_canonical(build.result(step.node, k), strides)] = buffer
            if output is not None:
                self.outputs[output] = buffer
            results.append(buffer)
        self.steps.append(RunCall(attrs.op, attrs.args, attrs.kwargs, reads, tuple(results)))

    def finish(self) -> Plan:
        for copy in self.copies:
            self.temps[copy.source].last = len(self.steps)
        arena_bytes = self._lay_out()
        steps: list[Step] = list(self.steps)
        if self.first_write is not None:
            steps.insert(self.first_write, Commit())
        elif self.copies:
            steps.append(Commit())
        steps += self.copies
        fresh = sum(b.nbytes for b in self.buffers if b.role in ("output", "result"))
        return Plan(
            tuple(self.buffers),
            tuple(steps),
            tuple(self.outputs[j] for j in range(len(self.graph.outputs))),
            self.graph.returns,
            arena_bytes,
            arena_bytes + fresh,
            tuple(sorted({u.input for u in self.graph.updates})),
        )

    def _lay_out(self) -> int:
        """Gives each temp its offset; the size of the arena.  Large ones first: small ones fill the gaps."""
        placed: list[tuple[int, int, _Temp]] = []
        for temp in sorted(self.temps.values(), key=lambda t: (-t.nbytes, t.first)):
            size = (temp.nbytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
            offset = _first_fit(size, sorted((a, b) for a, b, t in placed if t.first <= temp.last and temp.first <= t.last))
            placed.append((offset, offset + size, temp))
            old = self.buffers[temp.buffer]
            self.buffers[temp.buffer] = Buffer("temp", offset, old.dtype, old.sizes, old.strides, old.nbytes)
        return max((end for _, end, _ in placed), default=0)


def _first_fit(size: int, busy: list[tuple[int, int]]) -> int:
    """The lowest offset where `size` bytes overlap none of the busy intervals (sorted)."""
    offset = 0
    for begin, end in busy:
        if offset + size <= begin:
            break
        offset = max(offset, end)
    return offset
