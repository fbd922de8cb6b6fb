"""From a kernel to its loop program.

What comes in: a `Kernel` (stores, loads, rows).  What goes out: a `LoopProgram` of serial loops; `tile` chooses vectors.

The kernel is pulled twice (see pull.py): a probe in which every axis is a variable of its own tells how each axis is seen (which
reductions depend on it, in which linear forms it occurs); then axes are ordered and merged, and the real pull makes the statements.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from thermit.ir import build
from thermit.ir import prims as p
from thermit.ir.node import Node, toposort
from thermit.ir.types import Shape, TensorType
from thermit.loops.canonical import canonical
from thermit.loops.chain import lower_chain, products_in
from thermit.loops.index import ZERO, number
from thermit.loops.layout import Layout, Seen, choose
from thermit.loops.nest import LoopProgram, Store
from thermit.loops.product import lower_product
from thermit.loops.pull import Index, Pull, both, product
from thermit.loops.strips import StripPull
from thermit.schedule.kernel import Kernel, Stored, match

APART_PLACES = 64  # a longer stack stays a loop
APART_GROWTH = 4  # times the values of the loop that a stack written out may have: what stands above it is written out too
SCATTER: dict[str, p.Prim] = {"add": p.ADD, "mul": p.MUL, "min": p.MIN, "max": p.MAX}


def lower(kernel: Kernel) -> LoopProgram:
    """The kernel as serial loops; stores and reductions of one row stand in one iteration of the parallel loop."""
    return replace(_lowered(canonical(kernel)), name=kernel.name)


@functools.lru_cache(maxsize=1024)
def _lowered(kernel: Kernel) -> LoopProgram:
    if any(s.node.prim is p.SCATTER for s in kernel.stores) and all(load.node is not kernel.stores[0].node for load in kernel.loads):
        return lower_scatter(kernel)
    products = products_in(kernel)
    if len(products) == 2:
        return lower_chain(kernel, *products)
    if products:
        return lower_product(kernel, products[0])
    layout = _layout(kernel)
    return _build(StripPull(kernel, layout) if layout.strip else Pull(kernel, layout))


def _main(kernel: Kernel) -> Stored:
    """The store whose domain is the kernel's."""
    return max(kernel.stores, key=lambda s: s.node.type.numel)


def _layout(kernel: Kernel) -> Layout:
    """Pulls every store with one variable an axis and chooses the loops from what was seen."""
    flat = _flat_layout(kernel)
    if flat is not None:
        return flat
    known = _is_stack(kernel)
    probe, variables = _probe(kernel, 0 if known else None)
    apart = 0 if known else _stacked_axis(kernel, probe, variables)
    if apart is not None and not known:
        written_out, named = _probe(kernel, apart)
        if _values(written_out) <= APART_GROWTH * _values(probe):
            probe, variables = written_out, named
        else:
            apart = None
    main = _main(kernel)
    reductions = [(node, frozenset(atom for i in index for atom in _variables(i)), own) for node, index, own in probe.reached]
    layout = choose(Seen(main.node.shape, main.strides, variables, probe.needed(), probe.loads, reductions, probe.scans), probe.indices)
    layout.apart = apart
    axes = {v: a for a, v in enumerate(variables) if v is not None}
    rows = {a for group in layout.order[: layout.rows] for a in group}
    for node, index in sorted(probe.unguarded, key=lambda item: probe.ranks[item[0]]):
        forms = [probe.indices.form(i) for i in index]
        if all(atom in axes and axes[atom] in rows for _, terms in forms for atom in terms):
            layout.first.append((node, tuple((const, tuple((axes[atom], k) for atom, k in terms.items())) for const, terms in forms)))
    return layout


