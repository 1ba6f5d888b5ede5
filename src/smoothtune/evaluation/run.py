"""One evaluation, part by part, into a folder that keeps what is done."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from smoothtune.console import Bar, quiet, say
from smoothtune.errors import OutputError, PlotsMissing, changed_fields
from smoothtune.evaluation.parts import PART, Found, Subject, further_data, other_data
from smoothtune.evaluation.predictor import load_predictor
from smoothtune.evaluation.settings import Settings, resolve, task_of, training_record
from smoothtune.files import (
    owned,
    read_json,
    refuse_other_files,
    versions,
    write_atomic,
    write_json,
)
from smoothtune.models.load import load_base, weights_fingerprint
from smoothtune.report.plots import draw
from smoothtune.tasks.prepare import prepare

EVALUATION = "evaluation.json"
PREDICTIONS = "predictions.csv"
OOD, AFTER = "ood: ", " after "  # before, and behind, the name of another data set in a part's name


def evaluate(settings: Settings, *, console: Console | None = None) -> dict[str, Any]:
    """Evaluate a fine-tuned model.

    ``evaluation.json`` holds all numbers and is written after every part; each curve is also a
    table (CSV) and, with matplotlib, a plot (SVG). Parts that are there already are kept.

    Args:
        settings: what to evaluate.
        console: where to print.

    Returns:
        The content of ``evaluation.json``.

    Raises:
        ConfigError: the settings are incomplete or wrong.
        ModelError: the model cannot be loaded, or does not fit the task.
        DataError: the data cannot be evaluated on.
        OutputError: the folder holds something else.
    """
    console = console or Console()
    record = training_record(settings.model)
    settings = resolve(settings, record)
    with owned(Path(settings.output_dir)) as folder:
        wanted = {name: PART[name] for name in ("metrics", *settings.parts)} | _on_other_data(
            settings
        )
        known = _kept(folder, settings)
        with Bar(console) as bar:
            evaluation = _Evaluation(folder, settings, record, console, bar, known)
            for name, part in wanted.items():
                if name in evaluation.content["parts"]:
                    _check_read_as(name, evaluation.content["parts"][name], settings)
                    say(console, f"{name}: done before, kept")
                else:
                    evaluation.add(name, part)
    return evaluation.content


def _on_other_data(settings: Settings) -> dict[str, Callable[[Subject], Found]]:
    """The parts about other data sets."""
    found: dict[str, Callable[[Subject], Found]] = {}
    for name, other in settings.ood.items():
        found[OOD + name] = partial(other_data, other=other)
        if share := settings.further_share:
            part = partial(further_data, other=other, share=share)
            found[f"{OOD}{name}{AFTER}{share:.0%} of it"] = part
    return found


def _check_read_as(name: str, part: dict[str, Any], settings: Settings) -> None:
    """Refuse to keep numbers of another data set, or of one that was read otherwise."""
    if not name.startswith(OOD) or "read_as" not in part["numbers"]:
        return
    then = part["numbers"]["read_as"]
    now = asdict(settings.ood[name.removeprefix(OOD).partition(AFTER)[0]])
    if then != json.loads(json.dumps(then | now)):
        raise OutputError(
            f"{name} was evaluated before with {then}: give this data set another name, or replace "
            "the evaluation with --overwrite-output-dir"
        )


class _Evaluation:
    """A loaded model, and the file that grows with every part."""

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        record: dict[str, Any] | None,
        console: Console,
        bar: Bar,
        known: dict[str, Any] | None,
    ) -> None:
        self.folder, self.console, self.bar = folder, console, bar
        base = load_base(settings.model, trust_remote_code=settings.trust_remote_code)
        task = task_of(settings)
        prepared = prepare(
            settings.data or task.hub_id or "",
            task,
            base.tokenizer,
            max_train_samples=settings.max_train_samples,
            max_eval_samples=settings.max_eval_samples,
            max_seq_length=settings.max_seq_length or task.default_max_seq_length,
            seed=settings.data_seed or 0,
            vocab_size=base.config.get_text_config().vocab_size,
        )
        predictor = load_predictor(
            base,
            prepared.task,
            batch_size=settings.batch_size,
            seed=settings.seed,
            progress=bar,
        )
        self.subject = Subject(settings, predictor, prepared)
        task = prepared.task
        fingerprints = {
            "weights": weights_fingerprint(base.source),
            "data": prepared.fingerprint,
        }
        if known and known["fingerprints"] != fingerprints:
            raise OutputError(
                f"{folder} holds an evaluation of other weights or data; choose another output_dir "
                "or replace it with --overwrite-output-dir"
            )
        self.content: dict[str, Any] = known or {
            "model": settings.model,
            "task": task.name,
            "task_type": task.task_type,
            "headline": task.metrics[0],
            "metrics": list(task.metrics),
            "label_names": list(task.label_names or ()),
            "training": record and {name: record.get(name) for name in ("methods", "cost", "seed")},
            "data": prepared.report.to_dict(),
            "settings": settings.identity(),
            "fingerprints": fingerprints,
            "versions": versions(),
            "parts": {},
        }

    def add(self, name: str, part: Callable[[Subject], Found]) -> None:
        """Run a part and write its numbers, tables and plots."""
        self.bar.part, start = name, time.perf_counter()
        task = self.subject.prepared.task
        reason = task.unsupported_parts.get(name)
        skipped = reason and Found(skipped=f"not for {task.task_type}: {reason}")
        with quiet():
            found = skipped or part(self.subject)
        for curve_name, curve in found.curves.items():
            write_atomic(self.folder / f"{name}_{curve_name}.csv", curve.to_csv())
            try:
                write_atomic(self.folder / f"{name}_{curve_name}.svg", draw({name: curve}))
            except PlotsMissing as error:
                say(self.console, f"{name}: no plot of {curve_name}: {error}")
        if name == "metrics":
            write_atomic(self.folder / PREDICTIONS, _predictions(self.subject))
        seconds = time.perf_counter() - start
        self.content["parts"][name] = found.to_dict() | {"seconds": seconds}
        write_json(self.folder / EVALUATION, self.content)
        done = f"left out: {found.skipped}" if found.skipped else f"done in {seconds:.1f} s"
        say(self.console, f"{name}: {done}")


def _predictions(subject: Subject) -> str:
    """A row for every validation example: its row in the source, and what metrics follow from."""
    rows, task, text = subject.prepared.validation, subject.prepared.task, io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["example_id", *task.statistic_names()])
    statistics = task.example_statistics(subject.predictions, rows).tolist()
    ids = task.example_ids(rows).tolist()
    table.writerows([row, *values] for row, values in zip(ids, statistics, strict=True))
    return text.getvalue()


def read_predictions(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """What ``predictions.csv`` holds: ids (E,), and the example statistics (E, K) of `Task`.

    For texts these are the label and the logits.
    """
    values = np.loadtxt(folder / PREDICTIONS, delimiter=",", skiprows=1, ndmin=2)
    return values[:, 0].astype(int), values[:, 1:]


def read_evaluation(folder: Path) -> dict[str, Any] | None:
    """The content of a folder's ``evaluation.json``; None without the file.

    Raises:
        OutputError: the file is damaged, or is something else.
    """
    content = read_json(folder / EVALUATION)
    if content is not None and not isinstance(content.get("parts"), dict):
        raise OutputError(f"{folder / EVALUATION} is no evaluation of smoothtune")
    return content


def _remove(folder: Path, content: dict[str, Any]) -> None:
    """Delete an evaluation that is to be replaced, and nothing else."""
    curves = [
        f"{part}_{name}" for part, found in content["parts"].items() for name in found["curves"]
    ]
    names = [f"{curve}{suffix}" for curve in curves for suffix in (".csv", ".svg")]
    for name in (EVALUATION, PREDICTIONS, *names):
        (folder / Path(name).name).unlink(missing_ok=True)


def _kept(folder: Path, settings: Settings) -> dict[str, Any] | None:
    """The evaluation that the folder holds already, if it can be continued."""
    content = read_evaluation(folder)
    if settings.overwrite_output_dir and content is not None:
        _remove(folder, content)
        return None
    if content is None:
        refuse_other_files(folder, "evaluation")
        return None
    here = json.loads(json.dumps(settings.identity()))
    if changed := changed_fields(content["settings"], here):
        raise OutputError(
            f"{folder} holds another evaluation ({changed}); choose another "
            "output_dir or replace it with --overwrite-output-dir"
        )
    return content
