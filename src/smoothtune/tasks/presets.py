"""GLUE and SQuAD tasks by name, and tasks on a user's own data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from smoothtune.data.label_types import LabelType
from smoothtune.tasks.base import Task, TaskType
from smoothtune.tasks.multi_label import MultiLabelClassification
from smoothtune.tasks.multiple_choice import MultipleChoice
from smoothtune.tasks.question_answering.task import QuestionAnswering
from smoothtune.tasks.text_classification import TextClassification
from smoothtune.tasks.token_classification import TokenClassification

TASK_CLASSES: dict[TaskType, type[Task]] = {
    "text-classification": TextClassification,
    "multi-label-classification": MultiLabelClassification,
    "question-answering": QuestionAnswering,
    "token-classification": TokenClassification,
    "multiple-choice": MultipleChoice,
}
"""The types of tasks; a further one is a module with a subclass of `Task`, and a line here."""


def _glue(
    name: str,
    text_columns: tuple[str, ...],
    label_names: tuple[str, ...],
    metrics: tuple[str, ...] = ("accuracy",),
    validation_split: str = "validation",
) -> Task:
    return TextClassification(
        name, text_columns, "label", label_names, metrics, "nyu-mll/glue", name, validation_split
    )


_SENTENCE = ("sentence",)
_SENTENCES = ("sentence1", "sentence2")
_ENTAILMENT = ("entailment", "not_entailment")
_CLASSES_AND_F1 = ("accuracy", "f1")


def _like(
    name: str, preset: Task, hub_id: str, hub_config: str | None, validation_split: str
) -> Task:
    """Another data set for the same question, with the same columns and classes."""
    return replace(
        preset,
        name=name,
        hub_id=hub_id,
        hub_config=hub_config,
        validation_split=validation_split,
    )


_GLUE_AND_SQUAD: dict[str, Task] = {
    "cola": _glue("cola", _SENTENCE, ("unacceptable", "acceptable"), ("matthews_correlation",)),
    "sst2": _glue("sst2", _SENTENCE, ("negative", "positive")),
    "mrpc": _glue("mrpc", _SENTENCES, ("not_equivalent", "equivalent"), _CLASSES_AND_F1),
    "stsb": _glue("stsb", _SENTENCES, (), ("pearson", "spearman")),
    "qqp": _glue(
        "qqp", ("question1", "question2"), ("not_duplicate", "duplicate"), _CLASSES_AND_F1
    ),
    "mnli": _glue(
        "mnli",
        ("premise", "hypothesis"),
        ("entailment", "neutral", "contradiction"),
        validation_split="validation_matched",
    ),
    "qnli": _glue("qnli", ("question", "sentence"), _ENTAILMENT),
    "rte": _glue("rte", _SENTENCES, _ENTAILMENT),
    "wnli": _glue("wnli", _SENTENCES, ("not_entailment", "entailment")),
    "squad": QuestionAnswering("squad", hub_id="rajpurkar/squad"),
    "squad_v2": QuestionAnswering(
        "squad_v2", hub_id="rajpurkar/squad_v2", version_2_with_negative=True
    ),
}
"""The nine tasks of GLUE, and SQuAD, by name."""

_ADV_GLUE = {
    "adv_sst2": "sst2",
    "adv_qqp": "qqp",
    "adv_mnli": "mnli",
    "adv_mnli_mismatched": "mnli",
    "adv_qnli": "qnli",
    "adv_rte": "rte",
}
"""Attacked sentences of GLUE (Wang et al. 2021), to evaluate on: there is no train split."""

TASKS: dict[str, Task] = {
    **_GLUE_AND_SQUAD,
    **{
        name: _like(name, _GLUE_AND_SQUAD[task], "AI-Secure/adv_glue", name, "validation")
        for name, task in _ADV_GLUE.items()
    },
    **{
        f"anli_r{part}": _like(
            f"anli_r{part}", _GLUE_AND_SQUAD["mnli"], "facebook/anli", None, f"validation_r{part}"
        )
        for part in (1, 2, 3)
    },
}
"""The nine tasks of GLUE, SQuAD, AdvGLUE, and the three parts of ANLI (Nie et al. 2020)."""


def describe_task(
    name: str = "custom",
    task_type: TaskType | None = None,
    *,
    text_columns: str | Sequence[str] | None = None,
    label_column: str | None = None,
    label_names: Sequence[str] | None = None,
    label_separator: str | None = None,
    label_columns: Sequence[str] | None = None,
    choice_columns: Sequence[str] | None = None,
    spans: Mapping[str, Any] | None = None,
    hub_id: str | None = None,
    hub_config: str | None = None,
    validation_split: str | None = None,
    sep: str | None = None,
    encoding: str | None = None,
    merge_labels: bool | None = None,
    label_type: LabelType | None = None,
    drop_missing: bool | None = None,
) -> Task:
    """A task of `TASKS`, or a task on a data set with these columns.

    Args:
        name: a name in `TASKS`, or any other one for results and reports.
        task_type: type of the task; None: that of the name in `TASKS`, else text classification.
        text_columns: one column, or two for a pair of texts; for token classification the words.
            If given, `name` is not looked up in `TASKS`.
        label_column: column with the label; default: label, for several labels
            labels, for token classification tags.
        label_names: names of the classes in the order of their ids; empty for regression; None to
            read them from the data, see `label_type`: text and integers are classes, real numbers
            are regression.
        label_separator: for several labels, what stands between two in a text; None: lists.
        label_columns: for several labels, a column of 0 and 1 for each, in place of `label_column`.
        choice_columns: for multiple choice, the columns of the choices, or one with lists of them.
        spans: for question answering, its fields from `doc_stride` on, by name.
        hub_id: data set on the hub, ``org/name``.
        hub_config: configuration of the data set on the hub.
        validation_split: split to evaluate on; default: validation.
        sep: what separates the columns of CSV and TSV files; None: a comma or a tab, by the suffix.
        encoding: of CSV and TSV files; None: UTF-8.
        merge_labels: whether labels that differ only in blanks, case or characters that are not
            printed are one class; None: they are an error.
        label_type: text, so that 1 names a class, integer for classes 0, 1, ..., or float for
            regression; None: as labels are stored, or look like in CSV.
        drop_missing: whether rows without a label or a text are left out; None: they are an error.

    Returns:
        The task.

    Raises:
        ValueError: the columns or labels do not describe a task of this type.
    """
    preset = TASKS.get(name)
    if preset is not None and not text_columns and task_type in (None, preset.task_type):
        changes = dict(spans or {}) if isinstance(preset, QuestionAnswering) else {}
        changes |= {"sep": sep, "encoding": encoding, "merge_labels": merge_labels}
        changes |= {"label_type": label_type, "drop_missing": drop_missing}
        changes = {name: value for name, value in changes.items() if value is not None}
        return replace(preset, **changes) if changes else preset
    cls = TASK_CLASSES[task_type or "text-classification"]
    values: dict[str, Any] = {
        "text_columns": _names(text_columns),
        "label_column": label_column,
        "label_names": _names(label_names),
        "label_separator": label_separator,
        "label_columns": _names(label_columns),
        "choice_columns": _names(choice_columns),
        "hub_id": hub_id,
        "hub_config": hub_config,
        "validation_split": validation_split,
        "sep": sep,
        "encoding": encoding,
        "merge_labels": merge_labels,
        "label_type": label_type,
        "drop_missing": drop_missing,
        **(spans or {}),
    }
    used = {field.name for field in fields(cls)}
    task = cls(name, **{k: v for k, v in values.items() if k in used and v is not None})
    task.check_description()
    return task


def _names(value: str | Sequence[str] | None) -> tuple[str, ...] | None:
    if value is None:
        return None
    return (value,) if isinstance(value, str) else tuple(value)
