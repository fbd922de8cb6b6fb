"""Attention: as eager's, in every layout, with masks, lengths and sizes of all kinds; at least as accurate, measured against float64."""

from __future__ import annotations

import math
import random
from functools import partial

import pytest
import torch
import torch.nn.functional as F

import thermit
from tests.aten.rows import declines

aten = torch.ops.aten
inf, nan = math.inf, math.nan


def laid(heads: int, rows: int, size: int, layout: str, dtype: torch.dtype = torch.float32, batch: int = 2) -> torch.Tensor:
    """[batch, heads, rows, size] whose memory lies in that way."""
    match layout:
        case "heads apart":
            return torch.randn(batch, rows, heads, size, dtype=dtype).transpose(1, 2)
        case "turned":
            return torch.randn(batch, heads, size, rows, dtype=dtype).transpose(2, 3)
        case "one for all":
            return torch.randn(batch, 1, rows, size, dtype=dtype).expand(batch, heads, rows, size)
        case "gaps":
            return torch.randn(batch, heads, 2 * rows, size + 3, dtype=dtype)[:, :, ::2, 1 : size + 1]
        case "packed":
            return torch.randn(batch, rows, 3, heads, size, dtype=dtype)[:, :, 1].transpose(1, 2)
    return torch.randn(batch, heads, rows, size, dtype=dtype)


LAYOUTS = ("plain", "heads apart", "turned", "one for all", "gaps", "packed")


def agrees(function, *args: torch.Tensor) -> None:
    """Strides as eager's, what is not finite where eager has it, and no result much further from the true one than eager's worst."""
    want, jitted = function(*args), thermit.jit(function)
    got = [jitted(*args) for _ in range(2)][-1]
    true = function(*(a.double() if a.is_floating_point() else a for a in args))
    assert got.shape == want.shape and got.stride() == want.stride() and got.dtype == want.dtype
    assert torch.equal(got.isnan(), want.isnan())
    fine = want.isfinite() & true.isfinite()
    size = (true[fine].abs().max() + 1) * torch.finfo(want.dtype).eps * (4 if want.dtype is torch.float32 else 16)
    assert (got - true)[fine].abs().max() <= 2 * (want - true)[fine].abs().max() + size


def calls(function, *args: torch.Tensor) -> int:
    """How many operations of PyTorch's own the program has."""
    return str(thermit.jit(function).trace(*args).lower().as_text("kernels")).count("call ")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_layouts(layout: str, dtype: torch.dtype) -> None:
    for k, other in enumerate(LAYOUTS):
        torch.manual_seed(k)
        rows, keys, size = random.Random(f"{layout}{other}").choice([(17, 30, 8), (32, 32, 16), (9, 65, 20), (40, 7, 33), (64, 64, 64)])
        args = laid(3, rows, size, layout, dtype), laid(3, keys, size, other, dtype), laid(3, keys, size, layout, dtype)
        agrees(F.scaled_dot_product_attention, *args)


@pytest.mark.parametrize("rows, keys", [(1, 1), (1, 40), (7, 7), (8, 1), (8, 2), (16, 16), (33, 31), (31, 33), (12, 200), (200, 12)])
def test_lengths(rows: int, keys: int) -> None:
    q, k, v = laid(2, rows, 24, "plain"), laid(2, keys, 24, "plain"), laid(2, keys, 24, "plain")
    agrees(F.scaled_dot_product_attention, q, k, v)
    agrees(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), q, k, v)


@pytest.mark.parametrize("keys", [63, 65, 191, 193, 390, 1025, 2049])
def test_many_keys(keys: int) -> None:
    """Kept a block at a time; blocks of which a row sees nothing, before and behind those of which it does."""
    rows, size = 37, 16
    q, k, v = laid(2, rows, size, "heads apart"), laid(2, keys, size, "plain"), laid(2, keys, size, "heads apart")
    near = torch.arange(keys) // (keys // rows) == torch.arange(rows)[:, None]
    near[5] = False
    for mask in ((), (near,), (torch.where(near, 30 * torch.randn(rows, keys), -inf),)):
        agrees(F.scaled_dot_product_attention, q, k, v, *mask)
        agrees(by_hand, q, k, v, *mask)
    agrees(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), k, k, v)
    assert calls(F.scaled_dot_product_attention, q, k, v, near) == calls(by_hand, q, k, v, near) == 0


