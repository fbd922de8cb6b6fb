"""Kernels that become one.

What comes in: the kernels of one round of fusion.  What goes out: the same values in fewer kernels.

    side by side    over the same domain, with the same rows: x.sum(1) and x.amax(1); small ones even if they have nothing in common
    rows            what one stores, another computes once a row: a mean beside a norm

Invariant: no kernel reads what is made of its own values, so the kernels have an order as before.  Kernels are not changed but made anew:
fusion keeps them for its next round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from typing import Any

from thermit.ir import prims as p
from thermit.ir.node import Node
from thermit.ir.types import Shape
from thermit.records import dataclass
from thermit.schedule.cost import LIMIT_LOADS, LIMIT_NODES, SMALL_ELEMS
from thermit.schedule.group import Group
from thermit.schedule.trace import Labels, reshaped, trace

MOST_ROOTS = 8  # values that kernels joined side by side store


@dataclass(slots=True, eq=False)
class Host:
    """A kernel that another over the same domain may join: its place among those, what it stores and what that is made of (as bits), whether
    all that it reads and stores is small, and its values."""

    group: Group
    at: int
    made: int
    over: int
    small: bool
    values: set[Node]


class Joining:
    """`below`: all that a value is made of, as bits; `bit`: its own; `apart`: values whose kernels join no other."""

    def __init__(self, below: Mapping[Node, int], bit: Mapping[Node, int], apart: Set[Node]) -> None:
        self.below, self.bit, self.apart = below, bit, apart

    def side_by_side(self, groups: list[Group]) -> list[Group]:
        """Kernels over the same domain that read the same things become one."""
        by_shape: dict[Shape, list[Group]] = {}
        by_kind: dict[tuple[Any, ...], list[Host]] = {}  # those that may take one more
        for group in groups:
            shape = group.roots[0].node.shape
            hosts, mine = by_shape.setdefault(shape, []), self.host(group, len(by_shape[shape]))
            if mine is None:
                hosts.append(group)
                continue
            loops = tuple(n for n in group.trace.visits if n.prim is p.CONTRACT)
            able = by_kind.setdefault((shape, tuple(group.rows), loops), [])
            k = next((k for k, other in enumerate(able) if self.can_join(mine, other)), None)
            if k is None:
                hosts.append(group)
                able.append(mine)
                continue
            at = able[k].at
            hosts[at] = self.joined(hosts[at], group)
            host = self.host(hosts[at], at)
            able[k : k + 1] = [host] if host is not None else []
        return [group for hosts in by_shape.values() for group in hosts]

    def host(self, group: Group, at: int) -> Host | None:
        """The kernel as one that may be joined with others; None if it may not."""
        if len(group.roots) >= MOST_ROOTS or any(r.node in self.apart or r.node.prim is p.SCATTER for r in group.roots):
            return None
        if any(n.prim.kind == "scan" for n in group.trace.visits):
            return None
        made = over = 0
        for r in group.roots:
            made |= self.bit[r.node]
            over |= self.below[r.node]
        small = all(n.type.numel <= SMALL_ELEMS for n in (group.roots[0].node, *group.reads))
        return Host(group, at, made, over, small, group.reads | group.trace.visits.keys())

    def can_join(self, group: Host, other: Host) -> bool:
        a, c = group.group, other.group
        if len(a.roots) + len(c.roots) > MOST_ROOTS or self.waits(group, other):
            return False
        if not (group.small and other.small) and group.values.isdisjoint(other.values):
            return False  # nothing in common: two kernels stream better, unless their start is what they cost
        return len(a.trace.visits) + len(c.trace.visits) <= LIMIT_NODES and len(a.reads | c.reads) <= LIMIT_LOADS

    def waits(self, group: Host, other: Host) -> bool:
        """Whether a value of one is made of a value of the other."""
        if not (group.over & other.made or other.over & group.made):
            return False
        if not group.made & other.made:
            return True
        a, c = group.group, other.group
        if any(r.node in c.reads for r in a.roots) or any(r.node in a.reads for r in c.roots):
            return True
        pairs = [(r.node, t.node) for x, y in ((a, c), (c, a)) for r in x.roots for t in y.roots if r.node is not t.node]
        return any(self.below[x] & self.bit[y] for x, y in pairs)

    def rows(self, groups: list[Group]) -> list[Group]:
        """A kernel that stores what another one computes once a row (a mean beside a norm) becomes part of it."""
        reducing: dict[Node, list[Group]] = {}
        for group in groups:
            for node in group.trace.visits:
                if node.prim.kind == "reduce":
                    reducing.setdefault(node, []).append(group)
        now = {group: group for group in groups}
        gone: set[Group] = set()
        for group in groups:
            mine = [n for n in now[group].trace.visits if n.prim.kind == "reduce"]
            for host in dict.fromkeys(h for n in mine[:1] for h in reducing[n]):
                if host is not group and host not in gone and (labels := self.row_labels(now[group], now[host], mine)) is not None:
                    now[host] = self.joined(now[host], now[group], labels)
                    gone.add(group)
                    break
        return [now[group] for group in groups if group not in gone]

    def row_labels(self, group: Group, host: Group, mine: list[Node]) -> Labels | None:
        """Where the group's root stands in the rows of the host; None if it does not."""
        root, domain = group.roots[0].node, host.roots[0].node
        axes = [a for a in range(len(domain.shape)) if any(mask >> a & 1 for mask in host.rows)]
        sizes = tuple(domain.shape[a] for a in axes)
        if not axes or root.type.numel != math.prod(sizes) or root.type.numel == domain.type.numel or p.SCATTER in (root.prim, domain.prim):
            return None
        if any(r.node.shape != root.shape for r in group.roots) or any(n not in host.trace.visits for n in mine):
            return None
        if any(r.node in self.apart for g in (group, host) for r in g.roots) or self.would_wait(group, host):
            return None
        return reshaped(tuple(1 << a for a in axes), sizes, root.shape)

    def would_wait(self, group: Group, host: Group) -> bool:
        """Whether one kernel for both would read what is made of its own values."""
        outside = [leaf for leaf in group.reads if leaf not in host.trace.visits]
        return any(self.below[leaf] & self.bit[r.node] for leaf in outside for r in host.roots) or any(
            self.below[leaf] & self.bit[r.node] for leaf in host.reads for r in group.roots
        )

    def joined(self, host: Group, group: Group, labels: Labels | None = None) -> Group:
        """One kernel, over the domain of the host."""
        both = host.trace.copy()
        first = group.roots[0].node
        if labels is None:
            labels = tuple(1 << a if n != 1 else 0 for a, n in enumerate(first.shape))
        for made in dict.fromkeys(r.node for r in group.roots):  # those of another shape are absorbed: the first root reaches them
            if made.shape == first.shape:
                trace(made, lambda node, at, t: node in group.trace.leaves and node not in host.trace.visits, both, labels)
        return Group(host.roots + group.roots, both, host.rows, set(both.leaves))


def join(groups: list[Group], below: Mapping[Node, int], bit: Mapping[Node, int], apart: Set[Node]) -> list[Group]:
    """The kernels, joined."""
    joining = Joining(below, bit, apart)
    return joining.rows(joining.side_by_side(groups))
