"""The tensor that user code holds while it is traced: sizes, strides and dtype, no elements.

In:  a storage cell and a geometry.  Out: an object that is a torch.Tensor to all that asks, below autograd.
Idea: operators reach the recorder through PyTorch's dispatcher.  What reads elements or changes metadata without dispatching is
overridden here by name: it first asks the recorder to go live, after which the object *is* a real tensor (its implementation
is exchanged), and the method runs on that.
Invariant: no stand-in computes; one that outlives its trace raises LeakedStandInError.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, Protocol

import torch

from thermit.capture.origin import USER, code_origin
from thermit.capture.overloads import spoken
from thermit.capture.storage import Cell, Geometry
from thermit.errors import LeakedStandInError
from thermit.ir.types import DType


class Owner(Protocol):
    """What a stand-in needs of its recorder."""

    def materialize(self, stand_in: StandIn, method: str) -> torch.Tensor | None: ...
    def constant(self, stand_in: StandIn) -> torch.Tensor | None: ...
    def real(self, value: Any) -> Any: ...
    def touched(self, stand_in: StandIn) -> None: ...
    def outside(self, what: str) -> None: ...
    def argument(self, stand_in: StandIn, name: str) -> torch.Tensor | None: ...
    def lacks(self, stand_in: StandIn, name: str) -> bool: ...
    def forward(self, func: Any, args: Any, kwargs: Any) -> Any: ...
    def arithmetic(self, func: Any, x: StandIn, y: Any) -> StandIn | None: ...
    @property
    def is_live(self) -> bool: ...
    @property
    def is_open(self) -> bool: ...


_CPU = torch.device("cpu")


class _LikeTensor(type(torch.Tensor)):  # type: ignore[misc]
    """Code that asks `type(x) == torch.Tensor`, or looks type(x) up in a table, gets the answer for a tensor (`is` is refused: frames.py)."""

    def __eq__(cls, other: object) -> bool:
        return other is torch.Tensor or other is cls

    def __hash__(cls) -> int:
        return hash(torch.Tensor)


_hung = vars(torch.Tensor)["__dict__"].__get__  # the dict of a tensor object


def _asked_by_user() -> bool:
    return code_origin(sys._getframe(2).f_code) == USER


class StandIn(torch.Tensor, metaclass=_LikeTensor):
    """See the module.  `backing` is the real tensor once the trace has gone live."""

    owner: Owner
    cell: Cell
    geometry: Geometry
    element: DType
    backing: torch.Tensor | None

    @staticmethod
    def __new__(cls, owner: Owner, cell: Cell, geometry: Geometry, element: DType, dtype: torch.dtype, requires_grad: bool = False) -> StandIn:
        self = torch.Tensor._make_wrapper_subclass(
            cls, geometry.sizes, strides=geometry.strides, storage_offset=geometry.offset, dtype=dtype, device=_CPU, requires_grad=requires_grad
        )
        self.owner, self.cell, self.geometry, self.element, self.backing = owner, cell, geometry, element, None
        return self

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Only reached outside the trace (the stand-in leaked), from another thread, and where PyTorch dispatches below the trace."""
        stand_in = next(a for a in _leaves((*args, *(kwargs or {}).values())) if is_stand_in(a))
        stand_in.owner.outside(spoken(func))
        if stand_in.backing is not None:
            return stand_in.owner.forward(func, args, kwargs or {})
        raise leaked(stand_in, spoken(func))

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return torch.nn.Parameter if "_is_param" in _hung(self) else torch.Tensor

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        """What user code hung on the tensor is asked of the tensor itself; all others mean the stand-in's own."""
        if not _asked_by_user() or "owner" not in _hung(self):
            return _hung(self)
        real = self.owner.materialize(self, "__dict__")
        return _hung(self if real is None else real)

    def __getattr__(self, name: str) -> Any:
        """An attribute that tensors do not have: missing, or somebody hung it on the tensor itself; either way eager's answer."""
        if "owner" not in _hung(self) or (name.startswith("_") and not _asked_by_user()):
            raise AttributeError(f"'Tensor' object has no attribute {name!r}")
        if self.owner.lacks(self, name):
            raise AttributeError(f"'{self.__class__.__name__}' object has no attribute {name!r}")
        real = self.owner.materialize(self, name)
        return object.__getattribute__(self, name) if real is None else getattr(real, name)


StandIn.__name__ = StandIn.__qualname__ = "Tensor"
StandIn.__module__ = "torch"


def is_stand_in(value: Any) -> bool:
    """Whether it is a stand-in (isinstance asks `__class__`, which says torch.Tensor)."""
    return type(value) is StandIn


