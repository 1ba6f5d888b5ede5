"""The trainer of a run, and its evaluation of a split."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from rich.console import Console
from torch.utils.data import BatchSampler, DataLoader, Sampler, SequentialSampler
from transformers import EvalPrediction, PreTrainedModel, PrinterCallback
from transformers.trainer_utils import EvalLoopOutput

from smoothtune.config.names import clipping_methods
from smoothtune.config.run import RunConfig
from smoothtune.console import say
from smoothtune.core.objective import Objective
from smoothtune.core.regularizer import Regularizer
from smoothtune.core.terms import all_have_acted
from smoothtune.data.arrow import numbers
from smoothtune.data.batches import LengthGroupedSampler
from smoothtune.errors import ConfigError, Problem
from smoothtune.nn import rng
from smoothtune.nn.hf_versions import sampling_strategy, settings_of_one_run
from smoothtune.run.callbacks import EarlyStopping, EvaluationEnded
from smoothtune.run.inputs import Inputs
from smoothtune.run.optimizer import uncorrected
from smoothtune.run.processes import prepare_shards
from smoothtune.run.training_arguments import best_score, training_arguments
from smoothtune.tasks.base import Task
from smoothtune.trainer.run_record import EXAMPLES, examples_per_update
from smoothtune.trainer.trainer import SmoothTrainer
from smoothtune.trainer.update_batches import (
    PADDING_BATCH,
    EvaluationBatches,
    MarkingCollator,
    UpdateBatches,
    WithPaddingRows,
    rows_of,
)
from smoothtune.trainer.weighted_losses import ClassWeightedLoss, LabelWeightedLoss


class RunTrainer(SmoothTrainer):
    """Groups rows by length, in an order that depends on seed and epoch alone."""

    objective: Objective
    run_identity: dict[str, Any]
    """What else a resumed run must have in common with this one: rows of an update, data, model."""
    kinds = 1
    """Of batches in an update: 2 where unlabeled ones share it with the labeled ones."""

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate in training; without metrics, as if it had not begun, if a signal cut it."""
        before = rng.get_state(self.args.device)
        try:
            return super().evaluate(*args, **kwargs)
        except EvaluationEnded:
            rng.set_state(self.args.device, before)
            return {}

    def get_train_dataloader(self) -> DataLoader:
        """Batches of the training rows; over several processes each row once in an epoch."""
        args = self.args
        if args.world_size == 1:
            return super().get_train_dataloader()
        order = self._get_train_sampler()
        assert order is not None
        size, accumulation = self._train_batch_size, args.gradient_accumulation_steps
        batches = UpdateBatches(order, size, accumulation=accumulation, processes=args.world_size)
        return self._loader(self.train_dataset, batches)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        """Batches of rows to evaluate on; over several processes each row counts once."""
        if self.args.world_size == 1:
            return super().get_eval_dataloader(eval_dataset)
        rows: Any = self.eval_dataset if eval_dataset is None else eval_dataset
        size = self.args.eval_batch_size
        batches = EvaluationBatches(len(rows), size, processes=self.args.world_size)
        return self._loader(rows, batches)

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader:
        """As `get_eval_dataloader`."""
        return self.get_eval_dataloader(test_dataset)

    def _loader(self, rows: Any, batches: BatchSampler) -> DataLoader:
        loader = DataLoader(
            WithPaddingRows(rows),
            batch_sampler=batches,
            collate_fn=MarkingCollator(self.data_collator),
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
        )
        prepared: DataLoader = self.accelerator.prepare(loader)
        return prepared

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """As the Trainer's; over several processes with the mean loss of all rows."""
        self.losses = torch.zeros(2, dtype=torch.float64)
        output = super().evaluation_loop(*args, **kwargs)
        name = f"{kwargs.get('metric_key_prefix', 'eval')}_loss"
        if self.args.world_size > 1 and output.metrics and name in output.metrics:
            total, rows = self.accelerator.reduce(self.losses.to(self.args.device)).tolist()
            output.metrics[name] = total / rows
        return output

    def prediction_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """As the Trainer's, on the rows that count."""
        rows = 0 if inputs.pop(PADDING_BATCH, False) else rows_of(inputs)
        output = super().prediction_step(model, inputs, *args, **kwargs)
        if output[0] is not None and rows:
            self.losses += torch.tensor([rows * output[0].item(), rows], dtype=torch.float64)
        return output

    def _get_train_sampler(self, train_dataset: Dataset | None = None) -> Sampler | None:
        if sampling_strategy(self.args) != "group_by_length":
            return super()._get_train_sampler(train_dataset)
        dataset: Any = self.train_dataset if train_dataset is None else train_dataset
        lengths = numbers(dataset, "length").tolist()
        examples = examples_per_update(self.args) // self.kinds
        return LengthGroupedSampler(lengths, examples, self.args.seed)

    def _get_eval_sampler(self, eval_dataset: Dataset) -> Sampler:
        return SequentialSampler(eval_dataset)  # transformers' default would shuffle


