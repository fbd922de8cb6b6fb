"""one_hot shows to a trace without the look that eager takes at its classes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import thermit


def hot(i):
    return F.one_hot(i, 4) * 2


def hot_below(i, x):
    return F.one_hot(i.clamp(max=x.sum() + 9).long(), 4) @ x


def hot_and_eager(i):
    j = F.one_hot(i, 4)
    return j * int(j.sum())


def eager_and_hot(i):
    return F.one_hot(i, 4) * int(i.sum())


def late(i):
    return int(i[:0].sum()) + F.one_hot(i, 4)


FUNCTIONS = [hot, hot_and_eager, eager_and_hot, late]


@pytest.mark.filterwarnings("ignore::thermit.ThermitWarning")
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("classes", [[0, 3, 1], [1, 4, 0], [1, -1, 0], []])
def test_as_in_eager(function, first, classes):
    jitted, i = thermit.jit(function), torch.tensor(classes, dtype=torch.int64)
    if first:
        jitted(torch.tensor([3, 0, 1]))
    try:
        want = function(i)
    except RuntimeError as error:
        with pytest.raises(RuntimeError) as raised:
            jitted(i)
        assert str(raised.value) == str(error)
    else:
        assert torch.equal(jitted(i), want)


@pytest.mark.parametrize("count", [0, -3])
def test_no_classes(count):
    def function(i):
        return F.one_hot(i, count)

    with pytest.raises(RuntimeError) as want:
        function(torch.tensor([0]))
    with pytest.raises(RuntimeError) as got:
        thermit.jit(function)(torch.tensor([0]))
    if count == 0:
        assert str(got.value) == str(want.value)


def test_it_is_compiled():
    i, x = torch.tensor([[0, 1], [2, 3]]), torch.ones(4, 2, dtype=torch.int64)
    jitted = thermit.jit(hot_below, strict=True)
    for _ in range(2):
        assert torch.equal(jitted(i, x), hot_below(i, x))
    other = thermit.jit(lambda i: (F.one_hot(i, 3), i == torch.arange(2)), strict=True)
    assert other(torch.tensor([2, 1]))[1].tolist() == [False, True]
    assert other(torch.tensor([0, 7]).clamp(max=2))[1].tolist() == [True, False]
