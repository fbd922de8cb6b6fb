"""One map primitive on scalars or vectors -> LLVM instructions.

What comes in: a node, the names of its operands in registers, the number of lanes (0: scalars).  What goes out: the name of the
result; the instructions are appended to the writer.  The one idea: what a primitive *is* stands in its row (`fp`, `integer`);
here stands only what LLVM leaves undefined, turns into a library call, or means differently than PyTorch.

In registers a bool is an i1, bfloat16 and float16 are their bits in an i16 (they are only moved and cast).
Invariant: no instruction traps or yields poison on any operand, none is fast-math, none becomes a call out of the module but `seldom`.
"""

from __future__ import annotations

from collections.abc import Callable

from thermit.codegen.casts import cast
from thermit.codegen.literals import Writer, constant, intrinsic, is_signed, register_type, scalar_type, type_suffix, vector
from thermit.codegen.rare import RARE
from thermit.codegen.remainder import fmod_text
from thermit.codegen.target import Target
from thermit.codegen.unfused import without_fma
from thermit.codegen.writer import FunctionWriter
from thermit.errors import CompileError
from thermit.ir import prims as p
from thermit.ir.build import local
from thermit.ir.node import Node, toposort
from thermit.ir.prims import Prim
from thermit.ir.types import BOOL, FLOAT32, FLOAT64, DType

WEIGHTS = '!0 = !{!"branch_weights", i32 1, i32 1000000}\n'  # of a branch that is hardly ever taken: metadata of the module


# ---------------------------------------------------------------------------------------------- the entry
def spell(w: Writer, node: Node, args: list[str], lanes: int) -> str:
    """The instructions of one map primitive; `args` are registers (or constants) with `lanes` lanes each."""
    prim = node.prim
    if prim is p.CAST:
        return cast(w, args[0], node.args[0].dtype, node.dtype, lanes)
    if prim is p.WHERE:
        of = register_type(node.dtype, lanes)
        return w.op(f"select {vector('i1', lanes)} {args[0]}, {of} {args[1]}, {of} {args[2]}")
    if prim is p.BITCAST:
        source, target = register_type(node.args[0].dtype, lanes), register_type(node.dtype, lanes)
        return args[0] if source == target else w.op(f"bitcast {source} {args[0]} to {target}")
    if prim is p.SELDOM:
        return _seldom(w, node.attrs.name, node.dtype, args, lanes)
    known = node.args[1].attrs.value if len(node.args) == 2 and node.args[1].prim is p.CONST else None
    return apply(w, prim, node.args[0].dtype, args, lanes, known)


def apply(w: Writer, prim: Prim, dtype: DType, args: list[str], lanes: int, known: bool | int | float | None = None) -> str:
    """A primitive whose operands are all of `dtype`; `known` is the second operand where it is a constant."""
    if dtype is BOOL:
        return _boolean(w, prim, args, lanes)
    if dtype.is_float and not dtype.is_half:
        return _floating(w, prim, dtype, args, lanes)
    if dtype.is_integer:
        return _integer(w, prim, dtype, args, lanes, known)
    raise CompileError(f"no instruction for {prim} of {dtype}")


# ---------------------------------------------------------------------------------------------- seldom
def _seldom(w: Writer, function: str, dtype: DType, args: list[str], lanes: int) -> str:
    """args[2], but the function of args[1] (that of codegen/rare.py or of the C library) where args[0] holds: a branch that is hardly ever taken.

    The weights keep the block and what it spills out of the way.
    """
    condition, x, usual = args
    of, flag = register_type(dtype, lanes), vector("i1", lanes)
    w.helper("weights", lambda: WEIGHTS)
    name = f"{function}.{type_suffix(dtype)}.{lanes}"
    own = RARE.get((function, dtype))
    helper = w.helper(name, lambda: _own_text(w.target, name, own, dtype, lanes) if own else _library_text(name, function, dtype, lanes))
    if own is None:
        w.helper(function, lambda: f"declare double @{function}(double) nounwind\n")
    near, far, join = w.label("near"), w.label("far"), w.label("join")
    w.append(f"  br label %{near}")
    w.begin_block(near)
    some = w.op(f"call i1 @llvm.vector.reduce.or.v{lanes}i1({flag} {condition})") if lanes else condition
    w.append(f"  br i1 {some}, label %{far}, label %{join}, !prof !0")
    w.begin_block(far)
    called = w.op(f"call {of} {helper}({flag} {condition}, {of} {x}, {of} {usual})")
    w.append(f"  br label %{join}")
    w.begin_block(join)
    return w.op(f"phi {of} [ {usual}, %{near} ], [ {called}, %{far} ]")


