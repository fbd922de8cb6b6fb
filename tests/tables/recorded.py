"""Samples for the rows of the table: PyTorch's own, seen as the ATen calls that they make.

Every OpInfo is run forward and backward under a dispatch mode that keeps the first few calls of each overload that has a row.
So the tests of a new row need no samples of their own, unless no OpInfo reaches it.
"""

from __future__ import annotations

import itertools
import threading
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock

import torch
from torch.testing._internal import common_utils
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from thermit.aten.table import TABLE

Call = tuple[tuple[Any, ...], dict[str, Any], Any]  # args, kwargs, what eager gave


def tensors_in(tree: Any) -> list[torch.Tensor]:
    return [t for t in tree_flatten(tree)[0] if isinstance(t, torch.Tensor)]


def copies(tree: Any) -> Any:
    return tree_map(lambda t: t.detach().clone() if isinstance(t, torch.Tensor) else t, tree)


class Recorder(TorchDispatchMode):
    """Keeps the first `limit` calls of each overload of the table and each combination of dtypes."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit
        self.calls: dict[Any, list[Call]] = defaultdict(list)
        self._seen: dict[Any, int] = defaultdict(int)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in TABLE:
            return func(*args, **kwargs)
        key = (func, *(t.dtype for t in tensors_in((args, kwargs))))
        self._seen[key] += 1
        if self._seen[key] > self.limit:
            return func(*args, **kwargs)
        kept = copies((args, kwargs))
        result = func(*args, **kwargs)
        if all(t.layout == torch.strided and t.device.type == "cpu" for t in tensors_in((kept, result))):
            self.calls[func].append((*kept, copies(result)))
        return result


def record(dtypes: Iterable[torch.dtype], limit: int, samples_of_each: int) -> dict[Any, list[Call]]:
    """The calls of the table's overloads that PyTorch's samples make.

    In a thread of its own: OpInfo and autograd look at the whole stack at every sample, which under pytest is deep.
    """
    recorder = Recorder(limit)

    def run() -> None:
        with warnings.catch_warnings(), mock.patch.object(common_utils, "extract_test_fn", lambda: None):
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            for info, dtype in itertools.product(op_db, dtypes):
                if dtype in info.dtypes and not info.name.startswith("jiterator"):
                    _run(info, dtype, recorder, samples_of_each)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return recorder.calls


def _run(info: Any, dtype: torch.dtype, recorder: Recorder, samples_of_each: int) -> None:
    grad = dtype.is_floating_point and info.supports_autograd
    samples: Iterator[Any] = itertools.islice(info.sample_inputs("cpu", dtype, requires_grad=grad), samples_of_each)
    for sample in samples:
        try:
            with recorder:
                result = info(sample.input, *sample.args, **sample.kwargs)
                if grad:
                    _backward(sample.output_process_fn_grad(result), sample)
        except (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError):
            continue  # a sample that eager refuses


def _backward(result: Any, sample: Any) -> None:
    outputs = [t for t in tensors_in(result) if t.requires_grad]
    inputs = [t for t in tensors_in((sample.input, sample.args, sample.kwargs)) if t.requires_grad and t.is_leaf]
    if outputs and inputs:
        torch.autograd.grad(outputs, inputs, [torch.randn_like(t) for t in outputs], allow_unused=True)


def from_schema(op: Any, dtypes: Iterable[torch.dtype]) -> list[Call]:
    """Calls with plain values for what the schema demands, where eager accepts them: for rows that no OpInfo reaches."""
    found: list[Call] = []
    for dtype in dtypes:
        generator = torch.Generator().manual_seed(0)
        values: dict[str, Callable[[], Any]] = {
            "Tensor": lambda: (torch.randn(3, 4, generator=generator) * 3).abs().to(dtype),  # noqa: B023
            "number": lambda: 2,
            "int": lambda: 1,
            "float": lambda: 0.5,
            "bool": lambda: False,
            "List[int]": lambda: [3, 4],
            "int | None": lambda: 0,
        }
        try:
            args = tuple(values[str(a.type)]() for a in op._schema.arguments if not a.kwarg_only and not a.has_default_value())
            found.append((args, {}, op(*args)))
        except (KeyError, RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
            continue
    return found


# ---------------------------------------------------------------------------------------------- special values
def special_values(dtype: torch.dtype) -> torch.Tensor:
    """Zeros, infinities, nan, denormals, extremes and ordinary values of a type."""
    if dtype is torch.bool:
        return torch.tensor([False, True])
    if not dtype.is_floating_point and not dtype.is_complex:
        limits = torch.iinfo(dtype)
        values = {0, 1, 2, 3, 5, 7, limits.min, limits.min + 1, limits.max, limits.max - 1, limits.max // 2, 63, 64, 100}
        return torch.tensor(sorted(values | ({-1, -2, -3, -7, -64} if limits.min else set())), dtype=dtype)
    if dtype.is_complex:
        return torch.tensor([0.0, 1.0, -2.5], dtype=dtype)
    limits = torch.finfo(dtype)
    small = [0.0, limits.smallest_normal, limits.smallest_normal / 4, limits.eps, 1e-3, 0.1, 0.3, 0.5, 0.75]
    large = [1.0, 1.0 + limits.eps, 1.5, 2.0, 2.5, 3.0, 6.0, 19.5, 20.5, 88.0, 100.5, limits.max / 2, limits.max, float("inf")]
    sizes = small + large
    return torch.tensor([s * v for v in sizes for s in (1, -1)] + [float("nan")], dtype=dtype)


def least_of(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).min if dtype.is_floating_point else 0 if dtype is torch.bool else torch.iinfo(dtype).min


def with_special_values(args: Any, kwargs: Any, divides: bool = False, most: int = 1500) -> tuple[Any, Any]:
    """The same call with every tensor replaced by special values of its type, in all combinations (or `most` of them, drawn)."""
    tensors = tensors_in((args, kwargs))
    columns = [special_values(t.dtype) for t in tensors]
    total = 1
    for column in columns:
        total *= len(column)
    if total <= most:
        grid = torch.cartesian_prod(*(torch.arange(len(c)) for c in columns)).reshape(-1, len(columns))
    else:
        generator = torch.Generator().manual_seed(0)
        grid = torch.stack([torch.randint(len(c), (most,), generator=generator) for c in columns], 1)
    taken = [column[grid[:, k]] for k, column in enumerate(columns)]
    if divides and len(taken) > 1 and not taken[-1].is_floating_point() and taken[-1].dtype is not torch.bool:  # what eager raises for, or crashes at
        taken[-1][taken[-1] == 0] = 3
        taken[0] = torch.where(taken[0] == least_of(taken[0].dtype), 77, taken[0])
    values = iter(taken)
    return tree_map(lambda t: next(values) if isinstance(t, torch.Tensor) else t, (args, kwargs))
