"""What a compiled variant depends on: where a value lives (Source), what must be true of it (Guard), what a call looks like (key).

In:  a function and the arguments of one call.
Out: `flatten_call` gives the tensor leaves and a hashable key; `holds` checks the guards of a variant.
Idea: arguments are compared through the key (one dictionary look-up), everything else that the trace read through guards, each
of which knows how to fetch its value again.  Invariant: equal keys and held guards mean that the function, run again, would do
the same ATen calls with the same static values.
"""

from __future__ import annotations

import builtins
import dataclasses
import inspect
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from types import CellType
from typing import Any, Literal, NamedTuple

import torch
from torch.autograd import forward_ad

from thermit.capture.specs import TensorSpec, input_specs, tensor_facts, tensor_spec
from thermit.capture.values import Leaves, NotStatic, freeze
from thermit.records import dataclass

# ---------------------------------------------------------------------------------------------- sources


class Call(NamedTuple):
    """The arguments of one call as the user wrote them: what sources are read from."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


_NOTHING = object()
_GETS = frozenset(kind.__getitem__ for kind in (dict, list, tuple, deque))


class Source:
    """Where a value lives.  `read(call)` fetches it as it is now, `str()` is how the user would write it.  Compared by identity of roots.

    `read` raises LookupError or AttributeError (or whatever a property raises) when the place is gone: a guard on it then fails.
    """

    __slots__ = ()

    def read(self, call: Call) -> Any:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Arg(Source):
    """An argument: positional number `slot` (int) or keyword `slot` (str) of the call; `name` is the parameter's."""

    slot: int | str
    name: str

    def read(self, call: Call) -> Any:
        return call.args[self.slot] if type(self.slot) is int else call.kwargs[self.slot]  # type: ignore[index]

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, eq=False)
class Held(Source):
    """An object that the compiled callable itself holds: the function, the module, the object of a bound method."""

    value: Any
    name: str

    def read(self, call: Call) -> Any:
        return self.value

    def __eq__(self, other: object) -> bool:
        return type(other) is Held and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, eq=False)
class Global(Source):
    """A name in the globals of a module; builtins when it is not there, as Python looks it up."""

    names: dict[str, Any]
    name: str

    def read(self, call: Call) -> Any:
        names, name = self.names, self.name
        return names[name] if name in names else vars(builtins)[name]

    def __eq__(self, other: object) -> bool:
        return type(other) is Global and other.names is self.names and other.name == self.name

    def __hash__(self) -> int:
        return hash((id(self.names), self.name))

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, eq=False)
class Cell(Source):
    """A variable that a function closes over; `name` reads like `f.closure.w`.  An empty cell raises ValueError."""

    cell: CellType
    name: str

    def read(self, call: Call) -> Any:
        return self.cell.cell_contents

    def __eq__(self, other: object) -> bool:
        return type(other) is Cell and other.cell is self.cell

    def __hash__(self) -> int:
        return id(self.cell)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Attr(Source):
    """`base.name`, looked up as Python does (properties run)."""

    base: Source
    name: str

    def read(self, call: Call) -> Any:
        return getattr(self.base.read(call), self.name)

    def __str__(self) -> str:
        return f"{self.base}.{self.name}"


@dataclass(frozen=True, slots=True)
class Item(Source):
    """`base[key]`, the key a hashable constant."""

    base: Source
    key: Any

    def read(self, call: Call) -> Any:
        return self.base.read(call)[self.key]

    def __str__(self) -> str:
        base = self.base
        if isinstance(base, Attr) and base.name == "__dict__" and type(self.key) is str:
            return f"{base.base}.{self.key}"
        return f"{base}[{self.key!r}]"


@dataclass(frozen=True, slots=True)
class Part(Source):
    """What a container of a class with a `__getitem__` of its own holds under a key: past that `__getitem__`, which may answer what it likes."""

    base: Source
    key: Any

    def read(self, call: Call) -> Any:
        held = self.base.read(call)
        if isinstance(held, dict):
            found = dict.get(held, self.key, _NOTHING)
            if found is _NOTHING:
                raise KeyError(self.key)
            return found
        kind: Any = list if isinstance(held, list) else tuple if isinstance(held, tuple) else deque
        return kind.__getitem__(held, self.key)

    def __str__(self) -> str:
        return f"{self.base}[{self.key!r}]"