def _flat_layout(kernel: Kernel) -> Layout | None:
    """Maps of dense tensors that all have the same strides are one loop: no probe is needed to see it."""
    main = _main(kernel)
    shape, strides = main.node.shape, main.strides
    axes = sorted((a for a, n in enumerate(shape) if n != 1), key=lambda a: -strides[a])
    if any(strides[a] != strides[b] * shape[b] for a, b in itertools.pairwise(axes)) or not axes or kernel.rows:
        return None
    for node, its in [(s.node, s.strides) for s in kernel.stores] + [(load.node, load.strides) for load in kernel.loads]:
        if node.shape != shape or any(its[a] != strides[a] for a in axes):
            return None
    leaves = {load.node for load in kernel.loads}
    stack, done = [s.node for s in kernel.stores if s.node not in leaves], set(leaves)
    while stack:
        node = stack.pop()
        if node.prim.kind not in ("map", "const"):
            return None
        fresh = [a for a in node.args if a not in done]
        done.update(fresh)
        stack += fresh
    return Layout((tuple(axes),), 0)


def _probe(kernel: Kernel, apart: int | None) -> tuple[Pull, tuple[Node | None, ...]]:
    """A pull with one variable for every axis of the domain (but `apart`), and these variables."""
    probe, main = Pull(kernel, None), _main(kernel)
    probe.declare()
    scope = probe.open(build.index("p"), 1, 1)
    probe.active = [scope]
    shape = main.node.shape
    variables = tuple(None if n == 1 or a == apart else probe.open(build.index(f"d{a}"), n, 1).variable for a, n in enumerate(shape))
    for k, s in sorted(enumerate(kernel.stores), key=lambda item: -item[1].node.type.numel):
        reduced = {atom for _, index, _ in probe.reached for i in index for atom in _variables(i)}
        whole = s.node.type.numel == main.node.type.numel
        free = [a for a, v in enumerate(variables) if a == apart or (v is not None and (whole or v in reduced))]
        for named in _named(variables, shape, apart):
            probe.store(k, s, _placed(probe, s.node.shape, shape, free, named), scope)
    return probe, variables


def _named(variables: Sequence[Node | None], shape: Shape, apart: int | None) -> Iterator[Sequence[Node | None]]:
    """The variables, or once for each place on the axis `apart` with that place as a number."""
    if apart is None:
        yield variables
        return
    for place in range(shape[apart]):
        yield [number(place) if a == apart else v for a, v in enumerate(variables)]


def _is_stack(kernel: Kernel) -> bool:
    """Whether a kernel is a stack and nothing above it, so that its places share what they share as statements of their own, too: no probe
    is needed to see it."""
    if len(kernel.stores) != 1 or kernel.rows:
        return False
    node = kernel.stores[0].node
    leaves = [load.node for load in kernel.loads]
    if node in leaves or node.prim is not p.CONCAT or node.attrs.axis != 0 or any(part.shape[0] != 1 for part in node.args):
        return False
    return len(node.args) <= APART_PLACES and all(n.prim.kind not in ("reduce", "scan") for n in toposort([node], leaves))


def _stacked_axis(kernel: Kernel, probe: Pull, variables: Sequence[Node | None]) -> int | None:
    """The axis along which separate values are stacked: as a loop it would compute all of them at every place."""
    numel = _main(kernel).node.type.numel
    if probe.reached or probe.scans or kernel.rows or any(s.node.type.numel != numel for s in kernel.stores):
        return None
    axes = [a for a, v in enumerate(variables) if v in probe.stacked and _main(kernel).node.shape[a] <= APART_PLACES]
    return axes[0] if axes else None


def _values(probe: Pull) -> int:
    return len(probe.active[0].memo)


def _variables(expression: Node) -> list[Node]:
    return [node for node in toposort([expression]) if node.prim is p.INDEX]


def _placed(pull: Pull, shape: Shape, domain: Shape, free: Sequence[int], variables: Sequence[Node | None]) -> Index:
    """The index of a store in terms of the variables of the domain axes that it runs over: axis by axis, or as a reshape of them."""
    axes = match(shape, domain, free)
    if axes is not None:
        return tuple(ZERO if a is None else variables[a] or ZERO for a in axes)
    over = tuple(domain[a] for a in free)
    assert product(over) == product(shape), f"a store of {shape} does not fit the domain {domain}"
    return pull.indices.reshape([variables[a] or ZERO for a in free], over, shape)


