"""What must be said of a model whose folder names no task: the options that its data need."""

from typing import Any

from smoothtune.config.evaluation import Prediction, Settings
from smoothtune.config.task import configured_task
from smoothtune.data.sources import fitting_form, has_types, load_rows, load_splits
from smoothtune.errors import ConfigError, DataError, ModelError
from smoothtune.evaluation.settings import training_record
from smoothtune.models.load import Base, load_base
from smoothtune.tasks.guess import guess, likely_fields, usual_fields, with_types
from smoothtune.tasks.prepare import prepare_evaluation
from smoothtune.tasks.presets import TASK_CLASSES, TASKS, type_of_model

FILE = "rows.csv"
"""Stands for the data where they are not named."""
Options = dict[str, Any]


def missing_options(settings: Settings | Prediction) -> Options:
    """The options, by field, without which a model that records no task cannot be used.

    None are missing where the folder records a task or the options say enough. With `data` they are
    those that fit the rows and the outputs of the model, if any do.
    """
    preset = settings.task in TASKS and settings.text_columns is None
    columns = settings.task_type is not None and TASK_CLASSES[settings.task_type].text_columns
    described = settings.text_columns is not None or bool(columns)
    misnamed = settings.task is not None and not preset and not described  # which is said elsewhere
    run = training_record(settings.model).get("config", {})
    recorded = run.get("task")  # a Trainer of one's own has none to record
    if preset or misnamed or recorded or (described and settings.data is not None):
        return {}
    base = load_base(settings.model, trust_remote_code=settings.trust_remote_code)
    task_type = settings.task_type or type_of_model(base.config)
    if settings.data is None:
        options = {"data": FILE} | usual_fields(task_type)
    else:
        options = _fitting(settings, base, task_type)
    if isinstance(settings, Prediction):
        options.pop("label_column", None)
    return {name: value for name, value in options.items() if getattr(settings, name) is None}


def _fitting(settings: Settings | Prediction, base: Base, task_type: str) -> Options:
    """Options that fit the data, the first of those that are likely."""
    assert settings.data is not None
    form: Options = {**fitting_form(settings.data, settings.sep, settings.encoding)}
    if isinstance(settings, Prediction):
        rows = load_rows(settings.data, **form)
    else:
        splits = load_splits(settings.data, need_train=False, **form)
        rows = splits.get("validation", splits.get("test", next(iter(splits.values()))))
    columns = guess(
        rows if has_types(settings.data) else with_types(rows),
        text_columns=settings.text_columns or (),
        label_column=settings.label_column,
    )
    options = [form | fields for fields in likely_fields(columns, task_type)]
    if isinstance(settings, Prediction):
        return options[0]
    return next((each for each in options if _fits(settings, base, each)), options[0])


def _fits(settings: Settings, base: Base, options: Options) -> bool:
    """Whether the data can be evaluated on with these options."""
    completed = settings.model_copy(update={"task": "custom"} | options)
    names = [str(name) for name in (base.config.id2label or {}).values()]
    try:
        task = configured_task(completed)
        prepared = prepare_evaluation(
            completed.data or "",
            task,
            base.tokenizer,
            model_labels=names,
            max_train_samples=1,
            max_eval_samples=1,
            max_seq_length=completed.max_seq_length or task.default_max_seq_length,
        )
        prepared.task.head.fit_outputs(base.config)
    except (ConfigError, DataError, ModelError, ValueError):
        return False
    return True
