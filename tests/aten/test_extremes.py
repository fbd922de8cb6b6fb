"""fmax and fmin of zeros of both signs: eager always gives the same one, and so do we."""

import pytest
import torch

import thermit

inf, nan = float("inf"), float("nan")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("op", [torch.fmax, torch.fmin])
def test_signs_of_zeros(op, dtype):
    values = torch.tensor([0.0, -0.0, 1.0, -1.0, inf, -inf, nan], dtype=dtype)
    x, y = values.repeat_interleave(7), values.repeat(7)
    got, want = thermit.jit(lambda x, y: op(x, y))(x, y), op(x, y)
    assert torch.equal(got.signbit() & ~got.isnan(), want.signbit() & ~want.isnan()) and torch.equal(got.nan_to_num(9), want.nan_to_num(9))
