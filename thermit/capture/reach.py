"""What code can reach: the attributes named in it, of the objects at hand, and so on from there.

In:  the names in a piece of code and the objects that it starts from.
Out: guards (through known.py) on everything that the code could have read with those names.
Idea: attributes are looked up as Python does (class, own dict, a module's tables) without running properties; the code of a property
runs as a frame of its own.
"""

from __future__ import annotations

import builtins
import contextvars
import dataclasses
import enum
import functools
import gc
import operator
import os
import sys
import weakref
from collections.abc import Iterable, Sequence
from types import (
    BuiltinMethodType,
    CodeType,
    FrameType,
    FunctionType,
    GenericAlias,
    MappingProxyType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    UnionType,
)
from typing import Any

import torch

from thermit.capture.bytecode import BY_NAME, REFLECTION, Names
from thermit.capture.known import CONTAINERS, Known, is_quiet
from thermit.capture.origin import LIBRARY, STANDARD, USER, class_origin, is_library_module
from thermit.capture.signature import Attr, Call, Class, Global, Guard, Held, Item, Source, Variable
from thermit.capture.values import ByIdentity, NotStatic

_HOOKS = ("_forward_hooks", "_forward_pre_hooks")  # backward hooks do nothing to tensors that do not require grad
_GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks")
_HOOK_TABLES = vars(sys.modules["torch.nn.modules.module"])
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: the class was made by Python code
_OF_TENSORS = frozenset(dir(torch.Tensor))
_ASK_CLASS = frozenset(("type", "isinstance"))
_ASK_BASES = frozenset(("isinstance", "issubclass"))
GETTERS = (operator.attrgetter, operator.methodcaller)
_BY_ANY_NAME = BY_NAME | REFLECTION
_ASKING = {id(function): name for name in _BY_ANY_NAME if (function := vars(builtins).get(name)) is not None}
_DISPATCHER: CodeType = functools.singledispatch(len).__code__  # type: ignore[attr-defined]
_VARIABLE = type(os.environ).__getitem__.__code__
NOWHERE = type("NOWHERE", (), {})()
_MODULE_TABLES = ("_parameters", "_buffers", "_modules")


def by_identity(codes: Iterable[CodeType]) -> dict[int, CodeType]:
    """Codes to be asked for with `id(code) in`: hashing one hashes all that stands in it, up to 2 us at each event of a trace."""
    return {id(code): code for code in codes}


WALKING_CODES = by_identity(
    getattr(torch.nn.Module, name).__code__ for name in ("named_modules", "_named_members", "named_children", "state_dict", "apply")
)


