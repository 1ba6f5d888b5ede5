"""What an evaluation fitted to a model's probabilities, beside the model: ``calibration.json``."""

import os
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from pydantic import Field

from smoothtune.errors import ModelError, OutputError
from smoothtune.files import read_json, write_atomic, write_json
from smoothtune.results import AGAIN, Record

CALIBRATION, CARD = "calibration.json", "README.md"
HOTTEST = 10.0
"""Temperatures beyond it, or below 1 / 10: logits say nothing, or are never wrong."""
_SECTION = re.compile(r"\n*<!-- calibration -->\n.*?<!-- end of calibration -->\n", re.S)


class Calibration(Record):
    """What turns a model's logits into probabilities and sets of classes."""

    temperature: Annotated[float, Field(gt=0)] | None
    """Divides the logits before probabilities are taken; None: none fits."""
    conformal_scores: list[Annotated[float, Field(ge=0, le=1)]]
    """1 - probability of the right class of every fitted row, without the temperature, rising;
    empty for several labels of a row."""
    fitted_on: int
    """Rows."""
    judged_on: int
    """Other rows, of which these are the NLL."""
    nll_before: float
    nll_after: float
    weights: str
    """sha256 of the weights that it belongs to."""
    data: str
    """sha256 of the data whose rows these are."""


def fits(temperature: float) -> bool:
    """Whether a temperature is more than the end of the search for one."""
    return 1 / HOTTEST < temperature < HOTTEST


def keep_calibration(calibration: Calibration, model: str) -> str:
    """Write what was fitted into the model's folder and its card.

    One of the same weights that was fitted on other rows stays: a test set is there to judge it.

    Returns:
        What to tell; empty where the model is no local folder.
    """
    folder = Path(os.path.expanduser(model))
    if not folder.is_dir():
        return ""
    earlier: Calibration | None = None
    with suppress(OutputError):  # what cannot be used is replaced
        earlier = _stored(folder / CALIBRATION)
    if earlier and earlier.weights == calibration.weights and earlier.data != calibration.data:
        return (
            f"{folder / CALIBRATION} stays as it is: it was fitted on other rows. Remove it, and "
            "the next evaluate --calibration keeps what it fits"
        )
    try:
        card = (folder / CARD).read_text("utf-8") if (folder / CARD).is_file() else ""
        write_json(folder / CALIBRATION, calibration.content())
        if card:
            card = _SECTION.sub("", card).rstrip()
            write_atomic(folder / CARD, f"{card}\n\n{_section(calibration)}")
    except (OutputError, OSError, UnicodeDecodeError) as error:  # as in a folder of another user
        return f"the calibration is not kept: {error}"
    contents = ["the temperature for predict --calibrated"] * (calibration.temperature is not None)
    contents += ["the scores for predict --coverage"] * bool(calibration.conformal_scores)
    kept = " and ".join(contents) or "no temperature, since none fits"
    return f"{folder / CALIBRATION} keeps {kept}"


def _stored(path: Path, mend: str = AGAIN) -> Calibration | None:
    content = read_json(path)
    return None if content is None else Calibration.check(content, path, "evaluate", mend=mend)


def _section(calibration: Calibration) -> str:
    text = f"`{CALIBRATION}` was fitted on {calibration.fitted_on} rows."
    if calibration.temperature is not None:
        text += (
            f" It holds a temperature of {calibration.temperature:.3f}: divide the logits by it "
            "before the softmax (the sigmoid, for several labels). The NLL of "
            f"{calibration.judged_on} other rows goes from {calibration.nll_before:.3f} to "
            f"{calibration.nll_after:.3f}. `smoothtune predict --calibrated` applies it."
        )
    if calibration.conformal_scores:
        text += (
            " By its conformal scores `smoothtune predict --coverage 0.9` writes sets of classes "
            "that hold the right one with this probability."
        )
    return f"<!-- calibration -->\n## Calibration\n\n{text}\n<!-- end of calibration -->\n"


def stored_calibration(model: str, weights: str, options: Sequence[str] = ()) -> Calibration:
    """The calibration beside a model; `options` are what its evaluation needs beside the model.

    Raises:
        ModelError: there is none, or it belongs to other weights.
    """
    path = Path(os.path.expanduser(model)) / CALIBRATION
    command = ["smoothtune", "evaluate", model, "--calibration", *options]
    again = f"fit one with: {shlex.join(command)}"
    calibration = _stored(path, again)
    if calibration is None:
        raise ModelError(f"{model} holds no {CALIBRATION}; {again}")
    if calibration.weights != weights:
        raise ModelError(f"{path} belongs to other weights; {again}")
    return calibration
