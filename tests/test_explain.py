"""What `explain` says: a golden text, its key, and why calls are eager."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import thermit
from thermit import DataDependentError, ThermitWarning, UnsupportedError
from thermit.explain import KEY

GOLDEN = Path(__file__).parent / "golden" / "explain.txt"


def fit(x, scale):
    y = torch.lgamma(x.exp() + scale)
    return (y - y.mean(0)) / torch.relu(y).sum(), torch.lgamma(y)


def wide(x, y):
    return (x * y.sin()).softmax(-1)


def test_golden(request):
    jitted = thermit.jit(fit)
    jitted(torch.ones(4, 8), 2)
    texts = str(jitted.explain(torch.ones(64, 32), 3)), str(thermit.jit(wide).explain(torch.ones(64, 256), torch.ones(256)))
    text = re.sub(r"compiled in .*", "compiled in ... ms", "\n".join(texts))
    if request.config.getoption("--update-golden"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text(), "run pytest tests/test_explain.py --update-golden"


def test_the_key_names_the_words():
    text, key = str(thermit.jit(fit).explain(torch.ones(4, 8), 2)), "\n".join(KEY)
    assert text.endswith("\nkey:\n" + "".join(f"  {line}\n" for line in KEY))
    for word in ("kernel", "call", "bytes moved", "temporaries", "stored", "holds while"):
        assert word in key


# ---------------------------------------------------------------------------------------------- eager
def told(function, *args, **kwargs):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        function(*args, **kwargs)
    assert all(w.category is ThermitWarning and w.filename == __file__ for w in found)
    return [str(w.message) for w in found]


def scaled(x, factor, where=None):
    return x * torch.as_tensor(factor)


def test_an_array_of_numpy_is_told_of_once():
    jitted, x, a = thermit.jit(scaled), torch.ones(3), np.ones(3, dtype=np.float32)
    with pytest.warns(ThermitWarning) as warned:
        assert jitted(x, a).tolist() == [1, 1, 1]
    (text,) = [str(w.message) for w in warned]
    assert text.splitlines()[0] == "thermit runs scaled eagerly: the argument factor is an array of numpy"
    assert "torch.from_numpy(factor)" in text and "strict=True" in text and warned[0].filename == __file__
    assert told(jitted, x, factor=a) == []
    assert "the argument factor is an array of numpy; Hand in torch.from_numpy(factor)" in str(jitted.explain(x, factor=a))
    assert told(jitted, x, torch.from_numpy(a)) == [] and jitted._state.compiled == 1
    assert told(jitted, x, np.float32(2)) == [] and jitted._state.compiled == 2
    for raises in (thermit.jit(scaled, strict=True), jitted.trace):
        with pytest.raises(UnsupportedError, match=r"factor is an array of numpy\n  Hand in torch.from_numpy\(factor\)"):
            raises(x, a)


@pytest.mark.parametrize("value", [[np.ones(2)], iter([1]), {"k": bytearray(2)}], ids=["list", "iterator", "bytes"])
def test_other_arguments_that_cannot_be_compared(value):
    (text,) = told(thermit.jit(scaled), torch.ones(3), 2.0, where=value)
    assert "the argument where is, or holds, a" in text and "whose state cannot be compared" in text


@pytest.mark.parametrize("tensor", [torch.ones(3, requires_grad=True), torch.ones(3, device="meta")], ids=["grad", "meta"])
def test_tensors_are_not_told_of(tensor):
    assert told(thermit.jit(lambda x: x * 2), tensor) == []


# ---------------------------------------------------------------------------------------------- values that are read
X = torch.tensor([[3.0, -1.0], [1.0, 2.0]])


def bound(x):
    return x[: x.argmax()]


READS = {
    "condition": (lambda x: x if x.sum() > 0 else -x, "a condition (bool)", "x.sum() > 0", "torch.where"),
    "item": (lambda x: x * x.sum().item(), ".item()", "x.sum().item()", "torch.where"),
    "tolist": (lambda x: x * x.tolist()[0][0], ".tolist()", "x.tolist()", "torch.where"),
    "float": (lambda x: x * float(x[0, 0]), "float()", "float(x[0, 0])", "torch.where"),
    "slice": (bound, "a bound of a slice", "x[: x.argmax()]", "torch.arange"),
    "equal": (lambda x: x * torch.equal(x, x + 1), "torch.equal", "torch.equal(x, x + 1)", "torch.where"),
    "nonzero": (torch.nonzero, "torch.nonzero, whose size", "", "Keep the size"),
    "unique": (lambda x: torch.unique(x), "torch.unique, whose size", "torch.unique(x)", "Keep the size"),
    "masked_select": (lambda x: torch.masked_select(x, x > 0), "torch.masked_select, whose size", "torch.masked_select(x, x > 0)", "Keep the size"),
    "mask": (lambda x: x[x > 0], "x[mask], whose size", "x[x > 0]", "Keep the size"),
    "where": (lambda x: torch.where(x > 0)[0], "whose size", "torch.where(x > 0)", "Keep the size"),
}


@pytest.mark.parametrize("name", READS)
def test_what_reads_values_says_so_in_three_lines(name):
    function, reason, code, advice = READS[name]
    with pytest.warns(ThermitWarning) as found:
        thermit.jit(function)(X)
    with pytest.raises(DataDependentError) as raised:
        thermit.jit(function, strict=True)(X)
    for text in (str(found[0].message), str(raised.value)):
        first, place, last = text.splitlines()
        assert reason in first and advice in last and "aten" not in text
        assert place.endswith(f": {code}" if code else "") and place.startswith("  test_explain.py:")


def test_linalg_tells_of_what_does_not_look():
    text = told(thermit.jit(lambda x: torch.linalg.inv(x)), X)[0]
    assert "inv_ex" in text
    siblings = thermit.jit(lambda x: torch.linalg.inv_ex(x)[0] + torch.linalg.cholesky_ex(x @ x.T)[0] + torch.linalg.solve_ex(x, x)[0], strict=True)
    assert siblings(X).shape == (2, 2)


def test_long_code_is_cut_and_code_without_source_is_left_out():
    made = {}
    exec(compile("def f(x):\n    return x * x.sum().item()\n", "<nowhere>", "exec"), made)
    assert "<nowhere>:2 in f\n" in _warning(made["f"])
    assert "..." in _warning(lambda x: x if torch.logsumexp(x.sum(0) + x.mean(1), 0) + x.prod(0).sum() + x.amax(1).sum() > -1e9 else -x)


def _warning(function):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        thermit.jit(function)(X)
    return str(found[0].message)
