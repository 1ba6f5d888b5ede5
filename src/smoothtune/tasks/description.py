"""What is known of a task and its data: the columns, the labels, the metrics."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from smoothtune.data.label_types import LabelType


@dataclass(frozen=True)
class TaskDescription(ABC):
    """A task on a data set, as its three parts see it; see `smoothtune.tasks.base.Task`."""

    task_type: ClassVar[str]
    """Name of the type, as on the hub where it has this type."""
    model_noun: ClassVar[str]
    """What messages call a fine-tuned model."""

    name: str
    """Short name, as on the command line."""
    text_columns: tuple[str, ...] = ()
    """One column, or two for a pair of texts; the words of token classification."""
    label_column: str = "label"
    """Column with the gold label."""
    label_names: tuple[str, ...] | None = None
    """Names of class 0, 1, ...; empty for regression and spans; None until `with_labels`."""
    metrics: tuple[str, ...] = ()
    """Metrics under scikit-learn's names, the main one first; default: those of the type, once
    `label_names` is known."""
    hub_id: str | None = None
    """Data set on the hub, ``org/name``."""
    hub_config: str | None = None
    """Configuration of the data set on the hub."""
    validation_split: str = "validation"
    """Split that is evaluated during training."""
    sep: str | None = None
    """What separates columns of CSV and TSV files; None: a comma or a tab, by the suffix."""
    encoding: str | None = None
    """Of CSV and TSV files; None: UTF-8."""
    merge_labels: bool | None = None
    """Whether labels that differ in blanks, case or unseen characters only are one class; None:
    they are an error."""
    label_type: LabelType | None = None
    """What labels are, whatever they look like: text, integer or float; None: as they are stored,
    or look like in CSV."""
    drop_missing: bool | None = None
    """Whether rows without a label or a text are left out; None: they are an error."""

    def __post_init__(self) -> None:
        if self.label_names is not None and not self.metrics:
            object.__setattr__(self, "metrics", self.default_metrics(self.label_names))

    @abstractmethod
    def default_metrics(self, label_names: tuple[str, ...]) -> tuple[str, ...]:
        """Metrics of the type for data with these labels, the main one first."""

    @property
    def main_metric(self) -> str:
        """The first metric, by which models are compared."""
        return self.metrics[0]

    @property
    def known_label_names(self) -> tuple[str, ...]:
        """`label_names`; raises ValueError before they are known."""
        if self.label_names is None:
            raise ValueError(
                f"the labels of task {self.name!r} are not known before its data is read: "
                "call task.with_labels(train_split), or use the task that prepare() returns"
            )
        return self.label_names

    @property
    def num_labels(self) -> int:
        """Number of classes, 1 without classes; raises ValueError before they are known."""
        return len(self.known_label_names) or 1