@dataclass(frozen=True, slots=True, eq=False)
class Class(Source):
    """A name as it stands in a class or one of its bases, before binding: functions, properties, class methods as such."""

    owner: type
    name: str

    def read(self, call: Call) -> Any:
        for base in self.owner.__mro__:
            if self.name in base.__dict__:
                return base.__dict__[self.name]
        raise AttributeError(self.name)

    def __eq__(self, other: object) -> bool:
        return type(other) is Class and other.owner is self.owner and other.name == self.name

    def __hash__(self) -> int:
        return hash((id(self.owner), self.name))

    def __str__(self) -> str:
        return f"{self.owner.__qualname__}.{self.name}"


@dataclass(frozen=True, slots=True)
class Variable(Source):
    """The value of a context variable; None when it is not set."""

    variable: ContextVar[Any]

    def read(self, call: Call) -> Any:
        return self.variable.get(None)

    def __str__(self) -> str:
        return f"{self.variable.name}.get()"


def reads_call(source: Source) -> bool:
    """Whether the place is in the arguments of the call: what is held by the variant itself needs no call to be read."""
    while isinstance(source, Attr | Item | Part):
        source = source.base
    return isinstance(source, Arg)


# ---------------------------------------------------------------------------------------------- guards

Kind = Literal["is", "equals", "tensor", "type", "deep", "absent", "empty", "length", "keys", "missing", "same", "apart"]


