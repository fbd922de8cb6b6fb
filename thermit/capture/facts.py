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

Not watched: torch's, numpy's and the standard library's own code and modules (replacing `torch.sin` between two calls is not seen);
code of other packages is.  Order of use: watch(original call) - substitute stand-ins - run - restore - `facts()`.
"""

from __future__ import annotations

import builtins
import contextvars
import functools
import gc
import io
import random
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType, CellType, FrameType, FunctionType, MemberDescriptorType, MethodType, ModuleType, TracebackType
from typing import Any

import torch

from thermit.capture.bytecode import NAMESPACES, Names, function_of, names_of
from thermit.capture.origin import LIBRARY, STANDARD, USER, class_origin, code_origin, is_library_module
from thermit.capture.signature import (
    Arg,
    Attr,
    Call,
    Cell,
    Class,
    Global,
    Guard,
    Held,
    Item,
    Source,
    Variable,
    ambient,
    argument_roots,
    elements,
    holds,
    snapshot,
)
from thermit.capture.specs import TensorSpec, tensor_facts
from thermit.capture.values import IMMUTABLE, Leaves, NotStatic, freeze, is_value

Refused = Callable[[str, str], None]

_CONTAINERS = frozenset((list, tuple, dict, set, frozenset, OrderedDict, defaultdict, deque, functools.partial))
_BASES = (list, tuple, dict, set, frozenset, deque)
_QUIET = IMMUTABLE | {torch.Tensor, torch.nn.Parameter}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_NOTHING = object()
_BUILTINS = vars(builtins)
_GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks", "_global_backward_pre_hooks")
_MODULE_TABLES = ("_parameters", "_buffers", "_modules")
_HOOK_TABLES = vars(sys.modules["torch.nn.modules.module"])
_FUNCTION_FACTS = ("__code__", "__defaults__", "__kwdefaults__")
_LOOK_LIMIT = 50_000  # objects looked through for one that turned up from an unseen place

# C functions whose result is not a matter of their arguments, or which have an effect: by module, and builtins by name.
_IMPURE_MODULES = frozenset(("time", "posix", "nt", "_io", "io", "_socket", "select", "_uuid", "_posixsubprocess", "_signal", "_random", "_tkinter"))
_IMPURE_BUILTINS = frozenset(("print", "input", "open", "breakpoint", "start_new_thread", "exec", "eval"))
_GENERATOR_READS = frozenset(("manual_seed", "seed", "set_state", "get_state", "initial_seed", "set_offset", "get_offset"))
_CLOCKS = frozenset(("now", "today", "utcnow"))
VALUE_READS = frozenset(("tolist", "numpy", "data_ptr", "__array__", "__dlpack__", "_to_dlpack", "untyped_storage", "storage"))
_READING_CODES = frozenset(getattr(torch.Tensor, name).__code__ for name in ("__array__", "__dlpack__", "storage", "__reduce_ex__", "__deepcopy__"))


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
        self.where = ""
        self._guards: dict[Source, Guard] = {}
        self._reached: dict[Source, Any] = {}
        self._known: dict[int, tuple[Any, Source]] = {}
        self._contents: dict[int, list[Any]] = {}
        self._children: dict[int, dict[str, Any]] = {}
        self._flattened: set[int] = set()
        self._shadows: dict[int, set[str]] = {}
        self._fresh: dict[int, Any] = {}
        self._cells: dict[int, CellType] = {}
        self._tensors: dict[int, tuple[torch.Tensor, Source]] = {}
        self._entry: list[tuple[Source, torch.Tensor]] = []
        self._frames: dict[FrameType, Names] = {}
        self._frames_done: set[Any] = set()
        self._nested: set[Any] = set()
        self._writes: dict[str, str] = {}
        self._looked: dict[int, tuple[Any, Source, int]] = {}
        self._to_look: deque[tuple[Any, Source]] = deque()
        self._before = ambient()
        self._chained: Any = None
        self._active = False
        self._through_tables = True
        self._arguments = self._image()
        for source, value in argument_roots(function, call):
            self._learn_argument(source, value)
        self._learn_root(function)

    # ------------------------------------------------------------------------------------------ entering and leaving
    def __enter__(self) -> Watcher:
        self._chained = sys.getprofile()
        self.resume()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None) -> None:
        self.pause()
        self._fresh.clear()  # may hold stand-ins, which must not outlive the trace
        self._frames.clear()
        self._looked.clear()
        if self._chained is not None:
            sys.setprofile(self._chained)

    def pause(self) -> None:
        """Stops watching (the machinery of the trace runs)."""
        self._active = False
        sys.setprofile(None)

    def resume(self) -> None:
        """Watches again (the user's code goes on)."""
        self._active = True
        sys.setprofile(self._profile)

    def _profile(self, frame: FrameType, event: str, arg: Any) -> None:
        if self._chained is not None:
            self._chained(frame, event, arg)
        if event == "c_call":
            self._native_call(frame, arg)
            return
        if event == "call":
            origin = code_origin(frame.f_code)
            if origin is LIBRARY:
                if frame.f_code in _READING_CODES:
                    self._refuse("reads the values of a tensor", frame)
                return
            try:
                if origin is STANDARD:
                    self._standard(frame)
                else:
                    self._enter(frame, origin)
            except NotStatic as why:
                self._refuse(f"reads {why}", frame)
        elif event == "return" and frame in self._frames:
            del self._frames[frame]
            if arg is not None and not _is_quiet(arg):
                self._returned(frame, arg)

    def _refuse(self, reason: str, frame: FrameType | None, line: int | None = None) -> None:
        if self.refused is not None:
            return
        self.refused = reason
        while frame is not None and code_origin(frame.f_code) is not USER:
            frame = frame.f_back
        if frame is not None:
            self.where = f"{frame.f_code.co_filename}:{line or frame.f_lineno}"
        if self._on_refuse is not None:
            self._on_refuse(reason, self.where)

    # ------------------------------------------------------------------------------------------ what is known from the start
    def _image(self) -> Any:
        leaves = Leaves()
        try:
            image = [freeze(list(self.call.args), leaves), freeze(self.call.kwargs, leaves)]
        except NotStatic:
            return None
        return image, [id(t) for t in leaves.tensors]

    def _learn_argument(self, source: Source, value: Any) -> list[Any]:
        """Arguments are compared by the key; here it is only written down where things live.  Gives the objects found."""
        kind = type(value)
        if _is_quiet(value):
            return []
        parts = [] if kind is functools.partial else list(elements(source, value))
        if not parts and not _is_container(value):
            self._know(value, Held(value, str(source)))
            return [value]
        self._know(value, source)
        if not _is_container(value):
            self._flattened.add(id(value))
        inside = self._contents[id(value)] = [value]
        for part, child in parts:
            inside += self._learn_argument(part, child)
        return inside

    def _learn_root(self, function: Any) -> None:
        name = getattr(function, "__name__", type(function).__name__)
        if isinstance(function, MethodType):
            self._know(function.__self__, Held(function.__self__, "self"))
            function = function.__func__
        self._know(function, Held(function, "self" if isinstance(function, torch.nn.Module) else name))
        if isinstance(function, functools.partial):
            self._reach(Held(function, name), function)

    def _know(self, value: Any, source: Source) -> None:
        if id(value) not in self._known:
            self._known[id(value)] = value, source
            self._to_look.append((value, source))

    # ------------------------------------------------------------------------------------------ frames
    def _enter(self, frame: FrameType, origin: int) -> None:
        code = frame.f_code
        names = names_of(code)
        self._frames[frame] = names
        arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)]
        local = frame.f_locals if arguments else {}
        values = [local[n] for n in arguments if n in local and not _is_quiet(local[n])]
        function = function_of(frame)
        done = (code, id(function), *map(id, values))
        if done in self._frames_done:
            return
        self._frames_done.add(done)
        self._fresh.setdefault(id(values), values)  # keeps the ids above from being used again
        self._nested |= names.nested
        for name, line in names.writes.items():
            self._writes.setdefault(name, f"{code.co_filename}:{line}")
        roots: list[Any] = []
        if arguments and arguments[0] in local:
            self._method(local[arguments[0]], code.co_name, function)
        if origin is USER:
            if function is not None:
                roots += self._function(function)
            roots += self._globals(frame.f_globals, names, frame)
        for value in values:
            roots += self._argument(value)
        self._follow(names, roots, origin is USER)

    def _method(self, owner: Any, name: str, function: FunctionType | None) -> None:
        """Guards that the class still has this function under this name; notes objects under construction as new."""
        if name in ("__init__", "__new__", "__post_init__") and id(owner) not in self._known:
            self._fresh[id(owner)] = owner
        if isinstance(owner, torch.nn.Module) and id(owner) not in self._fresh:
            self._argument(owner)
            self._module_hooks(owner)
        kind = owner if isinstance(owner, type) else type(owner)
        if kind is not owner and id(owner) in self._known and _in_class(kind, name) is not None and class_origin(kind) is not LIBRARY:
            self._classed(owner, set() if name.startswith("__") else {name})
        if function is None or function.__code__ in self._nested:
            return
        if class_origin(kind) is not USER:
            return
        for base in kind.__mro__:
            if vars(base).get(name) is function:
                first = getattr(kind, name, None) is function
                self._reach(Attr(Held(kind, kind.__qualname__), name) if first else Class(base, name), function)
                return

    def _module_hooks(self, module: torch.nn.Module) -> None:
        place = Held(module, str(self._known[id(module)][1]) if id(module) in self._known else type(module).__name__)
        if Attr(place, _HOOKS[0]) in self._reached:
            return
        for name in _HOOKS:
            self._table(Attr(place, name), getattr(module, name))
        for name in _GLOBAL_HOOKS:
            self._table(Global(_HOOK_TABLES, name), _HOOK_TABLES[name])

    def _table(self, source: Source, table: dict[Any, Any]) -> None:
        if table:
            self._reach(source, table)
        elif source not in self._reached:
            self._reached[source] = None
            self._guard(source, "empty", None)

    def _function(self, function: FunctionType) -> list[Any]:
        """Facts about a function that runs: its code, defaults and closed-over variables."""
        found = []
        existed = id(function) in self._known or (function.__code__ not in self._nested)
        if existed:
            home = Held(function, function.__qualname__)
            self._know(function, home)
            self._reached_object(Attr(home, "__code__"), function.__code__)
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
                self._guard(place, "missing", None)
                continue
            found += self._reach(place, value)
        return found

    def _defaults(self, source: Source, values: Any) -> list[Any]:
        """Default values: the tuple is one and the same object until it is replaced, so only what can change inside is compared."""
        if type(values) is not tuple:
            return self._reach(source, values)
        if source in self._reached:
            return self._reached[source] or []
        self._guard(source, "is", values)
        found = [values]
        for i, value in enumerate(values):
            if type(value) not in IMMUTABLE:
                found += self._reach(Item(source, i), value)
        self._reached[source] = self._contents[id(values)] = found
        self._know(values, source)
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
                self._guard(Global(table, name), "missing", None)
                continue
            if isinstance(value, ModuleType) and value.__name__ == "numpy" and "random" in names.attributes:
                self._refuse("draws from numpy.random", frame)
            found += self._reach(Global(table, name), value)
        for name in names.imports:
            module = sys.modules.get(name)
            if module is not None and not is_library_module(module):
                self._know(module, Held(module, name))
                found.append(module)
            elif name == "random" or name.startswith("numpy.random"):
                self._refuse(f"imports {name}", frame)
        return found

    def _argument(self, value: Any) -> list[Any]:
        """What of a frame's argument (or result) existed before the call: itself, or what something new holds."""
        if id(value) in self._known:
            return [value]
        kind = type(value)
        if _is_quiet(value):
            return []
        if kind in _CONTAINERS or id(value) in self._fresh or isinstance(value, Iterator):
            return self._known_inside(value)
        return [value] if class_origin(kind) is not LIBRARY and self._look_for(value) is not None else []

    def _known_inside(self, value: Any) -> list[Any]:
        """The known objects that a new container, object or iterator refers to, near by."""
        found: list[Any] = []
        level: list[Any] = [value]
        seen: set[int] = set()
        for _ in range(4):
            below: list[Any] = []
            for part in level:
                for child in gc.get_referents(part):
                    if id(child) in self._known:
                        found.append(child)
                    elif id(child) not in seen and len(seen) < 500 and self._is_new_holder(child):
                        below.append(child)
                    seen.add(id(child))
            level = below
        return found

    def _is_new_holder(self, value: Any) -> bool:
        return type(value) in _CONTAINERS or isinstance(value, Iterator) or id(value) in self._fresh

    def _returned(self, frame: FrameType, value: Any) -> None:
        """A value that a function gave back becomes one that its caller can ask."""
        known = self._argument(value)
        caller = frame.f_back
        for _ in range(10):
            if caller is None or caller in self._frames:
                break
            caller = caller.f_back
        if known and caller is not None and caller in self._frames:
            try:
                self._follow(self._frames[caller], known)
            except NotStatic as why:
                self._refuse(f"reads {why}", caller)

    def _standard(self, frame: FrameType) -> None:
        """Code of the standard library: sees whatever it is given, and some of it has effects."""
        code = frame.f_code
        if code.co_filename.endswith(("/os.py", "\\os.py", "<frozen os>")):
            self._refuse("reads the environment or the file system", frame)
        caller = frame.f_back
        if caller is None or caller not in self._frames:
            return
        local = frame.f_locals
        values = [local[n] for n in code.co_varnames[: code.co_argcount] if n in local]
        known = [v for v in values if id(v) in self._known and class_origin(type(v)) is USER and not isinstance(v, torch.nn.Module | type)]
        if known:
            self._follow(Names(reflects=True), known)

    def _native_call(self, frame: FrameType, function: Any) -> None:
        if code_origin(frame.f_code) is LIBRARY:
            return
        owner = getattr(function, "__self__", None)
        name = getattr(function, "__name__", "")
        if owner is None or isinstance(owner, ModuleType):
            module = function.__module__
            if module in _IMPURE_MODULES or name in _IMPURE_BUILTINS:
                self._refuse(f"calls {name}()", frame)
        elif isinstance(owner, torch.Tensor):
            if name in VALUE_READS:
                self._refuse(f"calls {name}() of a tensor", frame)
        elif isinstance(owner, random.Random | io.IOBase) or (isinstance(owner, torch.Generator) and name in _GENERATOR_READS):
            self._refuse(f"calls {name}() of {type(owner).__name__}", frame)
        elif isinstance(owner, type) and name in _CLOCKS:
            self._refuse(f"calls {owner.__name__}.{name}()", frame)

    # ------------------------------------------------------------------------------------------ what code can reach
    def _follow(self, names: Names, objects: Sequence[Any], through_tables: bool = True) -> None:
        """Guards every attribute named in the code of every object that the code can get at, starting from `objects`.

        Without `through_tables`, modules in a module's table of children are left to the code that runs on them.
        """
        attributes = names.attributes
        self._through_tables = through_tables
        if names.tries:
            attributes = attributes | names.strings
        stack = list(objects)
        seen: set[int] = set()
        while stack:
            value = stack.pop()
            if id(value) in seen or _is_quiet(value):
                continue
            seen.add(id(value))
            stack += self._touch(value, names, attributes)

    def _touch(self, value: Any, names: Names, attributes: set[str]) -> list[Any]:
        kind = type(value)
        inside: list[Any] = []
        if id(value) in self._contents and id(value) not in self._flattened:
            inside = self._contents[id(value)]
        if kind in _CONTAINERS:
            return inside
        if kind is MethodType:
            return [value.__self__, value.__func__]
        if kind is property:
            return [f for f in (value.fget, value.fset, value.fdel) if f is not None]
        if kind in (staticmethod, classmethod):
            return [value.__func__]
        if kind is ModuleType:
            return [] if is_library_module(value) else self._attributes(value, vars(value), attributes, names)
        if kind is contextvars.ContextVar:
            return self._reach(Variable(value), Variable(value).read(self.call))
        origin = class_origin(value if isinstance(value, type) else kind)
        if origin is LIBRARY and kind is not FunctionType:
            return inside
        if isinstance(value, type):
            return self._class_attributes(value, attributes)
        everything = names.reflects or origin is STANDARD
        table = getattr(value, "__dict__", None) or {}
        found = list(inside)
        if everything and id(value) not in self._flattened and kind is not FunctionType:
            found += self._reach(Attr(self._home(value), "__dict__"), table)
        found += self._attributes(value, table, attributes, names)
        if id(value) in self._flattened:
            found += self._contents[id(value)]
        if "__class__" in attributes or "type" in names.globals:
            found.append(kind)
        return found

    def _home(self, value: Any) -> Held:
        known = self._known.get(id(value))
        if known is None:
            self._know(value, Held(value, type(value).__name__))
            known = self._known[id(value)]
        return Held(value, str(known[1]))

    def _attributes(self, value: Any, table: dict[str, Any], attributes: set[str], names: Names) -> list[Any]:
        """The named attributes of an object: in its own dict, in a module's tables, in its class."""
        children = self._children.setdefault(id(value), {})
        home = self._home(value)
        kind = type(value)
        module = table if isinstance(value, torch.nn.Module) else None
        flattened = id(value) in self._flattened
        shadowed = set()
        for name in attributes:
            if name in children:
                continue
            children[name] = ()
            raw = _in_class(kind, name) if kind is not ModuleType else None
            if raw is not None and isinstance(raw, property):
                children[name] = self._reach(Attr(Held(kind, kind.__qualname__), name), raw)
            elif name in table:
                if not flattened:
                    described = raw is not None and hasattr(type(raw), "__get__")  # reading it by name might compute it anew
                    children[name] = self._reach(Item(Attr(home, "__dict__"), name) if described else Attr(home, name), table[name])
            elif module is not None and (place := next((t for t in _MODULE_TABLES if name in module.get(t, ())), None)) is not None:
                children[name] = self._reach(Item(Attr(home, place), name), module[place][name])
                shadowed.add(name)
            elif raw is None or (module is not None and class_origin(kind) is not USER):
                if names.tries or name in names.writes or (module is None and hasattr(kind, "__getattr__")):
                    shadowed.add(name)
            else:
                children[name] = self._class_attribute(value, kind, name, raw, flattened)
                shadowed.add(name)
        if shadowed and kind is not ModuleType:
            self._classed(value, shadowed)
        skipped = "" if self._through_tables else "_modules"
        return [c for name in attributes if name != skipped and (found := children.get(name)) for c in found]

    def _classed(self, value: Any, names: set[str]) -> None:
        """Guards the class of an object, and that its own dict has none of the names that were found in the class, or nowhere."""
        home = self._home(value)
        if type(value) is not FunctionType:
            self._guard(home, "type", type(value))
        known = self._shadows.setdefault(id(value), set())
        if names <= known or not hasattr(value, "__dict__"):
            return
        known |= names
        place = Attr(home, "__dict__")
        self._guards[Item(place, "absent")] = Guard(place, "absent", frozenset(known))

    def _class_attribute(self, value: Any, kind: type, name: str, raw: Any, flattened: bool) -> list[Any]:
        if isinstance(raw, MemberDescriptorType) or (hasattr(type(raw), "__set__") and not isinstance(raw, FunctionType)):
            if flattened or name in ("__dict__", "__class__"):
                return []
            try:
                current = getattr(value, name)
            except AttributeError:
                self._guard(Attr(self._home(value), name), "missing", None)
                return []
            return self._reach(Attr(self._home(value), name), current)
        place = Held(kind, kind.__qualname__)
        if isinstance(raw, classmethod | staticmethod) or (hasattr(type(raw), "__get__") and not isinstance(raw, FunctionType)):
            return self._reach(Class(kind, name), raw) if class_origin(kind) is USER else []
        return self._reach(Attr(place, name), raw) if class_origin(kind) is USER else []

    def _class_attributes(self, kind: type, attributes: set[str]) -> list[Any]:
        children = self._children.setdefault(id(kind), {})
        for name in attributes:
            if name in children:
                continue
            children[name] = ()
            raw = _in_class(kind, name)
            if raw is None or name.startswith("__"):
                continue
            if class_origin(kind) is USER:
                children[name] = self._reach(Class(kind, name), raw)
        return [c for name in attributes if (found := children.get(name)) for c in found]

    # ------------------------------------------------------------------------------------------ values become guards
    def _guard(self, source: Source, kind: Any, expected: Any) -> None:
        self._guards.setdefault(source, Guard(source, kind, expected))

    def _reach(self, source: Source, value: Any) -> list[Any]:
        """Guards the value found at `source`; gives the objects to go on from."""
        if source in self._reached:
            return self._reached[source] or []
        self._reached[source] = None
        kind = type(value)
        found: list[Any] = []
        if value is None or kind is bool:
            self._guard(source, "is", value)
        elif kind in IMMUTABLE:
            self._guard(source, "equals", value)
        elif isinstance(value, torch.Tensor):
            self._reach_tensor(source, value)
        elif _is_container(value):
            found = self._reach_container(source, value)
        elif is_value(value):
            self._guard(source, "equals", value)
        else:
            found = self._reached_object(source, value)
        self._reached[source] = found
        return found

    def _reached_object(self, source: Source, value: Any) -> list[Any]:
        _refuse_impure(value)
        freeze(value, Leaves())  # raises NotStatic for what cannot be compared
        self._guard(source, "is", value)
        self._know(value, Held(value, str(source)))
        return [value]

    def _reach_tensor(self, source: Source, tensor: torch.Tensor) -> None:
        facts = tensor_facts(tensor)
        if isinstance(facts, str):
            raise NotStatic(facts)
        self._guard(source, "tensor", TensorSpec(*facts, -1, 0))
        self._tensors.setdefault(id(tensor), (tensor, source))
        self._entry.append((source, tensor))

    def _reach_container(self, source: Source, value: Any) -> list[Any]:
        image, leaves = snapshot(value)
        self._guard(source, "deep", image)
        self._know(value, source)
        self._inside(source, value, set())
        for child in leaves.objects:
            _refuse_impure(child)
            self._know(child, Held(child, f"{source}[...]"))
        found = self._contents[id(value)] = [value, *leaves.objects, *leaves.containers]
        return found

    def _inside(self, source: Source, value: Any, seen: set[int]) -> None:
        """Writes down where the parts of a container live."""
        seen.add(id(value))
        for place, child in elements(source, value):
            if isinstance(child, torch.Tensor):
                self._tensors.setdefault(id(child), (child, place))
                self._entry.append((place, child))
            elif type(child) not in IMMUTABLE and id(child) not in seen:
                inner = _is_container(child)
                self._know(child, place if inner else Held(child, str(place)))
                if inner:
                    self._inside(place, child, seen)

    # ------------------------------------------------------------------------------------------ looking for what turned up
    def find(self, tensor: torch.Tensor) -> Source | None:
        """Where a tensor that the trace met can be read again at each call; None if it was made by the function, or from nowhere known."""
        known = self._tensors.get(id(tensor))
        if known is not None:
            return known[1]
        try:
            place = self._look_for(tensor)
            if place is None or isinstance(place, Held):
                return None
            self._reach(place, tensor)
        except NotStatic:
            return None
        return place

    def place(self, value: Any) -> Source | None:
        """Where an object that existed before the call lives, None for an object that the function made."""
        known = self._known.get(id(value))
        return known[1] if known is not None else None

    def _look_for(self, target: Any) -> Source | None:
        """Searches what the known objects hold.  The way to the target is guarded, so that another object in its place is seen."""
        found = self._looked.get(id(target))
        while found is None and self._to_look and len(self._looked) < _LOOK_LIMIT:
            value, source = self._to_look.popleft()
            for place, child in _parts(source, value):
                if id(child) not in self._looked and type(child) not in IMMUTABLE:
                    self._looked[id(child)] = child, place, id(value)
                    if not isinstance(child, torch.Tensor):
                        home = place if _is_container(child) else Held(child, str(place))
                        self._to_look.append((child, home))
            found = self._looked.get(id(target))
        if found is None:
            return None
        way = [found]
        while (above := self._looked.get(way[-1][2])) is not None and way[-1][2] not in self._known and len(way) < 100:
            way.append(above)
        for child, place, _ in reversed(way[1:]):
            self._reach(place, child)
        if not isinstance(target, torch.Tensor):
            self._reach(found[1], target)
        return found[1]

    # ------------------------------------------------------------------------------------------ the end
    def facts(self) -> Facts:
        """The guards; refused if the function wrote state, which shows as a guard that no longer holds."""
        guards = tuple(self._guards.values())
        if self.refused is None:
            self._check_unchanged(guards)
        return Facts(guards, self.refused, self.where)

    def _check_unchanged(self, guards: tuple[Guard, ...]) -> None:
        failed = holds(guards, self.call)
        changed = None if failed is None else failed.source
        if failed is not None and failed.kind == "absent":
            present = [name for name in failed.expected if name in failed.source.read(self.call)]
            assert isinstance(failed.source, Attr)
            changed = Attr(failed.source.base, present[0])
        if changed is None:
            changed = next((s for s, tensor in self._entry if not _still(s, self.call, tensor)), None)
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


