"""Special cases of thermit.aten.pooling and thermit.aten.interpolation."""

import itertools

import pytest
import torch

import thermit
from tests.aten.rows import agrees, aten, declines, inf, nan, numbers

torch.manual_seed(3)
X = torch.randn(2, 3, 9, 11)
TIES = torch.randint(0, 3, (1, 2, 8, 8)).float()
SPECIAL = TIES.clone()
SPECIAL[0, 0, 2:5, 1:4] = nan
SPECIAL[0, 1] = -inf
SPECIAL[0, 1, 6, 6] = -0.0


@pytest.mark.parametrize(
    "kernel, stride, padding, dilation", [([3], [2], [1], [1]), ([2, 3], [], [0, 1], [2, 1]), ([3], [1], [1], [2]), ([4], [3], [2], [1])]
)
@pytest.mark.parametrize("ceil_mode", [False, True])
def test_max_pool_ties_nan_and_infinities(kernel, stride, padding, dilation, ceil_mode):
    for x in (X, TIES, SPECIAL, TIES.to(torch.int32), SPECIAL.to(torch.bfloat16)):
        agrees(aten.max_pool2d_with_indices.default, x, kernel, stride, padding, dilation, ceil_mode)


@pytest.mark.parametrize("kernel, stride, padding", [([3], [2], [1]), ([2, 3], [], [0, 1]), ([4], [3], [2])])
@pytest.mark.parametrize("ceil_mode, include_pad, divisor", itertools.product([False, True], [False, True], [None, 3]))
def test_avg_pool(kernel, stride, padding, ceil_mode, include_pad, divisor):
    for x in (X, SPECIAL, -X * 0, X.double(), X.to(torch.bfloat16)):
        agrees(aten.avg_pool2d.default, x, kernel, stride, padding, ceil_mode, include_pad, divisor)


def test_pool_of_three_axes():
    x = numbers(2, 5, 6, 7)
    agrees(aten.max_pool3d_with_indices.default, x, [2, 3, 2], [1, 2, 2], [1, 1, 0])
    agrees(aten.avg_pool3d.default, x, [2, 3, 2], [1, 2, 2], [1, 1, 0], True, False)


def test_adaptive_pool():
    agrees(aten._adaptive_avg_pool2d.default, X, [3, 11])
    agrees(aten.adaptive_max_pool2d.default, TIES, [4, 2])
    assert declines(aten._adaptive_avg_pool2d.default, X, [2, 2])


def test_large_windows():
    x = numbers(1, 1, 32, 32)  # sums of small integers are exact in any order
    agrees(aten.avg_pool2d.default, x, [16, 16])
    assert declines(aten.avg_pool2d.default, x, [16, 16], [1, 1])
    assert declines(aten.max_pool2d_with_indices.default, x, [16, 16])


SIZES = [(9, 11), (18, 33), (3, 4), (1, 1), (13, 7)]


@pytest.mark.parametrize("size", SIZES)
def test_nearest(size):
    for op, x in itertools.product(
        (aten.upsample_nearest2d.default, aten._upsample_nearest_exact2d.default), (X, X.double(), X.to(torch.bfloat16), X.to(torch.uint8))
    ):
        agrees(op, x, size)
        agrees(op, x, (5, 14), 0.6, 1.31)


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_linear(size, align_corners):
    agrees(aten.upsample_bilinear2d.default, X, size, align_corners)
    agrees(aten.upsample_bilinear2d.default, X, size, align_corners, 1.3, 0.7)
    agrees(aten.upsample_linear1d.default, X[0], size[1:], align_corners)


def test_linear_of_infinities():
    x = X.clone()
    x[0, 0, 4, 5], x[0, 0, 8, 10] = inf, -inf
    for size in ([9, 11], [9, 22], [5, 11]):
        agrees(aten.upsample_bilinear2d.default, x, size, True)
        agrees(aten.upsample_bilinear2d.default, x, size, False)


def test_nearest_at_odds_with_its_sizes_is_declined():
    assert declines(aten.upsample_nearest2d.default, X, [9, 11], None, 0.7)


def test_linear_of_integers_is_declined():
    assert declines(aten.upsample_bilinear2d.default, X.to(torch.uint8), [4, 4], False)


@pytest.mark.parametrize(
    "pool", [lambda x: torch.max_pool1d(x, 2), torch.nn.MaxPool1d(3, 2, 1), lambda x: torch.nn.functional.max_pool1d(x * 2, 3, dilation=2) + 0]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_max_pool_of_one_axis_has_a_kernel_of_its_own(pool, dtype):
    """Its results are contiguous; those of the two-dimensional pool, over the same memory in the same call, follow their operand."""
    for x in (torch.randn(2, 8, 3).transpose(1, 2), torch.randn(1, 8, 3).transpose(1, 2), torch.randn(8, 3).t(), torch.randn(2, 3, 8)):
        x = x.to(dtype)

        def both(x):
            flat = torch.nn.functional.max_pool2d(x[..., None, :].float(), (1, 2))
            return flat, pool(x), flat * 1

        for got, want in zip(thermit.jit(both, strict=True)(x), both(x), strict=True):
            assert torch.equal(got, want)
            assert got.stride() == want.stride()
            assert got.dtype is want.dtype


def test_max_pool_of_one_axis_refuses_integers():
    x = torch.ones(2, 3, 8, dtype=torch.int32)
    for pool in (lambda x: torch.max_pool1d(x, 2), thermit.jit(lambda x: torch.max_pool1d(x, 2))):
        with pytest.raises(NotImplementedError, match="max_pool1d_impl"):
            pool(x)


def test_mean_of_an_image_with_channels_innermost_is_traced():
    """PyTorch changes the strides of what it has just made (as_strided_)."""
    x = X.contiguous(memory_format=torch.channels_last)

    def function(x):
        return torch.sigmoid(torch.nn.functional.adaptive_avg_pool2d(x, 1)), x

    got, want = thermit.jit(function, strict=True)(x)[0], function(x)[0]
    assert torch.allclose(got, want) and got.stride() == want.stride()
