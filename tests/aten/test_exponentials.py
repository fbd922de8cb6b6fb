"""Softmax, log_softmax and logsumexp: rows of infinities, rows with nan, results that underflow; between them about as accurate as eager."""

import numpy as np
import pytest
import torch

import thermit

inf, nan = float("inf"), float("nan")
FUNCTIONS = {
    "softmax": lambda x: torch.softmax(x, -1),
    "softmax, first axis": lambda x: torch.softmax(x.mT.contiguous(), -2).mT,
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "logsumexp": lambda x: torch.logsumexp(x, -1),
}
ROWS = [
    [1.0, 2, 3, 4],
    [-inf, -inf, -inf, -inf],
    [inf, 1, 2, 3],
    [inf, inf, -inf, 0],
    [nan, 1, 2, 3],
    [-inf, nan, inf, 0],
    [-inf, -inf, 0, -100],
    [-inf, -inf, -3e4, -3e4],
    [0, -87.4, -95, -103],
    [0, -104, -132, -150],
    [-3e4, -3e4, -3e4, -3e4],
    [3e4, -3e4, 0, 3e4],
]
by_name = pytest.mark.parametrize("name", FUNCTIONS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@by_name
def test_ends(name, dtype):
    """In rows of 4, and repeated so that vectors are whole and there is a rest."""
    f = FUNCTIONS[name]
    for times in (1, 5, 8):
        x = torch.tensor(ROWS).to(dtype).repeat(1, times)
        got, want = thermit.jit(f)(x), f(x)
        least = 2.0**-149 if dtype is torch.float32 else 0.0  # one unit of what is denormal
        rtol = {torch.float32: 1e-6, torch.float64: 1e-14, torch.bfloat16: 1e-2, torch.float16: 2e-3}[dtype]
        assert torch.allclose(got, want, rtol=rtol, atol=max(least, 1e-7 if dtype is torch.float16 else 0.0), equal_nan=True), (got, want)


@by_name
def test_as_accurate_as_eager(name):
    """But for the product with 1 / sum, where eager divides along the first axis."""
    f = FUNCTIONS[name]
    for scale in (1e-3, 1.0, 30.0):
        for columns in (3, 17, 1000, 5000):
            x = torch.randn(37, columns, generator=torch.Generator().manual_seed(columns)) * scale
            true = f(x.double()).numpy()
            least = 2.0**-20 if name.startswith("softmax") else scale  # beside a logarithm near 0 the rounding of x is all
            unit = np.spacing(np.maximum(np.abs(true), least).astype(np.float32)).astype(np.float64)
            ours, eager = (np.abs(got.double().numpy() - true) / unit for got in (thermit.jit(f)(x), f(x)))
            assert ours.max() <= eager.max() + 1 and ours.mean() <= 1.2 * eager.mean() + 0.02, (scale, columns, ours.max(), eager.max())
