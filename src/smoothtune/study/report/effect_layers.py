"""Quantities that are one number for several layers, layer by layer: table, text and figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smoothtune.errors import printable
from smoothtune.report.curves import csv_text
from smoothtune.report.page import Table, number
from smoothtune.report.plots import COLORS, GRAY, drawn, log_scale
from smoothtune.report.tables import Effect, effect_text
from smoothtune.study.config import PLAIN
from smoothtune.study.report.effect import QuantityComparison

COLUMNS = (
    *("condition", "method", "quantity", "layer", "seeds", "plain", "with_method"),
    *("difference", "difference_low", "difference_high", "change", "change_low", "change_high"),
)
HEAD = (
    *("condition", "method", "quantity", "layer", "seeds", "plain", "with the method"),
    *("minus plain", "change"),
)
WIDTH, HEIGHT = 7.2, 1.9  # inches: of the figure, and of the two axes of a method and a quantity
Key = tuple[str, str, str]
"""Condition, method and quantity."""


def layers_csv(compared: Sequence[QuantityComparison]) -> str:
    """The comparisons of `compare_layers` as CSV, with `COLUMNS`."""
    lines = (
        [
            *(item.condition, item.method, item.quantity, item.layer),
            *(len(item.seeds), item.plain, item.with_method),
            *(value for effect in (item.difference, item.change) for value in _bounds(effect)),
        ]
        for item in compared
    )
    return csv_text(COLUMNS, lines)


def _bounds(effect: Effect | None) -> list[float | None]:
    return [effect.value, *effect.bounds] if effect else [None] * 3


def layers_table(compared: Sequence[QuantityComparison]) -> Table:
    """The same as text."""
    rows = [
        [
            *(item.condition, item.method, item.quantity, str(item.layer)),
            *(str(len(item.seeds)), number(item.plain, ".4g"), number(item.with_method, ".4g")),
            effect_text(item.difference, 1, "+.3g"),
            effect_text(item.change, 100, "+.1f") + " %",
        ]
        for item in compared
    ]
    return Table(list(HEAD), rows)


def layers_sentences(compared: Sequence[QuantityComparison]) -> list[str]:
    """Where a method moves its quantity most, and in how many layers its interval leaves out 0."""
    said = []
    for (condition, method, quantity), items in _grouped(compared).items():
        least = min(items, key=lambda item: item.change.value)
        off = sum(bool(item.difference and item.difference.excludes_zero) for item in items)
        said.append(
            f"{condition}, {method}: {quantity} is lowest against plain at layer "
            f"{least.layer}, {effect_text(least.change, 100, '+.1f')} %; in {off} of "
            f"{len(items)} layers the interval of the difference leaves out 0."
        )
    return said


def _grouped(compared: Sequence[QuantityComparison]) -> dict[Key, list[QuantityComparison]]:
    groups: dict[Key, list[QuantityComparison]] = {}
    for item in compared:
        key = item.condition, item.method, item.quantity
        groups.setdefault(key, []).append(item)
    return groups


def layers_figure(compared: Sequence[QuantityComparison]) -> bytes:
    """An SVG: for each method and quantity the values by layer, and the change relative to plain.

    Raises:
        PlotsMissing: matplotlib is not installed.
    """
    groups = _grouped(compared)

    def paint(figure: Any) -> None:
        grid = figure.subplots(len(groups), 2, squeeze=False)
        for axes, (key, items) in zip(grid, groups.items(), strict=True):
            _paint_values(axes[0], key, items)
            _paint_changes(axes[1], items)

    return drawn(WIDTH, HEIGHT * len(groups), paint)["svg"]


def _paint_values(axes: Any, key: Key, items: Sequence[QuantityComparison]) -> None:
    condition, method, quantity = key
    layers = [item.layer for item in items]
    plain, own = [item.plain for item in items], [item.with_method for item in items]
    axes.plot(layers, plain, "s-", color=GRAY, markersize=4, label=PLAIN)
    axes.plot(layers, own, "o-", color=COLORS[0], markersize=4, label=printable(method))
    log_scale(axes, [value for value in (*plain, *own) if value is not None])
    axes.set_title(printable(condition), fontsize="small")
    axes.set_ylabel(quantity, fontsize="small")
    _finish(axes)
    axes.legend(fontsize="x-small", frameon=False)


def _paint_changes(axes: Any, items: Sequence[QuantityComparison]) -> None:
    layers = [item.layer for item in items]
    axes.plot(
        layers,
        [100 * item.change.value for item in items],
        "o",
        color=COLORS[0],
        markersize=4,
    )
    for item in items:
        if interval := item.change.interval:
            bounds = [100 * bound for bound in interval]
            axes.plot([item.layer] * 2, bounds, color=COLORS[0], linewidth=1.5)
    axes.axhline(0, color=GRAY, linewidth=1)
    axes.set_title("change, with 95 % interval", fontsize="small")
    axes.set_ylabel("% of plain's mean", fontsize="small")
    _finish(axes)


def _finish(axes: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("layer", fontsize="small")
    axes.tick_params(labelsize="x-small")
