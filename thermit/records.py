"""`dataclass`, made five times faster: importing thermit makes a hundred of them.

In:  a class with annotated fields.  Out: what `dataclasses.dataclass` makes of it, also for `fields`, `replace` and `is_dataclass`.
Idea: the standard library compiles six functions for each class; here only __init__ is compiled, the others are closures.
Invariant: type checkers see the standard decorator, and tests/test_records.py compares the two.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from operator import attrgetter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls: type | None = None, /, *, frozen: bool = False, slots: bool = False, eq: bool = True) -> Any:
        """As dataclasses.dataclass, with these options."""
        return (lambda cls: _make(cls, frozen, slots, eq)) if cls is None else _make(cls, frozen, slots, eq)


Fields = dict[str, "dataclasses.Field[Any]"]


def _make(cls: type, frozen: bool, slots: bool, eq: bool) -> type:
    inherited = {name: f for base in reversed(cls.__mro__[1:]) for name, f in getattr(base, "__dataclass_fields__", {}).items()}
    own = {name: _field(cls, name, kind) for name, kind in inspect.get_annotations(cls).items()}
    fields = {**inherited, **own}
    names = tuple(fields)
    space: dict[str, Any] = {"__dataclass_fields__": fields, "__match_args__": names, "__dataclass_params__": _params(frozen, slots, eq)}
    for name, method in _methods(names, frozen, slots, eq).items():
        if name not in cls.__dict__ or (name == "__hash__" and "__eq__" in cls.__dict__ and cls.__dict__[name] is None):
            space[name] = method
    made = _with_slots(cls, own, space) if slots else cls
    if not slots:
        for name, value in space.items():
            setattr(cls, name, value)
        for name, f in own.items():
            if f.default is not dataclasses.MISSING:
                setattr(cls, name, f.default)
            elif name in cls.__dict__:
                delattr(cls, name)
    made.__init__ = _init(made, fields, frozen)  # type: ignore[misc]
    return made


def _params(frozen: bool, slots: bool, eq: bool) -> SimpleNamespace:
    """What pprint asks of a dataclass, and the standard decorator of its bases."""
    return SimpleNamespace(init=True, repr=True, eq=eq, order=False, unsafe_hash=False, frozen=frozen, slots=slots)


def _with_slots(cls: type, own: Iterable[str], space: dict[str, Any]) -> type:
    """The class anew: slots must be there when it is made."""
    kept = {name: value for name, value in cls.__dict__.items() if name not in own and name not in ("__dict__", "__weakref__")}
    made = type(cls)(cls.__name__, cls.__bases__, {**kept, **space, "__slots__": tuple(own)})
    made.__qualname__ = cls.__qualname__
    return made


def _field(cls: type, name: str, kind: Any) -> dataclasses.Field[Any]:
    default = cls.__dict__.get(name, dataclasses.MISSING)
    made: dataclasses.Field[Any] = default if isinstance(default, dataclasses.Field) else dataclasses.field(default=default)
    made.name, made.type, made.kw_only = name, kind, False
    made._field_type = dataclasses._FIELD  # type: ignore[attr-defined]
    return made


def _init(cls: type, fields: Fields, frozen: bool) -> Callable[..., None]:
    """The one function that is compiled: its parameters are the fields."""
    space: dict[str, Any] = {"_none": dataclasses.MISSING, "_set": object.__setattr__}
    parameters, lines = [], []
    for name, f in fields.items():
        value = name
        if f.default is not dataclasses.MISSING:
            space[f"_d_{name}"] = f.default
            parameters.append(f"{name}=_d_{name}")
        elif f.default_factory is not dataclasses.MISSING:
            space[f"_f_{name}"] = f.default_factory
            parameters.append(f"{name}=_none")
            value = f"_f_{name}() if {name} is _none else {name}"
        else:
            parameters.append(name)
        lines.append(f" _set(self, {name!r}, {value})" if frozen else f" self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append(" self.__post_init__()")
    exec(f"def __init__({', '.join(['self', *parameters])}):\n" + ("\n".join(lines) or " pass"), space)
    made: Callable[..., None] = space["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__module__ = cls.__module__
    return made


def _methods(names: tuple[str, ...], frozen: bool, slots: bool, eq: bool) -> dict[str, Any]:
    get = attrgetter(*names) if names else lambda _: ()
    values: Callable[[Any], tuple[Any, ...]] = get if len(names) != 1 else lambda self: (get(self),)

    def __repr__(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    def __eq__(self: Any, other: object) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self: Any) -> int:
        return hash(values(self))

    def __getstate__(self: Any) -> list[Any]:
        return list(values(self))

    def __setstate__(self: Any, state: list[Any]) -> None:
        for name, value in zip(names, state, strict=True):
            object.__setattr__(self, name, value)

    made: dict[str, Any] = {"__repr__": __repr__}
    if eq:
        made |= {"__eq__": __eq__, "__hash__": __hash__ if frozen else None}
    if frozen:
        made |= {"__setattr__": _refuse_set, "__delattr__": _refuse_delete}
        if slots:
            made |= {"__getstate__": __getstate__, "__setstate__": __setstate__}
    return made


def _refuse_set(self: Any, name: str, value: Any) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_delete(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
