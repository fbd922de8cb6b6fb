"""Runs a function once on stand-ins: tensors in, a Graph out, or the result itself where the function went live.

In:  a function, the tensors of one call and where they live, and a way to run the function on their stand-ins.
Out: `Trace` (graph, all inputs with their sources, template of the result) or `Live` (the value or exception, and why).
Idea: the user's Python runs exactly once, whichever of the two it becomes.
Invariant: when this returns, every stand-in is either dead, part of the trace, or has become a real tensor.
"""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from thermit import aten
from thermit.aten.table import TABLE
from thermit.capture.recorder import Recorder
from thermit.capture.recording import CLOSED, LIVE, TRACING, GoLive, Input, Line, Restart, Watcher
from thermit.capture.signature import Call, Source
from thermit.capture.standin import StandIn, has_history, is_stand_in, own
from thermit.capture.storage import Cell, Geometry, is_dense, overlaps_itself, window, write
from thermit.capture.structure import Template
from thermit.capture.values import NotStatic
from thermit.ir import build as b
from thermit.ir.node import Graph, Node, Output, Return, Update, Window
from thermit.locks import lock
from thermit.records import dataclass

assert TABLE and aten.__all__, "importing thermit.aten registers every lowering"


@dataclass(frozen=True)
class Trace:
    """A captured function.  `inputs[i]` belongs to graph input i; `lines` tells where the user's code made a node; `needs_call`: the
    template reads objects of the call (that the function returns as they are)."""

    graph: Graph
    inputs: tuple[Input, ...]
    template: Template
    needs_call: bool
    lines: dict[Node, Line]
    notes: tuple[str, ...]
    calls: tuple[str, ...]


@dataclass(frozen=True)
class Live:
    """A call that was finished eagerly.  `value` is its result; `reason` and `line` say why it could not be captured."""

    value: Any
    reason: str
    line: str


Run = Callable[[Recorder], Any]
Templates = Callable[[Any], tuple[Template, list[Any], bool]]
Refusal = Callable[[], tuple[str | None, str]]


_BELOW = ("data is not allocated yet", "already associated to a python object")


def active() -> Recorder | None:
    """The recorder of the trace that this thread is in, if any."""
    return _state.recorders[-1] if _state.recorders else None


def trace(
    run: Run,
    tensors: Sequence[torch.Tensor],
    sources: Sequence[Source],
    watcher: Watcher,
    template: Templates,
    refusal: Refusal,
    *,
    strict: bool = False,
    staged: bool = False,
) -> Trace | Live:
    """`run(recorder)` calls the function with `recorder.known[id(tensor)]` in place of each tensor; `template` takes its result apart;
    `refusal()`, asked when the function has returned, may say why it cannot be captured after all, and the user's line.  `staged`: nothing
    is to be computed.

    Raises what the function raises (its writes to real tensors done), Restart where it must run again eagerly, and under `strict`
    DataDependentError or UnsupportedError.
    """
    recorder = Recorder(watcher, strict=strict, staged=staged)
    for tensor, source in zip(tensors, sources, strict=True):
        try:
            recorder.add_input(tensor, source)
        except GoLive as why:
            raise Restart(why.reason) from None
    try:
        value = _recorded(recorder, run)
    except Restart:
        recorder.state = CLOSED
        raise
    except RuntimeError as error:
        if recorder.state is TRACING and any(text in str(error) for text in _BELOW):  # native code of PyTorch wanted a real tensor
            recorder.state = CLOSED
            raise Restart("an operator reads values, or makes a tensor of another class") from None
        _finish_failed(recorder, error)
        raise
    except BaseException as error:
        _finish_failed(recorder, error)
        raise
    if recorder.state is TRACING:
        try:
            refused, where = refusal()
            if refused is not None:
                recorder.go_live(refused, where=where)
                return Live(_returned(recorder, value), recorder.reason, recorder.place)
            return _captured(recorder, value, template)
        except GoLive as why:
            recorder.go_live(why.reason)
        except NotStatic as why:
            recorder.go_live(str(why))
    return Live(_returned(recorder, value), recorder.reason, recorder.place)


