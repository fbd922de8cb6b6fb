"""The twin of a module: an object with the module's own state whose call is compiled.

In:  a module, and the jitted function that calls it.
Out: an object of a subclass of the module's class.  Both have one `__dict__`: parameters, buffers, flags, hooks and submodules are the same
objects, and what is set on one is set on the other.
Idea: each twin has a class of its own, whose `__call__` is the native entry; everything else is inherited.  Inside a compiled call `self`
is the module, so what a trace reads of it is read where eager would read it.
Invariant: no attribute of the module's is hidden, and no object but the twin itself is of the twin's class.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import itertools
import types
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import torch

_STAGES = ("trace", "lower", "compile", "explain")
_TORCH_COMPILE = frozenset(inspect.signature(torch.compile).parameters) - {"model"}
_LEFT_ALONE = ("torch._dynamo.", "torch.nn.parallel.", "torch.distributed.", "torch.jit.")


class Jitted(Protocol):
    """What a twin asks of the jitted function behind it."""

    def again(self, function: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """How to jit another function, or module, with the same options: a function and its arguments."""


class Twin:
    """What all twins have.  Stands before the module's class among the bases."""

    __slots__ = ()
    __thermit_module__: ClassVar[torch.nn.Module]
    __thermit_jitted__: ClassVar[Any]

    def __init_subclass__(cls, **_: Any) -> None:
        """The module's class does not hear of the twin's: it may keep a register of its subclasses."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """A new object is none of the twin's class: it has a state of its own."""
        kind = type(cls.__thermit_module__)
        return kind.__new__(kind, *args, **kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        _follow(type(self))
        super().__setattr__(name, value)
        if name == "__dict__":
            object.__setattr__(type(self).__thermit_module__, name, value)

    def __getattr__(self, name: str) -> Any:
        kind = type(self)
        if _follow(kind):
            return getattr(self, name)
        return super().__getattr__(name)  # type: ignore[misc]

    def __copy__(self) -> Any:
        return self._thermit_again(copy.copy(type(self).__thermit_module__))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied = copy.deepcopy(type(self).__thermit_module__, memo)
        return memo.setdefault(id(self), self._thermit_again(copied))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return type(self).__thermit_jitted__.again(type(self).__thermit_module__)

    def _thermit_again(self, module: Any) -> Any:
        make, arguments = type(self).__thermit_jitted__.again(module)
        return make(*arguments)

    def apply(self, fn: Callable[[torch.nn.Module], None]) -> Any:
        """As the module's, which hands out itself: functions may ask for the exact class."""
        module = type(self).__thermit_module__
        result = module.apply(fn)
        return self if result is module else result


class _TwinType(type):
    """The class of a twin's class: calling it makes what calling the module's class makes."""

    __thermit_module__: torch.nn.Module

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return type(cls.__thermit_module__)(*args, **kwargs)


class _Stage:
    """`trace`, `lower`, `compile` or `explain`, where the module has nothing of this name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, twin: Any, owner: type) -> Any:
        if twin is None:
            return self
        module: Any = owner.__thermit_module__  # type: ignore[attr-defined]
        try:
            return type(module).__getattr__(module, self.name)  # a child, a parameter, what it forwards
        except AttributeError:
            stage = getattr(owner.__thermit_jitted__, self.name)  # type: ignore[attr-defined]
            return functools.partial(_compile, module, stage) if self.name == "compile" else stage


def _compile(module: torch.nn.Module, stage: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The stage; `Module.compile()`, as every module has it, where only options of torch.compile are given."""
    return stage(*args, **kwargs) if args or not kwargs.keys() <= _TORCH_COMPILE else module.compile(**kwargs)


class _Class:
    """The class that a twin says it has is the module's; giving the twin another class gives it to the module (parametrizations do)."""

    def __get__(self, twin: Any, owner: type) -> Any:
        _follow(owner)
        return type(owner.__thermit_module__)  # type: ignore[attr-defined]

    def __set__(self, twin: Any, value: type) -> None:
        module: Any = type(twin).__thermit_module__
        module.__class__ = value
        _follow(type(twin))


class _Signature:
    """What `inspect.signature` answers: for a twin as for forward, or the module's own `__call__`; for its class as for the module's."""

    def __get__(self, twin: Any, owner: type) -> Any:
        module = owner.__thermit_module__  # type: ignore[attr-defined]
        try:
            return inspect.signature(type(module)) if twin is None else signature(module)
        except (TypeError, ValueError):
            raise AttributeError("__signature__") from None


class _Slot:
    """A slot of the module's class: it has no place in the dict that both have."""

    def __init__(self, slot: types.MemberDescriptorType) -> None:
        self.slot = slot

    def __get__(self, twin: Any, owner: type) -> Any:
        return self if twin is None else self.slot.__get__(owner.__thermit_module__, owner)  # type: ignore[attr-defined]

    def __set__(self, twin: Any, value: Any) -> None:
        self.slot.__set__(type(twin).__thermit_module__, value)

    def __delete__(self, twin: Any) -> None:
        self.slot.__delete__(type(twin).__thermit_module__)


def _follow(kind: Any) -> bool:
    """The module may have been given another class: then the twin's is derived from that.  Whether it had to be changed."""
    now = type(kind.__thermit_module__)
    if kind.__bases__[1] is now:
        return False
    with contextlib.suppress(TypeError):  # a class of another layout
        kind.__bases__ = (Twin, now)
        kind.__name__, kind.__qualname__, kind.__module__ = now.__name__, now.__qualname__, now.__module__
        return True
    return False


def signature(module: torch.nn.Module) -> inspect.Signature:
    """The parameters of a call.  Raises ValueError or TypeError where they cannot be told."""
    own = type(module).__call__ is not torch.nn.Module.__call__
    return inspect.signature(module if own else module.forward)


def left_alone(module: torch.nn.Module) -> str:
    """Why a module has no twin, or ""."""
    if isinstance(module, torch.jit.ScriptModule):
        return "a ScriptModule is compiled by TorchScript"
    if type(module).__module__.startswith(_LEFT_ALONE):
        return f"a {type(module).__name__} is handed to another machinery of PyTorch"
    return ""


def eager_now(function: Any) -> str:
    """Why a module, or a method of one, runs eagerly as it is now, or "".  A call asks this where no compiled variant fits."""
    module = getattr(function, "__self__", None) if isinstance(function, types.MethodType) else function
    if not isinstance(module, torch.nn.Module):
        return ""
    if module._compiled_call_impl is not None and module is function:
        return "torch.compile compiles this module"
    gradients = torch.is_grad_enabled()
    for name, tensor in itertools.chain(module.named_parameters(), module.named_buffers()):
        if torch.nn.parameter.is_lazy(tensor):
            return f"{name} has no values yet"
        if gradients and tensor.requires_grad:
            return f"{name} requires grad and gradients are on (torch.no_grad() turns them off)"
    return ""


def original(module: Any) -> Any:
    """The module that a twin stands for; any other object itself."""
    return type(module).__thermit_module__ if isinstance(module, Twin) else module


def twin_of(module: torch.nn.Module, jitted: Jitted, call: Callable[..., Any]) -> Any:
    """The twin of a module: `call` is called with the arguments of its calls."""
    kind = type(module)
    namespace: dict[str, Any] = {
        "__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__,
        "__thermit_module__": module, "__thermit_jitted__": jitted, "__call__": call,
        "__class__": _Class(), "__signature__": _Signature(), "__slots__": (),
    }  # fmt: skip
    for name in _STAGES:
        if getattr(kind, name, None) is getattr(torch.nn.Module, name, None):
            namespace[name] = _Stage(name)
    for base in kind.__mro__:
        for name, slot in vars(base).items():
            if isinstance(slot, types.MemberDescriptorType):
                namespace.setdefault(name, _Slot(slot))
    above = type(kind)
    meta: Any = _TwinType if above is type else type(above.__name__, (_TwinType, above), {})
    twin = object.__new__(type.__new__(meta, kind.__name__, (Twin, kind), namespace))
    object.__setattr__(twin, "__dict__", module.__dict__)
    return twin
