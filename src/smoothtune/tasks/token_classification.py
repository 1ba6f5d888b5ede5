"""Token classification: a tag for every word, as in named-entity recognition."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from datasets import ClassLabel, Dataset, Features, Value
from datasets import Sequence as ListOf
from seqeval.metrics.sequence_labeling import get_entities
from torch import Tensor
from transformers import (
    AutoModelForTokenClassification,
    DataCollatorForTokenClassification,
    PreTrainedTokenizerBase,
)

from smoothtune.data.columns import IGNORE_INDEX, rows_with_problems
from smoothtune.data.summary import SplitReport, lengths_of
from smoothtune.data.tokenizing import LARGE, cached_map
from smoothtune.errors import DataError, ModelError
from smoothtune.tasks.base import Collate, Description, Kind, Task, TokenizeOptions, check_columns
from smoothtune.tasks.text_classification import matched_outputs

_ENTITY = re.compile(r"O|[BIESLU]-.+")


class TokenClassification(Kind):
    """One row for every sentence; the first token of a word has its tag, all others -100.

    Predictions are the tag of every token, (N, T). Words that were cut off are not scored.
    """

    auto_model = AutoModelForTokenClassification
    what = "token classifier"
    texts = ("tokens",)
    gold_columns = 2
    not_for = {
        "calibration": "a sentence has many answers, and entities have no probability of their own",
        "corruption": "damaged words would no longer have the tags they were given",
    }

    def describe(self, said: Description) -> Task:
        """One column with lists of words, tokens, and one with lists of tags, tags."""
        words, tags = said.text_columns or ("tokens",), said.label_column or "tags"
        if len(words) != 1 or words[0] == tags:
            raise ValueError("token classification reads one column of words and one of tags")
        return Task(said.name, tuple(words), tags, None, (), task_type="token-classification")

    def complete(self, task: Task, train: Dataset, source: str) -> Task:
        """Find the names of the tags; entity metrics where they are O, B-... and I-..."""
        where = f"{source}, split 'train'"
        check_columns(train, (*task.text_columns, task.label_column), where)
        names = task.label_names or _names(train, task.label_column, where)
        entities = all(_ENTITY.fullmatch(name) for name in names)
        metrics = ("f1", "precision", "recall", "accuracy") if entities else ("accuracy",)
        return replace(task, label_names=names, metrics=metrics)

    def check(self, splits: Mapping[str, Dataset], task: Task, source: str) -> dict[str, list]:
        """Check words and tags; gives the tags as class ids."""
        problems, labels, (words,) = [], {}, task.text_columns
        for name, split in splits.items():
            where = f"{source}, split {name!r}"
            check_columns(split, (words, task.label_column), where)
            tokens = split[words][:]
            tags = _ids(split, task)
            found = rows_with_problems(words, tokens, map(_words_problem, tokens))
            if not found:
                wrong = (_tags_problem(*row, task) for row in zip(tags, tokens, strict=True))
                found = rows_with_problems(task.label_column, split[task.label_column][:], wrong)
            problems += [f"{where}: {problem}" for problem in found]
            labels[name] = tags
        if problems:
            raise DataError("\n".join(problems))
        return labels

    def select(self, raw: Dataset, task: Task, indices: np.ndarray, labels: list) -> Dataset:
        """Columns tokens, tags, example_id."""
        rows = raw.select_columns(list(task.text_columns)).select(indices, keep_in_memory=True)
        data = {
            "tokens": rows[task.text_columns[0]][:],
            "tags": [labels[row] for row in indices],
            "example_id": indices,
        }
        types = {
            "tokens": ListOf(Value("string")),
            "tags": ListOf(Value("int64")),
            "example_id": Value("int64"),
        }
        return Dataset.from_dict(data, features=Features(types))

    def tokenize(
        self,
        examples: Dataset,
        task: Task,
        tokenizer: PreTrainedTokenizerBase,
        options: TokenizeOptions,
        content: str,
    ) -> Dataset:
        """The tokenizer's columns, labels, length, cut, example_id.

        Raises:
            ModelError: the tokenizer does not say which token belongs to which word.
        """
        if not tokenizer.is_fast:
            raise ModelError("token classification needs a tokenizer of the tokenizers library")
        if _sees_blanks(json.loads(tokenizer.backend_tokenizer.to_str())["pre_tokenizer"]):
            raise ModelError(
                "this tokenizer reads a word differently after a blank: load it with "
                "add_prefix_space=True and save it beside the model"
            )

        def encode(batch: Mapping[str, list]) -> dict[str, list]:
            return _encode(batch, tokenizer, options.max_seq_length)

        encode(examples[:1])
        return cached_map(
            examples,
            encode,
            f"tags {content} {options.max_seq_length}",
            tokenizer,
            large=len(examples) >= LARGE,
            num_proc=options.num_proc,
            remove_columns=["tokens", "tags"],
        )

    def report(
        self,
        task: Task,
        examples: Dataset,
        rows: Dataset,
        tokenizer: PreTrainedTokenizerBase,
        max_seq_length: int,
    ) -> SplitReport:
        """Counts of tags, and sentences that were cut."""
        tags = _flat(rows["labels"][:])
        counts = np.bincount(tags[tags != IGNORE_INDEX], minlength=task.num_labels)
        return SplitReport(
            rows=len(rows),
            source_rows=len(examples),
            labels=dict(zip(task.label_names or (), counts.tolist(), strict=True)),
            lengths=lengths_of(np.asarray(rows["length"][:])),
            truncated=sum(rows["cut"][:]),
        )

    def collator(self, tokenizer: PreTrainedTokenizerBase) -> Collate:
        """Pads with the tokenizer, and labels with -100."""
        return _Collator(tokenizer)

    def head(self, task: Task) -> dict[str, Any]:
        """Number and names of the tags."""
        names = task.label_names or ()
        return {
            "num_labels": task.num_labels,
            "id2label": dict(enumerate(names)),
            "label2id": {name: index for index, name in enumerate(names)},
        }

    def fit_outputs(self, config: Any, task: Task) -> tuple[int, ...] | None:
        """By name where the model knows the tags, else by number."""
        return matched_outputs(config, task)

    def loss(
        self, task: Task, outputs: Mapping[str, Tensor], batch: Mapping[str, Tensor]
    ) -> Tensor:
        """Cross entropy, a mean over the words of the batch."""
        return F.cross_entropy(outputs["logits"].flatten(0, 1), batch["labels"].flatten())

    def width(self, task: Task, rows: Dataset) -> int:
        """The longest row."""
        return max(rows["length"][:])

    def predictions(
        self, task: Task, outputs: Mapping[str, np.ndarray], rows: Dataset
    ) -> np.ndarray:
        """The most likely tag of every token."""
        return outputs["logits"].argmax(-1)

    def evidence_columns(self, task: Task) -> list[str]:
        """Counts of a sentence."""
        return ["words", "entities", "right_words", "predicted_entities", "right_entities"]

    def evidence(self, task: Task, predictions: np.ndarray, rows: Dataset) -> np.ndarray:
        """(N, 5), without entities where the tags name none."""
        names = np.array(task.label_names)
        counts = []
        for labels, predicted in zip(rows["labels"][:], predictions, strict=True):
            gold = np.asarray(labels)
            scored = gold != IGNORE_INDEX
            found, gold = predicted[: len(gold)][scored].astype(int), gold[scored]
            entities, guesses = set[Any](), set[Any]()
            if "f1" in task.metrics:
                entities, guesses = (set(get_entities(names[x].tolist())) for x in (gold, found))
            right = int((gold == found).sum()), len(guesses), len(entities & guesses)
            counts.append((len(gold), len(entities), *right))
        return np.array(counts, float)

    def scores(self, task: Task, evidence: np.ndarray) -> dict[str, float]:
        """Accuracy over words, and precision, recall and F1 over entities, as seqeval does."""
        words, entities, right_words, predicted, right = evidence.sum(0)
        values = {
            "f1": _share(2 * right, predicted + entities),
            "precision": _share(right, predicted),
            "recall": _share(right, entities),
            "accuracy": _share(right_words, words),
        }
        return {name: values[name] for name in task.metrics}

    def baseline(self, task: Task, rows: Dataset) -> float:
        """Accuracy of the most frequent tag; no entity is ever found: F1 is 0."""
        tags = _flat(rows["labels"][:])
        counts = np.bincount(tags[tags != IGNORE_INDEX])
        return 0.0 if task.metrics[0] == "f1" else _share(counts.max(), counts.sum())


class _Collator:
    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.names = (*tokenizer.model_input_names, "labels")
        self.pad = DataCollatorForTokenClassification(
            tokenizer, pad_to_multiple_of=8 if torch.cuda.is_available() else None
        )

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        batch = self.pad([{name: row[name] for name in self.names if name in row} for row in rows])
        if "example_id" in rows[0]:
            batch["example_id"] = torch.tensor([row["example_id"] for row in rows])
        return dict(batch)


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
    labels = []
    for encoding, tags in zip(encoded.encodings, batch["tags"], strict=True):
        words = encoding.word_ids
        before = [None, *words[:-1]]
        labels.append(
            [
                IGNORE_INDEX if word is None or word == last else tags[word]
                for word, last in zip(words, before, strict=True)
            ]
        )
    inputs = {name: encoded[name] for name in tokenizer.model_input_names if name in encoded}
    return inputs | {
        "labels": labels,
        "length": [len(ids) for ids in encoded["input_ids"]],
        "cut": [bool(encoding.overflowing) for encoding in encoded.encodings],
    }


def _sees_blanks(part: Any) -> bool:
    """Whether a tokenizer cuts bytes, and does not put a blank before every word."""
    if isinstance(part, list):
        return any(map(_sees_blanks, part))
    if not isinstance(part, dict):
        return False
    bytes_alone = part.get("type") == "ByteLevel" and not part["add_prefix_space"]
    return bytes_alone or _sees_blanks(part.get("pretokenizers"))


def _names(train: Dataset, column: str, where: str) -> tuple[str, ...]:
    item = getattr(train.features[column], "feature", None)
    if isinstance(item, ClassLabel):
        return tuple(item.names)
    tags = {tag for tags in train[column][:] for tag in tags or ()}
    if tags and all(isinstance(tag, str) for tag in tags):
        return tuple(sorted(tags))
    if tags != set(range(len(tags))) or len(tags) < 2:
        shown = ", ".join(map(repr, list(tags)[:10]))
        raise DataError(
            f"{where}, column {column!r}: tags are lists of names, or of numbers 0, 1, 2, ... "
            f"without gaps, found {shown or 'none'}"
        )
    return tuple(str(tag) for tag in range(len(tags)))


def _ids(split: Dataset, task: Task) -> list[list[Any]]:
    """Tags as class ids; what is no tag stays as it is."""
    names = task.label_names or ()
    ids: dict[Any, Any] = {name: index for index, name in enumerate(names)}
    item = getattr(split.features[task.label_column], "feature", None)
    # The same tags in another order go by name.
    if isinstance(item, ClassLabel) and set(item.names) == set(names):
        ids |= {number: ids[name] for number, name in enumerate(item.names)}
    return [[ids.get(tag, tag) for tag in tags or ()] for tags in split[task.label_column][:]]


def _words_problem(words: Any) -> str:
    if not isinstance(words, list) or not words:
        return "is no list of words; drop the row or fill it in"
    blank = any(not isinstance(word, str) or not word.strip() for word in words)
    return "holds a word that is empty or no text" if blank else ""


def _tags_problem(tags: list[Any], words: list[str], task: Task) -> str:
    if len(tags) != len(words):
        return f"has {len(tags)} tags for {len(words)} words"
    unknown = [tag for tag in tags if not isinstance(tag, int) or not 0 <= tag < task.num_labels]
    names = ", ".join((task.label_names or ())[:20])
    return (
        f"holds {unknown[0]!r}, which is no tag of this task; they are {names}" if unknown else ""
    )


def _flat(lists: list[list[int]]) -> np.ndarray:
    return np.concatenate([np.asarray(each, int) for each in lists])


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole else 0.0
