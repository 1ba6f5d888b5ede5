"""A model and its data, loaded: what every part of an evaluation measures."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from datasets import Dataset

from smoothtune.config.evaluation import Settings
from smoothtune.evaluation.predictor import Predictor
from smoothtune.models.load import load_base, load_classifier
from smoothtune.nn.architecture import embedding_table
from smoothtune.tasks.prepare import Prepared


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
        """The validation rows of `sample` as text, for pairs text_pair, labels and example_id."""
        task, split = self.prepared.task, self.prepared.validation_split
        source = self.settings.data or task.hub_id or ""
        raw = task.load_splits(source, need_train=False)[split]
        labels = task.rows.check({split: raw}, source)[split]
        ids = np.asarray(self.prepared.validation["example_id"][:])
        return task.rows.select(raw, ids[self.sample()], labels)

    def num_examples(self, rows: Dataset) -> int:
        """Number of examples; one with a long context has several rows."""
        return len(self.prepared.task.scorer.example_ids(rows))

    @cached_property
    def pretrained(self) -> tuple[Any, list[str]] | None:
        """The pre-trained model in evaluation mode, and names of weights that are new in it.

        None where it is not known.
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
        order = np.random.default_rng(self.settings.seed).permutation(examples)
        return np.flatnonzero(np.isin(ids, order[: min(limit, count or limit)]))

    def rows(self, count: int | None = None) -> Dataset:
        """The validation rows of `sample`."""
        return self.prepared.validation.select(self.sample(count), keep_in_memory=True)
