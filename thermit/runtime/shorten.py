"""The short way through the guards of a variant, found when calls have gone the long way for a while.

    Shortened(...)(*args, **kwargs)   called natively after a call whose guards all held

Idea: a model has thousands of facts that hardly ever change, and most of them change a version when they do (runtime/unchanged.py).  What is left
is a table of words to compare and the few instructions that words do not stand for.
Invariant: the guards are checked once more between the reading of the words and their use, so a table never vouches for what another
thread changed meanwhile.  A table that calls may be reading is not freed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Protocol

from thermit.capture.signature import Call, Guard, Source, TensorSpec, holds
from thermit.runtime.guard import GuardTable
from thermit.runtime.layout import layout
from thermit.runtime.native.calling import CONSTANTS
from thermit.runtime.torch_abi import Abi
from thermit.runtime.unchanged import Unchanged

WORTH = 48  # instructions; below, all of them take a microsecond
_MOST = 1024  # calls that go the long way between two attempts


class Checked(Protocol):
    """What is checked of a variant."""

    @property
    def positional(self) -> int: ...
    @property
    def keywords(self) -> tuple[str, ...]: ...
    @property
    def tensors(self) -> tuple[tuple[Source, TensorSpec], ...]: ...
    @property
    def guards(self) -> tuple[Guard, ...]: ...


class Shortened:
    """`variant`: address of the words of a variant; `entry`: those of its entry."""

    def __init__(self, abi: Abi, checked: Checked, whole: GuardTable, updates: Sequence[int], entry: Any) -> None:
        self._abi, self._checked, self._slots, self._updates, self._entry = abi, checked, whole.slots, updates, entry
        self._kept: list[Any] = []
        self._wait = 8
        self.variant = 0

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Looks for a short way, for calls as this one."""
        self._set("WHOLE", -self._wait)
        self._wait = min(2 * self._wait, _MOST)
        self._set("SHORT", 0)
        if self._entry[CONSTANTS["E_RUNNING"] // 8] == 1:  # no other call is under way
            self._kept.clear()
        found = layout()
        if found is None:
            return
        v, unchanged = self._checked, Unchanged(found)
        table = GuardTable(self._abi, v.positional, v.keywords, v.tensors, v.guards, self._updates, unchanged)
        if table.slots > self._slots or holds(v.guards, Call(args, kwargs)) is not None or not unchanged.stand():
            return
        pairs = table.add(unchanged.table())
        short = table.add([pairs, pairs + 16 * len(unchanged.words), table.address(), table.count])
        self._kept += [table, unchanged]
        self._set("SHORT", short)

    def _set(self, name: str, value: int) -> None:
        ctypes.c_int64.from_address(self.variant + CONSTANTS[f"V_{name}"]).value = value
