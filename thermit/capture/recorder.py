"""The dispatch mode of a trace: ATen calls on stand-ins become nodes.

In:  the tensors of a call; afterwards every ATen call that the function makes, below autograd.
Out: `Recording`: inputs (arguments, tensors that the function reads from elsewhere, constants), values in storage cells, effects, log.
Idea: each call is (1) run on meta tensors, for exact metadata and eager's errors, (2) given its meaning, from the table of lowerings or as
an opaque `call`, (3) logged.  What cannot be captured makes the trace go live: the log is replayed on the real inputs, the stand-ins become
real tensors, and the function goes on eagerly in the same Python frame; no side effect happens twice.
Invariant: while a trace is open nothing real is read or written.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import torch
from torch._ops import OpOverload

from thermit import config
from thermit.aten.table import DTYPE_OF, TABLE, Lowering
from thermit.capture.arguments import argument, as_strided, check_options, element_type, flat_metas, frozen, tensors_in, with_defaults
from thermit.capture.infer import Meta, convert, infer
from thermit.capture.live import LiveMode, check_classes
from thermit.capture.operators import nothing_between
from thermit.capture.overloads import BATCH_NORM, Overload, overload_of, spoken
from thermit.capture.plain_sizes import plain_sizes
from thermit.capture.position import Asked, Picked, overlap, picked, select_at
from thermit.capture.recording import SIZED, TRACING, Entry, Fault, GoLive, Input, Restart, Watcher, user_line
from thermit.capture.signature import Source
from thermit.capture.specs import tensor_facts
from thermit.capture.standin import StandIn, is_stand_in, leaked
from thermit.capture.storage import CannotWrite, Cell, Geometry
from thermit.capture.strides import suggests_channels_last
from thermit.errors import DataDependentError, LeakedStandInError, TypeRuleError, UnsupportedError
from thermit.ir import build as b
from thermit.ir.node import Node
from thermit.ir.prims import Call, Slot
from thermit.ir.types import Shape, TensorType

aten = torch.ops.aten
_MASKS = (torch.bool, torch.uint8)


def _uninitialised(dtype: torch.dtype) -> Any:
    """What stands in memory that nobody has written: eager fills it where deterministic algorithms are asked for."""
    if not (torch.are_deterministic_algorithms_enabled() and torch.utils.deterministic.fill_uninitialized_memory):  # type: ignore[attr-defined]
        return 0
    if dtype.is_floating_point:
        return float("nan")
    return True if dtype is torch.bool else torch.iinfo(dtype).max


def _needs_values(func: OpOverload) -> GoLive:
    """Why an operation that looks at values itself is not captured."""
    if func is aten._linalg_check_errors.default:
        return GoLive("torch.linalg looks whether it succeeded")
    if torch.Tag.dynamic_output_shape in func.tags:
        return GoLive(f"makes the result of {spoken(func)}, {SIZED}", reads=True)
    if torch.Tag.data_dependent_output in func.tags:
        return GoLive(f"reads the value of a tensor: {spoken(func)}", reads=True)
    return GoLive(f"{spoken(func)} is not captured")


class Recorder(LiveMode):
    """The dispatch mode of one trace."""

    def __init__(self, watcher: Watcher, *, strict: bool = False, staged: bool = False) -> None:
        super().__init__(watcher, strict=strict, staged=staged)
        self.known: dict[int, StandIn] = {}
        self.cells: dict[int, list[Cell]] = {}
        self.shared: set[Cell] = set()
        self.stand_ins: list[StandIn] = []
        self.differentiable: list[StandIn] = []
        self.picked: list[Picked] = []
        self.asked: Asked | None = None
        self.inference = torch.is_inference_mode_enabled()

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
        if isinstance(tensor, torch.nn.Parameter):
            stand_in._is_param = True  # what isinstance(x, Parameter) asks for
        self.record.inputs.append(Input(tensor, stand_in, source, node))
        self.known[id(tensor)] = stand_in
        if tensor.requires_grad:
            self.differentiable.append(stand_in)
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
        inference = torch.is_inference_mode_enabled()
        if self.inference and not inference:
            raise GoLive("ordinary tensors are made inside inference mode")
        return self._on(Cell(node, geometry, inference=inference and not self.inference), geometry, meta.dtype)

    def _on(self, cell: Cell, geometry: Geometry, dtype: torch.dtype) -> StandIn:
        if torch.is_inference_mode_enabled() and not (self.inference or cell.inference):
            with torch.inference_mode(False):  # a view of an ordinary tensor is one
                stand_in = StandIn(self, cell, geometry, DTYPE_OF[dtype], dtype)
        else:
            stand_in = StandIn(self, cell, geometry, DTYPE_OF[dtype], dtype)
        self.stand_ins.append(stand_in)
        return stand_in

    # ------------------------------------------------------------------------------------------ one call
    def __torch_dispatch__(self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.state is not TRACING:
            return self.forward(func, args, kwargs)
        if self.asked is not None:
            func, args = self._at_position(func, args, sys._getframe(1))
        failure = ""
        self.watcher.pause()
        try:
            return self._one(func, args, kwargs)
        except GoLive as stop:
            self.go_live(stop.reason, stop.reads)
        except (DataDependentError, UnsupportedError, LeakedStandInError):
            raise
        except Exception as fault:
            if config.current.raise_faults and isinstance(fault, Fault | AssertionError | TypeRuleError):
                raise
            failure = f"{spoken(func)} raised {type(fault).__name__}: {fault}"
        finally:
            self.watcher.resume()
        return self.attempt(func, args, kwargs, failure) if failure else self.forward(func, args, kwargs)

    def _at_position(self, func: OpOverload, args: Any, frame: FrameType) -> tuple[Any, Any]:
        """The call that follows when PyTorch has read a position: the selection, at the position itself."""
        asked, self.asked = self.asked, None
        if asked is None or not asked.is_at(frame):  # PyTorch has refused the subscript
            return func, args
        if func is aten.select.int and args[2] == 0:
            return select_at, (*args[:2], asked.position)
        raise Restart(f"{spoken(func)} reads a tensor")

    def _pick(self, args: Any) -> StandIn:
        """`args[0]` at the position `args[2]` along the axis `args[1]`: a view."""
        of, (_, axis, index) = self.adopt(args[0]), args
        cell = picked(self.picked, of, axis % len(of.geometry.sizes), self._node(index))
        result = self._on(cell, cell.base, of.dtype)
        self.record.log.append(Entry(select_at, (of, axis, index), {}, (result,), torch.is_inference_mode_enabled()))
        return result

    def _one(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        if func is select_at:
            return self._pick(args)
        info = overload_of(func)
        if kwargs:
            check_options(kwargs)
        if self.differentiable:
            self._grad_check(args, kwargs)
        if func is aten.max_pool2d_with_indices.default and self.watcher.native:
            args = self._pooled_in_rows(args)
        elif func is aten.eq.Tensor and self.watcher.native == "one_hot":
            return self._one_hot(info, func, args)
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
            case "reshapes":
                result = self._reshaped_itself(func, args, kwargs)
            case "composite":
                with self:
                    self.watcher.resume()
                    return func.decompose(*args, **kwargs)
            case _:
                if func is aten.is_same_size.default:
                    return args[0].shape == args[1].shape
                if func in (aten._local_scalar_dense.default, aten.item.default):
                    read = self.adopt(args[0])
                    if (known := self.constant(read)) is not None:
                        return known.item()
                    self.asked = Asked.of(read, sys._getframe(2))
                    if self.asked is not None:
                        return 0
                raise _needs_values(func)
        self.record.log.append(Entry(func, args, kwargs, tensors_in(result), torch.is_inference_mode_enabled()))
        return result

    def arithmetic(self, func: OpOverload, x: StandIn, y: Any) -> StandIn | None:
        """What an operator of a stand-in and another (or a number) gives, asked by the operator itself; None where PyTorch must be asked."""
        both = is_stand_in(y)
        if self.state is not TRACING or x.owner is not self or (both and y.owner is not self) or not nothing_between(self):
            return None
        if self.asked is not None or self.differentiable or x.requires_grad or (both and y.requires_grad):
            return None
        try:
            with torch._C._DisableTorchDispatch():
                meta = infer(func, (self._meta(x), self._meta(y) if both else y), {}, pointwise=True, device=False)
                node = TABLE[func](self._node(x), self._node(y) if both else y)
                if type(node) is not Node or node.type.shape != meta.geometry.sizes or node.type.dtype is not element_type(meta.dtype):
                    return None
                self._note_lines((node,), 3)
                result = self._new(node, meta)
        except Exception:  # it comes to the same on PyTorch's way, where it is told
            return None
        self.record.log.append(Entry(func, (x, y), {}, (result,), torch.is_inference_mode_enabled()))
        return result

    def _lift(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> StandIn:
        known = self.known.get(id(args[0]))
        stand_in = self._constant(args[0]) if known is None else known
        self.record.log.append(Entry(func, args, kwargs, (stand_in,), torch.is_inference_mode_enabled()))
        return stand_in

    def _reshaped_itself(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> StandIn:
        """The same tensor with other sizes and strides: PyTorch changes the stand-in's own."""
        stand_in = args[0]
        if not is_stand_in(stand_in) or any(stand_in is known for known in self.known.values()):
            raise GoLive(f"{spoken(func)} on a tensor from outside")
        with torch._C._DisableTorchDispatch():
            func(*args, **kwargs)
        stand_in.geometry = Geometry(tuple(stand_in.shape), stand_in.stride(), int(stand_in.storage_offset()))
        return stand_in

    def _metas(self, value: Any) -> Any:
        if is_stand_in(value):
            return self._meta(self.adopt(value))
        return convert(value, lambda v: self._meta(self.adopt(v)) if isinstance(v, torch.Tensor) else v)

    def _meta(self, stand_in: StandIn) -> Meta:
        return Meta(stand_in.geometry, stand_in.dtype)

    def _node(self, stand_in: StandIn) -> Node:
        node = stand_in.cell.read(stand_in.geometry, stand_in.element)
        if node is None:
            raise GoLive("a view of memory that the trace does not know")
        return node

    def _nodes(self, value: Any) -> Any:
        if is_stand_in(value):
            return self._node(self.adopt(value))
        return convert(value, lambda v: self._node(self.adopt(v)) if isinstance(v, torch.Tensor) else v)

    def _grad_check(self, args: Any, kwargs: dict[str, Any]) -> None:
        """Inside `enable_grad`, an argument that requires grad would be differentiated: only the argument itself can be."""
        if torch.is_grad_enabled() and any(t is d for t in tensors_in((*args, *kwargs.values())) for d in self.differentiable):
            raise Restart("a tensor that requires grad is used while gradients are on")

    # ------------------------------------------------------------------------------------------ functional
    def _infer(self, info: Overload, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        metas = [self._metas(a) for a in args]
        named = {k: self._metas(a) for k, a in kwargs.items()}
        device = info.takes_device and (not info.takes_tensors or kwargs.get("device") is not None)
        return infer(func, metas, named, pointwise=info.pointwise, device=device)

    def _pooled_in_rows(self, args: Any) -> Any:
        """The arguments of a max_pool1d that shows as two-dimensional: its own kernel, which runs without gradients, gives contiguous results."""
        self.watcher.native = ""
        pooled = self.adopt(args[0])
        if not pooled.dtype.is_floating_point:
            raise Restart("max_pool1d of integers, which its kernel refuses")
        geometry = pooled.geometry
        if not suggests_channels_last(geometry):
            return args
        return self._one(aten.clone.default, args[:1], {"memory_format": torch.contiguous_format}), *args[1:]

    def _one_hot(self, info: Overload, func: OpOverload, args: Any) -> StandIn:
        """The comparison of classes with their numbers that one_hot shows; eager looks first whether they are classes."""
        self.watcher.native = ""
        classes, numbers = map(self.adopt, args)
        count = numbers.numel()
        if count == 0:
            raise Restart("one_hot without classes")
        metas = self._infer(info, func, args, {})
        node, shape = self._node(classes), metas.geometry.sizes
        node = b.check(node, b.and_(b.ge(node, 0), b.lt(node, count)))
        result: StandIn = self._results((b.eq(b.broadcast_to(node, shape), b.broadcast_to(self._node(numbers), shape)),), metas)
        inference = torch.is_inference_mode_enabled()
        self.record.log.append(Entry(check_classes, (classes, numbers), {}, (), inference))
        self.record.log.append(Entry(func, args, {}, (result,), inference))
        return result

    def _functional(self, info: Overload, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        if func is aten.native_batch_norm.default and args[3] is not None and args[5]:
            return self._batch_norm(args)
        if func is aten.index.Tensor and any(t.dtype in _MASKS for t in tensors_in(args[1])):
            raise GoLive(f"makes x[mask], {SIZED}", reads=True)
        metas = self._infer(info, func, args, kwargs)
        return self._results(self._lower(info, func, args, kwargs, metas), metas)

    def _lower(self, info: Overload, func: OpOverload, args: Any, kwargs: dict[str, Any], metas: Any) -> tuple[Node | None, ...]:
        """The value of each tensor that the call returns."""
        row = None if info.uninitialised else TABLE.get(func)
        if row is not None:
            try:
                nodes = self._row(row, args, kwargs, flat_metas(metas))
            except GoLive:
                raise
            except Exception as fault:
                if config.current.raise_faults:
                    raise Fault(f"the lowering of {func}: {type(fault).__name__}: {fault}") from fault
                nodes = None
            if nodes is not None:
                self._note_lines(nodes)
                return nodes
        elif info.uninitialised:
            (meta,) = flat_metas(metas)
            return (b.const(_uninitialised(meta.dtype), element_type(meta.dtype), meta.geometry.sizes),)
        return self._call(info, func, args, kwargs, metas)

    def _row(self, row: Lowering, args: Any, kwargs: dict[str, Any], metas: Sequence[Meta | None]) -> tuple[Node | None, ...] | None:
        """What the table says, checked against PyTorch; None where it declines.  Raises Fault where they disagree."""
        with plain_sizes():
            found = row(*[self._nodes(a) for a in args], **{k: self._nodes(a) for k, a in kwargs.items()})
        if found is NotImplemented:
            return None
        nodes = tuple(found) if isinstance(found, tuple | list) else (found,)
        if len(nodes) != len(metas):
            raise Fault(f"{len(nodes)} results where PyTorch gives {len(metas)}")
        for node, meta in zip(nodes, metas, strict=True):
            if node is None or meta is None:
                continue
            if node.type.shape != meta.geometry.sizes or node.type.dtype is not element_type(meta.dtype):
                raise Fault(f"{node.type} where PyTorch gives {meta.dtype} {list(meta.geometry.sizes)}")
        return nodes

    def _note_lines(self, nodes: Sequence[Node | None], above: int = 4) -> None:
        line = user_line(sys._getframe(above))
        if line is not None:
            for node in nodes:
                if node is not None:
                    self.record.lines.setdefault(node, line)

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
        results = tuple(None if m is None else (TensorType(m.geometry.sizes, element_type(m.dtype)), m.geometry.strides) for m in flat_metas(metas))
        key = None if info.random else (func, frozen(static), frozen(named), tuple(strides), results)
        node = b.call(Call(func, static, named, tuple(strides), results, key), nodes)
        if info.random:
            self._random()
            self.record.effects.append(node)
        self.record.calls.append(str(func))
        self._note_lines((node,))
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
        if func is aten.as_strided.default:
            if isinstance(base.cell, Picked):
                raise GoLive(f"{spoken(func)} of x[i], with a tensor i that says where it lies")
            metas: Any = as_strided(base, *args[1:], **kwargs)
        else:
            metas = infer(func, [self._meta(base), *args[1:]], kwargs, pointwise=False, device=False)

        def one(meta: Meta) -> StandIn:
            dtype = DTYPE_OF.get(meta.dtype)
            if dtype is None or dtype.is_complex or base.cell.steps(meta.geometry, dtype) is None:
                raise GoLive(f"{spoken(func)} sees memory in a way that is not captured")
            return self._on(base.cell, meta.geometry, meta.dtype)

        return convert(metas, one)

    def _write(self, info: Overload, args: Any, kwargs: dict[str, Any]) -> Any:
        assert info.functional is not None
        targets = [self.adopt(argument(info, name, args, kwargs)) for name in info.written]
        plain = kwargs if info.inplace else {k: v for k, v in kwargs.items() if k not in info.written}
        args, plain = with_defaults(info, args, plain)
        self._overlap_check(info, targets, args, plain)
        functional = overload_of(info.functional)
        if plain.get("generator", self) is None:
            plain = {k: v for k, v in plain.items() if k != "generator"}
        if functional.treatment != "functional":
            raise GoLive(f"{spoken(info.op)} is not captured")
        metas = self._infer(functional, info.functional, args, plain)
        nodes = self._lower(functional, info.functional, args, plain, metas)
        for target, node, meta in zip(targets, nodes, flat_metas(metas), strict=True):
            if meta.geometry.sizes != target.geometry.sizes:
                raise GoLive(f"{spoken(info.op)} changes the size of what it writes")
            if not torch.can_cast(meta.dtype, target.dtype):
                raise GoLive(f"{spoken(info.op)} cannot write {meta.dtype} into {target.dtype}")
            assert node is not None
            self._put(target, node)
        written = [argument(info, name, args, kwargs) for name in info.written]
        return written[0] if len(written) == 1 else tuple(written)

    def _put(self, target: StandIn, node: Node) -> None:
        if target.cell.root in self.shared:
            raise GoLive("a write to memory that two tensors share")
        if target.cell.inference and not torch.is_inference_mode_enabled():
            raise GoLive("a write to an inference tensor outside inference mode")
        try:
            target.cell.write(target.geometry, target.element, b.cast(node, target.element))
        except CannotWrite:
            raise GoLive("a write through a view whose elements overlap") from None

    def _overlap_check(self, info: Overload, targets: list[StandIn], args: Any, kwargs: dict[str, Any]) -> None:
        """What is written must not be read at other places of the same memory: there eager raises, or depends on its order."""
        read = [self.adopt(t) for t in tensors_in((*args, *kwargs.values()))]
        for target in targets:
            for other in read:
                if other is not target and overlap(target, other, info.inplace or info.pointwise):
                    raise GoLive(f"{spoken(info.op)} reads and writes overlapping memory")
