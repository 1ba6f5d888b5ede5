"""The parts of an evaluation: each takes a loaded model and data and returns numbers and curves."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from datasets import Dataset

from smoothtune.config.evaluation import OtherData, Settings
from smoothtune.core.quantities import QUANTITIES
from smoothtune.errors import ModelError
from smoothtune.evaluation.calibration import (
    answer_calibration,
    calibration_report,
    label_calibration,
)
from smoothtune.evaluation.corruption import (
    FURTHER_RATES,
    TEXT_DAMAGE,
    text_corruption_curve,
    token_corruption_curve,
)
from smoothtune.evaluation.drift import representation_drift, weight_drift
from smoothtune.evaluation.effect import measure, weight_distance
from smoothtune.evaluation.intervals import scores_with_intervals
from smoothtune.evaluation.predictor import Predictor
from smoothtune.evaluation.robustness import FURTHER_NOISE, attack_curve, noise_curve
from smoothtune.evaluation.smoothness import derivative_norms, noise_propagation, noise_spectrum
from smoothtune.evaluation.substitution import substitution_curve
from smoothtune.evaluation.transfer import (
    other_rows,
    split_for_further,
    trained_further,
    validation_texts,
)
from smoothtune.models.load import load_base, load_classifier
from smoothtune.models.lora import merged_copy
from smoothtune.nn.architecture import embedding_table
from smoothtune.report.curves import Curve
from smoothtune.tasks.prepare import Prepared

MAX_ATTACKED = 128
"""Rows for what costs many passes: PGD, and derivatives."""
MAX_EFFECT = 64
"""Rows for the quantities that methods are about, which cost about 50 passes."""
NO_BASE = "the pre-trained model is not known; name it with --base-model"


@dataclass
class PartResult:
    """What one part gives."""

    numbers: dict[str, Any] = field(default_factory=dict)
    curves: dict[str, Curve] = field(default_factory=dict)
    skipped: str = ""
    """Why the part does not apply."""

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        curves = {name: curve.to_dict() for name, curve in self.curves.items()}
        return {"numbers": self.numbers, "curves": curves, "skipped": self.skipped}


@dataclass
class Subject:
    """A model and its data, loaded."""

    settings: Settings
    predictor: Predictor
    prepared: Prepared

    @cached_property
    def predictions(self) -> np.ndarray:
        """(N, W) of the validation rows as they are."""
        rows = self.prepared.validation
        self.predictor.progress.start("validation rows", self.predictor.num_batches(rows))
        return self.predictor.predict(rows)

    @cached_property
    def texts(self) -> Dataset:
        """Texts of the validation rows."""
        source = self.settings.data or self.prepared.task.hub_id or ""
        return validation_texts(source, self.prepared)

    def num_examples(self, rows: Dataset) -> int:
        """Number of examples; one with a long context has several rows."""
        return len(self.prepared.task.scorer.example_ids(rows))

    @cached_property
    def pretrained(self) -> tuple[Any, list[str]] | None:
        """The pre-trained model in evaluation mode, and names of weights that are new in it.

        None where it is not known.

        Raises:
            ModelError: it cannot be loaded.
        """
        settings = self.settings
        if settings.base_model is None:
            return None
        base = load_base(settings.base_model, trust_remote_code=settings.trust_remote_code)
        model, new = load_classifier(base, self.prepared.task, seed=settings.seed)
        model.config.pad_token_id = self.predictor.tokenizer.pad_token_id
        return model.eval(), new

    @property
    def vocab_size(self) -> int:
        """Rows of the model's embedding matrix."""
        return len(embedding_table(self.predictor.model))

    @property
    def bootstrap(self) -> dict[str, int]:
        """Arguments of the bootstrap."""
        return {"num_resamples": self.settings.num_resamples, "seed": self.settings.seed}

    def sample(self, count: int | None = None) -> np.ndarray:
        """Rows of validation examples drawn at random; a smaller sample is a part of a larger."""
        ids = np.asarray(self.prepared.validation["example_id"][:])
        examples = self.prepared.task.scorer.example_ids(self.prepared.validation)
        limit = self.settings.max_diagnostic_samples
        drawn = np.random.default_rng(self.settings.seed).permutation(examples)
        return np.flatnonzero(np.isin(ids, drawn[: min(limit, count or limit)]))

    def rows(self, count: int | None = None) -> Dataset:
        """The validation rows of `sample`."""
        return self.prepared.validation.select(self.sample(count), keep_in_memory=True)


