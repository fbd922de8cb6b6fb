"""Statements over whole axes: reductions, norms, scans, layers, products.

Each method gives (text, whether it is rounded, names read); a text that starts with "!" is an in-place statement.
"""

from __future__ import annotations

import torch

from tests.fuzz.choices import Choices

SPACING = (("stride", 1, 3), ("padding", 0, 2), ("dilation", 1, 2))


class Sums(Choices):
    def do_intreduce(self):
        a = self.name(lambda t: not t.dtype.is_floating_point)
        if a is None:
            b = self.name(lambda t: t.numel() > 0)
            t = None if b is None else self.values[b]
            if t is None or not t.dim():
                return None
            d = self.axis(t)
            return (
                self.random.choice(
                    [f"{b}.amax({d}) + 0", f"{b}.amin({self.axes(t)}) + 0", f"{b}.argmax({d})", f"{b}.argmin({d})", f"{b}.max({d})[1]"]
                ),
                False,
                [b],
            )
        t = self.values[a]
        d, keep = self.axis(t), self.random.choice(["", ", keepdim=True"])
        ops = [f"{a}.sum({self.axes(t)}{keep})" if t.dim() else f"{a}.sum()", f"{a}.any()", f"{a}.all()", f"{a}.prod()"]
        if t.dim():
            ops += [f"{a}.cumsum({d})", f"{a}.any({d}{keep})", f"{a}.all({d})", f"{a}.count_nonzero({d})"]
        return self.random.choice(ops), False, [a]

    def do_reduce(self):
        a = self.name(lambda t: t.dtype.is_floating_point and t.numel() > 1)
        if a is None:
            return None
        t, keep = self.values[a], self.random.choice(["", ", keepdim=True"])
        d, axes = self.axis(t), self.axes(t)
        ops = [
            f"{a}.sum({axes}{keep})",
            f"{a}.mean({axes}{keep})",
            f"{a}.amax({axes}{keep})",
            f"{a}.sum()",
            f"{a}.mean()",
            f"torch.logsumexp({a}, {axes}{keep})",
            f"{a}.norm()",
            f"{a}.amin({d})",
            f"torch.linalg.vector_norm({a}, 2, {d})",
        ]
        if t.shape[d] > 1:
            ops += [f"{a}.var({d}{keep})", f"{a}.std({d}, correction=0)", f"torch.var_mean({a}, {d})[0]"]
        return self.random.choice(ops), True, [a]

    def do_norm(self):
        a = self.name(lambda t: t.dtype.is_floating_point and t.dim() > 0 and t.numel() > 0)
        if a is None:
            return None
        d = self.axis(self.values[a])
        n = self.values[a].shape[-1]
        return (
            self.random.choice(
                [f"F.softmax({a}, {d})", f"F.log_softmax({a}, {d})", f"F.layer_norm({a}, ({n},))", f"F.rms_norm({a}, ({n},))", f"F.softmin({a}, {d})"]
            ),
            True,
            [a],
        )

    def do_cumsum(self):
        a = self.name(lambda t: t.dtype.is_floating_point and t.dim() > 0)
        return None if a is None else (f"{a}.cumsum({self.axis(self.values[a])})", True, [a])

    def do_layer(self):
        """Norms over channels, and products."""
        a = self.name(lambda t: t.dtype.is_floating_point and t.dim() >= 2 and t.numel() > 0)
        if a is None:
            return None
        t, r = self.values[a], self.random
        c = t.shape[1]
        groups = r.choice([g for g in range(1, c + 1) if c % g == 0][:3])
        w = f"torch.arange(1.0, 1.0 + {c}, dtype={a}.dtype) / {c}"
        ops = [
            f"F.group_norm({a}, {groups})",
            f"F.group_norm({a}, {groups}, {w}, {w})",
            f"F.batch_norm({a}, {w}, {w}, training=False)",
            f"F.normalize({a}, dim=1)",
            f"F.cosine_similarity({a}, {a} * 0.5 + 1, dim=-1)",
        ]
        spread = t.double().movedim(1, 0).flatten(1).var(1, correction=0).min()
        if spread > 1e-2:  # of nearly equal values a norm shows the rounding of their mean
            ops += [f"F.batch_norm({a}, None, None, training=True)", f"F.batch_norm({a}, {w}, {w}, training=True)"]
        if t.dim() == 2:
            ops += [
                f"{a} @ {a}.mT",
                f"F.linear({a}, {a})",
                f"torch.addmm({a} @ {a}.mT, {a}, {a}.mT)",
                f"F.cross_entropy({a}, torch.arange({a}.shape[0]) % {c})",
            ]
        elif t.dim() == 3:
            within = t.double().var(-1, correction=0).min() if t.shape[-1] > 1 else 0.0
            ops += [f"F.instance_norm({a})"] if within > 1e-2 else []
            ops += [f"{a} @ {a}.mT", f"torch.einsum('bij,bkj->bik', {a}, {a})"]
        return r.choice(ops), True, [a]

    def do_product(self):
        """Matrix products with what stands before and after them."""
        a = self.name(lambda t: t.dtype.is_floating_point and t.dim() >= 2 and t.numel() > 0)
        if a is None:
            return None
        r, (m, k) = self.random, self.values[a].shape[-2:]
        n = r.choice([1, 2, 5, 8, 17, 40])
        w = f"torch.arange(1.0, 1.0 + {n * k}, dtype={a}.dtype).sin().reshape({n}, {k})"
        ops = [
            f"F.linear({a}, {w})",
            f"F.gelu(F.linear({a}, {w}, torch.arange(1.0, 1.0 + {n}, dtype={a}.dtype) / {n})) * 2",
            f"({a} @ {w}.mT).mT + 1",
            f"{a}.mT @ ({a} * 0.5 + 1)",
            f"({a} @ {w}.mT) - ({a} @ {w}.mT).mean(-1, keepdim=True)",
            f"F.softmax({a} @ {a}.mT * 0.125, -1) @ {a}",
            f"({a} @ {w}.mT) * ({a}.sum(-1, keepdim=True) * 0.25) + {a}[..., :1]",
            f"torch.tanh({a} @ {w}.mT) @ {w}",
            f"torch.einsum('...mk,nk->n...m', {a}, {w})",
            f"({a}[..., 0, :] @ {w}.mT).relu()",
        ]
        if self.values[a].dim() == 2:
            ops += [f"torch.addmm({a}[:, :1], {a}, {w}.mT, beta=0.5, alpha=-0.25)", f"torch.mv({a}, {a}[0] * 0.5)", f"{a}[0] @ {w}.mT"]
        if m == k:
            ops += [f"torch.cat([{a} @ {a}, {a}], -1)", f"{a} @ {a} + {a} @ {a}.mT"]
        return r.choice(ops), True, [a]

    def do_convolution(self):
        """Convolutions of one to three axes with what stands behind them; groups, strides, dilations, padding."""
        a = self.name(lambda t: t.dtype.is_floating_point and 3 <= t.dim() <= 5 and t.numel() > 0)
        if a is None:
            return None
        t, r = self.values[a], self.random
        axes, channels = t.dim() - 2, t.shape[1]
        groups = r.choice([g for g in (1, 1, 2, 3, channels) if channels % g == 0])
        made = groups * r.choice([1, 2, 3, 9])
        size = [r.randint(1, 3) for _ in range(axes)]
        count = made * (channels // groups) * torch.Size(size).numel()
        w = f"torch.arange(1.0, 1.0 + {count}, dtype={a}.dtype).sin().reshape({[made, channels // groups, *size]})"
        how = ", ".join(f"{word}={[r.randint(low, high) for _ in range(axes)]}" for word, low, high in SPACING if r.random() < 0.5)
        call = f"F.conv{axes}d({a}, {w}, torch.arange(1.0, 1.0 + {made}, dtype={a}.dtype) / {made}, groups={groups}{', ' * bool(how)}{how})"
        scale = f"torch.arange(1.0, 1.0 + {made}, dtype={a}.dtype) / {made}"
        ops = [
            call,
            f"{call}.relu() * 2",
            f"F.batch_norm({call}, {scale}, {scale}, {scale}, {scale})",
            f"F.silu({call}).transpose(1, -1)",
            f"{call}.mean({tuple(range(2, axes + 2))})",
            f"{call} + {a}[:, :1].mean()",
        ]
        return r.choice(ops), True, [a]

    def do_attention(self):
        a = self.name(lambda t: t.dtype.is_floating_point and t.dim() >= 3 and t.numel() > 0)
        if a is None:
            return None
        r, (m, k) = self.random, self.values[a].shape[-2:]
        few = r.randint(1, m)
        mask = f"(torch.arange({m * m}) % {r.randint(2, 4)} > 0).reshape({m}, {m}).fill_diagonal_(True)"
        ops = [
            f"F.scaled_dot_product_attention({a}, {a} * 0.5, {a} + 1)",
            f"F.scaled_dot_product_attention({a}, {a}, {a}, is_causal=True)",
            f"F.scaled_dot_product_attention({a}[..., :{few}, :], {a}, {a}.tanh(), scale=0.3)",
            f"F.scaled_dot_product_attention({a}, {a}, {a} * 2, attn_mask={mask})",
            f"F.softmax(({a} @ {a}.mT / {k}).masked_fill(~{mask}, -1e9), -1) @ ({a} * 0.5)",
            f"F.softmax({a} @ {a}[..., :{few}, :].mT * 0.25, -1) @ {a}[..., :{few}, :].sin()",
            f"F.scaled_dot_product_attention({a}.transpose(0, -3), {a}.transpose(0, -3), {a}.transpose(0, -3)).transpose(0, -3).flatten(-2)",
        ]
        return r.choice(ops), True, [a]

    def do_chain(self):
        """A norm along one axis into a reduction over another."""
        a = self.name(lambda t: t.dtype.is_floating_point and t.dim() >= 2 and t.numel() > 1)
        if a is None:
            return None
        d, e = self.axis(self.values[a]), self.axis(self.values[a])
        return (
            self.random.choice(
                [
                    f"F.softmax({a}, {d}).sum({e})",
                    f"(F.softmax({a}, {d}) * {a}).amax({e})",
                    f"({a} - {a}.mean({d}, keepdim=True)).square().mean({e})",
                    f"({a} / ({a}.abs().sum({d}, keepdim=True) + 1)).cumsum({e})",
                    f"{a}.cumsum({d}).sum({e})",
                    f"({a}.logsumexp({d}, keepdim=True) - {a}).sum({e})",
                    f"F.softmax(F.softmax({a}, {d}), {e})",
                ]
            ),
            True,
            [a],
        )
