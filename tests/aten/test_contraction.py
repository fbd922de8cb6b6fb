"""Matrix products: layouts, sizes, special values, in place; at least as accurate as eager, measured against float64."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
import torch.nn.functional as F

import thermit
from tests.aten.rows import declines

inf, nan = float("inf"), float("nan")
aten = torch.ops.aten


def laid(shape: tuple[int, ...], layout: str, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Random numbers in a tensor of this shape whose memory lies in that way."""
    g = torch.Generator().manual_seed(seed)

    def drawn(*sizes: int) -> torch.Tensor:
        return torch.randn(sizes, generator=g, dtype=dtype)

    *batch, m, n = shape
    match layout:
        case "turned":
            return drawn(*batch, n, m).mT
        case "gaps":
            return drawn(*batch, 2 * m, 3 * n)[..., ::2, 1::3]
        case "rows repeated":
            return drawn(*batch, 1, n).expand(shape)
        case "columns repeated":
            return drawn(*batch, m, 1).expand(shape)
        case "offset":
            return drawn(*batch, m + 1, n + 3)[..., 1:, 2 : n + 2]
        case "batch last":
            return drawn(m, n, *batch).permute(*range(2, len(shape)), 0, 1)
    return drawn(*shape)


LAYOUTS = ("plain", "turned", "gaps", "rows repeated", "columns repeated", "offset")


def agrees(function, *args: torch.Tensor) -> None:
    """Strides as eager's, and no result further from the true one than eager's worst (or a unit of the largest sum)."""
    want, got = function(*args), thermit.jit(function)(*args)
    true = function(*(a.double() for a in args))
    assert got.shape == want.shape and got.stride() == want.stride() and got.dtype == want.dtype
    if want.numel():
        size = (true.abs().max() + 1) * torch.finfo(want.dtype).eps
        depth = max(a.shape[-1] for a in args)
        bound = 2 * (want - true).abs().max() + size if want.dtype is torch.float32 else size * depth
        assert (got - true).abs().max() <= bound


@pytest.mark.parametrize("left, right", itertools.product(LAYOUTS, LAYOUTS))
def test_layouts(left, right):
    r = random.Random(f"{left}{right}")
    for dtype in (torch.float32, torch.float64):
        m, k, n = (r.randint(2, 40) for _ in range(3))
        agrees(torch.mm, laid((m, k), left, m, dtype), laid((k, n), right, n, dtype))


@pytest.mark.parametrize("m", range(1, 18))
def test_odd_sizes(m):
    r = random.Random(m)
    for n in range(1, 18):
        k = r.randint(1, 40)
        agrees(torch.mm, laid((m, k), r.choice(LAYOUTS), m), laid((k, n), r.choice(LAYOUTS), n))


@pytest.mark.parametrize("m, k, n", [(200, 300, 100), (65, 513, 97), (300, 5, 400), (5, 4000, 7), (128, 128, 128), (1, 300, 500), (500, 300, 1)])
@pytest.mark.parametrize("layout", ["plain", "turned", "gaps"])
def test_large_ones_are_as_accurate_as_eager(m, k, n, layout):
    agrees(torch.mm, laid((m, k), layout, m), laid((k, n), layout, n))
    agrees(torch.mm, laid((m, k), layout, m, torch.float64), laid((k, n), layout, n, torch.float64))


@pytest.mark.parametrize(
    "left, right",
    [((3, 4, 5), (3, 5, 6)), ((1, 4, 5), (3, 5, 6)), ((3, 4, 5), (5, 6)), ((2, 1, 4, 5), (3, 5, 6)), ((4, 5), (2, 3, 5, 6)), ((7, 1, 9), (7, 9, 8)),
     ((7, 8, 9), (7, 9, 1)), ((1, 5), (3, 5, 6)), ((3, 4, 5), (5, 1))],
)  # fmt: skip
def test_batches(left, right):
    for a, c in itertools.product(("plain", "turned", "batch last"), repeat=2):
        agrees(torch.matmul, laid(left, a if len(left) > 2 else "plain", 1), laid(right, c if len(right) > 2 else "plain", 2))


@pytest.mark.parametrize(
    "left, right", [((3, 4, 5), (5,)), ((5,), (5,)), ((4, 5), (5,)), ((3, 0), (0,)), ((5,), (5, 6)), ((5,), (2, 5, 6)), ((1,), (1, 1))]
)
def test_vectors(left, right):
    agrees(torch.matmul, torch.randn(left), torch.randn(right))


@pytest.mark.filterwarnings("ignore::thermit.ThermitWarning")
def test_a_vector_times_a_matrix_before_a_value_is_read():
    """PyTorch takes an axis from what it has just made; going live does the same again."""

    def function(x, w):
        y = F.linear(x, w)
        return y * 2 if y.sum() > 1e9 else y + 1, y

    x, w = torch.randn(5), torch.randn(6, 5)
    for got, want in zip(thermit.jit(function)(x, w), function(x, w), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("m, k, n", [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0), (1, 0, 4), (3, 0, 1), (1, 0, 1)])
def test_nothing(m, k, n):
    x, y, c = torch.ones(m, k), torch.ones(k, n), torch.full((m, n), 2.0)
    for function in (torch.mm, lambda x, y: torch.addmm(c, x, y, beta=0.5), lambda x, y: torch.addmm(c * nan, x, y, beta=0)):
        torch.testing.assert_close(thermit.jit(function)(x, y), function(x, y), rtol=0, atol=0)
    agrees(torch.bmm, x[None].expand(2, m, k), y[None].expand(2, k, n))


