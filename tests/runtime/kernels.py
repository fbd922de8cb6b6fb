"""Native kernels for tests, by the ABI of thermit's own: i32 name(ptr buffers, i64 begin, i64 end)."""

from __future__ import annotations

import llvmlite.binding as llvm

_engines = []


def compile_text(text: str) -> dict[str, int]:
    """Addresses of the functions defined in LLVM text."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(text)
    names = [f.name for f in module.functions if not f.is_declaration]
    machine = llvm.Target.from_default_triple().create_target_machine(opt=1)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    _engines.append(engine)
    return {name: engine.get_function_address(name) for name in names}


def add_text(name: str, inputs: int, plus: float = 1.0) -> str:
    """out[i] = in0[i] + in1[i] + ... + plus, float32; buffers: inputs, then out."""
    loads = "\n".join(
        f"  %a{k} = getelementptr ptr, ptr %buffers, i64 {k}\n  %p{k} = load ptr, ptr %a{k}\n"
        f"  %q{k} = getelementptr float, ptr %p{k}, i64 %i\n  %v{k} = load float, ptr %q{k}\n"
        f"  %s{k + 1} = fadd float %s{k}, %v{k}"
        for k in range(inputs)
    )
    return f"""
define i32 @{name}(ptr %buffers, i64 %begin, i64 %end) {{
entry:
  %o = getelementptr ptr, ptr %buffers, i64 {inputs}
  %out = load ptr, ptr %o
  %empty = icmp sge i64 %begin, %end
  br i1 %empty, label %done, label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
  %s0 = fadd float 0.0, {float(plus)}
{loads}
  %to = getelementptr float, ptr %out, i64 %i
  store float %s{inputs}, ptr %to
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret i32 0
}}
"""


def stop_text(name: str) -> str:
    """Returns 1 where in0[0] < 0, and writes nothing."""
    return f"""
define i32 @{name}(ptr %buffers, i64 %begin, i64 %end) {{
  %p = load ptr, ptr %buffers
  %v = load float, ptr %p
  %bad = fcmp olt float %v, 0.0
  %r = zext i1 %bad to i32
  ret i32 %r
}}
"""
