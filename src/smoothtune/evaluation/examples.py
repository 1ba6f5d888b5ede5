"""Single sentences: how their predictions change under noise, with typos, and between two runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, model_validator
from scipy.special import expit, softmax

from smoothtune.data.columns import TEXTS
from smoothtune.evaluation.compare import Run
from smoothtune.evaluation.corruption import damaged_texts
from smoothtune.evaluation.output import EXAMPLES
from smoothtune.evaluation.robustness import noisy_predictions
from smoothtune.evaluation.subject import Subject
from smoothtune.files import read_json, write_json
from smoothtune.report.page import Table
from smoothtune.results import Record
from smoothtune.tasks.multi_label import NO_LABEL

CLEAN, NOISY, TYPOS = "as it is", "Gaussian noise at 0.3", "typos in a tenth of the words"
NOISE_LEVEL, TYPO_RATE = 0.3, 0.1
LONGEST = 400
"""Characters of a sentence in a table."""


class _Examples(Record):
    """``examples.json``; every list has one item for each sentence."""

    shown: Annotated[int, Field(ge=1)]
    example_id: Annotated[list[int], Field(min_length=1)]
    labels: list[float] | list[list[float]]
    """Class ids or scores; of several labels, 0 and 1."""
    texts: dict[str, list[str]]
    predictions: dict[str, list[Annotated[list[float], Field(min_length=1)]]]

    @model_validator(mode="after")
    def _is_complete(self) -> _Examples:
        count, widths = len(self.example_id), {len(p) for v in self.predictions.values() for p in v}
        columns: list[list[Any]] = [self.labels, *self.texts.values(), *self.predictions.values()]
        several = {len(each) for each in self.labels if isinstance(each, list)}
        if any(len(column) != count for column in columns) or len(widths | several) != 1:
            raise ValueError("a sentence lacks a text, a label or a prediction")
        if not {CLEAN} <= self.texts.keys() & self.predictions.keys():
            raise ValueError("the sentences as they are are missing")
        return self


def measured_examples(subject: Subject, part: str) -> dict[str, Any] | None:
    """What a part says about single sentences; None for parts and tasks without any.

    Returns:
        `predictions` (rows of (W,)) by how the sentences are disturbed, and `texts` where these
        change; with the metrics also `example_id`, `labels` and `texts` as they are.
    """
    task, settings = subject.prepared.task, subject.settings
    if not task.one_sequence or not settings.num_examples:
        return None
    if part == "metrics":
        texts = subject.texts.select(subject.sample(), keep_in_memory=True)
        return {
            "shown": settings.num_examples,
            "example_id": list(texts["example_id"][:]),
            "labels": list(texts["labels"][:]),
            "texts": {CLEAN: _sentences(texts)},
            "predictions": {CLEAN: subject.predictions[subject.sample()].tolist()},
        }
    if part == "robustness":
        predictor, rows = subject.predictor, subject.rows()
        predictor.progress.start("sentences under noise", predictor.num_batches(rows))
        predictions = noisy_predictions(predictor, rows, [NOISE_LEVEL])[0, 0]
        return {"predictions": {NOISY: predictions.tolist()}}
    if part == "corruption":
        texts = subject.texts.select(subject.sample(), keep_in_memory=True)
        rng = np.random.default_rng([subject.predictor.seed, 0])
        changed, rows = damaged_texts(
            subject.predictor,
            texts,
            "typos",
            TYPO_RATE,
            rng,
            max_seq_length=subject.prepared.report.max_seq_length,
        )
        subject.predictor.progress.start("sentences with typos", len(rows))
        predictions = subject.predictor.predict(rows)
        return {"texts": {TYPOS: _sentences(changed)}, "predictions": {TYPOS: predictions.tolist()}}
    return None


def _sentences(rows: Any) -> list[str]:
    columns = [rows[name][:] for name in TEXTS if name in rows.column_names]
    return [" | ".join(texts) for texts in zip(*columns, strict=True)]


def add_examples(folder: Path, examples: dict[str, Any] | None) -> None:
    """Add to a folder's ``examples.json``."""
    stored = read_examples(folder) if examples and "example_id" not in examples else {}
    if examples is None or stored is None:
        return
    for name in ("texts", "predictions"):
        examples[name] = stored.get(name, {}) | examples.get(name, {})
    write_json(folder / EXAMPLES, stored | examples)


def read_examples(folder: Path) -> dict[str, Any] | None:
    """The content of a folder's ``examples.json``; None without the file.

    Raises:
        OutputError: it is damaged.
    """
    content = read_json(folder / EXAMPLES)
    if content is not None:
        _Examples.check(content, folder / EXAMPLES, "evaluate")
    return content