def _recorded(recorder: Recorder, run: Run) -> Any:
    """`run(recorder)` with its calls recorded.  An interrupt, wherever it arrives, leaves no mode and no trace open."""
    traces, modes = len(_state.recorders), torch._C._len_torch_dispatch_stack()
    cached = torch.is_autocast_cache_enabled()
    try:
        torch.set_autocast_cache_enabled(False)  # it would keep stand-ins, and casts weights with gradients on, also under no_grad
        _enter(recorder)
        with recorder:
            return run(recorder)
    finally:
        try:
            _leave(traces, modes)
        except BaseException:
            _leave(traces, modes)
            raise
        finally:
            torch.set_autocast_cache_enabled(cached)


def _finish_failed(recorder: Recorder, error: BaseException) -> None:
    """The function raised: what it had written and drawn by then is written and drawn, what the exception holds is real."""
    if recorder.state is TRACING:
        if isinstance(error, Exception) or any(i.stand_in.cell.writes for i in recorder.record.inputs):
            recorder.go_live("the function raised an exception", quiet=True)
        else:
            recorder.state = CLOSED
    error.args = _returned(recorder, error.args)


# ---------------------------------------------------------------------------------------------- live results
def _returned(recorder: Recorder, value: Any) -> Any:
    """The result of a live call: stand-ins for inputs become the inputs themselves, all others real tensors."""
    _make_real(recorder)
    arguments = [i for i in recorder.record.inputs if i.source is not None]
    originals = {id(i.stand_in): i.tensor for i in arguments}
    value = replaced(value, lambda t: originals.get(id(t), t))
    for i in arguments:  # kept where this does not look, in an object or a generator: a tensor on the same memory
        if is_stand_in(i.stand_in):
            recorder.become_real(i.stand_in, inside=False)
    return replaced(value, recorder.released)


def _make_real(recorder: Recorder) -> None:
    """What the function still holds becomes real; views before what they view, so that nothing holds that any more."""
    if recorder.state is LIVE:
        recorder.kept.clear()
        stand_ins = recorder.stand_ins
        while stand_ins:
            stand_in = stand_ins.pop()
            if is_stand_in(stand_in) and sys.getrefcount(stand_in) > 2:
                recorder.become_real(stand_in, inside=False)


