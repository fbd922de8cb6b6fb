"""A child of a fork finds the locks free that other threads of its parent hold."""

import os
import threading

import pytest
import torch

import thermit
from tests.runtime.test_concurrency import in_child
from thermit import compiler, locks
from thermit.ir import node
from thermit.runtime import library, machine


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_compiles_while_a_thread_of_its_parent_does():
    torch.set_num_threads(1)
    held, done = threading.Event(), threading.Event()
    jitted = thermit.jit(lambda x: x * 5 - 2)

    def hold():
        with jitted._state.lock, node._lock, compiler._lock, machine._linker._lock, library._lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    x = torch.arange(16.0)
    try:
        assert in_child(lambda: torch.equal(jitted(x), x * 5 - 2) and jitted._state.compiled == 1)
    finally:
        done.set()
        thread.join()


def test_locks_are_those_of_threading():
    with locks.lock() as taken:
        assert taken is True
    again = locks.reentrant_lock()
    with again, again:
        pass
