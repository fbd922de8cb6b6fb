"""Sizes, strides and types of every row's results, inferred, against the kernels', for operands in many layouts."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from tests.tables.layouts import variants
from tests.tables.recorded import Call, from_schema, record, tensors_in
from thermit.aten.table import TABLE
from thermit.capture.infer import convert, describe, infer
from thermit.capture.overloads import overload_of
from thermit.capture.strides import Meta

aten = torch.ops.aten
ROWS = sorted((op for op in TABLE if overload_of(op).treatment == "functional"), key=str)
# Batch norm of weights that do not fit gives what it finds; an index of no elements has strides of its own.
MOST_ELEMS = 2000  # of an operand: larger ones take long
LEFT_OUT = {aten.native_batch_norm.default, aten._native_batch_norm_legit_functional.default}


@pytest.fixture(scope="module")
def calls() -> dict[Any, list[Call]]:
    return record((torch.float32, torch.int64), limit=1, samples_of_each=6)


def leaves(value: Any) -> list[Any]:
    return [m for part in value for m in leaves(part)] if isinstance(value, list | tuple) and not isinstance(value, Meta) else [value]


@pytest.mark.parametrize("op", [op for op in ROWS if op not in LEFT_OUT], ids=str)
def test_results_lie_as_the_kernels_lay_them(op: Any, calls: dict[Any, list[Call]]) -> None:
    info = overload_of(op)
    compared = 0
    for args, kwargs, _ in calls.get(op) or from_schema(op, [torch.float32]):
        tensors = tensors_in((args, kwargs))
        if not tensors or any(t.numel() > MOST_ELEMS or t.dtype.is_complex for t in tensors):
            continue
        for name, a, k in variants(args, kwargs, cuts=info.pointwise or len(tensors) == 1):  # other kernels may crash at sizes that do not fit
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    want = op(*a, **k)
                    got = infer(
                        op, convert(tuple(a), describe), {n: convert(v, describe) for n, v in k.items()}, pointwise=info.pointwise, device=False
                    )
                except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
                    continue  # one of the two refuses it: then the call is eager
            compared += 1
            for g, w in zip(leaves(got), leaves(want), strict=True):
                if w is not None and g is not None and not (op is aten.index.Tensor and w.numel() == 0):
                    assert (g.geometry.sizes, g.geometry.strides, g.dtype) == (tuple(w.shape), w.stride(), w.dtype), name
    if not compared:
        pytest.skip("no sample of it is small enough and of a type compared here")
