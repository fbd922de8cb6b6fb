"""Which Python values did the trace read, and did it write any?

In:  a function and the arguments of a call; the function runs inside `with watch(...)`.
Out: `Facts`: guards that make a compiled variant valid, or the reason why the function must run eagerly every time.

The idea.  A profile hook sees every Python frame that starts.  Whatever code reads from outside, it reads from the function's globals,
closed-over variables, defaults and arguments, or from attributes and elements of those.  So when a frame starts, the objects that it can
reach through the names standing in its code are looked up and become guards with their values *at that moment*; the objects found are
known from then on, also when they are handed to other functions.  When the trace is over all guards are checked again: a difference means
that the function changed Python state, and such a function is not compiled.  This guards a little too much (an attribute `k` of every
object at hand, not only of the one that was asked), never too little.  What cannot be compared (iterators, files, arrays) or is different
each time (clock, random module, environment) refuses compilation as soon as it is met.

Not watched: torch's, numpy's and the standard library's own code, methods of tensors included (replacing `torch.Tensor.sin` between two
calls is not seen; replacing the `torch.sin` that the user's code names is); code of other packages is.
Order of use: watch(original call) - substitute stand-ins - run - restore - `facts()`.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Container, Sequence
from types import FrameType, TracebackType
from typing import Any

import torch
from torch._library import simple_registry

from thermit import config
from thermit.capture.effects import effect, setting, shows_always
from thermit.capture.frames import Frames
from thermit.capture.known import is_quiet
from thermit.capture.operators import OPERATOR
from thermit.capture.origin import LIBRARY, MODULES, STANDARD, called_by_library, code_origin
from thermit.capture.reach import WALKING_CODES, by_identity
from thermit.capture.signature import Arg, Attr, Call, Cell, Global, Guard, Held, Item, Part, Source, ambient, argument_roots, holds
from thermit.capture.values import ByIdentity, Leaves, NotStatic, freeze
from thermit.records import dataclass

Refused = Callable[[str, str], None]

# What the dispatcher shows of them is another way to the same values: max_pool1d in two dimensions, one_hot without a look at its classes.
_OWN_KERNELS = frozenset(("max_pool1d", "one_hot"))
# What of torch's own code hands the tensors of a module to the user's.
_HANDING_CODES = by_identity(
    getattr(torch.nn.Module, name).__code__ for name in ("parameters", "named_parameters", "buffers", "named_buffers", "get_parameter", "get_buffer")
)
_WARNS = frozenset(("warn", "warn_explicit"))
_READING_CODES = by_identity(
    getattr(torch.Tensor, name).__code__ for name in ("__array__", "__dlpack__", "storage", "is_shared", "__reduce_ex__", "__deepcopy__")
)
_HOOKS_ALWAYS_CALLED = torch.nn.modules.module._global_forward_hooks_always_called
_CALL_MODULE = torch.nn.Module._call_impl.__code__
_SHOW_WARNING = warnings._showwarnmsg.__code__  # type: ignore[attr-defined]
_FIND_AND_LOAD = importlib._bootstrap._find_and_load.__code__  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class Facts:
    """What a trace depended on.

    `refused`: None, or why the function is to run eagerly whenever these guards hold; `where` is then the user's `file:line`.
    """

    guards: tuple[Guard, ...]
    refused: str | None = None
    where: str = ""


class Watcher(Frames):
    """The watch on one trace.  `find`, `place` may be asked while it runs; `pause` and `resume` go around code that is not the user's."""

    def __init__(self, function: Any, call: Call, on_refuse: Refused | None) -> None:
        super().__init__(function, call)
        self._on_refuse = on_refuse
        self._importing: FrameType | None = None
        self._told = self._asked = False
        self._made: frozenset[int] = frozenset()
        self.native = ""
        self.told: Container[str] = ()
        self._before = ambient()
        self._profiler: Any = None  # the one that was active
        self._chained: Any = None  # the same, where it can be called: those written in C cannot
        self._stopped = True
        self._arguments = self._image()

    def __enter__(self) -> Watcher:
        self._profiler = sys.getprofile()
        self._chained = self._profiler if callable(self._profiler) else None
        self._stopped = False
        self.resume()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """The watch is over, and who watched before does so again.  May be called again: an interrupt may have cut it short."""
        if self._stopped:
            return
        self.pause()
        self._made = frozenset(self._fresh)
        self._fresh.clear()  # may hold stand-ins, which must not outlive the trace
        self._frames.clear()
        self.objects.looked.clear()
        if self._chained is not None:
            sys.setprofile(self._chained)
        elif hasattr(self._profiler, "enable"):  # cProfile: it misses what the function does while it is traced
            self._profiler.enable()
        self._stopped = True

    def made(self, value: Any) -> bool:
        """Whether an object of the function's result was constructed while it ran (asked when the watch is over)."""
        return id(value) in self._made

    def adopt(self, copies: Sequence[tuple[Any, Any]]) -> None:
        """Copies of containers of the call stand for the containers themselves."""
        known = self.objects
        for container, copied in copies:
            known.copied.add(id(container))
            if id(container) in known.known:
                known.know(copied, known.known[id(container)][1])
                known.contents[id(copied)] = known.contents.get(id(container), [])
                if id(container) in known.flattened:
                    known.flattened.add(id(copied))

    def pause(self) -> None:
        """Stops watching (the machinery of the trace runs)."""
        sys.setprofile(None)

    def resume(self) -> None:
        """Watches again (the user's code goes on)."""
        sys.setprofile(self._profile)

    def _profile(self, frame: FrameType, event: str, arg: Any) -> None:
        if id(frame.f_code) in _AROUND_OPERATORS and self._chained is None and self.objects.twice is None:
            return
        if self._chained is not None:
            self._chained(frame, event, arg)
        try:
            self._event(frame, event, arg)
        except ByIdentity as why:
            self._refuse_again(f"reads {why}", frame)
        except NotStatic as why:
            self._refuse(f"reads {why}", frame)
        except Exception as fault:  # objects of the user's may do anything when they are looked at
            if config.current.raise_faults:
                raise
            self._refuse(f"what it reads cannot be told ({type(fault).__name__}: {fault})", frame)
        if self.refused is not None and not self._told:
            self._told = True
            if self._on_refuse is not None:
                self._on_refuse(self.refused, self.where)

    def _event(self, frame: FrameType, event: str, arg: Any) -> None:
        if self._importing is not None:  # PyTorch imports parts of itself when they are first used: not the function's doing
            if event == "return" and frame is self._importing:
                self._importing = None
            return
        if event == "call" and frame.f_code is _FIND_AND_LOAD:
            self._importing = frame
        elif event == "call" and frame.f_code is _SHOW_WARNING:  # shown now, and as the filters say not again
            if shows_always(frame.f_locals["msg"]):
                self._refuse("warns, by filter at every call", frame)
            self._importing = frame
        elif event == "c_call":
            self._native_call(frame, arg)
        elif event == "c_exception":
            self.native = ""
        elif event == "call":
            origin = code_origin(frame.f_code)
            if origin >= MODULES:
                self._enter(frame, origin)
            elif origin == STANDARD:
                if not called_by_library(frame):
                    self._standard(frame)
            elif frame.f_code is _CALL_MODULE:
                module = frame.f_locals["self"]
                if (
                    module._forward_hooks_always_called or _HOOKS_ALWAYS_CALLED
                ):  # where code is compiled, PyTorch does not call them after an exception
                    self._refuse_again("calls a module with a hook that is called after exceptions, too", frame)
                if self._argument(module) and id(module) not in self._fresh:
                    self.objects.module_call(module)
            elif id(frame.f_code) in WALKING_CODES:
                self.objects.walked(frame.f_locals["self"])
            elif id(frame.f_code) in _READING_CODES:
                self._refuse("reads the values of a tensor", frame)
        elif event == "return" and frame in self._frames:
            del self._frames[frame]
            if arg is not None and (not is_quiet(arg) or id(arg) in self.objects.places):
                self._returned(frame, arg)
        elif event == "return" and arg is not None and id(frame.f_code) in _HANDING_CODES:
            self._handed(frame, arg)
        known = self.objects
        if known.twice is not None and (self._identifies or known.twice_copied) and not self._asked:
            self._asked = True
            self._told = False  # whatever was refused before: stand-ins must go
            self._refuse_again(f"an argument is also {known.twice}, and it may be asked which object it is", frame)

    def _image(self) -> Any:
        leaves = Leaves()
        try:
            image = [freeze(list(self.call.args), leaves), freeze(self.call.kwargs, leaves)]
        except NotStatic:
            return None
        return image, [id(t) for t in leaves.tensors]

    def _native_call(self, frame: FrameType, function: Any) -> None:
        name = getattr(function, "__name__", "")
        if name in _OWN_KERNELS:
            self.native = name
        if name in _WARNS and function.__module__ == "_warnings":
            self._warning_filters()
        if (place := setting(function)) is not None:
            self.objects.reach(place, place.read(self.call))
        elif reason := effect(function, code_origin(frame.f_code) is LIBRARY):
            self._refuse(reason, frame)

    def _warning_filters(self) -> None:
        """The filters decide whether a warning is shown again: another list, or another first filter, is another case."""
        place = Attr(Held(warnings, "warnings"), "filters")
        filters = warnings.filters
        self.objects.guard(place, "is", filters)
        self.objects.guard(place, "length", (type(filters), len(filters)))
        if filters:
            self.objects.guard(Item(place, 0), "is", filters[0])

    def guards(self) -> tuple[Guard, ...]:
        """What was found so far, whether or not it still holds."""
        return (*self.objects.guards.values(), *self.objects.apart())

    def facts(self) -> Facts:
        """The guards; refused if the function wrote state, which shows as a guard that no longer holds."""
        guards = self.guards()
        if self.refused is None:
            self._check_unchanged(guards)
        if self.refused is None and self._own and self.objects.has_tensors():
            name, self.where = next(iter(self._own.items()))
            self.refused = f"reads {name}, perhaps of a tensor that is not an argument"
        return Facts(guards, self.refused, self.where)

    def _check_unchanged(self, guards: tuple[Guard, ...]) -> None:
        failed = holds(guards, self.call)
        changed = None if failed is None else failed.source
        if failed is not None and failed.kind == "absent":
            present = [name for name in failed.expected if name in failed.source.read(self.call)]
            assert isinstance(failed.source, Attr)
            changed = Attr(failed.source.base, present[0])
        if changed is None:
            changed = next((s for s, tensor in self.objects.entry if not _still(s, self.call, tensor)), None)
        if changed is not None:
            self.refused, self.where = f"changes {changed}", self._line(changed)
        elif self._arguments is not None and self._image() != self._arguments:
            names = [source for source, _ in argument_roots(self.function, self.call)]
            written = next((s for s in names if isinstance(s, Arg) and s.name in self._writes), None)
            self.refused, self.where = "changes a container that is an argument", self._line(written)
        elif ambient() != self._before:
            self.refused = "leaves torch in another state (grad mode, default dtype, ...)"

    def _line(self, source: Source | None) -> str:
        """The user's line that most probably wrote there: a store to the name, else to an element, else the first line of the function."""
        while source is not None:
            name = source.name.rpartition(".")[2] if isinstance(source, Attr | Global | Cell | Arg) else ""
            if name in self._writes:
                return self._writes[name]
            source = source.base if isinstance(source, Attr | Item | Part) else None
        code = getattr(self.function, "__code__", None)
        start = f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""
        return self._writes.get("[]") or next(iter(self._writes.values()), start)


# What runs around each operator before the watch is off, and when it is on again: up to twelve events that tell nothing.
_AROUND_OPERATORS = by_identity(
    code.__code__
    for code in (
        simple_registry.find_torch_dispatch_rule,
        simple_registry.SimpleLibraryRegistry.find,
        simple_registry.GenericTorchDispatchRuleHolder.find,
        Watcher.pause,
        Watcher.resume,
        OPERATOR,
    )
)


def watch(function: Any, call: Call, on_refuse: Refused | None = None) -> Watcher:
    """A watcher to use as a context around the run of `function` on (the stand-ins for) the arguments of `call`.

    `on_refuse(reason, where)` is called inside the run, before the offending action, for what can be told that early (a clock, print,
    random numbers of Python, foreign objects); state that was written shows in `facts()` only.
    """
    return Watcher(function, call, on_refuse)


def _still(source: Source, call: Call, tensor: torch.Tensor) -> bool:
    try:
        return source.read(call) is tensor
    except Exception:  # whatever reading raises: it is not the same tensor
        return False
