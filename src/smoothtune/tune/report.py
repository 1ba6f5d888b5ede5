"""What a search has found: a sentence, a run file, a page as HTML and Markdown, the numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console

from smoothtune.config.run import RunConfig
from smoothtune.config.tuning import Tune
from smoothtune.console import say
from smoothtune.errors import PlotsMissing, printable
from smoothtune.files import versions, write_atomic, write_json
from smoothtune.report.curves import csv_text, metric_label
from smoothtune.report.page import Plot, Sentence, Table, number, render
from smoothtune.report.plots import plot, styles
from smoothtune.study.files import portable
from smoothtune.study.report.statistics import time_ratio
from smoothtune.tune.confirm import Comparison, Fresh
from smoothtune.tune.search import Trial
from smoothtune.tune.space import PLAIN

RESULT, BEST = "tune.json", "best.yaml"
POINTS = 100
"""A difference of 0.01 is one point."""
SHOWN = 10
"""Trials of an arm in the table of the page; all are in trials.csv."""
COLUMNS = ["arm", "trial", "method", "fields", "learning_rate", "epochs", "folds", "score", "state"]
WIDTH, HEIGHT = 6.4, 3.8  # inches


@dataclass(frozen=True)
class Found:
    """The outcome of a search."""

    trials: list[Trial]
    plain: Trial
    """The best plain setting."""
    method: Trial | None
    """The best of the methods; None if no trial of theirs ended with a score."""
    fresh: list[Fresh]
    comparison: Comparison
    records: dict[str, list[dict[str, Any]]]
    """Of the confirming runs, by arm."""
    misfits: dict[str, str]
    """Why methods were left out."""
    rows: int
    """Training rows, all parts together."""

    @property
    def pick(self) -> Trial:
        """What to use."""
        return self.method if self.method and self.comparison.better else self.plain

    @property
    def metric(self) -> str:
        """Name of the main metric."""
        done = [r for ends in self.records.values() for r in ends if r.get("status") == "done"]
        return str(done[0]["result"]["headline"]) if done else "score"

    @property
    def trivial_baseline(self) -> float | None:
        """Mean score of the best constant answer in the fresh runs; None if plain finished none."""
        done = [r for r in self.records[PLAIN] if r.get("status") == "done"]
        return fmean(r["result"]["trivial_baseline"] for r in done) if done else None

    def cost(self, name: str) -> float | None:
        """Time of the method relative to plain's: of a step ("step") or of training ("train")."""
        if self.method is None:
            return None
        ends = zip(*(self.records[t.arm] for t in (self.method, self.plain)), strict=True)
        done = (pair for pair in ends if {end.get("status") for end in pair} == {"done"})
        costs = ([end["result"]["cost"] for end in pair] for pair in done)
        if name == "step":
            costs = ([_of_a_step(cost) for cost in pair] for pair in costs)
        return time_ratio((a, b) for a, b in costs)


def _of_a_step(cost: Mapping[str, Any]) -> dict[str, Any]:
    return {**cost, "train_seconds": cost["train_seconds"] / cost["steps"]}


def sentence(found: Found) -> str:
    """What to use, what it gains and what it costs."""
    plain, method, by = found.plain.setting.describe(), found.method, found.comparison
    stay = f"Stay with {plain}"
    if method is None:
        return f"{stay}: no trial of another method ended with a score."
    if by.gain is None:
        return f"{stay}: too few of the fresh runs ended with a score to say what is better."
    gain = f"{POINTS * by.gain:+.1f} points of {found.metric}"
    runs = f"{by.pairs} of " * (by.pairs < len(by.plain)) + f"{len(by.plain)} fresh seeds"
    if by.low is None or by.high is None:
        interval = f"the same in {runs}, which leaves no interval; more confirm_runs may tell"
    else:
        interval = f"95 % interval {POINTS * by.low:.1f} to {POINTS * by.high:.1f}, {runs}"
    ratio = found.cost("step")
    price = f", at {ratio:.1f} times the time of a step" if ratio else ""
    if by.better:
        use = method.setting.describe()
        return f"Use {use}: {gain} over tuned plain fine-tuning ({interval}){price}."
    why = "; its loss diverged" if by.diverged else ""
    return (
        f"{stay}: the best other method ({method.setting.describe()}) is not shown to be better, "
        f"{gain} ({interval}){why}{price}."
    )


