"""One training run, from a configuration to a plain model folder with its result."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from rich.console import Console
from torch.utils.data import Sampler, SequentialSampler
from transformers import EvalPrediction, PreTrainedModel, PrinterCallback

from smoothtune.config.draft import clipping_methods
from smoothtune.config.run import RunConfig
from smoothtune.console import quiet, say
from smoothtune.core.objective import Objective
from smoothtune.data.sampler import LengthGroupedSampler
from smoothtune.errors import ConfigError, Problem, Stopped
from smoothtune.files import versions, write_atomic
from smoothtune.memory import keep_freed_memory, peak_memory
from smoothtune.models.load import Base, weights_fingerprint
from smoothtune.models.lora import merged, save
from smoothtune.run.callbacks import ProgressCallback, StopOnSignal
from smoothtune.run.inputs import Loaded, load
from smoothtune.run.model_card import model_card
from smoothtune.run.output import STAGING, claimed, finished_result, newest_checkpoint, publish
from smoothtune.run.training_arguments import training_arguments
from smoothtune.tasks.base import Task
from smoothtune.tasks.prepare import Prepared
from smoothtune.tasks.presets import kind_of
from smoothtune.trainer.step_cost import StepCost, measure_step_cost
from smoothtune.trainer.trainer import SmoothTrainer

COST_MAX_PARAMETERS = 400_000_000


@dataclass
class Trained:
    """A run after its last step."""

    base: Base
    prepared: Prepared
    model: PreTrainedModel
    """Free of all that the methods had attached."""
    logits: np.ndarray
    """(N, C) of the validation rows; for other kinds than text classification their predictions."""
    result: dict[str, Any]
    """What becomes ``result.json``."""

    def save(self, folder: Path) -> None:
        """Write the model folder's files, all but ``result.json``."""
        with quiet():
            save(self.model, folder)
            self.base.tokenizer.save_pretrained(folder)
        write_atomic(folder / "README.md", model_card(self.result))


def train(
    config: RunConfig, *, resume: bool = False, console: Console | None = None
) -> dict[str, Any]:
    """Fine-tune a model as the configuration says.

    Before the first step it prints what it checked, the attention implementation, and the
    measured cost of the methods. `config.output_dir` becomes a model folder that transformers
    loads by itself, with ``result.json`` and a model card.

    Args:
        config: the run.
        resume: go on from the newest checkpoint in the folder.
        console: where to print.

    Returns:
        The content of ``result.json``; read from there if this very run is done already.

    Raises:
        ConfigError: methods and model do not fit together, or several processes were started.
        OutputError: the output folder holds something else.
        ModelError: the model cannot be loaded.
        DataError: the data cannot be trained on.
        NonFiniteLoss: a loss term became NaN or infinite; no model is written.
        Stopped: SIGINT or SIGTERM came; a checkpoint is in the output folder.
    """
    console = console or Console()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        message = (
            "smoothtune train is one process; for several, start a script of your own with "
            "SmoothTrainer, see docs/distributed.md"
        )
        raise ConfigError([Problem("torchrun or accelerate launch", "", message)])
    if result := finished_result(config):
        say(console, f"{config.output_dir} holds this run already: nothing to do")
        return result
    with claimed(config, resume=resume) as folder:
        trained = fit(config, folder, resume=resume, console=console)
        trained.save(folder / STAGING)
        publish(folder, trained.result, keep_checkpoints=config.save_strategy != "no")
    say(console, _scores(trained.result["metrics"]))
    return trained.result


def fit(
    config: RunConfig, folder: Path, *, resume: bool = False, console: Console | None = None
) -> Trained:
    """Fine-tune and evaluate as `train` does, without writing the model; the same errors.

    Args:
        config: the run; its `output_dir` is not looked at.
        folder: for checkpoints.
        resume: go on from the newest checkpoint in the folder.
        console: where to print.
    """
    keep_freed_memory()
    run = load(config, console or Console())
    cost = _step_cost(run)
    trainer = _trainer(run, folder)
    checkpoint = newest_checkpoint(folder) if resume else None
    seconds = _fit(trainer, run, checkpoint)
    result, logits = _result(run, trainer, cost, seconds)
    trainer.objective.detach()
    model = merged(run.model) if config.merge_adapter else run.model
    return Trained(run.base, run.prepared, model, logits, result)


