"""One map primitive on scalars or vectors -> LLVM instructions.

What comes in: a node, the names of its operands in registers, the number of lanes (0: scalars).  What goes out: the name of the
result; the instructions are appended to the writer.  The one idea: what a primitive *is* stands in its row (`fp`, `integer`);
here stands only what LLVM leaves undefined, turns into a library call, or means differently than PyTorch.

In registers a bool is an i1, bfloat16 and float16 are their bits in an i16 (they are only moved and cast).
Invariant: no instruction traps or yields poison on any operand, none is fast-math, none becomes a call out of the module but `seldom`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Protocol

from thermit.codegen.target import Target
from thermit.errors import CompileError
from thermit.ir import prims as p
from thermit.ir.node import Node
from thermit.ir.prims import Prim
from thermit.ir.types import BFLOAT16, BOOL, FLOAT16, FLOAT32, FLOAT64, INT32, INT64, UINT8, UINT32, UINT64, DType


class Writer(Protocol):
    """Where instructions go."""

    target: Target

    def op(self, text: str) -> str:
        """Appends `%new = text` and gives %new."""
        ...

    def append(self, text: str) -> None:
        """Appends a line as it is."""
        ...

    def label(self, stem: str) -> str:
        """A new name for a block."""
        ...

    def begin_block(self, label: str) -> None:
        """What follows stands in this block; the one before must have ended."""
        ...

    def helper(self, name: str, make: Callable[[], str]) -> str:
        """`@name`, a private function of the module, whose text is made once."""
        ...


_SCALAR = {"bool": "i1", "float32": "float", "float64": "double", "bfloat16": "i16", "float16": "i16"}
_SUFFIX = {"float32": "f32", "float64": "f64"}


def scalar_type(dtype: DType) -> str:
    """LLVM's type of one element in a register."""
    return _SCALAR.get(dtype.name) or f"i{dtype.bits}"


def memory_type(dtype: DType) -> str:
    """LLVM's type of one element in memory."""
    return "i8" if dtype is BOOL else scalar_type(dtype)


def vector(type_text: str, lanes: int) -> str:
    return f"<{lanes} x {type_text}>" if lanes else type_text


def register_type(dtype: DType, lanes: int) -> str:
    return vector(scalar_type(dtype), lanes)


def half_bits(value: float, dtype: DType) -> int:
    """The bits of a float that is exact in bfloat16 or float16."""
    if dtype is FLOAT16:
        return int(struct.unpack("<H", struct.pack("<e", value))[0])
    return int(struct.unpack("<I", struct.pack("<f", value))[0]) >> 16


def literal(value: bool | int | float, dtype: DType) -> str:
    """A constant as LLVM writes it."""
    if dtype is BOOL:
        return "true" if value else "false"
    if dtype.is_half:
        return str(half_bits(float(value), dtype))
    if dtype.is_float:
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    return str(int(value))


def constant(value: bool | int | float, dtype: DType, lanes: int) -> str:
    text = literal(value, dtype)
    return f"splat ({scalar_type(dtype)} {text})" if lanes else text


def intrinsic(name: str, suffix: str, lanes: int) -> str:
    """`llvm.fabs` on <8 x float> is `@llvm.fabs.v8f32`."""
    return f"@{name}.v{lanes}{suffix}" if lanes else f"@{name}.{suffix}"


def type_suffix(dtype: DType) -> str:
    return _SUFFIX.get(dtype.name) or scalar_type(dtype)


def is_signed(dtype: DType) -> bool:
    return dtype.kind == "int"


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
    """args[2], but the C library's function of args[1] where args[0] holds: a branch that is hardly ever taken.

    The weights keep the block and what it spills out of the way.  They are metadata, which LLVM wants at the level of the module.
    """
    condition, x, usual = args
    of, flag = register_type(dtype, lanes), vector("i1", lanes)
    w.helper("weights", lambda: '!0 = !{!"branch_weights", i32 1, i32 1000000}\n')
    name = f"{function}.{type_suffix(dtype)}.{lanes}"
    helper = w.helper(name, lambda: _library_text(name, function, dtype, lanes))
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


