"""What is switched for a thread or a process: nothing compiled inside `disable`, compilations told of, kept memory given back.

In:  calls of the user's.  Out: the native entry's switch, the options, the pool.  Idea: inside `disable` every entry goes to its slow path,
which asks `is_disabled()`, because other threads go on compiled.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from thermit import config, locks
from thermit.runtime import entry as native
from thermit.runtime.library import runtime

F = TypeVar("F", bound=Callable[..., Any])


class _Disabled(threading.local):
    depth = 0


_disabled = _Disabled()
_switch_lock = locks.lock()
_switches = 0


def is_disabled() -> bool:
    """Whether everything runs eagerly in this thread."""
    return _disabled.depth > 0 or config.current.disable


class disable:
    """Inside `with thermit.disable():`, and in functions decorated with it, everything runs eagerly (in this thread).

    >>> with disable():
    ...     pass
    """

    def __new__(cls, fn: Callable[..., Any] | None = None) -> Any:
        self = super().__new__(cls)
        return self if fn is None else self(fn)

    def __init__(self, fn: Callable[..., Any] | None = None) -> None:
        pass

    def __call__(self, fn: F) -> F:
        @functools.wraps(fn)
        def eager(*args: Any, **kwargs: Any) -> Any:
            with disable():
                return fn(*args, **kwargs)

        return eager  # type: ignore[return-value]

    def __enter__(self) -> None:
        global _switches
        _disabled.depth += 1
        with _switch_lock:
            _switches += 1
            native.disable(True)

    def __exit__(self, *_: Any) -> None:
        global _switches
        _disabled.depth -= 1
        with _switch_lock:
            _switches -= 1
            native.disable(_switches > 0)


def empty_cache() -> None:
    """Gives the memory that is kept for the next temporaries and large results back to the system, as `torch.cuda.empty_cache` does for a GPU's.

    >>> empty_cache()
    """
    made = runtime()
    if made is not None:
        made.pool.empty_cache()


class log_compiles:
    """Says on stderr what is compiled, why, and how long it took: `thermit.log_compiles()`, or as a context.

    >>> with log_compiles():
    ...     pass
    """

    def __init__(self, value: bool = True) -> None:
        self.before = config.configure(log_compiles=value)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: Any) -> None:
        config.configure(log_compiles=self.before.log_compiles)
