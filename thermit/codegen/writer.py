"""The text of one LLVM function while it is written: scopes, names, blocks, what is known where.

What goes out: lines in SSA form.  The one idea: each open loop is a scope with its own list of lines; when it closes they follow
what stands in the scope around it.  So while an inner loop is written, a line may still be put in front of it, and hoisting is
nothing but choosing a scope.  A hoisted instruction may even open a block of its own: which block a scope ends in is asked only
when the scope around it goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import field

from thermit.codegen.literals import vector
from thermit.codegen.target import Target
from thermit.records import dataclass


@dataclass(frozen=True, slots=True)
class Value:
    """A register (or constant) with `lanes` elements (0: a scalar), known from scope number `depth` on."""

    text: str
    lanes: int
    depth: int


@dataclass(slots=True)
class Scope:
    """An open loop, or one iteration of an unrolled one.

    `bound`: what is known here only.  `writes`: bits of the memories written inside.  `conditional`: it may not run at all, so
    no load moves out of it.  `block`: label of the block that its last line stands in (None: the one it began in).
    """

    lines: list[str] = field(default_factory=list)
    bound: list[object] = field(default_factory=list)
    writes: int = 0
    conditional: bool = False
    block: str | None = None


class FunctionWriter:
    """`op` appends an instruction where `at` points: to the scope chosen by `go`, the innermost one after `here`."""

    def __init__(self, target: Target, helpers: dict[str, str]) -> None:
        self.target = target
        self.helpers = helpers
        self.shared: dict[str, str] = {}  # functions that are called, each compiled once a process, by their names
        self.scopes: list[Scope] = [Scope(block="entry")]
        self.at = self.scopes[0].lines
        self.depth = 0
        self.values: dict[object, Value] = {}
        self.uses_sink = False
        self.slots: list[str] = []  # lines of the entry: memory on the stack
        self.streams = False  # some stores go around the cache
        self._count = 0

    def op(self, text: str) -> str:
        self._count += 1
        name = f"%v{self._count}"
        self.at.append(f"  {name} = {text}")
        return name

    def line(self, text: str) -> None:
        """A line without result, in the innermost scope."""
        self.scopes[-1].lines.append(text)

    def slot(self, type_text: str) -> str:
        """A place on the stack for what would crowd the registers."""
        name = f"%slot{len(self.slots)}"
        self.slots.append(f"  {name} = alloca {type_text}, align 8")
        return name

    def label(self, stem: str) -> str:
        """A new label."""
        self._count += 1
        return f"{stem}{self._count}"

    def append(self, text: str) -> None:
        """A line without result, where `at` points."""
        self.at.append(text)

    def begin_block(self, label: str) -> None:
        """The next lines where `at` points stand in this block; the one before must have ended."""
        self.at.append(f"{label}:")
        self.scopes[self.depth].block = label

    def block_of(self, depth: int) -> str:
        """The block that a scope now ends in."""
        while self.scopes[depth].block is None:
            depth -= 1
        return self.scopes[depth].block or ""

    def go(self, depth: int) -> None:
        self.depth = depth
        self.at = self.scopes[depth].lines

    def here(self) -> None:
        self.go(len(self.scopes) - 1)

    @property
    def innermost(self) -> int:
        return len(self.scopes) - 1

    def helper(self, name: str, make: Callable[[], str]) -> str:
        """`@name`, a private function of the module, whose text is made once."""
        if name not in self.helpers:
            self.helpers[name] = make()
        return f"@{name}"

    def shared_function(self, name: str, make: Callable[[], str]) -> str:
        """`@name`, a function that modules share: its text, from its parameters on, follows from its name."""
        if name not in self.shared:
            self.shared[name] = make()
        return f"@{name}"

    def bind(self, key: object, value: Value) -> Value:
        """Remembers a value until its scope closes."""
        self.values[key] = value
        self.scopes[value.depth].bound.append(key)
        return value

    @contextmanager
    def scope(self, writes: int = 0, conditional: bool = False) -> Iterator[Scope]:
        opened = Scope(writes=writes, conditional=conditional)
        self.scopes.append(opened)
        self.here()
        yield opened
        self.scopes.pop()
        for key in opened.bound:
            self.values.pop(key, None)
        self.scopes[-1].lines += opened.lines
        if opened.block is not None:
            self.scopes[-1].block = opened.block
        self.here()

    def splat(self, text: str, type_text: str, width: int) -> str:
        """A scalar in every lane."""
        if not text.startswith("%"):
            return f"splat ({type_text} {text})"
        of = vector(type_text, width)
        one = self.op(f"insertelement {of} poison, {type_text} {text}, i32 0")
        return self.op(f"shufflevector {of} {one}, {of} poison, <{width} x i32> zeroinitializer")
