"""Checks of a run beyond its fields' types; all but `check_methods` need no torch."""

import os
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from smoothtune import catalog
from smoothtune.catalog import DEFAULT_TASK_TYPE
from smoothtune.config.draft import Draft
from smoothtune.errors import ConfigError, Location, unknown

BEST = ("load_best_model_at_end", "early_stopping_patience")
AUTO = "auto"  # in the place of a method: `smoothtune train` tunes first
TUNE = "tune"  # the folder of a search within that of a run


def name_methods(draft: Draft) -> None:
    """Turn a name, a list or a mapping of methods into a mapping from name to fields."""
    value = draft.values.get("methods", {"plain": None})
    origins = {at: origin for at, origin in draft.origins.items() if at[0] == "methods"}
    methods: dict[str, dict[str, Any]] = {}
    items: list[tuple[Location, Any, Any]] = []
    if isinstance(value, Mapping):
        items = [(("methods", name), name, fields) for name, fields in value.items()]
        value = []
    for index, item in enumerate(value if isinstance(value, list) else [value]):
        fields = dict(item) if isinstance(item, Mapping) else {"name": item}
        items.append((("methods", index), fields.pop("name", None), fields))
    for location, name, fields in items:
        if not isinstance(name, str):
            draft.report(location, "is not a method; write a name, or a mapping with name: NAME")
        elif not isinstance(fields, Mapping | None):
            draft.report(location, f"the fields of {name} must be a mapping, not {fields!r}")
        elif name in methods:
            draft.report(location, f"{name} is repeated; keep one of them")
        else:
            methods[name] = dict(fields or {})
            for at, origin in origins.items():
                if at[:2] == location:
                    draft.origins["methods", name, *at[2:]] = origin
    draft.values["methods"] = methods


def check_names(draft: Draft) -> None:
    """Report unknown methods and fields of methods; `check_methods` looks at the values."""
    name_methods(draft)
    for name, fields in draft.values["methods"].items():
        if name == AUTO:
            message = "tunes first, which only `smoothtune train` does, and it stands alone"
            draft.report(("methods", name), message)
        elif name in catalog.known_methods():
            names, listing = catalog.field_names(name), f"the list of `smoothtune methods {name}`"
            for field in fields.keys() - set(names):
                message = unknown("field", str(field), names, listing)
                draft.report(("methods", name, field), message)
        elif not catalog.is_of_others(name):
            names = [*catalog.known_methods(), *catalog.offered_methods()]
            draft.report(("methods", name), unknown("method", name, names))
    if not draft.values["methods"] and not draft.problems:
        draft.report(("methods",), "is empty; for plain fine-tuning leave it out or write plain")


def check_methods(draft: Draft) -> None:
    """Let the methods' classes validate their fields, by ConfigError, and fill in defaults."""
    check_names(draft)
    draft.stop_at_problems()
    from smoothtune.methods.find import find_method  # imports torch

    for name, fields in draft.values["methods"].items():
        try:
            draft.values["methods"][name] = plain_data(find_method(name)(**fields).settings())
        except ConfigError as error:
            for problem in error.problems:
                parts = (int(p) if p.isdecimal() else p for p in problem.field.split("."))
                draft.report(("methods", name, *parts), problem.message)
        except ValueError as error:
            draft.report(("methods", name), str(error))
    draft.stop_at_problems()


