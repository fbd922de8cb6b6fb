"""What the code of a frame can read when it starts: its globals, closed-over variables, defaults and arguments, and from there on.

In:  frames of watched code, as they start and as they give something back.
Out: guards in `objects` on everything that they could read; `refused`, where that cannot be told.
Idea: see facts.py, which owns the hook.  An object that the function made itself (`_fresh`) is no fact; what it holds may be.
"""

from __future__ import annotations

import builtins
import functools
import gc
import sys
from collections.abc import Iterator
from types import CellType, CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from thermit.capture.bytecode import IDENTITIES, NAMESPACES, Names, function_of, names_of
from thermit.capture.known import CONTAINERS, is_quiet
from thermit.capture.origin import LIBRARY, USER, class_origin, code_origin, is_library_module, is_package
from thermit.capture.reach import GETTERS, NOWHERE, Reach, in_class
from thermit.capture.signature import Attr, Call, Cell, Class, Global, Held, Item, Source, argument_roots, holds
from thermit.capture.standin import is_stand_in
from thermit.capture.values import IMMUTABLE

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
_WALKS = frozenset(("state_dict",))


class Frames:
    """What the frames of one trace read; `_writes` is where their code stores to a name."""

    def __init__(self, function: Any, call: Call) -> None:
        self.function, self.call = function, call
        self.refused: str | None = None
        self.where = ""
        self.again = False  # the refusal came before anything was done: the function can be called again from the start
        self.objects = Reach(call)
        self.find, self.place, self.lacks = self.objects.find, self.objects.place, self.objects.lacks
        self._fresh: dict[int, Any] = {}
        self._cells: dict[int, CellType] = {}
        self._frames: dict[FrameType, Names] = {}
        self._frames_done: set[Any] = set()
        self._nested: set[Any] = set()
        self._writes: dict[str, str] = {}
        self._own: dict[str, str] = {}  # facts that only a tensor itself knows and that code which ran names: where
        self._tries = self._walks = self._identifies = False
        for source, value in argument_roots(function, call):
            self.objects.learn_argument(source, value)
        self._learn_root(function)

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

    def _refuse(self, reason: str, frame: FrameType | None) -> None:
        if self.refused is not None:
            return
        self.refused = reason
        while frame is not None and code_origin(frame.f_code) is not USER:
            frame = frame.f_back
        if frame is not None:
            self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"

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
        if kind is not owner and id(owner) in self.objects.known and in_class(kind, name) is not NOWHERE and class_origin(kind) is not LIBRARY:
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
