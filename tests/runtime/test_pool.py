"""Memory that is kept: blocks are right, reused, bounded; large results are ordinary tensors."""

import copy
import ctypes
import gc
import itertools
import pickle
import random
import sys
import threading

import pytest
import torch

from thermit.runtime.library import make, runtime
from thermit.runtime.native.pool import LARGE_BYTES, STATE
from thermit.runtime.pool import Pool
from thermit.runtime.torch_abi import DLPACK_CODES, abi

LIMIT = 64 << 20


class Native:
    def __init__(self, limit=LIMIT):
        self.pool = Pool(limit)
        address = make(abi(), self.pool).address
        kind = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
        self.take, self.give = (kind(address[n]) for n in ("pool_take", "pool_give"))
        self.make = ctypes.PYFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 6)(address["pool_tensor"])

    def tensor(self, shape, dtype=torch.float32, strides=None):
        strides = strides or torch.empty(shape, device="meta").stride()
        nbytes = torch.empty_strided(shape, strides, dtype=dtype, device="meta").untyped_storage().nbytes()
        sizes, steps, result = (ctypes.c_int64 * len(shape))(*shape), (ctypes.c_int64 * len(shape))(*strides), (ctypes.c_int64 * 1)()
        data = self.make(nbytes, len(shape), ctypes.addressof(sizes), ctypes.addressof(steps), DLPACK_CODES[dtype], ctypes.addressof(result))
        tensor = ctypes.cast(result[0], ctypes.py_object).value
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(tensor))
        assert tensor.data_ptr() == data
        return tensor


@pytest.fixture(scope="module")
def native():
    return Native()


@pytest.fixture(autouse=True)
def empty(native):
    gc.collect()
    native.pool.empty_cache()


SIZES = [1, 100, 4095, 4096, 4097, 5120, 5121, 6145, 7169, 8193, 10**5, 10**6, (1 << 20) + 1, (1 << 22) - 1, 1 << 22, (1 << 22) + 1, 9 << 20]


@pytest.mark.parametrize("nbytes", SIZES)
def test_blocks_hold_what_was_asked_and_come_back(native, nbytes):
    block = native.take(nbytes)
    assert block % 4096 == 0 and (nbytes <= 4 << 20 or block % (2 << 20) == 0)
    ctypes.memset(block, 255, nbytes)  # all of it can be written
    native.give(block)
    before = native.pool.statistics()
    assert native.take(nbytes) == block and native.pool.statistics().hits == before.hits + 1
    native.give(block)
    assert native.pool.statistics().used_bytes == 0
    idle = native.pool.statistics().idle_bytes
    assert nbytes <= idle <= max(8192, nbytes * 1.25 + 4096)


