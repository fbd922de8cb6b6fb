"""What was found of one object, said of another of its kind: caches and states that are made anew for each use of a model.

In:  the keys of two calls that differ in which objects they were given, and what a variant for the first of them depends on.
Out: the same guards, sources and template about the objects of the second call, or None where not all of it is true of them.
Idea: facts about an object start from the object itself (`Held`).  Two objects of one class, walked side by side, pair each part of the
old one with a part of the new one; facts in which every object is exchanged for its partner are the same facts about the new object.
Invariant: an object is nowhere a fact by itself: if an old or a new part stands in a snapshot, or facts already speak of a new part
by another way, there is no such exchange.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import MemberDescriptorType
from typing import Any

import torch

from thermit.capture.origin import STANDARD, class_origin
from thermit.capture.signature import Attr, Call, Guard, Held, Item, Part, Source, holds
from thermit.capture.structure import Template
from thermit.capture.values import IMMUTABLE, Same, is_value

_MOST_PARTS = 20_000


def pairs(old: Any, new: Any) -> list[tuple[Any, Any]] | None:
    """The objects that stand at the same places in two keys and are not the same; None where the keys differ in something else."""
    found: list[tuple[Any, Any]] = []
    return found if _paired(old, new, found) else None


def _paired(old: Any, new: Any, found: list[tuple[Any, Any]]) -> bool:
    if type(old) is Same and type(new) is Same:
        if old != new:
            found.append((old.value, new.value))
        return old.value is not None and new.value is not None
    if type(old) is tuple and type(new) is tuple:
        return len(old) == len(new) and all(_paired(a, b, found) for a, b in zip(old, new, strict=True))
    return type(old) is type(new) and bool(old == new)


def alike(old: Any, new: Any) -> list[tuple[Any, Any]] | None:
    """As `pairs`, of calls whose tensors may have other sizes: keys as `flatten_call` makes them, with the options of thermit."""
    (state, count, image, _, shared), options = old
    (now, number, other, _, same), current = new
    return pairs((state, count, image, shared, options), (now, number, other, same, current))


def lasting(first: Sequence[Guard], second: Sequence[Guard]) -> tuple[Guard, ...]:
    """What two traces found alike that changed the same thing, but for tensors: where it is so, the function will change it again."""
    before = {(str(guard.source), guard.kind): guard.expected for guard in first}
    return tuple([g for g in second if _same(before.get((str(g.source), g.kind), _NOTHING), g)])


def _same(was: Any, guard: Guard) -> bool:
    if guard.kind == "is" or was is guard.expected:
        return was is guard.expected and guard.kind in _COMPARED
    plain = type(was) is type(guard.expected) and (guard.kind != "equals" or type(was) in _NUMBERS)
    return plain and guard.kind in _COMPARED and bool(was == guard.expected)


_NOTHING = object()
_COMPARED = frozenset(("is", "equals", "type", "absent", "empty", "length", "keys", "missing", "deep"))
_NUMBERS = (int, float, str, bool, bytes)


class Exchange:
    """Old objects and their partners.  `fits` is false where the objects are not of one make."""

    def __init__(self, roots: Sequence[tuple[Any, Any]]) -> None:
        self._partner: dict[int, Any] = {}
        self._partnered: set[int] = set()
        self._keep: list[Any] = []
        self._moved: dict[int, Source] = {}
        self.fits = all(self._walk(old, new) for old, new in roots)

    def _walk(self, old: Any, new: Any) -> bool:
        if old is new or type(old) in IMMUTABLE or type(new) in IMMUTABLE:
            return True  # whether it is equal is for the guards to say
        kind = type(old)
        if type(new) is not kind:
            return False
        if id(old) in self._partner:
            return self._partner[id(old)] is new
        if is_value(old):
            return True
        if id(new) in self._partnered or len(self._partner) > _MOST_PARTS:
            return False
        self._partner[id(old)] = new
        self._partnered.add(id(new))
        self._keep.append((old, new))
        if kind in (torch.Tensor, torch.nn.Parameter):
            return True
        if kind in (list, tuple):  # what only one of them has is paired with nothing: guards on the way to it tell
            return all(self._walk(a, b) for a, b in zip(old, new, strict=False))
        if kind is dict:
            return all(type(k) is str for k in (*old, *new)) and all(self._walk(part, new[name]) for name, part in old.items() if name in new)
        return _is_plain(kind) and self._walk(vars(old), vars(new))

    # ------------------------------------------------------------------------------------------ facts
    def guards(self, guards: Sequence[Guard], call: Call) -> tuple[Guard, ...] | None:
        """The guards about the new objects; None where one does not hold, or where identity is a fact in another way."""
        moved = []
        for guard in guards:
            if self.stands_in(guard) or (guard.kind == "is" and self._is_foreign(guard.expected)):
                return None
            if any(self._is_foreign(root) for root in _roots(guard)):
                return None
            moved.append(self._guard(guard))
            if holds(moved[-1:], call) is not None:
                return None
        return tuple(moved)

    def _guard(self, guard: Guard) -> Guard:
        expected = guard.expected
        if guard.kind == "is":
            expected = self._partner.get(id(expected), expected)
        elif guard.kind == "same":
            expected = self.source(expected)
        elif guard.kind == "apart":
            expected = tuple(map(self.source, expected))
        source = self.source(guard.source)
        return guard if source is guard.source and expected is guard.expected else Guard(source, guard.kind, expected)

    def source(self, source: Source) -> Source:
        """The place in the new object."""
        found = self._moved.get(id(source))
        if found is None:
            self._keep.append(source)
            found = self._moved[id(source)] = self._source(source)
        return found

    def _source(self, source: Source) -> Source:
        if isinstance(source, Held):
            return Held(self._partner[id(source.value)], source.name) if id(source.value) in self._partner else source
        if isinstance(source, Attr | Item | Part):
            base = self.source(source.base)
            if base is source.base:
                return source
            return Attr(base, source.name) if isinstance(source, Attr) else type(source)(base, source.key)
        return source

    def template(self, template: Template) -> Template:
        """The template that reads from the new objects what the old one read from the old ones."""
        moved = {id(s): to for s in template.sources if (to := self.source(s)) is not s}
        return Template(template.kind, template.build_node, template.sources, moved)

    def _is_foreign(self, value: Any) -> bool:
        """Whether it is a new part that the facts know already, not as the partner of an old one."""
        return id(value) in self._partnered and id(value) not in self._partner

    def stands_in(self, guard: Guard) -> bool:
        """Whether the guard is of a container as it was, and an old or new part is in there."""
        objects = objects_in(guard.expected.image) if guard.kind == "deep" else ()
        return any(id(v) in self._partner or id(v) in self._partnered for v in objects)


def _is_plain(kind: type) -> bool:
    """Whether objects of this class are no more than what their dict holds: no module, no class of C's, no slots."""
    if class_origin(kind) < STANDARD or issubclass(kind, type | torch.nn.Module | dict | list | tuple | set | frozenset):
        return False
    return hasattr(kind, "__dict__") and kind.__dictoffset__ != 0 and not any(isinstance(v, MemberDescriptorType) for v in _members(kind))


def _members(kind: type) -> Iterator[Any]:
    for base in kind.__mro__[:-1]:
        yield from vars(base).values()


def _roots(guard: Guard) -> Iterator[Any]:
    """The objects that the places of a guard start from."""
    sources = guard.expected if guard.kind == "apart" else (guard.source, guard.expected) if guard.kind == "same" else (guard.source,)
    for source in sources:
        while isinstance(source, Attr | Item | Part):
            source = source.base
        if isinstance(source, Held):
            yield source.value


def objects_in(image: Any) -> Iterator[Any]:
    """The objects that an image, or a key, holds by identity."""
    if type(image) is Same:
        yield image.value
    elif type(image) is tuple:
        for part in image:
            yield from objects_in(part)