@dataclass(frozen=True, slots=True, eq=False)
class Guard:
    """A fact that was baked into code: `kind` says how the value at `source` is compared with `expected`.

    is       the value is the object `expected` itself
    equals   same exact type and equal value, floats by their bits (int, float, complex, str, bytes, bool, None, dtype, device,
             layout, enum, slice, torch.Size and tuples and frozensets of those); `expected` is the value as it was
    type     type(value) is `expected`
    tensor   the value is an input by reference: `expected` is its TensorSpec, checked as an argument's is
    deep     a container or an object: `expected` is a Snapshot of its structure and leaves
    absent   `expected` is a frozenset of names that the dict or object at `source` must not have (dict: keys; else attributes)
    empty    the value is an empty container of the class `expected`
    length   the value is a list or tuple: `expected` is (class, number of elements)
    keys     the value is a dict whose keys are those of the list `expected` (all str), in this order
    missing  reading `source` raises
    same     the value is the object that is found at the source `expected`
    apart    no object is found at two of the sources in the tuple `expected`, of which `source` is the first
    """

    source: Source
    kind: Kind
    expected: Any

    def __str__(self) -> str:
        match self.kind:
            case "is":
                name = getattr(self.expected, "__qualname__", None) or type(self.expected).__qualname__
                return f"{self.source} is {name}" if not isinstance(self.expected, bool | None) else f"{self.source} is {self.expected}"
            case "equals":
                return f"{self.source} == {self.expected!r}"
            case "absent":
                return f"{self.source} has no {', '.join(map(str, self.expected))}"
            case "empty":
                return f"{self.source} is empty"
            case "length":
                return f"len({self.source}) == {self.expected[1]}"
            case "keys":
                return f"{self.source} has keys {', '.join(self.expected)}"
            case "missing":
                return f"{self.source} is not there"
            case "same":
                return f"{self.source} is {self.expected}"
            case "apart":
                few, count = ", ".join(map(str, self.expected[:6])), len(self.expected)
                return f"{few}{f', ... ({count})' if count > 6 else ''} are different objects"
            case "type":
                return f"type({self.source}) is {self.expected.__qualname__}"
            case "deep":
                return f"{self.source} is as it was"
        return f"{self.source}: {self.expected}"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A container as it was: its image (structure, static leaves, objects by identity) and the specs of the tensors in it."""

    image: Any
    tensors: tuple[TensorSpec, ...]

    def matches(self, value: Any) -> bool:
        leaves = Leaves(arrays=True)
        try:
            return freeze(value, leaves) == self.image and tuple([tensor_spec(t) for t in leaves.tensors]) == self.tensors
        except NotStatic:
            return False

    def __str__(self) -> str:
        return "as it was"


def snapshot(value: Any, limit: int = 2000) -> tuple[Snapshot, Leaves]:
    """The snapshot of a container and what it holds.  Raises NotStatic, also above `limit` values."""
    leaves = Leaves(limit, arrays=True)
    image = freeze(value, leaves)
    return Snapshot(image, tuple([tensor_spec(t) for t in leaves.tensors])), leaves


def _is(value: Any, expected: Any) -> bool:
    return value is expected


def _equals(value: Any, expected: Any) -> bool:
    if type(value) is not type(expected):
        return False
    if type(value) is int or type(value) is str or type(value) is bool:
        return bool(value == expected)
    if type(value) is float and value is expected:
        return True
    try:
        return bool(freeze(value, Leaves()) == freeze(expected, Leaves()))
    except NotStatic:
        return False


def _type(value: Any, expected: type) -> bool:
    return type(value) is expected


def _tensor(value: Any, expected: TensorSpec) -> bool:
    return isinstance(value, torch.Tensor) and tensor_facts(value) == expected[:4]


def _deep(value: Any, expected: Snapshot) -> bool:
    return expected.matches(value)


def _absent(value: Any, expected: frozenset[str]) -> bool:
    return value.keys().isdisjoint(expected) if type(value) is dict else not any(hasattr(value, name) for name in expected)


def _empty(value: Any, expected: type) -> bool:
    return type(value) is expected and not value


def _length(value: Any, expected: tuple[type, int]) -> bool:
    return type(value) is expected[0] and isinstance(value, list | tuple) and len(value) == expected[1]


def _keys(value: Any, expected: list[str]) -> bool:
    return type(value) is dict and list(value) == expected


def _raises(value: Any, expected: None) -> bool:
    return False


CHECKS: dict[Kind, Callable[[Any, Any], bool]] = {
    "is": _is,
    "equals": _equals,
    "type": _type,
    "tensor": _tensor,
    "deep": _deep,
    "absent": _absent,
    "empty": _empty,
    "length": _length,
    "keys": _keys,
    "missing": _raises,
}


def holds(guards: Sequence[Guard], call: Call) -> Guard | None:
    """The first guard that fails, or None."""
    for guard in guards:
        try:
            value = guard.source.read(call)
            if guard.kind == "same":
                if value is guard.expected.read(call):
                    continue
                return guard
            if guard.kind == "apart":
                if len({id(source.read(call)) for source in guard.expected}) == len(guard.expected):
                    continue
                return guard
        except Exception:  # the place is gone (or a property raises): not the fact that was baked in, whatever the reason
            if guard.kind == "missing":
                continue
            return guard
        if value is guard.expected and guard.kind == "is":
            continue
        if not CHECKS[guard.kind](value, guard.expected):
            return guard
    return None


# ---------------------------------------------------------------------------------------------- the key of a call


class FlatCall(NamedTuple):
    """One call, flattened.

    `key`: hashable; equal keys are calls that may share a variant (tree, static values, tensor specs with aliasing, ambient state).
    `tensors`: the tensor leaves in order of appearance, each occurrence (the same object twice is twice, in one group).
    `specs`: one for each of them (also part of the key).
    `eager`: why the call cannot be compiled at all, or None; if it is set the other fields are empty.  `foreign`: because of an argument
    that is no tensor.
    """

    key: Any
    tensors: list[torch.Tensor]
    specs: tuple[TensorSpec, ...]
    eager: str | None = None
    foreign: bool = False


_C = torch._C
_is_inference, _default_dtype, _any_autocast = torch.is_inference_mode_enabled, torch.get_default_dtype, _C._is_any_autocast_enabled
_grad_enabled, _deterministic, _precision = torch.is_grad_enabled, _C._get_deterministic_algorithms, _C._get_float32_matmul_precision
_dispatch_modes, _function_modes, _tracing_state = _C._len_torch_dispatch_stack, _C._len_torch_function_stack, _C._get_tracing_state
_transforms = _C._functorch.peek_interpreter_stack


def ambient() -> tuple[Any, ...] | str:
    """The state outside the arguments that operations depend on, as part of the key; or why everything must run eagerly now.

    Fields: grad mode, inference mode, default dtype, deterministic algorithms, float32 matmul precision, autocast (None when it is off
    everywhere, else whether it is on and with which dtype, for CPU and CUDA).
    """
    if _dispatch_modes() or _function_modes():
        return "a dispatch or function mode is active"
    if _transforms() is not None:
        return "inside a functorch transform"
    if _tracing_state() is not None:
        return "torch.jit.trace is running"
    if forward_ad._current_level >= 0:
        return "inside forward-mode differentiation"
    return _grad_enabled(), _is_inference(), _default_dtype(), _deterministic(), _precision(), _autocast() if _any_autocast() else None


def _autocast() -> tuple[Any, ...]:
    cpu, cuda = ((torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda"))
    return cpu, cuda, torch.is_autocast_cache_enabled()


def flatten_call(args: Sequence[Any], kwargs: dict[str, Any] | None = None) -> FlatCall:
    """The call's key and its tensor leaves.

    The key is (ambient state, number of positional arguments, keyword names in order, images of the arguments, tensor specs, which
    containers are one object).  Defaults are not bound: a parameter that is not given is a fact about the function, guarded like others.
    """
    state = ambient()
    if isinstance(state, str):
        return FlatCall(None, [], (), state)
    leaves = Leaves()
    try:
        image = tuple([freeze(a, leaves) for a in args])
        if kwargs:
            image += (tuple(kwargs), tuple([freeze(a, leaves) for a in kwargs.values()]))
    except NotStatic as why:
        return FlatCall(None, [], (), str(why), True)
    try:
        specs = input_specs(leaves.tensors)
    except NotStatic as why:
        return FlatCall(None, [], (), str(why))
    shared = _shared(leaves.containers) if len(leaves.containers) > 1 else None
    return FlatCall((state, len(args), image, specs, shared), leaves.tensors, specs)


def _shared(containers: list[Any]) -> tuple[int, ...] | None:
    """Which of the mutable containers are one object: the number of the first appearance of each; None when all differ."""
    first: dict[int, int] = {}
    pattern = tuple([first.setdefault(id(c), i) for i, c in enumerate(containers)])
    return None if len(first) == len(containers) else pattern


def argument_names(function: Any, count: int) -> list[str]:
    """How the positional arguments are called in messages: the parameters' names, `*args` spread out; of a module those of its `forward`."""
    if isinstance(function, torch.nn.Module) and type(function).__call__ is torch.nn.Module.__call__:
        function = function.forward
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return [f"arg{i}" for i in range(count)]
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "args")
    return (names + [f"{rest}[{i}]" for i in range(max(0, count - len(names)))])[:count]