@pytest.mark.parametrize("keys", [7, 40, 193, 1025])
@pytest.mark.parametrize("rows", [1, 4, 8, 33])
@pytest.mark.parametrize("dtype, large", [(torch.float32, 1e36), (torch.float32, 1e-36), (torch.float64, 1e300), (torch.bfloat16, 1e36)])
def test_large_and_small_values(rows: int, keys: int, dtype: torch.dtype, large: float) -> None:
    """Finite and as accurate as ever: weights are at most 1, whatever their powers are scaled by on the way."""
    q, k, v = (laid(2, n, 12, "plain", dtype) for n in (rows, keys, keys))
    v *= large
    for function in (F.scaled_dot_product_attention, by_hand):
        result = thermit.jit(function)(q, k, v)
        assert result.isfinite().all()
        unit = function(q, k, v / large)
        torch.testing.assert_close((result.double() / large).to(dtype), unit, rtol=4 * torch.finfo(dtype).eps, atol=8 * torch.finfo(dtype).eps)


def test_no_call_is_left() -> None:
    q, k, v = (laid(3, 32, 16, "heads apart") for _ in range(3))
    mask = torch.rand(2, 1, 32, 32) > 0.3
    assert calls(F.scaled_dot_product_attention, q, k, v) == 0
    assert calls(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), q, k, v) == 0
    assert calls(F.scaled_dot_product_attention, q, k, v, mask) == 0


@pytest.mark.parametrize("shape", [(2, 3, 20, 30), (1, 1, 20, 30), (2, 1, 1, 30), (20, 30), (1, 3, 20, 1), (2, 1, 20, 30), (1, 30), (2, 3, 1, 1)])
@pytest.mark.parametrize("kind", ["flags", "numbers", "infinite"])
def test_masks(shape: tuple[int, ...], kind: str) -> None:
    """Rows of which every key is masked are 0."""
    q, k, v = laid(3, 20, 16, "heads apart"), laid(3, 30, 16, "plain"), laid(3, 30, 16, "plain")
    flags = torch.rand(shape) > 0.5
    flags[..., :1, :] = False
    mask = {"flags": flags, "numbers": torch.randn(shape), "infinite": torch.where(flags, torch.randn(shape), -inf)}[kind]
    agrees(F.scaled_dot_product_attention, q, k, v, mask)


@pytest.mark.parametrize("scale", [0.0, 1.0, -0.5, 3.0])
def test_scales(scale: float) -> None:
    q, k, v = laid(3, 20, 16, "plain"), laid(3, 30, 16, "plain"), laid(3, 30, 16, "plain")
    agrees(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=scale), q, k, v)
    causal, args = partial(F.scaled_dot_product_attention, is_causal=True, scale=scale), (q, k, v)  # eager makes nan of masked keys
    torch.testing.assert_close(thermit.jit(lambda *a: causal(*a))(*args), causal(*args), equal_nan=True)


@pytest.mark.parametrize("own", [1, 2, 3])
@pytest.mark.parametrize("is_causal", [False, True])
def test_grouped_heads(own: int, is_causal: bool) -> None:
    q, k, v = laid(6, 20, 16, "heads apart"), laid(own, 30, 16, "plain"), laid(own, 30, 16, "heads apart")
    agrees(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=True), q, k, v)


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("value", [nan, inf, -inf])
def test_values_that_are_not_finite(which: int, value: float) -> None:
    args = [laid(2, 20, 16, "plain") for _ in range(3)]
    args[which][0, 0, -1, 0] = value
    agrees(F.scaled_dot_product_attention, *args)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_halves(dtype: torch.dtype) -> None:
    args = [laid(3, 20, 16, "heads apart", dtype) for _ in range(3)]
    agrees(F.scaled_dot_product_attention, *args)
    agrees(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), *args)


def test_other_shapes() -> None:
    """Without heads, with values of another size: eager writes those out itself."""
    q, k, v = laid(3, 20, 16, "plain"), laid(3, 30, 16, "plain"), laid(3, 30, 7, "plain")
    agrees(F.scaled_dot_product_attention, q, k, v)
    agrees(F.scaled_dot_product_attention, q[0], k[0], v[0])
    agrees(F.scaled_dot_product_attention, q[0, 0], k[0, 0], v[0, 0])
    for shape in [(0, 2, 20, 16), (2, 0, 20, 16)]:
        empty = torch.randn(shape)
        assert thermit.jit(F.scaled_dot_product_attention)(empty, empty, empty).shape == empty.shape


def test_errors_are_eagers() -> None:
    q, k, v = laid(3, 20, 16, "plain"), laid(3, 30, 15, "plain"), laid(3, 30, 16, "plain")
    with pytest.raises(RuntimeError) as eager:
        F.scaled_dot_product_attention(q, k, v)
    with pytest.raises(RuntimeError) as ours:
        thermit.jit(F.scaled_dot_product_attention)(q, k, v)
    assert str(ours.value).splitlines()[0] == str(eager.value).splitlines()[0]


