"""A vector loop whose sums are long: in blocks, so that no register adds up many terms one after the other.

What comes in: the accumulators of a vector loop and its body as a function.  What goes out: the loop's instructions.  Equal terms are all rounded
in one direction, so a sum errs by as many units as it has terms: BLOCK_TERMS of them go into a register, then what it holds to a total
(accumulate.py) that errs by nothing that counts.  Invariant: what the registers hold behind the loop is not in the total yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from thermit.codegen.accumulate import Running, begin_block, begin_total, end_block
from thermit.codegen.expressions import ExpressionWriter
from thermit.codegen.spelling import WEIGHTS

BLOCK_TERMS = 16  # as eager's cascade
Iteration = Callable[[str], list[list[str]]]
Counted = Callable[[list[Running], str, str, int, int, Iteration, bool], None]


def cascade(
    w: ExpressionWriter,
    counted: Counted,
    running: Sequence[list[Running]],
    sums: Sequence[list[Running]],
    between: tuple[str, str],
    stride: int,
    writes: int,
    iteration: Iteration,
    always: bool,
) -> None:
    """The full steps of a loop; behind a block of them what sums have added up is taken to their totals.  Where a sum is alone, that is a branch
    of the loop, else a loop in the loop, for registers would not do (Zen 3: softmax 2 % slower, not 8; masked statistics 13, not 50)."""
    (start, whole), size = between, BLOCK_TERMS * stride
    flat, others = [r for parts in running for r in parts], [r for parts in running if parts not in sums for r in parts]
    for parts in sums:
        begin_total(w, parts)

    def step(at: str) -> list[list[str]]:
        states = iteration(at)
        w.here()
        place = w.op(f"and i64 {at}, {size - 1}")
        return _behind_block(w, w.op(f"icmp uge i64 {place}, {size - stride}"), sums[0], states)

    def block(at: str) -> list[list[str]]:
        stop = w.op(f"call i64 @llvm.smin.i64(i64 {w.op(f'add nuw nsw i64 {at}, {size}')}, i64 {whole})")
        counted(flat, at, stop, stride, writes, iteration, True)
        w.here()
        for parts in sums:
            end_block(w, parts)
        return [r.values for r in others]

    if len(running) == 1:
        counted(flat, start, whole, stride, writes, step, always)
        return
    counted(others, start, whole, size, writes, block, always)
    for parts in sums:
        begin_block(parts)


def _behind_block(w: ExpressionWriter, is_last: str, parts: list[Running], states: list[list[str]]) -> list[list[str]]:
    """The states with which a sum goes on: where a block has ended, anew."""
    near, far, join = w.label("near"), w.label("far"), w.label("join")
    w.helper("weights", lambda: WEIGHTS)
    w.line(f"  br label %{near}")
    w.begin_block(near)
    w.line(f"  br i1 {is_last}, label %{far}, label %{join}, !prof !0")
    w.begin_block(far)
    for r, state in zip(parts, states, strict=True):
        r.values = state
    end_block(w, parts)
    w.line(f"  br label %{join}")
    w.begin_block(join)
    return [[w.op(f"phi {r.types[0]} [ {new[0]}, %{near} ], [ {r.values[0]}, %{far} ]")] for r, new in zip(parts, states, strict=True)]
