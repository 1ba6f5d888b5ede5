"""Figures as SVG and PDF."""

import pytest

from smoothtune.report.curves import CurvePoint
from smoothtune.study.layout import FigureLayout
from smoothtune.study.reproduce.drawing import draw
from smoothtune.study.reproduce.figures import Figure, Panel


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
