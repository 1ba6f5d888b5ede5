"""How the runs of a study differ from the protocol that it names."""

from collections.abc import Iterator, Mapping
from typing import Any

from smoothtune.config.run import RunConfig
from smoothtune.report.page import as_text
from smoothtune.study.config import Study
from smoothtune.study.fields import LONGER
from smoothtune.study.protocol import LIMITS, NO_LIMIT, Protocol, name_of


def departures(study: Study) -> list[str]:
    """How the runs of a study differ from its protocol, a line for each field."""
    protocol = study.protocol
    if protocol is None:
        return []
    lines = [*protocol.departures, *_of_size(study, protocol), *_of_limits(study, protocol)]
    for key, printed in protocol.fields.items():
        used = [getattr(run, key) for run in runs_as_usual(study, key)]
        lines += _differs(key, used, printed)
    for name, fields in protocol.method_fields.items():
        for key, printed in fields.items():
            lines += _differs(f"{name}: {key}", list(_of_method(study, name, key)), printed)
    return lines


def runs_as_usual(study: Study, key: str) -> Iterator[RunConfig]:
    """The runs that say what a field is; not those that are longer on purpose."""
    for (_, e, s), run in study.runs.items():
        entry = study.entries[e]
        longer = entry.label == LONGER or entry.settings[s].epochs_factor != 1
        if not (longer and key in ("num_train_epochs", "max_steps")):
            yield run


def _of_size(study: Study, protocol: Protocol) -> Iterator[str]:
    """Models, tasks and seeds."""
    models = ([item.model for item in study.conditions], protocol.model)
    tasks = ([item.task for item in study.conditions], protocol.task)
    for what, (used, printed) in (("model", models), ("task", tasks)):
        names = [str(name_of(item)) for item in printed]
        others = [name for name in dict.fromkeys(used) if name not in names]
        if names and others:
            yield f"{what}: {', '.join(others)} in place of {', '.join(names)}"
    if protocol.seeds and len(study.config.seeds) != protocol.seeds:
        yield f"seeds: {len(study.config.seeds)}; the paper has {protocol.seeds}"


def _of_limits(study: Study, protocol: Protocol) -> Iterator[str]:
    """Rows and updates that the study limits and the paper does not, or otherwise."""
    printed = {name_of(item): item for item in protocol.task if isinstance(item, Mapping)}
    on_purpose = any(getattr(layout, "kind", None) == "sizes" for layout in study.config.layout)
    for key in LIMITS:
        if key in protocol.fields or (on_purpose and key == "max_train_samples"):
            continue
        pairs = {}
        for (c, _, _), run in study.runs.items():
            here = getattr(run, key)
            there = printed.get(study.conditions[c].task, {}).get(key)
            if here not in (None, NO_LIMIT, there):
                pairs[here, there] = f"{here}; the paper: {as_text(there, 'not set')}"
        yield from (f"{key}: {line}" for line in pairs.values())


def _of_method(study: Study, name: str, key: str) -> Iterator[Any]:
    """Values of a method's field in all runs of the method, or of the entry of this label."""
    for (_, e, _), run in study.runs.items():
        if name in run.methods or study.entries[e].label == name:
            method = name if name in run.methods else next(iter(run.methods))
            yield run.methods[method].get(key)


def _differs(field: str, values: list[Any], printed: Any) -> Iterator[str]:
    """A line for a field that has other values than the paper's."""
    if not values:
        return
    taken = list({repr(value): value for value in values}.values())
    candidates = printed if isinstance(printed, list) else [printed]
    if any(value not in candidates for value in taken) or len(taken) < len(candidates):
        here = ", ".join(as_text(value, "not set") for value in taken)
        there = "searched over " * (len(candidates) > 1)
        there += ", ".join(as_text(value, "not set") for value in candidates)
        yield f"{field}: {here}; the paper: {there}"
