"""Kernels up to the identity of what they read: equal kernels are lowered once.

    k3: exp(%result of the 7th call) -> temp      and      k9: exp(%result of the 15th call) -> temp
    are both                                               exp(%in0) -> temp

Invariant: the canonical kernel has the same stores, loads and rows in the same order; leaf k is graph input k.
"""

from __future__ import annotations

from thermit.ir import build
from thermit.ir.node import Node, toposort
from thermit.ir.prims import INPUT
from thermit.schedule.kernel import Kernel, Load, Stored

NO_INPUT = 1 << 30  # number of an updated input that the kernel does not read


def canonical(kernel: Kernel) -> Kernel:
    """The kernel with its leaves numbered, no name and no reason."""
    new: dict[Node, Node] = {load.node: build.graph_input(k, load.node.type) for k, load in enumerate(kernel.loads)}
    inputs = {load.node.attrs.index: k for k, load in enumerate(kernel.loads) if load.node.prim is INPUT}
    for node in toposort((s.node for s in kernel.stores), leaves=new):
        assert node.prim.kind not in ("input", "call"), f"{node!r} must be read or stored: fuse left it inside {kernel.name}"
        args = tuple(new[a] for a in node.args)
        new[node] = node if args == node.args else Node(node.prim, args, node.attrs, node.type)
    stores = tuple(Stored(new[s.node], s.strides, s.target, inputs.get(s.index, NO_INPUT) if s.target == "update" else 0) for s in kernel.stores)
    return Kernel(
        "kernel", stores, tuple(Load(new[load.node], load.strides, load.limits) for load in kernel.loads), frozenset(new[n] for n in kernel.rows)
    )