def has_history(stand_in: StandIn) -> bool:
    """Whether autograd has recorded how it was made, or refuses to say (a view made under no_grad whose base was written)."""
    try:
        return own(stand_in, "grad_fn") is not None
    except RuntimeError:
        return True


def _leaves(values: Any) -> Any:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _leaves(value)
        else:
            yield value


def leaked(stand_in: StandIn, what: str) -> LeakedStandInError:
    """The error that tells of a stand-in used after its trace."""
    sizes = ",".join(map(str, stand_in.geometry.sizes))
    return LeakedStandInError(
        f"{what} on a tensor of shape [{sizes}] that a traced function stored outside (in a global, an attribute, a list)",
        getattr(stand_in.owner, "place", ""),
        "Return the tensor from the function instead, or run the function eagerly.",
    )


# ---------------------------------------------------------------------------------------------- what does not dispatch
# Methods that look at elements or memory: answered by the value where the trace knows it, else the trace goes live.
READS = (
    "__bool__", "__int__", "__float__", "__complex__", "__index__", "item", "tolist", "numpy", "__array__", "__repr__", "__str__", "__format__",
)  # fmt: skip
# Methods that need memory, change metadata or hang something on the tensor: the trace goes live.
TOUCHES = (
    "data_ptr", "untyped_storage", "storage", "_typed_storage", "__dlpack__", "__dlpack_device__", "__deepcopy__", "__reduce_ex__", "__reduce__",
    "share_memory_", "is_shared", "pin_memory", "is_pinned", "set_", "resize_", "resize_as_", "t_", "transpose_", "squeeze_", "unsqueeze_",
    "swapaxes_", "swapdims_", "as_strided_", "rename_", "rename", "register_hook", "register_post_accumulate_grad_hook", "__setstate__",
    "record_stream", "to_sparse", "to_mkldnn", "backward", "is_set_to", "apply_", "map_", "map2_", "storage_type",
    "retain_grad", "requires_grad_", "__dir__", "_backward_hooks", "as_subclass", "align_to", "refine_names",
)  # fmt: skip


def _override(name: str, *, reads: bool) -> Callable[..., Any]:
    original = getattr(torch.Tensor, name)

    def method(self: StandIn, *args: Any, **kwargs: Any) -> Any:
        owner = self.owner
        if reads and (known := owner.constant(self)) is not None:
            with torch._C._DisableTorchDispatch():
                return original(known, *args, **kwargs)
        real = owner.materialize(self, name)
        args = tuple([owner.real(a) for a in args])
        if real is None:
            return original(self, *args, **kwargs)
        result = original(real, *args, **kwargs)
        if not reads:
            owner.touched(self)
        return self if result is real else result

    method.__name__ = name
    method.__qualname__ = f"Tensor.{name}"
    method.__doc__ = original.__doc__
    return method


# What only the tensor itself knows of an argument (of what the function makes, its stand-in knows): asked for, the trace goes live.
ITS_OWN = ("grad", "_version", "_base", "_is_view", "is_inference", "storage_offset", "grad_fn", "is_leaf")
_WITHOUT_GRAD = ("grad_fn", "is_leaf")  # a tensor that does not require grad answers as all such do


def own(stand_in: torch.Tensor, name: str) -> Any:
    """What PyTorch has written down for the stand-in itself under one of these names."""
    original = getattr(torch.Tensor, name)
    return original(stand_in) if callable(original) else original.__get__(stand_in)


def _asked(name: str) -> Any:
    def read(self: StandIn) -> Any:
        plain = name in _WITHOUT_GRAD and not self.requires_grad
        real = None if plain else self.owner.argument(self, name)
        return own(self if real is None else real, name)

    original = getattr(torch.Tensor, name)
    return functools.wraps(original)(read) if callable(original) else property(read, _property(name).fset)


for _name in READS:
    setattr(StandIn, _name, _override(_name, reads=True))
for _name in TOUCHES:
    if callable(getattr(torch.Tensor, _name, None)):
        setattr(StandIn, _name, _override(_name, reads=False))


def _property(name: str) -> property:
    original = getattr(torch.Tensor, name)

    def write(self: StandIn, value: Any) -> None:
        owner = self.owner
        real = owner.materialize(self, f"{name} =")
        original.__set__(self if real is None else real, owner.real(value))
        if real is not None:
            owner.touched(self)

    return property(original.__get__, write)


for _name in ("data", "requires_grad"):
    setattr(StandIn, _name, _property(_name))
for _name in ITS_OWN:
    setattr(StandIn, _name, _asked(_name))