def example_tables(runs: Sequence[Run]) -> list[tuple[str, Table]]:
    """The sentences that change most, under each disturbance and between two runs, with titles."""
    contents = [(run, content) for run in runs if (content := read_examples(run.folder))]
    tables = [table for run, content in contents for table in _disturbed(run, content)]
    if contents:
        (first, before), *others = contents
        tables += [
            table for other, after in others for table in _between(first, before, other, after)
        ]
    return tables


def _disturbed(run: Run, content: Mapping[str, Any]) -> Iterator[tuple[str, Table]]:
    clean = np.array(content["predictions"][CLEAN])
    for name in (NOISY, TYPOS):
        if name in content["predictions"]:
            texts = content["texts"].get(name, content["texts"][CLEAN])
            after = np.array(content["predictions"][name])
            yield _changes(run, f"{run.name}: {name}", texts, content, clean, after, (CLEAN, name))


def _between(
    first: Run, before: Mapping[str, Any], other: Run, after: Mapping[str, Any]
) -> Iterator[tuple[str, Table]]:
    if before["example_id"] != after["example_id"] or before["labels"] != after["labels"]:
        return
    if before["texts"][CLEAN] != after["texts"][CLEAN]:
        return
    old, new = (np.array(content["predictions"][CLEAN]) for content in (before, after))
    title = f"{first.name} and {other.name}"
    heads = (first.name, other.name)
    yield _changes(first, title, before["texts"][CLEAN], before, old, new, heads)


def _changes(
    run: Run,
    title: str,
    texts: Sequence[str],
    content: Mapping[str, Any],
    before: np.ndarray,
    after: np.ndarray,
    heads: tuple[str, str],
) -> tuple[str, Table]:
    """A table of the largest changes: first other answers, then by what moved."""
    answers = _answers(content["labels"], run.content["label_names"], before, after)
    order = np.lexsort((-np.abs(answers.change), ~answers.flips))[: content["shown"]]
    cells = [
        [
            texts[i] if len(texts[i]) <= LONGEST else f"{texts[i][:LONGEST]}…",
            answers.gold[i],
            answers.before[i],
            answers.after[i],
            f"{answers.change[i]:+.2f}",
        ]
        for i in order
    ]
    if answers.what:
        title += f": {answers.flips.sum()} of {len(answers.flips)} change {answers.what}"
    return title, Table(["sentence", "label", *heads, "change"], cells, scrolls=True)


@dataclass
class _Answers:
    """The answers for each sentence."""

    what: str
    """What an answer is; nothing for scores."""
    gold: list[str]
    before: list[str]
    after: list[str]
    change: np.ndarray
    """(N,) of the score; of the first answer's probability; of the label that moves most."""
    flips: np.ndarray
    """(N,) whether the answer becomes another."""


def _answers(
    gold: Sequence[Any], names: Sequence[str], before: np.ndarray, after: np.ndarray
) -> _Answers:
    """The answers of two predictions (N, W) of the same sentences, as one reads them."""
    rows = np.arange(len(before))
    if isinstance(gold[0], list):
        moved = expit(after) - expit(before)
        return _Answers(
            "labels",
            [", ".join(_select(names, np.array(each) > 0)) or NO_LABEL for each in gold],
            [_predicted_labels(names, row) for row in expit(before)],
            [_predicted_labels(names, row) for row in expit(after)],
            moved[rows, np.abs(moved).argmax(axis=1)],
            ((before > 0) != (after > 0)).any(axis=1),
        )
    if before.shape[1] == 1:
        return _Answers(
            "",
            [f"{each:g}" for each in gold],
            [f"{value:.2f}" for value in before[:, 0]],
            [f"{value:.2f}" for value in after[:, 0]],
            (after - before)[:, 0],
            np.zeros(len(before), bool),
        )
    classes = before.argmax(1)
    old, new = softmax(before, axis=1), softmax(after, axis=1)
    return _Answers(
        "class",
        [names[each] for each in gold],
        [_likeliest(names, row) for row in old],
        [_likeliest(names, row) for row in new],
        new[rows, classes] - old[rows, classes],
        after.argmax(1) != classes,
    )


def _likeliest(names: Sequence[str], chances: np.ndarray) -> str:
    return f"{names[int(chances.argmax())]} {chances.max():.2f}"


def _predicted_labels(names: Sequence[str], chances: np.ndarray) -> str:
    """The labels above one half, or the one that comes nearest."""
    if (chances > 0.5).any():
        texts = [f"{name} {chance:.2f}" for name, chance in zip(names, chances, strict=True)]
        return ", ".join(_select(texts, chances > 0.5))
    return f"{NO_LABEL} ({_likeliest(names, chances)})"


def _select(names: Sequence[str], mask: np.ndarray) -> list[str]:
    return [name for name, is_selected in zip(names, mask, strict=True) if is_selected]
