"""Special cases of thermit.aten.indexing: negative and repeated indices, ranks, masks, errors."""

import pytest
import torch

import thermit
from tests.aten.rows import agrees, aten, declines, nan, numbers, stops

X = numbers(3, 4, 5)
I = torch.tensor([2, 0, -1, 2])  # noqa: E741
J = torch.tensor([[1], [-4]])
TWICE = torch.tensor([[0, 2, 0, 0]])
MASK = numbers(3, 4) % 3 == 0

CALLS = [
    (aten.index.Tensor, (X, [I])),
    (aten.index.Tensor, (X, [I.to(torch.int32), J])),
    (aten.index.Tensor, (X, [None, J, I])),
    (aten.index.Tensor, (X, [I, None, J])),
    (aten.index.Tensor, (X, [torch.tensor(1)])),
    (aten.index.Tensor, (X, [None, None, torch.zeros(0, dtype=torch.int64)])),
    (aten.take.default, (X, torch.tensor([[-60, 59], [0, -1]]))),
    (aten.gather.default, (numbers(), 0, torch.tensor(0))),
    (aten.gather.default, (X, -1, torch.zeros(0, dtype=torch.int64))),
    (aten.gather.default, (X, 1, torch.tensor([[[3, 0]], [[1, 2]]]))),
    (aten.index_select.default, (numbers(), 0, torch.tensor([0]))),
    (aten.index_select.default, (X, 1, torch.tensor(3))),
    (aten.embedding.default, (numbers(5, 3), torch.tensor([[0, 4, 4], [1, 1, 2]]), 1)),
    (aten.scatter.src, (numbers(3, 4), 1, TWICE, -numbers(2, 6) - 1)),
    (aten.scatter.value, (numbers(), 0, torch.tensor(0), 3.5)),
    (aten.scatter_add.default, (numbers(3, 4, dtype=torch.int32), 0, TWICE, numbers(1, 4, dtype=torch.int32))),
    *(
        (aten.scatter_reduce.two, (numbers(3, 4, dtype=d) - 7, 0, TWICE, numbers(1, 4, dtype=d) - 2, mode), {"include_self": own})
        for d in (torch.float32, torch.int64)
        for mode in ("sum", "prod", "amax", "amin", "mean")
        for own in (True, False)
    ),
    (aten.scatter_reduce.two, (torch.tensor([1.0, nan, 5.0]), 0, torch.tensor([0, 1, 2]), torch.tensor([nan, 1.0, 2.0]), "amax")),
    (aten.index_put.default, (X, [I, J], torch.tensor(-1.0))),
    (aten.index_put.default, (X, [None, torch.tensor([1, 1, -3])], numbers(3, 1) + 100)),
    (aten.index_put.default, (X, [torch.tensor([1, 1, -2])], numbers(4, 5), True)),
    (aten.index_put.default, (X, [MASK], torch.tensor(-1.0))),
    (aten.index_put.default, (X, [MASK], -numbers(5))),
    (aten.index_put.default, (X, [MASK], -numbers(1, 5), True)),
    (aten.index_put.default, (X, [None, numbers(4) > 1], -numbers(3, 1, 5))),
    (aten.put.default, (X, torch.tensor([-1, 0, -1]), torch.tensor([7.0, 8.0, 9.0]), True)),
    (aten.index_add.default, (X, 1, torch.tensor([3, 0, 3]), numbers(3, 3, 5)), {"alpha": 3}),
    (aten.index_copy.default, (X, 1, torch.tensor([3, 0, 3]), -numbers(3, 3, 5))),
    (aten.index_fill.int_Scalar, (X, 1, torch.tensor([-1, 0]), 9)),
    (aten.index_fill.int_Tensor, (numbers(), 0, torch.tensor([0]), torch.tensor(4.0))),
    (aten.index_reduce.default, (X, 0, torch.tensor([1, 1]), -numbers(2, 4, 5), "amin")),
    (aten.masked_scatter.default, (X, MASK[..., None], -numbers(30))),
    (aten.embedding_dense_backward.default, (numbers(2, 3, 4), torch.tensor([[0, 4, 4], [1, 1, 2]]), 6, 1, False)),
]


@pytest.mark.filterwarnings("ignore:index_reduce", "ignore:scatter_reduce")
@pytest.mark.parametrize("case", CALLS, ids=lambda c: str(c[0]))
def test_agrees(case):
    op, args, kwargs = (*case, {})[:3]
    agrees(op, *args, **kwargs)


OUT_OF_RANGE = [
    (aten.masked_scatter.default, (X, MASK[..., None], numbers(19))),
    (aten.index.Tensor, (X, [torch.tensor([3])])),
    (aten.index.Tensor, (X, [torch.tensor([-4])])),
    (aten.take.default, (X, torch.tensor([60]))),
    (aten.gather.default, (numbers(4), 0, torch.tensor([-1]))),
    (aten.index_select.default, (X, 0, torch.tensor([-1]))),
    (aten.embedding.default, (numbers(5, 3), torch.tensor([5]))),
    (aten.scatter.value, (numbers(4), 0, torch.tensor([4]), 1)),
    (aten.scatter_add.default, (numbers(4), 0, torch.tensor([-1]), numbers(1))),
    (aten.index_copy.default, (numbers(4), 0, torch.tensor([-1]), numbers(1))),
    (aten.index_add.default, (numbers(4), 0, torch.tensor([4]), numbers(1))),
    (aten.index_fill.int_Scalar, (numbers(4), 0, torch.tensor([-5]), 1)),
    (aten.index_put.default, (numbers(4), [torch.tensor([4])], numbers())),
    (aten.put.default, (numbers(4), torch.tensor([-5]), numbers(1))),
]


@pytest.mark.parametrize("op, args", OUT_OF_RANGE, ids=lambda v: str(v) if callable(v) else "")
def test_out_of_range_stops_where_eager_raises(op, args):
    with pytest.raises((IndexError, RuntimeError)):
        op(*args)
    assert stops(op, *args)


def test_what_depends_on_data_is_declined():
    assert declines(aten.index.Tensor, X, [MASK])
    assert declines(aten.index.Tensor, X, [torch.tensor([1, 0, 1], dtype=torch.uint8)])
    assert declines(aten.index_put.default, X, [MASK], numbers(int(MASK.sum()), 1))
    assert declines(aten.scatter.value, numbers(3, dtype=torch.uint8), 0, torch.tensor([0]), 300)


def test_a_mask_for_a_tensor_without_axes_is_refused_as_by_eager():
    function = lambda x, mask: x.index_put((mask,), torch.tensor(1.0))  # noqa: E731
    for each in (function, thermit.jit(function)):
        with pytest.raises(IndexError, match="too many indices"):
            each(torch.tensor(2.5), torch.tensor(True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_factors_of_what_is_added_at_places(dtype):
    x, index = torch.randn(5, 37, generator=torch.Generator().manual_seed(0)).to(dtype), torch.tensor([3, 0, 1])
    for alpha in (2, 0.3, -1):
        function = lambda x, alpha=alpha: x.index_add(0, index, x[:3] * 1, alpha=alpha)  # noqa: E731
        want = function(x)
        torch.testing.assert_close(thermit.jit(function)(x), want, rtol=0 if dtype is not torch.float32 else 1e-6, atol=0)
