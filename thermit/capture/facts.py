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

import builtins
import functools
import gc
import importlib
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import CellType, CodeType, FrameType, FunctionType, MethodType, ModuleType, TracebackType
from typing import Any

import torch
from torch._library import simple_registry

from thermit import config
from thermit.capture.bytecode import IDENTITIES, NAMESPACES, Names, function_of, names_of
from thermit.capture.effects import effect, setting, shows_always
from thermit.capture.known import CONTAINERS, is_quiet
from thermit.capture.origin import LIBRARY, MODULES, STANDARD, USER, called_by_library, class_origin, code_origin, is_library_module, is_package
from thermit.capture.reach import GETTERS, WALKING_CODES, Reach, by_identity, in_class
from thermit.capture.signature import Arg, Attr, Call, Cell, Class, Global, Guard, Held, Item, Source, ambient, argument_roots, holds
from thermit.capture.standin import is_stand_in
from thermit.capture.values import IMMUTABLE, ByIdentity, Leaves, NotStatic, freeze
from thermit.records import dataclass

Refused = Callable[[str, str], None]

_NOTHING = object()
_BUILTINS = vars(builtins)

# What a tensor knows of itself and its spec does not say: read on a tensor that no argument is, it would be baked in.
_OWN_FACTS = frozenset(
    (
        "grad",
        "_grad",
        "_version",
        "_base",
        "grad_fn",
        "_grad_fn",
        "is_leaf",
        "retains_grad",
        "output_nr",
        "_backward_hooks",
        "_post_accumulate_grad_hooks",
    )
)
_OWN_KERNELS = frozenset(("max_pool1d",))  # what the dispatcher shows of them is another way to the same values
_WALKS = frozenset(("state_dict",))
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


