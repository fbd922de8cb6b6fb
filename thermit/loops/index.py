"""Index arithmetic: linear forms over loop variables, kept canonical.

What comes in: scalar int64 expressions made of loop variables, constants, sums, products with constants, and atoms (whatever else:
a quotient, a remainder, a loaded index).  What goes out: expressions `const + sum(coefficient * atom)` with the atoms in a fixed
order, so equal indices are one object.  Views become arithmetic here: reshape is a linearize followed by a delinearize, and the
ranges of the atoms make most quotients and remainders vanish.

Invariant: every expression made here is nonnegative wherever its value is used (guards exclude the rest), so truncating
division is floor division.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

from thermit.ir import build
from thermit.ir import prims as p
from thermit.ir.node import Node
from thermit.ir.types import INT64, Shape, TensorType, reshape_blocks

SCALAR = TensorType((), INT64)
Terms = dict[Node, int]
Form = tuple[int, Terms]  # const, coefficient of each atom (never 0)
UNBOUNDED = 1 << 62


@functools.lru_cache(maxsize=4096)
def number(value: int) -> Node:
    return build.const(value, INT64)


ZERO = number(0)


class Indices:
    """The forms and the ranges of the index expressions of one program: atom a takes values in [0, extents[a])."""

    def __init__(self) -> None:
        self.extents: dict[Node, int] = {}
        self._forms: dict[Node, Form] = {}
        self._order: dict[Node, int] = {}
        self.limits: dict[Node, tuple[int, int]] = {}  # of what is loaded, where its expression tells them
        self.relied: set[tuple[Node, Node]] = set()  # quotients and remainders that are so only by the ranges of their atoms

    def variable(self, name: str, extent: int) -> Node:
        """A loop variable over [0, extent)."""
        node = build.index(name)
        self.extents[node] = extent
        return node

    # ------------------------------------------------------------------ forms
    def form(self, node: Node) -> Form:
        """The linear form of an int64 expression; what is not linear is an atom."""
        found = self._forms.get(node)
        if found is None:
            found = self._forms[node] = self._parse(node)
        return found

    def _parse(self, node: Node) -> Form:
        prim = node.prim
        if prim is p.CONST:
            return int(node.attrs.value), {}
        if prim in (p.ADD, p.SUB) and node.dtype is INT64:
            return self._sum([(1, node.args[0]), (1 if prim is p.ADD else -1, node.args[1])])
        if prim is p.MUL:
            for x, y in (node.args, node.args[::-1]):
                if y.prim is p.CONST:
                    return self._sum([(int(y.attrs.value), x)])
        return 0, {node: 1}

    def _sum(self, parts: Iterable[tuple[int, Node]], const: int = 0) -> Form:
        terms: Terms = {}
        for factor, node in parts:
            if factor:
                c, inner = self.form(node)
                const += factor * c
                for atom, k in inner.items():
                    terms[atom] = terms.get(atom, 0) + factor * k
        if any(atom.prim is p.REM and atom.args[1].prim is p.CONST for atom in terms):
            return self._rejoined(const, {a: k for a, k in terms.items() if k})
        return const, {a: k for a, k in terms.items() if k}

    def _rejoined(self, const: int, terms: Terms) -> Form:
        """c * (x / c) + x % c is x."""
        for rem in [atom for atom in terms if atom.prim is p.REM and atom.args[1].prim is p.CONST]:
            inner, divisor = rem.args
            quotient = self._quotient(inner, int(divisor.attrs.value))
            k = terms[rem]
            if terms.get(quotient) == k * int(divisor.attrs.value):
                others = [(f, a) for a, f in terms.items() if a is not rem and a is not quotient]
                return self._sum([*others, (k, inner)], const)
        return const, terms

    def _make(self, form: Form) -> Node:
        const, terms = form
        node: Node | None = None
        for atom in sorted(terms, key=self._rank) if len(terms) > 1 else terms:
            k = terms[atom]
            term = atom if k == 1 else Node(p.MUL, (atom, number(k)), None, SCALAR)
            node = term if node is None else Node(p.ADD, (node, term), None, SCALAR)
        if node is None:
            return number(const)
        if const:
            node = Node(p.ADD, (node, number(const)), None, SCALAR)
        self._forms.setdefault(node, form)
        return node

    def _rank(self, atom: Node) -> int:
        return self._order.setdefault(atom, len(self._order))

    def linear(self, parts: Iterable[tuple[int, Node]], const: int = 0) -> Node:
        """const + the sum of factor * node."""
        parts = [(k, node) for k, node in parts if k and node is not ZERO]
        if not const and len(parts) == 1 and parts[0][0] == 1:
            return parts[0][1]
        return self._make(self._sum(parts, const))

    # ------------------------------------------------------------------ ranges
    def bounds(self, node: Node) -> tuple[int, int]:
        """Smallest and largest value, both inclusive."""
        return self._bounds(self.form(node))

    def _bounds(self, form: Form) -> tuple[int, int]:
        const, terms = form
        if not const and len(terms) == 1 and 1 in terms.values():
            return self._atom_bounds(next(iter(terms)))
        low = high = const
        for atom, k in terms.items():
            ends = self._atom_bounds(atom)
            least, most = ends if k > 0 else ends[::-1]
            low, high = low + k * least, high + k * most
        is_known = low > -UNBOUNDED and high < UNBOUNDED
        return (low, high) if is_known else (-UNBOUNDED, UNBOUNDED)  # what is open on one side may wrap to the other

    def _atom_bounds(self, atom: Node) -> tuple[int, int]:
        """Of an index that is data only what min and max say: clamped places need no check."""
        extent = self.extents.get(atom)
        if extent is not None:
            return 0, extent - 1
        if atom in self.limits:
            return self.limits[atom]
        if atom.prim in (p.MIN, p.MAX) and atom.dtype is INT64:
            (a, b), (c, d) = self.bounds(atom.args[0]), self.bounds(atom.args[1])
            return (min(a, c), min(b, d)) if atom.prim is p.MIN else (max(a, c), max(b, d))
        return -UNBOUNDED, UNBOUNDED

    # ------------------------------------------------------------------ division
    def divmod(self, node: Node, divisor: int) -> tuple[Node, Node]:
        """Quotient and remainder of a nonnegative index by a positive constant, simplified by the ranges of its atoms."""
        if divisor == 1:
            return node, ZERO
        const, terms = self.form(node)
        whole = {a: k // divisor for a, k in terms.items() if k % divisor == 0}
        rest = {a: k for a, k in terms.items() if k % divisor}
        for lift in (const // divisor, 0):
            low, high = self._bounds((const - lift * divisor, rest))
            if low >= 0:
                break
        remainder = (const - lift * divisor, rest)
        if low < 0:  # what is divided must not be negative by itself, even where the whole index is not
            least = self._bounds((const, rest))[0]
            if least > -UNBOUNDED:
                lift = least // divisor
                remainder = (const - lift * divisor, rest)
            else:
                lift, whole, remainder = 0, {}, (const, terms)
            low, high = self._bounds(remainder)
        if low >= 0 and high < divisor:
            made = self._make((lift, whole)), self._make(remainder)
            if rest:
                self.relied.add(made)
            return made
        inner = self._make(remainder)
        quotient, left = self._quotient(inner, divisor), Node(p.REM, (inner, number(divisor)), None, SCALAR)
        self.extents.setdefault(quotient, max(high, 0) // divisor + 1)
        self.extents.setdefault(left, divisor)
        return self.linear([(1, self._make((lift, whole))), (1, quotient)]), left

    def _quotient(self, inner: Node, divisor: int) -> Node:
        if inner.prim is p.DIV and inner.args[1].prim is p.CONST:  # (x / a) / b is x / ab
            divisor *= int(inner.args[1].attrs.value)
            inner = inner.args[0]
        return Node(p.DIV, (inner, number(divisor)), None, SCALAR)

    # ------------------------------------------------------------------ shapes
    def linearize(self, index: Sequence[Node], shape: Shape) -> Node:
        """The row-major position of an index in a shape."""
        parts, step = [], 1
        for i, n in zip(reversed(index), reversed(shape), strict=True):
            parts.append((step, i))
            step *= n
        return self.linear(parts)

    def delinearize(self, position: Node, shape: Shape) -> tuple[Node, ...]:
        """The index in a shape at a row-major position."""
        out: list[Node] = []
        for k in range(len(shape) - 1, -1, -1):
            if shape[k] == 1:
                out.append(ZERO)
            elif all(n == 1 for n in shape[:k]):
                out.append(position)
                position = ZERO
            else:
                position, rest = self.divmod(position, shape[k])
                out.append(rest)
        return tuple(reversed(out))

    def reshape(self, index: Sequence[Node], shape: Shape, inner: Shape) -> tuple[Node, ...]:
        """The index in `inner` of the element that stands at `index` in `shape`, both with the same number of elements.

        Blocks of axes with the same product are taken apart from each other, so that no quotient crosses them.
        """
        if 0 in shape:
            return (ZERO,) * len(inner)
        out = [ZERO] * len(inner)
        for outer, own in reshape_blocks(shape, inner):
            position = self.linearize([index[a] for a in outer], tuple(shape[a] for a in outer))
            for k, i in zip(own, self.delinearize(position, tuple(inner[k] for k in own)), strict=True):
                out[k] = i
        return tuple(out)
