"""The remainder of floats, which LLVM would turn into a call of libm for each lane: a private function of the module."""

from __future__ import annotations

from thermit.codegen.literals import intrinsic, register_type, vector
from thermit.ir.types import FLOAT32, DType


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
