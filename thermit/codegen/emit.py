"""Loop programs -> LLVM IR as text.

What comes in: legalized LoopPrograms (every map primitive has an instruction) and a Target.  What goes out: one module with
`i32 NAME(ptr %buffers, i64 %begin, i64 %end)` for each.  The one idea: text is written once, in SSA form, while the program is
walked: a stack of scopes (one per open loop) holds the lines written so far, and an expression's line is appended to the
outermost scope in which its operands are known, which is in front of the loops still open.  So hoisting, common
subexpressions and uniform values cost nothing here, and LLVM's own passes are not needed.

Inside a vector loop a value is either uniform (a scalar) or has one element per lane; offsets that are affine in the
vector index are kept as the scalar of lane 0 and a constant step (`loops that are affine` are read off by codegen/lanes.py).

Invariants: memory is touched only where guards and the tail's mask hold; a load never moves above a check or across a store
that may write it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from thermit.codegen import spelling as arith
from thermit.codegen.spelling import constant, memory_type, register_type, scalar_type, vector
from thermit.codegen.target import Target
from thermit.errors import CompileError
from thermit.ir import prims as p
from thermit.ir.node import Node, toposort
from thermit.ir.types import BOOL, FLOAT64, INT32, INT64, DType
from thermit.loops.nest import Acc, Check, For, LoopProgram, Memory, Stmt, Store, exprs_of


@dataclass(frozen=True, slots=True)
class Value:
    """A register (or constant) with `lanes` elements (0: a scalar), known from scope number `depth` on."""

    text: str
    lanes: int
    depth: int


@dataclass(slots=True)
class Scope:
    """An open loop (or one iteration of an unrolled one): its lines, what it bound, which memories it writes (bits)."""

    lines: list[str] = field(default_factory=list)
    bound: list[object] = field(default_factory=list)
    writes: int = 0
    conditional: bool = False  # may run zero times: loads must not move out of it


@dataclass(slots=True)
class Lanes:
    """The vector loop that is open: its index, the scalar of lane 0, the mask (None: all lanes)."""

    index: Node
    width: int
    base: str
    depth: int
    mask: str | None
    multiple: int  # lane 0's index is a multiple of this


@dataclass(slots=True)
class Running:
    """An accumulator inside its loop: names of the current values (best and position for argmax)."""

    acc: Acc
    lanes: int
    values: list[str]
    types: list[str]


class Module:
    """The text of a module: functions, and helpers shared by them."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.functions: list[str] = []
        self.helpers: dict[str, str] = {}

    def text(self) -> str:
        head = f'target triple = "{self.target.triple}"\n\n@zeros = private unnamed_addr constant [512 x i8] zeroinitializer, align 64\n'
        return "\n".join((head, *self.helpers.values(), *self.functions))


def emit(programs: Sequence[LoopProgram], target: Target) -> str:
    """LLVM IR of a module with one function for each program."""
    module = Module(target)
    for program in programs:
        module.functions.append(Kernel(module, program).text())
    return module.text()


