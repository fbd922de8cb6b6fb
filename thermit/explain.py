"""What was done with a call, as a record that reads like an answer.

In:  a compilation, or the reason why there is none.  Out: `Explanation`; `str` of it is the text.
"""

from __future__ import annotations

from thermit.capture.signature import Guard
from thermit.compiler import Compilation, kernel_count
from thermit.records import dataclass
from thermit.schedule.kernel import schedule_text
from thermit.stages import cost_analysis, memory_analysis

SHOWN = 40  # facts that the text lists: a network has thousands

KEY = (
    "kernel: one compiled loop nest; what it makes, from what, how many values it computes on the way",
    "call: an operation that PyTorch runs between kernels; stored: a value that goes through memory, and why it was not fused",
    "bytes moved: read and written by kernels and calls; temporaries: memory between them, kept for the next call",
    "holds while: checked at each call, beside the arguments; a change compiles again",
)


@dataclass(frozen=True)
class Explanation:
    """`eager`: why the call runs eagerly, or "".  Times in seconds by stage; `recompiled`: what caused each compilation after the first."""

    name: str
    eager: str
    line: str
    kernels: int
    calls: tuple[str, ...]
    refused: tuple[str, ...]
    cost: dict[str, int]
    memory: dict[str, int]
    seconds: dict[str, float]
    guards: tuple[str, ...]
    recompiled: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        if self.eager:
            where = f"\n  {self.line}" if self.line else ""
            return f"{self.name} runs eagerly: {self.eager}{where}\n" + _listed("compiled again because", self.recompiled)
        times = ", ".join(f"{stage} {1000 * s:.1f}" for stage, s in self.seconds.items())
        lines = [
            f"{self.name} runs as {counted(self.kernels, 'kernel')} and {counted(len(self.calls), 'call')}",
            f"  {self.cost['flops']:,} flops, {self.cost['bytes']:,} bytes moved; {self.memory['temp_bytes']:,} bytes of temporaries",
            f"  compiled in {1000 * sum(self.seconds.values()):.1f} ms: {times}",
        ]
        text = "\n".join(lines) + "\n" + self.text
        calls = tuple(f"{name}{f' ({n} times)' if (n := self.calls.count(name)) > 1 else ''}" for name in dict.fromkeys(self.calls))
        facts = self.guards if len(self.guards) <= SHOWN else (*self.guards[:SHOWN], f"... and {len(self.guards) - SHOWN:,} more facts (.guards)")
        text += _listed("run by PyTorch", calls) + _listed("holds while", facts) + _listed("compiled again because", self.recompiled)
        return text + _listed("key", KEY)

    __repr__ = __str__


def counted(count: int, noun: str) -> str:
    """`1 kernel`, `2 kernels`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _listed(title: str, lines: tuple[str, ...]) -> str:
    return "".join([f"{title}:\n", *(f"  {line}\n" for line in lines)]) if lines else ""


def explain(
    name: str,
    compilation: Compilation | None,
    reason: str,
    line: str,
    guards: tuple[Guard, ...],
    recompiled: tuple[str, ...],
    calls: tuple[str, ...] = (),
) -> Explanation:
    """The record."""
    facts, recompiled = tuple(sorted(map(str, guards))), tuple(dict.fromkeys(recompiled))
    if compilation is None:
        return Explanation(name, reason, line, 0, (), (), {}, {}, {}, facts, recompiled, "")
    kernels, _ = kernel_count(compilation)
    refused = tuple(f"{r.node!r}: {r.reason}" for r in compilation.stages.refused)
    return Explanation(
        name, "", "", kernels, calls, refused, cost_analysis(compilation), memory_analysis(compilation),
        dict(compilation.stages.seconds), facts, recompiled, schedule_text(compilation.schedule),
    )  # fmt: skip
