"""Token classification: a tag for every word, as in named-entity recognition."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch.nn.functional as F
from datasets import Dataset, Value
from datasets import Sequence as ListOf
from seqeval.metrics.sequence_labeling import get_entities
from torch import Tensor
from transformers import (
    AutoModelForTokenClassification,
    DataCollatorForTokenClassification,
    PreTrainedTokenizerBase,
)

from smoothtune.data.batches import Collator
from smoothtune.data.columns import IGNORE_INDEX, rows_with_problems, typed_columns
from smoothtune.data.tokenizing import MIN_CACHED_ROWS, Encoder, check_offsets
from smoothtune.errors import ModelError
from smoothtune.tasks.base import Task
from smoothtune.tasks.head import Collate, Head
from smoothtune.tasks.labels import LISTS
from smoothtune.tasks.reader import Reader
from smoothtune.tasks.scorer import Scorer
from smoothtune.tasks.text_classification import class_counts

_ENTITY = re.compile(r"O|[BIESLU]-.+")
_BILOU = str.maketrans("LU", "ES")
"""The last word of an entity, and the only one, as seqeval knows them."""


@dataclass(frozen=True)
class WordReader(Reader):
    """One row per sentence; the label of a word's first token is its tag, all others are -100."""

    input_columns = ("tokens",)

    def check_description(self) -> None:
        """One column with lists of words, and one with lists of tags."""
        if len(self.task.text_columns) != 1 or self.task.text_columns[0] == self.task.label_column:
            raise ValueError("token classification reads one column of words and one of tags")

    def label_names(self, train: Dataset, where: str) -> tuple[str, ...]:
        """Names of the tags."""
        return self._labels(train).names_in_lists(where)

    def _check_rows(self, split: Dataset) -> tuple[list[list[Any]], list[str]]:
        """The tags as class ids."""
        column = self.task.label_column
        tags, unknown = self._labels(split).tag_ids(self.task.known_label_names)
        problems = self._input_problems(split)
        if not problems:
            words = split[self.task.text_columns[0]][:]
            wrong = [
                problem if len(t) == len(w) else f"has {len(t)} tags for {len(w)} words"
                for t, w, problem in zip(tags, words, unknown, strict=True)
            ]
            problems = rows_with_problems(split, column, split[column][:], wrong)
        return tags, problems

    def _input_problems(self, split: Dataset) -> list[str]:
        column = self.task.text_columns[0]
        words = split[column][:]
        return rows_with_problems(split, column, words, map(_words_problem, words))

    def select(self, raw: Dataset, indices: np.ndarray, labels: list[list[int]] | None) -> Dataset:
        """Columns tokens, tags if given, example_id."""
        words = raw.select_columns(self.task.text_columns[0]).select(indices, keep_in_memory=True)
        tokens, numbers = words[self.task.text_columns[0]][:], ListOf(Value("int64"))
        return typed_columns(
            tokens=(ListOf(Value("string")), tokens),
            **({} if labels is None else {"tags": (numbers, [labels[row] for row in indices])}),
            example_id=(Value("int64"), indices),
        )

    def encoder(self, tokenizer: PreTrainedTokenizerBase, max_seq_length: int) -> Encoder:
        """Labels are those of tokens; without tags `words` are the numbers of the words instead."""
        check_offsets(tokenizer, self.task.task_type)
        if _depends_on_spaces(json.loads(tokenizer.backend_tokenizer.to_str())["pre_tokenizer"]):
            raise ModelError(
                "this tokenizer tokenizes a word differently after a space: load it with "
                "add_prefix_space=True and save it beside the model"
            )
        return Encoder(
            lambda batch: _encode(batch, tokenizer, max_seq_length),
            f"tags {max_seq_length}",
            MIN_CACHED_ROWS,
        )

    def label_counts(self, examples: Dataset, rows: Dataset) -> dict[str, float]:
        """Number of words with each tag."""
        return class_counts(_gold_tags(rows), self.task.known_label_names)


