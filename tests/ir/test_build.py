"""Constants have the bits that PyTorch's casts give; sums of one term are sums."""

import math

import pytest
import torch

from thermit.aten.table import DTYPE_OF
from thermit.ir import build as b
from thermit.ir import prims as p
from thermit.ir.types import FLOAT32, INT64, TensorType

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
BETWEEN = [1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-11 + 2.0**-40, 65519.999999, 2.0**-25 * (1 + 2.0**-40), 3.3961775292304e38]  # float32 lies on a tie
WHOLE = [2**60 + 2**36 + 1, -(2**60) - 2**36 - 1, 2**63 - 1, -(2**63), 2**53 + 1, 2**24 + 1, 65519, 257, 0]  # float64 may lie on one


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("value", [*BETWEEN, *WHOLE, 0.1, -0.0, 1e-46, 1e300, math.inf, math.nan])
def test_constants_are_rounded_as_tensors_are(value, dtype):
    want = torch.tensor(value, dtype=torch.int64 if isinstance(value, int) else torch.float64).to(dtype)
    assert b.is_const(b.const(value, DTYPE_OF[dtype]), want.item())
    whole = (
        b.cast(b.const(value, INT64), DTYPE_OF[dtype]) if isinstance(value, int) else b.cast(b.const(value, DTYPE_OF[torch.float64]), DTYPE_OF[dtype])
    )
    assert b.is_const(whole, want.item())


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_largest_number_of_a_type(dtype):
    assert DTYPE_OF[dtype].largest == torch.finfo(dtype).max


def test_a_sum_of_one_term_adds_it_to_nothing():
    """-0.0 alone becomes 0.0: over no axis, over one of size 1, in a running sum.  A product leaves it."""
    one, scalar = b.graph_input(0, TensorType((3, 1), FLOAT32)), b.graph_input(0, TensorType((), FLOAT32))
    for made in (b.reduce(p.SUM, scalar, ()), b.reduce(p.SUM, one, (1,)).args[0], b.scan(p.CUMSUM, one, 1)):
        assert made.prim is p.ADD and b.is_const(made.args[1], 0.0)
    assert b.reduce(p.PROD, scalar, ()) is scalar and b.scan(p.CUMPROD, one, 1) is one
