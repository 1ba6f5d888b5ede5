"""Fields and types that settings share; nothing here imports torch, as options are made of them."""

import csv
import os
from dataclasses import dataclass
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from smoothtune.catalog import described_task_types

Count = Annotated[int, Field(ge=1)]
MAX_NAME = 255  # bytes that a file system takes for one name


def _as_file_name(value: str) -> str:
    if any(len(part.encode()) > MAX_NAME for part in value.split("/")):
        raise ValueError(f"is longer than the {MAX_NAME} bytes that a name can have")
    return value


def _as_separator(value: str) -> str:
    value = "\t" if value == r"\t" else value
    if len(value) != 1 or value in '\r\n"':
        raise ValueError(r"must be one character, such as ; or \t")
    return value


def _as_encoding(value: str) -> str:
    try:
        text = "".encode(value).decode(value) == ""
    except LookupError:
        text = False
    if not text:
        raise ValueError("is no encoding that Python knows; utf-8, cp1252 and utf-16 are some")
    return value


def _items(value: Any) -> Any:
    """The items of ``1,2.5``; a name that holds a comma stands in double quotes."""
    if isinstance(value, str):
        value = [item.strip() for item in next(csv.reader([value or " "], skipinitialspace=True))]
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = [value]
    return tuple(value) if isinstance(value, list) else value


COMMAS = BeforeValidator(_items)
"""Before a tuple that may be typed as one text with commas; its numbers are not strict."""
Name = Annotated[str, Field(min_length=1), AfterValidator(_as_file_name)]
Folder = Annotated[Name, AfterValidator(os.path.expanduser)]
"""A folder that is written; ~ is replaced here, as transformers does so with its own folders."""
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Separator = Annotated[str, AfterValidator(_as_separator)]
Encoding = Annotated[str, AfterValidator(_as_encoding)]
if TYPE_CHECKING:
    TaskType = str
else:
    TaskType = Literal[tuple(described_task_types())]


@dataclass(frozen=True)
class Panel:
    """The heading under which ``--help`` lists a field."""

    title: str


DATA, ANSWERS, MODEL = Panel("Data"), Panel("Question answering"), Panel("Model")
METHOD, TRAINING, OUTPUT = Panel("Method"), Panel("Training"), Panel("Output")
PROGRESS = Panel("Evaluation, logging and checkpoints during training")
SEARCH = Panel("Search")
PARTS, SAMPLING = Panel("Parts of the evaluation"), Panel("Sampling")


def without_none(annotation: Any) -> Any:
    """``int`` of ``Annotated[int, ...] | None``."""
    while get_origin(annotation) in (Annotated, Union, UnionType):
        annotation = get_args(annotation)[0]
    return annotation


class Fields(BaseModel):
    """Base of all settings: frozen, strict types, unknown fields are errors."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )


class DataFields(Fields):
    """Where the data is, and which columns the task reads."""

    task: Annotated[Name | None, DATA] = None
    """A GLUE task (cola, mrpc, rte, sst2, stsb, ...), squad, or a name for your own data set,
    together with `text_columns` or `task_type`."""
    task_type: Annotated[TaskType | None, DATA] = None
    """Kind of task of your own data set; unset: text-classification."""
    data: Annotated[Name | None, DATA] = None
    """Hub id, folder, or Parquet, CSV, TSV or JSONL file; unset: the task's data on the hub."""
    text_columns: Annotated[
        Annotated[list[Name], Field(min_length=1, max_length=2)] | None, DATA
    ] = None
    """Text column of your own data set; two for pairs of texts."""
    label_column: Annotated[Name | None, DATA] = None
    """Label column of your own data set; unset: label; tags for token classification; labels for
    multi-label classification, where it holds lists of labels."""
    label_separator: Annotated[Annotated[str, Field(min_length=1)] | None, DATA] = None
    """Multi-label classification: what stands between two labels where the label column holds
    texts, as the ; of toxic;insult. An empty text is a row without labels."""
    label_columns: Annotated[Annotated[list[Name], Field(min_length=1)] | None, DATA] = None
    """Multi-label classification: a column of 0 and 1 for every label, in place of label_column."""
    choice_columns: Annotated[Annotated[list[Name], Field(min_length=1)] | None, DATA] = None
    """Multiple choice: a column for every choice, or one column that holds lists of choices."""
    sep: Annotated[Separator | None, DATA] = None
    """What separates the columns of CSV and TSV files; unset: a comma, or a tab in TSV."""
    encoding: Annotated[Encoding | None, DATA] = None
    """Encoding of CSV and TSV files, such as cp1252; unset: UTF-8."""
    merge_labels: Annotated[bool | None, DATA] = None
    """Whether labels that differ in blanks, case or characters that are not printed only, as Pos
    and pos, are one class, under the most frequent spelling; unset: they are an error."""
    label_type: Annotated[Literal["text", "integer", "float"] | None, DATA] = None
    """What labels are, whatever they look like: text, so that 1 to 5 name classes; integer, classes
    that count 0, 1, ...; or float, scores of a regression. Unset: as they are stored; in CSV, which
    says no types, numbers if all are numbers, else text."""
    drop_missing: Annotated[bool | None, DATA] = None
    """Whether rows without a label or a text are left out, and counted; unset: they are an error.
    nan, null, <NA> and #N/A are no labels then, unless label_type is text."""
    trust_remote_code: Annotated[bool, MODEL] = False
    """Run code that comes with a model of the hub. Only for authors you trust."""


class SpanFields(Fields):
    """How question answering cuts long contexts and chooses answers; unset: the task's default."""

    doc_stride: Annotated[Count | None, ANSWERS] = None
    """Tokens that two windows of a long context share; unset: 128."""
    n_best_size: Annotated[Count | None, ANSWERS] = None
    """Number of best start and end tokens that are combined; unset: 20."""
    max_answer_length: Annotated[Count | None, ANSWERS] = None
    """Longest answer in tokens; unset: 30."""
    version_2_with_negative: Annotated[bool | None, ANSWERS] = None
    """Some questions have no answer; unset: only with squad_v2."""
    null_score_diff_threshold: Annotated[float | None, ANSWERS] = None
    """Predict "no answer" if it scores above the best answer by more than this; unset: 0."""
