"""How LLVM writes types and constants, and where instructions go.

In:  element types, values, numbers of lanes (0: a scalar).  Out: text.
In registers a bool is an i1, bfloat16 and float16 are their bits in an i16; in memory a bool is an i8.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Protocol

from thermit.codegen.target import Target
from thermit.ir.types import BOOL, FLOAT16, DType


class Writer(Protocol):
    """Where instructions go."""

    target: Target

    def op(self, text: str) -> str:
        """Appends `%new = text` and gives %new."""
        ...

    def append(self, text: str) -> None:
        """Appends a line as it is."""
        ...

    def label(self, stem: str) -> str:
        """A new name for a block."""
        ...

    def begin_block(self, label: str) -> None:
        """What follows stands in this block; the one before must have ended."""
        ...

    def helper(self, name: str, make: Callable[[], str]) -> str:
        """`@name`, a private function of the module, whose text is made once."""
        ...


_SCALAR = {"bool": "i1", "float32": "float", "float64": "double", "bfloat16": "i16", "float16": "i16"}
_SUFFIX = {"float32": "f32", "float64": "f64"}


def scalar_type(dtype: DType) -> str:
    """LLVM's type of one element in a register."""
    return _SCALAR.get(dtype.name) or f"i{dtype.bits}"


def memory_type(dtype: DType) -> str:
    """LLVM's type of one element in memory."""
    return "i8" if dtype is BOOL else scalar_type(dtype)


def vector(type_text: str, lanes: int) -> str:
    return f"<{lanes} x {type_text}>" if lanes else type_text


def register_type(dtype: DType, lanes: int) -> str:
    return vector(scalar_type(dtype), lanes)


def half_bits(value: float, dtype: DType) -> int:
    """The bits of a float that is exact in bfloat16 or float16."""
    if dtype is FLOAT16:
        return int(struct.unpack("<H", struct.pack("<e", value))[0])
    return int(struct.unpack("<I", struct.pack("<f", value))[0]) >> 16


def literal(value: bool | int | float, dtype: DType) -> str:
    """A constant as LLVM writes it."""
    if dtype is BOOL:
        return "true" if value else "false"
    if dtype.is_half:
        return str(half_bits(float(value), dtype))
    if dtype.is_float:
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    return str(int(value))


def constant(value: bool | int | float, dtype: DType, lanes: int) -> str:
    text = literal(value, dtype)
    return f"splat ({scalar_type(dtype)} {text})" if lanes else text


def intrinsic(name: str, suffix: str, lanes: int) -> str:
    """`llvm.fabs` on <8 x float> is `@llvm.fabs.v8f32`."""
    return f"@{name}.v{lanes}{suffix}" if lanes else f"@{name}.{suffix}"


def type_suffix(dtype: DType) -> str:
    return _SUFFIX.get(dtype.name) or scalar_type(dtype)


def is_signed(dtype: DType) -> bool:
    return dtype.kind == "int"
