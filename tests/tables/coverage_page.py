"""Writes docs/coverage.md: of the overloads that PyTorch tags core and pointwise, plus core reductions, views and indexing,
which have a row of their own, and why the others have none.

    python tests/tables/coverage_page.py            writes the page
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import torch
from torch._ops import OpOverload

import thermit.aten
from thermit.aten.table import TABLE

PAGE = Path(__file__).parents[2] / "docs" / "coverage.md"
CORE, POINTWISE = torch.Tag.core, torch.Tag.pointwise

# Core overloads that are neither map, reduction, view nor indexing: a library call or no tensor at all.
ELSEWHERE = {
    "products and convolutions: rows for floating point (convolutions: float32, float64), others are called": ["mm", "bmm", "addmm", "convolution"],
    "called": ["convolution_backward"],
    "random, called so that PyTorch's generator is drawn from in order": ["rand", "randn", "randperm", "native_dropout"],
    "sorting and bags, called": ["sort", "topk", "_embedding_bag"],
    "complex operands or results: the whole call runs eagerly": ["_fft_r2c", "_fft_c2r"],
    "the result's shape or Python value depends on data": ["nonzero", "_local_scalar_dense"],
    "about sizes, not values: answered while tracing": ["sym_size", "sym_stride", "sym_numel", "sym_storage_offset", "sym_is_contiguous", "resize_"],
}
DECOMPOSED = "PyTorch's decomposition consists of overloads with rows"
VIEW = "a view, made by the storage cells of capture"
REASONS = {
    "as_strided": VIEW,
    "_native_batch_norm_legit": "writes its running statistics: the functional form has a row",
    "_pdist_forward": "called",
    "grid_sampler_2d": "called",
    "col2im": "called",
    "_adaptive_avg_pool2d_backward": "called",
    "avg_pool2d_backward": "called",
    "max_pool2d_with_indices_backward": "called",
}
SERIES = "called: a special function (series, iteration or table) without a primitive"
SPECIAL = ("special_", "polygamma", "igamma", "digamma", "lgamma", "mvlgamma", "erfinv", "i0", "gcd", "lcm")


def overloads() -> Iterator[OpOverload]:
    """Every functional overload of ATen: in-place and out= forms follow from these."""
    for schema in torch._C._jit_get_all_schemas():
        if not schema.name.startswith("aten::"):
            continue
        op = getattr(getattr(torch.ops.aten, schema.name[6:], None), schema.overload_name or "default", None)
        if isinstance(op, OpOverload) and not any(a.is_out or (a.alias_info is not None and a.alias_info.is_write) for a in schema.arguments):
            yield op


def is_composite(op: OpOverload) -> bool:
    """Decomposed by PyTorch itself before a row is asked."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd") and op not in TABLE


def reason(op: OpOverload) -> str:
    name = op.overloadpacket.__name__
    if name in REASONS:
        return REASONS[name]
    if is_composite(op):
        return DECOMPOSED
    return SERIES if name.startswith(SPECIAL) else "called"


def is_native(op: OpOverload) -> bool:
    """Whether no call remains of it."""
    return op in TABLE or reason(op) in (DECOMPOSED, VIEW)


def counted() -> tuple[list[OpOverload], list[OpOverload], list[OpOverload]]:
    """Core and pointwise; core that is a reduction, view, indexing or the like; pointwise outside core."""
    elsewhere = {name for names in ELSEWHERE.values() for name in names}
    every = list(overloads())
    core = [op for op in every if CORE in op.tags and op.overloadpacket.__name__ not in elsewhere]
    maps = [op for op in core if POINTWISE in op.tags]
    others = [op for op in core if POINTWISE not in op.tags]
    return maps, others, [op for op in every if POINTWISE in op.tags and CORE not in op.tags and not is_composite(op)]


def page() -> str:
    maps, others, further = counted()
    lines = [
        "# What is lowered natively",
        "",
        "Made by `python tests/tables/coverage_page.py` (a test keeps it current). Natively lowered is what has a row in `thermit/aten/`;",
        "in-place and `out=` forms follow from their functional form. What has no row is decomposed by PyTorch or called at full speed.",
        "A call (of a jitted function) in which complex numbers occur runs eagerly as a whole, and so does one with an operation that looks at",
        "values to say what it gives (`nonzero`, `unique`, `x[mask]`) or whether it succeeded (`linalg.inv`, `linalg.solve`, `linalg.cholesky`).",
        "",
        "| overloads | with a row | native, decomposed ones included | of | share |",
        "|---|---|---|---|---|",
    ]
    groups = (("tagged core and pointwise", maps), ("core reductions, views, indexing, creation, norms", others), ("pointwise outside core", further))
    for title, group in groups:
        native = sum(is_native(op) for op in group)
        lines.append(f"| {title} | {sum(op in TABLE for op in group)} | {native} | {len(group)} | {100 * native / len(group):.0f} % |")
    lines += ["", f"Rows in all: {len(TABLE)}.", "", "## Without a row", ""]
    for title, group in groups:
        missing: dict[str, list[str]] = defaultdict(list)
        for op in group:
            if op not in TABLE:
                missing[reason(op)].append(str(op).removeprefix("aten."))
        if not missing:
            continue
        lines += [f"### {title}", ""] + [f"* {why}: {', '.join(f'`{n}`' for n in sorted(names))}" for why, names in sorted(missing.items())] + [""]
    lines += ["### Core overloads of other kinds", ""] + [f"* {why}: {', '.join(f'`{n}`' for n in names)}" for why, names in ELSEWHERE.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    assert thermit.aten.__all__
    PAGE.write_text(page())
