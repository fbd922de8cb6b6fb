"""What is known of the lanes of a vector loop."""

import torch

import thermit
from thermit.codegen.lanes import Lanes, LaneSteps
from thermit.ir import build as b
from thermit.ir.types import INT64


def test_a_number_that_divides_divides():
    """Products above 2^40 were said to be multiples of it."""
    steps, i, j = LaneSteps(), b.index("i"), b.index("j")
    steps.enter(Lanes(j, 8, "%j", 1, None, 8))
    for factor in (3, 24, 3**26, 5**20 * 8, 1 << 41, 3 << 40):
        scaled = b.mul(i, b.const(factor, INT64))
        assert factor % steps.multiple(scaled) == 0
        assert (steps.multiple(b.add(scaled, j)) % 8 == 0) == (factor % 8 == 0)


def test_quotients_and_remainders_of_large_multiples():
    def f(x):
        place = torch.arange(4)[:, None] * 3**26 + torch.arange(64)
        return torch.div(place, 8, rounding_mode="trunc") + x, place % 8 + x

    x = torch.arange(256).view(4, 64)
    for got, want in zip(thermit.jit(f)(x), f(x), strict=True):
        assert torch.equal(got, want)
