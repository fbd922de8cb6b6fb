"""The one rewriting engine: rules are pairs of functions.

    rule("neg neg", lambda x: neg(neg(x)), lambda x: x)
    rule("div by a power of two", lambda x, c: div(x, c), lambda x, c: mul(x, inverse(c)) if has_inverse(c) else None)

The left side is called once, with variables, and gives a pattern; the functions in it (`neg`, `div`, ... of this module) build patterns.
The right side is called with the nodes that the variables met and builds nodes (`ir/build.py`); it may decline with None.  A variable whose
name begins with `c` meets constants only; a variable that stands twice must meet the same node twice; a number in a pattern meets the
constant of that value (bit for bit, in the type of the place).  Operands of commutative primitives are tried both ways.

In: nodes and an ordered list of rules.  Out: nodes of the same types to which no rule applies any more.  Each shared node is rewritten
once.  Every firing is counted by the name of its rule; a list that never comes to an end stops at a limit and names the last rules.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from thermit.errors import VerifyError
from thermit.ir import prims as p
from thermit.ir.build import is_const, rebuild
from thermit.ir.node import Node
from thermit.ir.prims import Prim
from thermit.records import dataclass

Binding = dict[str, Node]
LIMIT = 1_000_000  # steps in one graph: a list of rules that needs more goes in circles


# ---------------------------------------------------------------------------------------------- patterns
@dataclass(frozen=True, slots=True)
class Variable:
    name: str

    @property
    def is_constant(self) -> bool:
        return self.name.startswith("c")


class Application:
    """A primitive of patterns, whatever its attrs.  `heads`: the primitive that each arg must be, None where any will do."""

    __match_args__ = ("prim", "args")

    def __init__(self, prim: Prim, args: tuple[Pattern, ...]) -> None:
        self.prim, self.args = prim, args
        self.heads = tuple(_head(a) for a in args)
        self.numbers = tuple(a.value for a in args if isinstance(a, Number))
        self.commutes = "commutative" in prim.algebra

    def may_be(self, node: Node) -> bool:
        """False for most nodes that the pattern does not match, and quickly."""
        args, heads = node.args, self.heads
        if node.prim is not self.prim:
            return False
        if len(heads) == 1:
            return heads[0] is None or heads[0] is args[0].prim
        if len(heads) == 2:
            (a, b), x, y = heads, args[0].prim, args[1].prim
            straight = (a is None or a is x) and (b is None or b is y)
            if not straight and not (self.commutes and (a is None or a is y) and (b is None or b is x)):
                return False
        return all(any(is_const(a, number) for a in args) for number in self.numbers) if self.numbers else True


@dataclass(frozen=True, slots=True)
class Number:
    value: bool | int | float


Pattern = Variable | Application | Number


def _head(pattern: Pattern) -> Prim | None:
    match pattern:
        case Application(prim, _):
            return prim
        case Variable():
            return p.CONST if pattern.is_constant else None
    return p.CONST


def _pattern(x: Any) -> Pattern:
    return x if isinstance(x, Variable | Application | Number) else Number(x)


def _of(prim: Prim) -> Callable[..., Pattern]:
    def build(*args: Any) -> Pattern:
        assert prim.arity == len(args), f"{prim} takes {prim.arity} args"
        return Application(prim, tuple(_pattern(a) for a in args))

    build.__name__ = prim.name
    build.__doc__ = f"The pattern of {prim.name}."
    return build


neg, abs_, not_, cast, bitcast = (_of(r) for r in (p.NEG, p.ABS, p.NOT, p.CAST, p.BITCAST))
floor, ceil, trunc, round_, sqrt = (_of(r) for r in (p.FLOOR, p.CEIL, p.TRUNC, p.ROUND, p.SQRT))
add, sub, mul, div, copysign = (_of(r) for r in (p.ADD, p.SUB, p.MUL, p.DIV, p.COPYSIGN))
minimum, maximum = _of(p.MIN), _of(p.MAX)
eq, ne, lt, le, gt, ge = (_of(r) for r in (p.EQ, p.NE, p.LT, p.LE, p.GT, p.GE))
and_, or_, xor, shl, shr = (_of(r) for r in (p.AND, p.OR, p.XOR, p.SHL, p.SHR))
where = _of(p.WHERE)
reshape, permute, expand, slice_ = (_of(r) for r in (p.RESHAPE, p.PERMUTE, p.EXPAND, p.SLICE))


def matches(pattern: Pattern, node: Node, binding: Binding) -> Iterator[Binding]:
    """Every way in which the node is the pattern, given what the variables already met."""
    match pattern:
        case Number(value):
            if is_const(node) and not node.dtype.is_complex and is_const(node, value):
                yield binding
        case Variable(name):
            met = binding.get(name)
            if met is node:
                yield binding
            elif met is None and (not pattern.is_constant or is_const(node)):
                yield {**binding, name: node}
        case Application(_, args):
            if not pattern.may_be(node):
                return
            yield from _all_match(args, node.args, binding)
            if pattern.commutes:
                yield from _all_match(args[::-1], node.args, binding)


def _all_match(patterns: tuple[Pattern, ...], nodes: tuple[Node, ...], binding: Binding) -> Iterator[Binding]:
    if not patterns:
        yield binding
        return
    for found in matches(patterns[0], nodes[0], binding):
        yield from _all_match(patterns[1:], nodes[1:], found)


# ---------------------------------------------------------------------------------------------- rules
@dataclass(frozen=True, slots=True)
class Rule:
    """`examples` gives nodes to which a rule applies that cannot be found by trying values for its variables (attrs matter)."""

    name: str
    lhs: Application
    rhs: Callable[..., Node | None]
    variables: tuple[str, ...]
    takes_root: bool = False
    examples: Callable[[], Iterable[Node]] | None = None

    def apply(self, node: Node) -> Node | None:
        """What the rule makes of the node; None if it does not apply."""
        if not self.lhs.may_be(node):
            return None
        for binding in matches(self.lhs, node, {}):
            operands = [binding[v] for v in self.variables]
            made = self.rhs(node, *operands) if self.takes_root else self.rhs(*operands)
            if made is not None:
                assert made.type == node.type, f"rule {self.name!r} makes {made!r} of {node!r}"
                return made
        return None


class Rules:
    """An ordered list of rules; lists add with +."""

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self.rules = tuple(rules)
        names = [r.name for r in self.rules]
        assert len(set(names)) == len(names), f"two rules of one name: {[n for n, k in Counter(names).items() if k > 1]}"
        self.by_prim: dict[Prim, list[Rule]] = {}
        for r in self.rules:
            self.by_prim.setdefault(r.lhs.prim, []).append(r)

    def __add__(self, other: Rules) -> Rules:
        return Rules(self.rules + other.rules)

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    def __len__(self) -> int:
        return len(self.rules)

    def first(self, node: Node) -> tuple[Rule, Node] | None:
        """The first rule that changes the node, and what it makes of it."""
        for r in self.by_prim.get(node.prim, ()):
            made = r.apply(node)
            if made is not None and made is not node:
                return r, made
        return None


def rule(name: str, lhs: Callable[..., Pattern], rhs: Callable[..., Node | None], examples: Callable[[], Iterable[Node]] | None = None) -> Rule:
    """A rule from a pair of functions; where the right side's first parameter is `root`, it is also given the node itself (for its attrs)."""
    variables = _parameters(lhs)
    pattern = lhs(*(Variable(v) for v in variables))
    assert isinstance(pattern, Application), f"rule {name!r}: the left side is no primitive"
    takes_root = _parameters(rhs)[:1] == ("root",)
    return Rule(name, pattern, rhs, variables, takes_root, examples)


