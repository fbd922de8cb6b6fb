"""Generated pages equal what the code says now; examples in the README and in the guide run."""

import dataclasses
import inspect
import re
from pathlib import Path

import pytest

import thermit
from tests.house.documents import DOCS, pages
from thermit.config import Config

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.parametrize("name", ["options.md", "errors.md", "ir.md", "architecture.md"])
def test_page_is_current(name, request):
    text, path = pages()[name], DOCS / name
    if request.config.getoption("--update-golden"):
        path.write_text(text)
    assert path.read_text() == text, f"docs/{name} is stale: run pytest tests/house/test_docs.py --update-golden"


@pytest.mark.parametrize("page", [README, DOCS / "guide.md"], ids=lambda page: page.name)
def test_examples_run(page):
    """In order, each with the names that earlier ones made."""
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.S)
    assert blocks
    names = {"__name__": page.stem}
    for block in blocks:
        exec(compile(block, page.name, "exec"), names)


def test_every_public_name_is_documented():
    """In the guide; options, their variables and errors also on their own pages."""
    guide = (DOCS / "guide.md").read_text()
    names = {
        *thermit.__all__,
        *inspect.signature(thermit.jit).parameters,
        "trace",
        "lower",
        "compile",
        "explain",
        "as_text",
        "cost_analysis",
        "memory_analysis",
    }
    missing = {name for name in names - {"fn"} if not re.search(rf"\b{name}\b", guide)}
    assert not missing, f"docs/guide.md does not say what these are: {', '.join(sorted(missing))}"
    options = (DOCS / "options.md").read_text()
    for field in dataclasses.fields(Config):
        assert f"`{field.name}`" in options and f"`{field.metadata['variable']}`" in options


def test_every_variable_of_the_environment_is_documented():
    root = DOCS.parent
    texts = [path.read_text() for path in (*(root / "thermit").rglob("*.py"), root / "setup.py")]
    variables = {v for text in texts for v in re.findall(r"\bTHERMIT_[A-Z_]+\b", text)}
    known = "".join(page.read_text() for page in DOCS.glob("*.md"))
    assert variables >= {"THERMIT_DEBUG", "THERMIT_DISABLE"}
    assert not {v for v in variables if v not in known}
