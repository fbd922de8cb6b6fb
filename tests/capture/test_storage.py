"""Windows and writes against torch.as_strided on real memory."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from thermit.capture.storage import CannotWrite, Cell, Geometry, Pick, is_dense, overlaps_itself, window
from thermit.ir import build as b
from thermit.ir import interp
from thermit.ir.node import toposort
from thermit.ir.types import FLOAT32, INT32, INT64, TensorType

BASES = {
    "line": lambda: torch.arange(24),
    "rows": lambda: torch.arange(24).view(4, 6),
    "transposed": lambda: torch.arange(24).view(6, 4).t(),
    "channels last": lambda: torch.arange(48).view(2, 4, 2, 3).permute(0, 3, 1, 2),
    "cube": lambda: torch.arange(60).view(3, 4, 5),
    "every other column": lambda: torch.arange(48).view(4, 12)[:, ::2],
    "inner columns": lambda: torch.arange(48).view(4, 12)[:, 3:9],
    "with ones": lambda: torch.arange(12).view(1, 3, 1, 4),
    "repeated": lambda: torch.arange(4).view(4, 1).expand(4, 6),
    "scalar": lambda: torch.tensor(3),
}

VIEWS = {
    "all": lambda x: x,
    "flat": lambda x: x.view(-1),
    "transposed": lambda x: x.t(),
    "row": lambda x: x[1],
    "column": lambda x: x[:, 1],
    "rows": lambda x: x[1:3],
    "columns": lambda x: x[:, 1:4],
    "steps": lambda x: x[::2],
    "steps both": lambda x: x[1::2, ::3],
    "columns then flat rows": lambda x: x.view(2, -1)[:, 3:7],
    "split axis": lambda x: x.view(x.shape[0], 2, -1)[:, 1],
    "joined": lambda x: x.flatten(0, 1),
    "diagonal": lambda x: x.diagonal(),
    "diagonal up": lambda x: x.diagonal(1),
    "windows": lambda x: x.unfold(0, 2, 1),
    "windows apart": lambda x: x.unfold(0, 2, 2),
    "expanded": lambda x: x.unsqueeze(0).expand(3, *x.shape),
    "with a one": lambda x: x.unsqueeze(-1),
    "empty": lambda x: x[2:2],
    "moved": lambda x: x.movedim(0, -1),
    "last rows of columns": lambda x: x[-2:, -2:].t(),
    "one element": lambda x: x[1, 2],
    "strided": lambda x: x.as_strided((2, 3), (5, 2), x.storage_offset() + 1),
    "strided oddly": lambda x: x.as_strided((3, 2), (5, 3), x.storage_offset()),
    "overlapping": lambda x: x.as_strided((3, 3), (1, 2), x.storage_offset()),
}


def geometry(x: torch.Tensor) -> Geometry:
    return Geometry(tuple(x.shape), x.stride(), x.storage_offset())


def cases() -> list[tuple[str, str]]:
    out = []
    for (base, make), (view, see) in itertools.product(BASES.items(), VIEWS.items()):
        try:
            x = make()
            if see(x).untyped_storage().data_ptr() != x.untyped_storage().data_ptr():
                continue  # a copy
        except (RuntimeError, IndexError):
            continue
        out.append((base, view))
    return out


def run(node: b.Node, inputs: dict[b.Node, np.ndarray]) -> np.ndarray:
    values = dict(inputs)
    for n in toposort([node]):
        if n not in values:
            values[n] = interp.evaluate(n, [values[a] for a in n.args])
    return values[node]


@pytest.mark.parametrize(("base", "view"), cases())
def test_read_and_write_agree_with_memory(base: str, view: str) -> None:
    x = BASES[base]()
    seen = VIEWS[view](x)
    value = b.graph_input(0, TensorType(tuple(x.shape), INT64))
    cell = Cell(value, geometry(x))
    node = cell.read(geometry(seen), INT64)
    inside = set(range(x.numel())) if x.numel() == 0 else set(x.flatten().tolist())
    if not set(seen.flatten().tolist()) <= inside:
        assert node is None
        return
    if node is None:  # memory with gaps, read across its axes: capture gives up, but only there
        assert not is_dense(geometry(x))
        return
    assert np.array_equal(run(node, {value: x.numpy()}), seen.numpy())
    new = b.graph_input(1, TensorType(tuple(seen.shape), INT64))
    new_value = torch.arange(seen.numel()).view(seen.shape) - 1000
    if overlaps_itself(geometry(seen)) or overlaps_itself(geometry(x)):
        with pytest.raises(CannotWrite):
            cell.write(geometry(seen), INT64, new)
        return
    cell.write(geometry(seen), INT64, new)
    after = run(cell.value, {value: x.numpy().copy(), new: new_value.numpy()})
    seen.copy_(new_value)
    assert np.array_equal(after, x.numpy())


@pytest.mark.parametrize(("base", "view"), cases())
def test_overlap_is_never_missed(base: str, view: str) -> None:
    x = VIEWS[view](BASES[base]())
    addresses = [x.storage_offset() + sum(i * s for i, s in zip(index, x.stride(), strict=True)) for index in np.ndindex(tuple(x.shape))]
    if len(set(addresses)) < len(addresses):
        assert overlaps_itself(geometry(x))
    if is_dense(geometry(x)):
        assert sorted(addresses) == list(range(x.storage_offset(), x.storage_offset() + x.numel()))


def test_common_views_need_no_strided_read() -> None:
    for base, view in cases():
        x = BASES[base]()
        if is_dense(geometry(x)) and view not in ("strided", "strided oddly", "overlapping", "windows", "diagonal", "diagonal up"):
            steps = window(geometry(x), geometry(VIEWS[view](x)))
            assert steps is not None and not any(isinstance(s, Pick) for s in steps), (base, view, steps)


def test_bits_seen_as_another_type() -> None:
    value = b.graph_input(0, TensorType((3,), FLOAT32))
    cell = Cell(value, Geometry((3,), (1,), 0))
    whole = Geometry((3,), (1,), 0)
    node = cell.read(whole, INT32)
    x = np.array([1.0, -0.0, np.nan], np.float32)
    assert node is not None and np.array_equal(run(node, {value: x}), x.view(np.int32))
    cell.write(whole, INT32, b.const(0x3F800000, INT32, (3,)))
    assert np.array_equal(run(cell.value, {value: x}), np.ones(3, np.float32))
    assert cell.read(whole, INT64) is None


def test_chain_of_writes() -> None:
    x = torch.arange(12.0).view(3, 4)
    value = b.graph_input(0, TensorType((3, 4), FLOAT32))
    cell = Cell(value, geometry(x))
    before = x.numpy().copy()
    for see in (lambda t: t[1], lambda t: t[:, 2], lambda t: t.t()[0, 1:], lambda t: t.view(-1)[::5]):
        seen = see(x)
        node = cell.read(geometry(seen), FLOAT32)
        assert node is not None
        cell.write(geometry(seen), FLOAT32, b.add(node, 100.0))
        seen += 100
    assert cell.writes == 4
    assert np.array_equal(run(cell.value, {value: before}), x.numpy())
