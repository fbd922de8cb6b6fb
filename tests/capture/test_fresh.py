"""What is new in each call refuses nothing: objects, closures and modules made by the function are its own."""

from __future__ import annotations

import collections
import contextlib
import cProfile
import functools
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import faults_modules
import pytest
import torch
from torch import nn
from watched import Plain, Settings, attempt, run, vector

import thermit
from thermit.capture.facts import watch
from thermit.capture.signature import Call, holds

FLAG = False


def _helper(x: Any, k: Any = 2) -> Any:
    return x * k


def _calls_helper(x: Any) -> Any:
    return _helper(x)


class Output(NamedTuple):
    value: Any
    extra: Any = None


FRESH: dict[str, Callable[[Any], Any]] = {}


def fresh(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    FRESH[function.__name__] = function
    return function


@fresh
def fresh_list(x: Any) -> Any:
    parts = []
    for i in range(3):
        parts.append(x * i)
    parts[0] = parts[0] + 1
    del parts[1]
    return parts


@fresh
def fresh_dict(x: Any) -> Any:
    named: dict[str, Any] = {"a": x}
    named["b"] = named.pop("a") * 2
    named.update(c=named["b"] + 1)
    return named


@fresh
def fresh_object(x: Any) -> Any:
    o = Plain()
    o.t = 3.0
    o.new = x * 2  # type: ignore[attr-defined]
    return o.run(o.new)  # type: ignore[attr-defined]


@fresh
def fresh_dataclass(x: Any) -> Any:
    s = Settings(k=2.0)
    s.names.append("a")
    s.k = s.k + len(s.names)
    return x * s.k


@fresh
def fresh_named_tuple(x: Any) -> Any:
    return Output(x * 2, [x + 1])


@fresh
def fresh_closure(x: Any) -> Any:
    total = x

    def add(y: Any) -> None:
        nonlocal total
        total = total + y

    for k in (1, 2):
        add(k)
    return total


@fresh
def fresh_class(x: Any) -> Any:
    class Local:
        factor = 2.0

        def __init__(self) -> None:
            self.seen: list[Any] = []

        def run(self, y: Any) -> Any:
            self.seen.append(y)
            return y * self.factor + len(self.seen)

    return Local().run(x)


@fresh
def fresh_lambda(x: Any) -> Any:
    return functools.reduce(lambda a, b: a + b, [f(x) for f in (lambda y: y * 2, lambda y: y + 1)])


@fresh
def fresh_generator(x: Any) -> Any:
    def each() -> Any:
        for k in range(3):
            yield x * k

    return sum(each())


@fresh
def fresh_counter(x: Any) -> Any:
    counts = collections.Counter("aab")
    counts["a"] += 1
    grouped = collections.defaultdict(list)
    grouped["k"].append(x)
    return grouped["k"][0] * counts["a"]


@fresh
def fresh_module(x: Any) -> Any:
    act = nn.Sequential(nn.ReLU(), nn.Tanh())
    act.extra = 2.0  # type: ignore[assignment]
    return act(x) * act.extra


@fresh
def fresh_partial(x: Any) -> Any:
    return functools.partial(torch.add, alpha=2)(x, x)


@fresh
def context_managers(x: Any) -> Any:
    with torch.no_grad(), contextlib.suppress(KeyError):
        y = x * 2
        {}["missing"]
    return y + 1


@fresh
def exceptions(x: Any) -> Any:
    try:
        raise ValueError("inside")
    except ValueError as error:
        y = x * len(str(error))
    finally:
        z = x + 1
    return y + z


@fresh
def strings_and_formats(x: Any) -> Any:
    name = f"{x.shape[0]}-{x.dtype}".upper()
    return x * len(name.split("-"))


@fresh
def star_arguments(x: Any) -> Any:
    def inner(*args: Any, scale: float = 1.0, **options: Any) -> Any:
        options["k"] = 2
        return sum(args) * scale * options["k"]

    return inner(x, x * 2, scale=3.0, other=1)


@fresh
def sorting_and_sets(x: Any) -> Any:
    sizes = sorted({3, 1, 2}, key=lambda v: -v)
    sizes.reverse()
    return x * sizes[0] + max(sizes) + len(set(sizes) - {1})


@fresh
def functions_of_torch_nn(x: Any) -> Any:
    h = nn.functional.layer_norm(x.reshape(1, 3), (3,))
    h = nn.functional.dropout(h, 0.5, training=False)
    return nn.functional.softmax(nn.functional.gelu(h), dim=-1)


@fresh
def recursion_over_a_fresh_tree(x: Any) -> Any:
    def total(tree: Any) -> Any:
        return sum(total(t) for t in tree) if isinstance(tree, list) else tree

    return total([x, [x * 2, [x * 3]]])


@fresh
def state_put_back(x: Any) -> Any:
    global FLAG
    before, FLAG = FLAG, True
    y = x * 2 if FLAG else x
    FLAG = before
    return y


@pytest.mark.parametrize("name", FRESH)
def test_fresh_state_compiles(name: str) -> None:
    function = FRESH[name]
    facts = run(function, vector())
    assert facts.refused is None, f"{facts.refused} at {facts.where}"
    compiled = thermit.jit(function)
    for x in (vector(), vector() + 1, vector()):
        expected, error = attempt(function, (x,))
        assert error is None, error
        torch.testing.assert_close(compiled(x), expected)
    assert any(v.compilation is not None for variants in compiled._state.variants.values() for v in variants), compiled.explain(vector())


@fresh
def class_of_a_tensor(x: Any) -> Any:
    table = {torch.Tensor: 2.0}
    y = x * table[type(x)] if type(x) == torch.Tensor and type(x) in (int, torch.Tensor) else x + 100  # noqa: E721
    return y * len(type(x).__name__) if isinstance(x, torch.Tensor) and x.__class__ is torch.Tensor else y


MODULES: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(4, 4), (2, 4)),
    "convolution": (lambda: nn.Conv2d(3, 4, 3, padding=1), (1, 3, 5, 5)),
    "padding mode": (lambda: nn.Conv1d(3, 4, 3, padding=1, padding_mode="circular"), (1, 3, 5)),
    "batch norm": (lambda: nn.BatchNorm2d(3), (2, 3, 4, 4)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (2, 4, 3)),
    "attention": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (1, 3, 8)),
    "decoder": (lambda: Decoder(), (1, 3, 8)),
    "gru": (lambda: First(nn.GRU(4, 4)), (3, 1, 4)),
    "lstm": (lambda: First(nn.LSTM(4, 4, num_layers=2)), (3, 1, 4)),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), (2, 4)),
    "module dict": (lambda: Chooser(), (2, 4)),
    "upsample": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), (1, 1, 3, 3)),
    "prelu and pooling": (lambda: nn.Sequential(nn.PReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()), (1, 2, 5, 5)),
    "scaled": (lambda: faults_modules.Scaled(), (3,)),
}


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), 2)

    def forward(self, x: Any) -> Any:
        return self.layers(x, x, tgt_mask=nn.Transformer.generate_square_subsequent_mask(3))


