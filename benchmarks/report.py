"""What was measured, as JSON, as markdown, and as a plot where matplotlib is installed."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.cases import find
from benchmarks.measure import REFERENCES, Measured

try:
    from matplotlib import pyplot
except ImportError:
    pyplot = None

OURS = "thermit"
LOSS = 1.05  # a peer is faster when thermit takes more than so many times its time
LARGE_ELEMS = 4096  # sizes from here on count in the means

Results = dict[str, dict[str, Measured]]


@dataclass(frozen=True, slots=True)
class Report:
    """`imports_s`: seconds to import torch, and torch with thermit."""

    results: Results
    settings: dict[str, Any]
    machine: dict[str, str]
    imports_s: tuple[float, float] | None
    title: str = ""

    @property
    def peers(self) -> list[str]:
        seen = dict.fromkeys(name for entries in self.results.values() for name in entries)
        return [name for name in seen if name not in REFERENCES]

    def ratio(self, case: str, peer: str) -> float | None:
        """The peer's time as a multiple of thermit's."""
        entries = self.results[case]
        ours, theirs = (entries[name].call_s if name in entries else None for name in (OURS, peer))
        return theirs / ours if ours and theirs else None

    def losses(self) -> list[tuple[str, str, float]]:
        """(case, peer, how many times faster the peer is), the worst first."""
        found = [
            (case, peer, 1 / ratio) for case in self.results for peer in self.peers if peer != OURS and (ratio := self.ratio(case, peer)) is not None
        ]
        return sorted((row for row in found if row[2] > LOSS), key=lambda row: -row[2])


def machine(versions: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The processor's name and the versions of what was measured."""
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as lines:
            name = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {"processor": name, "system": platform.system(), "python": platform.python_version(), **dict(versions)}


# ---------------------------------------------------------------------------------------------- text
def duration(seconds: float | None) -> str:
    """Three digits and a unit.

    >>> duration(0.00001234)
    '12.3 µs'
    """
    if seconds is None:
        return "-"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{_digits(seconds / size)} {unit}"
    return f"{_digits(seconds / 1e-9)} ns"


def _digits(value: float) -> str:
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}" if value > 0 else "0"


def geometric_mean(values: Iterable[float]) -> float | None:
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs)) if logs else None


def _table(header: list[str], rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(header) + " |", "|---" + "|---:" * (len(header) - 1) + "|", *("| " + " | ".join(row) + " |" for row in rows)]


def _times(report: Report) -> list[str]:
    rows = []
    others = [p for p in report.peers if p != OURS]
    for case, entries in report.results.items():
        row = [case, duration(entries[OURS].call_s) if OURS in entries else "-"]
        for peer in others:
            entry, ratio = entries.get(peer), report.ratio(case, peer)
            row.append(
                "failed"
                if entry and entry.error and entry.call_s is None
                else f"{duration(entry.call_s if entry else None)}" + (f" ({ratio:.2f})" if ratio else "")
            )
        reference = next((entries[name] for name in REFERENCES if name in entries), None)
        row.append(f"{duration(reference.call_s)} {reference.peer}" if reference else "")
        rows.append(row)
    return _table(["time of a call", OURS, *others, "reference"], rows)


def _means(report: Report) -> list[str]:
    lines = []
    cases = [find(name) for name in report.results]
    large = [c.name for c in cases if c.group in ("product", "model") or (c.group == "size" and c.elements >= LARGE_ELEMS)]
    what = f"cases of {LARGE_ELEMS} elements and more" if any(c.group == "size" for c in cases) else "cases"
    for peer in report.peers:
        ratios = [r for case in large if (r := report.ratio(case, peer)) is not None]
        mean = geometric_mean(ratios)
        if peer != OURS and mean is not None:
            lines.append(f"- {peer}: {mean:.2f} times thermit's time (geometric mean of {len(ratios)} {what})")
    return lines


def _column(report: Report, title: str, value: str, text: Any) -> list[str]:
    rows = []
    for case, entries in report.results.items():
        rows.append(
            [case, *(text(getattr(entries[p], value)) if p in entries and getattr(entries[p], value) is not None else "-" for p in report.peers)]
        )
    return _table([title, *report.peers], rows)


def _rates(report: Report) -> list[str]:
    rows = []
    for case, entries in report.results.items():
        times = [entries[p].call_s if p in entries else None for p in report.peers]
        rows.append([case, *(f"{find(case).flops / t / 1e9:.0f}" if t else "-" for t in times)])
    return _table(["GFLOP/s", *report.peers], rows)


