"""One evaluation, part by part; a folder keeps the parts that are done."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.console import Console

from smoothtune.config.evaluation import Settings
from smoothtune.config.part_names import OOD, further_title
from smoothtune.config.run import RunConfig
from smoothtune.config.task import configured_task
from smoothtune.console import Bar, quiet, say
from smoothtune.errors import DataError, OutputError
from smoothtune.evaluation.examples import add_examples, measured_examples
from smoothtune.evaluation.output import (
    EVALUATION,
    check_read_as,
    kept_evaluation,
    write_curves,
    write_predictions,
)
from smoothtune.evaluation.parts import (
    PART_FUNCTIONS,
    PartResult,
    Subject,
    further_data,
    other_data,
)
from smoothtune.evaluation.predictor import load_predictor
from smoothtune.evaluation.settings import (
    is_training_data,
    resolve,
    training_record,
    where_recorded,
)
from smoothtune.evaluation.temperature import keep_temperature
from smoothtune.evaluation.transfer import labeled_rows
from smoothtune.files import check_owned, owned, versions, write_json
from smoothtune.models.load import check_unchanged, load_base, weights_fingerprint
from smoothtune.tasks.base import Task
from smoothtune.tasks.prepare import Prepared, prepare, prepare_evaluation, rows_fingerprint

Part = Callable[[Subject], PartResult]


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
    training = training_record(settings.model)
    settings = resolve(settings, training)
    with owned(Path(settings.output_dir)) as folder, Bar(console) as bar:
        kept = kept_evaluation(folder, settings)
        subject, fingerprints = load_subject(settings, training, bar)
        for split in subject.prepared.report.splits.values():
            if split.left_out:
                say(console, split.left_out)
        if not len(subject.prepared.train):
            count = subject.num_examples(subject.prepared.validation)
            say(console, f"{count} rows to evaluate on, no training rows: no generalization gap")
        if kept and kept["fingerprints"] != fingerprints:
            raise OutputError(
                f"{folder} holds an evaluation of other weights or data; choose another output_dir "
                "or replace it with --overwrite-output-dir"
            )
        content = kept or empty_evaluation(subject, fingerprints, training)
        check_other_data(subject, content["parts"])
        write_json(folder / EVALUATION, content)  # says whose folder it is, if it ends in a part
        for name, part in wanted_parts(settings).items():
            if name in content["parts"]:
                check_read_as(name, content["parts"][name], settings)
                say(console, f"{name}: done before, kept")
                continue
            bar.part, start = name, time.perf_counter()
            result = evaluate_part(name, part, subject)
            check_owned(folder)
            write_curves(folder, name, result, console)
            if name == "metrics":
                write_predictions(folder, subject)
            add_examples(folder, measured_examples(subject, name))
            seconds = time.perf_counter() - start
            content["parts"][name] = result.to_dict() | {"seconds": seconds}
            write_json(folder / EVALUATION, content)
            done = f"left out: {result.skipped}" if result.skipped else f"done in {seconds:.1f} s"
            say(console, f"{name}: {done}")
    if told := keep_temperature(content, settings.model):
        say(console, told)
    return content


def wanted_parts(settings: Settings) -> dict[str, Part]:
    """The task's metrics, the parts that are asked for, and those about other data sets."""
    wanted: dict[str, Part] = {name: PART_FUNCTIONS[name] for name in ("metrics", *settings.parts)}
    for name, other in settings.ood.items():
        wanted[OOD + name] = partial(other_data, other=other)
        if share := settings.further_share:
            part = partial(further_data, other=other, share=share)
            wanted[further_title(name, share)] = part
    return wanted


