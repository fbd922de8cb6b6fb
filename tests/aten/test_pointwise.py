"""Element-wise operations whose results depend on more than their formula."""

import pytest
import torch

import thermit


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
