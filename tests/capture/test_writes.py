"""Written state: a function that changes Python state runs eagerly each time, and the effects are eager's."""

from __future__ import annotations

import contextvars
import functools
import os
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from watched import Plain, Settings, attempt, flat, run, vector

import thermit

SETTING: contextvars.ContextVar[float] = contextvars.ContextVar("SETTING", default=1.0)
SCALE = 2.0
WRITES: dict[str, Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]] = {}
COUNT = 0
LOG: list[Any] = []


def write(build: Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]) -> Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]:
    WRITES[build.__name__] = build
    return build


Written = tuple[Callable[..., Any], tuple[Any, ...]]


@write
def writes_global() -> Written:
    def f(x: Any) -> Any:
        global COUNT
        COUNT += 1
        return x + COUNT

    return f, (vector(),)


@write
def writes_cell() -> Written:
    n = 0

    def f(x: Any) -> Any:
        nonlocal n
        n += 1
        return x + n

    return f, (vector(),)


@write
def writes_attribute() -> Written:
    o = Plain()

    def f(x: Any) -> Any:
        o.t = o.t + 1
        return x + o.t

    return f, (vector(),)


@write
def writes_new_attribute() -> Written:
    o = Plain()

    def f(x: Any) -> Any:
        o.last = x * 2  # type: ignore[attr-defined]
        return x

    return f, (vector(),)


@write
def writes_attribute_by_name() -> Written:
    o = Plain()

    def f(x: Any) -> Any:
        setattr(o, "a" + "b", 2)
        return x

    return f, (vector(),)


@write
def deletes_attribute() -> Written:
    made = iter([Plain() for _ in range(20)])
    box = [None]

    def f(x: Any) -> Any:
        del box[0].w  # type: ignore[attr-defined]
        return x

    def prepare(x: Any) -> Any:
        box[0] = next(made)  # type: ignore[call-overload]
        return x

    prepare(None)
    return f, (vector(),)


@write
def writes_own_attribute() -> Written:
    class Counter:
        def __init__(self) -> None:
            self.n = 0

        def __call__(self, x: Any) -> Any:
            self.n += 1
            return x + self.n

    return Counter(), (vector(),)


@write
def writes_class_attribute() -> Written:
    class A:
        n = 0

    def f(x: Any) -> Any:
        A.n += 1
        return x + A.n

    return f, (vector(),)


@write
def writes_in_a_helper() -> Written:
    o = Plain()

    def touch(c: Any) -> None:
        c.t += 1

    def f(x: Any) -> Any:
        touch(o)
        return x + o.t

    return f, (vector(),)


@write
def appends_to_global() -> Written:
    def f(x: Any) -> Any:
        LOG.append(x.shape)
        return x + len(LOG)

    return f, (vector(),)


@write
def appends_a_tensor() -> Written:
    kept: list[Any] = []

    def f(x: Any) -> Any:
        kept.append(x * 2)
        return sum(kept)

    return f, (vector(),)


@write
def pops_from_closure() -> Written:
    todo = list(range(100))

    def f(x: Any) -> Any:
        return x + todo.pop()

    return f, (vector(),)


@write
def writes_dict_item() -> Written:
    memo: dict[str, Any] = {}

    def f(x: Any) -> Any:
        if "y" in memo:
            return memo["y"] + x
        memo["y"] = x * 2
        return x

    return f, (vector(),)


@write
def writes_nested_dict() -> Written:
    memo: dict[str, Any] = {"a": {"n": 0}}

    def f(x: Any) -> Any:
        memo["a"]["n"] += 1
        return x + memo["a"]["n"]

    return f, (vector(),)


@write
def extends_with_operator() -> Written:
    def build() -> Any:
        items = [1]

        def f(x: Any) -> Any:
            for k in (2, 3):
                items.__iadd__([k])
            return x * len(items)

        return f

    return build(), (vector(),)


@write
def swaps_two_buffers() -> Written:
    o = Plain()
    o.inner = torch.zeros(3)

    def f(x: Any) -> Any:
        o.w, o.inner = o.inner, o.w
        return x + o.w

    return f, (vector(),)


