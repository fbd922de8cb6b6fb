"""The callable: options, kinds of functions, variants, faults, threads, stages, explanation."""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import pickle
import threading
import types
import weakref
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch

import thermit
from thermit import ThermitWarning, UnexpectedCompileError, UnsupportedError, api, config
from thermit.runtime.library import runtime


def scaled(x, k=2.0, *, shift=1):
    """x * k + shift."""
    return x * k + shift


def compiled(j):
    return j._state.compiled


# ---------------------------------------------------------------------------------------------- kinds of functions
class Scaler:
    k = 3.0

    @thermit.jit
    def method(self, x):
        return x * self.k

    @thermit.jit
    @staticmethod
    def static(x):
        return x * 4

    @staticmethod
    @thermit.jit
    def static_outside(x):
        return x * 5

    @classmethod
    @thermit.jit
    def of_class(cls, x):
        return x * cls.k

    def __call__(self, x):
        return x * self.k + 1


def test_kinds_of_callables():
    x, s = torch.randn(5), Scaler()
    cases = {
        "function": (thermit.jit(scaled), scaled),
        "options": (thermit.jit(max_variants=3)(scaled), scaled),
        "lambda": (thermit.jit(lambda x: x - 1), lambda x: x - 1),
        "partial": (thermit.jit(functools.partial(scaled, k=5)), functools.partial(scaled, k=5)),
        "object": (thermit.jit(s), s),
        "method": (s.method, lambda x: x * 3),
        "bound method": (thermit.jit(s.__call__), s),
        "static": (Scaler.static, lambda x: x * 4),
        "static outside": (s.static_outside, lambda x: x * 5),
        "class method": (Scaler.of_class, lambda x: x * 3),
        "builtin": (thermit.jit(torch.neg), torch.neg),
        "twice": (thermit.jit(thermit.jit(scaled)), scaled),
    }
    for name, (j, f) in cases.items():
        for _ in range(3):
            assert torch.equal(j(x), f(x)), name
    for bad in (3, torch.Tensor, None):
        with pytest.raises((TypeError, AttributeError)):
            thermit.jit(bad)(x)
    with pytest.raises(ValueError, match="on_miss"):
        thermit.jit(scaled, on_miss="never")
    for few in (0, -1):
        with pytest.raises(ValueError, match=f"max_variants must be at least 1, not {few}"):
            thermit.jit(scaled, max_variants=few)


def test_it_looks_like_the_function():
    j = thermit.jit(scaled)
    assert (j.__name__, j.__doc__, j.__wrapped__, j.__module__) == ("scaled", scaled.__doc__, scaled, scaled.__module__)
    assert inspect.signature(j) == inspect.signature(scaled)
    assert copy.copy(j) is j and copy.deepcopy(j) is j and "scaled" in repr(j)
    assert Scaler().method.__self__.k == 3.0 and Scaler.method.__name__ == "method"
    again = pickle.loads(pickle.dumps(thermit.jit(pickled, strict=True)))
    assert again._state.strict and torch.equal(again(torch.ones(2)), torch.ones(2) * 2)


def pickled(x):
    return x * 2


@thermit.jit
def decorated(x):
    return x * 2


class Decorated:
    @thermit.jit
    def method(self, x):
        return x + 1

    @staticmethod
    @thermit.jit
    def static(x):
        return x - 1


def test_what_took_its_functions_name_is_pickled_by_it():
    for jitted in (decorated, Decorated.method, Decorated.static):
        assert pickle.loads(pickle.dumps(jitted)) is jitted and copy.deepcopy([jitted])[0] is jitted
    bound = pickle.loads(pickle.dumps(Decorated().method))
    assert torch.equal(bound(torch.ones(2)), torch.full((2,), 2.0))


