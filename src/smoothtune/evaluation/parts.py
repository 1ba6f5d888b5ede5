"""The parts of an evaluation: each takes a loaded model and data and returns numbers and curves."""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from datasets import Dataset

from smoothtune.config.evaluation import OOD, OtherData, Settings, further_title
from smoothtune.console import quiet
from smoothtune.core.quantities import QUANTITIES
from smoothtune.errors import DataError, ModelError
from smoothtune.evaluation.calibration import (
    ANSWERS,
    CLASSES,
    FEWEST_ROWS,
    LABELS,
    calibration_report,
    error_of,
    kind_of,
)
from smoothtune.evaluation.corruption import (
    FURTHER_RATES,
    TEXT_DAMAGE,
    text_corruption_curve,
    token_corruption_curve,
)
from smoothtune.evaluation.drift import representation_drift, weight_distance, weight_drift
from smoothtune.evaluation.effect import measure
from smoothtune.evaluation.ensemble import Ensemble
from smoothtune.evaluation.intervals import scores_with_intervals
from smoothtune.evaluation.predictor import Predictor
from smoothtune.evaluation.robustness import FURTHER_NOISE, attack_curve, noise_curve
from smoothtune.evaluation.smoothness import derivative_norms, noise_propagation, noise_spectrum
from smoothtune.evaluation.subject import Subject
from smoothtune.evaluation.substitution import substitution_curve
from smoothtune.evaluation.theory import lipschitz, noise_expansion
from smoothtune.evaluation.transfer import other_rows, split_for_further, trained_further
from smoothtune.evaluation.weight_gradients import weight_side
from smoothtune.models.lora import merged_copy
from smoothtune.report.curves import Curve
from smoothtune.results import Part

MAX_ATTACKED = 128
"""Rows for what costs many passes: PGD, and derivatives."""
MAX_EFFECT = 64
"""Rows for the quantities that methods are about, which cost about 50 passes."""
NO_BASE = "the pre-trained model is not known; name it with --base-model"


def _part(numbers: dict[str, Any], curves: dict[str, Curve] | None = None) -> Part:
    return Part(numbers=numbers, curves=curves or {})


def metrics(subject: Subject) -> Part:
    """Validation scores; training scores and the gap between them where there are training rows."""
    predictor, prepared = subject.predictor, subject.prepared
    task = prepared.task
    scores = scores_with_intervals(
        task, subject.predictions, prepared.validation, **subject.bootstrap
    )
    train, gap = None, None
    if len(prepared.train):
        predictor.progress.start("training rows", predictor.num_batches(prepared.train))
        train = predictor.metrics(predictor.predict(prepared.train), prepared.train)
        gap = train[task.main_metric] - scores["metrics"][task.main_metric]["value"]
    trained_on = {"train_metrics": train, "train_rows": subject.num_examples(prepared.train)}
    return _part(scores | trained_on | {"generalization_gap": gap})


def calibration(subject: Subject) -> Part:
    """Calibration, where there are probabilities."""
    task, rows = subject.prepared.task, subject.prepared.validation
    kind, predictions = kind_of(task), subject.predictions
    if kind is None:
        return Part.left_out("a regression model gives no probabilities")
    if kind is ANSWERS:
        predictions, labels = task.scorer.confidence(predictions, rows)
    else:
        labels = np.asarray(rows["labels"][:])
        if kind is CLASSES and len(labels) < FEWEST_ROWS:
            return Part.left_out(f"fewer than {FEWEST_ROWS} rows")
    names = task.known_label_names if kind is LABELS else ()
    numbers, curve = calibration_report(
        kind, predictions, labels, names=names, seed=subject.settings.seed
    )
    return _part(numbers, {"reliability": curve})


