"""LLVM IR text -> machine code in this process.

What comes in: a module as text (codegen/emit.py).  What goes out: addresses of its functions, valid as long as the MachineCode
lives.  Only LLVM's code generator runs: the text is explicit vector code, hoisted and free of redundancy already.
The object is position independent, so its bytes may be kept and linked again (`from_object`).

Measured (Zen 3, one busy core; 20 operations, one loop): parse 0.4 ms, select and allocate 8 ms, link 0.4 ms (MCJIT: 1.1 ms).  Level 1
of the code generator is no faster than level 2, level 0 three times faster and its code several times slower.

Thread-safe: each module has a context of its own, and LLVM runs without the GIL.  llvmlite takes one lock around each of LLVM's functions; the one
that generates code, nearly all of the time, is called past it: it touches only its module and its generator, and LLVM is made for that.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

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

    def link(self, data: bytes, symbols: Sequence[str], imports: Mapping[str, int]) -> llvm.ResourceTracker:
        self.prepare()
        builder = llvm.JITLibraryBuilder().add_object_img(data).add_current_process()
        for name, address in imports.items():
            builder = builder.import_symbol(name, address)
        for symbol in symbols:
            builder = builder.export_symbol(symbol)
        with self._lock:
            return builder.link(self.jit, f"thermit.{next(self._numbers)}")


_linker = _Linker()


class _Emissions:
    """The threads that generate code.  A fork waits until there is none: whoever is inside LLVM holds locks of it, which nobody would ever
    free in the child.  (Not for the thread that forks, which is there only in name: a signal came when it was done.)"""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.RLock())
        self._at_work: set[int] = set()

    @contextmanager
    def one(self) -> Iterator[None]:
        me = threading.get_ident()
        with self._changed:
            self._at_work.add(me)
        try:
            yield
        finally:
            with self._changed:
                self._at_work.discard(me)
                self._changed.notify_all()

    def stop(self) -> None:
        """Waits until no other thread is at work; none begins before `go`."""
        self._changed.acquire()
        self._changed.wait_for(lambda: self._at_work <= {threading.get_ident()})

    def go(self) -> None:
        self._changed.release()


_emissions = _Emissions()


def _quiet_forks() -> None:
    """A fork waits until no thread is inside LLVM: llvmlite holds one lock around its functions, and a thread that does not exist in
    the child would hold it, and LLVM's own, for ever."""
    inside = llvm.ffi.lib._lock

    def before() -> None:
        _emissions.stop()  # whoever generates code waits for nothing
        inside.__enter__()

    def after() -> None:
        inside.__exit__(None, None, None)
        _emissions.go()

    os.register_at_fork(before=before, after_in_parent=after, after_in_child=after)


_quiet_forks()


def _emitted(generator: llvm.TargetMachine, module: llvm.ModuleRef) -> bytes:
    """The module as an object."""
    emit = llvm.ffi.lib.LLVMPY_TargetMachineEmitToMemory
    emit = getattr(emit, "_cfn", emit)  # without the lock
    with llvm.ffi.OutputString() as error:
        with _emissions.one():
            buffer = emit(generator, module, 1, error)
        if not buffer:
            raise RuntimeError(str(error))
    try:
        return ctypes.string_at(llvm.ffi.lib.LLVMPY_GetBufferStart(buffer), llvm.ffi.lib.LLVMPY_GetBufferSize(buffer))
    finally:
        llvm.ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


def link_forever(data: bytes, symbols: Sequence[str]) -> dict[str, int]:
    """The addresses of an object's symbols.  It stays until the process ends, also while the interpreter shuts down."""
    linked = _linker.link(data, symbols, {})
    for part in (linked, _linker.jit):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(part))
    return {symbol: int(linked[symbol]) for symbol in symbols}