@pytest.mark.parametrize("beta", [0, 1, 0.5, -2, nan, inf])
@pytest.mark.parametrize("alpha", [0, 1, 0.25, -1, nan])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (5, 1), (1, 7), (5, 7)])
def test_scaled_and_added(beta, alpha, shape):
    x, y, v = torch.randn(5, 6), torch.randn(6, 7), torch.randn(7)
    start = torch.randn(shape)
    start = torch.where(start > 0.5, nan, start)

    def function(start, x, y, v):
        one = torch.addmm(start, x, y, beta=beta, alpha=alpha)
        two = torch.baddbmm(start, x[None], y[None], beta=beta, alpha=alpha)
        return one, two, torch.addmv(x[:, 0], x @ y, v, beta=beta, alpha=alpha)

    for got, want in zip(thermit.jit(function)(start, x, y, v), function(start, x, y, v), strict=True):
        torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.parametrize("m, k, n", [(3, 4, 5), (33, 70, 50), (1, 40, 50), (40, 50, 1)])
def test_what_is_not_finite_spreads_as_in_eager(m, k, n):
    x, y = torch.randn(m, k), torch.randn(k, n)
    x[m // 2, k // 2], y[k // 3, n // 2], y[0, 0], x[0, k - 1] = nan, inf, -inf, inf
    torch.testing.assert_close(thermit.jit(torch.mm)(x, y), torch.mm(x, y), equal_nan=True)


def test_in_place_and_aliased():
    def added(x, y, z):
        x.addmm_(y, z, beta=0.5)
        x.add_(1)
        return x @ z

    def by_itself(x, y, z):
        x.copy_(x @ y)
        return x

    def of_itself(x, y, z):
        x.addmm_(x.clone(), y)
        return x * 2

    def part(x, y, z):
        x[:10] = x[:10] @ y[:, :20].t()[:20] + x[10:]
        return x

    def written(x, y, z):
        return torch.mm(y, z, out=torch.empty(20, 20)), torch.addmm(x, y, z, out=x)

    for function in (added, by_itself, of_itself, part, written):
        mine, theirs = ([torch.randn(20, 20, generator=torch.Generator().manual_seed(s)) for s in range(3)] for _ in range(2))
        got, want = thermit.jit(function)(*mine), function(*theirs)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(mine, theirs)


def test_one_tensor_on_both_sides_and_updated():
    for function in (lambda x: x.addmm_(x, x.clone()), lambda x: x.mul_(x @ x), lambda x: x.copy_((x @ x).t())):
        x, y = torch.randn(30, 30), torch.empty(30, 30)
        y.copy_(x)
        thermit.jit(function)(x)
        function(y)
        torch.testing.assert_close(x, y)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("m, k, n", [(5, 6, 7), (64, 100, 33), (1, 300, 50), (50, 300, 1), (40, 1, 30)])
def test_half_types_are_rounded_once(m, k, n, dtype):
    """Summed in float32, as eager does: hardly ever another result, and never a worse one."""

    def function(x, w, c):
        return x @ w.mT, F.linear(x, w, c), torch.addmm(c, x, w.mT, beta=0.5, alpha=2)

    x, w, c = laid((m, k), "gaps", m).to(dtype), laid((n, k), "turned", n).to(dtype), torch.randn(n).to(dtype)
    true = function(x.double(), w.double(), c.double())
    for got, want, exact in zip(thermit.jit(function)(x, w, c), function(x, w, c), true, strict=True):
        assert got.dtype is dtype and got.stride() == want.stride()
        assert (got != want).sum() <= 1 + got.numel() // 50
        assert (got - exact).abs().max() <= 1.01 * (want - exact).abs().max()


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.complex64])
def test_other_types_are_left_to_eager(dtype):
    x, y = (torch.arange(12).reshape(3, 4).to(dtype) for _ in range(2))
    function = thermit.jit(lambda x, y: x @ y.t())
    assert torch.equal(function(x, y), x @ y.t())
    if not dtype.is_complex:
        assert declines(aten.mm.default, x, y.t())


def test_a_block_of_a_network():
    """Linear, activation, linear, residual, norm, attention by hand: as near as eager to the true values."""

    def block(x, w, c, v, q):
        h = F.gelu(F.linear(x, w, c)) @ v + x
        h = F.layer_norm(h, h.shape[-1:])
        heads = (h @ q).reshape(*h.shape[:-1], 4, 8).transpose(1, 2)
        s = torch.softmax(heads @ heads.mT * 8**-0.5, -1) @ heads
        return s.transpose(1, 2).reshape(h.shape) + h

    agrees(block, torch.randn(3, 10, 32), torch.randn(70, 32), torch.randn(70), torch.randn(70, 32), torch.randn(32, 32))


@pytest.mark.parametrize(
    "equation", ["ij,jk->ik", "bij,bjk->bik", "bij,bjk->ik", "ij,kj->k", "i,j->ij", "abc,cd,de->abe", "bhqd,bhkd->bhqk", "ii->i", "ij,ij->"]
)
def test_einsum(equation):
    shapes = [
        [{"a": 3, "b": 4, "c": 5, "d": 6, "e": 7, "h": 2, "i": 5, "j": 6, "k": 7, "q": 8}[c] for c in part]
        for part in equation.split("->")[0].split(",")
    ]
    function = lambda *args: torch.einsum(equation, *args)  # noqa: E731
    args = [torch.randn(s) for s in shapes]
    torch.testing.assert_close(thermit.jit(function)(*args), function(*args))
