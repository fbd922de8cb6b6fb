"""Element-wise operations whose results depend on more than their formula."""

import pytest
import torch

import thermit

inf, nan = float("inf"), float("nan")


@pytest.mark.parametrize("elements", [4, 37])
@pytest.mark.parametrize("value", [1.0, 88.65, 88.8, 89.3, -89.05, 89.6, float("nan"), float("-inf")])
def test_cosh_is_eagers_where_its_loops_disagree(elements, value):
    """The call stops before anything is written or drawn, and eager runs it."""

    def step(x):
        noise = torch.rand_like(x)
        x.add_(1)
        return torch.cosh(x - 1) * noise

    jitted = thermit.jit(step)
    for start in (2.0, value, 2.0):
        ours, theirs = torch.full((elements,), start), torch.full((elements,), start)
        torch.manual_seed(0)
        expected, after = step(theirs), torch.rand(1)
        torch.manual_seed(0)
        torch.testing.assert_close(jitted(ours), expected, rtol=3e-7, atol=0, equal_nan=True)
        assert torch.equal(torch.rand(1), after)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.int16])
@pytest.mark.parametrize("elements", [4, 37])
def test_cosh_of_what_is_computed_in_float32_is_eagers_too(elements, dtype):
    x = torch.full((elements,), 89, dtype=dtype)
    torch.testing.assert_close(thermit.jit(torch.cosh)(x), torch.cosh(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("exponent", [0.5, -0.5, 2, 3, -1, -2])
def test_powers_of_special_values(exponent, dtype):
    """A root of float16 is a power: of -0.0 it is 0.0, of minus infinity infinity."""
    x = torch.tensor([0.0, -0.0, inf, -inf, nan, 4.0, -4.0], dtype=dtype)
    got, want = thermit.jit(lambda x: x**exponent)(x), x**exponent
    assert torch.equal(got.nan_to_num(9), want.nan_to_num(9)) and torch.equal(got.signbit() & ~got.isnan(), want.signbit() & ~want.isnan())


@pytest.mark.parametrize("function", [torch.add, torch.sub])
@pytest.mark.parametrize("alpha", [2, -2, 0.5, 0.25, 3, -1, 0])
def test_products_in_sums_of_halves_overflow_and_vanish_as_eagers(alpha, function):
    """In its vector loop eager rounds the product first: it may be infinite, or nothing is left of it."""
    for dtype in (torch.float16, torch.bfloat16):
        x = torch.tensor([65504.0, 40000.0, 6e-8, -1e-7, -1e-40, 1.0], dtype=dtype).repeat(7)
        assert torch.equal(thermit.jit(lambda x: function(x, x, alpha=alpha))(x), function(x, x, alpha=alpha))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_numbers_beyond_a_type_are_refused_as_by_eager(dtype):
    """Also those that rounding would bring back into it."""
    largest = torch.finfo(dtype).max
    for value in (largest, largest * (1 + 2.0**-30), inf):
        for function in (lambda x: x.masked_fill(x > 0, value), lambda x: torch.full_like(x, value)):  # noqa: B023
            results = []
            for f in (thermit.jit(function), function):
                try:
                    results.append(f(torch.ones(3, dtype=dtype)).tolist())
                except RuntimeError as refusal:
                    results.append(str(refusal))
            assert results[0] == results[1]
