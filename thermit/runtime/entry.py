"""The callable that a user holds: a builtin function that checks, runs and returns natively, and asks Python only when no variant fits.

    entry = Entry(slow_path);  entry.install(Variant(...));  entry.callable(*args, **kwargs)

A `Variant` is one compiled program with everything that must hold for it.  The variants of an entry are tried in order, the newest first.
Installing swaps one pointer to an immutable table, so other threads may call meanwhile; what a running call may read is never freed
before the entry.  Where PyTorch's binary interface is not as expected, `callable` is the slow path itself.
Objects of a class that `called_natively` makes are called without the way through their class that Python takes to `__call__`.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch

from thermit.capture.signature import Guard, Source, TensorSpec
from thermit.ir.node import Return
from thermit.locks import lock
from thermit.records import dataclass
from thermit.runtime import torch_abi
from thermit.runtime.guard import GuardTable, is_fetched
from thermit.runtime.launch import is_native
from thermit.runtime.library import Runtime, runtime
from thermit.runtime.native.calling import ENTRY_WORDS, FORMS, VARIANT_WORDS
from thermit.runtime.program import Program, Stopped
from thermit.runtime.results import seen
from thermit.runtime.shorten import WORTH, Shortened

_METH_FASTCALL_KEYWORDS = 0x80 | 0x02
Form = Literal["none", "one", "tuple", "list"]


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """One compiled program and what must hold for it.

    `positional`, `keywords`: how many positional arguments the call has, and the names of its keyword arguments in their order.
    `tensors`: where each input of the program comes from, and what it must be.  `guards`: all other facts.
    `form`: what the function returns: None, the one tensor of plan.returns, a tuple or list of them, or a function of that list.
    `on_stop`: called with the arguments when the program stops: the function, run eagerly.
    `ambient`: torch_abi.ambient() as it was when the function was traced.
    """

    positional: int
    keywords: tuple[str, ...]
    tensors: tuple[tuple[Source, TensorSpec], ...]
    guards: tuple[Guard, ...]
    program: Program
    form: Form | Callable[[list[torch.Tensor]], Any]
    on_stop: Callable[..., Any]
    ambient: tuple[int, ...]


class _Bound:
    """What the builtin function is bound to: the entry's words, and the entry, so that it lives as long as the function."""

    __slots__ = ("a_words", "b_entry")

    def __init__(self, a_words: bytes, b_entry: Entry | None) -> None:
        self.a_words, self.b_entry = a_words, b_entry


class _MethodDef(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p)]


_methods: list[_MethodDef] = torch_abi.for_ever([])


@torch_abi.for_ever
def _gone(*_: Any, **__: Any) -> Any:
    raise RuntimeError("this jitted function is being destroyed")


def _words(slow_path: Callable[..., Any]) -> tuple[bytes, ctypes.Array[ctypes.c_int64]]:
    """The words of an entry, and the object that they lie in."""
    memory = bytes(bytearray(8 * ENTRY_WORDS))  # unshared; written natively
    words = (ctypes.c_int64 * ENTRY_WORDS).from_address(id(memory) + bytes.__basicsize__ - 1)
    words[1] = id(slow_path)
    return memory, words


_NOBODY = torch_abi.for_ever(_Bound(_words(_gone)[0], None))  # who calls an entry that the collector has taken apart finds this


