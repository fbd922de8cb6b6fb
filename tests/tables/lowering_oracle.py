"""Evaluates one row of the table in numpy and compares it with what eager gave for the same call.

A row whose graph holds only exact primitives (arithmetic, comparison, selection, casts, views) must agree bit for bit; one
with mathematical functions, sums or products within a few units of rounding, with nan, inf and zero in the same places.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map

from thermit.aten.table import DTYPE_OF, TABLE, TORCH_OF
from thermit.ir import build as b
from thermit.ir import interp
from thermit.ir.node import Graph, Node, Output, toposort
from thermit.ir.types import BFLOAT16, TensorType, contiguous_strides
from thermit.ir.verify import verify

INEXACT = {"sqrt", "exp", "exp_falling", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan",
           "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "sigmoid", "pow", "atan2", "hypot", "sum", "prod", "cumsum",
           "cumprod", "contract"}  # fmt: skip
UNDEFINED = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}  # values mean nothing


LAYOUT_DEPENDENT = {"linspace", "arange", "huber_loss", "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d",
                    "embedding_dense_backward", "unfold_backward", "index_reduce", "native_layer_norm_backward", "convolution"}  # fmt: skip
# eager itself rounds differently in its vectors and at their ends, or sums in another order (each channel of a convolution by itself)


def to_array(t: torch.Tensor) -> np.ndarray:
    t = t.detach()
    return t.float().numpy().copy() if t.dtype is torch.bfloat16 else t.numpy().copy()


def to_tensor(a: np.ndarray, node: Node) -> torch.Tensor:
    t = torch.from_numpy(np.ascontiguousarray(a).copy()).reshape(node.shape)
    return t.to(torch.bfloat16) if node.dtype is BFLOAT16 else t


def lowered(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, list[Node], list[np.ndarray]]:
    """What the row gives for real tensors: nodes (or NotImplemented), the inputs and their arrays."""
    inputs: list[Node] = []
    arrays: list[np.ndarray] = []
    known: dict[int, Node] = {}

    def one(t: Any) -> Any:
        if not isinstance(t, torch.Tensor):
            return t
        if id(t) not in known:
            node = b.graph_input(len(inputs), TensorType(tuple(t.shape), DTYPE_OF[t.dtype]))
            inputs.append(node)
            arrays.append(to_array(t) if not t.is_complex() else np.zeros(0))
            known[id(t)] = node
        return known[id(t)]

    args, kwargs = tree_map(one, (args, kwargs))
    return TABLE[op](*args, **kwargs), inputs, arrays


def evaluate(nodes: list[Node], inputs: list[Node], arrays: list[np.ndarray]) -> list[torch.Tensor]:
    graph = Graph(tuple(inputs), tuple(contiguous_strides(n.shape) for n in inputs), tuple(Output(n, contiguous_strides(n.shape)) for n in nodes))
    verify(graph)
    values, _ = interp.run(graph, arrays)
    return [to_tensor(v, n) for v, n in zip(values, nodes, strict=True)]


def is_exact(nodes: list[Node]) -> bool:
    return not any(n.prim.name in INEXACT for n in toposort(nodes))


def bits_equal(x: torch.Tensor, y: torch.Tensor, zero_sign: bool = True) -> torch.Tensor:
    if not x.is_floating_point():
        return x == y
    same = (x == y) | (x.isnan() & y.isnan())
    return same & ((x != 0) | (torch.signbit(x) == torch.signbit(y))) if zero_sign else same


def close(x: torch.Tensor, y: torch.Tensor, ulps: float, scale: float = 0.0) -> torch.Tensor:
    """Within so many units of rounding of each element, or of the size of what was added up (`scale`)."""
    if not x.is_floating_point():
        return x == y
    eps = torch.finfo(x.dtype).eps
    wide_x, wide_y = x.double(), y.double()
    near = (wide_x - wide_y).abs() <= ulps * eps * wide_y.abs().clamp(min=scale) + torch.finfo(x.dtype).smallest_normal * ulps
    return near | (wide_x == wide_y) | (x.isnan() & y.isnan())


def scale_of(nodes: list[Node], tensors: list[torch.Tensor], adds: bool) -> float:
    """The largest finite number around, where the graph adds up: what cancels there leaves errors of its size."""
    if not adds and not any(n.prim.name in ("sum", "cumsum", "prod", "cumprod", "scatter", "contract") for n in toposort(nodes)):
        return 0.0
    sizes = [t.double().abs() for t in tensors if t.is_floating_point()]
    return max((float(torch.where(s.isfinite(), s, 0.0).max()) for s in sizes if s.numel()), default=0.0)


def in_float64(op: Any, args: Any, kwargs: Any, index: int) -> torch.Tensor | None:
    """The result of the call with every floating-point tensor in float64: nearly the true value."""
    wide = tree_map(lambda t: t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t, (args, kwargs))
    wide = tree_map(lambda t: torch.float64 if isinstance(t, torch.dtype) and t.is_floating_point else t, wide)
    try:
        result = op(*wide[0], **wide[1])
    except RuntimeError:
        return None
    return result[index] if isinstance(result, (tuple, list)) else result


def as_near(x: torch.Tensor, eager: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """At most twice as far from the true value as eager's worst element of this tensor, relative to the values' size."""
    distance, theirs = (x.double() - truth).abs(), (eager.double() - truth).abs()
    worst = torch.nan_to_num(theirs / truth.abs(), 0.0, 0.0, 0.0).max() if theirs.numel() else torch.tensor(0.0)
    return (distance <= 2 * theirs) | (distance <= worst * truth.abs()) | (x == eager) | (x.isnan() & eager.isnan())


def difference(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], want: Any, ulps: float = 16, alternatives: tuple[Any, ...] = ()) -> str | None:
    """None if the row declines or agrees with `want` (what eager gave); otherwise what differs.

    `alternatives`: other results that eager itself gives for the same values in another memory layout.
    """
    got, inputs, arrays = lowered(op, args, kwargs)
    if got is NotImplemented:
        return None
    nodes = list(got) if isinstance(got, (tuple, list)) else [got]
    wants = list(want) if isinstance(want, (tuple, list)) else [want]
    if len(nodes) != len(wants):
        return f"{len(nodes)} results, eager {len(wants)}"
    for node, w in zip(nodes, wants, strict=True):
        if node is not None and (TORCH_OF[node.dtype], node.shape) != (w.dtype, tuple(w.shape)):
            return f"{node.type}, eager {w.dtype}{list(w.shape)}"
    if op.overloadpacket.__name__ in UNDEFINED:
        return None
    kept = [(i, n) for i, n in enumerate(nodes) if n is not None]
    halves = any(w is not None and w.dtype in (torch.bfloat16, torch.float16) for w in wants)
    exact = not (halves and "alpha" in kwargs) and op.overloadpacket.__name__ not in LAYOUT_DEPENDENT and is_exact([n for _, n in kept])
    zero_sign = not any(n.prim.name in ("min", "max", "amin", "amax") for n in toposort([n for _, n in kept]))  # which zero wins is open
    scale = scale_of(
        [n for _, n in kept],
        [*_tensors((args, kwargs)), *(w for w in wants if w is not None and w.is_floating_point())],
        op.overloadpacket.__name__ in LAYOUT_DEPENDENT,
    )
    try:
        values = evaluate([n for _, n in kept], inputs, arrays)
    except interp.OutOfRange as stop:
        return f"stops: {stop}"
    for (i, _), value in zip(kept, values, strict=True):
        choices = [wants[i], *((a[i] if isinstance(a, (tuple, list)) else a) for a in alternatives)]
        allowed = ulps * 64 if value.dtype is torch.float64 else ulps  # no wider type tells who is nearer
        same = [bits_equal(value, c, zero_sign) if exact else close(value, c, allowed, scale) for c in choices]
        if not exact and not bool(same[0].all()) and (truth := in_float64(op, args, kwargs, i)) is not None:
            same.append(as_near(value, wants[i], truth))
        good = torch.stack(same).any(0) if same else None
        if good is not None and not bool(good.all()):
            at = tuple(int(k) for k in (~good).nonzero()[0])
            seen = [tuple(float(t[at]) if t.ndim == len(at) and t.shape == value.shape else "" for t in _tensors(args))]
            share = int((~good).sum())
            how = f"{share} of {good.numel()}, {'exact' if exact else 'close'}"
            return f"result {i}{list(at)}: {value[at].item()!r}, eager {wants[i][at].item()!r} for {seen} ({how})"
    return None


def _tensors(tree: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    tree_map(lambda t: found.append(t) if isinstance(t, torch.Tensor) else None, tree)
    return found
