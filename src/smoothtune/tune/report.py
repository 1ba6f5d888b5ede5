"""What a search leaves: a run file, a page as HTML and Markdown, the numbers."""

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from smoothtune.config.tuning import Tune
from smoothtune.console import say
from smoothtune.errors import PlotsMissing, printable
from smoothtune.files import versions, write_atomic, write_json
from smoothtune.report.curves import csv_text, metric_label
from smoothtune.report.page import (
    DASH,
    Block,
    Figures,
    Findings,
    Plot,
    Section,
    Table,
    number,
    write_page,
)
from smoothtune.report.plots import drawn, log_ticks, styles
from smoothtune.study.files import portable
from smoothtune.tune.findings import Outcome, at_chance, findings, sentence
from smoothtune.tune.search import Trial

RESULT, BEST = "tune.json", "best.yaml"
SHOWN = 10
"""Trials of an arm in the table of the page; all are in trials.csv."""
COLUMNS = ("arm", "trial", "method", "fields", "learning_rate", "epochs", "folds")
WIDTH, HEIGHT = 6.4, 3.8  # inches
BEST_FILE = (
    "best.yaml holds the setting to use: smoothtune train best.yaml trains it on all training "
    "rows. The evaluation rows were not used here."
)
FRESH_RUNS = (
    "Best method and best plain setting with seeds and held-out parts that the search has not had. "
    "The rows are those of the search. Each pair is trained on the same {trained} of {rows} rows. "
    "The interval is Student's for paired differences, as wide as if all runs after the first of "
    "every row were no new evidence; that the truth is below it has a chance of 5 %. A point is "
    "0.01."
)
TRIALS = (
    "All trials are in trials.csv. Folds: held-out parts that a setting was scored on; the best "
    "had more of them."
)


def write_report(tune: Tune, outcome: Outcome, folder: Path, console: Console) -> dict[str, Any]:
    """Write the files of a search's outcome, and print its sentence and `at_chance`.

    Returns:
        The content of ``tune.json``.
    """
    content = _content(tune, outcome)
    rows = [_row(outcome, trial) for trial in outcome.trials]
    columns = [*COLUMNS, outcome.compared, "state"]
    write_atomic(folder / "trials.csv", csv_text(columns, rows))
    write_atomic(folder / BEST, run_file(tune, outcome))
    title = f"{content['task']}, {content['model']}: which method to use"
    sections = _sections(tune, outcome, content["versions"], _plot(outcome, folder, console))
    write_page(folder, "report", title, [*sections])
    write_json(folder / RESULT, content)
    say(console, "")
    say(console, content["sentence"])
    if text := at_chance(outcome):
        say(console, text)
    return content


def run_file(tune: Tune, outcome: Outcome) -> str:
    """A run file that trains the pick on all training rows; JSON values are YAML."""
    given = tune.run.in_force(exclude_unset=True)
    given |= {"task": tune.run.task, "model": tune.run.model} | outcome.pick.setting.changes()
    given["output_dir"] = str(Path(tune.run.output_dir) / "model")
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in given.items()]
    return "\n".join([f"# {printable(sentence(outcome))}".replace("\n", " "), *lines]) + "\n"


def _content(tune: Tune, outcome: Outcome) -> dict[str, Any]:
    by = outcome.comparison
    low, high = by.gain.bounds if by.gain else (None, None)
    return {
        "sentence": sentence(outcome),
        "task": tune.run.task,
        "model": portable(tune.run.model),
        "data": tune.run.data and portable(tune.run.data),
        "metric": outcome.metric,
        "use": outcome.pick.arm,
        "pick": _plain_data(outcome, outcome.pick),
        "plain": _plain_data(outcome, outcome.plain),
        "method": outcome.method and _plain_data(outcome, outcome.method),
        "trivial_baseline": outcome.trivial_baseline,
        "gain": {"mean": by.gain and by.gain.value, "low": low, "high": high},
        "runs": [
            fresh._asdict() | {"plain": outcome.shown(plain), "method": outcome.shown(method)}
            for fresh, plain, method in zip(outcome.fresh, by.plain, by.method, strict=True)
        ],
        "cost": {"step_ratio": outcome.cost("step"), "training_ratio": outcome.cost("train")},
        "rows": outcome.rows,
        "settings": tune.settings.model_dump(mode="json"),
        "methods": tune.methods,
        "left_out": outcome.misfits,
        "trials": [_plain_data(outcome, trial) for trial in outcome.trials],
        "versions": versions() | {"optuna": version("optuna")},
    }


