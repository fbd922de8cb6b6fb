"""Nothing stale: each fault changes something that a function read; the guards of the first run must then fail (or it was refused)."""

from __future__ import annotations

from typing import Any

import faults_classes
import faults_modules
import faults_names
import faults_objects
import pytest
import torch
from torch import nn
from watched import HANDLES, attempt, flat, run

import thermit
from thermit.capture.signature import Call, holds

FAULTS = {**faults_classes.FAULTS, **faults_names.FAULTS, **faults_objects.FAULTS, **faults_modules.FAULTS}


@pytest.fixture(autouse=True)
def _restore() -> Any:
    """Every fault may change the globals of its module."""
    before = dict(vars(faults_names))
    table, weights = {"k": 1.0, "deep": {"list": [1, 2, (3, 4.0)]}}, [torch.ones(3), torch.zeros(3)]
    yield
    for name in set(vars(faults_names)) - set(before):
        delattr(faults_names, name)
    vars(faults_names).update(before)
    vars(faults_names)["TABLE"], vars(faults_names)["WEIGHTS"] = table, weights


@pytest.mark.parametrize("name", FAULTS)
def test_a_change_is_seen(name: str) -> None:
    function, args, change = FAULTS[name]()
    facts = run(function, *args)
    call = Call(args, {})
    if facts.refused is None:
        failed = holds(facts.guards, call)
        assert failed is None, f"holds without a change: {failed}"
    try:
        change()
        if facts.refused is None:
            assert holds(facts.guards, call) is not None, "guards: " + "; ".join(map(str, facts.guards))
    finally:
        while HANDLES:
            HANDLES.pop().remove()


# Faults that may be refused: eager is right each time.
MAY_REFUSE = {
    "object_behind_a_weak_reference",
    "subclass_of_dict",
    "subclasses_of_a_class",
    "value_of_a_tensor_read_by_numpy",
    "value_of_a_tensor_read_by_python",
}


@pytest.mark.parametrize("name", [n for n in FAULTS if n not in MAY_REFUSE])
def test_not_refused(name: str) -> None:
    function, args, _ = FAULTS[name]()
    facts = run(function, *args)
    assert facts.refused is None, f"{facts.refused} at {facts.where}"


@pytest.mark.parametrize("name", FAULTS)
def test_results_follow(name: str) -> None:
    function, args, change = FAULTS[name]()
    compiled = thermit.jit(function) if not isinstance(function, nn.Module) else thermit.jit(lambda *a: function(*a))
    try:
        for step in range(2):
            for _ in range(3):
                torch.manual_seed(0)
                expected, error = attempt(function, args)
                torch.manual_seed(0)
                got, other = attempt(compiled, args)
                assert type(error) is type(other), f"step {step}: {error!r}, compiled {other!r}"
                if error is None:
                    for e, g in zip(flat(expected), flat(got), strict=True):
                        torch.testing.assert_close(g, e, equal_nan=True, msg=f"step {step}: {g} instead of {e}")
            if step == 0:
                change()
    finally:
        while HANDLES:
            HANDLES.pop().remove()
    if name not in MAY_REFUSE:
        assert any(v.compilation is not None for variants in compiled._state.variants.values() for v in variants), "never compiled"
