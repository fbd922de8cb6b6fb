"""uint16, uint32, uint64: eager has few kernels for them; where it refuses, so do we, with its words."""

from __future__ import annotations

import pytest
import torch

import thermit

OPERATIONS = {
    "flip": lambda x: x.flip(0), "max": lambda x: x.max(), "max of axis": lambda x: x.max(0), "amax": lambda x: x.amax(0),
    "argmax": lambda x: x.argmax(), "argmin": lambda x: x.argmin(0), "power": lambda x: 2**x, "masked_fill": lambda x: x.masked_fill(x > 1, 3),
    "tril": lambda x: x.tril(), "gather": lambda x: x.gather(0, torch.zeros(1, 4, dtype=torch.int64)), "take": lambda x: x.take(torch.tensor([1])),
    "scatter": lambda x: x.scatter(0, torch.zeros(1, 4, dtype=torch.int64), x), "where": lambda x: torch.where(x > 2, x, 0),
    "sum": lambda x: x.sum(),
    "cat": lambda x: torch.cat([x, x]), "compare": lambda x: x == 3, "product": lambda x: x * x,
    "to": lambda x: x.float() + 1,
    "count": lambda x: x.count_nonzero(0), "median": lambda x: x.median(), "sort": lambda x: x.sort()[0], "minimum": lambda x: torch.minimum(x, x),
    "abs": lambda x: x.abs(), "neg": lambda x: -x, "mod": lambda x: x % 3, "shift": lambda x: x << 1, "not": lambda x: ~x, "mean": lambda x: x.mean(),
    "arange":
    lambda x: torch.arange(5, dtype=x.dtype), "clamp": lambda x: x.clamp(1, 3), "roll": lambda x: x.roll(1, 0),
    "embed": lambda x: x[[0, 1]],
    "eye": lambda x: torch.eye(3, dtype=x.dtype), "repeat": lambda x: x.repeat(2, 1), "index_put": lambda x: x.index_put((torch.tensor([0]),), x[:1]),
    "pad": lambda x: torch.nn.functional.pad(x, (1, 1)), "unique size": lambda x: x.unfold(1, 2, 1) + x[:1, :1, None], "sign": lambda x: x.sign(),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::thermit.ThermitWarning")
@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64], ids=str)
@pytest.mark.parametrize("name", OPERATIONS)
def test_as_eager(name, dtype):
    function = OPERATIONS[name]
    x = torch.tensor([[1, 2, 3, 4], [5, 6, 70, 8], [0, 9, 1, 2]]).to(dtype)
    try:
        want = function(x)
    except Exception as refused:
        with pytest.raises(type(refused)) as found:
            thermit.jit(function)(x)
        assert str(found.value) == str(refused)
        return
    got = thermit.jit(function)(x)
    for g, w in zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]:
        assert g.dtype == w.dtype and torch.equal(g, w)
