"""What C functions do, or answer, that is no matter of their arguments: clocks, draws, output, settings.

In:  a C function that is called.
Out: `effect`, why no trace can stand for the call, or ""; `setting`, the place of a setting of PyTorch's that is asked for.
Idea: there are few, and they are known by name and module.  Code of PyTorch's own may call what it likes, but for what draws or tells of draws.
"""

from __future__ import annotations

import io
import random
import re
import warnings
from types import ModuleType
from typing import Any

import torch

from thermit.capture.signature import Attr, Held, Source
from thermit.capture.standin import is_stand_in

_IMPURE_MODULES = frozenset(("time", "posix", "nt", "_io", "io", "_socket", "select", "_uuid", "_posixsubprocess", "_signal", "_random", "_tkinter"))
_IMPURE_BUILTINS = frozenset(("print", "input", "open", "breakpoint", "start_new_thread", "exec", "eval", "get_ident", "get_native_id"))
_IMPURE_SETTINGS = frozenset(("get_num_threads", "get_num_interop_threads", "set_num_threads", "set_num_interop_threads", "set_flush_denormal"))
_IMPURE = _IMPURE_BUILTINS | _IMPURE_SETTINGS
_GENERATOR_READS = frozenset(("manual_seed", "seed", "set_state", "get_state", "initial_seed", "set_offset", "get_offset"))
_OF_CLASSES = frozenset(("now", "today", "utcnow", "__subclasses__"))  # clocks, and what a class knows of others
_VALUE_READS = frozenset(("tolist", "numpy", "data_ptr", "__array__", "__dlpack__", "_to_dlpack", "untyped_storage", "storage"))
_OWN_READS = frozenset(("storage_offset", "_is_view", "is_set_to", "is_pinned"))
_SETTING = re.compile(r"_get_\w*(enabled|deterministic|benchmark|allow_tf32|reduction|accumulation)")


def effect(function: Any, in_library: bool) -> str:
    """Why the call of a C function cannot be part of a trace, or "".  `in_library`: PyTorch's own code makes it."""
    owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    what = ""
    if isinstance(owner, torch.Generator) and name in _GENERATOR_READS:
        what = f" of {type(owner).__name__}" if not in_library else " of the random generator"  # draws so far must have been made
    elif in_library:
        return ""
    elif owner is None or isinstance(owner, ModuleType):
        if getattr(function, "__module__", None) not in _IMPURE_MODULES and name not in _IMPURE:
            return ""
    elif isinstance(owner, torch.Tensor):
        if name not in _VALUE_READS and (name not in _OWN_READS or is_stand_in(owner)):
            return ""
        what = " of a tensor"
    elif isinstance(owner, random.Random | io.IOBase):
        what = f" of {type(owner).__name__}"
    elif isinstance(owner, type) and name in _OF_CLASSES:
        return f"calls {owner.__name__}.{name}()"
    else:
        return ""
    return f"calls {name}(){what}"


class _Settings:
    """The settings of PyTorch that its C functions tell."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch._C, name)()


_settings = Held(_Settings(), "torch._C")


def setting(function: Any) -> Source | None:
    """The place of the setting that a C function of PyTorch's tells; None for all other functions."""
    if getattr(function, "__module__", None) != "torch._C" or not _SETTING.fullmatch(function.__name__):
        return None
    return Attr(_settings, function.__name__)


def shows_always(message: warnings.WarningMessage) -> bool:
    """Whether a filter shows this warning each time that it is raised (a filter for certain modules: perhaps)."""
    for action, text, category, module, line in warnings.filters:
        if issubclass(message.category, category) and line in (0, message.lineno) and (text is None or text.match(str(message.message))):
            if action in ("always", "all"):
                return True
            if module is None:
                return False
    return False
