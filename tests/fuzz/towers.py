"""Chains of views in one statement: axes spread, split, put in another order, joined, turned round, cut, with a little arithmetic between.

Single views seldom meet in the order in which index arithmetic goes wrong: parts of an axis of which some are not read, remainders of
what is negative, quotients by sizes that do not divide one another.
"""

from __future__ import annotations

from random import Random

import torch

from tests.fuzz.choices import Choices


def factors(n: int, r: Random) -> list[int]:
    """`n` as a product of two to four random factors."""
    made = [n]
    for _ in range(r.randint(1, 3)):
        i = r.randrange(len(made))
        divisors = [d for d in range(2, made[i]) if made[i] % d == 0]
        if divisors:
            d = r.choice(divisors)
            made[i : i + 1] = [d, made[i] // d]
    return made


class Towers(Choices):
    def do_tower(self):
        a = self.name(lambda t: 0 < t.numel() <= 1000 and t.dim() > 0)
        if a is None:
            return None
        text, value = a, self.values[a]
        for _ in range(self.random.randint(3, 8)):
            step = self.random.choice([self.spread, self.split, self.split, self.reorder, self.join, self.cut, self.touch, self.touch])
            longer = step(value, self.random)
            made = eval(longer.format("value"), {"torch": torch, "F": torch.nn.functional, "value": value})
            if 0 < made.numel() <= self.limit and made.dim() <= 7:
                text, value = longer.format(f"({text})"), made
        return f"{text} + 1" if value.dtype != torch.bool else f"~({text})", False, [a]

    def spread(self, t: torch.Tensor, r: Random) -> str:
        """Several elements out of one."""
        if not t.dim():
            return "{}.expand(2, 3)"
        d, shape = r.randrange(t.dim()), list(t.shape)
        wide = [*shape[: d + 1], r.choice([2, 3, 6]), *shape[d + 1 :]]
        ops = [
            f"{{}}.unsqueeze({d + 1}).expand({wide})",
            f"{{}}.unsqueeze({d + 1}).expand({wide}).flatten({d}, {d + 1})",
            f"{{}}.unsqueeze({d}).expand({[*shape[:d], wide[d + 1], *shape[d:]]}).flatten({d}, {d + 1})",
            f"{{}}.repeat_interleave({r.randint(2, 3)}, {d})",
            f"{{}}.tile({r.randint(2, 3)})",
            f"{{}}.unfold({d}, {min(shape[d], r.randint(1, 4))}, {r.randint(1, 3)})",
        ]
        if t.dim() in (3, 4) and t.dtype in (torch.float32, torch.float64, torch.uint8):
            ops.append(f"F.interpolate({{}}, scale_factor={r.randint(2, 3)})")
        return r.choice(ops)

    def split(self, t: torch.Tensor, r: Random) -> str:
        """Axes divided, one or all."""
        if not t.dim():
            return "{}.reshape(1, 1)"
        if r.random() < 0.3:
            return f"{{}}.reshape({factors(t.numel(), r)})"
        d = r.randrange(t.dim())
        return f"{{}}.reshape({[*t.shape[:d], *factors(t.shape[d], r), *t.shape[d + 1 :]]})"

    def reorder(self, t: torch.Tensor, r: Random) -> str:
        return f"{{}}.permute({r.sample(range(t.dim()), t.dim())})"

    def join(self, t: torch.Tensor, r: Random) -> str:
        """Axes made one; the tensor beside another form of itself."""
        if not t.dim():
            return "torch.stack([{0}, {0}])"
        d, e = sorted((r.randrange(t.dim()), r.randrange(t.dim())))
        other = r.choice(["{0}", f"{{0}}.flip({d})", f"{{0}}.roll(1, {d})", f"{{0}}.narrow({d}, 0, {max(1, t.shape[d] - 1)})"])
        return r.choice([f"{{}}.flatten({d}, {e})", f"torch.cat([{{0}}, {other}], {d})", f"torch.cat([{other}, {{0}}], {d})"])

    def cut(self, t: torch.Tensor, r: Random) -> str:
        """Turned round, shifted, sliced, padded."""
        if not t.dim():
            return "{}.unsqueeze(0)"
        d = r.randrange(t.dim())
        n = t.shape[d]
        lo = r.randrange(n)
        before = ":, " * d
        ops = [
            f"{{}}.flip({d})",
            f"{{}}.flip({list(range(d, t.dim()))})",
            f"{{}}.roll({r.randint(-3, 3)}, {d})",
            f"{{}}[{before}{lo}:{n}:{r.randint(1, 3)}]",
            f"{{}}[{before}:{max(1, n - 1)}]",
            f"{{}}.select({d}, {lo})",
            f"{{}}.index_select({d}, torch.tensor({[r.randrange(n) for _ in range(r.randint(1, 4))]}))",
        ]
        if t.shape[-1] > 1:
            ops += [f"F.pad({{}}, ({r.randint(0, 2)}, {r.randint(0, 2)}))", "F.pad({}, (1, -1))"]
        if t.shape[-1] > 2 and t.dim() in (2, 3) and t.dtype in (torch.float32, torch.float64):
            ops += [f"F.pad({{}}, (1, 2), mode='{r.choice(['reflect', 'replicate', 'circular'])}')"]
        return r.choice(ops)

    def touch(self, t: torch.Tensor, r: Random) -> str:
        """Arithmetic, so that what follows reads a value and not an input; a copy."""
        if t.dtype == torch.bool:
            return r.choice(["~{}", "({0} | ~{0})", "{}.clone()"])
        last = f"torch.arange({t.shape[-1]}, dtype={t.dtype})" if t.dim() and t.shape[-1] < 100 else "2"
        return r.choice(["({} + 3)", "({} * 2)", "{}.contiguous()", f"({{}} + {last})"])
