"""Promotion, broadcasting and numbers as PyTorch has them; what the table declines by itself."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import thermit.aten
from thermit.aten.table import DTYPE_OF, TABLE, TORCH_OF, fits, operands, result_type, rounded, scalar
from thermit.ir import build as b
from thermit.ir import interp
from thermit.ir.node import Graph, Node, Output
from thermit.ir.types import BOOL, DTYPES, FLOAT16, FLOAT32, INT8, UINT8, TensorType

aten = torch.ops.aten
REAL = [d for d in DTYPES.values() if not d.is_complex and d.name not in ("uint16", "uint32", "uint64")]


def node(dtype: Any, *shape: int) -> Node:
    return b.graph_input(0, TensorType(shape, dtype))


def example(x: Any) -> Any:
    return torch.zeros(x.shape, dtype=TORCH_OF[x.dtype]) if isinstance(x, Node) else x


def test_every_room_is_registered() -> None:
    assert all(getattr(thermit.aten, room) for room in thermit.aten.__all__) and len(TABLE) > 300


@pytest.mark.parametrize("default", [torch.float32, torch.float64])
def test_result_type_is_pytorchs(default: torch.dtype) -> None:
    """Every pair of operands: tensors with axes, 0-d tensors, numbers."""
    kinds = [node(d, 2) for d in REAL] + [node(d) for d in REAL] + [True, 3, 2.5]
    torch.set_default_dtype(default)
    try:
        for x, y in itertools.product(kinds, kinds):
            if isinstance(x, Node) or isinstance(y, Node):
                assert TORCH_OF[result_type(x, y)] is torch.result_type(example(x), example(y)), (x, y)
    finally:
        torch.set_default_dtype(torch.float32)


def test_three_operands_promote_together() -> None:
    want = (torch.zeros(2, dtype=torch.int8) + torch.zeros((), dtype=torch.float64)).dtype
    assert TORCH_OF[result_type(node(INT8, 2), node(BOOL, 2), node(DTYPES["float64"]))] is want


def test_half_operands_compute_in_float32_and_numbers_are_rounded_first() -> None:
    x, y = operands(node(FLOAT16, 3), 0.1)
    assert x.type == y.type == TensorType((3,), FLOAT32)
    assert b.is_const(y, b.round_to(0.1, FLOAT16))
    _, exact = operands(node(FLOAT16, 3), 0.1, exact_scalars=True)
    assert b.is_const(exact, b.round_to(0.1, FLOAT32))
    assert rounded(x, FLOAT16).dtype is FLOAT16


def test_operands_share_a_shape() -> None:
    x, y, z = operands(node(FLOAT32, 3, 1), node(FLOAT32, 4), 2)
    assert x.shape == y.shape == z.shape == (3, 4)


def test_numbers_that_fit() -> None:
    assert fits(255, UINT8) and not fits(256, UINT8) and not fits(float("inf"), UINT8)
    assert fits(65504, FLOAT16) and not fits(1e6, FLOAT16) and fits(float("inf"), FLOAT16)


def test_a_float_is_truncated_to_an_integer_type() -> None:
    for value in (2.7, -2.7, 0.0):
        made = scalar(value, DTYPES["int32"])
        assert interp.evaluate(made, []) == int(value)


def test_complex_operands_are_declined() -> None:
    z = node(DTYPE_OF[torch.complex64], 2)
    assert TABLE[aten.add.Tensor](z, z) is NotImplemented
    assert TABLE[aten.add.Tensor](node(FLOAT32, 2), 1j) is NotImplemented
    assert TABLE[aten.cat.default]([node(FLOAT32, 2), z]) is NotImplemented


def test_float_rows_decline_integers() -> None:
    assert TABLE[aten.gelu.default](node(INT8, 2)) is NotImplemented


def test_integer_division_never_traps() -> None:
    """The least integer by -1, and any by 0, kill a process that divides plainly."""
    x, y = (b.graph_input(k, TensorType((), INT8)) for k in (0, 1))
    for op, want in ((aten.div.Tensor_mode, -128), (aten.remainder.Tensor, 0), (aten.fmod.Tensor, 0), (aten.floor_divide.default, -128)):
        row = TABLE[op](x, y, rounding_mode="trunc") if op is aten.div.Tensor_mode else TABLE[op](x, y)
        assert _run(row, x, y, -128, -1) == want
        with pytest.raises(interp.OutOfRange):
            _run(row, x, y, 5, 0)


def _run(row: Node, x: Node, y: Node, *values: int) -> int:
    arrays = [torch.tensor(v, dtype=torch.int8).numpy() for v in values]
    return int(interp.run(Graph((x, y), ((), ()), (Output(row, ()),)), arrays)[0][0])