def plain_data(value: Any) -> Any:
    """Tuples as lists, as YAML and JSON have them, so that a configuration round-trips."""
    if isinstance(value, Mapping):
        return {key: plain_data(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_data(item) for item in value]
    return value


def clipping_methods(names: Iterable[str]) -> list[str]:
    """Those of the named methods that replace the clipping of the gradient norm."""
    return [name for name in names if catalog.clips_gradients(name)]


def task_type_of(values: Mapping[str, Any]) -> str:
    """Type of the task that the fields of a run describe."""
    task = values.get("task")
    preset = catalog.task_types().get(task) if isinstance(task, str) else None
    if values.get("task_type") is None and preset and values.get("text_columns") is None:
        return preset
    return str(values.get("task_type") or DEFAULT_TASK_TYPE)


def check_task(draft: Draft) -> None:
    """Report an unknown task, and fields that the task does not have."""
    values, tasks = draft.values, catalog.task_types()
    task = values.get("task")
    task_type = task_type_of(values)
    data = values.get("data")
    file = data if isinstance(data, str) and os.path.exists(os.path.expanduser(data)) else "FILE"
    hint = (
        "For data of your own, name the column with the text by text_columns, or give task_type; "
        f"`smoothtune init {shlex.quote(file)}` guesses columns and type"
    )
    if task_type == DEFAULT_TASK_TYPE and values.get("text_columns") is None:
        if task is None:
            draft.report(("task",), f"is missing. {hint}. Known tasks: {', '.join(sorted(tasks))}")
        elif isinstance(task, str) and task not in tasks:
            draft.report(("task",), f"{unknown('task', task, tasks)}. {hint}")
        if values.get("label_column") is not None:
            draft.report(("label_column",), "needs text_columns")
    elif values.get("data") is None and (
        task_type == DEFAULT_TASK_TYPE or task is None or task not in tasks
    ):
        draft.report(("data",), "is missing: a hub id, a folder or a file")
    if task_type in catalog.described_task_types():
        _check_fields_of_type(draft, task_type)
    for name in ("label_column", "label_separator", "merge_labels", "label_type"):
        if values.get(name) is not None and values.get("label_columns") is not None:
            draft.report((name,), "cannot stand beside label_columns; leave one of them out")


def _check_fields_of_type(draft: Draft, task_type: str) -> None:
    """Report fields that other types of tasks have."""
    values, types = draft.values, catalog.described_task_types()
    described = types[task_type]
    for name in dict.fromkeys(field for each in types.values() for field in each.fields):
        if values.get(name) is not None and name not in described.fields:
            fitting = [other for other, each in types.items() if name in each.fields]
            draft.report((name,), f"needs task_type: {' or '.join(fitting)}")
    for name in ("unlabeled", "class_weights"):
        if values.get(name) is not None and not described.one_sequence:
            draft.report((name,), f"works with text classification, not with {task_type}")
    for name in ("merge_labels", "label_type"):
        if values.get(name) is not None and not described.label_types:
            draft.report((name,), f"does not go with {task_type}")
    label_type, fitting = values.get("label_type"), described.label_types
    if label_type is not None and fitting and label_type not in fitting:
        message = f"must be {' or '.join(fitting)}, or left out, with {task_type}"
        draft.report(("label_type",), message)
    if values.get("label_noise") and described.problem_type != "single_label_classification":
        message = f"replaces one class by another, which {task_type} has not: leave it out"
        draft.report(("label_noise",), message)


def check_combinations(draft: Draft) -> None:
    """Report fields that need or exclude one another."""
    values = draft.values
    plain = set(values["methods"]) <= {"plain"}
    draft.refuse("needs a method that works without labels", "unlabeled", unless=not plain)
    if clips := clipping_methods(values["methods"]):
        message = f"must be 0 with {clips[0]}, which clips gradients itself; leave it out"
        draft.refuse(message, "max_grad_norm")

    lora = values.get("lora") is not None
    draft.refuse("needs lora", "merge_adapter", unless=lora)
    if lora:
        message = "trains all weights, as there are none to adapt: leave lora out"
        draft.refuse(message, "from_scratch")
        draft.refuse("is not verified with lora; leave it out", "load_best_model_at_end")
    if values.get("frozen_weights", "float32") != "float32":
        message = "needs lora, as other weights are not frozen"
        draft.refuse(message, "frozen_weights", unless=lora)
        message = "needs bf16: true, which what is trained computes in"
        draft.refuse(message, "frozen_weights", unless=bool(values.get("bf16")))
        message = "would round the adapters to the frozen weights: leave it out"
        draft.refuse(message, "merge_adapter")

    strategy = values.get("eval_strategy", "epoch")
    if strategy == "no":
        draft.refuse("needs evaluations in training: eval_strategy: epoch or steps", *BEST)
    draft.refuse("needs eval_strategy: steps", "eval_steps", unless=strategy == "steps")
    if not any(values.get(name) for name in BEST):
        scores = ("metric_for_best_model", "greater_is_better")
        draft.refuse(f"needs {' or '.join(BEST)}", *scores)
    patience = bool(values.get("early_stopping_patience"))
    message = "needs early_stopping_patience"
    draft.refuse(message, "early_stopping_threshold", unless=patience)
    if values.get("load_best_model_at_end"):
        message = f"must be {strategy} with load_best_model_at_end; leave it out"
        saved = values.get("save_strategy") in ("no", strategy)
        draft.refuse(message, "save_strategy", unless=saved)
        draft.refuse("is eval_steps with load_best_model_at_end; leave it out", "save_steps")
    elif values.get("save_strategy") != "steps":
        draft.refuse("needs save_strategy: steps", "save_steps")
    if values.get("lr_scheduler_type") == "constant":
        message = "needs another lr_scheduler_type, such as constant_with_warmup"
        draft.refuse(message, "warmup_steps")
    if not values.get("push_to_hub"):
        draft.refuse("needs push_to_hub", "hub_model_id", "hub_private_repo")
