"""Runs a program eagerly and compiled, and says how they differ; shrinks one that does."""

from __future__ import annotations

import dataclasses
import warnings

import torch

from tests.fuzz.programs import Program

SINGLE = ("float32", "torch.ones", "torch.eye", "torch.arange(8.0)")
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bit for bit; any nan equals any nan."""
    if a.dtype.is_floating_point:
        if not torch.equal(a.isnan(), b.isnan()):
            return False
        a, b = a.nan_to_num(0.0, float("inf"), -float("inf")), b.nan_to_num(0.0, float("inf"), -float("inf"))
    integer = BITS[a.element_size()]
    return torch.equal(
        a.contiguous().view(integer) if a.dim() else a.reshape(1).view(integer),
        b.contiguous().view(integer) if b.dim() else b.reshape(1).view(integer),
    )


def differs(got: torch.Tensor, want: torch.Tensor, exact: bool, single: bool = True) -> str | None:
    if (got.dtype, got.shape) != (want.dtype, want.shape):
        return f"{got.dtype}{list(got.shape)} for {want.dtype}{list(want.shape)}"
    if want.numel() > 1 and got.stride() != want.stride():
        return f"strides {got.stride()} for {want.stride()}"
    if exact or not want.dtype.is_floating_point:
        return None if same_bits(got, want) else f"{got.flatten()[:8].tolist()} for {want.flatten()[:8].tolist()}"
    scale = 1 + want.abs().max().item() if want.numel() else 1.0
    rtol, atol = (2e-3, 2e-4) if single else (1e-9, 1e-10)
    near = torch.allclose(got, want, rtol=rtol, atol=atol * scale, equal_nan=True)
    return None if near else f"{got.flatten()[:8].tolist()} for {want.flatten()[:8].tolist()}"


def aliases(results, arguments) -> list[int]:
    """Which tensors share storage, as a list of first occurrences."""
    seen: dict[int, int] = {}
    return [seen.setdefault(t.untyped_storage().data_ptr(), i) if t.numel() else -1 for i, t in enumerate([*results, *arguments])]


def is_single(program: Program) -> bool:
    """Whether a smooth program computes in float32 somewhere: its inputs, a cast, a tensor of the default type."""
    return any(dtype != "float64" for _, dtype, _ in program.inputs) or any(word in program.source for word in SINGLE)


def same_objects(results, arguments) -> list[int]:
    """For each result the argument that it is, -1 if none."""
    return [next((k for k, t in enumerate(arguments) if r is t), -1) for r in results]


def raised(outcome) -> str:
    return f"{type(outcome).__name__}: {str(outcome)[:300]}" if isinstance(outcome, Exception) else "a result"


def fault(program: Program, jit, draws: int = 2) -> str | None:
    """How jit(program) differs from the program, or None."""
    function = program.function()
    compiled = jit(function)
    for draw in range(draws):
        torch.set_num_threads(2 if program.large and draw == 1 else 1)
        mine, theirs = program.arguments(draw), program.arguments(draw)
        try:
            want = program.call(function, mine)
        except Exception as e:
            want = e
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                got = program.call(compiled, theirs)
        except Exception as e:
            got = e
        if isinstance(want, Exception) or isinstance(got, Exception):
            if type(want) is not type(got):
                return f"draw {draw}: {raised(got)} for {raised(want)}"
            continue
        exact, single = program.family == "exact", is_single(program)
        for kind, a, b in (("result", got, want), ("argument", theirs, mine)):
            for i, (x, y) in enumerate(zip(a, b, strict=True)):
                if (how := differs(x, y, exact, single)) is not None:
                    return f"draw {draw}, {kind} {i}: {how}"
        if aliases(got, theirs) != aliases(want, mine):
            return f"draw {draw}: aliasing {aliases(got, theirs)} for {aliases(want, mine)}"
        if same_objects(got, theirs) != same_objects(want, mine):
            return f"draw {draw}: results that are arguments {same_objects(got, theirs)} for {same_objects(want, mine)}"
    return None


def shrink(program: Program, jit) -> Program:
    """The program with as few statements and results as still differ."""
    changed = True
    while changed:
        changed = False
        for i in reversed(range(len(program.lines))):
            smaller = dataclasses.replace(program, lines=program.lines[:i] + program.lines[i + 1 :])
            if still_differs(smaller, jit):
                program, changed = smaller, True
        for name in list(program.results):
            smaller = dataclasses.replace(program, results=[n for n in program.results if n != name])
            if smaller.results and still_differs(smaller, jit):
                program, changed = smaller, True
    return program


def still_differs(program: Program, jit) -> bool:
    try:
        program.call(program.function(), program.arguments(0))
    except Exception:
        return False
    return fault(program, jit) is not None
