"""Generated pages equal what the code says now; examples in the README run."""

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


def test_examples_of_the_readme_run():
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.S)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})
