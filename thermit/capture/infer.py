"""The metadata that eager gives to results: sizes, strides, dtype of what an ATen call returns.

In:  an overload and its arguments, tensors as `Meta` (geometry and dtype).
Out: a Meta for each tensor returned; whatever eager raises, raised.
Idea: PyTorch itself decides, on meta tensors.  Its Python implementations take 50 to 150 us a call for pointwise operations, so these have
a short way: the dtype comes from the real kernel run once on one element and is remembered, sizes and strides follow TensorIterator's
rule, which is written down here and tested against the real kernels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

from thermit.capture.layouts import COMPOSED, CORRECTED
from thermit.capture.plain_sizes import plain_sizes
from thermit.capture.storage import Geometry, is_dense
from thermit.capture.strides import Meta, dense_strides, iterated_strides
from thermit.ir.types import Shape

aten = torch.ops.aten

# Tagged pointwise, but their results do not lie as TensorIterator would lay them.
_NOT_ITERATED = {
    aten.clone.default, aten.masked_fill.Scalar, aten.nan_to_num.default, aten.pow.Scalar, aten.frexp.Tensor, aten.hardtanh.default,
    aten.deg2rad.default, aten.rad2deg.default, aten.fill.Tensor, aten.fill.Scalar, aten.zero.default, aten._prelu_kernel.default,
    aten.ldexp.Tensor, aten.mvlgamma.default, aten.native_dropout_backward.default, aten.huber_loss.default,
}  # fmt: skip
# Not tagged pointwise, and yet one iteration over their operands.
_ITERATED = {
    aten.floor_divide.default, aten.floor_divide.Scalar, aten.hardswish_backward.default, aten.hardtanh_backward.default, aten.rsub.Tensor,
    aten.rsub.Scalar, aten.complex.default, aten.polar.default, aten.leaky_relu_backward.default, aten.hardswish.default,
}  # fmt: skip
# Their kernels do not bring the operands to one type.
_MIXED = {aten.complex.default, aten.polar.default}
# Their kernels name the operands to the iterator in another order than the schema.
_SWAPPED = {aten.threshold_backward.default, aten.rsub.Tensor, aten.leaky_relu_backward.default}


def broadcast(shapes: Sequence[Shape]) -> Shape | None:
    """The common shape; None where there is none (eager raises)."""
    first = shapes[0]
    if shapes.count(first) == len(shapes):
        return first
    rank = max(map(len, shapes))
    out = []
    for axis in range(-rank, 0):
        sizes = {s[axis] for s in shapes if -axis <= len(s)} - {1}
        if len(sizes) > 1:
            return None
        out.append(sizes.pop() if sizes else 1)
    return tuple(out)


_ARITHMETIC = {aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.rsub.Scalar}


# ---------------------------------------------------------------------------------------------- pointwise
_dtypes: dict[Any, torch.dtype] = {}


class _Rule(NamedTuple):
    """How an overload iterates.  `iterated`, `tagged`: always, or where it has the tag; `numbers`: which arguments become operands if they
    are numbers."""

    op: OpOverload
    iterated: bool
    tagged: bool
    mixed: bool
    swapped: bool
    kind: Callable[[Any], Any]
    numbers: tuple[bool, ...]


_rules: dict[int, _Rule] = {}  # by identity (a rule holds its overload): hashing an overload runs Python


def _rule(op: OpOverload) -> _Rule:
    found = _rules.get(id(op))
    if found is None:
        numbers = tuple(a.name in ("self", "other") or isinstance(a.type, torch.TensorType) for a in op._schema.arguments)
        kind = _kind_of_arithmetic if op in _ARITHMETIC else _kind
        found = _rules[id(op)] = _Rule(op, op in _ITERATED, op not in _NOT_ITERATED, op in _MIXED, op in _SWAPPED, kind, numbers)
    return found


def _pointwise(rule: _Rule, args: Sequence[Any], kwargs: dict[str, Any]) -> Meta | None:
    """The short way; None where it does not apply."""
    kind = rule.kind
    asked = (
        id(rule.op), torch.get_default_dtype(), tuple([a if type(a) is Meta else kind(a) for a in args]),
        tuple([(k, a if type(a) is Meta else kind(a)) for k, a in kwargs.items()]) if kwargs else (),
    )  # fmt: skip
    try:
        found = _iterations.get(asked)
    except TypeError:  # a list
        return None
    if found is None:
        found = _iterated(rule, args, kwargs)
        if found is not None:
            if len(_iterations) >= ANSWERS:
                _iterations.clear()
            _iterations[asked] = found
    return found


_iterations: dict[Any, Meta] = {}


def _iterated(rule: _Rule, args: Sequence[Any], kwargs: dict[str, Any]) -> Meta | None:
    metas: list[Meta] = []
    for a in (*args, *kwargs.values()):
        if isinstance(a, Meta):
            metas.append(a)
        elif isinstance(a, list | tuple):
            return None
    if not metas:
        return None
    shape = broadcast([m.geometry.sizes for m in metas])
    if shape is None:
        return None
    kind = rule.kind
    key = (id(rule.op), torch.get_default_dtype(), tuple([kind(a) for a in args]), tuple([(k, kind(a)) for k, a in kwargs.items()]))
    dtype = _dtypes.get(key)
    if dtype is None:
        dtype = _dtypes[key] = _probe(rule.op, args, kwargs)
    if rule.swapped:
        metas.reverse()
    seen = [m.geometry for m in metas] if rule.mixed else _converted(rule.op, metas, dtype)
    strides = iterated_strides(shape, [*seen, *_numbers(rule, args)])
    return Meta(Geometry(shape, strides, 0), dtype)


def _converted(op: OpOverload, metas: Sequence[Meta], result: torch.dtype) -> list[Geometry]:
    """The operands as the iterator sees them: those of another type than the common one have been copied, without gaps and repeats."""
    if all(m.dtype == result or is_dense(m.geometry) for m in metas):
        return [m.geometry for m in metas]
    common = result
    if result is torch.bool or (not result.is_complex and any(m.dtype.is_complex for m in metas)):
        common = functools.reduce(torch.promote_types, [m.dtype for m in metas])
    kept = metas[:1] if op is aten.where.self else ()  # the condition
    return [
        m.geometry
        if m.dtype == common or is_dense(m.geometry) or m in kept
        else m.geometry._replace(strides=dense_strides(m.geometry.sizes, m.geometry.strides))
        for m in metas
    ]


_NUMBER = Geometry((), (), 0)


def _numbers(rule: _Rule, args: Sequence[Any]) -> list[Geometry]:
    """The numbers that eager makes operands of (tensors without axes): they decide the strides of axes of size 1."""
    return [_NUMBER for wrapped, value in zip(rule.numbers, args, strict=False) if wrapped and isinstance(value, int | float)]


def _is_zeros(op: OpOverload, args: Sequence[Any]) -> bool:
    """isinf of integers is zeros_like."""
    return op is aten.isinf.default and not (args[0].dtype.is_floating_point or args[0].dtype.is_complex)


def _kind(arg: Any) -> Any:
    return (arg.dtype, len(arg.geometry.sizes) > 0) if isinstance(arg, Meta) else (type(arg), arg)


def _kind_of_arithmetic(arg: Any) -> Any:
    """Numbers that fit every floating type are all alike to them; so a polynomial is not probed for each coefficient."""
    return float if type(arg) is float and abs(arg) < 6e4 else _kind(arg)


def _probe(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> torch.dtype:
    """The dtype of the real kernel's result on one element; raises what eager raises."""

    def one(arg: Any) -> Any:
        return torch.ones((1,) if arg.geometry.sizes else (), dtype=arg.dtype) if isinstance(arg, Meta) else arg

    return op(*map(one, args), **{k: one(a) for k, a in kwargs.items()}).dtype


