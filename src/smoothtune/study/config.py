"""A study file: what is compared, on what, and how often; checked down to every single run."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field

from smoothtune.config.draft import Draft
from smoothtune.config.evaluation import PartName
from smoothtune.config.fields import Count, Fields, Seed
from smoothtune.config.run import RunConfig, load_config, read_config
from smoothtune.errors import ConfigError, Location, Problem, unknown
from smoothtune.study.entries import RUN_FIELDS, Entry, Setting, is_search, read_entry
from smoothtune.study.files import portable, read_study_file

T = TypeVar("T")
TestName = Literal["welch", "paired t", "wilcoxon", "permutation"]

PLAIN, LONGER = "plain", "plain_more_epochs"
DEMO = "demo"
"""The task of generated sentences."""


class Paper(Fields):
    """Printed numbers, to stand beside the study's own."""

    source: str
    """Paper and table."""
    columns: list[str]
    """What the numbers of a cell are: mean, sd, max."""
    model: str = ""
    values: dict[str, dict[str, list[float | None]]]
    """Numbers by task and by label of the study's entries; null: not printed."""
    notes: str = ""


class StudyConfig(Fields):
    """What a study file holds beside the fields of a run."""

    title: str = ""
    notes: str = ""
    """Printed with the report: what is reconstructed, what is not comparable."""
    seeds: Annotated[list[Seed], Field(min_length=1)] = [0, 1, 2, 3, 4]
    more_epochs: Annotated[float, Field(gt=1)] | None = 2.0
    """Plain fine-tuning is also run this many times longer; null: not."""
    test: TestName = "welch"
    """The test whose p-values decide; the others are shown as well."""
    selection_seeds: Annotated[list[Seed], Field(min_length=1)] | None = None
    """Seeds with which settings are compared; unset: the first of `seeds`."""
    selection_share: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Share of the training rows that settings are compared on."""
    max_settings: Count | None = None
    """Of a larger grid, try this many settings drawn at random."""
    evaluate: list[PartName] = []
    """Parts of `smoothtune evaluate` for every run."""
    noise_curve: bool = False
    """Score under Gaussian noise on the embeddings, for every run."""
    keep_models: bool = False
    """Keep the model folders, under ``models/``."""
    paper: list[Paper] = []


@dataclass(frozen=True)
class Condition:
    """Task, model and training-set size that all methods of one comparison share."""

    task: str
    model: str
    """Its name in tables; `fields` has the path."""
    max_train_samples: int | None
    fields: dict[str, Any]
    """Fields of the run."""


@dataclass(frozen=True)
class Outline:
    """A study as far as it is known without the methods' classes."""

    draft: Draft
    config: StudyConfig
    conditions: list[Condition]
    entries: list[Entry]
    runs: dict[tuple[int, int, int], dict[str, Any]]
    """Fields of each run, as `Study.runs`."""


@dataclass(frozen=True)
class Study:
    """A study, every run of which is valid."""

    name: str
    config: StudyConfig
    conditions: list[Condition]
    entries: list[Entry]
    runs: dict[tuple[int, int, int], RunConfig] = field(repr=False)
    """The run of condition, entry and setting, by their numbers, with the first seed."""

    @property
    def selection_seeds(self) -> list[int]:
        """Seeds with which settings are compared."""
        return self.config.selection_seeds or self.config.seeds[:1]


def load_study(
    file: str | Path, *, scale: str | None = None, options: Mapping[str, Any] | None = None
) -> Study:
    """Read a study and check every run in it.

    Args:
        file: a YAML file.
        scale: one of the file's ``scales``, whose keys win over the others.
        options: fields by name that win over the file, from the command line; None: not given.

    Returns:
        The study. Plain fine-tuning is in it, and `LONGER` beside it, whether listed or not.

    Raises:
        ConfigError: with all that is wrong, each with file, line and field.
    """
    outline = read_study(file, scale=scale, options=options)
    draft, runs = outline.draft, dict[tuple[int, int, int], RunConfig]()
    for (c, e, s), options_of_run in outline.runs.items():
        entry = outline.entries[e]
        run = _reported(draft, entry, partial(load_config, options=options_of_run))
        if run is not None:
            runs[c, e, s] = run
    draft.stop_at_problems()
    name = Path(file).stem + (f" ({scale})" if scale else "")
    return Study(name, outline.config, outline.conditions, outline.entries, runs)


def read_study(
    file: str | Path, *, scale: str | None = None, options: Mapping[str, Any] | None = None
) -> Outline:
    """Read a study as `load_study` does, and check what can be checked without importing torch.

    Raises:
        ConfigError: with all that is found wrong so, each with file, line and field.
    """
    draft = read_study_file(Path(file), scale)
    draft.put_options(options or {})
    draft.stop_at_problems()
    config = _config(draft)
    grids = ("task", "model", "max_train_samples")
    common = {k: v for k, v in draft.values.items() if k in RUN_FIELDS and k not in grids}
    search = {key: common.pop(key) for key in list(common) if is_search(key, common[key])}
    conditions = _conditions(draft, common)
    entries = _entries(draft, config, search)
    runs = {
        (c, e, s): _options(condition, setting, config.seeds[0])
        for (c, condition), (e, entry) in itertools.product(
            enumerate(conditions), enumerate(entries)
        )
        for s, setting in enumerate(entry.settings)
    }
    for (_, e, _), options_of_run in runs.items():
        _reported(draft, entries[e], partial(read_config, options=options_of_run))
    draft.stop_at_problems()
    return Outline(draft, config, conditions, entries, runs)


