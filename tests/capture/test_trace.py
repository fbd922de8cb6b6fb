"""What functions become: graphs, live runs, errors; against eager, values, strides, aliasing, writes and side effects."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import thermit
from thermit import DataDependentError, ThermitWarning, UnsupportedError, api


def rand(*shape, seed=0, dtype=torch.float32):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g).to(dtype)


def copied(args):
    """Copies with the same strides, offsets and sharing of storages."""
    storages = {}

    def one(t):
        if not isinstance(t, torch.Tensor):
            return t
        key = t.untyped_storage().data_ptr()
        if key not in storages:
            storages[key] = t.untyped_storage().clone()
        return torch.empty(0, dtype=t.dtype).set_(storages[key], t.storage_offset(), t.shape, t.stride())

    return [one(a) for a in args]


def leaves(value):
    return torch.utils._pytree.tree_leaves(value)


def alias_pattern(values):
    first = {}
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    return [(first.setdefault(t.untyped_storage().data_ptr(), i) if t.numel() else -1, t.storage_offset()) for i, t in enumerate(tensors)]


def agree(f, *args, calls=2, captured=True):
    """jit(f) and f on equal arguments: results, what happened to the arguments, aliasing; traced as a whole if `captured`."""
    j = thermit.jit(f, strict=captured)
    for _ in range(calls):
        mine, theirs = copied(args), copied(args)
        got, want = leaves(j(*mine)), leaves(f(*theirs))
        assert len(got) == len(want)
        for a, b in zip(got + mine, want + theirs, strict=True):
            if isinstance(b, torch.Tensor):
                assert type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape
                assert a.stride() == b.stride() or b.numel() < 2
                torch.testing.assert_close(a, b, equal_nan=True)
            else:
                assert a == b
        assert alias_pattern(got + mine) == alias_pattern(want + theirs)
        same = [[x is y for y in mine] for x in got], [[x is y for y in theirs] for x in want]
        assert same[0] == same[1]


def write_rows(x):
    y = x * 2
    y[1:3] += 1
    y[:, 0] = 5
    y.t()[2].mul_(3)
    return y


def write_input(x):
    x[0] = x[1] + 1
    x.view(-1)[::5].zero_()
    return x.sum(0)


def views_of_input(x):
    return x, x[1:], x.t(), x.view(-1), x[0, 1:3]


def views_of_result(x):
    y = x.sin()
    return y[::2], y.t(), y, y.unsqueeze(0).expand(3, *y.shape)


def write_through_view_of_view(x):
    a = x.clone()
    b = a.view(-1)
    c = b[2:8].view(2, 3)
    c.t().add_(1)
    a.diagonal().fill_(7)
    return a, b, c


def out_argument(x):
    y = torch.empty_like(x)
    torch.add(x, 1, out=y)
    torch.mul(y, 2, out=y)
    return y


def out_casts(x):
    y = torch.empty(x.shape, dtype=torch.float64)
    return torch.exp(x, out=y), y


def masks(x):
    y = x.clone()
    y[y > 0] = -1.0
    y.masked_fill_(y < -0.5, 2.0)
    return torch.where(y > 1, y, 0.0)


def factories(x):
    n = x.shape[0]
    return torch.zeros(n) + torch.arange(n) + torch.ones_like(x[:, 0]) * torch.full((n,), 2.5) + torch.tensor(3.0) + torch.tensor([1.0] * n)


def constant_written(x):
    c = torch.tensor([1.0, 2.0, 3.0])
    c[1] += 10
    return c * 2, c


def split_and_cat(x):
    a, b = x.split(2)
    return torch.cat([b, a]), torch.stack(x.unbind(0), 1), x.chunk(2, 1)[1]


def batch_norm(x):
    mean, var = torch.zeros(3), torch.ones(3)
    y = F.batch_norm(x, mean, var, training=True)
    return y, mean, var


def bits(x):
    y = x.view(torch.int32)
    return (y >> 23) & 255


def write_bits(x):
    y = x.clone()
    y.view(torch.int32).bitwise_and_(0x7FFFFFFF)
    return y


def gaps(x):
    y = torch.empty_strided((2, 3), (10, 2))
    y.copy_(x[:2, :3])
    return y + 1


def gradient_inside(x):
    y = x.clone().requires_grad_()
    return torch.autograd.grad((y.sin() * 3).sum(), y)[0]


def backward_inside(x):
    y = x.detach().clone().requires_grad_()
    (y * y).sum().backward()
    return y.grad


def transforms(x):
    return torch.func.grad(lambda t: t.sin().sum())(x), torch.func.vmap(lambda t: t.softmax(0))(x)


def matrix_product(x):
    return (x @ x.t()).relu() + 1


CAPTURED = {
    f.__name__: (f, args)
    for f, args in [
        (write_rows, (rand(4, 6),)),
        (write_input, (rand(4, 6),)),
        (views_of_input, (rand(4, 6),)),
        (views_of_result, (rand(4, 6),)),
        (write_through_view_of_view, (rand(4, 6),)),
        (out_argument, (rand(4, 6).t(),)),
        (out_casts, (rand(4, 6),)),
        (masks, (rand(4, 6),)),
        (factories, (rand(4, 6),)),
        (constant_written, (rand(3),)),
        (split_and_cat, (rand(4, 6),)),
        (batch_norm, (rand(4, 3, 5),)),
        (bits, (rand(4, 6),)),
        (write_bits, (rand(4, 6),)),
        (gaps, (rand(4, 6),)),
        (gradient_inside, (rand(4, 6),)),
        (backward_inside, (rand(4, 6),)),
        (transforms, (rand(4, 6),)),
        (matrix_product, (rand(4, 6),)),
    ]
}


@pytest.mark.parametrize("name", CAPTURED)
def test_captured_as_a_whole(name):
    f, args = CAPTURED[name]
    agree(f, *args)


LAYOUTS = [rand(4, 6), rand(6, 4).t(), rand(4, 12)[:, ::2], rand(8, 6)[2:6], rand(1, 6).expand(4, 6), rand(60).as_strided((4, 6), (12, 2), 3)]


@pytest.mark.parametrize("x", LAYOUTS, ids=lambda x: str(x.stride()))
def test_inputs_of_any_layout(x):
    agree(lambda x: (x * 2, x.t(), x[1], x[:, 2:4] + 1), x)


@pytest.mark.parametrize("x", [x for x in LAYOUTS if 0 not in x.stride()], ids=lambda x: str(x.stride()))
def test_writes_to_inputs_of_any_layout(x):
    def f(x):
        x[1:3, ::2] += 1
        x.t()[0] = 0
        return x.sum(), x

    agree(f, x)


def shared_inputs():
    x = rand(6, 6)
    return {
        "same": (x, x),
        "view": (x, x[1]),
        "view first": (x[1], x),
        "apart": (x[0], x[1]),
        "overlapping": (x[:4], x[2:]),
        "transposed": (x, x.t()),
        "flat": (x, x.view(-1)),
    }


@pytest.mark.parametrize("name", shared_inputs())
def test_inputs_that_share_memory(name):
    a, b = shared_inputs()[name]

    def read(a, b):
        return a.sum() + b.sum()

    def write(a, b):
        a.mul_(2)
        return b + 1

    agree(read, a, b)
    with pytest.warns(ThermitWarning) if name in ("overlapping", "view first") else nullcontext():
        agree(write, a, b, captured=False)


class nullcontext:
    def __enter__(self):
        return None

    def __exit__(self, *_):
        return None


# ---------------------------------------------------------------------------------------------- live
calls = []


def branch(x):
    calls.append(1)
    y = x * 2
    y[0] = 1
    if y.sum() > 0:
        return y + 1
    return y - 1


def item(x):
    return x.sum().item(), float(x[0, 0]), int(x.shape[0]), x.mean().tolist()


def nonzero(x):
    y = x + 1
    return y.nonzero(), y[y > 0], y.unique()


def loop_over_values(x):
    y = x.clone()
    return [v * 2 for v in y[0].tolist()]


def numpy_inside(x):
    return torch.from_numpy(x.numpy() * 2) + 1


def printed(x):
    return f"{x.sum():.3f}", repr(x + 1)


def metadata(x):
    y = x + 1
    y.t_()
    y.unsqueeze_(0)
    return y, y.shape, y.stride()


def resized(x):
    y = torch.empty(0)
    torch.abs(x, out=y)
    return y


def overlapping_write(x):
    y = x.clone()
    y.as_strided((3, 3), (1, 1)).fill_(4)
    return y


def complex_inside(x):
    return torch.fft.rfft(x).abs()


def memory(x):
    y = x + 1
    return y.data_ptr() != 0, y.untyped_storage().nbytes(), y


def grad_result(x):
    return x.clone().requires_grad_().sin()


_LIVE = (branch, item, nonzero, loop_over_values, numpy_inside, printed, metadata, resized, overlapping_write, complex_inside, memory)
LIVE = {f.__name__: f for f in _LIVE}


@pytest.mark.filterwarnings("ignore::thermit.ThermitWarning")
@pytest.mark.parametrize("name", LIVE)
def test_live(name):
    agree(LIVE[name], rand(4, 6), captured=False)


def test_side_effects_happen_once_and_the_warning_names_the_line():
    calls.clear()
    with pytest.warns(ThermitWarning, match=r"reads the value of a tensor: a condition (.bool.)\n  test_trace.py:\d+ in branch: y.sum"):
        thermit.jit(branch)(rand(4, 6))
    assert len(calls) == 1


def test_strict_raises_three_lines():
    with pytest.raises(DataDependentError) as error:
        thermit.jit(branch, strict=True)(rand(4, 6))
    assert len(str(error.value).splitlines()) == 3 and "in branch" in str(error.value)
    with pytest.raises(UnsupportedError):
        thermit.jit(metadata, strict=True)(rand(4, 6))


@pytest.mark.filterwarnings("ignore::thermit.ThermitWarning")
def test_a_result_that_requires_grad_can_be_differentiated():
    x = rand(4, 6)
    y = thermit.jit(grad_result)(x)
    assert y.requires_grad and torch.equal(y, x.sin())
    y.sum().backward()


@pytest.mark.filterwarnings("ignore::thermit.ThermitWarning")
def test_a_stored_tensor_becomes_real():
    kept = []

    def f(x):
        y = x * 2
        kept.append(y)
        return y + 1

    j, x = thermit.jit(f), rand(3)
    for k in range(3):
        assert torch.equal(j(x), x * 2 + 1)
        assert len(kept) == k + 1 and type(kept[-1]) is torch.Tensor and torch.equal(kept[-1], x * 2)


@pytest.mark.filterwarnings("ignore::thermit.ThermitWarning")
def test_random_numbers_in_order_also_across_going_live():
    def f(x):
        a = torch.rand(3)
        x = F.dropout(x, 0.5)
        if a.sum() > 100:
            return x
        return a, x, torch.randn(3)

    def g(x):
        return torch.rand(3), F.dropout(x, 0.5), torch.randn(3), x.clone().uniform_(), torch.randperm(5)

    x = rand(4, 6)
    for fn in (f, g):
        j = thermit.jit(fn)
        for seed in (1, 2, 1):
            torch.manual_seed(seed)
            want, after = fn(x), torch.rand(2)
            torch.manual_seed(seed)
            got = j(x)
            assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True)) and torch.equal(torch.rand(2), after)


def test_errors_are_eagers_and_what_was_written_is_written():
    def f(x, y):
        x.add_(1)
        return x + y

    x = torch.zeros(3)
    with pytest.raises(RuntimeError, match="The size of tensor a") as raised:
        thermit.jit(f)(x, torch.ones(4))
    assert torch.equal(x, torch.ones(3)) and raised.value.__context__ is None
    with pytest.raises(RuntimeError, match="The size of tensor a"):
        thermit.jit(f, strict=True)(x, torch.ones(4))
    assert torch.equal(x, torch.full((3,), 2.0))
    with pytest.raises(UnsupportedError, match="Leave this part out"):  # looking computes nothing
        thermit.jit(f).trace(x, torch.ones(4))
    assert torch.equal(x, torch.full((3,), 2.0))


class Counter:
    calls = 0


COUNTER = Counter()


def _counts(x):
    y = x + 1
    COUNTER.calls += 1
    return y


def _line_of(function, offset):
    return f"test_trace.py:{function.__code__.co_firstlineno + offset}"


@pytest.mark.parametrize(
    "function, line, advice",
    [
        (_counts, 2, "Return what is to be kept"),
        (lambda x: (print(end=""), x + 1)[1], 0, "Do this outside of the function"),
        (lambda x: x + 1 if x.sum() > 0 else x, 0, "Keep the decision in tensors"),
        (lambda x: x + torch.ones(3, dtype=torch.complex64).real, 0, "Leave this part out"),
    ],
    ids=["state", "effect", "value", "operation"],
)
def test_advice_fits_the_reason_and_names_the_line(function, line, advice):
    with pytest.warns(ThermitWarning) as told:
        thermit.jit(function)(torch.ones(3))
    (text,) = [str(w.message) for w in told]
    assert _line_of(function, line) in text and f"{advice}" in text and text.endswith("; strict=True makes this an error.")
    assert told[0].filename == __file__
    with pytest.raises(thermit.ThermitError) as error:
        thermit.jit(function, strict=True)(torch.ones(3))
    assert advice in str(error.value) and "strict=True" not in str(error.value)


def test_what_is_asked_for_its_identity_warns_once():
    held = torch.ones(3)
    j = thermit.jit(lambda x: x + (1 if x is held else 2))
    with pytest.warns(ThermitWarning, match=r"an argument is also .*held(.|\n)*test_trace"):
        assert j(held).tolist() == [2, 2, 2]
    assert j(held).tolist() == [2, 2, 2] and j(torch.ones(3)).tolist() == [3, 3, 3]
    assert j._state.compiled == 1


def test_an_exception_of_the_function_keeps_its_writes():
    def f(x):
        x.add_(1)
        raise KeyError("mine")

    x = torch.zeros(3)
    with pytest.raises(KeyError, match="mine"):
        thermit.jit(f)(x)
    assert torch.equal(x, torch.ones(3))


def test_is_compiling_in_this_thread_only_while_tracing():
    seen = []

    def f(x):
        seen.append(bool(torch.compiler.is_compiling()))
        return x + 1

    with pytest.raises(UnsupportedError):  # the list is written
        thermit.jit(f).trace(rand(3))
    assert seen == [True] and torch.compiler.is_compiling() is False


def test_the_answer_of_is_compiling_is_used_as_a_bool():
    def f(x):
        flag = torch.compiler.is_compiling()
        flag |= False  # as libraries do
        answers = (flag | False, False | flag, flag & True, True & flag, flag ^ True, True ^ flag, flag == True, flag != True, not flag)  # noqa: E712
        return x + sum(k for k, answer in enumerate(answers) if answer)

    assert torch.equal(thermit.jit(f, strict=True)(torch.zeros(1)), torch.full((1,), 0.0 + 1 + 2 + 3 + 6))


class Cache:
    def __init__(self, tag=None):
        self.layers, self.tag = [], tag

    def update(self, x):
        self.layers.append(x * 2)
        return self.layers[-1]


def test_a_new_object_in_the_result_is_made_at_each_call():
    def f(x):
        cache = Cache()
        return {"y": cache.update(x) + 1, "cache": cache}

    jitted = thermit.jit(f, strict=True)
    first, second = jitted(torch.ones(3)), jitted(torch.full((3,), 2.0))
    assert type(first["cache"]) is Cache and first["cache"] is not second["cache"]
    assert torch.equal(first["cache"].layers[0], torch.full((3,), 2.0)) and torch.equal(second["cache"].layers[0], torch.full((3,), 4.0))
    assert jitted._state.compiled == 1


def test_an_object_that_existed_is_returned_itself():
    held = [Cache(1)]
    jitted = thermit.jit(lambda x, c: (x + 1, c, held[0]), strict=True)
    given = Cache(2)
    for _ in range(2):
        _, back, other = jitted(torch.ones(3), given)
        assert back is given and other is held[0]


def test_a_result_with_an_object_of_the_call_is_built_natively(monkeypatch):
    jitted, given, x = thermit.jit(lambda x, c: {"y": x + 1, "cache": c}, strict=True), Cache(2), torch.ones(3)
    jitted(x, given)

    def slow(*_):
        raise AssertionError("the slow path")

    monkeypatch.setattr(api, "holds", slow)
    assert jitted(x, given)["cache"] is given
    other = Cache(3)
    assert jitted(x, other)["cache"] is other


def test_lines_of_the_user_are_known():
    lines = thermit.jit(write_rows).trace(rand(4, 6)).lines
    names = {line[0].co_name for line in lines.values()}
    assert names == {"write_rows"}


def test_version_counters_move_as_in_eager():
    x, y = torch.zeros(3), torch.zeros(3)
    j = thermit.jit(lambda x: x.add_(1))
    for _ in range(3):
        j(x)
        y.add_(1)
        assert x._version >= y._version


def test_nested_jit_is_inlined():
    inner = thermit.jit(lambda x: x * 2)
    outer = thermit.jit(lambda x: inner(x) + 1, strict=True)
    x = rand(3)
    assert torch.equal(outer(x), x * 2 + 1) and torch.equal(inner(x), x * 2)
    assert outer.explain(x).kernels == 1


def test_inference_mode():
    x = rand(4, 6)
    with torch.inference_mode():
        agree(lambda x: F.layer_norm(x, (6,)).reshape(-1) + F.linear(x, x).sum(), x)


def test_no_grad_with_arguments_that_require_grad():
    w = torch.nn.Parameter(rand(3))
    j = thermit.jit(lambda x: x * w)
    with torch.no_grad():
        y = j(rand(3))
        assert not y.requires_grad and j.explain(rand(3)).kernels == 1
    z = j(rand(3))
    assert z.requires_grad
    z.sum().backward()
    assert torch.equal(w.grad, rand(3))


def test_torch_compile_around_it():
    """Frames are evaluated by another function there, which holds more."""
    f, x = thermit.jit(lambda a: a.sin() + 1, strict=True), rand(3, 4)
    g = torch.compile(lambda a: f(a) * 2, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(g(x), (x.sin() + 1) * 2)
    assert f._state.compiled == 1
