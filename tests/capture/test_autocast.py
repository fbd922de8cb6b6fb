"""Autocast: weights that require grad are cast at each call, and its cache is left alone while a function is traced."""

from __future__ import annotations

import pytest
import torch

import thermit


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()


def test_a_module_is_compiled():
    module, x = network(), torch.randn(4, 8)
    jitted = thermit.jit(module, strict=True)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(2):
            got, want = jitted(x), module(x)
            assert got.dtype == torch.bfloat16 and not got.requires_grad and torch.is_autocast_cache_enabled()
            torch.testing.assert_close(got, want)
    with torch.no_grad():
        assert jitted(x).dtype == torch.float32


def test_inside_the_function_and_weights_that_change():
    module, x = network(), torch.randn(4, 8)

    def twice(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = module(x) + module(x + 1)
        return y.float()

    jitted = thermit.jit(twice, strict=True)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(jitted(x), twice(x), rtol=2e-2, atol=2e-2)
            module[0].weight.mul_(2)


def test_gradients_afterwards():
    module, x = network(), torch.randn(4, 8)
    jitted = thermit.jit(module)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.no_grad():
            jitted(x)
        jitted(x).sum().backward()
    assert module[0].weight.grad is not None


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.filterwarnings("ignore::thermit.ThermitWarning")
def test_the_cache_is_as_it_was(enabled):
    def fails(x):
        raise RuntimeError("not today")

    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(enabled)
    try:
        thermit.jit(lambda x: x * x.sum().item())(torch.ones(2))
        with pytest.raises(RuntimeError, match="not today"):
            thermit.jit(fails)(torch.ones(2))
        assert torch.is_autocast_cache_enabled() is enabled
    finally:
        torch.set_autocast_cache_enabled(before)


def test_parameters_as_an_argument():
    module, x = network(), torch.randn(4, 8)
    twin = thermit.jit(module)
    weights = {name: value.detach() for name, value in module.named_parameters()}
    with torch.no_grad():
        for scale in (1, 2, 3):
            given = {name: value * scale for name, value in weights.items()}
            torch.testing.assert_close(torch.func.functional_call(twin, given, (x,)), torch.func.functional_call(module, given, (x,)))
