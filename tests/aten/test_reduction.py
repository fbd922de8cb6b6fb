"""Sums and what is made of them are at least as accurate as eager's, measured against float64 (products round once a factor in any order)."""

import pytest
import torch

import thermit

inf, nan = float("inf"), float("nan")
FUNCTIONS = {
    "sum": lambda x: x.sum(-1),
    "mean": lambda x: x.mean(-1),
    "var": lambda x: x.var(-1),
    "std": lambda x: x.std(-1),
    "var_mean": lambda x: torch.stack(torch.var_mean(x, -1)),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=-1),
    "logsumexp": lambda x: torch.logsumexp(x, -1),
    "sum of columns": lambda x: x.sum(0),
    "var of columns": lambda x: x.var(0),
}


def errors(result: torch.Tensor, true: torch.Tensor) -> tuple[float, float]:
    """The largest and the mean error in units of the last place of the largest result."""
    units = (result.double() - true).abs() / (true.abs().max() * 2.0**-24)
    return float(units.max()), float(units.mean())


@pytest.mark.parametrize("mean", [0.0, 1.0, 1e4])
@pytest.mark.parametrize("columns", [10, 1003, 20000])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_at_least_as_accurate_as_eager(name, columns, mean):
    function = FUNCTIONS[name]
    x = torch.randn(200, columns, generator=torch.Generator().manual_seed(columns)) + mean
    true = function(x.double())
    (worst, usual), (eager_worst, eager_usual) = errors(thermit.jit(function)(x), true), errors(function(x), true)
    assert worst <= max(1.5 * eager_worst, 2.0)  # units: one is what rounding the result may take
    assert usual <= max(1.25 * eager_usual, 0.35)


@pytest.mark.parametrize("rows", [20, 32, 48, 63, 64, 100, 130, 1000])
def test_sums_of_an_axis_between_others_are_as_accurate(rows):
    """Eager adds 16 at a time; so do we where an axis is not much longer, as each term more is an error more."""
    x = torch.rand(40, rows, 50, generator=torch.Generator().manual_seed(rows)) + 3
    true = x.double().sum(1)
    (_, usual), (_, eager_usual) = errors(thermit.jit(lambda x: x.sum(1))(x), true), errors(x.sum(1), true)
    assert usual <= 1.2 * eager_usual


@pytest.mark.parametrize("first", [0.0, 1e10, -3e15, 1e19])
def test_variance_where_the_first_element_is_far_from_the_others(first):
    """The distances are taken from it, and what they lose is made up for by the variance, which it makes large."""
    x = torch.randn(50, 1000, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).float()
    x[:, 0] += first
    want = x.double().var(1)
    for layout in (x, x.t().contiguous().t()):
        got = thermit.jit(lambda x: x.var(1))(layout).double()
        assert ((got - want).abs() <= want * 2.0**-23).all()


def test_variance_of_what_does_not_vary_or_is_not_finite():
    rows = torch.tensor([[inf, 1, 2], [1, inf, 2], [nan, 1, 2], [1, 2, nan], [-inf, inf, 0], [7, 7, 7], [1e5, -1e5, 3]]).repeat(1, 20)
    function = lambda x: torch.stack(torch.var_mean(x, 1, correction=0))  # noqa: E731
    for layout in (rows, rows.double(), rows.t().contiguous().t(), rows[:, :1]):
        got, want = thermit.jit(function)(layout), function(layout)
        assert torch.allclose(got, want, rtol=1e-6, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("columns", [1, 7, 16, 37, 200, 70000])
def test_statistics_under_a_mask(columns, dtype):
    """Flags that select, that are counted, and both."""

    def statistics(x, mask):
        count = mask.sum(1)
        total = torch.where(mask, x, 0.0).sum(1)
        return (
            count,
            total,
            torch.where(mask, x, -inf).amax(1),
            torch.where(mask, 1, 0).sum(1),
            (mask & (x > 0)).sum(1),
            mask.to(torch.float32).mean(1),
        )

    generator = torch.Generator().manual_seed(columns)
    x = torch.randint(-8, 9, (5, columns), generator=generator).to(dtype)  # so that sums are exact
    mask = torch.rand(5, columns, generator=generator) < 0.6
    mask[1], mask[2] = False, True
    for got, want in zip(thermit.jit(statistics)(x, mask), statistics(x, mask), strict=True):
        assert got.dtype == want.dtype and torch.allclose(got.double(), want.double(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (3, 1), (3,), (17,)], ids=str)
def test_signs_of_sums_of_zeros(shape, dtype):
    """Eager adds to 0.0, also what it adds up alone; a running sum of a tensor without axes is a copy."""
    zeros = torch.full(shape, -0.0, dtype=dtype)
    for function in (torch.sum, torch.nansum, torch.mean, torch.prod, lambda x: x.sum(-1), lambda x: x.cumsum(-1), lambda x: x.cumprod(-1)):
        assert torch.equal(thermit.jit(function)(zeros).signbit(), function(zeros).signbit())


@pytest.mark.parametrize("order", [2, 3, 1, 0, 0.5, -1, inf, -inf])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (4, 1)], ids=str)
def test_norms_of_one_element(shape, order):
    """Its absolute value, which is not squared: neither too large nor too small for that."""
    for value in (1e30, -1e-30, nan, -inf, -0.0):
        x = torch.full(shape, value)
        for axis in (None, -1) if shape else (None,):
            function = lambda x, axis=axis: torch.linalg.vector_norm(x, order, dim=axis)  # noqa: E731
            torch.testing.assert_close(thermit.jit(function)(x), function(x), rtol=1e-6, atol=0, equal_nan=True)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("shape", [(0,), (3, 0), (1,), ()], ids=str)
@pytest.mark.parametrize("correction", [-1, 0, 1, 2.5])
def test_variance_of_few_or_no_elements(shape, correction):
    function = lambda x: torch.stack([x.var(correction=correction), x.std(correction=correction)])  # noqa: E731
    x = torch.full(shape, 3.0)
    torch.testing.assert_close(thermit.jit(function)(x), function(x), equal_nan=True)
