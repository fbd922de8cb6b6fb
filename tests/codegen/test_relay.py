"""Long maps in legs give, bit for bit, what they give in one loop; what is no such map is left alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.codegen.native import call, compiled, map_program
from tests.codegen.specials import specials
from thermit.codegen.emit import emit, function
from thermit.codegen.legalize import legalize
from thermit.codegen.relay import LEAST_EXTENT, MOST_ROWS, in_legs
from thermit.codegen.target import host_target, make_target, x86_target
from thermit.ir import build as b
from thermit.ir.node import Node
from thermit.ir.types import FLOAT32, FLOAT64, INT64, DType
from thermit.loops.nest import For, LoopProgram, Memory, Store
from thermit.runtime.machine import assembly

i = b.index("i")
TARGETS = {
    **{level: x86_target(level) for level in ("sse2", "sse4", "avx2", "avx512")},
    "aarch64": make_target("aarch64-unknown-linux-gnu", "generic", {"neon": True}),
}


def x(dtype: DType = FLOAT32, name: str = "x", away: int = 0) -> Node:
    return b.load(name, dtype, b.add(i, b.const(away, INT64)) if away else i)


def mish(v: Node) -> Node:
    return b.mul(v, b.tanh(b.log1p(b.exp(v))))


def chain(v: Node, w: Node) -> Node:
    return b.add(b.mul(b.erf(b.add(v, b.sin(w))), b.sigmoid(w)), b.sqrt(b.add(b.mul(v, v), 1.0)))


MAPS: dict[str, tuple[list[Node], list[tuple[str, DType]]]] = {
    "mish": ([mish(x())], [("x", FLOAT32)]),
    "softplus": ([b.log1p(b.exp(x()))], [("x", FLOAT32)]),
    "two inputs": ([chain(x(), x(name="y"))], [("x", FLOAT32), ("y", FLOAT32)]),
    "two results": ([mish(x()), b.mul(x(), 3.0)], [("x", FLOAT32)]),
    "float64": ([b.pow_(x(FLOAT64), x(FLOAT64, "y"))], [("x", FLOAT64), ("y", FLOAT64)]),
    "seldom": ([b.sin(b.mul(b.sin(x()), 1e9))], [("x", FLOAT32)]),
    "both types": ([b.cast(b.sigmoid(b.cast(mish(x()), FLOAT64)), FLOAT32)], [("x", FLOAT32)]),
    "the index": ([mish(b.cast(i, FLOAT32))], [("x", FLOAT32)]),
    "neighbours": ([mish(b.mul(x(), x(away=2)))], [("x", FLOAT32)]),
    "one number for all": ([mish(b.mul(x(), b.exp(b.load("y", FLOAT32, b.const(3, INT64)))))], [("x", FLOAT32), ("y", FLOAT32)]),
}


def program_of(name: str, extent: int = LEAST_EXTENT, width: int = 16) -> LoopProgram:
    values, loads = MAPS[name]
    return legalize(map_program(values, i, loads, extent, width), host_target())


def inputs_of(loads: list[tuple[str, DType]], extent: int) -> list[np.ndarray]:
    """Special values, then what is usual."""
    rng, made = np.random.default_rng(1), []
    for k, (_, dtype) in enumerate(loads):
        special = np.roll(specials(dtype), k)
        usual = (rng.standard_normal(extent + 2) * 3).astype(dtype.numpy)
        usual[: special.size] = special
        usual[extent - special.size : extent] = special
        made.append(usual)
    return made


def results(program: LoopProgram, inputs: list[np.ndarray], ends: list[int]) -> list[np.ndarray]:
    """Run in parts that end at `ends`, as threads do."""
    extra = 24
    outs = [np.full(program.extent + extra, 7, m.dtype.numpy) for m in program.memories if m.role == "out"]
    code = compiled(program)
    for begin, end in zip([0, *ends], ends, strict=False):
        assert call(code, program.name, [*inputs, *outs], begin, end) == 0
    assert all((o[program.extent :] == 7).all() for o in outs), "written behind the end"
    return [o[: program.extent] for o in outs]


@pytest.mark.parametrize("extent", [LEAST_EXTENT, LEAST_EXTENT + 1, LEAST_EXTENT + 511])
@pytest.mark.parametrize("name", MAPS)
def test_same_results(name: str, extent: int) -> None:
    program = program_of(name, extent)
    cut = in_legs(program, host_target())
    assert cut.mode == "block"
    inputs = inputs_of(MAPS[name][1], extent)
    wanted = results(program, inputs, [extent])
    for ends in ([extent], [3 * cut.width, 8 * cut.width, extent]):
        for got, want in zip(results(cut, inputs, ends), wanted, strict=True):
            np.testing.assert_array_equal(got.view(f"u{got.itemsize}"), want.view(f"u{want.itemsize}"))


@pytest.mark.parametrize("name", MAPS)
def test_few_values_cross(name: str) -> None:
    program = program_of(name)
    cut = in_legs(program, host_target())
    rows = [m for m in cut.memories if m.role == "row"]
    assert 1 <= len(rows) <= MOST_ROWS and len(cut.body) >= 2
    stores = [s for leg in cut.body if isinstance(leg, For) for s in leg.body if isinstance(s, Store)]
    assert sorted(s.memory for s in stores) == sorted([*(m.name for m in rows), *(f"out{k}" for k in range(len(MAPS[name][0])))])
    assert sum(m.elems * m.dtype.itemsize for m in rows) <= 40 * 1024


def test_the_text_does_not_depend_on_the_extent() -> None:
    extents = (LEAST_EXTENT, LEAST_EXTENT + 5, 3 * LEAST_EXTENT + 512, 1 << 24)
    assert len({function(in_legs(program_of("mish", n), host_target()), host_target()).body for n in extents}) == 1


def test_whole_blocks_of_large_results_go_around_the_cache() -> None:
    for extent, streams in ((LEAST_EXTENT, True), (LEAST_EXTENT + 8, False)):
        program = program_of("softplus", extent)
        program = replace(program, memories=tuple(replace(m, stream=m.role == "out") for m in program.memories))
        text = emit([in_legs(program, host_target())], host_target())
        assert text.count("!nontemporal") == streams


def other(**changes: object) -> LoopProgram:
    return replace(program_of("mish"), **changes)  # type: ignore[arg-type]


def with_body(value: Node, offset: Node = i, guard: Node | None = None) -> LoopProgram:
    program = map_program([value], i, [("x", FLOAT32), ("places", INT64)], LEAST_EXTENT, 16)
    return legalize(replace(program, body=(Store("out0", offset, value, guard),)), host_target())


@pytest.mark.parametrize(
    "program",
    [
        program_of("mish", LEAST_EXTENT - 1),
        other(mode="serial", width=1),
        with_body(b.exp(x())),
        with_body(mish(b.load("x", FLOAT32, b.mul(i, b.const(2, INT64))))),
        with_body(mish(b.load("x", FLOAT32, b.load("places", INT64, i)))),
        with_body(mish(x()), guard=b.lt(i, b.const(9, INT64))),
        with_body(mish(b.load("x", FLOAT32, i, b.lt(i, b.const(9, INT64))))),
        with_body(mish(x()), offset=b.rem(i, b.const(1 << 14, INT64))),
        with_body(mish(b.load("out0", FLOAT32, i))),
        other(memories=(Memory("x", FLOAT32, "in", LEAST_EXTENT, ("out0",)), Memory("out0", FLOAT32, "out", LEAST_EXTENT))),
    ],
    ids=["short", "serial", "light", "apart", "gathered", "guarded", "guarded load", "wraps", "reads what it writes", "may overlap"],
)
def test_others_are_left_alone(program: LoopProgram) -> None:
    assert in_legs(program, host_target()) is program


@pytest.mark.parametrize("name", ["mish", "float64"])
@pytest.mark.parametrize("level", TARGETS)
def test_every_target(level: str, name: str) -> None:
    """It can be emitted and assembled."""
    target, (values, loads) = TARGETS[level], MAPS[name]
    cut = in_legs(legalize(map_program(values, i, loads, LEAST_EXTENT, 2 * target.lanes(loads[0][1].bits)), target), target)
    assert cut.mode == "block" or not target.has_fma  # spelled out: too many operations
    text = emit([cut], target)
    assert not target.is_x86 or "kernel:" in assembly(text, target)
