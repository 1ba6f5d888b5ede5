"""A study file: what is compared, on what, and how often; checked down to every single run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from smoothtune.catalog import known_methods
from smoothtune.config.draft import Draft
from smoothtune.config.run import RunConfig, check_draft, load_config, read_draft
from smoothtune.errors import ConfigError, Location, Problem, unknown
from smoothtune.study.conditions import Condition, read_conditions
from smoothtune.study.entries import RUN_FIELDS, Entry, Setting, is_search, read_entry
from smoothtune.study.fields import LONGER, PLAIN, StudyConfig
from smoothtune.study.files import read_study_file
from smoothtune.study.layout import paper_models
from smoothtune.study.protocol import Protocol, add_protocol, fields_here

T = TypeVar("T")
OWN = "own"
"""In the place of unlabeled data: the texts of the task's own training rows."""


@dataclass(frozen=True)
class Study:
    """A study, every run of which is valid."""

    name: str
    config: StudyConfig
    conditions: list[Condition]
    entries: list[Entry]
    runs: dict[tuple[int, int, int], RunConfig] = field(repr=False)
    """The run of condition, entry and setting, by their numbers, with the first seed."""
    protocol: Protocol | None = None
    """What the file leaves open is taken from it."""

    @property
    def selection_seeds(self) -> list[int]:
        """Seeds with which settings are compared."""
        return self.config.selection_seeds or self.config.seeds[:1]


def load_study(
    file: str | Path,
    *,
    scale: str | None = None,
    options: Mapping[str, Any] | None = None,
    only: Mapping[str, Sequence[str]] | None = None,
) -> Study:
    """Read a study and check every run in it; plain fine-tuning is added, and `LONGER`.

    Args:
        file: a YAML file.
        scale: one of the file's ``scales``, whose keys win over the others.
        options: fields by name that win over the file, from the command line; None: not given.
        only: which "methods" (labels), "tasks" and "models" to take of those in the file.

    Raises:
        ConfigError: with all that is wrong, each with file, line and field.
    """
    name = Path(file).stem + (f" ({scale})" if scale else "")
    return study_of(read_study_file(Path(file), scale), name, options, only)


def study_of(
    draft: Draft,
    name: str,
    options: Mapping[str, Any] | None = None,
    only: Mapping[str, Sequence[str]] | None = None,
) -> Study:
    """A study with this name in a draft; the other arguments and errors as `load_study`."""
    given = {key: value for key, value in (options or {}).items() if value is not None}
    _keep_selection_seeds(draft, given)
    draft.put_options(given)
    draft.stop_at_problems()
    protocol = add_protocol(draft)
    config = _config(draft)
    grids = ("task", "model", "max_train_samples")
    common = {k: v for k, v in draft.values.items() if k in RUN_FIELDS and k not in grids}
    search = {key: common.pop(key) for key in list(common) if is_search(key, common[key])}
    forced = {k: v for k, v in given.items() if k in RUN_FIELDS - {"data", "model", "task"}}
    conditions = read_conditions(draft, common, config, forced)
    _check_search(draft, search, conditions)
    entries = _entries(draft, config, search, protocol)
    _check_method_fields(draft, config, conditions, entries, protocol)
    _check_stand_ins(draft, config, conditions)
    conditions, entries = _chosen(draft, conditions, entries, only or {})
    fields = {
        (c, e, s): _options(condition, entry, setting, forced) | {"seed": config.seeds[0]}
        for c, condition in enumerate(conditions)
        for e, entry in enumerate(entries)
        for s, setting in enumerate(entry.settings)
        if condition.methods is None or entry.label in (PLAIN, *condition.methods)
    }
    runs = _checked_runs(draft, entries, fields)
    return Study(name, config, conditions, entries, runs, protocol)


def _keep_selection_seeds(draft: Draft, given: Mapping[str, Any]) -> None:
    """Settings are compared with the first seed of the file, whichever seeds are asked for."""
    seeds = draft.values.get("seeds", StudyConfig.model_fields["seeds"].default)
    unset = draft.values.get("selection_seeds") is None
    if "seeds" in given and unset and isinstance(seeds, list) and seeds:
        draft.put("selection_seeds", seeds[:1], draft.origin(("seeds",)))


def _checked_runs(
    draft: Draft, entries: Sequence[Entry], fields: Mapping[tuple[int, int, int], dict[str, Any]]
) -> dict[tuple[int, int, int], RunConfig]:
    """The runs, from their fields; what can be found wrong without importing torch is first."""
    for (_, e, _), options in fields.items():
        _reported(draft, entries[e], partial(check_draft, read_draft(options=options)))
    draft.stop_at_problems()
    runs = {}
    for (c, e, s), options in fields.items():
        run = _reported(draft, entries[e], partial(load_config, options=_own_texts(options)))
        if run is not None:
            runs[c, e, s] = run
    draft.stop_at_problems()
    return runs


def _config(draft: Draft) -> StudyConfig:
    """The keys that are not fields of a run."""
    values = {k: v for k, v in draft.values.items() if k in StudyConfig.model_fields}
    known = RUN_FIELDS | set(StudyConfig.model_fields) | {"methods"}
    for key in draft.values:
        if key == "seed":
            draft.report((key,), "write seeds: [0, 1, 2]")
        elif key not in known:
            draft.report((key,), unknown("field", key, known))
    try:
        return draft.validated(StudyConfig, values)
    except ConfigError:  # the draft has the problems; what else is wrong is found with the defaults
        return StudyConfig()


