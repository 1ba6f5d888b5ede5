"""What can be said of methods and tasks without importing torch: ``catalog.json``.

`make docs` writes it from the methods' and tasks' own files; a test fails while it is stale.
"""

import json
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.resources import files
from typing import Any, Literal

CATALOG = "catalog.json"
MethodGroup = Literal[
    "baseline",
    "stability",
    "noise",
    "worst case",
    "adversarial",
    "derivatives",
    "sub-models",
    "start",
    "updates",
    "sharpness",
    "labels",
    "other",
]
"""What a method does, in the order in which methods are listed."""
DEFAULT_TASK_TYPE = "text-classification"
GROUP = "smoothtune.methods"  # entry points by which an installed package offers methods


@dataclass
class FieldDescription:
    """One field of a method."""

    name: str
    type: str  # values it takes, with their range
    default: Any
    description: str


@dataclass
class MethodDescription:
    """One method, as its source file describes it."""

    name: str
    title: str
    summary: str
    group: MethodGroup
    step: str  # its cost: a pass is a forward and a backward, a search one to the perturbation
    reference: str
    equation: str  # as one writes it on a keyboard
    latex: str  # the same as Markdown: `$...$` in the text, `$$...$$` on lines of its own
    departures: str
    lowers: list[str]  # quantities it is about, see `smoothtune.core.quantities`
    fields: list[FieldDescription]


@cache
def _catalog() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((files("smoothtune") / CATALOG).read_text("utf-8"))
    return content


def known_methods() -> list[str]:
    """Names of the methods of this package."""
    return list(_catalog()["methods"])


def described(name: str) -> MethodDescription:
    """The description of a method of this package; KeyError if there is none."""
    description = dict(_catalog()["methods"][name]["description"])
    fields = [FieldDescription(**field) for field in description.pop("fields")]
    return MethodDescription(fields=fields, **description)


def measured(name: str) -> str:
    """In how many committed studies a method of this package was better or worse than plain."""
    return str(_catalog()["methods"][name]["measured"])


def field_names(method: str) -> list[str]:
    """Names of the fields of a method of this package."""
    return [field.name for field in described(method).fields]


def takes_list(method: str, field: str) -> bool:
    """Whether one value of a method's field is a list, as far as that is known here."""
    types = {each.name: each.type for each in described(method).fields}
    return types.get(field, "").startswith("list of ")


def clips_gradients(method: str) -> bool:
    """Whether a method clips gradients itself; not known of methods of other packages."""
    return bool(_catalog()["methods"].get(method, {}).get("clips_gradients"))


def offered_methods() -> dict[str, EntryPoint]:
    """Methods that installed packages offer, by name; nothing is imported."""
    return {each.name: each for each in entry_points(group=GROUP)}


def is_of_others(name: str) -> bool:
    """Whether a name is that of a method outside this package: ``module:Class``, or offered."""
    return name not in _catalog()["methods"] and (":" in name or name in offered_methods())


def task_types() -> dict[str, str]:
    """The type of each task that has a name."""
    return dict(_catalog()["tasks"])


@dataclass(frozen=True)
class TaskTypeDescription:
    """What a type of task declares, see the fields of `smoothtune.tasks.base.Task`."""

    fields: list[str]  # those that not every type has
    label_types: list[str]
    max_seq_length: int
    one_sequence: bool
    problem_type: str | None
    similar_lengths: bool
    text_columns: list[str]  # default of the field


@cache
def described_task_types() -> dict[str, TaskTypeDescription]:
    """Every type of task by name."""
    return {name: TaskTypeDescription(**each) for name, each in _catalog()["task_types"].items()}