def _step_cost(run: Loaded) -> StepCost | None:
    """Measure and print the cost of a step relative to plain fine-tuning."""
    config, count = run.config, run.config.cost_steps
    if not count or list(config.methods) == ["plain"]:
        return None
    if run.model.num_parameters() > COST_MAX_PARAMETERS:
        say(run.console, "cost of a step not measured: it takes two copies of this large model")
        return None
    rows = np.random.default_rng(0).integers(
        len(run.prepared.train), size=(count, config.per_device_train_batch_size)
    )
    collate = kind_of(run.task).collator(run.base.tokenizer)
    batches = [collate([run.prepared.train[int(i)] for i in batch]) for batch in rows]
    with _methods_fit():
        cost = measure_step_cost(run.model, config.regularizers(), batches)
    say(
        run.console,
        f"a step with {' + '.join(config.methods)} costs {cost.ratio:.2f} times a plain step "
        f"({cost.seconds:.3g} s and {cost.plain_seconds:.3g} s, medians of {count})",
    )
    return cost


@contextmanager
def _methods_fit() -> Iterator[None]:
    """Report a method that does not fit the model or the trainer as an error of configuration."""
    try:
        yield
    except ValueError as error:
        raise ConfigError([Problem("", "methods", str(error))]) from error


class _Trainer(SmoothTrainer):
    """Groups by length in an order that a resumed run finds again."""

    objective: Objective

    def _get_train_sampler(self, train_dataset: Dataset | None = None) -> Sampler | None:
        if self.args.train_sampling_strategy != "group_by_length":
            return super()._get_train_sampler(train_dataset)
        dataset: Any = self.train_dataset if train_dataset is None else train_dataset
        size = self.args.train_batch_size * self.args.gradient_accumulation_steps
        return LengthGroupedSampler(dataset["length"][:], size, self.args.seed)

    def _get_eval_sampler(self, eval_dataset: Dataset) -> Sampler:
        return SequentialSampler(eval_dataset)  # transformers' would group it by length, shuffled


def _trainer(run: Loaded, folder: Path) -> _Trainer:
    """The trainer, and the attention implementation it chose."""
    config, kind = run.config, kind_of(run.task)

    def metrics(evaluation: EvalPrediction) -> dict[str, float]:
        return _scored(run.task, evaluation.predictions, run.prepared.validation)[0]

    regularizers = config.regularizers()
    loaded_with = run.model.config._attn_implementation
    with _methods_fit():
        trainer = _Trainer(
            model=run.model,
            args=training_arguments(config, folder, kind.label_inputs),
            regularizers=regularizers,
            unlabeled_dataset=run.unlabeled and run.unlabeled[0],
            alternate=config.alternate,
            train_dataset=run.prepared.train,
            eval_dataset=_shortest_first(run.prepared.validation),
            data_collator=kind.collator(run.base.tokenizer),
            processing_class=run.base.tokenizer,
            compute_metrics=metrics,
        )
    trainer.remove_callback(PrinterCallback)
    attention = run.model.config._attn_implementation
    if attention != loaded_with:
        second = [regularizer.name for regularizer in regularizers if regularizer.second_order]
        why = f"{' and '.join(second)} needs second derivatives, which {loaded_with} has not"
    else:
        why = "transformers' choice for this model; no method needs another"
    say(run.console, f"attention: {attention} ({why})")
    if clips := clipping_methods(config.methods):
        say(run.console, f"max_grad_norm is 0: {clips[0]} is the gradient clip")
    return trainer


