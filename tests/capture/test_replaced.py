"""Functions of torch that somebody replaces between two calls are seen, as the user's code names them."""

from unittest import mock

import torch
import torch.nn.functional as F

import thermit


def named(x):
    return torch.sin(x) + F.gelu(x) + torch.nn.functional.relu(x)


def test_replaced_functions_are_seen():
    jitted, x = thermit.jit(named), torch.linspace(-1, 1, 5)
    before = jitted(x)
    replacements = [(torch, "sin", torch.cos), (F, "gelu", lambda x: x * 7), (torch.nn.functional, "relu", torch.abs)]
    for owner, name, other in replacements:
        with mock.patch.object(owner, name, other):
            assert torch.allclose(jitted(x), named(x)), name
        assert torch.equal(jitted(x), before)
    assert jitted._state.compiled == 4


def test_numbers_of_a_library_are_guarded_and_dtypes_are_not():
    jitted = thermit.jit(lambda x: x.to(torch.float64) + torch.pi)
    guards = jitted.explain(torch.ones(2)).guards
    assert not any("float64" in g for g in guards) and sum("pi" in g for g in guards) == 1, guards
    with mock.patch.object(torch, "pi", 3.0):
        assert jitted(torch.ones(2)).tolist() == [4, 4]
