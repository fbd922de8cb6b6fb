"""What names a function's code can read or write, found in its bytecode; and the function that a running frame belongs to.

In:  a code object, a frame.
Out: `names_of(code)`: the globals, attributes and imports that stand in the code and in the functions written inside it.
Idea: no data flow is followed.  Whatever object the code can reach, the attributes that it can ask of it are among these names; which
objects it can reach is seen when it runs (frames.py).
"""

from __future__ import annotations

import ctypes
import dis
import gc
import sys
from collections.abc import Iterator
from dataclasses import field
from types import CodeType, FrameType, FunctionType
from typing import Any

from thermit.records import dataclass

_OPS = dis.opmap
_SHIFT = {_OPS["LOAD_GLOBAL"]: 1}  # low bits of the argument that are not part of the name's index
if sys.version_info >= (3, 12):
    _SHIFT[_OPS["LOAD_ATTR"]] = 1
    _SHIFT[_OPS["LOAD_SUPER_ATTR"]] = 2


def _ops(*names: str) -> frozenset[int]:
    return frozenset(_OPS[name] for name in names if name in _OPS)


_GLOBALS = _ops("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS")
_ATTRIBUTES = _ops("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR", "IMPORT_FROM", "LOAD_SUPER_ATTR")
_STORES = _ops("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR")
_IMPORTS = _ops("IMPORT_NAME")
_SUBSCRIPT_STORES = _ops("STORE_SUBSCR", "DELETE_SUBSCR")
_CELL_STORES = _ops("STORE_DEREF", "DELETE_DEREF")
_NAMED = _GLOBALS | _ATTRIBUTES | _ops("LOAD_FAST", "LOAD_DEREF")
_CHANGES = frozenset(
    (
        "append", "appendleft", "extend", "extendleft", "insert", "pop", "popleft", "popitem", "remove", "clear", "sort", "reverse", "rotate",
        "update", "setdefault", "add", "discard", "move_to_end", "intersection_update", "difference_update", "symmetric_difference_update", "set",
    )
)  # fmt: skip
_MATCH_CLASS = _OPS["MATCH_CLASS"]
_EXTENDED = _OPS["EXTENDED_ARG"]
_SILENT = _ops("CACHE", "PRECALL", "EXTENDED_ARG", "KW_NAMES", "PUSH_NULL", "NOP")
_CALL, _CONSTANT, _IS = _OPS["CALL"], _OPS["LOAD_CONST"], _OPS["IS_OP"]
_COMPARES = _ops("IS_OP", "COMPARE_OP", "CONTAINS_OP")
_BY_IDENTITY = _ops("CONTAINS_OP", "BUILD_SET", "SET_ADD", "SET_UPDATE", "BUILD_MAP", "MAP_ADD")
_SIMPLE = _ops("LOAD_CONST", "LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_DEREF", "LOAD_GLOBAL", "LOAD_SMALL_INT")

# What reaches attributes whose names need not stand in the code.
BY_NAME = frozenset(("getattr", "hasattr"))
REFLECTION = frozenset(("setattr", "delattr", "vars", "dir", "attrgetter", "methodcaller", "__dict__", "__getattribute__", "__setattr__"))
# Ask which object it is: a number, which no stand-in has (IDENTITIES), or whether it is the same as another.
IDENTITIES = frozenset(("id", "hash"))
_IDENTIFYING = IDENTITIES | {
    "is_", "is_not", "contains", "count", "countOf", "index", "indexOf", "remove", "discard", "set", "frozenset", "dict", "fromkeys",
    "WeakKeyDictionary", "WeakSet", "Counter", "deepcopy", "lru_cache", "cache", "setdefault", "add", "get", "pop",
}  # fmt: skip
NAMESPACES = frozenset(("globals", "locals", "eval", "exec", "compile", "__import__"))


@dataclass(slots=True)
class Names:
    """Names in a code object and in those nested in it.

    `chains`: globals with the attributes asked of them at once: torch.nn.functional.gelu.
    `strings`: constants that could be names (for getattr and its kin).  `reflects`: attributes are also reached by names that are computed.
    `tries`: it has exception handlers, so an attribute may be asked for that is not there.  `nested`: code written inside.
    `compares_class`: it asks `type(x) is torch.Tensor` or the like, which a stand-in cannot answer.
    `identifies`: it may tell one object from another that looks the same (`is`, `in`, sets, keys, id).  `identities`: it calls id or hash.
    `writes`: line of the first store to each name; "[]" for a subscript; a closed-over variable by its name.
    """

    globals: set[str] = field(default_factory=set)
    chains: set[tuple[str, ...]] = field(default_factory=set)
    attributes: set[str] = field(default_factory=set)
    imports: set[str] = field(default_factory=set)
    strings: set[str] = field(default_factory=set)
    nested: set[CodeType] = field(default_factory=set)
    writes: dict[str, int] = field(default_factory=dict)
    reflects: bool = False
    tries: bool = False
    compares_class: bool = False
    identifies: bool = False
    identities: bool = False


