"""Kernels under construction: data of `fuse` and `order`."""

from __future__ import annotations

from dataclasses import field
from typing import Literal, Protocol

from thermit.ir.node import Graph, Node
from thermit.ir.types import Shape
from thermit.records import dataclass
from thermit.schedule.trace import Trace


@dataclass(slots=True, eq=False)
class Root:
    """A value that goes to memory."""

    node: Node
    strides: Shape
    target: Literal["temp", "output", "update"] = "temp"
    index: int = 0


@dataclass(slots=True, eq=False)
class Group:
    """A kernel under construction: its roots (the first has the largest domain) and the trace of them all."""

    roots: list[Root]
    trace: Trace
    rows: list[int] = field(default_factory=list)  # sets of domain variables that reductions depend on, smallest first
    reads: set[Node] = field(default_factory=set)


class Decisions(Protocol):
    """What `fuse` knows of a graph and `order` needs: strides of inputs and results, results of calls that are outputs."""

    graph: Graph
    order: list[Node]
    strides: dict[Node, Shape]
    outputs_of_calls: dict[Node, int]
