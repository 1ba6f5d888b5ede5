"""What is to be evaluated, and on which data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from smoothtune.config.yaml_file import parse_yaml
from smoothtune.errors import ConfigError, Problem, unknown
from smoothtune.evaluation.transfer import OtherData
from smoothtune.files import RESULT
from smoothtune.tasks.base import Task, TaskType
from smoothtune.tasks.presets import TASK_CLASSES, TASKS, describe_task
from smoothtune.tasks.question_answering.task import SPAN_FIELDS

PARTS = ("calibration", "robustness", "corruption", "smoothness", "drift")
"""The parts that can be asked for; the task's metrics are always there."""
MAX_TRAIN_SAMPLES = 1000
COUNTS = (
    "max_train_samples",
    "max_eval_samples",
    "max_seq_length",
    "max_diagnostic_samples",
    "num_resamples",
    "batch_size",
)


@dataclass(frozen=True)
class Settings:
    """One evaluation; what is None is taken from the model folder's ``result.json``."""

    model: str
    """minilm, a model folder, or a hub id."""
    output_dir: str
    """Folder for ``evaluation.json``, tables and plots."""
    parts: tuple[str, ...] = ()
    """Some of `PARTS`."""
    ood: dict[str, OtherData] = field(default_factory=dict)
    """Other data sets for the task, by the name they get in the report."""
    further_share: float | None = None
    """Also train a copy on this share of each other data set, and score it on the rest."""
    task: str | None = None
    """A GLUE task, squad, or any name together with `text_columns` or `task_type`."""
    task_type: TaskType | None = None
    """Kind of another data set's task; None: text-classification."""
    data: str | None = None
    """Hub id, folder, or Parquet, CSV, TSV or JSONL file."""
    text_columns: tuple[str, ...] | None = None
    """One or two text columns of a data set that is not a GLUE task."""
    label_column: str | None = None
    """Label column of such a data set; default: label, for tokens tags."""
    choice_columns: tuple[str, ...] | None = None
    """Columns of the choices of multiple choice, or one that holds lists of them."""
    spans: dict[str, Any] = field(default_factory=dict)
    """For question answering, values of its `SPAN_FIELDS`."""
    base_model: str | None = None
    """What the model was fine-tuned from, for `drift`."""
    max_train_samples: int | None = None
    """Rows for the training score, at most 1000 of those that were trained on."""
    max_eval_samples: int | None = None
    """Evaluate on at most so many rows, the first ones."""
    max_seq_length: int | None = None
    """Longest input in tokens; default: 128, for question answering 384."""
    data_seed: int | None = None
    """The training run's seed, which chose its rows; default: 42."""
    max_diagnostic_samples: int = 256
    """Rows, drawn at random, for all parts but the metrics, calibration and ood."""
    seed: int = 42
    """Of all draws: noise, corruption, probes, resamples."""
    num_resamples: int = 1000
    """Bootstrap resamples behind each interval."""
    batch_size: int = 32
    """Examples that run at once."""
    trust_remote_code: bool = False
    """Run code that comes with the model."""
    overwrite_output_dir: bool = False
    """Replace another evaluation in `output_dir`."""

    def identity(self) -> dict[str, Any]:
        """What makes numbers comparable; parts and other data sets can be added later."""
        ignored = ("output_dir", "parts", "ood", "further_share", "overwrite_output_dir")
        return {name: value for name, value in asdict(self).items() if name not in ignored}


def chosen_task_type(name: str | None) -> TaskType | None:
    """A kind of task by its name.

    Raises:
        ConfigError: there is none of this name.
    """
    for known in TASK_CLASSES:
        if known == name:
            return known
    if name is None:
        return None
    raise ConfigError([Problem("", "--task-type", unknown("type of task", name, TASK_CLASSES))])


def span_fields(pairs: Sequence[str]) -> dict[str, Any]:
    """``doc_stride=64`` and the like as a dictionary.

    Raises:
        ConfigError: an unknown field, or a value of the wrong type.
    """
    found, problems = {}, []
    for pair in pairs:
        key, _, text = pair.partition("=")
        name = key.strip().replace("-", "_")
        if name not in SPAN_FIELDS:
            problems.append(Problem("--set", name, unknown("field", name, SPAN_FIELDS)))
            continue
        value, due = parse_yaml(text, name=f"--set {pair}").value, type(SPAN_FIELDS[name])
        if type(value) is int and due is float:
            value = float(value)
        if type(value) is not due or (due is int and value < 1):
            wanted = "a positive whole number" if due is int else f"a {due.__name__}"
            problems.append(Problem("--set", name, f"must be {wanted}, not {text!r}"))
        found[name] = value
    if problems:
        raise ConfigError(problems)
    return found


