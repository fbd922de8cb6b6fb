"""What a function returns or keeps is real, whatever became of its trace; and of the kind that eager makes."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.utils._pytree import tree_leaves

import thermit
from thermit.capture.standin import is_stand_in


def test_views_of_a_leaf_without_gradients():
    def f(a):
        return a, a.view(-1), a.detach(), a.mul_(2)

    with torch.no_grad():
        x, y = torch.ones(3, 4, requires_grad=True), torch.ones(3, 4, requires_grad=True)
        want, got = f(x), thermit.jit(f)(y)
    assert not any(map(is_stand_in, got))
    assert [t is y for t in got] == [t is x for t in want] and torch.equal(got[1], want[1])


class Kept:
    pass


def test_tensors_kept_in_objects_are_real():
    kept = Kept()

    def f(a):
        kept.itself, kept.view, kept.new = a, a.view(-1), a * 2
        return a * 3

    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        result = thermit.jit(f)(torch.ones(2, 2, requires_grad=True))
    assert not any(map(is_stand_in, (result, kept.itself, kept.view, kept.new)))
    assert torch.equal(kept.view, torch.ones(4)) and kept.itself.requires_grad


def test_gradients_inside_a_function():
    def f(a):
        w = torch.zeros(4).requires_grad_()
        loss = (w * a).sum()
        return (loss + 1 if float(a.sum()) > 0 else loss), w

    x = torch.tensor([1.0, 2, 3, 4])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loss, w = thermit.jit(f)(x)
    assert not is_stand_in(loss) and not is_stand_in(w)
    loss.backward()
    assert torch.equal(w.grad, x) and not is_stand_in(w.grad)


@pytest.mark.parametrize("made", [lambda a: a * 2, lambda a: (a * 2, (a + 1)[1:]), lambda a: {"x": a + 1, "y": a}], ids=["one", "two", "input"])
def test_inference_mode_inside(made):
    def f(a):
        with torch.inference_mode():
            return made(a)

    x = torch.arange(4.0)
    compiled = thermit.jit(f, strict=True)
    for _ in range(2):
        for g, w in zip(tree_leaves(compiled(x)), tree_leaves(f(x)), strict=True):
            assert torch.equal(g, w) and g.is_inference() == w.is_inference() and g.stride() == w.stride()


def test_before_and_after_inference_mode():
    def f(a):
        before = a + 1
        with torch.inference_mode():
            inside = before * 2
        return before, inside, inside * a

    x = torch.arange(4.0)
    got, want = thermit.jit(f, strict=True)(x), f(x)
    assert [t.is_inference() for t in got] == [t.is_inference() for t in want] == [False, True, False]


def test_a_write_to_an_inference_tensor_is_eagers_error():
    def f(a):
        with torch.inference_mode():
            inside = a * 2
        inside.add_(1)
        return inside

    with warnings.catch_warnings(), pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        warnings.simplefilter("ignore")
        thermit.jit(f)(torch.ones(3))


@pytest.mark.parametrize("write", [lambda x, y: x.add_(1), lambda x, y: y.add_(1), lambda x, y: None])
def test_a_view_of_an_ordinary_tensor_is_ordinary_in_inference_mode(write):
    def f(x):
        with torch.inference_mode():
            y = x[1:]
            z = y * 2
            write(x, y)
        return y, z, x * 3

    jitted = thermit.jit(f)
    for _ in range(3):
        mine, its = torch.arange(6.0), torch.arange(6.0)
        for a, b in zip(jitted(mine), f(its), strict=True):
            assert torch.equal(a, b) and a.is_inference() == b.is_inference()
        assert torch.equal(mine, its)
