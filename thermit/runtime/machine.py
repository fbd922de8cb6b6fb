"""LLVM IR text -> machine code in this process.

What comes in: a module as text (codegen/emit.py).  What goes out: addresses of its functions, valid as long as the MachineCode
lives.  Only LLVM's code generator runs: the text is explicit vector code, hoisted and free of redundancy already.
The object is position independent, so its bytes may be kept and linked again (`from_object`).

Measured (Zen 3, one busy core; 20 operations, one loop): parse 0.4 ms, select and allocate 8 ms, link 0.4 ms (MCJIT: 1.1 ms).  Level 1
of the code generator is no faster than level 2, level 0 three times faster and its code several times slower.

Thread-safe: each module has a context of its own, and LLVM runs without the GIL.
"""

from __future__ import annotations

import ctypes
import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import llvmlite.binding as llvm

from thermit.codegen.target import Target
from thermit.errors import CompileError
from thermit.locks import lock

_ADVICE = "This is a fault of thermit's: please report it with explain()."
_LEVEL = 2


class _Linker:
    """The process's one linker, made when it is first needed.  A child of a fork makes its own: a thread of the parent may have been at work
    in the old one, which is kept for the code that it has linked."""

    def __init__(self) -> None:
        self._lock = lock()
        self.jit: llvm.LLJIT | None = None
        self._kept: list[llvm.LLJIT | None] = []
        self._numbers = itertools.count()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._kept.append(self.jit)
        self.jit = None

    def prepare(self) -> None:
        """Makes LLVM ready for the processor of this process."""
        with self._lock:
            if self.jit is None:
                llvm.initialize_native_target()
                llvm.initialize_native_asmprinter()
                self.jit = llvm.create_lljit_compiler(use_jit_link=True)

    def link(self, data: bytes, symbols: Sequence[str]) -> llvm.ResourceTracker:
        self.prepare()
        builder = llvm.JITLibraryBuilder().add_object_img(data).add_current_process()
        for symbol in symbols:
            builder = builder.export_symbol(symbol)
        with self._lock:
            return builder.link(self.jit, f"thermit.{next(self._numbers)}")


_linker = _Linker()


def _quiet_forks() -> None:
    """A fork waits until no thread is inside LLVM: llvmlite holds one lock around each of its functions, and a thread that does not exist in
    the child would hold it, and LLVM's own, for ever."""
    inside = llvm.ffi.lib._lock
    os.register_at_fork(
        before=inside.__enter__,
        after_in_parent=lambda: inside.__exit__(None, None, None),
        after_in_child=lambda: inside.__exit__(None, None, None),
    )


_quiet_forks()


def link_forever(data: bytes, symbols: Sequence[str]) -> dict[str, int]:
    """The addresses of an object's symbols.  It stays until the process ends, also while the interpreter shuts down."""
    linked = _linker.link(data, symbols)
    for part in (linked, _linker.jit):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(part))
    return {symbol: int(linked[symbol]) for symbol in symbols}


class MachineCode:
    """The machine code of one module.

    >>> from thermit.codegen.target import host_target
    >>> code = MachineCode("define i32 @f() {\\n  ret i32 7\\n}\\n", host_target())
    >>> code.address("f") != 0
    True
    """

    def __init__(self, text: str, target: Target) -> None:
        _linker.prepare()
        self.text, self.target = text, target
        with _parsed(text) as module:
            self.symbols = tuple(f.name for f in module.functions if not f.is_declaration and f.linkage == llvm.Linkage.external)
            missing = [f.name for f in module.functions if f.is_declaration and not f.name.startswith("llvm.") and not llvm.address_of_symbol(f.name)]
            if missing:
                raise CompileError(f"the module calls {', '.join(missing)}, which this process does not have", advice=_ADVICE)
            self.object: bytes = _target_machine(target).emit_object(module)
        self._link()

    @classmethod
    def from_object(cls, data: bytes, symbols: Sequence[str], text: str, target: Target) -> MachineCode:
        """Code that was compiled earlier, for the same target."""
        code = cls.__new__(cls)
        code.text, code.target, code.symbols, code.object = text, target, tuple(symbols), data
        code._link()
        return code

    def _link(self) -> None:
        try:
            self._library = _linker.link(self.object, self.symbols)
        except RuntimeError as error:
            raise CompileError(f"the machine code does not link: {error}", advice=_ADVICE) from None

    def address(self, symbol: str) -> int:
        """The address of a function.  Raises CompileError if there is none."""
        if symbol not in self.symbols:
            raise CompileError(f"no function {symbol} in the module", advice=_ADVICE)
        return int(self._library[symbol])

    def assembly(self) -> str:
        """The module as assembly text, compiled once more for the eye."""
        return assembly(self.text, self.target)


def assembly(text: str, target: Target) -> str:
    """A module as assembly for any x86 target, which need not be the host."""
    _linker.prepare()
    with _parsed(text) as module:
        return str(_target_machine(target).emit_assembly(module))


@contextmanager
def _parsed(text: str) -> Iterator[llvm.ModuleRef]:
    """The module in a context of its own; both are closed here, in this order (the collector might free the context first)."""
    context = llvm.create_context()
    module = None
    try:
        module = llvm.parse_assembly(text, context)
        module.verify()
        yield module
    except RuntimeError as error:
        raise CompileError(f"LLVM refused the module: {error}\n{text}", advice=_ADVICE) from None
    finally:
        if module is not None:
            module.close()
        context.close()


def _target_machine(target: Target) -> llvm.TargetMachine:
    found = llvm.Target.from_triple(target.triple)
    return found.create_target_machine(cpu=target.cpu, features=target.features, opt=_LEVEL, reloc="pic", codemodel="small")