def _own_text(target: Target, name: str, function: Callable[[Node], Node], dtype: DType, lanes: int) -> str:
    """A private function: `function` of each lane of %x where %c holds, %y elsewhere."""
    of, flag = register_type(dtype, lanes), vector("i1", lanes)
    w, x = FunctionWriter(target, {}), local("x", dtype)
    root = function(x) if target.has_fma else without_fma(function(x), [x])
    texts = {x: "%x"}
    for node in toposort([root]):
        if node.prim is p.CONST:
            texts[node] = constant(node.attrs.value, node.dtype, lanes)
        elif node is not x:
            texts[node] = spell(w, node, [texts[a] for a in node.args], lanes)
    result = w.op(f"select {flag} %c, {of} {texts[root]}, {of} %y")
    lines = "\n".join(w.scopes[0].lines)
    return f"define internal {of} @{name}({flag} %c, {of} %x, {of} %y) noinline cold nounwind {{\n{lines}\n  ret {of} {result}\n}}\n"


def _library_text(name: str, function: str, dtype: DType, lanes: int) -> str:
    """A private function: the C library's function (of double) of each lane of %x where %c holds, %y elsewhere."""
    of, flag, one = register_type(dtype, lanes), vector("i1", lanes), scalar_type(dtype)
    wide = "%x.k" if dtype is FLOAT64 else "%x.wide"
    convert = "" if dtype is FLOAT64 else f"  %x.wide = fpext {one} %x.k to double\n"
    back = "" if dtype is FLOAT64 else f"  %r.k = fptrunc double %r.wide to {one}\n"
    result = "%r.k" if dtype is FLOAT64 else "%r.wide"
    call = f"{convert}  {result} = call double @{function}(double {wide})\n{back}"
    head = f"define internal {of} @{name}({flag} %c, {of} %x, {of} %y) noinline cold nounwind {{\n"
    if not lanes:
        return head.replace("%x,", "%x.k,") + f"{call}  ret {of} %r.k\n}}\n"
    return f"""{head}entry:
  br label %lane
lane:
  %k = phi i32 [ 0, %entry ], [ %k.next, %next ]
  %r = phi {of} [ %y, %entry ], [ %r.next, %next ]
  %c.k = extractelement {flag} %c, i32 %k
  br i1 %c.k, label %call, label %next
call:
  %x.k = extractelement {of} %x, i32 %k
{call}  %r.new = insertelement {of} %r, {one} %r.k, i32 %k
  br label %next
next:
  %r.next = phi {of} [ %r, %lane ], [ %r.new, %call ]
  %k.next = add i32 %k, 1
  %more = icmp ult i32 %k.next, {lanes}
  br i1 %more, label %lane, label %done
done:
  ret {of} %r.next
}}
"""


# ---------------------------------------------------------------------------------------------- bool
_BOOLEAN = {"add": "or", "or": "or", "max": "or", "mul": "and", "and": "and", "min": "and", "xor": "xor", "ne": "xor"}
_BOOLEAN_COMPARE = {"eq": "eq", "lt": "ult", "le": "ule", "gt": "ugt", "ge": "uge"}


def _boolean(w: Writer, prim: Prim, args: list[str], lanes: int) -> str:
    of = vector("i1", lanes)
    if prim.name in _BOOLEAN:
        return w.op(f"{_BOOLEAN[prim.name]} {of} {args[0]}, {args[1]}")
    if prim.name in _BOOLEAN_COMPARE:
        return w.op(f"icmp {_BOOLEAN_COMPARE[prim.name]} {of} {args[0]}, {args[1]}")
    if prim is p.NOT:
        return w.op(f"xor {of} {args[0]}, {constant(True, BOOL, lanes)}")
    raise CompileError(f"no instruction for {prim} of bool")


# ---------------------------------------------------------------------------------------------- floats
def _floating(w: Writer, prim: Prim, dtype: DType, args: list[str], lanes: int) -> str:
    of = register_type(dtype, lanes)
    if prim in (p.MIN, p.MAX):
        return _extremum(w, prim, of, args, lanes)
    if prim is p.REM:
        return _remainder(w, dtype, args, lanes)
    if prim in (p.FLOOR, p.CEIL, p.TRUNC, p.ROUND) and not w.target.has_round:
        return _rounded(w, prim, dtype, args[0], lanes)
    spelling = prim.fp
    if spelling is None or (prim is p.FMA and not w.target.has_fma):
        raise CompileError(f"{prim} of {dtype} has no instruction: legalize should have removed it")
    if spelling.startswith("llvm."):
        operands = ", ".join(f"{of} {a}" for a in args)
        return w.op(f"call {of} {intrinsic(spelling, type_suffix(dtype), lanes)}({operands})")
    return w.op(f"{spelling} {of} {', '.join(args)}")