def fmod_text(name: str, dtype: DType, lanes: int) -> str:
    """The exact remainder of C's fmod, without libm: long division in integers, one bit of the quotient a step.

    With |x| = a * 2^(e-1), |y| = b * 2^(f-1) (a < 2b, b with its top bit at the place of the hidden one): r = a; e - f times:
    r = 2 * (r mod b); then r mod b.  Lanes that are done stay; the loop ends when all are: as many steps as the largest
    quotient has bits, at most 2^8 (2^11).
    """
    of = register_type(dtype, lanes)
    bits, mantissa = dtype.bits, 23 if dtype is FLOAT32 else 52
    word = vector(f"i{bits}", lanes)
    flag = vector("i1", lanes)

    def k(value: int) -> str:
        return f"splat (i{bits} {value})" if lanes else str(value)

    least, hidden, top = (1 << mantissa) - 1, 1 << mantissa, (1 << (bits - 1)) - 1
    infinity = top - least
    ctlz = intrinsic("llvm.ctlz", f"i{bits}", lanes)
    any_lane = f"  %more = call i1 @llvm.vector.reduce.or.v{lanes}i1({flag} %go)" if lanes else "  %more = or i1 %go, %go"
    unpack = "".join(
        f"""
  %{v}bits = bitcast {of} %{v} to {word}
  %{v}abs = and {word} %{v}bits, {k(top)}
  %{v}exp = lshr {word} %{v}abs, {k(mantissa)}
  %{v}low = and {word} %{v}abs, {k(least)}
  %{v}den = icmp eq {word} %{v}exp, {k(0)}
  %{v}full = or {word} %{v}low, {k(hidden)}
  %{v}man = select {flag} %{v}den, {word} %{v}low, {word} %{v}full
  %{v}e = select {flag} %{v}den, {word} {k(1)}, {word} %{v}exp"""
        for v in ("x", "y")
    )
    return f"""define internal {of} @{name}({of} %x, {of} %y) nounwind {{
entry:{unpack}
  %sign = xor {word} %xbits, %xabs
  %yzero = icmp eq {word} %yabs, {k(0)}
  %yman1 = select {flag} %yzero, {word} {k(1)}, {word} %yman
  %yzeros = call {word} {ctlz}({word} %yman1, i1 false)
  %yshift = sub {word} %yzeros, {k(bits - 1 - mantissa)}
  %b = shl {word} %yman1, %yshift
  %f = sub {word} %ye, %yshift
  %n = sub {word} %xe, %f
  %xbad = icmp uge {word} %xabs, {k(infinity)}
  %ybad = icmp ugt {word} %yabs, {k(infinity)}
  %bad0 = or {flag} %xbad, %ybad
  %bad = or {flag} %bad0, %yzero
  %small = icmp ult {word} %xabs, %yabs
  %skip = or {flag} %small, %bad
  %n0 = select {flag} %skip, {word} {k(-1)}, {word} %n
  br label %loop
loop:
  %r = phi {word} [ %xman, %entry ], [ %r2, %next ]
  %left = phi {word} [ %n0, %entry ], [ %left2, %next ]
  %go = icmp sge {word} %left, {k(0)}
{any_lane}
  br i1 %more, label %next, label %done
next:
  %fits = icmp uge {word} %r, %b
  %less = sub {word} %r, %b
  %rest = select {flag} %fits, {word} %less, {word} %r
  %last = icmp eq {word} %left, {k(0)}
  %twice = shl {word} %rest, {k(1)}
  %step = select {flag} %last, {word} %rest, {word} %twice
  %r2 = select {flag} %go, {word} %step, {word} %r
  %dec = sub {word} %left, {k(1)}
  %left2 = select {flag} %go, {word} %dec, {word} %left
  br label %loop
done:
  %deep = icmp slt {word} %f, {k(1)}
  %down0 = sub {word} {k(1)}, %f
  %down1 = select {flag} %deep, {word} %down0, {word} {k(0)}
  %down = and {word} %down1, {k(bits - 1)}
  %tiny = lshr {word} %r, %down
  %zeros = call {word} {ctlz}({word} %r, i1 false)
  %shift0 = sub {word} %zeros, {k(bits - 1 - mantissa)}
  %room1 = sub {word} %f, {k(1)}
  %room = select {flag} %deep, {word} {k(0)}, {word} %room1
  %over = icmp ult {word} %room, %shift0
  %shift1 = select {flag} %over, {word} %room, {word} %shift0
  %shift = and {word} %shift1, {k(bits - 1)}
  %norm = shl {word} %r, %shift
  %isnorm = icmp uge {word} %norm, {k(hidden)}
  %e0 = sub {word} %f, %shift
  %e1 = shl {word} %e0, {k(mantissa)}
  %m1 = and {word} %norm, {k(least)}
  %packed = or {word} %e1, %m1
  %mag0 = select {flag} %isnorm, {word} %packed, {word} %norm
  %rzero = icmp eq {word} %r, {k(0)}
  %mag1 = select {flag} %rzero, {word} {k(0)}, {word} %mag0
  %mag2 = select {flag} %deep, {word} %tiny, {word} %mag1
  %mag = select {flag} %small, {word} %xabs, {word} %mag2
  %signed = or {word} %mag, %sign
  %out = select {flag} %bad, {word} {k(infinity | (hidden >> 1))}, {word} %signed
  %result = bitcast {word} %out to {of}
  ret {of} %result
}}
"""


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


