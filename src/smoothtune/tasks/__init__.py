"""Tasks, sources, checks and tokenized data."""

from smoothtune.data.collator import Collator
from smoothtune.data.sources import load_splits, split_of
from smoothtune.data.summary import Report, SplitReport
from smoothtune.errors import DataError
from smoothtune.tasks.base import Task
from smoothtune.tasks.labels import check_splits, infer_labels
from smoothtune.tasks.prepare import Prepared, prepare, prepare_unlabeled
from smoothtune.tasks.presets import TASKS
from smoothtune.tasks.text_classification import custom_task

__all__ = [
    "TASKS",
    "Collator",
    "DataError",
    "Prepared",
    "Report",
    "SplitReport",
    "Task",
    "check_splits",
    "custom_task",
    "infer_labels",
    "load_splits",
    "prepare",
    "prepare_unlabeled",
    "split_of",
]