class First(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Any) -> Any:
        return self.inner(x)[0]


class Chooser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.acts = nn.ModuleDict({"relu": nn.ReLU(), "tanh": nn.Tanh()})
        self.weights = nn.ParameterList([torch.ones(4), torch.zeros(4)])
        self.choice = "tanh"

    def forward(self, x: Any) -> Any:
        for weight in self.weights:
            x = x * weight + self.weights[0]
        return self.acts[self.choice](x)


@pytest.mark.parametrize("name", MODULES)
def test_modules_are_not_refused(name: str) -> None:
    build, sizes = MODULES[name]
    module = build().requires_grad_(False).eval()
    x = torch.rand(sizes)
    facts = run(module, x)
    assert facts.refused is None, f"{facts.refused} at {facts.where}"
    assert holds(facts.guards, Call((x,), {})) is None
    for function in (module, lambda x: module(x)):
        watcher = watch(function, Call((x,), {}))
        with watcher:
            function(x)
            for parameter in module.parameters():
                source = watcher.find(parameter)
                assert source is not None and source.read(Call((x,), {})) is parameter
        assert watcher.facts().refused is None


def test_find_and_place() -> None:
    o, made = Plain(), []
    o.parts = {"deep": [torch.ones(2), (torch.zeros(2),)]}
    table = [o]

    def f(x: Any) -> Any:
        made.append(x * 2)
        return table

    watcher = watch(f, Call((vector(),), {}))
    with watcher:
        f(vector())
        source = watcher.find(o.parts["deep"][1][0])
        assert source is not None and source.read(Call((), {})) is o.parts["deep"][1][0]
        assert watcher.find(made[0]) is None or watcher.place(made) is not None
        assert watcher.find(torch.ones(2)) is None
    place = watcher.place(table)
    assert place is not None and place.read(Call((), {})) is table and str(place) == "f.closure.table"
    assert watcher.place([1]) is None
    facts = watcher.facts()
    o.parts["deep"][1] = (torch.zeros(3),)
    assert holds(facts.guards, Call((vector(),), {})) is not None, "the way to a tensor that was found is guarded"


