"""Values as hashable images: what of an argument, a container or a constant code can see.

In:  any Python value.
Out: `freeze` gives an image; equal images are values that code cannot tell apart, up to the tensors and objects met on the way.
Idea: one walk serves the key of a call, the guard of a container and the comparison of a constant.  Floats count by their bits,
ints and bools are told apart, dicts and sets keep their order, objects of classes count by identity.
"""

from __future__ import annotations

import array
import collections
import ctypes
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import io
import mmap
import pathlib
import random
import re
import struct
import threading
import uuid
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from types import (
    BuiltinFunctionType,
    BuiltinMethodType,
    CellType,
    ClassMethodDescriptorType,
    CodeType,
    FunctionType,
    GenericAlias,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    SimpleNamespace,
    UnionType,
    WrapperDescriptorType,
)
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import SUPPORTED_NODES


class NotStatic(Exception):
    """A value that can be neither a tensor leaf nor a static fact; the message says why."""


class ByIdentity(NotStatic):
    """A container in which objects are looked up by identity: a stand-in is not found there."""


_pack = struct.Struct("<d").pack
_pack2 = struct.Struct("<dd").pack
TENSOR = type("TENSOR", (), {"__repr__": lambda self: "tensor"})()  # stands for a tensor leaf in a frozen value


class Same:
    """A hashable that is equal for one and the same object only, without keeping the object alive where that is possible."""

    __slots__ = ("_identity", "_ref")

    def __init__(self, value: Any) -> None:
        self._identity = id(value)
        try:
            self._ref: Callable[[], Any] = weakref.ref(value)
        except TypeError:
            self._ref = lambda: value

    @property
    def value(self) -> Any:
        """The object; None if it is gone."""
        return self._ref()

    def __hash__(self) -> int:
        return self._identity

    def __eq__(self, other: object) -> bool:
        if type(other) is not Same or other._identity != self._identity:
            return False
        value = self._ref()
        return value is not None and other._ref() is value

    def __repr__(self) -> str:
        value = self._ref()
        return f"the {type(value).__name__} at {self._identity:#x}" if value is not None else "an object that is gone"


class Leaves:
    """What `freeze` met on the way: tensors, objects kept by identity, classes, mutable containers, and how many values in all.

    `arrays`: whether small arrays of numpy are compared by their contents (a constant of the program), or refused (an argument).
    """

    __slots__ = ("arrays", "classes", "containers", "count", "depth", "limit", "objects", "tensors")

    def __init__(self, limit: int = 100_000, arrays: bool = False) -> None:
        self.arrays = arrays
        self.tensors: list[torch.Tensor] = []
        self.objects: list[Any] = []
        self.containers: list[Any] = []
        self.classes: list[type] = []
        self.count, self.limit, self.depth = 0, limit, 0


Freeze = Callable[[Any, Leaves], Any]


def freeze(value: Any, leaves: Leaves) -> Any:
    """A hashable image of the value: equal images are values that code cannot tell apart (up to the tensors and objects in `leaves`).

    Raises NotStatic for what is neither a tensor, nor a value, nor a container of those, nor an object compared by identity.
    """
    how = _FREEZE.get(type(value))
    return how(value, leaves) if how is not None else _freeze_other(value, leaves)


def _itself(value: Any, leaves: Leaves) -> Any:
    return value


def _class(value: type, leaves: Leaves) -> Any:
    leaves.classes.append(value)
    return value


def _tensor(value: torch.Tensor, leaves: Leaves) -> Any:
    leaves.tensors.append(value)
    return TENSOR


def _number(value: Any, leaves: Leaves) -> Any:
    return type(value), value


def _parts(kind: Any, head: Any, values: Iterable[Any], size: int, leaves: Leaves) -> Any:
    leaves.count += size
    if leaves.count > leaves.limit:
        raise NotStatic(f"a {kind.__name__} with too many values to compare at each call")
    if leaves.depth > 60:
        raise NotStatic(f"a {kind.__name__} that is nested too deep")
    leaves.depth += 1
    try:
        return kind, head, tuple([freeze(v, leaves) for v in values])
    finally:
        leaves.depth -= 1


def _sequence(value: Any, leaves: Leaves) -> Any:
    if type(value) is not tuple:
        leaves.containers.append(value)
    return _parts(type(value), None, value, len(value), leaves)


def _dict(value: dict[Any, Any], leaves: Leaves) -> Any:
    leaves.containers.append(value)
    tensors = len(leaves.tensors)
    head = tuple([k if type(k) is str else freeze(k, leaves) for k in value])
    if len(leaves.tensors) > tensors:
        raise ByIdentity("a dict whose keys are tensors")
    return _parts(type(value), head, value.values(), len(value), leaves)


