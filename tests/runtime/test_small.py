"""Small results lie in blocks of ours and are ordinary tensors all the same."""

import copy
import ctypes
import gc
import pickle
import threading

import pytest
import torch

import thermit
from thermit.runtime import small
from thermit.runtime.library import runtime
from thermit.runtime.native.parts import SOURCE
from thermit.runtime.native.pool import SMALL_BYTES, SMALL_KEPT
from thermit.runtime.torch_abi import Abi, word

native = runtime()
assert native is not None
ON = word(native.address["words"] + 8 * SOURCE.table.index("SMALL")) == 1
pytestmark = pytest.mark.skipif(not ON, reason="small results are made by PyTorch here")
EDGES = (1, 15, 16, 17, 31, 32, 33, 1000, SMALL_BYTES // 4 - 1, SMALL_BYTES // 4, SMALL_BYTES // 4 + 1)


@thermit.jit
def more(x):
    return x + 1


@pytest.fixture(autouse=True)
def empty():
    gc.collect()
    thermit.empty_cache()


def test_it_is_on_where_continuous_integration_runs():
    assert native.pool.small_blocks() == 0
    more(torch.zeros(16))
    assert native.pool.small_blocks() == 1


@pytest.mark.parametrize("count", EDGES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.bfloat16], ids=str)
def test_results_are_ordinary_tensors(count, dtype):
    x = torch.arange(count).to(dtype)
    made, usual = thermit.jit(lambda x: ~x if x.dtype is torch.bool else x + 1)(x), ~x if dtype is torch.bool else x + 1
    assert torch.equal(made, usual) and made.dtype is usual.dtype and made.device == usual.device and made.data_ptr() % 64 == 0
    assert made._version == 0 and not made.requires_grad and made.is_leaf and made._use_count() == 1
    a, b = made.untyped_storage(), usual.untyped_storage()
    assert a.nbytes() == b.nbytes() and a.resizable() and a.device == b.device
    assert torch.equal(copy.deepcopy(made), usual) and torch.equal(pickle.loads(pickle.dumps(made)), usual)
    made.resize_(10 * count + 5)
    assert torch.equal(made[:count], usual) and made.untyped_storage().nbytes() == (10 * count + 5) * dtype.itemsize
    made.fill_(1)
    shared = made.share_memory_()
    assert shared.is_shared() and bool((shared == 1).all())


def test_results_alive_do_not_overlap_and_come_back():
    x = torch.zeros(100)
    held = [more(x + k) for k in range(200)]
    assert len({t.data_ptr() for t in held}) == 200 and all(float(t[99]) == k + 1 for k, t in enumerate(held))
    view = held[7][3:5]
    del held
    gc.collect()
    again = [more(x) for _ in range(250)]
    assert view.tolist() == [8.0, 8.0] and all(view.untyped_storage().data_ptr() != t.data_ptr() for t in again)


def test_few_blocks_wait():
    held = [more(torch.zeros(SMALL_BYTES // 4)) for _ in range(100)]
    del held
    assert 1 <= native.pool.small_blocks() <= SMALL_KEPT // SMALL_BYTES
    thermit.empty_cache()
    assert native.pool.small_blocks() == 0


def test_inference_mode_makes_inference_tensors():
    x = torch.zeros(8)
    with torch.inference_mode():
        assert more(x).is_inference()
    assert not more(x).is_inference()


def test_gradients_pass_through_what_is_made_of_results():
    y = more(torch.zeros(8)).requires_grad_()
    (y * y).sum().backward()
    assert torch.equal(y.grad, torch.full((8,), 2.0))


NEVER = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(lambda *_: pytest.fail("called"))


def other(words=(), functions=()):
    """The facts about another PyTorch."""
    facts = native.abi
    return Abi(
        {**facts.words, **dict(words)}, {**facts.functions, **dict(functions)},
        facts.plain_keys, facts.inference_keys, facts.default_include, facts.default_exclude,
    )  # fmt: skip


def table(order, like="allocator_table"):
    """A table of virtual functions in another order."""
    functions = [word(native.abi.functions[like] + 8 * k) for k in range(8)]
    return (ctypes.c_uint64 * 8)(*functions[:2], *(functions[2 + k] for k in order))


SHAPES = {
    "allocate comes later": {"allocator_table": (0, 1, 3, 2, 4, 5)}, "one destructor": {"allocator_table": (1, 2, 3, 4, 5, 0)},
    "another in between": {"allocator_table": (0, 1, 2, 4, 3, 5)}, "another allocator at work": {"default_allocator_table": (0, 1, 2, 3, 4, 5)},
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_allocators_of_another_shape_are_not_called(shape):
    tables = {name: table(order, name) for name, order in shape.items()}
    call = ctypes.cast(NEVER, ctypes.c_void_p).value
    assert not small.fits(other(functions={name: ctypes.addressof(t) for name, t in tables.items()}), native.pool, call)


@pytest.mark.parametrize("name", ["empty_in", "allocator_table", "default_allocator_table", "is_simple_data", "pure_virtual"])
def test_without_a_symbol_nothing_is_called(name):
    assert not small.fits(other(functions={name: 0}), native.pool, ctypes.cast(NEVER, ctypes.c_void_p).value)


def test_storages_of_another_shape_are_not_made():
    assert not small.fits(other(words={"DATA": native.abi.words["DATA"] + 8}), native.pool, ctypes.cast(NEVER, ctypes.c_void_p).value)
    assert small.fits(other(), native.pool, native.address["small_tensor"])


@pytest.mark.parametrize("nbytes", [-1, 0, SMALL_BYTES + 1, 1 << 40])
def test_the_allocator_gives_nothing_but_small_blocks(nbytes):
    result = (ctypes.c_int64 * 4)(-1, -1, -1, -1)
    allocate = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(native.address["small_allocate"])
    assert allocate(ctypes.addressof(result), 0, nbytes) == ctypes.addressof(result) and result[0] == result[2] == 0


def test_what_outlives_the_tensor_keeps_its_block():
    x = torch.zeros(100)

    def others():
        gc.collect()
        assert all(bool((more(x).fill_(9) == 9).all()) for _ in range(50))

    for outlives in (lambda: more(x).numpy(), lambda: torch.from_dlpack(more(x).__dlpack__()), lambda: torch.zeros(3).set_(more(x)),
                     lambda: torch._lazy_clone(more(x)), lambda: more(x).untyped_storage(), lambda: more(x)[7:].view(31, 3)):  # fmt: skip
        left = outlives()
        others()
        seen = torch.empty(0).set_(left) if isinstance(left, torch.UntypedStorage) else torch.as_tensor(left)
        assert bool((seen == 1).all())


def test_storages_shrink_grow_and_change_their_memory():
    for k in (0, 7, 400, 4000):
        y = more(torch.zeros(100))
        y.untyped_storage().resize_(k)
        assert y.untyped_storage().nbytes() == k
        y.set_(torch.full((5,), 2.0))
        assert y.tolist() == [2.0] * 5
    y, clone = more(torch.zeros(100)), None
    clone = torch._lazy_clone(y)
    y.add_(1)
    assert bool((clone == 1).all()) and bool((y == 2).all())


def test_threads_share_the_blocks():
    wrong = []

    def work(k):
        x = torch.full((40,), float(k))
        for _ in range(3000):
            held = [more(x) for _ in range(5)]
            if any(not bool((t == k + 1).all()) for t in held):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
