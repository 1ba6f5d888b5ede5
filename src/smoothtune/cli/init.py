"""The command `init`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smoothtune.cli.output import JSON, USAGE, echo, errors_as_exit_codes, fail, print_json
from smoothtune.errors import counted
from smoothtune.files import write_atomic

if TYPE_CHECKING:
    from smoothtune.data.guess import Guess

RUN_FILE = """\
# Written by smoothtune init from {name}. All fields: smoothtune train --help
task: {task}  # a name of your own, for results and reports
{data}
model: minilm  # or a model folder, or a hub id such as bert-base-uncased
methods: [plain]  # ordinary fine-tuning; smoothtune methods lists the others
# methods:
#   lnsr: {{share: 0.3}}
num_train_epochs: 3
learning_rate: 1e-4  # for this small model; 2e-5 is usual for larger ones
per_device_train_batch_size: 16
seed: 42
output_dir: {output_dir}
"""


def init(
    data: Annotated[str, typer.Argument(help="CSV, TSV, JSONL or Parquet file, or a folder.")],
    to: Annotated[Path, typer.Option(help="The run file to write.")] = Path("run.yaml"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file.")] = False,
    as_json: JSON = False,
) -> None:
    """Look at the data, and write a run file for it."""
    with errors_as_exit_codes():
        if os.path.lexists(to) and not overwrite:
            fail(f"{to} exists; choose another name with --to, or replace it: --overwrite", USAGE)
        fields, notes = _fields_of(data)
        text = _run_file(data, fields)
        to.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(to, text)
    for note in notes:
        echo(note, err=as_json)
    echo(f"{to} is written; check it, then: smoothtune validate {to}", err=as_json)
    echo(f"train: smoothtune train {to}", err=as_json)
    if as_json:
        print_json({"file": str(to), "fields": fields, "notes": notes})


def _fields_of(data: str) -> tuple[dict[str, Any], list[str]]:
    """Fields of the run that describe the data, and what to tell about the guess."""
    from smoothtune.data.csv_format import first_csv, fitting_encoding, fitting_separator, no_header
    from smoothtune.data.files import check_readable
    from smoothtune.data.guess import guess
    from smoothtune.data.label_types import LabelType, typed_by_cells
    from smoothtune.data.sources import load_splits

    fields: dict[str, Any] = {"data": data}
    notes = []
    first = first_csv(Path(data).expanduser())
    if first is not None:
        check_readable(first)
        encoding = fitting_encoding(first.read_bytes())
        if encoding not in (None, "utf-8"):
            fields["encoding"] = encoding
        sep = fitting_separator(first, encoding)
        if sep is not None and sep != ("\t" if first.suffix.lower() == ".tsv" else ","):
            fields["sep"] = sep
    form = {name: fields[name] for name in ("sep", "encoding") if name in fields}
    splits = load_splits(data, **form)
    rows = splits["train"]
    found = guess(reduce(typed_by_cells, rows.column_names, rows) if first is not None else rows)
    columns = ", ".join(rows.column_names)
    notes += [f"{data}: {counted(len(rows), 'row')} to train on, columns {columns}"]
    values = {name: set(map(str, rows[name])) for name in rows.column_names if first is not None}
    if told := no_header(data, values):
        notes.append(told)
    notes += [f"guessed {name}: {value!r}" for name, value in form.items()]
    notes.append(f"guessed task type: {found.task_type}")
    if found.task_type != "text-classification":
        fields["task_type"] = found.task_type
    if found.text_columns:
        fields["text_columns"] = found.text_columns
        notes.append(f"guessed text: {', '.join(found.text_columns)}")
    if found.label_column is not None:
        fields["label_column"] = found.label_column
        notes.append(f"guessed label: {found.label_column}")
    if found.task_type == "multi-label-classification":
        labels, said = _about_sets(found)
        fields |= labels
        notes += said
    if found.task_type == "text-classification":

        def read(label_type: LabelType | None = None) -> Any:
            return load_splits(data, label_type=label_type, **form, **_label(found))["train"]

        labels, said = _about_labels(read, found)
        fields |= labels
        notes += said
    if found.others:
        notes.append(f"not read: {', '.join(found.others)}")
    if set(splits) == {"train"}:
        notes.append("no validation file: a tenth of the rows is held out")
    return fields, notes


def _about_sets(found: Guess) -> tuple[dict[str, Any], list[str]]:
    """Fields that several labels of a row call for, and what to tell about them."""
    one = "if rows have one label each, leave task_type out, and give label_column its column"
    if found.label_columns:
        told = f"guessed label_columns: {', '.join(found.label_columns)}, 0 or 1 each"
        return {"label_columns": found.label_columns}, [told, one]
    if found.label_separator is None:
        return {}, []
    told = f"guessed label_separator: {found.label_separator!r}"
    separator = {"label_separator": found.label_separator}
    return separator, [told, f"{one}, and label_separator out"]


def _label(found: Guess) -> dict[str, Any]:
    return {} if found.label_column is None else {"label_column": found.label_column}


def _about_labels(read: Callable[..., Any], found: Guess) -> tuple[dict[str, Any], list[str]]:
    """Fields that the labels call for, and what they look like.

    Args:
        read: gives the rows, with the label column as it looks, or of a type.
        found: the guess.
    """
    from smoothtune.data.label_names import class_names
    from smoothtune.errors import DataError

    if found.label_column is None or not found.text_columns:
        missing = "label_column" if found.text_columns else "text_columns"
        return {}, [f"no likely column for {missing}: write its name into the file"]
    column, rows, notes = found.label_column, read(), list[str]()
    changes: list[dict[str, Any]] = [{}, {"merge_labels": True}]
    if rows.features[column].dtype != "string":  # numbers that may name classes
        changes += [{"label_type": "integer"}, {"label_type": "text"}]
    problems = list[str]()
    for fields in changes:
        label_type, merge = fields.get("label_type"), fields.get("merge_labels")
        try:
            names = class_names(
                read(label_type), column, "the data", merge=merge, label_type=label_type
            )
            break
        except DataError as error:
            problems.append(str(error))
    else:
        return {}, [f"to be mended in the data: {problems[0]}"]
    why = re.split(r"\. Give|; if they|\. If they", problems[0])[0] if problems else ""
    notes += [f"guessed {name}: {_yaml(value)}, for {why}" for name, value in fields.items()]
    if "label_type" in fields:
        notes.append("if they are scores, write label_type: float")
    classes, scores = f"classes {', '.join(names[:20])}", "scores, so the task is a regression"
    blank = sum(value is None or not str(value).strip() for value in rows[column][:])
    if blank:
        missing = "1 row has" if blank == 1 else f"{blank} rows have"
        notes.append(f"{missing} no label: fill it in, or drop what has none; train refuses it")
    return fields, [*notes, f"guessed labels: {classes if names else scores}"]


def _run_file(data: str, fields: dict[str, Any]) -> str:
    name = Path(data).name or Path(data).resolve().name
    task = re.sub(r"\W+", "-", Path(name).stem).strip("-").lower() or "custom"
    lines = [f"{key}: {_yaml(value)}" for key, value in fields.items()]
    if "text_columns" not in fields and "task_type" not in fields:
        lines.append("text_columns: []  # the column with the text; two for pairs of texts")
    return RUN_FILE.format(
        name=_yaml(name), task=_yaml(task), data="\n".join(lines), output_dir=_yaml(f"out/{task}")
    )


def _yaml(value: Any) -> str:
    """A value as YAML; a plain word stays plain."""
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z_][\w./-]*", value, re.A):
        return value if value.lower() not in ("true", "false", "null") else f'"{value}"'
    return json.dumps(value, ensure_ascii=False)
