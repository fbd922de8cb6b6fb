"""A small language for the native parts of the runtime, compiled by LLVM in a few milliseconds.

    text ::=  def name(params): statements ...        the grammar is Python's, the meaning is C's
    stmt ::=  x = e | x += e | T[e] = e | if / elif / else | while | for x in range(a, b) | break | continue | return e | e | pass
    expr ::=  integer | name | T[e] | e + e (- * & | ^ << >> //) | -e | comparison | e and e | e or e | not e | f(e, ...)
    T    ::=  u8 i8 u16 i32 u32 i64                   memory at an address: loads extend to 64 bits, stores cut

Every value is a signed 64-bit integer; addresses are integers too (`//` is an unsigned division).  A call names a function of the
text, an external (`Extern`: an address and what it returns) or a builtin:

    stack(n)                n bytes of the caller's stack, 64-byte aligned, until the function returns
    invoke_i64(f, ...)      calls the function at address f; also invoke_i32 (sign extends)
    swap(p, v), add(p, v)   atomic exchange and addition of the 64-bit word at p; the old value
    leading_zeros(x)

Constants are given by name and stand for integers.  Why a language: the entry of a call must cost tens of nanoseconds, the user's machine
has no C compiler, and LLVM assembly by hand cannot be read.
"""

from __future__ import annotations

import ast
import ctypes
import threading
from collections.abc import Mapping
from dataclasses import dataclass

import llvmlite.binding as llvm

_MEMORY = {"u8": ("i8", "zext"), "i8": ("i8", "sext"), "u16": ("i16", "zext"), "i32": ("i32", "sext"), "u32": ("i32", "zext"), "i64": ("i64", "")}
_BINARY = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor",
    ast.LShift: "shl", ast.RShift: "lshr", ast.FloorDiv: "udiv",
}  # fmt: skip
_COMPARE = {ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "slt", ast.LtE: "sle", ast.Gt: "sgt", ast.GtE: "sge"}
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Extern:
    """A function outside: `result` is what its machine code leaves in the return register: "i64", "i32", "bool" (one byte) or "void"."""

    address: int
    result: str = "i64"


