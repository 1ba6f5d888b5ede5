"""The command `init`."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smoothtune.catalog import DEFAULT_TASK_TYPE, described_task_types
from smoothtune.cli.options import options_from
from smoothtune.cli.output import JSON, USAGE, echo, fail, print_json
from smoothtune.config.run_fields import RunFields
from smoothtune.errors import ConfigError, DataError, Problem, counted, unknown
from smoothtune.files import make_folder, write_atomic

if TYPE_CHECKING:
    from datasets import Dataset

    from smoothtune.tasks.base import Task
    from smoothtune.tasks.guess import Guess

RUN_FILE = """\
# Written by smoothtune init from {name}. All fields: smoothtune train --help-all
task: {task}  # a name of your own, for results and reports
{data}
model: {model}  # or a model folder, or a hub id such as bert-base-uncased
methods: [plain]  # ordinary fine-tuning; smoothtune methods lists the others
# methods:
#   vat: {{share: 0.3}}
num_train_epochs: 3
learning_rate: 1e-4  # for this small model; 2e-5 is usual for larger ones
per_device_train_batch_size: 16
seed: 42
output_dir: {output_dir}
"""
OVERRIDES = (  # fields that may be given in place of a guess
    *("text_columns", "label_column", "task_type", "label_type", "label_separator", "sep"),
    *("encoding", "merge_labels", "drop_missing", "model"),
)
NONE_LIKELY = "no column looks like it:"
_NOT_IN_YAML = re.compile(r"[\x7f-\x9f]")
SHOWN, SHOWN_CLASSES = 4, 20  # values of a column


@options_from(RunFields, *OVERRIDES)
def init(
    options: dict[str, Any],
    *,
    data: Annotated[str, typer.Argument(help="CSV, TSV, Excel, JSONL or Parquet file, or folder.")],
    to: Annotated[Path, typer.Option(help="The run file to write.")] = Path("run.yaml"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file.")] = False,
    as_json: JSON = False,
) -> None:
    """Look at the data, and write a run file for it."""
    if to.is_dir():
        inside = shlex.quote(str(to / "run.yaml"))
        fail(f"{to} is a folder; name a file in it: --to {inside}", USAGE)
    if os.path.lexists(to) and not overwrite:
        fail(f"{to} exists; choose another name with --to, or replace it: --overwrite", USAGE)
    notes = list[str]()
    try:
        fields = _fields_of(data, options, notes)
    except (ConfigError, DataError):
        for note in notes:
            echo(note, err=True)
        raise
    make_folder(to.parent)
    write_atomic(to, _run_file(data, fields))
    for note in notes:
        echo(note, err=as_json)
    file = shlex.quote(str(to))
    echo(f"{to} is written; check it, then: smoothtune validate {file}", err=as_json)
    echo(f"train: smoothtune train {file}", err=as_json)
    if as_json:
        print_json({"file": str(to), "fields": fields, "notes": notes})


def _fields_of(data: str, options: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """Fields of a run that trains on the data; `notes` gets what to tell about the guess."""
    from smoothtune.data.csv_format import no_header
    from smoothtune.data.sources import fitting_form, has_types, load_splits
    from smoothtune.tasks.guess import guess, with_types

    form = {name: options[name] for name in ("sep", "encoding") if name in options}
    form, typed = fitting_form(data, **form) | form, not has_types(data)
    splits = load_splits(data, **form)
    rows = splits["train"]
    _check_columns(options, rows.column_names)
    columns = ", ".join(rows.column_names)
    if not len(rows):
        raise DataError(f"{data}: has the columns {columns}, and no rows to train on")
    if len(rows) == 1 and all(isinstance(value, list | dict) for value in rows[0].values()):
        raise DataError(
            f"{data}: holds one row, of lists or mappings; write its rows one in every line, as "
            "pandas does with to_json(file, orient='records', lines=True)"
        )
    notes += [f"{data}: {counted(len(rows), 'row')} to train on, columns {columns}"]
    values = {name: set(map(str, rows[name])) for name in rows.column_names if typed}
    if remark := no_header(data, values):
        notes.append(remark)
    notes += [f"guessed {name}: {form[name]!r}" for name in form if name not in options]
    rows = with_types(rows) if typed else rows
    best_guess = guess(
        rows,
        text_columns=options.get("text_columns", ()),
        label_column=options.get("label_column"),
    )
    fields = {"data": data, **form, **_fields_of_guess(best_guess, options, notes), **options}
    _refuse_unknown(fields, rows)
    fields |= _changes(fields, notes)
    notes += [f"not read: {', '.join(best_guess.others)}"] * bool(best_guess.others)
    return fields


def _check_columns(options: Mapping[str, Any], names: Sequence[str]) -> None:
    """Refuse columns that are not there."""
    requested = [("--text-column", name) for name in options.get("text_columns", ())]
    if "label_column" in options:
        requested.append(("--label-column", options["label_column"]))
    problems = [
        Problem(option, "", unknown("column", name, names, ""))
        for option, name in requested
        if name not in names
    ]
    if problems:
        raise ConfigError(problems)


def _fields_of_guess(guess: Guess, options: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """Fields of a guess, those that were given left out."""
    fields: dict[str, Any] = {}
    task_type = options.get("task_type", guess.task_type)
    if "task_type" not in options:
        notes.append(f"guessed task type: {task_type}")
        if task_type != DEFAULT_TASK_TYPE:
            fields["task_type"] = task_type
    several = "label_columns" in described_task_types()[task_type].fields
    titles = {"text_columns": "text", "label_column": "label"}
    for name in ("text_columns", "label_column", *("label_columns", "label_separator") * several):
        value = getattr(guess, name)
        if not value or name in options:
            continue
        fields[name] = value
        shown = ", ".join(value) if isinstance(value, list) else value
        shown = repr(value) if name == "label_separator" else shown
        zero_or_one = ", 0 or 1 each" * (name == "label_columns")
        notes.append(f"guessed {titles.get(name, name)}: {shown}{zero_or_one}")
    if guess.more_texts:
        pair = f"--text-column {shlex.quote(guess.text_columns[0])} --text-column NAME"
        notes.append(f"may be a text as well: {', '.join(guess.more_texts)}; for pairs: {pair}")
    if several and "task_type" not in options:
        notes.append(f"if rows have one label each: --task-type {DEFAULT_TASK_TYPE}")
    if guess.rivals:
        rivals = ", ".join(f"{name} ({_few(values)})" for name, values in guess.rivals.items())
        notes.append(f"may be the label as well: {rivals}; choose with --label-column")
    return fields


def _few(values: Sequence[str]) -> str:
    shown = ", ".join(values[:SHOWN]) + ", ..." * (len(values) > SHOWN)
    return f"{counted(len(values), 'value')}: {shown}"


def _refuse_unknown(fields: Mapping[str, Any], rows: Dataset) -> None:
    """Refuse data in which no column is likely to hold what a run needs."""
    task_type = fields.get("task_type", DEFAULT_TASK_TYPE)
    if described_task_types()[task_type].text_columns:
        return
    missing = dict[str, str]()
    if not fields.get("text_columns"):
        missing["text_columns"] = _no_text(rows)
    if fields.get("label_column") is None and not fields.get("label_columns"):
        missing["label_column"] = NONE_LIKELY
    columns = ", ".join(rows.column_names)
    options = {"text_columns": "--text-column", "label_column": "--label-column"}
    problems = [
        Problem("", field, f"{why} name one with {options[field]}, of {columns}")
        for field, why in missing.items()
    ]
    if problems:
        raise ConfigError(problems)


def _no_text(rows: Dataset) -> str:
    """Why no column is taken for the text, also not one with a usual name."""
    from smoothtune.tasks.guess import TEXT_NAMES

    for name in rows.column_names:
        if name.strip().lower() in TEXT_NAMES:
            values = rows.select_columns(name).to_dict()[name]
            other = next((x for x in values if not isinstance(x, str | None)), None)
            if other is not None:
                return f"column {name!r} holds {repr(other)[:40]}, which is no text: mend it, or"
    return NONE_LIKELY


def _changes(fields: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """What else a run needs to train on the data: the first of a few changes with which it does."""
    from smoothtune.config.run import load_config
    from smoothtune.config.task import configured_task
    from smoothtune.data.missing import left_out_message
    from smoothtune.models.load import minilm_folder
    from smoothtune.tasks.prepare import checked_splits

    base = {"task": "custom", "output_dir": "out"} | dict(fields)
    if load_config(options=base).model == "minilm":
        minilm_folder()
    # the first change with which the rows pass all checks
    gaps, numbers = _about_rows(configured_task(load_config(options=base)), fields["data"])
    as_they_are: list[dict[str, Any]] = [{}, {"merge_labels": True}]
    changes = list(as_they_are)
    if numbers:  # they may name classes
        changes += [{"label_type": "integer"}, {"label_type": "text"}]
    if gaps:  # null may name a class
        changes = as_they_are + [{"drop_missing": True} | change for change in changes]
    problems = dict[bool, str]()  # the first one, by whether rows are left out
    for change in changes:
        if change.keys() & fields.keys():
            continue
        drops = "drop_missing" in change
        try:
            run = load_config(options=base | change)
            splits, task = checked_splits(fields["data"], configured_task(run))
            break
        except (ConfigError, DataError) as error:
            problems.setdefault(drops, str(error))
    else:
        raise DataError(problems[gaps])
    # what was changed, and why
    if drops:
        left_out = {name: left_out_message(rows) for name, rows in splits.items()}
        rows = "; ".join(f"split {name!r}: {text}" for name, text in left_out.items() if text)
        notes.append(f"guessed drop_missing: true, for {rows}")
    why = re.split(r"\. Give|; if they|\. If they", problems.get(drops, ""))[0]
    others = {name: value for name, value in change.items() if name != "drop_missing"}
    notes += [f"guessed {name}: {_yaml(value)}, for {why}" for name, value in others.items()]
    many = numbers and len(task.label_names or ()) > SHOWN_CLASSES
    if "label_type" in change or (many and "label_type" not in fields):
        notes.append("if they are scores, write label_type: float")
    if change.get("label_type") == "text" and "task_type" not in fields:
        notes.append("if they are the steps of a scale: --task-type ordinal-classification")
    _tell_labels(task, len(splits["train"]), notes)
    if set(splits) == {"train"}:
        notes.append("no validation file: a tenth of the rows is held out")
    return change


def _tell_labels(task: Task, rows: int, notes: list[str]) -> None:
    """Tell the classes, or that labels are scores, where a row has one label."""
    if task.head.problem_type not in ("single_label_classification", "regression"):
        return
    names = task.known_label_names
    more = f" and {len(names) - SHOWN_CLASSES} more" * (len(names) > SHOWN_CLASSES)
    classes = f"classes {', '.join(names[:SHOWN_CLASSES])}{more}"
    scores = "scores, so the task is a regression"
    notes.append(f"guessed labels: {classes if task.label_names else scores}")
    if len(names) > rows / 2:
        few = f"{len(names)} classes of {counted(rows, 'row')}"
        notes.append(f"{few} cannot be learned; name another column with --label-column")


def _about_rows(task: Task, source: str) -> tuple[bool, bool]:
    """Whether rows of a run seem to lack a label or a text, and whether labels are numbers."""
    from smoothtune.data.locations import left_out
    from smoothtune.tasks.splits import validation_split

    splits = replace(task, drop_missing=True).load_splits(source)
    used = {"train", validation_split(splits, task, source)}
    gaps = task.drop_missing is None and any(left_out(splits[name]) for name in used)
    feature = splits["train"].features.get(task.label_column)
    numbers = "integer" in task.label_types and getattr(feature, "dtype", "") != "string"
    return gaps, numbers


def _run_file(data: str, fields: dict[str, Any]) -> str:
    name = Path(data).name or Path(data).resolve().name
    task = re.sub(r"\W+", "-", Path(name).stem).strip("-").lower() or "custom"
    about = {key: value for key, value in fields.items() if key != "model"}
    return RUN_FILE.format(
        name=_yaml(name),
        task=_yaml(task),
        data="\n".join(f"{key}: {_yaml(value)}" for key, value in about.items()),
        model=_yaml(fields.get("model", "minilm")),
        output_dir=_yaml(f"out/{task}"),
    )


def _yaml(value: Any) -> str:
    """A value as YAML; a plain word stays plain."""
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z_][\w./-]*", value, re.A):
        return value if value.lower() not in ("true", "false", "null") else f'"{value}"'
    text = json.dumps(value, ensure_ascii=False)
    return _NOT_IN_YAML.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