def test_what_has_no_name_is_not_pickled():
    def inner(x):
        return x

    for jitted in (thermit.jit(lambda x: x), thermit.jit(inner)):
        with pytest.raises((pickle.PicklingError, AttributeError), match="pickle"):
            pickle.dumps(jitted)
    with pytest.raises(pickle.PicklingError, match="decorated is another jitted function"):
        pickle.dumps(thermit.jit(decorated))


def test_a_stage_that_cannot_be_left_out():
    with pytest.raises(ValueError, match="THERMIT_SKIP: no stage is called tile, foo; those that can be left out are simplify"):
        thermit.config.Config.from_environment({"THERMIT_SKIP": "tile,simplify,foo"})


# ---------------------------------------------------------------------------------------------- arguments and results
class Point(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


@dataclass
class Pair:
    a: torch.Tensor
    b: int


def test_nested_arguments_and_results():
    @thermit.jit
    def f(d, *rest, p, q=None):
        return {"sum": d["a"][0] + p.x, "rest": [r * 2 for r in rest], "none": q}, Point(p.y, d["a"][1]), Pair(p.x * 2, 7)

    def args():
        return {"a": [torch.ones(2), torch.zeros(2)]}, torch.ones(3), torch.ones(1)

    for _ in range(3):
        d, *rest = args()
        p = Point(torch.ones(2), torch.ones(2))
        out, point, pair = f(d, *rest, p=p)
        assert torch.equal(out["sum"], torch.full((2,), 2.0)) and len(out["rest"]) == 2 and out["none"] is None
        assert type(point) is Point and point.x is p.y and point.y is d["a"][1] and pair.b == 7 and type(pair) is Pair
    assert compiled(f) == 1


def test_wrong_arguments_give_pythons_error():
    j = thermit.jit(scaled)
    for args, kwargs in (((), {}), ((1, 2, 3, 4), {}), ((torch.ones(2),), {"nothing": 1})):
        with pytest.raises(TypeError) as mine:
            j(*args, **kwargs)
        with pytest.raises(TypeError) as theirs:
            scaled(*args, **kwargs)
        assert str(mine.value) == str(theirs.value)


weight = torch.ones(3)


def test_tensors_read_from_outside_are_inputs_by_reference():
    bias = torch.zeros(3)
    j = thermit.jit(lambda x: x * weight + bias)
    x = torch.ones(3)
    assert torch.equal(j(x), torch.ones(3))
    weight.mul_(2)
    bias.add_(1)
    assert torch.equal(j(x), torch.full((3,), 3.0))
    bias = torch.full((3,), 5.0)
    assert torch.equal(j(x), torch.full((3,), 7.0)) and compiled(j) == 1
    bias = torch.full((3,), 5)
    assert torch.equal(j(x), torch.full((3,), 7.0)) and compiled(j) == 2
    weight.div_(2)


def test_python_values_are_guarded():
    j = thermit.jit(scaled)
    x = torch.ones(2)
    for k in (2.0, 3.0, 2.0, 3, True):
        assert torch.equal(j(x, k), scaled(x, k))
    assert compiled(j) == 4


# ---------------------------------------------------------------------------------------------- variants
def test_max_variants_names_what_keeps_changing():
    j = thermit.jit(scaled, max_variants=2)
    for n in (1, 2):
        j(torch.ones(n))
    with pytest.warns(ThermitWarning, match=r"compiled 2 times.*x: float32\[1\].*float32\[2\]"):
        assert torch.equal(j(torch.ones(3)), torch.full((3,), 3.0))
    assert torch.equal(j(torch.ones(4)), torch.full((4,), 3.0)) and compiled(j) == 2


def test_on_miss():
    j = thermit.jit(scaled, on_miss="error")
    j(torch.ones(1))
    with pytest.raises(UnexpectedCompileError, match=r"float32\[1\].*float32\[2\]"):
        j(torch.ones(2))
    j = thermit.jit(scaled, on_miss="eager")
    j(torch.ones(1))
    assert torch.equal(j(torch.ones(2)), torch.full((2,), 3.0)) and compiled(j) == 1


def test_disable():
    j = thermit.jit(scaled)
    j(torch.ones(1))
    with thermit.disable():
        j(torch.ones(2))
        assert compiled(j) == 1

    @thermit.disable
    def g(x):
        return j(x)

    @thermit.disable()
    def h(x):
        return j(x)

    g(torch.ones(2))
    h(torch.ones(2))
    assert compiled(j) == 1
    j(torch.ones(2))
    assert compiled(j) == 2


def test_log_compiles(capfd):
    with thermit.log_compiles():
        thermit.jit(scaled)(torch.ones(3))
    thermit.jit(scaled)(torch.ones(3))
    assert capfd.readouterr().err.count("thermit: compiled scaled in") == 1


# ---------------------------------------------------------------------------------------------- eager calls
def test_what_runs_eagerly_is_eagers():
    j = thermit.jit(scaled)
    x = torch.ones(3, requires_grad=True)
    j(x).sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 2.0))
    assert "requires grad" in str(j.explain(x))
    j = thermit.jit(lambda x: x * 2)
    kinds = torch.ones(3, device="meta"), torch.ones(2).to_sparse(), torch.nn.Parameter(torch.ones(2)), torch.ones(2).to(torch.complex64).conj()
    for y in kinds:
        got, want = j(y), y * 2
        assert type(got) is type(want) and got.device == want.device and got.layout == want.layout
    assert compiled(j) == 0
    with pytest.raises(UnsupportedError):
        thermit.jit(scaled, strict=True)(torch.ones(3, device="meta"))


