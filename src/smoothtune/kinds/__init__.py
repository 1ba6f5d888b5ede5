"""Kinds of tasks: a further one is a module with a `Kind`, and a line in `KINDS`."""

from dataclasses import replace

from smoothtune.data.tasks import TASKS, Description, Task, TaskType
from smoothtune.kinds.base import Kind, TokenizeOptions
from smoothtune.kinds.multiple_choice import MultipleChoice
from smoothtune.kinds.question_answering import QuestionAnswering
from smoothtune.kinds.text_classification import TextClassification
from smoothtune.kinds.token_classification import TokenClassification

KINDS: dict[TaskType, Kind] = {
    "text-classification": TextClassification(),
    "question-answering": QuestionAnswering(),
    "token-classification": TokenClassification(),
    "multiple-choice": MultipleChoice(),
}


def kind_of(task: Task) -> Kind:
    """What is particular to the kind of a task."""
    return KINDS[task.task_type]


def described(said: Description, task_type: TaskType | None = None) -> Task:
    """One of `TASKS`, or the task that a description means.

    Args:
        said: the name of a task, or a description of a data set.
        task_type: kind of the task; None: the preset's, else text classification.

    Raises:
        ValueError: the description does not fit the kind.
    """
    preset = TASKS.get(said.name)
    if preset is not None and not said.text_columns and task_type in (None, preset.task_type):
        return replace(preset, spans=replace(preset.spans, **said.spans))
    return KINDS[task_type or "text-classification"].describe(said)


__all__ = ["KINDS", "Kind", "TokenizeOptions", "described", "kind_of"]