def test_the_profiler_of_the_user_goes_on() -> None:
    seen: list[str] = []

    def profile(frame: Any, event: str, arg: Any) -> None:
        if event == "call":
            seen.append(frame.f_code.co_name)

    sys.setprofile(profile)
    try:
        run(_calls_helper, vector())
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(None)
    assert "_helper" in seen


def test_objects_that_fight_back() -> None:
    class Hostile:
        def __getattribute__(self, name: str) -> Any:
            if name == "k":
                return 2.0
            raise RuntimeError(f"do not ask for {name}")

    o = Hostile()
    before = thermit.config.configure(raise_faults=False)
    try:
        facts = run(lambda x: x * o.k, vector())
        compiled = thermit.jit(lambda x: x * o.k)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.testing.assert_close(compiled(vector()), vector() * 2)
    finally:
        thermit.config.configure(raise_faults=before.raise_faults)
    assert facts.refused is not None


def test_arguments_that_are_parameters() -> None:
    parameter = nn.Parameter(vector(), requires_grad=False)
    asks: list[Callable[[Any], Any]] = [
        lambda x: x * 2 if isinstance(x, nn.Parameter) else x + 100,
        lambda x: x * 2 if x.__class__ is nn.Parameter else x + 100,
        lambda x: x * 2 if type(x) == nn.Parameter else x + 100,  # noqa: E721
        lambda x: x * 2 if isinstance(x * 1, nn.Parameter) else x + 100,
    ]
    for function in asks:
        compiled = thermit.jit(function)
        for x in (parameter, vector(), parameter):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.testing.assert_close(compiled(x), function(x))


def test_attributes_of_an_argument_tensor() -> None:
    def f(x: Any) -> Any:
        return x * x.factor if hasattr(x, "factor") else x + 1

    compiled = thermit.jit(f)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for factor in (None, 2.0, 3.0, None):
            x = vector()
            if factor is not None:
                x.factor = factor  # type: ignore[attr-defined]
            torch.testing.assert_close(compiled(x), f(x))


def test_threads_that_share_a_container() -> None:
    shared = {"x": torch.ones(4), "l": [torch.ones(4), (torch.ones(4), 2)]}
    compiled = thermit.jit(lambda d, k: d["x"] * 2 + d["l"][0] * k + d["l"][1][0], max_variants=100)
    wrong: list[Any] = []

    def call() -> None:
        for k in range(4):
            try:
                value = compiled(shared, float(k))
                if type(value) is not torch.Tensor or value.tolist() != [3.0 + k] * 4:
                    wrong.append(value)
            except Exception as error:
                wrong.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=call) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong, wrong[0]


def test_a_container_that_is_given_back_is_the_same() -> None:
    compiled = thermit.jit(lambda items, x: (items, items[0] * x))
    for _ in range(3):
        items = [vector()]
        given, value = compiled(items, 2.0)
        assert given is items and value.tolist() == [0.0, 2.0, 4.0]


def test_under_cprofile() -> None:
    """A profiler written in C cannot be called by the watch; it goes on after the trace."""
    profiler = cProfile.Profile()
    f = thermit.jit(lambda x: torch.sin(x) + 1)
    x = torch.randn(5)
    profiler.enable()
    try:
        result = f(x)
        assert sys.getprofile() is profiler
    finally:
        profiler.disable()
    torch.testing.assert_close(result, torch.sin(x) + 1)
