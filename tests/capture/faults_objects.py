"""Changes to objects: attributes, classes, containers of objects, what a function is given and passes on."""

from __future__ import annotations

import collections
import copy
import dataclasses
import enum
import functools
import math
import threading
import types
import weakref
from typing import Any, NamedTuple

import numpy as np
import torch
from watched import HANDLES, Build, Fault, Plain, Settings, vector

FAULTS: dict[str, Build] = {}


def fault(build: Build) -> Build:
    FAULTS[build.__name__] = build
    return build


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


class _Kind:
    pass


class _Other:
    pass


@fault
def class_of_an_object_asked_by_isinstance() -> Fault:
    o = _Kind()
    return lambda x: x * (2 if isinstance(o, _Kind) else 3), (vector(),), lambda: setattr(o, "__class__", _Other)


@fault
def class_of_an_argument_asked_by_isinstance() -> Fault:
    o = _Kind()
    return lambda x, o: x * (2 if isinstance(o, _Kind) else 3), (vector(), o), lambda: setattr(o, "__class__", _Other)


@fault
def class_of_an_object_asked_by_match() -> Fault:
    o = _Kind()

    def f(x: Any) -> Any:
        match o:
            case _Kind():
                return x * 2
        return x * 3

    return f, (vector(),), lambda: setattr(o, "__class__", _Other)


class _Restored:
    """Takes a change back when the test is over."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name, self.value = owner, name, getattr(owner, name)

    def remove(self) -> None:
        setattr(self.owner, self.name, self.value)


@fault
def number_of_a_library() -> Fault:
    def change() -> None:
        HANDLES.append(_Restored(math, "tau"))
        setattr(math, "tau", 7.0)  # noqa: B010

    return lambda x: x * math.tau, (vector(),), change


class _Doubling(dict[str, Any]):
    def __getitem__(self, name: str) -> Any:
        return super().__getitem__(name) * 2


@fault
def tensor_in_a_dict_that_answers_itself() -> Fault:
    d = _Doubling(w=torch.ones(3), k=1.0)
    return lambda x: x + d["w"] * d["k"], (vector(),), lambda: dict.__setitem__(d, "w", torch.full((3,), 5.0, dtype=torch.float64))


@fault
def number_in_a_dict_that_answers_itself() -> Fault:
    d = _Doubling(w=torch.ones(3), k=1.0)
    return lambda x: x * d["k"], (vector(),), lambda: dict.__setitem__(d, "k", 5.0)


@fault
def copy_that_is_changed() -> Fault:
    class Conf:
        def __init__(self) -> None:
            self.shift, self.scale, self.parts = 1.0, 2.0, [1.0]

    conf = Conf()

    def run(x: Any) -> Any:
        own = copy.deepcopy(conf)
        own.shift = 3.0
        own.parts.append(2.0)
        return x * own.scale + own.shift + sum(own.parts)

    return run, (vector(),), lambda: setattr(conf, "scale", 5.0)