def test_dropout_is_eagers() -> None:
    q = laid(3, 20, 16, "plain")
    jitted = thermit.jit(lambda q: F.scaled_dot_product_attention(q, q, q, dropout_p=0.5))
    results = []
    for function in (jitted, lambda q: F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)):
        torch.manual_seed(3)
        results.append(function(q))
    torch.testing.assert_close(*results)


def test_both_results() -> None:
    q, k, v = (laid(3, 20, 16, "plain") for _ in range(3))
    op = aten._scaled_dot_product_flash_attention_for_cpu.default
    for got, want in zip(thermit.jit(lambda *a: op(*a))(q, k, v), op(q, k, v), strict=True):
        torch.testing.assert_close(got, want)
        assert got.stride() == want.stride()


@pytest.mark.parametrize("rows, own, keys", [(1, 1, 70), (1, 2, 9), (1, 3, 2100), (1, 6, 70), (2, 2, 2), (4, 6, 300), (7, 1, 70)])
def test_few_queries(rows: int, own: int, keys: int) -> None:
    """Heads that share keys become queries of one head, with their masks."""
    q, k, v = laid(6, rows, 64, "heads apart"), laid(own, keys, 64, "heads apart"), laid(own, keys, 64, "plain")
    seen = torch.rand(2, 6, rows, keys) > 0.4
    seen[0, 1] = False
    for mask in (seen, seen[:, :1], seen[0, 0], torch.where(seen[:1, :, :1], torch.randn(keys), -inf)):
        agrees(lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True), q, k, v, mask)
    agrees(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.3, enable_gqa=True), q, k, v)


def by_hand(q, k, v, mask=None):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -inf) if mask.dtype is torch.bool else scores + mask
    return torch.softmax(scores, -1) @ v


@pytest.mark.parametrize("layout", LAYOUTS)
def test_by_hand(layout: str) -> None:
    q, k, v = laid(3, 20, 16, layout), laid(3, 30, 16, layout), laid(3, 30, 16, layout)
    agrees(by_hand, q, k, v)
    agrees(by_hand, q, k, v, torch.randn(20, 30))
    agrees(lambda q, k, v: by_hand(q, k, v).transpose(1, 2).reshape(2, 20, -1), q, k, v)


def test_rows_that_are_masked_are_nan_by_hand() -> None:
    q, k, v = laid(3, 20, 16, "plain"), laid(3, 30, 16, "plain"), laid(3, 30, 16, "plain")
    mask = torch.rand(20, 30) > 0.5
    mask[3] = False
    agrees(by_hand, q, k, v, mask)
    assert thermit.jit(by_hand)(q, k, v, mask)[:, :, 3].isnan().all()


@pytest.mark.parametrize("offset", [0, 3, -2])
def test_causal_by_hand(offset: int) -> None:
    def causal(q, k, v):
        seen = torch.arange(q.shape[-2])[:, None] + offset >= torch.arange(k.shape[-2])
        return by_hand(q, k, v, seen)

    agrees(causal, laid(3, 40, 16, "plain"), laid(3, 43, 16, "plain"), laid(3, 43, 16, "plain"))


def test_scores_are_not_stored() -> None:
    q, k, v = (laid(3, 32, 16, "heads apart") for _ in range(3))
    for function in (by_hand, F.scaled_dot_product_attention):
        lowered = thermit.jit(function).trace(q, k, v).lower()
        assert "scores stay in rows" in lowered.as_text("kernels")


def test_what_the_row_declines() -> None:
    op = aten._scaled_dot_product_flash_attention_for_cpu.default
    assert declines(op, *(laid(2, 4, 16, "plain", torch.bfloat16) for _ in range(3)))
    assert declines(op, laid(2, 4, 16, "plain"), laid(2, 9, 16, "plain"), laid(2, 9, 16, "plain"), 0.0, True)
    assert not declines(op, *(laid(2, 4, 16, "plain") for _ in range(3)))
    assert not declines(op, laid(2, 16, 16, "plain"), laid(2, 3000, 16, "plain"), laid(2, 3000, 16, "plain"))


@pytest.mark.parametrize("keys", [2, 40, 300, 2049, 4500])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_one_query(keys: int, dtype: torch.dtype) -> None:
    """Decoding: no call is left, however many keys there are, also where all or most of them are masked."""
    q, k, v = laid(6, 1, 64, "heads apart", dtype), laid(2, keys, 64, "plain", dtype), laid(2, keys, 64, "gaps", dtype)

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)

    shown = (torch.arange(keys) < keys // 3).reshape(1, keys)
    for mask in (shown, torch.rand(2, 1, 1, keys) > 0.5, torch.zeros(1, keys, dtype=torch.bool)):
        agrees(attention, q, k, v, mask)
    agrees(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True), q, k, v)
    assert calls(attention, q, k, v, shown) == 0