class Reach(Known):
    """Known objects, and the attributes of them that were looked up so far (`_children`: id -> name -> objects to go on from)."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self._children: dict[int, dict[str, Any]] = {}
        self.cached: list[Any] = []  # functions behind a cache: what they read counts, whether they run or not
        self._shadows: dict[int, set[str]] = {}
        self._watched = True

    def follow(self, names: Names, objects: Sequence[Any], watched: bool = True) -> None:
        """Guards every attribute named in the code of every object that the code can get at, starting from `objects`.

        Not `watched` is code of torch.nn: it asks for what is there and computes no names, and modules in a module's table of children
        are left to the code that runs on them.
        """
        attributes = names.attributes
        self._watched = watched
        if names.tries or names.reflects:
            attributes = attributes | names.strings
        hung = attributes - _OF_TENSORS if watched else set()
        stack = list(objects)
        seen: set[int] = set()
        while stack:
            value = stack.pop()
            if id(value) in self.places:
                stack += self._hung(value, names, hung)
                continue
            if id(value) in seen or is_quiet(value):
                continue
            seen.add(id(value))
            if (wider := _wider(names, value)) is not None:
                return self.follow(wider, objects, watched)
            stack += self._touch(value, names, attributes)

    def _hung(self, tensor: torch.Tensor, names: Names, hung: set[str]) -> list[Any]:
        """Attributes that somebody hung on a tensor: those named in the code, where there are such; that there are none, where it may ask."""
        found: list[Any] = []
        reflects = names.reflects and self._watched
        if not hung and not reflects:
            return found
        table = vars(tensor)
        for source in self.places[id(tensor)]:
            place = Attr(source, "__dict__")
            if reflects:
                self.table(place, table)
            for name in hung & table.keys():
                found += self.reach(Attr(source, name), table[name])
            missing = frozenset(hung - table.keys()) if names.tries else frozenset(hung & names.writes.keys() - table.keys())
            if missing:
                self.lacks(source, missing)
        return found

    def lacks(self, source: Source, names: frozenset[str]) -> None:
        """Guards that nobody hangs attributes of these names on a tensor."""
        self._absent(Attr(source, "__dict__"), names)

    def _absent(self, place: Source, names: frozenset[str]) -> None:
        before = self.guards.get((place, "absent"))
        self.guards[place, "absent"] = Guard(place, "absent", names if before is None else before.expected | names)

    def _touch(self, value: Any, names: Names, attributes: set[str]) -> list[Any]:
        kind = type(value)
        inside: list[Any] = []
        if id(value) in self.contents and id(value) not in self.flattened:
            inside = self.contents[id(value)]
        if kind in CONTAINERS:
            return [*inside, value.func] if kind is functools.partial else inside
        if kind is MethodType:
            return [value.__self__, value.__func__]
        if kind is property:
            return [f for f in (value.fget, value.fset, value.fdel) if f is not None]
        if kind in (staticmethod, classmethod):
            return [value.__func__]
        if kind in (UnionType, GenericAlias):
            return list(value.__args__)
        if kind in (BuiltinMethodType, MethodWrapperType):  # `table.get`, kept somewhere
            owner = value.__self__
            return [] if owner is None or isinstance(owner, ModuleType | type) else self.reach(Attr(self.home(value), "__self__"), owner)
        if kind is MappingProxyType:
            (behind,) = gc.get_referents(value)
            return self.reach(Held(behind, self.home(value).name), behind)
        if kind is FunctionType and value.__code__ is _DISPATCHER:
            inside = self.reach(Attr(self.home(value), "registry"), value.registry)
        if kind is functools._lru_cache_wrapper:
            self.cached.append(value.__wrapped__)
            return [value.__wrapped__]
        if kind is weakref.ref:
            if self._watched:  # holding its object would change what the user sees
                raise ByIdentity("a weak reference, which may lose its object")
            return []
        if kind is ModuleType:
            if value.__name__.startswith("numpy.random") or (value.__name__ == "numpy" and "random" in attributes):
                raise NotStatic("numpy.random")
            return [] if is_library_module(value) else self._attributes(value, vars(value), attributes, names)
        if kind is contextvars.ContextVar:
            return self.reach(Variable(value), Variable(value).read(self.call))
        origin = class_origin(value if isinstance(value, type) else kind)
        if origin is LIBRARY and kind is not FunctionType:
            return inside
        if isinstance(value, type):
            self._bases(value, names)
            return self._class_attributes(value, names, attributes)
        everything = (names.reflects and self._watched) or origin is STANDARD
        table = getattr(value, "__dict__", None)
        found = list(inside)
        if everything and table is not None and id(value) not in self.flattened and kind is not FunctionType:
            found += self.reach(Attr(self.home(value), "__dict__"), table)
        found += self._attributes(value, table or {}, attributes, names)
        if id(value) in self.flattened:
            found += self.contents[id(value)]
        if issubclass(kind, enum.Enum) and not attributes.isdisjoint(("value", "_value_")):
            found += self.reach(Attr(self.home(value), "_value_"), value._value_)
        if "__class__" in attributes or not _ASK_CLASS.isdisjoint(names.globals):
            if not isinstance(value, FunctionType) and id(value) not in self.flattened:
                self.guard(self.home(value), "type", kind)
                self._bases(kind, names)
            if "__class__" in attributes or "type" in names.globals:
                found.append(kind)
        return found

    def _attributes(self, value: Any, table: dict[str, Any], attributes: set[str], names: Names) -> list[Any]:
        """The named attributes of an object: in its own dict, in a module's tables, in its class."""
        children = self._children.setdefault(id(value), {})
        home = self.home(value)
        kind = type(value)
        module = table if isinstance(value, torch.nn.Module) else None
        flattened = id(value) in self.flattened
        shadowed = set()
        for name in attributes:
            if name in children:
                continue
            children[name] = ()
            raw = in_class(kind, name) if kind is not ModuleType else NOWHERE
            if isinstance(raw, property):
                children[name] = self.reach(Attr(Held(kind, kind.__qualname__), name), raw)
                self.classed(value, set())
            elif name in table:
                if not flattened:
                    # reading it by name might compute it anew; a `__getattribute__` in Python is a frame of its own
                    described = isinstance(in_class(kind, "__getattribute__"), FunctionType) or hasattr(type(raw), "__get__")
                    children[name] = self.reach(Item(Attr(home, "__dict__"), name) if described else Attr(home, name), table[name])
            elif module is not None and (place := next((t for t in _MODULE_TABLES if name in module.get(t, ())), None)) is not None:
                children[name] = self.reach(Item(Attr(home, place), name), module[place][name])
                shadowed.add(name)
            elif raw is NOWHERE or (module is not None and class_origin(kind) is not USER):
                if self._watched and (names.tries or name in names.writes or _computes(kind) or (kind is ModuleType and "__getattr__" in table)):
                    shadowed.add(name)
                    self._nowhere(home, kind, name, module is not None, name in names.strings)
                elif not self._watched:
                    del children[name]  # another piece of code may ask whether it is there
            else:
                children[name] = self._class_attribute(value, kind, name, raw, flattened)
                shadowed.add(name)
        if shadowed and kind is ModuleType:
            self._absent(Attr(home, "__dict__"), frozenset(shadowed))
        elif shadowed:
            self.classed(value, shadowed)
        skipped = "" if self._watched else "_modules"
        return [c for name in attributes if name != skipped and (found := children.get(name)) for c in found]

    def _nowhere(self, home: Source, kind: type, name: str, module: bool, named: bool) -> None:
        """Guards that no other place gives an attribute which the object itself does not have: a module's tables, its class."""
        for table in _MODULE_TABLES if module else ():
            self._absent(Attr(home, table), frozenset((name,)))
        if named and class_origin(kind) is USER and in_class(kind, name) is NOWHERE:
            self.guard(Class(kind, name), "missing", None)

    def classed(self, value: Any, names: set[str]) -> None:
        """Guards the class of an object, and that its own dict has none of the names that were found in the class, or nowhere."""
        home = self.home(value)
        if type(value) is not FunctionType:
            self.guard(home, "type", type(value))
        known = self._shadows.setdefault(id(value), set())
        if names <= known or not hasattr(value, "__dict__"):
            return
        known |= names
        place = Attr(home, "__dict__")
        self.guards[place, "absent"] = Guard(place, "absent", frozenset(known))

    def _class_attribute(self, value: Any, kind: type, name: str, raw: Any, flattened: bool) -> list[Any]:
        """An attribute that is found in the class.  Slots and fields of extension types are read; other descriptors are code that runs itself."""
        native = hasattr(type(raw), "__set__") and not type(raw).__flags__ & _HEAP_TYPE
        if native:
            if flattened or name in ("__dict__", "__class__"):
                return []
            try:
                current = getattr(value, name)
            except AttributeError:
                self.guard(Attr(self.home(value), name), "missing", None)
                return []
            return self.reach(Attr(self.home(value), name), current)
        if class_origin(kind) is not USER:
            return []
        described = not isinstance(raw, FunctionType) and hasattr(type(raw), "__get__")
        return self.reach(Class(kind, name) if described else Attr(Held(kind, kind.__qualname__), name), raw)

    def _class_attributes(self, kind: type, names: Names, attributes: set[str]) -> list[Any]:
        children = self._children.setdefault(id(kind), {})
        meta = type(kind)
        for name in attributes:
            if name in children:
                continue
            children[name] = ()
            raw, above = in_class(kind, name), in_class(meta, name)
            if name.startswith("__") or class_origin(kind) is not USER:
                continue
            if above is not NOWHERE and class_origin(meta) is USER:
                children[name] = self.reach(Class(meta, name), above)
            if raw is not NOWHERE:
                children[name] = [*children[name], *self.reach(Class(kind, name), raw)]
            elif above is not NOWHERE or _computes(meta) or (names.tries and name in names.strings):  # getattr(cls, "name", None)
                self.guard(Class(kind, name), "missing", None)
            else:
                del children[name]  # another piece of code may ask whether it is there
        return [c for name in attributes if (found := children.get(name)) for c in found]

    def _bases(self, kind: type, names: Names) -> None:
        """Guards what a class is derived from, where the code may ask."""
        if class_origin(kind) is USER and not _ASK_BASES.isdisjoint(names.globals):
            self.guard(Attr(Held(kind, kind.__qualname__), "__mro__"), "is", kind.__mro__)

    def above(self, kind: type, base: type, name: str) -> None:
        """Guards that super() leads to this base: no class on the way to it has the name where it had none."""
        for between in kind.__mro__[1 : kind.__mro__.index(base)]:
            if name in vars(between) or class_origin(between) is not USER:
                continue
            raw = in_class(between, name)
            self.guard(Class(between, name), "missing" if raw is NOWHERE else "is", raw)

    def module_call(self, module: torch.nn.Module) -> None:
        """Guards what PyTorch looks at when a module is called: its hooks, and where its `forward` comes from."""
        self._module_hooks(module)
        kind, own = type(module), vars(module).get("forward")
        if own is not None:
            self.reach(Item(Attr(self.home(module), "__dict__"), "forward"), own)
            self.classed(module, set())
            return
        self.classed(module, {"forward"})
        forward = in_class(kind, "forward")
        if class_origin(kind) is USER and isinstance(forward, FunctionType):
            self.reach(Attr(Held(kind, kind.__qualname__), "forward"), forward)

    def environment(self, frame: FrameType) -> bool:
        """Whether a frame of os does nothing but read one variable of the environment, which is then guarded."""
        code, names = frame.f_code, os.environ
        if code is os.getenv.__code__ or (frame.f_back is not None and frame.f_back.f_code is _VARIABLE):
            return True  # the variable is asked for below, or was
        key = frame.f_locals["key"] if code is _VARIABLE else None
        if type(key) is not str or frame.f_locals["self"] is not names:
            return False
        table = names._data
        place = Item(Attr(Held(names, "os.environ"), "_data"), names.encodekey(key))
        self.guard(place, "equals", table[place.key]) if place.key in table else self.guard(place, "missing", None)
        return True

    def walked(self, module: torch.nn.Module) -> None:
        """Guards which children, parameters and buffers there are in a module and all below it: code goes through them."""
        for below in module.modules():
            home = self.home(below)
            for name in _MODULE_TABLES:
                place, table = Attr(home, name), vars(below)[name]
                self.guard(place, "keys", list(table)) if table else self.guard(place, "empty", type(table))
                for key, value in table.items():
                    if value is None or name == "_modules":
                        self.reach(Item(place, key), value)

    def _module_hooks(self, module: torch.nn.Module) -> None:
        place = Held(module, str(self.known[id(module)][1]) if id(module) in self.known else type(module).__name__)
        if Attr(place, _HOOKS[0]) in self.reached:
            return
        for name in _HOOKS:
            self.table(Attr(place, name), getattr(module, name))
        for name in _GLOBAL_HOOKS:
            self.table(Global(_HOOK_TABLES, name), _HOOK_TABLES[name])

    def table(self, source: Source, table: dict[Any, Any]) -> None:
        if table:
            self.reach(source, table)
        elif source not in self.reached:
            self.reached[source] = None
            self.guard(source, "empty", type(table))