def _build(pull: Pull) -> LoopProgram:
    kernel, layout, main = pull.kernel, pull.layout, _main(pull.kernel)
    assert layout is not None
    pull.declare()
    shape = main.node.shape
    extents = [product(shape[a] for a in group) for group in layout.order]
    reduces = any(rank > 0 for rank in pull.ranks.values())
    outer = layout.rows or (0 if reduces or layout.in_order else min(1, len(extents)))
    chain = [pull.open(build.index("i0"), extents[0] if outer else 1, 1)]
    for k in range(1, outer):  # after what the outer rows compute
        chain.append(pull.open(build.index(f"i{k}"), extents[k], k + 1))
        chain[k - 1].items.append((1 << 30, chain[k]))
    pull.outer = len(chain)
    pull.owned = {scope.variable for scope in chain}
    variables: list[Node | None] = [None] * len(shape)
    for group, scope in zip(layout.order[:outer], chain, strict=False):
        variables[group[-1]] = scope.variable
    if isinstance(pull, StripPull):
        chain[-1].extent = -(-extents[outer - 1] // layout.strip)
        pull.indices.extents[chain[-1].variable] = chain[-1].extent
        variables[layout.order[outer - 1][-1]] = pull.cut(extents[outer - 1], chain[-1])
    pull.active = chain
    for node, forms in layout.first:  # so that what is kept in rows is written by the first loop that needs it
        index = tuple(pull.indices.linear([(k, variables[a] or ZERO) for a, k in terms], const) for const, terms in forms)
        pull.pull(node, index, None)
    for k, s in enumerate(kernel.stores):
        whole = s.node.type.numel == main.node.type.numel
        inner = tuple(extents[outer:]) if whole else ()
        loops = pull.loops(chain[-1], inner, pull.rank_of(s))
        inside = list(variables)
        for group, scope in zip(layout.order[outer:], loops, strict=False):
            inside[group[-1]] = scope.variable
        free = {a for group in (layout.order if whole else layout.order[:outer]) for a in group}
        if layout.apart is not None:
            free.add(layout.apart)
        for named in _named(inside, shape, layout.apart):
            index = _placed(pull, s.node.shape, shape, sorted(free), named)
            if isinstance(pull, StripPull):
                loops = pull.loops_to_columns(chain[-1], inner, pull.rank_of(s))
            pull.active = [*chain, *loops]
            pull.store(k, s, index, pull.scope_at(index, None))
    top = chain[0]
    assert isinstance(top.extent, int)
    return LoopProgram(kernel.name, tuple(pull.memories), top.variable, top.extent, top.body())


# ---------------------------------------------------------------------------------------------- scatter
def lower_scatter(kernel: Kernel) -> LoopProgram:
    """One scatter: the base is copied (an update writes into it), then the values are put one after another, in row-major order."""
    (s,) = kernel.stores
    node = s.node
    base, value, picks = node.args[0], node.args[1], node.args[2:]
    pull = Pull(kernel, Layout((), 0))
    pull.declare()
    top = pull.open(build.index("i0"), 1, 1)
    pull.active = [top]
    if s.target != "update":
        copies = pull.loops(top, tuple(node.shape), pull.ranks[base] + 1)
        pull.active = [top, *copies]
        at = tuple(scope.variable for scope in copies)
        copied = Store("out0", pull.indices.linear(zip(s.strides, at, strict=True)), pull.pull(base, at, None))
        pull.active[-1].items.append((2 * pull.ranks[base] + 3, copied))
    last = 1 << 20
    puts = pull.loops(top, tuple(value.shape), last)
    pull.active = [top, *puts]
    index = tuple(scope.variable for scope in puts)
    places = tuple(pull.pull(pick, index, None) for pick in picks)
    ok: Node | None = None
    for place, n in zip(places, node.shape, strict=True):
        ok = both(ok, pull.between(place, n))
    if ok is not None:
        pull.check(ok, None, last)
    offset = pull.indices.linear(zip(s.strides, places, strict=True))
    put = pull.pull(value, index, None)
    if node.attrs.combine != "set":
        put = Node(SCATTER[node.attrs.combine], (build.load("out0", node.dtype, offset, ok), put), None, TensorType((), node.dtype))
    pull.active[-1].items.append((4 * last, Store("out0", offset, put, ok)))
    return LoopProgram(kernel.name, tuple(pull.memories), top.variable, 1, top.body())