class _Function:
    """Text of one function.  Variables live in stack slots, which LLVM turns into registers."""

    def __init__(self, node: ast.FunctionDef, names: Mapping[str, int], externs: Mapping[str, Extern], own: frozenset[str]) -> None:
        self.node, self.names, self.externs, self.own = node, names, externs, own
        self.lines: list[str] = []
        self.slots: dict[str, str] = {}
        self.loops: list[tuple[str, str]] = []
        self.count = 0

    def fail(self, node: ast.AST, what: str) -> SyntaxError:
        return SyntaxError(f"{self.node.name}, line {getattr(node, 'lineno', '?')}: {what}")

    def fresh(self, prefix: str = "v") -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def line(self, text: str) -> None:
        self.lines.append("  " + text)

    def value(self, text: str) -> str:
        name = "%" + self.fresh()
        self.line(f"{name} = {text}")
        return name

    def label(self, name: str) -> None:
        self.line(f"br label %{name}")
        self.lines.append(f"{name}:")

    def text(self) -> str:
        params = [a.arg for a in self.node.args.args]
        for name in params:
            self.slots[name] = f"%s.{name}"
        for statement in self.node.body:
            self.statement(statement)
        head = [f"define i64 @{self.node.name}({', '.join(f'i64 %p.{n}' for n in params)}) nounwind {{", "entry:"]
        head += [f"  {slot} = alloca i64" for slot in self.slots.values()]
        head += [f"  store i64 %p.{n}, ptr {self.slots[n]}" for n in params]
        return "\n".join([*head, *self.lines, "  ret i64 0", "}"])

    # ------------------------------------------------------------------------------------------ statements
    def statement(self, s: ast.stmt) -> None:
        match s:
            case ast.Assign(targets=[target], value=value):
                self.assign(target, self.expr(value))
            case ast.AugAssign(target=target, op=op, value=value):
                left = ast.copy_location(ast.Name(target.id), s) if isinstance(target, ast.Name) else target
                self.assign(target, self.expr(ast.copy_location(ast.BinOp(left, op, value), s)))
            case ast.Return(value=value):
                self.line(f"ret i64 {self.expr(value) if value is not None else 0}")
                self.lines.append(f"{self.fresh('dead')}:")
            case ast.If():
                self.if_(s)
            case ast.While(test=test, body=body):
                self.while_(test, body, None)
            case ast.For(target=ast.Name(id=name), iter=ast.Call(func=ast.Name(id="range"), args=[begin, end]), body=body):
                self.for_(name, begin, end, body)
            case ast.Break() | ast.Continue():
                self.line(f"br label %{self.loops[-1][isinstance(s, ast.Break)]}")
                self.lines.append(f"{self.fresh('dead')}:")
            case ast.Expr(value=value):
                if not isinstance(value, ast.Constant):
                    self.expr(value)
            case ast.Pass():
                pass
            case _:
                raise self.fail(s, f"no such statement: {ast.unparse(s)}")

    def assign(self, target: ast.expr, value: str) -> None:
        match target:
            case ast.Name(id=name):
                if name in self.names:
                    raise self.fail(target, f"{name} is a constant")
                slot = self.slots.setdefault(name, f"%s.{name}")
                self.line(f"store i64 {value}, ptr {slot}")
            case ast.Subscript(value=ast.Name(id=kind), slice=address) if kind in _MEMORY:
                pointer = self.pointer(address)
                width = _MEMORY[kind][0]
                cut = value if width == "i64" else self.value(f"trunc i64 {value} to {width}")
                self.line(f"store {width} {cut}, ptr {pointer}, align 1")
            case _:
                raise self.fail(target, "cannot assign to this")

    def if_(self, s: ast.If) -> None:
        then, other, end = self.fresh("then"), self.fresh("else"), self.fresh("end")
        self.branch(s.test, then, other)
        self.lines.append(f"{then}:")
        for inner in s.body:
            self.statement(inner)
        self.line(f"br label %{end}")
        self.lines.append(f"{other}:")
        for inner in s.orelse:
            self.statement(inner)
        self.label(end)

    def while_(self, test: ast.expr, body: list[ast.stmt], step: ast.stmt | None) -> None:
        head, inside, after, end = self.fresh("head"), self.fresh("body"), self.fresh("step"), self.fresh("end")
        self.label(head)
        self.branch(test, inside, end)
        self.lines.append(f"{inside}:")
        self.loops.append((after, end))
        for inner in body:
            self.statement(inner)
        self.loops.pop()
        self.label(after)
        if step is not None:
            self.statement(step)
        self.line(f"br label %{head}")
        self.lines.append(f"{end}:")

    def for_(self, name: str, begin: ast.expr, end: ast.expr, body: list[ast.stmt]) -> None:
        limit = f"{name}.end.{self.fresh()}"
        self.assign(ast.Name(name), self.expr(begin))
        self.assign(ast.Name(limit), self.expr(end))
        test = ast.Compare(ast.Name(name), [ast.Lt()], [ast.Name(limit)])
        self.while_(test, body, ast.AugAssign(ast.Name(name), ast.Add(), ast.Constant(1)))

    # ------------------------------------------------------------------------------------------ conditions
    def branch(self, test: ast.expr, true: str, false: str) -> None:
        """Jumps to `true` or `false`."""
        match test:
            case ast.BoolOp(op=op, values=values):
                for v in values[:-1]:
                    rest = self.fresh("rest")
                    if isinstance(op, ast.And):
                        self.branch(v, rest, false)
                    else:
                        self.branch(v, true, rest)
                    self.lines.append(f"{rest}:")
                self.branch(values[-1], true, false)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self.branch(operand, false, true)
            case _:
                self.line(f"br i1 {self.condition(test)}, label %{true}, label %{false}")

    def condition(self, test: ast.expr) -> str:
        match test:
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                a, b = self.expr(left), self.expr(right)
                return self.value(f"icmp {_COMPARE[type(op)]} i64 {a}, {b}")
            case _:
                return self.value(f"icmp ne i64 {self.expr(test)}, 0")

    # ------------------------------------------------------------------------------------------ expressions
    def expr(self, e: ast.expr) -> str:
        match e:
            case ast.Constant(value=int(value)):
                return str(int(value))
            case ast.Name(id=name):
                return self.read(e, name)
            case ast.Subscript(value=ast.Name(id=kind), slice=address) if kind in _MEMORY:
                width, extend = _MEMORY[kind]
                loaded = self.value(f"load {width}, ptr {self.pointer(address)}, align 1")
                return self.value(f"{extend} {width} {loaded} to i64") if extend else loaded
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                a, b = self.expr(left), self.expr(right)
                return self.value(f"{_BINARY[type(op)]} i64 {a}, {b}")
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self.value(f"sub i64 0, {self.expr(operand)}")
            case ast.Compare():
                return self.value(f"zext i1 {self.condition(e)} to i64")
            case ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
                return self.logical(e)
            case ast.Call(func=ast.Name(id=name), args=args):
                return self.call(e, name, [self.expr(a) for a in args])
            case _:
                raise self.fail(e, f"no such expression: {ast.unparse(e)}")

    def read(self, e: ast.expr, name: str) -> str:
        if name in self.slots:
            return self.value(f"load i64, ptr {self.slots[name]}")
        if name in self.names:
            return str(self.names[name])
        if name in self.own:
            return self.value(f"ptrtoint ptr @{name} to i64")
        if name in self.externs:
            return str(self.externs[name].address)
        raise self.fail(e, f"{name} has no value")

    def logical(self, e: ast.expr) -> str:
        """1 or 0."""
        slot = self.slots.setdefault(f".{self.fresh('flag')}", f"%s.flag{self.count}")
        true, false, end = self.fresh("true"), self.fresh("false"), self.fresh("end")
        self.branch(e, true, false)
        for name, value in ((true, 1), (false, 0)):
            self.lines.append(f"{name}:")
            self.line(f"store i64 {value}, ptr {slot}")
            self.line(f"br label %{end}")
        self.lines.append(f"{end}:")
        return self.value(f"load i64, ptr {slot}")

    def pointer(self, address: ast.expr) -> str:
        return self.value(f"inttoptr i64 {self.expr(address)} to ptr")

    def call(self, e: ast.expr, name: str, args: list[str]) -> str:
        operands = ", ".join(f"i64 {a}" for a in args)
        match name:
            case "stack":
                memory = self.value(f"alloca i8, i64 {args[0]}, align 64")
                return self.value(f"ptrtoint ptr {memory} to i64")
            case "swap" | "add":
                pointer = self.value(f"inttoptr i64 {args[0]} to ptr")
                return self.value(f"atomicrmw {'xchg' if name == 'swap' else 'add'} ptr {pointer}, i64 {args[1]} seq_cst")
            case "leading_zeros":
                return self.value(f"call i64 @llvm.ctlz.i64(i64 {args[0]}, i1 false)")
            case "invoke_i64" | "invoke_i32":
                pointer = self.value(f"inttoptr i64 {args[0]} to ptr")
                return self.outside(pointer, name[7:], ", ".join(f"i64 {a}" for a in args[1:]))
        if name in self.own:
            return self.value(f"call i64 @{name}({operands})")
        if name in self.externs:
            extern = self.externs[name]
            return self.outside(f"inttoptr (i64 {extern.address} to ptr)", extern.result, operands)
        raise self.fail(e, f"no function {name}")

    def outside(self, pointer: str, result: str, operands: str) -> str:
        match result:
            case "i64":
                return self.value(f"call i64 {pointer}({operands})")
            case "i32":
                return self.value(f"sext i32 {self.value(f'call i32 {pointer}({operands})')} to i64")
            case "bool":
                return self.value(f"zext i8 {self.value(f'call zeroext i8 {pointer}({operands})')} to i64")
        self.line(f"call void {pointer}({operands})")
        return "0"


