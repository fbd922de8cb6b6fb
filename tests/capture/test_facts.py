"""Nothing stale: each fault changes something that a function read; the guards of the first run must then fail (or it was refused).

Also the other direction: without a change the guards hold, and what is new in each call does not refuse compilation.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import dataclasses
import enum
import functools
import os
import random
import re
import sys
import threading
import time
import types
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import thermit
from thermit.capture.facts import Facts, watch
from thermit.capture.signature import Call, holds

Fault = tuple[Callable[..., Any], tuple[Any, ...], Callable[[], Any]]
FAULTS: dict[str, Callable[[], Fault]] = {}
THIS = sys.modules[__name__]

SCALE: Any = 2.0
FLAG = False
TABLE: Any = {"k": 1.0, "deep": {"list": [1, 2, (3, 4.0)]}}
WEIGHTS: Any = [torch.ones(3), torch.zeros(3)]
SETTING: contextvars.ContextVar[float] = contextvars.ContextVar("SETTING", default=1.0)


def vector() -> torch.Tensor:
    return torch.arange(3.0)


def run(function: Any, *args: Any, **kwargs: Any) -> Facts:
    """The facts of one run on the real tensors."""
    watcher = watch(function, Call(args, kwargs))
    with watcher:
        function(*args, **kwargs)
    return watcher.facts()


def fault(build: Callable[[], Fault]) -> Callable[[], Fault]:
    FAULTS[build.__name__] = build
    return build


@pytest.fixture(autouse=True)
def _restore() -> Any:
    """Every fault may change the globals of this module."""
    before = dict(vars(THIS))
    table, weights = {"k": 1.0, "deep": {"list": [1, 2, (3, 4.0)]}}, [torch.ones(3), torch.zeros(3)]
    yield
    for name in set(vars(THIS)) - set(before):
        delattr(THIS, name)
    vars(THIS).update(before)
    vars(THIS)["TABLE"], vars(THIS)["WEIGHTS"] = table, weights


# ---------------------------------------------------------------------------------------------- globals and closures
def set_global(name: str, value: Any) -> Callable[[], None]:
    return lambda: setattr(THIS, name, value)


@fault
def global_number() -> Fault:
    return lambda x: x * SCALE, (vector(),), set_global("SCALE", 3.0)


@fault
def global_number_of_another_type() -> Fault:
    return lambda x: x * SCALE, (vector(),), set_global("SCALE", 2)


@fault
def global_flag() -> Fault:
    return lambda x: x + 1 if FLAG else x, (vector(),), set_global("FLAG", True)


@fault
def global_minus_zero() -> Fault:
    THIS.SCALE = 0.0  # type: ignore[attr-defined]
    return lambda x: x / SCALE, (vector(),), set_global("SCALE", -0.0)


@fault
def global_deleted() -> Fault:
    return lambda x: x * SCALE, (vector(),), lambda: delattr(THIS, "SCALE")


@fault
def builtin_shadowed() -> Fault:
    return lambda x: x * len([1, 2]), (vector(),), set_global("len", lambda x: 7)


@fault
def global_dict_value() -> Fault:
    return lambda x: x * TABLE["k"], (vector(),), lambda: TABLE.update(k=2.0)


@fault
def global_dict_key_added() -> Fault:
    return lambda x: x * len(TABLE), (vector(),), lambda: TABLE.update(new=2.0)


@fault
def global_dict_key_removed() -> Fault:
    return lambda x: x * TABLE.get("k", 5.0), (vector(),), lambda: TABLE.pop("k")


@fault
def global_dict_order() -> Fault:
    def change() -> None:
        TABLE["k"] = TABLE.pop("k")

    return lambda x: [x * i for i, k in enumerate(TABLE) if k == "k"], (vector(),), change


@fault
def nested_list_appended() -> Fault:
    return lambda x: x * sum(TABLE["deep"]["list"][:2]) + len(TABLE["deep"]["list"]), (vector(),), lambda: TABLE["deep"]["list"].append(9)


@fault
def global_tensor_of_another_shape() -> Fault:
    return lambda x: x * WEIGHTS[0].shape[0], (vector(),), lambda: WEIGHTS.__setitem__(0, torch.ones(4))


@fault
def global_tensor_list_appended() -> Fault:
    def f(x: Any) -> Any:
        for w in WEIGHTS:
            x = x + w
        return x

    return f, (vector(),), lambda: WEIGHTS.append(torch.ones(3))


@fault
def global_tensor_requires_grad() -> Fault:
    return lambda x: x * WEIGHTS[0], (vector(),), lambda: WEIGHTS[0].requires_grad_()


@fault
def global_tensor_dtype() -> Fault:
    return lambda x: x * WEIGHTS[1], (vector(),), lambda: WEIGHTS.__setitem__(1, torch.ones(3, dtype=torch.float64))


@fault
def cell_rebound() -> Fault:
    w = 2.0

    def set_w() -> None:
        nonlocal w
        w = 3.0

    return lambda x: x * w, (vector(),), set_w


@fault
def cell_of_a_helper() -> Fault:
    w = 2.0

    def set_w() -> None:
        nonlocal w
        w = 3.0

    def helper(x: Any) -> Any:
        return x * w

    return lambda x: helper(x) + 1, (vector(),), set_w


@fault
def loop_variable() -> Fault:
    made = []
    for i in range(2):
        made.append(lambda x: x * i)  # noqa: B023
        if i == 0:
            first = made[0]

    def set_i() -> None:
        first.__closure__[0].cell_contents = 7  # type: ignore[index]

    return first, (vector(),), set_i


@fault
def cell_read_in_an_inner_function() -> Fault:
    w = [1.0]

    def f(x: Any) -> Any:
        def inner(y: Any) -> Any:
            return [y * k for k in w]

        return inner(x)

    return f, (vector(),), lambda: w.append(2.0)


@fault
def tensor_in_a_cell() -> Fault:
    w = torch.ones(3)

    def set_w() -> None:
        nonlocal w
        w = torch.ones(3, dtype=torch.int64)

    return lambda x: x * w, (vector(),), set_w


@fault
def context_variable() -> Fault:
    return lambda x: x * SETTING.get(), (vector(),), lambda: SETTING.set(SETTING.get() + 1)


@fault
def module_attribute() -> Fault:
    module = types.ModuleType("settings_of_the_user")
    module.scale = 2.0  # type: ignore[attr-defined]
    return lambda x: x * module.scale, (vector(),), lambda: setattr(module, "scale", 3.0)  # type: ignore[attr-defined]


# ---------------------------------------------------------------------------------------------- functions
def _helper(x: Any, k: Any = 2) -> Any:
    return x * k


def _calls_helper(x: Any) -> Any:
    return _helper(x)


@fault
def helper_replaced() -> Fault:
    return _calls_helper, (vector(),), set_global("_helper", lambda x: x - 1)


@fault
def helper_code_replaced() -> Fault:
    def helper(x: Any) -> Any:
        return x + 1

    def other(x: Any) -> Any:
        return x - 1

    return lambda x: helper(x), (vector(),), lambda: setattr(helper, "__code__", other.__code__)


@fault
def helper_default_replaced() -> Fault:
    def helper(x: Any, k: Any = 2) -> Any:
        return x * k

    return lambda x: helper(x), (vector(),), lambda: setattr(helper, "__defaults__", (3,))


@fault
def own_default_mutated() -> Fault:
    default = [1.0]

    def f(x: Any, ks: Any = default) -> Any:
        return x * ks[0]

    return f, (vector(),), lambda: default.__setitem__(0, 2.0)


@fault
def keyword_default_mutated() -> Fault:
    default = {"k": 1.0}

    def f(x: Any, *, ks: Any = default) -> Any:
        return x * ks["k"]

    return f, (vector(),), lambda: default.update(k=2.0)


@fault
def function_attribute() -> Fault:
    def helper(x: Any) -> Any:
        return x * helper.k  # type: ignore[attr-defined]

    helper.k = 1.0  # type: ignore[attr-defined]
    return lambda x: helper(x), (vector(),), lambda: setattr(helper, "k", 2.0)


@fault
def decorated_function() -> Fault:
    setting = {"k": 1.0}

    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) * setting["k"]

        return wrapper

    @decorate
    def f(x: Any) -> Any:
        return x + 1

    return f, (vector(),), lambda: setting.update(k=2.0)


@fault
def under_a_decorator() -> Fault:
    setting = {"k": 1.0}

    def decorate(function: Any) -> Any:
        return functools.wraps(function)(lambda *args: function(*args))

    @decorate
    def f(x: Any) -> Any:
        return x * setting["k"]

    return f, (vector(),), lambda: setting.update(k=2.0)


@fault
def partial_argument() -> Fault:
    options = {"k": [1.0]}
    part = functools.partial(lambda x, k: x * k[0], **options)
    return lambda x: part(x), (vector(),), lambda: options["k"].__setitem__(0, 2.0)


@fault
def partial_itself() -> Fault:
    values = [1.0]
    return functools.partial(lambda k, x: x * k[0], values), (vector(),), lambda: values.__setitem__(0, 2.0)


@fault
def function_in_a_table() -> Fault:
    table = {"f": lambda x: x + 1}
    return lambda x: table["f"](x), (vector(),), lambda: table.update(f=lambda x: x - 1)


@fault
def cell_behind_a_table() -> Fault:
    k = 1.0

    def set_k() -> None:
        nonlocal k
        k = 2.0

    table = {"f": [lambda x: x * k]}
    return lambda x: table["f"][0](x), (vector(),), set_k


@fault
def recursion() -> Fault:
    depth = {"n": 2}

    def f(x: Any, n: int = 0) -> Any:
        return x if n >= depth["n"] else f(x * 2, n + 1)

    return f, (vector(),), lambda: depth.update(n=3)


@fault
def generator_function() -> Fault:
    steps = [1, 2]

    def produce(x: Any) -> Any:
        for s in steps:
            yield x * s

    return lambda x: sum(produce(x)), (vector(),), lambda: steps.append(3)


# ---------------------------------------------------------------------------------------------- objects and classes
class Plain:
    shift: Any = 1.0

    def __init__(self) -> None:
        self.t: Any = 16.0
        self.w = torch.ones(3)
        self.parts: Any = [1.0, 2.0]
        self.inner: Any = None

    def run(self, x: Any) -> Any:
        return x * self.t + self.w + self.shift

    def through_getattr(self, x: Any) -> Any:
        return x * getattr(self, "t") + getattr(self, "nothing", 0.0)  # noqa: B009

    def through_computed_name(self, x: Any) -> Any:
        name = "".join(("t", ""))
        return x * getattr(self, name)

    def through_dict(self, x: Any) -> Any:
        return x * self.__dict__["t"]

    @property
    def doubled(self) -> Any:
        return self.t * 2

    @staticmethod
    def fixed(x: Any) -> Any:
        return x + 1

    @classmethod
    def named(cls, x: Any) -> Any:
        return x + cls.shift

    def __call__(self, x: Any) -> Any:
        return x * self.t

    def __len__(self) -> int:
        return len(self.parts)


@fault
def bound_method_number() -> Fault:
    o = Plain()
    return o.run, (vector(),), lambda: setattr(o, "t", 8.0)


@fault
def bound_method_tensor_spec() -> Fault:
    o = Plain()
    return o.run, (vector(),), lambda: setattr(o, "w", torch.ones(1))


@fault
def class_attribute() -> Fault:
    class Conf:
        shift = 1.0

    return lambda x: x - Conf.shift, (vector(),), lambda: setattr(Conf, "shift", 2.0)


@fault
def class_attribute_through_the_object() -> Fault:
    class Conf(Plain):
        pass

    o = Conf()
    return o.run, (vector(),), lambda: setattr(Conf, "shift", 2.0)


@fault
def class_attribute_shadowed() -> Fault:
    o = Plain()
    return o.run, (vector(),), lambda: setattr(o, "shift", 2.0)


@fault
def class_of_an_object() -> Fault:
    o = Plain()

    class Other(Plain):
        def run(self, x: Any) -> Any:
            return x

    return lambda x: o.run(x), (vector(),), lambda: setattr(o, "__class__", Other)


@fault
def method_replaced_in_the_class() -> Fault:
    class A:
        def go(self, x: Any) -> Any:
            return x

    a = A()
    return lambda x: a.go(x), (vector(),), lambda: setattr(A, "go", lambda self, x: x + 1)


@fault
def method_replaced_on_the_object() -> Fault:
    o = Plain()
    return lambda x: o.run(x), (vector(),), lambda: setattr(o, "run", lambda x: x)


@fault
def override_added_to_a_subclass() -> Fault:
    class B(Plain):
        pass

    o = B()
    return lambda x: o.run(x), (vector(),), lambda: setattr(B, "run", lambda self, x: x)


@fault
def parent_method_replaced() -> Fault:
    class A:
        def go(self, x: Any) -> Any:
            return x

    class B(A):
        def go(self, x: Any) -> Any:
            return super().go(x) * 2

    b = B()
    return b.go, (vector(),), lambda: setattr(A, "go", lambda self, x: x + 1)


@fault
def call_replaced_in_the_class() -> Fault:
    class A:
        def __call__(self, x: Any) -> Any:
            return x

    return A(), (vector(),), lambda: setattr(A, "__call__", lambda self, x: x + 1)


@fault
def callable_object() -> Fault:
    o = Plain()
    return o, (vector(),), lambda: setattr(o, "t", 8.0)


@fault
def length_of_an_object() -> Fault:
    o = Plain()
    return lambda x: x * len(o), (vector(),), lambda: o.parts.append(3.0)


@fault
def property_of_an_object() -> Fault:
    o = Plain()
    return lambda x: x * o.doubled, (vector(),), lambda: setattr(o, "t", 8.0)


@fault
def property_replaced() -> Fault:
    class A:
        k = property(lambda self: 1.0)

    a = A()
    return lambda x: x * a.k, (vector(),), lambda: setattr(A, "k", property(lambda self: 2.0))


@fault
def static_method_replaced() -> Fault:
    class A:
        go = staticmethod(lambda x: x)

    a = A()
    return lambda x: a.go(x), (vector(),), lambda: setattr(A, "go", staticmethod(lambda x: x + 1))


@fault
def class_method_attribute() -> Fault:
    class A(Plain):
        pass

    return lambda x: A.named(x), (vector(),), lambda: setattr(A, "shift", 5.0)


@fault
def getattr_with_a_constant() -> Fault:
    o = Plain()
    return o.through_getattr, (vector(),), lambda: setattr(o, "t", 8.0)


@fault
def getattr_with_a_default() -> Fault:
    o = Plain()
    return o.through_getattr, (vector(),), lambda: setattr(o, "nothing", 8.0)


@fault
def getattr_with_a_computed_name() -> Fault:
    o = Plain()
    return o.through_computed_name, (vector(),), lambda: setattr(o, "t", 8.0)


@fault
def own_dict() -> Fault:
    o = Plain()
    return o.through_dict, (vector(),), lambda: setattr(o, "t", 8.0)


@fault
def hasattr_of_an_object() -> Fault:
    o = Plain()
    return lambda x: x * 2 if hasattr(o, "later") else x, (vector(),), lambda: setattr(o, "later", 1)


@fault
def attribute_that_is_tried() -> Fault:
    o = Plain()

    def f(x: Any) -> Any:
        try:
            return x * o.later  # type: ignore[attr-defined]
        except AttributeError:
            return x

    return f, (vector(),), lambda: setattr(o, "later", 1)


@fault
def getattr_hook() -> Fault:
    class A:
        def __init__(self) -> None:
            self.values = {"k": 1.0}

        def __getattr__(self, name: str) -> Any:
            return self.values[name]

    a = A()
    return lambda x: x * a.k, (vector(),), lambda: a.values.update(k=2.0)


@fault
def getattr_hook_overridden() -> Fault:
    class A:
        def __getattr__(self, name: str) -> Any:
            return 1.0

    a = A()
    return lambda x: x * a.k, (vector(),), lambda: setattr(a, "k", 2.0)


@fault
def slots() -> Fault:
    class A:
        __slots__ = ("k",)

    a = A()
    a.k = 1.0
    return lambda x: x * a.k, (vector(),), lambda: setattr(a, "k", 2.0)


@fault
def object_in_a_list() -> Fault:
    items = [Plain(), Plain()]

    def f(x: Any) -> Any:
        for item in items:
            x = x * item.t
        return x

    return f, (vector(),), lambda: setattr(items[1], "t", 1.0)


@fault
def object_in_a_comprehension() -> Fault:
    items = {"a": Plain(), "b": Plain()}
    return lambda x: [x * v.t for v in items.values()], (vector(),), lambda: setattr(items["b"], "t", 1.0)


@fault
def object_from_a_function() -> Fault:
    o = Plain()

    def get() -> Any:
        return o

    return lambda x: x * get().t, (vector(),), lambda: setattr(o, "t", 1.0)


@fault
def object_out_of_a_dict() -> Fault:
    table = {"a": {"b": Plain()}}
    return lambda x: x * table.get("a", {}).get("b").t, (vector(),), lambda: setattr(table["a"]["b"], "t", 1.0)  # type: ignore[attr-defined]


@fault
def object_through_next() -> Fault:
    items = [Plain()]
    return lambda x: x * next(iter(items)).t, (vector(),), lambda: setattr(items[0], "t", 1.0)


@fault
def object_through_map() -> Fault:
    items = [Plain(), Plain()]
    return lambda x: x * sum(map(lambda o: o.t, items)), (vector(),), lambda: setattr(items[1], "t", 1.0)  # noqa: C417


@fault
def object_through_sorted_key() -> Fault:
    items = [Plain(), Plain()]
    return lambda x: x * sorted(items, key=lambda o: o.t)[0].t, (vector(),), lambda: setattr(items[1], "t", 1.0)


@fault
def object_passed_on() -> Fault:
    o = Plain()
    o.inner = Plain()

    def deep(c: Any, x: Any) -> Any:
        return x * c.inner.t

    def shallow(c: Any, x: Any) -> Any:
        return deep(c, x)

    return lambda x: shallow(o, x), (vector(),), lambda: setattr(o.inner, "t", 1.0)


@fault
def object_passed_in_a_tuple() -> Fault:
    o = Plain()

    def use(parts: Any, x: Any) -> Any:
        return x * parts[0].t

    return lambda x: use((o, 1), x), (vector(),), lambda: setattr(o, "t", 1.0)


@fault
def object_through_star_args() -> Fault:
    o = Plain()

    def use(x: Any, *rest: Any, **named: Any) -> Any:
        return x * rest[0].t * named["o"].doubled

    return lambda x: use(x, o, o=o), (vector(),), lambda: setattr(o, "t", 1.0)


@fault
def object_inside_a_new_object() -> Fault:
    o = Plain()

    class Holder:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def run(self, x: Any) -> Any:
            return x * self.inner.t

    return lambda x: Holder(o).run(x), (vector(),), lambda: setattr(o, "t", 1.0)


@fault
def object_behind_an_iterator_method() -> Fault:
    class Bag:
        def __init__(self) -> None:
            self.items = [Plain(), Plain()]

        def __iter__(self) -> Any:
            return iter(self.items)

    bag = Bag()

    def f(x: Any) -> Any:
        for item in bag:
            x = x * item.t
        return x

    return f, (vector(),), lambda: setattr(bag.items[1], "t", 1.0)


@fault
def object_behind_a_generator_method() -> Fault:
    class Bag:
        def __init__(self) -> None:
            self.items = [Plain(), Plain()]

        def each(self) -> Any:
            yield from self.items

    bag = Bag()

    def f(x: Any) -> Any:
        for item in bag.each():
            x = x * item.t
        return x

    return f, (vector(),), lambda: setattr(bag.items[1], "t", 1.0)


@fault
def attribute_object_replaced() -> Fault:
    o = Plain()
    o.inner = Plain()

    def change() -> None:
        o.inner = Plain()
        o.inner.t = 3.0

    return lambda x: x * o.inner.t, (vector(),), change


@fault
def copied_object() -> Fault:
    o = Plain()
    return lambda x: x * dataclasses.replace(Settings(k=o.t)).k, (vector(),), lambda: setattr(o, "t", 1.0)


@dataclasses.dataclass
class Settings:
    k: Any = 1.0
    names: Any = dataclasses.field(default_factory=list)


@fault
def dataclass_field() -> Fault:
    settings = Settings()
    return lambda x: x * settings.k, (vector(),), lambda: setattr(settings, "k", 2.0)


@fault
def dataclass_through_asdict() -> Fault:
    settings = Settings()
    return lambda x: x * dataclasses.asdict(settings)["k"], (vector(),), lambda: setattr(settings, "k", 2.0)


@fault
def dataclass_compared() -> Fault:
    settings, other = Settings(), Settings()
    return lambda x: x if settings == other else x + 1, (vector(),), lambda: setattr(settings, "k", 2.0)


@fault
def dataclass_argument_class_attribute() -> Fault:
    @dataclasses.dataclass
    class Local:
        k: float = 1.0
        shared = 5.0

    return lambda x, s: x * s.k + s.shared, (vector(), Local()), lambda: setattr(Local, "shared", 6.0)


@fault
def object_argument_attribute() -> Fault:
    o = Plain()
    return lambda x, c: x * c.t, (vector(), o), lambda: setattr(o, "t", 2.0)


@fault
def object_in_an_argument_list() -> Fault:
    o = Plain()
    return lambda x, cs: x * cs[0]["o"].t, (vector(), [{"o": o}]), lambda: setattr(o, "t", 2.0)


@fault
def cached_property_reset() -> Fault:
    class A:
        def __init__(self) -> None:
            self.n = 2.0

        @functools.cached_property
        def k(self) -> Any:
            return self.n * 2

    a = A()
    assert a.k == 4.0
    return lambda x: x * a.k, (vector(),), lambda: a.__dict__.pop("k")


@fault
def lru_cached_function() -> Fault:
    setting = {"k": 1.0}

    @functools.lru_cache
    def slow(n: int) -> float:
        return n * setting["k"]

    def change() -> None:
        setting["k"] = 2.0
        slow.cache_clear()

    return lambda x: x * slow(3), (vector(),), change


class Mode(enum.Enum):
    A = 1
    B = 2


@fault
def enum_member() -> Fault:
    o = Plain()
    o.inner = Mode.A
    return lambda x: x if o.inner is Mode.A else x + 1, (vector(),), lambda: setattr(o, "inner", Mode.B)


@fault
def object_behind_a_weak_reference() -> Fault:
    o = Plain()
    reference = weakref.ref(o)
    return lambda x: x * reference().t, (vector(),), lambda: setattr(o, "t", 1.0)  # type: ignore[union-attr]


@fault
def named_tuple_in_a_global() -> Fault:
    class Pair(NamedTuple):
        a: Any
        b: Any

    o = Plain()
    o.inner = Pair(1.0, [2.0])
    return lambda x: x * o.inner.a + o.inner.b[0], (vector(),), lambda: o.inner.b.append(2.0)


@fault
def counter_and_deque() -> Fault:
    counts, recent = collections.Counter("aab"), collections.deque([1.0, 2.0])
    return lambda x: x * counts["a"] + recent[0], (vector(),), lambda: recent.appendleft(3.0)


@fault
def set_changed() -> Fault:
    names = {"a", "b"}
    return lambda x: x * 2 if "c" in names else x, (vector(),), lambda: names.add("c")


@fault
def name_space() -> Fault:
    space = types.SimpleNamespace(inner=types.SimpleNamespace(k=1.0))
    return lambda x: x * space.inner.k, (vector(),), lambda: setattr(space.inner, "k", 2.0)


@fault
def thread_local() -> Fault:
    local = threading.local()
    local.k = 1.0
    return lambda x: x * local.k, (vector(),), lambda: setattr(local, "k", 2.0)


@fault
def subclass_of_dict() -> Fault:
    class Options(dict):  # type: ignore[type-arg]
        pass

    options = Options(k=1.0)
    return lambda x: x * options["k"], (vector(),), lambda: options.update(k=2.0)


@fault
def numpy_constant() -> Fault:
    array = np.ones(3, dtype=np.float32)
    return lambda x: x * torch.tensor(array.tolist()), (vector(),), lambda: array.__setitem__(0, 2.0)


@fault
def descriptor() -> Fault:
    class Twice:
        def __init__(self) -> None:
            self.factor = 2.0

        def __get__(self, owner: Any, kind: Any) -> Any:
            return owner.n * self.factor

        def __set__(self, owner: Any, value: Any) -> None:
            raise AttributeError

    class A:
        n = 1.0
        k = Twice()

    a = A()
    return lambda x: x * a.k, (vector(),), lambda: setattr(vars(A)["k"], "factor", 3.0)


@fault
def numpy_array() -> Fault:
    array = np.ones(3)
    return lambda x: x * float(array[0]), (vector(),), lambda: array.__setitem__(0, 2.0)


@fault
def value_of_a_tensor_read_by_python() -> Fault:
    w = torch.ones(3)
    return lambda x: x * w.tolist()[0], (vector(),), lambda: w.fill_(2)


@fault
def value_of_a_tensor_read_by_numpy() -> Fault:
    w = torch.ones(3)
    return lambda x: x * float(np.asarray(w)[0]), (vector(),), lambda: w.fill_(2)


# ---------------------------------------------------------------------------------------------- modules
class Scaled(nn.Module):
    factor = 2.0

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
        self.register_buffer("scale", torch.ones(3))
        self.k = 1.0
        self.options = {"act": "relu"}

    def forward(self, x: Any) -> Any:
        x = self.lin(x) * self.scale * self.k * self.factor
        for layer in self.layers:
            x = layer(x) * layer.out_features
        return x.relu() if self.options["act"] == "relu" else x


def module_fault(change: Callable[[Any], Any]) -> Callable[[], Fault]:
    def build() -> Fault:
        module = Scaled().requires_grad_(False)
        return module, (vector(),), lambda: change(module)

    return build


FAULTS |= {
    "module: attribute": module_fault(lambda m: setattr(m, "k", 2.0)),
    "module: class attribute shadowed": module_fault(lambda m: setattr(m, "factor", 3.0)),
    "module: option in a dict": module_fault(lambda m: m.options.update(act="none")),
    "module: buffer of another dtype": module_fault(lambda m: setattr(m, "scale", torch.ones(3, dtype=torch.float64))),
    "module: parameter requires grad": module_fault(lambda m: m.lin.weight.requires_grad_()),
    "module: parameter of another dtype": module_fault(lambda m: m.lin.double()),
    "module: parameter deleted": module_fault(lambda m: delattr(m.lin, "bias")),
    "module: parameter set to None": module_fault(lambda m: setattr(m.lin, "bias", None)),
    "module: child replaced": module_fault(lambda m: setattr(m, "lin", nn.Identity())),
    "module: child in a list replaced": module_fault(lambda m: m.layers.__setitem__(0, nn.Identity())),
    "module: list appended": module_fault(lambda m: m.layers.append(nn.Linear(3, 3))),
    "module: list shortened": module_fault(lambda m: m.layers.__delitem__(1)),
    "module: attribute of a child in a list": module_fault(lambda m: setattr(m.layers[1], "out_features", 4)),
    "module: forward hook": module_fault(lambda m: m.lin.register_forward_hook(lambda m, i, o: o * 2)),
    "module: forward pre-hook": module_fault(lambda m: m.register_forward_pre_hook(lambda m, i: None)),
    "module: forward patched": module_fault(lambda m: setattr(m.lin, "forward", lambda x: x)),
    "module: global hook": module_fault(lambda m: HANDLES.append(nn.modules.module.register_module_forward_hook(lambda m, i, o: None))),
    "module: class changed": module_fault(lambda m: setattr(m.lin, "__class__", Doubling)),
}
HANDLES: list[Any] = []


class Doubling(nn.Linear):
    def forward(self, x: Any) -> Any:
        return super().forward(x) * 2


@fault
def training_flag() -> Fault:
    module = nn.Sequential(nn.Dropout(0.5), nn.ReLU())
    return module, (vector(),), lambda: module.eval()


@fault
def dropout_probability() -> Fault:
    module = nn.Sequential(nn.Dropout(0.5), nn.ReLU())
    return module, (vector(),), lambda: setattr(module[0], "p", 0.9)


@fault
def module_in_a_closure() -> Fault:
    module = nn.Sequential(nn.Dropout(0.5))
    return lambda x: module(x) + 1, (vector(),), lambda: module.train(False)


@fault
def batch_norm_momentum() -> Fault:
    module = nn.BatchNorm1d(3).requires_grad_(False)
    return module, (torch.ones(2, 3),), lambda: setattr(module, "momentum", None)


@fault
def sequential_child_replaced() -> Fault:
    module = nn.Sequential(nn.ReLU(), nn.ReLU())
    return module, (vector(),), lambda: module.__setitem__(0, nn.Tanh())


@fault
def module_hook_that_is_there() -> Fault:
    module = nn.Sequential(nn.ReLU())
    handle = module[0].register_forward_hook(lambda m, i, o: o * 10)
    return module, (vector(),), handle.remove


@fault
def hook_reads_a_setting() -> Fault:
    module, setting = nn.Sequential(nn.ReLU()), {"k": 1.0}
    module[0].register_forward_hook(lambda m, i, o: o * setting["k"])
    return module, (vector(),), lambda: setting.update(k=2.0)


@fault
def attention_weight_replaced() -> Fault:
    module = nn.MultiheadAttention(4, 2, batch_first=True).requires_grad_(False).eval()
    x = torch.ones(1, 2, 4)
    return lambda x: module(x, x, x)[0], (x,), lambda: setattr(module.out_proj, "weight", nn.Parameter(torch.ones(4, 4, dtype=torch.float64)))


@fault
def parametrization_removed() -> Fault:
    module = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)).requires_grad_(False)
    return module, (vector(),), lambda: nn.utils.parametrize.remove_parametrizations(module, "weight")


# ---------------------------------------------------------------------------------------------- the tests
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
    "value_of_a_tensor_read_by_numpy",
    "value_of_a_tensor_read_by_python",
}


@pytest.mark.parametrize("name", [n for n in FAULTS if n not in MAY_REFUSE])
def test_not_refused(name: str) -> None:
    function, args, _ = FAULTS[name]()
    facts = run(function, *args)
    assert facts.refused is None, f"{facts.refused} at {facts.where}"


# Compiled and then right after the change: the whole house.
def _flat(value: Any) -> list[Any]:
    return [leaf for part in value for leaf in _flat(part)] if isinstance(value, list | tuple) else [value]


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
                    for e, g in zip(_flat(expected), _flat(got), strict=True):
                        torch.testing.assert_close(g, e, equal_nan=True, msg=f"step {step}: {g} instead of {e}")
            if step == 0:
                change()
    finally:
        while HANDLES:
            HANDLES.pop().remove()
    if name not in MAY_REFUSE:
        assert any(v.compilation is not None for variants in compiled._state.variants.values() for v in variants), "never compiled"


def attempt(function: Any, args: Any) -> tuple[Any, BaseException | None]:
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function(*args), None
    except Exception as error:
        return None, error


# ---------------------------------------------------------------------------------------------- written state
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
def reads_the_environment() -> Written:
    return lambda x: x * len(os.environ.get("HOME", "")), (vector(),)


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
            shown = [type(v) for v in _flat(args)] + [repr(vars(a)) if isinstance(a, Plain | Settings) else repr(a) for a in args]
            steps.append((repr(value), repr(error), shown, repr(vars(function)) if hasattr(function, "__dict__") else "", COUNT, repr(LOG)))
        torch.set_default_dtype(torch.float32)
        results.append([tuple(_without_addresses(s) for s in step) for step in steps])
    assert results[0] == results[1]


def _without_addresses(value: Any) -> Any:
    return re.sub(r"0x[0-9a-f]+", "", str(value))


# ---------------------------------------------------------------------------------------------- what is new in each call refuses nothing
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
    "scaled": (lambda: Scaled(), (3,)),
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
