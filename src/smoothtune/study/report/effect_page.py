"""The table of effects as files and on the console."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from smoothtune.console import say
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
SHORT = (1, 2, 3, 4, 5, 7, 9, 10, 11, 12)
"""Columns of the table that are shown on the console."""
DECIDING = ("method", "quantity", "change", "verdict", "p, Holm")
"""Those that a narrow terminal keeps longest."""


def write_effects(folder: Path, console: Console) -> list[dict[str, Any]]:
    """Write ``effect.csv`` and ``effect.md`` into a study's folder, and show the table.

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
    compared = [*compared, *beside, *robust]
    write_effect_files(folder, compared, said)
    _show(compared, said, folder, console)
    say(console, f"{folder / 'effect.csv'} and {folder / 'effect.md'} are written")
    return compared


def write_effect_files(
    folder: Path, compared: Sequence[Mapping[str, Any]], said: Sequence[Sentence]
) -> None:
    """Write the two files."""
    write_atomic(folder / "effect.csv", csv_text(COLUMNS, map(_line, compared)))
    content = {
        "about": not compared or any(item["quantity"] not in ROBUSTNESS for item in compared),
        "findings": said,
        "table_of_effects": effect_table(compared),
        "quantities": quantity_table(compared),
    }
    write_atomic(folder / "effect.md", render("effect.md.jinja", content))


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