@write
def advances_an_iterator() -> Written:
    numbers = iter(range(100))
    return lambda x: x + next(numbers), (vector(),)


@write
def advances_a_generator() -> Written:
    numbers = (k for k in range(100))
    return lambda x: x + next(numbers), (vector(),)


@write
def writes_function_attribute() -> Written:
    def f(x: Any) -> Any:
        f.calls = getattr(f, "calls", 0) + 1  # type: ignore[attr-defined]
        return x + f.calls  # type: ignore[attr-defined]

    return f, (vector(),)


@write
def writes_default_argument() -> Written:
    def f(x: Any, memo: Any = []) -> Any:  # noqa: B006
        memo.append(1)
        return x + len(memo)

    return f, (vector(),)


@write
def writes_context_variable() -> Written:
    def f(x: Any) -> Any:
        SETTING.set(SETTING.get() + 1)
        return x + SETTING.get()

    return f, (vector(),)


@write
def writes_in_a_method_of_a_local_class() -> Written:
    state = {"n": 0}

    def f(x: Any) -> Any:
        class Helper:
            def touch(self) -> None:
                state["n"] += 1

        Helper().touch()
        return x * state["n"]

    return f, (vector(),)


@write
def writes_argument_list() -> Written:
    def f(x: Any, items: Any) -> Any:
        items.append(x * 2)
        return items[0] + len(items)

    return f, (vector(), [vector()])


@write
def writes_argument_object() -> Written:
    def f(x: Any, o: Any) -> Any:
        o.t += 1
        return x + o.t

    return f, (vector(), Plain())


@write
def writes_argument_dataclass() -> Written:
    def f(x: Any, s: Any) -> Any:
        s.k = s.k + 1
        return x + s.k

    return f, (vector(), Settings())


@write
def fills_an_lru_cache() -> Written:
    calls: list[int] = []

    @functools.lru_cache
    def table(n: int) -> Any:
        calls.append(n)
        return torch.arange(n)

    return lambda x: x + table(3) + len(calls), (vector(),)


@write
def reads_a_setting_of_torch() -> Written:
    return lambda x: x * torch.get_num_threads(), (vector(),)


@write
def first_use_of_a_cached_property() -> Written:
    class A:
        @functools.cached_property
        def k(self) -> Any:
            return [1]

    a = A()
    return lambda x: x * a.k[0] + len(vars(a)), (vector(),)


