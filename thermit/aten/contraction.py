"""Matrix products: mm, bmm, mv, dot, and those that add to something.  `linear`, `matmul`, `einsum`, `tensordot` arrive as these.

float32 and float64 only: integers, half types and complex are left to PyTorch.  A product whose result has one row or one column reads
each element of its larger side once, so it is bound by memory: it becomes a sum of elementwise products, which streams that side
in the order in which it lies.  What is added, scaled or applied afterwards is elementwise, and fused behind the product.

addbmm has no row: eager rounds after each batch, and where batches cancel even the true value is too far from that.
"""

from __future__ import annotations

import torch

from thermit.aten.table import Lowered, Number, lower
from thermit.ir import build as b
from thermit.ir import prims as p
from thermit.ir.node import Node
from thermit.ir.types import FLOAT32, FLOAT64

aten = torch.ops.aten


def is_multiplied(*nodes: Node) -> bool:
    """Whether there is code for products of these: one type, float32 or float64."""
    return nodes[0].dtype in (FLOAT32, FLOAT64) and all(n.dtype is nodes[0].dtype for n in nodes)


def matrix_product(left: Node, right: Node) -> Node:
    """left: [*batch, M, K], right: [*batch, K, N] -> [*batch, M, N]."""
    batch, rows, depth, columns = left.shape[:-2], left.shape[-2], left.shape[-1], right.shape[-1]
    if depth < 2 or (rows != 1 and columns != 1):
        return b.contract(left, right)
    if columns == 1:
        total = _matrix_vector(left, b.reshape(right, (*batch, depth)))
    else:
        total = _matrix_vector(_turned(right), b.reshape(left, (*batch, depth)))
    return b.reshape(total, (*batch, rows, columns))


def _turned(x: Node) -> Node:
    """The last two axes exchanged."""
    last = x.type.ndim - 1
    return b.permute(x, (*range(last - 1), last, last - 1))


def _matrix_vector(matrix: Node, vector: Node) -> Node:
    """matrix: [*batch, M, K], vector: [*batch, K] -> [*batch, M].  The sum runs along the last axis of what the matrix is a view of, or down."""
    last = matrix.type.ndim - 1
    if matrix.prim is p.PERMUTE and matrix.attrs.order[-1] != last:
        matrix = _turned(matrix)
        return b.reduce(p.SUM, b.mul(matrix, b.expand(b.reshape(vector, (*vector.shape, 1)), matrix.shape)), (last - 1,))
    along = b.reshape(vector, (*vector.shape[:-1], 1, vector.shape[-1]))
    return b.reduce(p.SUM, b.mul(matrix, b.expand(along, matrix.shape)), (last,))


def added(self: Node, product: Node, beta: Number, alpha: Number) -> Lowered:
    """beta * self + alpha * product; with beta 0, self is not read (it may be nan)."""
    if alpha == 0:  # eager's libraries then do not read the sides, or do, by the size
        return NotImplemented
    scaled = product if alpha == 1 else b.mul(product, alpha)
    if beta == 0:
        return scaled
    start = b.broadcast_to(self, product.shape)
    return b.add(scaled, start if beta == 1 else b.mul(start, beta))


@lower(aten.mm.default, aten.bmm.default)
def mm(self: Node, mat2: Node) -> Lowered:
    return matrix_product(self, mat2) if is_multiplied(self, mat2) else NotImplemented


@lower(aten.addmm.default)
def addmm(self: Node, mat1: Node, mat2: Node, *, beta: Number = 1, alpha: Number = 1) -> Lowered:
    return added(self, matrix_product(mat1, mat2), beta, alpha) if is_multiplied(self, mat1, mat2) else NotImplemented


@lower(aten.baddbmm.default)
def baddbmm(self: Node, batch1: Node, batch2: Node, *, beta: Number = 1, alpha: Number = 1) -> Lowered:
    return added(self, matrix_product(batch1, batch2), beta, alpha) if is_multiplied(self, batch1, batch2) else NotImplemented


def _column(x: Node) -> Node:
    return b.reshape(x, (*x.shape, 1))


@lower(aten.mv.default)
def mv(self: Node, vec: Node) -> Lowered:
    if not is_multiplied(self, vec):
        return NotImplemented
    return b.reshape(matrix_product(self, _column(vec)), self.shape[:1])


@lower(aten.addmv.default)
def addmv(self: Node, mat: Node, vec: Node, *, beta: Number = 1, alpha: Number = 1) -> Lowered:
    product = mv(mat, vec) if is_multiplied(self, mat, vec) else NotImplemented
    return NotImplemented if product is NotImplemented else added(self, product, beta, alpha)


@lower(aten.dot.default, aten.vdot.default)
def dot(self: Node, tensor: Node) -> Lowered:
    if not is_multiplied(self, tensor):
        return NotImplemented
    return b.reduce(p.SUM, b.mul(self, tensor), (0,))
