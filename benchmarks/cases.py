"""What is measured, as data: a row for each function, product or model and size.

A function is named here and written once for PyTorch (torch_functions.py) and once for JAX (jax_functions.py); a model is made by
torch_models.py.  Inputs are made by numpy from a seed, so every peer sees the same numbers.  This file needs numpy only: workers of all
peers read it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Input:
    """`kind`: "normal", "positive" (0.5 to 1.5), "mask" (bool, two thirds true), "image" (uint8), "tokens" (numbers of words),
    "padding" (1 for a word, 0 behind the end of a sentence; the first sentence is the longest)."""

    kind: str
    shape: Shape
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class Case:
    """One function at one size.

    `other`: inputs of other sizes, to time the first call after a change of shape.  `moved_bytes`: for what is bound by memory, the
    bytes of inputs and results, each once.  `tolerance`: largest difference between peers, relative to the largest result.  `fixed`: so
    many of the last inputs are weights: they do not change, and a peer may prepare them in its first call.  `flops`: of a product.
    """

    name: str
    function: str
    inputs: tuple[Input, ...]
    other: tuple[Input, ...]
    group: str = "size"  # "call": the cost of a call; "product"; "model"; "size": all else
    moved_bytes: int = 0
    tolerance: float = 1e-4
    quick: bool = False
    fixed: int = 0
    flops: int = 0

    @property
    def elements(self) -> int:
        return max(math.prod(i.shape) for i in self.inputs)


def arrays(inputs: tuple[Input, ...]) -> list[np.ndarray]:
    """The inputs of a case; the same for every peer."""
    return [_array(spec, np.random.default_rng([7, k])) for k, spec in enumerate(inputs)]


def _array(spec: Input, rng: np.random.Generator) -> np.ndarray:
    match spec.kind:
        case "normal":
            return rng.standard_normal(spec.shape, np.float32).astype(spec.dtype)
        case "positive":
            return (rng.random(spec.shape, np.float32) + np.float32(0.5)).astype(spec.dtype)
        case "mask":
            return rng.random(spec.shape, np.float32) < 2 / 3
        case "image":
            return rng.integers(0, 256, spec.shape, np.uint8)
        case "tokens":
            return rng.integers(1000, 30000, spec.shape, np.int64)
        case "padding":
            rows, columns = spec.shape
            ends = np.maximum(columns - np.arange(rows)[:, None] * columns // (2 * rows), 1)
            return (np.arange(columns) < ends).astype(np.int64)
    raise ValueError(spec.kind)


def _same(kind: str, shape: Shape, count: int = 1, dtype: str = "float32") -> tuple[Input, ...]:
    return (Input(kind, shape, dtype),) * count


def _grown(inputs: tuple[Input, ...]) -> tuple[Input, ...]:
    """The same with every first axis a little longer."""
    return tuple(Input(i.kind, (i.shape[0] + max(1, i.shape[0] // 7), *i.shape[1:]), i.dtype) for i in inputs)


def _case(name: str, function: str, inputs: tuple[Input, ...], **columns: object) -> Case:
    return Case(name, function, inputs, **{"other": _grown(inputs), **columns})  # type: ignore[arg-type]


def _cases() -> Iterator[Case]:
    for n, label, quick in ((16, "16", True), (4096, "4k", False), (1 << 20, "1M", True), (1 << 24, "16M", False)):
        moved = 3 * 4 * n if n >= 1 << 24 else 0
        yield _case(f"chain {label}", "chain", _same("normal", (n,), 2), quick=quick, moved_bytes=moved)
    for rows, columns in ((4096, 1024), (64, 50257)):
        size, x = f"{rows}x{columns}", Input("normal", (rows, columns))
        parameters = (Input("positive", (columns,)), Input("normal", (columns,)))
        first, moved = rows == 4096, 2 * 4 * rows * columns
        other = (Input("normal", (rows + 9, columns)), *parameters)
        yield _case(f"softmax {size}", "softmax", (x,), quick=first, moved_bytes=moved)
        yield _case(f"layer norm {size}", "layer_norm", (x, *parameters), other=other, moved_bytes=moved)
        yield _case(f"softmax, layer norm {size}", "softmax_layer_norm", (x, *parameters), other=other, moved_bytes=moved)
    yield _case(
        "rms norm, residual 4096x1024",
        "rms_residual",
        (*_same("normal", (4096, 1024), 2), Input("positive", (1024,))),
        other=(*_same("normal", (4105, 1024), 2), Input("positive", (1024,))),
        moved_bytes=4 * 4 * 4096 * 1024,
        quick=True,
    )
    yield _case("variance 4096x1024", "variance", _same("normal", (4096, 1024)), moved_bytes=4 * 4096 * 1024)
    yield _case("log-sum-exp 4096x1024", "logsumexp", _same("normal", (4096, 1024)))
    for function in ("sum_all", "sum_rows", "sum_columns"):
        yield _case(f"{function.replace('_', ' ')} 4096x4096", function, _same("normal", (4096, 4096)), moved_bytes=4 * 4096 * 4096)
    yield _case("rbf 4000x4000", "rbf", _same("normal", (4000, 3), 2), quick=True)
    yield _case("stencil 2048x2048", "stencil", _same("normal", (2048, 2048)), moved_bytes=2 * 4 * 2048 * 2048)
    for dtype in ("float32", "float64"):
        yield _case(f"sea water 1M {dtype}", "sea_water", _same("positive", (1 << 20,), 3, dtype))
    yield _case("tridiagonal 16x65536", "tridiagonal", _same("positive", (16, 65536), 4), other=_same("positive", (16, 70000), 4))
    yield _case(
        "masked statistics 4096x1024",
        "masked_statistics",
        (Input("normal", (4096, 1024)), Input("mask", (4096, 1024))),
        moved_bytes=5 * 4096 * 1024,
        tolerance=1e-3,
    )
    yield _case("image 1080x1920", "image", _same("image", (1080, 1920, 3)), other=_same("image", (720, 1280, 3)), tolerance=1 / 255, quick=True)
    for count in (1, 2, 8, 32):
        yield _case(f"call with {count}", "total", _same("normal", (16,), count), other=_same("normal", (17,), count), group="call", quick=count == 2)


def _products() -> Iterator[Case]:
    """Both sides changing ("free"), and with a weight that stays ("weight"), as linear layers have it: y = x @ w.T + b."""

    def product(name: str, function: str, m: int, k: int, n: int, right: Shape, quick: bool = False) -> Case:
        inputs = (Input("normal", (m, k)), Input("normal", right))
        return _case(name, function, inputs, other=inputs, group="product", quick=quick, flops=2 * m * k * n)

    def linear(m: int, k: int, n: int, quick: bool = False) -> Case:
        inputs = (Input("normal", (m, k)), Input("normal", (n, k)), Input("normal", (n,)))
        moved = 4 * k * n if m == 1 else 0
        name = f"weight {m}x{k}x{n}"
        return _case(name, "linear", inputs, other=inputs, group="product", fixed=2, quick=quick, flops=2 * m * k * n, moved_bytes=moved)

    for n in (64, 128, 256, 512, 1024, 2048):
        yield product(f"free {n}x{n}x{n}", "product", n, n, n, (n, n), quick=n == 512)
    for m, k, n in ((100, 333, 77), (129, 127, 131)):
        yield product(f"free {m}x{k}x{n}", "product", m, k, n, (k, n))
    for m, k, n in ((128, 768, 3072), (512, 512, 512)):
        yield product(f"free {m}x{k}x{n}, right transposed", "product_right", m, k, n, (n, k))
    yield product("free 512x512x512, left transposed", "product_left", 512, 512, 512, (512, 512))
    for m in (128, 1024):
        for k, n in ((768, 768), (768, 3072), (3072, 768)):
            yield linear(m, k, n, quick=m == 128 and n == 3072)
    for m, k, n in ((36, 384, 384), (36, 384, 1536), (100, 333, 77), (1, 768, 3072), (1, 3072, 768), (1, 768, 50257)):
        yield linear(m, k, n)


def _convolutions() -> Iterator[Case]:
    """Layers of ResNet-50 and MobileNet-V2: with a bias and what cuts below zero."""

    def layer(channels: int, outs: int, size: int, taps: int, stride: int = 1, groups: int = 1, quick: bool = False) -> Case:
        inputs = (Input("normal", (1, channels, size, size)), Input("normal", (outs, channels // groups, taps, taps)), Input("normal", (outs,)))
        places = (size // stride) ** 2
        kind = "depthwise " if groups == channels else ""
        name = f"{kind}{taps}x{taps} {channels}x{size}x{size} to {outs}" + (f", stride {stride}" if stride > 1 else "")
        function = f"{'depthwise' if kind else 'convolution'}_{stride}"
        flops = 2 * places * outs * (channels // groups) * taps * taps
        return _case(name, function, inputs, other=inputs, group="product", fixed=2, quick=quick, flops=flops)

    yield layer(3, 64, 224, 7, 2, quick=True)
    for channels, size in ((64, 56), (128, 28), (256, 14), (512, 7)):
        yield layer(channels, channels, size, 3, quick=size == 14)
        yield layer(channels, 4 * channels, size, 1)
        yield layer(4 * channels, channels, size, 1, quick=size == 7)
    yield layer(128, 128, 56, 3, 2)
    yield layer(256, 512, 56, 1, 2)
    for channels, size, stride in ((32, 112, 1), (96, 112, 2), (144, 56, 1), (144, 56, 2), (192, 28, 1), (384, 14, 1), (576, 14, 2), (960, 7, 1)):
        yield layer(channels, channels, size, 3, stride, channels, quick=size == 14 and stride == 1)
    for channels, outs, size in ((16, 96, 112), (24, 144, 56), (32, 192, 28), (64, 384, 14), (160, 960, 7), (320, 1280, 7)):
        yield layer(channels, outs, size, 1)


def _models() -> Iterator[Case]:
    def words(name: str, model: str, rows: int, columns: int, mask: bool = True, quick: bool = False) -> Case:
        inputs = (Input("tokens", (rows, columns)), *([Input("padding", (rows, columns))] if mask else []))
        other = tuple(Input(i.kind, (rows, columns - columns // 4)) for i in inputs)
        return _case(name, model, inputs, other=other, group="model", quick=quick)

    yield words("MiniLM 1x16", "minilm", 1, 16, quick=True)
    yield words("MiniLM 16x32", "minilm", 16, 32)
    yield words("BERT-base 1x128", "bert", 1, 128, quick=True)
    yield words("BERT-base 8x128", "bert", 8, 128)
    yield words("GPT-2 1x64", "gpt2", 1, 64, mask=False)
    yield words("GPT-2, a token after 64", "gpt2_step", 1, 1, mask=False, quick=True)
    picture = (Input("normal", (1, 3, 224, 224)),)
    yield _case("ResNet-50 1x3x224x224", "resnet", picture, other=(Input("normal", (1, 3, 192, 192)),), group="model", quick=True)


CASES: dict[str, Case] = {case.name: case for case in _cases()}
PRODUCTS: dict[str, Case] = {case.name: case for case in _products()}
CONVOLUTIONS: dict[str, Case] = {case.name: case for case in _convolutions()}
MODELS: dict[str, Case] = {case.name: case for case in _models()}
PARTS = {"functions": CASES, "products": PRODUCTS, "convolutions": CONVOLUTIONS, "models": MODELS}


def find(name: str) -> Case:
    """The case of this name, of whatever part."""
    return next(part[name] for part in PARTS.values() if name in part)


# ---------------------------------------------------------------------------------------------- the polynomial of sea water
def sea_water_coefficients(degree: int = 6) -> list[list[list[float]]]:
    """Coefficients c[i][j][k] of s^i t^j p^k with i + j + k <= degree: 84 of them, of falling size, as in equations of state."""
    rng = np.random.default_rng(11)
    return [
        [[float(rng.uniform(-1, 1)) / math.factorial(i + j + k) for k in range(degree + 1 - i - j)] for j in range(degree + 1 - i)]
        for i in range(degree + 1)
    ]