def _extremum(w: Writer, prim: Prim, of: str, args: list[str], lanes: int) -> str:
    """Nan wins; of 0.0 and -0.0 the second, as in eager's vector loops and numpy.

    compare and select in this order is one maxps / minps; llvm.maximum takes six instructions on x86.
    """
    x, y = args
    flag = vector("i1", lanes)
    greater = w.op(f"fcmp {'ogt' if prim is p.MAX else 'olt'} {of} {x}, {y}")
    best = w.op(f"select {flag} {greater}, {of} {x}, {of} {y}")
    unordered = w.op(f"fcmp uno {of} {x}, {x}")
    return w.op(f"select {flag} {unordered}, {of} {x}, {of} {best}")


def _rounded(w: Writer, prim: Prim, dtype: DType, x: str, lanes: int) -> str:
    """floor, ceil, trunc, round on processors without the instruction, where LLVM would call libm.

    Adding and taking away 2^23 (2^52) rounds to an integer, ties to even; one step corrects that to the direction wanted.
    Larger numbers, inf and nan are integers already; the sign of x makes -0.0.
    """
    of, flag = register_type(dtype, lanes), vector("i1", lanes)
    whole = constant(2.0**23 if dtype is FLOAT32 else 2.0**52, dtype, lanes)
    size = w.op(f"call {of} {intrinsic('llvm.fabs', type_suffix(dtype), lanes)}({of} {x})")
    near = w.op(f"fsub {of} {w.op(f'fadd {of} {size}, {whole}')}, {whole}")
    one, zero = constant(1.0, dtype, lanes), constant(0.0, dtype, lanes)
    signed = intrinsic("llvm.copysign", type_suffix(dtype), lanes)
    if prim is p.TRUNC:
        over = w.op(f"fcmp ogt {of} {near}, {size}")
        near = w.op(f"fsub {of} {near}, {w.op(f'select {flag} {over}, {of} {one}, {of} {zero}')}")
    near = w.op(f"call {of} {signed}({of} {near}, {of} {x})")
    if prim in (p.FLOOR, p.CEIL):
        beyond = w.op(f"fcmp {'ogt' if prim is p.FLOOR else 'olt'} {of} {near}, {x}")
        moved = w.op(f"{'fsub' if prim is p.FLOOR else 'fadd'} {of} {near}, {w.op(f'select {flag} {beyond}, {of} {one}, {of} {zero}')}")
        near = w.op(f"call {of} {signed}({of} {moved}, {of} {x})")
    has_fraction = w.op(f"fcmp olt {of} {size}, {whole}")
    quiet = w.op(f"fadd {of} {x}, {zero}")
    return w.op(f"select {flag} {has_fraction}, {of} {near}, {of} {quiet}")


def _remainder(w: Writer, dtype: DType, args: list[str], lanes: int) -> str:
    of = register_type(dtype, lanes)
    name = f"fmod.{type_suffix(dtype)}.{lanes}"
    return w.op(f"call {of} {w.helper(name, lambda: fmod_text(name, dtype, lanes))}({of} {args[0]}, {of} {args[1]})")


# ---------------------------------------------------------------------------------------------- integers
def _integer(w: Writer, prim: Prim, dtype: DType, args: list[str], lanes: int, known: bool | int | float | None) -> str:
    of = register_type(dtype, lanes)
    if prim in (p.DIV, p.REM):
        return _division(w, prim, dtype, args, lanes, known)
    if prim in (p.SHL, p.SHR):
        amount = args[1]
        if known is None or not 0 <= known < dtype.bits:
            amount = w.op(f"and {of} {amount}, {constant(dtype.bits - 1, dtype, lanes)}")
        name = "shl" if prim is p.SHL else "ashr" if is_signed(dtype) else "lshr"
        return w.op(f"{name} {of} {args[0]}, {amount}")
    if prim is p.NEG:
        return w.op(f"sub {of} {constant(0, dtype, lanes)}, {args[0]}")
    if prim is p.NOT:
        return w.op(f"xor {of} {args[0]}, {constant(-1, dtype, lanes)}")
    if prim is p.ABS:
        return w.op(f"call {of} {intrinsic('llvm.abs', f'i{dtype.bits}', lanes)}({of} {args[0]}, i1 false)") if is_signed(dtype) else args[0]
    if prim in (p.FLOOR, p.CEIL, p.TRUNC, p.ROUND):
        return args[0]
    if prim.integer is None:
        raise CompileError(f"{prim} of {dtype} has no instruction: legalize should have removed it")
    name = _by_sign(prim.integer, dtype)
    if name.startswith("llvm."):
        return w.op(f"call {of} {intrinsic(name, f'i{dtype.bits}', lanes)}({of} {args[0]}, {of} {args[1]})")
    return w.op(f"{name} {of} {args[0]}, {args[1]}")