def replaced(value: Any, function: Callable[[torch.Tensor], Any]) -> Any:
    """The value with `function` applied to its tensors; containers are changed in place where they can be."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if type(value) in (tuple, frozenset):
        return type(value)([replaced(v, function) for v in value])
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return tuple.__new__(type(value), [replaced(v, function) for v in value])
    if isinstance(value, list):
        for i, v in enumerate(value):
            list.__setitem__(value, i, replaced(v, function))
    elif isinstance(value, dict):
        for k, v in list(value.items()):
            dict.__setitem__(value, k, replaced(v, function))
    elif hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        for k, v in list(vars(value).items()) if hasattr(value, "__dict__") else ():
            object.__setattr__(value, k, replaced(v, function))
    return value


# ---------------------------------------------------------------------------------------------- captured
def _captured(recorder: Recorder, value: Any, template: Templates) -> Trace:
    form, leaves, needs_call = template(value)
    record = recorder.record
    if recorder.random_state is not None and not torch.equal(torch.default_generator.get_state(), recorder.random_state):
        raise GoLive("the random generator was seeded inside the function")
    made: list[StandIn] = []
    for leaf in leaves:
        stand_in = leaf if is_stand_in(leaf) else recorder.adopt(leaf)
        if has_history(stand_in) or (stand_in.requires_grad and not _is_input(recorder, stand_in)):
            raise GoLive("the result requires grad")
        if "_is_param" in stand_in.__dict__ and not _is_input(recorder, stand_in):
            raise GoLive("the result is a parameter or a buffer")
        made.append(stand_in)
    _leak_check(recorder, value, leaves)
    written = [(i, slot.stand_in.cell) for i, slot in enumerate(record.inputs) if slot.source is not None and slot.stand_in.cell.writes]
    updates = tuple(Update(i, cell.value) for i, cell in written if cell.origin == i and cell.value is not record.inputs[i].node)
    outputs, returns = _results(recorder, made)
    nodes = tuple(slot.node for slot in record.inputs)
    strides = tuple(slot.tensor.stride() for slot in record.inputs)
    graph = Graph(nodes, strides, outputs, updates, tuple(record.effects), returns)
    recorder.state = CLOSED
    inference = {k for k, stand_in in enumerate(made) if stand_in.cell.inference}
    if inference:
        form = _in_inference_mode(form, inference)
    return Trace(graph, tuple(record.inputs), form, needs_call, record.lines, tuple(record.notes), tuple(record.calls))


def _in_inference_mode(form: Template, places: set[int]) -> Template:
    """The template of a function that enters inference mode: the tensors at these places were made there."""

    def made_there(tensor: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            empty = torch.empty(0, dtype=tensor.dtype)
            return empty.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())

    def build(tensors: Sequence[torch.Tensor], call: Call, made: dict[int, Any]) -> Any:
        return form.build_node([made_there(t) if k in places else t for k, t in enumerate(tensors)], call, made)

    return Template("", build, form.sources)


def _is_input(recorder: Recorder, stand_in: StandIn) -> bool:
    return any(slot.stand_in is stand_in for slot in recorder.record.inputs)


def _leak_check(recorder: Recorder, value: Any, leaves: Sequence[Any]) -> None:
    """A stand-in that something outside still holds makes the call live, so that what it holds becomes a real tensor."""
    returned = {id(leaf) for leaf in leaves}
    if not _held(recorder, returned):
        return
    gc.collect()  # a cycle of the function's own that is not reachable any more is no leak
    if _held(recorder, returned):
        raise GoLive("the function stores a tensor outside (in a global, an attribute, a list that it was not given)")


def _held(recorder: Recorder, returned: set[int]) -> bool:
    """Whether a stand-in has holders besides the trace itself, the log and the result."""
    counts: dict[int, int] = {}
    for entry in recorder.record.log:
        _count(entry.args, counts)
        _count(tuple(entry.kwargs.values()), counts)
        _count(entry.results, counts)
    for slot in recorder.record.inputs:
        if slot.source is None:
            _count(slot.stand_in, counts)
    _count(tuple(recorder.known.values()), counts)
    (mine,) = _holders([_Probe()])  # what counting itself holds: more where frames are evaluated by somebody else (torch.compile)
    counted = zip(recorder.stand_ins, _holders(recorder.stand_ins), strict=True)
    return any(n > counts.get(id(s), 0) + mine for s, n in counted if id(s) not in returned)


class _Probe:
    """Held by nothing but the list that it is in."""

    def _use_count(self) -> int:
        return 1


def _holders(stand_ins: Sequence[Any]) -> list[int]:
    """References to each; PyTorch's own (views of it, a graph for autograd) not counted, which together are one."""
    return [sys.getrefcount(s) - (s._use_count() > 1) for s in stand_ins]


def _count(value: Any, counts: dict[int, int]) -> None:
    if is_stand_in(value):
        counts[id(value)] = counts.get(id(value), 0) + 1
    elif isinstance(value, list | tuple):
        for v in value:
            _count(v, counts)


def _results(recorder: Recorder, made: Sequence[StandIn]) -> tuple[tuple[Output, ...], tuple[Return, ...]]:
    """Outputs (one for each storage that the trace made) and how each tensor of the result is seen in them."""
    inputs = {id(slot.stand_in): i for i, slot in enumerate(recorder.record.inputs) if slot.source is not None}
    _check_positions(made)
    outputs: list[Output] = []
    numbers: dict[Cell, tuple[int, Geometry, StandIn]] = {}
    returns: list[Return] = []
    for stand_in in made:
        cell, seen = stand_in.cell, stand_in.geometry
        if id(stand_in) in inputs:
            returns.append(Return("input", inputs[id(stand_in)]))
        elif _type_of(cell) is not stand_in.element:
            raise GoLive("a result is the bits of another type")
        elif cell.origin >= 0:
            origin = inputs.get(id(_root(stand_in)), cell.origin)
            returns.append(Return("input", origin, Window(*seen), _way(stand_in, recorder.record.inputs[origin].stand_in)))
        else:
            if cell not in numbers:
                output, lies = _output(cell)
                numbers[cell] = len(outputs), lies, stand_in
                outputs.append(output)
            number, lies, first = numbers[cell]
            whole = Return("output", number)  # one object; others that look the same are views of it
            returns.append(whole if seen == lies and whole not in returns else Return("output", number, Window(*seen), _way(stand_in, first)))
    return tuple(outputs), tuple(returns)