def _plain_data(outcome: Outcome, trial: Trial) -> dict[str, Any]:
    return {
        "arm": trial.arm,
        "number": trial.number,
        "state": trial.state,
        "message": trial.message,
        "scores": [outcome.shown(score) for score in trial.scores],
        "score": outcome.shown(trial.score),
        "changes": trial.setting.changes(),
    }


def _row(outcome: Outcome, trial: Trial) -> list[Any]:
    setting, score = trial.setting, outcome.shown(trial.score)
    fields = " ".join(f"{name}={value}" for name, value in setting.fields.items())
    return [
        *(trial.arm, trial.number + 1, setting.method, fields),
        *(setting.learning_rate, setting.epochs),
        *(len(trial.scores), "" if score is None else score, trial.state),
    ]


def _sections(
    tune: Tune, outcome: Outcome, versions: Mapping[str, str], plot: Sequence[Block]
) -> Iterator[Section]:
    settings, (first, *others) = tune.settings, findings(tune, outcome)
    yield Section("In short", [first, Findings(others), BEST_FILE])
    trained = outcome.rows - outcome.rows // settings.num_parts
    fresh = FRESH_RUNS.format(trained=trained, rows=outcome.rows)
    yield Section("Fresh runs", [fresh, _runs_table(outcome)])
    for arm in dict.fromkeys(trial.arm for trial in outcome.trials):
        yield Section(f"Trials: {arm}", [_trials_table(outcome, arm)])
    yield Section("All trials", [TRIALS, *plot])
    choices = (
        f"Metric {settings.metric}, budget {settings.budget}, held_out {settings.held_out} (one of "
        f"{settings.num_parts} parts), folds {settings.folds}, confirm_runs "
        f"{settings.confirm_runs}, round_size {settings.round_size}."
    )
    data = f"Data: {portable(tune.run.data)}. " if tune.run.data else ""
    rows = [[name, version] for name, version in versions.items()]
    yield Section("How it was made", [data + choices, Table(["", "version"], rows, wraps=True)])


def _runs_table(outcome: Outcome) -> Table:
    by, rows = outcome.comparison, []
    for fresh, plain, method in zip(outcome.fresh, by.plain, by.method, strict=True):
        both = [outcome.shown(score) for score in (plain, method)]
        gap = DASH if None in both else outcome.difference((method or 0.0) - (plain or 0.0))
        rows.append([str(fresh.seed), *map(number, both), gap])
    name = outcome.method.setting.method if outcome.method else "method"
    unit = " in points" if outcome.compared == "score" else ""
    return Table(["seed", "plain", name, f"difference{unit}"], rows)


def _trials_table(outcome: Outcome, arm: str) -> Table:
    """The best trials, by folds and score."""
    own = [trial for trial in outcome.trials if trial.arm == arm and trial.scores]
    own.sort(key=lambda trial: (len(trial.scores), trial.score), reverse=True)
    rows = [
        [
            str(trial.number + 1),
            trial.setting.describe(),
            str(len(trial.scores)),
            number(outcome.shown(trial.score)),
            trial.state,
        ]
        for trial in own[:SHOWN]
    ]
    return Table(["trial", "setting", "folds", outcome.metric, ""], rows, wraps=True)


def _plot(outcome: Outcome, folder: Path, console: Console) -> list[Block]:
    """Every trial's score against its learning rate."""
    looks = styles(trial.setting.method for trial in outcome.trials)

    def paint(figure: Any) -> None:
        axes = figure.add_subplot()
        for name, look in looks.items():
            own = [t for t in outcome.trials if t.setting.method == name and t.scores]
            for whole in (True, False):
                shown = [trial for trial in own if (trial.state == "complete") == whole]
                axes.plot(
                    [trial.setting.learning_rate for trial in shown],
                    [outcome.shown(trial.score) for trial in shown],
                    linestyle="",
                    marker=look.marker,
                    color=look.color,
                    markerfacecolor=look.color if whole else "none",
                    label=printable(name) if whole else None,
                )
        axes.set_xscale("log")
        log_ticks(axes.xaxis, wide=False)
        axes.set_xlabel("learning rate")
        scored = outcome.compared == "score"
        axes.set_ylabel(metric_label(outcome.metric) if scored else outcome.metric)
        figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize="small")

    try:
        files = drawn(WIDTH, HEIGHT, paint)
    except PlotsMissing as error:
        say(console, f"no plot: {error}")
        return []
    caption = "Filled: mean over all folds; hollow: over fewer folds."
    plot = Plot("trials", "Every trial on held-out training rows", caption, files)
    plot.write(folder)
    return [Figures([plot])]
