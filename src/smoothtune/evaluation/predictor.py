"""A fine-tuned model and its predictions for tokenized examples."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from rich.console import Console
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from smoothtune.console import Bar, quiet
from smoothtune.core.forward import Batch, ForwardPass
from smoothtune.errors import ModelError
from smoothtune.models.checks import only_model_errors
from smoothtune.models.load import Base
from smoothtune.models.lora import is_adapter, load_merged
from smoothtune.models.positions import check_lengths
from smoothtune.nn import rng
from smoothtune.nn.hooks import Point
from smoothtune.tasks.base import Task

Perturb = Callable[[ForwardPass, int], Iterable[Tensor | None]]
"""From the clean pass over a batch, not run yet, and the batch's number to perturbations (B, T, D),
each added to the word embeddings."""


@dataclass
class Predictor:
    """A model with all that is needed to run it on tokenized examples, in evaluation mode.

    The model's output is taken in the order of the task's labels, whatever the model's own is, and
    its loss is computed here. What the predictions are, (N, W), depends on the type of the task:
    for texts, logits (N, C) or scores (N, 1); for others see the classes of `smoothtune.tasks`.
    """

    model: nn.Module
    """A model of transformers with the head of the task, on the device where it is to run."""
    tokenizer: PreTrainedTokenizerBase
    """Pads, on its `padding_side`."""
    task: Task
    """Gives the labels and the metrics."""
    outputs: tuple[int, ...] | None = None
    """The model's output number of every label; None if they are the same."""
    batch_size: int = 32
    """Examples that run at once."""
    seed: int = 0
    """Of all random draws."""
    progress: Bar = field(default_factory=lambda: Bar(Console(quiet=True)))
    """Shows how many batches are done."""

    def batches(self, rows: Dataset) -> Iterator[tuple[np.ndarray, dict[str, Tensor]]]:
        """Batches of similar length, so that little is padded.

        Args:
            rows: tokenized examples with `length`.

        Yields:
            Row numbers (B,) and the model's inputs (B, T), with labels where there are any.

        Raises:
            ConfigError: a row is longer than the model takes.
        """
        check_lengths(self.model, rows)
        order = np.argsort(np.asarray(rows["length"][:]), kind="stable")
        collate = self.task.head.collator(self.tokenizer)
        device = next(self.model.parameters()).device
        for start in range(0, len(order), self.batch_size):
            indices = order[start : start + self.batch_size]
            batch = collate(rows.__getitems__(indices.tolist()))  # in one slice
            batch.pop("example_id", None)
            yield indices, {name: tensor.to(device) for name, tensor in batch.items()}
            self.progress.advance()

    def num_batches(self, rows: Dataset) -> int:
        """Number of batches."""
        return -(-len(rows) // self.batch_size)

    def compute_loss(self, model: nn.Module, batch: dict[str, Any]) -> tuple[Tensor | None, Any]:
        """The loss over a batch with labels, and the outputs, classes in the task's order."""
        head = self.task.head
        inputs = {name: value for name, value in batch.items() if name not in head.label_inputs}
        raw = model(**inputs)
        outputs = {name: self._ordered(raw[name]) for name in head.outputs}
        labeled = all(name in batch for name in head.label_inputs)
        return head.loss(outputs, batch) if labeled else None, outputs

    def _ordered(self, logits: Tensor) -> Tensor:
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if self.task.head.problem_type is not None:  # some models leave the last dimension out
            logits = logits.reshape(len(logits), -1)
        return logits if self.outputs is None else logits[..., list(self.outputs)]

    def clean(
        self,
        batch: Batch,
        *,
        points: tuple[Point, ...] = ("word",),
        hidden_states: bool = True,
        differentiable: bool = False,
    ) -> ForwardPass:
        """The unperturbed pass over a batch, not run yet, without dropout; see `ForwardPass`."""
        return ForwardPass(
            self.model,
            batch,
            compute_loss=self.compute_loss,
            points=points,
            hidden_states=hidden_states,
            differentiable=differentiable,
            dropout="off",
        )

    def passes(
        self, rows: Dataset, **options: Any
    ) -> Iterator[tuple[int, np.ndarray, ForwardPass]]:
        """Every batch's number, its row numbers (B,), and `clean` with these options."""
        for number, (indices, batch) in enumerate(self.batches(rows)):
            yield number, indices, self.clean(batch, **options)

    def random_stream(
        self, name: str, batch: Batch, *counters: int
    ) -> AbstractContextManager[None]:
        """Draw, within a `with`, from a generator that depends on seed, name and counters alone."""
        call = int(np.random.SeedSequence(counters).generate_state(1)[0])
        return rng.stream(batch["input_ids"].device, self.seed, name, call)

    def predict(self, rows: Dataset) -> np.ndarray:
        """Predictions (N, W) for all rows of tokenized examples, in their order."""
        predictions: np.ndarray = self.predict_perturbed(rows, 1, lambda clean, number: [None])[0]
        return predictions

    def predict_perturbed(self, rows: Dataset, count: int, perturb: Perturb) -> np.ndarray:
        """Predictions under perturbations of the word embeddings.

        Args:
            rows: tokenized examples.
            count: number of perturbations.
            perturb: gives them for every batch; None: none.

        Returns:
            (count, N, W) in the order of the rows.
        """
        head = self.task.head
        predictions = np.zeros((count, len(rows), head.prediction_width(rows)))
        for number, indices, clean in self.passes(rows, hidden_states=False):
            batch_rows = rows.select(indices, keep_in_memory=True)
            for index, delta in enumerate(perturb(clean, number)):
                with torch.no_grad():
                    run = clean.run() if delta is None else clean.at(delta, dropout="off")
                outputs = {name: run.outputs[name].cpu().numpy() for name in head.outputs}
                values = head.predictions(outputs, batch_rows)
                predictions[index, indices, : values.shape[1]] = values
        return predictions

    def metrics(self, predictions: np.ndarray, rows: Dataset) -> dict[str, float]:
        """The task's metrics."""
        return self.task.scorer.score(predictions, rows)

    def main_metric(self, predictions: np.ndarray, rows: Dataset) -> float:
        """Value of the task's first metric."""
        return self.metrics(predictions, rows)[self.task.main_metric]


def _load(base: Base, task: Task) -> tuple[Any, set[str]]:
    """The model, and names of weights that are in no file and so are random."""
    options: dict[str, Any] = {"trust_remote_code": base.trust_remote_code}
    if is_adapter(base.source):
        return load_merged(base.source, task.auto_model, base.config, **options)
    model, info = task.auto_model.from_pretrained(
        base.source, output_loading_info=True, dtype=torch.float32, **options
    )
    return model, set(info["missing_keys"])


def load_predictor(
    base: Base,
    task: Task,
    *,
    batch_size: int = 32,
    seed: int = 0,
    progress: Bar | None = None,
) -> Predictor:
    """Load a fine-tuned model, trained by this library or not.

    Outputs are matched with the task's labels by their names where the model knows these names,
    else by their numbers.

    Args:
        base: what `load_base` returned.
        task: the task, its labels known.
        batch_size: examples that run at once.
        seed: of all random draws.
        progress: shows how many batches are done.

    Returns:
        The predictor, in float32 and evaluation mode.

    Raises:
        ModelError: the model cannot be loaded, answers another kind of question, was not
            fine-tuned, has weights that are not finite, or another number of outputs than the task
            has labels.
    """
    with only_model_errors(f"the weights of {base.source} cannot be loaded"), quiet():
        model, new = _load(base, task)
    if new:
        classes = ", ".join(base.config.architectures or ["not known"])
        raise ModelError(
            f"{base.source} ({classes}) is no fine-tuned {task.model_noun}: it has no weights "
            f"{', '.join(sorted(new)[:3])}; name the task that it was trained for, such as --task "
            "squad for question answering, or fine-tune it first, for example with smoothtune train"
        )
    for name, weight in model.state_dict().items():
        if weight.is_floating_point() and not weight.isfinite().all():  # the best of NaN is class 0
            raise ModelError(
                f"{base.source}: weight {name} is not finite everywhere; train it again"
            )
    try:
        outputs = task.head.fit_outputs(model.config)
    except ValueError as error:
        message = f"{base.source} {error}, or name the task that the model was trained for"
        raise ModelError(message) from error
    model.config.pad_token_id = base.tokenizer.pad_token_id
    if model.config.problem_type is None:  # what divergences of its predictions are taken of
        model.config.problem_type = task.head.config().get("problem_type")
    return Predictor(
        model.eval(),
        base.tokenizer,
        task,
        outputs=outputs,
        batch_size=batch_size,
        seed=seed,
        progress=progress or Bar(Console(quiet=True)),
    )
