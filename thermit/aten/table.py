"""PyTorch's vocabulary in primitives: the registration, and the two rules that primitives do not have, promotion and broadcasting.

What comes in: the arguments of one ATen call, tensors as Nodes (their current value), everything else as PyTorch hands it to
`__torch_dispatch__`: numbers, None, lists, torch.dtype, and defaults LEFT OUT, so a lowering's own signature repeats the names
and defaults of the ATen schema (a test compares them).  An operand that the schema calls a tensor may be a Python number.
What goes out: a Node for each tensor that the schema returns (one Node, or a tuple), or NotImplemented: then capture tries
PyTorch's decomposition and, failing that, records a call.  Shape and dtype must be those of eager; capture checks them.

The idea: one function under `@lower(overload, ...)` is all there is to an operation.  In-place and `out=` variants follow
from the schemas and are never registered.  Complex operands are declined here, before a row is asked.

    @lower(aten.leaky_relu.default, floats=True)
    def leaky_relu(self: Node, negative_slope: Number = 0.01) -> Node:
        (x,) = operands(self)
        return rounded(b.where(b.gt(x, 0), x, b.mul(x, negative_slope)), self.dtype)

Types.  Three dtypes matter in a row: that of an operand, the *common* dtype of all operands (`result_type`, PyTorch's three
categories: tensors with axes, 0-d tensors, Python numbers), and the *compute* dtype (`compute_dtype`: float32 for bfloat16 and
float16, else the common one).  `operands` brings values to the compute dtype and to one shape, `rounded` goes back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, Literal

import torch
from torch._ops import OpOverload

from thermit.ir import build as b
from thermit.ir.node import Node
from thermit.ir.types import BOOL, DTYPES, FLOAT32, FLOAT64, INT64, DType, Shape
from thermit.records import dataclass

Number = bool | int | float
Operand = Node | Number
Lowered = Any  # Node | tuple[Node | None, ...] | NotImplemented: the last has no type of its own that a union could name
Function = Callable[..., Lowered]

DTYPE_OF: dict[torch.dtype, DType] = {getattr(torch, name): dtype for name, dtype in DTYPES.items()}
TORCH_OF: dict[DType, torch.dtype] = {dtype: getattr(torch, name) for name, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Lowering:
    """One row: the overload, the function that builds its value, and samples of its own for the tests where no OpInfo has any.

    `floats`: eager has the operation for floating-point operands only; others are declined, so that its own error is raised.
    `samples()` yields `(args, kwargs)` of real tensors.
    """

    op: OpOverload
    function: Function
    floats: bool = False
    samples: Callable[[], Iterator[tuple[tuple[Any, ...], dict[str, Any]]]] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Lowered:
        """The value(s) of the call, or NotImplemented."""
        given = (*args, *kwargs.values()) if kwargs else args
        kinds: set[str] = set()
        for a in given:
            kind = type(a)
            if kind is Node:
                kinds.add(a.type.dtype.name)
            elif kind is complex:
                return NotImplemented
            elif kind is list or kind is tuple:
                kinds.update([node.type.dtype.name for node in nodes_in(a)])
        if not kinds.isdisjoint(_COMPLEX):
            return NotImplemented
        if self.floats and not next(nodes_in(given)).dtype.is_float:
            return NotImplemented
        unsigned = kwargs.get("dtype") in _WIDE_UNSIGNED or not kinds.isdisjoint(_WIDE_UNSIGNED_NAMES)
        if unsigned and not _takes_wide_unsigned(self.op):
            return NotImplemented
        return self.function(*args, **kwargs)


# Types that eager has few kernels for.  Pointwise rows are safe: capture has tried the real kernel; of the others those that move and add.
_WIDE_UNSIGNED = frozenset((torch.uint16, torch.uint32, torch.uint64))
_WIDE_UNSIGNED_NAMES = frozenset(DTYPE_OF[dtype].name for dtype in _WIDE_UNSIGNED)
_COMPLEX = frozenset(dtype.name for dtype in DTYPES.values() if dtype.is_complex)
_MOVES = frozenset(
    (
        "cat", "stack", "clone", "copy", "repeat", "roll", "_to_copy", "constant_pad_nd", "block_diag", "diag_embed", "index", "index_select",
        "embedding", "select_scatter", "slice_scatter", "diagonal_scatter", "full", "zeros", "ones", "full_like", "zeros_like", "ones_like",
        "new_full",
        "new_zeros", "new_ones", "fill", "zero", "sum", "prod", "cumsum", "cumprod", "any", "all", "unsafe_split",
    )
)  # fmt: skip
_NOT_TRIED = frozenset(("pow.Scalar", "masked_fill.Scalar", "masked_fill.Tensor"))  # pointwise, but capture does not run them


def _takes_wide_unsigned(op: OpOverload) -> bool:
    name = op.overloadpacket.__name__
    if torch.Tag.pointwise in op.tags:
        return f"{name}.{op._overloadname}" not in _NOT_TRIED
    return name in _MOVES or name.endswith("_copy")


TABLE: dict[OpOverload, Lowering] = {}


def lower(*overloads: OpOverload, floats: bool = False, samples: Callable[..., Any] | None = None) -> Callable[[Function], Function]:
    """Registers the function below as the lowering of these overloads: the only registration there is."""

    def register(function: Function) -> Function:
        for overload in overloads:
            assert overload not in TABLE, f"two lowerings of {overload}"
            TABLE[overload] = Lowering(overload, function, floats, samples)
        return function

    return register


def nodes_in(values: Sequence[Any]) -> Iterator[Node]:
    """The nodes among arguments, those in lists included."""
    for value in values:
        if isinstance(value, Node):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from nodes_in(value)


# ---------------------------------------------------------------------------------------------- types
def default_dtype() -> DType:
    """torch.get_default_dtype(); the trace records it as a fact."""
    return DTYPE_OF[torch.get_default_dtype()]


@cache
def promote_types(x: DType, y: DType) -> DType:
    """The smallest type that holds both, by PyTorch's lattice."""
    return DTYPE_OF[torch.promote_types(TORCH_OF[x], TORCH_OF[y])]


