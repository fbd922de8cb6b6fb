"""Jitted functions from many threads, in children of a fork, and a million times.

`make soak` runs these as long as a release needs them: THERMIT_TEST_SECONDS, THERMIT_TEST_CALLS.
"""

import contextlib
import gc
import os
import resource
import threading
import time

import pytest
import torch
import torch.nn.functional as F

import thermit

SECONDS = float(os.environ.get("THERMIT_TEST_SECONDS", "3"))
CALLS = int(os.environ.get("THERMIT_TEST_CALLS", "60000"))
FUNCTIONS = [
    lambda x, y: F.gelu(x * 2 + y.sin()) * torch.sigmoid(y),
    lambda x, y: (x + y).softmax(-1).sum(0),
    lambda x, y: (x.clone().mul_(2).add_(y), y - x),
    lambda x, y: (x @ y.t()).relu().mean(1),
    lambda x, y: torch.where(x > y, x, y)[:, ::2].cumsum(1),
    lambda x, y: {"max": x.amax(1), "kept": y},
]
MODES = (contextlib.nullcontext, torch.no_grad, torch.inference_mode)


def leaves(result):
    if isinstance(result, dict):
        return list(result.values())
    return list(result) if isinstance(result, tuple) else [result]


def test_threads_call_and_compile_the_same_and_different_functions():
    jitted = [thermit.jit(f, max_variants=1000) for f in FUNCTIONS]
    end, faults, calls = time.monotonic() + SECONDS, [], []

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        count = 0
        while time.monotonic() < end and not faults:
            k = (seed + count) % len(FUNCTIONS)
            n, m = 1 + (count // 50 + seed // 2) % 7, 1 + count // 100 % 5 * 7
            if count % 211 == 0:
                n, m = 300, 1000 + seed % 3  # split over cores, results from the pool
            x, y = torch.randn(n, m, generator=generator), torch.randn(n, m, generator=generator)
            function = jitted[k] if count % 97 else thermit.jit(FUNCTIONS[k])
            try:
                with MODES[count // 10 % 3]():
                    made, expected = leaves(function(x, y)), leaves(FUNCTIONS[k](x, y))
                if not all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(made, expected, strict=True)):
                    faults.append((k, n, m))
            except Exception as error:
                faults.append((k, n, m, repr(error)))
            count += 1
        calls.append(count)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not faults and all(calls)


def test_a_thread_with_a_small_stack():
    """Tables that grow with the call do not lie on the stack."""
    j = thermit.jit(lambda *xs: [x + 1 for x in xs])
    xs = [torch.full((3,), float(k)) for k in range(1500)]
    expected, made = j(*xs), []
    before = threading.stack_size(64 << 10)
    try:
        thread = threading.Thread(target=lambda: made.extend(j(*xs)))
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    assert all(map(torch.equal, made, expected)) and j._entry.hits == 1


def in_child(work):
    """Whether work() returns true in a forked child within a minute."""
    child = os.fork()
    if child == 0:
        good = False
        try:
            good = bool(work())
        finally:
            os._exit(0 if good else 1)
    for _ in range(600):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status == 0
        time.sleep(0.1)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return False


@pytest.mark.parametrize("elements", [16, 1 << 20])
def test_a_child_calls_and_compiles(elements):
    f, g = thermit.jit(FUNCTIONS[0]), thermit.jit(lambda x: x * 3 + 1)
    x = torch.randn(elements)
    expected = f(x, x)

    def work():
        return torch.equal(f(x, x), expected) and bool((g(x) - (x * 3 + 1)).eq(0).all())

    torch.set_num_threads(1)  # eager's own pool does not survive a fork
    assert in_child(work)


def test_children_of_a_process_that_is_busy():
    """Forked while other threads call and compile: the child finds every lock free and every table whole."""
    f, x, stop = thermit.jit(FUNCTIONS[0]), torch.randn(600, 1000), threading.Event()
    expected = f(x, x)

    def work(seed):
        size = 1
        while not stop.is_set():
            size += 1
            g = thermit.jit(lambda x: (x * seed + 1).sin().softmax(0))
            g(torch.randn(size % 60, seed))
            f(x, x)

    def child():
        fresh = thermit.jit(lambda x: (x * 3 + 1, x.sum(0)))
        return torch.equal(f(x, x), expected) and torch.equal(fresh(x)[0], x * 3 + 1) and torch.equal(fresh(x[0])[0], x[0] * 3 + 1)

    threads = [threading.Thread(target=work, args=(k,)) for k in (2, 3, 5)]
    torch.set_num_threads(1)  # eager's own pool does not survive a fork
    for t in threads:
        t.start()
    try:
        end, good = time.monotonic() + SECONDS / 2, 0
        while time.monotonic() < end or good == 0:
            assert in_child(child)
            good += 1
    finally:
        stop.set()
        for t in threads:
            t.join()


def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize()


def test_calls_do_not_grow_memory():
    jitted = [thermit.jit(f) for f in FUNCTIONS]
    x, y = torch.randn(3, 5), torch.randn(3, 5)

    def turn(count):
        for f in jitted:
            for _ in range(count):
                f(x, y)

    turn(2000)
    gc.collect()
    before = resident()
    turn(CALLS // len(jitted))
    gc.collect()
    assert resident() - before < 1 << 20
