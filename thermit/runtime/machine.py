"""LLVM IR text -> machine code in this process.

What comes in: a module as text (codegen/emit.py).  What goes out: addresses of its functions, alive as long as the MachineCode.
Only the code generator of LLVM runs: the text is already explicit vector code, hoisted and free of redundancy.
"""

from __future__ import annotations

import threading

import llvmlite.binding as llvm

from thermit.codegen.target import Target
from thermit.errors import CompileError

_ADVICE = "This is a fault of thermit's: please report it with explain()."
_initialized = threading.Lock()
_is_ready = False


def _initialize() -> None:
    global _is_ready
    with _initialized:
        if not _is_ready:
            llvm.initialize_native_target()
            llvm.initialize_native_asmprinter()
            _is_ready = True


class MachineCode:
    """The machine code of one module.

    >>> from thermit.codegen.target import host_target
    >>> code = MachineCode("define i32 @f() {\\n  ret i32 7\\n}\\n", host_target())
    >>> code.address("f") != 0
    True
    """

    def __init__(self, text: str, target: Target, opt: int = 2) -> None:
        _initialize()
        self._text, self._target = text, target
        try:
            module = llvm.parse_assembly(text)
        except RuntimeError as error:
            raise CompileError(f"LLVM refused the module: {error}\n{text}", advice=_ADVICE) from None
        self._machine = _target_machine(target, opt)
        self._engine = llvm.create_mcjit_compiler(module, self._machine)
        self._engine.finalize_object()

    def address(self, symbol: str) -> int:
        """The address of a function.  Raises CompileError if there is none."""
        found = int(self._engine.get_function_address(symbol))
        if not found:
            raise CompileError(f"no function {symbol} in the module", advice=_ADVICE)
        return found

    def assembly(self) -> str:
        """The module as assembly text, compiled once more for the eye."""
        return str(_target_machine(self._target, 2).emit_assembly(llvm.parse_assembly(self._text)))


def _target_machine(target: Target, opt: int) -> llvm.TargetMachine:
    found = llvm.Target.from_triple(target.triple)
    return found.create_target_machine(cpu=target.cpu, features=target.features, opt=opt, reloc="pic", jit=True)