def to_llvm(text: str, names: Mapping[str, int], externs: Mapping[str, Extern]) -> str:
    """The functions of `text` as LLVM assembly.  Raises SyntaxError that names the function and line."""
    functions = [f for f in ast.parse(text).body if isinstance(f, ast.FunctionDef)]
    own = frozenset(f.name for f in functions)
    parts = [_Function(f, names, externs, own).text() for f in functions]
    return "\n\n".join([*parts, "declare i64 @llvm.ctlz.i64(i64, i1)"]) + "\n"


class Library:
    """The compiled functions of a text: `library.address["name"]`."""

    def __init__(self, text: str, names: Mapping[str, int], externs: Mapping[str, Extern]) -> None:
        with _lock:
            llvm.initialize_native_target()
            llvm.initialize_native_asmprinter()
            module = llvm.parse_assembly(to_llvm(text, names, externs))
            machine = llvm.Target.from_default_triple().create_target_machine(opt=1)
            _optimize(module, machine)
            self._engine = llvm.create_mcjit_compiler(module, machine)
            self._engine.finalize_object()
        defined = [f.name for f in ast.parse(text).body if isinstance(f, ast.FunctionDef)]
        self.address = {name: self._engine.get_function_address(name) for name in defined}

    def keep(self) -> None:
        """The code stays until the process ends, also while the interpreter shuts down."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._engine))


def _optimize(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> None:
    """Stack slots become registers, constants fold, blocks merge."""
    passes = llvm.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    passes.run(module, llvm.create_pass_builder(machine, llvm.PipelineTuningOptions()))
