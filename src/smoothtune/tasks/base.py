"""What a task is: a description of data, and three parts that take rows to metrics."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from datasets import Dataset

from smoothtune.data.columns import column_problem
from smoothtune.data.label_types import LabelType
from smoothtune.data.sources import load_splits
from smoothtune.errors import DataError
from smoothtune.tasks.description import TaskDescription
from smoothtune.tasks.head import Head
from smoothtune.tasks.reader import Reader
from smoothtune.tasks.scorer import Scorer


@dataclass(frozen=True)
class Task(TaskDescription):
    """A task on a data set; there is a subclass for each type of task.

    `rows` takes the raw rows of a source to rows of tokens, `head` these to a model's loss and
    predictions, `scorer` the predictions to metrics.

    *Examples* are raw rows chosen from a split, with the type's own column names and
    ``example_id``, the row in the source. *Rows* are tokenized inputs of the model; an example may
    have several. *Predictions* are an array (N, W), an entry per row. *Example statistics* are an
    array (E, K), an entry per example, from which the metrics follow: examples can be resampled.
    """

    reader_class: ClassVar[type[Reader]]
    head_class: ClassVar[type[Head]]
    scorer_class: ClassVar[type[Scorer]]
    auto_model: ClassVar[Any]
    """transformers' class that loads the model with the head."""
    peft_type: ClassVar[str | None] = "SEQ_CLS"
    """peft's name of the type; None: it has none."""
    hub_task: ClassVar[str | None] = "text-classification"
    """The hub's name of the type; None: it has none."""
    default_max_seq_length: ClassVar[int] = 128
    """Default of the longest row in tokens."""
    similar_lengths: ClassVar[bool] = True
    """Whether batches of similar length are the default in training."""
    one_sequence: ClassVar[bool] = False
    """Whether an example is one text or pair, read as one sequence with one prediction, as
    derivative norms and unlabeled texts require."""
    label_types: ClassVar[tuple[LabelType, ...]] = ()
    """What the user can say that labels are; none: labels are not names of classes."""
    usual_columns: ClassVar[Mapping[str, Any]] = {}
    """Fields that name the columns where these have their usual names."""
    unsupported_parts: ClassVar[Mapping[str, str]] = {}
    """Parts of an evaluation that this type does not support, with the reason."""

    @property
    def rows(self) -> Reader:
        """From raw rows to rows of tokens."""
        return self.reader_class(self)

    @property
    def head(self) -> Head:
        """From rows of tokens to loss and predictions."""
        return self.head_class(self)

    @property
    def scorer(self) -> Scorer:
        """From predictions to metrics."""
        return self.scorer_class(self)

    def load_splits(
        self, source: str | Path, *, need_train: bool = True, labeled: bool = True
    ) -> dict[str, Dataset]:
        """Read every split of a source, see `smoothtune.data.sources.load_splits`.

        `labeled`: whether labels will be read, so that `drop_missing` leaves rows without out.

        Raises:
            DataError: the source cannot be read.
        """
        required = self.rows.required if labeled else replace(self.rows.required, labels=())
        return load_splits(
            source,
            name=self.name,
            label_column=self.label_column,
            hub_id=self.hub_id,
            hub_config=self.hub_config,
            need_train=need_train,
            label_type=self.rows.stored_label_type,
            required=required if self.drop_missing else None,
            sep=self.sep,
            encoding=self.encoding,
        )

    def with_labels(self, train: Dataset, source: str = "the data", split: str = "train") -> Self:
        """The task with the `label_names` of its raw train split; unchanged if they are known.

        Raises:
            DataError: columns are missing, or the labels cannot be used; texts and labels that are
                missing are listed, too.
        """
        if self.label_names is not None:
            return self
        where = f"{source}, split {split!r}"
        if problem := column_problem(train, self.rows.columns):
            raise DataError(f"{where}: {problem}")
        try:
            return replace(self, label_names=self.rows.label_names(train, where))
        except DataError as error:
            raise DataError("\n".join([str(error), *self.rows.gaps(train, where)])) from error

    def with_model_labels(self, config: Any, raw: Dataset, where: str) -> Self:
        """The task with the labels of a fine-tuned model, for rows without; unchanged if known.

        Raises:
            DataError: columns are missing.
            ModelError: the model's configuration contradicts itself.
        """
        if problem := column_problem(raw, self.rows.unlabeled_columns):
            raise DataError(f"{where}: {problem}")
        if self.label_names is not None:
            return self
        return replace(self, label_names=self.rows.model_label_names(config, raw, where))
