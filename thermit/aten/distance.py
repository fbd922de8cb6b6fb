"""Distances between the rows of two matrices.

Written as a map over [rows of x, rows of y, coordinates] and a reduction, so that neither the differences nor, where a
reduction follows, the distances themselves are ever stored.
"""

from __future__ import annotations

import math

import torch

from thermit.aten import samples
from thermit.aten.reduction import norm_of
from thermit.aten.table import Lowered, broadcast_shape, lower
from thermit.ir import build as b
from thermit.ir.node import Node

aten = torch.ops.aten
ROWS_FOR_PRODUCT = 25  # from here on eager takes a matrix product for Euclidean distances, unless told otherwise
FEW_COORDINATES = 32  # so few that computing differences costs no more than the product: and it does not cancel


@lower(aten._cdist_forward.default, floats=True, samples=samples.distances)
def cdist(x1: Node, x2: Node, p: float, compute_mode: int | None) -> Lowered:
    """x1: [..., n, k], x2: [..., m, k] -> [..., n, m], the p-norm of each difference.  Many coordinates: declined, a product is faster."""
    if x1.dtype is not x2.dtype or x1.dtype.is_half:
        return NotImplemented
    rows, others, coordinates = x1.shape[-2], x2.shape[-2], x1.shape[-1]
    by_product = p == 2 and (compute_mode == 1 or (compute_mode != 2 and max(rows, others) > ROWS_FOR_PRODUCT))
    if by_product and coordinates > FEW_COORDINATES:
        return NotImplemented
    batch = broadcast_shape(x1.shape[:-2], x2.shape[:-2])
    if coordinates == 0 or 0 in batch or rows == 0 or others == 0:
        return b.const(0, x1.dtype, (*batch, rows, others))
    shape = (*batch, rows, others, coordinates)
    left = b.broadcast_to(b.reshape(x1, (*x1.shape[:-1], 1, coordinates)), shape)
    right = b.broadcast_to(b.reshape(x2, (*x2.shape[:-2], 1, others, coordinates)), shape)
    return norm_of(b.sub(left, right), p if not math.isinf(p) else math.inf, (len(shape) - 1,), keepdim=False)
