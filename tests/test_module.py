"""The twin of a module: it is the module in all but its call, which is compiled."""

from __future__ import annotations

import copy
import gc
import inspect
import io
import pickle
import warnings
import weakref
from collections import OrderedDict
from dataclasses import dataclass, fields
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize, prune

import thermit
from thermit import ThermitWarning, UnexpectedCompileError, UnsupportedError
from thermit.capture.signature import Call


class Block(nn.Module):
    def __init__(self, n=4):
        super().__init__()
        self.lin = nn.Linear(n, n)
        self.norm = nn.LayerNorm(n)
        self.register_buffer("shift", torch.ones(n))
        self.gain = 2.0

    def forward(self, x, scale=None, *, flag=False):
        y = self.norm(self.lin(x)) * self.gain + self.shift
        if scale is not None:
            y = y * scale
        return (y, x) if flag else y


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.out = nn.Linear(4, 7, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, ids):
        return self.out(self.embed(ids))


X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


def state(twin):
    return type(twin).__thermit_jitted__._state


def hits(twin):
    return type(twin).__thermit_jitted__._entry.hits


@torch.no_grad()
def agrees(twin, /, *args, compiled=True, **kwargs):
    """The twin's next calls give what the module gives, which shares its state; by compiled code from the second call on."""
    module = type(twin).__thermit_module__
    for _ in range(2):
        before = hits(twin)
        assert_same(twin(*args, **kwargs), module(*args, **kwargs))
    if compiled:
        assert hits(twin) == before + 1, str(twin.explain(*args, **kwargs))[:500]


def assert_same(a, b):
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
        assert a.stride() == b.stride() and a.dtype is b.dtype and a.requires_grad == b.requires_grad
    elif isinstance(a, tuple | list):
        assert len(a) == len(b)
        for left, right in zip(a, b, strict=True):
            assert_same(left, right)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_same(a[key], b[key])
    else:
        assert a == b


# ---------------------------------------------------------------------------------------------- it is the module
def test_one_state():
    module = Block()
    twin = thermit.jit(module)
    assert twin is not module and twin.__dict__ is module.__dict__
    twin.gain = 3.0
    module.other = 1
    assert module.gain == 3.0 and twin.other == 1
    twin.extra = nn.Linear(4, 4)
    assert module.extra is twin.extra and "extra.weight" in module.state_dict()
    del module.extra
    assert not hasattr(twin, "extra")
    assert list(twin.state_dict()) == list(module.state_dict()) and all(a is b for a, b in zip(twin.parameters(), module.parameters(), strict=True))
    assert [name for name, _ in twin.named_modules()] == [name for name, _ in module.named_modules()]


def test_it_looks_like_the_module():
    module = Block()
    twin = thermit.jit(module)
    assert isinstance(twin, Block) and isinstance(twin, nn.Module) and twin.__class__ is Block and issubclass(type(twin), Block)
    assert (type(twin).__name__, type(twin).__qualname__, type(twin).__module__) == ("Block", "Block", __name__)
    assert repr(twin) == repr(module) and twin.__doc__ == module.__doc__
    assert inspect.signature(twin.forward) == inspect.signature(module.forward) == inspect.signature(twin)
    assert inspect.signature(type(twin)) == inspect.signature(Block) == inspect.signature(twin.__class__)
    assert "lin" in dir(twin)


def test_methods_that_give_themselves():
    twin = thermit.jit(Block())
    for again in (
        twin.eval(),
        twin.train(),
        twin.double(),
        twin.half(),
        twin.float(),
        twin.to(torch.float64),
        twin.requires_grad_(False),
    ):
        assert again is twin
    seen = []
    assert twin.apply(lambda m: seen.append(type(m))) is twin and Block in seen and nn.Linear in seen
    assert not twin.training or twin.eval().training is False


def test_training_flag_is_one():
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    twin = thermit.jit(module).eval()
    assert not module.training and not module[1].training and len(twin) == 2 and twin[0] is module[0]
    agrees(twin, X)
    module.train()
    assert twin.training
    with torch.no_grad():
        torch.manual_seed(3)
        a = twin(X)
        torch.manual_seed(3)
        assert_same(a, module(X))


def test_a_new_object_of_its_class_is_an_ordinary_one():
    twin = thermit.jit(Block())
    for other in (type(twin)(), twin.__class__(4), twin.__new__(type(twin))):
        assert type(other) is Block
    replica = nn.Linear._replicate_for_data_parallel(thermit.jit(nn.Linear(2, 2)))
    assert type(replica) is nn.Linear


