"""Arguments of ATen calls: tensors found, defaults filled in, options checked.

In:  what PyTorch hands to a dispatch mode.  Out: plain values; GoLive for what is not captured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from thermit.aten.table import DTYPE_OF
from thermit.capture.overloads import Overload
from thermit.capture.recording import GoLive
from thermit.capture.standin import StandIn
from thermit.capture.storage import Geometry
from thermit.capture.strides import Meta
from thermit.ir.types import DType


def element_type(dtype: torch.dtype) -> DType:
    """The DType of a torch.dtype."""
    found = DTYPE_OF.get(dtype)
    if found is None or found.is_complex:
        raise GoLive(f"a tensor of {dtype}")
    return found


def flat_metas(metas: Any) -> list[Any]:
    """The Metas (or None) of a result, lists opened."""
    if isinstance(metas, Meta) or metas is None:
        return [metas]
    return [m for part in metas for m in flat_metas(part)]


def tensors_in(values: Any) -> tuple[Any, ...]:
    """The tensors in a value, lists opened."""
    if isinstance(values, torch.Tensor):
        return (values,)
    if isinstance(values, list | tuple):
        return tuple(t for v in values for t in tensors_in(v))
    return ()


def argument(info: Overload, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    """The argument of this name."""
    if name in kwargs:
        return kwargs[name]
    return args[info.argument_names.index(name)]


def with_defaults(info: Overload, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The arguments with those defaults filled in that the functional overload does not have."""
    assert info.functional is not None
    needed = {a.name for a in info.functional._schema.arguments if not a.has_default_value()}
    given = set(info.argument_names[: len(args)]) | set(kwargs)
    missing = {a.name: a.default_value for a in info.op._schema.arguments if a.name in needed - given and a.has_default_value()}
    return args, {**kwargs, **missing}


def frozen(value: Any) -> Any:
    """A hashable image of static arguments that tells 0.0 from -0.0 and 1 from True."""
    if isinstance(value, list | tuple):
        return tuple(map(frozen, value))
    if isinstance(value, float):
        return "float", value.hex()
    return type(value), value


def check_options(kwargs: dict[str, Any]) -> None:
    """What a factory may be asked for that a compiled program does not make."""
    device, layout = kwargs.get("device"), kwargs.get("layout")
    if device is not None and torch.device(device).type != "cpu":
        raise GoLive(f"a tensor on {device}")
    if layout is not None and layout is not torch.strided:
        raise GoLive(f"a tensor of layout {layout}")
    if kwargs.get("pin_memory"):
        raise GoLive("pinned memory")
    if kwargs.get("generator") is not None:
        raise GoLive("draws from a torch.Generator of its own")


def as_strided(base: StandIn, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> Meta:
    """Where as_strided of a tensor lies."""
    offset = base.geometry.offset if storage_offset is None else storage_offset
    if len(size) != len(stride) or min((0, *size, *stride, offset)) < 0:
        raise GoLive("as_strided that eager refuses")
    return Meta(Geometry(tuple(size), tuple(stride), offset), base.dtype)