# ---------------------------------------------------------------------------------------------- casts
def cast(w: Writer, x: str, source: DType, target: DType, lanes: int) -> str:
    """Conversion as PyTorch on x86 does it: half types go through float32, floats to integers truncate (see `_to_integer`)."""
    if source is target:
        return x
    if target is BOOL:
        return _nonzero(w, x, source, lanes)
    if source.is_half:
        return cast(w, _from_half(w, x, source, lanes), FLOAT32, target, lanes)
    if target.is_half:
        return _to_half(w, cast(w, x, source, FLOAT32, lanes), target, lanes)
    src, dst = register_type(source, lanes), register_type(target, lanes)
    if source is BOOL:
        if target.is_float:
            return w.op(f"select {src} {x}, {dst} {constant(1.0, target, lanes)}, {dst} {constant(0.0, target, lanes)}")
        return w.op(f"zext {src} {x} to {dst}")
    if source.is_integer and target.is_integer:
        if source.bits == target.bits:
            return x
        name = "trunc" if source.bits > target.bits else "sext" if is_signed(source) else "zext"
        return w.op(f"{name} {src} {x} to {dst}")
    if source.is_integer:
        return w.op(f"{'sitofp' if is_signed(source) else 'uitofp'} {src} {x} to {dst}")
    if target.is_integer:
        return _to_integer(w, x, source, target, lanes)
    return w.op(f"{'fptrunc' if source.bits > target.bits else 'fpext'} {src} {x} to {dst}")


def _nonzero(w: Writer, x: str, source: DType, lanes: int) -> str:
    of = register_type(source, lanes)
    if source.is_half:
        magnitude = w.op(f"and {of} {x}, {f'splat (i16 {0x7FFF})' if lanes else 0x7FFF}")
        return w.op(f"icmp ne {of} {magnitude}, {'zeroinitializer' if lanes else 0}")
    if source.is_float:
        return w.op(f"fcmp une {of} {x}, {constant(0.0, source, lanes)}")
    return w.op(f"icmp ne {of} {x}, {constant(0, source, lanes)}")


def _to_integer(w: Writer, x: str, source: DType, target: DType, lanes: int) -> str:
    """Truncates to the 32- or 64-bit integer that the processor converts to (out of range: 0x80..0), then to the target.

    Converting straight to a narrow type would let LLVM saturate: out of range it may give anything.  From float32, whose values
    beyond 2^31 have no low byte, 32 bits do for uint8 too.  uint64: the upper half is moved down first, as compilers do.
    """
    src, word = register_type(source, lanes), register_type(INT64, lanes)
    if target is UINT64:
        limit = constant(2.0**63, source, lanes)
        upper = w.op(f"fcmp oge {src} {x}, {limit}")
        down = w.op(f"fsub {src} {x}, {limit}")
        moved = w.op(f"select {vector('i1', lanes)} {upper}, {src} {down}, {src} {x}")
        converted = w.op(f"fptosi {src} {moved} to {word}")
        top = w.op(f"select {vector('i1', lanes)} {upper}, {word} {constant(INT64.min, INT64, lanes)}, {word} {constant(0, INT64, lanes)}")
        return w.op(f"xor {word} {converted}, {top}")
    is_wide = target in (INT64, UINT32) or (target is UINT8 and source is FLOAT64)
    wide = INT64 if is_wide else INT32
    converted = w.op(f"fptosi {src} {x} to {register_type(wide, lanes)}")
    return cast(w, converted, wide, target, lanes)


def _from_half(w: Writer, x: str, source: DType, lanes: int) -> str:
    if source is BFLOAT16:
        wide = register_type(UINT32, lanes)
        bits = w.op(f"zext {register_type(source, lanes)} {x} to {wide}")
        high = w.op(f"shl {wide} {bits}, {constant(16, UINT32, lanes)}")
        return w.op(f"bitcast {wide} {high} to {register_type(FLOAT32, lanes)}")
    if w.target.has_f16c:
        half = w.op(f"bitcast {register_type(source, lanes)} {x} to {vector('half', lanes)}")
        return w.op(f"fpext {vector('half', lanes)} {half} to {register_type(FLOAT32, lanes)}")
    return _from_float16(w, x, lanes)


