"""Whose code is it: the user's (and other packages'), torch.nn's modules, the standard library's, or a library that is not watched.

In:  a code object, a class, a module.  Out: one of four numbers.
Idea: user code is watched whole; modules of torch.nn read state of the user's model, so their attributes are watched but not their
globals; the standard library may read any object that it is given; torch, numpy and thermit are taken as they are.
"""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
import weakref
from argparse import Namespace
from types import CodeType, FrameType, ModuleType, SimpleNamespace
from typing import Any

import numpy
import torch

LIBRARY, STANDARD, MODULES, USER = 0, 1, 2, 3


def _folder(path: str) -> str:
    return os.path.join(os.path.dirname(os.path.abspath(path)), "")


_TORCH, _NUMPY = _folder(torch.__file__), _folder(numpy.__file__)
_THERMIT = _folder(os.path.dirname(os.path.abspath(__file__)))
_STANDARD = tuple(os.path.join(os.path.realpath(p), "") for p in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}) + tuple(
    os.path.join(p, "") for p in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
)
_PACKAGES = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)
_NN = (os.path.join(_TORCH, "nn", "modules", ""), os.path.join(_TORCH, "nn", "utils", "parametr"))
_NN_MACHINERY = os.path.join(_TORCH, "nn", "modules", "module.py")
_LIBRARIES = frozenset(("torch", "numpy", "thermit", "torch_C", "pybind11_builtins"))
_STANDARD_MODULES = sys.stdlib_module_names - {"__main__"}
_PLAIN_BASES = frozenset(("object", "ABC", "Generic", "Protocol", "Enum", "IntEnum", "StrEnum", "Flag", "IntFlag", "ReprEnum"))

_classes: weakref.WeakKeyDictionary[type, int] = weakref.WeakKeyDictionary()


def code_origin(code: CodeType) -> int:
    """Whose code this is, decided by the file it was compiled from."""
    return _file_origin(code.co_filename)


@functools.lru_cache(maxsize=1 << 14)
def _file_origin(path: str) -> int:
    if path.startswith(_NN):
        return LIBRARY if path == _NN_MACHINERY else MODULES
    if path.startswith((_TORCH, _NUMPY, _THERMIT, "<frozen importlib", "<frozen zipimport", "<__array_function__")):
        return LIBRARY
    if path.startswith("<frozen") or (path.startswith(_STANDARD) and not any(part in path for part in _PACKAGES)):
        return STANDARD
    return USER


def is_package(code: CodeType) -> bool:
    """Whether the code belongs to an installed package."""
    return any(part in code.co_filename for part in _PACKAGES)


def class_origin(kind: type) -> int:
    """USER for classes whose methods are all watched; STANDARD if a base has Python code that is not; MODULES for torch.nn's; else LIBRARY.

    LIBRARY: instances are taken as they are.  STANDARD: code that is not watched may read any of their attributes.
    """
    origin = _classes.get(kind)
    if origin is None:
        origin = _classes[kind] = _decide(kind)
    return origin


def _root(kind: Any) -> str:
    return str(getattr(kind, "__module__", "")).partition(".")[0]


def _decide(kind: type) -> int:
    root, name = _root(kind), str(kind.__module__)
    if issubclass(kind, torch.nn.Module):
        if name.startswith(("torch.nn.modules.", "torch.nn.utils.parametr")):
            return MODULES
        ours = [b for b in kind.__mro__ if _root(b) == "torch" and not str(b.__module__).startswith(("torch.nn.modules.", "torch.nn.utils.parametr"))]
        return STANDARD if ours and root == "torch" else USER
    if root in ("thermit", "logging", "numpy", "builtins") or name.startswith(("torch._C", "torch._ops", "torch.autograd", "torch.utils")):
        return LIBRARY
    if issubclass(kind, type):
        return LIBRARY if root in _LIBRARIES or root in _STANDARD_MODULES else USER
    if kind in (SimpleNamespace, Namespace):
        return USER
    if root == "torch" or root in _STANDARD_MODULES:
        return STANDARD
    for base in kind.__mro__[1:]:
        if (_root(base) in _STANDARD_MODULES and _root(base) != "builtins" and base.__name__ not in _PLAIN_BASES) or _root(base) == "torch":
            return STANDARD
    return USER


def is_library_module(module: ModuleType) -> bool:
    """Whether the names in this module are taken as they are."""
    root = module.__name__.partition(".")[0]
    return root in _LIBRARIES or root in _STANDARD_MODULES or root == "builtins"


def called_by_library(frame: FrameType) -> bool:
    """Whether PyTorch asks the standard library for something of its own (its settings in the environment)."""
    caller = frame.f_back
    while caller is not None and code_origin(caller.f_code) == STANDARD:
        caller = caller.f_back
    return caller is not None and code_origin(caller.f_code) == LIBRARY
