"""Values of each element type at which conversions and arithmetic tend to go wrong."""

from __future__ import annotations

import numpy as np

from thermit.ir.interp import round_bfloat16
from thermit.ir.types import BFLOAT16, BOOL, DType

_FLOATS = [
    0.0,
    -0.0,
    0.5,
    -0.5,
    1.0,
    -1.0,
    1.5,
    -1.5,
    2.5,
    -2.5,
    0.49999997,
    3.0,
    -7.25,
    1e-3,
    127.5,
    255.0,
    256.0,
    -129.0,
    32767.5,
    65504.0,
    65520.0,
    70000.0,
    2.0**31,
    -(2.0**31),
    2.0**31 - 1,
    3e9,
    5e9,
    2.0**52 + 1,
    2.0**53,
    2.0**63,
    -(2.0**63),
    1e19,
    1e30,
    -1e30,
    6e-8,
    2e-8,
    1e-39,
    np.inf,
    -np.inf,
    np.nan,
]


def specials(dtype: DType) -> np.ndarray:
    """As interp holds them: bfloat16 in float32."""
    if dtype is BOOL:
        return np.array([False, True])
    if dtype.is_integer:
        edges = [
            dtype.min,
            dtype.min + 1,
            -129,
            -128,
            -3,
            -2,
            -1,
            0,
            1,
            2,
            3,
            5,
            7,
            10,
            100,
            127,
            128,
            255,
            256,
            65537,
            2**24 + 1,
            2**40 + 1,
            2**53 + 1,
            2**60 + 2**36 + 1,
            2**63 + 2**39 + 1,
            dtype.max - 1,
            dtype.max,
        ]
        return np.array(sorted({v for v in edges if dtype.min <= v <= dtype.max}), dtype.numpy)
    with np.errstate(all="ignore"):
        if dtype is BFLOAT16:
            return round_bfloat16(np.array(_FLOATS, np.float32))
        finite = np.finfo(dtype.numpy)
        extra = [
            finite.max,
            -finite.max,
            finite.tiny,
            -finite.tiny,
            finite.smallest_subnormal,
            -finite.smallest_subnormal,
            finite.tiny / 2,
            finite.eps,
            1 + finite.eps,
        ]
        return np.array(_FLOATS + [float(e) for e in extra], dtype.numpy)


def pairs(dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of special values."""
    x, y = np.meshgrid(specials(dtype), specials(dtype))
    return np.ascontiguousarray(x.ravel()), np.ascontiguousarray(y.ravel())