def _wider(names: Names, value: Any) -> Names | None:
    """The names of a piece of code with those that an object which it can reach asks for; None where these are no more.

    An operator.attrgetter or methodcaller knows its names; getattr under another name, an object's own __getattribute__ is given any.
    """
    if type(value) in GETTERS:
        make, arguments = value.__reduce__()
        asked = make.args if isinstance(make, functools.partial) else arguments
        attributes = {part for text in (asked if type(value) is operator.attrgetter else asked[:1]) for part in text.split(".")}
        return None if attributes <= names.attributes else dataclasses.replace(names, attributes=names.attributes | attributes)
    name = value.__name__ if type(value) is MethodWrapperType else _ASKING.get(id(value))
    if names.reflects or name not in _BY_ANY_NAME or name in names.globals:
        return None
    return dataclasses.replace(names, reflects=True)


def _computes(kind: type) -> bool:
    """Whether attributes that are nowhere come from a `__getattr__` of the user's."""
    return in_class(kind, "__getattr__") not in (NOWHERE, torch.nn.Module.__getattr__)


def in_class(kind: type, name: str) -> Any:
    """What stands under a name in a class or the first of its bases that has it; NOWHERE, which is not None."""
    for base in kind.__mro__:
        if name in vars(base):
            return vars(base)[name]
    return NOWHERE
