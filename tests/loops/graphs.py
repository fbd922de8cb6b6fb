"""Random graphs of primitives, small and odd, and the named ones that every stage is tried on."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np

from thermit.ir import build as b
from thermit.ir import prims as p
from thermit.ir.node import Graph, Node, Output, Update
from thermit.ir.types import BOOL, FLOAT32, FLOAT64, INT32, INT64, DType, Shape, TensorType, contiguous_strides


def inputs_of(*types: tuple[Shape, DType]) -> tuple[Node, ...]:
    return tuple(b.graph_input(i, TensorType(shape, dtype)) for i, (shape, dtype) in enumerate(types))


def graph_of(inputs: Sequence[Node], outputs: Sequence[Node], updates: Sequence[Update] = (), strides: Sequence[Shape] | None = None) -> Graph:
    """Contiguous inputs (unless strides are given) and outputs."""
    laid = tuple(strides) if strides is not None else tuple(contiguous_strides(x.shape) for x in inputs)
    return Graph(tuple(inputs), laid, tuple(Output(o, contiguous_strides(o.shape)) for o in outputs), tuple(updates))


def arrays_for(graph: Graph, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    out = []
    for node in graph.inputs:
        if node.dtype is BOOL:
            out.append(rng.random(node.shape) < 0.5)
        elif node.dtype.is_float:
            out.append(rng.standard_normal(node.shape).astype(node.dtype.numpy))
        else:
            out.append(rng.integers(max(node.dtype.min, -9), 10, node.shape).astype(node.dtype.numpy))
    return out


def kept(x: Node, axes: Sequence[int]) -> Shape:
    return tuple(1 if a in axes else n for a, n in enumerate(x.shape))


def spread(prim: p.Prim, x: Node, axes: Sequence[int]) -> Node:
    """The reduction, repeated along its axes."""
    return b.broadcast_to(b.reshape(b.reduce(prim, x, axes), kept(x, axes)), x.shape)


def softmax(x: Node, axis: int) -> Node:
    e = b.exp(b.sub(x, spread(p.AMAX, x, (axis,))))
    return b.div(e, spread(p.SUM, e, (axis,)))


def moments(x: Node, axes: Sequence[int]) -> tuple[Node, Node, Node]:
    """Deviations from the mean, the mean and 1 / the standard deviation, the last two with the axes kept as size 1."""
    n = math.prod(x.shape[a] for a in axes)
    mean = b.div(b.reshape(b.reduce(p.SUM, x, axes), kept(x, axes)), float(n))
    d = b.sub(x, b.broadcast_to(mean, x.shape))
    variance = b.div(b.reshape(b.reduce(p.SUM, b.mul(d, d), axes), kept(x, axes)), float(n))
    return d, mean, b.div(b.like(1.0, variance), b.sqrt(b.add(variance, 1e-5)))


def layer_norm(x: Node, axes: Sequence[int]) -> Node:
    d, _, scale = moments(x, axes)
    return b.mul(d, b.broadcast_to(scale, x.shape))


class Maker:
    """Grows a random graph; `r` decides."""

    def __init__(self, r: random.Random) -> None:
        self.r = r
        self.sizes = [1, 2, 3, 4, 5, 7, 8, 12, 17]
        self.inputs: list[Node] = []
        self.pool: list[Node] = []

    def shape(self, rank: int | None = None, limit: int = 400) -> Shape:
        rank = self.r.choice([0, 1, 1, 2, 2, 2, 3, 3, 4]) if rank is None else rank
        while True:
            shape = tuple(self.r.choice(self.sizes) for _ in range(rank))
            if math.prod(shape) <= limit:
                return shape

    def new_input(self, shape: Shape | None = None, dtype: DType | None = None) -> Node:
        dtype = dtype or self.r.choice([FLOAT32, FLOAT32, FLOAT64, INT64, INT32])
        node = b.graph_input(len(self.inputs), TensorType(self.shape() if shape is None else shape, dtype))
        self.inputs.append(node)
        self.pool.append(node)
        return node

    def pick(self) -> Node:
        return self.r.choice(self.pool[-6:] if self.r.random() < 0.7 else self.pool)

    def same(self, x: Node) -> Node:
        """A value of the type of x."""
        fits = [n for n in self.pool if n.type == x.type]
        return self.r.choice(fits) if fits and self.r.random() < 0.8 else self.new_input(x.shape, x.dtype)

    def grow(self) -> Node:
        kind = self.r.choice(["map", "map", "map", "view", "view", "view", "reduce", "reduce", "index", "scan", "broadcast", "product"])
        x = self.pick()
        made: Node = getattr(self, kind)(x)
        if made.type.numel <= 1500:
            self.pool.append(made)
        return made

    def map(self, x: Node) -> Node:
        r = self.r
        if x.dtype is BOOL:
            return b.and_(x, self.same(x)) if r.random() < 0.5 else b.cast(x, FLOAT32)
        if x.dtype.is_float:
            choice = r.randrange(9)
            if choice == 0:
                return b.sin(x)
            if choice == 1:
                return b.exp(b.minimum(x, 2.0))
            if choice == 2:
                return b.where(b.lt(x, 0.25), x, self.same(x))
            if choice == 3:
                return b.cast(x, FLOAT64 if x.dtype is FLOAT32 else FLOAT32)
            if choice == 4:
                return b.tanh(x)
            return r.choice([b.add, b.sub, b.mul, b.maximum])(x, self.same(x)) if choice < 8 else b.mul(x, 0.5)
        choice = r.randrange(5)
        if choice == 0:
            return b.div(x, b.like(r.choice([2, 3, -3]), x))
        if choice == 1:
            y = self.same(x)
            return b.rem(x, b.where(b.eq(y, 0), b.like(3, y), y))
        if choice == 2:
            return b.cast(x, FLOAT32)
        return r.choice([b.add, b.sub, b.minimum, b.xor])(x, self.same(x))

    def view(self, x: Node) -> Node:
        r, shape, rank = self.r, x.shape, len(x.shape)
        choice = r.randrange(9)
        if choice == 0 or rank == 0:
            return b.reshape(x, self.factors(x.type.numel))
        if choice == 1:
            return b.permute(x, r.sample(range(rank), rank))
        if choice in (2, 3):
            starts, steps, lengths = [], [], []
            for n in shape:
                step = r.choice([1, 1, 1, 2, -1, -2, 3])
                length = r.randint(1, max(1, (n + abs(step) - 1) // abs(step)))
                reach = (length - 1) * step
                starts.append(r.randint(max(0, -reach), n - 1 - max(0, reach)) if n else 0)
                steps.append(step)
                lengths.append(length)
            return b.slice_(x, starts, steps, tuple(lengths))
        if choice == 4:
            pads = [[r.choice([0, 0, 1, 2]) for _ in shape] for _ in range(3)]
            return b.pad(x, pads[0], pads[1], r.choice([0, 1]), [r.choice([0, 0, 0, 1]) for _ in shape])
        if choice in (5, 6):
            axis = r.randrange(rank)
            parts = [x, self.same(x)] + ([b.slice_(x, [0] * rank, [1] * rank, shape)] if r.random() < 0.3 else [])
            return b.concat(parts, axis)
        if choice == 8:
            over = shape[r.randrange(rank) :]
            strides, dilations = ([r.choice([1, 1, 2, 3]) for _ in over] for _ in range(2))
            taps = [r.randint(1, min(3, (n - 1) // d + 1)) if n else 1 for n, d in zip(over, dilations, strict=True)]
            places = [max(0, n - 1 - (k - 1) * d) // s + 1 if n else 0 for n, k, s, d in zip(over, taps, strides, dilations, strict=True)]
            return b.window(x, tuple(places), tuple(taps), strides, dilations)
        flat = b.reshape(x, (x.type.numel,))
        if x.type.numel < 4:
            return flat
        return b.strided(flat, (2, (flat.shape[0] - 1) // 2), (1, 2), 0)

    def factors(self, numel: int) -> Shape:
        out, rest = [], numel
        while rest > 1 and len(out) < 4:
            d = self.r.choice([k for k in range(1, min(rest, 20) + 1) if rest % k == 0])
            out.append(d)
            rest //= d
        out.insert(self.r.randint(0, len(out)), rest)
        return tuple(out)

    def broadcast(self, x: Node) -> Node:
        rank = len(x.shape)
        if self.r.random() < 0.6 and rank:
            axes = self.r.sample(range(rank), self.r.randint(1, rank))
            prim = self.r.choice([p.SUM, p.AMAX]) if x.dtype is not BOOL else p.ANY
            return spread(prim, x, axes)
        shape = tuple(self.r.choice([2, 3, 5]) if n == 1 else n for n in x.shape)
        return b.expand(x, shape) if self.r.random() < 0.5 else b.broadcast_to(x, (self.r.choice([2, 3]), *shape))

    def reduce(self, x: Node) -> Node:
        rank = len(x.shape)
        if rank == 0:
            return x
        axes = self.r.sample(range(rank), self.r.randint(1, rank))
        if x.dtype is BOOL:
            return b.reduce(self.r.choice([p.ANY, p.ALL]), x, axes)
        prim = self.r.choice([p.SUM, p.SUM, p.AMAX, p.AMIN, p.ARGMAX, p.ARGMIN])
        return b.reduce(prim, x, axes[:1] if prim in (p.ARGMAX, p.ARGMIN) else axes)

    def product(self, x: Node) -> Node:
        """x, or x turned, times something that may be made of x."""
        r = self.r
        if not x.shape or not x.dtype.is_float:
            return x
        x = b.reshape(x, (1, *x.shape)) if len(x.shape) == 1 else x
        turn = (*range(len(x.shape) - 2), len(x.shape) - 1, len(x.shape) - 2)
        left, columns, choice = b.permute(x, turn) if r.random() < 0.3 else x, r.choice(self.sizes), r.random()
        if choice < 0.2:
            return b.contract(left, b.permute(left, turn))
        if choice < 0.6:
            return b.contract(left, self.new_input((*left.shape[:-2], left.shape[-1], columns), x.dtype))
        return b.contract(left, b.permute(self.new_input((*left.shape[:-2], columns, left.shape[-1]), x.dtype), turn))

    def scan(self, x: Node) -> Node:
        return b.scan(p.CUMSUM, x, self.r.randrange(len(x.shape))) if x.shape and x.dtype is not BOOL else x

    def index(self, x: Node) -> Node:
        if not x.shape or x.dtype is BOOL:
            return x
        shape = self.shape(limit=60)
        picks = []
        for n in x.shape:
            raw = self.new_input(shape, INT64)
            picks.append(b.rem(b.abs_(raw), n))
        if self.r.random() < 0.6:
            return b.gather(x, picks)
        value = self.new_input(shape, x.dtype)
        return b.scatter(x, value, picks, self.r.choice(["set", "add", "max"]))


def random_graph(seed: int, nodes: int = 14) -> Graph:
    """Two or three outputs, sometimes an update, inputs sometimes not contiguous."""
    maker = Maker(random.Random(seed))
    r = maker.r
    for _ in range(r.randint(1, 2)):
        maker.new_input()
    for _ in range(nodes):
        maker.grow()
    outputs = [maker.pool[-1]] + [maker.pick() for _ in range(r.randint(0, 2))]
    updates = []
    for i, x in enumerate(maker.inputs):
        fits = [n for n in maker.pool if n.type == x.type and n is not x]
        if fits and r.random() < 0.3:
            updates.append(Update(i, r.choice(fits)))
    strides = []
    for x in maker.inputs:
        order = r.sample(range(len(x.shape)), len(x.shape)) if r.random() < 0.3 else list(range(len(x.shape)))
        gap, step, found = r.choice([1, 1, 2]), 1, [0] * len(x.shape)
        for a in reversed(order):
            found[a] = step
            step *= max(x.shape[a], 1) + gap - 1
        strides.append(tuple(found))
    return graph_of(maker.inputs, outputs, updates, strides)
