"""Loads and stores -> LLVM instructions.

What comes in: a memory, the offset of lane 0 (or of every lane), a mask.  What goes out: the elements as they lie in memory.
Invariant: nothing is touched where the mask is false, and there is no branch: a scalar access whose guard is false goes to
@zeros (loads) or to %sink (stores) instead.
"""

from __future__ import annotations

from collections.abc import Sequence

from thermit.codegen.literals import memory_type, vector
from thermit.codegen.target import Target
from thermit.codegen.writer import FunctionWriter
from thermit.ir.types import BOOL, DType
from thermit.loops.nest import Memory

ZEROS_BYTES = 512
ZEROS = f"@zeros = private unnamed_addr constant [{ZEROS_BYTES} x i8] zeroinitializer, align 64\n"
SINK = "  %sink = alloca [64 x i8], align 64"
LINE_BYTES = 64  # of the cache
_SUFFIX = {"float": "f32", "double": "f64"}


def from_memory(w: FunctionWriter, raw: str, dtype: DType, lanes: int, flag_bits: int = 8) -> str:
    """What the processor reads as the value in a register.  `flag_bits`: of the elements among which a flag selects: where masks are as wide as
    those, it is read as wide, in one instruction, instead of a mask of bytes that must be taken apart."""
    if dtype is not BOOL:
        return raw
    if flag_bits > 8 and lanes and w.target.widens_flags:
        of = vector(f"i{flag_bits}", lanes)
        wide = w.op(f"zext {vector('i8', lanes)} {raw} to {of}")
        return w.op(f"icmp sgt {of} {wide}, zeroinitializer")
    return w.op(f"icmp ne {vector('i8', lanes)} {raw}, {'zeroinitializer' if lanes else 0}")


def to_memory(w: FunctionWriter, value: str, dtype: DType, lanes: int) -> str:
    if dtype is not BOOL:
        return value
    return w.op(f"zext {vector('i1', lanes)} {value} to {vector('i8', lanes)}")


def address(w: FunctionWriter, memory: Memory, offset: str) -> str:
    return w.op(f"getelementptr inbounds {memory_type(memory.dtype)}, ptr %m.{memory.name}, i64 {offset}")


def fetch(w: FunctionWriter, memory: Memory, offset: str, behind_bytes: int) -> None:
    """Brings the cache line of an element, and of so many bytes behind it, near; never faults."""
    where = w.op(f"getelementptr {memory_type(memory.dtype)}, ptr %m.{memory.name}, i64 {offset}")
    if behind_bytes:
        where = w.op(f"getelementptr i8, ptr {where}, i64 {behind_bytes}")
    w.line(f"  call void @llvm.prefetch.p0(ptr {where}, i32 0, i32 3, i32 1)")


def any_lane(w: FunctionWriter, mask: str, width: int) -> str:
    return w.op(f"call i1 @llvm.vector.reduce.or.v{width}i1({vector('i1', width)} {mask})")


def scalar_load(w: FunctionWriter, memory: Memory, offset: str, guard: str | None) -> str:
    where = w.op(f"getelementptr {memory_type(memory.dtype)}, ptr %m.{memory.name}, i64 {offset}") if guard else address(w, memory, offset)
    if guard is not None:
        where = w.op(f"select i1 {guard}, ptr {where}, ptr @zeros")
    return w.op(f"load {memory_type(memory.dtype)}, ptr {where}, align {memory.dtype.itemsize}")


def scalar_store(w: FunctionWriter, memory: Memory, offset: str, raw: str, guard: str | None) -> None:
    where = w.op(f"getelementptr {memory_type(memory.dtype)}, ptr %m.{memory.name}, i64 {offset}") if guard else address(w, memory, offset)
    if guard is not None:
        w.uses_sink = True
        where = w.op(f"select i1 {guard}, ptr {where}, ptr %sink")
    w.line(f"  store {memory_type(memory.dtype)} {raw}, ptr {where}, align {memory.dtype.itemsize}")


def reverse(w: FunctionWriter, value: str, kind: str, width: int) -> str:
    of = vector(kind, width)
    order = ", ".join(f"i32 {k}" for k in reversed(range(width)))
    return w.op(f"shufflevector {of} {value}, {of} poison, <{width} x i32> <{order}>")


