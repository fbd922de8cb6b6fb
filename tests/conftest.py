"""Tests run with faults raised and every stage verified: nothing of ours may hide behind the fallback to eager."""

import os

os.environ.setdefault("THERMIT_RAISE", "1")
os.environ.setdefault("THERMIT_VERIFY", "1")


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="write the golden texts anew")
