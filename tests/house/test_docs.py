"""Generated pages equal what the code says now; examples in the README and in the guide run."""

import re
from pathlib import Path

import pytest

from tests.house.documents import DOCS, pages

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
