"""What a finished run, an evaluation and a cell of a study hold; other modules parse no result.

A record is read as strict JSON: a text is no number, and unknown fields are left out.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from smoothtune.config.evaluation import OOD, other_data_set
from smoothtune.config.fields import TaskType
from smoothtune.data.summary import Report
from smoothtune.errors import OutputError, dotted, message_of
from smoothtune.report.curves import Curve

Numbers = dict[str, float]
AGAIN = "make it again"


class Record(BaseModel):
    """Content of a JSON file, or a part of it."""

    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)

    @classmethod
    def parse(cls, content: Mapping[str, Any]) -> Self:
        """Read plain data.

        Raises:
            ValidationError: a field is missing or has another type.
        """
        return cls.model_validate_json(json.dumps(content))

    def content(self) -> dict[str, Any]:
        """The plain data to write."""
        return self.model_dump()

    @classmethod
    def check(
        cls, content: Mapping[str, Any], path: Path, command: str, *within: str, mend: str = AGAIN
    ) -> Self:
        """Read the content of a file, or the part `within` it, which may be another's.

        Raises:
            OutputError: it is not as ``smoothtune COMMAND`` writes it; names the field.
        """
        try:
            return cls.parse(content)
        except ValidationError as error:
            detail = error.errors()[0]
            field = dotted((*within, *detail["loc"]))
            raise OutputError(
                f"{path}: {field}: {message_of(detail, [])}; it is not as smoothtune {command} "
                f"writes it: {mend}"
            ) from error


# --- a run: result.json ------------------------------------------------------------------------


class Cost(Record):
    """Time and memory of a run."""

    train_seconds: float
    evaluation_seconds: float
    steps: int
    step_seconds: float | None = None
    """Median of an update with the methods."""
    plain_step_seconds: float | None = None
    ratio_to_plain: float | None = None
    """Of an update."""
    device: str | None = None
    peak_rss_bytes: int | None = None
    peak_cuda_bytes: int | None = None
    resumed_from_step: int = 0

    @property
    def seconds_per_step(self) -> float:
        """Training time by update."""
        return self.train_seconds / self.steps


class Best(Record):
    """What scores in training decided."""

    metric: str
    value: float | None
    """None: no evaluation counted."""
    stopped_early: bool


class RunResult(Record):
    """``result.json`` of `smoothtune train`."""

    task: str
    task_type: TaskType
    model: str
    base_model_id: str | None = None
    """On the hub."""
    methods: dict[str, dict[str, Any]]
    """Fields by method."""
    applied: dict[str, dict[str, float]] = {}
    """What was applied of each loss term with a bound."""
    seed: int
    world_size: int = 1
    headline: str
    """Name of the main metric."""
    metrics: Numbers
    train_metrics: Numbers
    train_rows: int | None = None
    """Of which these are, a sample in short runs; None: a record of an older version."""
    generalization_gap: float
    """Main metric on training rows minus that on validation rows."""
    brier: float | None = None
    trivial_baseline: float
    """Score of the best constant prediction."""
    cost: Cost
    data: Report
    fingerprints: dict[str, str | None] = {}
    class_weights: dict[str, float] | None = None
    best: Best | None = None
    kept_step: int | None = None
    """The update whose weights are the run's."""
    attention: str | None = None
    log_history: list[dict[str, Any]]
    versions: dict[str, str]
    config: dict[str, Any]
    """Every field of the run."""
    method_versions: dict[str, int] = {}

    @property
    def score(self) -> float:
        """Main metric on the validation rows."""
        return self.metrics[self.headline]

    @model_validator(mode="after")
    def _has_its_score(self) -> Self:
        if not {self.headline} <= self.metrics.keys() & self.train_metrics.keys():
            raise ValueError("the main metric is missing")
        return self

    @field_validator("log_history")
    @classmethod
    def _has_steps_and_losses(cls, log: list[dict[str, Any]]) -> list[dict[str, Any]]:
        losses = [entry.get(key) for entry in log for key in ("loss", "loss/task")]
        if not all(isinstance(entry.get("step"), int) for entry in log) or not all(
            isinstance(loss, int | float | None) for loss in losses
        ):
            raise ValueError("the log holds other things than numbers")
        return log


# --- an evaluation: evaluation.json ------------------------------------------------------------


