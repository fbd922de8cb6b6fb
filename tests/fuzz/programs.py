"""Random programs of tensor operations, as Python source.

Two families.  "exact": arithmetic, comparisons, selection, casts, views, in-place writes, integer reductions, indexing, on special
values; every result must equal eager's bit for bit.  "smooth": mathematics, float reductions, norms, on tame values; results agree
to a tolerance, and what is rounded differently never feeds a step function.  The square root of float32 is not among the exact
ones: eager takes it from a vector library that is off by one ulp on some processors.  Where eager disagrees with itself (see
docs/numerics.md) a program looks at nothing that differs: the sign of nan, which of 0.0 and -0.0 is the largest, float32
remainders whose quotient overflows.

A program is grown statement by statement: each candidate runs eagerly, and is kept if it runs.  Arguments may be one tensor given
twice, or overlap; they come one by one, by keyword, or in a list.
"""

from __future__ import annotations

import contextlib
import random

import torch

from tests.fuzz.choices import EXACT_DTYPES, FORMS, LARGE, LARGE_LIMIT, LIMIT, SIZES, SMOOTH_DTYPES, TAME, Program
from tests.fuzz.elements import Elements
from tests.fuzz.places import Places
from tests.fuzz.rows import Rows
from tests.fuzz.sums import Sums
from tests.fuzz.towers import Towers

__all__ = ["Program", "program"]

# kinds of statements and how often each is tried
EVERY = {"binary": 3, "view": 2, "tower": 2, "row": 3} | dict.fromkeys(
    ["scalar", "unary", "where", "compare", "inplace", "cat", "cast", "index", "clamp", "make", "places", "window", "memory"], 1
)
EXACT = EVERY | {"intreduce": 1, "minmax": 1, "scatter": 1}
SMOOTH = (
    EVERY
    | {"math": 3, "reduce": 2, "convolution": 2}
    | dict.fromkeys(["norm", "math2", "minmax", "cumsum", "layer", "chain", "product", "attention"], 1)
)


class Grower(Elements, Places, Rows, Sums, Towers):
    """Grows one program; knows each name's value (eager), and which names are rounded ("rough")."""

    def __init__(self, family: str, seed: int) -> None:
        self.random = random.Random(f"{family}{seed}")
        r = self.random
        large = r.random() < 1 / 60
        self.limit = LARGE_LIMIT if large else LIMIT
        base = tuple(r.choice(LARGE if large else SIZES) for _ in range(r.choice([2, 2, 3] if large else [0, 1, 1, 2, 2, 2, 3, 4])))
        while torch.Size(base).numel() > self.limit:
            base = base[1:]
        inputs = []
        for _ in range(r.randint(1, 4)):
            shape = base
            how = r.random()
            if how < 0.2:
                shape = tuple(1 if r.random() < 0.5 else n for n in base)
            elif how < 0.3 and base:
                shape = base[r.randint(0, len(base)) :]
            elif how < 0.35:
                shape = ()
            layout = r.choice(["plain", "plain", "plain", "transposed", "strided", "expanded"])
            if inputs and r.random() < 0.08:
                first, dtype, how_laid = inputs[0]
                if how_laid != "expanded":
                    alias = r.choice(["same", "shifted"]) if first and first[0] > 1 else "same"
                    inputs.append((first if alias == "same" else (first[0] - 1, *first[1:]), dtype, alias))
                    continue
            inputs.append((shape, r.choice(EXACT_DTYPES if family == "exact" else SMOOTH_DTYPES), layout))
        self.program = Program(family, inputs, seed, form=r.choice(FORMS), large=large)
        self.values = {f"x{i}": t for i, t in enumerate(self.program.arguments(0))}
        self.rough: set[str] = set()
        self.fixed = {f"x{i}" for i, (_, _, layout) in enumerate(inputs) if layout == "expanded"}  # in-place writes overlap there

    # ------------------------------------------------------------------ candidates
    def candidate(self) -> tuple[str | None, str, bool, list[str]] | None:
        """(new name or None for an in-place statement, text, result is rough, names read)."""
        kinds = EXACT if self.program.family == "exact" else SMOOTH
        (kind,) = self.random.choices(list(kinds), list(kinds.values()))
        return getattr(self, "do_" + kind)()

    # ------------------------------------------------------------------ growing
    def grow(self, statements: int) -> Program:
        for _ in range(statements * 4):
            if len(self.program.lines) >= statements:
                break
            made = self.candidate()
            if made is not None:
                self.keep(*made)
        names = [n for n in self.values if not n.startswith("x")] or ["x0"]
        picked = {names[-1], *(n for n in names if self.random.random() < 0.3)}
        if self.random.random() < 0.1:
            picked.add(self.random.choice(list(self.values)))
        self.program.results = sorted(picked)
        return self.program

    def keep(self, text: str, rough: bool, read: list[str]) -> None:
        """Runs the candidate eagerly and keeps it if it runs and stays within bounds."""
        rough = rough or any(n in self.rough for n in read)
        inplace = text.startswith("!")
        name = read[0] if inplace else f"v{len(self.program.lines)}"
        line = text[1:] if inplace else f"{name} = {text}"
        scope = {"torch": torch, "F": torch.nn.functional, **self.values}
        before = {n: t.clone() for n, t in self.values.items()} if inplace else {}
        try:
            exec(line, scope)
        except Exception:
            self.restore(before)
            return
        value = scope[name]
        tame = self.program.family == "exact" or not value.dtype.is_floating_point or bool((value.abs() < TAME).all())
        if not isinstance(value, torch.Tensor) or value.numel() > self.limit or not tame:
            self.restore(before)
            return
        self.program.lines.append(line)
        self.values[name] = value
        if rough and inplace:  # any view of it is rough now
            storage = value.untyped_storage().data_ptr()
            self.rough |= {n for n, t in self.values.items() if t.untyped_storage().data_ptr() == storage}
        elif rough:
            self.rough.add(name)

    def restore(self, before: dict[str, torch.Tensor]) -> None:
        for n, t in before.items():
            with contextlib.suppress(RuntimeError):  # a view that overlaps itself was not written either
                self.values[n].copy_(t)


def program(family: str, seed: int) -> Program:
    grower = Grower(family, seed)
    long = 40 if grower.random.random() < 0.03 and not grower.program.large else 12
    return grower.grow(grower.random.randint(long // 2 if long > 12 else 1, 6 if grower.program.large else long))
