"""`x[i]` with i a tensor without axes: a view at a place that is data.  Against eager: values, writes, aliasing, errors."""

from __future__ import annotations

import contextlib

import pytest
import torch

import thermit
from tests.capture.test_trace import agree
from thermit import ThermitWarning


def table(*shape):
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape)


def at(i, dtype=torch.int64):
    return torch.tensor(i, dtype=dtype)


def read(x, i):
    return x[i] * 2


def columns(x, i):
    return x[:, i] + x[..., i] + x[1:, None, i].sum()


def two(x, i):
    return x[i, i] + x[i][i + 1] + x[2, i]


def mixed(x, i):
    return x[i, torch.tensor([0, 2])] + x[i, None, 1:3].sum()


def put(x, i):
    x[i] = 7
    x[:, i] = x[0].sum()
    return x.sum()


def put_row(x, i):
    x[i] = torch.ones(4)
    x[i, 1:3] *= 3
    x[i, i] -= 1
    return x * 1


def in_place(x, i):
    row = x[i]
    row.add_(1)
    x.mul_(2)
    row[1:].sub_(row[1:] * 3)
    return row * 1


def changed_after(x, i):
    row = x[i]
    x.add_(10)
    x[1] = 0
    return row * 2


def swapped(x, i):
    j = (i + 1) % 3
    kept = x[i].clone()
    x[i] = x[j]
    x[j] = kept
    return x.sum(1)


def of_a_result(x, i):
    y = x * 2
    y[i] += 1
    return y[i] * 1


def of_a_view(x, i):
    y = x.t()
    y[i, 1:] = 5
    return y[i] + y.view(torch.int32)[i]


def as_itself(x, i):
    x[i] += x[i]
    return x * 1


FUNCTIONS = [read, columns, two, mixed, put, put_row, in_place, changed_after, swapped, of_a_result, of_a_view, as_itself]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("i", [0, 1, 2, -1, -3])
def test_agrees(function, i):
    if function is two and i in (2, -1):
        i = 1
    agree(function, table(3, 4), at(i))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32])
def test_integers_of_any_width(dtype):
    agree(read, table(3, 4), at(2, dtype))


def test_one_variant_for_all_positions():
    f, x = thermit.jit(put_row, strict=True), table(3, 4)
    for i in (0, 2, -2):
        mine, theirs = x.clone(), x.clone()
        assert torch.equal(f(mine, at(i)), put_row(theirs, at(i))) and torch.equal(mine, theirs)
    assert f._state.compiled == 1


TABLE = table(5, 4)


def test_of_a_tensor_from_outside():
    f = thermit.jit(lambda i: TABLE[i] + TABLE[0], strict=True)
    for i in (4, 1):
        assert torch.equal(f(at(i)), TABLE[i] + TABLE[0])