def contiguous_load(w: FunctionWriter, memory: Memory, offset: str, width: int, mask: str | None, guard: str | None, backward: bool) -> str:
    """`width` neighbours from lane 0's offset on (backward: down).  `guard`: one flag for all lanes."""
    kind, align = memory_type(memory.dtype), memory.dtype.itemsize
    of = vector(kind, width)
    if backward:
        offset = w.op(f"sub i64 {offset}, {width - 1}")
        mask = reverse(w, mask, "i1", width) if mask is not None else None
    if guard is not None and width * align > ZEROS_BYTES:
        mask, guard = w.splat(guard, "i1", width) if mask is None else _and(w, mask, w.splat(guard, "i1", width), width), None
    inbounds = "inbounds " if guard is None and mask is None else ""
    where = w.op(f"getelementptr {inbounds}{kind}, ptr %m.{memory.name}, i64 {offset}")
    if guard is not None:
        where = w.op(f"select i1 {guard}, ptr {where}, ptr @zeros")
    raw = w.op(f"load {of}, ptr {where}, align {align}") if mask is None else masked_load(w, kind, width, align, where, mask)
    return reverse(w, raw, kind, width) if backward else raw


def may_stream(target: Target, memory: Memory, width: int) -> bool:
    """Whether whole vectors go around the cache where they are aligned."""
    return memory.stream and width * memory.dtype.itemsize >= target.vector_bits // 8


def contiguous_store(
    w: FunctionWriter, memory: Memory, offset: str, width: int, mask: str | None, raw: str, backward: bool, whole: bool = False
) -> None:
    """`whole`: the offset of lane 0 is a multiple of the width."""
    kind, align = memory_type(memory.dtype), memory.dtype.itemsize
    if backward:
        offset = w.op(f"sub i64 {offset}, {width - 1}")
        raw = reverse(w, raw, kind, width)
        mask = reverse(w, mask, "i1", width) if mask is not None else None
    if mask is None:
        hint = ""
        if whole and not backward and may_stream(w.target, memory, width):
            align, hint, w.streams = min(64, width * align), ", !nontemporal !99", True
        w.line(f"  store {vector(kind, width)} {raw}, ptr {address(w, memory, offset)}, align {align}{hint}")
    else:
        masked_store(w, kind, width, align, w.op(f"getelementptr {kind}, ptr %m.{memory.name}, i64 {offset}"), mask, raw)


def gather(w: FunctionWriter, memory: Memory, offset: str, step: int | None, width: int, mask: str | None) -> str:
    """Lane k from offset + k * step, or, where there is no step, from the k-th of the offsets."""
    kind, align = memory_type(memory.dtype), memory.dtype.itemsize
    of, flags = vector(kind, width), vector("i1", width)
    if step is None and w.target.has_fast_gather and align >= 4:
        where = w.op(f"getelementptr {kind}, ptr %m.{memory.name}, {vector('i64', width)} {offset}")
        call = f"@llvm.masked.gather.v{width}{_SUFFIX.get(kind, kind)}.v{width}p0"
        return w.op(f"call {of} {call}({vector('ptr', width)} {where}, i32 {align}, {flags} {mask or 'splat (i1 true)'}, {of} zeroinitializer)")
    raw = "poison"
    for k, at in enumerate(_lane_addresses(w, memory, offset, step, width)):
        if mask is not None:
            at = w.op(f"select i1 {w.op(f'extractelement {flags} {mask}, i32 {k}')}, ptr {at}, ptr @zeros")
        one = w.op(f"load {kind}, ptr {at}, align {align}")
        raw = w.op(f"insertelement {of} {raw}, {kind} {one}, i32 {k}")
    return raw


def window(w: FunctionWriter, memory: Memory, offset: str, before: int, elems: int) -> str:
    """`elems` neighbours, the first of them `before` elements in front of the offset."""
    kind = memory_type(memory.dtype)
    where = address(w, memory, offset)
    where = w.op(f"getelementptr {kind}, ptr {where}, i64 {-before}") if before else where
    return w.op(f"load {vector(kind, elems)}, ptr {where}, align {memory.dtype.itemsize}")


def every(w: FunctionWriter, raw: str, dtype: DType, first: int, step: int, width: int) -> str:
    """Every step-th of step * width elements."""
    of, order = vector(memory_type(dtype), step * width), ", ".join(f"i32 {first + step * k}" for k in range(width))
    return w.op(f"shufflevector {of} {raw}, {of} poison, <{width} x i32> <{order}>")


def interleaved(w: FunctionWriter, raws: list[str], dtype: DType, width: int) -> str:
    """The first elements of all vectors (at most four), then the second ones, ..."""
    kind, step = memory_type(dtype), len(raws)
    of, all_of, pairs = vector(kind, width), ", ".join(f"i32 {k}" for k in range(2 * width)), []
    for k in range(0, step, 2):
        second = raws[k + 1] if k + 1 < step else "poison"
        pairs.append(w.op(f"shufflevector {of} {raws[k]}, {of} {second}, <{2 * width} x i32> <{all_of}>"))
    two = vector(kind, 2 * width)
    order = ", ".join(f"i32 {k * width + lane}" for lane in range(width) for k in range(step))
    other = pairs[1] if len(pairs) > 1 else "poison"
    return w.op(f"shufflevector {two} {pairs[0]}, {two} {other}, <{step * width} x i32> <{order}>")


