"""Imports point down, none stands inside a function, and files keep their budgets."""

import ast
import dataclasses
from pathlib import Path

import pytest

from thermit.config import Config

ROOT = Path(__file__).parents[2] / "thermit"
FLOORS = (
    *("locks", "records", "errors", "config", "ir", "rewrite", "aten", "capture", "passes", "schedule", "loops", "codegen"),
    *("runtime", "switches", "compiler", "stages", "explain", "learnt", "twin", "api"),
)
# inside ir, a file may import the ones before it
IR = ["types", "prims", "node", "build", "verify", "interp"]
# a stage may read the data of the one before it, never its functions
DATA = {
    "schedule": {"ir", "errors", "config", "schedule"},
    "loops": {"schedule.kernel"},
    "codegen": {"loops.nest"},
    "runtime": {"schedule.plan", "schedule.kernel", "codegen.target", "capture.signature"},
}
MODULE_LINES, FUNCTION_LINES, OPTIONS = 600, 60, 12
TEXTS = {"fmod_text"}  # functions that are one long text in another language
FILES = sorted(ROOT.rglob("*.py"))


def imports(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "thermit":
            yield from (f"{node.module}.{a.name}" for a in node.names)
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.split(".")[0] == "thermit")


def modules_named(target):
    """The module that an import names: `thermit.ir.build.add` and `thermit.ir.build` are both ir.build."""
    parts = target.split(".")[1:]
    while parts and not (ROOT.joinpath(*parts).with_suffix(".py").exists() or ROOT.joinpath(*parts, "__init__.py").exists()):
        parts = parts[:-1]
    return ".".join(parts)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down(path):
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    room = name.split(".")[0]
    if name == "__init__":
        return
    assert room in FLOORS, f"{name} stands on no floor"
    for target in imports(ast.parse(path.read_text())):
        module = modules_named(target)
        other = module.split(".")[0]
        if other == "":
            continue
        if other != room:
            assert FLOORS.index(other) < FLOORS.index(room), f"{name} imports {module}, which is not below it"
        elif room == "ir" and name != "ir.__init__":
            assert IR.index(module.split(".")[1]) < IR.index(name.split(".")[1]), f"{name} imports {module}"
        if room in ("loops", "codegen", "runtime") and other in ("schedule", "loops", "codegen") and other != room:
            assert module in DATA[room], f"{name} imports {module}: a stage reads only the data of the one before it"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_import_inside_a_function(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            inner = [n for n in ast.walk(node) if isinstance(n, ast.Import | ast.ImportFrom)]
            assert not inner, f"{path.name}:{inner[0].lineno} imports inside {getattr(node, 'name', 'a lambda')}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_budgets(path):
    """Raising a number is a change to be reviewed."""
    text = path.read_text()
    assert text.count("\n") <= MODULE_LINES, "split it"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name not in TEXTS:
            assert node.end_lineno - node.lineno < FUNCTION_LINES, f"{path.name}:{node.lineno} {node.name} is long"


def test_few_options():
    assert len(dataclasses.fields(Config)) <= OPTIONS


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_names(path):
    assert path.stem not in ("utils", "helpers", "common", "misc", "base", "core"), "a name that says nothing"
    text = path.read_text()
    assert "TODO" not in text and "FIXME" not in text


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_module_says_what_it_is(path):
    if path.name == "__init__.py" and not path.read_text().strip():
        pytest.fail("an empty __init__: one line says what the room is")
    assert ast.get_docstring(ast.parse(path.read_text())), "no docstring"
