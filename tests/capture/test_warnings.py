"""A function that warns is compiled; the warning shows when eager would show it."""

from __future__ import annotations

import warnings

import pytest
import torch

import thermit


def warns(x, text="careful"):
    warnings.warn(text, stacklevel=1)
    return x * 2


def shown(function, *args, calls=3):
    with warnings.catch_warnings(record=True) as found:
        for _ in range(calls):
            function(*args)
    return [str(w.message) for w in found if w.category is not thermit.ThermitWarning]


@pytest.mark.parametrize("action", ["default", "module", "once", "ignore"])
def test_compiled_and_shown_once(action):
    jitted, x = thermit.jit(lambda x: warns(x, f"careful {action}")), torch.ones(3)
    with warnings.catch_warnings():
        warnings.simplefilter(action)
        assert shown(jitted, x) == ([] if action == "ignore" else [f"careful {action}"])
        assert jitted._state.compiled == 1 and jitted._state.live[True] == 0


def test_shown_always():
    jitted, x = thermit.jit(warns), torch.ones(3)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert shown(jitted, x) == ["careful"] * 3


def test_filters_that_change_are_seen():
    jitted, x = thermit.jit(warns), torch.ones(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert shown(jitted, x) == []
        warnings.simplefilter("always")
        assert shown(jitted, x) == ["careful"] * 3
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="careful"):
            jitted(x)
