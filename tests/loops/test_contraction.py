"""Products in packed blocks: interpreted (nothing outside of buffers, nothing read before it is written), as machine code, for other targets."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import llvmlite.binding as llvm
import numpy as np
import pytest

from tests.loops import interpret, natively
from thermit.codegen.emit import emit
from thermit.codegen.legalize import legalize
from thermit.codegen.target import Target, host_target, make_target, x86_target
from thermit.ir import build as b
from thermit.ir.node import Node
from thermit.ir.types import BOOL, FLOAT32, FLOAT64, DType
from thermit.loops import blocking, contraction
from thermit.loops.index import Indices, number
from thermit.loops.nest import For, LoopProgram, Memory, Product, Span, Stmt, Store, Tile, program_text
from thermit.loops.pull import ROWS_BYTES
from thermit.loops.tile import tile
from thermit.records import dataclass
from thermit.runtime.machine import assembly

AARCH64 = make_target("aarch64-unknown-linux-gnu", "generic", {"neon": True})


@dataclass(frozen=True, slots=True)
class Case:
    """x [batch, rows, depth] * w [batch, depth, columns]; `left`, `right`: the order of the axes in memory, the last one contiguous."""

    rows: int
    columns: int
    depth: int
    batch: int = 1
    left: str = "ik"
    right: str = "kj"
    dtype: DType = FLOAT32
    prologue: bool = False
    epilogue: bool = False


def program_of(case: Case) -> LoopProgram:
    indices = Indices()
    extents = {"i": case.rows, "j": case.columns, "k": case.depth}
    node = {name: b.index(name) for name in extents}
    batch = b.index("batch")

    def at(order: str) -> Node:
        outer, inner = order[0], order[1]
        return indices.linear([(extents[outer] * extents[inner], batch), (extents[inner], node[outer]), (1, node[inner])])

    left, right = b.load("x", case.dtype, at(case.left)), b.load("w", case.dtype, at(case.right))
    if case.prologue:
        left, right = b.mul(left, b.load("scale", case.dtype, node["k"])), b.abs_(right)
    local = b.local("sum", case.dtype)
    value = local
    if case.epilogue:
        inside = Node(b.p.LT, (node["j"], number(case.columns - 1)), None, b.TensorType((), BOOL))
        value = b.maximum(b.add(local, b.load("bias", case.dtype, node["j"], inside)), b.const(0.0, case.dtype))
    sizes = {"x": "ik", "w": "kj", "scale": "k", "bias": "j", "out": "ij"}
    memories = []
    for name, axes in sizes.items():
        elems = int(np.prod([extents[a] for a in axes])) * (case.batch if len(axes) == 2 else 1)
        memories.append(Memory(name, case.dtype, "out" if name == "out" else "in", elems))
    rows, columns, depth = (Span(node[name], extents[name]) for name in "ijk")
    statement = Product(rows, columns, depth, left, right, local, (Store("out", at("ij"), value),))
    return LoopProgram("kernel", tuple(memories), batch, case.batch, (statement,))


def buffers_of(case: Case) -> tuple[list[np.ndarray], np.ndarray]:
    """The arrays of a call, and what must be in the last of them afterwards."""
    rng, kind = np.random.default_rng(case.rows * 7 + case.columns * 3 + case.depth), case.dtype.numpy
    x, w = rng.standard_normal((case.batch, case.rows, case.depth)), rng.standard_normal((case.batch, case.depth, case.columns))
    x, w, scale, bias = (a.astype(kind) for a in (x, w, rng.standard_normal(case.depth), rng.standard_normal(case.columns)))
    left, right = x.astype(np.float64), w.astype(np.float64)
    if case.prologue:
        left, right = left * scale, np.abs(right)
    out = left @ right
    if case.epilogue:
        out = np.maximum(out + np.where(np.arange(case.columns) < case.columns - 1, bias, 0), 0)
    flat = [x if case.left == "ik" else x.transpose(0, 2, 1), w if case.right == "kj" else w.transpose(0, 2, 1), scale, bias]
    return [np.ascontiguousarray(a).reshape(-1) for a in flat] + [np.full(out.size, np.nan, kind)], out.reshape(-1)


def tiled(case: Case, target: Target) -> LoopProgram:
    made = tile(program_of(case), target)
    assert tiles(made.body), program_text(made)
    return made


def tiles(body: tuple[Stmt, ...]) -> list[Tile]:
    return [t for s in body for t in ([s] if isinstance(s, Tile) else tiles(s.body) if isinstance(s, For) else [])]


def check(case: Case, how: str = "native") -> None:
    buffers, want = buffers_of(case)
    target = host_target() if how == "native" else x86_target("sse2" if how == "sse2" else "avx2")
    if how == "interpreted":
        interpret.run(tiled(case, target), buffers)
    else:
        natively.execute(tiled(case, target), buffers, target)
    bound = 1e-5 if case.dtype is FLOAT32 else 1e-13
    np.testing.assert_allclose(buffers[-1], want, rtol=bound, atol=bound * 4 * case.depth**0.5, err_msg=str(case))


@pytest.fixture(autouse=True)
def small_products_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contraction, "LEAST_WORK", 1)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks of rows, columns and depth, the last ones smaller."""
    monkeypatch.setattr(blocking, "DEPTH", 16)
    monkeypatch.setattr(blocking, "CORE_CYCLES", 1)
    monkeypatch.setattr(blocking, "TASK_CYCLES", 0)