def _by_sign(spelling: str, dtype: DType) -> str:
    signed, _, unsigned = spelling.partition("/")
    return unsigned if unsigned and not is_signed(dtype) else signed


def _division(w: Writer, prim: Prim, dtype: DType, args: list[str], lanes: int, known: bool | int | float | None) -> str:
    """Quotient or remainder that truncates.  By zero: by one instead (a check before it has stopped the program, or the lane
    is masked); the smallest integer by -1: wraps, where the instruction would trap."""
    of, flag = register_type(dtype, lanes), vector("i1", lanes)
    name = ("s" if is_signed(dtype) else "u") + ("div" if prim is p.DIV else "rem")
    x, y = args
    if known is not None and known not in (0, -1):
        return w.op(f"{name} {of} {x}, {y}")
    zero, one = constant(0, dtype, lanes), constant(1, dtype, lanes)
    unsafe = w.op(f"icmp eq {of} {y}, {zero}")
    minus = ""
    if is_signed(dtype):
        minus = w.op(f"icmp eq {of} {y}, {constant(-1, dtype, lanes)}")
        unsafe = w.op(f"or {flag} {unsafe}, {minus}")
    safe = w.op(f"select {flag} {unsafe}, {of} {one}, {of} {y}")
    result = _quotient_by_float(w, prim, dtype, x, safe, lanes) if lanes and dtype.bits <= 32 else w.op(f"{name} {of} {x}, {safe}")
    if minus and prim is p.DIV:
        negated = w.op(f"sub {of} {zero}, {x}")
        result = w.op(f"select {flag} {minus}, {of} {negated}, {of} {result}")
    return result  # the remainder by -1 is that by 1: 0


def _quotient_by_float(w: Writer, prim: Prim, dtype: DType, x: str, y: str, lanes: int) -> str:
    """Vectors have no integer division: divide as floats and truncate.

    Exact: a quotient that is not an integer is at least 1/y away from one, relatively more than 1/x >= 2^-32, and float64
    rounds within 2^-53 (8 and 16 bits: 2^-16 against float32's 2^-24).
    """
    of = register_type(dtype, lanes)
    wide = FLOAT64 if dtype.bits == 32 else FLOAT32
    quotient = w.op(f"fdiv {register_type(wide, lanes)} {cast(w, x, dtype, wide, lanes)}, {cast(w, y, dtype, wide, lanes)}")
    result = cast(w, quotient, wide, dtype, lanes)
    if prim is p.DIV:
        return result
    product = w.op(f"mul {of} {result}, {y}")
    return w.op(f"sub {of} {x}, {product}")


# ---------------------------------------------------------------------------------------------- identities
def least_value(dtype: DType) -> bool | int | float:
    """The identity of max."""
    return False if dtype is BOOL else float("-inf") if dtype.is_float else dtype.min


def greatest_value(dtype: DType) -> bool | int | float:
    """The identity of min."""
    return True if dtype is BOOL else float("inf") if dtype.is_float else dtype.max


def identity(prim: Prim, dtype: DType) -> bool | int | float:
    """The value that changes nothing when combined: -0.0 for a sum of floats (0.0 would turn -0.0 into 0.0)."""
    match prim.name:
        case "add":
            return False if dtype is BOOL else -0.0 if dtype.is_float else 0
        case "mul":
            return True if dtype is BOOL else 1.0 if dtype.is_float else 1
        case "max":
            return least_value(dtype)
        case "min":
            return greatest_value(dtype)
        case "and":
            return True if dtype is BOOL else -1 if is_signed(dtype) else dtype.max
        case "or" | "xor":
            return False if dtype is BOOL else 0
    raise CompileError(f"{prim} does not combine")