def test_copies():
    twin = thermit.jit(Block(), max_variants=3)
    agrees(twin, X)
    other = copy.deepcopy(twin)
    assert isinstance(other, Block) and state(other).max_variants == 3 and other.lin.weight is not twin.lin.weight
    with torch.no_grad():
        other.lin.weight.mul_(2)
        assert not torch.equal(other(X), twin(X))
    agrees(other, X)
    agrees(twin, X)
    shallow = copy.copy(twin)
    assert shallow.lin is twin.lin and shallow.__dict__ is not twin.__dict__
    agrees(shallow, X)
    holder = nn.ModuleList([twin, twin, type(twin).__thermit_module__])
    copied = copy.deepcopy(holder)
    assert copied[0] is copied[1] and copied[2] is type(copied[0]).__thermit_module__


def test_pickle_and_save():
    twin = thermit.jit(Block(), strict=True, max_variants=5)
    file = io.BytesIO()
    torch.save(twin, file)
    file.seek(0)
    for again in (pickle.loads(pickle.dumps(twin)), torch.load(file, weights_only=False)):
        assert again.__class__ is Block and state(again).strict and state(again).max_variants == 5
        with torch.no_grad():
            assert torch.equal(again(X), twin(X))
        agrees(again, X)


def test_a_twin_can_be_collected():
    module = Block()
    twin = thermit.jit(module)
    agrees(twin, X)
    gone = weakref.ref(twin), weakref.ref(module)
    del twin, module
    gc.collect()
    assert gone[0]() is None and gone[1]() is None


# ---------------------------------------------------------------------------------------------- calls
def test_calls():
    twin = thermit.jit(Block())
    agrees(twin, X)
    agrees(twin, X, None)
    agrees(twin, X, scale=torch.full((4,), 3.0))
    agrees(twin, x=X, flag=True)
    agrees(twin, X, torch.full((4,), 0.5), flag=False)
    assert state(twin).compiled == 5
    with torch.inference_mode():
        assert twin(X).is_inference() and twin(X).is_inference()
    agrees(twin, torch.randn(5, 4))


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x, mask=None, wants=True):
        h = self.lin(x)
        return Output(last=h, pooled=h.mean(-1), nothing=None, states=(x * 2, h) if wants else None)


@dataclass
class Output(OrderedDict):
    """As the models of transformers answer: a dict of what is there, and a dataclass."""

    last: torch.Tensor = None
    pooled: torch.Tensor = None
    nothing: torch.Tensor | None = None
    states: tuple[torch.Tensor, ...] | None = None

    def __post_init__(self):
        for f in fields(self):
            if getattr(self, f.name) is not None:
                self[f.name] = getattr(self, f.name)

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setattr__(key, value)


class Pair(NamedTuple):
    a: torch.Tensor
    b: torch.Tensor | None


def test_results_of_models():
    twin = thermit.jit(Wide())
    for wants in (True, False):
        agrees(twin, X, wants=wants)
        with torch.no_grad():
            out = twin(X, wants=wants)
        assert type(out) is Output and list(out) == ["last", "pooled"] + ["states"] * wants and out.nothing is None
        assert out["last"] is out.last and (not wants or out.states[1] is out.last)
        again = twin
        with torch.no_grad():
            assert again(X, wants=wants) is not out
    for form in (lambda h: Pair(h, None), lambda h: {"a": h, "b": [h, None, (h + 1, True)]}, lambda h: ((h, None), [h], "s")):

        class Shaped(nn.Module):
            def forward(self, x, form=form):
                return form(x * 2)

        agrees(thermit.jit(Shaped()), X)


def test_gradients_are_eager_and_explained():
    module = Block()
    twin = thermit.jit(module)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in range(12):  # more shapes than max_variants: they do not keep later calls from being compiled
            twin(torch.randn(n + 1, 4)).sum().backward()
    assert module.lin.weight.grad is not None and state(twin).compiled == 0
    assert "requires grad and gradients are on" in twin.explain(X).eager
    agrees(twin, X)
    assert twin.explain(X).eager != ""
    with torch.no_grad():
        assert twin.explain(X).eager == ""
    with pytest.raises(UnsupportedError, match="requires grad and gradients are on"):
        thermit.jit(Block(), strict=True)(X)
    frozen = thermit.jit(Block().requires_grad_(False))
    before = hits(frozen)
    assert torch.equal(frozen(X), frozen(X)) and hits(frozen) == before + 1


