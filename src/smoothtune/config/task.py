"""The task of a run or an evaluation."""

from __future__ import annotations

from smoothtune.config.evaluation import Settings
from smoothtune.config.prediction import Prediction
from smoothtune.config.run import RunConfig
from smoothtune.errors import ConfigError, Problem
from smoothtune.tasks.base import Task
from smoothtune.tasks.presets import describe_task


def configured_task(config: RunConfig | Settings | Prediction) -> Task:
    """The task that a configuration names or describes; its labels may be unknown yet.

    Raises:
        ConfigError: the columns do not describe a task.
    """
    assert config.task is not None
    try:
        return describe_task(
            config.task,
            config.task_type,
            text_columns=config.text_columns,
            label_column=config.label_column,
            label_separator=config.label_separator,
            label_columns=config.label_columns,
            choice_columns=config.choice_columns,
            spans=config.spans(),
            sep=config.sep,
            encoding=config.encoding,
            merge_labels=config.merge_labels,
            label_type=config.label_type,
            drop_missing=config.drop_missing,
        )
    except ValueError as error:
        raise ConfigError([Problem("", "text_columns", str(error))]) from error
