"""Cells: single runs of a study, identified by what determines their result, and their records."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from smoothtune.config.evaluation import OtherData
from smoothtune.config.run import RunConfig
from smoothtune.errors import OutputError
from smoothtune.files import make_folder, not_written, open_log, read_json, write_json
from smoothtune.results import CellContent, CellRecord, Record
from smoothtune.study.fields import ConditionKey
from smoothtune.study.table import Row, row_of

STUDY, LOG = "study.json", "log.jsonl"
FOLDERS = CELLS, FAILURES, TABLES = "cells", "failures", "tables"
"""Those that files are written into, one at a time."""

Status = Literal["done", "nan", "killed", "out of memory", "not supported", "error"]
"""How a run ended. "done" and "nan" are results and stay; the others are tried again."""
NOT_SUPPORTED: Status = "not supported"
"""A method that is not for this task, model or way to train: left out, which is no failure."""
STOPPED = 75
"""Exit code of a cell that a signal stopped."""
RESULTS: tuple[Status, ...] = ("done", "nan")


@dataclass(frozen=True)
class Extras:
    """What is measured on a trained model beside its scores."""

    evaluate: tuple[str, ...] = ()
    """Parts of `smoothtune evaluate`."""
    noise_curve: bool = False
    ood: tuple[tuple[str, OtherData], ...] = ()
    """Other data sets, by name."""
    further_share: tuple[float, ...] = ()
    """Shares of them that a copy of the model is trained on further."""


@dataclass(frozen=True)
class Fingerprints:
    """What a run reads, by content."""

    data: str
    base_weights: str
    unlabeled: str | None = None
    ood: tuple[tuple[str, str], ...] = ()
    """Of the other data sets, by name."""


class NamedCell(Record):
    """A cell as ``study.json`` lists it."""

    id: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    """It becomes part of a path."""
    title: str


class StudyRecord(Record):
    """``study.json``, as far as it is read."""

    name: str = ""
    cells: list[NamedCell] = []
    fingerprints: dict[str, Fingerprints] = {}
    """What the runs read, by `cell_key`."""


def read_study(folder: Path) -> StudyRecord:
    """What a study's folder says of it.

    Raises:
        OutputError: there is no study, or ``study.json`` is damaged.
    """
    content = read_json(folder / STUDY)
    if content is None:
        raise OutputError(f"{folder} holds no study")
    mend = "remove the file, and run the study's command again"
    return StudyRecord.check(content, folder / STUDY, "study", mend=mend)


def cell_identity(config: RunConfig, extras: Extras, prints: Fingerprints) -> dict[str, Any]:
    """What determines the result of a run, as plain data: data and weights by content, not path."""
    fields = config.identity()
    for place in ("data", "sep", "encoding", "unlabeled", "model", "task"):
        fields.pop(place, None)
    fields |= {"save_strategy": "no", "save_steps": 500}  # a resumed run is the same run
    identity: dict[str, Any] = {
        "config": fields,
        "data": prints.data,
        "base_weights": prints.base_weights,
        "method_versions": config.method_versions(),
    }
    if prints.unlabeled is not None:
        identity["unlabeled"] = prints.unlabeled
    if extras != Extras():
        parts = sorted(extras.evaluate)
        identity["extras"] = {"evaluate": parts, "noise_curve": extras.noise_curve}
    if extras.ood:
        content = dict(prints.ood)
        read_as = {name: asdict(other) | {"source": content[name]} for name, other in extras.ood}
        identity["extras"] |= {"ood": read_as, "further_share": list(extras.further_share)}
    return identity


@dataclass(frozen=True)
class Cell:
    """One run."""

    label: str
    """Of the study's entry."""
    setting: str
    """The setting of the entry, in one line."""
    condition: ConditionKey
    """What methods are compared on."""
    selection: bool
    """Whether it serves to choose a setting, and is evaluated on training data."""
    config: RunConfig
    extras: Extras
    changes: dict[str, Any]
    """Fields of the run that the setting changes."""
    identity: dict[str, Any]
    """Of `cell_identity`."""

    @cached_property
    def id(self) -> str:
        """What its record is named by."""
        return digest(self.identity)[:16]

    @property
    def seed(self) -> int:
        """Of the run."""
        return self.config.seed

    def with_seed(self, seed: int) -> Cell:
        """The same run with another seed."""
        config = self.config.model_copy(update={"seed": seed})
        identity = self.identity | {"config": self.identity["config"] | {"seed": seed}}
        return replace(self, config=config, identity=identity)

    @property
    def title(self) -> str:
        """As shown to users: ``sst2 lnsr seed 0``."""
        size = self.condition.max_train_samples
        examples = f" {size} examples" if size else ""
        stage = f", choosing: {self.setting}" if self.selection else ""
        return f"{self.condition.task}{examples} {self.label} seed {self.seed}{stage}"


