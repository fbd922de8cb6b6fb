"""Machine code: addresses, errors, many threads, code that goes away, code linked again."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import subprocess
import sys
import threading

import llvmlite.binding as llvm
import pytest

from thermit.codegen.target import host_target, x86_target
from thermit.errors import CompileError
from thermit.runtime.machine import WARM_UP, MachineCode, assembly


def constant(value: int, name: str = "f") -> str:
    return f"define i32 @{name}(i32 %x) nounwind {{\n  %r = add i32 %x, {value}\n  ret i32 %r\n}}\n"


def call(code: MachineCode, name: str, x: int) -> int:
    return int(ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32)(code.address(name))(x))


def test_functions_have_addresses_and_helpers_have_none() -> None:
    code = MachineCode(constant(1, "f") + constant(2, "g") + "define internal i32 @h() noinline {\n  ret i32 3\n}\n", host_target())
    assert (call(code, "f", 10), call(code, "g", 10)) == (11, 12)
    for unknown in ("h", "missing"):
        with pytest.raises(CompileError, match=unknown):
            code.address(unknown)


def test_equal_names_in_different_modules_do_not_meet() -> None:
    codes = [MachineCode(constant(k), host_target()) for k in range(5)]
    assert [call(c, "f", 0) for c in codes] == list(range(5))


@pytest.mark.parametrize(
    "text",
    [
        "define i32 @f() {\n  ret i64 0\n}",
        "not LLVM",
        "define i32 @f() {\n  %x = add i32 %y, 1\n  ret i32 %x\n}",
        "define i32 @f(i1 %c) {\ne:\n  br i1 %c, label %a, label %b\na:\n  %x = add i32 1, 1\n  br label %b\nb:\n  ret i32 %x\n}",
    ],
)
def test_what_llvm_refuses_is_an_error_with_the_text(text: str) -> None:
    with pytest.raises(CompileError) as error:
        MachineCode(text, host_target())
    assert text in str(error.value) and "report" in str(error.value)


def test_a_symbol_that_nobody_has_is_an_error() -> None:
    with pytest.raises(CompileError, match="nobody_has_this"):
        MachineCode("declare i32 @nobody_has_this()\ndefine i32 @f() {\n  %r = call i32 @nobody_has_this()\n  ret i32 %r\n}", host_target())


def test_code_can_be_linked_again_from_its_bytes() -> None:
    first = MachineCode(constant(5), host_target())
    again = MachineCode.from_object(first.object, first.symbols, first.text, first.target)
    del first
    gc.collect()
    assert call(again, "f", 1) == 6 and "f:" in again.assembly()


def test_many_threads_compile_at_once() -> None:
    results: dict[int, int] = {}

    def work(k: int) -> None:
        for step in range(5):
            results[k * 5 + step] = call(MachineCode(constant(k * 5 + step), host_target()), "f", 0)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results == {k: k for k in range(40)}


def test_memory_of_dropped_code_is_reused() -> None:
    addresses = set()
    for k in range(50):
        addresses.add(MachineCode(constant(k), host_target()).address("f"))
    gc.collect()
    assert len(addresses) < 50


def _in_child(address: int, queue: multiprocessing.SimpleQueue) -> None:  # type: ignore[type-arg]
    compiled = MachineCode(constant(7), host_target())
    queue.put((int(ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32)(address)(1)), call(compiled, "f", 1)))


def test_a_forked_process_runs_and_compiles() -> None:
    code = MachineCode(constant(3), host_target())
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=_in_child, args=(code.address("f"), queue))
    child.start()
    child.join(60)
    assert child.exitcode == 0 and queue.get() == (4, 8)


def test_assembly_for_another_processor_uses_its_registers() -> None:
    text = "define <16 x float> @f(<16 x float> %x) {\n  %r = fadd <16 x float> %x, %x\n  ret <16 x float> %r\n}\n"
    assert "zmm" in assembly(text, x86_target("avx512"))
    assert "ymm" in assembly(text, x86_target("avx2")) and "zmm" not in assembly(text, x86_target("avx2"))
    assert "ymm" not in assembly(text, x86_target("sse2"))


WITHOUT_CODE = """
import warnings
import torch
import llvmlite.binding as llvm

def refuse(*_):
    raise RuntimeError("no memory may be executable")

llvm.JITLibraryBuilder.link = refuse
import thermit

with warnings.catch_warnings(record=True) as met:
    warnings.simplefilter("always")
    assert thermit.jit(lambda x: x + 1)(torch.ones(2)).tolist() == [2.0, 2.0]
assert "no memory may be executable" in str(met[0].message)
"""


def test_where_no_code_can_be_linked_everything_is_eager() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_CODE], capture_output=True, text=True, env={**os.environ, "THERMIT_RAISE": ""})
    assert done.returncode == 0, done.stderr


def test_the_warm_up_is_code_that_llvm_takes() -> None:
    for target in (host_target(), x86_target("sse2"), x86_target("avx512")):
        assert "f:" in assembly(WARM_UP, target)


def test_a_process_may_end_or_fork_while_llvm_warms_up() -> None:
    program = """
import os, torch, thermit
pid = os.fork()
value = thermit.jit(lambda x: x * 2 + 1)(torch.ones(3)).sum().item()
assert value == 9
if pid:
    assert os.waitpid(pid, 0)[1] == 0
"""
    for text in ("import thermit", program):
        done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", text], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


def test_code_is_generated_past_the_lock_of_llvmlite() -> None:
    assert callable(llvm.ffi.lib.LLVMPY_TargetMachineEmitToMemory._cfn), "two modules are no longer compiled at once"


def test_a_fork_waits_for_threads_that_generate_code() -> None:
    program = """
import os, threading
from thermit.codegen.target import host_target
from thermit.runtime.machine import WARM_UP, MachineCode
done = False
def work():
    while not done:
        MachineCode(WARM_UP, host_target())
threads = [threading.Thread(target=work) for _ in range(2)]
for t in threads:
    t.start()
for _ in range(5):
    pid = os.fork()
    if not pid:
        MachineCode(WARM_UP, host_target())
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
done = True
for t in threads:
    t.join()
"""
    done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", program], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
