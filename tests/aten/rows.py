"""What the tests of single rows share: a call in eager beside the row's value in numpy."""

from __future__ import annotations

from typing import Any

import torch

from tests.tables.lowering_oracle import difference, lowered
from thermit.ir import interp
from thermit.ir.node import Node, toposort

aten = torch.ops.aten
inf, nan = float("inf"), float("nan")


def agrees(op: Any, *args: Any, **kwargs: Any) -> None:
    """The row is not declined and gives what eager gives, bit for bit."""
    got, _, _ = lowered(op, args, kwargs)
    assert got is not NotImplemented, f"{op} declines"
    found = difference(op, args, kwargs, op(*args, **kwargs), ulps=0)
    assert found is None, f"{op}: {found}"


def declines(op: Any, *args: Any, **kwargs: Any) -> bool:
    return lowered(op, args, kwargs)[0] is NotImplemented


def stops(op: Any, *args: Any, **kwargs: Any) -> bool:
    """Whether the row's program stops (an index out of range), so that eager raises its own error."""
    got, inputs, arrays = lowered(op, args, kwargs)
    values: dict[Node, Any] = dict(zip(inputs, arrays, strict=True))
    try:
        for node in toposort([got] if isinstance(got, Node) else list(got)):
            if node not in values:
                values[node] = interp.evaluate(node, [values[a] for a in node.args])
    except interp.OutOfRange:
        return True
    return False


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Distinct numbers, so that a wrong place shows."""
    return torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)
