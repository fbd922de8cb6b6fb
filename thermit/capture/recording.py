"""The data of a trace: inputs, the log of calls, effects, lines of the user's code; and how a trace ends early.

In:  frames.  Out: dataclasses without behaviour, two exceptions and a warning.
"""

from __future__ import annotations

import itertools
import linecache
import os
from collections.abc import Callable, Container
from dataclasses import field
from types import CodeType, FrameType
from typing import Any, Protocol

import torch
from torch._ops import OpOverload

from thermit import config
from thermit.capture.signature import Guard, Source
from thermit.capture.standin import StandIn
from thermit.ir.node import Node
from thermit.records import dataclass

TRACING, LIVE, CLOSED = "tracing", "live", "closed"


class ThermitWarning(UserWarning):
    """A function, or a part of it, runs eagerly; the text says why and what to do."""


class GoLive(Exception):
    """This call cannot be captured.  `reads`: because Python wants a value."""

    def __init__(self, reason: str, reads: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.reads = reason, reads


class Restart(BaseException):
    """The function must run again, eagerly, from the start: a stand-in cannot pass on what it does to an argument, or asks of it.

    `guards`: while they hold it will be so again.  `where`: the user's `file:line`, where this is worth a warning.
    """

    def __init__(self, reason: str, guards: tuple[Guard, ...] = (), where: str = "") -> None:
        super().__init__(reason)
        self.reason, self.guards, self.where = reason, guards, where


class Fault(Exception):
    """A fault of ours: a lowering and PyTorch disagree."""


# ---------------------------------------------------------------------------------------------- the user's line
_LIBRARY = tuple(os.path.dirname(os.path.abspath(m)) + os.sep for m in (torch.__file__, config.__file__))
Line = tuple[CodeType, int]


def user_line(frame: FrameType | None) -> Line | None:
    """Where the innermost frame that is neither PyTorch's nor ours stands."""
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_LIBRARY):
            return frame.f_code, frame.f_lineno
        frame = frame.f_back
    return None


def line_text(line: Line | None) -> str:
    """`model.py:31 in forward`."""
    return "" if line is None else f"{os.path.basename(line[0].co_filename)}:{line[1]} in {line[0].co_name}"


def place_text(frame: FrameType | None) -> str:
    """`model.py:31 in forward: x.sum() > 0`, of the innermost frame that is neither PyTorch's nor ours, with what it computes."""
    while frame is not None and frame.f_code.co_filename.startswith(_LIBRARY):
        frame = frame.f_back
    if frame is None:
        return ""
    code, text = frame.f_code, ""
    line, last, start, stop = next(itertools.islice(code.co_positions(), frame.f_lasti // 2, None), (None,) * 4)
    if line is not None and line == last:
        text = linecache.getline(code.co_filename, line).encode()[start:stop].decode(errors="replace").strip()
    place = line_text((code, frame.f_lineno))
    return f"{place}: {text if len(text) <= 60 else text[:57] + '...'}" if text else place


SIZED = "whose size depends on values"  # how such reasons end


def advice(reason: str, reads: bool, strict: bool) -> str:
    """What to do about a reason to run eagerly.  `reads`: Python wants a value; `strict`: it is an error already."""
    if reason.endswith(SIZED):
        what = "Keep the size (torch.where, a sum with a mask), or move it out of the function"
    elif reason.startswith("torch.linalg looks"):
        what = "Call its sibling that does not look (torch.linalg.inv_ex, cholesky_ex, solve_ex), or move it out of the function"
    elif "bound of a slice" in reason:
        what = "For a slice of fixed size take x[i + torch.arange(n)]; else move it out of the function"
    elif reads:
        what = "Keep the decision in tensors (torch.where), or move it out of the function"
    elif reason.endswith("requires grad"):
        what = "Detach it, or call the function under torch.no_grad()"
    elif reason.startswith("returns x[i]"):
        what = "Return a copy: x[i].clone()"
    elif reason.startswith(("changes ", "writes ", "the function stores", "leaves torch")):
        what = "Return what is to be kept, and store it outside of the function"
    elif reason.startswith(("calls ", "draws ", "warns", "imports ", "reads ")):
        what = "Do this outside of the function, and hand in what it gives as an argument"
    else:
        what = "Leave this part out of the function, if it is to be compiled"
    return f"{what}." if strict else f"{what}; strict=True makes this an error."


def told(reason: str, place: str, reads: bool) -> str:
    """The text of the warning that a function runs eagerly."""
    return f"thermit runs this function eagerly: {reason}\n  {place}\n  {advice(reason, reads, strict=False)}"


# ---------------------------------------------------------------------------------------------- data
@dataclass(frozen=True, slots=True)
class Input:
    """A tensor that the graph takes.  `source` None: a constant that the function made from Python data; else where it lives."""

    tensor: torch.Tensor
    stand_in: StandIn
    source: Source | None
    node: Node


@dataclass(frozen=True, slots=True)
class Entry:
    """One ATen call as it was made, for the replay.  `inference`: in inference mode."""

    func: OpOverload | Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[Any, ...]
    inference: bool = False


@dataclass
class Recording:
    """What a trace has seen so far."""

    inputs: list[Input] = field(default_factory=list)
    log: list[Entry] = field(default_factory=list)
    effects: list[Node] = field(default_factory=list)
    lines: dict[Node, Line] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)


class Watcher(Protocol):
    """What the recorder asks of the watch on Python values (facts.Watcher).

    `native`: name of the C function that runs, of those whose own kernel the dispatcher does not show; "" for all others.
    `told`: reasons for which the user has been warned.
    """

    native: str
    told: Container[str]

    def find(self, tensor: torch.Tensor) -> Source | None: ...
    def lacks(self, source: Source, names: frozenset[str]) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