def _fit(trainer: _Trainer, run: Loaded, checkpoint: Path | None) -> float:
    """Train; seconds it took."""
    title = "+".join(run.config.methods)
    progress, stop = ProgressCallback(run.console, title), StopOnSignal()
    trainer.add_callback(progress)
    trainer.add_callback(stop)
    start = time.perf_counter()
    try:
        with stop, quiet():
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    finally:
        progress.close()
    if stop.received is not None and trainer.state.global_step < trainer.state.max_steps:
        raise Stopped(
            f"stopped by a signal after step {trainer.state.global_step} of "
            f"{trainer.state.max_steps}; go on with the same command and --resume-from-checkpoint"
        )
    return time.perf_counter() - start


def _result(
    run: Loaded, trainer: _Trainer, cost: StepCost | None, seconds: float
) -> tuple[dict[str, Any], np.ndarray]:
    """The content of ``result.json``, and the logits (N, C) of the validation rows."""
    config, task, prepared = run.config, run.task, run.prepared
    start = time.perf_counter()
    (metrics, logits), (train_metrics, _) = (
        _evaluate(trainer, task, split) for split in (prepared.validation, prepared.train)
    )
    evaluation_seconds = time.perf_counter() - start
    headline = task.metrics[0]
    hub = config.model != "minilm" and not Path(config.model).expanduser().exists()
    result = {
        "task": task.name,
        "task_type": task.task_type,
        "model": config.model,
        "base_model_id": config.model if hub else None,
        "methods": config.methods,
        "seed": config.seed,
        "headline": headline,
        "metrics": metrics,
        "train_metrics": train_metrics,
        "generalization_gap": train_metrics[headline] - metrics[headline],
        "brier": metrics.get("brier"),
        "trivial_baseline": kind_of(task).baseline(task, prepared.validation),
        "cost": {
            "train_seconds": seconds,
            "evaluation_seconds": evaluation_seconds,
            "steps": trainer.state.global_step,
            "step_seconds": cost and cost.seconds,
            "plain_step_seconds": cost and cost.plain_seconds,
            "ratio_to_plain": cost and cost.ratio,
            **peak_memory(),
        },
        "data": prepared.report.to_dict(),
        "fingerprints": {
            "data": prepared.fingerprint,
            "unlabeled": run.unlabeled and run.unlabeled[1],
            "base_weights": weights_fingerprint(run.base.source),
        },
        "attention": run.model.config._attn_implementation,
        "log_history": trainer.state.log_history,
        "versions": versions(),
        "config": config.model_dump(mode="json"),
        "method_versions": config.method_versions(),
    }
    return result, logits


def _evaluate(trainer: _Trainer, task: Task, split: Dataset) -> tuple[dict[str, float], np.ndarray]:
    trainer.compute_metrics = None  # it looks at the validation rows
    return _scored(task, trainer.predict(_shortest_first(split)).predictions, split)


def _by_length(rows: Dataset) -> np.ndarray:
    return np.argsort(rows["length"][:], kind="stable")


def _shortest_first(rows: Dataset) -> Dataset:
    """The rows in the order in which they are evaluated, so that little is padded."""
    return rows.select(_by_length(rows), keep_in_memory=True)


def _scored(task: Task, outputs: Any, rows: Dataset) -> tuple[dict[str, float], np.ndarray]:
    """Metrics and predictions of rows, from the model's outputs for `_shortest_first` of them."""
    kind, own_order = kind_of(task), np.argsort(_by_length(rows))
    arrays = outputs if isinstance(outputs, tuple) else (outputs,)
    named = zip(kind.outputs, arrays, strict=False)  # some models give more than are named
    ordered = {name: array[own_order] for name, array in named}
    predictions = kind.predictions(task, ordered, rows)
    return kind.scores(task, kind.evidence(task, predictions, rows)), predictions


def _scores(metrics: dict[str, float]) -> str:
    return "validation: " + "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())
