"""Settings of evaluations and predictions, and how the command line is read into them."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, field_validator
from pydantic.dataclasses import dataclass

from smoothtune.config.draft import Draft
from smoothtune.config.fields import (
    DATA,
    MODEL,
    OUTPUT,
    PARTS,
    SAMPLING,
    Count,
    DataFields,
    Encoding,
    Folder,
    Name,
    Seed,
    Separator,
    SpanFields,
)
from smoothtune.errors import Problem, unknown

PartName = Literal[
    "calibration", "robustness", "corruption", "substitution", "smoothness", "drift", "effect"
]
"""The optional parts; the task's metrics are always computed."""
OOD, AFTER = "ood: ", " after "  # around the name of another data set in the name of a part
# becomes part of file names, and stands before AFTER
OOD_NAME = re.compile(rf"(?!.*{AFTER})\w[\w. -]{{0,60}}")


@dataclass(
    frozen=True,
    config=ConfigDict(extra="forbid", coerce_numbers_to_str=True, use_attribute_docstrings=True),
)
class OtherData:
    """Another data set, and how it is read as the model's task."""

    source: str
    """File, folder or hub id."""
    text_columns: tuple[str, ...] | None = None
    """Its text columns, where they have other names than the task's."""
    label_column: str | None = None
    """Its label column, likewise."""
    labels: dict[str, str] | None = None
    """The task's class, by name or number, that each of its labels means. Needed where the same
    number means something else: 1 may be hateful in one set and positive in another."""
    sep: Separator | None = None
    """What separates the columns of its CSV files; unset: a comma, or a tab in TSV."""
    encoding: Encoding | None = None
    """Encoding of its CSV files; unset: UTF-8."""
    preset: str | None = None
    """A task of this name, as adv_sst2, gives columns and splits; unset: the task's own. In the
    place of `source` such a name also gives the data, from the hub."""
    max_rows: Annotated[int, Field(ge=1)] | None = None
    """Score on at most this many of its rows, the first ones; unset: on all."""

    @field_validator("text_columns", mode="before")
    @classmethod
    def _one_column(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("labels", mode="before")
    @classmethod
    def _mapping(cls, value: Any) -> Any:
        if value is None or (isinstance(value, Mapping) and value):
            return value
        raise ValueError(f"cannot be {value!r}; write labels={{negative: 1, positive: 0}}")


class ModelFields(SpanFields, DataFields):
    """A fine-tuned model, and how rows are put through it."""

    max_seq_length: Annotated[Count | None, DATA] = None
    """Longest input in tokens; unset: as in training, else 128, or 384 for question answering."""
    model: Annotated[Name, MODEL]
    """A fine-tuned model: its folder, its name in $SMOOTHTUNE_MODELS, or its hub id."""
    batch_size: Annotated[Count, SAMPLING] = 32
    """Rows per forward."""


class Settings(ModelFields):
    """One evaluation; what is unset is taken from the model folder's ``result.json``."""

    ood: Annotated[dict[str, OtherData], DATA] = {}
    """Other data sets for the task, by the name they get in the report."""
    further_share: Annotated[Annotated[float, Field(gt=0, lt=1)] | None, DATA] = None
    """Also train a copy on this share of each other data set, and score it on the rest."""
    max_train_samples: Annotated[Count | None, DATA] = None
    """Score at most this many of the training rows, and never more than 1000."""
    max_eval_samples: Annotated[Count | None, DATA] = None
    """Evaluate on at most this many rows, the first ones, also of each other data set; unset: as in
    training, and other data sets whole."""
    max_diagnostic_samples: Annotated[Count, DATA] = 256
    """Rows, drawn at random, for all parts but the metrics, calibration and other data sets."""
    data_seed: Annotated[int | None, DATA] = None
    """Seed of the training run, which chose its rows; unset: as in training, else 42."""

    ensemble: Annotated[tuple[Name, ...], MODEL] = ()
    """Further models, such as those of other seeds; the mean of all probabilities is evaluated."""
    base_model: Annotated[Name | None, MODEL] = None
    """The pre-trained model, for `drift`; unset: what the training run started from."""

    parts: Annotated[tuple[PartName, ...], PARTS] = ()
    """What to measure beside the task's metrics."""

    seed: Annotated[Seed, SAMPLING] = 42
    """Seed of all draws: noise, corruption, directions of derivatives, bootstrap resamples."""
    num_resamples: Annotated[Count, SAMPLING] = 1000
    """Bootstrap resamples behind each interval."""

    num_examples: Annotated[int, Field(ge=0), OUTPUT] = 20
    """Sentences in each table of single ones; 0: no texts are written."""
    output_dir: Annotated[Folder | None, OUTPUT] = None
    """Folder for evaluation.json, tables and plots; unset: MODEL-evaluation beside the model, or
    MODEL-ensemble-evaluation beside the first of several."""
    overwrite_output_dir: Annotated[bool, OUTPUT] = False
    """Replace another evaluation in `output_dir`."""

    @property
    def folder(self) -> Path:
        """`output_dir`, or where it is unset a folder beside the model."""
        if self.output_dir is not None:
            return Path(self.output_dir)
        model = Path(self.model).expanduser()
        if model.name in ("", ".."):  # as in `.`, which Path takes for its own parent
            model = Path(os.path.abspath(model))
        parent = model.parent if model.is_dir() else Path()  # the hub's are in no folder here
        kind = "ensemble-evaluation" if self.ensemble else "evaluation"
        return parent / f"{os.path.basename(os.path.abspath(model))}-{kind}"

    def identity(self) -> dict[str, Any]:
        """What makes numbers comparable; parts and other data sets can be added later."""
        ignored = {"output_dir", "overwrite_output_dir", "num_examples"}
        return self.model_dump(mode="json", exclude=ignored | {"parts", "ood", "further_share"})


class Prediction(ModelFields):
    """Predictions for new rows; what is unset is taken from the model folder's ``result.json``."""

    data: Annotated[Name, DATA]
    """CSV, TSV, JSONL or Parquet file with the columns of the task; labels are not needed."""

    to: Annotated[Name, OUTPUT]
    """File for the rows with their predictions: .csv, .jsonl or .parquet."""
    probabilities: Annotated[bool, OUTPUT] = False
    """Also write the probability of every class, in columns probability_LABEL."""
    calibrated: Annotated[bool, OUTPUT] = False
    """Divide logits by the temperature that `smoothtune evaluate --calibration` has left in the
    model's folder."""
    coverage: Annotated[Annotated[float, Field(gt=0, lt=1)] | None, OUTPUT] = None
    """Also write a set of classes that holds the right one with this probability, such as 0.9, in
    the column prediction_set; by scores that `smoothtune evaluate --calibration` has left in the
    model's folder."""
    overwrite: Annotated[bool, OUTPUT] = False
    """Replace the file."""


def load_settings(
    overrides: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    ood: Sequence[str] = (),
    ood_set: Sequence[str] = (),
) -> Settings:
    """The settings that a command line describes; ConfigError with everything that is wrong.

    Args:
        overrides: ``doc_stride=64``, for any field.
        options: fields by name, which win; None means not given.
        ood: ``NAME=DATA``, other data sets for the task.
        ood_set: ``NAME.text_columns=sentence``, ``NAME.labels={0: 1, 1: 0}``: how they are read.
    """
    draft = Draft()
    for override in overrides:
        draft.override(override)
    draft.put_options(options or {})
    if ood or ood_set:
        _put_other_data_sets(draft, ood, ood_set)
    settings = draft.validated(Settings)
    draft.stop_at_problems()
    return settings


def _put_other_data_sets(draft: Draft, ood: Sequence[str], ood_set: Sequence[str]) -> None:
    data_sets: dict[str, dict[str, Any]] = {}
    draft.put("ood", data_sets, "--ood")
    for text in ood:
        name, _, source = text.partition("=")
        if not source or not OOD_NAME.fullmatch(name) or name in data_sets:
            message = f"{text!r} is not NAME=DATA with a new, plain name"
            draft.problems.append(Problem("--ood", "", message))
        data_sets[name] = {"source": source}
    for text in ood_set:
        path, _, value = text.partition("=")
        name, _, field = path.strip().rpartition(".")
        if name in data_sets:
            origin = draft.origins["ood", name, field] = f"--ood-set {text}"
            data_sets[name][field] = draft.parse_value(value, origin)
        else:
            draft.problems.append(Problem("--ood-set", name, unknown("data set", name, data_sets)))


def other_data_set(part: str) -> str | None:
    """The name of the data set that a part is about; None for the model's own."""
    return part.removeprefix(OOD).partition(AFTER)[0] if part.startswith(OOD) else None


def further_title(name: str, share: float) -> str:
    """Name of the part about another data set after training on a share of it."""
    return f"{OOD}{name}{AFTER}{100 * share:g}% of it"
