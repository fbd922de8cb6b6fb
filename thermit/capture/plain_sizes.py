"""Keeps PyTorch's Python metas from importing sympy and torch._dynamo: one to five seconds in the first call of a process.

In:  a stretch of code that runs metas on plain integers.  Out: the same results.
Idea: metas import sympy, to ask whether a number is an expression, `guard_or_false` and its kin from
torch.fx.experimental.symbolic_shapes, for sizes that may be symbols (ours never are), and torch._dynamo, to be skipped by it: all of that
when they are called.  While a meta runs, and only if nobody has loaded these modules, their
places are held by modules whose functions know plain numbers; whatever else is asked of them, or asked about a symbol, is answered by
the real module, which is then loaded.  Invariant: outside `plain_sizes()` sys.modules is as it was.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from thermit.locks import lock

SYMBOLS, DYNAMO = "torch.fx.experimental.symbolic_shapes", "torch._dynamo"
_PLAIN = (bool, int, float)


class _Placeholder(ModuleType):
    """Holds the place of a module and loads it when asked for what it does not know itself."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and (name != "__path__" or self.__name__ == SYMBOLS):
            raise AttributeError(name)
        return getattr(self.real(), name)

    def real(self) -> ModuleType:
        """The module itself."""
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return importlib.import_module(self.__name__)


# ---------------------------------------------------------------------------------------------- symbols
_symbols = _Placeholder(SYMBOLS)


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return type(value) in _PLAIN


def _identity(name: str) -> Any:
    def answer(value: Any, *rest: Any, **more: Any) -> Any:
        return value if _is_plain(value) else getattr(_symbols.real(), name)(value, *rest, **more)

    return answer


def sym_and(x: Any, *others: Any) -> Any:
    return all((x, *others)) if _is_plain((x, *others)) else _symbols.real().sym_and(x, *others)


def sym_or(x: Any, *others: Any) -> Any:
    return any((x, *others)) if _is_plain((x, *others)) else _symbols.real().sym_or(x, *others)


def sym_eq(x: Any, y: Any) -> Any:
    if not (_is_plain(x) and _is_plain(y)):
        return _symbols.real().sym_eq(x, y)
    return tuple(x) == tuple(y) if isinstance(x, list | tuple) else x == y


def is_nested_int(value: Any) -> Any:
    return False if _is_plain(value) else _symbols.real().is_nested_int(value)


def has_guarding_hint(value: Any) -> Any:
    return True if _is_plain(value) else _symbols.real().has_guarding_hint(value)


def free_unbacked_symbols(value: Any) -> Any:
    return set() if _is_plain(value) else _symbols.real().free_unbacked_symbols(value)


_GUARDS = "guard_or_false guard_or_true guard_size_oblivious statically_known_true guarding_hint_or_throw guard_int expect_true"
for _name in _GUARDS.split():
    setattr(_symbols, _name, _identity(_name))
for _function in (sym_and, sym_or, sym_eq, is_nested_int, has_guarding_hint, free_unbacked_symbols):
    setattr(_symbols, _function.__name__, _function)

# ---------------------------------------------------------------------------------------------- dynamo
_dynamo = _Placeholder(DYNAMO)


def _disable(fn: Callable[..., Any], recursive: bool = True, *, wrapping: bool = True, **more: Any) -> Callable[..., Any]:
    """torch._dynamo.disable, as far as it matters before torch._dynamo is there; what is made now obeys it once it is."""
    obeying: list[Callable[..., Any]] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        if not obeying:
            dynamo = sys.modules.get(DYNAMO)
            if dynamo is None or dynamo is _dynamo or not hasattr(dynamo, "disable"):
                return fn(*args, **kwargs)
            obeying.append(dynamo.disable(fn, recursive, wrapping=wrapping, **more))
        return obeying[0](*args, **kwargs)

    return call


_dynamo.disable = _disable  # type: ignore[attr-defined]

# ---------------------------------------------------------------------------------------------- sympy
_sympy = _Placeholder("sympy")


class _Expressions(type):
    def __instancecheck__(cls, value: Any) -> bool:
        sympy = sys.modules.get("sympy")
        return sympy is not None and sympy is not _sympy and isinstance(value, sympy.Basic)


class _Basic(metaclass=_Expressions):
    """sympy.Basic for `isinstance`: nothing is one before sympy is loaded."""


_sympy.Basic = _Basic  # type: ignore[attr-defined]

# ---------------------------------------------------------------------------------------------- in their places
_PLACEHOLDERS = (_symbols, _dynamo, _sympy)
_lock = lock()
_users = 0


class plain_sizes:
    """See the module."""

    def __enter__(self) -> None:
        global _users
        with _lock:
            _users += 1
            if _users == 1:
                for module in _PLACEHOLDERS:
                    sys.modules.setdefault(module.__name__, module)

    def __exit__(self, *_: Any) -> None:
        global _users
        with _lock:
            _users -= 1
            if _users == 0:
                for module in _PLACEHOLDERS:
                    if sys.modules.get(module.__name__) is module:
                        del sys.modules[module.__name__]
