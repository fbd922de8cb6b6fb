"""Where the machine code of the native parts comes from: built with the package, kept, compiled now."""

import subprocess
import sys
from pathlib import Path

import pytest

from thermit.runtime.native import objects, parts
from thermit.runtime.native.language import Source

ROOT = Path(__file__).parents[2]
SOURCE = Source("def f(a):\n    return a + K\n", {"K": 7}, ("W",), {"outside": "i64"})
X86, ARM = 62, 183  # machine numbers of ELF


class Folders:
    """A package folder and a cache of their own; `compiled` has the level of each compilation."""

    def __init__(self, monkeypatch, folder):
        self.built, self.cache, self.compiled = folder / "package", folder / "cache", []
        self.built.mkdir()
        compile_object = objects.compile_object
        monkeypatch.setattr(objects.pkgutil, "get_data", lambda _, name: (self.built / name).read_bytes())
        monkeypatch.setattr(objects, "_translator", lambda: b"")
        monkeypatch.setattr(objects, "_place", lambda name: self.cache / name)
        monkeypatch.setattr(objects, "compile_object", lambda s, t, level: (self.compiled.append(level), compile_object(s, t, level))[1])
        monkeypatch.setattr(sys, "dont_write_bytecode", False)


@pytest.fixture
def folders(monkeypatch, tmp_path):
    return Folders(monkeypatch, tmp_path)


def test_built_code_is_used_and_nothing_is_compiled(folders):
    built = objects.build(SOURCE, folders.built)
    assert {int.from_bytes(path.read_bytes()[32 + 18 : 32 + 20], "little") for path in built} == {X86, ARM}
    folders.compiled.clear()
    code = objects.object_code(SOURCE)
    assert code[:4] == b"\x7fELF" and not folders.compiled and not folders.cache.exists()


def test_building_anew_removes_what_was_built(folders):
    first = objects.build(SOURCE, folders.built)
    second = objects.build(Source(SOURCE.text, {"K": 8}, ("W",), {"outside": "i64"}), folders.built)
    assert not set(first) & set(second) and set(folders.built.iterdir()) == set(second)


def test_what_is_compiled_is_kept(folders):
    code = objects.object_code(SOURCE)
    assert folders.compiled == [2] and objects.object_code(SOURCE) == code and folders.compiled == [2]


@pytest.mark.parametrize("harm", [lambda data: data[:-1] + bytes([data[-1] ^ 1]), lambda data: data[:20], lambda data: b""])
def test_broken_files_are_not_used(folders, harm):
    objects.build(SOURCE, folders.built)
    for path in folders.built.iterdir():
        path.write_bytes(harm(path.read_bytes()))
    folders.compiled.clear()
    code = objects.object_code(SOURCE)
    (kept,) = folders.cache.iterdir()
    kept.write_bytes(harm(kept.read_bytes()))
    assert objects.object_code(SOURCE) == code and folders.compiled == [2, 2]


def test_what_cannot_be_kept_is_compiled_quickly(folders, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    objects.object_code(SOURCE)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(objects.os, "access", lambda *_: False)
    objects.object_code(SOURCE)
    assert folders.compiled == [0, 0] and not folders.cache.exists()


@pytest.mark.parametrize(
    "other",
    [
        Source(SOURCE.text + "\n", {"K": 7}, ("W",), {"outside": "i64"}),
        Source(SOURCE.text, {"K": 8}, ("W",), {"outside": "i64"}),
        Source(SOURCE.text, {"K": 7}, ("V",), {"outside": "i64"}),
        Source(SOURCE.text, {"K": 7}, ("W",), {"outside": "i32"}),
    ],
)
def test_other_sources_have_other_names(other):
    assert objects.file_name(other, objects.PLATFORMS[0]) != objects.file_name(SOURCE, objects.PLATFORMS[0])


def test_platforms_have_other_names_and_vendors_do_not():
    names = [objects.file_name(SOURCE, triple) for triple in (*objects.PLATFORMS, "x86_64-conda-linux-gnu", "x86_64-apple-darwin")]
    assert names[0] == names[2] and len(set(names)) == 3


def test_the_package_is_built_without_pytorch(tmp_path):
    script = "import runpy, sys; sys.modules['torch'] = None; sys.argv[1:] = ['-q', 'build_native']; runpy.run_path('setup.py')"
    script = script.replace("'build_native'", f"'build_native', '--build-lib={tmp_path}'")
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    built = {path.name for path in tmp_path.rglob("*.o")}
    assert built == {objects.file_name(parts.SOURCE, triple) for triple in objects.PLATFORMS}