def test_gradients_of_functions_over_modules_do_not_count():
    module = Block()
    f = thermit.jit(lambda x: module(x))
    for n in range(10):
        f(torch.randn(n + 1, 4)).sum().backward()
    with torch.no_grad():
        f(X), f(X)
    assert f._state.compiled == 1 and f._entry.hits == 1


def test_options():
    twin = thermit.jit(Block(), on_miss="error")
    agrees(twin, X)
    with pytest.raises(UnexpectedCompileError), torch.no_grad():
        twin(torch.randn(9, 4))
    few = thermit.jit(max_variants=1)(Block())
    agrees(few, X)
    with pytest.warns(ThermitWarning, match="Block has been compiled 1 times"), torch.no_grad():
        few(torch.randn(9, 4))
    with thermit.disable(), torch.no_grad():
        before = hits(few)
        few(X)
        assert hits(few) == before


@torch.no_grad()
def test_stages():
    twin = thermit.jit(Block())
    assert "float32[3,4]" in twin.trace(X).as_text() and twin.lower(X).as_text("loops")
    assert torch.allclose(twin.compile(X)(X), twin(X)) and "kernels" in str(twin.explain(X))
    assert "Block" in str(twin.explain(X))


@torch.no_grad()
def test_arguments_are_called_as_forward_calls_them():
    twin = thermit.jit(Block())
    twin(X)
    twin(torch.randn(5, 4))
    assert "tensor x: float32[3,4]" in str(twin.explain(X).recompiled) and "different objects" in str(twin.explain(X))
    assert "args[0]" not in str(twin.explain(X))


class Named(nn.Module):
    """Has attributes of these names: its own win."""

    def __init__(self):
        super().__init__()
        self.trace = nn.Linear(4, 4)
        self.explain = "because"
        self.register_buffer("lower", torch.ones(4))

    def compile(self, *args):
        return "compiled", self

    def forward(self, x):
        return self.trace(x) * self.lower


def test_the_modules_own_names_win():
    module = Named()
    twin = thermit.jit(module)
    assert twin.trace is module.trace and twin.explain == "because" and twin.lower is module.lower and twin.compile(X) == ("compiled", twin)
    late = thermit.jit(Block())
    late.explain = nn.Identity()
    late.lower = 3
    assert type(late.explain) is nn.Identity and late.lower == 3
    del late.explain
    assert callable(late.explain)
    compiled = thermit.jit(Block())
    compiled.compile(backend="eager")  # Module.compile: torch's
    assert compiled._compiled_call_impl is not None


# ---------------------------------------------------------------------------------------------- kinds of modules
class Slotted(nn.Module):
    __slots__ = ("_factor", "later")

    def __init__(self):
        super().__init__()
        object.__setattr__(self, "_factor", 2.0)

    def forward(self, x):
        return x * self._factor


class Forwarding(nn.Module):
    """Own `__getattr__` and `__setattr__`, as wrappers have."""

    def __init__(self):
        super().__init__()
        self.inner = Block()
        self.writes = 0

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    def __setattr__(self, name, value):
        if name == "gain":
            setattr(self.inner, name, value)
        else:
            super().__setattr__(name, value)

    def forward(self, x):
        return self.inner(x)


class Calling(nn.Module):
    def __call__(self, x, k=1):
        return self.forward(x) * 2 + k

    def forward(self, x):
        return x + 1


class Registered(nn.Module):
    kinds = []

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        Registered.kinds.append(cls.__name__)

    def forward(self, x):
        return x * 3


class Meta(type):
    made = 0

    def __new__(cls, name, bases, namespace):
        Meta.made += 1
        return super().__new__(cls, name, bases, namespace)


class OfMeta(nn.Module, metaclass=Meta):
    def forward(self, x):
        return x - 1


