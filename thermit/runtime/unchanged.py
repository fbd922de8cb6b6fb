"""What can be told about objects of Python by looking at words in memory, without asking them.

In:  the guards of a variant, all of which hold now.
Out: `Unchanged`: words with their addresses, and the places whose values are as they are now as long as the words are.
Idea: a dict and a class have a version that changes with them and never comes back.  From an object that the variant holds, as long as the
versions and identities on the way are as they were, attributes lead to the same objects, so a model's thousands of facts are
one pass over a table.  Where a word is another, all guards are checked as they stand.
Invariant: every address is of memory that lives as long as the words before it in the table are unchanged: objects without a version to
vouch for them are held.
"""

from __future__ import annotations

import builtins
import dataclasses
import re
from collections import OrderedDict
from types import CellType, FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import Any

import torch

from thermit.capture.signature import Attr, Cell, Class, Global, Guard, Held, Item, Source
from thermit.runtime.layout import MANAGED_DICT, Layout, ask
from thermit.runtime.torch_abi import word

_OPEN = object()  # the value of a place that words do not vouch for
_HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_SIZES: dict[type, int] = {list: 16, tuple: 16, dict: 16, OrderedDict: 16}
_WITHIN = frozenset(("is", "equals", "absent", "keys", "missing", "type", "empty", "length", "same"))
_BUILTINS = vars(builtins)
_PACKAGE = re.compile(r"[\\/](site|dist)-packages[\\/]")
_MRO = vars(type)["__mro__"]
_CELL = 16  # where a cell keeps its content; torch_abi confirms it