_cache: dict[CodeType, Names] = {}


def names_of(code: CodeType) -> Names:
    """The names, computed once for each code object."""
    names = _cache.get(code)
    if names is None:
        if len(_cache) > 20_000:  # code made on the fly (exec, lambdas in notebooks) must not pile up
            _cache.clear()
        names = _cache[code] = _scan(code)
    return names


def _scan(code: CodeType) -> Names:
    found = Names()
    listing = list(_instructions(code))
    for place, (offset, op, arg) in enumerate(listing):
        _note(found, code, offset, op, arg)
        if op in _GLOBALS and len(chain := _chain(code, listing, place)) > 1:
            found.chains.add(chain)
        if op in _ATTRIBUTES and code.co_names[arg >> _SHIFT.get(op, 0)] in _CHANGES:
            found.writes.setdefault(_name_before(code, listing, place), _line(code, offset))
        if op in _GLOBALS and code.co_names[arg >> _SHIFT.get(op, 0)] in BY_NAME:
            found.reflects = found.reflects or not _asks_constant(code, listing, place)
            found.tries = True
        if op == _IS and not _after_constant(listing, place):
            found.identifies = True
        if op in _BY_IDENTITY and (arg or op != _OPS["BUILD_MAP"]):
            found.identifies = True
        if op in _COMPARES and not found.compares_class:
            found.compares_class = _compares_class(code, listing, place)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _merge(found, names_of(constant))
            found.nested.add(constant)
        elif type(constant) is str and constant.isidentifier():
            found.strings.add(constant)
        elif type(constant) is tuple:  # keyword names, and tuples of names to loop over
            found.strings.update(c for c in constant if type(c) is str and c.isidentifier())
    found.reflects = found.reflects or not REFLECTION.isdisjoint(found.globals | found.attributes)
    found.tries = found.tries or bool(code.co_exceptiontable)
    found.identities = found.identities or not IDENTITIES.isdisjoint(found.globals)
    found.identifies = found.identifies or not _IDENTIFYING.isdisjoint(found.globals | found.attributes)
    return found


def _note(found: Names, code: CodeType, offset: int, op: int, arg: int) -> None:
    if op in _GLOBALS:
        name = code.co_names[arg >> _SHIFT.get(op, 0)]
        found.globals.add(name)
    elif op in _ATTRIBUTES:
        name = code.co_names[arg >> _SHIFT.get(op, 0)]
        found.attributes.add(name)
    elif op in _IMPORTS:
        found.imports.add(code.co_names[arg])
        return
    elif op == _MATCH_CLASS:
        found.globals.add("isinstance")
        found.attributes |= {n for c in code.co_consts if type(c) is tuple for n in c if type(n) is str}  # case Point(x=0)
        found.tries = True
        found.reflects = found.reflects or arg > 0  # case Point(0): the class tells the names
        return
    elif op in _SUBSCRIPT_STORES:
        found.writes.setdefault("[]", _line(code, offset))
        return
    elif op in _CELL_STORES:
        found.writes.setdefault(_cell_name(code, arg), _line(code, offset))
        return
    else:
        return
    if op in _STORES:
        found.writes.setdefault(name, _line(code, offset))


def _chain(code: CodeType, listing: list[tuple[int, int, int]], place: int) -> tuple[str, ...]:
    """The global loaded at `place` and the attributes that are asked of it right afterwards."""
    names: list[str] = []
    for _, op, arg in listing[place : place + 60]:
        if op in _SILENT:
            continue
        if op not in (_ATTRIBUTES if names else _GLOBALS) or op in _STORES:
            break
        names.append(code.co_names[arg >> _SHIFT.get(op, 0)])
    return tuple(names)


def _name_before(code: CodeType, listing: list[tuple[int, int, int]], place: int) -> str:
    """The name loaded just before an instruction: `log` in log.append, `items` in self.items.append."""
    for _, op, arg in reversed(listing[max(0, place - 12) : place]):
        if op in _GLOBALS or op in _ATTRIBUTES:
            return code.co_names[arg >> _SHIFT.get(op, 0)]
        if op not in _SILENT:
            return _cell_name(code, arg) if op in _NAMED else "[]"
    return "[]"