def test_classes_with_their_own_ways():
    slotted = Slotted()
    twin = thermit.jit(slotted)
    assert twin._factor == 2.0
    agrees(twin, X)
    twin._factor = 5.0
    assert slotted._factor == 5.0 and torch.equal(twin(X), X * 5)
    assert not hasattr(twin, "later")
    forwarding = thermit.jit(Forwarding())
    assert forwarding.lin is forwarding.inner.lin
    agrees(forwarding, X)
    forwarding.gain = 7.0
    assert forwarding.inner.gain == 7.0 == forwarding.gain
    agrees(forwarding, X)
    calling = thermit.jit(Calling())
    assert torch.equal(calling(X, k=3), (X + 1) * 2 + 3) and list(inspect.signature(calling).parameters) == ["x", "k"]
    agrees(calling, X)
    assert torch.equal(calling.forward(X), X + 1)

    class Sub(Registered):
        pass

    before, made = list(Registered.kinds), Meta.made
    agrees(thermit.jit(Sub()), X)
    agrees(thermit.jit(OfMeta()), X)
    assert Registered.kinds == before and Meta.made == made and isinstance(type(thermit.jit(OfMeta())), Meta)


def test_containers_and_generated_modules():
    layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    agrees(thermit.jit(layers), X)
    assert isinstance(layers[:2], nn.Sequential) and type(thermit.jit(layers)[:2]) is nn.Sequential
    graph = torch.fx.symbolic_trace(Convolved())
    twin = thermit.jit(graph)
    x = torch.randn(2, 3, 8, 8)
    agrees(twin.eval(), x)
    assert type(twin).__name__ == type(graph).__name__ and "conv" in twin.code
    agrees(copy.deepcopy(twin), x)


def test_jit_of_what_is_compiled_already():
    module = Block()
    twin = thermit.jit(module)
    again = thermit.jit(twin, max_variants=2)
    assert type(again).__thermit_module__ is module and state(again).max_variants == 2
    agrees(again, X)
    scripted = torch.jit.script(nn.Linear(4, 4))
    traced = torch.jit.trace(nn.Linear(4, 4), X)
    compiled = torch.compile(Block(), backend="eager")
    parallel = nn.DataParallel(Block())
    for left in (scripted, traced, compiled, parallel):
        assert thermit.jit(left) is left
        with pytest.raises(UnsupportedError, match="can only run as it is"):
            thermit.jit(left, strict=True)


def test_classes_are_refused_with_advice():
    with pytest.raises(TypeError, match=r"thermit.jit\(Block\(\.\.\.\)\)"):
        thermit.jit(Block)
    with pytest.raises(TypeError, match="decorate its forward"):

        @thermit.jit
        class Net(nn.Module):
            pass