def _to_half(w: Writer, x: str, target: DType, lanes: int) -> str:
    """float32 rounded to the nearest, ties to even."""
    narrow = register_type(target, lanes)
    if target is FLOAT16:
        if not w.target.has_f16c:
            return _to_float16(w, x, lanes)
        half = w.op(f"fptrunc {register_type(FLOAT32, lanes)} {x} to {vector('half', lanes)}")
        return w.op(f"bitcast {vector('half', lanes)} {half} to {narrow}")
    wide, of = register_type(UINT32, lanes), register_type(FLOAT32, lanes)
    bits = w.op(f"bitcast {of} {x} to {wide}")
    shifted = w.op(f"lshr {wide} {bits}, {constant(16, UINT32, lanes)}")
    last = w.op(f"and {wide} {shifted}, {constant(1, UINT32, lanes)}")
    bias = w.op(f"add {wide} {last}, {constant(0x7FFF, UINT32, lanes)}")
    rounded = w.op(f"add {wide} {bits}, {bias}")
    unordered = w.op(f"fcmp uno {of} {x}, {x}")
    kept = w.op(f"select {vector('i1', lanes)} {unordered}, {wide} {constant(0x7FC00000, UINT32, lanes)}, {wide} {rounded}")
    high = w.op(f"lshr {wide} {kept}, {constant(16, UINT32, lanes)}")
    return w.op(f"trunc {wide} {high} to {narrow}")


def _from_float16(w: Writer, x: str, lanes: int) -> str:
    """float16 bits to float32 without the instruction: the exponent is moved by a product, so denormals come out right."""
    wide, of, flag = register_type(UINT32, lanes), register_type(FLOAT32, lanes), vector("i1", lanes)

    def k(value: int) -> str:
        return constant(value, UINT32, lanes)

    bits = w.op(f"zext {vector('i16', lanes)} {x} to {wide}")
    magnitude = w.op(f"and {wide} {bits}, {k(0x7FFF)}")
    sign_bit = w.op(f"and {wide} {bits}, {k(0x8000)}")
    sign = w.op(f"shl {wide} {sign_bit}, {k(16)}")
    moved = w.op(f"shl {wide} {magnitude}, {k(13)}")
    scaled = w.op(f"fmul {of} {w.op(f'bitcast {wide} {moved} to {of}')}, {constant(2.0**112, FLOAT32, lanes)}")
    special = w.op(f"icmp uge {wide} {magnitude}, {k(0x7C00)}")
    with_top = w.op(f"or {wide} {moved}, {k(0x7F800000)}")
    value = w.op(f"select {flag} {special}, {wide} {with_top}, {wide} {w.op(f'bitcast {of} {scaled} to {wide}')}")
    return w.op(f"bitcast {wide} {w.op(f'or {wide} {value}, {sign}')} to {of}")


def _to_float16(w: Writer, x: str, lanes: int) -> str:
    """float32 to float16 bits without the instruction: normal results round in integers, denormal ones by adding a power of two."""
    wide, of, flag = register_type(UINT32, lanes), register_type(FLOAT32, lanes), vector("i1", lanes)

    def k(value: int) -> str:
        return constant(value & 0xFFFFFFFF, UINT32, lanes)

    bits = w.op(f"bitcast {of} {x} to {wide}")
    magnitude = w.op(f"and {wide} {bits}, {k(0x7FFFFFFF)}")
    sign_bit = w.op(f"and {wide} {bits}, {k(0x80000000)}")
    sign = w.op(f"lshr {wide} {sign_bit}, {k(16)}")
    shifted = w.op(f"lshr {wide} {magnitude}, {k(13)}")
    odd = w.op(f"and {wide} {shifted}, {k(1)}")
    moved = w.op(f"add {wide} {magnitude}, {k(0xFFF - (112 << 23))}")
    normal = w.op(f"lshr {wide} {w.op(f'add {wide} {moved}, {odd}')}, {k(13)}")
    # 0.5 has its last bit at 2^-24, the step of float16's denormals: the low bits of the sum are the rounded result
    raised = w.op(f"fadd {of} {w.op(f'bitcast {wide} {magnitude} to {of}')}, {constant(0.5, FLOAT32, lanes)}")
    denormal = w.op(f"sub {wide} {w.op(f'bitcast {of} {raised} to {wide}')}, {k(0x3F000000)}")
    is_small = w.op(f"icmp ult {wide} {magnitude}, {k(0x38800000)}")  # below 2^-14
    finite = w.op(f"select {flag} {is_small}, {wide} {denormal}, {wide} {normal}")
    is_large = w.op(f"icmp uge {wide} {magnitude}, {k(0x477FF000)}")  # 65520 and more round to infinity
    capped = w.op(f"select {flag} {is_large}, {wide} {k(0x7C00)}, {wide} {finite}")
    is_nan = w.op(f"icmp ugt {wide} {magnitude}, {k(0x7F800000)}")
    value = w.op(f"select {flag} {is_nan}, {wide} {k(0x7E00)}, {wide} {capped}")
    return w.op(f"trunc {wide} {w.op(f'or {wide} {value}, {sign}')} to {vector('i16', lanes)}")


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