def check_other_data(subject: Subject, done: Collection[str]) -> None:
    """Read all other data sets once, so that what is wrong with them is said before all else.

    Args:
        subject: the model and its data.
        done: titles of finished parts.

    Raises:
        DataError: data cannot be read, or do not fit the task; of all sets.
    """
    settings, problems = subject.settings, []
    for name, other in settings.ood.items():
        titles = {OOD + name}
        if settings.further_share:
            titles.add(further_title(name, settings.further_share))
        if titles <= set(done):
            continue
        try:
            labeled_rows(other, subject.prepared.task, name=name)
        except DataError as error:
            problems.append(f"--ood {name}: {error}")
    if problems:
        raise DataError("\n".join(problems))


def load_subject(
    settings: Settings, training: dict[str, Any] | None, bar: Bar
) -> tuple[Subject, dict[str, str]]:
    """Load the model and its data, with their fingerprints.

    Args:
        settings: of `resolve`.
        training: of `training_record`. On the data of that run, wherever they lie, the rows are
            split as they were then; other data is evaluated on as it is.
        bar: shows the progress.

    Raises:
        ModelError: the model cannot be loaded, or does not fit the task.
        DataError: the data cannot be evaluated on.
    """
    base = load_base(settings.model, trust_remote_code=settings.trust_remote_code)
    task = configured_task(settings)
    read: Callable[..., Prepared] = prepare
    if not (is_training_data(settings, training) or is_copy(settings, training, task)):
        names = [str(name) for name in (base.config.id2label or {}).values()]
        read = partial(prepare_evaluation, model_labels=names)
    try:
        prepared = read(
            settings.data or task.hub_id or "",
            task,
            base.tokenizer,
            max_train_samples=settings.max_train_samples,
            max_eval_samples=settings.max_eval_samples,
            max_seq_length=settings.max_seq_length or task.default_max_seq_length,
            seed=settings.data_seed or 0,
            vocab_size=base.config.get_text_config().vocab_size,
        )
    except DataError as error:
        raise DataError(f"{error}{where_recorded(settings, training)}") from error
    weights = weights_fingerprint(base.source)
    predictor = load_predictor(
        base, prepared.task, batch_size=settings.batch_size, seed=settings.seed, progress=bar
    )
    check_unchanged(base.source, weights)
    fingerprints = {"weights": weights, "data": prepared.fingerprint}
    return Subject(settings, predictor, prepared), fingerprints


def is_copy(settings: Settings, training: dict[str, Any] | None, task: Task) -> bool:
    """Whether data at another place have the very rows that a training run used."""
    recorded = training and training.get("fingerprints", {}).get("data")
    if training is None or not recorded or settings.task != training["config"].get("task"):
        return False
    try:
        run = RunConfig.model_validate(training["config"])
        found = rows_fingerprint(
            settings.data or task.hub_id or "",
            task,
            max_train_samples=run.max_train_samples,
            max_eval_samples=run.max_eval_samples,
            seed=run.seed,
        )
    except (ValidationError, DataError):  # of another version, or data without a train split
        return False
    return found == recorded


def empty_evaluation(
    subject: Subject, fingerprints: dict[str, str], training: dict[str, Any] | None
) -> dict[str, Any]:
    """The content of ``evaluation.json`` before the first part.

    Args:
        subject: the model and its data.
        fingerprints: of their content.
        training: ``result.json`` of the model's folder, if there is one.
    """
    settings, task = subject.settings, subject.prepared.task
    return {
        "model": settings.model,
        "task": task.name,
        "task_type": task.task_type,
        "headline": task.metrics[0],
        "metrics": list(task.metrics),
        "label_names": list(task.label_names or ()),
        "training": training and {name: training.get(name) for name in ("methods", "cost", "seed")},
        "data": subject.prepared.report.to_dict(),
        "settings": settings.identity(),
        "fingerprints": fingerprints,
        "versions": versions(),
        "parts": {},
    }


def evaluate_part(name: str, part: Part, subject: Subject) -> PartResult:
    """Run a part, where it has a meaning for the task."""
    task = subject.prepared.task
    if reason := task.unsupported_parts.get(name):
        return PartResult(skipped=f"not for {task.task_type}: {reason}")
    with quiet():
        return part(subject)
