"""The native entry: what fits is answered natively, whatever differs in one fact goes to the slow path, references are balanced."""

import gc
import os
import resource
import struct
import sys
import threading
from types import SimpleNamespace

import pytest
import torch
from kernels import add_text, compile_text, stop_text

from thermit.capture.signature import Arg, Attr, Cell, Global, Guard, Held, Item, TensorSpec, snapshot
from thermit.ir.node import Return, Window
from thermit.ir.prims import Slot
from thermit.ir.types import DTYPES
from thermit.runtime import entry as entry_module
from thermit.runtime import torch_abi
from thermit.runtime.entry import Entry, Variant
from thermit.runtime.library import runtime
from thermit.runtime.program import Program
from thermit.schedule.plan import Buffer, Commit, Plan, RunCall, RunCopy, RunKernel

ADDRESSES = compile_text("".join(add_text(f"add{n}", n) for n in (1, 2, 3, 32)) + stop_text("stop"))
SLOW = object()
W = torch.full((10,), 5.0)
aten = torch.ops.aten


def slow(*args, **kwargs):
    return SLOW


def spec(tensor, group=-1, offset=0, flags=None):
    if flags is None:
        flags = tensor.requires_grad | 2 * isinstance(tensor, torch.nn.Parameter) | 4 * tensor.is_inference()
    return TensorSpec(tensor.dtype, tuple(tensor.shape), tensor.stride(), flags, group, offset)


def buffer(role, index, tensor):
    dtype = DTYPES[str(tensor.dtype).removeprefix("torch.")]
    span = tensor.untyped_storage().nbytes()
    return Buffer(role, index, dtype, tuple(tensor.shape), tensor.stride(), span)


def add_program(tensors, form="one", cost=10.0):
    """1 + the sum of the inputs, each taken as its first n contiguous elements."""
    n, count = tensors[0].numel(), len(tensors)
    buffers = (*(buffer("input", i, t) for i, t in enumerate(tensors)), buffer("output", 0, torch.empty(n)))
    return Program(Plan(buffers, (RunKernel(f"add{count}", tuple(range(count + 1)), n, 8, cost),), (count,), (Return("output", 0),), 0, 0), ADDRESSES)


def make(tensors, sources=None, guards=(), form="one", program=None, keywords=(), positional=None, groups=None, on_stop=slow):
    sources = sources or [Arg(i, f"a{i}") for i in range(len(tensors))]
    positional = len(tensors) if positional is None else positional
    specs = [spec(t, *(groups[i] if groups else ())) for i, t in enumerate(tensors)]
    entry = Entry(slow)
    program = program or add_program(tensors)
    pairs = tuple(zip(sources, specs, strict=True))
    assert entry.install(Variant(positional, keywords, pairs, tuple(guards), program, form, on_stop, torch_abi.ambient()))
    return entry


def vectors(count, n=10):
    return [torch.randn(n) for _ in range(count)]


# ---------------------------------------------------------------------------------------------- hits
@pytest.mark.parametrize("count", [1, 2, 3, 32])
def test_a_call_that_fits(count):
    entry = make(vectors(count))
    for _ in range(3):
        tensors = vectors(count)
        result = entry.callable(*tensors)
        assert torch.equal(result, sum(tensors, torch.ones(10))) and type(result) is torch.Tensor and result._version == 0
    assert entry.hits == 3 and entry.misses == 0


SHAPES = [(), (0,), (1,), (3, 0, 2), (2, 3), (2, 3, 4, 5, 6), (1, 2, 3, 1, 2, 2), (2,) * 9]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes_of_any_rank(shape):
    x = torch.randn(shape)
    entry = make([x])
    assert torch.equal(entry.callable(torch.zeros(shape)), torch.ones(x.numel()))
    assert entry.callable(torch.zeros((*shape, 1))) is SLOW
    for k, n in enumerate(shape):
        assert entry.callable(torch.zeros((*shape[:k], n + 1, *shape[k + 1 :]))) is SLOW


