"""What `seldom` calls where thermit has more than the C library: functions of whole vectors that are right for every argument.

In: the name of the function, the element type.  Out: an expression of one argument in primitives that have a spelling.  The one idea: the
usual path leaves out zeros, denormal numbers, infinities and what else costs it instructions, and the same formula with them is a
function out of line, so that data full of such arguments takes twice the time and not the time of a call for each lane.
"""

from __future__ import annotations

from collections.abc import Callable

from thermit.codegen import single_log
from thermit.ir.node import Node
from thermit.ir.types import FLOAT32, DType

RARE: dict[tuple[str, DType], Callable[[Node], Node]] = {
    ("log", FLOAT32): single_log.log_of_any,
    ("log2", FLOAT32): single_log.log2_of_any,
    ("log10", FLOAT32): single_log.log10_of_any,
    ("log1p", FLOAT32): single_log.log1p_if_rare,
}
