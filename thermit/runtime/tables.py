"""Tables of 64-bit words that native code reads: made once, never changed, kept alive by whoever made them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any


def words(values: Sequence[int]) -> Any:
    """An array of 64-bit words in memory; unsigned values wrap."""
    return (ctypes.c_int64 * max(1, len(values)))(*(v - (1 << 64) if v >= 1 << 63 else v for v in values))


class Tables:
    """Arrays of words, and objects, that stay where they are as long as this object lives."""

    def __init__(self) -> None:
        self.keep: list[Any] = []

    def add(self, values: Sequence[int]) -> int:
        """Address of a new array."""
        array = words(values)
        self.keep.append(array)
        return ctypes.addressof(array)

    def object(self, value: Any) -> int:
        """Address of a Python object."""
        self.keep.append(value)
        return id(value)