def _asks_constant(code: CodeType, listing: list[tuple[int, int, int]], place: int) -> bool:
    """Whether the getattr or hasattr loaded at `place` is surely called with a constant name: getattr(x, "name"), getattr(x, "name", y)."""
    before: list[tuple[int, int]] = []
    for _, op, arg in listing[place + 1 :]:
        if op in _SILENT:
            continue
        if op != _CALL:
            before.append((op, arg))
            continue
        name = before[1 - arg :][:1] if arg in (2, 3) else []
        if not name or name[0][0] != _CONSTANT or type(code.co_consts[name[0][1]]) is not str:
            return False
        return arg == 2 or before[-1][0] in _SIMPLE
    return False


def _compares_class(code: CodeType, listing: list[tuple[int, int, int]], place: int) -> bool:
    """Whether a comparison has a call of type() on one side, and on the other a class that a stand-in is not.

    Equality with torch.Tensor a stand-in can answer; identity, and anything about Parameter, it cannot.
    """
    near = [(op, arg) for _, op, arg in listing[max(0, place - 40) : place] if op not in _SILENT][-8:]
    names = [code.co_names[arg >> _SHIFT.get(op, 0)] for op, arg in near if op in _GLOBALS or op in _ATTRIBUTES]
    if "type" not in names:
        return False
    return "Parameter" in names or (listing[place][1] == _IS and (names.count("type") > 1 or "Tensor" in names))


def _after_constant(listing: list[tuple[int, int, int]], place: int) -> bool:
    """Whether a constant was loaded just before."""
    return next((op for _, op, _ in reversed(listing[max(0, place - 12) : place]) if op not in _SILENT), None) == _CONSTANT


def _cell_name(code: CodeType, arg: int) -> str:
    """Name of the variable of a STORE_DEREF: its argument counts locals, then cells that are not arguments, then free variables."""
    cells = tuple(c for c in code.co_cellvars if c not in code.co_varnames)
    every = code.co_varnames + cells + code.co_freevars
    return every[arg] if arg < len(every) else "?"


def _merge(found: Names, inner: Names) -> None:
    found.globals |= inner.globals
    found.chains |= inner.chains
    found.attributes |= inner.attributes
    found.imports |= inner.imports
    found.strings |= inner.strings
    found.nested |= inner.nested
    found.tries |= inner.tries
    found.reflects |= inner.reflects
    found.compares_class |= inner.compares_class
    found.identifies |= inner.identifies
    found.identities |= inner.identities
    for name, line in inner.writes.items():
        found.writes.setdefault(name, line)


def _instructions(code: CodeType) -> Iterator[tuple[int, int, int]]:
    """(offset, opcode, argument); inline caches read as opcode 0, which means nothing here."""
    raw = code.co_code
    extended = 0
    for offset in range(0, len(raw), 2):
        op = raw[offset]
        arg = raw[offset + 1] | extended
        extended = arg << 8 if op == _EXTENDED else 0
        yield offset, op, arg


def _line(code: CodeType, offset: int) -> int:
    for start, end, line in code.co_lines():
        if start <= offset < end and line is not None:
            return line
    return code.co_firstlineno


# ---------------------------------------------------------------------------------------------- frames


def _find_function_offset() -> tuple[int, int] | None:
    """Where a frame object keeps its function: byte offset of the pointer to the interpreter's frame, and the word in there.

    Found by looking, in a frame whose function is known; None when it is not there (then the garbage collector is asked).
    """

    def probe() -> FrameType:
        return sys._getframe()

    def other() -> FrameType:
        return sys._getframe()

    word = ctypes.sizeof(ctypes.c_void_p)
    pointer = object.__basicsize__ + word  # PyFrameObject: header, f_back, f_frame
    for index in range(6):
        if all(_word_at(function(), pointer, index) == id(function) for function in (probe, other)):
            return pointer, index
    return None


def _word_at(frame: FrameType, pointer: int, index: int) -> int:
    inner = ctypes.c_void_p.from_address(id(frame) + pointer).value
    return 0 if not inner else ctypes.c_void_p.from_address(inner + index * ctypes.sizeof(ctypes.c_void_p)).value or 0


_PLACE = _find_function_offset() if sys.implementation.name == "cpython" else None


def function_of(frame: FrameType) -> FunctionType | None:
    """The function that a running frame belongs to, or None when it cannot be told (module code, several functions of one code)."""
    if _PLACE is not None:
        address = _word_at(frame, *_PLACE)
        function = ctypes.cast(address, ctypes.py_object).value if address else None
        return function if type(function) is FunctionType and function.__code__ is frame.f_code else None
    owners: list[Any] = [f for f in gc.get_referrers(frame.f_code) if type(f) is FunctionType and f.__code__ is frame.f_code]
    return owners[0] if len(owners) == 1 else None
