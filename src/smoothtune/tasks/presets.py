"""GLUE and SQuAD tasks by name, and tasks on a user's own data."""

import dataclasses
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from smoothtune.catalog import DEFAULT_TASK_TYPE
from smoothtune.tasks.base import Task
from smoothtune.tasks.multi_label import MultiLabelClassification
from smoothtune.tasks.multiple_choice import MultipleChoice
from smoothtune.tasks.ordinal import OrdinalClassification
from smoothtune.tasks.question_answering.task import QuestionAnswering
from smoothtune.tasks.text_classification import TextClassification
from smoothtune.tasks.token_classification import TokenClassification

TASK_CLASSES: dict[str, type[Task]] = {
    cls.task_type: cls
    for cls in (
        TextClassification,
        MultiLabelClassification,
        OrdinalClassification,
        QuestionAnswering,
        TokenClassification,
        MultipleChoice,
    )
}
"""The types of tasks; a further one is a module with a subclass of `Task`, and a line here."""


def type_of_model(config: Any) -> str:
    """The type of the task that a model was trained for, from its configuration."""

    def has_head(cls: type[Task]) -> bool:
        head = cls.auto_model.__name__.removeprefix("AutoModel")
        return any(name.endswith(head) for name in config.architectures or ())

    classes = list(filter(has_head, TASK_CLASSES.values()))
    classes = classes or [cls for cls in TASK_CLASSES.values() if cls.one_sequence]
    same = [cls for cls in classes if cls.head_class.problem_type == config.problem_type]
    return (same or classes)[0].task_type


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

TASKS: dict[str, Task] = _GLUE_AND_SQUAD | {
    name: replace(
        _GLUE_AND_SQUAD[task],
        name=name,
        hub_id="AI-Secure/adv_glue",
        hub_config=name,
        validation_split="validation",
    )
    for name, task in _ADV_GLUE.items()
}
TASKS |= {
    f"anli_r{part}": replace(
        TASKS["mnli"],
        name=f"anli_r{part}",
        hub_id="facebook/anli",
        hub_config=None,
        validation_split=f"validation_r{part}",
    )
    for part in (1, 2, 3)
}
"""The nine tasks of GLUE, SQuAD, AdvGLUE, and the three parts of ANLI (Nie et al. 2020)."""


def describe_task(
    name: str = "custom",
    task_type: str | None = None,
    *,
    text_columns: str | Sequence[str] | None = None,
    **fields: Any,
) -> Task:
    """A task of `TASKS`, or a task on a data set with these columns.

    Args:
        name: a name in `TASKS`, or any other one for results and reports.
        task_type: type of the task, of `TASK_CLASSES`; None: that of the name in `TASKS`, else text
            classification.
        text_columns: one column, or two for a pair of texts; for token classification the words.
            If given, `name` is not looked up in `TASKS`.
        **fields: further fields of the type's class, such as `label_column`, `label_names`,
            `choice_columns` or `doc_stride`; None: its default.

    Raises:
        ValueError: the type has no such field, or the columns or labels describe no task of it.
    """
    columns = (text_columns,) if isinstance(text_columns, str) else text_columns
    values: dict[str, Any] = {
        field: tuple(value) if isinstance(value, list) else value
        for field, value in {"text_columns": columns, **fields}.items()
        if value is not None
    }
    preset = TASKS.get(name)
    if preset is not None and (text_columns or task_type not in (None, preset.task_type)):
        preset = None
    cls = TASK_CLASSES[task_type or DEFAULT_TASK_TYPE] if preset is None else type(preset)
    if unknown := sorted(set(values) - {field.name for field in dataclasses.fields(cls)}):
        raise ValueError(f"{cls.task_type} has no {', '.join(unknown)}")
    if preset is not None:
        return replace(preset, **values) if values else preset
    task = cls(name, **values)
    task.rows.check_description()
    return task