def test_a_fault_of_ours_warns_once_and_runs_eagerly(monkeypatch):
    def broken(*args):
        raise RuntimeError("not today")

    monkeypatch.setattr(api, "compile_graph", broken)
    with pytest.raises(RuntimeError, match="not today"):
        thermit.jit(scaled)(torch.ones(2))
    monkeypatch.setattr(config, "current", config.replace(config.current, raise_faults=False))
    j = thermit.jit(scaled)
    with pytest.warns(ThermitWarning, match="fault of thermit's.*not today"):
        assert torch.equal(j(torch.ones(2)), torch.full((2,), 3.0))
    assert torch.equal(j(torch.ones(3)), torch.full((3,), 3.0))


def test_an_interrupt_leaves_nothing_half_done(monkeypatch):
    j, x = thermit.jit(scaled), torch.ones(2)
    real = api.compile_graph

    def interrupted(*args):
        real(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "compile_graph", interrupted)
    with pytest.raises(KeyboardInterrupt):
        j(x)
    monkeypatch.setattr(api, "compile_graph", real)
    assert compiled(j) == 0 and not j._state.variants and not j._state.compiling
    assert torch.equal(j(x), torch.full((2,), 3.0)) and compiled(j) == 1


@pytest.mark.parametrize("function", [lambda a, x: (a.add_(1), x + 1), lambda a, x: (a.add_(1), (x.sin() * 2).softmax(-1)[0, :3])])
def test_too_little_memory_is_eagers_error_and_its_writes(function):
    j, x = thermit.jit(function), torch.ones(1).expand(1 << 24, 1 << 24)
    for _ in range(3):
        mine, its = torch.zeros(2), torch.zeros(2)
        with pytest.raises(RuntimeError) as wanted:
            function(its, x)
        with pytest.raises(RuntimeError) as met:
            j(mine, x)
        assert str(met.value) == str(wanted.value) and torch.equal(mine, its)


