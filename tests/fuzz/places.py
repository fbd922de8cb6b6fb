"""Statements that move elements: views, joins, indices, scatters, windows; and tensors made out of nothing.

Each method gives (text, whether it is rounded, names read); a text that starts with "!" is an in-place statement.
"""

from __future__ import annotations

import torch

from tests.fuzz.choices import Choices


class Places(Choices):
    def do_view(self):
        a = self.name()
        t, r = self.values[a], self.random
        d = self.axis(t)
        n = t.shape[d] if t.dim() else 1
        order = list(range(t.dim()))
        r.shuffle(order)
        lo = r.randint(0, n)
        ops = [
            f"{a}.unsqueeze({r.randint(0, t.dim())})",
            f"{a}.squeeze()",
            f"{a}.reshape(-1)",
            f"{a}.permute({order})",
            f"{a}.contiguous()",
            f"{a}.clone()",
            f"{a}.detach()",
        ]
        if t.dim():
            ops += [
                f"{a}.select({d}, {r.randrange(n) if n else 0})",
                f"{a}.narrow({d}, {lo}, {n - lo})",
                f"{a}.flip({d})",
                f"{a}.roll({r.randint(-3, 3)}, {d})",
                f"{a}[::{r.randint(1, 3)}]",
                f"{a}[{r.randint(-2, 2)}:]",
                f"{a}[..., :-1]",
                f"{a}.transpose(0, {d})",
                f"{a}.unbind({d})[0]",
                f"{a}.chunk(2, {d})[-1]",
                f"{a}.repeat_interleave(2, {d})",
                f"{a}.unfold({d}, {min(2, n)}, 1)",
                f"F.pad({a}, (1, 2))",
                f"{a}.movedim({d}, 0)",
                f"{a}.tile(2)",
            ]
        if t.dim() > 1:
            ops += [f"{a}.flatten(0, 1)", f"{a}.mT", f"{a}.diagonal()", f"{a}.tril()", f"{a}.triu(1)", f"{a}.rot90()", f"F.pad({a}, (1, 0, -1, 2))"]
        return r.choice(ops), False, [a]

    def do_cat(self):
        a, b = self.name(), self.name()
        d = self.axis(self.values[a])
        return f"torch.{self.random.choice(['cat', 'stack'])}([{a}, {b}], {d})", False, [a, b]

    def do_index(self):
        a = self.name(lambda t: t.dim() > 0 and t.shape[0] > 0)
        if a is None:
            return None
        n, r = self.values[a].shape[0], self.random
        at = [r.randrange(-n, n) for _ in range(r.randint(1, 5))]
        up = [i % n for i in at]
        return (
            r.choice(
                [f"{a}[torch.tensor({at})]", f"{a}.index_select(0, torch.tensor({up}))", f"{a}[{at[0]}]", f"torch.take({a}, torch.tensor({up}))"]
            ),
            False,
            [a],
        )

    def do_scatter(self):
        a = self.name(lambda t: t.dim() > 0 and t.shape[0] > 0)
        if a is None:
            return None
        n, r = self.values[a].shape[0], self.random
        at = [r.randrange(n) for _ in range(r.randint(1, 4))]
        once = sorted(set(at))
        return (
            r.choice(
                [
                    f"{a}.index_fill(0, torch.tensor({at}), 1)",
                    f"{a}.index_add(0, torch.tensor({once}), {a}[:{len(once)}])",
                    f"{a}.index_copy(0, torch.tensor({once}), {a}[:{len(once)}])",
                    f"{a}.masked_fill({a} == {a}, 1)",
                ]
            ),
            False,
            [a],
        )

    def do_make(self):
        """A tensor out of nothing, of the size of another's axis."""
        a = self.name(lambda t: t.dim() > 0 and t.numel() > 0)
        if a is None:
            return None
        n = f"{a}.shape[{self.axis(self.values[a])}]"
        dtype = self.random.choice(["float32", "int64", "int32", "float64"])
        return (
            self.random.choice(
                [
                    f"torch.arange({n}, dtype=torch.{dtype})",
                    f"torch.arange(3, 3 + 2 * {n}, 2)",
                    f"torch.eye(min({n}, 40))",
                    f"torch.full_like({a}, 1)",
                    f"torch.zeros_like({a})",
                    f"torch.ones({n}, 2, dtype=torch.{dtype})",
                    f"{a}.new_full((3, {n}), 2)",
                    f"torch.tril(torch.ones(min({n}, 40), min({n}, 40)))",
                    f"torch.empty_like({a}).fill_(1)",
                ]
            ),
            False,
            [a],
        )

    def do_places(self):
        """Reads and writes at places that are data."""
        a = self.name(lambda t: t.dim() > 0 and t.numel() > 0)
        if a is None:
            return None
        t, exact = self.values[a], self.program.family == "exact"
        d = self.axis(t)
        place = f"(torch.ones_like({a}, dtype=torch.int64).cumsum({d}).flip({d}) - 1)"
        rows = [self.random.randrange(t.shape[0]) for _ in range(self.random.randint(1, 4))]
        up = f"torch.tensor({sorted(set(rows))})"
        ops = [
            f"{a}.gather({d}, {place})",
            f"{a}.gather({d}, {place} // 2)",
            f"{a}.scatter({d}, {place}, {a} * 1)",
            f"{a}.index_put(({up},), {a}[:{len(set(rows))}] + {a}[0])",
            f"torch.take_along_dim({a}, {place}, {d})",
            f"{a}[{up}, ..., -1]",
            f"F.embedding({place}.clamp(0, 1), torch.arange(8.0).view(2, 4))",
            f"{a}.scatter({d}, {place} // 2, 1)",
        ]
        if not t.dtype.is_floating_point or not exact:
            ops += [
                f"{a}.scatter_add({d}, {place} // 2, {a})",
                f"{a}.index_put((torch.tensor({rows}),), {a}[:1], accumulate=True)",
                f"{a}.index_add(0, torch.tensor({rows}), {a}[:1].expand({len(rows)}, *{a}.shape[1:]))",
            ]
        if t.dtype is torch.int64 and exact:
            ops.append(f"F.embedding({a} % 3, torch.arange(6).view(3, 2))")
        return self.random.choice(ops), not exact, [a]

    def do_window(self):
        """Windows over the last axes: pooling, nearest neighbours."""
        a = self.name(lambda t: t.dtype in (torch.float32, torch.float64) and 2 <= t.dim() <= 4 and t.numel() > 0)
        if a is None:
            return None
        t, r, exact = self.values[a], self.random, self.program.family == "exact"
        k, s = r.randint(1, 3), r.randint(1, 3)
        if t.dim() < 4:
            x = f"{a}[None]" if t.dim() == 2 else a
            ops = [
                f"F.max_pool1d({x}, {k}, {s}, padding={k // 2}) + 0",
                f"F.interpolate({x}, scale_factor={k})",
                f"F.interpolate({x}, size={s + 3})",
            ]
            ops += (
                []
                if exact
                else [f"F.avg_pool1d({x}, {k}, {s})", f"F.interpolate({x}, size={s + 3}, mode='linear')", f"F.adaptive_avg_pool1d({x}, {k})"]
            )
        else:
            ops = [
                f"F.max_pool2d({a}, {k}, {s}, padding={k // 2}) + 0",
                f"F.interpolate({a}, scale_factor={k})",
                f"F.interpolate({a}, size=({s + 3}, {k + 2}))",
                f"F.pixel_shuffle({a}.repeat(1, 4, 1, 1), 2)",
            ]
            ops += (
                []
                if exact
                else [
                    f"F.avg_pool2d({a}, {k}, {s})",
                    f"F.interpolate({a}, scale_factor=2, mode='bilinear')",
                    f"F.adaptive_avg_pool2d({a}, ({k}, {s}))",
                ]
            )
        return r.choice(ops), not exact, [a]

    def do_memory(self):
        """Views of views, as_strided, writes through them, `out=`: what depends on where elements lie."""
        a = self.name(lambda t: t.dim() > 0 and t.numel() > 1)
        if a is None:
            return None
        t, r = self.values[a], self.random
        d, e, n = self.axis(t), self.axis(t), t.numel()
        m = r.randint(1, min(n, 6))
        k = r.randint(1, max(1, n // m))
        views = [
            f"{a}.transpose({d}, {e}).unsqueeze(0)[..., ::2]",
            f"{a}.reshape(-1)[{r.randrange(n)}:].unsqueeze(-1)",
            f"{a}.contiguous().as_strided(({m}, {k}), ({k}, 1))",
            f"{a}.clone(memory_format=torch.contiguous_format).as_strided(({m}, {k}), (1, {m}))",
            f"{a}.movedim({d}, -1).split({r.randint(1, 3)}, -1)[0].squeeze()",
            f"{a}.narrow({d}, 0, {r.randint(0, t.shape[d])})",
            f"torch.add({a}, {a}, out=torch.empty_like({a}))",
            f"torch.mul(input={a}, other=2, out=torch.zeros({list(t.shape)}, dtype={t.dtype}))",
            f"{a}.view({list(t.shape)}).expand(2, *{a}.shape)",
            f"torch.concat(tensors=({a}, {a}[:1]), dim=0)",
        ]
        writes = [
            f"{a}.transpose({d}, {e})[0].add_(1)",
            f"{a}.unsqueeze(1)[::2].squeeze(1).fill_(2)",
            f"{a}.movedim({d}, 0)[-1:].copy_({a}.movedim({d}, 0)[:1].clone())",
            f"torch.sub({a}, {a}, out={a})",
        ]
        if a in self.fixed or t.dtype == torch.bool or r.random() < 0.6:
            return r.choice(views), False, [a]
        return "!" + r.choice(writes), False, [a]