@pytest.mark.parametrize("advised", [False, True])
@pytest.mark.parametrize("nbytes", [1 << 20, 9 << 20, 33 << 20])
def test_large_blocks_become_huge_pages_while_they_are_used_again(native, request, advised, nbytes):
    place = STATE["ADVISED"] // 8
    before = native.pool._state[place]
    request.addfinalizer(lambda: native.pool._state.__setitem__(place, before))
    native.pool._state[place] = int(advised)
    block = native.take(nbytes)
    whole, settled = (ctypes.c_int64.from_address(block - 4096 + at) for at in (8, 24))
    seen = []
    for round in range(10):
        seen.append(settled.value)
        ctypes.memset(block, round, nbytes)
        assert ctypes.string_at(block, nbytes) == bytes([round]) * nbytes
        native.give(block)
        assert native.take(nbytes) == block
    native.give(block)
    steps = {b - a for a, b in itertools.pairwise(seen)}
    if advised and nbytes > 4 << 20:
        assert seen[0] == 0 and seen[8] == whole.value and max(steps) <= max(2 << 20, whole.value // 8 + (2 << 20))
    else:
        assert seen[0] == whole.value and steps == {0}


def test_blocks_in_use_do_not_overlap(native):
    rng = random.Random(1)
    blocks = {}
    for _ in range(300):
        if blocks and rng.random() < 0.4:
            native.give(blocks.popitem()[0])
        n = rng.choice(SIZES[:12])
        block = native.take(n)
        assert all(block + n <= b or b + m <= block for b, m in blocks.items())
        blocks[block] = n
    for block in blocks:
        native.give(block)


def test_idle_memory_is_bounded(native):
    blocks = [native.take(10 << 20) for _ in range(12)]
    for block in blocks:
        native.give(block)
        assert native.pool.statistics().idle_bytes <= LIMIT
    native.give(native.take(2 * LIMIT))
    assert native.pool.statistics().idle_bytes <= LIMIT and native.pool.statistics().used_bytes == 0
    native.pool.empty_cache()
    assert native.pool.statistics().idle_bytes == 0


@pytest.mark.parametrize("dtype", DLPACK_CODES)
def test_large_results_are_ordinary_tensors(native, dtype):
    made = native.tensor((500, 600), dtype, (1, 500))
    plain = torch.empty_strided((500, 600), (1, 500), dtype=dtype)
    assert type(made) is torch.Tensor and made.dtype is dtype and made.shape == plain.shape and made.stride() == plain.stride()
    references = sys.getrefcount(made)
    assert made._version == 0 and made._use_count() == 1 and references == 2 and not made.requires_grad and made.is_leaf
    assert made.untyped_storage().nbytes() == plain.untyped_storage().nbytes() and made.untyped_storage().resizable()
    assert torch._C._dispatch_keys(made).raw_repr() == torch._C._dispatch_keys(plain).raw_repr()
    assert made.is_contiguous() == plain.is_contiguous() and made._base is None and not made.is_conj()


def fill(t):
    return t.copy_(torch.arange(t.numel()).view(t.shape))


ACTIONS = {
    "pickle": lambda t: pickle.loads(pickle.dumps(fill(t))),
    "copy": lambda t: copy.deepcopy(fill(t)),
    "grow": lambda t: fill(t).resize_(2000, 1000)[:600],
    "shrink": lambda t: fill(t).resize_(10),
    "set": lambda t: (fill(t), t.set_(torch.arange(3.0)))[1],
    "share": lambda t: fill(t).share_memory_(),
    "numpy": lambda t: torch.from_numpy(fill(t).numpy()),
    "grow storage": lambda t: (fill(t), t.untyped_storage().resize_(4 * t.numel() + 100), t)[2],
    "empty storage": lambda t: (t.untyped_storage().resize_(0), torch.tensor(t.untyped_storage().nbytes()))[1],
    "view": lambda t: fill(t)[3:, ::2].t(),
    "grad": lambda t: torch.autograd.grad((fill(t).requires_grad_() * 3).sum(), t)[0],
    "dlpack": lambda t: torch.from_dlpack(fill(t)),
}


@pytest.mark.parametrize("action", ACTIONS)
def test_large_results_behave_as_eager_ones(native, action):
    made, plain = native.tensor((600, 1000)), torch.empty(600, 1000)
    a, b = ACTIONS[action](made), ACTIONS[action](plain)
    assert torch.equal(a, b) and a.stride() == b.stride() and made.shape == plain.shape
    del made, a
    gc.collect()
    assert native.pool.statistics().used_bytes == 0


def test_a_result_dies_in_another_thread(native):
    tensors = [native.tensor((1000, 1000)) for _ in range(4)]
    thread = threading.Thread(target=tensors.clear)
    thread.start()
    thread.join()
    assert native.pool.statistics().used_bytes == 0


def test_inference_mode_gives_inference_tensors(native):
    with torch.inference_mode():
        assert native.tensor((600, 1000)).is_inference()


def test_many_threads(native):
    def work(seed):
        rng = random.Random(seed)
        for _ in range(3000):
            n = rng.choice((5000, 10000, 70000))
            block = native.take(n)
            ctypes.c_int64.from_address(block).value = block
            assert ctypes.c_int64.from_address(block).value == block
            native.give(block)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert native.pool.statistics().used_bytes == 0


def test_the_process_has_one_pool():
    assert runtime().pool is runtime().pool and LARGE_BYTES >= 1 << 18
