"""A fine-tuned classifier or regressor, and what it says about tokenized examples."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from datasets import Dataset
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerBase

from smoothtune import random
from smoothtune.data import Collator, Task
from smoothtune.metrics import compute_metrics
from smoothtune.models import Base, ModelError, quiet
from smoothtune.passes import Batch, Pass, evaluating
from smoothtune.taps import Point


class Progress(Protocol):
    """Is told how far long work is."""

    def start(self, title: str, total: int) -> None:
        """Work of `total` batches begins."""

    def advance(self) -> None:
        """One of them is done."""


class Silent:
    """A `Progress` that shows nothing."""

    def start(self, title: str, total: int) -> None:
        """Nothing."""

    def advance(self) -> None:
        """Nothing."""


@dataclass
class Predictor:
    """A model with all that is needed to run it on tokenized examples, in evaluation mode.

    The model's output is taken in the order of the task's labels, whatever the model's own is, and
    its loss is computed here: cross entropy for classes, squared error for scores.
    """

    model: nn.Module
    """Sequence classifier or regressor of transformers, on the device where it is to run."""
    tokenizer: PreTrainedTokenizerBase
    """Pads, on its `padding_side`."""
    task: Task
    """Gives the labels and the metrics."""
    outputs: tuple[int, ...] | None = None
    """The model's output number of every label; None if they are the same."""
    batch_size: int = 32
    """Examples that run at once."""
    seed: int = 0
    """Of everything that is drawn."""
    progress: Progress = Silent()
    """Is told about every batch."""

    def batches(self, rows: Dataset) -> Iterator[tuple[np.ndarray, dict[str, Tensor]]]:
        """Batches of similar length, so that little is padded.

        Args:
            rows: tokenized examples with `length`.

        Yields:
            Row numbers (B,) and the model's inputs (B, T), with `labels` (B,) where there are any.
        """
        order = np.argsort(np.asarray(rows["length"][:]), kind="stable")
        collate = Collator(self.tokenizer)
        device = next(self.model.parameters()).device
        for start in range(0, len(order), self.batch_size):
            chosen = order[start : start + self.batch_size]
            batch = collate([rows[int(row)] for row in chosen])
            batch.pop("example_id", None)
            yield chosen, {name: tensor.to(device) for name, tensor in batch.items()}
            self.progress.advance()

    def count(self, rows: Dataset) -> int:
        """Number of batches."""
        return -(-len(rows) // self.batch_size)

    def read(self, model: nn.Module, batch: dict[str, Any]) -> tuple[Tensor | None, Any]:
        """The loss over a batch with labels, and the logits (B, C) in the task's order."""
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        logits = model(**inputs)["logits"]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32)).reshape(
            len(logits), -1
        )
        if self.outputs is not None:
            logits = logits[:, list(self.outputs)]
        labels = batch.get("labels")
        if labels is None:
            return None, {"logits": logits}
        if self.task.regression:
            return F.mse_loss(logits[:, 0], labels.to(logits.dtype)), {"logits": logits}
        return F.cross_entropy(logits, labels), {"logits": logits}

    def clean(
        self,
        batch: Batch,
        *,
        points: tuple[Point, ...] = ("word",),
        hidden_states: bool = True,
        differentiable: bool = False,
    ) -> Pass:
        """The unperturbed pass over a batch, without dropout; the arguments are those of `Pass`."""
        return Pass(
            self.model,
            batch,
            task=self.read,
            points=points,
            hidden_states=hidden_states,
            differentiable=differentiable,
            dropout="off",
        )

    def draws(self, name: str, batch: Batch, *counters: int) -> AbstractContextManager[None]:
        """Draw, within a `with`, from a generator that depends on seed, name and counters alone."""
        call = int(np.random.SeedSequence(counters).generate_state(1)[0])
        return random.stream(batch["input_ids"].device, self.seed, name, call)

    def predict(
        self, rows: Dataset, perturb: Callable[[Pass, int], Tensor | None] | None = None
    ) -> np.ndarray:
        """Logits of all rows.

        Args:
            rows: tokenized examples.
            perturb: (clean pass, number of the batch) -> (B, T, D) added to the word embeddings.

        Returns:
            (N, C) in the order of the rows.
        """
        logits = np.empty((len(rows), self.task.num_labels))
        with torch.no_grad(), evaluating(self.model):
            for number, (chosen, batch) in enumerate(self.batches(rows)):
                run = self.clean(batch, hidden_states=False)
                if perturb is not None:
                    run = run.at(perturb(run, number), dropout="off")
                logits[chosen] = run.logits.cpu().numpy()
        return logits

    def metrics(self, logits: np.ndarray, rows: Dataset) -> dict[str, float]:
        """The task's metrics, see `compute_metrics`."""
        return compute_metrics(self.task, logits, np.asarray(rows["labels"][:]))

    def headline(self, logits: np.ndarray, rows: Dataset) -> float:
        """The task's first metric."""
        return self.metrics(logits, rows)[self.task.metrics[0]]


def load_predictor(
    base: Base,
    task: Task,
    *,
    batch_size: int = 32,
    seed: int = 0,
    progress: Progress | None = None,
) -> Predictor:
    """Load a fine-tuned model, trained by this library or not.

    Outputs are matched with the task's labels by their names where the model knows these names,
    else by their numbers.

    Args:
        base: what `load_base` returned.
        task: the task, its labels known.
        batch_size: examples that run at once.
        seed: of everything that is drawn.
        progress: is told about every batch.

    Returns:
        The predictor, in float32 and evaluation mode.

    Raises:
        ModelError: the model cannot be loaded, answers another kind of question, was not
            fine-tuned, or has another number of outputs than the task has labels.
    """
    kinds = base.config.architectures or []
    if any(kind.endswith("ForQuestionAnswering") for kind in kinds):
        raise ModelError(
            f"{base.source} is a question-answering model, whose spans this command cannot decode "
            "yet: decode them yourself and score the texts with "
            "smoothtune.evaluation.squad_metrics(predictions, answers)"
        )
    try:
        with quiet():
            model, info = AutoModelForSequenceClassification.from_pretrained(
                base.source,
                trust_remote_code=base.trust_remote_code,
                dtype=torch.float32,
                output_loading_info=True,
            )
    except pickle.UnpicklingError as error:
        message = f"the weights of {base.source} hold more than tensors and are not loaded"
        raise ModelError(f"{message}; use a model with safetensors weights") from error
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise ModelError(f"the weights of {base.source} cannot be loaded: {error}") from error
    if new := sorted(info["missing_keys"]):
        raise ModelError(
            f"{base.source} is no fine-tuned classifier: it has no weights {', '.join(new[:3])}; "
            "fine-tune it first, for example with smoothtune train"
        )
    if model.config.num_labels != task.num_labels:
        raise ModelError(
            f"{base.source} has {model.config.num_labels} outputs, but task {task.name!r} needs "
            f"{task.num_labels}; name the task that the model was trained for"
        )
    model.config.pad_token_id = base.tokenizer.pad_token_id
    return Predictor(
        model.eval(),
        base.tokenizer,
        task,
        outputs=_outputs(model.config.label2id, task),
        batch_size=batch_size,
        seed=seed,
        progress=progress or Silent(),
    )


def _outputs(label2id: Mapping[str, int] | None, task: Task) -> tuple[int, ...] | None:
    """Which output belongs to each label of the task."""
    names = task.label_names or ()
    if label2id is None or set(label2id) != set(names):
        return None
    order = tuple(label2id[name] for name in names)
    return None if order == tuple(range(len(order))) else order
