"""Machine code that kernels share: the same function at other sizes needs no LLVM, and gives eager's results."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import thermit
from thermit import compiler
from thermit.codegen.emit import Function
from thermit.codegen.target import Target
from thermit.compiler import Compilation
from thermit.loops.nest import LoopProgram

FUNCTIONS = {
    "map": (lambda x: torch.where(x < 0, x * x + 1, x.abs() / 2), ((1000,), (1024,), (4099,), (300_001,), (64,))),
    "map in place": (lambda x: x.add_(1).mul_(x), ((1000,), (1024,), (4099,), (64,))),
    "casts": (lambda x: x.to(torch.int16) + 1, ((1000,), (1024,), (4099,), (64,))),
    "softmax": (lambda x: torch.softmax(x, -1), ((400, 100), (401, 100), (3000, 100))),
    "layer norm": (lambda x: F.layer_norm(x, (100,)), ((400, 100), (401, 100), (3000, 100))),
}


def compiled(function: Any, x: torch.Tensor) -> Compilation:
    return thermit.jit(function).lower(x).compilation


@pytest.mark.parametrize("name", ["map", "casts", "softmax", "layer norm"])
def test_other_sizes_share_machine_code(name: str) -> None:
    function, shapes = FUNCTIONS[name]
    found = [compiled(function, torch.randn(shape)) for shape in shapes]
    addresses = [[code.module.address(code.symbol) for code in c.codes.values()] for c in found]
    assert all(a == addresses[0] for a in addresses)
    assert [code.launch.extent for c in found for code in c.codes.values()] == [shape[0] for shape in shapes]


@pytest.mark.parametrize("first", [8, 9, 1000, 1024])
@pytest.mark.parametrize("name", ["map", "map in place", "casts"])
def test_code_made_at_one_size_is_right_at_others(name: str, first: int) -> None:
    function = FUNCTIONS[name][0]
    jitted = thermit.jit(function, max_variants=100)
    jitted(torch.randn(first))
    for n in (1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 1000, 1024, 4099, 300_001):
        x = torch.randn(n)
        torch.testing.assert_close(jitted(x.clone()), function(x.clone()), rtol=0, atol=0)


def test_stores_around_the_cache_stay_aligned() -> None:
    """A result so large that it is streamed is written by code of its own where the last step cannot be aligned."""
    for n in (4 << 20, (4 << 20) + 3):
        x = torch.randn(n)
        torch.testing.assert_close(thermit.jit(lambda x: x * 3 - 1)(x), x * 3 - 1, rtol=0, atol=0)


def test_checks_are_not_shared_with_other_bounds() -> None:
    """What a size bounds is a constant of the code."""
    take = thermit.jit(lambda x, i: x[i])
    for n in (10, 11, 12):
        x, i = torch.arange(n) * 2, torch.arange(n)
        assert torch.equal(take(x, i), x[i])
        with pytest.raises(IndexError):
            take(x, torch.full((n,), n))


def test_equal_layers_are_tiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tiled: list[str] = []
    plain = compiler.tile

    def counting(program: LoopProgram, target: Target) -> LoopProgram:
        tiled.append(program.name)
        return plain(program, target)

    monkeypatch.setattr(compiler, "tile", counting)

    def layers(x: torch.Tensor) -> torch.Tensor:
        for _ in range(5):
            x = F.layer_norm(torch.sort(x)[0] * 2, (100,))
        return x

    found = compiled(layers, torch.randn(400, 100))
    assert len(found.codes) >= 5 and len(tiled) <= 4
    assert all(program.name == name for name, program in found.loops.items())


def test_what_computes_much_does_not_go_around_the_cache() -> None:
    """So a large result whose size is a multiple of the width shares its code with one whose size is not."""

    def much(x: torch.Tensor) -> torch.Tensor:
        return F.gelu(torch.sin(x)) * torch.sigmoid(x)

    even, odd, light = (compiled(f, torch.empty(n)) for f, n in ((much, 4 << 20), (much, (4 << 20) + 3), (torch.neg, 4 << 20)))
    assert [code.module for code in even.codes.values()] == [code.module for code in odd.codes.values()]
    assert [all("nontemporal" in code.module.text for code in c.codes.values()) for c in (even, light)] == [False, True]


def test_blocks_of_a_sum_that_do_not_fit_are_known_to_run() -> None:
    """The last block of a sum is shorter, but never empty: what it reads may stand in front of it (else twice the time)."""

    def distances(x: torch.Tensor) -> torch.Tensor:
        return torch.exp(-((x[:, None, :] - x[None, :, :]) ** 2).sum(-1)).sum(1)

    x = torch.randn(571, 3)
    (code,) = compiled(distances, x).codes.values()
    assert code.module.text.count(".any = icmp slt") == 1  # of the parallel loop
    torch.testing.assert_close(thermit.jit(distances)(x), distances(x))


def test_modules_take_even_shares_of_the_text_the_longest_first() -> None:
    named = {f"kernel{i}": Function("x" * (1000 + 7919 * i % 90_000), {}, {}) for i in range(40)}
    for threads in (1, 2, 8):
        groups = compiler.shared_out(named, threads)
        assert sorted(symbol for group in groups for symbol in group) == sorted(named)
        sizes = [sum(len(f.body) for f in group.values()) for group in groups]
        longest = max(len(f.body) for f in named.values())
        most = max(longest, compiler.LEAST_TEXT, sum(sizes) / (threads * compiler.MODULES))
        assert max(sizes) <= most and len(groups) > threads
        assert len(next(iter(groups[0].values())).body) == longest
    assert len(compiler.shared_out({"kernel0": Function("x", {}, {}), "kernel1": Function("y", {}, {})}, 2)) == 1
    assert compiler.shared_out({}, 2) == []


def test_products_share_the_code_of_their_tiles() -> None:
    """Another product whose tiles have the same shape calls the same functions, which stay as long as the code that calls them."""
    weight = torch.randn(512, 256) / 23
    functions = (lambda x, w: F.relu(x @ w), lambda x, w: torch.tanh(x @ w))
    found = [thermit.jit(f).lower(torch.randn(rows, 512), weight).compilation for f, rows in zip(functions, (96, 120), strict=True)]
    (first,), (second,) = ([code.module for code in one.codes.values()] for one in found)
    assert first is not second and first.imports and first.imports == second.imports
    assert all("declare void @tile" in made.text and "define internal" not in made.text for made in (first, second))
    for f in functions:
        x = torch.randn(120, 512)
        torch.testing.assert_close(thermit.jit(f)(x, weight), f(x, weight))