def markdown(report: Report) -> str:
    m, s = report.machine, report.settings
    lines = [
        f"# Benchmarks{report.title}",
        "",
        f"{m['processor']}, {s['threads']} threads; " + ", ".join(f"{k} {v}" for k, v in m.items() if k not in ("processor", "system")) + ".",
    ]
    seconds = "processor seconds" if s["clock"] == "cpu" else "seconds"
    lines += [
        f"Medians ({seconds}) of {s['rounds']} interleaved rounds.  In brackets: the peer's time divided by thermit's (above 1: thermit is faster).",
        "",
    ]
    lines += [*_times(report), "", "## Means", "", *_means(report), "", f"## Where a peer is more than {LOSS} times faster", ""]
    lines += [f"- {case}: {peer}, {factor:.2f} times" for case, peer, factor in report.losses()] or ["nowhere"]
    lines += ["", "## First call (fresh process, empty caches, imports excluded)", "", *_column(report, "first call", "first_s", duration)]
    if any(find(case).flops for case in report.results):
        lines += ["", "## Work done (GFLOP/s)", "", *_rates(report)]
    if any(e.new_shape_s is not None for entries in report.results.values() for e in entries.values()):
        lines += ["", "## First call at a new shape", "", *_column(report, "new shape", "new_shape_s", duration)]
    lines += ["", "## Memory (peak of a call above what the process held before its first call, MB)", ""]
    lines += _column(report, "memory", "memory_mb", lambda mb: f"{mb:.0f}")
    lines += [
        "",
        "## Largest difference from eager, relative to the largest result",
        "",
        *_column(report, "difference", "difference", lambda d: f"{d:.1e}"),
    ]
    if any(e.inexact is not None for entries in report.results.values() for e in entries.values()):
        lines += ["", "## Error: largest difference from eager in float64, relative to the largest result", ""]
        lines += _column(report, "error", "inexact", lambda d: f"{d:.1e}")
    failures = [f"- {case}, {e.peer}: {e.error}" for case, entries in report.results.items() for e in entries.values() if e.error]
    failures += [
        f"- {case}, {e.peer}: differs by {e.difference:.1e}"
        for case, entries in report.results.items()
        for e in entries.values()
        if _differs(case, e)
    ]
    lines += ["", "## Failures", "", *(failures or ["none"])]
    if report.imports_s is not None:
        torch_s, both_s = report.imports_s
        lines += ["", f"`import thermit` adds {duration(max(both_s - torch_s, 1e-9))} to `import torch` ({duration(torch_s)})."]
    return "\n".join(lines) + "\n"


def _differs(case: str, entry: Measured) -> bool:
    return entry.difference is not None and not entry.difference <= find(case).tolerance


# ---------------------------------------------------------------------------------------------- files
def write(report: Report, stem: Path) -> list[Path]:
    """`stem`.json, .md and, with matplotlib, .svg; gives what was written."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    data = {
        "machine": report.machine,
        "settings": report.settings,
        "imports_s": report.imports_s,
        "results": {case: {name: {**asdict(e), "call_s": e.call_s} for name, e in entries.items()} for case, entries in report.results.items()},
    }
    paths = [stem.with_suffix(".json"), stem.with_suffix(".md")]
    paths[0].write_text(json.dumps(data, indent=1) + "\n")
    paths[1].write_text(markdown(report))
    if pyplot is not None:
        paths.append(stem.with_suffix(".svg"))
        _plot(report, paths[2])
    return paths


def _plot(report: Report, path: Path) -> None:
    """A point for each case and peer: the peer's time divided by thermit's, on a logarithmic axis."""
    cases = list(report.results)
    figure, axes = pyplot.subplots(figsize=(9, 0.32 * len(cases) + 1.5))
    for peer in (p for p in report.peers if p != OURS):
        points = [(r, i) for i, case in enumerate(cases) if (r := report.ratio(case, peer)) is not None]
        if points:
            axes.scatter([r for r, _ in points], [i for _, i in points], label=peer, s=28)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yticks(range(len(cases)), cases)
    axes.invert_yaxis()
    axes.grid(axis="x", which="both", linewidth=0.3)
    axes.set_xlabel("time of the peer / time of thermit (right of 1: thermit is faster)")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
