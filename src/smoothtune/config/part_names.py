"""Names of the parts of an evaluation that are about other data sets."""

from __future__ import annotations

OOD, AFTER = "ood: ", " after "  # around the name of another data set in the name of a part


def other_data_set(part: str) -> str | None:
    """The name of the data set that a part is about; None for the model's own."""
    return part.removeprefix(OOD).partition(AFTER)[0] if part.startswith(OOD) else None


def further_title(name: str, share: float) -> str:
    """Name of the part about another data set after training on a share of it."""
    return f"{OOD}{name}{AFTER}{100 * share:g}% of it"