def argument_roots(function: Any, call: Call) -> Iterator[tuple[Source, Any]]:
    """Every argument with its source."""
    for i, (name, value) in enumerate(zip(argument_names(function, len(call.args)), call.args, strict=True)):
        yield Arg(i, name), value
    for name, value in call.kwargs.items():
        yield Arg(name, name), value


def argument_tensors(function: Any, args: Sequence[Any], kwargs: dict[str, Any] | None = None) -> list[Source]:
    """Where each tensor leaf of `flatten_call` lives, in the same order."""
    roots = argument_roots(function, Call(tuple(args), kwargs or {}))
    return [place for source, value in roots for place in _tensor_places(source, value)]


def _tensor_places(source: Source, value: Any) -> Iterator[Source]:
    if isinstance(value, torch.Tensor):
        yield source
        return
    parts = list(elements(source, value))
    if parts:
        for part, child in parts:
            yield from _tensor_places(part, child)
        return
    leaves = Leaves()
    freeze(value, leaves)
    yield from [source] * len(leaves.tensors)


def _iterated(value: Any) -> Iterator[Any]:
    """What a sequence holds, whatever its class says of it."""
    base: Any = next(b for b in (list, tuple, deque) if isinstance(value, b))
    found: Iterator[Any] = base.__iter__(value)
    return found


def elements(source: Source, value: Any) -> Iterator[tuple[Source, Any]]:
    """The parts of a container that a source can name, in the order in which `freeze` meets them."""
    if isinstance(value, dict | list | tuple | deque):
        place = Item if type(value).__getitem__ in _GETS and not hasattr(type(value), "__missing__") else Part  # a defaultdict would make it
        for key, child in dict.items(value) if isinstance(value, dict) else enumerate(_iterated(value)):
            yield place(source, key), child
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            if hasattr(value, field.name):
                yield Attr(source, field.name), getattr(value, field.name)
