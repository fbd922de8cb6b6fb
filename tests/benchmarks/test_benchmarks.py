"""The benchmarks' own arithmetic, and one conversation with a worker."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import torch_functions
from benchmarks.cases import CASES, PARTS, Case, Input, arrays, find
from benchmarks.measure import Measured, Settings, _difference, measure
from benchmarks.report import Report, duration, markdown

SETTINGS = Settings(("eager", "thermit"), rounds=2, threads=1, jax_python="", new_shapes=True, series_s=0.002, pause_s=0.0)


def report_of(**seconds: float) -> Report:
    entries = {name: Measured(name, rounds_s=[value, value, 9.0]) for name, value in seconds.items()}
    return Report({"chain 1M": entries}, {"threads": 1, "rounds": 3, "clock": "wall"}, {"processor": "?", "system": "?"}, None)


def test_ratios_means_and_losses() -> None:
    report = report_of(thermit=2.0, eager=8.0, jax=1.0)
    assert report.ratio("chain 1M", "eager") == 4.0
    assert report.losses() == [("chain 1M", "jax", 2.0)]
    text = markdown(report)
    assert "8.00 s (4.00)" in text and "- chain 1M: jax, 2.00 times" in text and "eager: 4.00 times thermit's time" in text


def test_a_peer_within_five_percent_is_no_loss() -> None:
    assert report_of(thermit=1.04, jax=1.0).losses() == []


@pytest.mark.parametrize("seconds, text", [(1.0, "1.00 s"), (0.0123, "12.3 ms"), (4.5e-7, "450 ns"), (0.9999e-3, "1000 µs"), (None, "-")])
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize("got, worst", [([1.0, 2.0], 0.0), ([1.0, 2.5], 0.25), ([1.0, math.nan], math.inf), ([1.0], math.inf)])
def test_difference(tmp_path: Path, got: list[float], worst: float) -> None:
    np.savez(tmp_path / "want.npz", np.array([1.0, 2.0]))
    np.savez(tmp_path / "got.npz", np.array(got))
    assert _difference(tmp_path / "want.npz", tmp_path / "got.npz") == worst


def test_every_case_has_a_function_and_the_same_inputs_each_time() -> None:
    small = {c.name: c for c in CASES.values() if c.elements <= 4096}
    assert {c.function for c in CASES.values()} <= set(torch_functions.FUNCTIONS)
    assert small
    for case in small.values():
        for x, y in zip(arrays(case.inputs), arrays(case.inputs), strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("name", ["3x3 256x14x14 to 256"])
def test_convolutions_agree_whatever_their_layout(name: str) -> None:
    case = find(name)
    measured = measure(case, replace(SETTINGS, peers=("eager", "eager, channels last", "thermit"), new_shapes=False))
    assert all(m.error is None and m.inexact is not None and 0 < m.inexact < 1e-5 for m in measured.values())


def test_every_name_belongs_to_one_case() -> None:
    names = [name for part in PARTS.values() for name in part]
    assert len(names) == len(set(names)) and all(find(name).name == name for name in names)


def test_sentences_end_in_padding() -> None:
    (mask,) = arrays((Input("padding", (4, 8)),))
    assert mask.dtype == np.int64 and mask[0].all()
    lengths = mask.sum(1)
    assert (lengths >= 1).all() and lengths[-1] < 8 and all((row[: row.sum()] == 1).all() for row in mask)


def test_work_done_by_products() -> None:
    entries = {"thermit": Measured("thermit", rounds_s=[2 * 64**3 / 1e9 / 50])}
    report = Report({"free 64x64x64": entries}, {"threads": 1, "rounds": 1, "clock": "wall"}, {"processor": "?", "system": "?"}, None)
    assert "| free 64x64x64 | 50 |" in markdown(report)


@pytest.mark.parametrize("name", ["free 64x64x64", "weight 36x384x384"])
def test_a_product_is_compared_with_float64(name: str) -> None:
    found = measure(find(name), SETTINGS)
    for entry in found.values():
        assert entry.error is None and entry.inexact is not None and 0 < entry.inexact < 1e-5


def test_a_case_is_measured() -> None:
    found = measure(CASES["call with 2"], SETTINGS)
    assert set(found) == {"eager", "thermit", "one addition"}
    for entry in found.values():
        assert entry.error is None and entry.call_s is not None and entry.call_s > 0 and len(entry.rounds_s) == 2
    assert found["thermit"].difference == 0.0 and found["thermit"].new_shape_s is not None


def test_a_worker_that_fails_is_reported() -> None:
    case = Case("not there", "total", (Input("normal", (2,)),), (Input("normal", (3,)),))
    found = measure(case, SETTINGS)
    assert all(entry.error is not None and entry.call_s is None for entry in found.values())
