"""Changes to classes, and to what is found in more than one place: the class, its bases, the tables of a module."""

from __future__ import annotations

import enum
import functools
import operator
import types
from typing import Any

import torch
from torch import nn
from watched import Build, Fault, Plain, vector

FAULTS: dict[str, Build] = {}


def fault(build: Build) -> Build:
    FAULTS[build.__name__] = build
    return build


class _Asks(nn.Module):
    def forward(self, x: Any) -> Any:
        return x * self.scale if hasattr(self, "scale") else x


class _Walks(nn.Module):
    def forward(self, x: Any) -> Any:
        for _, b in self.named_buffers():
            x = x * b
        for m in self.modules():
            x = x + isinstance(m, nn.Tanh)
        return x * (1 + len(self.state_dict()))


@fault
def class_method_of_an_object_with_an_attribute_of_its_own() -> Fault:
    class Conf:
        shift = 1.0

        @classmethod
        def run(cls, x: Any) -> Any:
            return x - cls.shift

    o: Any = Conf()
    o.shift = 8.0
    return lambda x: o.run(x), (vector(),), lambda: setattr(Conf, "shift", 2.0)


@fault
def class_gets_an_attribute() -> Fault:
    class Conf:
        pass

    return lambda x: x - getattr(Conf, "shift", 1.0), (vector(),), lambda: setattr(Conf, "shift", 2.0)


@fault
def class_of_an_object_gets_an_attribute() -> Fault:
    class Conf:
        pass

    o = Conf()
    return lambda x: x - getattr(o, "shift", 1.0), (vector(),), lambda: setattr(Conf, "shift", 2.0)


@fault
def class_in_a_dict_of_lists() -> Fault:
    class Conf:
        shift = 1.0

    table = {"k": [Conf]}
    return lambda x: x - table["k"][0].shift, (vector(),), lambda: setattr(Conf, "shift", 2.0)


@fault
def class_in_a_dict_whose_objects_have_no_init() -> Fault:
    class Conf:
        shift = 1.0

        def __call__(self, x: Any) -> Any:
            return x - self.shift

    table = {"k": Conf}
    return lambda x: table["k"]()(x), (vector(),), lambda: setattr(Conf, "shift", 2.0)


@fault
def class_through_its_dict() -> Fault:
    class Conf:
        shift = 1.0

    return lambda x: x - vars(Conf)["shift"], (vector(),), lambda: setattr(Conf, "shift", 2.0)


@fault
def super_finds_the_method_in_another_base() -> Fault:
    class Base:
        def run(self, x: Any) -> Any:
            return x

    class Between(Base):
        pass

    class Last(Between):
        def run(self, x: Any) -> Any:
            return super().run(x) - 1

    o = Last()
    return lambda x: o.run(x), (vector(),), lambda: setattr(Between, "run", lambda self, x: x * 2)


@fault
def pattern_with_a_keyword() -> Fault:
    o = Plain()

    def f(x: Any) -> Any:
        match o:
            case Plain(t=16.0):
                return x
        return x - 1

    return f, (vector(),), lambda: setattr(o, "t", 8.0)


@fault
def pattern_by_position() -> Fault:
    class Pair:
        __match_args__ = ("left",)
        left = 1.0

    o = Pair()

    def f(x: Any) -> Any:
        match o:
            case Pair(1.0):
                return x
        return x - 1

    return f, (vector(),), lambda: setattr(o, "left", 2.0)


@fault
def module_gets_a_buffer() -> Fault:
    m = _Asks()
    return m, (vector(),), lambda: m.register_buffer("scale", torch.tensor(2.0))


@fault
def module_gets_a_parameter() -> Fault:
    m = _Asks()
    return m, (vector(),), lambda: m.register_parameter("scale", nn.Parameter(torch.tensor(2.0)))


@fault
def module_gets_what_its_getattr_gave() -> Fault:
    class Computes(nn.Module):
        def __getattr__(self, name: str) -> Any:
            return 1.0 if name == "scale" else super().__getattr__(name)

        def forward(self, x: Any) -> Any:
            return x * self.scale

    m = Computes()
    return m, (vector(),), lambda: setattr(m, "scale", 2.0)


