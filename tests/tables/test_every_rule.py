"""Both sides of every rule have the same bits, for every type and every special value; and every rule fires."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator

import numpy as np
import pytest

from tests.codegen.native import same
from tests.codegen.specials import specials
from thermit.errors import TypeRuleError
from thermit.ir import build as b
from thermit.ir import interp
from thermit.ir.node import Node, toposort
from thermit.ir.types import BOOL, DTYPES, DType, TensorType
from thermit.passes.simplify import RULES
from thermit.rewrite import Application, Number, Pattern, Rule

KINDS = [d for d in DTYPES.values() if not d.is_complex]
COMPUTED = [d for d in KINDS if not d.is_half]


def instance(pattern: Pattern, operands: dict[str, Node]) -> Node:
    """The pattern with nodes for its variables.  Raises TypeRuleError (or what a constructor raises) where they do not fit."""
    if isinstance(pattern, Application):
        known = [instance(a, operands) if not isinstance(a, Number) else None for a in pattern.args]
        like = next((k for k in reversed(known) if k is not None and k.dtype is not BOOL), next((k for k in known if k is not None), None))
        assert like is not None
        args = tuple(
            k if k is not None else b.like(a.value, like) for k, a in zip(known, pattern.args, strict=True) if k is not None or isinstance(a, Number)
        )
        return applied(pattern, args)
    assert not isinstance(pattern, Number)
    return operands[pattern.name]


def applied(pattern: Application, args: tuple[Node, ...]) -> Node:
    prim = pattern.prim
    if prim.name == "where":
        if args[0].dtype is not BOOL or args[1].type != args[2].type:
            raise TypeRuleError("where")
        return Node(prim, args, None, args[1].type)
    if any(a.type != args[0].type for a in args) or args[0].dtype.is_half:
        raise TypeRuleError(f"{prim}")
    kind = args[0].dtype
    if kind is BOOL and prim.name not in ("add", "mul", "and", "or", "xor", "not", "eq", "ne", "lt", "le", "gt", "ge", "min", "max"):
        raise TypeRuleError(f"{prim} of bool")
    if kind.is_float and prim.name in ("and", "or", "xor", "not", "shl", "shr"):
        raise TypeRuleError(f"{prim} of {kind}")
    if prim.integer is None and kind.is_integer:
        raise TypeRuleError(f"{prim} of {kind}")
    return Node(prim, args, None, args[0].type.with_dtype(BOOL) if prim.result == "bool" else args[0].type)


def columns(kinds: list[DType]) -> list[np.ndarray]:
    """Every combination of special values (a selection, for three and more)."""
    values = [specials(k) for k in kinds]
    if len(values) > 2:
        rng = np.random.default_rng(0)
        return [rng.choice(v, 400) for v in values]
    grid = np.meshgrid(*values, indexing="ij")
    return [g.ravel() for g in grid]


def instances(rule: Rule) -> Iterator[tuple[Node, list[Node], list[np.ndarray]]]:
    """Nodes of the form of the left side, their inputs, and arrays for these."""
    if rule.examples is not None:
        for root in rule.examples():
            inputs = [n for n in toposort([root]) if n.prim.name == "input"]
            yield root, inputs, [np.resize(specials(i.dtype), i.shape if i.type.numel > 4 else (40,)) for i in inputs]
        return
    for kinds in itertools.product(COMPUTED, repeat=len(rule.variables)):
        if len(set(kinds) - {BOOL}) > 1:
            continue
        free = [k for k, v in zip(kinds, rule.variables, strict=True) if not v.startswith("c")]
        arrays = columns(free) if free else []
        size = arrays[0].size if arrays else 1
        fixed = [specials(k) for k, v in zip(kinds, rule.variables, strict=True) if v.startswith("c")]
        fixed = [v[:: 1 if len(fixed) == 1 else 4] for v in fixed]
        inputs = [b.graph_input(j, TensorType((size,), k)) for j, k in enumerate(free)]
        for constants in itertools.product(*fixed):
            waiting, chosen = iter(inputs), iter(constants)
            pairs = zip(kinds, rule.variables, strict=True)
            operands = {v: b.const(next(chosen).item(), k, (size,)) if v.startswith("c") else next(waiting) for k, v in pairs}
            try:
                root = instance(rule.lhs, operands)
            except TypeRuleError:
                break
            yield root, inputs, arrays


def evaluate(root: Node, inputs: list[Node], arrays: list[np.ndarray]) -> np.ndarray:
    values = dict(zip(inputs, arrays, strict=True))
    for node in toposort([root]):
        if node not in values:
            if node.prim.name == "const" and arrays and node.shape != () and node.shape != arrays[0].shape:
                node_value = np.full(arrays[0].shape, node.attrs.value, node.dtype.numpy)
            else:
                node_value = interp.evaluate(node, [values[a] for a in node.args])
            values[node] = node_value
    return values[root]


@pytest.mark.parametrize("rule", list(RULES), ids=lambda r: r.name.replace(" ", "_"))
def test_both_sides_have_the_same_bits(rule: Rule) -> None:
    fired = 0
    for root, inputs, arrays in instances(rule):
        made = rule.apply(root)
        if made is None:
            continue
        fired += 1
        assert made.type == root.type
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            left, right = evaluate(root, inputs, arrays), evaluate(made, inputs, arrays)
        left, right = np.broadcast_arrays(left, right)
        agree = same(np.ascontiguousarray(left), np.ascontiguousarray(right))
        assert agree.all(), (root.dtype, left[~agree][:3], right[~agree][:3], [a[~agree][:3] for a in arrays if a.shape == agree.shape])
    assert fired, "the rule never applies"
