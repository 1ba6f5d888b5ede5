"""Other data sets for the task of a model: read as its task, and used for further training."""

import copy
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from datasets import ClassLabel, Dataset
from sklearn.model_selection import train_test_split
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerBase, get_linear_schedule_with_warmup

from smoothtune.config.evaluation import OtherData
from smoothtune.data.batches import LengthGroupedSampler
from smoothtune.data.columns import column_problem
from smoothtune.data.locations import keep_locations, row_locator
from smoothtune.errors import DataError, unknown
from smoothtune.evaluation.predictor import Predictor
from smoothtune.nn import rng
from smoothtune.tasks.base import Task
from smoothtune.tasks.class_lookup import ClassLookup
from smoothtune.tasks.prepare import tokenized_examples
from smoothtune.tasks.presets import TASKS

FURTHER_BATCH = 16
OF_PRESET = ("text_columns", "label_column", "hub_id", "hub_config", "validation_split")
"""What another task says of the data, in the place of the model's own."""


def as_task(other: OtherData, task: Task) -> Task:
    """The model's task with the columns of another data set.

    Raises:
        DataError: they do not fit the task.
    """
    # columns and splits of a named task
    if other.preset is not None and other.preset not in TASKS:
        raise DataError(f"{other.source}: {unknown('preset', other.preset, TASKS)}")
    preset = _named_task(other) if other.preset is None else TASKS[other.preset]
    if preset is not None:
        if len(preset.text_columns) != len(task.text_columns) or type(preset) is not type(task):
            raise DataError(
                f"{other.source}: {preset.name} is read from {', '.join(preset.text_columns)}, "
                f"which does not fit task {task.name}"
            )
        task = replace(task, **{name: getattr(preset, name) for name in OF_PRESET})
    # columns the user names
    if other.text_columns and len(other.text_columns) != len(task.text_columns):
        raise DataError(
            f"{other.source}: {len(other.text_columns)} text columns are named, but task "
            f"{task.name} reads {len(task.text_columns)}"
        )
    # labels
    one_column = task.rows.label_columns == (task.label_column,)
    one_label = task.head_class.problem_type != "multi_label_classification"
    if (other.labels and not one_label) or (other.label_column and not one_column):
        raise DataError(
            f"{other.source}: labels, and label_column where the task has label_columns, are not "
            "verified for several labels of a row: write the labels in the task's form, with its "
            "names"
        )
    adapted = replace(
        task,
        text_columns=other.text_columns or task.text_columns,
        label_column=other.label_column or task.label_column,
        sep=other.sep,
        encoding=other.encoding,
    )
    try:
        adapted.rows.check_description()
    except ValueError as error:
        raise DataError(f"{other.source}: {error}") from error
    return adapted


def _named_task(other: OtherData) -> Task | None:
    """The task that the source names, where there is no such path."""
    return None if os.path.exists(other.source) else TASKS.get(other.source)


def source_of(other: OtherData) -> str:
    """Where another data set is read from: a path, or a data set of the hub."""
    preset = _named_task(other)
    return (preset and preset.hub_id) or other.source


def relabeled(raw: Dataset, labels: Mapping[str, str] | None, task: Task, where: str) -> Dataset:
    """The rows with the task's class names in place of their labels; see `OtherData.labels`."""
    if labels is None:
        return raw
    column, classes = task.label_column, _classes(labels, task, where)
    feature, values = raw.features[column], raw[column][:]
    if isinstance(feature, ClassLabel):
        values = [feature.int2str(value) for value in values]
    for row, value in enumerate(values):
        if str(value) not in classes:
            raise DataError(
                f"{where}, {row_locator(raw)(row)}, column {column!r}: label {value!r} is not "
                f"among those that are given a meaning: {', '.join(classes)}"
            )
    names = [classes[str(value)] for value in values]
    return keep_locations(raw.remove_columns(column).add_column(column, names), raw)


def _classes(labels: Mapping[str, str], task: Task, where: str) -> dict[str, str]:
    """The name of the class that each label stands for."""
    lookup, classes = ClassLookup(task.label_names or ()), {}
    for label, target in labels.items():
        index = lookup.index(target)
        if index is None:
            raise DataError(
                f"{where}: label {label!r} is to mean {target!r}, but the classes of task "
                f"{task.name} are {', '.join(lookup.names) or 'none: it is a regression'}"
            )
        classes[label] = lookup.names[index]
    return classes


