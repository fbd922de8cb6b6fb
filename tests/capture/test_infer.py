"""Metadata by the short way and by PyTorch's metas, against the real kernels."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
import torch

from thermit.aten.table import TABLE
from thermit.capture.infer import _NOT_ITERATED, Meta, _plain, dense_strides, describe, infer
from thermit.capture.overloads import overload_of

aten = torch.ops.aten

LAYOUTS = {
    "contiguous": lambda t: t(3, 4, 5),
    "transposed": lambda t: t(5, 4, 3).transpose(0, 2),
    "permuted": lambda t: t(4, 3, 5).permute(1, 0, 2),
    "stepped": lambda t: t(3, 8, 5)[:, ::2],
    "expanded": lambda t: t(3, 1, 5).expand(3, 4, 5),
    "row": lambda t: t(5),
    "column": lambda t: t(3, 1, 1),
    "scalar": lambda t: t(),
    "with ones": lambda t: t(1, 4, 1).permute(2, 1, 0),
}
IMAGES = {
    "contiguous": lambda t: t(2, 3, 4, 5),
    "channels last": lambda t: t(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "channels": lambda t: t(3, 1, 1),
}


def pairs():
    for layouts in (LAYOUTS, IMAGES):
        for a in layouts:
            for c in layouts:
                yield layouts[a], layouts[c]


@pytest.mark.parametrize("dtypes", [(torch.float32, torch.float32), (torch.float32, torch.int32), (torch.bfloat16, torch.float64)], ids=str)
def test_strides_of_two_operands(dtypes):
    for first, second in pairs():
        x = first(lambda *s: torch.ones(s, dtype=dtypes[0]))
        y = second(lambda *s: torch.ones(s, dtype=dtypes[1]))
        for op in (aten.add.Tensor, aten.lt.Tensor, aten.atan2.default):
            want = op(x, y)
            got = infer(op, [describe(x), describe(y)], {}, pointwise=True, device=False)
            expected = tuple(want.shape), want.stride(), want.dtype
            assert (got.geometry.sizes, got.geometry.strides, got.dtype) == expected, (op, x.stride(), y.stride())


def pointwise_rows():
    for op in TABLE:
        info = overload_of(op)
        schema = op._schema
        plain = all(a.kwarg_only or str(a.type) in ("Tensor", "number", "float", "int", "bool", "str") for a in schema.arguments)
        if info.pointwise and info.treatment == "functional" and op not in _NOT_ITERATED and plain:
            yield op


@pytest.mark.parametrize("op", pointwise_rows(), ids=str)
def test_every_pointwise_row(op):
    """Strides and dtype of a unary or binary use of each pointwise row, as the kernel gives them."""
    required = [a for a in op._schema.arguments if not a.has_default_value() and not a.kwarg_only]
    for layout in ("contiguous", "transposed", "stepped", "expanded", "scalar"):
        for dtype in (torch.float32, torch.int64, torch.bool):
            x = LAYOUTS[layout](lambda *s, dtype=dtype: torch.ones(s, dtype=dtype))
            args = [x if str(a.type) == "Tensor" else 1 for a in required]
            if op is aten.where.self:
                args[0] = x.bool()
            try:
                want = op(*args)
            except (RuntimeError, TypeError, IndexError):
                continue
            got = infer(op, [describe(a) for a in args], {}, pointwise=True, device=False)
            assert (got.geometry.sizes, got.geometry.strides, got.dtype) == (tuple(want.shape), want.stride(), want.dtype), (layout, dtype)


def test_dense_strides_are_those_of_empty_like():
    for make in (*LAYOUTS.values(), *IMAGES.values()):
        x = make(lambda *s: torch.ones(s))
        if x.dim() > 1:
            assert dense_strides(tuple(x.shape), x.stride()) == torch.empty_strided(x.shape, x.stride()).clone().stride() or not x.is_contiguous()


@pytest.mark.parametrize("op", [aten.flip.default, aten.empty_like.default, aten.zeros_like.default, aten.rand_like.default], ids=str)
def test_results_that_lie_as_their_model(op):
    makers = [*LAYOUTS.values(), *IMAGES.values(), lambda t: t(1, 15).t(), lambda t: t(15, 1).as_strided((15, 1), (1, 1))]
    for make in makers:
        x = make(lambda *s: torch.ones(s))
        args = (x, [0]) if op is aten.flip.default else (x,)
        if x.dim() == 0 and op is aten.flip.default:
            continue
        got = infer(op, [describe(a) for a in args], {}, pointwise=False, device=False)
        assert got.geometry.strides == op(*args).stride(), (x.shape, x.stride())


def _rows_of_ones(t):
    return t(31, 1).as_strided((31, 1), (1, 31))


MATRICES = {
    "contiguous": lambda t: t(4, 6),
    "transposed": lambda t: t(6, 4).t(),
    "stepped": lambda t: t(4, 12)[:, ::2],
    "stepped, transposed": lambda t: t(12, 4)[::2].t(),
    "expanded": lambda t: t(1, 6).expand(4, 6),
    "expanded, transposed": lambda t: t(6, 1).t()[:1].expand(4, 6),
    "column": _rows_of_ones,
    "strides of one": lambda t: t(1, 6).as_strided((1, 6), (1, 1)),
}
BATCHES = {
    **IMAGES,
    "reversed": lambda t: t(5, 4, 3, 2).permute(3, 2, 1, 0),
    "one channel": lambda t: t(2, 1, 4, 5).to(memory_format=torch.channels_last),
    "one column": lambda t: t(1, 5, 4, 3).permute(3, 2, 1, 0)[..., :1],
}
del BATCHES["channels"]


def _on_matrices(op, *rest, tensors=1, **kwargs):
    return [(op, [make] * tensors, rest, kwargs) for make in MATRICES.values()]


def _on_pairs(op, *rest):
    return [(op, [first, second], rest, {}) for first in list(MATRICES.values())[:4] for second in list(MATRICES.values())[:4]]


def _on_batches(op, *rest):
    return [(op, [make], rest, {}) for make in BATCHES.values()]


OF_THEIR_OWN = [
    *_on_matrices(aten.log_sigmoid_forward.default),
    *_on_matrices(aten.index_fill.int_Scalar, 0, torch.tensor([0]), 1),
    *_on_matrices(aten.nan_to_num.default),
    *_on_matrices(aten.hardtanh.default),
    *_on_matrices(aten.deg2rad.default),
    *_on_matrices(aten.pow.Scalar, 2),
    *_on_matrices(aten.remainder.Scalar_Tensor, 2),
    *_on_matrices(aten.tril.default),
    *_on_matrices(aten._log_softmax.default, 0, False),
    *_on_matrices(aten._softmax.default, 0, False),
    *[(aten.native_layer_norm.default, [make], ([make(lambda *s: torch.ones(s)).shape[1]], None, None, 1e-5), {}) for make in MATRICES.values()],
    *_on_pairs(aten.floor_divide.default),
    *_on_pairs(aten.hardswish_backward.default),
    *_on_pairs(aten.hardtanh_backward.default, -1, 1),
    *_on_pairs(aten.threshold_backward.default, 0),
    *_on_pairs(aten.rsub.Tensor),
    *_on_batches(aten._log_softmax.default, 1, False),
    *_on_batches(aten._native_batch_norm_legit.no_stats, None, None, True, 0.1, 1e-5),
    *_on_matrices(aten.native_group_norm.default, None, None, 31, 1, 1, 1, 1e-5)[6:7],
    *_on_batches(aten.native_group_norm.default, None, None, 2, 3, 20, 3, 1e-5)[:2],
    *_on_batches(aten.replication_pad2d.default, [1, 1, 1, 1]),
    *_on_batches(aten.reflection_pad2d.default, [0, 0, 0, 0]),
    *_on_batches(aten.upsample_nearest2d.default, [8, 10]),
    *_on_batches(aten.channel_shuffle.default, 1),
]


@pytest.mark.parametrize("op", dict.fromkeys(case[0] for case in OF_THEIR_OWN), ids=str)
def test_kernels_that_lay_out_their_own_way(op):
    for _, makers, rest, kwargs in (case for case in OF_THEIR_OWN if case[0] is op):
        tensors = [make(lambda *s: torch.ones(s)) for make in makers]
        order = [*rest[:1], *tensors, *rest[1:]] if op in (aten.pow.Scalar, aten.remainder.Scalar_Tensor) else [*tensors, *rest]
        want = op(*order, **kwargs)
        pointwise = overload_of(op).pointwise
        got = infer(op, [describe(a) for a in order], kwargs, pointwise=pointwise, device=False)
        for g, w in zip(got if isinstance(want, tuple) else [got], want if isinstance(want, tuple) else [want], strict=True):
            if w.numel():
                seen = [(t.shape, t.stride()) for t in tensors]
                assert (g.geometry.sizes, g.geometry.strides, g.dtype) == (tuple(w.shape), w.stride(), w.dtype), seen


def test_an_error_of_eager_is_raised():
    x = describe(torch.ones(3))
    with pytest.raises(RuntimeError):
        infer(aten.add.Tensor, [x, describe(torch.ones(4))], {}, pointwise=True, device=False)
    with pytest.raises(RuntimeError, match="negative integer powers"):
        infer(aten.pow.Tensor_Scalar, [describe(torch.ones(3, dtype=torch.int64)), -1], {}, pointwise=True, device=False)


HEAVY = """
import sys, torch, thermit
x = torch.randn(4, 6)
fns = [lambda x: x.mean(0), lambda x: x.log_softmax(-1), lambda x: torch.cat([x, x]).std(), lambda x: x.cumsum(0).logsumexp(1)]
fns += [lambda x: x * torch.arange(6)]
for f in fns:
    assert torch.allclose(thermit.jit(f)(x), f(x), atol=1e-5)
