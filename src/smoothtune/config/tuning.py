"""Settings of `smoothtune tune` and of ``--method auto``, read from files and options."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from smoothtune.config.draft import Draft
from smoothtune.config.fields import COMMAS, SEARCH, Count, Fields
from smoothtune.config.names import (
    AUTO,
    BEST,
    TUNE,
    check_combinations,
    check_methods,
    check_names,
    check_task,
    name_methods,
)
from smoothtune.config.run import RunConfig, read_draft

PLAIN = "plain"

DEFAULT_METHODS = ("vat", "label_smoothing", "reinit", "mixout", "lnsr")
"""VAT and label smoothing have had better probabilities than plain, `reinit` and Mixout a better
score, LNSR a better NLL. A small budget tries the first ones alone."""
SEARCHED = ("methods", "learning_rate", "num_train_epochs", "max_steps")
"""Fields of a run that a search sets itself."""
UNLABELED = ("unlabeled", "max_unlabeled_samples", "alternate")
CHECKPOINT = (*BEST, "metric_for_best_model", "greater_is_better", "early_stopping_threshold")
NOT_OFFERED = {*SEARCHED, *UNLABELED, *CHECKPOINT, "cost_steps"}
"""Fields of a run that `smoothtune tune` has no option for."""


Numbers = Annotated[
    tuple[Annotated[float, Field(gt=0, strict=False)], ...], COMMAS, Field(min_length=1)
]
Metric = Literal["score", "nll", "brier"]


class TuneSettings(Fields):
    """How a search is done."""

    metric: Annotated[Metric, SEARCH] = "score"
    """What decides: the task's main metric, or its probabilities: "nll" or "brier"."""
    budget: Annotated[int, Field(ge=2), SEARCH] = 18
    """Trials: half of them are plain fine-tuning's, half those of all methods together."""
    learning_rates: Annotated[Numbers, SEARCH] = (1e-5, 5e-4)
    """Lowest and highest learning rate to try; one number: it is not searched."""
    epochs: Annotated[Numbers, SEARCH] = (2.0, 4.0, 8.0)
    """Numbers of epochs to try."""
    held_out: Annotated[float, Field(gt=0, le=0.5), SEARCH] = 0.2
    """Share of the training rows that a trial is scored on and not trained on."""
    folds: Annotated[Count, SEARCH] = 3
    """Held-out parts that the two best trials of plain and of the methods get; most get one."""
    confirm_runs: Annotated[int, Field(ge=3), SEARCH] = 15
    """Runs of the best method and of the best plain setting, with fresh seeds and parts."""
    round_size: Annotated[Count, SEARCH] = 4
    """Trials that start together, whatever the number of workers; more keep more workers busy, and
    each knows less of the others. The first six of plain, and of the methods, depend on no score
    and always start together."""

    @field_validator("learning_rates")
    @classmethod
    def _is_a_range(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if len(value) > 2 or value[0] > value[-1]:
            raise ValueError("must be one number, or the lowest and the highest")
        return value

    @model_validator(mode="after")
    def _has_enough_parts(self) -> TuneSettings:
        if self.folds > self.num_parts:
            raise ValueError(
                f"folds: {self.folds} disjoint parts of {self.held_out:g} of the rows are more "
                f"than there are; at most {self.num_parts}"
            )
        return self

    @property
    def num_parts(self) -> int:
        """Parts that the training rows are cut into; one of them is held out."""
        return max(2, math.floor(1 / self.held_out + 1e-9))


@dataclass(frozen=True)
class Tune:
    """A search, every field of which is valid."""

    settings: TuneSettings
    run: RunConfig
    """Plain fine-tuning with all that is not searched; its `output_dir` is the search's."""
    methods: dict[str, dict[str, Any]]
    """Methods to try beside plain, with the fields that are set for all trials."""
    chosen_by_user: bool  # whether the user named the methods
    notes: tuple[str, ...] = ()  # what was made of a run file


def load_tune(
    file: str | Path | None = None,
    overrides: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    methods: Sequence[str] = (),
) -> Tune:
    """Read a search; arguments and errors as `load_config`, with the fields of `TuneSettings`, too.

    The file may be that of a run: what it says of fields that are searched is then left out, and
    the search has its folder in that of the run.
    """
    draft = read_draft(file, overrides, options, methods)
    notes = _read_as_search(draft)
    hints = {
        "learning_rate": "is searched: give learning_rates, one number to keep it fixed",
        "num_train_epochs": "is searched: give epochs, one number to keep them fixed",
    }
    for name, hint in hints.items():
        if name in draft.values:
            draft.report((name,), hint)
    names = TuneSettings.model_fields
    settings = {name: draft.values.pop(name) for name in names if name in draft.values}
    return replace(_tune(draft, settings), notes=notes)


def _read_as_search(draft: Draft) -> tuple[str, ...]:
    """Take from the file of a run what a search finds by itself; say so."""

    def in_file(name: str) -> bool:
        return name in draft.values and draft.origin((name,)).startswith(f"{draft.file}:")

    of_runs = [name for name in ("learning_rate", "num_train_epochs") if in_file(name)]
    if not draft.file or not of_runs:
        return ()
    if in_file("methods") and draft.values["methods"] in (PLAIN, [PLAIN], {PLAIN: {}}):
        of_runs.append("methods")
    notes = [f"{draft.file} is the file of a run; searched here: {', '.join(of_runs)}"]
    for name in of_runs:
        del draft.values[name]
    if in_file("output_dir"):
        folder = str(Path(draft.values["output_dir"]) / TUNE)
        draft.values["output_dir"] = folder
        notes.append(f"the search is in {folder}; --output-dir names another folder")
    return tuple(notes)


def load_auto(
    file: str | Path | None = None,
    overrides: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    methods: Sequence[str] = (),
) -> Tune | None:
    """The search that the method ``auto`` of a run asks for; None where no method is ``auto``.

    Arguments and errors are those of `load_config`. Fields of ``auto`` are those of `TuneSettings`,
    and ``methods``. A learning rate or a number of epochs that the run says is not searched.
    """
    draft = read_draft(file, overrides, options, methods)
    name_methods(draft)
    fields_by_method = draft.values["methods"]
    if AUTO not in fields_by_method:
        return None
    if len(fields_by_method) > 1:
        others = ",".join(name for name in fields_by_method if name != AUTO)
        message = (
            "tunes first and stands alone; leave the other methods out, or name those to try: "
            f"auto:methods=[{others}]"
        )
        draft.report(("methods", AUTO), message)
    origin = draft.origin(("methods", AUTO))
    settings = dict(fields_by_method[AUTO])
    for name, field in (("learning_rates", "learning_rate"), ("epochs", "num_train_epochs")):
        if field in draft.values and name in settings:
            message = f"does not go with {field}; leave one of them out"
            draft.report(("methods", AUTO, name), message)
        elif field in draft.values:
            settings[name] = draft.values[field]
            draft.origins[name,] = draft.origin((field,))
    tried = settings.pop("methods", None)
    del draft.values["methods"]
    if tried is not None:
        draft.put("methods", tried, origin)
    for name in settings:
        draft.origins.setdefault((name,), origin)
    return _tune(draft, settings)


def _tune(draft: Draft, own: Mapping[str, Any]) -> Tune:
    """A search from the fields of its run and its own settings."""
    if draft.values.get("max_steps", -1) != -1:
        draft.report(("max_steps",), "does not go with a search over epochs; leave it out")
    draft.refuse("does not work with a search yet; leave it out", *UNLABELED)
    message = "would choose a checkpoint by the rows that a trial is scored on; leave it out"
    draft.refuse(message, *BEST)
    draft.refuse("would spoil the labels that are searched on; leave it out", "label_noise")
    chosen_by_user = "methods" in draft.values
    if not chosen_by_user:
        draft.values["methods"] = list(DEFAULT_METHODS)
    name_methods(draft)
    methods = {name: fields for name, fields in draft.values["methods"].items() if name != PLAIN}
    if not methods:
        draft.report(("methods",), "names nothing to try beside plain")
    draft.values["methods"] = methods
    check_names(draft)
    check_task(draft)
    check_combinations(draft)
    settings = draft.validated(TuneSettings, own)
    draft.stop_at_problems()
    check_methods(draft)
    draft.values["methods"] = {PLAIN: {}}
    run = draft.validated(RunConfig)
    draft.stop_at_problems()
    return Tune(settings, run, methods, chosen_by_user)