@fault
def child_gets_a_buffer() -> Fault:
    m = _Walks()
    m.child = nn.Module()
    return m, (vector(),), lambda: m.child.register_buffer("scale", torch.tensor(2.0))


@fault
def grandchild_is_added() -> Fault:
    m = _Walks()
    m.child = nn.Sequential(nn.ReLU())
    return m, (vector(),), lambda: m.child.append(nn.Tanh())


@fault
def child_gets_a_parameter() -> Fault:
    m = _Walks()
    m.child = nn.Linear(2, 2, bias=False)
    return m, (vector(),), lambda: setattr(m.child, "bias", nn.Parameter(torch.ones(2)))


class _Meta(type):
    shift = 1.0

    def run(cls, x: Any) -> Any:
        return x - cls.shift


@fault
def attribute_of_a_metaclass() -> Fault:
    class Above(type):
        shift = 1.0

    class Conf(metaclass=Above):
        pass

    return lambda x: x - Conf.shift, (vector(),), lambda: setattr(Above, "shift", 2.0)


@fault
def attribute_of_a_metaclass_shadowed() -> Fault:
    class Conf(metaclass=_Meta):
        pass

    return lambda x: x - Conf.shift, (vector(),), lambda: setattr(Conf, "shift", 2.0)


@fault
def method_of_a_metaclass() -> Fault:
    class Above(_Meta):
        pass

    class Conf(metaclass=Above):
        pass

    return lambda x: Conf.run(x), (vector(),), lambda: setattr(Above, "run", lambda cls, x: x * 2)


@fault
def call_of_a_metaclass() -> Fault:
    class Above(type):
        def __call__(cls, x: Any) -> Any:
            return x

    class Conf(metaclass=Above):
        pass

    return lambda x: Conf(x), (vector(),), lambda: setattr(Above, "__call__", lambda cls, x: x * 2)


@fault
def bases_of_a_class() -> Fault:
    class Asked:
        pass

    class Base:
        pass

    class Conf(Base):
        pass

    return lambda x: x - 1 if issubclass(Conf, Asked) else x, (vector(),), lambda: setattr(Conf, "__bases__", (Asked,))


@fault
def bases_of_the_class_of_an_object() -> Fault:
    class Asked:
        pass

    class Base:
        pass

    class Conf(Base):
        pass

    o = Conf()
    return lambda x: x - 1 if isinstance(o, Asked) else x, (vector(),), lambda: setattr(Conf, "__bases__", (Asked,))


@fault
def attribute_of_an_enum_member() -> Fault:
    class Kind(enum.Enum):
        ONE = 1

    member: Any = Kind.ONE
    member.shift = 1.0
    return lambda x: x - Kind.ONE.shift, (vector(),), lambda: setattr(member, "shift", 2.0)  # type: ignore[attr-defined]


@fault
def value_of_an_enum_member() -> Fault:
    o = Plain()

    class Kind(enum.Enum):
        ONE = o

    return lambda x: x * Kind.ONE.value.t, (vector(),), lambda: setattr(o, "t", 2.0)


@fault
def enum_member_is_another() -> Fault:
    class Kind(enum.Enum):
        ONE = 1.0
        TWO = 2.0

    o = Plain()
    o.t = Kind.ONE
    return lambda x: x * o.t.value, (vector(),), lambda: setattr(o, "t", Kind.TWO)


@fault
def behind_a_mapping_proxy() -> Fault:
    table = {"shift": 1.0, "inner": {}}
    proxy = types.MappingProxyType(table)
    return lambda x: x - proxy["shift"], (vector(),), lambda: table.update(shift=2.0)


@fault
def behind_a_mapping_proxy_that_is_an_argument() -> Fault:
    o = Plain()
    proxy = types.MappingProxyType({"o": o})
    return lambda x, p: x * p["o"].t, (vector(), proxy), lambda: setattr(o, "t", 2.0)


@fault
def attrgetter_made_outside() -> Fault:
    o, get = Plain(), operator.attrgetter("inner.t")
    o.inner = Plain()
    return lambda x: x * get(o), (vector(),), lambda: setattr(o.inner, "t", 2.0)


