"""Attention: softmax(q k^T scale + mask) v, as the kernel that eager uses on the CPU defines it.

Written out as two products and what stands between them: where the schedule keeps them together (schedule/chain.py), the scores are never
stored.  A row of which every key is masked is 0 (the softmax of such a row, written by hand, is nan).  Causal means that query i sees the keys up to
i, whatever the lengths.  Half types compute in float32 and round once.  Few queries (decoding) read each key once, also where
heads share keys: of many keys the products stream them.  Left to PyTorch: two to seven queries of half types.
"""

from __future__ import annotations

import math

import torch

from thermit.aten.contraction import is_multiplied, matrix_product
from thermit.aten.reduction import reduced, spread
from thermit.aten.table import Lowered, computed, lower, rounded
from thermit.ir import build as b
from thermit.ir import prims as p
from thermit.ir.node import Node
from thermit.ir.types import FLOAT32, Shape

aten = torch.ops.aten

LEAST_ROWS = 8  # queries; fewer do not fill the lanes of a register
MOST_KEYS = 2048  # of float32: a row of scores that is kept whole
MOST_DEPTH = 1024  # of the first product: the queries of a block are kept


def is_chained(rows: int, keys: int, depth: int, bits: int) -> bool:
    """Whether two products with a softmax between them are one kernel."""
    one = rows == 1 and keys <= MOST_KEYS * 32 // bits
    return (one or rows >= LEAST_ROWS) and keys > 1 and depth <= MOST_DEPTH


@lower(aten._scaled_dot_product_flash_attention_for_cpu.default, floats=True)
def attention(
    query: Node,
    key: Node,
    value: Node,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Node | None = None,
    scale: float | None = None,
) -> Lowered:
    """Output and logsumexp: [batch, heads, queries, size] and [batch, heads, queries]."""
    (batch, heads, rows, depth), keys = query.shape, key.shape[2]
    if dropout_p or (is_causal and attn_mask is not None) or not is_multiplied(query, key, value) or 0 in (query.type.numel, value.type.numel):
        return NotImplemented
    if min(keys, depth) < 2 or depth > MOST_DEPTH or (attn_mask is not None and not attn_mask.dtype.is_float):
        return NotImplemented
    if 1 < rows < LEAST_ROWS and (query.dtype.bits < FLOAT32.bits or (is_causal and keys > rows)):
        return NotImplemented
    if is_causal and scale is not None and not scale > 0:  # eager scales minus infinity: nan
        return NotImplemented
    factor = 1 / math.sqrt(depth) if scale is None else scale
    own = key.shape[1]
    if rows > 1 or is_causal or heads == own or query.dtype.bits < FLOAT32.bits:
        return _written_out(query, key, value, is_causal, attn_mask, factor)
    together = b.reshape(query, (batch, own, heads // own, depth))  # heads that share keys: queries of one head, so that each key is read once
    made = _written_out(together, key, value, False, _mask_folded(attn_mask, (batch, heads, rows, keys), own), factor)
    return tuple(b.reshape(x, (batch, heads, 1, *x.shape[3:])) for x in made)


def _written_out(query: Node, key: Node, value: Node, is_causal: bool, attn_mask: Node | None, scale: float) -> tuple[Node, Node]:
    """Output and logsumexp."""
    (batch, heads, rows, depth), keys = query.shape, key.shape[2]
    kept = is_chained(rows, keys, depth, query.dtype.bits)
    whole = (batch, heads, rows, keys)
    across = b.permute(_per_head(key, heads), (0, 2, 1))
    scores = b.reshape(_product(_flat(query), across, kept), whole)
    scores = b.mul(scores, scale)
    if attn_mask is not None:
        scores = b.add(scores, b.cast(b.broadcast_to(attn_mask, whole), scores.dtype))
    if is_causal:
        seen = b.ge(b.iota(whole, 2), b.iota(whole, 3))
        scores = b.where(seen, scores, b.like(-math.inf, scores))
    most = reduced(p.AMAX, scores, (3,), keepdim=True)
    finite = b.where(b.eq(most, -math.inf), b.like(0, most), most)
    powers = b.exp_falling(b.sub(scores, spread(finite, scores)))
    total = reduced(p.SUM, powers, (3,), keepdim=True)
    inverse = b.where(b.eq(total, 0.0), b.like(0, total), b.div(b.like(1, total), total))
    weights = b.mul(powers, spread(inverse, powers))
    product = _product(b.reshape(weights, (batch * heads, rows, keys)), _per_head(value, heads), kept)
    out = rounded(b.reshape(product, (batch, heads, rows, value.shape[3])), query.dtype)
    return out, b.reshape(b.add(finite, b.log(b.mul(total, 2.0**-64))), (batch, heads, rows))


def _mask_folded(mask: Node | None, shape: Shape, own: int) -> Node | None:
    """The mask of one query of each head (batch, heads, 1, keys), as one of several queries of `own` heads."""
    batch, heads, rows, keys = shape
    if mask is None or mask.type.ndim == 2 or (mask.type.ndim == 4 and mask.shape[1] == 1):
        return mask
    return b.reshape(b.broadcast_to(mask, shape), (batch, own, heads // own * rows, keys))


def _product(left: Node, right: Node, kept: bool) -> Node:
    return b.contract(computed(left), computed(right)) if kept else matrix_product(left, right)


def _flat(x: Node) -> Node:
    batch, heads, rows, size = x.shape
    return b.reshape(x, (batch * heads, rows, size))


def _per_head(x: Node, heads: int) -> Node:
    """Keys or values of each head of the queries: neighbours share one."""
    batch, own, rows, size = x.shape
    shape: Shape = (batch, own, heads // own, rows, size)
    return _flat(b.reshape(b.broadcast_to(b.reshape(x, (batch, own, 1, rows, size)), shape), (batch, heads, rows, size)))