# ---------------------------------------------------------------------------------------------- anything
def meta_tensor(meta: Meta) -> torch.Tensor:
    """A tensor without elements of this geometry, on a storage of its own."""
    sizes, strides, offset = meta.geometry
    if offset == 0:
        return torch.empty_strided(sizes, strides, dtype=meta.dtype, device="meta")
    return torch.empty(meta.geometry.extent, dtype=meta.dtype, device="meta").as_strided(sizes, strides, offset)


def convert(value: Any, function: Callable[[Any], Any]) -> Any:
    """The value with `function` applied to every leaf of its lists and tuples."""
    kind = type(value)
    if kind is list or kind is tuple:  # not `in`: that asks the class of a stand-in whether it is equal
        return kind([convert(v, function) for v in value])
    return function(value)


def _to_meta(value: Any) -> Any:
    if isinstance(value, Meta):
        return meta_tensor(value)
    return value


def infer(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], *, pointwise: bool, device: bool) -> Any:
    """The call's result with a Meta in place of each tensor.  `device`: the call must be told to stay on meta."""
    rule = _rule(op)
    if (pointwise and rule.tagged and not _is_zeros(op, args)) or rule.iterated:
        found = _pointwise(rule, args, kwargs)
        if found is not None:
            return found
    key = (id(op), device, torch.get_default_dtype(), _plain(args), _plain(tuple(kwargs.items())))
    if key[3] is None or key[4] is None:
        return _asked(op, args, kwargs, device)
    if key not in _answers:
        if len(_answers) >= ANSWERS:
            _answers.clear()
        _answers[key] = _asked(op, args, kwargs, device)
    return _answers[key]


ANSWERS = 2048
_PLAIN = (int, bool, float, str, type(None), torch.dtype, torch.memory_format, torch.layout, torch.device)
_answers: dict[Any, Any] = {}  # what PyTorch said: it depends on nothing but metadata and numbers


def _plain(values: Sequence[Any]) -> tuple[Any, ...] | None:
    """The values as part of a key (1 is not True, nor 1.0); None where one is something else."""
    parts: list[Any] = []
    for value in values:
        if isinstance(value, Meta):
            parts.append(value)
        elif type(value) in _PLAIN:
            parts.append((type(value), value))
        elif type(value) in (list, tuple):
            inner = _plain(value)
            if inner is None:
                return None
            parts.append((type(value), inner))
        else:
            return None
    return tuple(parts)


def _asked(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], device: bool) -> Any:
    """What PyTorch says of tensors without elements."""
    metas = [convert(a, _to_meta) for a in args]
    named = {k: convert(a, _to_meta) for k, a in kwargs.items()}
    if device:
        named["device"] = "meta"
    with plain_sizes():
        result = convert(COMPOSED.get(op, op)(*metas, **named), describe)
    corrected = CORRECTED.get(op)
    return result if corrected is None else corrected(result, args, kwargs)


def describe(value: Any) -> Any:
    """The Meta of a tensor; anything else as it is."""
    if isinstance(value, torch.Tensor):
        return Meta(Geometry(tuple(value.shape), tuple(value.stride()), int(value.storage_offset())), value.dtype)
    return value