def metrics(subject: Subject) -> PartResult:
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
    return PartResult(scores | trained_on | {"generalization_gap": gap})


def calibration(subject: Subject) -> PartResult:
    """Calibration, where there are probabilities."""
    task, rows = subject.prepared.task, subject.prepared.validation
    if task.head.problem_type == "regression":
        return PartResult(skipped="a regression model gives no probabilities")
    if task.head.problem_type == "multi_label_classification":
        logits, gold = (np.asarray(x, np.float64) for x in (subject.predictions, rows["labels"][:]))
        names, seed = task.known_label_names, subject.settings.seed
        numbers, curve = label_calibration(logits, gold, names, seed=seed)
        return PartResult(numbers, {"reliability": curve})
    if task.head.problem_type is None:
        numbers, curve = answer_calibration(*task.scorer.confidence(subject.predictions, rows))
        return PartResult(numbers, {"reliability": curve})
    labels = np.asarray(rows["labels"][:])
    if len(labels) < 4:
        return PartResult(skipped="fewer than four rows")
    numbers, curve = calibration_report(subject.predictions, labels, seed=subject.settings.seed)
    return PartResult(numbers, {"reliability": curve})


def robustness(subject: Subject) -> PartResult:
    """Noise and attacks on the embeddings."""
    predictor, rows, few = subject.predictor, subject.rows(), subject.rows(MAX_ATTACKED)
    curves = {
        "gaussian": noise_curve(predictor, rows, "standard", further=FURTHER_NOISE),
        "in_manifold": noise_curve(predictor, rows, "in_manifold", further=FURTHER_NOISE),
        "fgm": attack_curve(predictor, rows, "fgm"),
        "pgd": attack_curve(predictor, few, "pgd"),
    }
    numbers = {"rows": subject.num_examples(rows), "rows_pgd": subject.num_examples(few)}
    return PartResult(numbers, curves)


def corruption(subject: Subject) -> PartResult:
    """Corrupted tokens and texts."""
    predictor, rows = subject.predictor, subject.rows()
    texts = subject.texts.select(subject.sample(), keep_in_memory=True)
    length = subject.prepared.report.max_seq_length
    tokens = token_corruption_curve(
        predictor, rows, vocab_size=subject.vocab_size, further=FURTHER_RATES
    )
    curves = {"tokens": tokens} | {
        damage.replace(" ", "_"): text_corruption_curve(
            predictor, texts, damage, max_seq_length=length
        )
        for damage in TEXT_DAMAGE
    }
    return PartResult({"rows": len(rows)}, curves)


def substitution(subject: Subject) -> PartResult:
    """Adversarial word substitutions."""
    rows = subject.rows(MAX_ATTACKED)
    curve = substitution_curve(subject.predictor, rows, vocab_size=subject.vocab_size)
    return PartResult({"rows": len(rows)}, {"words": curve})


def smoothness(subject: Subject) -> PartResult:
    """Derivatives, noise attenuation and the spectrum of noise."""
    predictor, rows = subject.predictor, subject.rows(MAX_ATTACKED)
    derivatives = derivative_norms(predictor, rows) if predictor.task.one_sequence else {}
    curves = derivatives | noise_propagation(predictor, rows)
    curves["spectrum"] = noise_spectrum(predictor, rows)
    return PartResult({"rows": subject.num_examples(rows)}, curves)


