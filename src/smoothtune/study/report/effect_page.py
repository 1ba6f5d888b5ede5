"""The table of effects as files and on the console."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from smoothtune.console import say
from smoothtune.errors import PlotsMissing
from smoothtune.files import write_atomic
from smoothtune.report.curves import csv_text
from smoothtune.report.page import Sentence, Table, render
from smoothtune.report.terminal import say_left_out, show_table
from smoothtune.study.report.effect import (
    ROBUSTNESS,
    compare_beside,
    compare_effects,
    compare_robustness,
    rows_of_study,
)
from smoothtune.study.report.effect_layers import (
    compare_layers,
    layers_csv,
    layers_figure,
    layers_sentences,
    layers_table,
)
from smoothtune.study.report.effect_table import (
    effect_table,
    findings_of,
    quantity_table,
)

COLUMNS = (
    *("condition", "method", "quantity", "seeds", "plain", "with_method"),
    *("difference", "difference_low", "difference_high"),
    *("change", "change_low", "change_high", "p", "p_holm"),
    *("score_difference", "score_low", "score_high", "cost_ratio", "verdict"),
)
LAYERS_CSV, LAYERS_SVG = "effect-layers.csv", "effect-layers.svg"
SHORT = (1, 2, 3, 4, 5, 7, 9, 10, 11, 12)
"""Columns of the table that are shown on the console."""
DECIDING = ("method", "quantity", "change", "verdict", "p, Holm")
"""Those that a narrow terminal keeps longest."""


def write_effects(folder: Path, console: Console) -> list[dict[str, Any]]:
    """Write ``effect.csv`` and ``effect.md`` into a study's folder, and show the table.

    Where a quantity has values by layer, ``effect-layers.csv`` and ``effect-layers.svg`` too.

    Args:
        folder: the study's.
        console: gets the table.

    Returns:
        What was compared, of `compare_effects`, `compare_beside` and `compare_robustness`.

    Raises:
        OutputError: there is no study, or none of its runs measured one of the parts that are
            compared.
    """
    rows = rows_of_study(folder)
    compared = compare_effects(rows)
    beside, robust = compare_beside(rows), compare_robustness(rows)
    said = findings_of(rows, compared, beside, robust)
    compared, layers = [*compared, *beside, *robust], compare_layers(rows)
    names = write_effect_files(folder, compared, layers, said)
    _show(compared, said, folder, console)
    for sentence in layers_sentences(layers):
        say(console, f"note: {sentence}")
    say(console, f"{folder} holds {', '.join(names)}")
    return compared


def write_effect_files(
    folder: Path,
    compared: Sequence[Mapping[str, Any]],
    layers: Sequence[Mapping[str, Any]],
    said: Sequence[Sentence],
) -> list[str]:
    """Write the files: two, and two about layers where quantities have values by layer.

    Returns:
        Their names.
    """
    names, no_plot = ["effect.csv", "effect.md"], ""
    if layers:
        write_atomic(folder / LAYERS_CSV, layers_csv(layers))
        names.append(LAYERS_CSV)
        try:
            write_atomic(folder / LAYERS_SVG, layers_figure(layers))
            names.append(LAYERS_SVG)
        except PlotsMissing as error:
            no_plot = str(error)
    write_atomic(folder / "effect.csv", csv_text(COLUMNS, map(_line, compared)))
    content = {
        "about": not compared or any(item["quantity"] not in ROBUSTNESS for item in compared),
        "findings": said,
        "table_of_effects": effect_table(compared),
        "quantities": quantity_table(compared),
        "layers": layers_table(layers),
        "layers_said": layers_sentences(layers),
        "figure": LAYERS_SVG,
        "no_plot": no_plot,
    }
    write_atomic(folder / "effect.md", render("effect.md.jinja", content))
    return names


def _line(item: Mapping[str, Any]) -> list[object]:
    return [
        *(item["condition"], item["method"], item["quantity"], len(item["seeds"])),
        *(item["plain"], item["ours"], *_bounds(item["difference"]), *_bounds(item["change"])),
        *(item["p"], item["p_holm"], *_bounds(item["score"])),
        *(item["cost_ratio"], item["verdict"]),
    ]


def _bounds(effect: Mapping[str, Any] | None) -> list[float | None]:
    if effect is None:
        return [None, None, None]
    return [effect["value"], *(effect["interval"] or (None, None))]


def _show(
    compared: Sequence[Mapping[str, Any]], said: Sequence[Sentence], folder: Path, console: Console
) -> None:
    left_out: list[str] = []
    for condition in dict.fromkeys(item["condition"] for item in compared):
        found = effect_table([item for item in compared if item["condition"] == condition])
        head, *rows = [[cells[i] for i in SHORT] for cells in [found.head, *found.rows]]
        left_out += show_table(Table(head, rows), condition, console, DECIDING)
    say_left_out(left_out, str(folder / "effect.md"), console)
    for sentence in said:
        say(console, f"{sentence.verdict}: {sentence.text}")