def _entries(
    draft: Draft, config: StudyConfig, search: dict[str, Any], protocol: Protocol | None
) -> list[Entry]:
    """The file's entries, and the plain ones that belong to every study."""
    weak = protocol.method_fields if protocol else {}
    listed = draft.values.get("methods", [])
    if not isinstance(listed, list):
        draft.report(("methods",), "must be a list: [plain, lnsr, [mixout, r3f]]")
        return []
    entries = [
        read_entry(item, ("methods", index), search, draft, weak, config.method_fields)
        for index, item in enumerate(listed)
    ]
    if PLAIN not in [entry.label for entry in entries]:
        entries.insert(0, read_entry(PLAIN, ("methods",), search, draft))
    labels = [entry.label for entry in entries]
    for entry in entries:
        others = any(list(setting.methods) != [PLAIN] for setting in entry.settings)
        if entry.label in (PLAIN, LONGER) and others:
            draft.report(entry.location, f"the label {entry.label} belongs to plain fine-tuning")
        if labels.count(entry.label) > 1:
            draft.report(entry.location, f"{entry.label!r} is repeated; give one of them a label")
    if config.more_epochs is not None and LONGER not in labels:
        plain, factor = entries[labels.index(PLAIN)], config.more_epochs
        settings = [replace(s, epochs_factor=s.epochs_factor * factor) for s in plain.settings]
        entries.insert(labels.index(PLAIN) + 1, Entry(LONGER, settings, plain.location))
    return entries


def _check_search(draft: Draft, search: Mapping[str, Any], conditions: Sequence[Condition]) -> None:
    """A value that is searched for all runs cannot be fixed for some."""
    for key in search:
        fixed = next((c for c in conditions if key in c.fields), None)
        if fixed is not None:
            message = f"is searched here, and fixed for {fixed.task}, {fixed.model}: keep one"
            draft.report((key,), message)


def _check_method_fields(
    draft: Draft,
    config: StudyConfig,
    conditions: Sequence[Condition],
    entries: Sequence[Entry],
    protocol: Protocol | None,
) -> None:
    """Fields are for a method, or for the label of an entry; of several methods, those of a run."""
    methods = {name for entry in entries for setting in entry.settings for name in setting.methods}
    labels = {entry.label: entry for entry in entries}
    known = {*methods, *labels, *known_methods(), *(protocol.methods_of_parts if protocol else ())}
    every: list[tuple[Location, str, Mapping[str, Any]]] = [
        (("method_fields", key), key, fields) for key, fields in config.method_fields.items()
    ]
    for condition in conditions:
        every += [(("task",), key, fields) for key, fields in condition.method_fields.items()]
        for label in condition.methods or ():
            if label not in labels:
                draft.report(("model",), unknown("label", label, labels))
    for place, key, fields in every:
        entry = labels.get(key)
        several = entry is not None and any(len(s.methods) > 1 for s in entry.settings)
        if key not in known:
            draft.report(place, unknown("method", key, methods | set(labels)))
        elif several and key not in methods and not set(fields) <= RUN_FIELDS:
            draft.report(place, f"{key} has several methods: name one of them in method_fields")


def _check_stand_ins(draft: Draft, config: StudyConfig, conditions: Sequence[Condition]) -> None:
    """A model of the study stands in for one of the layout."""
    printed, used = paper_models(config.layout), {condition.model for condition in conditions}
    for paper, own in config.stand_ins.items():
        if printed and paper not in printed:
            draft.report(("stand_ins", paper), unknown("model of the layout", paper, printed))
        if own not in used:
            draft.report(("stand_ins", paper), unknown("model of the study", own, used))


def _chosen(
    draft: Draft,
    conditions: list[Condition],
    entries: list[Entry],
    only: Mapping[str, Sequence[str]],
) -> tuple[list[Condition], list[Entry]]:
    """The conditions and entries that the command line asks for, and the plain baseline."""
    known = {
        "methods": [entry.label for entry in entries],
        "tasks": [condition.task for condition in conditions],
        "models": [condition.model for condition in conditions],
    }
    for what, names in only.items():
        for name in names:
            if name not in known[what]:
                place = f"--{what}"
                message = unknown(what.removesuffix("s"), name, dict.fromkeys(known[what]))
                draft.problems.append(Problem(place, "", message))
    labels = [*only.get("methods", known["methods"]), PLAIN]
    tasks, models = only.get("tasks", known["tasks"]), only.get("models", known["models"])
    return (
        [c for c in conditions if c.task in tasks and c.model in models],
        [entry for entry in entries if entry.label in labels],
    )


def _own_texts(options: dict[str, Any]) -> dict[str, Any]:
    """The fields of a run, the task's own texts named where they are its unlabeled data."""
    if options.get("unlabeled") != OWN:
        return options
    from smoothtune.tasks.presets import TASKS

    preset = TASKS.get(options["task"])
    return options | {"unlabeled": options.get("data") or (preset and preset.hub_id) or OWN}


def _options(
    condition: Condition, entry: Entry, setting: Setting, forced: Mapping[str, Any]
) -> dict[str, Any]:
    """The fields of one run but its seed; `forced` ones are of the command line."""
    methods, changes = fields_here(setting.methods, entry.label, condition.method_fields)
    options = {**condition.fields, **setting.changes, **changes, **forced}
    if setting.epochs_factor != 1:
        options |= _longer(options, setting.epochs_factor)
    options |= {"methods": methods, "output_dir": "unset"}
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
    return draft.origins.get((*entry.location, key)) or draft.origin(for_all)


def _longer(run: Mapping[str, Any], factor: float) -> dict[str, Any]:
    """More epochs, or more steps where the run says steps."""
    steps = run.get("max_steps", -1)
    if isinstance(steps, int) and steps > 0:
        return {"max_steps": round(steps * factor)}
    epochs = run.get("num_train_epochs", RunConfig.model_fields["num_train_epochs"].default)
    return {"num_train_epochs": epochs * factor} if isinstance(epochs, int | float) else {}