WARM_UP = """
define void @f(ptr %x, i64 %n) nounwind {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %sum = phi <16 x float> [ zeroinitializer, %entry ], [ %more, %loop ]
  %at = getelementptr inbounds float, ptr %x, i64 %i
  %a = load <16 x float>, ptr %at, align 4
  %b = fmul <16 x float> %a, splat (float 3.0)
  %c = fcmp ogt <16 x float> %b, %a
  %d = select <16 x i1> %c, <16 x float> %b, <16 x float> zeroinitializer
  %e = bitcast <16 x float> %d to <16 x i32>
  %g = shl <16 x i32> %e, splat (i32 3)
  %h = bitcast <16 x i32> %g to <16 x float>
  store <16 x float> %h, ptr %at, align 4
  %more = fadd <16 x float> %sum, %h
  %next = add nuw nsw i64 %i, 16
  %again = icmp slt i64 %next, %n
  br i1 %again, label %loop, label %done
done:
  %low = shufflevector <16 x float> %more, <16 x float> poison, <4 x i32> <i32 0, i32 1, i32 2, i32 3>
  store <4 x float> %low, ptr %x, align 4
  ret void
}
"""


def warm_up(target: Target) -> None:
    """Starts a thread that compiles a small loop: LLVM's first module takes some 4 ms longer than its second, while its code is read and its
    tables are made.  Called with the import, so that it is over before the first function is compiled; the thread ends by itself."""

    def work() -> None:
        with suppress(Exception), _parsed(WARM_UP) as module, _generators.one(target) as generator:
            _emitted(generator, module)

    threading.Thread(target=work, name="thermit").start()


class MachineCode:
    """The machine code of one module, which may call functions of others (`imports`, by their names; they stay as long as this does).

    >>> from thermit.codegen.target import host_target
    >>> code = MachineCode("define i32 @f() {\\n  ret i32 7\\n}\\n", host_target())
    >>> code.address("f") != 0
    True
    """

    def __init__(self, text: str, target: Target, imports: Mapping[str, MachineCode] | None = None) -> None:
        _linker.prepare()
        self.text, self.target, self.imports = text, target, dict(imports or {})
        with _parsed(text) as module:
            self.symbols = tuple(f.name for f in module.functions if not f.is_declaration and f.linkage == llvm.Linkage.external)
            called = [f.name for f in module.functions if f.is_declaration and not f.name.startswith("llvm.") and f.name not in self.imports]
            missing = [name for name in called if not llvm.address_of_symbol(name)]
            if missing:
                raise CompileError(f"the module calls {', '.join(missing)}, which this process does not have", advice=_ADVICE)
            with _generators.one(target) as generator:
                self.object: bytes = _emitted(generator, module)
        self._link()

    @classmethod
    def from_object(cls, data: bytes, symbols: Sequence[str], text: str, target: Target) -> MachineCode:
        """Code that was compiled earlier, for the same target."""
        code = cls.__new__(cls)
        code.text, code.target, code.symbols, code.object, code.imports = text, target, tuple(symbols), data, {}
        code._link()
        return code

    def _link(self) -> None:
        try:
            addresses = {name: code.address(name) for name, code in self.imports.items()}
            self._library = _linker.link(self.object, self.symbols, addresses)
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
    with _parsed(text) as module, _generators.one(target) as generator:
        return str(generator.emit_assembly(module))


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


class _Generators:
    """LLVM's code generators that are not at work.  A new one first has to learn what its processor can do, half a millisecond."""

    def __init__(self) -> None:
        self._idle: dict[Target, list[llvm.TargetMachine]] = {}

    @contextmanager
    def one(self, target: Target) -> Iterator[llvm.TargetMachine]:
        idle = self._idle.setdefault(target, [])
        try:
            machine = idle.pop()
        except IndexError:
            found = llvm.Target.from_triple(target.triple)
            machine = found.create_target_machine(cpu=target.cpu, features=target.features, opt=_LEVEL, reloc="pic", codemodel="small")
        yield machine
        idle.append(machine)


_generators = _Generators()
