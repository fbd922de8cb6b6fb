"""What operations cost, for the rules of fusion: limits and thresholds in one place.

The unit is one operation on one element (an addition).
"""

from __future__ import annotations

from thermit.ir import prims as p
from thermit.ir.node import Node

LIMIT_NODES = 400  # of one kernel: above, compile time leaves the milliseconds and registers spill
LIMIT_LOADS = 40  # buffers that one kernel reads: pointers and streams
COST_COSTLY = 10
COST_DIVIDE = 4
COST_CODE = 500_000  # of one operation written out beyond LIMIT_CODE: LLVM takes 0.1 to 0.5 ms to translate it, shared by some ten calls
LIMIT_CODE = 800  # operations that a kernel may write out, an inline value once for each place where it is read
COST_SHARED = 24  # a value that two kernels need is stored from here on: a write and two reads of memory cost about as much
COST_SCATTERED = 24  # reading one element below a gather: lanes are loaded one by one
COST_POW = 60
COST_KERNEL = 5000  # of one more kernel: started, and its buffer
AGAIN_GAIN = 0.05  # of the work of a kernel that must be saved
AGAIN_TRIALS = 4  # values whose storing is weighed in full
TABLE_RUNS = 16  # as often as this for each element: making it once costs next to nothing
COSTLY_AGAIN = 8  # kernels of fewer operations are not weighed
L2_BYTES = 1 << 19  # what is larger goes to L3 and back
L3_BYTES = 1 << 24  # what is larger goes to memory and back
COST_ROW = 8  # a value that two loops over a row need is kept from here on: a write and a read of L1
ROW_BYTES = 256 << 10  # row buffers of one kernel, on the stack and in L2
SMALL_ELEMS = 16 << 10  # below, one core does it before a second could be woken
SPLIT_ELEMS = 64 << 10  # a reduction of more elements into few is done in two kernels, so that cores share it
SPLIT_PARTS = 64
SPLIT_ROWS = 8  # fewer results than these are too few to share
TALL_ELEMS = 256 << 10  # a reduction of more elements along columns is done in parts of whole rows ...
TALL_COLUMNS = 2048  # ... if there are at most so many columns: more are strips enough for all cores
TALL_LEAST = 16  # columns that are worth a vector
TALL_PARTS = 16
ROW_COLUMNS = 4096  # the same for one row times a matrix: what is added up, in float64, is as large as L1, and memory is what bounds it ...
ROW_PARTS = 8  # ... in so many parts
IN_PLACE_SHARE = 4  # an input of which at most one in so many elements is new is written where it lies


def cost_of(node: Node) -> int:
    """Operations of one element of a map."""
    if node.prim.is_function:
        return COST_POW if node.prim is p.POW else COST_COSTLY
    return COST_DIVIDE if node.prim in (p.DIV, p.SQRT, p.REM) else 1


def memory_cost(node: Node) -> int:
    """Writing an element to a buffer and reading it back."""
    size, each = node.type.nbytes, node.dtype.itemsize
    return 2 + (2 * each if size > L3_BYTES else each // 2 if size > L2_BYTES else 0)
