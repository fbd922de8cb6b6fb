"""Small results lie in blocks of ours and are ordinary tensors all the same."""

import copy
import gc
import pickle
import threading

import pytest
import torch

import thermit
from thermit.runtime.library import runtime
from thermit.runtime.native.parts import SOURCE
from thermit.runtime.native.pool import SMALL_BYTES, SMALL_KEPT
from thermit.runtime.torch_abi import word

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
