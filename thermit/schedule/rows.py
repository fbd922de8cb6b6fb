"""Which values of a kernel are kept in a row buffer between its loops."""

from __future__ import annotations

from thermit.ir.node import Node
from thermit.schedule.group import Group


def rows(group: Group) -> frozenset[Node]:
    return frozenset()
