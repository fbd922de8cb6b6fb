"""Every row of the table against eager: PyTorch's own samples, special values, the types that eager refuses."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map

from tests.tables.lowering_oracle import difference, lowered
from tests.tables.recorded import Call, from_schema, record, tensors_in, with_special_values
from thermit.aten.table import TABLE

ROWS = sorted(TABLE, key=str)
QUICK = (torch.float32, torch.bfloat16, torch.int64, torch.bool)
ALL = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool)


@pytest.fixture(scope="module")
def calls() -> dict[Any, list[Call]]:
    return record(QUICK, limit=3, samples_of_each=12)


def _samples(op: Any, calls: dict[Any, list[Call]]) -> list[Call]:
    own = TABLE[op].samples
    extra = [(args, kwargs, op(*args, **kwargs)) for args, kwargs in own()] if own is not None else []
    return [*calls.get(op, ()), *extra] or from_schema(op, QUICK)


@pytest.mark.parametrize("op", ROWS, ids=str)
def test_agrees_with_eager(op: Any, calls: dict[Any, list[Call]]) -> None:
    """Also: there is a sample."""
    samples = _samples(op, calls)
    assert samples, "no sample reaches this row: give it samples="
    for args, kwargs, want in samples:
        assert (what := difference(op, args, kwargs, want)) is None, (what, kwargs)


DIVISIONS = {"div", "floor_divide", "fmod", "remainder"}
POINTWISE = [op for op in ROWS if torch.Tag.pointwise in op.tags]


@pytest.mark.parametrize("op", POINTWISE, ids=str)
def test_special_values(op: Any, calls: dict[Any, list[Call]]) -> None:
    seen = set()
    for args, kwargs, _ in _samples(op, calls):
        key = str(tree_map(lambda t: t.dtype if isinstance(t, torch.Tensor) else t, (args, kwargs)))
        if key in seen or not tensors_in((args, kwargs)):
            continue
        seen.add(key)
        args, kwargs = with_special_values(args, kwargs, divides=op.overloadpacket.__name__ in DIVISIONS)
        try:
            want = op(*args, **kwargs)
        except RuntimeError:
            continue
        one_by_one = [_strided(op, args, kwargs)]
        assert (what := difference(op, args, kwargs, want, alternatives=tuple(one_by_one))) is None, (what, key)


def _strided(op: Any, args: Any, kwargs: Any) -> Any:
    """The same call on every second element of longer tensors: eager takes its loop without vectors."""
    spread = tree_map(lambda t: torch.stack([t, t], -1)[..., 0] if isinstance(t, torch.Tensor) else t, (args, kwargs))
    return op(*spread[0], **spread[1])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_agrees_with_eager_on_many_samples(dtype: torch.dtype) -> None:
    """The exhaustive form: every type, most of PyTorch's samples."""
    faults = []
    for op, samples in record((dtype,), limit=12, samples_of_each=100).items():
        faults += [f"{op}: {what}" for args, kwargs, want in samples if (what := difference(op, args, kwargs, want)) is not None]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("op", ROWS, ids=str)
def test_refuses_what_eager_refuses(op: Any, calls: dict[Any, list[Call]]) -> None:
    """Where eager raises for a type of operands, so does the call on meta tensors, or the row declines."""
    samples = _samples(op, calls)
    for dtype in ALL:
        for args, kwargs, _ in samples[:2]:
            args, kwargs = tree_map(lambda t: t.to(dtype) if isinstance(t, torch.Tensor) and t.dtype in QUICK else t, (args, kwargs))  # noqa: B023
            try:
                op(*args, **kwargs)
            except (RuntimeError, IndexError) as error:
                if "division by zero" in str(error).lower() or "ZeroDivision" in str(error):
                    continue
                assert _meta_raises(op, args, kwargs) or lowered(op, args, kwargs)[0] is NotImplemented, (dtype, str(error))


@pytest.mark.parametrize("op", [op for op in ROWS if any("number" in str(a.type) for a in op._schema.arguments)], ids=str)
def test_numbers_that_do_not_fit(op: Any, calls: dict[Any, list[Call]]) -> None:
    """Numbers beyond the type of the tensor beside them: wrapped, rounded or refused, as eager does."""
    names = [a.name for a in op._schema.arguments if "number" in str(a.type)]
    order = [a.name for a in op._schema.arguments]
    for (args, kwargs, _), dtype, number in itertools.product(_samples(op, calls)[:2], (torch.uint8, torch.int8, torch.float16), (300, -1, 1e6, 3.7)):
        args, kwargs = tree_map(lambda t: t.to(dtype) if isinstance(t, torch.Tensor) and t.dtype in QUICK else t, (args, kwargs))  # noqa: B023
        args = tuple(number if order[k] in names else a for k, a in enumerate(args))
        kwargs = {k: number if k in names and v is not None else v for k, v in kwargs.items()}
        try:
            want = op(*args, **kwargs)
        except (RuntimeError, IndexError) as error:
            by_zero = "ZeroDivision" in str(error)  # a value, which the row checks
            assert by_zero or _meta_raises(op, args, kwargs) or lowered(op, args, kwargs)[0] is NotImplemented, (dtype, number, str(error))
            continue
        if torch.Tag.pointwise in op.tags or not tensors_in((args, kwargs)):
            assert (what := difference(op, args, kwargs, want)) is None, (what, dtype, number)


def _meta_raises(op: Any, args: Any, kwargs: Any) -> bool:
    """Never asked for pointwise operations: capture infers their types itself, so their rows must decline."""
    if torch.Tag.pointwise in op.tags:
        return False
    try:
        meta = tree_map(lambda t: t.to("meta") if isinstance(t, torch.Tensor) else t, (args, kwargs))
        op(*meta[0], **meta[1])
    except Exception:
        return True
    return False


@pytest.mark.parametrize("op", ROWS, ids=str)
def test_signature_is_the_schema(op: Any) -> None:
    """A row takes the schema's arguments in its order, with its names where they may come by keyword, with its defaults."""
    signature = inspect.signature(TABLE[op].function)
    parameters = list(signature.parameters.values())
    accepts_any = any(q.kind is q.VAR_KEYWORD for q in parameters)
    positional = [q for q in parameters if q.kind in (q.POSITIONAL_ONLY, q.POSITIONAL_OR_KEYWORD)]
    taken = iter(positional)
    for argument in op._schema.arguments:
        if argument.kwarg_only:
            parameter = signature.parameters.get(argument.name)
            assert parameter is not None or accepts_any, argument.name
        else:
            parameter = next(taken, None)
            assert parameter is not None, argument.name
        if parameter is not None and argument.has_default_value():
            default = tuple(argument.default_value) if isinstance(argument.default_value, list) else argument.default_value
            as_number = isinstance(parameter.default, torch.dtype)  # the schema has the number of the type
            for_all_axes = isinstance(default, tuple) and default and default == (parameter.default,) * len(default)
            assert as_number or for_all_axes or parameter.default == default, (argument.name, parameter.default, default)
