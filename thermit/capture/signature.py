"""What a compiled variant depends on: where a value lives (Source), what must be true of it (Guard), what a call looks like (key).

In:  a function and the arguments of one call.
Out: `flatten_call` gives the tensor leaves and a hashable key; `holds` checks the guards of a variant.
Idea: arguments are compared through the key (one dictionary look-up), everything else that the trace read through guards, each
of which knows how to fetch its value again.  Invariant: equal keys and held guards mean that the function, run again, would do
the same ATen calls with the same static values.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CellType
from typing import Any, Literal, NamedTuple

import torch

# ---------------------------------------------------------------------------------------------- sources


class Call(NamedTuple):
    """The arguments of one call as the user wrote them: what sources are read from."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


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
        return f"{self.base}[{self.key!r}]"


# ---------------------------------------------------------------------------------------------- guards

Kind = Literal["is", "equals", "tensor", "type", "deep", "absent"]


@dataclass(frozen=True, slots=True, eq=False)
class Guard:
    """A fact that was baked into code: `kind` says how the value at `source` is compared with `expected`.

    is       the value is the object `expected` itself
    equals   same exact type and equal value, floats by their bits (int, float, complex, str, bytes, bool, None, dtype, device,
             layout, enum, slice, torch.Size and tuples and frozensets of those); `expected` is the value as it was
    type     type(value) is `expected`
    tensor   the value is an input by reference: `expected` is its TensorSpec, checked as an argument's is
    deep     a container or an object: `expected` is a Snapshot of its structure and leaves
    absent   `expected` is a tuple of names that the dict or object at `source` must not have (dict: keys; else attributes)
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
        return f"{self.source}: {self.kind} {self.expected}"


class TensorSpec(NamedTuple):
    """Everything about an input tensor that code may depend on.  Only plain strided CPU tensors without conj or neg bit get one.

    `flags`: 1 requires_grad, 2 is a Parameter, 4 is an inference tensor.
    `group`: inputs whose memory overlaps (or whose storages start at one place) share a number, all others have -1.
    `offset`: within a group, distance in bytes from the storage of the group's first tensor to this tensor's first element;
    0 outside groups, so that f(x[0]) and f(x[1]) are one signature.
    """

    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    flags: int
    group: int
    offset: int

    def __str__(self) -> str:
        dims = ",".join(map(str, self.sizes))
        return f"{str(self.dtype).removeprefix('torch.')}[{dims}] strides {list(self.strides)}"


@dataclass(frozen=True, slots=True)
class FlatCall:
    """One call, flattened.

    `key`: hashable; equal keys are calls that may share a variant (tree, static values, tensor specs with aliasing, ambient state).
    `tensors`: the tensor leaves, in order of appearance (each occurrence; the same object twice is twice, in one group).
    `sources`: where each of them lives, from the root of the call.
    `eager`: why the call cannot be compiled at all, or None; then key is not to be used.
    """

    key: Any
    tensors: tuple[torch.Tensor, ...]
    eager: str | None
    paths: tuple[Source, ...] = ()


Replace = Callable[[torch.Tensor], Any]
Guards = Sequence[Guard]
