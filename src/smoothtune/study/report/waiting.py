"""When terms that wait for the model to learn came in, by what runs logged."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from smoothtune.study.records import Cell, Records

LATE = 0.5
"""Share of the updates, from which a term has little time left to act."""


def waiting_of(
    cells: Iterable[Cell], records: Records, labels: Collection[str]
) -> list[dict[str, Any]]:
    """When the terms of methods came in that wait for the model to learn.

    Args:
        cells: all final cells.
        records: theirs.
        labels: of the methods that are looked at.

    Returns:
        For each of them that waits `method`, its label, and `came_in`: for every finished run the
        share of the updates by which the log has the term, None where it has it nowhere. Runs
        whose log does not reach to the end, and has no term, are left out.
    """
    found: dict[str, list[float | None]] = {}
    for cell in cells:
        if cell.label not in labels:
            continue
        result = (records.read(cell.id) or {}).get("result")
        methods = (result or {}).get("methods") or cell.config.methods
        names = [name for name, fields in methods.items() if fields.get("ramp_start") == "auto"]
        if names:
            found.setdefault(cell.label, [])
        if names and result:
            found[cell.label] += _came_in(result, names)
    return [{"method": label, "came_in": shares} for label, shares in found.items()]


def _came_in(result: Mapping[str, Any], names: Sequence[str]) -> list[float | None]:
    """Of one run, by its first term; nothing where its log does not say."""
    steps = result["cost"]["steps"]
    logged = [entry for entry in result["log_history"] if "loss" in entry]
    first = [e["step"] for e in logged if any(f"loss/{name}" in e for name in names)]
    if first:
        return [min(first) / steps]
    return [None] if logged and logged[-1]["step"] == steps else []


def late_terms(names: Iterable[str], waiting: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """What is said of methods whose terms came in late, or may have, by label.

    Args:
        names: labels of methods.
        waiting: of `waiting_of`.
    """
    said = {item["method"]: when for item in waiting if (when := _when(item["came_in"]))}
    return {
        name: f"The term of {name} waits until the model learns (ramp_start: auto) and "
        f"{said[name]}: train for more updates, or at another learning rate."
        for name in names
        if name in said
    }


def _when(came_in: Sequence[float | None]) -> str:
    """In words; empty where a term came in early."""
    known = [share for share in came_in if share is not None]
    if not came_in:
        return "may have come in late or never"
    if not known:
        return "came in in none of its runs"
    if min(known) < LATE:
        return ""
    never = len(came_in) - len(known)
    text = f"came in late (in the log from {100 * min(known):.0f} % of the updates on)"
    return text + f", in {never} of {len(came_in)} runs never" * bool(never)
