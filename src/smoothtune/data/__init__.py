"""Tasks, sources, checks and tokenized data."""

from smoothtune.data.checks import check_splits, infer_labels
from smoothtune.data.collator import Collator
from smoothtune.data.prepare import Prepared, prepare
from smoothtune.data.report import Report, SplitReport
from smoothtune.data.sources import load_splits, split_of
from smoothtune.data.tasks import TASKS, Task, custom_task
from smoothtune.data.unlabeled import prepare_unlabeled
from smoothtune.errors import DataError

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
