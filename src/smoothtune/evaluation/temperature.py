"""The temperature that an evaluation fitted, beside the model: ``calibration.json``."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from smoothtune.errors import ModelError
from smoothtune.files import read_json, write_atomic, write_json

CALIBRATION, CARD = "calibration.json", "README.md"
HOTTEST = 10.0
"""Temperatures beyond it, or below 1 / 10: logits say nothing, or are never wrong."""
_SECTION = re.compile(r"\n*<!-- calibration -->\n.*?<!-- end of calibration -->\n", re.S)


class Temperature(BaseModel):
    """What the logits of a model are divided by before probabilities are taken."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)

    temperature: Annotated[float, Field(gt=0)]
    fitted_on: int
    """Rows."""
    judged_on: int
    """Other rows, of which these are the NLL."""
    nll_before: float
    nll_after: float
    weights: str
    """sha256 of the weights that it belongs to."""


def keep_temperature(content: dict[str, Any], model: str) -> str:
    """Write the fitted temperature of an evaluation into the model's folder and its card.

    Args:
        content: of ``evaluation.json``.
        model: the evaluated model.

    Returns:
        What to tell; empty where none was looked for, or the model is no local folder.
    """
    folder = Path(os.path.expanduser(model))
    numbers = content["parts"].get("calibration", {}).get("numbers", {})
    temperature = numbers.get("temperature")
    if temperature is None or not folder.is_dir():
        return ""
    if not 1 / HOTTEST < temperature < HOTTEST:
        rows = numbers["temperature_fitted_on"]
        return f"no temperature is kept: none from {1 / HOTTEST:g} to {HOTTEST:g} fits {rows} rows"
    found = Temperature(
        temperature=temperature,
        fitted_on=numbers["temperature_fitted_on"],
        judged_on=numbers["judged_on"],
        nll_before=numbers["judged_rows_before"]["nll"],
        nll_after=numbers["judged_rows_after"]["nll"],
        weights=content["fingerprints"]["weights"],
    )
    try:
        write_json(folder / CALIBRATION, found.model_dump())
        if (folder / CARD).is_file():
            card = _SECTION.sub("", (folder / CARD).read_text("utf-8"))
            write_atomic(folder / CARD, f"{card.rstrip()}\n\n{_section(found)}")
    except OSError as error:
        return f"the temperature is not kept: {folder} cannot be written ({error.strerror})"
    return f"{folder / CALIBRATION} keeps the temperature for smoothtune predict --calibrated"


def _section(found: Temperature) -> str:
    return (
        "<!-- calibration -->\n## Calibration\n\n"
        f"`{CALIBRATION}` holds a temperature of {found.temperature:.3f}, fitted on "
        f"{found.fitted_on} rows: divide the logits by it before the softmax (the sigmoid, for "
        f"several labels). The NLL of {found.judged_on} other rows goes from "
        f"{found.nll_before:.3f} to {found.nll_after:.3f}. `smoothtune predict "
        "--calibrated` applies it.\n"
        "<!-- end of calibration -->\n"
    )


def kept_temperature(model: str, weights: str) -> Temperature:
    """The temperature beside a model.

    Args:
        model: its folder.
        weights: sha256 of the weights.

    Raises:
        ModelError: there is none, it is damaged, or it belongs to other weights.
    """
    path = Path(os.path.expanduser(model)) / CALIBRATION
    again = f"fit one with: smoothtune evaluate {model} --calibration --output-dir DIR"
    content = read_json(path)
    if content is None:
        raise ModelError(f"{model} holds no {CALIBRATION}; {again}")
    try:
        found = Temperature.model_validate(content)
    except ValidationError as error:
        field = ".".join(map(str, error.errors()[0]["loc"]))
        raise ModelError(f"{path}: {field} is damaged; {again}") from error
    if found.weights != weights:
        raise ModelError(f"{path} belongs to other weights; {again}")
    return found
