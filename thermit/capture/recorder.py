"""The dispatch mode of a trace: ATen calls on stand-ins become nodes.

In:  the tensors of a call; afterwards every ATen call that the function makes, below autograd.
Out: `Recording`: inputs (arguments, tensors that the function reads from elsewhere, constants), values in storage cells, effects, log.
Idea: each call is (1) run on meta tensors, for exact metadata and eager's errors, (2) given its meaning, from the table of lowerings or as
an opaque `call`, (3) logged.  What cannot be captured makes the trace go live: the log is replayed on the real inputs, the stand-ins become
real tensors, and the function goes on eagerly in the same Python frame; no side effect happens twice.
Invariant: while a trace is open nothing real is read or written.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any, Protocol

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from thermit import config
from thermit.aten.table import DTYPE_OF, TABLE
from thermit.capture.infer import Meta, convert, infer
from thermit.capture.overloads import BATCH_NORM, UNINITIALISED, Overload, overload_of
from thermit.capture.plain_sizes import plain_sizes
from thermit.capture.signature import Source
from thermit.capture.specs import tensor_facts
from thermit.capture.standin import StandIn, is_stand_in, leaked
from thermit.capture.storage import CannotWrite, Cell, Geometry, disjoint
from thermit.errors import DataDependentError, ThermitError, UnsupportedError
from thermit.ir import build as b
from thermit.ir.node import Node
from thermit.ir.prims import Call, Slot
from thermit.ir.types import DType, Shape, TensorType

aten = torch.ops.aten


class ThermitWarning(UserWarning):
    """A function, or a part of it, runs eagerly; the text says why and what to do."""


class GoLive(Exception):
    """This call cannot be captured.  `reads`: because Python wants a value."""

    def __init__(self, reason: str, reads: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.reads = reason, reads


class Restart(BaseException):
    """The function must run again, eagerly, from the start: it changed an argument in a way that no stand-in can pass on."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


# ---------------------------------------------------------------------------------------------- the user's line
_LIBRARY = tuple(os.path.dirname(os.path.abspath(m)) + os.sep for m in (torch.__file__, config.__file__))
Line = tuple[CodeType, int]


def user_line(frame: FrameType | None) -> Line | None:
    """Where the innermost frame that is neither PyTorch's nor ours stands."""
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_LIBRARY):
            return frame.f_code, frame.f_lineno
        frame = frame.f_back
    return None


def line_text(line: Line | None) -> str:
    """`model.py:31 in forward`."""
    return "" if line is None else f"{os.path.basename(line[0].co_filename)}:{line[1]} in {line[0].co_name}"


# ---------------------------------------------------------------------------------------------- data
@dataclass(frozen=True, slots=True)
class Input:
    """A tensor that the graph takes.  `source` None: a constant that the function made from Python data; else where it lives."""

    tensor: torch.Tensor
    stand_in: StandIn
    source: Source | None
    node: Node


@dataclass(frozen=True, slots=True)
class Entry:
    """One ATen call as it was made, for the replay."""

    func: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[Any, ...]


@dataclass
class Recording:
    """What a trace has seen so far."""

    inputs: list[Input] = field(default_factory=list)
    log: list[Entry] = field(default_factory=list)
    effects: list[Node] = field(default_factory=list)
    lines: dict[Node, Line] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)


TRACING, LIVE, CLOSED = "tracing", "live", "closed"


class Watcher(Protocol):
    """What the recorder asks of the watch on Python values (facts.Watcher)."""

    def find(self, tensor: torch.Tensor) -> Source | None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...