def robustness(subject: Subject) -> Part:
    """Noise and attacks on the embeddings."""
    predictor, rows, few = subject.predictor, subject.rows(), subject.rows(MAX_ATTACKED)
    curves = {
        "gaussian": noise_curve(predictor, rows, "standard", further=FURTHER_NOISE),
        "in_manifold": noise_curve(predictor, rows, "in_manifold", further=FURTHER_NOISE),
        "fgm": attack_curve(predictor, rows, "fgm"),
        "pgd": attack_curve(predictor, few, "pgd"),
    }
    numbers = {"rows": subject.num_examples(rows), "rows_pgd": subject.num_examples(few)}
    return _part(numbers, curves)


def corruption(subject: Subject) -> Part:
    """Corrupted tokens and texts."""
    predictor, rows = subject.predictor, subject.rows()
    length = subject.prepared.report.max_seq_length
    size = subject.vocab_size
    curves = {
        "tokens": token_corruption_curve(predictor, rows, vocab_size=size, further=FURTHER_RATES)
    }
    for damage in TEXT_DAMAGE:
        curve = text_corruption_curve(predictor, subject.texts, damage, max_seq_length=length)
        curves[damage.replace(" ", "_")] = curve
    return _part({"rows": len(rows)}, curves)


def substitution(subject: Subject) -> Part:
    """Adversarial word substitutions."""
    rows = subject.rows(MAX_ATTACKED)
    curve = substitution_curve(subject.predictor, rows, vocab_size=subject.vocab_size)
    return _part({"rows": len(rows)}, {"words": curve})


def smoothness(subject: Subject) -> Part:
    """Derivatives, noise attenuation, the spectrum of noise, and what the papers prove of them."""
    predictor, rows = subject.predictor, subject.rows(MAX_ATTACKED)
    numbers: dict[str, Any] = {"rows": subject.num_examples(rows)}
    curves = {}
    if predictor.task.one_sequence:
        curves = derivative_norms(predictor, rows)
        numbers["lipschitz"] = lipschitz(predictor, rows)
    curves |= noise_propagation(predictor, rows)
    curves["expansion"] = noise_expansion(predictor, rows)
    curves["spectrum"] = noise_spectrum(predictor, rows)
    if any(weight.requires_grad for weight in predictor.model.parameters()):
        numbers["sharpness"] = weight_side(predictor, rows)[0]["sharpness"]
    return _part(numbers, curves)


def drift(subject: Subject) -> Part:
    """Distance to the pre-trained model."""
    if subject.pretrained is None:
        return Part.left_out(NO_BASE)
    before, new = subject.pretrained
    rows, name = subject.rows(), subject.settings.base_model
    try:
        curves = weight_drift(merged_copy(subject.predictor.model), before, new=new)
    except ValueError as error:
        raise ModelError(f"--base-model {name}: {error}") from error
    cka = representation_drift(subject.predictor, before, rows)
    numbers = {"rows": subject.num_examples(rows), "base_model": name}
    return _part(numbers, curves | {"cka": cka})


def effect(subject: Subject) -> Part:
    """The quantities that methods are about."""
    rows = subject.rows(MAX_EFFECT)
    # what the model alone tells, then what needs the pre-trained one or probabilities
    measured = measure(subject.predictor, rows)
    if subject.pretrained is None:
        measured.missing["weight distance"] = NO_BASE
    else:
        before, new = subject.pretrained
        try:
            distance = weight_distance(merged_copy(subject.predictor.model), before, new=new)
        except ValueError as error:
            measured.missing["weight distance"] = str(error)
        else:
            measured.values["weight distance"] = distance["weight distance"]
            measured.supplementary["weight distance, absolute"] = distance["absolute"]
    reason = subject.prepared.task.unsupported_parts.get("calibration")
    answers = Part.left_out(reason) if reason else calibration(subject)
    if answers.skipped:
        measured.missing["calibration error"] = answers.skipped
    else:
        measured.values["calibration error"] = error_of(answers.numbers)
    count = subject.num_examples(rows)
    for curve in measured.curves.values():  # `smoothness` has the same curves of more rows
        curve.title += f", {count} rows"
    numbers = {
        "rows": count,
        "quantities": {n: measured.values[n] for n in QUANTITIES if n in measured.values},
        "beside": measured.supplementary,
        "not measured": measured.missing,
    }
    return _part(numbers, measured.curves)


