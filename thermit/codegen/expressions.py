"""Expressions of a loop program -> LLVM instructions, each in the outermost scope where its operands are known.

A value is either uniform (a scalar) or, inside a vector loop, has one element per lane.  An int64 expression that is affine in
the vector index exists as the scalar of lane 0 (`lane0`) and, only where somebody needs it, as a vector.

Invariants: a load stays inside the loops that write its memory, behind what was stored before it, inside loops that may not run,
and, if its offset is data, where it stands (a check of that offset may stand in front of it).
"""

from __future__ import annotations

from thermit.codegen import access
from thermit.codegen.lanes import Lanes, LaneSteps, contains
from thermit.codegen.literals import constant, literal, memory_type, scalar_type, type_suffix, vector
from thermit.codegen.spelling import spell
from thermit.codegen.target import Target
from thermit.codegen.writer import FunctionWriter, Value
from thermit.errors import CompileError
from thermit.ir import prims as p
from thermit.ir.node import Node, toposort
from thermit.ir.types import BOOL, FLOAT32, FLOAT64, INT32, INT64
from thermit.loops.nest import Check, For, LoopProgram, Memory, Stmt, Store, Tile, exprs_of
from thermit.records import dataclass

_FOLDING = (p.ADD, p.SUB, p.MUL, p.FMA)  # whose constants may stand in memory
MOST_CONSTANTS = 6  # of a loop that stand in registers: up to here there is no difference
MOST_APART = 4  # elements from lane to lane, so that a vector is read whole and shuffled
MOST_COPIES = 8  # of one constant
_COMPARE = {p.EQ: "eq", p.NE: "ne", p.LT: "slt", p.LE: "sle", p.GT: "sgt", p.GE: "sge"}


@dataclass(frozen=True, slots=True)
class Table:
    """An offset: the sum of what is the same for all lanes, and `factor` times places that are loaded side by side."""

    uniform: tuple[Node, ...]
    places: Node
    factor: int


class ExpressionWriter(FunctionWriter):
    """Writes expressions; `steps` knows the open vector loop."""

    def __init__(self, target: Target, helpers: dict[str, str], program: LoopProgram) -> None:
        super().__init__(target, helpers)
        self.program = program
        self.memories = {m.name: m for m in program.memories}
        self.steps = LaneSteps()
        self.steps.extents[program.index] = program.extent
        self._has_check = has_check(program.body)
        self._reads_constants = False
        self._uses: dict[Node, int] = {}
        self._find_written()

    @property
    def lanes(self) -> Lanes | None:
        return self.steps.lanes

    # ------------------------------------------------------------------ memories that are written
    def _find_written(self) -> None:
        """`_clobbers[name]`: bits of the memories that a store to `name` may change; `_reads[node]`: bits of those that node reads."""
        memories = self.program.memories
        bit = {m.name: 1 << k for k, m in enumerate(memories)}
        self._clobbers: dict[str, int] = {}
        for name in stored(self.program.body):
            alias = self.memories[name].alias
            self._clobbers[name] = sum(bit[m.name] for m in memories if m.name == name or name in m.alias or m.name in alias)
        changed = 0
        for bits in self._clobbers.values():
            changed |= bits
        self._reads: dict[Node, int] = {}
        self._selects: dict[Node, set[int]] = {}  # of a flag that is loaded: how wide the elements are between which it selects, 8 for all else
        roots = exprs_of(self.program.body)
        for root in roots:
            self._selects.setdefault(root, set()).add(8)
        for node in toposort(roots):
            for place, arg in enumerate(node.args):
                if arg.prim is p.LOAD and arg.dtype is BOOL:
                    is_wide = (node.prim is p.WHERE and place == 0) or node.prim is p.CAST
                    self._selects.setdefault(arg, set()).add(node.dtype.bits if is_wide else 8)
            bits = bit[node.attrs.name] & changed if node.prim is p.LOAD else 0
            for arg in node.args:
                bits |= self._reads.get(arg, 0)
            if bits:
                self._reads[node] = bits

    def writes_of(self, body: tuple[Stmt, ...]) -> int:
        """Bits of the memories that the statements may change."""
        bits = 0
        for name in stored(body):
            bits |= self._clobbers[name]
        return bits

    def reads_of(self, roots: list[Node]) -> int:
        bits = 0
        for root in roots:
            bits |= self._reads.get(root, 0)
        return bits

    def forget(self, bits: int) -> None:
        """Drops the values that were read from memories in `bits`."""
        if not bits:
            return
        for key in list(self.values):
            node = key[1] if isinstance(key, tuple) else key
            if isinstance(node, Node) and self._reads.get(node, 0) & bits:
                del self.values[key]

    # ------------------------------------------------------------------ values
    def value(self, root: Node) -> Value:
        """The register that holds an expression: a scalar where it is uniform, else one element per lane."""
        values = self.values
        found = values.get(root)
        if found is not None:
            return found
        stack = [root]
        while stack:
            node = stack[-1]
            if node in values:
                stack.pop()
                continue
            missing = [a for a in self._operands(node) if a not in values]
            if missing:
                stack += reversed(missing)
                continue
            stack.pop()
            self._make(node)
        return values[root]

    def _operands(self, node: Node) -> tuple[Node, ...]:
        """The args whose values must be there: an affine offset or comparison needs only its scalars."""
        if self.lanes is None or not node.args:
            return node.args
        if node.prim is p.LOAD:
            table = self._table(node)
            if table is not None:
                return table.uniform
            return node.args if self.steps.step(node.args[0]) in (0, None) else node.args[1:]
        if node.dtype is INT64 and self.steps.step(node) not in (0, None):
            return ()
        return () if self._is_affine_comparison(node) else node.args

    def _make(self, node: Node) -> None:
        prim = node.prim
        if prim is p.CONST:
            self.bind(node, Value(literal(node.attrs.value, node.dtype), 0, 0))
        elif prim is p.LOAD:
            self._load(node)
        elif self.lanes is None or not self._make_in_lanes(node, self.lanes):
            if not node.args:
                raise CompileError(f"{prim} {node.attrs.name} is read outside its loop")
            args = [self.values[a] for a in node.args]
            lanes = max([a.lanes for a in args])
            if lanes:
                args = [a if a.lanes else self.spread(n) for a, n in zip(args, node.args, strict=True)]
            depth = max([a.depth for a in args])
            self.go(depth)
            texts = [a.text for a in args]
            if lanes and self._reads_constants and node.prim in _FOLDING:
                texts = [self._constant_in_memory(n, lanes) if is_tabled(n) else text for n, text in zip(node.args, texts, strict=True)]
            self.bind(node, Value(spell(self, node, texts, lanes), lanes, depth))

    # ------------------------------------------------------------------ constants
    def place_constants(self, roots: list[Node]) -> None:
        """Decides for the vector loop of these expressions where their constants stand: in registers, or in memory, where an instruction
        reads its operand.  One register each leaves too few for values (LLVM loads them again in front of each use: an instruction more and
        a register of the processor's file, which is what limits a long body: exp, softmax, a polynomial in three variables a tenth slower)."""
        self._reads_constants = False
        if self.target.folds_memory:
            readers = (n for n in toposort(roots) if n.prim in _FOLDING)
            self._reads_constants = len({a for n in readers for a in n.args if is_tabled(a)}) > MOST_CONSTANTS

    def _constant_in_memory(self, node: Node, lanes: int) -> str:
        """Each use has a copy of its own: a load that two instructions share would hold a register between them."""
        of, text = vector(scalar_type(node.dtype), lanes), literal(node.attrs.value, node.dtype)
        use = self._uses[node] = (self._uses.get(node, -1) + 1) % MOST_COPIES
        name = f"k.{type_suffix(node.dtype)}.{text}.{lanes}.{use}"
        value = constant(node.attrs.value, node.dtype, lanes)
        # not a constant for LLVM: it would put it into a register again
        where = self.helper(name, lambda: f"@{name} = private unnamed_addr global {of} {value}, align 64\n")
        return self.op(f"load {of}, ptr {where}, align 64")

    def _make_in_lanes(self, node: Node, lanes: Lanes) -> bool:
        """Values that follow from lane 0 and the step; False where the node is an ordinary one."""
        if node.dtype is INT64:
            step = self.steps.step(node)
            if step:
                self._ramp(node, step, lanes)
                return True
            if step == 0 and any(self.steps.step(a) != 0 for a in node.args):
                self.bind(node, self.lane0(node))
                return True
        elif node.prim is p.CAST and node.args[0].dtype is INT64 and node.dtype in (FLOAT32, FLOAT64, INT32):
            return self._cast_ramp(node, lanes)
        elif self._is_affine_comparison(node):
            self._compare_ramps(node, lanes)
            return True
        return False

    def spread(self, node: Node) -> Value:
        """The value of a node with one element per lane."""
        value = self.value(node)
        if value.lanes or self.lanes is None:
            return value
        width = self.lanes.width
        key = ("splat", node, width)
        found = self.values.get(key)
        if found is not None:
            return found
        self.go(value.depth)
        if node.prim is p.CONST:
            return self.bind(key, Value(constant(node.attrs.value, node.dtype, width), width, 0))
        return self.bind(key, Value(self.splat(value.text, scalar_type(node.dtype), width), width, value.depth))

    # ------------------------------------------------------------------ affine in the vector index
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
        if all(self.steps.step(a) == 0 for a in node.args):
            return self.value(node)
        args = [self.lane0(a) for a in node.args]
        depth = max(a.depth for a in args)
        self.go(depth)
        return self.bind(key, Value(spell(self, node, [a.text for a in args], 0), 0, depth))

    def _ramp(self, node: Node, step: int, lanes: Lanes) -> None:
        base = self.lane0(node)
        self.go(base.depth)
        spread = self.splat(base.text, "i64", lanes.width)
        text = self.op(f"add {vector('i64', lanes.width)} {spread}, {_ramp_text('i64', step, lanes.width)}")
        self.bind(node, Value(text, lanes.width, base.depth))

    def _cast_ramp(self, node: Node, lanes: Lanes) -> bool:
        """An affine int64 known to fit 32 bits is converted from there: vectors of 64-bit integers are slow to convert."""
        source = node.args[0]
        step = self.steps.step(source)
        if not step or not (node.dtype is INT32 or self.steps.fits_32_bits(source)) or abs(step) * lanes.width >= 1 << 31:
            return False
        base = self.lane0(source)
        self.go(base.depth)
        of = vector("i32", lanes.width)
        spread = self.splat(self.op(f"trunc i64 {base.text} to i32"), "i32", lanes.width)
        text = self.op(f"add {of} {spread}, {_ramp_text('i32', step, lanes.width)}")
        if node.dtype is not INT32:
            text = self.op(f"sitofp {of} {text} to {vector(scalar_type(node.dtype), lanes.width)}")
        self.bind(node, Value(text, lanes.width, base.depth))
        return True

    def _is_affine_comparison(self, node: Node) -> bool:
        """Whether both sides are affine, at least one of them varying, and their difference cannot overflow 64 bits."""
        if node.prim not in _COMPARE or node.args[0].dtype is not INT64 or self.lanes is None:
            return False
        x, y = (self.steps.step(a) for a in node.args)
        if x is None or y is None or (x == 0 and y == 0) or abs(x - y) * self.lanes.width >= 1 << 31:
            return False
        return all(abs(bound) < 1 << 62 for a in node.args for bound in self.steps.interval(a))

    def _compare_ramps(self, node: Node, lanes: Lanes) -> None:
        """x + k * s < y + k * t  is  k * (s - t) < y - x, the right side clamped to 32 bits: a quarter of the work of 64-bit lanes."""
        x, y = (self.lane0(a) for a in node.args)
        depth = max(x.depth, y.depth)
        self.go(depth)
        of, step = vector("i32", lanes.width), (self.steps.step(node.args[0]) or 0) - (self.steps.step(node.args[1]) or 0)
        gap = self.op(f"sub i64 {y.text}, {x.text}")
        gap = self.op(f"call i64 @llvm.smin.i64(i64 {gap}, i64 {(1 << 31) - 1})")
        gap = self.op(f"call i64 @llvm.smax.i64(i64 {gap}, i64 {-(1 << 31)})")
        spread = self.splat(self.op(f"trunc i64 {gap} to i32"), "i32", lanes.width)
        text = self.op(f"icmp {_COMPARE[node.prim]} {of} {_ramp_text('i32', step, lanes.width)}, {spread}")
        self.bind(node, Value(text, lanes.width, depth))

    # ------------------------------------------------------------------ loads
    def _floor_of_load(self, node: Node) -> int:
        """The outermost scope in which the load may stand."""
        if self._has_check and depends_on_data(node.args[0]):
            return self.innermost
        bits, floor = self._reads.get(node, 0), 0
        for depth, scope in enumerate(self.scopes):
            if scope.writes & bits or scope.conditional:
                floor = depth
        return floor

    def _table(self, node: Node) -> Table | None:
        """How a load reads at places that lie side by side in memory, if it does: then each lane's place is read by itself, which is
        cheaper than taking a vector of them apart."""
        lanes = self.lanes
        if lanes is None or lanes.mask is not None or len(node.args) > 1 or self.target.has_fast_gather or self._has_check:
            return None
        if self.steps.step(node.args[0]) is not None:
            return None
        terms = [node.args[0]]
        uniform: list[Node] = []
        places: Node | None = None
        factor = 1
        while terms:
            term = terms.pop()
            if self.steps.step(term) == 0:
                uniform.append(term)
                continue
            if term.prim is p.ADD:
                terms += term.args
                continue
            if term.prim is p.MUL and term.args[1].prim is p.CONST:
                factor, term = int(term.args[1].attrs.value), term.args[0]
            if places is None and term.prim is p.LOAD and len(term.args) == 1 and self.steps.step(term.args[0]) == 1 and term not in self._reads:
                places = term
            else:
                return None
        return Table(tuple(uniform), places, factor) if places is not None else None

    def _load_by_table(self, node: Node, table: Table) -> None:
        lanes, memory = self.lanes, self.memories[node.attrs.name]
        assert lanes is not None
        places = self._places(table, lanes)
        uniform = [self.values[u] for u in table.uniform]
        self.go(max([0, *(u.depth for u in uniform)]))
        base = f"%m.{memory.name}"
        for u in uniform:
            base = self.op(f"getelementptr {memory_type(memory.dtype)}, ptr {base}, i64 {u.text}")
        depth = max([self._floor_of_load(node), lanes.depth, *(u.depth for u in uniform)])
        self.go(depth)
        raw = access.read_at_places(self, memory, base, places)
        self.bind(node, Value(access.from_memory(self, raw, memory.dtype, lanes.width), lanes.width, depth))

    def _places(self, table: Table, lanes: Lanes) -> list[str]:
        """The place of each lane, as scalars."""
        keys = [("place", table.places, table.factor, k) for k in range(lanes.width)]
        if keys[0] not in self.values:
            first = self.lane0(table.places.args[0])
            depth = max(self._floor_of_load(table.places), first.depth, lanes.depth)
            self.go(depth)
            for key, text in zip(
                keys, access.places(self, self.memories[table.places.attrs.name], first.text, table.factor, lanes.width), strict=True
            ):
                self.bind(key, Value(text, 0, depth))
        return [self.values[key].text for key in keys]

    def _load(self, node: Node) -> None:
        table = self._table(node)
        if table is not None:
            self._load_by_table(node, table)
            return
        memory, lanes = self.memories[node.attrs.name], self.lanes
        guard = self.values[node.args[1]] if len(node.args) > 1 else None
        step = self.steps.step(node.args[0])
        offset = self.values[node.args[0]] if step in (0, None) else self.lane0(node.args[0])
        if step is None and not offset.lanes:  # made of values that are one for all lanes, which the steps do not see
            step = 0
        depth = max(offset.depth, self._floor_of_load(node), guard.depth if guard is not None else 0)
        guard = None if guard is not None and guard.text == "true" else guard
        flag = guard.text if guard is not None and not guard.lanes else None
        if lanes is None or (step == 0 and (guard is None or flag is not None)):
            self.go(depth)
            raw = access.scalar_load(self, memory, offset.text, flag)
            self.bind(node, Value(access.from_memory(self, raw, memory.dtype, 0), 0, depth))
            return
        width = lanes.width
        depth = max(depth, lanes.depth)
        self.go(depth)
        if guard is None and (before := self._window(node, step, lanes)) is not None:
            raw = self._read_window(node, memory, offset.text, step or 1, before, depth)
        elif step == 0:
            raw = self._splat_where(memory.name, offset.text, self.mask(guard) or "", width)
        elif step in (1, -1):
            mask = lanes.mask if flag is not None else self.mask(guard)
            raw = access.contiguous_load(self, memory, offset.text, width, mask, flag, step == -1)
        else:
            raw = access.gather(self, memory, offset.text, step, width, self.mask(guard))
        found = self._selects.get(node, ())
        bits = min(found, default=8) if len(found) == 1 and step == 1 and lanes.mask is None and guard is None else 8
        self.bind(node, Value(access.from_memory(self, raw, memory.dtype, width, bits), width, depth))

    def _window(self, node: Node, step: int | None, lanes: Lanes) -> int | None:
        """Where lanes are a few elements apart, all that lies between is read and the lanes are picked out: at which place in each
        group of `step` elements they stand, so that neighbours share what was read.  None: not so, or memory ends before."""
        if step is None or not 2 <= step <= MOST_APART or lanes.mask is not None:
            return None
        offset = node.args[0]
        before = int(offset.args[1].attrs.value) % step if offset.prim is p.ADD and offset.args[1].prim is p.CONST else 0
        low, high = self.steps.interval(offset)
        return before if low >= before and high + step - 1 - before < self.memories[node.attrs.name].elems else None

    def _read_window(self, node: Node, memory: Memory, offset: str, step: int, before: int, depth: int) -> str:
        assert self.lanes is not None
        width, known = self.lanes.width, None
        group = node.args[0] if not before or node.args[0].args[1].attrs.value != before else node.args[0].args[0]
        key = ("window", group, node.attrs.name, step)
        if node not in self._reads and (group is not node.args[0] or not before):
            known = self.values.get(key)
        if known is None:
            known = Value(access.window(self, memory, offset, before, step * width), step * width, depth)
            if node not in self._reads and (group is not node.args[0] or not before):
                self.bind(key, known)
        return access.every(self, known.text, memory.dtype, before, step, width)

    def _splat_where(self, name: str, offset: str, mask: str, width: int) -> str:
        """One element in the lanes of the mask, zero in the others; read if there is one."""
        memory = self.memories[name]
        kind = memory_type(memory.dtype)
        raw = access.scalar_load(self, memory, offset, access.any_lane(self, mask, width))
        of = vector(kind, width)
        return self.op(f"select {vector('i1', width)} {mask}, {of} {self.splat(raw, kind, width)}, {of} zeroinitializer")

    def mask(self, guard: Value | None) -> str | None:
        """The lanes that may touch memory: those inside the loop in which the guard holds.  None: all.  Written where `at` points."""
        assert self.lanes is not None
        if guard is None:
            return self.lanes.mask
        text = guard.text if guard.lanes else self.splat(guard.text, "i1", self.lanes.width)
        return text if self.lanes.mask is None else self.op(f"and {vector('i1', self.lanes.width)} {text}, {self.lanes.mask}")


def is_tabled(node: Node) -> bool:
    """Whether a constant is worth a place in memory: zeros are made from nothing, doubling is an addition."""
    return node.prim is p.CONST and node.dtype in (FLOAT32, FLOAT64) and node.attrs.value not in (0.0, 1.0, -1.0, 2.0)


def _ramp_text(type_text: str, step: int, width: int) -> str:
    return "<" + ", ".join(f"{type_text} {k * step}" for k in range(width)) + ">"


def stored(body: tuple[Stmt, ...]) -> set[str]:
    """Names of the memories that the statements write."""
    names: set[str] = set()
    for s in body:
        match s:
            case Store():
                names.add(s.memory)
            case Tile():
                names |= {s.memory} if s.copied is None else {s.memory, s.right.attrs.name}
            case For():
                names |= stored(s.body)
    return names


def has_check(body: tuple[Stmt, ...]) -> bool:
    return any(isinstance(s, Check) or (isinstance(s, For) and has_check(s.body)) for s in body)


def depends_on_data(root: Node) -> bool:
    """Whether an offset contains a load or a local."""
    return any(n.prim in (p.LOAD, p.LOCAL) for n in toposort([root]))


def divides(roots: list[Node]) -> bool:
    """Whether an offset among the expressions divides: its blocks count from multiples of the width."""
    return contains(roots, p.DIV, p.REM)
