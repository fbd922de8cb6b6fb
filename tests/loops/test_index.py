"""Index arithmetic with places that are data: what may wrap around or be negative by itself."""

import pytest
import torch

import thermit
from thermit.ir import build as b
from thermit.ir.types import INT64
from thermit.loops.index import UNBOUNDED, Indices

LEAST, MOST = -(2**63), 2**63 - 1


def at(value: int) -> torch.Tensor:
    return torch.full((2,), value)


@pytest.mark.parametrize(
    "place, values",
    [
        (lambda x: torch.minimum(x, at(50)) - 10, [LEAST, 12]),
        (lambda x: torch.minimum(torch.maximum(x, at(0)), at(2**61)) * 8, [2**60, 3]),
        (lambda x: torch.maximum(x, at(0)) + 1, [MOST, 3]),
        (lambda x: -torch.minimum(x, at(0)), [LEAST, -3]),
    ],
)
def test_a_clamped_place_that_wraps_around_is_out_of_range(place, values):
    compiled = thermit.jit(lambda table, x: table.index_select(0, place(x)))
    table = torch.arange(64.0)
    assert torch.equal(compiled(table, at(values[1])), table.index_select(0, place(at(values[1]))))
    with pytest.raises(IndexError):
        compiled(table, torch.tensor(values))


def test_bounds_open_on_one_side_are_kept_only_where_nothing_is_added():
    indices = Indices()
    x = b.minimum(b.load("in0", INT64, indices.variable("i", 4)), b.const(5, INT64))
    assert indices.bounds(x) == (-UNBOUNDED, 5)
    assert indices.bounds(indices.linear([(1, x)], -3)) == indices.bounds(indices.linear([(2, x)])) == (-UNBOUNDED, UNBOUNDED)


def test_a_place_with_a_part_that_is_negative_is_divided_as_a_whole():
    """Of 8 a + b the 8 a was divided apart, and b / 8 rounded towards zero: memory in front of the tensor was read."""

    def f(t, a, b):
        return t.view(8, 8).t().reshape(64).index_select(0, a * 8 + b), t.view(8, 8).t().reshape(64).index_select(0, b + a * 8 + torch.arange(2))

    args = torch.arange(64.0), torch.tensor([2, 3]), torch.tensor([-1, -9])
    for got, want in zip(thermit.jit(f)(*args), f(*args), strict=True):
        assert torch.equal(got, want)