def dtype_of(x: Operand) -> DType:
    """The type with which an operand takes part in promotion: a Python float is of the default dtype."""
    if isinstance(x, Node):
        return x.dtype
    if isinstance(x, bool):
        return BOOL
    return INT64 if isinstance(x, int) else default_dtype()


def _combine(higher: DType | None, lower: DType | None) -> DType | None:
    """A lower category counts only where it is of a higher kind (bool < integer < float)."""
    if higher is None or lower is None:
        return higher or lower
    if higher.is_float or higher.is_complex:
        return higher
    return promote_types(higher, lower) if higher is BOOL or lower.is_float else higher


def _one_float(values: Sequence[Operand]) -> DType | None:
    """The floating type of all nodes among the operands, which is their common type whatever the numbers and axes; None where there is none."""
    found: DType | None = None
    for value in values:
        if type(value) is Node:
            dtype = value.type.dtype
            if dtype is found:
                continue
            if found is not None or dtype.kind != "float":
                return None
            found = dtype
    return found


def result_type(*values: Operand) -> DType:
    """torch.result_type of any number of operands."""
    one = _one_float(values)
    if one is not None:
        return one
    categories: list[DType | None] = [None, None, None]
    for value in values:
        category = 2 if not isinstance(value, Node) else 0 if value.type.ndim else 1
        known, dtype = categories[category], dtype_of(value)
        categories[category] = dtype if known is None else promote_types(known, dtype)
    found = _combine(categories[0], _combine(categories[1], categories[2]))
    assert found is not None, "no operands"
    return found


def float_type(dtype: DType) -> DType:
    """The type of a floating-point function of it: integers and bool give the default dtype."""
    return dtype if dtype.is_float else default_dtype()


def compute_dtype(dtype: DType) -> DType:
    """What arithmetic on it is done in: float32 for the half types, itself otherwise."""
    return FLOAT32 if dtype.is_half else dtype


