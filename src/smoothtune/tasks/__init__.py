"""Tasks, from the rows of a source to metrics."""

from smoothtune.data.batches import Collator
from smoothtune.data.sources import load_splits, split_of
from smoothtune.data.summary import Report, SplitReport
from smoothtune.errors import DataError
from smoothtune.tasks.base import Task
from smoothtune.tasks.multi_label import MultiLabelClassification
from smoothtune.tasks.multiple_choice import MultipleChoice
from smoothtune.tasks.ordinal import OrdinalClassification
from smoothtune.tasks.prepare import Prepared, prepare
from smoothtune.tasks.presets import TASKS, describe_task
from smoothtune.tasks.question_answering.task import QuestionAnswering
from smoothtune.tasks.text_classification import TextClassification
from smoothtune.tasks.token_classification import TokenClassification
from smoothtune.tasks.unlabeled import prepare_unlabeled

__all__ = [
    "TASKS",
    "Collator",
    "DataError",
    "MultiLabelClassification",
    "MultipleChoice",
    "OrdinalClassification",
    "Prepared",
    "QuestionAnswering",
    "Report",
    "SplitReport",
    "Task",
    "TextClassification",
    "TokenClassification",
    "describe_task",
    "load_splits",
    "prepare",
    "prepare_unlabeled",
    "split_of",
]
