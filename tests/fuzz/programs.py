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
from dataclasses import dataclass, field

import torch

SPECIAL = [0.0, -0.0, 1.0, -1.0, float("inf"), -float("inf"), float("nan"), 1e-45, -1e-45, 1e-38, 3.4e38, -3.4e38, 0.5, 2.0, 1.5, -2.5, 7.0]
EXACT_DTYPES = ["float32", "float64", "int64", "int32", "uint8", "int8", "int16", "bool", "bfloat16", "float16"]
SMOOTH_DTYPES = ["float32", "float32", "float64"]
SIZES = [1, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33]
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


class Grower:
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

    # ------------------------------------------------------------------ choices
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

    # ------------------------------------------------------------------ candidates
    def candidate(self) -> tuple[str | None, str, bool, list[str]] | None:
        """(new name or None for an in-place statement, text, result is rough, names read)."""
        r, exact = self.random, self.program.family == "exact"
        kinds = ["binary", "binary", "binary", "scalar", "unary", "view", "view", "where", "compare", "inplace", "cat", "cast", "index", "clamp"]
        kinds += ["make", "places", "window"]
        kinds += (
            ["intreduce", "minmax", "scatter"]
            if exact
            else ["math", "math", "math", "reduce", "reduce", "norm", "math2", "minmax", "cumsum", "layer", "chain"]
        )
        return getattr(self, "do_" + r.choice(kinds))()

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
            # clone: without gradients eager has another kernel for max_pool1d, whose result is contiguous; known and open
            laid = f"{x}.clone(memory_format=torch.contiguous_format)"
            ops = [
                f"F.max_pool1d({laid}, {k}, {s}, padding={k // 2}) + 0",
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
