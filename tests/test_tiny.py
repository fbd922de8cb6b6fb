"""Ten lines that a newcomer runs first."""

import warnings

import torch

import thermit


@thermit.jit
def f(x, y):
    return torch.nn.functional.gelu(x * 2 + y.sin()) * torch.sigmoid(y)


def test_the_example_of_the_readme():
    x, y = torch.randn(8, 16), torch.randn(16)
    for _ in range(3):
        torch.testing.assert_close(f(x, y), f.__wrapped__(x, y))
    assert f.explain(x, y).kernels == 1


def test_softmax_and_layer_norm_are_one_kernel_each():
    x = torch.randn(64, 100)
    for function in (lambda x: torch.softmax(x, -1), lambda x: torch.nn.functional.layer_norm(x, (100,))):
        jitted = thermit.jit(function)
        torch.testing.assert_close(jitted(x), function(x))
        assert jitted.explain(x).kernels == 1


def test_a_function_that_branches_on_values_is_right_too():
    def g(x):
        return x + 1 if x.sum() > 0 else x - 1

    jitted = thermit.jit(g)
    with thermit.disable():
        assert torch.equal(jitted(torch.ones(3)), torch.full((3,), 2.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", thermit.ThermitWarning)
        assert torch.equal(jitted(torch.ones(3)), torch.full((3,), 2.0))
        assert torch.equal(jitted(-torch.ones(3)), torch.full((3,), -2.0))
