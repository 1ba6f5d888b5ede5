"""Quantities by layer: pairs by hand, and files of the command."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from helpers.study_files import finished, made_curve
from smoothtune.report.curves import CurvePoint
from smoothtune.results import CellContent, Part
from smoothtune.study.records import STUDY, Records, digest
from smoothtune.study.report.effect import QuantityComparison, compare_quantities
from smoothtune.study.report.effect_layers import (
    layers_figure,
    layers_sentences,
    layers_table,
)
from smoothtune.study.report.effect_page import write_effects
from smoothtune.study.report.effect_rows import measured_runs

SEEDS, BLOCKS = range(5), (1, 2, 3)
DRAW = np.random.default_rng(0)
PLAIN = 1.0 + DRAW.random((3, 5))
"""By layer and seed."""
GAPS = np.array([[0.0], [-0.5], [0.1]]) + 0.05 * DRAW.normal(size=(3, 5))
CURVES = {
    "noise sensitivity": "noise_sensitivity",
    "layer Jacobian": "jacobian",
    "gradient spread": "gradient_spread",
}


def record(method: str, seed: int, quantity: str, values: np.ndarray) -> CellContent:
    found = finished(0.8)
    found.result.config = {
        **{"task": "one", "model": "minilm", "max_train_samples": 100, "seed": seed},
        "methods": {method: {}},
    }
    points = [[float(x), float(y), 0.0, 9.0] for x, y in zip(BLOCKS, values, strict=True)]
    before = [[0.0, 7.0, 0.0, 9.0]] * (quantity == "noise sensitivity")  # input of the first block
    numbers = {"quantities": {quantity: float(values.mean())}, "not measured": {}}
    curves = {CURVES[quantity]: made_curve({"a line": before + points})}
    found.extras.parts = {"effect": Part(numbers=numbers, curves=curves)}
    return found


def study(
    method: str = "lnsr", quantity: str = "noise sensitivity"
) -> list[tuple[str, CellContent]]:
    runs = [("plain", record("plain", s, quantity, PLAIN[:, s])) for s in SEEDS]
    ours = [(method, record(method, s, quantity, (PLAIN + GAPS)[:, s])) for s in SEEDS]
    return [*runs, *reversed(ours)]


def layers_of(runs: list[tuple[str, CellContent]]) -> list[QuantityComparison]:
    return compare_quantities(measured_runs(runs)).layers


@pytest.mark.parametrize(
    ("method", "quantity"), [("lnsr", "noise sensitivity"), ("jachess", "layer Jacobian")]
)
def test_every_layer_is_compared_on_pairs(method: str, quantity: str) -> None:
    compared = layers_of(study(method, quantity))
    assert [item.layer for item in compared] == [1, 2, 3]
    for item, plain, gaps in zip(compared, PLAIN, GAPS, strict=True):
        assert (item.method, item.quantity) == (method, quantity)
        assert item.plain == pytest.approx(plain.mean())
        assert item.with_method == pytest.approx((plain + gaps).mean())
        interval = stats.ttest_1samp(gaps, 0).confidence_interval(0.95)
        assert item.difference.value == pytest.approx(gaps.mean())
        assert item.difference.interval == pytest.approx([interval.low, interval.high])
        assert item.change.value == pytest.approx(gaps.mean() / plain.mean())
    (said,) = layers_sentences(compared)
    least = 100 * GAPS[1].mean() / PLAIN[1].mean()
    assert f"{quantity} is lowest against plain at layer 2, {least:+.1f} [" in said
    off = sum(stats.ttest_1samp(gaps, 0).pvalue < 0.05 for gaps in GAPS)
    assert f"in {off} of 3 layers the interval of the difference leaves out 0." in said


def test_gradients_have_a_layer_below_the_blocks() -> None:
    runs = study("cwgnc", "gradient spread")
    for _, found in runs:
        (points,) = found.extras.parts["effect"].curves["gradient_spread"].series.values()
        points.insert(0, CurvePoint(0.0, 2.0))
    assert [item.layer for item in layers_of(runs)] == [0, 1, 2, 3]


def test_methods_without_values_by_layer_have_no_rows() -> None:
    runs = study("sam")
    assert layers_of(runs) == []
    runs = study()
    for _, found in runs:
        found.extras.parts["effect"].curves.clear()
    assert layers_of(runs) == []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    records, cells = Records(tmp_path), []
    (tmp_path / "cells").mkdir()
    for number, (label, found) in enumerate(study()):
        name = digest({"number": number})[:16]
        content = {"id": name, "identity": {"number": number}, **found.content()}
        whole = content | {"sha256": digest(content)}
        (tmp_path / "cells" / f"{name}.json").write_text(json.dumps(whole))
        assert records.read(name)
        cells.append({"id": name, "title": label, "label": label, "seed": 0})
    (tmp_path / STUDY).write_text(json.dumps({"cells": cells}))
    return tmp_path


def test_the_command_writes_table_numbers_and_figure(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    write_effects(folder, Console(quiet=True))
    with (folder / "effect-layers.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["layer"] for row in rows] == ["1", "2", "3"]
    assert float(rows[1]["difference"]) == pytest.approx(GAPS[1].mean())
    page = (folder / "effect.md").read_text()
    assert "## By layer" in page
    assert "](effect-layers.svg)" in page
    assert layers_table(layers_of(study())).rows[1][3] == "2"
    assert (folder / "effect-layers.svg").read_text().count("<svg") == 1
    assert not page.endswith("\n\n")


def test_one_seed_has_values_and_no_interval() -> None:
    runs = [r for r in study() if r[1].result.config["seed"] == 0]
    compared = layers_of(runs)
    assert [item.difference.interval for item in compared] == [None] * 3
    pytest.importorskip("matplotlib")
    assert b"<svg" in layers_figure(compared)
