"""Single sentences: how their predictions change under noise, with typos, and between two runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
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
    task, settings, predictor = subject.prepared.task, subject.settings, subject.predictor
    if not task.one_sequence or not settings.num_examples:
        return None
    if part == "metrics":
        texts = subject.texts
        return {
            "shown": settings.num_examples,
            "example_id": list(texts["example_id"][:]),
            "labels": list(texts["labels"][:]),
            "texts": {CLEAN: _sentences(texts)},
            "predictions": {CLEAN: subject.predictions[subject.sample()].tolist()},
        }
    if part == "robustness":
        rows = subject.rows()
        predictor.progress.start("sentences under noise", predictor.num_batches(rows))
        predictions = noisy_predictions(predictor, rows, [NOISE_LEVEL])[0, 0]
        return {"predictions": {NOISY: predictions.tolist()}}
    if part == "corruption":
        rng = np.random.default_rng([predictor.seed, 0])
        length = subject.prepared.report.max_seq_length
        changed, rows = damaged_texts(
            predictor, subject.texts, "typos", TYPO_RATE, rng, max_seq_length=length
        )
        predictor.progress.start("sentences with typos", len(rows))
        predictions = predictor.predict(rows)
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
    """The content of a folder's ``examples.json``; None without the file."""
    content = read_json(folder / EXAMPLES)
    if content is not None:
        _Examples.check(content, folder / EXAMPLES, "evaluate")
    return content


def example_tables(runs: Sequence[Run]) -> list[tuple[str, Table]]:
    """The sentences that change most, under each disturbance and between two runs, with titles."""
    contents = [(run, content) for run in runs if (content := read_examples(run.folder))]
    tables = [
        _changes(run, f"{run.name}: {name}", content, content, (CLEAN, name), (CLEAN, name))
        for run, content in contents
        for name in (NOISY, TYPOS)
        if name in content["predictions"]
    ]
    for other, after in contents[1:]:
        first, before = contents[0]
        same = all(before[field] == after[field] for field in ("example_id", "labels"))
        if same and before["texts"][CLEAN] == after["texts"][CLEAN]:
            names = (first.name, other.name)
            title = " and ".join(names)
            tables.append(_changes(first, title, before, after, (CLEAN, CLEAN), names))
    return tables


def _changes(
    run: Run,
    title: str,
    first: Mapping[str, Any],
    other: Mapping[str, Any],
    inputs: tuple[str, str],
    heads: tuple[str, str],
) -> tuple[str, Table]:
    """A table of the largest changes: first other answers, then by what moved.

    The predictions are those of two contents of ``examples.json`` for two `inputs`.
    """
    contents = zip((first, other), inputs, strict=True)
    before, after = (np.array(content["predictions"][name]) for content, name in contents)
    texts = other["texts"].get(inputs[1], other["texts"][CLEAN])
    what, answers = _answers(first["labels"], run.content["label_names"], before, after)
    if what:
        title += f": {answers['flips'].sum()} of {len(answers)} change {what}"
    order = np.lexsort((-answers["change"].abs(), ~answers["flips"]))[: first["shown"]]
    cells = [
        [
            texts[i] if len(texts[i]) <= LONGEST else f"{texts[i][:LONGEST]}…",
            *answers.loc[i, ["label", "before", "after"]],
            f"{answers['change'][i]:+.2f}",
        ]
        for i in order
    ]
    return title, Table(["sentence", "label", *heads, "change"], cells, scrolls=True)


def _answers(
    gold: Sequence[Any], names: Sequence[str], before: np.ndarray, after: np.ndarray
) -> tuple[str, pd.DataFrame]:
    """The answers of two predictions (N, W) of the same sentences, as one reads them.

    Returns:
        What an answer is, nothing for scores, and for each sentence `label`, `before`, `after`,
        `change` (of the score; of the first answer's probability; of the label that moves most)
        and `flips`, whether the answer becomes another.
    """
    flips, old, new = np.zeros(len(before), bool), before, after
    if isinstance(gold[0], list):
        what, old, new = "labels", expit(before), expit(after)
        label = [", ".join(_select(names, np.array(each) > 0)) or NO_LABEL for each in gold]
        shown = [[_predicted_labels(names, row) for row in each] for each in (old, new)]
        moving = np.abs(new - old).argmax(axis=1)
        flips = ((before > 0) != (after > 0)).any(axis=1)
    elif before.shape[1] == 1:
        what, label, moving = "", [f"{each:g}" for each in gold], np.zeros(len(before), int)
        shown = [[f"{value:.2f}" for value in each[:, 0]] for each in (old, new)]
    else:
        what, old, new = "class", softmax(before, axis=1), softmax(after, axis=1)
        label = [names[each] for each in gold]
        shown = [[_likeliest(names, row) for row in each] for each in (old, new)]
        moving = before.argmax(1)
        flips = after.argmax(1) != moving
    change = (new - old)[np.arange(len(before)), moving]
    columns = {"label": label, "before": shown[0], "after": shown[1]}
    return what, pd.DataFrame({**columns, "change": change, "flips": flips})


def _likeliest(names: Sequence[str], chances: np.ndarray) -> str:
    return f"{names[int(chances.argmax())]} {chances.max():.2f}"


def _predicted_labels(names: Sequence[str], chances: np.ndarray) -> str:
    """The labels above one half, or the one that comes nearest."""
    texts = [f"{name} {chance:.2f}" for name, chance in zip(names, chances, strict=True)]
    return ", ".join(_select(texts, chances > 0.5)) or f"{NO_LABEL} ({_likeliest(names, chances)})"


def _select(names: Sequence[str], mask: np.ndarray) -> list[str]:
    return [name for name, is_selected in zip(names, mask, strict=True) if is_selected]