# ---------------------------------------------------------------------------------------------- operands
def broadcast_shape(*shapes: Shape) -> Shape:
    """The common shape, by PyTorch's rule (torch.broadcast_shapes would import sympy: a second in the first call).

    >>> broadcast_shape((3, 1), (4,))
    (3, 4)
    """
    first = shapes[0]
    if all(shape == first for shape in shapes):
        return tuple(first)
    out: list[int] = []
    for axis in range(-max(map(len, shapes)), 0):
        sizes = {shape[axis] for shape in shapes if -axis <= len(shape)} - {1}
        if len(sizes) > 1:
            raise RuntimeError(f"shapes {[list(shape) for shape in shapes]} do not broadcast")
        out.append(sizes.pop() if sizes else 1)
    return tuple(out)


def broadcast(*nodes: Node) -> tuple[Node, ...]:
    """The nodes in their common shape."""
    shape = broadcast_shape(*(n.shape for n in nodes))
    return tuple(b.broadcast_to(n, shape) for n in nodes)


Kind = Literal["any", "float"]


def operands(*values: Operand, kind: Kind = "any", common: DType | None = None, exact_scalars: bool = False) -> tuple[Node, ...]:
    """The values in the compute dtype of their common dtype and in one shape, ready for primitives.

    kind "float": integers become the default dtype first.  `common` overrides the promotion.
    A half operand computes in float32, a number beside it is rounded to the half type first.  `exact_scalars`: a second operand
    that is a number or has one element goes straight to float32, as in eager's multiplication and divisions.
    """
    if common is None:
        common = result_type(*values)
    if kind == "float":
        common = float_type(common)
    compute = compute_dtype(common)
    shape = broadcast_shape(*[v.type.shape for v in values if type(v) is Node])
    if compute is common and common.is_float:  # nothing is rounded on the way
        return tuple([b.broadcast_to(b.cast(v, common), shape) if isinstance(v, Node) else b.const(v, common, shape) for v in values])
    return tuple(b.broadcast_to(_operand(v, common, compute, exact_scalars and i > 0), shape) for i, v in enumerate(values))


def _operand(value: Operand, common: DType, compute: DType, exact: bool) -> Node:
    if not isinstance(value, Node):
        return b.const(value, compute) if exact and common.is_half else b.cast(scalar(value, common), compute)
    if exact and common.is_half and value.type.numel == 1:
        return b.cast(value, compute)
    return b.cast(b.cast(value, common), compute)


def scalar(value: Number, dtype: DType) -> Node:
    """A Python number as a 0-d constant of a type: floats truncate to integer types, everything counts as true but zero for bool."""
    if dtype.is_integer and isinstance(value, float):
        return b.cast(b.const(value, FLOAT64), dtype)
    return b.const(value, dtype)


def each_rounded(x: Node, dtype: DType) -> Node:
    """x rounded to a half type and brought back: what eager does between two steps of a kernel that computes on half vectors."""
    return b.cast(b.cast(x, dtype), compute_dtype(dtype)) if dtype.is_half else x


def computed(x: Node) -> Node:
    """x in its compute dtype."""
    return b.cast(x, compute_dtype(x.dtype))


def rounded(x: Node, dtype: DType) -> Node:
    """x rounded from the compute dtype to the result's: the one rounding of a half operation."""
    return b.cast(x, dtype)


def fits(value: Number, dtype: DType) -> bool:
    """Whether a number can be written into the type: where not (300 into uint8, 1e9 into float16), eager raises, so a row declines."""
    if dtype.is_integer:
        return math.isfinite(value) and dtype.min <= value <= dtype.max
    return dtype is BOOL or not math.isfinite(value) or abs(value) <= dtype.largest


# ---------------------------------------------------------------------------------------------- axes
def axis_of(axis: int, ndim: int) -> int:
    """A possibly negative axis as 0 .. ndim-1 (a 0-d tensor counts as having one axis).  Out of range: TypeRuleError; eager has raised before."""
    return axis % max(ndim, 1)


def axes_of(axes: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """Axes of a reduction in increasing order; None or an empty list means all."""
    if axes is None or (not isinstance(axes, int) and len(axes) == 0):
        return tuple(range(ndim))
    listed = (axes,) if isinstance(axes, int) else axes
    return tuple(sorted({a % ndim for a in listed})) if ndim else ()


def keep_axes(reduced: Node, shape: Shape, axes: Sequence[int]) -> Node:
    """A reduction's result with its axes put back as size 1."""
    return b.reshape(reduced, tuple(1 if a in axes else n for a, n in enumerate(shape)))
