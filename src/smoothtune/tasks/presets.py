"""Kinds of tasks: a further one is a module with a `Kind`, and a line in `KINDS`."""

from dataclasses import replace

from smoothtune.tasks.base import Description, Kind, Spans, Task, TaskType
from smoothtune.tasks.multiple_choice import MultipleChoice
from smoothtune.tasks.question_answering.task import QuestionAnswering, squad_task
from smoothtune.tasks.text_classification import TextClassification
from smoothtune.tasks.token_classification import TokenClassification

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


def _glue(
    name: str,
    text_columns: tuple[str, ...],
    label_names: tuple[str, ...],
    metrics: tuple[str, ...] = ("accuracy",),
    validation_split: str = "validation",
) -> Task:
    return Task(
        name, text_columns, "label", label_names, metrics, "nyu-mll/glue", name, validation_split
    )


_SENTENCE = ("sentence",)
_SENTENCES = ("sentence1", "sentence2")
_ENTAILMENT = ("entailment", "not_entailment")
_CLASSES_AND_F1 = ("accuracy", "f1")

TASKS: dict[str, Task] = {
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
    "squad": squad_task("squad", hub_id="rajpurkar/squad"),
    "squad_v2": squad_task(
        "squad_v2", hub_id="rajpurkar/squad_v2", spans=Spans(version_2_with_negative=True)
    ),
}
"""The nine tasks of GLUE, and SQuAD, by name."""
