"""Classes whose objects are called natively: without the way through the class that Python takes to `__call__`.

    kind = called_natively(base);  self = kind.__new__(kind);  connect(self, entry.callable)

Idea: CPython calls an object of a class with a vectorcall offset through the address that the object has there (PEP 590).  A class made by
`PyType_FromSpec` may have one, and a slot besides for what the entry's builtin function is bound to, which the collector knows.
Invariant: an object that is not connected, or that the collector has taken apart, raises when it is called.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

from thermit.runtime.library import Runtime, runtime
from thermit.runtime.torch_abi import for_ever, word

_SLOT = "_thermit_bound"
_HAVE_VECTORCALL = 1 << 11
_CALL, _MEMBERS = 50, 72  # Py_tp_call, Py_tp_members
_OBJECT, _SSIZE, _READONLY = 16, 19, 1  # T_OBJECT_EX, T_PYSSIZET
_keep: list[Any] = []


class _Member(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p), ("type", ctypes.c_int), ("offset", ctypes.c_ssize_t), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p)
    ]  # fmt: skip


class _TypeSlot(ctypes.Structure):
    _fields_ = [("slot", ctypes.c_int), ("value", ctypes.c_void_p)]


class _Spec(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p), ("basicsize", ctypes.c_int), ("itemsize", ctypes.c_int), ("flags", ctypes.c_uint),
        ("slots", ctypes.POINTER(_TypeSlot)),
    ]  # fmt: skip


def called_natively(base: type) -> type | None:
    """A subclass of a class; None where this Python or PyTorch is not as expected.  There can be one in a process."""
    native = runtime()
    if native is None or _keep or sys.implementation.name != "cpython":
        return None
    at = base.__basicsize__
    members = (_Member * 3)(_Member(b"__vectorcalloffset__", _SSIZE, at, _READONLY), _Member(_SLOT.encode(), _OBJECT, at + 8, 0))
    call = ctypes.cast(ctypes.pythonapi.PyVectorcall_Call, ctypes.c_void_p)
    slots = (_TypeSlot * 3)(_TypeSlot(_CALL, call), _TypeSlot(_MEMBERS, ctypes.cast(members, ctypes.c_void_p)))
    spec = _Spec(f"{base.__module__}.{base.__qualname__}".encode(), at + 16, 0, _HAVE_VECTORCALL, slots)
    _keep.append(for_ever((members, slots, spec)))
    make = ctypes.pythonapi.PyType_FromSpecWithBases
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object]
    kind: type = make(ctypes.addressof(spec), (base,))
    return kind if _works(kind, native, at) else None


def _works(kind: Any, native: Runtime, at: int) -> bool:
    """Whether objects of the class have their slots where they should."""
    o, mark = kind.__new__(kind), object()
    setattr(o, _SLOT, mark)
    if kind.__basicsize__ != at + 16 or word(id(o) + at) != 0 or word(id(o) + at + 8) != id(mark):
        return False
    native.set("BOUND", at + 8)
    return True


def connect(self: Any, function: Callable[..., Any]) -> None:
    """Calls of the object become calls of an entry's builtin function."""
    native = runtime()
    assert native is not None
    setattr(self, _SLOT, function.__self__)  # type: ignore[attr-defined]
    ctypes.c_int64.from_address(id(self) + type(self).__basicsize__ - 16).value = native.address["call_object"]