def test_a_position_that_is_computed():
    agree(lambda x: x[x.argmax() // 4] * 2, table(3, 4))
    agree(lambda x: x.t()[x[1].argmin()] * 2, table(3, 4))


@pytest.mark.parametrize("function", [read, put_row, lambda x, i: x[:, i] * 1, lambda x, i: x[0, i] * 1])
@pytest.mark.parametrize("i", [4, -5, 1 << 40, -(1 << 63)])
def test_out_of_range_is_eagers_error(function, i):
    f, x = thermit.jit(function, strict=True), table(4, 4)
    f(x.clone(), at(1))
    for _ in range(2):
        with pytest.raises(IndexError) as want:
            function(x.clone(), at(i))
        mine = x.clone()
        with pytest.raises(IndexError) as got:
            f(mine, at(i))
        assert str(got.value) == str(want.value) and torch.equal(mine, x)


def test_a_row_of_an_argument_is_a_view_of_it():
    def row(x, i):
        return x[i]

    f, x = thermit.jit(row), table(3, 4).clone()
    with pytest.warns(ThermitWarning, match="a view") as told:
        y = f(x, at(1))
    assert "x[i].clone()" in str(told[0].message)
    for _ in range(2):
        assert y.data_ptr() == x[1].data_ptr() and y._base is x
        y = f(x, at(1))
    agree(lambda x, i: x[i].clone(), x, at(2))


def test_two_rows_of_a_result_may_be_one():
    def rows(x, i, j):
        y = x + 1
        return y[i], y[j]

    f = thermit.jit(rows)
    with pytest.warns(ThermitWarning, match="a view"):
        a, c = f(table(3, 4), at(1), at(1))
    assert a.data_ptr() == c.data_ptr()


@pytest.mark.parametrize("x", [table(3, 4), table(4, 3).t()], ids=["rows", "columns"])
def test_a_row_of_a_result_is_a_tensor_of_its_own(x):
    f = thermit.jit(lambda x, i: (x + 1)[i], strict=True)
    for i in (0, 2):
        got, want = f(x, at(i)), (x + 1)[i]
        assert torch.equal(got, want) and got.stride() == want.stride()
        got.add_(1)


def partly_over_itself(x, i):
    x[i].add_(x[:, 1][: x.shape[1]])


def test_memory_that_overlaps_is_eagers_affair():
    f, mine, theirs = thermit.jit(partly_over_itself), table(4, 4), table(4, 4)
    partly_over_itself(theirs, at(1))
    with pytest.warns(ThermitWarning, match="overlapping memory"):
        f(mine, at(1))
    assert torch.equal(mine, theirs)


def test_where_it_lies_is_a_value():
    def offset(x, i):
        return x * x[i].storage_offset()

    f = thermit.jit(offset)
    with pytest.warns(ThermitWarning, match="storage_offset"):
        assert torch.equal(f(table(3, 4), at(2)), table(3, 4) * 8)


def goes_live(x, i, log):
    x[i] = 5
    row = x[i]
    row += 1
    log.append(float(row.sum()))
    return x * 1, row * 2


def test_a_trace_that_goes_live_selects_at_the_value():
    f, log = thermit.jit(goes_live), []
    mine, theirs = table(3, 4), table(3, 4)
    with pytest.warns(ThermitWarning):
        got = f(mine, at(-1), log)
    want = goes_live(theirs, at(-1), log)
    assert log[0] == log[1] and torch.equal(mine, theirs) and all(map(torch.equal, got, want))


@pytest.mark.filterwarnings("ignore::thermit.ThermitWarning")
@pytest.mark.parametrize("x", [table(0, 4), table(4, 0)], ids=str)
def test_nothing_to_select(x):
    f = thermit.jit(lambda x, i: x[:, i] if x.shape[1] else x[i].sum())
    for i in (1, 7):
        try:
            want = f.__wrapped__(x, at(i))
        except IndexError:
            with pytest.raises(IndexError):
                f(x, at(i))
        else:
            assert torch.equal(f(x, at(i)), want)


@pytest.mark.filterwarnings("ignore::thermit.ThermitWarning")
def test_a_refused_subscript_leaves_nothing_behind():
    def guarded(x, empty, i):
        with contextlib.suppress(IndexError):
            empty[i]
        return x[0] + x[i]

    agree(guarded, table(3, 4), table(0, 4), at(2), captured=False)


def test_masks_are_no_positions():
    f = thermit.jit(lambda x, m: x[m] * 2)
    with pytest.warns(ThermitWarning):
        for m in (torch.tensor(True), torch.tensor(False)):
            assert torch.equal(f(table(3), m), table(3)[m] * 2)


def test_in_inference_mode_and_compiled_beforehand():
    with torch.inference_mode():
        agree(read, table(3, 4), at(2))
    compiled = thermit.jit(read).compile(table(3, 4), at(0))
    assert torch.equal(compiled(table(3, 4), at(2)), table(3, 4)[2] * 2)