def within(w: FunctionWriter, x: str, y: str, kind: str, width: int, inside: int, low: Sequence[int]) -> str:
    """Lanes of two vectors, the same inside of each block of `inside` lanes: numbers from `inside` on are lanes of the second vector."""
    order = [b + (k if k < inside else k - inside + width) for b in range(0, width, inside) for k in low]
    of = vector(kind, width)
    return w.op(f"shufflevector {of} {x}, {of} {y}, <{width} x i32> <{', '.join(f'i32 {k}' for k in order)}>")


def part(w: FunctionWriter, x: str, kind: str, width: int, start: int, count: int) -> str:
    """`count` lanes of a vector, from `start` on."""
    of, order = vector(kind, width), ", ".join(f"i32 {start + k}" for k in range(count))
    return w.op(f"shufflevector {of} {x}, {of} poison, <{count} x i32> <{order}>")


def turned(w: FunctionWriter, raws: list[str], dtype: DType) -> list[str]:
    """As many vectors as they have lanes, transposed: first pairs or fours inside of 128 bits, which is one instruction each, then blocks of 128."""
    kind, width = memory_type(dtype), len(raws)
    inside = min(16 // dtype.itemsize, width)

    def shuffled(x: str, y: str, low: Sequence[int]) -> str:
        return within(w, x, y, kind, width, inside, low)

    rows = list(raws)
    if inside == 2:
        rows = [shuffled(rows[k // 2 * 2], rows[k // 2 * 2 + 1], (0, 2) if k % 2 == 0 else (1, 3)) for k in range(width)]
    elif inside == 4:
        fours = []
        for k in range(0, width, 4):
            a, b, c, d = rows[k : k + 4]
            for low in ((0, 4, 1, 5), (2, 6, 3, 7)):
                x, y = shuffled(a, b, low), shuffled(c, d, low)
                fours += [shuffled(x, y, (0, 1, 4, 5)), shuffled(x, y, (2, 3, 6, 7))]
        rows = fours
    step = inside
    while step < width:  # blocks of `step` lanes change places across the diagonal
        for k in range(width):
            if not k & step:
                x, y = rows[k], rows[k + step]
                rows[k] = within(w, x, y, kind, width, width, [n if not n & step else width + n - step for n in range(width)])
                rows[k + step] = within(w, x, y, kind, width, width, [n + step if not n & step else width + n for n in range(width)])
        step *= 2
    return rows


def places(w: FunctionWriter, memory: Memory, first: str, factor: int, width: int) -> list[str]:
    """`factor` times the places (int64) that stand from `first` on, one register each."""
    start, found = address(w, memory, first), []
    for k in range(width):
        place = w.op(f"load i64, ptr {w.op(f'getelementptr inbounds i64, ptr {start}, i64 {k}')}, align 8")
        found.append(w.op(f"mul i64 {place}, {factor}") if factor != 1 else place)
    return found


def read_at_places(w: FunctionWriter, memory: Memory, base: str, places: list[str]) -> str:
    """Lane k from `base` + the k-th of the places."""
    kind, of, raw = memory_type(memory.dtype), vector(memory_type(memory.dtype), len(places)), "poison"
    for k, place in enumerate(places):
        one = w.op(f"load {kind}, ptr {w.op(f'getelementptr {kind}, ptr {base}, i64 {place}')}, align {memory.dtype.itemsize}")
        raw = w.op(f"insertelement {of} {raw}, {kind} {one}, i32 {k}")
    return raw


def scatter(w: FunctionWriter, memory: Memory, offset: str, step: int | None, width: int, mask: str | None, raw: str) -> None:
    """The lanes one after another, so that the last of equal offsets stays."""
    kind = memory_type(memory.dtype)
    for k, at in enumerate(_lane_addresses(w, memory, offset, step, width)):
        _store_lane(w, kind, width, memory.dtype.itemsize, k, at, mask, raw)


def _lane_addresses(w: FunctionWriter, memory: Memory, offset: str, step: int | None, width: int) -> list[str]:
    kind = memory_type(memory.dtype)
    if step is not None:
        base = w.op(f"getelementptr {kind}, ptr %m.{memory.name}, i64 {offset}")
        return [w.op(f"getelementptr {kind}, ptr {base}, i64 {k * step}") for k in range(width)]
    picked = [w.op(f"extractelement {vector('i64', width)} {offset}, i32 {k}") for k in range(width)]
    return [w.op(f"getelementptr {kind}, ptr %m.{memory.name}, i64 {i}") for i in picked]


def _store_lane(w: FunctionWriter, kind: str, width: int, align: int, k: int, at: str, mask: str | None, raw: str) -> None:
    if mask is not None:
        lane = w.op(f"extractelement {vector('i1', width)} {mask}, i32 {k}")
        w.uses_sink = True
        at = w.op(f"select i1 {lane}, ptr {at}, ptr %sink")
    one = w.op(f"extractelement {vector(kind, width)} {raw}, i32 {k}")
    w.line(f"  store {kind} {one}, ptr {at}, align {align}")


def _and(w: FunctionWriter, x: str, y: str, width: int) -> str:
    return w.op(f"and {vector('i1', width)} {x}, {y}")


# ---------------------------------------------------------------------------------------------- masks
def has_masks(target: Target, itemsize: int) -> bool:
    """Whether the processor loads and stores under a mask; LLVM would make a branch for each lane otherwise."""
    return target.has_masked8 if itemsize < 4 else target.has_masked32


def masked_load(w: FunctionWriter, kind: str, width: int, align: int, where: str, mask: str) -> str:
    """Zeros where the mask is false."""
    of, flags, suffix = vector(kind, width), vector("i1", width), f"v{width}{_SUFFIX.get(kind, kind)}"
    if has_masks(w.target, align):
        return w.op(f"call {of} @llvm.masked.load.{suffix}.p0(ptr {where}, i32 {align}, {flags} {mask}, {of} zeroinitializer)")
    name = f"load.{suffix}"
    return w.op(f"call {of} {w.helper(name, lambda: _load_text(w.target, name, kind, width, align))}(ptr {where}, {flags} {mask})")


def masked_store(w: FunctionWriter, kind: str, width: int, align: int, where: str, mask: str, raw: str) -> None:
    of, flags, suffix = vector(kind, width), vector("i1", width), f"v{width}{_SUFFIX.get(kind, kind)}"
    if has_masks(w.target, align):
        w.line(f"  call void @llvm.masked.store.{suffix}.p0({of} {raw}, ptr {where}, i32 {align}, {flags} {mask})")
        return
    name = f"store.{suffix}"
    w.line(f"  call void {w.helper(name, lambda: _store_text(w.target, name, kind, width, align))}({of} {raw}, ptr {where}, {flags} {mask})")


def _load_text(target: Target, name: str, kind: str, width: int, align: int) -> str:
    """One lane after another, in a function of its own: dozens of instructions, once in a module."""
    w = FunctionWriter(target, {})
    of, flags = vector(kind, width), vector("i1", width)
    w.line(f"define internal {of} @{name}(ptr %where, {flags} %mask) nounwind noinline {{\nentry:")
    w.line(f"  %all = call i1 @llvm.vector.reduce.and.v{width}i1({flags} %mask)\n  br i1 %all, label %whole, label %parts")
    w.line(f"whole:\n  %full = load {of}, ptr %where, align {align}\n  ret {of} %full\nparts:")
    raw = "zeroinitializer"
    for k in range(width):
        at = w.op(f"getelementptr {kind}, ptr %where, i64 {k}")
        at = w.op(f"select i1 {w.op(f'extractelement {flags} %mask, i32 {k}')}, ptr {at}, ptr @zeros")
        raw = w.op(f"insertelement {of} {raw}, {kind} {w.op(f'load {kind}, ptr {at}, align {align}')}, i32 {k}")
    w.line(f"  ret {of} {raw}\n}}\n")
    return "\n".join(w.scopes[0].lines)


def _store_text(target: Target, name: str, kind: str, width: int, align: int) -> str:
    w = FunctionWriter(target, {})
    of, flags = vector(kind, width), vector("i1", width)
    w.line(f"define internal void @{name}({of} %raw, ptr %where, {flags} %mask) nounwind noinline {{\nentry:\n{SINK}")
    w.line(f"  %all = call i1 @llvm.vector.reduce.and.v{width}i1({flags} %mask)\n  br i1 %all, label %whole, label %parts")
    w.line(f"whole:\n  store {of} %raw, ptr %where, align {align}\n  ret void\nparts:")
    for k in range(width):
        _store_lane(w, kind, width, align, k, w.op(f"getelementptr {kind}, ptr %where, i64 {k}"), "%mask", "%raw")
    w.line("  ret void\n}\n")
    return "\n".join(w.scopes[0].lines)