class Unchanged:
    """`words`: address -> what is there now, in the order in which they must be looked at.  `keep`: objects that must live meanwhile."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.words: dict[int, int] = {}
        self.keep: list[Any] = []
        self._values: dict[int, tuple[Source, Any]] = {}
        self._seen: set[int] = set()

    # ------------------------------------------------------------------------------------------ places
    def value(self, source: Source) -> Any:
        """The object at a place, if the words vouch for it; else `OPEN`."""
        known = self._values.get(id(source))
        if known is None:
            known = self._values[id(source)] = source, self._find(source)
        return known[1]

    def covers(self, source: Source) -> bool:
        return self.value(source) is not _OPEN

    def _find(self, source: Source) -> Any:
        match source:
            case Held(value=value):
                self.keep.append(value)
                return value
            case Attr(base=base, name=name):
                owner = self.value(base)
                return _OPEN if owner is _OPEN else self._attribute(owner, name)
            case Item(base=base, key=key):
                owner = self.value(base)
                return _OPEN if owner is _OPEN else self._item(owner, key)
            case Global(names=names, name=name):
                return self._global(names, name)
            case Class(owner=owner, name=name):
                return _in_class(owner, name) if self._class(owner) else _OPEN
            case Cell(cell=cell):
                return self._pinned(cell, _CELL)
        return _OPEN

    def _pinned(self, holder: Any, at: int) -> Any:
        """What a field of an object refers to; it is held, so that nothing else can come to lie where it lies."""
        try:
            value = holder.cell_contents if type(holder) is CellType else holder.__code__
        except ValueError:  # an empty cell
            return _OPEN
        if isinstance(value, torch.Tensor | list | dict | set):  # guards do not hold these
            return _OPEN
        self.keep += [holder, value]
        self._word(id(holder) + at)
        return value

    def _global(self, names: dict[str, Any], name: str) -> Any:
        """A name in an installed package; those of the user's own modules come and go."""
        if type(names) is not dict or not _PACKAGE.search(str(names.get("__file__"))):
            return _OPEN
        self.keep.append(names)
        self._dict(names)
        if name in names:
            return names[name]
        self._dict(_BUILTINS)
        return _BUILTINS.get(name, _OPEN)

    def _item(self, owner: Any, key: Any) -> Any:
        if type(owner) in (dict, OrderedDict) and self._plain_key(key):
            self._dict(owner)
            return owner.get(key, _OPEN)
        if type(owner) is tuple and type(key) is int:
            return owner[key]
        return _OPEN

    @staticmethod
    def _plain_key(key: Any) -> bool:
        return type(key) in (str, int, bytes)

    def _attribute(self, owner: Any, name: str) -> Any:
        kind = type(owner)
        if kind is FunctionType and name == "__code__":
            return self._pinned(owner, self._layout.code)
        if isinstance(owner, type):
            if name == "__mro__" and _in_class(kind, name) is _MRO:
                return owner.__mro__ if self._class(owner) else _OPEN
            return _OPEN if _in_class(kind, name) is not _OPEN else self._of_class(owner, name)
        ordinary = name == "__dict__" or _in_class(kind, "__getattribute__") is object.__getattribute__
        if not ordinary or not self._class(kind):
            return _OPEN
        raw = _in_class(kind, name)
        table = self._own(owner, kind)
        if table is None:
            return _OPEN
        if name == "__dict__":
            return table if type(raw) in (GetSetDescriptorType, MemberDescriptorType) else _OPEN
        if raw is not _OPEN and (hasattr(type(raw), "__set__") or hasattr(type(raw), "__delete__")):
            return _OPEN
        if name in table:
            return table[name]
        return _OPEN if raw is _OPEN or hasattr(type(raw), "__get__") else raw

    def _own(self, owner: Any, kind: type) -> dict[str, Any] | None:
        """The dict of an object, watched."""
        at = self._layout.own_dict if kind.__flags__ & MANAGED_DICT else kind.__dictoffset__
        table = getattr(owner, "__dict__", None)
        if at == 0 or type(table) is not dict or word(id(owner) + at) != id(table):
            return None
        if id(owner) not in self._seen:
            self._seen.add(id(owner))
            self.keep.append(table)  # nothing else can come to lie where it lies
            self._word(id(owner) + 8)
            self._word(id(owner) + at)
        self._dict(table)
        return table

    def _of_class(self, owner: type, name: str) -> Any:
        """What a class has under a name, where asking the class gives just that."""
        if not self._class(owner) or not self._class(type(owner)):
            return _OPEN
        raw = _in_class(owner, name)
        return raw if raw is _OPEN or type(raw) is FunctionType or not hasattr(type(raw), "__get__") else _OPEN

    # ------------------------------------------------------------------------------------------ words
    def stand(self) -> bool:
        """Whether all words are as they were."""
        return all(word(address) == value for address, value in self.words.items())

    def table(self) -> list[int]:
        return [part for pair in self.words.items() for part in pair]

    def _word(self, address: int) -> None:
        self.words.setdefault(address, word(address))

    def _dict(self, table: dict[Any, Any]) -> None:
        self._word(id(table) + self._layout.dict_version)

    def _class(self, kind: type) -> bool:
        """Watches a class; False where that is not possible.  Classes written in C do not change."""
        if not kind.__flags__ & _HEAP:
            return True
        address = id(kind) + self._layout.class_version
        if address not in self.words:
            ask(kind)
            if word(address) == 0:
                return False
            self.keep.append(kind)
            self._word(address)
        return True

    # ------------------------------------------------------------------------------------------ facts
    def holds(self, guard: Guard) -> bool:
        """Whether the words vouch for a guard that holds now."""
        if guard.kind not in _WITHIN:
            return self._deep(guard) if guard.kind == "deep" else False
        if guard.kind == "missing":
            return self._missing(guard.source)
        value = self.value(guard.source)
        if value is _OPEN:
            return False
        match guard.kind:
            case "same":
                return self.covers(guard.expected)
            case "absent" | "keys":
                if type(value) is not dict:
                    return False
                self._dict(value)
            case "type":
                self._kind(value)
            case "empty" | "length":
                return self._size(value)
        return True

    def _kind(self, value: Any) -> None:
        if type(value).__flags__ & _HEAP:
            self.keep.append(type(value))
            self._word(id(value) + 8)

    def _size(self, value: Any) -> bool:
        at = _SIZES.get(type(value)) or (self._layout.used if type(value) is set else 0)
        if type(value) not in (tuple, frozenset) and at:
            self._word(id(value) + at)
        return at != 0 or type(value) is frozenset

    def _missing(self, source: Source) -> bool:
        """A key that a dict does not have, a name that a class does not have."""
        if isinstance(source, Class):
            return self._class(source.owner)
        if not isinstance(source, Item):
            return False
        owner = self.value(source.base)
        if type(owner) is not dict or not self._plain_key(source.key):
            return False
        self._dict(owner)
        return True

    def _deep(self, guard: Guard) -> bool:
        """A dict of nothing but constants, classes and functions, and dicts of such."""
        value = self.value(guard.source)
        return isinstance(value, dict) and self._fixed(value, 8)

    def few(self, guard: Guard) -> set[Any] | None:
        """What a small set of constants, classes and functions holds; None for what is none.  Words do not tell when it changes."""
        value = self.value(guard.source) if guard.kind == "deep" else None
        return set(value) if type(value) is set and len(value) < 200 and all(self._fixed(part, 0) for part in value) else None

    def _fixed(self, value: Any, depth: int) -> bool:
        """Whether words can vouch for all that a value holds; then they are noted."""
        if type(value) in _CONSTANT or isinstance(value, type | FunctionType):
            return True
        if depth <= 0:
            return False
        if dataclasses.is_dataclass(value) and not isinstance(value, dict | list | tuple | set):
            table = self._own(value, type(value)) if self._class(type(value)) else None
            return table is not None and self._fixed(table, depth - 1)
        if not isinstance(value, OrderedDict) and type(value).__mro__[1:] == (dict, object):  # a class of dicts, whose objects have a dict besides
            table = self._own(value, type(value)) if self._class(type(value)) else None
            if table is None or not self._fixed(table, depth - 1):
                return False
        elif type(value) not in (dict, tuple):
            return False
        if isinstance(value, dict):
            self._dict(value)  # before the words of what it holds, which lives no longer than this is so
        parts = (part for pair in dict.items(value) for part in pair) if isinstance(value, dict) else iter(value)
        return all(self._fixed(part, depth - 1) for part in parts)


_CONSTANT = frozenset((int, float, bool, str, type(None)))


def _in_class(kind: type, name: str) -> Any:
    for base in kind.__mro__:
        if name in vars(base):
            return vars(base)[name]
    return _OPEN
