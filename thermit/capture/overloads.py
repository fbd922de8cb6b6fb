"""What kind of ATen overload a call is, from its schema: how capture treats it.

In:  an OpOverload.  Out: `Overload`, made once per overload.
Idea: nothing is registered by hand but what schemas do not tell.  In-place and `out=` overloads follow from their functional sibling.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import torch
from torch._ops import OpOverload

from thermit.records import dataclass

aten = torch.ops.aten
Treatment = Literal["functional", "view", "write", "constant", "itself", "reshapes", "live", "composite"]

_LIVE_TAGS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)

# What the schema does not tell: these return their own argument, change metadata, or do more than they say.
_LIVE = {
    aten.set_.source_Tensor, aten.set_.source_Storage, aten.set_.source_Storage_storage_offset, aten.set_.default,
    aten.set_.source_Tensor_storage_offset, aten.resize_.default, aten.resize_as_.default,
    aten.swapaxes_.default, aten.swapdims_.default, aten._conj.default, aten._neg_view.default, aten.is_pinned.default,
    aten._pin_memory.default, aten.record_stream.default, aten._assert_async.default, aten._assert_async.msg,
    aten._fused_moving_avg_obs_fq_helper.default, aten.equal.default,
}  # fmt: skip
_UNMARKED_VIEWS = {aten._unsafe_view.default, aten.unsafe_split.Tensor, aten.unsafe_split_with_sizes.default}  # their schemas do not say so
# What user code calls by name goes live before (standin.py); PyTorch itself does it to tensors that it has just made (vector @ matrix).
_RESHAPES = {aten.squeeze_.default, aten.squeeze_.dim, aten.squeeze_.dims, aten.unsqueeze_.default, aten.t_.default, aten.transpose_.default,
             aten.as_strided_.default}  # fmt: skip
_ITSELF = {aten.detach_.default, aten.resolve_conj.default, aten.resolve_neg.default}

# Batch norm in training changes its running statistics, which the schema of the usual overload hides; this one returns them.
BATCH_NORM = aten._native_batch_norm_legit_functional.default

# Their values mean nothing: the trace makes them zero.
UNINITIALISED = {
    aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default, aten.empty_strided.default,
    aten.new_empty_strided.default, aten.empty_permuted.default,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Overload:
    """`functional`: for "write", the overload that computes what is written; `written`: names of the arguments that it writes, in the
    order of the functional results; `inplace`: whether the first argument is both read and written; `uninitialised`: its values mean
    nothing."""

    op: OpOverload
    treatment: Treatment
    random: bool
    pointwise: bool
    argument_names: tuple[str, ...]
    functional: OpOverload | None = None
    written: tuple[str, ...] = ()
    inplace: bool = False
    takes_tensors: bool = True
    takes_device: bool = False
    uninitialised: bool = False


_SPOKEN = {
    "index": "x[...]", "index_put": "x[...] = y", "_local_scalar_dense": "a number that is a tensor", "item": "a number that is a tensor",
    "_linalg_check_errors": "torch.linalg", "_unique2": "torch.unique", "_unique": "torch.unique", "unique_dim": "torch.unique",
    "copy": "Tensor.copy_", "fill": "Tensor.fill_", "_to_copy": "Tensor.to",
}  # fmt: skip


def spoken(op: Any) -> str:
    """An overload as users know it: the function of torch, or the method."""
    if not isinstance(op, OpOverload):
        return str(getattr(op, "__name__", op))
    name = op._schema.name.split("::")[1]
    family, _, rest = name.partition("_")
    if name.rstrip("_") in _SPOKEN:
        return _SPOKEN[name.rstrip("_")]
    if family in ("linalg", "fft", "special") and rest:
        return f"torch.{family}.{rest}"
    return f"torch.{name}" if hasattr(torch, name) else f"torch.nn.functional.{name}" if hasattr(torch.nn.functional, name) else f"Tensor.{name}"


def is_random(op: Any) -> bool:
    """Whether the overload draws from a generator.  Attention on the CPU does not, although it has the tag: it refuses dropout."""
    return torch.Tag.nondeterministic_seeded in getattr(op, "tags", ()) and op is not aten._scaled_dot_product_flash_attention_for_cpu.default


def _is_write(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


@cache
def overload_of(op: OpOverload) -> Overload:
    """How capture treats the overload."""
    schema = op._schema
    names = tuple(a.name for a in schema.arguments)
    tensors = any("Tensor" in str(a.type) for a in schema.arguments)
    device = any(a.name == "device" for a in schema.arguments)
    random = is_random(op)
    pointwise = torch.Tag.pointwise in op.tags
    treatment, functional, written, inplace = _treatment(op)
    return Overload(op, treatment, random, pointwise, names, functional, written, inplace, tensors, device, op in UNINITIALISED)


def _treatment(op: OpOverload) -> tuple[Treatment, OpOverload | None, tuple[str, ...], bool]:
    schema = op._schema
    written = tuple(a.name for a in schema.arguments if _is_write(a))
    if op.namespace != "aten" and op.namespace != "prims":
        return "live", None, (), False
    if op in _LIVE or (any(tag in op.tags for tag in _LIVE_TAGS) and op is not aten.index.Tensor):  # index: only by masks
        return "live", None, (), False
    if op in _ITSELF:
        return "itself", None, (), False
    if op in _RESHAPES:
        return "reshapes", None, (), False
    if op in (aten.lift_fresh.default, aten.lift.default):
        return "constant", None, (), False
    if _is_composite(op):
        return "composite", None, (), False
    if written:
        functional, inplace = _functional_of(op, written)
        return ("live" if functional is None else "write"), functional, written, inplace
    if not schema.returns or any("Tensor" not in str(r.type) for r in schema.returns):
        return "live", None, (), False
    if any(r.alias_info is not None for r in schema.returns) or op in _UNMARKED_VIEWS:
        return "view", None, (), False
    return "functional", None, (), False


def _is_composite(op: OpOverload) -> bool:
    """Whether PyTorch itself writes it in terms of others and it only arrives here because autograd is off (inference mode)."""
    name = op.name()
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return has(name, "CompositeImplicitAutograd") and not has(name, "CPU") and not has(name, "CompositeExplicitAutograd")


def _functional_of(op: OpOverload, written: tuple[str, ...]) -> tuple[OpOverload | None, bool]:
    """The overload that computes what this one writes, and whether it is in place (writes its first argument)."""
    schema = op._schema
    base = schema.name.split("::")[1]
    inplace = base.endswith("_") and not base.endswith("__") and written == (schema.arguments[0].name,)
    if inplace:
        for name in (base[:-1], base[:-1] + "_functional"):
            found = _sibling(name, [a for a in schema.arguments if a.name != "generator"], schema.overload_name)
            if found is not None:
                return found, True
        return None, False
    out = tuple(a.name for a in schema.arguments if a.kwarg_only and _is_write(a))
    if out == written:
        kept = [a for a in schema.arguments if a.name not in out]
        found = _sibling(base, kept, "")
        if found is not None and len(found._schema.returns) == len(out):
            return found, False
    return None, False


def _sibling(name: str, arguments: list[Any], overload: str) -> OpOverload | None:
    packet = getattr(aten, name, None)
    if packet is None:
        return None
    wanted = [(a.name, str(a.type)) for a in arguments]
    for each in sorted(packet.overloads(), key=lambda o: o != (overload or "default")):
        found = getattr(packet, each)
        if any(_is_write(a) for a in found._schema.arguments):
            continue
        have = [(a.name, str(a.type)) for a in found._schema.arguments if a.name != "generator"]
        if have == wanted:
            return found
    return None
