"""Trainings of a search as cells, each known by what determines it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from smoothtune.config.run import RunConfig
from smoothtune.config.run_fields import OUTPUT_FIELDS
from smoothtune.config.tuning import Metric, Tune
from smoothtune.results import CellRecord
from smoothtune.run.signals import Signals
from smoothtune.study.fields import ConditionKey
from smoothtune.study.files import portable
from smoothtune.study.inputs import base_weights_fingerprint, data_fingerprint
from smoothtune.study.parts import TrainingRows, write_split
from smoothtune.study.pool import Pool
from smoothtune.study.records import Cell, Extras, Fingerprints, Records, cell_identity, digest
from smoothtune.study.run import Progress, execute
from smoothtune.tune.confirm import Fresh, search_run
from smoothtune.tune.search import Outcome, Trial
from smoothtune.tune.space import Setting
from smoothtune.tune.split import parts_of

PARTS = "parts"
PLAIN_SCORES, CALIBRATION = Extras(), Extras(evaluate=("calibration",))
SET_HERE = ("data", "sep", "encoding", "max_train_samples", "max_eval_samples", "save_strategy")
"""Fields of a run that its trials have otherwise: they read the parts, and leave nothing."""


@dataclass
class Trainings:
    """Trains settings on parts of the training rows, unless a record says how that ended."""

    tune: Tune
    training: TrainingRows
    pool: Pool
    progress: Progress
    signals: Signals

    def __post_init__(self) -> None:
        self.records = Records(self.pool.folder)
        self.weights = base_weights_fingerprint(self.tune.run)
        self.cuts: dict[int, np.ndarray] = {}
        self.contents: dict[Path, str] = {}

    def trials(self, work: Sequence[tuple[Trial, int]]) -> list[Outcome]:
        """Train trials on folds."""
        cells = [
            self.cell(
                trial.setting,
                search_run(fold, self.tune.run.seed),
                f"{trial.arm} trial {trial.number + 1}, fold {fold + 1}",
            )
            for trial, fold in work
        ]
        metric = self.tune.settings.metric
        return [
            Outcome(score_of(end, metric), end if isinstance(end, str) else end.message)
            for end in self.run(cells)
        ]

    def run(self, cells: Sequence[Cell]) -> list[CellRecord | str]:
        """The record of every cell, or the message of its failure."""
        unique = {cell.id: cell for cell in cells}
        missing = [cell for cell in unique.values() if self.records.row(cell.id) is None]
        self.progress.skip(len(unique) - len(missing))
        if missing:
            execute(missing, self.pool, self.progress, self.signals)
        ends: list[CellRecord | str] = []
        for cell in cells:
            failure = self.records.failure(cell.id) or {"message": ""}
            ends.append(self.records.read(cell.id) or str(failure["message"]))
        return ends

    def cell(
        self, setting: Setting, fresh: Fresh, title: str, extras: Extras = PLAIN_SCORES
    ) -> Cell:
        """One training, and what is measured on its model beside its scores."""
        run = self.tune.run
        source = self._part(fresh)
        config = RunConfig.model_validate(
            run.model_dump(exclude={*OUTPUT_FIELDS, *SET_HERE})
            | setting.changes()
            | {
                "data": str(source),
                "output_dir": "unset",
                "seed": fresh.seed,
                "cost_steps": 0,
                "eval_strategy": "no",
            }
        )
        if source not in self.contents:
            self.contents[source] = data_fingerprint(str(source), config)
        prints = Fingerprints(self.contents[source], self.weights)
        return Cell(
            label=f"{title} ({setting.describe()})",
            setting=setting.describe(),
            condition=ConditionKey(run.task, portable(run.model), None),
            selection=False,
            config=config,
            extras=extras,
            changes={},
            identity=cell_identity(config, extras, prints),
        )

    def _part(self, fresh: Fresh) -> Path:
        """A folder with one part held out and the others to train on."""
        training, count = self.training, self.tune.settings.num_parts
        content = digest([training.fingerprint, count, fresh.cut, fresh.part])[:16]
        folder = self.pool.folder / PARTS / content
        if fresh.cut not in self.cuts:
            self.cuts[fresh.cut] = parts_of(training.texts, training.labels, count, fresh.cut)
        write_split(training, self.cuts[fresh.cut] == fresh.part, folder)
        return folder


def score_of(ended: CellRecord | str, metric: Metric) -> float | None:
    """A cell's metric, where more is better; NaN where its loss diverged, None where it failed.

    NLL and Brier score are better when less, so it is their negative.
    """
    if isinstance(ended, str):
        return None
    if ended.result is None:
        return math.nan
    return ended.result.score if metric == "score" else -ended.result.metrics[metric]


def calibrated_score_of(ended: CellRecord | str, metric: Metric) -> float | None:
    """As `score_of`, with a temperature; of rows on which it was not fitted, None if too few."""
    if isinstance(ended, str) or ended.extras is None:
        return None
    value = ended.extras.calibrated.get(f"{metric}_calibrated")
    return None if value is None else -value
