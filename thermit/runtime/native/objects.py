"""Machine code of a source: built with the package, else kept from an earlier process, else compiled now and kept.

    build(source, folder)   objects for all of PLATFORMS, when the package is built (setup.py)
    object_code(source)     the object for this process

A file is named by the key of all that it was made of: text, constants, the translator, the platform.  Built files lie in this package;
what a process compiles is kept beside the .pyc files, by the rules of .pyc files; where nothing can be written it is compiled anew,
without optimizing.  The code is generic for the architecture, so that a disk may serve several machines.
Invariant: a file that is missing, broken or of another key is never used.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import os
import pkgutil
import sys
from pathlib import Path

import llvmlite.binding as llvm

from thermit.runtime.native.language import Source, to_llvm

PLATFORMS = ("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu")
_LEVEL = 2


def build(source: Source, folder: Path) -> list[Path]:
    """Writes an object for each platform; older ones are removed."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    for old in folder.glob("native-*.o"):
        old.unlink()
    built = []
    for triple in PLATFORMS:
        built.append(folder / file_name(source, triple))
        built[-1].write_bytes(_sealed(compile_object(source, triple, _LEVEL)))
    return built


def object_code(source: Source) -> bytes:
    """The object for this process."""
    triple = llvm.get_process_triple()
    name = file_name(source, triple)
    code = _built(name) or _kept(name)
    if code is None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        keeps = _keeps(name)
        code = compile_object(source, triple, _LEVEL if keeps else 0)
        if keeps:
            _keep(name, code)
    return code


def compile_object(source: Source, triple: str, level: int) -> bytes:
    """Position-independent code for any processor of the architecture.  Level 0 is four times quicker, and its calls a fifth slower."""
    machine = llvm.Target.from_triple(triple).create_target_machine(opt=level, reloc="pic", codemodel="small")
    with llvm.create_context() as context, llvm.parse_assembly(to_llvm(source), context) as module:
        module.triple = triple
        module.data_layout = str(machine.target_data)
        return bytes(machine.emit_object(module))


# ---------------------------------------------------------------------------------------------- files
def file_name(source: Source, triple: str) -> str:
    """Named by all that the code depends on."""
    parts = llvm.get_triple_parts(triple)
    platform = parts.Arch, parts.OS, parts.ObjectFormat
    facts = _translator(), platform, source.text, sorted(source.constants.items()), source.words, list(source.outside.items())
    return f"native-{hashlib.sha256(repr(facts).encode()).hexdigest()[:20]}.o"


@functools.cache
def _translator() -> bytes:
    """What stands for the translator in keys: another one makes other code of the same text."""
    try:
        files = [pkgutil.get_data(__package__, name) or b"" for name in ("language.py", "objects.py")]
    except OSError:  # no source is installed
        return b""
    return hashlib.sha256(b"".join(files)).digest()


def _sealed(code: bytes) -> bytes:
    """The content of a file."""
    return hashlib.sha256(code).digest() + code


def _opened(data: bytes | None) -> bytes | None:
    return data[32:] if data and hashlib.sha256(data[32:]).digest() == data[:32] else None


def _built(name: str) -> bytes | None:
    try:
        return _opened(pkgutil.get_data(__package__, name))
    except OSError:
        return None


def _place(name: str) -> Path:
    """Beside the compiled form of this file."""
    return Path(importlib.util.cache_from_source(__file__)).with_name(name)


def _kept(name: str) -> bytes | None:
    try:
        return _opened(_place(name).read_bytes())
    except OSError:
        return None


def _keeps(name: str) -> bool:
    """Whether the code can be kept."""
    folder = _place(name).parent
    return not sys.dont_write_bytecode and os.access(folder if folder.exists() else folder.parent, os.W_OK)


def _keep(name: str, code: bytes) -> None:
    """Best effort: a disk that cannot be written costs time at the next start, nothing else."""
    place = _place(name)
    draft = place.with_name(f"{place.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        place.parent.mkdir(exist_ok=True)
        draft.write_bytes(_sealed(code))
        draft.replace(place)