print([m for m in ("sympy", "torch._dynamo", "torch.fx.experimental.symbolic_shapes") if m in sys.modules])
import sympy, torch._dynamo
print(sympy.Symbol("a") + 1, torch.compile(lambda x: x.mean(0), backend="eager")(x).shape)
"""


def test_the_first_call_does_not_load_what_metas_would():
    done = subprocess.run([sys.executable, "-c", HEAVY], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "a + 1 torch.Size([6])"], done.stdout + done.stderr


def calls_whose_metas_differ():
    yield aten.max_unpool2d.default, (channels_last(1, 2, 1, 3), torch.tensor([0, 2, 4] * 2).reshape(1, 2, 1, 3), [3, 6])
    yield aten.max_unpool2d.default, (torch.randn(1, 2, 1, 3), torch.tensor([0, 2, 4] * 2).reshape(1, 2, 1, 3), [3, 6])
    yield aten.nonzero_static.default, (torch.eye(3),)
    for shape in ((3, 3), (4, 2), (2, 3, 4), (2, 1, 3, 2), (1, 4), (4, 1), (0, 3)):
        x = torch.randn(shape)
        for full, vectors in itertools.product((False, True), repeat=2):
            yield aten._linalg_svd.default, (x, full, vectors)
        yield aten.linalg_eig.default, (x @ x.mT,)
    for axes in itertools.permutations(range(3)):
        x = torch.randn(4, 5, 6).permute(axes)
        for n in (1, 2, 3):
            for dim in itertools.permutations(range(3), n):
                yield aten._fft_r2c.default, (x, list(dim), 0, True)
                yield aten._fft_r2c.default, (x, list(dim), 0, False)
                yield aten._fft_c2c.default, (x.to(torch.complex64), list(dim), 0, True)


def channels_last(*shape):
    return torch.randn(shape).contiguous(memory_format=torch.channels_last)


def test_strides_of_calls():
    def leaves(value):
        return value if isinstance(value, tuple) and not isinstance(value, Meta) else (value,)

    for op, args in calls_whose_metas_differ():
        named = {"size": 2} if op is aten.nonzero_static.default else {}
        got = leaves(infer(op, [describe(a) for a in args], named, pointwise=False, device=False))
        for a, b in zip(leaves(op(*args, **named)), got, strict=True):
            assert tuple(a.shape) == b.geometry.sizes, (op, args)
            assert a.numel() < 2 or a.stride() == b.geometry.strides, (op, [getattr(x, "shape", x) for x in args], a.stride(), b.geometry.strides)


def test_answers_are_kept_by_type_and_value():
    meta = describe(torch.zeros(2, 3))
    keys = [_plain((meta, v)) for v in (1, True, 1.0, None, [1], (1,), [True])]
    assert len(set(keys)) == len(keys) and _plain((meta, object())) is None
    first = infer(aten.cumsum.default, (meta, 1), {}, pointwise=False, device=False)
    assert infer(aten.cumsum.default, (meta, 1), {}, pointwise=False, device=False) is first
    for _ in range(2):  # what raises raises again
        with pytest.raises(IndexError):
            infer(aten.cumsum.default, (meta, 5), {}, pointwise=False, device=False)


def _convolutions():
    """Images of every number of axes and filters, each in row-major order and with channels innermost."""
    formats = {1: [torch.contiguous_format], 2: [torch.contiguous_format, torch.channels_last], 3: [torch.contiguous_format, torch.channels_last_3d]}
    for axes, of_image, of_filters, dtype, transposed, groups in itertools.product(
        (1, 2, 3), (0, 1), (0, 1), (torch.float32, torch.float64, torch.bfloat16), (False, True), (1, 2)
    ):
        if max(of_image, of_filters) < len(formats[axes]):
            x = torch.ones(2, 4, *[5] * axes, dtype=dtype).to(memory_format=formats[axes][of_image])
            w = torch.ones(*((4, 3) if transposed else (6, 4 // groups)), *[2] * axes, dtype=dtype).to(memory_format=formats[axes][of_filters])
            yield x, w, None, [1] * axes, [0] * axes, [1] * axes, transposed, [0] * axes, groups


def test_strides_of_convolutions():
    for args in _convolutions():
        made = infer(aten.convolution.default, [describe(a) for a in args], {}, pointwise=False, device=False)
        expected = aten.convolution.default(*args)
        assert made == describe(expected), (args[0].shape, args[0].stride(), args[1].stride(), args[0].dtype, args[6:])


def _asked_of(op, args):
    """What the kernel makes of the arguments; None where it refuses."""
    try:
        made = op(*args)
    except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
        return None
    return [made] if isinstance(made, torch.Tensor) else list(made)


def written_down():
    images = [layout(lambda *s: torch.rand(s)) for layout in IMAGES.values()]
    images += [
        torch.rand(2, 1, 4, 5).to(memory_format=torch.channels_last),
        torch.rand(2, 4, 5, 3).permute(0, 3, 1, 2)[:, :2],
        torch.rand(1, 3, 1, 1),
    ]
    images += [torch.rand(2, 3, 0, 5), torch.rand(0, 3, 4, 5), torch.rand(3, 5, 4, 2).permute(3, 0, 2, 1)]
    kinds = (torch.float32, torch.float64, torch.bfloat16, torch.uint8)
    for x in (each.to(dtype) for each in images for dtype in kinds):
        for size in ([3, 7], [1, 1], [0, 2], [3]):
            for op in (aten.upsample_bilinear2d.default, aten.upsample_bicubic2d.default):
                yield op, [x, size, False]
            yield aten.upsample_nearest2d.default, [x, size]
            yield aten._upsample_nearest_exact2d.default, [x, size]
    for x in (layout(lambda *s: torch.rand(s)) for layout in LAYOUTS.values()):
        for axes in ([0], [-1], [0, 1], [0, 0], [], [7]):
            for keep in (False, True):
                yield aten.logsumexp.default, [x, axes, keep]
        for count in range(x.dim() + 1):
            shape = list(x.shape[x.dim() - count :])
            for weight in (None, torch.rand(shape), torch.rand(shape, dtype=torch.float64), torch.rand(3)):
                yield aten.native_layer_norm.default, [x, shape, weight, None, 1e-5]
                yield aten.native_layer_norm.default, [x, shape, weight, weight, 1e-5]
    yield aten.native_layer_norm.default, [torch.rand(2, 3), [2], None, None, 1e-5]


def test_sizes_that_are_written_down():
    """Where the kernel runs, its metadata."""
    ran = 0
    for op, args in written_down():
        want = _asked_of(op, args)
        given = [describe(a) for a in args]
        if want is None:
            continue
        got = infer(op, given, {}, pointwise=False, device=False)
        got = [got] if isinstance(got, Meta) else list(got)
        assert [(m.geometry.sizes, m.geometry.strides, m.dtype) for m in got] == [(tuple(w.shape), w.stride(), w.dtype) for w in want], (op, given)
        ran += 1
    assert ran > 350
