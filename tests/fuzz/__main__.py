"""python -m tests.fuzz [--programs N] [--first SEED] [--family exact|smooth]: random programs, jit against eager; prints shrunk failures."""

import argparse
import faulthandler
import gc
import sys
import time

import torch

import thermit
from tests.fuzz.compare import fault, shrink
from tests.fuzz.programs import program

faulthandler.enable()
torch.set_num_threads(1)
options = argparse.ArgumentParser(description=__doc__)
options.add_argument("--programs", type=int, default=1000)
options.add_argument("--first", type=int, default=0)
options.add_argument("--family", choices=["exact", "smooth", "both"], default="both")
options.add_argument("--most", type=int, default=10, help="stop after so many failures")
options.add_argument("--trace", action="store_true", help="print each seed before it runs (to find a crash)")
args = options.parse_args()
failures, start = 0, time.time()
for seed in range(args.first, args.first + args.programs):
    family = args.family if args.family != "both" else ("exact", "smooth")[seed % 2]
    if args.trace:
        print(family, seed, flush=True)
    made = program(family, seed)
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
print(f"{seed + 1 - args.first - failures} passed, {failures} failed")
sys.exit(bool(failures))
