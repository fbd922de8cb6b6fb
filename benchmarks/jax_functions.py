"""The functions of cases.py in JAX's spelling."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from benchmarks.cases import sea_water_coefficients

_COEFFICIENTS = sea_water_coefficients()


def chain(x: Array, y: Array) -> Array:
    return jax.nn.gelu(x * 2 + jnp.sin(y), approximate=False) * jax.nn.sigmoid(y) + jnp.sqrt(x * x + 1)


def softmax(x: Array) -> Array:
    return jax.nn.softmax(x, -1)


def layer_norm(x: Array, weight: Array, bias: Array) -> Array:
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * weight + bias


def softmax_layer_norm(x: Array, weight: Array, bias: Array) -> Array:
    return layer_norm(softmax(x), weight, bias)


def rms_residual(x: Array, residual: Array, weight: Array) -> tuple[Array, Array]:
    total = x + residual
    return total * jax.lax.rsqrt((total**2).mean(-1, keepdims=True) + 1e-6) * weight, total


def variance(x: Array) -> Array:
    return x.var(-1, ddof=1)


def logsumexp(x: Array) -> Array:
    return jax.nn.logsumexp(x, -1)


def sum_all(x: Array) -> Array:
    return x.sum()


def sum_rows(x: Array) -> Array:
    return x.sum(1)


def sum_columns(x: Array) -> Array:
    return x.sum(0)


def rbf(x: Array, y: Array) -> Array:
    distance = ((x[:, None, :] - y[None, :, :]) ** 2).sum(-1)
    return jnp.exp(-0.5 * distance).sum(1)


def stencil(u: Array) -> Array:
    inner = u[1:-1, 1:-1]
    around = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
    return inner + 0.1 * (around - 4 * inner)


def sea_water(salinity: Array, temperature: Array, pressure: Array) -> Array:
    s = jnp.sqrt(salinity * 0.7 + 0.2)
    total = jnp.zeros_like(s)
    for in_t in reversed(_COEFFICIENTS):
        of_t = jnp.zeros_like(s)
        for in_p in reversed(in_t):
            of_p = jnp.zeros_like(s)
            for c in reversed(in_p):
                of_p = of_p * pressure + c
            of_t = of_t * temperature + of_p
        total = total * s + of_t
    return total


def tridiagonal(lower: Array, diagonal: Array, upper: Array, right: Array) -> Array:
    n = right.shape[0]
    c, d = [upper[0] / (diagonal[0] + 3)], [right[0] / (diagonal[0] + 3)]
    for i in range(1, n):
        pivot = 1 / (diagonal[i] + 3 - lower[i] * c[-1])
        c.append(upper[i] * pivot)
        d.append((right[i] - lower[i] * d[-1]) * pivot)
    x = [d[-1]]
    for i in range(n - 2, -1, -1):
        x.append(d[i] - c[i] * x[-1])
    return jnp.stack(x[::-1])


def masked_statistics(x: Array, mask: Array) -> tuple[Array, Array, Array]:
    count = mask.sum(1)
    mean = jnp.where(mask, x, 0.0).sum(1) / count
    squares = jnp.where(mask, (x - mean[:, None]) ** 2, 0.0).sum(1)
    largest = jnp.where(mask, x, -jnp.inf).max(1)
    return mean, jnp.sqrt(squares / (count - 1)), largest


def image(pixels: Array) -> Array:
    r, g, b = (pixels[:, :, k].astype(jnp.float32) / 255 for k in range(3))
    mixed = jnp.stack((0.9 * r + 0.1 * g, 0.2 * r + 0.7 * g + 0.1 * b, 0.05 * g + 0.95 * b))
    small = jax.image.resize(mixed, (3, 448, 800), "bilinear", antialias=False)
    normal = (small - 0.45) / 0.225
    return jnp.clip(normal * 64 + 128, 0, 255).astype(jnp.uint8)


def product(x: Array, y: Array) -> Array:
    return x @ y


def product_right(x: Array, y: Array) -> Array:
    return x @ y.T


def product_left(x: Array, y: Array) -> Array:
    return x.T @ y


def linear(x: Array, weight: Array, bias: Array) -> Array:
    return x @ weight.T + bias


def attention(q: Array, k: Array, v: Array) -> Array:
    return jax.nn.dot_product_attention(q, k, v).swapaxes(1, 2)


def attention_causal(q: Array, k: Array, v: Array) -> Array:
    return jax.nn.dot_product_attention(q, k, v, is_causal=True).swapaxes(1, 2)


def total(*tensors: Array) -> Array:
    result = tensors[0] * 2
    for t in tensors[1:]:
        result = result + t
    return result


FUNCTIONS = {
    f.__name__: f
    for f in (
        chain, softmax, layer_norm, softmax_layer_norm, rms_residual, variance, logsumexp, sum_all, sum_rows, sum_columns, rbf, stencil,
        sea_water, tridiagonal, masked_statistics, image, product, product_right, product_left, linear, attention, attention_causal, total,
    )
}  # fmt: skip
