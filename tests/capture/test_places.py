"""Places that are read in ways of their own: what is read there at a call is what the function itself would meet."""

from __future__ import annotations

import contextvars
from collections import defaultdict
from typing import Any

import pytest
import torch

import thermit

X = torch.ones(2)
WEIGHT: contextvars.ContextVar[Any] = contextvars.ContextVar("WEIGHT", default=None)


class Doubling(dict[str, Any]):
    def __getitem__(self, name: str) -> Any:
        return super().__getitem__(name) * 2


class Backwards(list[Any]):
    def __getitem__(self, place: Any) -> Any:
        return super().__getitem__(-1 - place)


def test_containers_with_a_getitem_of_their_own() -> None:
    named = thermit.jit(lambda x, table: x + table["w"], strict=True)
    numbered = thermit.jit(lambda x, parts: x + parts[0], strict=True)
    for k in range(1, 4):
        assert torch.equal(named(X, Doubling(w=X * k)), X + X * k * 2)
        assert torch.equal(numbered(X, Backwards([X, X * k])), X + X * k)
    assert named._state.compiled == numbered._state.compiled == 1


def test_looking_at_a_defaultdict_puts_nothing_into_it() -> None:
    table: Any = defaultdict(lambda: X * 3, w=X)
    jitted = thermit.jit(lambda x: x + table["w"])
    assert torch.equal(jitted(X), X * 2)
    del table["w"]
    other = thermit.jit(lambda x: x * 2 if "w" not in table else x)
    for _ in range(2):
        assert torch.equal(other(X), X * 2) and "w" not in table
    with pytest.warns(thermit.ThermitWarning, match="changes"):  # now the function puts it there
        assert torch.equal(jitted(X), X * 4) and "w" in table


@pytest.mark.filterwarnings("error")
def test_a_tensor_in_a_context_variable() -> None:
    jitted = thermit.jit(lambda x: x + WEIGHT.get(), strict=True)
    for k in range(4):
        token = WEIGHT.set(X * k)
        try:
            assert torch.equal(jitted(X), X + k)
        finally:
            WEIGHT.reset(token)
    assert jitted._state.compiled == 1
