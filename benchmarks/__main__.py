"""`python -m benchmarks`: every case under every peer; results in benchmarks/results.

Environments: this Python needs torch, thermit and numpy (a plot: matplotlib; torch.compile: a C++ compiler).  JAX is run by
another Python, given by --jax-python (`make bench` makes one in .venv-jax); where it is missing, JAX is left out.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path

from benchmarks.cases import CASES
from benchmarks.measure import ROOT, Settings, hold_to_cores, import_seconds, measure
from benchmarks.report import Report, duration, machine, write

PEERS = ("thermit", "eager", "torch.compile", "torch.jit.trace", "jax")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer cases and rounds, no new shapes: about three minutes")
    parser.add_argument("--only", default="", help="cases whose name contains one of these, separated by commas")
    parser.add_argument("--peers", default=",".join(PEERS), help="which peers, separated by commas")
    parser.add_argument("--rounds", type=int, help="interleaved rounds (11; with --quick 5)")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1), help="cores and threads that each peer may use")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: processor seconds; with --threads 1, for a busy machine")
    parser.add_argument("--jax-python", default=str(ROOT / ".venv-jax" / "bin" / "python"), help="a Python that has JAX")
    parser.add_argument("--out", type=Path, help="where to write, without suffix (benchmarks/results/full, or quick)")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    return parser.parse_args()


def main() -> int:
    options = _arguments()
    wanted = [part for part in options.only.split(",") if part]
    cases = [c for c in CASES.values() if (not wanted or any(w in c.name for w in wanted)) and (wanted or not options.quick or c.quick)]
    if options.list:
        print("\n".join(c.name for c in cases))
        return 0
    peers = [p for p in options.peers.split(",") if p]
    if "jax" in peers and not Path(options.jax_python).exists():
        print("no JAX here (see --jax-python): left out", file=sys.stderr)
        peers.remove("jax")
    settings = Settings(
        tuple(peers), options.rounds or (5 if options.quick else 11), options.threads, options.jax_python, not options.quick, options.clock
    )
    hold_to_cores(options.threads)
    stem = options.out or ROOT / "benchmarks" / "results" / ("quick" if options.quick else "full")
    shown = {k: v for k, v in asdict(settings).items() if k != "jax_python"}
    report = Report({}, shown, machine((name, version(name)) for name in ("torch", "numpy")), None)
    for case in cases:
        start = time.perf_counter()
        report.results[case.name] = entries = measure(case, settings)
        line = "  ".join(f"{e.peer} {e.error[:60] if e.error and e.call_s is None else duration(e.call_s)}" for e in entries.values())
        print(f"{case.name}: {line}   [{time.perf_counter() - start:.0f} s]", flush=True)
        write(report, stem)
    if "thermit" in peers and not wanted:
        report = replace(report, imports_s=(import_seconds(("torch",)), import_seconds(("torch", "thermit"))))
    for path in write(report, stem):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