def drift(subject: Subject) -> PartResult:
    """Distance to the pre-trained model."""
    if subject.pretrained is None:
        return PartResult(skipped=NO_BASE)
    before, new = subject.pretrained
    rows, name = subject.rows(), subject.settings.base_model
    try:
        curves = weight_drift(merged_copy(subject.predictor.model), before, new=new)
    except ValueError as error:
        raise ModelError(f"--base-model {name}: {error}") from error
    cka = representation_drift(subject.predictor, before, rows)
    numbers = {"rows": subject.num_examples(rows), "base_model": name}
    return PartResult(numbers, curves | {"cka": cka})


def effect(subject: Subject) -> PartResult:
    """The quantities that methods are about."""
    rows = subject.rows(MAX_EFFECT)
    found = measure(subject.predictor, rows)
    if subject.pretrained is None:
        found.missing["weight distance"] = NO_BASE
    else:
        before, new = subject.pretrained
        try:
            distance = weight_distance(merged_copy(subject.predictor.model), before, new=new)
        except ValueError as error:
            found.missing["weight distance"] = str(error)
        else:
            found.values["weight distance"] = distance["weight distance"]
            found.beside["weight distance, absolute"] = distance["absolute"]
    reason = subject.prepared.task.unsupported_parts.get("calibration")
    answers = calibration(subject) if reason is None else PartResult(skipped=reason)
    if answers.skipped:
        found.missing["calibration error"] = answers.skipped
    else:
        found.values["calibration error"] = answers.numbers["all_rows"]["ece"]
    count = subject.num_examples(rows)
    for curve in found.curves.values():  # `smoothness` has the same curves of more rows
        curve.title += f", {count} rows"
    numbers: dict[str, Any] = {"rows": count}
    numbers["quantities"] = {n: found.values[n] for n in QUANTITIES if n in found.values}
    numbers |= {"beside": found.beside, "not measured": found.missing}
    return PartResult(numbers, found.curves)


def other_data(subject: Subject, other: OtherData) -> PartResult:
    """The task's metrics on another data set, whole."""
    rows, repeated = _rows_of(subject, other)
    scores = _scores(subject, subject.predictor, rows, "other data")
    return PartResult(scores | {"repeated_rows_left_out": repeated, "read_as": asdict(other)})


def further_data(subject: Subject, other: OtherData, share: float) -> PartResult:
    """Metrics on another data set after training on a share of it, on the rest."""
    task = subject.prepared.task
    if task.head.problem_type is None:
        return PartResult(skipped="further training is for classification and regression of texts")
    rows, repeated = _rows_of(subject, other)
    some, rest = split_for_further(rows, share, subject.settings.seed)
    before = _scores(subject, subject.predictor, rest, "the rest, as it is")
    after = _scores(subject, trained_further(subject.predictor, some), rest, "the rest, after")
    return PartResult(
        after
        | {
            "metrics_before": before["metrics"],
            "rows_trained_on": len(some),
            "repeated_rows_left_out": repeated,
            "read_as": asdict(other) | {"further_share": share},
        }
    )


def _rows_of(subject: Subject, other: OtherData) -> tuple[Dataset, int]:
    return other_rows(
        other,
        subject.prepared.task,
        subject.predictor.tokenizer,
        max_seq_length=subject.prepared.report.max_seq_length,
        vocab_size=subject.vocab_size,
    )


def _scores(subject: Subject, predictor: Predictor, rows: Dataset, title: str) -> dict[str, Any]:
    predictor.progress.start(title, predictor.num_batches(rows))
    predictions = predictor.predict(rows)
    return scores_with_intervals(predictor.task, predictions, rows, **subject.bootstrap)


PART_FUNCTIONS = {
    "metrics": metrics,
    "calibration": calibration,
    "robustness": robustness,
    "corruption": corruption,
    "smoothness": smoothness,
    "drift": drift,
    "effect": effect,
    "substitution": substitution,
}
