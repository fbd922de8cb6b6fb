"""The facts that a compiled variant depends on, as a table that native code checks.

    GuardTable(positional, keywords, tensors, guards, ...)  ->  a list of small instructions, read by `check` (runtime/native/guards.py)

Two kinds of instructions: fetches put a value (the content of a cell, a global, an attribute, an item) into a slot, tests
compare what is in a slot, or an argument, with what was baked in.  What has no native form is left to a Python function, called last.
Invariant: `check` returns 1 only if every fact holds, leaves no Python error behind, and takes no reference but those in the slots.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch

from thermit.capture.signature import Arg, Attr, Call, Cell, Class, Global, Guard, Held, Item, Source, TensorSpec, holds
from thermit.runtime.layout import layout
from thermit.runtime.native.guards import GOLDEN, OPERATIONS
from thermit.runtime.tables import Tables
from thermit.runtime.torch_abi import SCALAR_TYPES, Abi
from thermit.runtime.unchanged import Unchanged

_EQUAL_TYPES = (int, str, bytes)
_SIZED = (list, tuple, dict, OrderedDict)  # their word after the header is how many elements they have


class GuardTable(Tables):
    """The instructions of a variant; tensors become the inputs 0, 1, ... of the program, in the given order; `updates` are written.

    `unchanged`: what its words vouch for needs no instruction (then the words are looked at first).
    """

    def __init__(
        self,
        abi: Abi,
        positional: int,
        keywords: Sequence[str],
        tensors: Sequence[tuple[Source, TensorSpec]],
        guards: Sequence[Guard],
        updates: Sequence[int] = (),
        unchanged: Unchanged | None = None,
    ) -> None:
        super().__init__()
        self._unchanged = unchanged
        self._abi, self._positional, self._keywords = abi, positional, list(keywords)
        self._places: dict[Any, int] = {}
        self._known: dict[int, int] = {}
        self._list: list[list[int]] = []
        self.slots = 0
        self.rest: list[Guard] = []
        leaders: dict[int, int] = {}
        for number, (_, spec) in enumerate(tensors):
            leaders.setdefault(spec.group, number)
        self.specs = [self._spec(s, leaders[s.group], tensors, k in updates) for k, (_, s) in enumerate(tensors)]
        order = sorted(range(len(tensors)), key=lambda k: not isinstance(tensors[k][0], Arg))
        for number in order:
            self._emit("TENSOR", self._place(tensors[number][0]), self.specs[number], number)
        self.direct = len(tensors) if all(isinstance(s, Arg) and spec.group < 0 for s, spec in tensors) else 0
        inputs = {source for source, _ in tensors}
        known = {g.source for g in guards if g.kind == "same" and g.expected in inputs}  # their specs are an input's
        for guard in guards:
            told = (guard.kind == "tensor" and guard.source in known) or (unchanged is not None and unchanged.holds(guard))
            if not told and not self._guard(guard):
                self.rest.append(guard)
        if self.rest:
            self._emit("PYTHON", 0, self.object(self._in_python()))

    @property
    def count(self) -> int:
        return len(self._list)

    def address(self) -> int:
        return self.add([word for instruction in self._list for word in instruction])

    def _emit(self, operation: str, place: int, *operands: int) -> None:
        self._list.append([OPERATIONS[operation], place, *operands, *[0] * (4 - len(operands))])

    def _spec(self, spec: TensorSpec, leader: int, tensors: Sequence[tuple[Source, TensorSpec]], written: bool) -> int:
        group = leader if spec.group >= 0 else -1
        offset = spec.offset - tensors[leader][1].offset if spec.group >= 0 else 0
        kind = torch.nn.Parameter if spec.flags & 2 else torch.Tensor
        keys = self._abi.inference_keys if spec.flags & 4 else self._abi.plain_keys
        itemsize = spec.dtype.itemsize
        last = sum((n - 1) * s for n, s in zip(spec.sizes, spec.strides, strict=True))
        span = 0 if 0 in spec.sizes else (last + 1) * itemsize
        head = [id(kind), keys, spec.flags & 1, SCALAR_TYPES[spec.dtype], len(spec.sizes), itemsize, span, group, offset, int(written)]
        return self.add([*head, *spec.sizes, *spec.strides])

    # ------------------------------------------------------------------------------------------ fetches
    def _place(self, source: Source) -> int:
        """Where the value of a source is: an argument, or a slot that an instruction fills."""
        if isinstance(source, Arg):
            number = source.slot if isinstance(source.slot, int) else self._positional + self._keywords.index(source.slot)
            return -1 - number
        place = self._known.get(id(source))  # most are the same object; to hash a long way takes long
        if place is None:
            if source not in self._places:
                self._fetch(source)
            place = self._known[id(source)] = self._places[source]
            self.keep.append(source)
        return place

    def _fetch(self, source: Source) -> None:
        operands: tuple[Any, ...]
        match source:
            case _ if self._unchanged is not None and self._unchanged.covers(source):
                operands = ("HELD", 0, id(self._unchanged.value(source)))
            case Held(value=value):
                operands = ("HELD", 0, self.object(value))
            case Cell(cell=cell):
                operands = ("CELL", 0, self.object(cell))
            case Global(names=names, name=name):
                operands = ("GLOBAL", 0, self.object(names), self.object(name))
            case Class(owner=owner, name=name):
                operands = ("ATTR", self._place(Held(owner, "")), self.object(name))
            case Attr(base=base, name=name):
                operands = ("ATTR", self._place(base), self.object(name))
            case Item(base=base, key=key):
                operands = ("ITEM", self._place(base), self.object(key))
            case _:
                raise TypeError(f"no native form of {source}")
        self._places[source] = slot = self.slots
        self.slots += 1
        self._emit(operands[0], slot, *operands[1:])

    # ------------------------------------------------------------------------------------------ tests
    def _guard(self, guard: Guard) -> bool:
        """Whether the guard has a native form; then it is emitted."""
        if not is_fetched(guard.source):
            return False
        expected = guard.expected
        match guard.kind:
            case "is" if self._is_named(guard):
                assert isinstance(guard.source, Global)
                self._emit("NAMED", 0, self.object(guard.source.names), self.object(guard.source.name), self.object(expected))
            case "is" if (place := self._code_place(guard.source)) is not None:
                self._emit("WORD", 0, place, self.object(expected))
            case "is":
                self._emit("IS", self._place(guard.source), self.object(expected))
            case "type":
                self._emit("TYPE", self._place(guard.source), self.object(expected))
            case "equals":
                return self._equals(guard.source, expected)
            case "length":
                self._emit("LENGTH", self._place(guard.source), self.object(expected[0]), expected[1])
            case "empty" if expected in _SIZED:
                self._emit("LENGTH", self._place(guard.source), self.object(expected), 0)
            case "keys":
                self._emit("KEYS", self._place(guard.source), self.object(expected))
            case "apart" if all(map(is_fetched, expected)):
                self._apart(expected)
            case "same" if is_fetched(expected):
                self._emit("SAME", self._place(guard.source), self._place(expected))
            case "tensor" if expected.dtype in SCALAR_TYPES:
                self._emit("SPEC", self._place(guard.source), self._spec(expected, 0, (), False))
            case "deep" if self._unchanged is not None and (few := self._unchanged.few(guard)) is not None:
                self._emit("EQUAL", self._place(guard.source), self.object(few))
            case "absent":
                self._emit("ABSENT", self._place(guard.source), self.object(tuple(expected)))
            case _:
                return False
        return True

    def _code_place(self, source: Source) -> int | None:
        """Where a function that is held keeps its code: asking it for `__code__` takes longer than all other guards of a small function."""
        found = layout()
        if found is not None and isinstance(source, Attr) and source.name == "__code__" and isinstance(source.base, Held):
            function = source.base.value
            return self.object(function) + found.code if type(function) is FunctionType else None
        return None

    def _apart(self, sources: Sequence[Source]) -> None:
        """Different objects; what `direct` says is not said again.  Those that the words vouch for are looked up in a table made now."""
        if len(sources) == self.direct and all(isinstance(s, Arg) for s in sources):
            return
        unchanged = self._unchanged
        known = [id(unchanged.value(s)) for s in sources if unchanged is not None and unchanged.covers(s)]
        places = [self._place(s) for s in sources if unchanged is None or not unchanged.covers(s)]
        if known:
            bits = _bits(len(known))
            table = self.add(hashed(known, bits))
            for place in places:
                self._emit("ABSENT_FROM", place, table, bits)
        if len(places) > 1:
            self._emit("APART", 0, self.add(places), len(places), _bits(len(places)))

    def _is_named(self, guard: Guard) -> bool:
        """Whether it asks for an entry of a dict that nothing else is fetched from: then it needs no slot."""
        source = guard.source
        return isinstance(source, Global) and source not in self._places and source.names.get(source.name) is guard.expected

    def _equals(self, source: Source, expected: Any) -> bool:
        if expected is None or isinstance(expected, (bool, torch.dtype)):
            self._emit("IS", self._place(source), self.object(expected))
        elif type(expected) is float:
            self._emit("FLOAT", self._place(source), struct.unpack("q", struct.pack("d", expected))[0])
        elif type(expected) in _EQUAL_TYPES:
            self._emit("EQUAL", self._place(source), self.object(expected))
        else:
            return False
        return True

    def _in_python(self) -> Callable[..., bool]:
        guards = tuple(self.rest)

        def rest_holds(*args: Any, **kwargs: Any) -> bool:
            return holds(guards, Call(args, kwargs)) is None

        return rest_holds


def _bits(count: int) -> int:
    """A table of 2^bits places for so many addresses is at most half full."""
    return (2 * count - 1).bit_length()


def hashed(addresses: Sequence[int], bits: int) -> list[int]:
    """A table of addresses as `absent_from` (runtime/native/guards.py) reads it."""
    table = [0] * (1 << bits)
    for address in addresses:
        at = ((address >> 4) * GOLDEN % (1 << 64)) >> (64 - bits)
        while table[at] not in (0, address):
            at = (at + 1) % len(table)
        table[at] = address
    return table


def is_fetched(source: Source) -> bool:
    """Whether every step of the way can be fetched natively."""
    while isinstance(source, Attr | Item):
        source = source.base
    return isinstance(source, Held | Cell | Global | Arg) or (isinstance(source, Class) and _is_plain(source))


def _is_plain(source: Class) -> bool:
    """Whether what stands in the class is what the class gives when it is asked: no function, no property."""
    try:
        raw = source.read(Call((), {}))
    except AttributeError:
        return False
    return not hasattr(type(raw), "__get__") and not hasattr(type(source.owner), source.name)
