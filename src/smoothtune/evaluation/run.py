"""One evaluation, part by part; a folder keeps the parts that are done."""

import time
from collections.abc import Callable, Collection, Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError
from rich.console import Console

from smoothtune.config.evaluation import Settings, other_data_set
from smoothtune.config.run import RunConfig
from smoothtune.config.task import configured_task
from smoothtune.console import Bar, say
from smoothtune.errors import DataError, OutputError
from smoothtune.evaluation.calibration import split_for_temperature
from smoothtune.evaluation.calibration_file import Calibration, fits, keep_calibration
from smoothtune.evaluation.conformal import conformal_scores
from smoothtune.evaluation.ensemble import Ensemble
from smoothtune.evaluation.examples import add_examples, measured_examples
from smoothtune.evaluation.output import (
    EVALUATION,
    check_read_as,
    read_predictions,
    stored_evaluation,
    write_predictions,
    write_tables,
)
from smoothtune.evaluation.parts import Measurement, evaluate_part, requested_parts
from smoothtune.evaluation.predictor import load_predictor
from smoothtune.evaluation.report import write_pages
from smoothtune.evaluation.settings import (
    is_training_data,
    resolve,
    training_record,
    where_recorded,
)
from smoothtune.evaluation.subject import Subject
from smoothtune.evaluation.transfer import labeled_rows
from smoothtune.files import check_owned, owned, versions, write_json
from smoothtune.models.load import Base, check_unchanged, load_base, weights_fingerprint
from smoothtune.tasks.base import Task
from smoothtune.tasks.head import taken_in_order
from smoothtune.tasks.prepare import Prepared, prepare, prepare_evaluation, rows_fingerprint