def test_offset_in_the_storage():
    base = torch.arange(40.0)
    entry = make([base[:10]])
    assert torch.equal(entry.callable(base[7:17]), base[7:17] + 1)


@pytest.mark.parametrize("form, expected", [("tuple", tuple), ("list", list), ("none", type(None))])
def test_forms_of_results(form, expected):
    x, y = vectors(2)
    program = add_program([x, y])
    plan = Plan(program.plan.buffers, program.plan.steps, program.plan.outputs, (Return("output", 0), Return("input", 1), Return("output", 0)), 0, 0)
    result = make([x, y], program=Program(plan, ADDRESSES), form=form).callable(x, y)
    assert type(result) is expected
    if result is not None:
        assert torch.equal(result[0], 1 + x + y) and result[1] is y and result[2] is result[0]


def test_finish_builds_other_results():
    x, y = vectors(2)
    assert torch.equal(make([x, y], form=lambda tensors: {"sum": tensors[0]}).callable(x, y)["sum"], 1 + x + y)

    def raises(tensors):
        raise KeyError("finish")

    with pytest.raises(KeyError, match="finish"):
        make([x, y], form=raises).callable(x, y)


def test_keywords():
    x, y, z = vectors(3)
    sources = [Arg(0, "a"), Arg("b", "b"), Arg("c", "c")]
    entry = make([x, y, z], sources, keywords=("b", "c"), positional=1)
    assert torch.equal(entry.callable(x, b=y, c=z), 1 + x + y + z)
    assert torch.equal(entry.callable(x, **{"".join(["", "b"]): y, "c": z}), 1 + x + y + z)
    for args, kwargs in [((x, y, z), {}), ((x,), {"c": z, "b": y}), ((x,), {"b": y}), ((x, y), {"c": z}), ((x,), {"b": y, "d": z})]:
        assert entry.callable(*args, **kwargs) is SLOW


def test_the_newest_variant_first_and_clear():
    x, y = vectors(2)
    entry = make([x, y])
    small = add_program(vectors(2, 4))
    entry.install(Variant(2, (), tuple((Arg(i, "a"), spec(torch.empty(4))) for i in range(2)), (), small, "one", slow, torch_abi.ambient()))
    assert torch.equal(entry.callable(x, y), 1 + x + y) and entry.callable(*vectors(2, 4)).shape == (4,)
    entry.clear()
    assert entry.callable(x, y) is SLOW


# ---------------------------------------------------------------------------------------------- misses
class Subclass(torch.Tensor):
    pass


def with_torch_function_mode(f):
    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    with Mode():
        return f()


def with_dispatch_mode(f):
    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    with Mode():
        return f()


def under(manager):
    def run(f):
        with manager():
            return f()

    return run


def inference_tensor():
    with torch.inference_mode():
        return torch.zeros(10)


