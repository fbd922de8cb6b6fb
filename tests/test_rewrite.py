"""The rewriting engine: matching, order, counting, the limit."""

from __future__ import annotations

from collections import Counter

import pytest

from thermit import rewrite as r
from thermit.errors import VerifyError
from thermit.ir import build as b
from thermit.ir.node import Node
from thermit.ir.types import BOOL, FLOAT32, FLOAT64, INT64, TensorType
from thermit.rewrite import Rewriter, Rules, rewrite, rule


def tensor(index: int = 0, dtype: object = FLOAT32) -> Node:
    return b.graph_input(index, TensorType((3,), dtype))  # type: ignore[arg-type]


x, y = tensor(0), tensor(1)
NEG_NEG = rule("neg neg", lambda x: r.neg(r.neg(x)), lambda x: x)
MUL_ONE = rule("mul one", lambda x: r.mul(x, 1), lambda x: x)


def test_to_a_fixed_point_and_counted() -> None:
    fired: Counter[str] = Counter()
    root = x
    for _ in range(6):
        root = b.neg(root)
    assert rewrite(b.add(root, y), Rules([NEG_NEG]), fired) is b.add(x, y)
    assert fired == {"neg neg": 1} or fired["neg neg"] <= 3


def test_operands_of_commutative_primitives_both_ways() -> None:
    rules = Rules([MUL_ONE])
    assert rewrite(b.mul(x, 1.0), rules) is x
    assert rewrite(b.mul(b.like(1.0, x), x), rules) is x
    assert rewrite(b.div(b.like(1.0, x), x), Rules([rule("div one", lambda x: r.div(x, 1), lambda x: x)])) is not x


def test_numbers_are_compared_bit_for_bit_in_the_type_of_the_place() -> None:
    rules = Rules([rule("add zero", lambda x: r.add(x, -0.0), lambda x: x)])
    assert rewrite(b.add(x, -0.0), rules) is x
    assert rewrite(b.add(x, 0.0), rules) is not x
    k = tensor(0, INT64)
    assert rewrite(b.add(k, 0), rules) is k


def test_a_variable_that_stands_twice_meets_one_node() -> None:
    rules = Rules([rule("min itself", lambda x: r.minimum(x, x), lambda x: x)])
    assert rewrite(b.minimum(x, x), rules) is x
    assert rewrite(b.minimum(x, y), rules) is b.minimum(x, y)


def test_c_meets_constants_only_and_a_rule_may_decline() -> None:
    halved = rule("div two", lambda x, c: r.div(x, c), lambda x, c: b.mul(x, 0.5) if b.is_const(c, 2.0) else None)
    assert rewrite(b.div(x, 2.0), Rules([halved])) is b.mul(x, 0.5)
    assert rewrite(b.div(x, 3.0), Rules([halved])) is b.div(x, 3.0)
    assert rewrite(b.div(x, y), Rules([halved])) is b.div(x, y)


def test_the_first_rule_wins_and_lists_add() -> None:
    first = Rules([rule("a", lambda x: r.neg(x), lambda x: b.abs_(x))])
    second = Rules([rule("b", lambda x: r.neg(x), lambda x: b.sqrt(x))])
    assert rewrite(b.neg(x), first + second) is b.abs_(x)
    assert rewrite(b.neg(x), second + first) is b.sqrt(x)
    assert [q.name for q in first + second] == ["a", "b"]
    with pytest.raises(AssertionError, match="one name"):
        first + first


def test_new_nodes_are_rewritten_too() -> None:
    rules = Rules([rule("sub is add neg", lambda x, y: r.sub(x, r.neg(y)), lambda x, y: b.mul(b.neg(b.neg(x)), 1.0)), NEG_NEG, MUL_ONE])
    assert rewrite(b.sub(x, b.neg(y)), rules) is x


def test_the_root_is_handed_over_where_it_is_asked_for() -> None:
    straight = rule("cast cast", lambda x: r.cast(r.cast(x)), lambda root, x: b.cast(x, root.dtype))
    assert rewrite(b.cast(b.cast(x, FLOAT64), BOOL), Rules([straight])) is b.cast(x, BOOL)


def test_types_are_kept() -> None:
    with pytest.raises(AssertionError, match="wider"):
        rewrite(b.neg(x), Rules([rule("wider", lambda x: r.neg(x), lambda x: b.cast(x, FLOAT64))]))


def test_rules_that_undo_each_other_stop_at_the_limit() -> None:
    rules = Rules([rule("there", lambda x: r.neg(x), lambda x: b.abs_(x)), rule("back", lambda x: r.abs_(x), lambda x: b.neg(x))])
    with pytest.raises(VerifyError, match=r"does not end after 50 steps.*there, back"):
        rewrite(b.neg(x), rules, limit=50)


def test_deep_graphs_do_not_exhaust_the_stack() -> None:
    root = x
    for k in range(5000):
        root = b.add(b.mul(root, 1.0), float(k + 1))
    plain = x
    for k in range(5000):
        plain = b.add(plain, float(k + 1))
    assert rewrite(root, Rules([MUL_ONE])) is plain


def test_work_is_shared_between_roots() -> None:
    fired: Counter[str] = Counter()
    rewriter = Rewriter(Rules([NEG_NEG]), fired)
    shared = b.neg(b.neg(x))
    assert rewriter(b.add(shared, y)) is b.add(x, y)
    assert rewriter(b.mul(shared, y)) is b.mul(x, y)
    assert fired["neg neg"] == 1
