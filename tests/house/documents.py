"""The generated pages of docs/: made from the tables and from a real compilation, so that they cannot go stale.

`python -m pytest tests/house/test_docs.py --update-golden` writes them.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import torch

import thermit
from tests.golden.targets import AVX2
from thermit import errors
from thermit.compiler import compile_graph
from thermit.config import Config
from thermit.ir.prims import PRIMS
from thermit.stages import Lowered

DOCS = Path(__file__).parents[2] / "docs"


def options() -> str:
    lines = [
        "# Options",
        "",
        "Of the process: `thermit.configure(name=value)`, or the environment variable at start (switches: `1` or `0`; stages: separated by commas).",
        "Of one function: keyword arguments of `jit` ([guide](guide.md)).",
        "",
        "| name | default | variable | a change compiles again | what it does |",
        "|---|---|---|---|---|",
    ]
    for f in dataclasses.fields(Config):
        m = f.metadata
        lines.append(f"| `{f.name}` | `{f.default!r}` | `{m['variable']}` | {'yes' if m['in_key'] else 'no'} | {m['doc']} |")
    lines += [
        "",
        "| of `jit` | default | what it does |",
        "|---|---|---|",
        "| `strict` | `False` | raise where a call could only run eagerly, instead of a warning and eager's result |",
        "| `max_variants` | `8` | so many compiled variants of one function, then a warning that names the guard that keeps changing, and eager |",
        '| `on_miss` | `"compile"` | what a call does that no compiled variant fits, once there is one (from the first call, or from `f.compile`): '
        '`"compile"`, `"eager"`, `"error"` (nothing compiles but by `f.compile`) |',
    ]
    return "\n".join(lines) + "\n"


def error_page() -> str:
    lines = [
        "# Errors",
        "",
        errors.__doc__.split("\n\n")[0],
        "",
        "Exceptions that eager raises pass through unchanged, with their type and message.",
        "",
    ]
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, Exception) and value.__module__ == errors.__name__:
            lines += [f"## {name}", "", *(line.strip() for line in value.__doc__.splitlines()), ""]
    return "\n".join(lines).rstrip() + "\n"


def primitives() -> str:
    lines = ["| primitive | args | kind | attrs | LLVM, float | LLVM, integer | facts |", "|---|---|---|---|---|---|---|"]
    for r in PRIMS.values():
        cells = (
            f"`{r.name}`",
            "any" if r.arity is None else r.arity,
            r.kind,
            r.attrs.__name__ if r.attrs else "",
            r.fp or "",
            r.integer or "",
            ", ".join(sorted(r.algebra)),
        )
        lines.append("| " + " | ".join(str(c) for c in cells) + " |")
    return "\n".join(lines) + "\n"


def example(x, y):
    return torch.softmax(torch.nn.functional.gelu(x * 2 + y.sin()), -1)


def stages() -> str:
    """Each stage's text for one example, for a processor with AVX2."""
    traced = thermit.jit(example).trace(torch.zeros(64, 256), torch.zeros(256))
    lowered = Lowered(traced, compile_graph(traced.graph, Config(), target=AVX2))
    texts = {name: lowered.as_text(name) for name in ("graph", "kernels", "loops")}
    return "\n".join(f"`as_text({name!r})`\n\n```\n{text.rstrip()}\n```\n" for name, text in texts.items())


GENERATED = {"stages": stages, "primitives": primitives}


def filled(text: str) -> str:
    """A page with what stands between `<!-- name -->` and `<!-- end -->` made anew."""

    def replace(match: re.Match[str]) -> str:
        return f"<!-- {match[1]} -->\n{GENERATED[match[1]]()}<!-- end -->"

    return re.sub(r"<!-- (\w+) -->\n.*?<!-- end -->", replace, text, flags=re.S)


def pages() -> dict[str, str]:
    return {
        "options.md": options(),
        "errors.md": error_page(),
        "ir.md": filled((DOCS / "ir.md").read_text()),
        "architecture.md": filled((DOCS / "architecture.md").read_text()),
    }
