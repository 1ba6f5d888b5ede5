"""Quantities that are one number for several layers, layer by layer: table, text and figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from smoothtune.errors import printable
from smoothtune.report.curves import csv_text
from smoothtune.report.page import Table, number
from smoothtune.report.plots import COLORS, GRAY, drawn, log_scale
from smoothtune.report.tables import effect_text
from smoothtune.study.config import PLAIN
from smoothtune.study.report.comparison import Condition, condition_of, condition_title
from smoothtune.study.report.effect import against_plain

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


def compare_layers(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every method in its own quantities against plain, layer by layer.

    Args:
        rows: of `smoothtune.study.report.effect.effect_rows`.

    Returns:
        A dictionary for every condition, method, quantity it is about that has values by layer,
        and layer, as of `against_plain`, with its paired difference; no p-value is corrected.
    """
    groups: dict[Condition, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(condition_of(row), []).append(row)
    found = []
    for condition, group in groups.items():
        asked = dict.fromkeys((r["method"], claim) for r in group for claim in r["claims"] or ())
        for method, quantity in asked:
            layers = {layer for r in group for layer in r["layers"].get(quantity, ())}
            for layer in sorted(layers):
                named = [_of_layer(row, quantity, layer) for row in group]
                compared = against_plain([named], method, quantity)
                if compared:
                    where = {"condition": condition_title(condition), "layer": layer}
                    found.append(compared | where)
    return found


def _of_layer(row: Mapping[str, Any], quantity: str, layer: int) -> dict[str, Any]:
    """A run with the value of one layer in the place of the quantity."""
    values = row["layers"].get(quantity, {})
    return {**row, "values": {quantity: values[layer]} if layer in values else {}}


def layers_csv(compared: Sequence[Mapping[str, Any]]) -> str:
    """The comparisons of `compare_layers` as CSV, with `COLUMNS`."""
    lines = (
        [
            *(item[name] for name in ("condition", "method", "quantity", "layer")),
            *(len(item["seeds"]), item["plain"], item["ours"]),
            *(value for name in ("difference", "change") for value in _bounds(item[name])),
        ]
        for item in compared
    )
    return csv_text(COLUMNS, lines)


def _bounds(effect: Mapping[str, Any]) -> list[float | None]:
    return [effect["value"], *(effect["interval"] or (None, None))]


def layers_table(compared: Sequence[Mapping[str, Any]]) -> Table:
    """The same as text."""
    rows = [
        [
            *(item["condition"], item["method"], item["quantity"], str(item["layer"])),
            *(str(len(item["seeds"])), number(item["plain"], ".4g"), number(item["ours"], ".4g")),
            effect_text(item["difference"], 1, "+.3g"),
            effect_text(item["change"], 100, "+.1f") + " %",
        ]
        for item in compared
    ]
    return Table(list(HEAD), rows)


def layers_sentences(compared: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where a method moves its quantity most, and in how many layers its interval leaves out 0."""
    said = []
    for (condition, method, quantity), items in _grouped(compared).items():
        least = min(items, key=lambda item: item["change"]["value"])
        off = sum(_leaves_out_zero(item["difference"]["interval"]) for item in items)
        said.append(
            f"{condition}, {method}: {quantity} is lowest against plain at layer "
            f"{least['layer']}, {effect_text(least['change'], 100, '+.1f')} %; in {off} of "
            f"{len(items)} layers the interval of the difference leaves out 0."
        )
    return said


def _leaves_out_zero(interval: tuple[float, float] | None) -> bool:
    return interval is not None and (interval[0] > 0 or interval[1] < 0)


def _grouped(compared: Sequence[Mapping[str, Any]]) -> dict[Key, list[Mapping[str, Any]]]:
    groups: dict[Key, list[Mapping[str, Any]]] = {}
    for item in compared:
        key = item["condition"], item["method"], item["quantity"]
        groups.setdefault(key, []).append(item)
    return groups


def layers_figure(compared: Sequence[Mapping[str, Any]]) -> bytes:
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


def _paint_values(axes: Any, key: Key, items: Sequence[Mapping[str, Any]]) -> None:
    condition, method, quantity = key
    layers = [item["layer"] for item in items]
    plain, ours = ([item[name] for item in items] for name in ("plain", "ours"))
    axes.plot(layers, plain, "s-", color=GRAY, markersize=4, label=PLAIN)
    axes.plot(layers, ours, "o-", color=COLORS[0], markersize=4, label=printable(method))
    log_scale(axes, [*plain, *ours])
    axes.set_title(printable(condition), fontsize="small")
    axes.set_ylabel(quantity, fontsize="small")
    _finish(axes)
    axes.legend(fontsize="x-small", frameon=False)


def _paint_changes(axes: Any, items: Sequence[Mapping[str, Any]]) -> None:
    layers = [item["layer"] for item in items]
    axes.plot(
        layers,
        [100 * item["change"]["value"] for item in items],
        "o",
        color=COLORS[0],
        markersize=4,
    )
    for item in items:
        if interval := item["change"]["interval"]:
            bounds = [100 * bound for bound in interval]
            axes.plot([item["layer"]] * 2, bounds, color=COLORS[0], linewidth=1.5)
    axes.axhline(0, color=GRAY, linewidth=1)
    axes.set_title("change, with 95 % interval", fontsize="small")
    axes.set_ylabel("% of plain's mean", fontsize="small")
    _finish(axes)


def _finish(axes: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("layer", fontsize="small")
    axes.tick_params(labelsize="x-small")
