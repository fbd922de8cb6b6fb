"""Where CPython keeps what tells that an object is as it was: the version of a dict and of a class, the dict of an object, the code of a function.

In:  objects made for the purpose.  Out: `layout()`: offsets; None where one of them is not found, or does not behave.
Idea: as in torch_abi, nothing is assumed: each place is found by what changes there when the one thing is changed, and only then.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from thermit.records import dataclass
from thermit.runtime.torch_abi import word

MANAGED_DICT = 1 << 4  # Py_TPFLAGS_MANAGED_DICT: the dict of an object of the class is kept before the object
_BEFORE = (-24, -32, -40)


@dataclass(frozen=True, slots=True)
class Layout:
    """Offsets in bytes.  `dict_version`, `class_version`: words that change whenever the dict, or the class or one of its bases, is changed,
    and never come back.  `own_dict`: the dict of an object whose class has the flag MANAGED_DICT.  `code`: of a function.  `used`: of a set."""

    dict_version: int
    class_version: int
    own_dict: int
    code: int
    used: int


class _Plain:
    pass


@functools.cache
def layout() -> Layout | None:
    """The offsets, found at the first call."""
    found = _dict_version(), _class_version(), _own_dict(), _code(), _used()
    return None if None in found else Layout(*found)  # type: ignore[arg-type]


def _one(offsets: list[int]) -> int | None:
    return offsets[0] if len(offsets) == 1 else None


def _store(o: Any, value: Any, _: Any) -> None:
    for _ in range(40):  # often enough for the interpreter to specialise the instruction
        o.x = value


_CHANGES: tuple[Callable[[dict[str, Any]], Any], ...] = (
    lambda d: d.__setitem__("a", object()),
    lambda d: d.update(b=object()),
    lambda d: d.pop("b"),
    lambda d: d.setdefault("c", 3),
    lambda d: d.__delitem__("c"),
    lambda d: d.__ior__({"a": object()}),
    lambda d: d.clear(),
    lambda d: d.update(a=1),
    lambda d: d.popitem(),
)
_READS: tuple[Callable[[dict[str, Any]], Any], ...] = (
    lambda d: d.get("a"), lambda d: "b" in d, lambda d: list(d.items()), lambda d: d.copy(), lambda d: dict(d), lambda d: len(d), repr,
)  # fmt: skip


def _dict_version() -> int | None:
    """The word of a dict that has another value after each change, never one that it had, and stays when the dict is only read."""

    def behaves(d: Any, at: int, changes: Any) -> bool:
        seen = {word(id(d) + at)}
        for n, change in enumerate(changes, 2):
            change(d)
            for read in _READS:
                read(d)
            now = word(id(d) + at)
            seen.add(now)
            if len(seen) != n or any(read(d) is None and word(id(d) + at) != now for read in _READS):
                return False
        return True

    good = []
    for at in (16, 24, 32, 40):
        holder = _Plain()
        stores = [functools.partial(_store, holder, k) for k in range(1000, 1010)]  # through an object, as code does it
        kinds: tuple[dict[str, Any], ...] = (dict.fromkeys("xyz"), {}, OrderedDict(q=1))
        if all(behaves(d, at, _CHANGES) for d in kinds) and behaves(vars(holder), at, stores):
            good.append(at)
    return _one(good)


def _class_version() -> int | None:
    """The word of a class that changes with the class and with its bases, and is one that no class had before."""

    def make() -> tuple[Any, Any]:
        base: Any = type("Base", (), {"x": 1})
        return base, type("Derived", (base,), {})

    (base, derived), (other, _) = make(), make()
    good = []
    for at in range(16, 400, 8):
        seen: list[int] = []
        for n in range(4):
            for kind in (base, derived, other):
                ask(kind)
            now = [word(id(k) + at) for k in (base, derived, other)]
            seen += now[:2] if n else now
            if 0 in now or word(id(other) + at) != now[2]:
                break
            base.x = n
            if any(word(id(k) + at) == v for k, v in zip((base, derived), now, strict=False)):
                break
        else:
            if len(set(seen)) == len(seen) and max(seen) < 1 << 32:
                good.append(at)
    return _one(good)


def ask(kind: type) -> None:
    """A look-up in a class: from then on its version counts."""
    getattr(kind, "thermit_asks", None)


def _own_dict() -> int | None:
    good = []
    for at in _BEFORE:
        o, other = _Plain(), {"x": 1}
        first = vars(o)
        before = word(id(o) + at) == id(first)
        o.__dict__ = other
        if before and word(id(o) + at) == id(other) == id(vars(o)):
            good.append(at)
    return _one(good) if _Plain.__flags__ & MANAGED_DICT else None


def _code() -> int | None:
    def f() -> None:
        pass

    def g() -> int:
        return 1

    before = [at for at in range(16, 160, 8) if word(id(f) + at) == id(f.__code__)]
    f.__code__ = g.__code__
    return _one([at for at in before if word(id(f) + at) == id(g.__code__)])


def _used() -> int | None:
    good = []
    for at in (16, 24, 32):
        s = {1, 2, 3}
        counts = [word(id(s) + at)]
        s.remove(2)
        counts.append(word(id(s) + at))
        s.clear()
        counts.append(word(id(s) + at))
        if counts == [3, 2, 0]:
            good.append(at)
    return _one(good)
