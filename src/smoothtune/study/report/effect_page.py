"""The table of effects as files and on the console."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from smoothtune.console import say
from smoothtune.errors import PlotsMissing
from smoothtune.files import write_atomic
from smoothtune.report.curves import csv_text
from smoothtune.report.page import (
    Block,
    Figures,
    Findings,
    Items,
    Plot,
    Section,
    Sentence,
    Table,
    page_text,
)
from smoothtune.report.tables import Effect
from smoothtune.report.terminal import say_left_out, show_table
from smoothtune.study.report.effect import QuantityComparison, compare_quantities
from smoothtune.study.report.effect_layers import (
    layers_csv,
    layers_figure,
    layers_sentences,
    layers_table,
)
from smoothtune.study.report.effect_rows import ROBUSTNESS, runs_of_study
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
LAYERS = "effect-layers"
LAYERS_CSV, LAYERS_SVG = f"{LAYERS}.csv", f"{LAYERS}.svg"
EXPLAINED = (
    "Runs of one seed are paired. In brackets: 95 % interval of the mean difference by Student's "
    "t. Change: relative to plain's mean, over several conditions the mean of their changes. p: "
    "paired t-test, and corrected after Holm over the rows of a condition. A point of score is "
    "0.01. Less of a quantity is what the papers claim; of noise, random tokens and the score "
    "under attack more is better."
)
BY_LAYER = (
    "Of these quantities the table above has one number for all layers. Plain's mean and the "
    "method's at each (1 is the first block; of gradients 0 are the embeddings, and the last is "
    "what is above the blocks), and their paired difference with its 95 % interval of one "
    "comparison, without a correction."
)
FIGURE = "Values by layer, and change relative to plain with 95 % intervals."
SHORT = (1, 2, 3, 4, 5, 7, 9, 10, 11, 12)
"""Columns of the table that are shown on the console."""
DECIDING = ("method", "quantity", "change", "verdict", "p, Holm")
"""Those that a narrow terminal keeps longest."""


def write_effects(folder: Path, console: Console) -> list[QuantityComparison]:
    """Write ``effect.csv`` and ``effect.md`` into a study's folder, and show the table.

    Where a quantity has values by layer, ``effect-layers.csv`` and ``effect-layers.svg`` too.

    Args:
        folder: the study's.
        console: gets the table.

    Returns:
        What was compared.

    Raises:
        OutputError: there is no study, or none of its runs measured one of the parts that are
            compared.
    """
    runs = runs_of_study(folder)
    found = compare_quantities(runs)
    compared, layers, said = found.rows, found.layers, findings_of(runs, found)
    names = write_effect_files(folder, compared, layers, said)
    _show(compared, said, folder, console)
    for sentence in layers_sentences(layers):
        say(console, f"note: {sentence}")
    say(console, f"{folder} holds {', '.join(names)}")
    return compared


def write_effect_files(
    folder: Path,
    compared: Sequence[QuantityComparison],
    layers: Sequence[QuantityComparison],
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
    claims = not compared or any(item.quantity not in ROBUSTNESS for item in compared)
    title = (
        "Does every method move the quantity it is about?"
        if claims
        else "What do models withstand?"
    )
    sections = [
        Section("In short", [Findings(said)]),
        Section("All comparisons", [EXPLAINED, effect_table(compared), quantity_table(compared)]),
        Section("By layer", [*_layers(layers, no_plot)]),
    ]
    write_atomic(folder / "effect.md", page_text("md", title, sections))
    return names


def _layers(layers: Sequence[QuantityComparison], no_plot: str) -> Iterator[Block]:
    if layers:
        yield BY_LAYER
        yield Items(layers_sentences(layers))
        if no_plot:
            yield f"The figure was left out: {no_plot}"
        else:
            yield Figures([Plot(LAYERS, "Values by layer", FIGURE, "")])
        yield layers_table(layers)


def _line(item: QuantityComparison) -> list[object]:
    return [
        *(item.condition, item.method, item.quantity, len(item.seeds)),
        *(item.plain, item.with_method, *_bounds(item.difference), *_bounds(item.change)),
        *(item.p, item.p_holm, *_bounds(item.score)),
        *(item.cost_ratio, item.verdict),
    ]


def _bounds(effect: Effect | None) -> list[float | None]:
    if effect is None:
        return [None, None, None]
    return [effect.value, *effect.bounds]


def _show(
    compared: Sequence[QuantityComparison], said: Sequence[Sentence], folder: Path, console: Console
) -> None:
    left_out: list[str] = []
    for condition in dict.fromkeys(item.condition for item in compared):
        found = effect_table([item for item in compared if item.condition == condition])
        head, *rows = [[cells[i] for i in SHORT] for cells in [found.head, *found.rows]]
        left_out += show_table(Table(head, rows), condition, console, DECIDING)
    say_left_out(left_out, str(folder / "effect.md"), console)
    for sentence in said:
        say(console, f"{sentence.verdict}: {sentence.text}")