def test_threads_call_and_compile():
    functions = [thermit.jit(lambda x, k=k: (x * k).sin() + k, max_variants=100) for k in range(3)]
    wrong = []

    def work(seed):
        for i in range(40):
            k, n = (seed + i) % 3, 1 + (seed * i) % 7
            x = torch.full((n,), float(seed))
            if not torch.allclose(functions[k](x), (x * k).sin() + k, atol=1e-6):
                wrong.append((seed, i))

    threads = [threading.Thread(target=work, args=(s,)) for s in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


# ---------------------------------------------------------------------------------------------- stages
def test_stages():
    j, x = thermit.jit(scaled), torch.ones(4, 6)
    traced = j.trace(thermit.TensorSpec((4, 6)), 3.0)
    assert "mul" in traced.as_text() and traced.graph.outputs[0].strides == (6, 1)
    lowered = traced.lower()
    for stage, word in (("graph", "add"), ("kernels", "k0"), ("loops", "for"), ("llvm", "define"), ("asm", "ret")):
        assert word in lowered.as_text(stage), stage
    with pytest.raises(ValueError, match="no stage"):
        lowered.as_text("python")
    assert lowered.cost_analysis() == {"flops": 48, "bytes": 192}
    assert lowered.memory_analysis()["output_bytes"] == 96
    run = lowered.compile()
    assert torch.equal(run(x, 3.0), x * 3 + 1) and "k0" in run.as_text()
    with pytest.raises(TypeError, match=r"x: float32\[4,6\] strides \[6, 1\] -> float32\[3\]"):
        run(torch.ones(3), 3.0)
    assert compiled(j) == 0 and all(len(repr(stage)) < 200 for stage in (traced, lowered, run))
    with pytest.raises(thermit.DataDependentError):
        thermit.jit(lambda x: float(x.sum())).trace(x)


def test_compiled_takes_calls_of_its_kind_only():
    x = torch.ones(3)
    run = thermit.jit(scaled).compile(x, 3.0)
    for call, text in (
        (lambda: run(x, 4.0), r"k: 3.0 -> 4.0"),
        (lambda: run(x, 3), r"k: 3.0 -> 3"),
        (lambda: run(x), r"arguments: x, k -> x"),
        (lambda: run(x, k=3.0), r"arguments|k"),
        (lambda: run(torch.ones(3, requires_grad=True), 3.0), "can only run eagerly: a tensor that requires grad"),
        (lambda: run(torch.nn.Parameter(x, requires_grad=False), 3.0), "tensor x: being a parameter"),
        (lambda: run(x.to(torch.float64), 3.0), r"float32\[3\].* -> float64"),
        (lambda: run([x], 3.0), "x: a tensor -> a list of 1"),
    ):
        with pytest.raises(TypeError, match=text):
            call()
    with torch.no_grad(), pytest.raises(TypeError, match="grad mode: True -> False"):
        run(x, 3.0)
    assert torch.equal(run(x, 3.0), x * 3 + 1)

    def into(a, b):
        a.add_(1)
        return a * b

    for first, then in (((x, torch.ones(3)), (x, x)), ((x, x), (x, torch.ones(3)))):
        with pytest.raises(TypeError, match=r"shares memory|one object"):
            thermit.jit(into).compile(*first)(*then)
    boxed = thermit.jit(lambda box: box["a"][0] + box["k"]).compile({"a": [x], "k": 2})
    with pytest.raises(TypeError, match=r"box\['k'\]: 2 -> 5"):
        boxed({"a": [x], "k": 5})
    with pytest.raises(TypeError, match=r"tensor box\['a'\]\[0\]: float32\[3\]"):
        boxed({"a": [torch.ones(4)], "k": 2})


def test_compiled_looks_at_what_was_read():
    space = types.SimpleNamespace(k=2, w=torch.ones(3), v=torch.ones(3))
    run, x = thermit.jit(lambda x: x * space.k + space.w * space.v).compile(torch.ones(3)), torch.ones(3)
    assert run(x).tolist() == [3, 3, 3]
    space.k = 4
    with pytest.raises(TypeError, match=r"space\.k: 2 -> 4"):
        run(x)
    space.k, space.v = 2, space.w
    with pytest.raises(TypeError, match=r"space\.\w and .*space\.\w are one object"):
        run(x)
    space.v, space.w = torch.ones(3), torch.ones(4)
    with pytest.raises(TypeError, match=r"space\.w: float32\[3\].* -> float32\[4\]"):
        run(x)


@pytest.mark.parametrize("on_miss", ["error", "eager", "compile"])
def test_compile_beforehand(on_miss):
    f = thermit.jit(scaled, on_miss=on_miss, max_variants=1)
    for n in (1, 2, 3):
        f.compile(thermit.TensorSpec((n,)), 3.0)
    f.compile(torch.ones(2), 3.0)
    assert compiled(f) == 3
    for n in (1, 2, 3, 2):
        assert torch.equal(f(torch.ones(n), 3.0), torch.full((n,), 4.0))
    assert compiled(f) == 3 and f._entry.hits == 4
    if on_miss == "error":
        with pytest.raises(UnexpectedCompileError, match=r"x: float32\[3\].*float32\[4\](.|\n)*f\.compile\(\*args\)"):
            f(torch.ones(4), 3.0)


def test_compile_beforehand_of_a_method():
    class Model:
        def __init__(self):
            self.w = torch.ones(3)

        @thermit.jit(on_miss="error")
        def step(self, x):
            return x * self.w

    model = Model()
    model.step.compile(torch.ones(3))
    model.step.compile(torch.ones(2, 3))
    assert model.step(torch.ones(2, 3)).shape == (2, 3) and model.step(torch.ones(3)).shape == (3,)


@pytest.mark.parametrize(
    "changes, text",
    [
        ({"debug": "x"}, "debug='x': must be of type int"),
        ({"disable": 1}, "disable=1: must be of type bool"),
        ({"skip": "simplify"}, "skip='simplify': must be of type tuple"),
        ({"nope": 0}, "no option is called nope; there are debug, skip"),
    ],
)
def test_options_are_checked(changes, text):
    before = config.current
    with pytest.raises(TypeError, match=text):
        thermit.configure(**changes)
    assert config.current is before


def test_a_method_jitted_in_its_place():
    class Model:
        def __init__(self):
            self.w = torch.ones(3)
            self.step = thermit.jit(self.step, strict=True)

        def step(self, x):
            return x * self.w

        def twice(self, x):
            return self.step(self.step(x))

    model, other = Model(), Model()
    other.w = torch.full((3,), 5.0)
    twice = thermit.jit(model.twice, strict=True)
    for _ in range(2):
        assert model.step(torch.ones(3)).tolist() == [1, 1, 1] and other.step(torch.ones(3)).tolist() == [5, 5, 5]
        assert twice(torch.ones(3)).tolist() == [1, 1, 1]
    model.w = torch.full((3,), 2.0)
    assert model.step(torch.ones(3)).tolist() == [2, 2, 2] and twice(torch.ones(3)).tolist() == [4, 4, 4]
    model.step = lambda x: x + 7
    assert twice(torch.ones(3)).tolist() == [15, 15, 15]
    assert compiled(other.step) == 1


def test_why_a_call_is_eager():
    f, x = thermit.jit(scaled, on_miss="eager"), torch.ones(3)
    f(x)
    assert f.explain(x).eager == "" and "on_miss" in f.explain(torch.ones(4)).eager
    with thermit.disable():
        assert f.explain(x).eager == "thermit is disabled here"
    g = thermit.jit(scaled, max_variants=1)
    g(x)
    with pytest.warns(ThermitWarning) as told:
        assert g.explain(torch.ones(4)).eager == "it has been compiled 1 times (max_variants)"
    assert told[0].filename == __file__
    h = thermit.jit(lambda x: x.sum().item(), max_variants=2)
    for n in (1, 2):
        with pytest.warns(ThermitWarning, match="value of a tensor: .item"):
            h(torch.ones(n))
    with pytest.warns(ThermitWarning, match="could not be compiled for 2 kinds of calls.*value of a tensor: .item"):
        assert "2 kinds of calls could not be compiled" in h.explain(torch.ones(3)).eager
    boxes = thermit.jit(lambda p: p[0] + p[1])
    assert boxes.explain((x, x)).eager == boxes.explain((x, x)).eager == boxes.explain([x, x.clone()]).eager == ""


def test_what_was_compiled_again():
    space = types.SimpleNamespace(k=1)
    f, x = thermit.jit(lambda x, n=1: x * space.k * n), torch.ones(2)
    f(x)
    for k in (2, 3):
        space.k = k
        f(x)
        f(x, k)
    again = f.explain(x).recompiled
    assert again[0].endswith("space.k: 1 -> 2") and again[1] == "arguments: x -> x, n" and any("n: 2 -> 3" in line for line in again)
    assert len(set(again)) == len(again)


def test_explain():
    def f(x):
        return torch.cholesky_inverse(x).relu().sum()

    j, x = thermit.jit(f), torch.eye(4)
    record = j.explain(x)
    assert record.eager == "" and record.calls == ("aten.cholesky_inverse.default",) and record.kernels >= 1 and record.cost["flops"] >= 16
    for word in ("1 kernel and 1 call\n", "bytes moved", "compiled in", "run by PyTorch", "holds while"):
        assert word in str(record)
    j(torch.randn(5, 5))
    assert "compiled again because" in str(j.explain(x)) and "float32[5,5]" in str(j.explain(x))
    with pytest.warns(ThermitWarning):
        text = str(thermit.jit(lambda x: x.sum().item()).explain(x))
    assert "runs eagerly: reads the value of a tensor: .item()" in text and "test_api.py" in text


def test_arguments_are_not_kept():
    j = thermit.jit(lambda x, d: x + d["y"])
    x, y = torch.ones(3), torch.ones(3)
    j(x, {"y": y})
    j(x, {"y": y})
    gone = weakref.ref(x), weakref.ref(y)
    del x, y
    gc.collect()
    assert gone[0]() is None and gone[1]() is None


def test_stages_do_not_keep_the_tensors_they_were_made_with():
    w = torch.ones(3)
    j, x = thermit.jit(lambda x: x * w + torch.tensor([1.0, 2.0, 3.0])), torch.ones(3)
    gone, stages = weakref.ref(x), (j.trace(x), j.compile(x))
    del x
    gc.collect()
    assert gone() is None
    w.fill_(4.0)
    assert stages[1](torch.ones(3)).tolist() == [5.0, 6.0, 7.0]
    with pytest.raises(TypeError, match=r"x: float32\[3\].* -> float32\[4\]"):
        stages[1](torch.ones(4))


def test_empty_cache():
    j, pool = thermit.jit(lambda x: x * 2), runtime().pool
    j(torch.ones(1 << 20))
    assert pool.statistics().idle_bytes >= 4 << 20
    thermit.empty_cache()
    assert pool.statistics().idle_bytes == 0


@pytest.mark.filterwarnings("ignore::thermit.ThermitWarning")
def test_what_cannot_be_compiled_is_not_tried_for_ever():
    tries = []

    def f(x):
        tries.append(torch.compiler.is_compiling() is not False)
        return x.tolist()

    j = thermit.jit(f, max_variants=3)
    for n in range(1, 9):
        assert j(torch.ones(n)) == [1.0] * n
    assert sum(tries) == 3 and len(tries) == 8


def test_generators_run_eagerly():
    @thermit.jit
    def g(x):
        yield x * 2
        yield x + 1

    x = torch.ones(2)
    assert [t.tolist() for t in g(x)] == [[2.0, 2.0], [2.0, 2.0]] and "generator" in str(g.explain(x))


def test_a_recompilation_by_aliasing_says_so():
    f = thermit.jit(lambda a, b: a + b)
    x, y = torch.ones(4), torch.ones(4)
    f(x, y)
    f(x, x)
    assert "shares memory" in f.explain(x, x).recompiled[0]