class Entry:
    """`slow_path` is called with the arguments when no variant fits."""

    def __init__(self, slow_path: Callable[..., Any]) -> None:
        self._lock = lock()
        self._slow_path = slow_path
        self._keep: list[Any] = []
        self._variants: list[int] = []
        self._runtime = runtime()
        self.callable: Callable[..., Any] = slow_path if self._runtime is None else self._make(self._runtime)

    def _make(self, native: Runtime) -> Callable[..., Any]:
        memory, self._words = _words(self._slow_path)
        bound = _Bound(memory, self)
        assert torch_abi.word(id(bound) + 16) == id(memory)
        if not _methods:
            native.set("GONE", id(_NOBODY))
            _methods.append(_MethodDef(b"call", native.address["call"], _METH_FASTCALL_KEYWORDS, None))
        new = ctypes.pythonapi.PyCFunction_NewEx
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
        function: Callable[..., Any] = new(ctypes.addressof(_methods[0]), bound, None)
        return function

    def __del__(self) -> None:
        """Before the collector takes its parts: what the words point to is gone then."""
        if self._runtime is not None:
            self._words[0], self._words[1] = 0, id(_gone)

    def install(self, variant: Variant) -> bool:
        """Makes the variant the first that calls try.  False where nothing can run natively."""
        native = self._runtime
        if native is None or not _fits(variant):
            return False
        address = self._variant(native, variant)
        with self._lock:
            self._variants.insert(0, address)
            self._swap()
        return True

    def clear(self) -> None:
        """Forgets all variants."""
        with self._lock:
            self._variants.clear()
            if self._runtime is not None:
                self._swap()

    @property
    def hits(self) -> int:
        """Calls that a variant answered."""
        return int(self._words[2]) if self._runtime is not None else 0

    @property
    def misses(self) -> int:
        """Calls that went to the slow path."""
        return int(self._words[3]) if self._runtime is not None else 0

    def _swap(self) -> None:
        table = (ctypes.c_int64 * (1 + len(self._variants)))(len(self._variants), *self._variants)
        self._keep.append(table)
        self._words[0] = ctypes.addressof(table)

    def _variant(self, native: Runtime, v: Variant) -> int:
        """The address of the variant's words."""
        plan = v.program.plan
        table = GuardTable(native.abi, v.positional, v.keywords, v.tensors, v.guards, plan.updates)
        windows = any(r.window is not None for r in plan.returns)
        keywords = tuple(sys.intern(k) for k in v.keywords) or None
        words = dict.fromkeys(VARIANT_WORDS, 0) | {
            "NARGS": v.positional, "KEYWORDS": id(keywords) if keywords else 0, "AMBIENT": table.add(v.ambient), "INSTRUCTIONS": table.address(),
            "COUNT": table.count, "SLOTS": table.slots, "TENSORS": len(v.tensors), "SPECS": table.add(table.specs), "DIRECT": table.direct,
            "GROUPS": int(any(s.group >= 0 for _, s in v.tensors)), "UPDATES": len(plan.updates), "UPDATED": table.add(plan.updates),
            "STOP": id(v.on_stop),
        }  # fmt: skip
        if is_native(plan):
            made = v.program.native
            finish = _finisher(v.form, plan.returns) if windows or not isinstance(v.form, str) else None
            words |= {
                "PLAN": made.address, "OUTPUTS": made.outputs, "OUTPUT_TABLE": made.output_table, "RETURNS": len(plan.returns),
                "RETURN_TABLE": table.add([_number(r) for r in plan.returns]), "FORM": FORMS.index("finish" if finish else v.form),
                "FINISH": table.object(finish),
            }  # fmt: skip
            self._keep.append(made)
        else:
            runner = _runner(v)
            words["RUNNER"] = id(runner)
            self._keep.append(runner)
        shortened = Shortened(native.abi, v, table, plan.updates, self._words) if table.count >= WORTH else None
        words["SHORTEN"] = table.object(shortened) if shortened is not None else 0
        self._keep += [table, keywords, v]
        address = table.add(list(words.values()))
        if shortened is not None:
            shortened.variant = address
        return address


def _number(r: Return) -> int:
    return r.index if r.source == "input" else -1 - r.index


def _fits(variant: Variant) -> bool:
    """Whether every input can be fetched natively; updates of inference tensors outside inference mode are errors that eager raises."""
    inference = any(variant.tensors[i][1].flags & 4 for i in variant.program.plan.updates)
    known = all(spec.dtype in torch_abi.DLPACK_CODES for _, spec in variant.tensors)
    known = known and all(is_fetched(source) for source, _ in variant.tensors)
    return known and not (inference and not torch.is_inference_mode_enabled())


def _runner(variant: Variant) -> Callable[[list[torch.Tensor]], Any]:
    """A function of the program's inputs that gives the function's result, or NotImplemented if the program stopped."""
    run, finish = variant.program.run, _finisher(variant.form, ())

    def runner(inputs: list[torch.Tensor]) -> Any:
        try:
            return finish(run(inputs))
        except Stopped:
            return NotImplemented

    return runner


def _finisher(form: Form | Callable[[list[torch.Tensor]], Any], returns: Sequence[Return]) -> Callable[[list[torch.Tensor]], Any]:
    """A function of the list of tensors that are returned, the windows of `returns` not yet applied, that gives the function's result."""
    last = form if not isinstance(form, str) else _FINISH[form]
    windows = [(k, r) for k, r in enumerate(returns) if r.window is not None]
    if not windows:
        return last

    def finish(tensors: list[torch.Tensor]) -> Any:
        for k, r in windows:
            tensors[k] = seen(tensors[k], r)
        return last(tensors)

    return finish


_FINISH: dict[str, Callable[[list[torch.Tensor]], Any]] = {"none": lambda _: None, "one": lambda results: results[0], "tuple": tuple, "list": list}


def disable(value: bool = True) -> None:
    """While disabled, every entry goes to its slow path."""
    native = runtime()
    if native is not None:
        native.switch[0] = int(value)
