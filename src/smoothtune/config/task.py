"""The task of a run or an evaluation."""

from smoothtune.config.evaluation import Prediction, Settings
from smoothtune.config.fields import DataFields, SpanFields
from smoothtune.config.run import RunConfig
from smoothtune.errors import ConfigError, Problem
from smoothtune.tasks.base import Task
from smoothtune.tasks.presets import describe_task

NOT_OF_TASK = {"task", "task_type", "data", "trust_remote_code"}  # fields of the data alone


def configured_task(config: RunConfig | Settings | Prediction) -> Task:
    """The task that a configuration describes, its labels perhaps unknown yet; else ConfigError."""
    assert config.task is not None
    columns = {*DataFields.model_fields, *SpanFields.model_fields} - NOT_OF_TASK
    fields = config.model_dump(include=columns, exclude_none=True)
    try:
        return describe_task(config.task, config.task_type, **fields)
    except ValueError as error:
        raise ConfigError([Problem("", "text_columns", str(error))]) from error