class Part(Record):
    """One part of an evaluation."""

    numbers: dict[str, Any]
    curves: dict[str, Curve]
    skipped: str = ""
    """Why it does not apply."""

    @classmethod
    def left_out(cls, why: str) -> Self:
        """A part that does not apply."""
        return cls(numbers={}, curves={}, skipped=why)

    @field_validator("curves")
    @classmethod
    def _have_points(cls, curves: dict[str, Curve]) -> dict[str, Curve]:
        lines = [curve.series for curve in curves.values()]
        if not all(series and all(series.values()) for series in lines):
            raise ValueError("a curve has no points")
        return curves


class TimedPart(Part):
    """A part in ``evaluation.json``."""

    seconds: float


class ScoreInterval(Record):
    """A metric with its 95 % bootstrap interval."""

    value: float
    low: float | None
    high: float | None


class Scores(Record):
    """Numbers of the part ``metrics``."""

    metrics: Annotated[dict[str, ScoreInterval], Field(min_length=1)]
    train_metrics: Numbers | None
    generalization_gap: float | None
    trivial_baseline: float
    rows: int


class TrainingCost(Record):
    """Of a run of `smoothtune train` or of a Trainer."""

    train_seconds: float
    ratio_to_plain: float | None = None


class Training(Record):
    """``result.json`` of any training, as far as an evaluation reads it."""

    config: dict[str, Any] = {}
    methods: dict[str, Any] | list[str] | None = None
    cost: TrainingCost | None = None
    seed: int | None = None
    fingerprints: dict[str, str | None] = {}


class Evaluation(Record):
    """``evaluation.json``."""

    model: str
    task: str
    task_type: TaskType
    headline: str
    metrics: Annotated[list[str], Field(min_length=1)]
    label_names: list[str]
    training: Training | None
    data: dict[str, Any]
    settings: dict[str, Any]
    fingerprints: dict[str, str]
    versions: dict[str, str]
    parts: dict[str, TimedPart]


# --- a cell of a study: cells/ID.json ----------------------------------------------------------


class Quantities(Record):
    """Numbers of the part ``effect``."""

    quantities: Numbers = {}
    """What methods are about, by name."""
    beside: Numbers = {}
    """Numbers that help to read them."""


class Measured(Record):
    """What a study measured on a trained model beside its scores."""

    ece: float | None = None
    """Expected calibration error, from 0 to 1; a mean over labels where a row has several."""
    noise: Numbers = {}
    """Main metric by level of Gaussian noise, with the summaries of the curve."""
    parts: dict[str, Part] = {}
    claims: dict[str, list[str]] = {}
    """Quantities that each method is to lower."""

    def curve(self, path: str) -> Curve | None:
        """A curve of a part, by PART/CURVE."""
        part, _, name = path.partition("/")
        return self.parts[part].curves.get(name) if part in self.parts else None

    @property
    def effect(self) -> Quantities:
        """What methods are about; empty without the part ``effect``."""
        part = self.parts.get("effect")
        return Quantities.parse(part.numbers) if part else Quantities()

    @property
    def calibrated(self) -> Numbers:
        """NLL and Brier score of the rows on which no temperature was fitted, by measure.

        Empty without the part ``calibration`` of a classification.
        """
        numbers = self.parts["calibration"].numbers if "calibration" in self.parts else {}
        if "judged_rows_after" not in numbers:
            return {}
        before, after = numbers["judged_rows_before"], numbers["judged_rows_after"]
        return {
            "nll_uncalibrated": before["nll"],
            "nll_calibrated": after["nll"],
            "brier_calibrated": after["brier"],
        }

    @model_validator(mode="after")
    def _has_numbers_of_effects(self) -> Self:
        _ = self.effect
        return self

    def score_on_other_data(self, metric: str) -> float | None:
        """Mean over the other data sets, without further training; None unless all have it."""
        titles = [title for title in self.parts if title == f"{OOD}{other_data_set(title)}"]
        scores = [self.parts[title].numbers.get("metrics", {}).get(metric) for title in titles]
        if not scores or None in scores:
            return None
        return float(sum(score["value"] for score in scores) / len(scores))


class CellContent(Record):
    """How a cell ended: trained and measured, or with a loss that is not finite."""

    status: Literal["done", "nan"]
    message: str = ""
    result: RunResult | None = None
    extras: Measured | None = None

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if self.status == "done" and None in (self.result, self.extras):
            raise ValueError("the result is missing")
        return self


class CellRecord(CellContent):
    """A cell's file."""

    id: str
    identity: dict[str, Any]
