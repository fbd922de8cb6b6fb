"""ATen calls of a plan, made natively: arguments collected, results checked and put in their buffers.

A call goes through PyTorch's dispatcher (`OpOverload._op`, a builtin function).  What it returns is checked against what the kernels were
compiled for, and copied where it lies differently.  An exception (not an interrupt) stops the program, so that eager raises it; the random
generators are put back before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from thermit.ir.prims import Slot
from thermit.runtime.native.aten_calls import TAGS
from thermit.runtime.native.steps import KINDS
from thermit.runtime.results import fitted, without_autocast
from thermit.runtime.tables import Tables
from thermit.runtime.torch_abi import SCALAR_TYPES
from thermit.schedule.plan import Plan, RunCall


def call_words(tables: Tables, plan: Plan, step: RunCall) -> list[int]:
    """The words of a call (C_*)."""
    entries: list[int] = []
    for value in (*step.args, *(v for _, v in step.kwargs)):
        entries += _argument(tables, value, step.buffers)
    names = tuple(name for name, _ in step.kwargs)
    expected: list[int] = []
    for buffer in step.results:
        if buffer < 0:
            expected += [-1, 0, 0]
            continue
        b = plan.buffers[buffer]
        kind = tables.add([SCALAR_TYPES[getattr(torch, b.dtype.name)], len(b.sizes), *b.sizes, *b.strides])
        expected += [buffer, kind, tables.object(fitted(b))]
    return [
        KINDS.index("CALL"), tables.object(without_autocast(step.op)), len(entries) // 2, tables.add(entries), len(step.args),
        tables.object(names) if names else 0, len(step.results), tables.add(expected),
    ]  # fmt: skip


def _argument(tables: Tables, value: Any, buffers: Sequence[int]) -> list[int]:
    """Tag and value of an argument; those of a list that holds tensors follow it."""
    if isinstance(value, Slot):
        return [TAGS.index("BUFFER"), buffers[value.index]]
    if isinstance(value, (list, tuple)) and any(isinstance(v, Slot) for v in value):
        return [TAGS.index("LIST"), len(value), *(word for v in value for word in _argument(tables, v, buffers))]
    return [TAGS.index("CONSTANT"), tables.object(value)]


def is_flat(step: RunCall) -> bool:
    """Whether the call has a native form: an overload that returns tensors or one list of them, no lists in lists."""
    if not isinstance(step.op, torch._ops.OpOverload):
        return False
    types = [str(r.type) for r in step.op._schema.returns]
    nested = any("List" in t or "[]" in t for t in types) and len(types) > 1
    deep = any(isinstance(w, (list, tuple)) for v in (*step.args, *dict(step.kwargs).values()) if isinstance(v, (list, tuple)) for w in v)
    return not nested and not deep