def at_chance(found: Found) -> str:
    """That plain fine-tuning is not above a constant answer in the fresh runs; "" if it is."""
    base = found.trivial_baseline
    if base is None:
        return ""
    mean = fmean(s for score in found.comparison.plain if (s := _finite(score)) is not None)
    if mean > base:
        return ""
    return (
        f"Tuned plain fine-tuning ({mean:.3f}) is not above the {base:.3f} of a constant answer; "
        "comparisons mean little. More epochs, other learning rates or more rows may help."
    )


def findings(tune: Tune, found: Found) -> Iterator[Sentence]:
    """Sentences under the first one."""
    yield Sentence("good" if found.pick is not found.plain else "note", sentence(found))
    ratio = found.cost("train")
    if found.method is not None and ratio is not None:
        text = f"Training takes {ratio:.1f} times as long as tuned plain fine-tuning's."
        yield Sentence("cost", text)
    seen = [f"plain {found.plain.score:.4f}"]
    seen += [f"{found.method.setting.method} {found.method.score:.4f}"] if found.method else []
    yield Sentence(
        "note",
        f"In the search the best scores were {', '.join(seen)}. The best of many scores is too "
        "high, which is why fresh runs decide.",
    )
    if text := at_chance(found):
        yield Sentence("fragile", text)
    ends = tune.settings.learning_rates
    rate = found.pick.setting.learning_rate
    if ends[0] < ends[-1] and (rate < 1.25 * ends[0] or rate > 0.8 * ends[-1]):
        text = f"Learning rate {rate:g} is at the end of what was tried: try a wider range."
        yield Sentence("fragile", text)
    for state in ("diverged", "failed"):
        if lost := [trial for trial in found.trials if trial.state == state]:
            text = f"{len(lost)} trials {state}, the first: {lost[0].setting.describe()}"
            yield Sentence("fragile", f"{text} ({lost[0].message}).")
    for name, why in found.misfits.items():
        yield Sentence("note", f"{name} was left out: {why}")


def write_report(tune: Tune, found: Found, folder: Path, console: Console) -> dict[str, Any]:
    """Write the files of a search's outcome, and print its sentence and `at_chance`.

    Returns:
        The content of ``tune.json``.
    """
    content = _content(tune, found)
    rows = [_row(trial) for trial in found.trials]
    write_atomic(folder / "trials.csv", csv_text(COLUMNS, rows))
    write_atomic(folder / BEST, run_file(tune, found))
    page = _page(tune, found, content, _plots(found, folder, console))
    write_atomic(folder / "report.md", render("tune.md.jinja", page))
    write_atomic(folder / "report.html", render("tune.html.jinja", page))
    write_json(folder / RESULT, content)
    say(console, "")
    say(console, content["sentence"])
    if text := at_chance(found):
        say(console, text)
    return content


def run_file(tune: Tune, found: Found) -> str:
    """A run file that trains the pick on all training rows; JSON values are YAML."""
    given = tune.run.in_force(exclude_defaults=True)
    given |= {"task": tune.run.task, "model": tune.run.model} | found.pick.setting.changes()
    given["output_dir"] = str(Path(tune.run.output_dir) / "model")
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in given.items()]
    return "\n".join([f"# {printable(sentence(found))}".replace("\n", " "), *lines]) + "\n"


def best_run(tune: Tune, content: Mapping[str, Any], output_dir: str) -> RunConfig:
    """The run of the pick on all training rows.

    Args:
        tune: the search.
        content: of ``tune.json``.
        output_dir: where to train.
    """
    return RunConfig.model_validate(
        tune.run.model_dump() | content["pick"]["changes"] | {"output_dir": output_dir}
    )


def _content(tune: Tune, found: Found) -> dict[str, Any]:
    by = found.comparison
    return {
        "sentence": sentence(found),
        "task": tune.run.task,
        "model": portable(tune.run.model),
        "metric": found.metric,
        "use": found.pick.arm,
        "pick": _plain_data(found.pick),
        "plain": _plain_data(found.plain),
        "method": found.method and _plain_data(found.method),
        "trivial_baseline": found.trivial_baseline,
        "gain": {"mean": by.gain, "low": by.low, "high": by.high},
        "runs": [
            {**fresh._asdict(), "plain": _finite(plain), "method": _finite(method)}
            for fresh, plain, method in zip(found.fresh, by.plain, by.method, strict=True)
        ],
        "cost": {"step_ratio": found.cost("step"), "training_ratio": found.cost("train")},
        "rows": found.rows,
        "settings": tune.settings.model_dump(mode="json"),
        "methods": tune.methods,
        "left_out": found.misfits,
        "trials": [_plain_data(trial) for trial in found.trials],
        "versions": versions() | {"optuna": version("optuna")},
    }


