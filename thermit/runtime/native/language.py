"""A small language for the native parts of the runtime: text in, LLVM assembly out.

    text ::=  def name(params): statements ...        the grammar is Python's, the meaning is C's
    stmt ::=  x = e | x += e | T[e] = e | if / elif / else | while | for x in range(a, b) | break | continue | return e | e | pass
    expr ::=  integer | name | T[e] | e + e (- * & | ^ << >> //) | -e | comparison | e and e | e or e | not e | f(e, ...)
    T    ::=  u8 i8 u16 i32 u32 i64                   memory at an address: loads extend to 64 bits, stores cut

Every value is a signed 64-bit integer; addresses are integers too (`//` is an unsigned division).  A call names a function of the
text, one outside (whose address is a word) or a builtin:

    stack(n)                n bytes of the caller's stack, 64-byte aligned, until the function returns
    invoke_i64(f, ...)      calls the function at address f; also invoke_i32 (sign extends)
    swap(p, v), add(p, v)   atomic exchange and addition of the 64-bit word at p; the old value
    publish(p, v)           stores the 64-bit word at p after all that was written before; 0
    leading_zeros(x)

Constants are given by name and stand for integers.  Words are integers that are known only in a process (addresses, offsets in PyTorch's
objects): they are read from a table that is filled when the code is loaded, so the machine code is the same everywhere.  Why a language: the
entry of a call must cost tens of nanoseconds, the user's machine has no C compiler, and LLVM assembly by hand cannot be read.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping

from thermit.records import dataclass

_MEMORY = {"u8": ("i8", "zext"), "i8": ("i8", "sext"), "u16": ("i16", "zext"), "i32": ("i32", "sext"), "u32": ("i32", "zext"), "i64": ("i64", "")}
_BINARY = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor",
    ast.LShift: "shl", ast.RShift: "lshr", ast.FloorDiv: "udiv",
}  # fmt: skip
_BUILTINS = frozenset(("stack", "swap", "add", "publish", "leading_zeros", "invoke_i64", "invoke_i32"))
_COMPARE = {ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "slt", ast.LtE: "sle", ast.Gt: "sgt", ast.GtE: "sge"}


@dataclass(frozen=True, slots=True)
class Source:
    """What is compiled.  `words`: names of what is known only in a process.  `outside`: functions outside, with what their machine code
    leaves in the return register: "i64", "i32", "bool" (one byte) or "void"; their addresses are words too."""

    text: str
    constants: Mapping[str, int]
    words: tuple[str, ...]
    outside: Mapping[str, str]

    @property
    def table(self) -> tuple[str, ...]:
        """The words in the order of the table."""
        return *self.words, *self.outside


Env = dict[str, str]  # the LLVM value of each variable


@dataclass
class _Loop:
    step: str
    end: str
    continues: list[tuple[str, Env]]
    breaks: list[tuple[str, Env]]


class _Function:
    """Text of one function, in SSA form: control flow is structured, so each join knows which variables its branches changed."""

    def __init__(self, node: ast.FunctionDef, names: Names) -> None:
        self.node, self.names = node, names
        self.lines: list[str] = []
        self.env: Env | None = {a.arg: f"%p.{a.arg}" for a in node.args.args}  # None where control does not arrive
        self.block = "entry"
        self.loops: list[_Loop] = []
        self.count = 0

    def fail(self, node: ast.AST, what: str) -> SyntaxError:
        return SyntaxError(f"{self.node.name}, line {getattr(node, 'lineno', '?')}: {what}")

    def fresh(self, prefix: str = "v") -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def value(self, text: str) -> str:
        name = f"%{self.fresh()}"
        self.lines.append(f"{name} = {text}")
        return name

    def start(self, label: str, env: Env | None) -> None:
        self.lines.append(f"{label}:")
        self.block, self.env = label, env

    def jump(self, label: str) -> list[tuple[str, Env]]:
        """Ends the block, if control arrives here: where the jump comes from, and with which values."""
        if self.env is None:
            return []
        self.lines.append(f"br label %{label}")
        edge = self.block, self.env
        self.env = None
        return [edge]

    def join(self, label: str, edges: list[tuple[str, Env]]) -> None:
        """Starts a block that the edges lead to; what they disagree on becomes a phi."""
        self.env = None
        if not edges:
            return
        self.start(label, None)
        merged = {}
        for name in edges[0][1]:
            values = [env.get(name) for _, env in edges]
            if None in values:
                continue
            if len(set(values)) > 1:
                merged[name] = self.value("phi i64 " + ", ".join(f"[{v}, %{block}]" for v, (block, _) in zip(values, edges, strict=True)))
            else:
                merged[name] = str(values[0])
        self.env = merged

    def text(self) -> str:
        self.body(self.node.body)
        if self.env is not None:
            self.lines.append("ret i64 0")
        params = ", ".join(f"i64 %p.{a.arg}" for a in self.node.args.args)
        return "\n".join([f"define dso_local i64 @{self.node.name}({params}) nounwind {{", "entry:", *self.lines, "}"])

    # ------------------------------------------------------------------------------------------ statements
    def body(self, statements: list[ast.stmt]) -> None:
        for s in statements:
            if self.env is None:
                raise self.fail(s, "never reached")
            self.statement(s)

    def statement(self, s: ast.stmt) -> None:
        match s:
            case ast.Assign(targets=[target], value=value):
                self.assign(target, self.expr(value))
            case ast.AugAssign(target=target, op=op, value=value):
                self.assign(target, self.expr(ast.copy_location(ast.BinOp(target, op, value), s)))
            case ast.Return(value=value):
                self.lines.append(f"ret i64 {self.expr(value) if value is not None else 0}")
                self.env = None
            case ast.If():
                self.if_(s)
            case ast.While(test=test, body=body):
                self.while_(test, body, None)
            case ast.For(target=ast.Name(id=name), iter=ast.Call(func=ast.Name(id="range"), args=[begin, end]), body=body):
                self.for_(name, begin, end, body)
            case ast.Break():
                self.loops[-1].breaks += self.jump(self.loops[-1].end)
            case ast.Continue():
                self.loops[-1].continues += self.jump(self.loops[-1].step)
            case ast.Expr(value=value):
                if not isinstance(value, ast.Constant):
                    self.expr(value)
            case _:
                raise self.fail(s, f"no such statement: {ast.unparse(s)}")

    def assign(self, target: ast.expr, value: str) -> None:
        match target:
            case ast.Name(id=name):
                if name in self.names.constants or name in self.names.table:
                    raise self.fail(target, f"{name} is a constant")
                assert self.env is not None
                self.env = {**self.env, name: value}
            case ast.Subscript(value=ast.Name(id=kind), slice=address) if kind in _MEMORY:
                pointer = self.pointer(address)
                width = _MEMORY[kind][0]
                cut = value if width == "i64" else self.value(f"trunc i64 {value} to {width}")
                self.lines.append(f"store {width} {cut}, ptr {pointer}, align 1")
            case _:
                raise self.fail(target, "cannot assign to this")

    def if_(self, s: ast.If) -> None:
        then, other, end = self.fresh("then"), self.fresh("else"), self.fresh("end")
        before = self.env
        self.branch(s.test, then, other)
        self.start(then, before)
        self.body(s.body)
        edges = self.jump(end)
        self.start(other, before)
        self.body(s.orelse)
        edges += self.jump(end)
        self.join(end, edges)

    def while_(self, test: ast.expr, body: list[ast.stmt], step: ast.stmt | None) -> None:
        head, inside, out = self.fresh("head"), self.fresh("body"), self.fresh("out")
        loop = _Loop(self.fresh("step"), self.fresh("end"), [], [])
        changed = _assigned([*body, *([step] if step else [])])
        ((outside, before),) = self.jump(head)
        phis = {name: f"%{self.fresh('loop')}" for name in before if name in changed}
        self.start(head, {**before, **phis})
        hole = len(self.lines)
        self.branch(test, inside, out)
        arriving = self.env
        self.start(inside, arriving)
        self.loops.append(loop)
        self.body(body)
        self.loops.pop()
        self.join(loop.step, self.jump(loop.step) + loop.continues)
        if step is not None and self.env is not None:
            self.statement(step)
        back = self.jump(head)
        self.lines[hole:hole] = [
            f"{phi} = phi i64 " + ", ".join(f"[{env[name]}, %{block}]" for block, env in [(outside, before), *back]) for name, phi in phis.items()
        ]
        self.start(out, arriving)
        self.join(loop.end, self.jump(loop.end) + loop.breaks)

    def for_(self, name: str, begin: ast.expr, end: ast.expr, body: list[ast.stmt]) -> None:
        limit = f"{name}.end"
        self.assign(ast.Name(name, ast.Store()), self.expr(begin))
        self.assign(ast.Name(limit, ast.Store()), self.expr(end))
        test = ast.Compare(ast.Name(name), [ast.Lt()], [ast.Name(limit)])
        self.while_(test, body, ast.AugAssign(ast.Name(name, ast.Store()), ast.Add(), ast.Constant(1)))

    # ------------------------------------------------------------------------------------------ conditions
    def branch(self, test: ast.expr, true: str, false: str) -> None:
        """Jumps to `true` or `false`; conditions assign nothing."""
        match test:
            case ast.BoolOp(op=op, values=values):
                for v in values[:-1]:
                    rest = self.fresh("rest")
                    if isinstance(op, ast.And):
                        self.branch(v, rest, false)
                    else:
                        self.branch(v, true, rest)
                    self.start(rest, self.env)
                self.branch(values[-1], true, false)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self.branch(operand, false, true)
            case _:
                self.lines.append(f"br i1 {self.condition(test)}, label %{true}, label %{false}")

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
                inner = self.expr(operand)
                return str(-int(inner)) if inner.isdigit() else self.value(f"sub i64 0, {inner}")
            case ast.Compare():
                return self.value(f"zext i1 {self.condition(e)} to i64")
            case ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
                return self.logical(e)
            case ast.Call(func=ast.Name(id=name), args=args):
                return self.call(e, name, [self.expr(a) for a in args])
            case _:
                raise self.fail(e, f"no such expression: {ast.unparse(e)}")

    def read(self, e: ast.expr, name: str) -> str:
        if self.env is not None and name in self.env:
            return self.env[name]
        if name in self.names.constants:
            return str(self.names.constants[name])
        if name in self.names.own:
            return self.value(f"ptrtoint ptr @{name} to i64")
        if name in self.names.table:
            return self.word(name)
        raise self.fail(e, f"{name} has no value")

    def word(self, name: str) -> str:
        place = self.names.table[name]
        return self.value(f"load i64, ptr getelementptr (i64, ptr @words, i64 {place}), !invariant.load !0")

    def logical(self, e: ast.expr) -> str:
        """1 or 0."""
        true, false, end = self.fresh("true"), self.fresh("false"), self.fresh("end")
        env = self.env
        self.branch(e, true, false)
        for label in (true, false):
            self.start(label, env)
            self.jump(end)
        self.start(end, env)
        return self.value(f"phi i64 [1, %{true}], [0, %{false}]")

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
            case "publish":
                pointer = self.value(f"inttoptr i64 {args[0]} to ptr")
                self.lines.append(f"store atomic i64 {args[1]}, ptr {pointer} release, align 8")
                return "0"
            case "leading_zeros":
                return self.value(f"call i64 @llvm.ctlz.i64(i64 {args[0]}, i1 false)")
            case "invoke_i64" | "invoke_i32":
                pointer = self.value(f"inttoptr i64 {args[0]} to ptr")
                return self.outside(pointer, name[7:], ", ".join(f"i64 {a}" for a in args[1:]))
        if name in self.names.own:
            return self.value(f"call i64 @{name}({operands})")
        if name in self.names.results:
            return self.outside(self.value(f"inttoptr i64 {self.word(name)} to ptr"), self.names.results[name], operands)
        raise self.fail(e, f"no function {name}")

    def outside(self, pointer: str, result: str, operands: str) -> str:
        match result:
            case "i64":
                return self.value(f"call i64 {pointer}({operands})")
            case "i32":
                return self.value(f"sext i32 {self.value(f'call i32 {pointer}({operands})')} to i64")
            case "bool":
                return self.value(f"zext i8 {self.value(f'call zeroext i8 {pointer}({operands})')} to i64")
        self.lines.append(f"call void {pointer}({operands})")
        return "0"


@dataclass(frozen=True, slots=True)
class Names:
    """What names mean: integers, functions of the text, places in the table of addresses, what functions outside return."""

    constants: Mapping[str, int]
    own: frozenset[str]
    table: Mapping[str, int]
    results: Mapping[str, str]


def _assigned(statements: Iterable[ast.stmt]) -> set[str]:
    """The variables that statements change."""
    found: set[str] = set()
    for s in statements:
        match s:
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AugAssign(target=ast.Name(id=name)):
                found.add(name)
            case ast.If(body=body, orelse=orelse):
                found |= _assigned(body) | _assigned(orelse)
            case ast.While(body=body):
                found |= _assigned(body)
            case ast.For(target=ast.Name(id=name), body=body):
                found |= {name, f"{name}.end"} | _assigned(body)
    return found


def to_llvm(source: Source) -> str:
    """The functions as LLVM assembly; `@words` is the table.  Raises SyntaxError that names the function and line."""
    functions = [f for f in ast.parse(source.text).body if isinstance(f, ast.FunctionDef)]
    taken = {f.name for f in functions} & _BUILTINS
    if taken:
        raise SyntaxError(f"{', '.join(sorted(taken))}: a builtin has this name")
    table = {name: place for place, name in enumerate(source.table)}
    names = Names(source.constants, frozenset(f.name for f in functions), table, source.outside)
    head = f"@words = dso_local global [{max(1, len(table))} x i64] zeroinitializer\n!0 = !{{}}\ndeclare i64 @llvm.ctlz.i64(i64, i1)"
    return "\n\n".join([head, *(_Function(f, names).text() for f in functions)]) + "\n"
