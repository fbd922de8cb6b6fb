"""Every float32 argument of every function of one argument; samples of float64 and of functions of two.  Minutes; writes docs/numerics.md.

    python -m tests.exhaustive.run                      everything
    python -m tests.exhaustive.run --only exp,log       these functions: their rows are replaced
    python -m tests.exhaustive.run --every 1000 --samples 1000000      a thousandth of the float32 arguments, a million samples

Each row tells how many arguments were tried.  Exits with 1 if any error is above one unit of the last place.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import local

import numpy as np
import torch

from tests.exhaustive.reference import ErrorKernel, Kernel, batches, differences, eager, functions, in_long_double, ulps32, ulps64, worst_of
from thermit.ir.prims import Prim
from thermit.ir.types import FLOAT32, FLOAT64, DType

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "numerics.md"
BEGIN, END = "<!-- table: python -m tests.exhaustive.run -->\n", "<!-- end of table -->"
CHUNK = 1 << 16
LIMIT_ULP = 1.0

HEAD = "| function | float32: tried | ulp | at | float64: tried | ulp | at |\n|---|---|---|---|---|---|---|\n"

Worst = tuple[float, tuple[float, ...]]
Result = tuple[Worst, str]  # and how many arguments were tried


def _worst(error: np.ndarray, args: tuple[np.ndarray, ...]) -> Worst:
    k = int(error.argmax())
    return float(error[k]), tuple(float(a[k]) for a in args)


def _true(prim: Prim, dtype: DType) -> Callable[..., np.ndarray]:
    """float32: PyTorch in float64, and (pow) long double; float64: long double."""
    if dtype is FLOAT64:
        return in_long_double(prim)
    function = eager(prim)
    return lambda *args: function(*(a.astype(np.float64) for a in args))


class Measure:
    """The errors of one function, for chunks of arguments on any thread (a kernel may not be called before it is compiled: one a thread)."""

    def __init__(self, prim: Prim, dtype: DType) -> None:
        self.prim, self.dtype, self.true = prim, dtype, _true(prim, dtype)
        self.kernels = local()

    def __call__(self, args: tuple[np.ndarray, ...]) -> Worst:
        if not hasattr(self.kernels, "kernel"):
            self.kernels.kernel = Kernel(self.prim, self.dtype, CHUNK)
        with np.errstate(all="ignore"):
            error = (ulps32 if self.dtype is FLOAT32 else ulps64)(self.kernels.kernel(*args), self.true(*args))
        return _worst(error, args)


def _all(pool: ThreadPoolExecutor, measure: Callable[..., Worst], work: Iterable[object]) -> Worst:
    return worst_of(list(pool.map(measure, work)))


def exhaust(pool: ThreadPoolExecutor, prim: Prim, every: int) -> Result:
    """All 2^32 arguments, or one chunk of them in so many."""
    true, mine = eager(prim), local()

    def chunk(number: int) -> Worst:
        if not hasattr(mine, "kernel"):
            mine.kernel, mine.error = ErrorKernel(prim, CHUNK), np.empty(CHUNK, np.float32)
        x = np.arange(number * CHUNK, (number + 1) * CHUNK, dtype=np.uint32).view(np.float32)
        with np.errstate(all="ignore"):
            mine.kernel(x, true(x.astype(np.float64)), mine.error)
        return _worst(mine.error, (x,))

    return _all(pool, chunk, range(0, (1 << 32) // CHUNK, every)), "all 2^32" if every == 1 else f"2^32 / {every}"


def sample(pool: ThreadPoolExecutor, prim: Prim, dtype: DType, samples: int) -> Result:
    measure = Measure(prim, dtype)
    count = max(1, samples // CHUNK)
    parts = max(1, count // 24)
    each = -(-count // parts)

    def part(seed: int) -> Worst:
        return worst_of([measure(args) for args in batches(prim, dtype, CHUNK, each, seed)])

    return _all(pool, part, range(parts)), f"{parts * each * CHUNK:,}"


def row(prim: Prim, results: list[Result]) -> str:
    cells = [cell for (ulp, at), tried in results for cell in (tried, f"{ulp:.3f}", ", ".join(f"{x:.9g}" for x in at))]
    return f"| {prim} | " + " | ".join(cells) + " |\n"


def write(rows: dict[str, str]) -> None:
    """Puts the rows into the table of docs/numerics.md; those of other functions stay."""
    text = DOCUMENT.read_text()
    before, _, rest = text.partition(BEGIN)
    table, _, after = rest.partition(END)
    known = {line.split()[1]: line + "\n" for line in table.splitlines()[2:]} | rows
    names = [prim.name for prim in [*functions(1), *functions(2)]]
    DOCUMENT.write_text(before + BEGIN + HEAD + "".join(known[name] for name in names if name in known) + END + after)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names of functions, with commas")
    parser.add_argument("--every", type=int, default=1, help="one chunk of float32 arguments in so many")
    parser.add_argument("--samples", type=int, default=10**8, help="samples of float64")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: dict[str, str] = {}
    failed = 0
    with ThreadPoolExecutor(options.threads) as pool:
        for prim in [*functions(1), *functions(2)]:
            if options.only and prim.name not in options.only.split(","):
                continue
            start = time.perf_counter()
            single = exhaust(pool, prim, options.every) if prim.arity == 1 else sample(pool, prim, FLOAT32, options.samples)
            results = [single, sample(pool, prim, FLOAT64, options.samples)]
            rows[prim.name] = row(prim, results)
            different = differences(prim, FLOAT32) + differences(prim, FLOAT64)
            failed += any(ulp > LIMIT_ULP for (ulp, _), _ in results) or bool(different)
            print(rows[prim.name].rstrip(), f"{time.perf_counter() - start:.0f} s", *different[:5], sep="\n    ", flush=True)
    write(rows)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
