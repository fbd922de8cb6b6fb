"""Special cases of thermit.aten.view; the ordinary ones come from the table."""

import pytest
import torch

from tests.aten.rows import agrees, aten, declines, numbers
from tests.tables.lowering_oracle import lowered
from thermit.ir.node import toposort

X = numbers(3, 4, 5)
SCALAR = numbers()
EMPTY = numbers(0, 4)

CALLS = [
    (aten.slice.Tensor, (X, 1, -3, 100, 2)),
    (aten.slice.Tensor, (X, -1, 4, 2)),
    (aten.slice.Tensor, (X, 0, None, -1)),
    (aten.slice.Tensor, (EMPTY, 0, 0, 5)),
    (aten.slice.Tensor, (X, 2, 0, 9223372036854775807, 3)),
    (aten.select.int, (X, -2, -1)),
    (aten.split.Tensor, (X, 3, 1)),
    (aten.split.Tensor, (EMPTY, 2)),
    (aten.split.Tensor, (EMPTY, 0)),
    (aten.split_with_sizes.default, (X, [0, 4, 1], -1)),
    (aten.unbind.int, (X, 1)),
    (aten.squeeze.dims, (numbers(1, 3, 1), [0, 1])),
    (aten.squeeze.dim, (SCALAR, 0)),
    (aten.unsqueeze.default, (SCALAR, -1)),
    (aten.transpose.int, (SCALAR, 0, -1)),
    (aten.t.default, (numbers(4),)),
    (aten.expand.default, (numbers(3, 1), [2, -1, 4])),
    (aten.expand.default, (SCALAR, [2, 0])),
    (aten.view.default, (EMPTY, [4, 0, 7])),
    (aten.view.default, (X, [-1, 10])),
    (aten.diagonal.default, (X, 1, 0, 2)),
    (aten.diagonal.default, (X, -2, -1, 0)),
    (aten.diagonal.default, (numbers(3, 4), 9)),
    (aten.diagonal.default, (numbers(3, 4), -9)),
    (aten.unfold.default, (X, 2, 2, 1)),
    (aten.unfold.default, (X, 1, 2, 2)),
    (aten.unfold.default, (X, 1, 1, 2)),
    (aten.unfold.default, (X, 2, 0, 1)),
    (aten.unfold.default, (SCALAR, 0, 1, 1)),
    (aten.slice_scatter.default, (X, -numbers(3, 2, 5), 1, 0, 4, 2)),
    (aten.slice_scatter.default, (X, -numbers(3, 0, 5), 1, 3, 2)),
    (aten.select_scatter.default, (X, -numbers(3, 5), 1, -1)),
    (aten.diagonal_scatter.default, (X, -numbers(4, 3), 0, 0, 2)),
    (aten.diagonal_scatter.default, (X, -numbers(5, 2), -1, 0, 1)),
    (aten.slice_backward.default, (numbers(2, 4), [7, 4], 0, 1, 6, 3)),
    (aten.unfold_backward.default, (numbers(3, 4, 2), [5, 4], 0, 2, 1)),
]


@pytest.mark.parametrize("op, args", CALLS, ids=lambda v: str(v) if callable(v) else "")
def test_agrees(op, args):
    agrees(op, *args)


def test_view_as_another_type():
    agrees(aten.view.dtype, numbers(4), torch.int32)
    agrees(aten.view.dtype, numbers(4, dtype=torch.int16), torch.bfloat16)
    assert declines(aten.view.dtype, numbers(4), torch.int8)
    assert declines(aten.view.dtype, numbers(4, dtype=torch.uint8), torch.bool)  # a byte that is neither 0 nor 1


def test_views_are_chains_of_views():
    """Also where slices of slices and windows are involved: nothing is computed, nothing but the tensor is read."""
    for op, args in CALLS:
        if op._schema.arguments[0].alias_info is None:
            continue
        found, inputs, _ = lowered(op, args, {})
        for node in toposort([found] if not isinstance(found, tuple) else found):
            assert node in inputs or (node.prim.kind in ("view", "const") and len(node.args) <= 1), f"{op}: {node}"