class Recorder(TorchDispatchMode):
    """The dispatch mode of one trace."""

    def __init__(self, watcher: Watcher, *, strict: bool = False, advice: str = "") -> None:
        super().__init__()
        self.watcher, self.strict, self.advice = watcher, strict, advice
        self.state = TRACING
        self.record = Recording()
        self.known: dict[int, StandIn] = {}
        self.cells: dict[int, list[Cell]] = {}
        self.shared: set[Cell] = set()
        self.stand_ins: list[StandIn] = []
        self.kept: list[Any] = []
        self.reason = ""
        self.place = ""
        self.random_state: torch.Tensor | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    @property
    def is_live(self) -> bool:
        return self.state is LIVE

    @property
    def is_open(self) -> bool:
        return self.state is TRACING

    # ------------------------------------------------------------------------------------------ inputs
    def add_input(self, tensor: torch.Tensor, source: Source | None) -> StandIn:
        """A stand-in for a tensor from outside; the same object twice is two inputs with one stand-in."""
        known = self.known.get(id(tensor))
        if known is not None:
            node = b.graph_input(len(self.record.inputs), TensorType(known.geometry.sizes, known.element))
            self.record.inputs.append(Input(tensor, known, source, node))
            return known
        facts = tensor_facts(tensor)
        if isinstance(facts, str):
            raise GoLive(facts)
        dtype = DTYPE_OF.get(tensor.dtype)
        if dtype is None or dtype.is_complex:
            raise GoLive(f"a tensor of {tensor.dtype}")
        geometry = Geometry(tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))
        index = len(self.record.inputs)
        node = b.graph_input(index, TensorType(geometry.sizes, dtype))
        cell = self._cell_of(tensor, node, geometry, index)
        stand_in = StandIn(self, cell, geometry, dtype, tensor.dtype, tensor.requires_grad)
        self.record.inputs.append(Input(tensor, stand_in, source, node))
        self.known[id(tensor)] = stand_in
        return stand_in

    def _cell_of(self, tensor: torch.Tensor, node: Node, geometry: Geometry, index: int) -> Cell:
        """The cell whose memory the tensor lies in; a new one where there is none.  Cells that overlap are marked as shared."""
        storage = tensor.untyped_storage()._cdata
        cells = self.cells.setdefault(storage, [])
        for cell in cells:
            if cell.steps(geometry, node.dtype) is not None:
                return cell
        new = Cell(node, geometry, index)
        for cell in cells:
            if cell.base.offset < geometry.extent and geometry.offset < cell.base.extent:
                self.shared |= {cell, new}
                if cell.writes:
                    raise GoLive("a tensor that overlaps one that was changed")
        cells.append(new)
        return new

    def adopt(self, tensor: torch.Tensor) -> StandIn:
        """The stand-in for a tensor that an ATen call was given."""
        if is_stand_in(tensor):
            if tensor.owner is not self:  # type: ignore[attr-defined]
                raise leaked(tensor, "An operation")  # type: ignore[arg-type]
            return tensor  # type: ignore[return-value]
        known = self.known.get(id(tensor))
        if known is not None:
            return known
        source = self.watcher.find(tensor)
        if source is None:
            raise GoLive("a tensor whose origin is not known (it was made without PyTorch's operators)")
        if tensor.requires_grad and torch.is_grad_enabled():
            raise GoLive(f"{source} requires grad")
        return self.add_input(tensor, source)

    def _constant(self, tensor: torch.Tensor) -> StandIn:
        """A tensor made from Python data in the function: part of the program."""
        dtype = DTYPE_OF.get(tensor.dtype)
        if dtype is None or dtype.is_complex or not tensor.untyped_storage().resizable():
            raise GoLive(f"a tensor of {tensor.dtype}" if dtype is None or dtype.is_complex else "a tensor that shares memory with an array")
        geometry = Geometry(tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))
        if tensor.numel() == 1:
            stand_in = self._new(b.const(tensor.item(), dtype, geometry.sizes), Meta(geometry, tensor.dtype))
        else:
            node = b.graph_input(len(self.record.inputs), TensorType(geometry.sizes, dtype))
            stand_in = self._new(node, Meta(geometry, tensor.dtype))
            self.record.inputs.append(Input(tensor.clone(), stand_in, None, node))
        self.known[id(tensor)] = stand_in
        self.kept.append(tensor)
        return stand_in

    def _new(self, node: Node, meta: Meta) -> StandIn:
        """A stand-in on storage of its own."""
        geometry = meta.geometry if meta.geometry.offset == 0 else meta.geometry._replace(offset=0)
        if node.shape != geometry.sizes or node.dtype is not DTYPE_OF.get(meta.dtype):
            raise Fault(f"a lowering gave {node.type} where PyTorch gives {meta.dtype} {list(geometry.sizes)}")
        return self._on(Cell(node, geometry), geometry, meta.dtype)

    def _on(self, cell: Cell, geometry: Geometry, dtype: torch.dtype) -> StandIn:
        stand_in = StandIn(self, cell, geometry, DTYPE_OF[dtype], dtype)
        self.stand_ins.append(stand_in)
        return stand_in

    # ------------------------------------------------------------------------------------------ one call
    def __torch_dispatch__(self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.state is not TRACING:
            return self.forward(func, args, kwargs)
        self.watcher.pause()
        try:
            return self._one(func, args, kwargs)
        except GoLive as stop:
            self.go_live(stop.reason, stop.reads)
        except ThermitError:
            raise
        except Exception as fault:
            if config.current.raise_faults and isinstance(fault, Fault | AssertionError):
                raise
            self.go_live(f"{func} raised {type(fault).__name__}: {fault}")
        finally:
            self.watcher.resume()
        return self.forward(func, args, kwargs)

    def _one(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        info = overload_of(func)
        if kwargs:
            _check_options(kwargs)
        match info.treatment:
            case "functional":
                result = self._functional(info, func, args, kwargs)
            case "view":
                result = self._view(func, args, kwargs)
            case "write":
                result = self._write(info, args, kwargs)
            case "constant":
                return args[0] if is_stand_in(args[0]) else self._lift(func, args, kwargs)
            case "itself":
                return args[0]
            case "composite":
                with self:
                    self.watcher.resume()
                    return func.decompose(*args, **kwargs)
            case _:
                if func is aten.index.Tensor and not any(t.dtype in (torch.bool, torch.uint8) for t in _tensors(args[1])):
                    result = self._functional(info, func, args, kwargs)
                    self.record.log.append(Entry(func, args, kwargs, _tensors(result)))
                    return result
                if func is aten.is_same_size.default:
                    return args[0].shape == args[1].shape
                if func is aten._local_scalar_dense.default and (known := self.constant(self.adopt(args[0]))) is not None:
                    return known.item()
                raise GoLive(f"{func} needs values", reads=torch.Tag.data_dependent_output in func.tags)
        self.record.log.append(Entry(func, args, kwargs, _tensors(result)))
        return result

    def _lift(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> StandIn:
        known = self.known.get(id(args[0]))
        stand_in = self._constant(args[0]) if known is None else known
        self.record.log.append(Entry(func, args, kwargs, (stand_in,)))
        return stand_in

    def _metas(self, value: Any) -> Any:
        return convert(value, lambda v: self._meta(self.adopt(v)) if isinstance(v, torch.Tensor) else v)

    def _meta(self, stand_in: StandIn) -> Meta:
        return Meta(stand_in.geometry, stand_in.dtype)

    def _node(self, stand_in: StandIn) -> Node:
        node = stand_in.cell.read(stand_in.geometry, stand_in.element)
        if node is None:
            raise GoLive("a view of memory that the trace does not know")
        return node

    def _nodes(self, value: Any) -> Any:
        return convert(value, lambda v: self._node(self.adopt(v)) if isinstance(v, torch.Tensor) else v)

    def _grad_check(self, tensors: Sequence[Any]) -> None:
        """Inside `enable_grad`, an argument that requires grad would be differentiated: only the argument itself can be."""
        if torch.is_grad_enabled():
            for i in self.record.inputs:
                if i.stand_in.requires_grad and any(t is i.stand_in for t in tensors):
                    raise Restart("a tensor that requires grad is used while gradients are on")

    # ------------------------------------------------------------------------------------------ functional
    def _infer(self, info: Overload, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        metas = [self._metas(a) for a in args]
        named = {k: self._metas(a) for k, a in kwargs.items()}
        device = info.takes_device and (not info.takes_tensors or kwargs.get("device") is not None)
        return infer(func, metas, named, pointwise=info.pointwise, device=device)

    def _functional(self, info: Overload, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        if func is aten.native_batch_norm.default and args[3] is not None and args[5]:
            return self._batch_norm(args)
        metas = self._infer(info, func, args, kwargs)
        return self._results(self._lower(info, func, args, kwargs, metas), metas)

    def _lower(self, info: Overload, func: OpOverload, args: Any, kwargs: dict[str, Any], metas: Any) -> tuple[Node | None, ...]:
        """The value of each tensor that the call returns."""
        row = TABLE.get(func)
        if row is not None:
            with plain_sizes():
                found = row(*[self._nodes(a) for a in args], **{k: self._nodes(a) for k, a in kwargs.items()})
            if found is not NotImplemented:
                nodes = tuple(found) if isinstance(found, tuple | list) else (found,)
                line = user_line(sys._getframe(3))
                for node in nodes:
                    if node is not None and line is not None:
                        self.record.lines.setdefault(node, line)
                return nodes
        elif func in UNINITIALISED:
            (meta,) = _flat(metas)
            return (b.const(0, _dtype(meta.dtype), meta.geometry.sizes),)
        return self._call(info, func, args, kwargs, metas)

    def _call(self, info: Overload, func: OpOverload, args: Any, kwargs: dict[str, Any], metas: Any) -> tuple[Node | None, ...]:
        """The call as it is, made by PyTorch at run time."""
        nodes: list[Node] = []
        strides: list[Shape] = []

        def slot(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            stand_in = self.adopt(value)
            nodes.append(self._node(stand_in))
            strides.append(stand_in.geometry.strides)
            return Slot(len(nodes) - 1)

        static = tuple(convert(a, slot) for a in args)
        named = tuple((k, convert(a, slot)) for k, a in kwargs.items())
        results = tuple(None if m is None else (TensorType(m.geometry.sizes, _dtype(m.dtype)), m.geometry.strides) for m in _flat(metas))
        key = None if info.random else (func, _frozen(static), _frozen(named), tuple(strides), results)
        node = b.call(Call(func, static, named, tuple(strides), results, key), nodes)
        if info.random:
            self._random()
            self.record.effects.append(node)
        self.record.calls.append(str(func))
        line = user_line(sys._getframe(4))
        if line is not None:
            self.record.lines.setdefault(node, line)
        return tuple(None if r is None else b.result(node, i) for i, r in enumerate(results))

    def _random(self) -> None:
        """Remembers the generator's state at the first draw: one that changes during the trace was seeded by the function."""
        state = torch.default_generator.get_state()
        if self.random_state is None:
            self.random_state = state
        elif not torch.equal(state, self.random_state):
            raise GoLive("the random generator was seeded inside the function")

    def _results(self, nodes: tuple[Node | None, ...], metas: Any) -> Any:
        """The call's result: `metas` with a stand-in in place of each Meta."""
        flat = _flat(metas)
        if len(nodes) != len(flat):
            raise Fault(f"a lowering gave {len(nodes)} results where PyTorch gives {len(flat)}")
        rest = iter(nodes)

        def one(meta: Any) -> Any:
            node = next(rest)
            return None if meta is None or node is None else self._new(node, meta)

        return convert(metas, one)

    def _batch_norm(self, args: Any) -> Any:
        """Batch norm in training: the running statistics are changed, which the schema of this overload does not say."""
        info = overload_of(BATCH_NORM)
        metas = self._infer(info, BATCH_NORM, args, {})
        *results, mean, var = self._lower(info, BATCH_NORM, args, {}, metas)
        for running, node in ((args[3], mean), (args[4], var)):
            if running is not None and node is not None:
                self._put(self.adopt(running), node)
        return self._results(tuple(results), tuple(metas[:3]))

    # ------------------------------------------------------------------------------------------ views and writes
    def _view(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        base = self.adopt(args[0])
        self._grad_check((base,))
        if func is aten.as_strided.default:
            metas: Any = _as_strided(base, *args[1:], **kwargs)
        else:
            metas = infer(func, [self._meta(base), *args[1:]], kwargs, pointwise=False, device=False)

        def one(meta: Meta) -> StandIn:
            dtype = DTYPE_OF.get(meta.dtype)
            if dtype is None or dtype.is_complex or base.cell.steps(meta.geometry, dtype) is None:
                raise GoLive(f"{func} sees memory in a way that is not captured")
            return self._on(base.cell, meta.geometry, meta.dtype)

        return convert(metas, one)

    def _write(self, info: Overload, args: Any, kwargs: dict[str, Any]) -> Any:
        assert info.functional is not None
        targets = [self.adopt(_argument(info, name, args, kwargs)) for name in info.written]
        plain = kwargs if info.inplace else {k: v for k, v in kwargs.items() if k not in info.written}
        args, plain = _with_defaults(info, args, plain)
        self._overlap_check(info, targets, args, plain)
        functional = overload_of(info.functional)
        if plain.get("generator", self) is None:
            plain = {k: v for k, v in plain.items() if k != "generator"}
        if functional.treatment != "functional":
            raise GoLive(f"{info.op} is not captured")
        metas = self._infer(functional, info.functional, args, plain)
        nodes = self._lower(functional, info.functional, args, plain, metas)
        for target, node, meta in zip(targets, nodes, _flat(metas), strict=True):
            if meta.geometry.sizes != target.geometry.sizes:
                raise GoLive(f"{info.op} changes the size of what it writes")
            if not torch.can_cast(meta.dtype, target.dtype):
                raise GoLive(f"{info.op} cannot write {meta.dtype} into {target.dtype}")
            assert node is not None
            self._put(target, node)
        written = [_argument(info, name, args, kwargs) for name in info.written]
        return written[0] if len(written) == 1 else tuple(written)

    def _put(self, target: StandIn, node: Node) -> None:
        if target.cell in self.shared:
            raise GoLive("a write to memory that two tensors share")
        try:
            target.cell.write(target.geometry, target.element, b.cast(node, target.element))
        except CannotWrite:
            raise GoLive("a write through a view whose elements overlap") from None

    def _overlap_check(self, info: Overload, targets: list[StandIn], args: Any, kwargs: dict[str, Any]) -> None:
        """What is written must not be read at other places of the same memory: there eager raises, or depends on its order."""
        read = [self.adopt(t) for t in _tensors((*args, *kwargs.values()))]
        self._grad_check((*read, *targets))
        for target in targets:
            for other in read:
                same = other is target or (other.geometry == target.geometry and (info.inplace or info.pointwise))
                if other.cell is target.cell and not same and not disjoint(target.cell, target.geometry, other.geometry):
                    raise GoLive(f"{info.op} reads and writes overlapping memory")

    # ------------------------------------------------------------------------------------------ live
    def constant(self, stand_in: StandIn) -> torch.Tensor | None:
        """The value, where the function itself made it from Python data; None where it depends on inputs."""
        if self.state is not TRACING or stand_in.numel() != 1:
            return None
        node = self._node(stand_in)
        return torch.full(node.shape, node.attrs.value, dtype=stand_in.dtype) if b.is_const(node) else None

    def materialize(self, stand_in: StandIn, method: str) -> torch.Tensor | None:
        """Called by a method that needs the tensor itself.  None: the stand-in may be used as it is (it is real now, or need not be)."""
        is_input = self._is_argument(stand_in)
        if method in _AUTOGRAD and self.state is TRACING:
            if is_input:
                raise Restart(f"{method} on an argument")
            return None
        if self.state is CLOSED and stand_in.backing is None:
            raise leaked(stand_in, method)
        if self.state is TRACING:
            self.watcher.pause()
            try:
                self.go_live(f"{method.strip('_')} of a tensor", reads=True)
            finally:
                self.watcher.resume()
        if is_input:
            return stand_in.backing
        return None if self.become_real(stand_in) else stand_in.backing

    def real(self, value: Any) -> Any:
        """The value, if it is a stand-in and the trace is live as a real tensor."""
        if not is_stand_in(value) or value.backing is None:
            return value
        return value if not self._is_argument(value) and self.become_real(value) else value.backing

    def touched(self, stand_in: StandIn) -> None:
        """The real tensor behind an argument's stand-in may lie elsewhere now: the stand-in follows."""
        real = stand_in.backing
        if real is None or self.state is TRACING:
            return
        geometry = Geometry(tuple(real.shape), real.stride(), int(real.storage_offset()))
        if geometry != stand_in.geometry or real.dtype != stand_in.dtype:
            new = StandIn(self, stand_in.cell, geometry, stand_in.element, real.dtype)
            torch._C._swap_tensor_impl(stand_in, new)
            stand_in.geometry = geometry
            self.kept.append(new)

    def _is_argument(self, stand_in: StandIn) -> bool:
        return any(i.stand_in is stand_in and i.source is not None for i in self.record.inputs)

    def go_live(self, reason: str, reads: bool = False, quiet: bool = False) -> None:
        """From here on everything is real."""
        self.reason = reason
        self.place = line_text(user_line(sys._getframe(1)))
        if quiet:
            self.state = LIVE
            with _unrecorded():
                self._replay()
            return
        if self.strict:
            self.state = CLOSED
            kind = DataDependentError if reads else UnsupportedError
            raise kind(f"this function cannot be compiled as a whole: {reason}", self.place, self.advice or _ADVICE)
        self._warn()
        self.state = LIVE
        with _unrecorded():
            self._replay()

    def _warn(self) -> None:
        text = f"thermit runs this function eagerly: {self.reason}\n  {self.place}\n  {self.advice or _ADVICE}"
        warnings.warn(text, ThermitWarning, stacklevel=2)

    def _replay(self) -> None:
        """Makes the calls of the log on the real inputs."""
        seeded = None
        if self.random_state is not None and not torch.equal(now := torch.default_generator.get_state(), self.random_state):
            seeded = now
            torch.default_generator.set_state(self.random_state)
        for i in self.record.inputs:
            if i.source is not None:
                i.stand_in.backing = i.tensor
        for entry in self.record.log:
            result = self._run(entry.func, entry.args, entry.kwargs)
            for stand_in, real in zip(entry.results, _tensors(result), strict=True):
                if is_stand_in(stand_in) and stand_in.backing is None:
                    stand_in.backing = real
        self.record.log.clear()
        if seeded is not None:
            torch.default_generator.set_state(seeded)

    def _run(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        """The call on what stands behind the stand-ins."""
        result = func(*[convert(a, _real) for a in args], **{k: convert(a, _real) for k, a in kwargs.items()})
        if overload_of(func).written:
            for name in overload_of(func).written:
                target = _argument(overload_of(func), name, args, kwargs)
                if is_stand_in(target) and not target.backing.is_inference():
                    torch.autograd.graph.increment_version(target.backing)
        return result

    def forward(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        """The call once the trace is live (or over)."""
        for tensor in _tensors((*args, *kwargs.values())):
            if is_stand_in(tensor) and tensor.backing is None:
                raise leaked(tensor, str(func))
        originals = {id(t.backing): t for t in _tensors((*args, *kwargs.values())) if is_stand_in(t)}
        result = self._run(func, args, kwargs)
        return convert(result, lambda r: originals.get(id(r), r))

    def become_real(self, stand_in: StandIn) -> bool:
        """Exchanges the implementation of a stand-in with its real tensor's; False where something in PyTorch still holds it."""
        real = stand_in.backing
        if real is None or stand_in.requires_grad:
            return False
        with _unrecorded():
            partner = real if sys.getrefcount(real) <= 3 else real.detach()  # someone else holds the real one: it stays what it is
            try:
                torch._C._swap_tensor_impl(stand_in, partner)
            except RuntimeError:
                return False
        stand_in.__dict__.clear()
        object.__dict__["__class__"].__set__(stand_in, torch.Tensor)
        self.kept.append(partner)
        return True


class Fault(Exception):
    """A fault of ours: a lowering and PyTorch disagree."""


_ADVICE = "Keep the decision in tensors (torch.where), or move it out of the function; strict=True makes this an error."
_AUTOGRAD = ("backward", "register_hook", "register_post_accumulate_grad_hook", "retain_grad", "requires_grad_", "requires_grad =")


def _unrecorded() -> Any:
    """No dispatch mode inside: what is done is done for real."""
    return torch._C._DisableTorchDispatch()


# ---------------------------------------------------------------------------------------------- arguments
def _dtype(dtype: torch.dtype) -> DType:
    found = DTYPE_OF.get(dtype)
    if found is None or found.is_complex:
        raise GoLive(f"a tensor of {dtype}")
    return found


def _flat(metas: Any) -> list[Any]:
    """The Metas (or None) of a result, lists opened."""
    if isinstance(metas, Meta) or metas is None:
        return [metas]
    return [m for part in metas for m in _flat(part)]


def _tensors(values: Any) -> tuple[Any, ...]:
    """The tensors in a value, lists opened."""
    if isinstance(values, torch.Tensor):
        return (values,)
    if isinstance(values, list | tuple):
        return tuple(t for v in values for t in _tensors(v))
    return ()


def _real(value: Any) -> Any:
    return value.backing if is_stand_in(value) else value


def _argument(info: Overload, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    if name in kwargs:
        return kwargs[name]
    return args[info.argument_names.index(name)]


def _with_defaults(info: Overload, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The arguments with those defaults filled in that the functional overload does not have."""
    assert info.functional is not None
    needed = {a.name for a in info.functional._schema.arguments if not a.has_default_value()}
    given = set(info.argument_names[: len(args)]) | set(kwargs)
    missing = {a.name: a.default_value for a in info.op._schema.arguments if a.name in needed - given and a.has_default_value()}
    return args, {**kwargs, **missing}


def _frozen(value: Any) -> Any:
    """A hashable image of static arguments that tells 0.0 from -0.0 and 1 from True."""
    if isinstance(value, list | tuple):
        return tuple(map(_frozen, value))
    if isinstance(value, float):
        return "float", value.hex()
    return type(value), value


def _check_options(kwargs: dict[str, Any]) -> None:
    """What a factory may be asked for that a compiled program does not make."""
    device, layout = kwargs.get("device"), kwargs.get("layout")
    if device is not None and torch.device(device).type != "cpu":
        raise GoLive(f"a tensor on {device}")
    if layout is not None and layout is not torch.strided:
        raise GoLive(f"a tensor of layout {layout}")
    if kwargs.get("pin_memory"):
        raise GoLive("pinned memory")
    if kwargs.get("generator") is not None:
        raise GoLive("a random generator of its own")


def _as_strided(base: StandIn, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> Meta:
    offset = base.geometry.offset if storage_offset is None else storage_offset
    if len(size) != len(stride) or min((0, *size, *stride, offset)) < 0:
        raise GoLive("as_strided that eager refuses")
    return Meta(Geometry(tuple(size), tuple(stride), offset), base.dtype)
