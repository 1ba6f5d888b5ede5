"""Finished evaluations side by side, with paired tests of their differences."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from smoothtune.errors import OutputError
from smoothtune.evaluation.intervals import bootstrap_intervals
from smoothtune.evaluation.output import EVALUATION, PREDICTIONS, read_evaluation, read_predictions
from smoothtune.report.curves import Curve
from smoothtune.report.tables import Effect
from smoothtune.tasks.presets import TASK_CLASSES

FEWEST_PAIRS = 6
"""Rows that must differ for a difference to be shown: five all differ alike once in 16 times."""

ROWS = ("rows", "source_rows", "labels")
"""What two reports of a split have in common where it is the same, whatever the tokenizer."""

PROBABILITIES = ("brier", "nll")
"""Metrics of the probabilities of classes, of which less is better."""


@dataclass(frozen=True)
class Run:
    """A finished evaluation under a name that no other in the report has."""

    name: str
    folder: Path
    content: dict[str, Any]

    def numbers(self, part: str) -> dict[str, Any]:
        """The numbers of a part; empty if it was not evaluated or does not apply."""
        return self.content["parts"].get(part, {}).get("numbers", {})

    def curves(self, part: str) -> dict[str, Curve]:
        """The curves of a part by name."""
        curves = self.content["parts"].get(part, {}).get("curves", {})
        return {name: Curve.from_dict(curve) for name, curve in curves.items()}

    @property
    def disturbances(self) -> dict[str, Curve]:
        """The curves of robustness, corruption and substitution by name."""
        return self.curves("robustness") | self.curves("corruption") | self.curves("substitution")

    @property
    def main_metric(self) -> str:
        """Name of the task's first metric."""
        return self.content["headline"]

    @property
    def score(self) -> dict[str, Any]:
        """The main metric: `value`, with `low` and `high` of its interval."""
        return self.numbers("metrics")["metrics"][self.main_metric]

    @property
    def baseline(self) -> float:
        """Main metric of the best constant answer."""
        return self.numbers("metrics")["trivial_baseline"]

    @property
    def label(self) -> str:
        """Name and score, for a legend."""
        return f"{self.name} ({self.main_metric} {self.score['value']:.3f})"


def load_runs(folders: Sequence[Path], names: Mapping[Path, str] | None = None) -> list[Run]:
    """Read evaluations of one task, each named after its folder or path, or by `names` of folders.

    Raises:
        OutputError: a folder holds no evaluation, or the evaluations are of different tasks.
    """
    runs: list[Run] = []
    for folder in folders:
        content = read_evaluation(folder)
        if content is None or "metrics" not in content["parts"]:
            raise OutputError(
                f"{folder} holds no finished {EVALUATION}: make it with smoothtune evaluate MODEL "
                f"--output-dir {folder}"
            )
        short = folder.resolve().name
        is_repeated = [other.resolve().name for other in folders].count(short) > 1
        name = (names or {}).get(folder) or (str(folder) if is_repeated else short)
        if name in (run.name for run in runs):
            raise OutputError(f"two runs are named {name!r}: give each another name, NAME=DIR")
        runs.append(Run(name, folder, content))
    tasks = sorted({run.content["task"] for run in runs})
    if len(tasks) != 1:
        raise OutputError(f"a report is about one task, and these are about: {', '.join(tasks)}")
    if len({run.main_metric for run in runs}) != 1:
        scored = ", ".join(f"{run.name} by {run.main_metric}" for run in runs)
        raise OutputError(
            f"a report compares one metric, but {tasks[0]} was scored differently ({scored}): "
            "evaluate the models on labels of the same kind"
        )
    return runs


def _have_same_data(first: Run, other: Run) -> bool:
    """Whether both read the same rows, for all that their reports of them tell."""
    fingerprints, rows = [], []
    for run in (first, other):
        fingerprints.append(run.content["fingerprints"]["data"])  # of training rows, too
        report = run.content["data"]["splits"]["validation"]
        rows.append([report[key] for key in ROWS])
    return fingerprints[0] == fingerprints[1] or rows[0] == rows[1]