def other_data(subject: Subject, other: OtherData) -> Part:
    """The task's metrics on another data set, whole."""
    rows, described = _rows_of(subject, other)
    return _part(_scores(subject, subject.predictor, rows, "other data") | described)


def further_data(subject: Subject, other: OtherData, share: float) -> Part:
    """Metrics on another data set after training on a share of it, on the rest."""
    if subject.prepared.task.head.problem_type is None:
        return Part.left_out("further training is for classification and regression of texts")
    rows, described = _rows_of(subject, other)
    try:
        some, rest = split_for_further(rows, share, subject.settings.seed)
    except DataError as error:  # the model and its other scores are not to be lost by it
        return Part.left_out(str(error))
    before = _scores(subject, subject.predictor, rest, "the rest, as it is")
    after = _scores(subject, trained_further(subject.predictor, some), rest, "the rest, after")
    numbers = (
        after | {"metrics_before": before["metrics"], "rows_trained_on": len(some)} | described
    )
    numbers["read_as"]["further_share"] = share
    return _part(numbers)


def _rows_of(subject: Subject, other: OtherData) -> tuple[Dataset, dict[str, Any]]:
    """The rows of another data set, and what is to be told of them."""
    rows, repeated = other_rows(
        other,
        subject.prepared.task,
        subject.predictor.tokenizer,
        max_seq_length=subject.prepared.report.max_seq_length,
        vocab_size=subject.vocab_size,
    )
    return rows, {"repeated_rows_left_out": repeated, "read_as": asdict(other)}


def _scores(subject: Subject, predictor: Predictor, rows: Dataset, title: str) -> dict[str, Any]:
    predictor.progress.start(title, predictor.num_batches(rows))
    predictions = predictor.predict(rows)
    return scores_with_intervals(predictor.task, predictions, rows, **subject.bootstrap)


class Measurement(NamedTuple):
    """How a part is made; a field of `PartName` and a flag of the command have its name."""

    title: str
    """Of its section in a report."""
    measure: Callable[[Subject], Part]
    needs_weights: bool = True
    """Whether predictions alone do not suffice: an ensemble has no weights of its own."""


PARTS = {
    "metrics": Measurement("Scores", metrics, needs_weights=False),
    "calibration": Measurement("Calibration", calibration, needs_weights=False),
    "robustness": Measurement("Robustness in embedding space", robustness),
    "corruption": Measurement("Robustness in text", corruption, needs_weights=False),
    "smoothness": Measurement("Smoothness", smoothness),
    "drift": Measurement("Drift from the pre-trained model", drift),
    "effect": Measurement("What methods are about", effect),
    "substitution": Measurement("Adversarial word substitutions", substitution),
}


def requested_parts(settings: Settings) -> dict[str, Measurement]:
    """The task's metrics, the parts that are asked for, and those about other data sets."""
    parts = {name: PARTS[name] for name in ("metrics", *settings.parts)}
    for name, other in settings.ood.items():
        title = OOD + name
        parts[title] = Measurement(title, partial(other_data, other=other), needs_weights=False)
        if share := settings.further_share:
            title = further_title(name, share)
            parts[title] = Measurement(title, partial(further_data, other=other, share=share))
    return parts


def evaluate_part(name: str, part: Measurement, subject: Subject) -> Part:
    """Measure a part, where it has a meaning for the task and the model."""
    task = subject.prepared.task
    if reason := task.unsupported_parts.get(name):
        return Part.left_out(f"not for {task.task_type}: {reason}")
    if part.needs_weights and isinstance(subject.predictor, Ensemble):
        return Part.left_out("not for an ensemble: it is about the weights of one model")
    with quiet():
        return part.measure(subject)
