"""python -m tests.fuzz [--programs N] [--first SEED] [--family exact|smooth]: random programs, jit against eager; prints shrunk failures.

--coverage: nothing is compiled; how many rows of the lowering table the programs draw, and which they do not.
"""

import argparse
import faulthandler
import gc
import sys
import time
import warnings

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import thermit
from tests.fuzz.compare import fault, shrink
from tests.fuzz.programs import Program, program
from thermit.aten.table import TABLE


class Drawn(TorchDispatchMode):
    """The operators that ran inside."""

    def __init__(self) -> None:
        super().__init__()
        self.overloads: set[torch._ops.OpOverload] = set()

    def __torch_dispatch__(self, overload, types, args=(), kwargs=None):
        self.overloads.add(overload)
        return overload(*args, **(kwargs or {}))

    def run(self, made: Program) -> None:
        with self, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                made.call(made.function(), made.arguments(0))
            except Exception as e:
                print(f"{made.family} {made.seed} raises {type(e).__name__}")


faulthandler.enable()
torch.set_num_threads(1)
options = argparse.ArgumentParser(description=__doc__)
options.add_argument("--programs", type=int, default=1000)
options.add_argument("--first", type=int, default=0)
options.add_argument("--family", choices=["exact", "smooth", "both"], default="both")
options.add_argument("--most", type=int, default=10, help="stop after so many failures")
options.add_argument("--trace", action="store_true", help="print each seed before it runs (to find a crash)")
options.add_argument("--coverage", action="store_true", help="how many rows of the lowering table are drawn")
args = options.parse_args()
failures, start, drawn = 0, time.time(), Drawn()
for seed in range(args.first, args.first + args.programs):
    family = args.family if args.family != "both" else ("exact", "smooth")[seed % 2]
    if args.trace:
        print(family, seed, flush=True)
    made = program(family, seed)
    if args.coverage:
        drawn.run(made)
        continue
    how = fault(made, thermit.jit)
    if how is not None:
        failures += 1
        small = shrink(made, thermit.jit)
        print(f"--- {family} {seed}: {how}\nshrunk: {fault(small, thermit.jit)}\ninputs {small.inputs} {small.form}\n{small.source}", flush=True)
        if failures >= args.most:
            break
    if seed % 200 == 199:
        gc.collect()
        print(f"{seed + 1 - args.first} programs, {failures} differ, {time.time() - start:.0f} s", file=sys.stderr, flush=True)
if args.coverage:
    missed = sorted(str(row).removeprefix("aten.") for row in TABLE if row not in drawn.overloads)
    print(f"{len(TABLE) - len(missed)} of {len(TABLE)} rows drawn; never: {' '.join(missed)}")
    sys.exit(0)
print(f"{seed + 1 - args.first - failures} passed, {failures} failed")
sys.exit(bool(failures))