class Watcher:
    """The watch on one trace.  `find`, `place` may be asked while it runs; `pause` and `resume` go around code that is not the user's."""

    def __init__(self, function: Any, call: Call, on_refuse: Refused | None) -> None:
        self.function, self.call, self._on_refuse = function, call, on_refuse
        self.refused: str | None = None
        self._importing: FrameType | None = None
        self.where = ""
        self.again = False  # the refusal came before anything was done: the function can be called again from the start
        self._told = False
        self.objects = Reach(call)
        self.find, self.place, self.lacks = self.objects.find, self.objects.place, self.objects.lacks
        self._fresh: dict[int, Any] = {}
        self._made: frozenset[int] = frozenset()
        self._cells: dict[int, CellType] = {}
        self._frames: dict[FrameType, Names] = {}
        self._frames_done: set[Any] = set()
        self._nested: set[Any] = set()
        self._writes: dict[str, str] = {}
        self._own: dict[str, str] = {}  # facts that only a tensor itself knows and that code which ran names: where
        self.native = ""
        self._tries = self._walks = self._identifies = self._asked = False
        self._before = ambient()
        self._profiler: Any = None  # the one that was active
        self._chained: Any = None  # the same, where it can be called: those written in C cannot
        self._stopped = True
        self._arguments = self._image()
        for source, value in argument_roots(function, call):
            self.objects.learn_argument(source, value)
        self._learn_root(function)

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

    def _refuse(self, reason: str, frame: FrameType | None) -> None:
        if self.refused is not None:
            return
        self.refused = reason
        while frame is not None and code_origin(frame.f_code) is not USER:
            frame = frame.f_back
        if frame is not None:
            self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"

    def _image(self) -> Any:
        leaves = Leaves()
        try:
            image = [freeze(list(self.call.args), leaves), freeze(self.call.kwargs, leaves)]
        except NotStatic:
            return None
        return image, [id(t) for t in leaves.tensors]

    def _learn_root(self, function: Any) -> None:
        name = getattr(function, "__name__", type(function).__name__)
        if isinstance(function, MethodType):
            self.objects.know(function.__self__, Held(function.__self__, "self"))
            function = function.__func__
        self.objects.know(function, Held(function, "self" if isinstance(function, torch.nn.Module) else name))
        if isinstance(function, functools.partial):
            self.objects.reach(Held(function, name), function)

    def _enter(self, frame: FrameType, origin: int) -> None:
        code = frame.f_code
        names = names_of(code)
        self._frames[frame] = names
        arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)]
        local = frame.f_locals if arguments else {}
        values = [local[n] for n in arguments if n in local and (not is_quiet(local[n]) or id(local[n]) in self.objects.places)]
        function = function_of(frame)
        done = (code, id(function), *map(id, values))
        if done in self._frames_done:
            return
        self._frames_done.add(done)
        self._fresh.setdefault(id(values), values)  # keeps the ids above from being used again
        self._nested |= names.nested
        if names.compares_class and origin is USER:
            self._refuse_again("compares the class of a tensor with `is` (isinstance can be compiled)", frame)
        self._identifies = self._identifies or names.identifies
        if origin is USER and names.identities and (called := self._identity(frame.f_globals, names)):
            self._refuse_again(f"calls {called}()", frame)
        for name, line in names.writes.items():
            self._writes.setdefault(name, f"{code.co_filename}:{line}")
        if origin is USER:
            self._asks(names, code)
            if "grad" in names.writes:
                self._refuse("writes grad", frame)
        roots: list[Any] = []
        if arguments and arguments[0] in local:
            self._method(local[arguments[0]], code.co_name, function)
        if origin is USER:
            if function is not None:
                roots += self._function(function)
            roots += self._globals(frame.f_globals, names, frame)
        for value in values:
            roots += self._argument(value)
        self.objects.follow(names, roots, watched=origin is USER)
        while self.objects.cached:
            self._cached(self.objects.cached.pop(), frame)

    def _refuse_again(self, reason: str, frame: FrameType) -> None:
        """Refuses what a stand-in would answer wrongly: the function is to run again from its start."""
        if self.refused is None:
            self.again = holds(tuple(self.objects.guards.values()), self.call) is None
        self._refuse(reason, frame)

    def _identity(self, table: dict[str, Any], names: Names) -> str:
        """Which builtin the code calls that tells an object's address."""
        return next((n for n in sorted(IDENTITIES & names.globals) if table.get(n, _BUILTINS.get(n)) is _BUILTINS[n]), "")

    def _asks(self, names: Names, code: CodeType) -> None:
        """Writes down which facts of a tensor's own the code may ask for: of which tensor is known when the trace is over."""
        named = names.attributes | names.strings if names.tries or names.reflects else names.attributes
        for name in named & _OWN_FACTS:
            self._own.setdefault(name, f"{code.co_filename}:{code.co_firstlineno}")
        self._tries = self._tries or names.tries or names.reflects
        self._walks = self._walks or not _WALKS.isdisjoint(names.attributes)
        if self._tries and self._walks:  # each of the tensors may be asked for what is hung on it
            self._own.setdefault("attributes", f"{code.co_filename}:{code.co_firstlineno}")

    def _cached(self, function: Any, frame: FrameType) -> None:
        """A function behind functools.lru_cache: as if it ran.  Packages are trusted to cache only what cannot change."""
        if type(function) is not FunctionType or (function, "cached") in self._frames_done or is_package(function.__code__):
            return
        self._frames_done.add((function, "cached"))
        names = names_of(function.__code__)
        self._asks(names, function.__code__)
        self.objects.follow(names, [*self._function(function), *self._globals(function.__globals__, names, frame)])

    def _method(self, owner: Any, name: str, function: FunctionType | None) -> None:
        """Guards that the class still has this function under this name; notes objects under construction as new."""
        if name in ("__init__", "__new__", "__post_init__") and id(owner) not in self.objects.known:
            self._fresh[id(owner)] = owner
        kind = owner if isinstance(owner, type) else type(owner)
        if kind is not owner and id(owner) in self.objects.known and in_class(kind, name) is not None and class_origin(kind) is not LIBRARY:
            hidden = name.startswith("__") or name in getattr(owner, "__dict__", ())  # what the object has under this name is another thing
            self.objects.classed(owner, set() if hidden else {name})
        if function is None or function.__code__ in self._nested:
            return
        if class_origin(kind) is not USER:
            return
        for searched in (kind, type(kind)) if kind is owner else (kind,):
            for base in searched.__mro__:
                if vars(base).get(name) is function:
                    first = getattr(searched, name, None) is function
                    self.objects.reach(Attr(Held(searched, searched.__qualname__), name) if first else Class(base, name), function)
                    if not first:
                        self.objects.above(searched, base, name)
                    return

    def _function(self, function: FunctionType) -> list[Any]:
        """Facts about a function that runs: its code, defaults and closed-over variables."""
        found = []
        existed = id(function) in self.objects.known or (function.__code__ not in self._nested)
        if existed:
            home = Held(function, function.__qualname__)
            self.objects.know(function, home)
            self.objects.reach_object(Attr(home, "__code__"), function.__code__)
            for name in ("__defaults__", "__kwdefaults__"):
                value = getattr(function, name)
                if value is not None:
                    found += self._defaults(Attr(home, name), value)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if existed:
                self._cells[id(cell)] = cell
            elif id(cell) not in self._cells:
                continue
            if name == "__class__":
                continue
            place = Cell(cell, f"{function.__name__}.closure.{name}")
            try:
                value = cell.cell_contents
            except ValueError:
                self.objects.guard(place, "missing", None)
                continue
            found += self.objects.reach(place, value)
        return found

    def _defaults(self, source: Source, values: Any) -> list[Any]:
        """Default values: the tuple is one and the same object until it is replaced, so only what can change inside is compared."""
        if type(values) is not tuple:
            return self.objects.reach(source, values)
        if source in self.objects.reached:
            return self.objects.reached[source] or []
        self.objects.guard(source, "is", values)
        found = [values]
        for i, value in enumerate(values):
            if type(value) not in IMMUTABLE:
                found += self.objects.reach(Item(source, i), value)
        self.objects.reached[source] = self.objects.contents[id(values)] = found
        self.objects.know(values, source)
        return found

    def _globals(self, table: dict[str, Any], names: Names, frame: FrameType) -> list[Any]:
        found: list[Any] = []
        for name in names.globals:
            value = table.get(name, _NOTHING)
            if value is _NOTHING:
                value = _BUILTINS.get(name, _NOTHING)
                if name in NAMESPACES:
                    self._refuse(f"calls {name}()", frame)
            if value is _NOTHING:
                self.objects.guard(Global(table, name), "missing", None)
                continue
            found += self.objects.reach(Global(table, name), value)
        for chain in names.chains:
            found += self._of_library(table, chain)
        for name in names.imports:
            module = sys.modules.get(name)
            if module is not None and not is_library_module(module):
                self.objects.know(module, Held(module, name))
            elif name == "random" or name.startswith("numpy.random"):
                self._refuse(f"imports {name}", frame)
            if module is not None:
                found.append(module)
        return found

    def _of_library(self, table: dict[str, Any], chain: tuple[str, ...]) -> list[Any]:
        """Guards that torch.nn.functional.gelu, math.pi or sys.argv, as the code spells it, is still this function, number or list of these."""
        value = table.get(chain[0])
        for name in chain[1:]:
            if type(value) is not ModuleType or not is_library_module(value):
                return []
            place = Global(vars(value), name)
            value = vars(value).get(name)
        if callable(value):
            self.objects.guard(place, "is", value)
        elif type(value) in (int, float, bool, str):
            self.objects.guard(place, "equals", value)
        elif type(value) is list:
            return self.objects.reach(place, value)
        return []

    def _argument(self, value: Any) -> list[Any]:
        """What of a frame's argument (or result) existed before the call: itself, or what something new holds."""
        if id(value) in self.objects.known or id(value) in self.objects.places:
            return [value]
        kind = type(value)
        if is_quiet(value):
            return []
        if kind in GETTERS:  # made by the function: the code that gets it asks for its names
            return [value]
        if isinstance(value, type):  # a class method's own class: nothing else has to lead to it
            return [value] if class_origin(value) is USER else []
        own: list[Any] = [kind] if class_origin(kind) is USER else []
        if kind in CONTAINERS or id(value) in self._fresh or isinstance(value, Iterator):
            return own + self._known_inside(value)
        return [value] if class_origin(kind) is not LIBRARY and self.objects.look_for(value) is not None else own

    def _known_inside(self, value: Any) -> list[Any]:
        """The known objects that a new container, object or iterator refers to, near by."""
        found: list[Any] = []
        level: list[Any] = [value]
        seen: set[int] = set()
        for _ in range(4):
            below: list[Any] = []
            for part in level:
                for child in gc.get_referents(part):
                    if id(child) in self.objects.known or id(child) in self.objects.places:
                        found.append(child)
                    elif id(child) not in seen and len(seen) < 500 and self._is_new_holder(child):
                        below.append(child)
                    seen.add(id(child))
            level = below
        return found

    def _is_new_holder(self, value: Any) -> bool:
        return type(value) in CONTAINERS or isinstance(value, Iterator) or id(value) in self._fresh

    def _returned(self, frame: FrameType, value: Any) -> None:
        """A value that a function gave back becomes one that its caller can ask."""
        known = self._argument(value)
        caller = frame.f_back
        for _ in range(10):
            if caller is None or caller in self._frames:
                break
            caller = caller.f_back
        if known and caller is not None and caller in self._frames:
            self.objects.follow(self._frames[caller], known)

    def _handed(self, frame: FrameType, value: Any) -> None:
        """A tensor of a module (or its name and itself) that torch's own code hands to the user's: known by its place from now on."""
        tensor = value[-1] if type(value) is tuple else value
        if frame.f_back is None or code_origin(frame.f_back.f_code) is LIBRARY or is_stand_in(tensor):
            return
        if self.find(tensor) is None:
            self._refuse("walks over tensors whose place is not known", frame)
        self._returned(frame, tensor)

    def _standard(self, frame: FrameType) -> None:
        """Code of the standard library: sees whatever it is given, and some of it has effects."""
        code = frame.f_code
        if code.co_filename.endswith(("/os.py", "\\os.py", "<frozen os>")) and not self.objects.environment(frame):
            self._refuse("reads the environment or the file system", frame)
        caller = frame.f_back
        if caller is None or caller not in self._frames:
            return
        local = frame.f_locals
        values = [local[n] for n in code.co_varnames[: code.co_argcount] if n in local]
        known = [v for v in values if id(v) in self.objects.known and class_origin(type(v)) is USER and not isinstance(v, torch.nn.Module | type)]
        if known:
            self.objects.follow(Names(reflects=True), known)

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
            source = source.base if isinstance(source, Attr | Item) else None
        code = getattr(self.function, "__code__", None)
        start = f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""
        return self._writes.get("[]") or next(iter(self._writes.values()), start)


# What runs around each operator before the watch is off, and when it is on again: twelve events that tell nothing.
_AROUND_OPERATORS = by_identity(
    code.__code__
    for code in (
        simple_registry.find_torch_dispatch_rule,
        simple_registry.SimpleLibraryRegistry.find,
        simple_registry.GenericTorchDispatchRuleHolder.find,
        Watcher.pause,
        Watcher.resume,
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