@fault
def attrgetter_handed_to_a_helper() -> Fault:
    o = Plain()

    def helper(get: Any) -> Any:
        return get(o)

    return lambda x: x * helper(operator.attrgetter("t")), (vector(),), lambda: setattr(o, "t", 2.0)


@fault
def methodcaller_made_outside() -> Fault:
    class Conf:
        def get(self, k: float) -> float:
            return k

    o, call = Conf(), operator.methodcaller("get", k=2.0)
    return lambda x: x * call(o), (vector(),), lambda: setattr(o, "get", lambda k: 3.0)


@fault
def getattr_under_another_name() -> Fault:
    o, get = Plain(), getattr
    name = "t"
    return lambda x: x * get(o, name), (vector(),), lambda: setattr(o, "t", 2.0)


@fault
def getattr_in_a_partial() -> Fault:
    o = Plain()
    get = functools.partial(getattr, o)
    return lambda x: x * get("t"), (vector(),), lambda: setattr(o, "t", 2.0)


@fault
def method_of_a_dict_kept_elsewhere() -> Fault:
    table = {"k": 1.0}
    get = table.get
    return lambda x: x * get("k"), (vector(),), lambda: table.update(k=2.0)


@fault
def getattribute_of_an_object_kept_elsewhere() -> Fault:
    o = Plain()
    get = o.__getattribute__
    return lambda x: x * get("t"), (vector(),), lambda: setattr(o, "t", 2.0)


@fault
def singledispatch_gets_another_function() -> Fault:
    @functools.singledispatch
    def scale(k: Any) -> float:
        return 1.0

    return lambda x: x * scale(3), (vector(),), lambda: scale.register(int, lambda k: 2.0)


@fault
def singledispatchmethod_gets_another_function() -> Fault:
    class Conf:
        @functools.singledispatchmethod
        def scale(self, k: Any) -> float:
            return 1.0

    o = Conf()
    return lambda x: x * o.scale(3), (vector(),), lambda: Conf.scale.register(int, lambda self, k: 2.0)


@fault
def name_that_a_module_computed() -> Fault:
    module: Any = types.ModuleType("computing")
    module.__getattr__ = lambda name: 1.0
    return lambda x: x * module.scale, (vector(),), lambda: setattr(module, "scale", 2.0)


@fault
def name_that_a_module_lacked() -> Fault:
    module = types.ModuleType("lacking")
    return lambda x: x * getattr(module, "scale", 1.0), (vector(),), lambda: setattr(module, "scale", 2.0)


@fault
def subclasses_of_a_class() -> Fault:
    class Base:
        pass

    return lambda x: x * len(Base.__subclasses__()), (vector(),), lambda: setattr(Base, "kept", type("Derived", (Base,), {}))


@fault
def class_attribute_that_is_none() -> Fault:
    class Conf:
        shift: Any = None

    o = Conf()
    return lambda x: x if o.shift is None else x - o.shift, (vector(),), lambda: setattr(Conf, "shift", 2.0)


@fault
def class_attribute_that_is_none_asked_by_name() -> Fault:
    class Conf:
        shift: Any = None

    o = Conf()
    return lambda x: x - (getattr(o, "shift", None) or 1.0), (vector(),), lambda: setattr(Conf, "shift", 2.0)


@fault
def class_attribute_of_a_module_that_is_none() -> Fault:
    class Scaled(nn.Module):
        scale: Any = None

        def forward(self, x: Any) -> Any:
            return x if self.scale is None else x * self.scale

    m = Scaled()
    return m, (vector(),), lambda: setattr(Scaled, "scale", 2.0)


@fault
def class_asked_for_what_is_none() -> Fault:
    class Conf:
        shift: Any = None

        @classmethod
        def run(cls, x: Any) -> Any:
            return x if cls.shift is None else x - cls.shift

    return Conf.run, (vector(),), lambda: setattr(Conf, "shift", 2.0)


@fault
def class_attribute_that_is_none_gets_an_own_one() -> Fault:
    class Conf:
        shift: Any = None

    o = Conf()
    return lambda x: x if o.shift is None else x - o.shift, (vector(),), lambda: setattr(o, "shift", 2.0)
