"""Arithmetic of stand-ins goes to the recorder at once.

In:  `x * y`, `x + 2`, ... in the user's code, where x is a stand-in.  Out: what PyTorch's own operator gives.
Idea: PyTorch's way from an operator to a dispatch mode takes fifteen events of a profile hook and as much time as the recorder itself.  It leads
nowhere else where nothing stands between: no other mode, no transform, no autocast, nothing that is differentiated.
Invariant: the recorder gets the overload and the arguments that PyTorch would hand to it; whatever is unusual takes PyTorch's way.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch._ops import OpOverload
from torch.autograd import forward_ad

from thermit.capture.standin import StandIn

aten = torch.ops.aten

# Of a tensor and a tensor or number; of a tensor and a number alone.
OF_TWO = {
    "__add__": aten.add.Tensor, "__radd__": aten.add.Tensor, "__mul__": aten.mul.Tensor, "__rmul__": aten.mul.Tensor,
    "__sub__": aten.sub.Tensor, "__truediv__": aten.div.Tensor,
}  # fmt: skip
WITH_NUMBER = {"__rsub__": aten.rsub.Scalar}
_LIMIT = 1 << 63  # of the integers that PyTorch takes


def nothing_between(mode: object) -> bool:
    """Whether an operator of this thread reaches the mode unchanged."""
    depth = torch._C._len_torch_dispatch_stack()
    return (
        depth > 0
        and torch._C._get_dispatch_stack_at(depth - 1) is mode
        and torch._C._len_torch_function_stack() == 0
        and torch._C._functorch.maybe_current_level() is None
        and not torch._C._is_any_autocast_enabled()
        and forward_ad._current_level < 0
    )


def _operator(name: str, op: OpOverload, numbers_only: bool) -> Callable[[StandIn, Any], Any]:
    original = getattr(torch.Tensor, name)

    def method(self: StandIn, other: Any) -> Any:
        watch = sys.getprofile()
        if watch is not None and type(watch) is not MethodType:  # not ours: one written in C cannot be set again
            return original(self, other)
        sys.setprofile(None)
        try:
            kind = type(other)
            if kind is float or (kind is int and -_LIMIT <= other < _LIMIT) or (kind is StandIn and not numbers_only):
                made = self.owner.arithmetic(op, self, other)
            else:
                made = None
        finally:
            sys.setprofile(watch)
        return original(self, other) if made is None else made

    method.__name__, method.__qualname__, method.__doc__ = name, f"Tensor.{name}", original.__doc__
    return method


for _name, _op in OF_TWO.items():
    setattr(StandIn, _name, _operator(_name, _op, numbers_only=False))
for _name, _op in WITH_NUMBER.items():
    setattr(StandIn, _name, _operator(_name, _op, numbers_only=True))
OPERATOR = vars(StandIn)["__mul__"]  # all of them have one code
