"""Changes to classes, and to what is found in more than one place: the class, its bases, the tables of a module."""

from __future__ import annotations

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