class Kernel:
    """One function being written."""

    def __init__(self, module: Module, program: LoopProgram) -> None:
        self.module, self.target, self.program = module, module.target, program
        self.memories = {m.name: m for m in program.memories}
        self.scopes: list[Scope] = [Scope()]
        self.at = self.scopes[0].lines
        self.at_depth = 0
        self.values: dict[object, Value] = {}  # keys: node (its value), ("splat", node), ("lane0", node)
        self.count = 0
        self.lanes: Lanes | None = None
        self.steps: dict[Node, int | None] = {}
        self.varying: set[Node] = set()
        self.has_check = _has_check(program.body)
        self.stop_used = False
        self._find_written(program)

    # ------------------------------------------------------------------ writing
    def op(self, text: str) -> str:
        self.count += 1
        name = f"%v{self.count}"
        self.at.append(f"  {name} = {text}")
        return name

    def line(self, text: str) -> None:
        self.scopes[-1].lines.append(text)

    def here(self) -> None:
        """Instructions go to the innermost scope."""
        self.at_depth = len(self.scopes) - 1
        self.at = self.scopes[-1].lines

    def append(self, text: str) -> None:
        self.at.append(text)

    def label(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def helper(self, name: str, make: Callable[[], str]) -> str:
        if name not in self.module.helpers:
            self.module.helpers[name] = make()
        return f"@{name}"

    def bind(self, key: object, value: Value) -> Value:
        self.values[key] = value
        self.scopes[value.depth].bound.append(key)
        return value

    @contextmanager
    def scope(self, writes: int = 0, conditional: bool = False) -> Iterator[Scope]:
        """Opens a scope; when it closes its lines follow what was hoisted in front of it."""
        opened = Scope(writes=writes, conditional=conditional)
        self.scopes.append(opened)
        yield opened
        self.scopes.pop()
        for key in opened.bound:
            self.values.pop(key, None)
        self.scopes[-1].lines += opened.lines
        self.here()

    # ------------------------------------------------------------------ memories that are written
    def _find_written(self, program: LoopProgram) -> None:
        """`clobbers[name]`: bits of the memories that a store to `name` may change; `reads[node]`: bits of written memories it reads."""
        stored = _stored(program.body)
        self.bit = {m.name: 1 << k for k, m in enumerate(program.memories)}
        self.clobbers: dict[str, int] = {}
        for name in stored:
            bits = self.bit[name]
            for other in program.memories:
                if name in other.alias or other.name in self.memories[name].alias:
                    bits |= self.bit[other.name]
            self.clobbers[name] = bits
        changed = 0
        for bits in self.clobbers.values():
            changed |= bits
        self.reads: dict[Node, int] = {}
        for node in toposort(exprs_of(program.body)):
            bits = 0
            for arg in node.args:
                bits |= self.reads.get(arg, 0)
            if node.prim is p.LOAD:
                bits |= self.bit[node.attrs.name] & changed
            if bits:
                self.reads[node] = bits

    def forget(self, bits: int) -> None:
        """Drops the values that were read from memories in `bits`."""
        if not bits:
            return
        for key in list(self.values):
            node = key[1] if isinstance(key, tuple) else key
            if self.reads.get(node, 0) & bits:
                del self.values[key]

    def writes_of(self, body: tuple[Stmt, ...]) -> int:
        bits = 0
        for name in _stored(body):
            bits |= self.clobbers[name]
        return bits

    # ------------------------------------------------------------------ lanes: how a value changes from lane to lane
    def step(self, root: Node) -> int | None:
        """The constant difference between neighbouring lanes: 0 for a uniform value, None where there is none."""
        if self.lanes is None:
            return 0
        steps = self.steps
        if root in steps:
            return steps[root]
        stack = [root]
        while stack:
            node = stack[-1]
            if node in steps:
                stack.pop()
                continue
            missing = [a for a in node.args if a not in steps]
            if missing:
                stack += missing
                continue
            steps[node] = self._step(node, [steps[a] for a in node.args])
            stack.pop()
        return steps[root]

    def _step(self, node: Node, steps: list[int | None]) -> int | None:
        prim, lanes = node.prim, self.lanes
        assert lanes is not None
        if prim is p.INDEX:
            return 1 if node is lanes.index else 0
        if prim is p.LOCAL:
            return None if node in self.varying else 0
        if not any(s != 0 for s in steps):
            return 0
        if node.dtype is not INT64 or prim is p.LOAD:
            return None
        if prim in (p.DIV, p.REM) and node.args[1].prim is p.CONST and steps[0] == 1:
            divisor = node.args[1].attrs.value
            if divisor > 0 and divisor % lanes.width == 0 and self.multiple(node.args[0]) % lanes.width == 0 and self.at_least_zero(node.args[0]):
                return 0 if prim is p.DIV else 1
            return None
        if any(s is None for s in steps):
            return None
        match prim.name:
            case "add":
                return steps[0] + steps[1]  # type: ignore[operator]
            case "sub":
                return steps[0] - steps[1]  # type: ignore[operator]
            case "neg":
                return -steps[0]  # type: ignore[operator]
            case "mul":
                for x, y in ((0, 1), (1, 0)):
                    if node.args[x].prim is p.CONST:
                        return steps[y] * node.args[x].attrs.value  # type: ignore[operator]
        return None

    def multiple(self, node: Node) -> int:
        """A number that divides the value of lane 0 (a large one for 0)."""
        prim = node.prim
        if self.lanes is not None and node is self.lanes.index:
            return self.lanes.multiple
        if prim is p.CONST:
            return abs(node.attrs.value) or 1 << 62
        if prim in (p.ADD, p.SUB):
            return _gcd(self.multiple(node.args[0]), self.multiple(node.args[1]))
        if prim is p.MUL:
            return min(self.multiple(node.args[0]) * self.multiple(node.args[1]), 1 << 62)
        return 1

    def at_least_zero(self, node: Node) -> bool:
        prim = node.prim
        if prim is p.INDEX:
            return True
        if prim is p.CONST:
            return bool(node.attrs.value >= 0)
        return prim in (p.ADD, p.MUL, p.DIV, p.REM) and all(self.at_least_zero(a) for a in node.args)

    # ------------------------------------------------------------------ expressions
    def value(self, root: Node) -> Value:
        """The register that holds an expression: a scalar where it is uniform, else one element per lane."""
        found = self.values.get(root)
        if found is not None:
            return found
        stack = [root]
        while stack:
            node = stack[-1]
            if node in self.values:
                stack.pop()
                continue
            missing = [a for a in self._operands(node) if a not in self.values]
            if missing:
                stack += reversed(missing)
                continue
            stack.pop()
            self._make(node)
        return self.values[root]

    def _operands(self, node: Node) -> tuple[Node, ...]:
        if node.prim is p.LOAD:
            step = self.step(node.args[0])
            return node.args if step in (0, None) else node.args[1:]
        if node.dtype is INT64 and self.step(node) not in (0, None):
            return ()
        return node.args

    def _make(self, node: Node) -> None:
        prim = node.prim
        if prim is p.CONST:
            self.bind(node, Value(arith.literal(node.attrs.value, node.dtype), 0, 0))
            return
        if prim is p.LOAD:
            self._load(node)
            return
        if prim in (p.INDEX, p.LOCAL) and not (self.lanes is not None and node is self.lanes.index):
            raise CompileError(f"{prim} {node.attrs.name} is read outside its loop")
        if self.lanes is not None and node.dtype is INT64:
            step = self.step(node)
            if step:
                self._affine(node, step)
                return
            if step == 0 and any(self.step(a) != 0 for a in node.args):
                self.bind(node, self.lane0(node))
                return
        args = [self.values[a] for a in node.args]
        lanes = max(a.lanes for a in args)
        texts = [a.text if a.lanes == lanes else self.spread(n).text for a, n in zip(args, node.args, strict=True)]
        depth = max(a.depth for a in args)
        self.at, self.at_depth = self.scopes[depth].lines, depth
        self.bind(node, Value(arith.spell(self, node, texts, lanes), lanes, depth))

    def spread(self, node: Node) -> Value:
        """The value of a node with one element per lane."""
        value = self.value(node)
        if value.lanes or self.lanes is None:
            return value
        key = ("splat", node, self.lanes.width)
        found = self.values.get(key)
        if found is not None:
            return found
        width = self.lanes.width
        if node.prim is p.CONST:
            return self.bind(key, Value(constant(node.attrs.value, node.dtype, width), width, 0))
        return self.bind(key, self.splat(value, scalar_type(node.dtype), width))

    def splat(self, value: Value, type_text: str, width: int) -> Value:
        if not value.text.startswith("%"):
            return Value(f"splat ({type_text} {value.text})", width, 0)
        self.at, self.at_depth = self.scopes[value.depth].lines, value.depth
        of = vector(type_text, width)
        one = self.op(f"insertelement {of} poison, {type_text} {value.text}, i32 0")
        return Value(self.op(f"shufflevector {of} {one}, {of} poison, <{width} x i32> zeroinitializer"), width, value.depth)

    def lane0(self, node: Node) -> Value:
        """The scalar of lane 0 of an affine expression (its value if it is uniform)."""
        lanes = self.lanes
        if lanes is None:
            return self.value(node)
        if node is lanes.index:
            return Value(lanes.base, 0, lanes.depth)
        key = ("lane0", node)
        found = self.values.get(key)
        if found is not None:
            return found
        if self.step(node) == 0 and all(self.step(a) == 0 for a in node.args):
            return self.value(node)
        args = [self.lane0(a) for a in node.args]
        depth = max(a.depth for a in args)
        self.at, self.at_depth = self.scopes[depth].lines, depth
        return self.bind(key, Value(arith.spell(self, node, [a.text for a in args], 0), 0, depth))

    def _affine(self, node: Node, step: int) -> None:
        assert self.lanes is not None
        width = self.lanes.width
        base = self.splat(self.lane0(node), "i64", width)
        self.at, self.at_depth = self.scopes[base.depth].lines, base.depth
        ramp = ", ".join(f"i64 {k * step}" for k in range(width))
        self.bind(node, Value(self.op(f"add {vector('i64', width)} {base.text}, <{ramp}>"), width, base.depth))

    # ------------------------------------------------------------------ memory
    def address(self, memory: Memory, offset: Value) -> Value:
        """The pointer to an element; written in the scope that is current."""
        return Value(self.op(f"getelementptr inbounds {memory_type(memory.dtype)}, ptr %m.{memory.name}, i64 {offset.text}"), 0, self.at_depth)

    def _floor_of_load(self, node: Node) -> int:
        """The outermost scope in which the load may stand: inside loops that write the memory, behind checks that its offset may need."""
        bits = self.reads.get(node, 0)
        floor = 0
        if self.has_check and _depends_on_data(node.args[0]):
            return len(self.scopes) - 1
        for depth, scope in enumerate(self.scopes):
            if scope.writes & bits or scope.conditional:
                floor = depth
        return floor

    def _load(self, node: Node) -> None:
        memory, lanes = self.memories[node.attrs.name], self.lanes
        guard = self.values[node.args[1]] if len(node.args) > 1 else None
        step = self.step(node.args[0])
        uniform = step == 0 and (guard is None or guard.lanes == 0)
        offset = self.values[node.args[0]] if step in (0, None) else self.lane0(node.args[0])
        depth = max(offset.depth, self._floor_of_load(node), guard.depth if guard is not None else 0)
        if not uniform:
            assert lanes is not None
            depth = max(depth, lanes.depth)
        self.at, self.at_depth = self.scopes[depth].lines, depth
        if uniform:
            raw = self._scalar_load(memory, offset, guard.text if guard is not None else None)
            self.bind(node, Value(self._from_memory(raw, memory.dtype, 0), 0, depth))
            return
        assert lanes is not None
        mask = self._mask(guard)
        if step == 0:
            some = self._any(mask, lanes.width)
            raw = self._scalar_load(memory, offset, some)
            one = self.splat(Value(raw, 0, depth), memory_type(memory.dtype), lanes.width)
            of = vector(memory_type(memory.dtype), lanes.width)
            raw = self.op(f"select {vector('i1', lanes.width)} {mask}, {of} {one.text}, {of} zeroinitializer")
        elif step in (1, -1):
            raw = self._contiguous_load(memory, offset, mask, guard, step)
        else:
            raw = self._gather(memory, offset, step, mask)
        self.bind(node, Value(self._from_memory(raw, memory.dtype, lanes.width), lanes.width, depth))

    def _mask(self, guard: Value | None) -> str | None:
        """The lanes that may touch memory: those of the tail's mask in which the guard holds.  None: all.  Written where lines go now."""
        assert self.lanes is not None
        mask, flags = self.lanes.mask, vector("i1", self.lanes.width)
        if guard is None:
            return mask
        text = guard.text
        if not guard.lanes:
            one = self.op(f"insertelement {flags} poison, i1 {text}, i32 0")
            text = self.op(f"shufflevector {flags} {one}, {flags} poison, <{self.lanes.width} x i32> zeroinitializer")
        return text if mask is None else self.op(f"and {flags} {text}, {mask}")

    def _any(self, mask: str | None, width: int) -> str | None:
        return None if mask is None else self.op(f"call i1 @llvm.vector.reduce.or.v{width}i1({vector('i1', width)} {mask})")

    def _scalar_load(self, memory: Memory, offset: Value, guard: str | None) -> str:
        """Where the guard is false, a zero is read from elsewhere: no branch."""
        where = self.address(memory, offset).text
        if guard is not None:
            where = self.op(f"select i1 {guard}, ptr {where}, ptr @zeros")
        return self.op(f"load {memory_type(memory.dtype)}, ptr {where}, align {memory.dtype.itemsize}")

    def _from_memory(self, raw: str, dtype: DType, lanes: int) -> str:
        if dtype is not BOOL:
            return raw
        return self.op(f"icmp ne {vector('i8', lanes)} {raw}, {'zeroinitializer' if lanes else 0}")

    def _to_memory(self, value: str, dtype: DType, lanes: int) -> str:
        return value if dtype is not BOOL else self.op(f"zext {vector('i1', lanes)} {value} to {vector('i8', lanes)}")

    def _contiguous_load(self, memory: Memory, offset: Value, mask: str | None, guard: Value | None, step: int) -> str:
        assert self.lanes is not None
        width, kind, align = self.lanes.width, memory_type(memory.dtype), memory.dtype.itemsize
        of = vector(kind, width)
        if step == -1:
            offset = Value(self.op(f"sub i64 {offset.text}, {width - 1}"), 0, self.at_depth)
            mask = self._reversed(mask, "i1", width) if mask is not None else None
        where = self.address(memory, offset).text
        if mask is None:
            raw = self.op(f"load {of}, ptr {where}, align {align}")
        elif guard is not None and not guard.lanes and self.lanes.mask is None:
            where = self.op(f"select i1 {guard.text}, ptr {where}, ptr @zeros") if width * align <= 512 else where
            raw = self.op(f"load {of}, ptr {where}, align {align}")
        else:
            raw = self._masked_load(of, kind, width, align, where, mask)
        return self._reversed(raw, kind, width) if step == -1 else raw

    def _reversed(self, value: str, kind: str, width: int) -> str:
        of = vector(kind, width)
        order = ", ".join(f"i32 {k}" for k in reversed(range(width)))
        return self.op(f"shufflevector {of} {value}, {of} poison, <{width} x i32> <{order}>")

    def _native_mask(self, align: int) -> bool:
        return self.target.has_masked8 if align < 4 else self.target.has_masked32

    def _masked_load(self, of: str, kind: str, width: int, align: int, where: str, mask: str) -> str:
        flags = vector("i1", width)
        if self._native_mask(align):
            suffix = {"float": "f32", "double": "f64"}.get(kind, kind)
            return self.op(f"call {of} @llvm.masked.load.v{width}{suffix}.p0(ptr {where}, i32 {align}, {flags} {mask}, {of} zeroinitializer)")
        raw = "zeroinitializer"
        for k in range(width):
            lane = self.op(f"extractelement {flags} {mask}, i32 {k}")
            at = self.op(f"getelementptr {kind}, ptr {where}, i64 {k}")
            at = self.op(f"select i1 {lane}, ptr {at}, ptr @zeros")
            one = self.op(f"load {kind}, ptr {at}, align {align}")
            raw = self.op(f"insertelement {of} {raw}, {kind} {one}, i32 {k}")
        return raw

    def _masked_store(self, of: str, kind: str, width: int, align: int, where: str, mask: str, value: str) -> None:
        flags = vector("i1", width)
        if self._native_mask(align):
            suffix = {"float": "f32", "double": "f64"}.get(kind, kind)
            self.line(f"  call void @llvm.masked.store.v{width}{suffix}.p0({of} {value}, ptr {where}, i32 {align}, {flags} {mask})")
            return
        for k in range(width):
            at = self.op(f"getelementptr {kind}, ptr {where}, i64 {k}")
            self._lane_store(of, kind, align, k, at, mask, value)

    def _lane_store(self, of: str, kind: str, align: int, k: int, at: str, mask: str | None, value: str) -> None:
        """Lane k of value to `at`, or to a place that nobody reads where the mask is false."""
        assert self.lanes is not None
        if mask is not None:
            lane = self.op(f"extractelement {vector('i1', self.lanes.width)} {mask}, i32 {k}")
            at = self.op(f"select i1 {lane}, ptr {at}, ptr %sink")
        one = self.op(f"extractelement {of} {value}, i32 {k}")
        self.line(f"  store {kind} {one}, ptr {at}, align {align}")

    def _lane_addresses(self, memory: Memory, offset: Value, step: int | None) -> list[str]:
        """The address of each lane's element."""
        assert self.lanes is not None
        width, kind = self.lanes.width, memory_type(memory.dtype)
        if step is not None:
            base = self.address(memory, offset).text
            return [self.op(f"getelementptr {kind}, ptr {base}, i64 {k * step}") for k in range(width)]
        picked = [self.op(f"extractelement {vector('i64', width)} {offset.text}, i32 {k}") for k in range(width)]
        return [self.op(f"getelementptr {kind}, ptr %m.{memory.name}, i64 {i}") for i in picked]

    def _gather(self, memory: Memory, offset: Value, step: int | None, mask: str | None) -> str:
        assert self.lanes is not None
        width, kind, align = self.lanes.width, memory_type(memory.dtype), memory.dtype.itemsize
        of, flags = vector(kind, width), vector("i1", width)
        if step is None and self.target.has_fast_gather and align >= 4:
            where = self.op(f"getelementptr {kind}, ptr %m.{memory.name}, {vector('i64', width)} {offset.text}")
            suffix = {"float": "f32", "double": "f64"}.get(kind, kind)
            call = f"@llvm.masked.gather.v{width}{suffix}.v{width}p0"
            return self.op(f"call {of} {call}({vector('ptr', width)} {where}, i32 {align}, {flags} {mask or 'splat (i1 true)'}, {of} zeroinitializer)")
        raw = "poison"
        for k, at in enumerate(self._lane_addresses(memory, offset, step)):
            if mask is not None:
                lane = self.op(f"extractelement {flags} {mask}, i32 {k}")
                at = self.op(f"select i1 {lane}, ptr {at}, ptr @zeros")
            one = self.op(f"load {kind}, ptr {at}, align {align}")
            raw = self.op(f"insertelement {of} {raw}, {kind} {one}, i32 {k}")
        return raw

    # ------------------------------------------------------------------ statements
    def body(self, statements: tuple[Stmt, ...]) -> None:
        for s in statements:
            match s:
                case Store():
                    self.store(s)
                case Check():
                    self.check(s)
                case For():
                    self.loop(s)

    def check(self, s: Check) -> None:
        ok = self.value(s.ok)
        self.here()
        text = ok.text
        if ok.lanes:
            assert self.lanes is not None
            flags = vector("i1", ok.lanes)
            if self.lanes.mask is not None:
                text = self.op(f"select {flags} {self.lanes.mask}, {flags} {text}, {flags} splat (i1 true)")
            text = self.op(f"call i1 @llvm.vector.reduce.and.v{ok.lanes}i1({flags} {text})")
        self.stop_used = True
        after = self.label("ok")
        self.line(f"  br i1 {text}, label %{after}, label %stop")
        self.line(f"{after}:")

    def store(self, s: Store) -> None:
        memory = self.memories[s.memory]
        guard = self.value(s.guard) if s.guard is not None else None
        step, value = self.step(s.offset), self.value(s.value)
        if self.lanes is not None and (step != 0 or value.lanes):
            value = self.spread(s.value)
            offset = self.value(s.offset) if step in (0, None) else self.lane0(s.offset)
            self.here()
            self._vector_store(memory, offset, step, self._to_memory(value.text, memory.dtype, value.lanes), guard)
        else:
            offset = self.value(s.offset)
            self.here()
            raw, where = self._to_memory(value.text, memory.dtype, 0), self.address(memory, offset).text
            if guard is not None:
                flag = guard.text if not guard.lanes else self._any(self._mask(guard), guard.lanes)
                where = self.op(f"select i1 {flag}, ptr {where}, ptr %sink")
            self.line(f"  store {memory_type(memory.dtype)} {raw}, ptr {where}, align {memory.dtype.itemsize}")
        self.forget(self.clobbers[s.memory])

    def _vector_store(self, memory: Memory, offset: Value, step: int | None, raw: str, guard: Value | None) -> None:
        assert self.lanes is not None
        width, kind, align = self.lanes.width, memory_type(memory.dtype), memory.dtype.itemsize
        of, mask = vector(kind, width), self._mask(guard)
        if step not in (1, -1):
            for k, at in enumerate(self._lane_addresses(memory, offset, step)):
                self._lane_store(of, kind, align, k, at, mask, raw)
            return
        if step == -1:
            offset = Value(self.op(f"sub i64 {offset.text}, {width - 1}"), 0, self.at_depth)
            raw = self._reversed(raw, kind, width)
            mask = self._reversed(mask, "i1", width) if mask is not None else None
        where = self.address(memory, offset).text
        if mask is None:
            self.line(f"  store {of} {raw}, ptr {where}, align {align}")
        else:
            self._masked_store(of, kind, width, align, where, mask, raw)

    # ------------------------------------------------------------------ loops
    def loop(self, s: For) -> None:
        if s.extent == 0:
            for a in s.accs:
                self._bind_result(a, self.value(a.init))
            return
        self.forget(self.writes_of(s.body))
        if s.mode == "vector":
            self._vector_loop(s)
        elif s.mode == "unroll" or s.extent == 1:
            self._unrolled_loop(s)
        else:
            self._serial_loop(s)
        self.forget(self.writes_of(s.body))

    def _bind_result(self, acc: Acc, value: Value) -> None:
        if self.lanes is not None and value.lanes:
            self.varying.add(acc.local)
            self.steps.pop(acc.local, None)
        self.bind(acc.local, Value(value.text, value.lanes, max(value.depth, len(self.scopes) - 1)))

    def _find_varying(self, accs: tuple[Acc, ...]) -> set[Node]:
        """Accumulators of a serial loop that have one value per lane of the vector loop around it."""
        if self.lanes is None:
            return set()
        found: set[Node] = set()
        changed = True
        while changed:
            changed = False
            for a in accs:
                nodes = [a.value] + ([a.position] if a.position is not None else [a.init])
                if a.local not in found and any(self.step(n) != 0 for n in nodes):
                    found.add(a.local)
                    self.varying.add(a.local)
                    self.steps.clear()
                    changed = True
        return found

    def _start(self, acc: Acc, lanes: int) -> Running:
        """The state in front of a serial loop."""
        if _is_argument(acc):
            kinds = [acc.value.dtype, INT64]
            best = arith.least_value(kinds[0]) if acc.combine is p.ARGMAX else arith.greatest_value(kinds[0])
            values = [constant(best, kinds[0], lanes), constant(INT64.max, INT64, lanes)]
            return Running(acc, lanes, values, [register_type(k, lanes) for k in kinds])
        init = self.spread(acc.init) if lanes else self.value(acc.init)
        return Running(acc, lanes, [init.text], [register_type(acc.local.dtype, lanes)])

    def _advance(self, r: Running, mask: str | None = None) -> None:
        """One iteration: the names of the new state, combined in the innermost scope."""
        acc = r.acc
        value = (self.spread(acc.value) if r.lanes else self.value(acc.value)).text
        position = ""
        if acc.position is not None:
            position = (self.spread(acc.position) if r.lanes else self.value(acc.position)).text
        self.here()
        new = self._combine(acc, r.values, [value, position] if _is_argument(acc) else [value], r.lanes)
        if mask is not None:
            flags = vector("i1", r.lanes)
            new = [self.op(f"select {flags} {mask}, {t} {n}, {t} {v}") for n, v, t in zip(new, r.values, r.types, strict=True)]
        r.values = new

    def _combine(self, acc: Acc, old: list[str], new: list[str], lanes: int) -> list[str]:
        if acc.combine is None:
            return new
        if not _is_argument(acc):
            return [arith.apply(self, acc.combine, acc.local.dtype, [old[0], new[0]], lanes)]
        dtype = acc.value.dtype
        kind, flags, place = register_type(dtype, lanes), vector("i1", lanes), vector("i64", lanes)
        better = arith.apply(self, p.GT if acc.combine is p.ARGMAX else p.LT, dtype, [new[0], old[0]], lanes)
        equal = arith.apply(self, p.EQ, dtype, [new[0], old[0]], lanes)
        if dtype.is_float:
            new_nan, old_nan = (self.op(f"fcmp uno {kind} {v[0]}, {v[0]}") for v in (new, old))
            beats = self.op(f"xor {flags} {old_nan}, {constant(True, BOOL, lanes)}")
            better = self.op(f"or {flags} {better}, {self.op(f'and {flags} {new_nan}, {beats}')}")
            equal = self.op(f"or {flags} {equal}, {self.op(f'and {flags} {new_nan}, {old_nan}')}")
        earlier = self.op(f"icmp slt {place} {new[1]}, {old[1]}")
        better = self.op(f"or {flags} {better}, {self.op(f'and {flags} {equal}, {earlier}')}")
        best = self.op(f"select {flags} {better}, {kind} {new[0]}, {kind} {old[0]}")
        return [best, self.op(f"select {flags} {better}, {place} {new[1]}, {place} {old[1]}")]

    def _unrolled_loop(self, s: For) -> None:
        if not isinstance(s.extent, int):
            raise CompileError("an unrolled loop needs a constant extent")
        varying = self._find_varying(s.accs)
        running = [self._start(a, self.lanes.width if self.lanes is not None and a.local in varying else 0) for a in s.accs]
        writes = self.writes_of(s.body)
        for k in range(s.extent):
            with self.scope(writes):
                depth = len(self.scopes) - 1
                self.here()
                self.bind(s.index, Value(str(k), 0, depth))
                for r in running:
                    if not _is_argument(r.acc):
                        self.bind(r.acc.local, Value(r.values[0], r.lanes, depth))
                self.body(s.body)
                for r, new in zip(running, [self._advanced(r) for r in running], strict=True):
                    r.values = new
            self.forget(writes)
        for r in running:
            self._bind_result(r.acc, Value(r.values[-1], r.lanes, len(self.scopes) - 1))

    def _advanced(self, r: Running, mask: str | None = None) -> list[str]:
        before = r.values
        self._advance(r, mask)
        after, r.values = r.values, before
        return after

    def _serial_loop(self, s: For) -> None:
        varying = self._find_varying(s.accs)
        running = [self._start(a, self.lanes.width if self.lanes is not None and a.local in varying else 0) for a in s.accs]
        stop = str(s.extent) if isinstance(s.extent, int) else self.value(s.extent).text
        always = isinstance(s.extent, int)

        def iteration(at: str, depth: int) -> None:
            self.bind(s.index, Value(at, 0, depth))
            self.body(s.body)

        results = self._counted(running, "0", stop, 1, self.writes_of(s.body), iteration, always, bind_locals=True)
        for r, result in zip(running, results, strict=True):
            self._bind_result(r.acc, Value(result[-1], r.lanes, len(self.scopes) - 1))

    def _counted(
        self,
        running: list[Running],
        start: str,
        stop: str,
        step: int,
        writes: int,
        iteration: Callable[[str, int], None],
        always: bool,
        bind_locals: bool = False,
        advance: Callable[[], list[list[str]]] | None = None,
    ) -> list[list[str]]:
        """A loop from start below stop; `always`: it runs at least once.  Gives the names of the accumulators after it."""
        pre, head, latch, done = (self.label(stem) for stem in ("pre", "loop", "latch", "done"))
        enter, out = self.label("enter"), self.label("exit")
        first = [list(r.values) for r in running]
        with self.scope(0, conditional=not always):
            if not always:
                self.line(f"  br label %{pre}c\n{pre}c:\n  %any.{pre} = icmp slt i64 {start}, {stop}")
                self.line(f"  br i1 %any.{pre}, label %{enter}, label %{out}\n{enter}:")
            with self.scope(writes) as inner:
                depth = len(self.scopes) - 1
                self.here()
                index = f"%i.{head}"
                phis: list[tuple[str, str, str]] = []
                for k, r in enumerate(running):
                    names = [f"%a{k}.{j}.{head}" for j in range(len(r.values))]
                    phis += zip(names, r.types, r.values, strict=True)
                    r.values = names
                    if bind_locals and not _is_argument(r.acc):
                        self.bind(r.acc.local, Value(names[0], r.lanes, depth))
                iteration(index, depth)
                new = advance() if advance is not None else [self._advanced(r) for r in running]
                flat = [n for names in new for n in names]
                opening = [f"  br label %{pre}\n{pre}:\n  br label %{head}\n{head}:"]
                opening.append(f"  {index} = phi i64 [ {start}, %{pre} ], [ {index}.next, %{latch} ]")
                opening += [f"  {n} = phi {t} [ {v}, %{pre} ], [ {x}, %{latch} ]" for (n, t, v), x in zip(phis, flat, strict=True)]
                inner.lines[:0] = opening
                inner.lines.append(f"  br label %{latch}\n{latch}:\n  {index}.next = add nuw nsw i64 {index}, {step}")
                inner.lines.append(f"  {index}.more = icmp slt i64 {index}.next, {stop}")
                inner.lines.append(f"  br i1 {index}.more, label %{head}, label %{done}\n{done}:")
        if always:
            return new
        self.line(f"  br label %{out}\n{out}:")
        results = []
        for r, before, after in zip(running, first, new, strict=True):
            pairs = zip(before, after, r.types, strict=True)
            results.append([self.op(f"phi {t} [ {b}, %{pre}c ], [ {a}, %{done} ]") for b, a, t in pairs])
        return results

    # ------------------------------------------------------------------ vector loops
    def _vector_loop(self, s: For) -> None:
        if self.lanes is not None:
            raise CompileError("vector loops do not nest")
        copies = max((a.lanes for a in s.accs), default=1)
        init = [None if _is_argument(a) else self.value(a.init).text for a in s.accs]
        running = [[self._start_lanes(a, s.width) for _ in range(copies)] for a in s.accs]
        if isinstance(s.extent, int):
            whole = s.extent // (s.width * copies) * (s.width * copies)
            self._vector_range(s.index, s.width, copies, running, s.body, ("0", str(whole), str(s.extent)), whole > 0, whole < s.extent, True)
        else:
            extent = self.value(s.extent).text
            self.here()
            rest = self.op(f"urem i64 {extent}, {s.width * copies}")
            whole_text = self.op(f"sub i64 {extent}, {rest}")
            self._vector_range(s.index, s.width, copies, running, s.body, ("0", whole_text, extent), True, True, False)
        self.here()
        for acc, first, parts in zip(s.accs, init, running, strict=True):
            self._bind_result(acc, Value(self._across(acc, first, parts, s.width), 0, len(self.scopes) - 1))

    def _start_lanes(self, acc: Acc, width: int) -> Running:
        if _is_argument(acc):
            return self._start(acc, width)
        if acc.combine is None:
            raise CompileError("a scan cannot be a vector loop")
        start = constant(arith.identity(acc.combine, acc.local.dtype), acc.local.dtype, width)
        return Running(acc, width, [start], [register_type(acc.local.dtype, width)])

    def _vector_range(
        self,
        index: Node,
        width: int,
        copies: int,
        running: list[list[Running]],
        body: tuple[Stmt, ...],
        bounds: tuple[str, str, str],
        has_main: bool,
        has_tail: bool,
        always: bool,
    ) -> None:
        """[start, whole) in steps of width * copies without a mask, then [whole, stop) masked; `always`: both run if they are there."""
        start, whole, stop = bounds
        writes, flat = self.writes_of(body), [r for parts in running for r in parts]
        new: list[list[str]] = []

        def main(at: str, depth: int) -> None:
            new.clear()
            for copy in range(copies):
                with self.scope(writes):
                    self.here()
                    base = at if copy == 0 else self.op(f"add nuw nsw i64 {at}, {copy * width}")
                    with self._in_lanes(Lanes(index, width, base, len(self.scopes) - 1, None, width)):
                        self.body(body)
                        new.extend(self._advanced(parts[copy]) for parts in running)
                self.forget(writes)

        def advance_main() -> list[list[str]]:
            accs = len(running)
            return [new[copy * accs + k] for k in range(accs) for copy in range(copies)]

        if has_main:
            results = self._counted(flat, start, whole, width * copies, writes, main, always, advance=advance_main)
            for r, values in zip(flat, results, strict=True):
                r.values = values
        if not has_tail:
            return
        firsts = [parts[0] for parts in running]

        def tail(at: str, depth: int) -> None:
            new.clear()
            with self.scope(writes):
                self.here()
                with self._in_lanes(Lanes(index, width, at, len(self.scopes) - 1, self._tail_mask(at, stop, width), width)):
                    self.body(body)
                    new.extend(self._advanced(r, self.lanes.mask if self.lanes is not None else None) for r in firsts)

        if always and copies == 1:  # one step, no loop
            tail(whole, len(self.scopes) - 1)
            for r, values in zip(firsts, list(new), strict=True):
                r.values = values
            self.forget(writes)
            return
        results = self._counted(firsts, whole if has_main else start, stop, width, writes, tail, always, advance=lambda: list(new))
        for r, values in zip(firsts, results, strict=True):
            r.values = values

    def _tail_mask(self, at: str, stop: str, width: int) -> str:
        """Lanes below stop - at, which is less than 2^31."""
        if at.isdigit() and stop.isdigit():
            return "<" + ", ".join(f"i1 {'true' if k < int(stop) - int(at) else 'false'}" for k in range(width)) + ">"
        left = self.op(f"trunc i64 {self.op(f'sub i64 {stop}, {at}')} to i32")
        of = vector("i32", width)
        spread = self.op(f"shufflevector {of} {self.op(f'insertelement {of} poison, i32 {left}, i32 0')}, {of} poison, {of} zeroinitializer")
        ramp = ", ".join(f"i32 {k}" for k in range(width))
        return self.op(f"icmp sgt {of} {spread}, <{ramp}>")

    @contextmanager
    def _in_lanes(self, lanes: Lanes) -> Iterator[None]:
        self.lanes, self.steps, self.varying = lanes, {}, set()
        yield
        self.lanes, self.steps, self.varying = None, {}, set()

    def _across(self, acc: Acc, init: str | None, parts: list[Running], width: int) -> str:
        """The lanes of all copies combined to one scalar, in halves, then with the initial value."""
        states = [r.values for r in parts]
        while len(states) > 1:
            states = [self._combine(acc, states[k], states[k + 1], width) if k + 1 < len(states) else states[k] for k in range(0, len(states), 2)]
        state = states[0]
        kinds = [scalar_type(acc.value.dtype), "i64"] if _is_argument(acc) else [scalar_type(acc.local.dtype)]
        while width > 1:
            if width % 2:
                raise CompileError(f"a vector loop has {width} lanes: not a power of two")
            halves = []
            for first in (0, width // 2):
                order = ", ".join(f"i32 {first + k}" for k in range(width // 2))
                halves.append([
                    self.op(f"shufflevector {vector(t, width)} {v}, {vector(t, width)} poison, <{width // 2} x i32> <{order}>")
                    for v, t in zip(state, kinds, strict=True)
                ])
            width //= 2
            state = self._combine(acc, halves[0], halves[1], width)
        texts = [self.op(f"extractelement {vector(t, 1)} {v}, i32 0") for v, t in zip(state, kinds, strict=True)]
        if init is None:
            return texts[-1]
        assert acc.combine is not None
        return arith.apply(self, acc.combine, acc.local.dtype, [init, texts[0]], 0)

    # ------------------------------------------------------------------ the function
    def text(self) -> str:
        program = self.program
        begin, end = "%begin", "%end"
        if program.mode == "vector":
            self.here()
            count = self.op(f"sub i64 {end}, {begin}")
            rest = self.op(f"urem i64 {count}, {program.width}")
            whole = self.op(f"sub i64 {end}, {rest}")
            has_main, has_tail = program.extent >= program.width, program.extent % program.width != 0
            bounds = (begin, whole if has_main else begin, end)
            self._vector_range(program.index, program.width, 1, [], program.body, bounds, has_main, has_tail, False)
        else:

            def iteration(at: str, depth: int) -> None:
                self.bind(program.index, Value(at, 0, depth))
                self.body(program.body)

            self._counted([], begin, end, 1, self.writes_of(program.body), iteration, False)
        lines = [f"define i32 @{program.name}(ptr noalias readonly %buffers, i64 %begin, i64 %end) nounwind {{\nentry:"]
        lines += self._entry()
        lines += self.scopes[0].lines
        lines.append("  ret i32 0")
        if self.stop_used:
            lines.append("stop:\n  ret i32 1")
        lines.append("}\n")
        return "\n".join(lines)

    def _entry(self) -> list[str]:
        lines, slot = ["  %sink = alloca [64 x i8], align 64"], 0
        for m in self.program.memories:
            if m.role == "row":
                lines.append(f"  %m.{m.name} = alloca [{max(m.elems, 1)} x {memory_type(m.dtype)}], align 64")
            else:
                lines.append(f"  %p.{m.name} = getelementptr inbounds ptr, ptr %buffers, i64 {slot}")
                lines.append(f"  %m.{m.name} = load ptr, ptr %p.{m.name}, align 8")
                slot += 1
        return lines


def _is_argument(acc: Acc) -> bool:
    return acc.combine is p.ARGMAX or acc.combine is p.ARGMIN


def _gcd(a: int, b: int) -> int:
    while b:
        a, b = b, a % b
    return a


def _stored(body: tuple[Stmt, ...]) -> set[str]:
    """Names of the memories that the statements write."""
    names: set[str] = set()
    for s in body:
        match s:
            case Store():
                names.add(s.memory)
            case For():
                names |= _stored(s.body)
    return names


def _has_check(body: tuple[Stmt, ...]) -> bool:
    return any(isinstance(s, Check) or (isinstance(s, For) and _has_check(s.body)) for s in body)


def _depends_on_data(root: Node) -> bool:
    """Whether an offset contains a load or a local."""
    return any(n.prim in (p.LOAD, p.LOCAL) for n in toposort([root]))
