"""Metadata by the short way and by PyTorch's metas, against the real kernels."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from thermit.aten.table import TABLE
from thermit.capture.infer import _NOT_ITERATED, dense_strides, describe, infer
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