def _check_positions(made: Sequence[StandIn]) -> None:
    """A result at a place that is data is a tensor of its own; where eager's would share memory with what is seen outside, none is made."""
    for stand_in in made:
        cell = stand_in.cell
        if cell.root is not cell and (cell.root.origin >= 0 or any(m.cell.root is cell.root and m.cell is not cell for m in made)):
            raise GoLive("returns x[i], a view, with a tensor i that says where it lies")


def _root(stand_in: StandIn) -> torch.Tensor:
    """What autograd takes it for a view of; itself where it is no view."""
    base: torch.Tensor | None = own(stand_in, "_base")
    return stand_in if base is None else base


def _way(stand_in: StandIn, of: StandIn) -> str:
    """How autograd sees two tensors over the same memory: views of the same, or cut apart, with one count of versions or each with its own."""
    if own(stand_in, "is_inference") or _root(stand_in) is _root(of):
        return "view"
    before = own(of, "_version")
    torch.autograd.graph.increment_version(stand_in)
    return "data" if own(of, "_version") == before else "detach"


def _type_of(cell: Cell) -> Any:
    return cell.value.dtype


def _output(cell: Cell) -> tuple[Output, Geometry]:
    """The storage as an output: dense as it lies, or, where it has gaps, its whole line of memory."""
    base = cell.base
    if is_dense(base) and not overlaps_itself(base):
        return Output(cell.value, base.strides), base
    if overlaps_itself(base):
        raise GoLive("a result whose elements overlap")
    line = Geometry((base.extent,), (1,), 0)
    steps = window(line, base)
    if steps is None:
        raise GoLive("a result with gaps")
    return Output(write(b.const(0, cell.value.dtype, line.sizes), steps, cell.value), (1,)), line


# ---------------------------------------------------------------------------------------------- is_compiling
class _Stack(list[Recorder]):
    """The traces that a thread is in, outermost first (more than one only where one went live)."""

    __hash__, __eq__ = object.__hash__, object.__eq__  # type: ignore[assignment]


class _State(threading.local):
    def __init__(self) -> None:
        self.recorders = _Stack()
        with _lock:
            _stacks.add(self.recorders)


_lock = lock()
_stacks: weakref.WeakSet[_Stack] = weakref.WeakSet()  # of all threads
_state = _State()


# Code of PyTorch that takes another way with other results where it is told yes: an encoder's fast path writes zeros at padded places.
_TOLD_NO = frozenset({torch.nn.TransformerEncoder.forward.__code__})


class _Flag:
    """Stands for torch.compiler._is_compiling_flag while a trace runs: true in the threads that trace."""

    def __bool__(self) -> bool:
        recorder = active()
        return recorder is not None and recorder.is_open and sys._getframe(1).f_code not in _TOLD_NO

    def __or__(self, other: Any) -> Any:
        return bool(self) | other

    def __and__(self, other: Any) -> Any:
        return bool(self) & other

    def __xor__(self, other: Any) -> Any:
        return bool(self) ^ other

    def __eq__(self, other: object) -> bool:
        return bool(self) == (bool(other) if isinstance(other, _Flag) else other)

    __ror__, __rand__, __rxor__ = __or__, __and__, __xor__

    def __hash__(self) -> int:
        return hash(bool(self))

    def __repr__(self) -> str:
        return repr(bool(self))


_flag: Any = _Flag()
_before: Any = False


def _enter(recorder: Recorder) -> None:
    """From here on torch.compiler.is_compiling() is true for this thread."""
    global _before
    with _lock:
        _state.recorders.append(recorder)
        if torch.compiler._is_compiling_flag is not _flag:
            _before = torch.compiler._is_compiling_flag
            torch.compiler._is_compiling_flag = _flag


def _leave(traces: int, modes: int) -> None:
    """Back to so many traces and dispatch modes of this thread; may be called again."""
    del _state.recorders[traces:]
    while torch._C._len_torch_dispatch_stack() > modes:
        torch._C._pop_torch_dispatch_stack(None)
    with _lock:
        if torch.compiler._is_compiling_flag is _flag and not any(_stacks):
            torch.compiler._is_compiling_flag = _before