def evaluate(settings: Settings, *, console: Console | None = None) -> dict[str, Any]:
    """Evaluate a fine-tuned model.

    ``evaluation.json`` holds all numbers and is written after every part; each curve is also a
    table (CSV). Parts that are there already are kept. At the end come a page in HTML and in
    Markdown and, with matplotlib, a plot (SVG) of each curve.

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
    with owned(settings.folder) as folder, Bar(console) as bar:
        # read all, and refuse what does not go together
        stored = stored_evaluation(folder, settings)
        subject, fingerprints = _load_subject(settings, training, bar)
        for message in _about_rows(subject):
            say(console, message)
        if stored and stored["fingerprints"] != fingerprints:
            raise OutputError(
                f"{folder} holds an evaluation of other weights or data; choose another output_dir "
                "or replace it with --overwrite-output-dir"
            )
        content = stored or _empty_evaluation(subject, fingerprints, training)
        _check_other_data(subject, content["parts"])
        write_json(folder / EVALUATION, content)  # says whose folder it is, if it ends in a part
        # measure and write what is not done yet
        for name, part in requested_parts(settings).items():
            if name in content["parts"]:
                check_read_as(name, content["parts"][name], settings)
                say(console, f"{name}: done before, kept")
            else:
                bar.part = name
                content["parts"][name] = _measured(name, part, subject, console)
                write_json(folder / EVALUATION, content)
            if name == "calibration" and not settings.ensemble:
                calibration = _fitted_calibration(content, folder)
                if calibration and (message := keep_calibration(calibration, settings.model)):
                    say(console, message)
        bar.part, bar.unit = "", "parts"
        if no_plots := write_pages(folder, bar):
            say(console, f"figures were left out: {no_plots}")
    return content


def _measured(name: str, part: Measurement, subject: Subject, console: Console) -> dict[str, Any]:
    """Measure a part, write its files, and give what ``evaluation.json`` is to hold of it."""
    folder, start = subject.settings.folder, time.perf_counter()
    result = evaluate_part(name, part, subject)
    check_owned(folder)
    write_tables(folder, name, result)
    if name == "metrics":
        write_predictions(folder, subject)
    if not result.skipped:
        add_examples(folder, measured_examples(subject, name))
    seconds = time.perf_counter() - start
    done = f"left out: {result.skipped}" if result.skipped else f"done in {seconds:.1f} s"
    say(console, f"{name}: {done}")
    return result.content() | {"seconds": seconds}


def _about_rows(subject: Subject) -> Iterator[str]:
    """What is particular about the rows and the models, to be told."""
    prepared = subject.prepared
    yield from filter(None, (split.left_out for split in prepared.report.splits.values()))
    models = [subject.predictor.model]
    if isinstance(subject.predictor, Ensemble):
        models += [other.model for other in subject.predictor.others]
        yield f"one ensemble of {1 + len(subject.settings.ensemble)} models"
    names = prepared.task.known_label_names
    yield from dict.fromkeys(filter(None, (taken_in_order(x.config, names) for x in models)))
    if not len(prepared.train):
        count = subject.num_examples(prepared.validation)
        yield f"{count} rows to evaluate on, no known training rows: no generalization gap"


def _fitted_calibration(content: dict[str, Any], folder: Path) -> Calibration | None:
    """What the calibration part has fitted, with the scores of the rows that it was fitted on."""
    numbers = content["parts"].get("calibration", {}).get("numbers", {})
    if "temperature" not in numbers:
        return None
    scores = np.empty(0)
    if "prediction_sets" in numbers:
        _, statistics = read_predictions(folder)
        labels, logits = statistics[:, 0].astype(int), statistics[:, 1:]
        fit, _ = split_for_temperature(labels, seed=content["settings"]["seed"])
        scores = conformal_scores(logits[fit], labels[fit])
    temperature = numbers["temperature"]
    return Calibration(
        temperature=temperature if fits(temperature) else None,
        conformal_scores=scores.tolist(),
        fitted_on=numbers["temperature_fitted_on"],
        judged_on=numbers["judged_on"],
        nll_before=numbers["judged_rows_before"]["nll"],
        nll_after=numbers["judged_rows_after"]["nll"],
        **content["fingerprints"],
    )


def _check_other_data(subject: Subject, done: Collection[str]) -> None:
    """Read all other data sets once, so that what is wrong with them is said before all else."""
    problems: list[str] = []
    missing = requested_parts(subject.settings).keys() - set(done)
    data_sets = {other_data_set(part) for part in missing}
    for name, other in subject.settings.ood.items():
        try:
            if name in data_sets:
                labeled_rows(other, subject.prepared.task, name=name)
        except DataError as error:
            problems.append(f"--ood {name}: {error}")
    if problems:
        raise DataError("\n".join(problems))


def _load_subject(
    settings: Settings, training: dict[str, Any], bar: Bar
) -> tuple[Subject, dict[str, str]]:
    """Load the model, or the ensemble, and its data, with their fingerprints."""
    names = (settings.model, *settings.ensemble)
    bases = [load_base(name, trust_remote_code=settings.trust_remote_code) for name in names]
    prepared = _read_data(settings, training, bases[0])
    weights, members = [], []
    for base in bases:
        weights.append(weights_fingerprint(base.source))
        options: dict[str, Any] = {"batch_size": settings.batch_size, "seed": settings.seed}
        members.append(load_predictor(base, prepared.task, progress=bar, **options))
        check_unchanged(base.source, weights[-1])
    predictor, digest = members[0], weights[0]
    if settings.ensemble:
        predictor = Ensemble.of(members, names)
        digest = sha256("".join(weights).encode()).hexdigest()
    fingerprints = {"weights": digest, "data": prepared.fingerprint}
    return Subject(settings, predictor, prepared), fingerprints


def _read_data(settings: Settings, training: dict[str, Any], base: Base) -> Prepared:
    """The data; those of the training run, wherever they lie, are split as they were then."""
    task = configured_task(settings)
    prepare_rows: Callable[..., Prepared] = prepare
    if not (is_training_data(settings, training) or _is_copy(settings, training, task)):
        names = [str(name) for name in (base.config.id2label or {}).values()]
        rows = training.get("data", {}).get("train")  # a number in a Trainer's record
        known = rows if isinstance(rows, int) else None
        prepare_rows = partial(prepare_evaluation, model_labels=names, trained_on=known)
    try:
        return prepare_rows(
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


def _is_copy(settings: Settings, training: dict[str, Any], task: Task) -> bool:
    """Whether data at another place have the very rows that a training run used."""
    recorded = training.get("fingerprints", {}).get("data")
    if not recorded or settings.task != training["config"].get("task"):
        return False
    try:
        run = RunConfig.model_validate(training["config"])
        fingerprint = rows_fingerprint(
            settings.data or task.hub_id or "",
            task,
            max_train_samples=run.max_train_samples,
            max_eval_samples=run.max_eval_samples,
            seed=run.seed,
        )
    except (ValidationError, DataError):  # of another version, or data without a train split
        return False
    return fingerprint == recorded


def _empty_evaluation(
    subject: Subject, fingerprints: dict[str, str], training: dict[str, Any]
) -> dict[str, Any]:
    """The content of ``evaluation.json`` before the first part."""
    settings, task = subject.settings, subject.prepared.task
    one_training = {name: training.get(name) for name in ("methods", "cost", "seed")}
    return {
        "model": " + ".join((settings.model, *settings.ensemble)),
        "task": task.name,
        "task_type": task.task_type,
        "headline": task.metrics[0],
        "metrics": list(task.metrics),
        "label_names": list(task.label_names or ()),
        "training": one_training if training and not settings.ensemble else None,
        "data": subject.prepared.report.to_dict(),
        "settings": settings.identity(),
        "fingerprints": fingerprints,
        "versions": versions(),
        "parts": {},
    }
