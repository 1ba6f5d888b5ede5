"""What a task is: which columns hold the text, which the label, and how it is scored.

`TASKS` holds the nine tasks of GLUE (Wang et al. 2019, "GLUE: A Multi-Task Benchmark and Analysis
Platform for Natural Language Understanding", ICLR) with the columns, label names and label order
of the hub's ``nyu-mll/glue``, and SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, EMNLP; 2018, ACL);
`custom_task` describes any other data set to classify, `smoothtune.kinds` those of other kinds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

TaskType = Literal[
    "text-classification", "question-answering", "token-classification", "multiple-choice"
]
"""Kinds of tasks, under the hub's names; regression is text classification without classes."""


@dataclass(frozen=True)
class Spans:
    """How question answering cuts long contexts and reads answers, under run_qa's names."""

    doc_stride: int = 128
    """Tokens that two windows of one context share."""
    n_best_size: int = 20
    """Starts, and ends, of highest score that are combined."""
    max_answer_length: int = 30
    """Longest answer in tokens."""
    version_2_with_negative: bool = False
    """Whether questions may have no answer, as in SQuAD 2.0."""
    null_score_diff_threshold: float = 0.0
    """No answer is given where its score is above the best answer's by more than this."""


@dataclass(frozen=True)
class Task:
    """A task; `label_names` decides between text classification and regression."""

    name: str
    """Short name, as on the command line."""
    text_columns: tuple[str, ...]
    """One column, or two for a pair of texts; the words of token classification."""
    label_column: str
    """Column with the gold label."""
    label_names: tuple[str, ...] | None
    """Name of class 0, 1, ...; empty for regression; None until `infer_labels` saw the data."""
    metrics: tuple[str, ...]
    """Metrics under scikit-learn's names; the first is the headline. Empty with `label_names`
    None."""
    hub_id: str | None = None
    """Data set on the hub, ``org/name``."""
    hub_config: str | None = None
    """Configuration of the data set on the hub."""
    validation_split: str = "validation"
    """Split that is evaluated during training."""
    task_type: TaskType = "text-classification"
    """Kind of the task, which decides how rows are read and which head the model gets."""
    choice_columns: tuple[str, ...] = ()
    """Columns with the choices of multiple choice, or one column with lists of them."""
    spans: Spans = Spans()
    """For question answering."""

    @property
    def regression(self) -> bool:
        """Whether labels are real numbers.

        Raises:
            ValueError: If the kind of the labels is not known yet.
        """
        return not self._known_label_names and self.task_type == "text-classification"

    @property
    def num_labels(self) -> int:
        """Size of the model's output: the number of classes, 1 for regression.

        Raises:
            ValueError: If the kind of the labels is not known yet.
        """
        return len(self._known_label_names) or 1

    @property
    def _known_label_names(self) -> tuple[str, ...]:
        if self.label_names is None:
            raise ValueError(
                f"the labels of task {self.name!r} are not known before its data is read: "
                "call infer_labels(task, train_split), or use the task that prepare() returns"
            )
        return self.label_names


def default_metrics(label_names: tuple[str, ...]) -> tuple[str, ...]:
    """Metrics of a task that names none.

    Args:
        label_names: names of the classes; empty for regression.

    Returns:
        Pearson and Spearman correlation for regression, accuracy and F1 otherwise.
    """
    return ("accuracy", "f1") if label_names else ("pearson", "spearman")


def custom_task(
    text_columns: str | Sequence[str],
    label_column: str = "label",
    *,
    name: str = "custom",
    label_names: Sequence[str] | None = None,
    hub_id: str | None = None,
    hub_config: str | None = None,
    validation_split: str = "validation",
) -> Task:
    """Describes a data set that is not one of `TASKS`.

    Args:
        text_columns: one column name, or two for a pair of texts.
        label_column: column with the label.
        name: name of the task in results and reports.
        label_names: names of the classes in the order of their ids; empty for regression; None to
            read them from the data: text and integers are classes, real numbers are regression.
        hub_id: data set on the hub, ``org/name``.
        hub_config: configuration of the data set on the hub.
        validation_split: split to evaluate on.

    Returns:
        The task.

    Raises:
        ValueError: If there are not one or two text columns, if one of them is the label column,
            or if there is one class only.
    """
    columns = (text_columns,) if isinstance(text_columns, str) else tuple(text_columns)
    if len(columns) not in (1, 2):
        raise ValueError(f"a task reads one text column or two, not {len(columns)}: {columns}")
    if label_column in columns or len(set(columns)) < len(columns):
        raise ValueError(
            f"text columns {columns} and label column {label_column!r} must be different columns"
        )
    names = None if label_names is None else tuple(label_names)
    if names is not None and len(names) == 1:
        raise ValueError(f"one class, {names[0]!r}, is nothing to learn: name at least two")
    return Task(
        name=name,
        text_columns=columns,
        label_column=label_column,
        label_names=names,
        metrics=() if names is None else default_metrics(names),
        hub_id=hub_id,
        hub_config=hub_config,
        validation_split=validation_split,
    )


class Description(NamedTuple):
    """What a user says about a data set; None: not said."""

    name: str
    text_columns: Sequence[str] | None = None
    label_column: str | None = None
    choice_columns: Sequence[str] | None = None
    spans: Mapping[str, Any] = {}
    """Fields of `Spans`."""


def squad_task(name: str, *, hub_id: str | None = None, spans: Spans | None = None) -> Task:
    """Describes a data set in the form of SQuAD.

    Its columns are question, context, answers with the lists text and answer_start (in
    characters), and id.

    Args:
        name: name of the task in results and reports.
        hub_id: data set on the hub, ``org/name``.
        spans: how contexts are cut and answers read.

    Returns:
        The task.
    """
    return Task(
        name,
        ("question", "context"),
        "answers",
        (),
        ("f1", "exact_match"),
        hub_id,
        task_type="question-answering",
        spans=spans or Spans(),
    )


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
