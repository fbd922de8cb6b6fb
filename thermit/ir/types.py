"""The types of values: an element type and a shape.

What comes in: sizes and names of element types.  What goes out: `DType` singletons and `TensorType`, immutable and
comparable, used by every later room.  Strides and aliasing are facts of inputs and outputs (see `node.Graph`), not of types.
"""

from __future__ import annotations

import functools
import math
from typing import Literal

import numpy as np

from thermit.records import dataclass

Kind = Literal["bool", "int", "uint", "float", "complex"]


@dataclass(frozen=True, slots=True)
class DType:
    """An element type.  `bits` is the width in memory; a bool takes 8."""

    name: str
    kind: Kind
    bits: int

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return self.name

    @property
    def itemsize(self) -> int:
        """Bytes of one element in memory."""
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        """Signed or unsigned, bool excluded."""
        return self.kind in ("int", "uint")

    @property
    def is_complex(self) -> bool:
        return self.kind == "complex"

    @property
    def is_half(self) -> bool:
        """bfloat16 or float16: stored, moved and cast, never computed with (arithmetic goes through float32)."""
        return self.kind == "float" and self.bits == 16

    @property
    def min(self) -> int:
        """Smallest value of an integer type."""
        return -(1 << (self.bits - 1)) if self.kind == "int" else 0

    @property
    def max(self) -> int:
        """Largest value of an integer type."""
        return (1 << (self.bits - 1)) - 1 if self.kind == "int" else (1 << self.bits) - 1

    @property
    def largest(self) -> float:
        """Largest finite value of a float type."""
        digits, _, limit = FORMATS[self]
        return math.ldexp(1 - 2.0**-digits, limit)

    @property
    def numpy(self) -> np.dtype:
        """The numpy type that holds it in `interp`; bfloat16 is held as float32 whose low 16 bits are zero."""
        return np.dtype("float32" if self is BFLOAT16 else self.name)


BOOL = DType("bool", "bool", 8)
UINT8 = DType("uint8", "uint", 8)
UINT16 = DType("uint16", "uint", 16)
UINT32 = DType("uint32", "uint", 32)
UINT64 = DType("uint64", "uint", 64)
INT8 = DType("int8", "int", 8)
INT16 = DType("int16", "int", 16)
INT32 = DType("int32", "int", 32)
INT64 = DType("int64", "int", 64)
FLOAT16 = DType("float16", "float", 16)
BFLOAT16 = DType("bfloat16", "float", 16)
FLOAT32 = DType("float32", "float", 32)
FLOAT64 = DType("float64", "float", 64)
COMPLEX32 = DType("complex32", "complex", 32)
COMPLEX64 = DType("complex64", "complex", 64)
COMPLEX128 = DType("complex128", "complex", 128)

DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        BOOL, UINT8, UINT16, UINT32, UINT64, INT8, INT16, INT32, INT64,
        FLOAT16, BFLOAT16, FLOAT32, FLOAT64, COMPLEX32, COMPLEX64, COMPLEX128,
    )
}  # fmt: skip

FORMATS: dict[DType, tuple[int, int, int]] = {
    BFLOAT16: (8, -133, 128), FLOAT16: (11, -24, 16), FLOAT32: (24, -149, 128), FLOAT64: (53, -1074, 1024),
}  # fmt: skip
"""Of float types: digits of the significand, exponents of the least denormal number and of the first power of two that is too large."""

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and element type of a value; a scalar has shape ()."""

    shape: Shape
    dtype: DType

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype.name))

    def __str__(self) -> str:
        return f"{self.dtype.name}[{','.join(map(str, self.shape))}]"

    __repr__ = __str__

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.itemsize

    def with_shape(self, shape: Shape) -> TensorType:
        return TensorType(tuple(shape), self.dtype)

    def with_dtype(self, dtype: DType) -> TensorType:
        return TensorType(self.shape, dtype)


def contiguous_strides(shape: Shape) -> Shape:
    """Strides in elements of a row-major tensor; sizes 0 and 1 count as 1, as in PyTorch.

    >>> contiguous_strides((2, 3, 4))
    (12, 4, 1)
    """
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


@functools.lru_cache(maxsize=4096)
def reshape_blocks(outer: Shape, inner: Shape) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """The axes of two shapes of equally many elements (not 0), in the smallest blocks with the same product; axes of size 1 are left out.

    >>> reshape_blocks((6, 1, 4), (2, 3, 4))
    (((0,), (0, 1)), ((2,), (2,)))
    """
    left = [axis for axis, n in enumerate(outer) if n != 1]
    right = [axis for axis, n in enumerate(inner) if n != 1]
    blocks = []
    while left:
        a, b = [left.pop(0)], [right.pop(0)]
        m, n = outer[a[0]], inner[b[0]]
        while m != n:
            if m < n:
                a.append(left.pop(0))
                m *= outer[a[-1]]
            else:
                b.append(right.pop(0))
                n *= inner[b[-1]]
        blocks.append((tuple(a), tuple(b)))
    return tuple(blocks)
