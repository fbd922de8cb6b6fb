"""A random program as data, its arguments, and the choices that growing one makes: names, numbers, axes."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch

SPECIAL = [0.0, -0.0, 1.0, -1.0, float("inf"), -float("inf"), float("nan"), 1e-45, -1e-45, 1e-38, 3.4e38, -3.4e38, 0.5, 2.0, 1.5, -2.5, 7.0]
EXACT_DTYPES = ["float32", "float64", "int64", "int32", "uint8", "int8", "int16", "bool", "bfloat16", "float16"]
SMOOTH_DTYPES = ["float32", "float32", "float64"]
SIZES = [1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 7, 7, 8, 8, 9, 9, 15, 15, 16, 16, 17, 17, 31, 31, 33, 0]
LIMIT = 3000  # elements of one value
LARGE = (2, 3, 8, 50, 64, 300, 1000, 1024, 4099)  # sizes of the programs in which threads, strips and blocks are at work
LARGE_LIMIT = 2_000_000
FORMS = ("plain", "plain", "plain", "keyword", "list")
TAME = 1e4  # a smooth program keeps its values below this


@dataclass
class Program:
    """`inputs`: (shape, dtype, layout) of each argument; `lines` the body; `results` the names returned."""

    family: str
    inputs: list[tuple[tuple[int, ...], str, str]]
    seed: int
    lines: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    form: str = "plain"
    large: bool = False

    @property
    def source(self) -> str:
        args = ", ".join(f"x{i}" for i in range(len(self.inputs)))
        head = ["def f(xs):", f"    {args}, = xs"] if self.form == "list" else [f"def f({args}):"]
        return "\n".join([*head, *("    " + line for line in self.lines), f"    return ({', '.join(self.results)},)", ""])

    def function(self):
        scope = {"torch": torch, "F": torch.nn.functional}
        exec(compile(self.source, f"<program {self.family} {self.seed}>", "exec"), scope)
        return scope["f"]

    def arguments(self, draw: int) -> list[torch.Tensor]:
        """Fresh arguments; other values for each `draw`.  Layout "same": the first argument once more; "shifted": it from its second row on."""
        generator = torch.Generator().manual_seed(self.seed * 7919 + draw)
        made: list[torch.Tensor] = []
        for shape, dtype, layout in self.inputs:
            if layout == "same":
                made.append(made[0])
            elif layout == "shifted":
                made.append(made[0][1:])
            else:
                made.append(make(shape, dtype, layout, self.family, generator))
        return made

    def call(self, function, arguments: list[torch.Tensor]):
        if self.form == "list":
            return function(list(arguments))
        if self.form == "keyword":
            return function(*arguments[:1], **{f"x{i}": t for i, t in enumerate(arguments) if i})
        return function(*arguments)


def make(shape, dtype_name, layout, family, generator) -> torch.Tensor:
    dtype = getattr(torch, dtype_name)
    stored = tuple(reversed(shape)) if layout == "transposed" else shape
    if layout == "strided" and shape:
        stored = (*shape[:-1], shape[-1] * 2)
    if dtype == torch.bool:
        t = torch.randint(0, 2, stored, generator=generator).bool()
    elif not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        t = torch.randint(max(info.min, -9), min(info.max, 10), stored, generator=generator).to(dtype)
        edge = torch.rand(stored, generator=generator)
        t = torch.where(edge < 0.05, torch.tensor(info.max, dtype=dtype), torch.where(edge > 0.95, torch.tensor(info.min, dtype=dtype), t))
    elif family == "smooth":
        t = torch.rand(stored, generator=generator, dtype=torch.float64).mul(3).sub(1.5).to(dtype)
    else:
        t = torch.randn(stored, generator=generator, dtype=torch.float64).mul(4).to(dtype)
        pick = torch.randint(0, len(SPECIAL), stored, generator=generator)
        special = torch.tensor(SPECIAL, dtype=torch.float64)[pick].to(dtype)
        t = torch.where(torch.rand(stored, generator=generator) < 0.3, special, t)
    if layout == "transposed":
        t = t.permute(tuple(reversed(range(t.dim()))))
    elif layout == "strided" and shape:
        t = t[..., ::2]
    elif layout == "expanded" and len(shape) > 1:
        t = t[:1].expand(shape)
    return t


class Choices:
    """What a program grows from: each name's value (eager), and which names are rounded ("rough")."""

    program: Program
    random: random.Random
    limit: int
    values: dict[str, torch.Tensor]
    rough: set[str]
    fixed: set[str]

    def name(self, test=lambda t: True, smooth_only=False) -> str | None:
        names = [n for n, t in self.values.items() if test(t) and not (smooth_only and n in self.rough)]
        if not names:
            return None
        return names[-1] if self.random.random() < 0.4 else self.random.choice(names)

    def scalar(self, t: torch.Tensor) -> str:
        r = self.random
        if t.dtype == torch.bool:
            return r.choice(["True", "False"])
        if not t.dtype.is_floating_point:
            return str(r.choice([0, 1, 2, 3, -1, 5, 7]))
        return r.choice(["0.5", "2", "-1.0", "3", "0.1", "1e-3", "-0.0", "1.7"])

    def axis(self, t: torch.Tensor) -> int:
        return self.random.randrange(-t.dim(), t.dim()) if t.dim() else 0

    def axes(self, t: torch.Tensor) -> str:
        if not t.dim():
            return "()"
        picked = sorted(self.random.sample(range(t.dim()), self.random.randint(1, t.dim())))
        return "(" + "".join(f"{a}, " for a in picked) + ")"
