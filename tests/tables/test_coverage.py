"""The promise of docs/coverage.md: nine tenths of the core overloads are lowered natively, and the page says so truly."""

from __future__ import annotations

import pytest

from tests.tables import coverage_page


@pytest.mark.parametrize("group", [0, 1], ids=["core pointwise", "core reductions, views, indexing"])
def test_nine_tenths_of_core(group: int) -> None:
    overloads = coverage_page.counted()[group]
    missing = [str(op) for op in overloads if not coverage_page.is_native(op)]
    assert len(missing) <= len(overloads) / 10, missing


def test_page_is_current() -> None:
    assert coverage_page.PAGE.read_text() == coverage_page.page(), "run python tests/tables/coverage_page.py"
