"""A trace that goes live: the log is replayed, stand-ins become real tensors, the function goes on eagerly.

In:  what a recorder has recorded.  Out: the same function frame, working on real tensors.
Idea: the log holds real ATen calls, so the replay is eager itself: values, errors, random numbers and writes are eager's own.
Invariant: each call of the log is made once; afterwards every stand-in has a real tensor behind it.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import fields
from types import FrameType
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from thermit.capture.arguments import argument, tensors_in
from thermit.capture.infer import convert
from thermit.capture.origin import MODULES, code_origin
from thermit.capture.overloads import overload_of, spoken
from thermit.capture.recording import CLOSED, LIVE, TRACING, Recording, Restart, ThermitWarning, Watcher, advice, place_text, told, user_line
from thermit.capture.standin import READS, StandIn, has_history, is_stand_in, leaked, own
from thermit.capture.storage import Geometry
from thermit.capture.structure import exchange
from thermit.errors import DataDependentError, UnsupportedError
from thermit.ir import build as b

aten = torch.ops.aten
_AUTOGRAD = ("backward", "register_hook", "register_post_accumulate_grad_hook", "retain_grad", "requires_grad_", "requires_grad =")


class LiveMode(TorchDispatchMode):
    """The part of a recorder that goes live."""

    def __init__(self, watcher: Watcher, *, strict: bool, staged: bool = False) -> None:
        super().__init__()
        self.watcher, self.strict, self.staged = watcher, strict, staged
        self.state = TRACING
        self.record = Recording()
        self.kept: list[Any] = []
        self.reason = ""
        self.place = ""
        self.failure: BaseException | None = None
        self.random_state: torch.Tensor | None = None
        self._gate, self._thread = threading.RLock(), threading.get_ident()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    @property
    def is_live(self) -> bool:
        return self.state is LIVE

    @property
    def is_open(self) -> bool:
        return self.state is TRACING

    def constant(self, stand_in: StandIn) -> torch.Tensor | None:
        """The value, where the function itself made it from Python data; None where it depends on inputs."""
        if self.state is not TRACING or stand_in.numel() != 1:
            return None
        node = stand_in.cell.read(stand_in.geometry, stand_in.element)
        if node is None:
            return None
        if not b.is_const(node):
            return None
        with _unrecorded():
            return torch.full(node.shape, node.attrs.value, dtype=stand_in.dtype)

    def materialize(self, stand_in: StandIn, method: str) -> torch.Tensor | None:
        """Called by a method that needs the tensor itself.  None: the stand-in may be used as it is (it is real now, or need not be)."""
        is_input = self._is_argument(stand_in)
        if method in _AUTOGRAD and self.state is TRACING:
            if is_input:
                raise Restart(f"{method} on an argument")
            return None
        if method in _AUTOGRAD and stand_in.requires_grad and not is_input:
            return None  # what autograd knows is known of the stand-in, not of the real tensor behind it
        if self.state is CLOSED and stand_in.backing is None:
            raise leaked(stand_in, method)
        if self.state is TRACING:
            self.watcher.pause()
            try:
                self.go_live(_asked(method), reads=method in READS)
            finally:
                self.watcher.resume()
        if is_input:
            return stand_in.backing
        return None if self.become_real(stand_in) else stand_in.backing

    def argument(self, stand_in: StandIn, name: str) -> torch.Tensor | None:
        """The tensor behind an argument's stand-in, asked for its `name`; None where the stand-in itself knows."""
        unknown = name == "storage_offset" and stand_in.cell.root is not stand_in.cell  # it depends on a value
        return self.materialize(stand_in, name) if unknown or self._is_argument(stand_in) else None

    def lacks(self, stand_in: StandIn, name: str) -> bool:
        """Whether the tensor has no attribute of this name, as it is known without looking: made here, or an argument guarded to have none."""
        if self.state is not TRACING:
            return False
        found = [i for i in self.record.inputs if i.stand_in is stand_in and i.source is not None]
        if any(name in vars(i.tensor) for i in found):
            return False
        for i in found:
            assert i.source is not None
            self.watcher.lacks(i.source, frozenset((name,)))
        return True

    def outside(self, what: str) -> None:
        """An operation came past the trace, while it was open."""
        if threading.get_ident() == self._thread and self.state is TRACING and not self.strict:
            self.state = CLOSED
            raise Restart(f"{what} below the trace (a class of tensors)")
        with self._gate:
            if self.state is TRACING:
                self.watcher.pause()
                try:
                    self.go_live(f"{what} where the trace does not see it, in another thread")
                finally:
                    self.watcher.resume()

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

    def go_live(self, reason: str, reads: bool = False, quiet: bool = False, where: str = "") -> None:
        """From here on everything is real.  `reads`: because Python wants a value; `quiet`: without a warning; `where`: the user's
        `file:line`, if it is not the line that runs."""
        quiet = quiet or (reason.endswith("requires grad") and not self.strict)  # training is eager, without complaint
        line = user_line(sys._getframe(1))
        file, number = ("<unknown>", 1) if line is None else (line[0].co_filename, line[1])
        self.reason, self.place = reason, place_text(sys._getframe(1))
        if where:
            file, _, at = where.rpartition(":")
            number, self.place = int(at), f"{os.path.basename(file)}:{at}"
        if self.strict and not quiet:
            self.state = CLOSED
            self._raise(reads)
        if not quiet and reason not in self.watcher.told:
            warnings.warn_explicit(ThermitWarning(told(reason, self.place, reads)), ThermitWarning, file, number, registry=_warned)
        self.state = LIVE
        try:
            with _unrecorded():
                self._replay()
        except BaseException as failure:
            self.failure = failure
            raise

    def exchange(self) -> None:
        """Real tensors in place of the stand-ins for arguments, in variables and containers of the function: it may ask which object one is."""
        own = {id(part) for part in (*vars(self).values(), *[getattr(self.record, f.name) for f in fields(self.record)])}
        frames: list[FrameType] = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if code_origin(frame.f_code) >= MODULES:
                frames.append(frame)
            frame = frame.f_back
        for i in self.record.inputs:
            if i.source is None or i.stand_in.backing is None:
                continue
            for holder in gc.get_referrers(i.stand_in):
                if id(holder) not in own:
                    exchange(holder, i.stand_in, i.tensor)
            for frame in frames:
                names = [name for name, value in frame.f_locals.items() if value is i.stand_in]
                for name in names:
                    frame.f_locals[name] = i.tensor
                if names and sys.version_info < (3, 13):
                    ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))

    def _raise(self, reads: bool) -> None:
        kind = DataDependentError if reads else UnsupportedError
        raise kind(f"this function cannot be compiled as a whole: {self.reason}", self.place, advice(self.reason, reads, self.strict))

    def attempt(self, func: OpOverload, args: Any, kwargs: dict[str, Any], reason: str) -> Any:
        """A call that failed in the trace, made by eager: if it fails there too, eager's exception is the answer, with nothing before it."""
        self.watcher.pause()
        try:
            self.go_live(reason, quiet=not self.staged)  # staged: nothing is to be computed
        finally:
            self.watcher.resume()
        result = self.forward(func, args, kwargs)
        if self.strict:
            self._raise(False)
        line = user_line(sys._getframe(2))
        where = ("<unknown>", 1) if line is None else (line[0].co_filename, line[1])
        warnings.warn_explicit(ThermitWarning(told(reason, self.place, False)), ThermitWarning, *where, registry=_warned)
        return result

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
            if entry.inference == torch.is_inference_mode_enabled():
                result = self._run(entry.func, entry.args, entry.kwargs)
            else:
                with torch.inference_mode(entry.inference), torch.no_grad():
                    result = self._run(entry.func, entry.args, entry.kwargs)
            for stand_in, real in zip(entry.results, tensors_in(result), strict=True):
                if is_stand_in(stand_in) and stand_in.backing is None:
                    stand_in.backing = real
        self.record.log.clear()
        if seeded is not None:
            torch.default_generator.set_state(seeded)

    def _run(self, func: OpOverload | Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        """The call on what stands behind the stand-ins."""
        result = func(*[convert(a, _real) for a in args], **{k: convert(a, _real) for k, a in kwargs.items()})
        if isinstance(func, OpOverload) and overload_of(func).written:
            for name in overload_of(func).written:
                target = argument(overload_of(func), name, args, kwargs)
                if is_stand_in(target) and not target.backing.is_inference():
                    torch.autograd.graph.increment_version(target.backing)
        return result

    def forward(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        """The call once the trace is live (or over)."""
        for tensor in tensors_in((*args, *kwargs.values())):
            if is_stand_in(tensor) and tensor.backing is None:
                raise self.failure or leaked(tensor, spoken(func))
        originals = {id(t.backing): t for t in tensors_in((*args, *kwargs.values())) if is_stand_in(t)}
        if func is aten.eq.Tensor and self.watcher.native == "one_hot":
            self.watcher.native = ""
            self._run(check_classes, args, {})
        result = self._run(func, args, kwargs)
        return convert(result, lambda r: originals.get(id(r), r))

    def become_real(self, stand_in: StandIn, *, inside: bool = True) -> bool:
        """Exchanges the implementation of a stand-in with its real tensor's; False where something in PyTorch still holds it.

        `inside`: the function still runs, and PyTorch's frames further out may look at the old implementation: it is kept.
        """
        real, leaf = stand_in.backing, False
        if real is None or stand_in._use_count() > 1:
            return False
        view = stand_in.requires_grad and own(stand_in, "_is_view")  # of an argument, without gradients: the real one is such a view itself
        if stand_in.requires_grad and (inside or not view):  # only what is a leaf, and that nothing was made of yet, can be exchanged
            if inside or has_history(stand_in) or own(stand_in, "grad") is not None:
                return False
            leaf = True
        with _unrecorded():
            mine = sys.getrefcount(real) <= 3 and not self._is_argument(stand_in)
            partner = real if mine else real.detach()  # someone else holds the real one: it stays what it is
            torch._C._swap_tensor_impl(stand_in, partner)
        kind = torch.nn.Parameter if "_is_param" in stand_in.__dict__ else torch.Tensor
        stand_in.__dict__.clear()
        object.__dict__["__class__"].__set__(stand_in, kind)
        if not view:
            stand_in.requires_grad_(leaf)
        if inside:
            self.kept.append(partner)
        return True

    def released(self, tensor: torch.Tensor) -> torch.Tensor:
        """A real tensor in place of a stand-in that could not become one: what autograd knows of it goes on behind."""
        if not is_stand_in(tensor) or tensor.backing is None:  # type: ignore[attr-defined]
            return tensor
        real: torch.Tensor = tensor.backing  # type: ignore[attr-defined]
        if not tensor.requires_grad or own(tensor, "_is_view"):
            return real
        if own(tensor, "grad_fn") is not None:
            with torch.enable_grad():
                return _Released.apply(tensor, real)
        real.requires_grad_()
        grad = own(tensor, "grad")
        real.grad = None if grad is None else _real(grad)
        tensor.register_post_accumulate_grad_hook(lambda leaf: setattr(real, "grad", _real(leaf.grad)))
        return real


class _Released(torch.autograd.Function):
    """The real tensor behind a stand-in that autograd has made: gradients pass to the stand-in."""

    @staticmethod
    def forward(ctx: Any, stand_in: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        return real.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], None


_warned: dict[Any, Any] = {}


def check_classes(classes: torch.Tensor, numbers: torch.Tensor) -> tuple[()]:
    """What eager's one_hot asks of its classes, which it does not ask of stand-ins."""
    if classes.numel() and int(classes.min()) < 0:
        raise RuntimeError("Class values must be non-negative.")
    if classes.numel() and int(classes.max()) >= numbers.numel():
        raise RuntimeError("Class values must be smaller than num_classes.")
    return ()


_READ_BY = {
    "__bool__": "a condition (bool)", "item": ".item()", "tolist": ".tolist()", "numpy": ".numpy()", "__array__": "numpy",
    "__index__": "range(), an index or a bound of a slice", "__repr__": "repr()", "__str__": "str()", "__format__": "format()",
}  # fmt: skip


def _asked(method: str) -> str:
    """The reason to go live when a method needs the tensor itself."""
    if method in READS:
        return f"reads the value of a tensor: {_READ_BY.get(method, method.strip('_') + '()')}"
    return f"{method.strip('_') if method.startswith('__') else method} of a tensor"


def _real(value: Any) -> Any:
    return value.backing if is_stand_in(value) else value


def _unrecorded() -> Any:
    """No dispatch mode inside: what is done is done for real."""
    return torch._C._DisableTorchDispatch()