def paired_differences(first: Run, other: Run) -> dict[str, Effect] | None:
    """Paired bootstrap of all metrics, `other` minus `first`.

    Returns:
        A difference for every metric, by name; without an interval where fewer than `FEWEST_PAIRS`
        examples make it, so that a resample often has none of them. None where the examples are
        not the same.
    """
    if not all((run.folder / PREDICTIONS).exists() for run in (first, other)):
        return None
    # the same rows with the same labels
    ids, before = read_predictions(first.folder)
    other_ids, after = read_predictions(other.folder)
    content = first.content
    if not _have_same_data(first, other) or not np.array_equal(ids, other_ids):
        return None
    task = TASK_CLASSES[content["task_type"]](
        content["task"],
        label_names=tuple(content["label_names"]),
        metrics=tuple(content["metrics"]),
    )
    labels = slice(task.scorer.num_label_statistics)
    if not np.array_equal(before[:, labels], after[:, labels]):
        return None

    # differences of the metrics
    def gaps(a: np.ndarray, b: np.ndarray) -> dict[str, float]:
        scores = task.scorer.scores(a)
        return {name: value - scores[name] for name, value in task.scorer.scores(b).items()}

    values = gaps(before, after)
    if len(ids) < FEWEST_PAIRS:
        return {name: Effect(value, None) for name, value in values.items()}
    resamples = content["settings"]["num_resamples"]
    intervals = bootstrap_intervals(gaps, before, after, n_resamples=resamples)
    effects = {name: Effect(values[name], interval) for name, interval in intervals.items()}
    for name, gap in effects.items():
        if gap.excludes_zero and _few_rows_differ(gaps, name, before, after):
            effects[name] = Effect(gap.value, None)
    return effects


def _few_rows_differ(
    gaps: Callable[[np.ndarray, np.ndarray], Mapping[str, float]],
    metric: str,
    before: np.ndarray,
    after: np.ndarray,
) -> bool:
    """Whether fewer than `FEWEST_PAIRS` rows change a metric, each for itself."""
    moved, count = np.abs(after - before).sum(1), 0
    most_first = np.argsort(-moved)[: np.count_nonzero(moved)]  # a changed class is soon found
    for row in most_first:
        one = before.copy()
        one[row] = after[row]
        count += gaps(before, one)[metric] != 0
        if count == FEWEST_PAIRS:
            return False
    return True


def comparison(first: Run, other: Run, gaps: Mapping[str, Effect] | None) -> str:
    """What two runs differ in by more than the sampling error of the examples, and which to take.

    The main metric decides, or else the probabilities of classes.
    """
    if gaps is None:
        return (
            f"{other.name} and {first.name} were not evaluated on the same examples, so their "
            "difference cannot be tested."
        )
    main, beyond = next(iter(gaps)), [name for name, gap in gaps.items() if gap.excludes_zero]
    if not beyond:
        others = [name for name in gaps if name != main]
        return (
            f"{other.name} and {first.name} do not differ beyond the noise of the evaluated "
            f"examples: {_signed(main, gaps[main])}{', nor in ' * bool(others)}"
            f"{', '.join(others)}. Evaluate more rows, or take the cheaper one."
        )
    choice = ""
    lower = {gaps[name].value < 0 for name in PROBABILITIES if name in beyond}
    if main in beyond:
        choice = f"Prefer {(other if gaps[main].value > 0 else first).name}. "
    elif len(lower) == 1:
        choice = f"Prefer {(other if True in lower else first).name} for its probabilities. "
    return (
        f"{choice}{other.name} differs from {first.name} beyond the noise of the evaluated "
        f"examples in {'; '.join(_signed(name, gaps[name]) for name in beyond)}. Another training "
        "seed may change this."
    )


def _signed(metric: str, gap: Effect) -> str:
    if gap.interval is None:
        return f"{metric} {gap.value:+.3f}"
    low, high = gap.interval
    return f"{metric} {gap.value:+.3f} (95 % interval {low:+.3f} to {high:+.3f})"
