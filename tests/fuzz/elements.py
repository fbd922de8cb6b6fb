"""Statements that work element by element: arithmetic, comparisons, selection, casts, mathematics; in place too.

Each method gives (text, whether it is rounded, names read); a text that starts with "!" is an in-place statement.
"""

from __future__ import annotations

import torch

from tests.fuzz.choices import EXACT_DTYPES, Choices


class Elements(Choices):
    def do_binary(self):
        a, b = self.name(), self.name()
        op = self.random.choice(["+", "-", "*", "/", "//", "%"] if self.program.family == "exact" else ["+", "-", "*"])
        if op in ("//", "%", "/") and not (self.values[a].dtype.is_floating_point or self.values[b].dtype.is_floating_point):
            return f"{a} {op} ({b} * 0 + 3)", False, [a, b]
        if op == "%":
            return f"{a} % torch.where(({a} / {b}).isinf() & ({b} != 0), 1, {b})", False, [a, b]
        return f"{a} {op} {b}", False, [a, b]

    def do_scalar(self):
        a = self.name()
        c = self.scalar(self.values[a])
        op = self.random.choice(["+", "-", "*", "/"] if self.values[a].dtype.is_floating_point else ["+", "-", "*"])
        if self.random.random() < 0.25 and op != "/":
            return f"{c} {op} {a}", False, [a]
        return f"{a} {op} {c if op != '/' else '3'}", False, [a]

    def do_unary(self):
        a = self.name()
        t = self.values[a]
        if t.dtype == torch.bool:
            return f"~{a}", False, [a]
        ops = ["-{}", "{}.abs()", "{}.square()", "torch.relu({}) + 0", "{}.neg().clone()"]
        if not t.dtype.is_floating_point:
            ops += ["~{}", "{}.bitwise_and(3)", "{}.sign()"]
        elif self.program.family == "exact":
            ops += [
                "{}.floor()",
                "{}.ceil()",
                "{}.trunc()",
                "{}.round()",
                "{}.frac()",
                "{}.sign()",
                "{}.isnan()",
                "{}.isinf()",
                "{}.reciprocal()",
                "torch.nan_to_num({})",
                "F.hardtanh({})",
                "F.leaky_relu({})",
                "torch.signbit({0}) & ({0} == {0})",
            ]
        return self.random.choice(ops).format(a), False, [a]

    def do_where(self):
        c, a, b = self.name(lambda t: t.dtype == torch.bool), self.name(), self.name()
        if c is None:
            return None
        return f"torch.where({c}, {a}, {self.random.choice([b, self.scalar(self.values[a])])})", False, [a, b, c]

    def do_compare(self):
        a = self.name(smooth_only=True)
        b = self.name(smooth_only=True)
        if a is None or b is None:
            return None
        return f"{a} {self.random.choice(['<', '<=', '>', '>=', '==', '!='])} {self.random.choice([b, self.scalar(self.values[a])])}", False, [a, b]

    def do_clamp(self):
        a = self.name(lambda t: t.dtype != torch.bool)
        return None if a is None else (self.random.choice([f"{a}.clamp(-1, 2)", f"{a}.clamp(min=0) + 0", f"{a}.clamp_max(3)"]), False, [a])

    def do_minmax(self):
        a, b = self.name(), self.name()
        # + 0: of 0.0 and -0.0 eager gives one or the other, by the element's position
        return f"torch.{self.random.choice(['maximum', 'minimum'])}({a}, {b}) + 0", False, [a, b]

    def do_cast(self):
        exact = self.program.family == "exact"
        a = self.name(smooth_only=True) if exact else self.name(lambda t: not t.dtype.is_floating_point)
        if a is None:
            return None
        target = self.random.choice(EXACT_DTYPES if exact else ["float32", "float64"])
        t = self.values[a]
        if t.dtype.is_floating_point and target not in ("float32", "float64", "bfloat16", "float16", "bool"):
            return f"{a}.nan_to_num(0, 9, -9).clamp(0, 100).to(torch.{target})", False, [a]
        return f"{a}.to(torch.{target})", False, [a]

    def do_inplace(self):
        a = self.name(lambda t: t.dtype != torch.bool)
        if a is None or a in self.fixed:
            return None
        t, r = self.values[a], self.random
        b = self.name(lambda u: torch.promote_types(u.dtype, t.dtype) == t.dtype) or a
        ops = [f"{a}.mul_(2)", f"{a}.add_({b})", f"{a}.copy_({b})", f"{a}.neg_()", f"{a}.zero_()", f"{a}.clamp_(-3, 3)", f"{a} += 1", f"{a}.fill_(2)"]
        if t.dim() and t.shape[0] > 1:
            ops += [
                f"{a}[1:] = 3",
                f"{a}[::2].add_(1)",
                f"{a}[0] = {a}[1]",
                f"{a}.select(-1, 0).mul_(3)",
                f"{a}[:-1] -= {a}[1:].clone()",
                f"{a}.unsqueeze(0).transpose(0, 1)[1:].sub_(1)",
            ]
        if t.dim() > 1:
            ops += [f"{a}.t().add_(1)" if t.dim() == 2 else f"{a}.mT.add_(1)", f"{a}.diagonal().fill_(1)", f"{a}[..., 1:, 0] = 0"]
        return "!" + r.choice(ops), b in self.rough, [a, b]

    def do_math(self):
        a = self.name(lambda t: t.dtype.is_floating_point)
        ops = [
            "{}.exp()",
            "{}.sin()",
            "{}.cos()",
            "{}.tanh()",
            "torch.sigmoid({})",
            "{}.erf()",
            "({}.abs() + 0.1).log()",
            "({}.abs() + 0.1).sqrt()",
            "({}.abs() + 0.1).rsqrt()",
            "F.gelu({})",
            "F.silu({})",
            "F.softplus({})",
            "{}.expm1()",
            "({}.abs()).log1p()",
            "{}.atan()",
            "F.elu({})",
            "F.mish({})",
            "{}.sinh()",
            "({}.abs() + 0.5).pow(1.3)",
            "{}.pow(2)",
            "{}.pow(3)",
            "F.gelu({}, approximate='tanh')",
            "{}.erfc()",
            "{}.asinh()",
            "F.logsigmoid({})",
        ]
        return None if a is None else (self.random.choice(ops).format(a), True, [a])

    def do_math2(self):
        a, b = (self.name(lambda t: t.dtype.is_floating_point) for _ in range(2))
        if a is None or b is None:
            return None
        return (
            self.random.choice(
                [
                    f"torch.atan2({a}, {b}.abs() + 0.5)",
                    f"torch.hypot({a}, {b})",
                    f"{a} / ({b}.abs() + 0.5)",
                    f"torch.lerp({a}, {a} * 2, 0.3)",
                    f"torch.addcmul({a}, {a}, {a}, value=0.5)",
                    f"torch.logaddexp({a}, {b})",
                    f"F.mse_loss({a}, {a} * 0.5)",
                ]
            ),
            True,
            [a, b],
        )