def _defaultdict(value: Any, leaves: Leaves) -> Any:
    return freeze(value.default_factory, leaves), _dict(value, leaves)


def _set(value: Any, leaves: Leaves) -> Any:
    if type(value) is set:
        leaves.containers.append(value)
    tensors = len(leaves.tensors)
    parts = _parts(type(value), None, list(value), len(value), leaves)  # in order of iteration, which code can see
    if len(leaves.tensors) > tensors:
        raise ByIdentity("a set of tensors")
    return parts


def _deque(value: Any, leaves: Leaves) -> Any:
    leaves.containers.append(value)
    return _parts(type(value), value.maxlen, value, len(value), leaves)


def _slice(value: slice | range, leaves: Leaves) -> Any:
    return _parts(type(value), None, (value.start, value.stop, value.step), 3, leaves)


def _method(value: Any, leaves: Leaves) -> Any:
    return MethodType, freeze(value.__self__, leaves), freeze(value.__func__, leaves)


def _partial(value: functools.partial[Any], leaves: Leaves) -> Any:
    return _parts(functools.partial, freeze(value.func, leaves), (value.args, value.keywords), 2, leaves)


def _object(value: Any, leaves: Leaves) -> Any:
    leaves.objects.append(value)
    return Same(value)


def _builtin(value: Any, leaves: Leaves) -> Any:
    owner = value.__self__
    if owner is None or isinstance(owner, ModuleType | type):
        return value
    return type(value), freeze(owner, leaves), value.__name__


def _dataclass(value: Any, leaves: Leaves) -> Any:
    kind = type(value)
    names = _field_names(kind)  # type: ignore[arg-type]
    own = getattr(value, "__dict__", None)
    if own is not None and len(own) > len(names):  # more than its fields: an object like any other
        return _object(value, leaves)
    leaves.containers.append(value)
    return _parts(kind, None, [getattr(value, name, ABSENT) for name in names], len(names), leaves)


def _array(value: Any, leaves: Leaves) -> Any:
    if not leaves.arrays or value.dtype.hasobject or value.nbytes > 4096:
        return _refuse(value, leaves)
    leaves.containers.append(value)
    return np.ndarray, value.dtype.str, value.shape, value.tobytes()


def _derived(value: Any, leaves: Leaves) -> Any:
    """An instance of a class derived from a container: what it holds, in the container's own order, and its attributes."""
    kind = type(value)
    base: Any = next(b for b in (dict, list, deque, tuple, set, frozenset) if issubclass(kind, b))
    leaves.containers.append(value)
    own = getattr(value, "__dict__", None)
    held = dict(dict.items(value)) if base is dict else list(base.__iter__(value))
    return _parts(kind, base, (held, own), 2, leaves)


def _namedtuple(value: Any, leaves: Leaves) -> Any:
    return _parts(type(value), None, value, len(value), leaves)


def _registered(value: Any, leaves: Leaves) -> Any:
    children, context = SUPPORTED_NODES[type(value)].flatten_fn(value)
    leaves.containers.append(value)
    return _parts(type(value), freeze(context, leaves), children, len(children), leaves)


def _enum(value: enum.Enum, leaves: Leaves) -> Any:
    return type(value), Same(value)


def _numpy_scalar(value: Any, leaves: Leaves) -> Any:
    return type(value), value.dtype.str, value.tobytes()


ABSENT = type("ABSENT", (), {"__repr__": lambda self: "absent"})()

_FREEZE: dict[type, Freeze] = {
    torch.Tensor: _tensor,
    torch.nn.Parameter: _tensor,
    float: lambda v, leaves: (float, _pack(v)),
    complex: lambda v, leaves: (complex, _pack2(v.real, v.imag)),
    bool: _number,
    int: _number,
    torch.Size: lambda v, leaves: (torch.Size, tuple(v)),
    list: _sequence,
    tuple: _sequence,
    dict: _dict,
    OrderedDict: _dict,
    defaultdict: _defaultdict,
    set: _set,
    frozenset: _set,
    deque: _deque,
    slice: _slice,
    range: _slice,
    MethodType: _method,
    BuiltinMethodType: _builtin,
    MethodWrapperType: _builtin,
    FunctionType: _object,
    ModuleType: _object,
    functools.partial: _partial,
    torch.Generator: _object,
    np.ndarray: _array,
    type: _class,
}
for _kind in (
    str,
    bytes,
    type(None),
    type(...),
    type(NotImplemented),
    type(ABSENT),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
):
    _FREEZE[_kind] = _itself