def _plain_data(trial: Trial) -> dict[str, Any]:
    return {
        "arm": trial.arm,
        "number": trial.number,
        "state": trial.state,
        "message": trial.message,
        "scores": trial.scores,
        "score": _finite(trial.score),
        "changes": trial.setting.changes(),
    }


def _finite(score: float | None) -> float | None:
    return score if score is not None and math.isfinite(score) else None


def _row(trial: Trial) -> list[Any]:
    setting = trial.setting
    fields = " ".join(f"{name}={value}" for name, value in setting.fields.items())
    score = _finite(trial.score)
    return [
        trial.arm,
        trial.number + 1,
        setting.method,
        fields,
        setting.learning_rate,
        setting.epochs,
        len(trial.scores),
        "" if score is None else score,
        trial.state,
    ]


def _page(
    tune: Tune, found: Found, content: Mapping[str, Any], plots: Sequence[Plot]
) -> dict[str, Any]:
    """What the templates show."""
    return {
        "title": f"{content['task']}, {content['model']}: which method to use",
        "findings": list(findings(tune, found)),
        "settings": tune.settings,
        "rows": found.rows,
        "trained": found.rows - found.rows // tune.settings.num_parts,
        "runs": _runs_table(found),
        "trials": {
            arm: _trials_table(found, arm) for arm in dict.fromkeys(t.arm for t in found.trials)
        },
        "plots": plots,
        "versions": Table(["", "version"], [[k, v] for k, v in content["versions"].items()]),
    }


def _runs_table(found: Found) -> Table:
    by = found.comparison
    rows = []
    for fresh, plain, method in zip(found.fresh, by.plain, by.method, strict=True):
        both = (_finite(plain), _finite(method))
        gap = None if None in both else POINTS * (both[1] - both[0])  # type: ignore[operator]
        rows.append([str(fresh.seed), number(both[0]), number(both[1]), number(gap, "+.1f")])
    name = found.method.setting.method if found.method else "method"
    return Table(["seed", "plain", name, "difference in points"], rows)


def _trials_table(found: Found, arm: str) -> Table:
    """The best trials, by folds and score."""
    own = [trial for trial in found.trials if trial.arm == arm and trial.scores]
    own.sort(key=lambda trial: (len(trial.scores), trial.score), reverse=True)
    rows = [
        [str(t.number + 1), t.setting.describe(), str(len(t.scores)), number(t.score), t.state]
        for t in own[:SHOWN]
    ]
    return Table(["trial", "setting", "folds", "score", ""], rows)


def _plots(found: Found, folder: Path, console: Console) -> list[Plot]:
    """Every trial's score against its learning rate."""
    looks = styles(trial.setting.method for trial in found.trials)

    def paint(axes: Any) -> None:
        for name, look in looks.items():
            for whole in (True, False):
                own = [
                    trial
                    for trial in found.trials
                    if trial.setting.method == name
                    and trial.scores
                    and (trial.state == "complete") == whole
                ]
                axes.plot(
                    [trial.setting.learning_rate for trial in own],
                    [trial.score for trial in own],
                    linestyle="",
                    marker=look.marker,
                    color=look.color,
                    markerfacecolor=look.color if whole else "none",
                    label=printable(name) if whole else None,
                )
        axes.set_xscale("log")
        axes.set_xlabel("learning rate")
        axes.set_ylabel(metric_label(found.metric))
        axes.figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize="small")

    try:
        svg = plot(WIDTH, HEIGHT, paint)
    except PlotsMissing as error:
        say(console, f"no plot: {error}")
        return []
    write_atomic(folder / "trials.svg", svg)
    caption = "Filled: mean over all folds; hollow: stopped early, mean over fewer folds."
    return [Plot("trials", "Score of every trial on held-out training rows", caption, svg)]
