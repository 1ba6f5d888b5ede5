"""Several models that predict as one: the mean of their probabilities.

Reference: Lakshminarayanan, Pritzel, Blundell: Simple and Scalable Predictive Uncertainty
Estimation using Deep Ensembles, NeurIPS 2017.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from datasets import Dataset
from scipy.special import log_expit, log_softmax, logsumexp

from smoothtune.errors import ModelError
from smoothtune.evaluation.calibration import ANSWERS, LABELS, kind_of
from smoothtune.evaluation.predictor import Predictor
from smoothtune.tasks.base import Task


@dataclass
class Ensemble(Predictor):
    """A `Predictor` whose predictions are those of several models together.

    Its weights are those of the first model, so what perturbs or measures weights or embeddings
    says nothing about the ensemble.
    """

    others: tuple[Predictor, ...] = ()

    @classmethod
    def of(cls, members: Sequence[Predictor], names: Sequence[str]) -> Ensemble:
        """An ensemble of models for one task, that split texts alike."""
        first, *others = members
        if kind_of(first.task) is ANSWERS:
            raise ModelError(
                "an ensemble needs probabilities or scores to average, and "
                f"{first.task.task_type} has none: evaluate one model"
            )
        vocabulary = first.tokenizer.get_vocab()
        for name, other in zip(names[1:], others, strict=True):
            if other.tokenizer.get_vocab() != vocabulary:
                raise ModelError(
                    f"{name} has another vocabulary than {names[0]}: an ensemble needs models that "
                    "were fine-tuned from one pre-trained model"
                )
        return cls(**vars(first), others=tuple(others))

    def num_batches(self, rows: Dataset) -> int:
        """Number of batches, of all models."""
        return super().num_batches(rows) * (1 + len(self.others))

    def predict(self, rows: Dataset) -> np.ndarray:
        """Predictions (N, W): scores, or logits whose probabilities are the mean."""
        members = [super().predict(rows), *(other.predict(rows) for other in self.others)]
        return mean_prediction(np.stack(members), self.task)


def mean_prediction(predictions: np.ndarray, task: Task) -> np.ndarray:
    """Predictions (N, W) of an ensemble from those of its M models (M, N, W)."""

    def log_mean(log_probabilities: np.ndarray) -> np.ndarray:
        return logsumexp(log_probabilities, axis=0) - np.log(len(predictions))

    kind = kind_of(task)
    if kind is None:
        return np.asarray(predictions.mean(0))
    if kind is LABELS:
        return log_mean(log_expit(predictions)) - log_mean(log_expit(-predictions))
    return log_mean(log_softmax(predictions, axis=-1))