def digest(value: Any) -> str:
    """Sha256, in hex, of plain data, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


class Records:
    """The files that cells leave in a study's folder; each is written whole or not at all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._rows: dict[tuple[str, str], Row] = {}
        """Rows of verified records, by cell and sha256 of the file."""

    def write(self, cell: Cell, content: CellContent) -> None:
        """Write a finished cell, and forget how it failed before."""
        record = {"id": cell.id, "identity": cell.identity, **content.content()}
        make_folder(self.folder / CELLS)
        write_json(self._path(cell.id), record | {"sha256": digest(record)})
        (self.folder / FAILURES / f"{cell.id}.json").unlink(missing_ok=True)

    def read(self, cell_id: str) -> CellRecord | None:
        """The record of a finished cell; None if it is not whole, or that of another cell."""
        content = _read(self._path(cell_id))
        if content is None:
            return None
        signed = {key: value for key, value in content.items() if key != "sha256"}
        try:
            whole = content.get("sha256") == digest(signed)
            own = digest(content.get("identity"))[:16] == cell_id == content.get("id")
            record = CellRecord.parse(signed)
        except (ValueError, RecursionError):
            return None
        return record if whole and own else None

    def row(self, cell_id: str) -> Row | None:
        """What a report needs of a finished cell; None as `read`."""
        try:
            content = hashlib.sha256(self._path(cell_id).read_bytes()).hexdigest()
        except OSError:
            return None
        if (cell_id, content) not in self._rows and (record := self.read(cell_id)):
            self._rows[cell_id, content] = row_of(record)
        return self._rows.get((cell_id, content))

    def _path(self, cell_id: str) -> Path:
        return self.folder / CELLS / f"{cell_id}.json"

    def end(self, cell: Cell, status: Status, ended: CellContent | str) -> None:
        """Write how a cell ended: the content of its record, or the message of an error."""
        if isinstance(ended, CellContent):
            self.write(cell, ended)
        elif status == "nan":
            self.write(cell, CellContent(status="nan", message=ended))
        else:
            self.fail(cell, status, ended)
        self.note(status, cell.id)

    def fail(self, cell: Cell, status: str, message: str) -> None:
        """Write how a cell failed."""
        make_folder(self.folder / FAILURES)
        failure = {"id": cell.id, "title": cell.title, "status": status, "message": message}
        write_json(self.folder / FAILURES / f"{cell.id}.json", failure)

    def failure(self, cell_id: str) -> dict[str, Any] | None:
        """How a cell failed, if it did."""
        failure = _read(self.folder / FAILURES / f"{cell_id}.json") or {}
        texts = (failure.get("status"), failure.get("message"))
        return failure if all(isinstance(text, str) for text in texts) else None

    def note(self, event: str, cell_id: str) -> None:
        """Append a line to the log: a cell was started, or ended."""
        line = {"time": round(time.time(), 3), "event": event, "cell": cell_id, "pid": os.getpid()}
        try:
            with open_log(path := self.folder / LOG) as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise not_written(path, error) from error

    def log(self) -> list[dict[str, Any]]:
        """All lines of the log that are whole."""
        lines = []
        try:
            text = (self.folder / LOG).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return []
        for line in text.splitlines():
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(event, dict) and {"event", "cell"} <= event.keys():
                lines.append(event)
        return lines


def _read(path: Path) -> dict[str, Any] | None:
    """A JSON object; None for a file that is missing or damaged."""
    try:
        return read_json(path)
    except OutputError:
        return None


def forget(cell: Cell, status: Status, checkpoints: Path) -> None:
    """Remove the checkpoints of a cell that has its result."""
    if status in RESULTS:
        shutil.rmtree(checkpoints / cell.id, ignore_errors=True)
        with suppress(OSError):  # others are there
            checkpoints.rmdir()