def _is_quiet(value: Any) -> bool:
    """Whether nothing is read through it: a constant or a tensor (a stand-in too)."""
    return type(value) in _QUIET or isinstance(value, torch.Tensor)


def _is_container(value: Any) -> bool:
    """Whether it is compared by what it holds (then its place is a path), rather than by identity."""
    return type(value) in _CONTAINERS or isinstance(value, _BASES)


def _refuse_impure(value: Any) -> None:
    owner = getattr(value, "__self__", None) if type(value) is BuiltinFunctionType else None
    if isinstance(value, functools._lru_cache_wrapper):
        raise NotStatic(f"{value.__qualname__}, whose cache remembers other calls")
    if owner is not None and type(owner).__module__.startswith("numpy.random"):
        raise NotStatic("numpy.random")


def _in_class(kind: type, name: str) -> Any:
    for base in kind.__mro__:
        if name in vars(base):
            return vars(base)[name]
    return None


def _parts(source: Source, value: Any) -> Iterator[tuple[Source, Any]]:
    """What an object holds, with the place of each."""
    kind = type(value)
    if _is_container(value) and kind is not functools.partial:
        yield from elements(source, value)
        if kind in _CONTAINERS:
            return
    if kind is functools.partial:
        yield Attr(source, "args"), value.args
        yield Attr(source, "keywords"), value.keywords
        yield Attr(source, "func"), value.func
    elif kind is MethodType:
        yield Attr(source, "__self__"), value.__self__
    elif kind is FunctionType:
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            try:
                yield Cell(cell, f"{value.__name__}.closure.{name}"), cell.cell_contents
            except ValueError:
                continue
        if value.__defaults__:
            yield Attr(source, "__defaults__"), value.__defaults__
    elif isinstance(value, ModuleType):
        return
    elif isinstance(value, type):
        if class_origin(value) is USER:
            for name, child in list(vars(value).items()):
                yield Class(value, name), child
        return
    elif class_origin(kind) is not LIBRARY:
        for base in kind.__mro__:
            for name, raw in list(vars(base).items()):
                if isinstance(raw, MemberDescriptorType) and hasattr(value, name):
                    yield Attr(source, name), getattr(value, name)
    for name, child in list(getattr(value, "__dict__", {}).items()):
        yield Attr(source, name), child
