"""Stand-ins into arguments, tensors out of results: containers taken apart and put together.

In:  the arguments of a call, with a stand-in for each tensor; the value that the traced function returned.
Out: `Substitution`, the same arguments with stand-ins in place of tensors; `Template`, which builds the result of later calls.
Idea: the function works on copies of the containers that hold tensors; what it changed in them, or stored of them, is carried over to
the caller's own afterwards.  Invariant: the caller's containers never hold a stand-in of an argument.
"""

from __future__ import annotations

import abc
import copy
import dataclasses
import functools
import gc
import operator
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from types import CellType, TracebackType
from typing import Any

import torch
from torch.utils._pytree import SUPPORTED_NODES

from thermit.capture.signature import Call, Source
from thermit.capture.values import IMMUTABLE, Leaves, NotStatic, freeze
from thermit.records import dataclass

_MAPPINGS = (dict, OrderedDict, defaultdict)


class Substitution:
    """`args` and `kwargs` of a call with every tensor replaced by `stand_ins[id(tensor)]`.

    Containers that hold tensors are copied, so that other threads never meet a stand-in; all others are passed as they are.  Use it as a
    context: on leaving, `restore` carries over to the containers of the caller what the function changed in their copies.
    """

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any], stand_ins: Mapping[int, Any]) -> None:
        self._stand_ins = stand_ins
        self._originals: dict[int, Any] = {}  # id of what stands in for something -> the thing itself
        self._made: list[Any] = []  # keeps these ids their own
        self._copies: dict[int, tuple[Any, Any, list[Any]]] = {}  # id of a container -> itself, its copy, what the copy was filled with
        self.args = tuple([self._replace(a) for a in args])
        self.kwargs = {name: self._replace(a) for name, a in kwargs.items()}
        self._before = self._counts()

    def __enter__(self) -> Call:
        return Call(self.args, self.kwargs)

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None) -> None:
        self.restore()

    @property
    def copies(self) -> list[tuple[Any, Any]]:
        """The caller's containers with the copies that the function works on."""
        return [(container, copied) for container, copied, _ in self._copies.values()]

    @property
    def is_changed(self) -> bool:
        """Whether the function has changed a container of the call."""
        return any(not _same(_flat(copied), filled) for _, copied, filled in self._copies.values())

    def restore(self) -> None:
        """Writes changes back, with tensors in place of their stand-ins, and lets the stand-ins go."""
        for container, copied, filled in self._copies.values():
            if not _same(_flat(copied), filled):
                _become(container, copied, self._original)
        counts = self._counts()
        for (container, copied), before, after in zip(self.copies, self._before, counts, strict=True):
            if after > before:  # the function stored it: the caller's own is to be found there
                for holder in gc.get_referrers(copied):
                    exchange(holder, copied, container)
            _refill(copied, self._original)
        self._made.clear()
        self._originals.clear()
        self._copies.clear()

    def given_back(self, value: Any) -> Any:
        """The function's result with the caller's own containers in place of their copies."""
        own = {id(copied): container for container, copied in self.copies}
        return _owned(value, own, set()) if own else value

    def _counts(self) -> list[int]:
        return [sys.getrefcount(copied) for _, copied, _ in self._copies.values()]

    def _original(self, value: Any) -> Any:
        return self._originals.get(id(value), value)

    def _replace(self, value: Any) -> Any:
        new = self._substitute(value)
        if new is not value:
            self._originals[id(new)] = value
            self._made.append(new)
        return new

    def _substitute(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._stand_ins.get(id(value), value)
        kind = type(value)
        if kind in IMMUTABLE and kind is not slice:
            return value
        if id(value) in self._copies:
            return self._copies[id(value)][1]
        if kind is tuple or (isinstance(value, tuple) and hasattr(kind, "_fields")):
            parts = [self._replace(v) for v in value]
            return value if all(map(operator.is_, parts, value)) else tuple.__new__(kind, parts)
        if kind is slice:
            parts = [self._replace(v) for v in (value.start, value.stop, value.step)]
            return value if all(map(operator.is_, parts, (value.start, value.stop, value.step))) else slice(*parts)
        if kind is functools.partial:
            return functools.partial(self._replace(value.func), *self._replace(value.args), **self._replace(dict(value.keywords)))
        if _is_refillable(value):
            copied = copy.copy(value)
            _refill(copied, self._replace)
            filled = _flat(copied)
            if all(map(operator.is_, filled, _flat(value))):
                return value  # no tensor in it: the function gets the very container
            self._copies[id(value)] = value, copied, filled
            return copied
        if kind in SUPPORTED_NODES:
            node = SUPPORTED_NODES[kind]
            children, context = node.flatten_fn(value)
            return node.unflatten_fn([self._replace(c) for c in children], context)
        return value


def _owned(value: Any, own: Mapping[int, Any], seen: set[int]) -> Any:
    if id(value) in own:
        return own[id(value)]
    if type(value) is tuple or (isinstance(value, tuple) and hasattr(value, "_fields")):
        parts = [_owned(v, own, seen) for v in value]
        return value if all(map(operator.is_, parts, value)) else tuple.__new__(type(value), parts)
    if type(value) in (list, dict) and id(value) not in seen:
        seen.add(id(value))
        for key, part in list(enumerate(value) if type(value) is list else value.items()):
            owned = _owned(part, own, seen)
            if owned is not part:
                value[key] = owned
    return value


def _same(now: list[Any], before: list[Any]) -> bool:
    return len(now) == len(before) and all(map(operator.is_, now, before))


def _flat(container: Any) -> list[Any]:
    """What a container holds, keys of a dict included, in order."""
    if isinstance(container, dict):
        return [part for pair in dict.items(container) for part in pair]
    if isinstance(container, list | deque):
        return list(container)
    fields = [f.name for f in dataclasses.fields(container) if hasattr(container, f.name)]
    own = getattr(container, "__dict__", {})
    return [getattr(container, name) for name in fields] + [part for name in own if name not in fields for part in (name, own[name])]


def _become(container: Any, copied: Any, original: Callable[[Any], Any]) -> None:
    """The container gets what the copy holds now."""
    if isinstance(container, dict):
        pairs = [(key, original(value)) for key, value in dict.items(copied)]
        base: Any = OrderedDict if isinstance(container, OrderedDict) else dict
        base.clear(container)
        for key, value in pairs:
            base.__setitem__(container, key, value)
    elif isinstance(container, list):
        list.__setitem__(container, slice(None), [original(v) for v in copied])
    elif isinstance(container, deque):
        parts = [original(v) for v in copied]
        container.clear()
        container.extend(parts)
    else:
        names = [f.name for f in dataclasses.fields(container)]
        for name in dict.fromkeys([*names, *getattr(container, "__dict__", ()), *getattr(copied, "__dict__", ())]):
            if hasattr(copied, name):
                object.__setattr__(container, name, original(getattr(copied, name)))
            elif hasattr(container, name):
                object.__delattr__(container, name)


def exchange(holder: Any, old: Any, new: Any) -> None:
    """Puts `new` where `holder` has `old`: a dict (of an object, of globals), a list, a closed-over variable."""
    if isinstance(holder, dict):
        for key, value in list(dict.items(holder)):
            if value is old:
                dict.__setitem__(holder, key, new)
    elif isinstance(holder, list):
        for i, value in enumerate(holder):
            if value is old:
                list.__setitem__(holder, i, new)
    elif isinstance(holder, CellType) and holder.cell_contents is old:
        holder.cell_contents = new
    elif type(getattr(holder, "__dict__", None)) is dict:  # an object whose dict did not exist until it was asked for
        exchange(holder.__dict__, old, new)


def _is_refillable(value: Any) -> bool:
    kind = type(value)
    plain_dataclass = dataclasses.is_dataclass(value) and kind not in SUPPORTED_NODES and not isinstance(value, type | torch.nn.Module)
    derived = isinstance(value, list | deque | dict) and kind not in SUPPORTED_NODES
    return kind in (list, deque, *_MAPPINGS) or derived or plain_dataclass


def _refill(container: Any, replace: Callable[[Any], Any]) -> None:
    """Every element replaced; an element that stays the same is not written."""
    write: Callable[[Any, Any, Any], None]
    if isinstance(container, dict):
        parts: list[tuple[Any, Any]] = list(dict.items(container))
        write = OrderedDict.__setitem__ if isinstance(container, OrderedDict) else dict.__setitem__
    elif isinstance(container, list | deque):
        parts = list(enumerate(container))
        write = list.__setitem__ if isinstance(container, list) else deque.__setitem__
    else:
        parts = [(f.name, getattr(container, f.name)) for f in dataclasses.fields(container) if hasattr(container, f.name)]
        write = object.__setattr__
    for key, old in parts:
        new = replace(old)
        if new is not old:
            write(container, key, new)


# ---------------------------------------------------------------------------------------------- results
Build = Callable[[Sequence[torch.Tensor], Call, dict[int, Any]], Any]


@dataclass(frozen=True, slots=True)
class Template:
    """Builds the result of a call from its tensors: same container types, fresh containers, same sharing among them.

    `kind` is what the native entry can build without Python: "none" (None), "tensor" (the only tensor), "tuple" or "list" (all tensors
    in order), else "".  `sources`: where it reads objects of the caller's; `moved`: id of one of them -> where to read instead.
    """

    kind: str
    build_node: Build
    sources: tuple[Source, ...] = ()
    moved: Mapping[int, Source] = field(default_factory=dict)

    def build(self, tensors: Sequence[torch.Tensor], call: Call) -> Any:
        """The result.  `tensors` in the order in which `result_template` numbered them."""
        return self.build_node(tensors, call, dict(self.moved))


class _Builder:
    def __init__(self, is_leaf: Callable[[Any], bool], place: Callable[[Any], Source | None], made: Callable[[Any], bool]) -> None:
        self.is_leaf, self.place, self.made = is_leaf, place, made
        self.leaves: list[Any] = []
        self.numbers: dict[int, int] = {}
        self.nodes: dict[int, Build] = {}
        self.keep: list[Any] = []
        self.open: set[int] = set()
        self.sources: list[Source] = []

    def node(self, value: Any) -> Build:
        kind = type(value)
        if self.is_leaf(value):
            return self._leaf(value)
        if kind in IMMUTABLE and kind is not slice:
            return lambda tensors, call, made: value
        known = self.nodes.get(id(value))
        if known is None:
            if id(value) in self.open:
                raise NotStatic(f"the result is a {kind.__qualname__} that holds itself")
            self.keep.append(value)
            self.open.add(id(value))
            known = self.nodes[id(value)] = self._once(id(value), self._make(value, kind))
        return known

    def _leaf(self, value: Any) -> Build:
        number = self.numbers.setdefault(id(value), len(self.leaves))
        if number == len(self.leaves):
            self.leaves.append(value)
        return lambda tensors, call, made: tensors[number]

    def _once(self, key: int, make: Build) -> Build:
        """An object that stands in two places of the result is built once."""

        def build(tensors: Sequence[torch.Tensor], call: Call, made: dict[int, Any]) -> Any:
            if key not in made:
                made[key] = make(tensors, call, made)
            return made[key]

        return build

    def _make(self, value: Any, kind: type) -> Build:
        source = self.place(value)
        if source is not None:
            self.sources.append(source)
            return lambda tensors, call, made: made.get(id(source), source).read(call)
        if kind in (list, tuple, set, frozenset):
            return self._sequence(kind, value)
        if kind is slice:
            parts = [self.node(v) for v in (value.start, value.stop, value.step)]
            return lambda tensors, call, made: slice(*[p(tensors, call, made) for p in parts])
        if kind in _MAPPINGS:
            return self._mapping(kind, value)
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            parts = [self.node(v) for v in value]
            return lambda tensors, call, made: tuple.__new__(kind, [p(tensors, call, made) for p in parts])
        if isinstance(value, tuple) and hasattr(kind, "n_sequence_fields"):
            return self._sequence(kind, value)
        if isinstance(value, dict) and (self.made(value) or kind in SUPPORTED_NODES) and (base := _plain_dict(kind)) is not None:
            return self._derived(kind, base, value)
        if kind in SUPPORTED_NODES:
            node = SUPPORTED_NODES[kind]
            children, context = node.flatten_fn(value)
            parts = [self.node(c) for c in children]
            return lambda tensors, call, made: node.unflatten_fn([p(tensors, call, made) for p in parts], context)
        if dataclasses.is_dataclass(value) and not isinstance(value, type | torch.nn.Module):
            return self._dataclass(kind, value)
        if self.made(value) and _is_plain(kind):
            return self._object(kind, value)
        return self._constant(value)

    def _sequence(self, kind: type, value: Any) -> Build:
        parts = [self.node(v) for v in value]
        return lambda tensors, call, made: kind([p(tensors, call, made) for p in parts])

    def _mapping(self, kind: type, value: Any) -> Build:
        keys = list(value)
        parts = [self.node(v) for v in value.values()]
        factory = value.default_factory if kind is defaultdict else None

        def build(tensors: Sequence[torch.Tensor], call: Call, made: dict[int, Any]) -> Any:
            pairs = [(k, p(tensors, call, made)) for k, p in zip(keys, parts, strict=True)]
            return defaultdict(factory, pairs) if kind is defaultdict else kind(pairs)

        return build

    def _dataclass(self, kind: type, value: Any) -> Build:
        names = [f.name for f in dataclasses.fields(value)]
        names += [n for n in getattr(value, "__dict__", ()) if n not in names]
        parts = [(n, self.node(getattr(value, n))) for n in names if hasattr(value, n)]
        items = [(k, self.node(v)) for k, v in dict.items(value)] if isinstance(value, dict) else []
        make, put = (OrderedDict.__new__, OrderedDict.__setitem__) if isinstance(value, OrderedDict) else (dict.__new__, dict.__setitem__)

        def build(tensors: Sequence[torch.Tensor], call: Call, made: dict[int, Any]) -> Any:
            new: Any = make(kind) if issubclass(kind, dict) else object.__new__(kind)
            for key, part in items:  # as the outputs of models have them: also a dict of what is there
                put(new, key, part(tensors, call, made))
            for name, part in parts:
                object.__setattr__(new, name, part(tensors, call, made))
            return new

        return build

    def _object(self, kind: type, value: Any) -> Build:
        """An object whose whole state is in its dict."""
        parts = [(name, self.node(part)) for name, part in vars(value).items()]

        def build(tensors: Sequence[torch.Tensor], call: Call, made: dict[int, Any]) -> Any:
            new: Any = object.__new__(kind)
            own = new.__dict__
            for name, part in parts:
                own[name] = part(tensors, call, made)
            return new

        return build

    def _derived(self, kind: type, base: Any, value: Any) -> Build:
        """An object of a class derived from dict: what it holds and its attributes (running the class's code would take longer)."""
        items = [(key, self.node(part)) for key, part in dict.items(value)]
        attributes = [(name, self.node(part)) for name, part in vars(value).items()]
        write = base.__setitem__

        def build(tensors: Sequence[torch.Tensor], call: Call, made: dict[int, Any]) -> Any:
            new = base.__new__(kind)
            for key, part in items:
                write(new, key, part(tensors, call, made))
            own = new.__dict__
            for name, part in attributes:
                own[name] = part(tensors, call, made)
            return new

        return build

    def _constant(self, value: Any) -> Build:
        leaves = Leaves()
        freeze(value, leaves)
        if leaves.tensors or leaves.objects or leaves.containers:
            raise NotStatic(f"the result holds a {type(value).__qualname__}, which each call of the function makes anew")
        return lambda tensors, call, made: value


def _is_plain(kind: Any) -> bool:
    """Whether objects of this class can be made without running its code: all their state is in a dict, and nothing waits for their end."""
    ordinary = type(kind) in (type, abc.ABCMeta) and kind.__new__ is object.__new__ and not issubclass(kind, torch.nn.Module)
    return ordinary and kind.__basicsize__ == _Plain.__basicsize__ and kind.__dictoffset__ == _Plain.__dictoffset__ and not hasattr(kind, "__del__")


def _plain_dict(kind: Any) -> Any:
    """dict or OrderedDict, where objects of this class derived from it have no state but what they hold and a dict of attributes; else None."""
    base = OrderedDict if issubclass(kind, OrderedDict) else dict
    like = _PlainOrderedDict if base is OrderedDict else _PlainDict
    same = kind.__basicsize__ == like.__basicsize__ and kind.__dictoffset__ == like.__dictoffset__ and kind.__new__ is like.__new__
    return base if same and kind is not base and not hasattr(kind, "__del__") else None


class _Plain:
    pass


class _PlainDict(dict[Any, Any]):
    pass


class _PlainOrderedDict(OrderedDict[Any, Any]):
    pass


def _nothing_made(value: Any) -> bool:
    return False


def result_template(
    value: Any, is_leaf: Callable[[Any], bool], place: Callable[[Any], Source | None], made: Callable[[Any], bool] = _nothing_made
) -> tuple[Template, list[Any]]:
    """How to build results like `value`, and its leaves (each object once) in the order in which `Template.build` wants their tensors.

    `place(object)` tells where an object that existed before the call lives (it is then read from there, so it stays the same object);
    None for what the function made.  `made(object)` tells of an object of a class whether the function has made it.  Raises NotStatic for
    a result that cannot be built again.
    """
    builder = _Builder(is_leaf, place, made)
    node = builder.node(value)
    kind = ""
    if value is None:
        kind = "none"
    elif is_leaf(value):
        kind = "tensor"
    elif type(value) in (tuple, list) and place(value) is None and all(map(is_leaf, value)) and len(builder.leaves) == len(value):
        kind = type(value).__name__
    return Template(kind, node, tuple(builder.sources)), builder.leaves
