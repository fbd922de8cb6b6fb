"""Conversions between element types -> LLVM instructions, bit for bit as PyTorch on x86 makes them.

In:  a register and its element type.  Out: a register of the other type.
Invariant: no instruction traps or yields poison, whatever the value; targets without float16 instructions get the same bits from integers.
"""

from __future__ import annotations

from thermit.codegen.literals import Writer, constant, is_signed, register_type, vector
from thermit.ir.types import BFLOAT16, BOOL, FLOAT16, FLOAT32, FLOAT64, INT32, INT64, UINT8, UINT32, UINT64, DType


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
