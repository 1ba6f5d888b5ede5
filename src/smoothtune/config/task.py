"""The task of a run or an evaluation."""

from __future__ import annotations

from smoothtune.config.evaluation import Settings
from smoothtune.config.fields import DataFields
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
    described = DataFields.model_fields.keys() - {"task", "data", "trust_remote_code"}
    try:
        fields = config.model_dump(include=described)
        return describe_task(config.task, spans=config.spans(), **fields)
    except ValueError as error:
        raise ConfigError([Problem("", "text_columns", str(error))]) from error