def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """Names of the positional parameters (`inspect.signature` would take as long as all else that a rule does when it is made)."""
    code = function.__code__
    return code.co_varnames[: code.co_argcount]


# ---------------------------------------------------------------------------------------------- rewriting
class Rewriter:
    """Rewrites nodes by a list of rules until none applies, sharing what was done between roots."""

    def __init__(self, rules: Rules, fired: Counter[str], limit: int = LIMIT) -> None:
        self.rules, self.fired, self.limit = rules, fired, limit
        self.count = 0
        self.recent: deque[str] = deque(maxlen=8)
        self.done: dict[Node, Node] = {}
        self.becomes: dict[Node, Node] = {}  # one step: with settled args, or by one rule

    def __call__(self, root: Node) -> Node:
        """The node in its final form.  Raises VerifyError at the limit."""
        stack = [root]
        while stack:
            node = stack[-1]
            if node in self.done:
                stack.pop()
                continue
            missing = [a for a in node.args if a not in self.done]
            if missing:
                stack += reversed(missing)
                continue
            if node not in self.becomes:
                self.becomes[node] = self._step(node)
            following = self.becomes[node]
            if following is node:
                self.done[node] = node
            elif following in self.done:
                self.done[node] = self.done[following]
            else:
                self._advance()
                stack.append(following)
        return self.done[root]

    def _step(self, node: Node) -> Node:
        """The node, whose args are settled, one step on; itself if there is none."""
        built = rebuild(node, tuple(self.done[a] for a in node.args))
        if built is not node:
            return built
        changed = self.rules.first(node)
        if changed is None:
            return node
        self.fired[changed[0].name] += 1
        self.recent.append(changed[0].name)
        return changed[1]

    def _advance(self) -> None:
        """One more step towards a final form; rules in a circle step for ever."""
        self.count += 1
        if self.count > self.limit:
            raise VerifyError(f"rewriting does not end after {self.limit} steps: {', '.join(self.recent)}", advice="These rules undo each other.")


def rewrite(root: Node, rules: Rules, fired: Counter[str] | None = None, limit: int = LIMIT) -> Node:
    """The node rewritten by the rules to a fixed point.

    >>> from thermit.ir.build import graph_input
    >>> from thermit.ir import build as b
    >>> from thermit.ir.types import FLOAT32, TensorType
    >>> x = graph_input(0, TensorType((2,), FLOAT32))
    >>> rewrite(b.neg(b.neg(x)), Rules([rule("neg neg", lambda x: neg(neg(x)), lambda x: x)])) is x
    True
    """
    return Rewriter(rules, Counter() if fired is None else fired, limit)(root)
