"""What a jitted function has learnt of its calls: variants by key, and which of it can be said of calls that are not the same.

In:  the key of a call that no variant fits, and the call.
Out: a variant for it made of one for other objects (`for_others`); whether tracing it would be in vain (`changes_again`).
Idea: see capture/rebind.py.  A variant that was made of another holds the new objects, so only the last few are kept.
"""

from __future__ import annotations

import dataclasses
import threading
from dataclasses import field
from typing import Any, Literal

import torch

from thermit import locks
from thermit.capture.rebind import Exchange, alike, lasting, objects_in, pairs
from thermit.capture.signature import Call, Guard, Source, holds
from thermit.capture.signature import TensorSpec as InputSpec
from thermit.capture.specs import input_specs
from thermit.capture.structure import Template
from thermit.compiler import Compilation
from thermit.records import dataclass

OnMiss = Literal["compile", "eager", "error"]
OFTEN, MOST_UNTRACED = 8, 1000
MOST_MOVED = 8  # variants made of others that a function keeps


@dataclass(frozen=True, eq=False)
class Variant:
    """What is known about calls of one key whose guards hold: a program, or the reason to run eagerly."""

    guards: tuple[Guard, ...]
    reason: str = ""
    line: str = ""
    sources: tuple[Source, ...] = ()
    specs: tuple[InputSpec, ...] = ()
    template: Template | None = None
    calls: tuple[str, ...] = ()
    compilation: Compilation | None = None
    why: str = ""
    seconds: float = 0.0
    needs_call: bool = False
    moved: bool = False  # made of another variant, for other objects of the same kinds

    def inputs(self, call: Call) -> list[torch.Tensor] | None:
        """The program's inputs at a call, or None where one is not as it was."""
        try:
            tensors = [source.read(call) for source in self.sources]
            return tensors if input_specs(tensors) == self.specs else None
        except Exception:  # whatever reading raises: the fact is gone
            return None

    def about(self, exchange: Exchange, call: Call) -> Variant | None:
        """The variant that says of a call's objects what this one says of its own; None where that is not true."""
        guards = exchange.guards(self.guards, call)
        if guards is None:
            return None
        template = None if self.template is None else exchange.template(self.template)
        return dataclasses.replace(self, guards=guards, sources=tuple(map(exchange.source, self.sources)), template=template, moved=True)


@dataclass
class Change:
    """What a call changed when it was traced.  `guards`: what was so both times, once it was twice; `asked`: for how many calls in a row."""

    key: Any
    guards: tuple[Guard, ...] | None
    asked: int = 0


@dataclass
class State:
    """What a jitted function has learnt.  `JitFunction` writes it under the lock."""

    strict: bool
    max_variants: int
    on_miss: OnMiss
    never: str = ""
    lock: threading.Lock = field(default_factory=locks.lock)
    variants: dict[Any, list[Variant]] = field(default_factory=dict)
    compiling: set[Any] = field(default_factory=set)  # (process, key): a child of a fork does not wait for its parent's threads
    compiled: int = 0
    live: dict[bool, int] = field(default_factory=lambda: {False: 0, True: 0})  # by grad mode: training runs eagerly, and says nothing of the rest
    keys: list[Any] = field(default_factory=list)
    moved_natively: int = 0
    changes: dict[str, Change] = field(default_factory=dict)  # by the reason that names it
    untraced: dict[Any, int] = field(default_factory=dict)  # how often calls came that ran eagerly for such a change and were not traced
    moved: list[Any] = field(default_factory=list)  # keys of the variants that were made of others, oldest first
    failed_guards: list[str] = field(default_factory=list)
    warned: bool = False
    told: bool = False  # of an argument that cannot be compared
    faulty: bool = False

    def for_others(self, key: Any, call: Call) -> Variant | None:
        """What was learnt for other objects of the same kinds, if all of it is true of those that this call is given."""
        for old, variants in list(self.variants.items()):
            given = pairs(old, key) if old != key else None
            exchange = Exchange(given) if given else None
            if exchange is None or not exchange.fits:
                continue
            for variant in variants:
                made = None if variant.moved else variant.about(exchange, call)
                if made is None or (made.compilation is not None and made.inputs(call) is None):
                    continue
                with self.lock:
                    self.variants.setdefault(key, []).insert(0, made)
                    self.moved.append(key)
                    if len(self.moved) > MOST_MOVED:  # the guards hold the objects
                        gone = self.moved.pop(0)
                        self.variants[gone] = [v for v in self.variants.get(gone, ()) if not v.moved]
                        if not self.variants[gone]:
                            del self.variants[gone]
                return made
        return None

    def changes_again(self, key: Any, call: Call) -> bool:
        """Whether this is a call as two were before, which changed the same thing: tracing it would only find that once more."""
        if key not in self.variants and next(objects_in(key), None) is None:  # that may hang on sizes, too: a call that comes often is traced
            self.untraced = self.untraced if len(self.untraced) < MOST_UNTRACED else {}
            self.untraced[key] = self.untraced.get(key, 0) + 1
            if self.untraced[key] > OFTEN:
                return False
        for change in list(self.changes.values()):
            given = alike(change.key, key) if change.guards is not None else None
            if change.guards is None or given is None:
                continue
            change.asked += 1
            if not given and change.asked > 2 and change.asked % 32:  # thousands of facts: not asked each time
                return True
            if given:  # for another object; the next calls will be given that one, too
                exchange = Exchange(given)
                moved = exchange.guards([g for g in change.guards if not exchange.stands_in(g)], call) if exchange.fits else None
                if moved is not None:
                    change.key, change.guards = key, moved
                    return True
            elif holds(change.guards, call) is None:
                return True
            change.asked = 0
        return False

    def learn(self, key: Any, variant: Variant) -> None:
        """Remembers what a call changed; from the second time on, also what has to be true for that."""
        before = self.changes.get(variant.reason)
        known = None if before is None else next((v for v in self.variants.get(before.key, ()) if v.reason == variant.reason), None)
        self.changes[variant.reason] = Change(key, None if known is None else lasting(known.guards, variant.guards))
