"""Figures as SVG and PDF."""

import csv
from pathlib import Path

import pytest

from helpers import made_records
from smoothtune.report.curves import CurvePoint
from smoothtune.reproduce.drawing import draw
from smoothtune.reproduce.figures import Figure, Panel
from smoothtune.study.config import load_study
from smoothtune.study.layout import FigureLayout


@pytest.mark.parametrize("kind", ["lines", "boxes"])
def test_panels_as_svg_and_pdf(kind: str) -> None:
    """Whole numbers of records are points like others; the same figure gives the same bytes."""
    line = [CurvePoint(1, 0.5, 0.4, 0.6), CurvePoint(2, 0.7)]
    panels = [
        Panel("one", {"FT": line, "LNSR": line[:1]}, y_label="error")
        if kind == "lines"
        else Panel("one", boxes={"FT": [0.1, 0.2]}, y_label="error"),
        Panel("two", {"FT": line}, y_label="error", diagonal=True),
    ]
    layout = FigureLayout(figure="F", kind="box")
    figure = Figure(layout, panels, "layer", "range", log_y=kind == "lines")
    files = draw(figure)
    assert files["pdf"].startswith(b"%PDF")
    assert b"<svg" in files["svg"]
    assert files == draw(figure)
    rows = figure.to_csv().splitlines()
    assert rows[0] == "panel,quantity,line,layer,value,low,high"
    assert len(rows) == 1 + (5 if kind == "lines" else 4)


TWO_SEEDS = """
methods: [lnsr]
more_epochs: null
seeds: [0, 1]
task: {name: one, text_columns: [text]}
"""


def test_a_mean_over_seeds_ends_where_the_first_of_them_ends(
    write, reproduced, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    layout = TWO_SEEDS + 'layout: [{figure: "Training", kind: training, quantity: loss}]'
    whole, written = made_records.content_of, []

    def cut(content):
        """Of the second seed, the last two of four."""
        written.append(content)
        if len(written) > 2:
            log = content["result"]["log_history"]
            content["result"]["log_history"] = [entry for entry in log if entry["step"] < 3]
        return whole(content)

    monkeypatch.setattr(made_records, "content_of", cut)
    reproduced(load_study(write(layout, common="")))
    rows = [*csv.DictReader((tmp_path / "01-training.csv").read_text().splitlines())]
    assert [(row["line"], float(row["update"])) for row in rows] == [
        (line, step) for line in ("plain", "lnsr") for step in (1.0, 2.0)
    ]


def test_bins_of_all_seeds_are_put_together(
    write, reproduced, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Means weighted by rows, and Wilson's interval of all of them, written out."""
    layout = TWO_SEEDS + 'layout: [{figure: "Reliability", kind: reliability}]'
    bins = [
        {"confidence": [0.5, 0.95], "accuracy": [0.0, 0.9], "count": [1, 30]},
        {"confidence": [0.96], "accuracy": [0.7], "count": [10]},
    ]
    parts = [{"calibration": {"numbers": {"bins": each}, "curves": {}}} for each in bins]
    monkeypatch.setattr(made_records, "_parts", lambda study, cell, names: parts[cell.seed])
    reproduced(load_study(write(layout, common="")))
    rows = [*csv.DictReader((tmp_path / "01-reliability.csv").read_text().splitlines())]
    assert {row["line"] for row in rows} == {"plain", "lnsr"}
    first, second = (row for row in rows if row["line"] == "lnsr")
    assert [float(first[name]) for name in ("confidence", "value")] == [0.5, 0.0]
    n, p, z = 40, (30 * 0.9 + 10 * 0.7) / 40, 1.959963984540054
    middle = (p + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * (p * (1 - p) / n + z**2 / (4 * n**2)) ** 0.5
    assert float(second["confidence"]) == pytest.approx((30 * 0.95 + 10 * 0.96) / 40)
    found = [float(second[name]) for name in ("value", "low", "high")]
    assert found == pytest.approx([p, middle - half, middle + half])


def test_curves_while_training_are_of_the_validation_rows(
    write, reproduced, tmp_path: Path
) -> None:
    layout = """
methods: [lnsr]
more_epochs: null
seeds: [0]
task: {name: one, text_columns: [text]}
layout: [{figure: "Loss", kind: training, quantity: loss}]
"""
    reproduced(load_study(write(layout, common="")))
    rows = [*csv.DictReader((tmp_path / "01-loss.csv").read_text().splitlines())]
    assert {(row["line"], row["quantity"]) for row in rows} == {
        ("plain", "validation loss"),
        ("lnsr", "validation loss"),
    }
    assert {float(row["value"]) for row in rows} == {0.5}  # 1, 1/2 and 1/3 on training batches


def test_many_boxes_have_room_for_their_labels() -> None:
    layout = FigureLayout(figure="F", kind="box")

    def height(count: int) -> float:
        boxes = {str(number): [0.1, 0.2] for number in range(count)}
        svg = draw(Figure(layout, [Panel("one", boxes=boxes)], "", ""))["svg"].decode()
        return float(svg.partition('height="')[2].partition("pt")[0]) / 72

    assert height(2) < 3.5
    assert height(25) > 25 * 0.18