def split_for_further(rows: Dataset, share: float, seed: int) -> tuple[Dataset, Dataset]:
    """A share of the rows to train on further, and the rest; classes in proportion."""
    labels = np.asarray(rows["labels"][:])
    classes = labels if np.issubdtype(labels.dtype, np.integer) else None
    try:
        parts = train_test_split(
            np.arange(len(rows)), train_size=share, random_state=seed, stratify=classes
        )
    except ValueError as error:
        raise DataError(f"{share:.0%} of {len(rows)} rows cannot be trained on: {error}") from error
    some, rest = (rows.select(np.sort(part), keep_in_memory=True) for part in parts)
    return some, rest


def trained_further(
    predictor: Predictor,
    rows: Dataset,
    *,
    num_train_epochs: int = 3,
    learning_rate: float = 5e-5,
) -> Predictor:
    """A copy of a model, fine-tuned plainly on more rows with a learning rate that falls to 0."""
    model = copy.deepcopy(predictor.model).train()
    if not any(weight.requires_grad for weight in model.parameters()):  # merged adapters
        model.requires_grad_(True)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=learning_rate, weight_decay=0.0)
    order = LengthGroupedSampler(rows["length"][:], FURTHER_BATCH, predictor.seed)
    collate = predictor.task.head.collator(predictor.tokenizer)
    loader: DataLoader[Any] = DataLoader(rows, FURTHER_BATCH, sampler=order, collate_fn=collate)
    updates = num_train_epochs * len(loader)
    schedule = get_linear_schedule_with_warmup(optimizer, 0, updates)
    device = next(model.parameters()).device
    predictor.progress.start("further training", updates)
    with rng.isolated(device):
        torch.manual_seed(predictor.seed)
        for epoch in range(num_train_epochs):
            order.set_epoch(epoch)
            for batch in loader:
                batch.pop("example_id", None)
                loss, _ = predictor.compute_loss(model, {k: v.to(device) for k, v in batch.items()})
                assert loss is not None
                loss.backward()
                torch.nn.utils.clip_grad_norm_(weights, 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                predictor.progress.advance()
    return replace(predictor, model=model.eval())


def labeled_rows(other: OtherData, task: Task, *, name: str = "") -> tuple[Task, Dataset, str]:
    """Read and check another data set: its split for validation, else test, train, or the only one.

    Errors about its columns `name` it as the command line does.

    Returns:
        The task with its columns, all examples with their labels, and the source, with the split
        where it may have several.

    Raises:
        DataError: the source cannot be read, or does not fit the task.
    """
    source, task = source_of(other), as_task(other, task)
    splits = task.load_splits(source, need_train=False)
    order = (task.validation_split, "validation", "test", "train", *splits)
    split = next(name for name in order if name in splits)
    in_split = f"{source}, split {split!r}"
    where = source if os.path.isfile(os.path.expanduser(source)) else in_split
    if problem := column_problem(splits[split], task.rows.columns):
        raise DataError(f"{where}: {problem}{_own_columns(task, splits[split], name)}")
    raw = relabeled(splits[split], other.labels, task, where)
    try:
        labels = task.rows.check({split: raw}, source)[split]
    except DataError as error:
        raise DataError(str(error).replace(in_split, where)) from error
    return task, task.rows.select(raw, np.arange(len(raw)), labels), where


def _own_columns(task: Task, raw: Dataset, name: str) -> str:
    """How to name the columns of another data set in the place of those that it lacks."""
    if not len(raw):
        return ""
    of, missing = f"--ood-set {name}." if name else "", []
    if set(task.text_columns) - set(raw.column_names):
        columns = "COLUMN" if len(task.text_columns) == 1 else "[COLUMN, COLUMN]"
        missing.append(f"{of}text_columns={columns}")
    if task.label_column not in raw.column_names:
        missing.append(f"{of}label_column=COLUMN")
    return f"; name its own with {' and '.join(missing)}" if missing else ""


def other_rows(
    other: OtherData,
    task: Task,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_seq_length: int,
    vocab_size: int,
) -> tuple[Dataset, int]:
    """All rows of another data set, tokenized, and how many were left out as they repeat others."""
    task, examples, where = labeled_rows(other, task)
    texts = [examples[name][:] for name in task.rows.input_columns if name in examples.column_names]
    keys = [str(values) for values in zip(*texts, strict=True)]
    first = pd.Series(keys).drop_duplicates().index.tolist()
    selected = examples.select(first[: other.max_rows], keep_in_memory=True)
    rows, _ = tokenized_examples(selected, task, tokenizer, max_seq_length, vocab_size, where)
    return rows, len(keys) - len(first)
