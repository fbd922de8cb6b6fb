"""Locks that are free in the child of a fork, whoever held them in the parent.

In:  nothing.  Out: `lock()`, `reentrant_lock()`: as threading's.
Idea: the thread that held a lock does not exist in the child; without this the child would wait for it forever.
Invariant: what a lock of thermit's protects is right between any two bytecodes (a finished entry is put in its place in one step), so a child
may go on from whatever it finds.
"""

from __future__ import annotations

import os
import threading
import weakref

_locks: weakref.WeakSet[threading.Lock | threading.RLock] = weakref.WeakSet()


def lock() -> threading.Lock:
    """A lock, free again in the child of a fork."""
    made = threading.Lock()
    _locks.add(made)
    return made


def reentrant_lock() -> threading.RLock:
    """A lock that the thread that holds it may take again, free again in the child of a fork."""
    made = threading.RLock()
    _locks.add(made)
    return made


def _free() -> None:
    for each in list(_locks):
        each._at_fork_reinit()  # type: ignore[union-attr]


os.register_at_fork(after_in_child=_free)