ORDERS = list(itertools.product(("ik", "ki"), ("kj", "jk")))


def sample(seed: int, count: int) -> list[Case]:
    rng, cases = random.Random(seed), []
    for n in range(count):
        left, right = ORDERS[n % 4]
        rows, columns, depth = rng.choice((2, 3, 4, 5, 6, 7, 11, 13, 17, 34)), rng.randint(1, 57), rng.choice((1, 2, 3, 7, 8, 9, 16, 21, 40, 67))
        batch, dtype = rng.choice((1, 1, 3)), rng.choice((FLOAT32, FLOAT32, FLOAT64))
        cases.append(Case(rows, columns, depth, batch, left, right, dtype, rng.random() < 0.3, rng.random() < 0.4))
    return cases


@pytest.mark.parametrize("case", sample(0, 32), ids=str)
def test_native(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("case", sample(1, 32), ids=str)
def test_native_in_small_blocks(case: Case, small_blocks: None) -> None:
    check(case)


@pytest.mark.parametrize("case", sample(2, 12), ids=str)
def test_interpreted(case: Case) -> None:
    check(case, "interpreted")


@pytest.mark.parametrize("case", sample(3, 16), ids=str)
def test_interpreted_in_small_blocks(case: Case, small_blocks: None) -> None:
    check(case, "interpreted")


FEW_ROWS = [Case(1, 37, 40), Case(1, 70, 2060, 2, epilogue=True), Case(1, 201, 33), Case(2, 4, 45), Case(3, 30, 64), Case(5, 9, 67),
            Case(4, 17, 100, 3, epilogue=True), Case(7, 66, 33, dtype=FLOAT64), Case(11, 20, 1030), Case(13, 23, 2060, epilogue=True),
            Case(16, 41, 70, 2, dtype=FLOAT64)]  # fmt: skip


@pytest.mark.parametrize("case", [replace(c, right="jk") for c in FEW_ROWS], ids=str)
@pytest.mark.parametrize("how", ["native", "sse2", "interpreted"])
def test_few_rows_are_read_where_they_lie(case: Case, how: str) -> None:
    assert all(t.apart == case.depth * t.spread for t in tiles(tiled(case, host_target()).body))
    if how != "interpreted" or case.depth < 200:
        check(case, how)


@pytest.mark.parametrize("left, right", ORDERS)
def test_large(left: str, right: str) -> None:
    check(Case(150, 210, 1100, 1, left, right, epilogue=True))


@pytest.mark.parametrize("target", [x86_target("avx512"), x86_target("sse2"), AARCH64], ids=["avx512", "sse2", "aarch64"])
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
def test_other_targets(target: Target, dtype: DType) -> None:
    for rows, (left, right) in zip((30, 30, 30, 30, 7), (*ORDERS, ("ik", "jk")), strict=True):
        program = tiled(Case(rows, 70, 45, 2, left, right, dtype, epilogue=True), target)
        assert "fma" in (text := assembly_of(program, target)) or "fmla" in text or not target.has_fma


def assembly_of(program: LoopProgram, target: Target) -> str:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return assembly(emit([legalize(program, target)], target), target)


@pytest.mark.parametrize("target", [x86_target("avx2"), x86_target("avx512"), AARCH64], ids=["avx2", "avx512", "aarch64"])
def test_sums_stay_in_registers(target: Target) -> None:
    program = tiled(Case(128, 768, 256), target)
    for line in assembly_of(program, target).splitlines():
        spilled = "Spill" in line or "Reload" in line
        assert not (spilled and ("ymm" in line or "zmm" in line)), line


@pytest.mark.parametrize("sizes", [(10**7, 10, 10), (10, 10**7, 10), (10**6, 10**6, 10**6), (2, 10**7, 64), (2, 10**7, 10**5)])
def test_any_size_fits(sizes: tuple[int, int, int]) -> None:
    for left, right in ORDERS:
        program = tiled(Case(*sizes, left=left, right=right), host_target())
        assert sum(m.elems * m.dtype.itemsize for m in program.memories if m.role == "row") <= ROWS_BYTES


def test_a_product_whose_operand_is_updated_is_left_alone() -> None:
    program = program_of(Case(8, 8, 8))
    (s,) = program.body
    assert isinstance(s, Product)
    written = Store("x", s.body[0].offset, s.local)  # type: ignore[union-attr]
    memories = tuple(Memory(m.name, m.dtype, "inout" if m.name == "x" else m.role, m.elems) for m in program.memories)
    changed = LoopProgram("kernel", memories, program.index, 1, (Product(s.rows, s.columns, s.depth, s.left, s.right, s.local, (written,)),))
    assert contraction.packed(changed, host_target()) is None


def test_sums_of_blocks_are_more_accurate_than_one_chain() -> None:
    """A long sum of equal terms: in one chain the error grows with the length."""
    case = Case(4, 24, 8192, left="ik", right="jk")
    x, w = np.full(case.rows * case.depth, 0.1, np.float32), np.full(case.columns * case.depth, 0.1, np.float32)
    buffers = [x, w, np.zeros(case.depth, np.float32), np.zeros(case.columns, np.float32), np.zeros(case.rows * case.columns, np.float32)]
    natively.execute(tiled(case, host_target()), buffers)
    exact, chain = case.depth * float(np.float32(0.1)) ** 2, np.cumsum(x[: case.depth] * x[: case.depth])[-1]
    assert abs(buffers[-1] - exact).max() * 4 <= abs(chain - exact)