@write
def module_keeps_a_tensor() -> Written:
    class Cache(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.store = torch.zeros(3)

        def forward(self, x: Any) -> Any:
            self.store = self.store + x
            return self.store * 2

    module = Cache()
    return lambda x: module(x), (vector(),)


@write
def module_counts() -> Written:
    class Counting(nn.Module):
        n = 0

        def forward(self, x: Any) -> Any:
            self.n += 1
            return x + self.n

    module = Counting()
    return lambda x: module(x), (vector(),)


@write
def hook_writes() -> Written:
    module, seen = nn.ReLU(), []
    module.register_forward_hook(lambda m, i, o: seen.append(o.shape))
    return lambda x: module(x) + len(seen), (vector(),)


@write
def draws_from_python() -> Written:
    def f(x: Any) -> Any:
        return x * random.random() + random.randint(0, 9)

    return f, (vector(),)


@write
def shuffles() -> Written:
    def f(x: Any) -> Any:
        items = list(range(5))
        random.shuffle(items)
        return x * items[0]

    return f, (vector(),)


@write
def draws_from_numpy() -> Written:
    return lambda x: x * float(np.random.rand()), (vector(),)


@write
def seeds_torch() -> Written:
    def f(x: Any) -> Any:
        torch.manual_seed(3)
        return x + torch.rand(3)

    return f, (vector(),)


@write
def reads_the_clock() -> Written:
    return lambda x: x * (time.perf_counter() > 0), (vector(),)


@write
def reads_the_whole_environment() -> Written:
    return lambda x: x * len(dict(os.environ)), (vector(),)


@write
def writes_the_environment() -> Written:
    return lambda x: x * (1 + bool(os.environ.update(THERMIT_TEST_WRITES="x"))), (vector(),)


@write
def prints() -> Written:
    def f(x: Any) -> Any:
        print("called", end="")
        return x

    return f, (vector(),)


@write
def changes_the_default_dtype() -> Written:
    def f(x: Any) -> Any:
        torch.set_default_dtype(torch.float64 if torch.get_default_dtype() is torch.float32 else torch.float32)
        return x + torch.ones(3)

    return f, (vector(),)


@write
def compares_a_class() -> Written:
    return lambda x: x * 2 if type(x) is torch.Tensor else x + 100, (vector(),)


@write
def compares_a_class_in_a_helper() -> Written:
    def helper(y: Any, a: Any) -> Any:
        return y * 2 if type(a) is not torch.nn.Parameter else y + 100

    return lambda x: helper(x + 1, x), (vector(),)


@write
def compares_two_classes() -> Written:
    return lambda x, y: x * 2 if type(x) is type(y) else x + 100, (vector(), torch.nn.Parameter(vector(), requires_grad=False))


@write
def reads_its_globals() -> Written:
    return lambda x: x * globals()["SCALE"], (vector(),)


@pytest.mark.parametrize("name", WRITES)
def test_written_state_refuses(name: str, capsys: Any) -> None:
    function, args = WRITES[name]()
    torch.set_default_dtype(torch.float32)
    try:
        facts = run(function, *args)
    finally:
        torch.set_default_dtype(torch.float32)
    assert facts.refused is not None, "guards: " + "; ".join(map(str, facts.guards))


def test_the_line_of_the_write_is_named() -> None:
    for name in ("writes_global", "appends_to_global", "writes_attribute", "writes_cell", "module_counts", "prints", "writes_argument_list"):
        function, args = WRITES[name]()
        facts = run(function, *args)
        file, _, line = facts.where.rpartition(":")
        assert file == __file__, name
        text = Path(file).read_text().splitlines()[int(line) - 1]
        assert any(mark in text for mark in ("COUNT", "LOG.append", "o.t =", "n += 1", "print(", "items.append")), (name, text)


@pytest.mark.parametrize("name", WRITES)
def test_written_state_is_eagers(name: str, capsys: Any) -> None:
    """Side effects happen once a call, and what was stored is a plain tensor."""
    global COUNT
    results = []
    for wrap in (lambda f: f, thermit.jit):
        COUNT = 0
        LOG.clear()
        SETTING.set(1.0)
        random.seed(3), np.random.seed(3), torch.manual_seed(3)
        function, args = WRITES[name]()
        compiled = wrap(function)
        steps = []
        for _ in range(4):
            value, error = attempt(compiled, args)
            shown = [type(v) for v in flat(args)] + [repr(vars(a)) if isinstance(a, Plain | Settings) else repr(a) for a in args]
            steps.append((repr(value), repr(error), shown, repr(vars(function)) if hasattr(function, "__dict__") else "", COUNT, repr(LOG)))
        torch.set_default_dtype(torch.float32)
        results.append([tuple(_without_addresses(s) for s in step) for step in steps])
    assert results[0] == results[1]


def _without_addresses(value: Any) -> Any:
    return re.sub(r"0x[0-9a-f]+", "", str(value))


def test_views_whose_schemas_do_not_say_so_are_written_through() -> None:
    """They were taken for copies."""

    def f(x):
        torch.unsafe_split(x, 2)[0].add_(1)
        torch.ops.aten.unsafe_split_with_sizes(x, [1, 3])[1].mul_(3)
        torch.unsafe_chunk(x, 2)[1].sub_(5)
        return x + 0

    mine, theirs = torch.arange(4.0), torch.arange(4.0)
    assert torch.equal(thermit.jit(f)(mine), f(theirs)) and torch.equal(mine, theirs)