@dataclass(frozen=True)
class TagHead(Head):
    """Predictions are the tag of every token, (N, T)."""

    def collator(self, tokenizer: PreTrainedTokenizerBase) -> Collate:
        """Pads with the tokenizer, and labels with -100."""
        return Collator(tokenizer, padding=DataCollatorForTokenClassification)

    def loss(self, outputs: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> Tensor:
        """Cross entropy, a mean over the words of the batch."""
        return F.cross_entropy(outputs["logits"].flatten(0, 1), batch["labels"].flatten())

    def num_losses(self, batch: Mapping[str, Tensor]) -> int:
        """One for every word."""
        return int((batch["labels"] != IGNORE_INDEX).sum())

    def prediction_width(self, rows: Dataset) -> int:
        """The longest row."""
        return max(rows["length"][:])

    def predictions(self, outputs: Mapping[str, np.ndarray], rows: Dataset) -> np.ndarray:
        """The most likely tag of every token; batches on a GPU are wider than their longest row."""
        return outputs["logits"].argmax(-1)[:, : self.prediction_width(rows)]


@dataclass(frozen=True)
class EntityScorer(Scorer):
    """The statistics of a sentence are counts of words and entities; cut words are not scored."""

    num_label_statistics = 2

    def answers(self, predictions: np.ndarray, rows: Dataset) -> list[list[str | None]]:
        """The tags of every sentence, from rows without labels; None for words without a token.

        Such are words that were cut off, and control characters alone.
        """
        sentences = []
        for predicted, words, count in zip(
            predictions, rows["words"][:], rows["num_words"][:], strict=True
        ):
            tags: list[str | None] = [None] * count
            for tag, word in zip(predicted, words, strict=False):  # predictions are padded
                if word != IGNORE_INDEX:
                    tags[word] = self.task.known_label_names[int(tag)]
            sentences.append(tags)
        return sentences

    def statistic_names(self) -> list[str]:
        """Counts per sentence."""
        return ["words", "entities", "right_words", "predicted_entities", "right_entities"]

    def example_statistics(self, predictions: np.ndarray, rows: Dataset) -> np.ndarray:
        """(N, 5); the counts of entities are 0 unless the tags are BIO or similar."""
        names = np.array([x[0].translate(_BILOU) + x[1:] for x in self.task.known_label_names])
        counts = []
        for labels, predicted in zip(rows["labels"][:], predictions, strict=True):
            gold = np.asarray(labels)
            scored = gold != IGNORE_INDEX
            tags, gold = predicted[: len(gold)][scored].astype(int), gold[scored]
            entities, guesses = set[Any](), set[Any]()
            if "f1" in self.task.metrics:
                entities, guesses = (set(get_entities(names[x].tolist())) for x in (gold, tags))
            right = int((gold == tags).sum()), len(guesses), len(entities & guesses)
            counts.append((len(gold), len(entities), *right))
        return np.array(counts, float)

    def scores(self, statistics: np.ndarray) -> dict[str, float]:
        """Accuracy over words, and precision, recall and F1 over entities, as seqeval does."""
        words, entities, right_words, predicted, right = statistics.sum(0)
        values = {
            "f1": _share(2 * right, predicted + entities),
            "precision": _share(right, predicted),
            "recall": _share(right, entities),
            "accuracy": _share(right_words, words),
        }
        return {name: values[name] for name in self.task.metrics}

    def baseline(self, rows: Dataset) -> float:
        """Accuracy of the most frequent tag; 0 for F1."""
        counts = np.bincount(_gold_tags(rows))
        return 0.0 if self.task.main_metric == "f1" else _share(counts.max(), counts.sum())


@final
@dataclass(frozen=True)
class TokenClassification(Task):
    """A tag for every word."""

    task_type = "token-classification"
    reader_class = WordReader
    head_class = TagHead
    scorer_class = EntityScorer
    auto_model = AutoModelForTokenClassification
    model_noun = "token classifier"
    peft_type = "TOKEN_CLS"
    hub_task = "token-classification"
    label_types = ("text",)
    usual_columns = {"text_columns": ["tokens"], "label_column": "tags"}
    unsupported_parts = {
        "calibration": "a sentence has many tags, and entities have no single probability",
        "corruption": "corrupted words may no longer have their tags",
        "substitution": "exchanged words may no longer have their tags",
    }

    text_columns: tuple[str, ...] = ("tokens",)
    label_column: str = "tags"

    def default_metrics(self, label_names: tuple[str, ...]) -> tuple[str, ...]:
        """Of entities and words where all tags are BIO or similar, else of words alone."""
        entities = all(_ENTITY.fullmatch(name) for name in label_names)
        return ("f1", "precision", "recall", "accuracy") if entities else ("accuracy",)


def _encode(
    batch: Mapping[str, list], tokenizer: PreTrainedTokenizerBase, max_seq_length: int
) -> dict[str, list]:
    encoded = tokenizer(
        batch["tokens"],
        is_split_into_words=True,
        truncation=True,
        max_length=max_seq_length,
        verbose=False,
    )
    columns = {name: encoded[name] for name in tokenizer.model_input_names if name in encoded}
    counts = [len(tokens) for tokens in batch["tokens"]]
    labels, numbers = [], batch["tags"] if "tags" in batch else list(map(range, counts))
    for encoding, tags in zip(encoded.encodings, numbers, strict=True):
        words = encoding.word_ids
        pairs = zip(words, [None, *words[:-1]], strict=True)
        labels.append(
            [IGNORE_INDEX if word in (None, last) else tags[word] for word, last in pairs]
        )
    columns |= {"labels": labels} if "tags" in batch else {"words": labels, "num_words": counts}
    columns["length"] = [len(encoding.ids) for encoding in encoded.encodings]
    columns["cut"] = [bool(encoding.overflowing) for encoding in encoded.encodings]
    return columns


def _depends_on_spaces(part: Any) -> bool:
    """Whether a pre-tokenizer is byte-level and does not put a space before every word."""
    if isinstance(part, list):
        return any(map(_depends_on_spaces, part))
    if not isinstance(part, dict):
        return False
    depends = part.get("type") == "ByteLevel" and not part["add_prefix_space"]
    return depends or _depends_on_spaces(part.get("pretokenizers"))


def _words_problem(words: Any) -> str:
    if isinstance(words, str):
        return f"is a text and no list of words; {LISTS}"
    if not isinstance(words, list) or not words:
        return "is no list of words; drop the row or fill it in"
    blank = any(not isinstance(word, str) or not word.strip() for word in words)
    return "holds a word that is empty or no text" if blank else ""


def _gold_tags(rows: Dataset) -> np.ndarray:
    """Tags of all words."""
    labels = np.concatenate([np.asarray(labels, int) for labels in rows["labels"][:]])
    return labels[labels != IGNORE_INDEX]


def _share(part: float, total: float) -> float:
    return float(part / total) if total else 0.0
