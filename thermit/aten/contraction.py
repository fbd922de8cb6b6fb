"""Matrix products: mm, bmm, mv, dot, and those that add to something.  `linear`, `matmul`, `einsum`, `tensordot` arrive as these.

Half types are multiplied and summed in float32 and rounded once, at the end; integers and complex are left to PyTorch.  A product whose
result has one row or one column reads each element of its larger side once, so it is bound by memory: it becomes a sum of elementwise
products, which streams that side in the order in which it lies; where that side is large and lies along the sum, it stays a product, which reads it
at several places at once.  What is added, scaled or applied afterwards is elementwise, and
fused behind the product.

addbmm has no row: eager rounds after each batch, and where batches cancel even the true value is too far from that.
"""

from __future__ import annotations

import torch

from thermit.aten.table import Lowered, Number, computed, fits, lower, rounded
from thermit.ir import build as b
from thermit.ir import prims as p
from thermit.ir.node import Node

aten = torch.ops.aten
LARGE = 1 << 18  # elements of a matrix that is read at several places at once, in a kernel of its own; sums share theirs with what is made of them


def is_multiplied(*nodes: Node) -> bool:
    """Whether there is code for products of these: one type, of floating point."""
    return nodes[0].dtype.is_float and all(n.dtype is nodes[0].dtype for n in nodes)


def matrix_product(left: Node, right: Node) -> Node:
    """left: [*batch, M, K], right: [*batch, K, N] -> [*batch, M, N] in the compute type."""
    batch, rows, depth, columns = left.shape[:-2], left.shape[-2], left.shape[-1], right.shape[-1]
    if depth < 2 or (rows != 1 and columns != 1):
        return b.contract(computed(left), computed(right))
    if columns == 1:
        if _lies_along(left) and rows * depth >= LARGE:
            along = b.reshape(right, (*batch, 1, depth))
            return b.reshape(b.contract(computed(along), computed(_turned(left))), (*batch, rows, columns))
        total = _matrix_vector(left, b.reshape(right, (*batch, depth)))
    elif _lies_along(_turned(right)) and columns * depth >= LARGE:
        return b.contract(computed(left), computed(right))
    else:
        total = _matrix_vector(_turned(right), b.reshape(left, (*batch, depth)))
    return b.reshape(total, (*batch, rows, columns))


def _lies_along(matrix: Node) -> bool:
    """Whether the neighbours along the last axis are those of what the matrix is a view of."""
    return matrix.prim is not p.PERMUTE or matrix.attrs.order[-1] == matrix.type.ndim - 1


def _turned(x: Node) -> Node:
    """The last two axes exchanged."""
    last = x.type.ndim - 1
    return b.permute(x, (*range(last - 1), last, last - 1))


def _matrix_vector(matrix: Node, vector: Node) -> Node:
    """matrix: [*batch, M, K], vector: [*batch, K] -> [*batch, M].  The sum runs along the last axis of what the matrix is a view of, or down."""
    last = matrix.type.ndim - 1
    along = b.reshape(vector, (*vector.shape[:-1], 1, vector.shape[-1]))
    if matrix.prim is p.PERMUTE and matrix.attrs.order[-1] != last:
        matrix, along = _turned(matrix), _turned(along)
        last -= 1
    return b.reduce(p.SUM, b.mul(computed(matrix), computed(b.expand(along, matrix.shape))), (last,))


def added(self: Node, product: Node, beta: Number, alpha: Number) -> Lowered:
    """beta * self + alpha * product, rounded once to the type of self; with beta 0, self is not read (it may be nan)."""
    if alpha == 0 or not (fits(alpha, self.dtype) and fits(beta, self.dtype)):
        return NotImplemented  # with 0, eager's libraries do not read the sides, or do, by the size
    total = product if alpha == 1 else b.mul(product, alpha)
    if beta != 0:
        start = computed(b.broadcast_to(self, product.shape))
        total = b.add(total, start if beta == 1 else b.mul(start, beta))
    return rounded(total, self.dtype)


@lower(aten.mm.default, aten.bmm.default)
def mm(self: Node, mat2: Node) -> Lowered:
    return rounded(matrix_product(self, mat2), self.dtype) if is_multiplied(self, mat2) else NotImplemented


@lower(aten.addmm.default)
def addmm(self: Node, mat1: Node, mat2: Node, *, beta: Number = 1, alpha: Number = 1) -> Lowered:
    return added(self, matrix_product(mat1, mat2), beta, alpha) if is_multiplied(self, mat1, mat2) else NotImplemented


@lower(aten.baddbmm.default)
def baddbmm(self: Node, batch1: Node, batch2: Node, *, beta: Number = 1, alpha: Number = 1) -> Lowered:
    return added(self, matrix_product(batch1, batch2), beta, alpha) if is_multiplied(self, batch1, batch2) else NotImplemented


def _times_vector(matrix: Node, vector: Node) -> Node:
    return b.reshape(matrix_product(matrix, b.reshape(vector, (*vector.shape, 1))), matrix.shape[:1])


@lower(aten.mv.default)
def mv(self: Node, vec: Node) -> Lowered:
    return rounded(_times_vector(self, vec), self.dtype) if is_multiplied(self, vec) else NotImplemented


@lower(aten.addmv.default)
def addmv(self: Node, mat: Node, vec: Node, *, beta: Number = 1, alpha: Number = 1) -> Lowered:
    return added(self, _times_vector(mat, vec), beta, alpha) if is_multiplied(self, mat, vec) else NotImplemented


@lower(aten.dot.default, aten.vdot.default)
def dot(self: Node, tensor: Node) -> Lowered:
    if not is_multiplied(self, tensor):
        return NotImplemented
    return rounded(b.reduce(p.SUM, b.mul(computed(self), computed(tensor)), (0,)), self.dtype)