def other_data_sets(sources: Mapping[str, str], fields: Sequence[str]) -> dict[str, OtherData]:
    """Other data sets with ``NAME.text_columns=sentence``, ``NAME.labels={0: 1, 1: 0}`` and so on.

    Raises:
        ConfigError: an unknown data set or field, or a value of the wrong type.
    """
    found = {name: OtherData(source) for name, source in sources.items()}
    for text in fields:
        path, _, value = text.partition("=")
        name, _, key = path.strip().rpartition(".")
        if name not in found:
            raise ConfigError([Problem("--ood-set", name, unknown("data set", name, found))])
        parsed = parse_yaml(value, name=f"--ood-set {text}").value
        found[name] = replace(found[name], **{key: _read_as(key, parsed)})
    return found


def _read_as(key: str, value: Any) -> Any:
    """A field of `OtherData`, checked."""
    if key == "text_columns" and isinstance(value, str | list):
        return (value,) if isinstance(value, str) else tuple(map(str, value))
    if key == "label_column" and isinstance(value, str):
        return value
    if key == "labels" and isinstance(value, dict) and value:
        return {str(label): str(meant) for label, meant in value.items()}
    known = ("text_columns", "label_column", "labels")
    message = unknown("field", key, known)
    if key in known:
        message = f"cannot be {value!r}; write labels={{negative: 1, positive: 0}}, or a column"
    raise ConfigError([Problem("--ood-set", key, message)])


def training_record(model: str) -> dict[str, Any] | None:
    """What ``smoothtune train`` wrote into a model folder; None for other models."""
    try:
        record = json.loads((Path(model).expanduser() / RESULT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("config"), dict) else None


def resolve(settings: Settings, record: dict[str, Any] | None) -> Settings:
    """Fill in what the training run says.

    Args:
        settings: as asked for.
        record: of `training_record`.

    Returns:
        Settings with a task, and the rows and lengths that the model was trained with.

    Raises:
        ConfigError: with everything that is wrong: no task, unknown parts, numbers out of range.
    """
    run = record["config"] if record else {}
    columns, choices = run.get("text_columns"), run.get("choice_columns")
    same_task = settings.task in (None, run.get("task"))
    spans = {name: run[name] for name in SPAN_FIELDS if run.get(name) is not None}
    trained_on = settings.max_train_samples or run.get("max_train_samples") or MAX_TRAIN_SAMPLES
    found = replace(
        settings,
        task=settings.task or run.get("task"),
        data=settings.data or run.get("data"),
        text_columns=settings.text_columns or (tuple(columns) if columns else None),
        label_column=settings.label_column or run.get("label_column"),
        task_type=settings.task_type or (run.get("task_type") if same_task else None),
        choice_columns=settings.choice_columns or (tuple(choices) if choices else None),
        spans=spans | settings.spans,
        base_model=settings.base_model or run.get("model"),
        max_train_samples=min(trained_on, MAX_TRAIN_SAMPLES),
        max_eval_samples=settings.max_eval_samples or run.get("max_eval_samples"),
        max_seq_length=settings.max_seq_length or run.get("max_seq_length"),
        data_seed=run.get("seed", 42) if settings.data_seed is None else settings.data_seed,
    )
    if problems := _problems(found):
        raise ConfigError(problems)
    return found


def _problems(settings: Settings) -> list[Problem]:
    problems = [
        Problem("", f"--{name}", unknown("part", name, PARTS))
        for name in settings.parts
        if name not in PARTS
    ]
    if settings.task is None:
        message = "name the task the model was trained for; its folder has no result.json"
        problems.append(Problem("", "--task", message))
    elif (settings.text_columns or settings.task_type) is None and settings.task not in TASKS:
        message = unknown("task", settings.task, TASKS)
        message += "; or describe your data with --text-column and --label-column, or --task-type"
        problems.append(Problem("", "--task", message))
    share = settings.further_share
    if share is not None and not (0 < share < 1 and settings.ood):
        message = "must be between 0 and 1, with --ood beside it"
        problems.append(Problem("", "--further-share", message))
    for name in COUNTS:
        value = getattr(settings, name)
        if value is not None and value < 1:
            option = "--" + name.replace("_", "-")
            problems.append(Problem("", option, f"must be at least 1, not {value}"))
    return problems


def task_of(settings: Settings) -> Task:
    """The task that resolved settings name or describe.

    Raises:
        ConfigError: the columns do not describe a task.
    """
    assert settings.task is not None
    try:
        return describe_task(
            settings.task,
            settings.task_type,
            text_columns=settings.text_columns,
            label_column=settings.label_column,
            choice_columns=settings.choice_columns,
            spans=settings.spans,
        )
    except ValueError as error:
        raise ConfigError([Problem("", "--text-column", str(error))]) from error
