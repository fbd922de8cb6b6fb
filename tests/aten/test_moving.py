"""Special cases of thermit.aten.moving and thermit.aten.padding."""

import pytest
import torch

from tests.aten.rows import agrees, aten, declines, nan, numbers

X = numbers(2, 3, 4)

CALLS = [
    (aten.cat.default, ([numbers(2, 3), numbers(0), numbers(2, 1)], -1)),
    (aten.cat.default, ([numbers(0), numbers(0)],)),
    (aten.cat.default, ([numbers(2, dtype=torch.int64), numbers(3, dtype=torch.float16), numbers(1, dtype=torch.bool)],)),
    (aten.stack.default, ([numbers(), numbers(dtype=torch.int32)], -1)),
    (aten.stack.default, ([X, -X], 2)),
    (aten.block_diag.default, ([numbers(2, 3), numbers(), numbers(2), numbers(0)],)),
    (aten.roll.default, (X, [5, -1], [2, 0])),
    (aten.roll.default, (X, [7])),
    (aten.roll.default, (numbers(0, 3), [1], [0])),
    (aten.flip.default, (X, [0, -1])),
    (aten.flip.default, (numbers(0, 2), [0, 1])),
    *((aten.rot90.default, (X, k, [2, 0])) for k in range(-1, 4)),
    (aten.repeat.default, (X, [2, 1, 0, 3])),
    (aten.repeat.default, (numbers(), [3])),
    *((op, (numbers(3, 5) * nan, k)) for op in (aten.tril.default, aten.triu.default) for k in (-4, -1, 0, 2, 9)),
    (aten.diag_embed.default, (X, -2, 0, 2)),
    (aten.diag_embed.default, (numbers(0), 2)),
    (aten.triu_indices.default, (3, 4, -1)),
    (aten.constant_pad_nd.default, (X, [-1, 2, 1, -2], 7)),
    (aten.constant_pad_nd.default, (X, [-3, -1])),
    (aten.constant_pad_nd.default, (numbers(2, dtype=torch.int8), [1, 1], 2.5)),
    (aten.reflection_pad1d.default, (X, [3, 2])),
    (aten.reflection_pad2d.default, (X, [-1, 3, 2, -1])),
    (aten.replication_pad2d.default, (X, [5, -2, -1, 6])),
    (aten.replication_pad3d.default, (numbers(1, 2, 3, 4), [1, 2, 0, 3, 2, 1])),
    (aten.pixel_shuffle.default, (numbers(3, 8, 2, 3), 2)),
    (aten.pixel_unshuffle.default, (numbers(3, 2, 4, 6), 2)),
    (aten.im2col.default, (numbers(2, 3, 5, 6), [2, 3], [2, 1], [1, 0], [1, 2])),
]


@pytest.mark.parametrize("op, args", CALLS, ids=lambda v: str(v) if callable(v) else "")
def test_agrees(op, args):
    agrees(op, *args)


def test_fill_that_does_not_fit_is_left_to_eager():
    assert declines(aten.constant_pad_nd.default, numbers(2, dtype=torch.uint8), [1, 1], 300)
    assert declines(aten.constant_pad_nd.default, numbers(2, dtype=torch.float16), [1, 1], 1e9)
    assert not declines(aten.constant_pad_nd.default, numbers(2, dtype=torch.float16), [1, 1], -float("inf"))
