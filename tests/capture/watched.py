"""What the tests of facts share: a run under watch, values to run on, classes to read and write."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import torch

from thermit.capture.facts import Facts, watch
from thermit.capture.signature import Call

Fault = tuple[Callable[..., Any], tuple[Any, ...], Callable[[], Any]]
Build = Callable[[], Fault]
HANDLES: list[Any] = []


class Undo:
    """Among the handles: `remove()` calls what undoes a change; `done` is the change, made as an argument."""

    def __init__(self, undo: Callable[[], Any], done: Any = None) -> None:
        self.remove = undo


def vector() -> torch.Tensor:
    return torch.arange(3.0)


def run(function: Any, *args: Any, **kwargs: Any) -> Facts:
    """The facts of one run on the real tensors."""
    watcher = watch(function, Call(args, kwargs))
    with watcher:
        function(*args, **kwargs)
    return watcher.facts()


def attempt(function: Any, args: Any) -> tuple[Any, BaseException | None]:
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function(*args), None
    except Exception as error:
        return None, error


def flat(value: Any) -> list[Any]:
    return [leaf for part in value for leaf in flat(part)] if isinstance(value, list | tuple) else [value]


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


@dataclasses.dataclass
class Settings:
    k: Any = 1.0
    names: Any = dataclasses.field(default_factory=list)
