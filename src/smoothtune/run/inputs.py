"""Task, data and model of a run: loaded, checked and printed before the first step."""

import statistics
from dataclasses import dataclass

from datasets import Dataset
from rich.console import Console
from transformers import PreTrainedModel

from smoothtune.config.run import RunConfig
from smoothtune.config.task import configured_task
from smoothtune.console import say
from smoothtune.data.arrow import numbers
from smoothtune.data.csv_format import no_header
from smoothtune.errors import ConfigError, Problem, counted
from smoothtune.models.heads import start_at_mean
from smoothtune.models.load import (
    Base,
    check_unchanged,
    load_base,
    load_classifier,
    new_classifier,
    weights_fingerprint,
)
from smoothtune.models.lora import adapter_summary, add_lora
from smoothtune.models.positions import check_lengths
from smoothtune.tasks.base import Task
from smoothtune.tasks.label_noise import with_label_noise
from smoothtune.tasks.prepare import Prepared, prepare
from smoothtune.tasks.unlabeled import prepare_unlabeled


@dataclass(frozen=True)
class Inputs:
    """Base model, tokenizer and data of a run."""

    base: Base
    prepared: Prepared
    base_weights: str  # see `weights_fingerprint`
    unlabeled: tuple[Dataset, str] | None  # tokenized rows, and the fingerprint of their texts
    class_weights: dict[str, float] | None = None  # by class; None: all count the same

    @property
    def task(self) -> Task:
        """The task, with the labels of the data."""
        return self.prepared.task

    @property
    def fingerprints(self) -> dict[str, str | None]:
        """What was read, by content, as ``result.json`` records it."""
        return {
            "data": self.prepared.fingerprint,
            "unlabeled": self.unlabeled and self.unlabeled[1],
            "base_weights": self.base_weights,
        }


def read_inputs(config: RunConfig, console: Console) -> Inputs:
    """Load and check the data and the base model's tokenizer; prints a summary of the data.

    Raises ConfigError, ModelError or DataError.
    """
    task = configured_task(config)
    base = load_base(config.model, trust_remote_code=config.trust_remote_code)
    weights = weights_fingerprint(base.source)
    common: dict[str, int] = {
        "max_seq_length": config.max_seq_length,
        "seed": config.seed,
        "vocab_size": base.config.get_text_config().vocab_size,
    }
    prepared = prepare(
        config.data or task.hub_id or "",
        task,
        base.tokenizer,
        max_train_samples=config.max_train_samples,
        max_eval_samples=config.max_eval_samples,
        num_proc=config.preprocessing_num_workers,
        **common,
    )
    if config.label_noise:
        prepared = with_label_noise(prepared, config.label_noise, config.seed)
    unlabeled = None
    if config.unlabeled is not None:
        most = config.max_unlabeled_samples
        unlabeled = prepare_unlabeled(
            config.unlabeled, prepared.task, base.tokenizer, max_samples=most, **common
        )
    say(console, f"task {prepared.task.name}, data {config.data or task.hub_id}")
    if console.is_terminal:
        console.print(prepared.report)
    else:
        say(console, str(prepared.report))
    if remark := without_header(config, prepared.task):
        say(console, remark)
    if unlabeled is not None:
        say(console, f"unlabeled: {counted(len(unlabeled[0]), 'row')} of {config.unlabeled}")
    return Inputs(base, prepared, weights, unlabeled, class_weights(config, prepared))


def without_header(config: RunConfig, task: Task) -> str:
    """What to tell of CSV files whose label column is named like a class; empty otherwise."""
    if config.data is None or config.label_column is None:
        return ""
    return no_header(config.data, {config.label_column: task.known_label_names})


def class_weights(config: RunConfig, prepared: Prepared) -> dict[str, float] | None:
    """The weight of each class; None unless the run has weights, or ConfigError.

    Balanced ones are n / (C n_c): the number of training rows, of classes, of rows of the class. Of
    several labels of a row they are (n - n_l) / n_l, the weight of the rows with label l.
    """
    weights, names = config.class_weights, prepared.task.known_label_names
    if weights is None:
        return None
    train = prepared.report.splits["train"]
    rows, counts = train.rows, train.labels
    several = prepared.task.head.problem_type == "multi_label_classification"
    own = [each.name for each in config.regularizers() if each.traits.plain_loss]
    problem = ""
    if not names:
        problem = "need classes, and the labels are scores"
    elif own:
        problem = f"do not go with {own[0]}, which computes the plain task loss itself"
    elif weights != "balanced" and len(weights) != len(names):
        problem = f"are {len(weights)}, but the classes are {len(names)}: {', '.join(names)}"
    elif weights == "balanced" and (absent := [name for name in names if not counts[name]]):
        problem = f"cannot be balanced: no training row has the label {absent[0]!r}"
    elif weights == "balanced" and several and (full := [n for n in names if counts[n] == rows]):
        problem = f"cannot be balanced: every training row has the label {full[0]!r}"
    if problem:
        raise ConfigError([Problem("", "class_weights", problem)])
    if weights == "balanced" and several:
        return {name: (rows - counts[name]) / counts[name] for name in names}
    if weights == "balanced":
        total = sum(counts.values())
        return {name: total / (len(names) * counts[name]) for name in names}
    return dict(zip(names, weights, strict=True))


def prepare_model(config: RunConfig, inputs: Inputs, console: Console) -> PreTrainedModel:
    """The base model with the task's head and, if asked for, adapters; prints its size.

    Raises ConfigError, LoraError or ModelError.
    """
    task = inputs.task
    if config.from_scratch:
        model, new_weights = new_classifier(inputs.base, task, seed=config.seed)
    else:
        model, new_weights = load_classifier(
            inputs.base,
            task,
            seed=config.seed,
            frozen_weights=config.frozen_weights,
            allow_new_weights=config.allow_new_weights,
        )
    check_unchanged(inputs.base.source, inputs.base_weights)
    check_rows(model, inputs)
    size = sum(weight.numel() for weight in model.parameters())
    new = "all" if config.from_scratch else ", ".join(new_weights) or "none"
    say(console, f"model {config.model}: {size / 1e6:.1f}M parameters; new weights: {new}")
    if task.head.problem_type == "regression" and config.regression_bias == "mean":
        scores = numbers(inputs.prepared.train, "labels").tolist()
        if start_at_mean(model, new_weights, scores):
            say(console, f"the new head starts at the mean score, {statistics.fmean(scores):.4g}")
    if config.lora is not None:
        model = add_lora(model, config.lora, task.peft_type, new_weights, seed=config.seed)
        say(console, adapter_summary(model))
    return model


def check_rows(model: PreTrainedModel, inputs: Inputs) -> None:
    """Raise ConfigError if a row is longer than the model takes."""
    check_lengths(model, inputs.prepared.train, "the training data")
    check_lengths(model, inputs.prepared.validation, "the validation data")
    if inputs.unlabeled is not None:
        check_lengths(model, inputs.unlabeled[0], "the unlabeled data")
