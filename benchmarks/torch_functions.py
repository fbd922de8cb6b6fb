"""The functions of cases.py in PyTorch's spelling."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.cases import sea_water_coefficients

_COEFFICIENTS = sea_water_coefficients()


def chain(x: Tensor, y: Tensor) -> Tensor:
    return F.gelu(x * 2 + torch.sin(y)) * torch.sigmoid(y) + torch.sqrt(x * x + 1)


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), weight, bias)


def softmax_layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(torch.softmax(x, -1), (x.shape[-1],), weight, bias)


def rms_residual(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = x + residual
    return total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + 1e-6) * weight, total


def variance(x: Tensor) -> Tensor:
    return torch.var(x, -1)


def logsumexp(x: Tensor) -> Tensor:
    return torch.logsumexp(x, -1)


def sum_all(x: Tensor) -> Tensor:
    return x.sum()


def sum_rows(x: Tensor) -> Tensor:
    return x.sum(1)


def sum_columns(x: Tensor) -> Tensor:
    return x.sum(0)


def rbf(x: Tensor, y: Tensor) -> Tensor:
    """[n, d], [m, d] -> [n]"""
    distance = ((x[:, None, :] - y[None, :, :]) ** 2).sum(-1)
    return torch.exp(-0.5 * distance).sum(1)


def stencil(u: Tensor) -> Tensor:
    """One explicit step of the heat equation; the border stays."""
    inner = u[1:-1, 1:-1]
    around = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
    return inner + 0.1 * (around - 4 * inner)


def sea_water(salinity: Tensor, temperature: Tensor, pressure: Tensor) -> Tensor:
    """Specific volume: a polynomial of 84 terms in the root of salinity, temperature and pressure."""
    s = torch.sqrt(salinity * 0.7 + 0.2)
    total = torch.zeros_like(s)
    for in_t in reversed(_COEFFICIENTS):
        of_t = torch.zeros_like(s)
        for in_p in reversed(in_t):
            of_p = torch.zeros_like(s)
            for c in reversed(in_p):
                of_p = of_p * pressure + c
            of_t = of_t * temperature + of_p
        total = total * s + of_t
    return total


def tridiagonal(lower: Tensor, diagonal: Tensor, upper: Tensor, right: Tensor) -> Tensor:
    """Systems along axis 0, one for each column: elimination downwards, substitution upwards."""
    n = right.shape[0]
    c, d = [upper[0] / (diagonal[0] + 3)], [right[0] / (diagonal[0] + 3)]
    for i in range(1, n):
        pivot = 1 / (diagonal[i] + 3 - lower[i] * c[-1])
        c.append(upper[i] * pivot)
        d.append((right[i] - lower[i] * d[-1]) * pivot)
    x = [d[-1]]
    for i in range(n - 2, -1, -1):
        x.append(d[i] - c[i] * x[-1])
    return torch.stack(x[::-1])


def masked_statistics(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    count = mask.sum(1)
    mean = torch.where(mask, x, 0.0).sum(1) / count
    squares = torch.where(mask, (x - mean[:, None]) ** 2, 0.0).sum(1)
    largest = torch.where(mask, x, -torch.inf).amax(1)
    return mean, torch.sqrt(squares / (count - 1)), largest


def image(pixels: Tensor) -> Tensor:
    """uint8 [h, w, 3] -> uint8 [3, 448, 800]: colours mixed, resized, normalised, back to bytes."""
    r, g, b = (pixels[:, :, k].to(torch.float32) / 255 for k in range(3))
    mixed = torch.stack((0.9 * r + 0.1 * g, 0.2 * r + 0.7 * g + 0.1 * b, 0.05 * g + 0.95 * b))
    small = F.interpolate(mixed[None], size=(448, 800), mode="bilinear", align_corners=False)[0]
    normal = (small - 0.45) / 0.225
    return torch.clamp(normal * 64 + 128, 0, 255).to(torch.uint8)


def product(x: Tensor, y: Tensor) -> Tensor:
    return x @ y


def product_right(x: Tensor, y: Tensor) -> Tensor:
    return x @ y.T


def product_left(x: Tensor, y: Tensor) -> Tensor:
    return x.T @ y


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.linear(x, weight, bias)


def convolution_1(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.relu(F.conv2d(x, weight, bias, 1, weight.shape[-1] // 2))


def convolution_2(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.relu(F.conv2d(x, weight, bias, 2, weight.shape[-1] // 2))


def depthwise_1(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.relu(F.conv2d(x, weight, bias, 1, weight.shape[-1] // 2, groups=x.shape[1]))


def depthwise_2(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.relu(F.conv2d(x, weight, bias, 2, weight.shape[-1] // 2, groups=x.shape[1]))


def total(*tensors: Tensor) -> Tensor:
    result = tensors[0] * 2
    for t in tensors[1:]:
        result = result + t
    return result


FUNCTIONS = {
    f.__name__: f
    for f in (
        chain, softmax, layer_norm, softmax_layer_norm, rms_residual, variance, logsumexp, sum_all, sum_rows, sum_columns, rbf, stencil,
        sea_water, tridiagonal, masked_statistics, image, product, product_right, product_left, linear, convolution_1, convolution_2,
        depthwise_1, depthwise_2, total,
    )
}  # fmt: skip
