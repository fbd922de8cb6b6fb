"""Convolutions against eager and float64: every geometry, layouts, what is left to PyTorch."""

import itertools
import re
from collections import Counter

import pytest
import torch
import torch.nn.functional as F

import thermit
from thermit.codegen.target import host_target, x86_target
from thermit.loops.lower import lower
from thermit.loops.pull import ROWS_BYTES
from thermit.loops.tile import CYCLE_NS, cost, tile
from thermit.passes.simplify import simplify
from thermit.schedule.fuse import fuse

torch.manual_seed(5)


def agrees(function, *tensors):
    """The values (no further from those in float64 than eager's, some rounding aside), the strides and the dtype of eager's result."""
    want, exact = function(*tensors), function(*(t.double() for t in tensors))
    got = thermit.jit(function)(*tensors)
    assert got.dtype == want.dtype and got.shape == want.shape and got.stride() == want.stride(), (got.stride(), want.stride())
    eps = torch.finfo(want.dtype).eps
    slack = 4 * eps * exact.abs().max() if exact.numel() else 0
    if want.dtype is torch.float64:
        assert torch.allclose(got, want, rtol=1e-12, atol=1e-12)
    else:
        assert (got - exact).abs().max() <= 2 * (want - exact).abs().max() + slack if exact.numel() else True
    return got


def native(function, *tensors):
    """Whether no call of PyTorch is left, and the loops."""
    lowered = thermit.jit(function).trace(*tensors).lower()
    return "convolution" not in lowered.as_text("kernels"), lowered.as_text("loops")


GEOMETRY = [
    # channels, outs, size, kernel, stride, padding, dilation, groups
    (3, 5, (9, 11), (3, 3), 1, 1, 1, 1),  # small: plain loops
    (16, 24, (14, 14), (3, 3), 1, 1, 1, 1),
    (16, 13, (7, 7), (3, 3), 1, 1, 1, 1),
    (17, 24, (13, 19), (3, 5), 1, (1, 2), 1, 1),  # as wide as the result
    (16, 24, (15, 18), (3, 3), 1, 0, 1, 1),  # wider
    (16, 24, (15, 18), (3, 3), 1, 3, 1, 1),  # narrower
    (16, 24, (16, 20), (3, 3), 2, 1, 1, 1),
    (16, 24, (15, 21), (3, 3), 2, 1, 1, 1),
    (16, 24, (17, 22), (5, 4), (2, 3), (2, 1), (1, 2), 1),
    (16, 24, (30, 21), (7, 7), 2, 3, 1, 1),
    (16, 24, (18, 18), (3, 3), 1, 2, 2, 1),
    (16, 24, (12, 14), (1, 1), 1, 0, 1, 1),
    (16, 24, (13, 15), (1, 1), 2, 0, 1, 1),
    (16, 24, (12, 14), (1, 1), 1, 2, 1, 1),
    (3, 48, (50, 67), (16, 16), 16, 0, 1, 1),  # patches
    (16, 24, (14, 17), (2, 3), (2, 3), 0, 1, 2),
    (16, 24, (14, 14), (3, 3), 1, 1, 1, 4),
    (16, 32, (14, 14), (3, 3), 2, 1, 1, 8),
    (16, 16, (14, 14), (3, 3), 1, 1, 1, 16),  # depthwise
    (16, 16, (15, 13), (5, 3), 2, (2, 1), 1, 16),
    (40, 40, (14, 14), (3, 5), 1, (1, 2), 1, 40),
    (40, 40, (7, 6), (3, 3), 1, 2, 2, 40),
    (40, 40, (28, 28), (3, 3), 2, 1, 1, 40),
    (40, 40, (15, 22), (5, 4), (2, 3), (2, 1), (1, 2), 40),
    (24, 24, (8, 10, 11), (3, 3, 3), 2, 1, 1, 24),
    (40, 40, (40,), (3,), 2, 1, 1, 40),
    (6, 6, (15, 13), (9, 9), 1, 4, 1, 6),  # left to PyTorch
    (8, 16, (14, 14), (3, 3), 1, 1, 1, 8),  # two results a channel
    (64, 1, (14, 14), (3, 3), 1, 1, 1, 1),  # one row
    (64, 40, (3, 3), (3, 3), 1, 0, 1, 1),  # one column
    (1, 32, (28, 28), (5, 5), 1, 2, 1, 1),
    (40, 32, (6, 40), (3, 17), 1, (1, 8), 1, 1),
    (600, 8, (10, 10), (3, 3), 1, 1, 1, 1),  # several blocks of the depth
    (64, 70, (7, 7), (3, 3), 1, 1, 1, 1),  # a column more than panels have
    (40, 70, (7, 7), (1, 1), 1, 0, 1, 1),
    (8, 24, (40,), (3,), 1, 1, 1, 1),
    (4, 8, (70001,), (5,), 1, 2, 1, 1),  # masks of a block, not of all places
    (2, 8, (3, 1500), (3, 5), 1, (1, 2), 1, 1),  # rows too long for masks: left to PyTorch
    (8, 24, (41,), (5,), 2, 2, 1, 1),
    (8, 24, (41,), (3,), 1, 0, 2, 2),
    (8, 24, (6, 8, 10), (3, 3, 3), 1, 1, 1, 1),
    (8, 48, (11, 12, 13), (3, 2, 3), 2, 1, 1, 2),
    (8, 24, (7, 8, 11), (3, 3, 3), 1, 0, 1, 1),
    (24, 24, (9, 10, 11), (3, 3, 3), 1, 1, 1, 24),
    (2, 3, (4, 5, 6), (2, 2, 2), 1, 1, 1, 1),  # left to PyTorch
]


