"""What was done with a call, as a record that reads like an answer.

In:  a compilation, or the reason why there is none.  Out: `Explanation`; `str` of it is the text.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from thermit.capture.signature import Guard
from thermit.compiler import Compilation, kernel_count
from thermit.records import dataclass
from thermit.schedule.kernel import schedule_text
from thermit.stages import cost_analysis, memory_analysis


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
            f"{self.name} runs as {self.kernels} kernels and {len(self.calls)} calls",
            f"  {self.cost['flops']:,} flops, {self.cost['bytes']:,} bytes moved; {self.memory['temp_bytes']:,} bytes of temporaries",
            f"  compiled in {1000 * sum(self.seconds.values()):.1f} ms: {times}",
        ]
        text = "\n".join(lines) + "\n" + self.text
        return text + _listed("run by PyTorch", self.calls) + _listed("holds while", self.guards) + _listed("compiled again because", self.recompiled)

    __repr__ = __str__


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
    facts = tuple(map(str, guards))
    if compilation is None:
        return Explanation(name, reason, line, 0, (), (), {}, {}, {}, facts, recompiled, "")
    kernels, _ = kernel_count(compilation)
    refused = tuple(f"{r.node!r}: {r.reason}" for r in compilation.stages.refused)
    return Explanation(
        name, "", "", kernels, calls, refused, cost_analysis(compilation), memory_analysis(compilation),
        dict(compilation.stages.seconds), facts, recompiled, schedule_text(compilation.schedule),
    )  # fmt: skip


def difference(function: Callable[..., Any], old: Any, new: Any) -> str:
    """What differs between the keys of two calls, as the user would say it."""
    (old_key, old_config), (new_key, new_config) = old, new
    if old_config != new_config:
        return "the options of thermit"
    if old_key[0] != new_key[0]:
        return "the state of torch (grad mode, default dtype, autocast)"
    names = _names(function)
    for i, (a, b) in enumerate(zip(old_key[3], new_key[3], strict=False)):
        if a != b:
            what = f"{a} -> {b}" if str(a) != str(b) else _hidden(a, b)
            return f"tensor {names[i] if i < len(names) else i}: {what}"
    if old_key[:3] != new_key[:3]:
        return "an argument that is not a tensor, or the structure of the arguments"
    return "which arguments share memory or are one object"


def _hidden(old: Any, new: Any) -> str:
    """What differs between two tensors that have one type and lie alike."""
    if (old.group, old.offset) != (new.group, new.offset) or (old.flags ^ new.flags) & 8:
        return "shares memory with other arguments in another way, or is one object with one of them"
    return "requires_grad, or being a parameter or an inference tensor"


def _names(function: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []
