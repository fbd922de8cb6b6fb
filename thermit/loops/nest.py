"""Loop programs: data and text.

    program ::=  name(buffers) over `index` in [begin, end):  stmt*         one native function; the outermost loop is the parallel one
    stmt    ::=  For(index, extent, body, mode, width, accs, ahead)         index runs over 0 .. extent-1
              |  Store(buffer, offset, value, guard)                        where guard (if any) holds
              |  Check(ok)                                                  the program stops (returns 1) unless ok holds
              |  Product(rows, columns, depth, left, right, local, body)    a matrix product, and what is done with each element; `tile` expands it
              |  Chain(first, between, second)                              two products with loops over rows between them; `tile` expands it
              |  Tile(index, extent, left, right, memory, offset, step)     a part of it, its accumulators in registers
    acc     ::=  Acc(local, combine, init, value, position)                 a value carried by the loop that owns it
    expr    ::=  Node of shape (): map primitives, const, index, local, load

Expressions are interned, so what is shared is one object and is computed once in the outermost place where its indices, locals
and loads are known.  A load from a buffer that the same program writes is never moved across a statement.

Modes of a For
    serial    one index after another
    unroll    the body repeated `extent` times (extent is small)
    vector    the body on vectors of `width` lanes: lane k of step i has index i * width + k.  What does not depend on the index stays
              scalar (uniform).  A load or store whose offset is affine in the index with step 1 is a vector access, with step 0 a
              splat, otherwise a gather or scatter.  The last step is masked when width does not divide extent: masked lanes
              neither read nor write memory, fail no Check and leave accumulators as they are.  Vector loops do not nest.

Accumulators: `local` reads, inside the body, the value before the current iteration (serial and unrolled loops only) and, after
the loop, the result.  The accumulator of a vector loop is kept per lane and combined across lanes after the loop; that of a
serial loop inside a vector loop is a vector, one accumulation per lane of the outer loop.  `combine` is one of add, mul, min, max,
and, or (map primitives), or argmax / argmin (reduce primitives: `value` is compared, `position` kept: the first of equals, a nan wins).
For argmax and argmin `init` is the worst value of the type of `value`, the position starts at 0, and `local` is the position (int64).
`combine` None: local becomes `value` in each iteration (a scan: value reads local).
`ahead` of a vector loop: places that are brought into the cache while it runs, for later loops; nothing is read from there.
`wide`: a float32 sum that a serial loop keeps in float64, a float64 sum that it keeps in two numbers, and rounds once, behind the loop;
nothing inside reads it.
`lanes` > 1 asks a vector loop for that many independent accumulators, to hide latency.

Consecutive Stores of one body act at once: their offsets, values and guards are all evaluated (and loads done) before the first
of them writes, so that inputs updated from each other's old values need no copies.  A masked lane, and a load whose guard is false,
may hand any operand to an integer div or rem: the emitter must not let it trap.  Sibling loops may use the same index node.

Invariants: every index and local is read only inside (local: also after) the loop that binds it; offsets are int64 in elements.
"""

from __future__ import annotations

from typing import Literal

from thermit.ir.node import Node
from thermit.ir.prims import Prim
from thermit.ir.types import DType
from thermit.records import dataclass

Mode = Literal["serial", "unroll", "vector"]


@dataclass(frozen=True, slots=True)
class Memory:
    """A buffer.  role: "in" (only read), "out" (written), "inout" (both), "row" (private to one iteration of the parallel loop;
    `elems` of them on the stack, 64-byte aligned).  Buffers other than rows are params of the function, in this order.
    `alias` names the buffers whose memory may overlap this one (an input that is updated in place): none otherwise.
    `stream`: only written, 64-byte aligned, and so large that the cache will not hold it until it is read: stores may go around
    the cache (half the traffic: a line that is written whole need not be read first)."""

    name: str
    dtype: DType
    role: Literal["in", "out", "inout", "row"]
    elems: int
    alias: tuple[str, ...] = ()
    stream: bool = False


@dataclass(frozen=True, slots=True)
class Acc:
    local: Node
    combine: Prim | None
    init: Node
    value: Node
    position: Node | None = None
    lanes: int = 1
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Load:
    """A place that will be read: its offset grows with the index of the loop, and may lie outside of the buffer."""

    memory: str
    offset: Node


@dataclass(frozen=True, slots=True)
class For:
    index: Node
    extent: int | Node
    body: tuple[Stmt, ...]
    mode: Mode = "serial"
    width: int = 1
    accs: tuple[Acc, ...] = ()
    ahead: tuple[Load, ...] = ()


@dataclass(frozen=True, slots=True)
class Store:
    memory: str
    offset: Node
    value: Node
    guard: Node | None = None


@dataclass(frozen=True, slots=True)
class Check:
    ok: Node


@dataclass(frozen=True, slots=True)
class Span:
    """An index with its range [0, extent)."""

    index: Node
    extent: int


@dataclass(frozen=True, slots=True)
class Product:
    """For each row i and column j: local = the sum over k of left * right, then `body`.

    `left` reads i and k, `right` k and j, `body` i, j and local.  Stands alone in its program, whose own index is that of the batch.
    """

    rows: Span
    columns: Span
    depth: Span
    left: Node
    right: Node
    local: Node
    body: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class Tile:
    """memory[offset + r * step + c * spread] += the sum over `index` of left[r] * right[c] for r < len(left), c < width: fused multiply-adds in
    the order of the index, from zero on, all accumulators in registers.

    left[r]   a load, affine in the index: one element for each row
    right     a load, affine in the index: the first of `width` elements that are `apart` from each other
    apart     1: the lanes of a register are neighbouring columns.  Otherwise left and right grow by 1 with the index, and the lanes are steps of it
              (so that nothing need be copied into other places first): each lane adds up its own, and they are added in the end
    spread    how far the sums of a row are from each other; other than 1 only where lanes are steps
    adds      false: the sum replaces what is in memory
    ahead     places, affine in the index, that are brought into the cache meanwhile
    copied    a load, affine in the index, with a guard mask[...] < 0 or none: right[c] is first written, with its c-th neighbour (and neighbouring
              mask), 0 where the guard does not hold.  To copy beside multiply-adds costs next to nothing
    """

    index: Node
    extent: int | Node
    left: tuple[Node, ...]
    right: Node
    memory: str
    offset: Node
    step: int
    width: int
    adds: bool = True
    ahead: tuple[Load, ...] = ()
    apart: int = 1
    spread: int = 1
    copied: Node | None = None


@dataclass(frozen=True, slots=True)
class Chain:
    """Two products with rows between them: for each row i, `first` for all its columns, then `between`, then `second`.

    `first` stores its sums in a row memory, at the column; `between` are loops over the columns that read and write row memories there, and
    `second` reads what they leave as its left side, at its depth.  Stands alone in its program, as a product does.  Row memories hold one row.
    """

    first: Product
    between: tuple[For, ...]
    second: Product


Stmt = For | Store | Check | Product | Tile | Chain


@dataclass(frozen=True, slots=True)
class LoopProgram:
    """`index` is the parallel loop variable, `extent` its range; body runs once for each.  A program without parallelism has extent 1.

    `mode`, `width`: the parallel loop itself may be a vector loop; then [begin, end) counts single indices, and a
    caller splits it at multiples of `width`.  `accs` are allowed only inside the body.  Mode "block" (made behind `legalize`): the body
    runs once for `width` indices, `index` is the first of them; the last block is moved back so that it ends at the end.
    """

    name: str
    memories: tuple[Memory, ...]
    index: Node
    extent: int
    body: tuple[Stmt, ...]
    mode: Mode | Literal["block"] = "serial"
    width: int = 1


# ---------------------------------------------------------------------------------------------- text
_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
          "and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>", "rem": "%"}  # fmt: skip


def expr_text(root: Node, limit: int = 400) -> str:
    """A scalar expression in infix form; deep ones are cut."""

    def text(node: Node, depth: int) -> str:
        name = node.prim.name
        if depth > 24:
            return "..."
        if name == "const":
            return repr(node.attrs.value)
        if name in ("index", "local"):
            return str(node.attrs.name)
        args = [text(a, depth + 1) for a in node.args]
        if name == "load":
            return f"{node.attrs.name}[{args[0]}]" + (f" if {args[1]}" if len(args) > 1 else "")
        if name in _INFIX and len(args) == 2:
            return f"({args[0]} {_INFIX[name]} {args[1]})"
        if name in ("cast", "bitcast"):
            return f"{'' if name == 'cast' else 'bits '}{node.dtype}({args[0]})"
        return f"{name}({', '.join(args)})"

    out = text(root, 0)
    return out if len(out) <= limit else out[: limit - 3] + "..."


def program_text(program: LoopProgram) -> str:
    """The program as indented Python-like lines."""
    lines = [f"kernel {program.name}({', '.join(f'{m.role} {m.name}: {m.dtype}[{m.elems}]' for m in program.memories if m.role != 'row')})"]
    lines += [f"  row {m.name}: {m.dtype}[{m.elems}]" for m in program.memories if m.role == "row"]

    def walk(body: tuple[Stmt, ...], indent: str) -> None:
        for s in body:
            match s:
                case Store():
                    guard = f"  if {expr_text(s.guard)}" if s.guard is not None else ""
                    lines.append(f"{indent}{s.memory}[{expr_text(s.offset)}] = {expr_text(s.value)}{guard}")
                case Check():
                    lines.append(f"{indent}check {expr_text(s.ok)}")
                case Product():
                    spans = ", ".join(f"{v.index.attrs.name} < {v.extent}" for v in (s.rows, s.columns))
                    lines.append(f"{indent}product {spans}:")
                    total = f"sum({s.depth.index.attrs.name} < {s.depth.extent}) {expr_text(s.left)} * {expr_text(s.right)}"
                    lines.append(f"{indent}  {s.local.attrs.name} = {total}")
                    walk(s.body, indent + "  ")
                case Chain():
                    walk((s.first, *s.between, s.second), indent)
                case Tile():
                    extent = s.extent if isinstance(s.extent, int) else expr_text(s.extent)
                    lines.extend(f"{indent}ahead {a.memory}[{expr_text(a.offset)}]" for a in s.ahead)
                    lines.append(f"{indent}tile {len(s.left)} x {s.width}, step {s.step}, {s.index.attrs.name} < {extent}:")
                    lines.extend([f"{indent}  {expr_text(s.right)} = {expr_text(s.copied)}"] if s.copied is not None else [])
                    lines.append(
                        f"{indent}  {s.memory}[{expr_text(s.offset)}] {'+=' if s.adds else '='} {expr_text(s.left[0])} * {expr_text(s.right)}"
                    )
                case For():
                    mode = "" if s.mode == "serial" else f"  {s.mode}" + (f" x {s.width}" if s.mode == "vector" else "")
                    for a in s.accs:
                        lines.append(f"{indent}{a.local.attrs.name} = {expr_text(a.init)}")
                    extent = s.extent if isinstance(s.extent, int) else expr_text(s.extent)
                    lines.append(f"{indent}for {s.index.attrs.name} < {extent}:{mode}")
                    lines.extend(f"{indent}  ahead {a.memory}[{expr_text(a.offset)}]" for a in s.ahead)
                    walk(s.body, indent + "  ")
                    for a in s.accs:
                        name, at = a.local.attrs.name, f" at {expr_text(a.position)}" if a.position is not None else ""
                        lines.append(f"{indent}  {name} {a.combine.name if a.combine else ''}= {expr_text(a.value)}{at}")

    mode = "" if program.mode == "serial" else f"  {program.mode} x {program.width}"
    lines.append(f"  parallel for {program.index.attrs.name} < {program.extent}:{mode}")
    walk(program.body, "    ")
    return "\n".join(lines) + "\n"


def exprs_of(body: tuple[Stmt, ...]) -> list[Node]:
    """The root expressions of the statements, nested ones included."""
    roots: list[Node] = []
    for s in body:
        match s:
            case Store():
                roots += [s.offset, s.value] + ([s.guard] if s.guard is not None else [])
            case Check():
                roots.append(s.ok)
            case Product():
                roots += [s.left, s.right, *exprs_of(s.body)]
            case Chain():
                roots += exprs_of((s.first, *s.between, s.second))
            case Tile():
                roots += [*s.left, s.right, s.offset, *(a.offset for a in s.ahead)] + ([s.extent] if isinstance(s.extent, Node) else [])
                roots += [s.copied] if s.copied is not None else []
            case For():
                roots += [s.extent] if isinstance(s.extent, Node) else []
                for a in s.accs:
                    roots += [a.init, a.value] + ([a.position] if a.position is not None else [])
                roots += exprs_of(s.body)
    return roots