@pytest.mark.parametrize("case", GEOMETRY, ids=str)
def test_geometry(case):
    dtype = torch.float64 if GEOMETRY.index(case) % 5 == 1 else torch.float32
    channels, outs, size, kernel, stride, padding, dilation, groups = case
    function = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[len(size)]
    x = torch.randn(2, channels, *size, dtype=dtype)
    w, b = torch.randn(outs, channels // groups, *kernel, dtype=dtype), torch.randn(outs, dtype=dtype)
    agrees(lambda x, w, b: F.relu(function(x, w, b, stride, padding, dilation, groups)), x, w, b)
    if case in GEOMETRY[1:3]:
        agrees(lambda x, w: function(x, w, None, stride, padding, dilation, groups), x[:1], w)


@pytest.mark.parametrize("stride", [1, 2])
def test_transposed_is_left_to_pytorch(stride):
    """Over a padded image an infinite weight would make nan at the borders, where eager multiplies nothing."""
    x, w = torch.randn(2, 16, 12, 14), torch.randn(16, 8, 3, 3)
    w[3, 2, 1, 1] = float("inf")

    def function(x, w):
        return F.conv_transpose2d(x, w, stride=stride)

    made, want = thermit.jit(function)(x, w), function(x, w)
    assert not native(function, x, w)[0] and want.isfinite().any() and torch.equal(made.isnan(), want.isnan())
    assert torch.equal(made.nan_to_num(), want.nan_to_num())


LAYOUTS = {
    "channels last": lambda t: t.contiguous(memory_format=torch.channels_last),
    "sliced": lambda t: F.pad(t, (1, 2, 3, 1))[..., 3:-1, 1:-2],
    "every second": lambda t: torch.stack([t, t], -1)[..., 0],
    "transposed": lambda t: t.transpose(2, 3).contiguous().transpose(2, 3),
    "expanded": lambda t: t[:1].expand(t.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout):
    x, w = torch.randn(2, 16, 12, 14), torch.randn(24, 16, 3, 3)
    for image, weight in ((LAYOUTS[layout](x), w), (x, LAYOUTS[layout](w)), (LAYOUTS[layout](x), LAYOUTS[layout](w))):
        agrees(lambda x, w: F.conv2d(x, w, padding=1), image, weight)


def test_without_elements():
    agrees(lambda x, w: F.conv2d(x, w, padding=1), torch.randn(0, 16, 12, 14), torch.randn(8, 16, 3, 3))


def test_unbatched_and_same():
    x, w = torch.randn(16, 12, 14), torch.randn(24, 16, 3, 3)
    agrees(lambda x, w: F.conv2d(x, w, padding="same"), x, w)


def test_infinities_and_nan_stay_where_they_are():
    x, w = torch.randn(1, 16, 14, 14), torch.randn(24, 16, 3, 3)
    x[0, 3, 5, 7], x[0, 4, 13, 0] = float("inf"), float("nan")
    got, want = thermit.jit(lambda x, w: F.conv2d(x, w, padding=1))(x, w), F.conv2d(x, w, padding=1)
    assert torch.equal(got.isnan(), want.isnan()) and torch.equal(got.isinf(), want.isinf())


def test_weights_are_never_stale():
    x, w = torch.randn(1, 16, 14, 14), torch.randn(24, 16, 3, 3)
    function = thermit.jit(lambda x, w: F.conv2d(x, w, padding=1))
    function(x, w)
    w.mul_(2)
    assert torch.allclose(function(x, w), F.conv2d(x, w, padding=1), atol=1e-4)


def test_other_types_are_left_to_pytorch():
    x, w = torch.randn(1, 16, 14, 14), torch.randn(24, 16, 3, 3)
    for dtype in (torch.bfloat16, torch.complex64):
        function = thermit.jit(lambda x, w: F.conv2d(x, w, padding=1))
        assert torch.equal(function(x.to(dtype), w.to(dtype)), F.conv2d(x.to(dtype), w.to(dtype), padding=1))


def test_gradients():
    x, w = torch.randn(2, 16, 14, 14, requires_grad=True), torch.randn(24, 16, 3, 3, requires_grad=True)
    thermit.jit(lambda x, w: F.conv2d(x, w, padding=1).relu())(x, w).sum().backward()
    got = x.grad, w.grad
    x.grad = w.grad = None
    F.conv2d(x, w, padding=1).relu().sum().backward()
    assert all(torch.allclose(a, b, atol=1e-3) for a, b in zip(got, (x.grad, w.grad), strict=True))


def test_a_block_of_a_residual_network_is_one_kernel_a_convolution():
    """Normalisation, activation and the residual are done where the sums are: nothing else goes through memory."""

    def block(x, w, scale, shift, mean, var):
        y = F.relu(F.batch_norm(F.conv2d(x, w, padding=1), mean, var, scale, shift))
        return F.relu(F.batch_norm(F.conv2d(y, w, padding=1), mean, var, scale, shift) + x)

    x, w = torch.randn(1, 32, 14, 14), torch.randn(32, 32, 3, 3)
    tensors = [torch.rand(32) + 0.5 for _ in range(4)]
    agrees(block, x, w, *tensors)
    is_native, text = native(block, x, w, *tensors)
    assert is_native and text.count("kernel k") <= 3 and text.count("tile ") >= 2


def test_masks_are_made_once_a_task():
    """No quotient or remainder is left where the image is copied."""
    x, w = torch.randn(1, 32, 14, 14), torch.randn(32, 32, 3, 3)
    _, text = native(lambda x, w: F.conv2d(x, w, padding=1), x, w)
    copies = [line for line in text.splitlines() if line.strip().startswith("panel[") and "inside[" in line]
    assert copies and not any(re.search(r"(pc|t0|t1|c)\)* [/%]", line) for line in copies)


def test_the_first_rows_copy_what_all_rows_read():
    """Panels are written by tiles that multiply them; of a column that fills no register the lanes are steps of the depth."""
    for taps in (1, 3):
        x, w = torch.randn(1, 64, 7, 7), torch.randn(70, 64, taps, taps)
        _, text = native(lambda x, w, p=taps // 2: F.conv2d(x, w, padding=p), x, w)
        lines = [line.strip() for line in text.splitlines()]
        copied = [before for before, line in itertools.pairwise(lines) if line.startswith("panel[")]
        assert any(before.startswith("tile ") for before in copied) and any(re.match(r"tile \d x 1,", line) for line in lines)
        assert ("inside[" in text) == (taps > 1)


@pytest.mark.parametrize("kernel", [(9,), (7, 7), (3, 3), (5, 3), (3, 5), (3, 1), (5, 1)])
@pytest.mark.parametrize("stride", [2, 3])
def test_one_channel_with_strides(kernel, stride):
    """The taps are all of the depth, and strides cut them where that is no part of all: each is copied nevertheless."""
    x = torch.randn(1, 1, *((513,) if len(kernel) == 1 else (20, 40)))
    agrees(lambda x, w: (F.conv1d, F.conv2d)[len(kernel) - 1](x, w, stride=stride), x, torch.randn(17, 1, *kernel))


def test_masks_and_blocks_fit_the_stack():
    """What stands on the stack is at most the rows of a kernel, masks, blocks and copied rows together."""
    sizes = [
        ((1, 16, 31, 28), (2, 16, 3, 9), 1),
        ((1, 5, 500), (512, 5, 125), 1),
        ((1, 2, 100, 100), (33, 2, 11, 5), 2),
        ((1, 64, 31, 52), (64, 64, 9, 9), 1),
        ((1, 1, 1, 250), (2, 1, 1, 127), 1),
        ((1, 3, 400), (1040, 3, 127), 1),
    ]
    for image, weight, stride in sizes:
        for dtype in (torch.float32, torch.float64):
            x, w, rank = torch.randn(image, dtype=dtype), torch.randn(weight, dtype=dtype), len(image) - 2
            convolution = (F.conv1d, F.conv2d)[rank - 1]
            graph = thermit.jit(lambda x, w, f=convolution, s=stride: f(x, w, stride=s, padding=[k // 2 for k in w.shape[2:]])).trace(x, w).graph
            for kernel in fuse(simplify(graph, Counter())).steps:
                for target in (host_target(), x86_target("avx512")):
                    program = tile(lower(kernel), target)
                    assert sum(m.elems * m.dtype.itemsize for m in program.memories if m.role == "row") <= ROWS_BYTES, (image, weight, target)


def test_a_deep_network_has_one_kernel_a_convolution():
    """What the kernels before have made is in memory: it does not count towards the size of a kernel."""

    def network(x, w, *statistics):
        for _ in range(40):
            x = F.relu(F.batch_norm(F.conv2d(x, w), *statistics) + x)
        return x

    tensors = torch.randn(1, 16, 20, 20), torch.randn(16, 16, 1, 1), *(torch.ones(16) for _ in range(4))
    graph = thermit.jit(network).trace(*tensors).graph
    assert len(fuse(simplify(graph, Counter())).steps) == 40


@pytest.mark.parametrize("taps", [1, 3])
def test_a_convolution_costs_what_its_multiply_adds_do(taps):
    """Extents that are expressions have a limit: of loops over taps, of parts of the depth."""
    x, w = torch.randn(1, 64, 56, 56), torch.randn(64, 64, taps, taps)
    graph = thermit.jit(lambda x, w: F.conv2d(x, w, padding=taps // 2)).trace(x, w).graph
    (kernel,) = fuse(simplify(graph, Counter())).steps
    multiply_adds = 0.5 * CYCLE_NS * 64 * 56 * 56 * 64 * taps * taps / 8
    assert multiply_adds < cost(tile(lower(kernel), x86_target("avx2")))[0] < 2 * multiply_adds
