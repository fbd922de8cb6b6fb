"""Calls in many layouts: operands transposed, channels last, with steps, repeated, overlapping; axes of size one and of none."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_map

from tests.tables.recorded import tensors_in


def _dense(sizes: tuple[int, ...], order: Any, step: int = 1) -> list[int]:
    strides = [0] * len(sizes)
    for axis in order:
        strides[axis] = step
        step *= max(sizes[axis], 1)
    return strides


def laid(t: torch.Tensor, strides: Any) -> torch.Tensor:
    """The values of t in memory of these strides."""
    last = sum((n - 1) * s for n, s in zip(t.shape, strides, strict=True)) if t.numel() else 0
    made = torch.zeros(last + 1, dtype=t.dtype).as_strided(t.shape, strides)
    for index in torch.cartesian_prod(*(torch.arange(n) for n in t.shape)).reshape(-1, t.dim()).tolist() if 0 < t.numel() < 4000 else ():
        made[tuple(index)] = t[tuple(index)]
    return made


def layouts(t: torch.Tensor) -> dict[str, torch.Tensor]:
    d, s = t.dim(), tuple(t.shape)
    found = {"plain": t.contiguous()}
    if d == 0:
        return found
    back = list(reversed(range(d)))
    strides = {"reversed": _dense(s, range(d)), "steps": _dense(s, back, 2), "overlapping": [1] * d}
    if d > 1:
        strides["matrices transposed"] = _dense(s, [d - 2, d - 1, *back[2:]])
        strides["steps of rows"] = _dense((s[0], 2 * s[1], *s[2:]), back)
    if d in (4, 5):
        strides["channels last"] = _dense(s, [1, *reversed(range(2, d)), 0])
    for name in list(strides) if 1 in s else ():
        for step in (0, 1, 77):
            strides[f"{name}, ones {step}"] = [step if n == 1 else k for n, k in zip(s, strides[name], strict=True)]
    found |= {name: laid(t, each) for name, each in strides.items()}
    found |= {f"repeated {k}": t.contiguous().narrow(k, 0, 1).expand(s) for k in range(d) if s[k] > 1}
    return found


def variants(args: Any, kwargs: Any, cuts: bool, mixed: int = 4) -> Iterator[tuple[str, Any, Any]]:
    """The call in other layouts, and with `cuts` cut to one element or none along each axis of its first tensor."""
    tensors = [t.contiguous() for t in tensors_in((args, kwargs))]
    first, choice = tensors[0], random.Random(0)

    def cut(axis: int, size: int) -> list[torch.Tensor]:
        return [t.narrow(axis, 0, size).contiguous() if t.shape == first.shape else t for t in tensors]

    shapes = {"": tensors} | {f"{size} of axis {k}, ": cut(k, size) for k in range(first.dim()) for size in (0, 1) if cuts and first.shape[k] > size}
    for shape, these in shapes.items():
        each = [layouts(t) for t in these]
        picks = [[*("plain",) * i, name, *("plain",) * (len(each) - i - 1)] for i, lays in enumerate(each) for name in lays]
        picks += [[choice.choice(list(lays)) for lays in each] for _ in range(mixed if len(each) > 1 else 0)]
        for names in picks:
            chosen = iter([lays[name] for lays, name in zip(each, names, strict=True)])
            yield (shape + "; ".join(names), *tree_map(lambda t, c=chosen: next(c) if isinstance(t, torch.Tensor) else t, (args, kwargs)))
