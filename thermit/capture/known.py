"""Objects whose place is known, and the guards on what was found at each place.

In:  values with their places, as the watch comes upon them.
Out: `guards`, and for an object that turns up somewhere else, where it can be read again.
Idea: constants are guarded by value, tensors by their spec, containers by what they hold, all other objects by identity.  An object
that is guarded by identity is held by the guard, so places inside it start from the object itself and stay one step long.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from thermit.capture.origin import LIBRARY, USER, class_origin
from thermit.capture.signature import Attr, Call, Cell, Class, Guard, Held, Kind, Source, argument_roots, elements, reads_call, snapshot
from thermit.capture.specs import TensorSpec, tensor_facts
from thermit.capture.values import IMMUTABLE, Leaves, NotStatic, freeze, is_value

CONTAINERS = frozenset((list, tuple, dict, set, frozenset, OrderedDict, defaultdict, deque, functools.partial))
_BASES = (list, tuple, dict, set, frozenset, deque)
_CAN_BE_EMPTY = frozenset((list, tuple, dict, set, OrderedDict))
_QUIET = IMMUTABLE | {torch.Tensor, torch.nn.Parameter}
_PARTS_LIMIT = 200  # values in a container that get a guard each, rather than one for all
_LOOK_LIMIT = 50_000  # objects looked through for one that turned up from an unseen place


class Known:
    """What is known in one trace.

    `known`: id of an object -> the object and its place.  `contents`: id of a container -> the objects and containers in it.
    `first`: id of a tensor, or of a container that can change -> its place, the first of them.  `arguments`: those among the arguments.
    `reached`: place -> the objects to go on from.
    `entry`: every tensor met, with its place: it must still be there at the end.
    `places`: id of such a tensor -> all places where it was met.  `flattened`: arguments that the key of the call compares by value.
    """

    def __init__(self, call: Call) -> None:
        self.call = call
        self.guards: dict[tuple[Source, Kind], Guard] = {}
        self.reached: dict[Source, list[Any] | None] = {}
        self.known: dict[int, tuple[Any, Source]] = {}
        self.contents: dict[int, list[Any]] = {}
        self.flattened: set[int] = set()
        self.tensors: dict[int, tuple[torch.Tensor, Source]] = {}
        self.first: dict[int, Source] = {}
        self.arguments: set[int] = set()
        self.copied: set[int] = set()  # containers of which code sees copies
        self.twice_copied = False
        self.twice: Source | None = None  # where an argument was met that stands somewhere else too: code sees a stand-in here, itself there
        self._keep: list[Any] = []  # keeps the ids in `first` their own
        self.entry: list[tuple[Source, torch.Tensor]] = []
        self.places: dict[int, list[Source]] = {}
        self.looked: dict[int, tuple[Any, Source, int]] = {}
        self._to_look: deque[tuple[Any, Source]] = deque()

    def learn_argument(self, source: Source, value: Any) -> list[Any]:
        """Arguments are compared by the key; here it is only written down where things live.  Gives the objects found."""
        kind = type(value)
        if isinstance(value, torch.Tensor):
            self._is_at(source, value)
            self.arguments.add(id(value))
        if is_quiet(value):
            return []
        parts = [] if kind is functools.partial else list(elements(source, value))
        if not parts and not is_container(value):
            self.know(value, Held(value, str(source)))
            return [value]
        self.know(value, source)
        self._is_at(source, value)
        if not is_container(value):
            self.flattened.add(id(value))
        inside = self.contents[id(value)] = [value]
        for part, child in parts:
            inside += self.learn_argument(part, child)
        return inside

    def know(self, value: Any, source: Source) -> None:
        if id(value) not in self.known:
            self.known[id(value)] = value, source
            self._to_look.append((value, source))
            module = getattr(type(value), "__thermit_module__", None)
            if module is not None:  # a twin: what runs is the module that it stands for
                self.know(module, Held(module, str(source)))

    def home(self, value: Any) -> Held:
        known = self.known.get(id(value))
        if known is None:
            self.know(value, Held(value, type(value).__name__))
            known = self.known[id(value)]
        return Held(value, str(known[1]))

    def guard(self, source: Source, kind: Kind, expected: Any) -> None:
        """Notes a guard, unless there is one of this kind at this place."""
        self.guards.setdefault((source, kind), Guard(source, kind, expected))

    def reach(self, source: Source, value: Any) -> list[Any]:
        """Guards the value found at `source`; gives the objects to go on from."""
        if source in self.reached:
            return self.reached[source] or []
        self.reached[source] = None
        kind = type(value)
        found: list[Any] = []
        if value is None or kind is bool:
            self.guard(source, "is", value)
        elif kind in IMMUTABLE:
            self.guard(source, "equals", value)
        elif isinstance(value, torch.Tensor):
            self._reach_tensor(source, value)
            found = [value]
        elif is_container(value):
            found = self._reach_container(source, value)
        elif issubclass(kind, enum.Enum):
            self.guard(source, "is", value)
            found = [value]
        elif is_value(value):
            self.guard(source, "equals", value)
        else:
            found = self.reach_object(source, value)
        self.reached[source] = found
        return found

    def reach_object(self, source: Source, value: Any) -> list[Any]:
        _refuse_impure(value)
        freeze(value, Leaves())  # raises NotStatic for what cannot be compared
        self.guard(source, "is", value)
        self.know(value, Held(value, str(source)))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):  # as an argument it is compared by what it holds
            self._is_at(source, value)
        return [value]

    def _reach_tensor(self, source: Source, tensor: torch.Tensor) -> None:
        facts = tensor_facts(tensor)
        if isinstance(facts, str):
            raise NotStatic(facts)
        self.guard(source, "tensor", TensorSpec(*facts, -1, 0))
        self._met(source, tensor)

    def _met(self, source: Source, tensor: torch.Tensor) -> None:
        self.tensors.setdefault(id(tensor), (tensor, source))
        self._is_at(source, tensor)
        self.entry.append((source, tensor))
        self.places.setdefault(id(tensor), []).append(source)

    def _is_at(self, source: Source, value: Any) -> None:
        """Guards that a tensor, or a container that can change, is one object at all of its places.  (That others are others: `apart`.)"""
        if isinstance(value, tuple | frozenset | functools.partial):
            return
        first = self.first.setdefault(id(value), source)
        if first is source:
            self._keep.append(value)
        elif first != source:
            self.guard(source, "same", first)
        if (id(value) in self.arguments or id(value) in self.copied) and not reads_call(source):
            self.twice = self.twice or source
            self.twice_copied = self.twice_copied or id(value) in self.copied

    def apart(self) -> tuple[Guard, ...]:
        """The guard that what is different objects stays different objects."""
        places = tuple(self.first.values())
        return (Guard(places[0], "apart", places),) if len(places) > 1 else ()

    def _reach_container(self, source: Source, value: Any) -> list[Any]:
        kind = type(value)
        self.know(value, source)
        self._is_at(source, value)
        if kind in _CAN_BE_EMPTY and not value:
            self.guard(source, "empty", kind)
            return [value]
        image, leaves = snapshot(value)
        for child in leaves.objects:
            _refuse_impure(child)
        if leaves.count <= _PARTS_LIMIT and (kind in (list, tuple) or (kind is dict and all(type(key) is str for key in value))):
            self._reach_parts(source, value)
        else:
            self.guard(source, "deep", image)
            self._inside(source, value, set())
            for child in leaves.objects:
                self.know(child, Held(child, f"{source}[...]"))
        found = self.contents[id(value)] = [value, *leaves.objects, *leaves.classes, *leaves.containers, *leaves.tensors]
        return found

    def _reach_parts(self, source: Source, value: Any) -> None:
        """A small list, tuple or dict: guards that can be checked one by one without Python."""
        if type(value) is dict:
            self.guard(source, "keys", list(value))
        else:
            self.guard(source, "length", (type(value), len(value)))
        for place, child in elements(source, value):
            self.reach(place, child)

    def _inside(self, source: Source, value: Any, seen: set[int]) -> None:
        """Writes down where the parts of a container live."""
        seen.add(id(value))
        for place, child in elements(source, value):
            if isinstance(child, torch.Tensor):
                self._met(place, child)
            elif type(child) not in IMMUTABLE and id(child) not in seen:
                inner = is_container(child)
                self.know(child, place if inner else Held(child, str(place)))
                if inner:
                    self._is_at(place, child)
                    self._inside(place, child, seen)

    def find(self, tensor: torch.Tensor) -> Source | None:
        """Where a tensor that the trace met can be read again at each call; None if it was made by the function, or from nowhere known."""
        known = self.tensors.get(id(tensor))
        if known is not None:
            return known[1]
        try:
            place = self.look_for(tensor)
            if place is None or isinstance(place, Held):
                return None
            self.reach(place, tensor)
        except NotStatic:
            return None
        return place

    def has_tensors(self) -> bool:
        """Whether the trace came upon a tensor that no argument is, or upon a module, whose tensors are many."""
        return bool(self.tensors) or any(issubclass(type(value), torch.nn.Module) for value, _ in self.known.values())

    def place(self, value: Any) -> Source | None:
        """Where an object that existed before the call lives, None for an object that the function made."""
        known = self.known.get(id(value))
        return known[1] if known is not None else None

    def look_for(self, target: Any) -> Source | None:
        """Searches what the known objects hold.  The way to the target is guarded, so that another object in its place is seen."""
        found = self.looked.get(id(target))
        while found is None and self._to_look and len(self.looked) < _LOOK_LIMIT:
            value, source = self._to_look.popleft()
            for place, child in _parts(source, value):
                if id(child) not in self.looked and type(child) not in IMMUTABLE:
                    self.looked[id(child)] = child, place, id(value)
                    if not isinstance(child, torch.Tensor):
                        home = place if is_container(child) else Held(child, str(place))
                        self._to_look.append((child, home))
            found = self.looked.get(id(target))
        if found is None:
            return None
        way = [found]
        while (above := self.looked.get(way[-1][2])) is not None and way[-1][2] not in self.known and len(way) < 100:
            way.append(above)
        for child, place, _ in reversed(way[1:]):
            self.reach(place, child)
        if not isinstance(target, torch.Tensor):
            self.reach(found[1], target)
        return found[1]


def argument_guards(function: Any, call: Call) -> list[Guard]:
    """What the key of a call says about arguments that are not tensors, as guards (for the native entry, which has no key).

    Raises NotStatic.
    """
    guards: list[Guard] = []
    for source, value in argument_roots(function, call):
        _argument_guards(source, value, guards)
    return guards


def _argument_guards(source: Source, value: Any, guards: list[Guard]) -> None:
    kind = type(value)
    if isinstance(value, torch.Tensor):
        return
    if value is None or kind is bool:
        guards.append(Guard(source, "is", value))
    elif kind in IMMUTABLE or is_value(value):
        guards.append(Guard(source, "equals", value))
    elif kind in (list, tuple):
        guards.append(Guard(source, "length", (kind, len(value))))
    elif kind is dict and all(type(key) is str for key in value):
        guards.append(Guard(source, "keys", list(value)))
    else:
        image, leaves = snapshot(value)
        itself = len(leaves.objects) == 1 and leaves.objects[0] is value
        guards.append(Guard(source, "is", value) if itself else Guard(source, "deep", image))
        return
    if not isinstance(value, torch.Size) and kind in (list, tuple, dict):
        for place, child in elements(source, value):
            _argument_guards(place, child, guards)


def is_quiet(value: Any) -> bool:
    """Whether nothing is read through it: a constant or a tensor (a stand-in too)."""
    return type(value) in _QUIET or isinstance(value, torch.Tensor)


def is_container(value: Any) -> bool:
    """Whether it is compared by what it holds (then its place is a path), rather than by identity."""
    return type(value) in CONTAINERS or isinstance(value, _BASES) or type(value) is np.ndarray


def _refuse_impure(value: Any) -> None:
    owner = getattr(value, "__self__", None) if type(value) is BuiltinFunctionType else None
    if owner is not None and type(owner).__module__.startswith("numpy.random"):
        raise NotStatic("numpy.random")


def _parts(source: Source, value: Any) -> Iterator[tuple[Source, Any]]:
    """What an object holds, with the place of each."""
    kind = type(value)
    if is_container(value) and kind is not functools.partial:
        yield from elements(source, value)
        if kind in CONTAINERS:
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
