"""fmax and fmin of zeros of both signs: eager always gives the same one, and so do we.  A nan anywhere is the extreme."""

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["amax", "amin"])
def test_a_nan_at_any_place(name, dtype):
    """Row k of n has it at place k; then rows of one value only, and one without."""
    for n in (1, 3, 8, 17, 37, 100):
        x = torch.randn(n + 4, n, generator=torch.Generator().manual_seed(n)).to(dtype)
        x[torch.arange(n), torch.arange(n)] = nan
        x[n], x[n + 1], x[n + 2] = inf, -inf, nan
        for axis in (1, 0):
            function = lambda x, axis=axis: getattr(x, name)(axis)  # noqa: E731
            assert torch.equal(*(f(x).nan_to_num(1e30, 2e30, -2e30) for f in (thermit.jit(function), function)))
