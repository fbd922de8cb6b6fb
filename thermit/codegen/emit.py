"""Loop programs -> LLVM IR as text.

What comes in: legalized LoopPrograms (every map primitive has an instruction) and a Target.  What goes out: for each a function
`i32 NAME(ptr %buffers, i64 %begin, i64 %end)`: 0 is fine, 1 a failed check; and modules of them.  The one idea: the text is explicit
vector code in SSA form, hoisted and free of redundancy as it is written (writer.py, expressions.py), so that LLVM has only to choose
instructions and registers: its optimiser, which is most of its time, does not run.  How often a parallel loop runs is said by the caller,
so programs that differ in that alone often have one text, and share machine code.

    for j < 1003: vector x 8              main loop without a mask + one masked step; or, where elements may be done twice,
        o[j] = x[j] + 1                   one loop whose last step is moved back so that it ends at the end

Invariants: memory is touched only inside its bounds and where guards hold; nothing outside of the module is called, but by `seldom`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

from thermit.codegen import access
from thermit.codegen.accumulate import (
    Running,
    across,
    advanced,
    find_varying,
    finished,
    initial,
    is_argument,
    is_idempotent,
    is_long_sum,
    neutral,
)
from thermit.codegen.cascade import BLOCK_TERMS, cascade
from thermit.codegen.expressions import MOST_APART, ExpressionWriter, divides, stored
from thermit.codegen.lanes import Lanes, Range
from thermit.codegen.literals import memory_type, vector
from thermit.codegen.target import Target
from thermit.codegen.tile_calls import is_multiple, register_tile
from thermit.codegen.writer import Value
from thermit.errors import CompileError
from thermit.ir import prims as p
from thermit.ir.node import Node, toposort
from thermit.ir.types import FLOAT64
from thermit.loops.nest import Acc, Check, For, Load, LoopProgram, Memory, Stmt, Store, Tile, exprs_of
from thermit.records import dataclass

LEAST_ALIGNED = 4  # full steps of a loop that gets a step of its own for alignment
STREAM_NODES = 100  # of a body, from which on memory keeps up with the processor anyway (chain of 16M, stores around the cache: 4 % slower)
STREAM = "!99 = !{i32 1}\n"  # of stores that go around the cache


@dataclass(frozen=True, slots=True)
class Function:
    """LLVM IR of a function: what follows its name.  By their names, equal where these are: `helpers`, private functions and constants of the
    module, and `shared`, functions that all modules share (what follows their names)."""

    body: str
    helpers: dict[str, str]
    shared: dict[str, str]


def function(program: LoopProgram, target: Target) -> Function:
    """LLVM IR of a program."""
    helpers: dict[str, str] = {}
    kernel = Kernel(target, helpers, program)
    return Function(kernel.text(), helpers, kernel.shared)


def module(functions: Mapping[str, Function], target: Target, is_whole: bool = True) -> str:
    """LLVM IR of a module with these functions under these names; if it is not whole, it calls the functions that modules share."""
    helpers = {name: text for f in functions.values() for name, text in f.helpers.items()}
    shared = {name: text for f in functions.values() for name, text in f.shared.items()}
    others = (f"define internal void @{name}{text}" if is_whole else f"declare void @{name}{_head(text)}" for name, text in shared.items())
    texts = (f"define i32 @{name}{f.body}" for name, f in functions.items())
    return "\n".join((f'target triple = "{target.triple}"\n', access.ZEROS, *helpers.values(), *others, *texts, STREAM))


def shared_module(functions: Mapping[str, str], target: Target) -> str:
    """LLVM IR of a module of functions that others share."""
    return "\n".join((f'target triple = "{target.triple}"\n', access.ZEROS, *(f"define void @{name}{text}" for name, text in functions.items())))


def _head(text: str) -> str:
    """The parameters."""
    return text[: text.index(")") + 1]


def emit(programs: Sequence[LoopProgram], target: Target) -> str:
    """LLVM IR of a module with one function for each program."""
    return module({program.name: function(program, target) for program in programs}, target)


class Kernel(ExpressionWriter):
    """One function."""

    def __init__(self, target: Target, helpers: dict[str, str], program: LoopProgram) -> None:
        super().__init__(target, helpers, program)
        self._can_stop = False
        self._aligned: Node | None = None
        self._shows_float64 = any(m.dtype is FLOAT64 for m in program.memories if m.role in ("out", "inout"))
        self._only: str | None = None  # the lanes that are stored, of those that are computed

    # ------------------------------------------------------------------ statements
    def _body(self, statements: tuple[Stmt, ...]) -> None:
        for is_store, group in itertools.groupby(statements, lambda s: isinstance(s, Store)):
            if is_store:
                self._stores([s for s in group if isinstance(s, Store)])
                continue
            for s in group:
                if isinstance(s, Check):
                    self._check(s)
                elif isinstance(s, For):
                    self._loop(s)
                elif isinstance(s, Tile):
                    register_tile(self, s)
                    self.forget(self.writes_of((s,)))

    def _stores(self, stores: Sequence[Store]) -> None:
        """Neighbours act at once: everything is read before the first of them writes."""
        groups = list(self._interleaved(stores))
        if any(len(group) > 1 and self._turns(group[0]) for group in groups) and not self._read_each_other(stores):
            for group in groups:  # one after another: registers are few
                (self._prepared(group[0]) if len(group) == 1 else self._prepared_turned(group))()
            self.forget(self.writes_of(tuple(stores)))
            return
        for write in [self._prepared(group[0]) if len(group) == 1 else self._prepared_group(group) for group in groups]:
            write()
        self.forget(self.writes_of(tuple(stores)))

    def _read_each_other(self, stores: Sequence[Store]) -> bool:
        return bool(self.writes_of(tuple(stores)) & self.reads_of(exprs_of(tuple(stores))))

    def _turns(self, first: Store) -> bool:
        """Whether a store may be the first of as many as there are lanes, side by side, each lane further apart than that."""
        if self.lanes is None or self.lanes.mask is not None or self._only is not None or first.value.dtype.bits not in (32, 64):
            return False
        step, width = self.steps.step(first.offset), self.lanes.width
        return step is not None and step > MOST_APART and step >= width and width * first.value.dtype.bits in (128, self.target.vector_bits)

    def _interleaved(self, stores: Sequence[Store]) -> Iterator[Sequence[Store]]:
        """The stores one by one; together those that fill every place between their lanes (the parts of complex numbers), and those that
        stand side by side in each lane (columns of a matrix that is transposed)."""
        k = 0
        while k < len(stores):
            first = stores[k]
            step = self.steps.step(first.offset) if self.lanes is not None and self.lanes.mask is None and self._only is None else None
            count = step if step is not None and 2 <= step <= MOST_APART else 1
            if self.lanes is not None and self._turns(first):
                count = self.lanes.width
            group = stores[k : k + count]
            is_full = len(group) == count > 1 and all(
                s.memory == first.memory and s.guard is None and self.steps.step(s.offset) == step and _gap(first.offset, s.offset) == j
                for j, s in enumerate(group)
            )
            yield group if is_full else stores[k : k + 1]
            k += len(group) if is_full else 1

    def _prepared_turned(self, group: Sequence[Store]) -> Callable[[], None]:
        memory, width = self.memories[group[0].memory], len(group)
        step, values = self.steps.step(group[0].offset) or 0, [self.spread(s.value) for s in group]
        offset = self.lane0(group[0].offset).text

        def write() -> None:
            self.here()
            for lane, raw in enumerate(access.turned(self, [v.text for v in values], memory.dtype)):
                at = self.op(f"add i64 {offset}, {lane * step}") if lane else offset
                access.contiguous_store(self, memory, at, width, None, raw, False)

        return write

    def _prepared_group(self, group: Sequence[Store]) -> Callable[[], None]:
        assert self.lanes is not None
        if self._turns(group[0]):
            return self._prepared_turned(group)
        memory, width = self.memories[group[0].memory], self.lanes.width
        values = [self.spread(s.value) for s in group]
        offset = self.lane0(group[0].offset).text
        whole = self.steps.multiple(group[0].offset) % (len(group) * width) == 0

        def write() -> None:
            self.here()
            raw = access.interleaved(self, [access.to_memory(self, v.text, memory.dtype, width) for v in values], memory.dtype, width)
            access.contiguous_store(self, memory, offset, len(group) * width, None, raw, False, whole)

        return write

    def _check(self, s: Check) -> None:
        ok = self.value(s.ok)
        self.here()
        text = ok.text
        if ok.lanes:
            flags = vector("i1", ok.lanes)
            if self.lanes is not None and self.lanes.mask is not None:
                text = self.op(f"select {flags} {self.lanes.mask}, {flags} {text}, {flags} splat (i1 true)")
            text = self.op(f"call i1 @llvm.vector.reduce.and.v{ok.lanes}i1({flags} {text})")
        self._can_stop = True
        after = self.label("ok")
        self.line(f"  br i1 {text}, label %{after}, label %stop")
        self.begin_block(after)
        self._assume(s.ok)

    def _assume(self, ok: Node) -> None:
        """Behind its check a condition is true (in the lanes that are inside), so a guard that repeats it costs nothing."""
        self.bind(ok, Value("true", 0, self.innermost))
        if ok.prim is p.AND:
            for part in ok.args:
                self._assume(part)

    def _prepared(self, s: Store) -> Callable[[], None]:
        """Evaluates what a store needs; gives the act of writing it."""
        memory = self.memories[s.memory]
        guard = self.value(s.guard) if s.guard is not None else None
        guard = None if guard is not None and guard.text == "true" else guard
        step, value = self.steps.step(s.offset), self.value(s.value)
        if self.lanes is None or (step == 0 and not value.lanes):
            offset = self.value(s.offset).text
            return lambda: self._write_scalar(memory, offset, value.text, guard)
        value = self.spread(s.value)
        offset = (self.value(s.offset) if step is None else self.lane0(s.offset)).text
        whole = s.offset is self._aligned or self.steps.multiple(s.offset) % self.lanes.width == 0
        return lambda: self._write_lanes(memory, offset, step, value, guard, whole)

    def _write_scalar(self, memory: Memory, offset: str, value: str, guard: Value | None) -> None:
        self.here()
        flag = guard.text if guard is not None else None
        if guard is not None and guard.lanes:
            flag = access.any_lane(self, self.mask(guard) or "", guard.lanes)
        access.scalar_store(self, memory, offset, access.to_memory(self, value, memory.dtype, 0), flag)

    def _write_lanes(self, memory: Memory, offset: str, step: int | None, value: Value, guard: Value | None, whole: bool) -> None:
        assert self.lanes is not None
        self.here()
        raw = access.to_memory(self, value.text, memory.dtype, value.lanes)
        mask = self.mask(guard)
        if self._only is not None:
            mask = self._only if mask is None else self.op(f"and {vector('i1', value.lanes)} {mask}, {self._only}")
        if step in (1, -1):
            access.contiguous_store(self, memory, offset, self.lanes.width, mask, raw, step == -1, whole)
        else:
            access.scatter(self, memory, offset, step, self.lanes.width, mask, raw)

    # ------------------------------------------------------------------ loops
    def _loop(self, s: For) -> None:
        if s.extent == 0:
            for a in s.accs:
                self._bind_result(a, self.value(a.init))
            return
        self.steps.extents[s.index] = s.extent if isinstance(s.extent, int) else self.steps.interval(s.extent)[1]
        writes = self.writes_of(s.body)
        self.forget(writes)
        if s.mode == "vector":
            self._vector_loop(s)
        elif s.mode == "unroll" or s.extent == 1:
            self._unrolled_loop(s)
        else:
            self._serial_loop(s)
        self.forget(writes)

    def _bind_result(self, acc: Acc, value: Value) -> None:
        if self.lanes is not None and value.lanes:
            self.steps.set_varying(acc.local)
        self.bind(acc.local, Value(value.text, value.lanes, self.innermost))

    def _bind_state(self, r: Running) -> None:
        """Inside a serial loop the local is the value before the iteration."""
        if not is_argument(r.acc) and not r.acc.wide:
            self.bind(r.acc.local, Value(r.values[0], r.lanes, self.innermost))

    def _initial(self, s: For) -> list[Running]:
        varying = find_varying(self, s)
        width = self.lanes.width if self.lanes is not None else 0
        return [initial(self, a, width if a.local in varying else 0, s) for a in s.accs]

    def _unrolled_loop(self, s: For) -> None:
        if not isinstance(s.extent, int):
            raise CompileError("an unrolled loop needs a constant extent")
        running, writes = self._initial(s), self.writes_of(s.body)
        for k in range(s.extent):
            with self.scope(writes):
                self.bind(s.index, Value(str(k), 0, self.innermost))
                for r in running:
                    self._bind_state(r)
                self._body(s.body)
                states = [advanced(self, r, str(k)) for r in running]
            for r, state in zip(running, states, strict=True):
                r.values = state
            self.forget(writes)
        for r in running:
            self._bind_result(r.acc, Value(finished(self, r, False)[-1], r.lanes, 0))

    def _serial_loop(self, s: For) -> None:
        running = self._initial(s)
        stop = str(s.extent) if isinstance(s.extent, int) else self.value(s.extent).text

        def iteration(at: str) -> list[list[str]]:
            self.bind(s.index, Value(at, 0, self.innermost))
            for r in running:
                self._bind_state(r)
            self._body(s.body)
            return [advanced(self, r, at) for r in running]

        always = isinstance(s.extent, int) or self.steps.interval(s.extent)[0] >= 1
        self._counted(running, "0", stop, 1, self.writes_of(s.body), iteration, always)
        for r in running:
            self._bind_result(r.acc, Value(finished(self, r, False)[-1], r.lanes, 0))

    def _counted(
        self, running: list[Running], start: str, stop: str, step: int, writes: int, iteration: Callable[[str], list[list[str]]], always: bool
    ) -> None:
        """A loop from start below stop; `always`: at least once.  `iteration` writes its body and gives the new states.
        Afterwards `running` holds the states behind the loop."""
        head, after = self.label("loop"), self.label("done")
        index = f"%i.{head}"
        first = [r.values for r in running]
        with self.scope(conditional=not always):
            if not always:
                enter = self.label("enter")
                self.line(f"  {index}.any = icmp slt i64 {start}, {stop}\n  br i1 {index}.any, label %{enter}, label %{after}")
                self.begin_block(enter)
            with self.scope(writes) as inner:
                inner.block = head
                for k, r in enumerate(running):
                    r.values = [f"%a{k}.{j}.{head}" for j in range(len(r.types))]
                names = [r.values for r in running]
                states = iteration(index)
                last, entered, before = (self.block_of(self.innermost - k) for k in range(3))
                opening = [f"  br label %{head}\n{head}:\n  {index} = phi i64 [ {start}, %{entered} ], [ {index}.next, %{last} ]"]
                for name, r, old, new in zip(names, running, first, states, strict=True):
                    rows = zip(name, r.types, old, new, strict=True)
                    opening += [f"  {n} = phi {t} [ {o}, %{entered} ], [ {x}, %{last} ]" for n, t, o, x in rows]
                inner.lines[:0] = opening
                self.line(f"  {index}.next = add nuw nsw i64 {index}, {step}\n  {index}.more = icmp slt i64 {index}.next, {stop}")
                self.line(f"  br i1 {index}.more, label %{head}, label %{after}")
        self.begin_block(after)
        for r, old, new in zip(running, first, states, strict=True):
            r.values = new
            if not always:
                ends = zip(r.types, old, new, strict=True)
                r.values = [self.op(f"phi {t} [ {o}, %{before} ], [ {x}, %{last} ]") for t, o, x in ends]

    # ------------------------------------------------------------------ vector loops
    def _vector_loop(self, s: For) -> None:
        if self.lanes is not None:
            raise CompileError("vector loops do not nest")
        if s.width & (s.width - 1):
            raise CompileError(f"a vector loop of {s.width} lanes: not a power of two")
        copies = max((a.lanes for a in s.accs), default=1)
        init = [None if is_argument(a) else self.value(a.init).text for a in s.accs]
        if isinstance(s.extent, int):
            copies = max(1, min(copies, s.extent // s.width))
            bounds = self._aligned_range(s, s.extent, s.width * copies) or self._constant_range(s, s.extent, s.width * copies)
        else:
            bounds = self._known_range(s, s.extent, s.width * copies)
        running = [[neutral(a, s.width, s, copy * s.width) for copy in range(copies)] for a in s.accs]
        self._vector_range(s.index, s.width, copies, running, s.body, bounds, s.ahead)
        self.here()
        for acc, first, parts in zip(s.accs, init, running, strict=True):
            self._bind_result(acc, Value(across(self, parts, first, s.width), 0, 0))

    def _known_range(self, s: For, extent: Node, stride: int) -> Range:
        """The range of a loop whose extent is an expression."""
        stop = self.value(extent).text
        self.here()
        if is_multiple(extent, stride):
            return Range("0", stop, stop, True, False, False)
        streams = any(access.may_stream(self.target, self.memories[name], s.width) for name in stored(s.body))
        if self.steps.interval(extent)[0] >= stride and not streams and self._may_overlap(s.body, s.accs):
            return Range("0", stop, stop, True, False, False, self.op(f"sub i64 {stop}, {stride}"))
        rest = self.op(f"srem i64 {stop}, {stride}")
        return Range("0", self.op(f"sub i64 {stop}, {rest}"), stop, True, True, False)

    def _constant_range(self, s: For, extent: int, stride: int) -> Range:
        whole = extent // stride * stride
        if whole not in (0, extent) and self._may_overlap(s.body, s.accs):
            return Range("0", str(extent), str(extent), True, False, True, str(extent - stride))
        return Range("0", str(whole), str(extent), whole > 0, whole < extent, True)

    def _aligned_range(self, s: For, extent: int, stride: int) -> Range | None:
        """The range of a loop whose stores go around the cache, which they can only where they are aligned; None if it is as it should be."""
        if extent < LEAST_ALIGNED * stride or divides(exprs_of(s.body)):
            return None
        with self.scope():
            self.steps.enter(Lanes(s.index, s.width, "0", self.innermost, None, s.width))
            stores = [t for t in s.body if isinstance(t, Store) and t.guard is None and self.steps.step(t.offset) == 1]
            stores = [t for t in stores if access.may_stream(self.target, self.memories[t.memory], s.width)]
            starts = all(self.steps.multiple(t.offset) % s.width == 0 for t in stores)
            first = "" if starts else self.lane0(stores[0].offset).text
            self.steps.enter(None)
        if not stores or (starts and extent % stride == 0):
            return None
        edge = str(extent - s.width) if stride == s.width and self._may_overlap(s.body, s.accs) else None
        if starts:
            return Range("0", str(extent // stride * stride), str(extent), True, True, True)
        unit = min(s.width, access.LINE_BYTES // self.memories[stores[0].memory].dtype.itemsize)
        start = self.op(f"and i64 {self.op(f'sub i64 0, {first}')}, {unit - 1}")
        steps = self.op(f"and i64 {self.op(f'sub i64 {extent}, {start}')}, {-stride}")
        stop = self.op(f"add i64 {start}, {steps}")
        return Range(start, stop, str(extent), True, edge is None, False, aligned=stores[0].offset, edge=edge)

    def _may_overlap(self, body: tuple[Stmt, ...], accs: tuple[Acc, ...]) -> bool:
        """Whether elements may be done twice: nothing that is written is read, sums do not count twice, and no offset divides
        (quotients are uniform only in steps that start at multiples of the width)."""
        roots = exprs_of(body) + [n for a in accs for n in (a.value, a.position) if n is not None]
        return all(is_idempotent(a) for a in accs) and not self.writes_of(body) & self.reads_of(roots) and not divides(roots)

    def _vector_range(
        self, index: Node, width: int, copies: int, running: list[list[Running]], body: tuple[Stmt, ...], bounds: Range, ahead: Sequence[Load] = ()
    ) -> None:
        """`running[k]` holds the accumulators of acc k, one for each copy; in the masked steps only the first is used."""
        writes = self.writes_of(body)
        multiple = 1 if bounds.last is not None or bounds.aligned is not None else width
        self.place_constants(exprs_of(body) + [parts[0].acc.value for parts in running])

        def main(at: str) -> list[list[str]]:
            if bounds.last is not None:
                at = self.op(f"call i64 @llvm.smin.i64(i64 {at}, i64 {bounds.last})")
            states = []
            for copy in range(copies):
                with self.scope(writes):
                    base = at if copy == 0 else self.op(f"add nuw nsw i64 {at}, {copy * width}")
                    self.steps.enter(Lanes(index, width, base, self.innermost, None, multiple))
                    self._body(body)
                    self._fetch(ahead, copy * width, width)
                    states.append([advanced(self, parts[copy], base) for parts in running])
                    self.steps.enter(None)
                self.forget(writes)
            return [states[copy][k] for k in range(len(running)) for copy in range(copies)]

        firsts = [parts[0] for parts in running]

        def masked(at: str, stop: str) -> list[list[str]]:
            with self.scope(writes):
                mask = self._tail_mask(at, stop, width)
                self.steps.enter(Lanes(index, width, at, self.innermost, mask, multiple))
                self._body(body)
                states = [advanced(self, r, at, mask) for r in firsts]
                self.steps.enter(None)
            return states

        def once(at: str, stop: str) -> None:
            for r, state in zip(firsts, masked(at, stop), strict=True):
                r.values = state
            self.forget(writes)

        if bounds.edge is not None:
            self._ends(index, width, firsts, body, bounds)
        elif bounds.aligned is not None:
            once("0", bounds.start)
        self._aligned = bounds.aligned
        if bounds.has_main:
            self._full_steps(running, bounds, self.steps.extents.get(index, 0), width * copies, writes, main)
        if bounds.has_tail:
            start = bounds.whole if bounds.has_main else bounds.start
            if bounds.is_constant and int(bounds.stop) - int(start) <= width:
                once(start, bounds.stop)
            else:
                self._counted(firsts, start, bounds.stop, width, writes, lambda at: masked(at, bounds.stop), bounds.is_constant)
        self._aligned = None

    def _full_steps(
        self, running: list[list[Running]], bounds: Range, extent: int, stride: int, writes: int, main: Callable[[str], list[list[str]]]
    ) -> None:
        flat, always = [r for parts in running for r in parts], bounds.is_constant or bounds.aligned is not None
        sums = [parts for parts in running if extent // stride > BLOCK_TERMS and is_long_sum(parts[0].acc, self._shows_float64)]
        if bounds.is_constant and bounds.last is None and int(bounds.whole) - int(bounds.start) == stride:
            for r, state in zip(flat, main(bounds.start), strict=True):
                r.values = state
        elif sums:
            cascade(self, self._counted, running, sums, (bounds.start, bounds.whole), stride, writes, main, always)
        else:
            self._counted(flat, bounds.start, bounds.whole, stride, writes, main, always)

    def _fetch(self, ahead: Sequence[Load], first: int, width: int) -> None:
        """Into the cache, each line once: the lanes of this step are the ones from `first` on of a whole iteration."""
        for a in ahead:
            memory = self.memories[a.memory]
            size = memory.dtype.itemsize
            if first * size % access.LINE_BYTES == 0:
                at = self.lane0(a.offset).text
                self.here()
                for k in range(0, width * size, access.LINE_BYTES):
                    access.fetch(self, memory, at, k)

    def _tail_mask(self, at: str, stop: str, width: int) -> str:
        """The lanes below stop - at, which is less than 2^31."""
        if at.isdigit() and stop.isdigit():
            return "<" + ", ".join(f"i1 {'true' if k < int(stop) - int(at) else 'false'}" for k in range(width)) + ">"
        left = self.op(f"trunc i64 {self.op(f'sub i64 {stop}, {at}')} to i32")
        ramp = ", ".join(f"i32 {k}" for k in range(width))
        return self.op(f"icmp sgt {vector('i32', width)} {self.splat(left, 'i32', width)}, <{ramp}>")

    def _ends(self, index: Node, width: int, running: list[Running], body: tuple[Stmt, ...], bounds: Range) -> None:
        """Both ends of a row, computed whole and stored in part."""
        writes = self.writes_of(body)

        def end(side: str) -> list[list[str]]:
            with self.scope(writes):
                at = self.op(f"mul i64 {side}, {bounds.edge}")
                self._only = self._edge_mask(side, at, bounds, width)
                self.steps.enter(Lanes(index, width, at, self.innermost, None, 1))
                self._body(body)
                states = [advanced(self, r, at) for r in running]
                self.steps.enter(None)
            self._only = None
            return states

        self._counted(running, "0", "2", 1, writes, end, True)

    def _edge_mask(self, side: str, at: str, bounds: Range, width: int) -> str:
        """Of the step at 0 (side 0) the lanes below `start`, of the one that ends at `stop` (side 1) those from `whole` on."""
        near = self.op(f"select i1 {self.op(f'icmp eq i64 {side}, 0')}, i64 {bounds.start}, i64 {bounds.whole}")
        near = self.op(f"trunc i64 {self.op(f'sub i64 {near}, {at}')} to i32")
        # k < near, or k >= near, which is ~k < -near
        flip = self.op(f"sub i32 0, {self.op(f'trunc i64 {side} to i32')}")
        limit = self.op(f"sub i32 {self.op(f'xor i32 {near}, {flip}')}, {flip}")
        of, ramp = vector("i32", width), ", ".join(f"i32 {k}" for k in range(width))
        lanes = self.op(f"xor {of} {self.splat(flip, 'i32', width)}, <{ramp}>")
        return self.op(f"icmp sgt {of} {self.splat(limit, 'i32', width)}, {lanes}")

    # ------------------------------------------------------------------ the function
    def text(self) -> str:
        """What follows the function's name."""
        program, begin, end = self.program, "%begin", "%end"
        if program.mode == "vector":
            self._vector_range(program.index, program.width, 1, [], program.body, self._parallel_range())
        elif program.mode == "block":
            self._blocks(program)
        elif program.extent == 1:  # [begin, end) is [0, 1)
            with self.scope(self.writes_of(program.body)):
                self.bind(program.index, Value("0", 0, self.innermost))
                self._body(program.body)
        else:

            def iteration(at: str) -> list[list[str]]:
                self.bind(program.index, Value(at, 0, self.innermost))
                self._body(program.body)
                return []

            self._counted([], begin, end, 1, self.writes_of(program.body), iteration, False)
        # rows may be longer than a guard page: each page is touched in order, so that a stack that is too small faults and nothing else is hit
        probed = '"probe-stack"="inline-asm" ' if any(m.role == "row" for m in program.memories) else ""
        lines = [f"(ptr noalias readonly %buffers, i64 %begin, i64 %end) nounwind {probed}{{\nentry:"]
        fence = ["  call void @llvm.x86.sse.sfence()"] if self.streams and self.target.is_x86 else []  # before others read what was written
        lines += self._entry() + self.scopes[0].lines + [*fence, "  ret i32 0"]
        return "\n".join(lines + (["stop:\n  ret i32 1"] if self._can_stop else []) + ["}\n"])

    def _blocks(self, program: LoopProgram) -> None:
        """As many indices at a time as the width says, the last of them moved back, as the last step of a vector loop is; where stores go
        around the cache the blocks stay where they are, for such stores must be aligned."""
        self.steps.extents[program.index] = program.extent - program.width + 1
        is_whole = program.extent % program.width == 0 and any(m.stream for m in program.memories)
        if is_whole:
            self.steps.multiples[program.index] = program.width
        last = "" if is_whole else self.op(f"sub i64 %end, {program.width}")

        def iteration(at: str) -> list[list[str]]:
            start = at if is_whole else self.op(f"call i64 @llvm.smin.i64(i64 {at}, i64 {last})")
            self.bind(program.index, Value(start, 0, self.innermost))
            self._body(program.body)
            return []

        self._counted([], "%begin", "%end", program.width, self.writes_of(program.body), iteration, False)

    def _parallel_range(self) -> Range:
        """[begin, end): begin is a multiple of the width, end is one too or the end of all.  A last step that is moved back serves
        every extent, also one that is a multiple of the width; but stores that go around the cache, which pays where little is computed,
        must be aligned."""
        program, width = self.program, self.program.width
        if program.extent < width:
            return Range("%begin", "%begin", "%end", False, True, False)
        is_whole = program.extent % width == 0
        light = len(toposort(exprs_of(program.body))) < STREAM_NODES
        streams = light and any(access.may_stream(self.target, self.memories[name], width) for name in stored(program.body))
        if not (is_whole and streams) and self._may_overlap(program.body, ()):
            self.here()
            return Range("%begin", "%end", "%end", True, False, False, self.op(f"sub i64 %end, {width}"))
        if is_whole:
            return Range("%begin", "%end", "%end", True, False, False)
        self.here()
        rest = self.op(f"urem i64 {self.op('sub i64 %end, %begin')}, {width}")
        return Range("%begin", self.op(f"sub i64 %end, {rest}"), "%end", True, True, False)

    def _entry(self) -> list[str]:
        lines, slot = [*([access.SINK] if self.uses_sink else []), *self.slots], 0
        for m in self.program.memories:
            if m.role == "row":
                lines.append(f"  %m.{m.name} = alloca [{max(m.elems, 1)} x {memory_type(m.dtype)}], align 64")
            else:
                lines.append(f"  %p.{m.name} = getelementptr inbounds ptr, ptr %buffers, i64 {slot}")
                lines.append(f"  %m.{m.name} = load ptr, ptr %p.{m.name}, align 8")
                slot += 1
        return lines


def _gap(first: Node, other: Node) -> int | None:
    """By how much an offset is greater than another, where both are a sum with a constant."""
    (base, start), (same, stop) = (
        (n.args[0], int(n.args[1].attrs.value)) if n.prim is p.ADD and n.args[1].prim is p.CONST else (n, 0) for n in (first, other)
    )
    return stop - start if base is same else None
