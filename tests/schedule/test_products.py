"""Which kernel computes a matrix product, what shares it, and what is stored for it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.loops.graphs import Maker, graph_of, inputs_of, layer_norm, random_graph, softmax, spread
from tests.schedule.test_fuse import call_on, kernels
from thermit.ir import build as b
from thermit.ir import prims as p
from thermit.ir.node import Graph, Node, Update, toposort
from thermit.ir.types import FLOAT32, FLOAT64, Shape
from thermit.loops.product import product_in
from thermit.schedule.fuse import fuse
from thermit.schedule.kernel import Kernel

F = FLOAT32


def one(function: Any, *shapes: Shape) -> Graph:
    inputs = inputs_of(*((s, F) for s in shapes))
    out = function(*inputs)
    return graph_of(inputs, out if isinstance(out, tuple) else (out,))


def gelu(x: Node) -> Node:
    return b.mul(b.mul(x, 0.5), b.add(b.erf(b.mul(x, 0.7071067690849304)), 1.0))


def products(kernel: Kernel) -> list[Node]:
    leaves = {load.node: None for load in kernel.loads}
    return [n for n in toposort((s.node for s in kernel.stores), leaves=leaves) if n.prim is p.CONTRACT and n not in leaves]


def biased(x: Node, w: Node, c: Node) -> Node:
    made = b.contract(x, w)
    return b.add(made, b.broadcast_to(c, made.shape))


X, W, C = (64, 32), (32, 48), (48,)
ONE_KERNEL: dict[str, Graph] = {
    "alone": one(b.contract, X, W),
    "sides turned, cut, repeated": one(
        lambda x, w: b.contract(b.permute(x, (1, 0)), b.slice_(b.expand(w, (32, 96)), (0, 40), (1, 1), (32, 48))), (32, 64), (32, 1)
    ),
    "bias, activation, residual": one(lambda x, w, c, r: b.add(gelu(biased(x, w, c)), r), X, W, C, (64, 48)),
    "a reshape between": one(lambda x, w, c, r: b.add(gelu(b.reshape(biased(x, w, c), (8, 8, 48))), r), X, W, C, (8, 8, 48)),
    "rows and heads apart, and back": one(
        lambda x, w, c: b.reshape(b.exp(b.reshape(b.add(b.reshape(biased(x, w, c), (4, 16, 48)), 1.0), (4, 16, 6, 8))), (64, 48)), X, W, C
    ),
    "several outputs": one(lambda x, w, c: ((y := biased(x, w, c)), e := b.reshape(gelu(y), (8, 8, 48)), b.cast(e, FLOAT64)), X, W, C),
    "outputs on two branches": one(lambda x, w, c: (b.exp(y := biased(x, w, c)), b.sin(y)), X, W, C),
    "casts before and after": one(lambda x, w: b.cast(b.contract(b.cast(x, FLOAT64), b.cast(w, FLOAT64)), F), X, W),
    "batches": one(lambda x, w, r: b.add(b.mul(b.contract(x, b.expand(w, (6, 32, 48))), 0.125), r), (6, 64, 32), (1, 32, 48), (6, 64, 48)),
}


@pytest.mark.parametrize("name", ONE_KERNEL)
def test_one_kernel(name: str) -> None:
    schedule = fuse(ONE_KERNEL[name])
    assert len(schedule.steps) == 1 and not schedule.refused


KERNELS: dict[str, tuple[Graph, list[int]]] = {  # products of each kernel in order
    "softmax after": (one(lambda x, w: softmax(b.mul(b.contract(x, w), 0.125), 1), X, W), [1, 0]),
    "norm of a residual after": (one(lambda x, w, c, r: layer_norm(b.add(biased(x, w, c), r), (1,)), X, W, C, (64, 48)), [1, 0]),
    "norm before": (one(lambda x, w: b.contract(layer_norm(x, (1,)), w), X, W), [0, 1]),
    "turned after": (one(lambda x, w: b.add(b.permute(b.contract(x, w), (1, 0)), 1.0), X, W), [1, 0]),
    "its own transpose added": (one(lambda x, w: b.add(y := b.contract(x, w), b.permute(y, (1, 0))), (16, 16), (16, 16)), [1, 0]),
    "its own sums added": (one(lambda x, w: b.sub(y := b.contract(x, w), spread(p.SUM, y, (1,))), X, W), [1, 0]),
    "a sum beside": (one(lambda x, w, r: b.mul(b.contract(x, w), spread(p.SUM, r, (1,))), X, W, (64, 48)), [0, 1]),
    "two in one sum": (one(lambda x, w, y, v: b.add(b.contract(x, w), b.contract(y, v)), X, W, X, W), [1, 1]),
    "one after the other": (one(lambda x, w, c, v: b.contract(gelu(biased(x, w, c)), v), X, W, C, (48, 20)), [1, 1]),
    "residual around": (one(lambda x, w, v: b.add(b.contract(gelu(y := b.contract(x, w)), v), y), X, W, (48, 48)), [1, 1]),
    "columns mixed with rows": (one(lambda x, w: b.exp(b.reshape(b.contract(x, w), (96, 32))), X, W), [1, 0]),
    "padded after": (one(lambda x, w: b.pad(b.contract(x, w), (1, 0), (0, 2), 0.0), X, W), [1, 0]),
}  # fmt: skip


@pytest.mark.parametrize("name", KERNELS)
def test_kernels(name: str) -> None:
    graph, counts = KERNELS[name]
    assert [len(products(k)) for k in kernels(fuse(graph))] == counts


def test_the_end_of_an_epilogue_is_stored_and_not_its_product() -> None:
    first, _ = kernels(fuse(KERNELS["norm of a residual after"][0]))
    assert [s.node.prim for s in first.stores] == [p.ADD] and first.stores[0].node.args[1].prim is p.INPUT


def test_a_norm_is_read_by_the_product_and_added_to_it_from_memory() -> None:
    def around(x: Node, w: Node, v: Node) -> Node:
        y = layer_norm(x, (1,))
        return b.add(b.contract(gelu(b.contract(y, w)), v), y)

    first, *_ = steps = kernels(fuse(one(around, X, W, (48, 32))))
    assert len(steps) == 3 and [s.node.prim for s in first.stores] == [p.MUL]
    schedule = fuse(one(lambda x, w, r: b.add(b.contract(x, w), layer_norm(r, (1,))), X, W, (64, 48)))
    assert [len(products(k)) for k in kernels(schedule)] == [0, 1]


def test_what_training_needs_is_written_by_the_kernel_of_the_product() -> None:
    def layers(x: Node, w: Node, c: Node, v: Node) -> tuple[Node, ...]:
        h = biased(x, w, c)
        return b.contract(b.maximum(h, 0.0), v), h

    first, second = kernels(fuse(one(layers, X, W, C, (48, 20))))
    assert len(first.stores) == 2 and len(products(first)) == len(products(second)) == 1


def test_a_call_reads_the_end_of_an_epilogue() -> None:
    schedule = fuse(one(lambda x, w: b.add(call_on(b.exp(b.contract(x, w))), 1.0), X, W))
    assert [len(products(k)) for k in kernels(schedule)] == [1, 0]


def test_heads_for_a_call_are_written_by_the_product() -> None:
    """With the strides of eager's view they lie as the product's rows do; in another order they are copied."""

    def attention(x: Node, w: Node, c: Node, strides: Shape) -> Node:
        return call_on(b.permute(b.reshape(biased(x, w, c), (2, 32, 6, 8)), (0, 2, 1, 3)), strides=strides)

    for strides, count in (((1536, 8, 48, 1), 1), ((1536, 256, 8, 1), 2)):
        steps = kernels(fuse(one(lambda x, w, c: b.add(attention(x, w, c, strides), 1.0), X, W, C)))  # noqa: B023
        assert len(steps) == count + 1 and steps[count - 1].stores[0].strides == strides


def test_an_input_updated_by_a_product_of_itself_is_written_at_the_end() -> None:
    """Other rows are still read."""
    x, w = inputs_of(((16, 16), F), ((16, 16), F))
    for update, stores in ((b.contract(x, w), ["temp", "update"]), (b.add(b.contract(w, w), x), ["update"])):
        assert [k.stores[0].target for k in kernels(fuse(graph_of((x, w), (), [Update(0, update)])))] == stores


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_no_product_is_computed_twice(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    grow = Maker.grow

    def often(self: Maker) -> Node:
        if self.r.random() < 0.6:
            return grow(self)
        made = self.product(self.pick())
        self.pool += [made] if made.type.numel <= 1500 else []
        return made

    monkeypatch.setattr(Maker, "grow", often)
    for seed in range(first, first + 50):
        schedule = fuse(random_graph(seed, 18))
        made = [products(k) for k in kernels(schedule)]
        assert all(len(found) < 2 for found in made)
        assert len({n for found in made for n in found}) == sum(map(len, made))
        assert all((product_in(k) is None) == (not found) for k, found in zip(kernels(schedule), made, strict=True))
