"""PyTorch's vocabulary in primitives; @lower is the only registration.

Importing anything of this package registers every row.
"""

from thermit.aten import (
    activation,
    attention,
    blending,
    contraction,
    convolution,
    creation,
    distance,
    indexing,
    interpolation,
    logic,
    loss,
    moving,
    nn,
    padding,
    pointwise,
    pooling,
    reduction,
    view,
)

__all__ = [
    "activation",
    "attention",
    "blending",
    "contraction",
    "convolution",
    "creation",
    "distance",
    "indexing",
    "interpolation",
    "logic",
    "loss",
    "moving",
    "nn",
    "padding",
    "pointwise",
    "pooling",
    "reduction",
    "view",
]