OTHER = {
    "dtype": lambda: torch.zeros(10, dtype=torch.int32),
    "float64": lambda: torch.zeros(10, dtype=torch.float64),
    "size": lambda: torch.zeros(11),
    "rank": lambda: torch.zeros(10, 1),
    "strides": lambda: torch.zeros(20)[::2],
    "expanded": lambda: torch.zeros(1).expand(10),
    "requires grad": lambda: torch.zeros(10, requires_grad=True),
    "parameter": lambda: torch.nn.Parameter(torch.zeros(10), requires_grad=False),
    "subclass": lambda: torch.zeros(10).as_subclass(Subclass),
    "inference": inference_tensor,
    "meta": lambda: torch.zeros(10, device="meta"),
    "sparse": lambda: torch.zeros(10).to_sparse(),
    "neg bit": lambda: torch.zeros(10, dtype=torch.complex64).conj().imag,
    "zero tensor": lambda: torch._efficientzerotensor(10),
    "quantized": lambda: torch.quantize_per_tensor(torch.zeros(10), 1.0, 0, torch.quint8),
    "not a tensor": lambda: [0.0] * 10,
    "none": lambda: None,
    "number": lambda: 3,
    "numpy": lambda: torch.zeros(10).numpy(),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("other", OTHER)
def test_another_tensor_misses(other):
    x, y = vectors(2)
    entry = make([x, y])
    assert entry.callable(x, OTHER[other]()) is SLOW and entry.callable(OTHER[other](), y) is SLOW
    assert torch.equal(entry.callable(x, y), 1 + x + y)


MODES = {
    "no_grad": under(torch.no_grad),
    "inference": under(torch.inference_mode),
    "autocast": under(lambda: torch.autocast("cpu", dtype=torch.bfloat16)),
    "torch function mode": with_torch_function_mode,
    "default device": under(lambda: torch.device("cpu")),
    "dispatch mode": with_dispatch_mode,
    "forward ad": under(torch.autograd.forward_ad.dual_level),
    "deterministic": under(lambda: deterministic()),
    "default dtype": under(lambda: default_dtype()),
    "disabled": under(lambda: disabled()),
    "vmap": lambda f: torch.vmap(lambda _: [f(), torch.zeros(1)][1])(torch.zeros(2, 1)) is None or RESULTS.pop(),
}
RESULTS = []


class deterministic:
    def __enter__(self):
        torch.use_deterministic_algorithms(True)

    def __exit__(self, *_):
        torch.use_deterministic_algorithms(False)


class default_dtype:
    def __enter__(self):
        torch.set_default_dtype(torch.float64)

    def __exit__(self, *_):
        torch.set_default_dtype(torch.float32)


class disabled:
    def __enter__(self):
        entry_module.disable(True)

    def __exit__(self, *_):
        entry_module.disable(False)


@pytest.mark.parametrize("mode", MODES)
def test_another_state_of_dispatch_misses(mode):
    x, y = vectors(2)
    entry = make([x, y])
    RESULTS.clear()

    def call():
        RESULTS.append(entry.callable(x, y))
        return RESULTS[-1]

    assert MODES[mode](call) is SLOW
    assert torch.equal(entry.callable(x, y), 1 + x + y)


def test_a_variant_made_under_a_mode_is_for_that_mode():
    x, y = vectors(2)
    with torch.inference_mode():
        entry = make([x, y])
        result = entry.callable(x, y)
        assert result.is_inference() and torch.equal(result, 1 + x + y)
    assert entry.callable(x, y) is SLOW


def test_number_of_arguments():
    x, y = vectors(2)
    entry = make([x, y])
    for args, kwargs in [((), {}), ((x,), {}), ((x, y, y), {}), ((x, y), {"z": 1}), ((x,), {"y": y})]:
        assert entry.callable(*args, **kwargs) is SLOW


def test_the_same_object_twice_is_another_signature():
    x, y = vectors(2)
    entry = make([x, y])
    assert entry.callable(x, x) is SLOW and entry.callable(y, x) is not SLOW


def test_misaligned_memory_misses():
    memory = bytearray(44)
    x = torch.frombuffer(memory, dtype=torch.float32, count=10)
    odd = torch.frombuffer(memory, dtype=torch.float32, count=10, offset=1)
    entry = make([x])
    assert entry.callable(x) is not SLOW and entry.callable(odd) is SLOW


# ---------------------------------------------------------------------------------------------- guards
class Thing:
    def __init__(self, **values):
        self.__dict__.update(values)

    @property
    def broken(self):
        raise RuntimeError("broken")


def closure(value):
    def inner():
        return value

    def change(to):
        nonlocal value
        value = to

    return inner.__closure__[0], change


def nan(payload):
    return struct.unpack("d", struct.pack("Q", 0x7FF8000000000000 | payload))[0]


EQUAL = [
    (3, 3, [4, 3.0, True, None, "3"]),
    (10**30, 10**30, [10**30 + 1]),
    (True, True, [1, False]),
    (None, None, [0, False]),
    (2.5, 2.5, [2, 2.0, None]),
    (0.0, 0.0, [-0.0, 0]),
    (nan(0), nan(0), [nan(1), 0.0]),
    ("sum", "".join(["s", "um"]), ["mean", None, 3]),
    (torch.float32, torch.float32, [torch.float64]),
    ((1, 2.0), (1, 2.0), [(1, 2), (1.0, 2.0), [1, 2.0]]),
    (b"ab", b"ab", [b"ac", "ab"]),
]


@pytest.mark.parametrize("expected, same, others", EQUAL)
def test_values_of_arguments(expected, same, others):
    (x,) = vectors(1)
    entry = make([x], [Arg(0, "x")], [Guard(Arg(1, "n"), "equals", expected)], positional=2)
    assert torch.equal(entry.callable(x, same), x + 1)
    for other in others:
        assert entry.callable(x, other) is SLOW


def test_guards_on_cells_globals_attributes_items():
    (x,) = vectors(1)
    cell, change = closure(2.0)
    names = {"flag": True}
    thing = Thing(inner=Thing(size=7), table={"a": (1, "s")}, kind=int)
    guards = [
        Guard(Cell(cell, "value"), "equals", 2.0),
        Guard(Global(names, "flag"), "equals", True),
        Guard(Global(names, "len"), "is", len),
        Guard(Attr(Attr(Held(thing, "thing"), "inner"), "size"), "equals", 7),
        Guard(Item(Item(Attr(Held(thing, "thing"), "table"), "a"), 1), "equals", "s"),
        Guard(Attr(Held(thing, "thing"), "kind"), "is", int),
        Guard(Held(thing, "thing"), "type", Thing),
        Guard(Attr(Held(thing, "thing"), "table"), "deep", snapshot(thing.table)[0]),
    ]
    entry = make([x], guards=guards)

    def hit():
        return entry.callable(x) is not SLOW

    assert hit()
    changes = [
        (lambda: change(2), lambda: change(2.0)),
        (lambda: names.update(flag=1), lambda: names.update(flag=True)),
        (lambda: names.pop("flag"), lambda: names.update(flag=True)),
        (lambda: names.update(len=sum), lambda: names.pop("len")),
        (lambda: setattr(thing.inner, "size", 8), lambda: setattr(thing.inner, "size", 7)),
        (lambda: setattr(thing, "inner", None), lambda: setattr(thing, "inner", Thing(size=7))),
        (lambda: delattr(thing, "inner"), lambda: setattr(thing, "inner", Thing(size=7))),
        (lambda: thing.table.update(a=(1, "t")), lambda: thing.table.update(a=(1, "s"))),
        (lambda: thing.table.update(a=(1,)), lambda: thing.table.update(a=(1, "s"))),
        (lambda: thing.table.update(b=1), lambda: thing.table.pop("b")),
        (lambda: setattr(thing, "kind", float), lambda: setattr(thing, "kind", int)),
    ]
    for there, back in changes:
        there()
        assert not hit() and not sys.exc_info()[0]
        back()
        assert hit()


def test_a_property_that_raises_misses():
    (x,) = vectors(1)
    entry = make([x], guards=[Guard(Attr(Held(Thing(), "thing"), "broken"), "equals", 1)])
    assert entry.callable(x) is SLOW


def test_an_empty_cell_misses():
    def outer():
        if False:
            value = 1
        return lambda: value

    (x,) = vectors(1)
    entry = make([x], guards=[Guard(Cell(outer().__closure__[0], "value"), "equals", 1)])
    assert entry.callable(x) is SLOW


def test_tensors_by_reference():
    """A closed-over tensor is an input: its present value is used, another one is looked at."""
    x, w = vectors(2)
    cell, change = closure(w)
    holder = SimpleNamespace(weights={"w": torch.randn(10)})
    sources = [Arg(0, "x"), Cell(cell, "w"), Item(Attr(Held(holder, "holder"), "weights"), "w")]
    entry = make([x, w, holder.weights["w"]], sources, positional=1)
    assert torch.equal(entry.callable(x), 1 + x + w + holder.weights["w"])
    w.fill_(3)
    change(torch.ones(10))
    holder.weights["w"] = torch.full((10,), 2.0)
    assert torch.equal(entry.callable(x), 1 + x + 1 + 2)
    change(torch.ones(11))
    assert entry.callable(x) is SLOW
    change(None)
    assert entry.callable(x) is SLOW


# ---------------------------------------------------------------------------------------------- updates
def update_program(copy=False, others=1):
    """x += 1 + y (+ z), in place or through a temp."""
    one = torch.empty(10)
    buffers = (*(buffer("input", i, one) for i in range(1 + others)), buffer("temp", 0, one))
    reads, target = tuple(range(1 + others)), 1 + others
    kernel = f"add{1 + others}"
    if copy:
        steps = (RunKernel(kernel, (*reads, target), 10, 8, 10.0), Commit(), RunCopy(target, 0))
    else:
        steps = (Commit(), RunKernel(kernel, (*reads, 0), 10, 8, 10.0))
    return Program(Plan(buffers, steps, (), (Return("input", 0),), 64, 64, (0,)), ADDRESSES)


@pytest.mark.parametrize("copy", [False, True])
def test_updates(copy):
    x, y = vectors(2)
    expected = 1 + x + y
    entry = make([x, y], program=update_program(copy))
    assert entry.callable(x, y) is x and torch.equal(x, expected) and x._version == 1 and y._version == 0


def test_updates_of_overlapping_memory_miss():
    base = torch.zeros(30)
    entry = make(vectors(2), program=update_program())
    for a, b in [(base[:10], base[:10]), (base[:10], base[5:15]), (base[5:15], base[:10]), (base[:10], base[9:19])]:
        assert entry.callable(a, b) is SLOW
    assert torch.equal(base, torch.zeros(30))
    assert entry.callable(base[:10], base[10:20]) is not SLOW and base[:10].eq(1).all() and base[10:].eq(0).all()


def test_updates_of_overlapping_memory_that_only_reads_do_not_miss():
    base = torch.randn(30)
    entry = make(vectors(2))
    assert torch.equal(entry.callable(base[:10], base[5:15]), 1 + base[:10] + base[5:15])


def test_a_group_must_lie_as_it_lay():
    base = torch.zeros(30)
    groups = [(0, 0), (0, 20)]
    entry = make([base[:10], base[5:15]], groups=groups)
    assert entry.callable(base[3:13], base[8:18]) is not SLOW
    for a, b in [(base[3:13], base[9:19]), (base[3:13], torch.zeros(10)), (base[8:18], base[3:13])]:
        assert entry.callable(a, b) is SLOW


def test_update_of_a_copy_on_write_tensor():
    x, y = vectors(2)
    before = x.clone()
    lazy = torch._lazy_clone(x)
    entry = make([x, y], program=update_program())
    assert torch.equal(entry.callable(lazy, y), 1 + before + y) and torch.equal(x, before)


def test_inference_tensors():
    with torch.inference_mode():
        x, y = vectors(2)
        expected = 1 + x + y
        entry = make([x, y], program=update_program())
        assert entry.callable(x, y) is x and torch.equal(x, expected)
    refused = Entry(slow)
    pairs = tuple((Arg(i, "a"), spec(t)) for i, t in enumerate((x, y)))
    assert not refused.install(Variant(2, (), pairs, (), update_program(), "one", slow, torch_abi.ambient()))


# ---------------------------------------------------------------------------------------------- stops, calls, errors
def test_a_kernel_that_stops_calls_the_function():
    x = torch.zeros(10)
    one = buffer("input", 0, x)
    steps = (RunKernel("stop", (0,), 10, 8, 10.0, True), Commit(), RunKernel("add1", (0, 0), 10, 8, 10.0))
    program = Program(Plan((one,), steps, (), (Return("input", 0),), 0, 0, (0,)), ADDRESSES)
    calls = []

    def on_stop(*args, **kwargs):
        calls.append((args, kwargs))
        raise IndexError("eager's own")

    entry = make([x], program=program, on_stop=on_stop)
    assert entry.callable(x) is x and x.eq(1).all()
    x.fill_(-1)
    version = x._version
    with pytest.raises(IndexError, match="eager's own"):
        entry.callable(x)
    assert calls == [((x,), {})] and x.eq(-1).all() and x._version == version


def call_program(op, args):
    one = torch.empty(10)
    buffers = (buffer("input", 0, one), buffer("temp", 0, one), buffer("result", 0, one), buffer("output", 0, one))
    steps = (RunKernel("add1", (0, 1), 10, 8, 10.0), RunCall(op, args, (), (1,), (2,)), RunKernel("add1", (2, 3), 10, 8, 10.0))
    return Program(Plan(buffers, steps, (3,), (Return("output", 0),), 64, 64), ADDRESSES)


def test_calls_between_kernels():
    (x,) = vectors(1)
    entry = make([x], program=call_program(aten.cumsum.default, (Slot(0), 0)))
    for _ in range(3):
        assert torch.equal(entry.callable(x), (1 + x).cumsum(0) + 1)
    assert entry.hits == 3


def T(*shape, strides=None, dtype=torch.float32):
    return torch.empty_strided(shape, strides or torch.empty(shape, device="meta").stride(), dtype=dtype)


CALLS = {
    # name: (inputs, temps read by the call through add1, op, args, kwargs, results (None: not used), reference)
    "list": ([T(10)], aten.cat.default, ([Slot(0), Slot(1)],), (), [T(20)], lambda x, t: [torch.cat([x, t])]),
    "keywords": ([T(10)], aten.sum.dim_IntList, (Slot(1), [0]), (("keepdim", True), ("dtype", torch.float64)), [T(1, dtype=torch.float64)],
                 lambda x, t: [t.sum(0, True, dtype=torch.float64)]),
    "two results": ([T(10)], aten.sort.default, (Slot(0),), (), [T(10), T(10, dtype=torch.int64)], lambda x, t: list(x.sort())),
    "one of two results": ([T(10)], aten.sort.default, (Slot(1),), (), [None, T(10, dtype=torch.int64)], lambda x, t: [t.sort()[1]]),
    "list of results": ([T(10)], aten.unbind.int, (Slot(1),), (), [T()] * 10, lambda x, t: list(t.unbind())),
    "other strides": ([T(10)], aten.stack.default, ([Slot(0), Slot(1)],), (), [T(2, 10, strides=(1, 2))], lambda x, t: [torch.stack([x, t])]),
    "strides that do not matter": ([T(10)], aten.unsqueeze_copy.default, (Slot(0), 0), (), [T(1, 10, strides=(1, 1))], lambda x, t: [x[None]]),
    "shared memory": ([T(10)], aten.alias.default, (Slot(1),), (), [T(10)], lambda x, t: [t]),
    "scalar": ([T(10)], aten.add.Tensor, (Slot(0), Slot(1)), (("alpha", 3),), [T(10)], lambda x, t: [torch.add(x, t, alpha=3)]),
    "optional": ([T(10)], aten.clamp.Tensor, (Slot(0), None, Slot(1)), (), [T(10)], lambda x, t: [x.clamp(None, t)]),
}  # fmt: skip


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("name", CALLS)
def test_calls_of_every_form(name, native):
    inputs, op, args, kwargs, results, reference = CALLS[name]
    buffers = [*(buffer("input", i, t) for i, t in enumerate(inputs)), buffer("temp", 64, T(10))]
    numbers = []
    for r in results:
        numbers.append(-1 if r is None else len(buffers))
        if r is not None:
            buffers.append(buffer("result", len(buffers), r))
    outputs = tuple(n for n in numbers if n >= 0)
    steps = (RunKernel("add1", (0, len(inputs)), 10, 8, 10.0), RunCall(op, args, kwargs, (0, len(inputs)), tuple(numbers)))
    program = Program(Plan(tuple(buffers), steps, outputs, tuple(Return("output", j) for j in range(len(outputs))), 128, 128), ADDRESSES)
    entry = make([torch.empty(10)], program=program, form="list")
    run = entry.callable if native else lambda x: program.run([x])
    kept = []
    for _ in range(3):
        x = torch.randn(10)
        made, expected = run(x), reference(x, x + 1)
        kept.append((made, [e.clone() for e in expected]))
        assert [m.stride() for m in made] == [r.stride() for r in results if r is not None] or name == "strides that do not matter"
    assert all(torch.equal(a, b) for made, expected in kept for a, b in zip(made, expected, strict=True))
    assert entry.hits == 3 * native


def test_results_of_calls_are_freed():
    x = torch.empty(1 << 20)
    buffers = (buffer("input", 0, x), buffer("temp", 0, x), buffer("result", 0, x), buffer("output", 0, x))
    kernels = [RunKernel("add1", buffers, 1 << 20, 8, 1e6) for buffers in ((0, 1), (2, 3))]
    steps = (kernels[0], RunCall(aten.neg.default, (Slot(0),), (), (1,), (2,)), kernels[1])
    program = Program(Plan(buffers, steps, (3,), (Return("output", 0),), 0, 0), ADDRESSES)
    entry = make([x], program=program)
    before = runtime().pool.statistics().used_bytes
    x.fill_(2)
    right = bool(entry.callable(x).eq(-2).all())
    assert right and runtime().pool.statistics().used_bytes == before


def test_a_stop_after_a_random_call_restores_the_generator():
    x = torch.full((10,), -1.0)
    buffers = (buffer("input", 0, x), buffer("result", 0, x))
    steps = (RunCall(aten.rand_like.default, (Slot(0),), (), (0,), (1,)), RunKernel("stop", (0,), 10, 8, 10.0, True))
    program = Program(Plan(buffers, steps, (1,), (Return("output", 0),), 0, 0), ADDRESSES)
    entry = make([x], program=program, on_stop=lambda x: torch.rand(10))
    torch.manual_seed(3)
    expected = torch.rand(10), torch.rand(10)
    torch.manual_seed(3)
    assert torch.equal(entry.callable(x), expected[0])
    assert torch.equal(entry.callable(torch.ones(10)), expected[1]) and entry.hits == 1


def test_calls_under_autocast_do_not_cast_again():
    x = torch.randn(4, 4)
    buffers = (buffer("input", 0, x), buffer("result", 0, x))
    program = Program(Plan(buffers, (RunCall(aten.mm.default, (Slot(0), Slot(0)), (), (0,), (1,)),), (1,), (Return("output", 0),), 0, 0), ADDRESSES)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        entry = make([x], program=program)
        assert torch.equal(entry.callable(x), torch.ops.aten.mm.default._op_dk(torch._C.DispatchKey.CPU, x, x)) and entry.hits == 1


def test_a_call_that_raises_goes_to_the_function():
    (x,) = vectors(1)
    entry = make([x], program=call_program(aten.cumsum.default, (Slot(0), 5)), on_stop=lambda x: "eager")
    assert entry.callable(x) == "eager"


def test_an_interrupt_in_a_call_passes_through():
    def op(x, axis):
        raise KeyboardInterrupt

    (x,) = vectors(1)
    entry = make([x], program=call_program(op, (Slot(0), 0)))
    with pytest.raises(KeyboardInterrupt):
        entry.callable(x)


def test_windows_are_views():
    (x,) = vectors(1)
    program = add_program([x])
    returns = (Return("output", 0, Window((2, 3), (1, 2), 1)), Return("input", 0, Window((3,), (3,), 1)))
    plan = Plan(program.plan.buffers, program.plan.steps, program.plan.outputs, returns, 0, 0)
    made, view = make([x], program=Program(plan, ADDRESSES), form="tuple").callable(x)
    assert torch.equal(made, (1 + x).as_strided((2, 3), (1, 2), 1)) and made._base is not None
    assert view._base is x and torch.equal(view, x[1::3])


def test_errors_of_the_slow_path_come_through():
    def fails(*args):
        raise ValueError("slow")

    with pytest.raises(ValueError, match="slow"):
        Entry(fails).callable(1)


def test_large_results_come_from_the_pool():
    x = torch.randn(1 << 20)
    entry = make([x], program=add_program([x], cost=1e6))
    before = runtime().pool.statistics()
    result = entry.callable(x)
    assert torch.equal(result, 1 + x) and runtime().pool.statistics().used_bytes > before.used_bytes
    place = result.data_ptr()
    del result
    assert entry.callable(x).data_ptr() == place


# ---------------------------------------------------------------------------------------------- references, threads
def test_references_are_balanced():
    x, y = vectors(2)
    cell, _ = closure(W)
    names, thing = {"flag": object()}, Thing(value=object())
    guards = [Guard(Global(names, "flag"), "is", names["flag"]), Guard(Attr(Held(thing, "t"), "value"), "is", thing.value)]
    entry = make([x, W], [Arg(0, "x"), Cell(cell, "w")], guards, positional=1, form="tuple")
    watched = [x, W, names["flag"], thing.value, None, NotImplemented, names, thing, slow, (1,), 3]
    for args in ((x,), (y,), (torch.zeros(3),), (1, 2), ()):
        entry.callable(*args)
        before = [sys.getrefcount(w) for w in watched]
        for _ in range(100):
            entry.callable(*args)
        assert all(abs(sys.getrefcount(w) - b) < 50 for w, b in zip(watched, before, strict=True))  # None has other users


def test_calls_do_not_grow_memory():
    x, y = vectors(2)
    stop = Plan((buffer("input", 0, x),), (RunKernel("stop", (0,), 10, 8, 10.0, True),), (), (), 0, 0)
    stopping = make([x], program=Program(stop, ADDRESSES), form="none")
    entries = [(make([x, y]), (x, y)), (make([x, y], form="list"), (x, y)), (make([x, y]), (x, 3))]
    entries += [(stopping, (torch.full((10,), -1.0),))]
    entries += [(make([x], program=call_program(aten.cumsum.default, args)), (x,)) for args in ((Slot(0), 0), (Slot(0), 5))]

    def turn(count):
        for entry, args in entries:
            f = entry.callable
            for _ in range(count):
                f(*args)

    grown = []
    for _ in range(4):  # the first rounds fill caches
        gc.collect()
        before = resident()
        turn(20_000)
        grown.append(resident() - before)
    assert min(grown) < 1 << 18  # 13 bytes a call


def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize()


def test_entries_are_collected():
    import weakref

    class Slow:
        def __call__(self, *args):
            return SLOW

    function = Slow()
    gone = weakref.ref(function)
    entry = Entry(function)
    call = entry.callable
    del entry, function
    gc.collect()
    assert call(1) is SLOW and gone() is not None
    del call
    gc.collect()
    assert gone() is None


def test_threads_call_while_variants_are_installed():
    sizes = list(range(1, 30))
    entry = Entry(slow)
    faults, done = [], threading.Event()

    def caller():
        tensors = {n: torch.randn(n) for n in sizes}
        while not done.is_set():
            for n, t in tensors.items():
                result = entry.callable(t)
                if result is not SLOW and not torch.equal(result, t + 1):
                    faults.append(n)

    threads = [threading.Thread(target=caller) for _ in range(4)]
    for t in threads:
        t.start()
    for n in sizes:
        x = torch.empty(n)
        entry.install(Variant(1, (), ((Arg(0, "x"), spec(x)),), (), add_program([x]), "one", slow, torch_abi.ambient()))
    done.set()
    for t in threads:
        t.join()
    assert not faults and all(entry.callable(torch.zeros(n)) is not SLOW for n in sizes)


def test_a_thread_has_its_own_modes():
    x, y = vectors(2)
    entry = make([x, y])
    seen = []

    def other():
        with torch.no_grad():
            seen.append(entry.callable(x, y))
        seen.append(entry.callable(x, y))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen[0] is SLOW and seen[1] is not SLOW


def test_a_child_process_runs_serially_and_right():
    x = torch.randn(1 << 20)
    entry = make([x], program=add_program([x], cost=1e9))
    expected = 1 + x
    assert torch.equal(entry.callable(x), expected)
    child = os.fork()
    if child == 0:
        result = entry.callable(x)
        os._exit(0 if (result.numpy() == expected.numpy()).all() else 1)
    assert os.waitpid(child, 0)[1] == 0