IMMUTABLE = frozenset(
    (
        float,
        complex,
        bool,
        int,
        torch.Size,
        slice,
        range,
        str,
        bytes,
        type(None),
        type(...),
        torch.dtype,
        torch.device,
        torch.layout,
        torch.memory_format,
    )
)
_OTHER: weakref.WeakKeyDictionary[type, Freeze] = weakref.WeakKeyDictionary()
_HASHED_VALUES = (decimal.Decimal, fractions.Fraction, datetime.date, datetime.time, datetime.timedelta, pathlib.PurePath, re.Pattern, uuid.UUID)


@functools.lru_cache(maxsize=512)
def _field_names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def is_value(value: Any) -> bool:
    """Whether the value is immutable and compared as such (numbers of numpy and the standard library, enums, paths, patterns)."""
    how = _OTHER.get(type(value))
    if how is None and type(value) not in _FREEZE:
        how = _OTHER[type(value)] = _classify(type(value))
    return how in (_enum, _numpy_scalar, _hashed)


def _hashed(value: Any, leaves: Leaves) -> Any:
    return type(value), value


def _freeze_other(value: Any, leaves: Leaves) -> Any:
    kind = type(value)
    how = _OTHER.get(kind)
    if how is None:
        how = _OTHER[kind] = _classify(kind)
    return how(value, leaves)


def _classify(kind: type) -> Freeze:
    """How values of a class that is met for the first time are frozen."""
    if issubclass(kind, torch.Tensor):
        return _tensor
    if issubclass(kind, enum.Enum):
        return _enum
    if issubclass(kind, type):
        return _class
    if kind in (BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType, ClassMethodDescriptorType):
        return _itself
    if kind in SUPPORTED_NODES:
        return _registered
    if issubclass(kind, PackedSequence):
        return _packed
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _namedtuple
    if issubclass(kind, tuple) and getattr(kind, "n_sequence_fields", None) is not None:  # torch.return_types
        return _namedtuple
    if kind in _HASHED_VALUES or (
        issubclass(kind, _HASHED_VALUES) and kind.__module__ in ("decimal", "fractions", "datetime", "pathlib", "re", "uuid")
    ):
        return _hashed
    if issubclass(kind, np.generic) and kind is not np.void:
        return _numpy_scalar
    if issubclass(kind, dict | list | deque | set | frozenset | tuple):
        return _derived
    if kind in _IDENTITIES:
        return _object
    if issubclass(kind, _FOREIGN) or not _is_python_class(kind):
        return _refuse
    plain = dataclasses.is_dataclass(kind) and not issubclass(kind, torch.nn.Module | dict | list)
    return _dataclass if plain else _object


_TUPLE_FIELD = type(vars(collections.namedtuple("Sample", "field"))["field"])  # what reads a field of a namedtuple

# Not Python classes, but nothing that a trace could read changes in them (or what can is guarded separately).
_IDENTITIES = frozenset(
    (
        type(threading.Lock()), type(threading.RLock()), ContextVar, property, staticmethod, classmethod, CodeType, CellType, threading.local,
        weakref.ref, torch.finfo, torch.iinfo, SimpleNamespace, np.dtype, np.ufunc, functools._lru_cache_wrapper,
        MemberDescriptorType, GetSetDescriptorType, MappingProxyType, _TUPLE_FIELD,
        UnionType, GenericAlias, object,  # int | str, list[int] (what they are made of is reached on its own), a mark of its own
    )
)  # fmt: skip
_C_DATA: Any = ctypes.c_int.__mro__[-2]  # the base of all structures and arrays of ctypes
_FOREIGN = (np.ndarray, bytearray, memoryview, array.array, mmap.mmap, _C_DATA, io.IOBase, Iterator, random.Random)


def _is_python_class(kind: type) -> bool:
    """Whether instances have only what Python code gave them: their state is in attributes (or in a container they derive from)."""
    return bool(kind.__flags__ & _HEAP_TYPE) and "__module__" in vars(kind)


_HEAP_TYPE = 1 << 9


def _packed(value: Any, leaves: Leaves) -> Any:
    raise NotStatic("a PackedSequence, whose lengths PyTorch reads in the middle of its operators")


def _refuse(value: Any, leaves: Leaves) -> Any:
    kind = "an array of numpy" if type(value) is np.ndarray else f"a {type(value).__qualname__}"
    raise NotStatic(f"{kind}, whose state cannot be compared")
