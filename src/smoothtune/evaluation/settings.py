"""Settings of an evaluation, completed by what the training run says."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from smoothtune.config.draft import Draft
from smoothtune.config.evaluation import Prediction, Settings
from smoothtune.config.fields import DataFields, SpanFields
from smoothtune.errors import ConfigError, Problem, unknown
from smoothtune.files import RESULT, read_json
from smoothtune.results import Training
from smoothtune.tasks.presets import TASKS

AnySettings = TypeVar("AnySettings", Settings, Prediction)

MAX_TRAIN_SAMPLES = 1000
OF_ANY_TASK = {"task", "drop_missing", "trust_remote_code"}
ABOUT_TASK = tuple(name for name in DataFields.model_fields if name not in OF_ANY_TASK)
"""Fields taken from a training run on the same task; its new files have the form of the old."""
FROM_TRAINING = ("task", "max_seq_length", *SpanFields.model_fields)
"""Fields taken from any training run."""


def training_record(model: str) -> dict[str, Any]:
    """What ``smoothtune train`` wrote into a model folder; empty for other models.

    Raises:
        OutputError: ``result.json`` is damaged.
    """
    path = Path(os.path.expanduser(model)) / RESULT
    record = read_json(path)
    if record is None or not isinstance(record.get("config"), dict):
        return {}
    Training.check(record, path, "train")
    return record


def resolve(settings: Settings, record: dict[str, Any]) -> Settings:
    """Fill in what the training run says.

    Returns:
        Settings with a task, and the rows and lengths that the model was trained with.

    Raises:
        ConfigError: no known task, or a share of other data that is not named.
    """
    run = record.get("config", {})
    more = ("max_train_samples", "max_eval_samples", "drop_missing")
    filled = _from_training(settings, run, more)
    if (most := settings.max_eval_samples) is not None:
        filled["ood"] = {
            name: replace(other, max_rows=min(most, other.max_rows or most))
            for name, other in settings.ood.items()
        }
    if settings.data is None and filled.get("data") is not None:
        filled["data"] = seen_from_here(filled["data"], run, settings.model)
    if settings.base_model is None and not run.get("allow_new_weights"):
        base = run.get("model")
        is_bundled = base == "minilm"
        filled["base_model"] = base if is_bundled else seen_from_here(base, run, settings.model)
    if settings.data_seed is None:
        filled["data_seed"] = run.get("seed", 42)
    completed = _validated(settings, filled)
    problems = _task_problems(completed)
    if completed.further_share is not None and not completed.ood:
        problems.append(Problem("", "--further-share", "needs --ood beside it"))
    if problems:
        raise ConfigError(problems)
    trained_on = min(completed.max_train_samples or MAX_TRAIN_SAMPLES, MAX_TRAIN_SAMPLES)
    return completed.model_copy(update={"max_train_samples": trained_on})


def resolve_prediction(settings: Prediction, record: dict[str, Any]) -> Prediction:
    """As `resolve`."""
    run = record.get("config", {})
    completed = _validated(settings, _from_training(settings, run))
    if problems := _task_problems(completed):
        raise ConfigError(problems)
    return completed


def _from_training(
    settings: AnySettings, run: dict[str, Any], more: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Fields of a training run that are not set; those about the task only if it is the same."""
    same_task = settings.task in (None, run.get("task"))
    names = FROM_TRAINING + ABOUT_TASK * same_task + more
    filled = {name: run.get(name) for name in names if getattr(settings, name) is None}
    if filled.get("task", "") is None and (settings.text_columns or settings.task_type):
        filled["task"] = "custom"
    return filled


def _validated(settings: AnySettings, filled: dict[str, Any]) -> AnySettings:
    """The settings with what the training run says, of which an error names ``result.json``."""
    set_fields = {name: getattr(settings, name) for name in settings.model_fields_set}
    record = Draft(Path(settings.model) / RESULT)
    return record.validated(type(settings), set_fields | filled)


def seen_from_here(path: Any, run: dict[str, Any], model: str) -> Any:
    """A path that a training run recorded, as it was seen from where that run was started.

    The `output_dir` of its configuration leads back from the model's folder to there. A `path` that
    is the same from here, or leads to nothing there, as an id on the hub, is given back.
    """
    output_dir, folder = run.get("output_dir"), os.path.abspath(os.path.expanduser(model))
    if not isinstance(path, str) or not isinstance(output_dir, str) or os.path.isabs(output_dir):
        return path
    below = os.sep + os.path.normpath(output_dir)
    if not folder.endswith(below):
        return path
    here = os.path.expanduser(path)
    candidate = os.path.join(folder.removesuffix(below), here)
    if not os.path.exists(candidate) or os.path.exists(here) and os.path.samefile(candidate, here):
        return path
    return candidate


def where_recorded(settings: Settings, record: dict[str, Any]) -> str:
    """What to add to an error about data that a training run recorded and that are not here."""
    data = record.get("config", {}).get("data")
    if data is None or data != settings.data or os.path.exists(os.path.expanduser(data)):
        return ""
    return (
        "; it is what the training run recorded, and a path is as seen from the folder where that "
        "run was started: name the data with --data"
    )


def is_training_data(settings: Settings, record: dict[str, Any]) -> bool:
    """Whether the data are those of the training run, which may have held out rows of its own."""
    run = record.get("config", {})
    if settings.task != run.get("task"):
        return False
    paths = (settings.data, seen_from_here(run.get("data"), run, settings.model))
    if None in paths:
        return settings.data == run.get("data")
    return len({os.path.realpath(os.path.expanduser(str(path))) for path in paths}) == 1


def _task_problems(settings: Settings | Prediction) -> list[Problem]:
    if settings.task is None:
        message = "name the task the model was trained for; its folder does not say it"
    elif (settings.text_columns or settings.task_type) is None and settings.task not in TASKS:
        message = unknown("task", settings.task, TASKS)
        message += "; or describe your data with --text-column and --label-column, or --task-type"
    else:
        return []
    return [Problem("", "--task", message)]
