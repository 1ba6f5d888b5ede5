"""The third part of a task: from predictions to answers and metrics."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from datasets import Dataset

from smoothtune.tasks.description import TaskDescription


@dataclass(frozen=True)
class Scorer(ABC):
    """Answers, statistics of examples, and the metrics that follow from these."""

    losses: ClassVar[tuple[str, ...]] = ()
    """Those of the `scores` of which less is better."""

    task: TaskDescription

    @property
    @abstractmethod
    def num_label_statistics(self) -> int:
        """Number of leading columns of the example statistics that do not depend on the model."""

    @abstractmethod
    def answers(self, predictions: np.ndarray, rows: Dataset) -> list[Any]:
        """What is predicted for every example, as users read it, in the order of `example_ids`."""

    def example_ids(self, rows: Dataset) -> np.ndarray:
        """(E,) the example of each entry of the example statistics."""
        return np.asarray(rows["example_id"][:])

    @abstractmethod
    def statistic_names(self) -> list[str]:
        """Names of the K columns of the example statistics."""

    @abstractmethod
    def example_statistics(self, predictions: np.ndarray, rows: Dataset) -> np.ndarray:
        """(E, K) statistics from which the metrics of any set of examples follow."""

    @abstractmethod
    def scores(self, statistics: np.ndarray) -> dict[str, float]:
        """Metrics of examples from their statistics (E, K), the main metric first."""

    def detailed_scores(self, statistics: np.ndarray) -> dict[str, float]:
        """`scores`, with further metrics that an evaluation shows."""
        return self.scores(statistics)

    def score(self, predictions: np.ndarray, rows: Dataset) -> dict[str, float]:
        """`scores` of the predictions (N, W) for rows with labels."""
        return self.scores(self.example_statistics(predictions, rows))

    @abstractmethod
    def baseline(self, rows: Dataset) -> float:
        """Main metric of the best constant prediction."""

    def confidence(self, predictions: np.ndarray, rows: Dataset) -> tuple[np.ndarray, np.ndarray]:
        """(E,) probability of the predicted answer, and (E,) whether it is correct, 0 or 1.

        For types whose predictions are no logits; NotImplementedError if there is no such
        probability, see `Task.unsupported_parts`.
        """
        raise NotImplementedError(f"no calibration of a {self.task.model_noun}")