def build_trainer(
    config: RunConfig, inputs: Inputs, model: PreTrainedModel, folder: Path, console: Console
) -> RunTrainer:
    """Make the trainer of a run; prints the attention implementation and the reason for it.

    Raises ConfigError if the methods do not fit the model or the trainer.
    """
    task, validation, tokenizer = inputs.task, inputs.prepared.validation, inputs.base.tokenizer

    def metrics(evaluation: EvalPrediction) -> dict[str, float]:
        return score(task, evaluation.predictions, validation)[0]

    regularizers, weights = config.regularizers(), inputs.class_weights
    several_labels = task.head.problem_type == "multi_label_classification"
    weighted = LabelWeightedLoss if several_labels else ClassWeightedLoss
    if weights:
        shown = (f"{name} {weight:.4g}" for name, weight in weights.items())
        say(console, f"class weights: {', '.join(shown)}")
    loaded_with = model.config._attn_implementation
    with settings_of_one_run():
        arguments = training_arguments(config, folder, task)
        with as_config_error():
            trainer = RunTrainer(
                model=model,
                args=arguments,
                regularizers=regularizers,
                unlabeled_dataset=inputs.unlabeled and inputs.unlabeled[0],
                alternate=config.alternate,
                train_dataset=inputs.prepared.train,
                eval_dataset=shortest_first(validation),
                data_collator=task.head.collator(tokenizer),
                processing_class=tokenizer,
                compute_metrics=metrics,
                compute_loss_func=weighted(list(weights.values())) if weights else None,
                optimizer_cls_and_kwargs=None if config.bias_correction else uncorrected(arguments),
            )
    if trainer.is_fsdp_enabled:
        prepare_shards(trainer, model, config)
    if config.early_stopping_patience is not None:
        metric, greater = best_score(config, task)
        stopping = EarlyStopping(
            metric,
            greater_is_better=greater,
            patience=config.early_stopping_patience,
            threshold=config.early_stopping_threshold,
            counts=partial(all_have_acted, regularizers),
        )
        trainer.add_callback(stopping)
    trainer.kinds = 2 if inputs.unlabeled and config.alternate == "batch" else 1
    trainer.run_identity = {
        EXAMPLES: examples_per_update(arguments),
        "data": inputs.fingerprints["data"],
        "unlabeled data": inputs.fingerprints["unlabeled"],
        "base model's weights": inputs.fingerprints["base_weights"],
    }
    trainer.remove_callback(PrinterCallback)
    _say_attention(regularizers, loaded_with, model.config._attn_implementation, console)
    if clips := clipping_methods(config.methods):
        say(console, f"max_grad_norm is 0: {clips[0]} clips gradients itself")
    return trainer


def _say_attention(
    regularizers: Sequence[Regularizer], loaded_with: str, attention: str, console: Console
) -> None:
    """Print the attention implementation, and why it is that."""
    second = " and ".join(r.name for r in regularizers if r.traits.derivative_order > 1)
    if attention != loaded_with:
        why = f"{second} needs second derivatives, which {loaded_with} does not have"
    elif second and attention != "eager":
        why = f"{second} needs second derivatives, which one of PyTorch's kernels has"
    else:
        why = "transformers' choice for this model; no method needs another"
    say(console, f"attention: {attention} ({why})")


@contextmanager
def as_config_error() -> Iterator[None]:
    """Turn ValueErrors, of methods that do not fit model or trainer, into ConfigErrors."""
    try:
        yield
    except ValueError as error:
        raise ConfigError([Problem("", "methods", str(error))]) from error


def evaluate(trainer: RunTrainer, task: Task, rows: Dataset) -> tuple[dict[str, float], np.ndarray]:
    """Metrics and predictions of rows, the predictions in the order of the rows."""
    trainer.compute_metrics = None  # it is made for the validation rows
    return score(task, trainer.predict(shortest_first(rows)).predictions, rows)


def some_examples(rows: Dataset, count: int | None, seed: int) -> Dataset:
    """At most `count` of the examples, drawn at random, each with all of its rows; None: all."""
    of_rows = numbers(rows, "example_id")
    examples = np.unique(of_rows)
    if count is None or count >= len(examples):
        return rows
    sample = np.random.default_rng(seed).permutation(examples)[:count]
    return rows.select(np.flatnonzero(np.isin(of_rows, sample)), keep_in_memory=True)


def shortest_first(rows: Dataset) -> Dataset:
    """The rows from short to long, the order of evaluation, which needs little padding."""
    return rows.select(_by_length(rows), keep_in_memory=True)


def score(task: Task, outputs: Any, rows: Dataset) -> tuple[dict[str, float], np.ndarray]:
    """Metrics and predictions of rows, from the model's outputs for `shortest_first` of them."""
    original_order = np.argsort(_by_length(rows))
    arrays = outputs if isinstance(outputs, tuple) else (outputs,)
    pairs = zip(task.head.outputs, arrays, strict=False)  # some models return more outputs
    ordered = {name: array[original_order] for name, array in pairs}
    predictions = task.head.predictions(ordered, rows)
    return task.scorer.score(predictions, rows), predictions


def _by_length(rows: Dataset) -> np.ndarray:
    return np.argsort(numbers(rows, "length"), kind="stable")