def _config(draft: Draft) -> StudyConfig:
    """The keys that are not fields of a run."""
    values = {k: v for k, v in draft.values.items() if k in StudyConfig.model_fields}
    known = RUN_FIELDS | set(StudyConfig.model_fields) | {"methods"}
    for key in draft.values:
        if key == "seed":
            draft.report((key,), "write seeds: [0, 1, 2]")
        elif key not in known:
            draft.report((key,), unknown("field", key, known))
    if isinstance(values.get("paper"), Mapping):
        values["paper"] = [values["paper"]]
    config = draft.validated(StudyConfig, values)
    if len(set(config.seeds)) < len(config.seeds):
        draft.report(("seeds",), "holds a seed twice")
    return config


def _conditions(draft: Draft, common: dict[str, Any]) -> list[Condition]:
    """Tasks x models x training-set sizes."""
    values, found = draft.values, []
    grid = itertools.product(
        _numbered(values.get("task"), "task"),
        _numbered(values.get("model", "minilm"), "model"),
        _numbered(values.get("max_train_samples"), "max_train_samples"),
    )
    for (task, location), (model, _), (size, _) in grid:
        fields = dict(task) if isinstance(task, Mapping) else {"name": task}
        name = fields.pop("name", None)
        if not isinstance(name, str) or not set(fields) <= RUN_FIELDS:
            wrong = [key for key in fields if key not in RUN_FIELDS]
            what = unknown("field", wrong[0], RUN_FIELDS) if wrong else "write task: NAME"
            draft.report(location, what)
            continue
        if not isinstance(model, str):
            draft.report(("model",), f"must be a name, not {model!r}")
            continue
        run = common | {"max_train_samples": size, "model": model} | fields
        run |= _data_of(name, run)
        size, run = run["max_train_samples"], run | {"task": name}
        found.append(Condition(name, _model_name(model, values.get("model")), size, run))
    # a task with a size of its own comes once, whatever the sizes of the others
    unique = {json.dumps(condition.fields, sort_keys=True): condition for condition in found}
    return list(unique.values())


def _model_name(model: str, listed: Any) -> str:
    """A model folder's name, unless another one has it too."""
    others = [portable(each) for each in (listed if isinstance(listed, list) else [])]
    return model if others.count(portable(model)) > 1 else portable(model)


def _entries(draft: Draft, config: StudyConfig, search: dict[str, Any]) -> list[Entry]:
    """The file's entries, and the plain ones that belong to every study."""
    listed = draft.values.get("methods", [])
    if not isinstance(listed, list):
        draft.report(("methods",), "must be a list: [plain, lnsr, [mixout, r3f]]")
        return []
    entries = [
        read_entry(item, ("methods", index), search, draft) for index, item in enumerate(listed)
    ]
    if PLAIN not in [entry.label for entry in entries]:
        entries.insert(0, read_entry(PLAIN, ("methods",), search, draft))
    labels = [entry.label for entry in entries]
    plain = entries[labels.index(PLAIN)]
    if any(list(setting.methods) != [PLAIN] for setting in plain.settings):
        draft.report(plain.location, "the label plain belongs to plain fine-tuning")
    if config.more_epochs is not None and LONGER not in labels:
        settings = [Setting(s.methods, s.changes, config.more_epochs) for s in plain.settings]
        entries.insert(labels.index(PLAIN) + 1, Entry(LONGER, settings, plain.location))
    for entry in entries:
        if labels.count(entry.label) > 1:
            draft.report(entry.location, f"{entry.label!r} is repeated; give one of them a label")
    return entries


def _options(condition: Condition, setting: Setting, seed: int) -> dict[str, Any]:
    """The fields of one run."""
    options = condition.fields | setting.changes
    if setting.epochs_factor != 1:
        options |= _longer(options, setting.epochs_factor)
    options |= {"seed": seed, "methods": setting.methods, "output_dir": "unset"}
    return {"cost_steps": 0} | options


def _reported(draft: Draft, entry: Entry, check: Callable[[], T]) -> T | None:
    """What a check of a run returns; its problems are reported where the file says so."""
    try:
        return check()
    except ConfigError as error:
        for problem in error.problems:
            place = _place(draft, problem.field, entry)
            draft.problems.append(Problem(place, problem.field, problem.message))
        return None


def _place(draft: Draft, name: str, entry: Entry) -> str:
    """Where the file says the field of a run: in the entry, or for all runs."""
    key = name.split(".")[-1].split("[")[0]
    for_all = entry.location if name.startswith("methods") else (key,)
    return draft.places.get((*entry.location, key)) or draft.place(for_all)


def _numbered(value: Any, key: str) -> Sequence[tuple[Any, Location]]:
    """A value or a list of values, each with its location."""
    if isinstance(value, list) and value:
        return [(item, (key, index)) for index, item in enumerate(value)]
    return [(value, (key,))]


def _data_of(task: str, run: Mapping[str, Any]) -> dict[str, Any]:
    """Where a task's data is: a folder of data sets has a sub-folder for each task."""
    data = run.get("data")
    if task == DEMO and run.get("text_columns") is None:
        return {"data": DEMO, "text_columns": ["sentence"]}
    if isinstance(data, str) and os.path.isdir(Path(os.path.expanduser(data)) / task):
        return {"data": str(Path(data) / task)}
    return {}


def _longer(run: Mapping[str, Any], factor: float) -> dict[str, Any]:
    """More epochs, or more steps where the run says steps."""
    steps = run.get("max_steps", -1)
    if isinstance(steps, int) and steps > 0:
        return {"max_steps": round(steps * factor)}
    epochs = run.get("num_train_epochs", RunConfig.model_fields["num_train_epochs"].default)
    return {"num_train_epochs": epochs * factor} if isinstance(epochs, int | float) else {}