class Decorated(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    @thermit.jit
    def forward(self, x):
        return self.lin(x) * 2

    def part(self, x):
        return self.lin(x) + 1


@torch.no_grad()
def test_methods():
    module = Decorated()
    want = module.lin(X) * 2
    for _ in range(3):
        assert torch.allclose(module(X), want)
    for owner in (module, thermit.jit(module)):
        method = thermit.jit(owner.part)
        for _ in range(3):
            assert torch.allclose(method(X), module.lin(X) + 1)
        assert method._entry.hits == 2
        module.lin.weight.mul_(3)
        assert torch.allclose(method(X), module.lin(X) + 1)
        module.lin = nn.Linear(4, 4)
        assert torch.allclose(method(X), module.lin(X) + 1)


def test_submodules():
    parent = nn.Sequential(Block(), nn.ReLU(), Block())
    with torch.no_grad():
        want = parent(X)
    parent[2] = inner = thermit.jit(parent[2])
    assert list(parent.state_dict())[-1] == "2.norm.bias" and len(list(parent.parameters())) == 8
    with torch.no_grad():
        for _ in range(3):
            assert torch.allclose(parent(X), want)
    assert hits(inner) == 2
    outer = thermit.jit(parent)  # one program: the twin inside is traced through
    agrees(outer, X)
    before = hits(inner)
    for change in (
        lambda: setattr(inner, "gain", 5.0),
        lambda: setattr(parent[2].lin, "bias", None),
        lambda: inner.register_forward_hook(lambda m, a, o: o + 1),
    ):
        change()
        agrees(outer, X)
    with torch.no_grad():
        outer(X)
    assert hits(inner) - before == 3  # by the eager parent in `agrees`, never from inside the compiled one
    agrees(thermit.jit(parent[0]), X)


def test_transforms_and_other_compilers_see_an_ordinary_module():
    twin = thermit.jit(Block().requires_grad_(False))
    want = twin(X)
    assert torch.allclose(torch.func.functional_call(twin, dict(twin.named_parameters()), (X,)), want)
    doubled = {name: p * 2 for name, p in twin.named_parameters()}
    module = type(twin).__thermit_module__
    assert torch.allclose(torch.func.functional_call(twin, doubled, (X,)), torch.func.functional_call(module, doubled, (X,)))
    assert torch.allclose(torch.vmap(twin)(X), want, atol=1e-6)
    assert torch.allclose(torch.jit.trace(twin, X)(X), want)
    assert torch.allclose(torch.compile(twin, backend="eager")(X), want)
    assert torch.allclose(torch.export.export(twin, (X,)).module()(X), want)


def test_uninitialised_modules():
    module = nn.Sequential(nn.LazyLinear(3), nn.ReLU())
    twin = thermit.jit(module)
    with torch.no_grad():
        assert twin(X).shape == (3, 3)
    assert type(module[0]) is nn.Linear
    agrees(twin, X)
    lazy = thermit.jit(nn.LazyLinear(3))
    with torch.no_grad():
        assert lazy(X).shape == (3, 3)
    assert lazy.__class__ is nn.Linear and isinstance(lazy, nn.Linear) and "in_features=4" in repr(lazy)
    assert type(lazy).__name__ == type(lazy).__qualname__ == "Linear"
    agrees(lazy, X)


# ---------------------------------------------------------------------------------------------- effects
def test_hooks():
    module = Block()
    twin = thermit.jit(module)
    agrees(twin, X)
    seen = []
    handles = [
        twin.register_forward_pre_hook(lambda m, args: (args[0] * 2,)),
        module.register_forward_hook(lambda m, args, kwargs, out: out + kwargs.get("k", 1), with_kwargs=True),
        module.lin.register_forward_hook(lambda m, args, out: out * 3),
        nn.modules.module.register_module_forward_hook(lambda m, args, out: out - 1 if isinstance(m, nn.LayerNorm) else None),
    ]
    agrees(twin, X)
    for handle in handles:
        handle.remove()
        agrees(twin, X)
    handle = twin.register_forward_hook(lambda m, args, out: seen.append(m))
    with pytest.warns(ThermitWarning), torch.no_grad():
        twin(X)
        twin.requires_grad_(False)(X)
    assert len(seen) == 2 and isinstance(seen[0], Block)
    handle.remove()
    agrees(twin, X)


def test_hooks_that_are_called_after_exceptions():
    counts = []
    for make in (lambda m: m, thermit.jit):
        called = []
        m = make(nn.Sequential(nn.Linear(3, 3), nn.ReLU()))
        handle = m[0].register_forward_hook(lambda *_, called=called: called.append(1), always_call=True)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(2):
                m(torch.ones(2, 3))
                with pytest.raises(RuntimeError):
                    m(torch.ones(2, 2))
            handle.remove()
            m(torch.ones(2, 3))
        counts.append(len(called))
    assert counts == [4, 4]
    assert state(m).compiled == 1


def test_the_dict_of_both_is_replaced():
    module = Block().eval()
    twin = thermit.jit(module)
    twin.__dict__ = dict(module.__dict__)
    assert module.__dict__ is twin.__dict__
    twin.fresh = 3
    assert module.fresh == 3


def test_buffers_written_in_forward():
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    reference = copy.deepcopy(module)
    twin = thermit.jit(module).train()
    with torch.no_grad():
        for n in range(4):
            assert_same(twin(X + n), reference(X + n))
    assert hits(twin) == 3 and module[1].num_batches_tracked == 4
    for (name, a), b in zip(module.state_dict().items(), reference.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, msg=name)
    agrees(twin.eval(), X)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * 2


class Caching(nn.Module):
    def forward(self, x):
        self.last = x * 2
        return self.last + 1


def test_attributes_written_in_forward():
    twin = thermit.jit(Counting())
    with pytest.warns(ThermitWarning, match=r"changes self\.calls"):
        for _ in range(3):
            assert torch.equal(twin(X), X * 2)
        assert twin.calls == 3 and "changes self.calls" in twin.explain(X).eager
    caching = thermit.jit(Caching())
    with pytest.warns(ThermitWarning):
        caching(X)
        assert torch.equal(caching.last, X * 2) and torch.equal(caching(X * 3), X * 6 + 1) and torch.equal(caching.last, X * 6)
    with pytest.raises(UnsupportedError, match=r"changes self\.calls"):
        thermit.jit(Counting(), strict=True)(X)


def test_it_can_be_called_from_itself():
    class Recursive(nn.Module):
        def generate(self, x, n):
            for _ in range(n):
                x = self(x)
            return x

        def forward(self, x):
            return x * 2

    twin = thermit.jit(Recursive())
    assert torch.equal(twin.generate(X, 3), X * 8) and hits(twin) == 2


# ---------------------------------------------------------------------------------------------- nothing is stale
class Lora(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner, self.a, self.b = inner, nn.Linear(4, 1, bias=False), nn.Linear(1, 4, bias=False)

    def forward(self, x):
        return self.inner(x) + self.b(self.a(x))


def optimiser_step(m, opt=torch.optim.SGD):
    with torch.enable_grad():
        m(X).square().sum().backward()
    opt(m.parameters(), lr=0.1).step()
    m.zero_grad()


def reregistered(m):
    del m.shift
    m.register_buffer("shift", torch.full((4,), 9.0))


def untie(m):
    m.twice = nn.Linear(4, 4)
    m.twice.weight = m.lin.weight


def parametrized(m):
    parametrize.register_parametrization(m.lin, "weight", Doubled())


class Doubled(nn.Module):
    def forward(self, w):
        return w * 2


WAYS = {
    "optimiser step": optimiser_step,
    "adam step": lambda m: optimiser_step(m, torch.optim.Adam),
    "load_state_dict": lambda m: m.load_state_dict({k: v * 2 for k, v in m.state_dict().items()}),
    "load_state_dict, assigned": lambda m: m.load_state_dict({k: v * 2 for k, v in m.state_dict().items()}, assign=True),
    "in place": lambda m: m.lin.weight.mul_(3),
    "in place, a view": lambda m: m.lin.weight[0].fill_(3),
    "copy_": lambda m: m.lin.bias.copy_(torch.ones(4)),
    "data assigned": lambda m: setattr(m.lin.weight, "data", torch.ones(4, 4)),
    "data assigned, another layout": lambda m: setattr(m.lin.weight, "data", torch.randn(4, 4).t()),
    "data in place": lambda m: m.lin.weight.data.mul_(3),
    "data filled": lambda m: m.norm.weight.data.fill_(0.25),
    "detached in place": lambda m: m.lin.weight.detach().add_(1),
    "numpy": lambda m: m.lin.weight.detach().numpy().fill(2),
    "parameter replaced": lambda m: setattr(m.lin, "weight", nn.Parameter(torch.ones(4, 4))),
    "parameter removed": lambda m: setattr(m.lin, "bias", None),
    "dtype": lambda m: m.to(torch.float64),
    "dtype and back": lambda m: m.double().float().lin.weight.data.mul_(2),
    "set_": lambda m: m.lin.weight.data.set_(torch.ones(4, 4)),
    "buffer in place": lambda m: m.shift.add_(5),
    "buffer assigned": lambda m: setattr(m, "shift", torch.full((4,), 7.0)),
    "buffer of another shape": lambda m: setattr(m, "shift", torch.full((1,), 7.0)),
    "buffer registered again": reregistered,
    "submodule replaced": lambda m: setattr(m, "lin", nn.Linear(4, 4)),
    "submodule of another class": lambda m: setattr(m, "norm", nn.Identity()),
    "submodule, set_submodule": lambda m: m.set_submodule("lin", nn.Linear(4, 4, bias=False)),
    "a low-rank adapter": lambda m: setattr(m, "lin", Lora(m.lin)),
    "flag": lambda m: setattr(m, "gain", 4.0),
    "flag of a child": lambda m: setattr(m.norm, "eps", 1.0),
    "forward of an instance": lambda m: setattr(m.lin, "forward", lambda x: x * 2),
    "hook": lambda m: m.register_forward_hook(lambda m, a, o: o + 1),
    "hook of a child": lambda m: m.norm.register_forward_pre_hook(lambda m, a: (a[0] * 2,)),
    "requires_grad": lambda m: m.requires_grad_(False),
    "requires_grad of one": lambda m: m.lin.bias.requires_grad_(False),
    "parametrization": parametrized,
    "parametrization of itself": lambda m: parametrize.register_parametrization(m, "shift", Doubled()),
    "weight_norm": lambda m: nn.utils.parametrizations.weight_norm(m.lin),
    "spectral_norm": lambda m: nn.utils.parametrizations.spectral_norm(m.lin).eval(),
    "pruning (its hook writes an attribute: eager)": lambda m: prune.random_unstructured(m.lin, "weight", 0.5),
    "tied": lambda m: setattr(m.norm, "weight", m.lin.bias),
    "dict": lambda m: m.__dict__.update(gain=1.5),
    "tables": lambda m: m._buffers.update(shift=torch.zeros(4)),
    "class": lambda m: setattr(m.lin, "__class__", Half),
    "method of the class": lambda m: setattr(Half, "forward", Half.forward),
    "to_empty": lambda m: m.lin.to_empty(device="cpu").weight.data.fill_(1) + m.lin.bias.data.fill_(1),
}


class Half(nn.Linear):
    def forward(self, x):
        return super().forward(x) / 2


@pytest.mark.parametrize("through", ["module", "twin"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::thermit.ThermitWarning", "ignore:.*non-leaf:UserWarning")
def test_nothing_is_stale(way, through):
    torch.manual_seed(0)
    module = Block()
    twin = thermit.jit(module)
    agrees(twin, X)
    with torch.no_grad():
        WAYS[way](module if through == "module" else twin)
    compiled = not way.endswith("eager)")
    agrees(twin, X.to(next(module.lin.parameters()).dtype), compiled=compiled)
    module.load_state_dict({k: v + 1 for k, v in module.state_dict().items()})
    agrees(twin, X.to(next(module.lin.parameters()).dtype), compiled=compiled)


def test_what_was_added_can_be_removed():
    module = Block()
    twin = thermit.jit(module)
    agrees(twin, X)
    parametrized(twin)
    assert parametrize.is_parametrized(module.lin)
    agrees(twin, X)
    parametrize.remove_parametrizations(module.lin, "weight")
    agrees(twin, X)
    prune.l1_unstructured(module.lin, "weight", 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ThermitWarning)
        agrees(twin, X, compiled=False)
    prune.remove(module.lin, "weight")
    agrees(twin, X)
    module.lin = Lora(module.lin)
    agrees(twin, X)
    module.lin = module.lin.inner
    agrees(twin, X)


def test_parametrizations_of_the_twin_itself():
    for first in ("module", "twin"):
        module = nn.Linear(4, 4)
        twin = thermit.jit(module)
        agrees(twin, X)
        parametrize.register_parametrization(module if first == "module" else twin, "weight", Doubled())
        assert parametrize.is_parametrized(twin) and twin.__class__ is type(module) and isinstance(twin, nn.Linear)
        assert torch.equal(twin.weight, module.weight)
        agrees(twin, X)
        with torch.no_grad():
            twin.bias.add_(1)
        agrees(twin, X)
        parametrize.remove_parametrizations(twin if first == "module" else module, "weight")
        assert type(module) is nn.Linear and twin.__class__ is nn.Linear and torch.equal(twin.weight, module.weight)
        agrees(twin, X)
        twin.weight = nn.Parameter(torch.ones(4, 4))
        agrees(twin, X)


def test_tied_weights():
    module = Tied()
    twin = thermit.jit(module)
    ids = torch.tensor([1, 2, 6])
    agrees(twin, ids)
    with torch.no_grad():
        module.embed.weight.mul_(2)
    agrees(twin, ids)
    module.out.weight = nn.Parameter(torch.randn(7, 4))
    agrees(twin, ids)
    with torch.no_grad():
        module.out.weight.mul_(2)
    agrees(twin, ids)
    module.embed.weight = module.out.weight
    agrees(twin, ids)
    with torch.no_grad():
        module.embed.weight.data.fill_(0.5)
    agrees(twin, ids)


class Convolved(nn.Module):
    """What a compiler may fold and pack: a convolution and its norm, products of some size."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.up, self.down = nn.Linear(64, 96), nn.Linear(96, 64)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x)))
        return self.down(torch.nn.functional.gelu(self.up(x.flatten(2))))


FOLDED = {
    "weight in place": lambda m: m.conv.weight.mul_(2),
    "weight's data in place": lambda m: m.conv.weight.data.mul_(2),
    "weight detached, in place": lambda m: m.up.weight.detach().mul_(2),
    "linear's data in place": lambda m: m.up.weight.data.mul_(0.5),
    "linear's data assigned": lambda m: setattr(m.down.weight, "data", torch.randn(64, 96)),
    "linear's data through numpy": lambda m: m.down.weight.detach().numpy().fill(0.25),
    "one element": lambda m: m.down.weight.data.view(-1)[-1].add_(100),
    "statistics": lambda m: m.norm.running_mean.add_(1),
    "statistics' data": lambda m: m.norm.running_var.data.mul_(3),
    "statistics replaced": lambda m: setattr(m.norm, "running_var", torch.full((8,), 2.0)),
    "norm's weight": lambda m: m.norm.weight.data.fill_(3),
    "eps": lambda m: setattr(m.norm, "eps", 0.5),
    "train and back": lambda m: (m.train()(torch.randn(2, 3, 8, 8)), m.eval()),
    "trained without gradients": lambda m: m.norm.train(),
    "loaded": lambda m: m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()}),
    "loaded, assigned": lambda m: m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()}, assign=True),
    "replaced, the old one's memory may be used again": lambda m: setattr(m.up, "weight", nn.Parameter(m.up.weight.data.flip(0))),
    "double": lambda m: m.double(),
    "channels last": lambda m: m.to(memory_format=torch.channels_last).conv.weight.data.mul_(2),
}


@pytest.mark.parametrize("way", FOLDED)
def test_nothing_folded_or_packed_is_stale(way):
    torch.manual_seed(0)
    module = Convolved().eval()
    module.norm.running_mean.normal_()
    twin = thermit.jit(module)
    x = torch.randn(2, 3, 8, 8)
    for _ in range(2):
        reference = copy.deepcopy(module)
        with torch.no_grad():
            for _ in range(2):
                torch.testing.assert_close(twin(x), module(x), rtol=1e-4, atol=1e-4)
            FOLDED[way](module)
            x = x.to(module.up.weight.dtype)
            want = copy.deepcopy(module)(x)
            torch.testing.assert_close(twin(x), want, rtol=1e-4, atol=1e-4)
        del reference


@pytest.mark.filterwarnings("ignore")
def test_an_encoder_with_padding_takes_the_way_that_it_takes_in_eager():
    """Where it is told that it is being compiled it leaves its fast path out, and padded places are no zeros."""
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    fast = thermit.jit(encoder)
    x, ends = torch.randn(3, 5, 8), torch.tensor([5, 3, 4])
    padding = torch.arange(5) >= ends[:, None]
    with torch.no_grad():
        for _ in range(2):
            got, want = fast(x, src_key_padding_mask=padding), encoder(x, src_key_padding_mask=padding)
            assert want[padding].eq(0).all() and got[padding].eq(0).all()
            torch.testing.assert_close(got, want)
        torch.testing.assert_close(fast(x), encoder(x))


class Mixed(nn.Module):
    """A part that PyTorch does, between parts that are fused."""

    def __init__(self, part, width):
        super().__init__()
        self.part, self.last = part, nn.Linear(width, 3)

    def forward(self, x):
        made = self.part(torch.tanh(x) if x.is_floating_point() else x)
        return torch.relu(self.last(made[0] if isinstance(made, tuple) else made))


PARTS = {
    "lstm": (lambda: nn.LSTM(8, 6, 2, bidirectional=True), 12, torch.randn(5, 2, 8)),
    "lstm_batch_first": (lambda: nn.LSTM(8, 6, batch_first=True), 6, torch.randn(5, 2, 8)),
    "lstm_projected": (lambda: nn.LSTM(8, 6, proj_size=3), 3, torch.randn(5, 2, 8)),
    "gru": (lambda: nn.GRU(8, 6, 2), 6, torch.randn(5, 2, 8)),
    "rnn": (lambda: nn.RNN(8, 6), 6, torch.randn(5, 2, 8)),
    "bag": (lambda: nn.EmbeddingBag(20, 6), 6, torch.randint(0, 20, (3, 4))),
    "bag_max": (lambda: nn.EmbeddingBag(20, 6, mode="max"), 6, torch.randint(0, 20, (3, 4))),
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_that_pytorch_does_are_calls_of_the_program(name):
    """Their workspaces have other shapes than on meta tensors: that stopped each call."""
    make, width, x = PARTS[name]
    module = Mixed(make(), width).eval()
    twin = thermit.jit(module, strict=True)
    with torch.no_grad():
        torch.testing.assert_close(twin(x), module(x))
        (variant,) = [v for found in state(twin).variants.values() for v in found]
        inputs = [source.read(Call((x,), {})) for source in variant.sources]
        (made,) = variant.compilation.program.run(inputs)  # raises Stopped where eager would have to run instead
        torch.testing.assert_close(made, module(x))


def test_packed_sequences():
    lstm = nn.LSTM(8, 6).eval()
    twin = thermit.jit(lstm)
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(5, 2, 8), torch.tensor([5, 3]))
    with torch.no_grad(), pytest.warns(ThermitWarning, match="PackedSequence"):
        assert torch.equal(twin(packed)[0].data, lstm(packed)[0].data)
