"""What one run is made of: a validated `RunConfig`, read from a file, ``--set`` and options."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from smoothtune.yaml_file import ConfigError, Location, Problem, dotted, parse_yaml, read_yaml

if TYPE_CHECKING:
    from smoothtune.regularizer import Regularizer

Count = Annotated[int, Field(ge=1)]
Name = Annotated[str, Field(min_length=1)]


class RunConfig(BaseModel):
    """One training run; a name that transformers' `TrainingArguments` has means the same here."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )

    output_dir: Name
    """Folder that becomes the model folder."""
    task: Name = "custom"
    """A GLUE task (cola, mrpc, rte, sst2, stsb, ...), or any name together with `text_columns`."""
    data: Name | None = None
    """Hub id, folder, or Parquet, CSV, TSV or JSONL file; unset: the task's data on the hub."""
    model: Name = "minilm"
    """minilm, a local model folder, or a hub id."""
    methods: dict[str, dict[str, Any]] = {"plain": {}}
    """Methods by name, each with its fields; see `smoothtune methods`."""
    text_columns: Annotated[list[Name], Field(min_length=1, max_length=2)] | None = None
    """One or two text columns of a data set that is not a GLUE task."""
    label_column: Name | None = None
    """Label column of a data set that is not a GLUE task; unset: label."""
    unlabeled: Name | None = None
    """Texts for methods that need no labels: hub id, folder or file with the same text columns."""
    max_unlabeled_samples: Count | None = None
    """Use a seeded sample of at most this many unlabeled rows."""
    alternate: Literal["step", "epoch"] = "step"
    """Unlabeled updates follow every labeled one, or all of an epoch's labeled ones."""
    max_train_samples: Count | None = None
    """Train on a seeded sample of at most this many rows."""
    max_eval_samples: Count | None = None
    """Evaluate on at most this many rows, the first ones."""
    max_seq_length: Annotated[int, Field(ge=4)] = 128
    """Longest input in tokens; longer texts are cut, and counted."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 42
    num_train_epochs: Annotated[float, Field(gt=0)] = 3.0
    max_steps: Annotated[int, Field(ge=-1)] = -1
    """Number of updates; -1: as `num_train_epochs` says."""
    learning_rate: Annotated[float, Field(gt=0)] = 5e-5
    lr_scheduler_type: Literal[
        "linear",
        "cosine",
        "cosine_with_restarts",
        "polynomial",
        "constant",
        "constant_with_warmup",
        "inverse_sqrt",
    ] = "linear"
    warmup_steps: Annotated[float, Field(ge=0)] = 0
    """Number of warm-up updates; below 1: share of all updates."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    max_grad_norm: Annotated[float, Field(ge=0)] | None = None
    """Clip the gradient's norm; 0: never. Unset: 1, or 0 with a method that is itself the clip."""
    per_device_train_batch_size: Count = 8
    per_device_eval_batch_size: Count = 32
    gradient_accumulation_steps: Count = 1
    gradient_checkpointing: bool = False
    bf16: bool = False
    eval_strategy: Literal["no", "steps", "epoch"] = "epoch"
    eval_steps: Count | None = None
    """Updates between evaluations with `eval_strategy: steps`; unset: `logging_steps`."""
    logging_steps: Count = 50
    save_strategy: Literal["no", "steps", "epoch"] = "no"
    """When to write a checkpoint to resume from; the last one is kept until the run is done."""
    save_steps: Count = 500
    cost_steps: Annotated[int, Field(ge=0)] = 3
    """Steps measured with and without the methods before training; 0: do not measure."""
    trust_remote_code: bool = False
    """Run code that comes with a model of the hub. Only for authors you trust."""
    overwrite_output_dir: bool = False
    """Replace the finished or unfinished run in `output_dir`."""

    @field_validator("methods", mode="before")
    @classmethod
    def _complete_methods(cls, value: Any) -> Any:
        draft = _Draft()
        draft.put("methods", value, "")
        _check_methods(draft)
        if draft.problems:
            raise ValueError("; ".join(str(problem) for problem in draft.problems))
        return draft.values["methods"]

    def regularizers(self) -> list[Regularizer]:
        """New instances of the configured methods."""
        from smoothtune.methods import METHODS

        return [
            TypeAdapter(METHODS[name]).validate_python(fields)
            for name, fields in self.methods.items()
        ]

    def clip_norm(self) -> float:
        """`max_grad_norm`, with its default resolved for the configured methods."""
        if self.max_grad_norm is not None:
            return self.max_grad_norm
        return 0.0 if clipping_methods(self.methods) else 1.0

    def identity(self) -> dict[str, Any]:
        """The fields that decide the result: two runs with the same identity are the same run."""
        return self.model_dump(
            mode="json", exclude={"output_dir", "overwrite_output_dir", "cost_steps"}
        )


def load_config(
    file: str | Path | None = None,
    overrides: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    methods: Sequence[str] = (),
) -> RunConfig:
    """Read one run from a file, ``key=value`` overrides and options; the later one wins.

    Args:
        file: a YAML run file.
        overrides: ``learning_rate=1e-4`` or ``methods.lnsr.weight=2``.
        options: fields by name, from the command line; None means not given.
        methods: ``lnsr`` or ``lnsr:noise=in_manifold,weight=2``; they replace the file's methods.

    Returns:
        The validated configuration, every field of every method filled in.

    Raises:
        ConfigError: with everything that is wrong, each with file, line and field.
    """
    draft = _Draft()
    if file is not None:
        draft.read(file)
    if draft.problems and not draft.values:  # an unreadable file: nothing else is worth saying
        raise ConfigError(draft.problems)
    for override in overrides:
        draft.override(override)
    for key, value in (options or {}).items():
        if value is not None:
            draft.put(key, value, "--" + key.replace("_", "-"))
    if methods:
        draft.put("methods", [parse_method(spec, draft) for spec in methods], "--method")
    _check_methods(draft)
    return _validated(draft)


def parse_method(spec: str, draft: _Draft | None = None) -> dict[str, Any]:
    """``lnsr:noise=in_manifold,weight=2`` as ``{"name": "lnsr", "noise": ..., "weight": 2}``.

    Raises:
        ConfigError: no ``field=value`` after the colon, if there is no draft to collect it.
    """
    found = draft or _Draft()
    name, _, text = spec.partition(":")
    fields: dict[str, Any] = {"name": name.strip()}
    # not the commas inside brackets, as in layer_weights=[1,2]
    for part in re.split(r",(?![^\[\]{}]*[\]}])", text) if text else []:
        key, equals, value = part.partition("=")
        if not equals:
            message = f"{part!r} is not field=value; write --method NAME:field=value,field=value"
            found.problems.append(Problem("--method", f"methods.{name}", message))
            continue
        fields[key.strip()] = found.parse_value(value, f"--method {spec}")
    if draft is None and found.problems:
        raise ConfigError(found.problems)
    return fields


def clipping_methods(names: Iterable[str]) -> list[str]:
    """Those of the named methods that are themselves the gradient clip."""
    from smoothtune.methods import METHODS

    return [name for name in names if name in METHODS and METHODS[name].clips_gradients]


class _Draft:
    """Values on their way to a RunConfig, where each came from, and what is wrong so far."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.places: dict[Location, str] = {}
        self.problems: list[Problem] = []
        self.file = ""

    def read(self, file: str | Path) -> None:
        document = read_yaml(file)
        self.file = str(file)
        self.problems += document.problems
        if isinstance(document.value, dict):
            self.values = document.value
            self.places = {key: f"{file}:{line}" for key, line in document.lines.items()}
        elif not document.problems:
            self.problems.append(Problem(self.file, "", "holds no fields; write key: value lines"))

    def put(self, key: str, value: Any, place: str) -> None:
        self.values[key] = value
        self.places = {at: where for at, where in self.places.items() if at[0] != key}
        self.places[key,] = place

    def override(self, text: str) -> None:
        """Apply one ``key=value`` or ``methods.NAME.field=value``."""
        key, equals, value = text.partition("=")
        path = tuple(key.strip().replace("-", "_").split("."))
        if not equals or not all(path):
            message = f"{text!r} is not key=value"
            self.problems.append(Problem("--set", "", message))
            return
        if path[0] == "methods":
            _name_methods(self)
        *parents, last = path
        target = self.values
        for part in parents:
            if target.get(part) is None:
                target[part] = {}
            target = target[part]
            if not isinstance(target, dict):
                message = f"{part} holds no fields that could be set"
                self.problems.append(Problem("--set", key, message))
                return
        target[last] = self.parse_value(value, f"--set {text}")
        self.places[path] = f"--set {text}"

    def parse_value(self, text: str, place: str) -> Any:
        document = parse_yaml(text, name=place)
        self.problems += document.problems
        return document.value

    def report(self, location: Location, message: str) -> None:
        """Add a problem with the nearest known place of the location."""
        known = [location[:end] for end in range(len(location), 0, -1)]
        place = next((self.places[at] for at in known if at in self.places), self.file)
        self.problems.append(Problem(place, dotted(location), message))


def _name_methods(draft: _Draft) -> None:
    """Bring a name, a list, or a mapping of methods into one form: name -> fields."""
    value = draft.values.get("methods", {"plain": None})
    places = {at: where for at, where in draft.places.items() if at[0] == "methods"}
    named: dict[str, dict[str, Any]] = {}
    items: list[tuple[Location, Any, Any]]
    if isinstance(value, Mapping):
        items = [(("methods", name), name, fields) for name, fields in value.items()]
    else:
        items = []
        for index, item in enumerate(value if isinstance(value, list) else [value]):
            fields = dict(item) if isinstance(item, Mapping) else {}
            name = fields.pop("name", None) if isinstance(item, Mapping) else item
            items.append((("methods", index), name, fields))
    for location, name, fields in items:
        if not isinstance(name, str):
            draft.report(location, "is no method; write a name, or a mapping with name: NAME")
        elif not isinstance(fields, Mapping | None):
            draft.report(location, f"the fields of {name} must be a mapping, not {fields!r}")
        elif name in named:
            draft.report(location, f"{name} stands twice; keep one of them")
        else:
            named[name] = dict(fields or {})
            for at, where in places.items():
                if at[:2] == location:
                    draft.places["methods", name, *at[2:]] = where
    draft.values["methods"] = named


def _check_methods(draft: _Draft) -> None:
    """Validate every method's fields and fill in the defaults."""
    from smoothtune.methods import METHODS

    _name_methods(draft)
    complete = {}
    for name, fields in draft.values["methods"].items():
        if name not in METHODS:
            draft.report(("methods", name), unknown("method", name, METHODS))
            continue
        adapter: TypeAdapter[Regularizer] = TypeAdapter(METHODS[name])
        try:
            complete[name] = _plain_data(adapter.validate_python(fields).settings())
        except ValidationError as error:
            known = list(METHODS[name].__pydantic_fields__)  # type: ignore[attr-defined]
            for detail in error.errors():
                draft.report(("methods", name, *detail["loc"]), _message(detail, known))
    if not draft.values["methods"] and not draft.problems:
        draft.report(("methods",), "is empty; for plain fine-tuning leave it out or write plain")
    draft.values["methods"] = complete


def _validated(draft: _Draft) -> RunConfig:
    """The draft as RunConfig, or all its problems."""
    _check_combinations(draft)
    try:
        config = RunConfig.model_validate(draft.values)
    except ValidationError as error:
        for detail in error.errors():
            if (
                detail["loc"][0] != "methods"
            ):  # those are reported already, with more precise places
                draft.report(detail["loc"], _message(detail, list(RunConfig.model_fields)))
    if draft.problems:
        raise ConfigError(sorted(draft.problems, key=_line))
    return config


def _line(problem: Problem) -> int:
    """Line of a problem in the file; 0 for one that comes from elsewhere."""
    line = problem.where.rpartition(":")[2]
    return int(line) if line.isdecimal() else 0


def _check_combinations(draft: _Draft) -> None:
    """What no single field shows: unknown tasks, and fields that exclude each other."""
    from smoothtune.data import TASKS

    values = draft.values
    task = values.get("task")
    hint = "; for another data set give text_columns"
    if values.get("text_columns") is None:
        if task is None:
            draft.report(("task",), f"is missing. Known: {', '.join(sorted(TASKS))}{hint}")
        elif isinstance(task, str) and task not in TASKS:
            draft.report(("task",), unknown("task", task, TASKS) + hint)
        if values.get("label_column") is not None:
            draft.report(("label_column",), "needs text_columns beside it")
    elif values.get("data") is None:
        draft.report(("data",), "is missing: a hub id, a folder or a file")
    if values.get("unlabeled") is not None and set(values["methods"]) <= {"plain"}:
        draft.report(("unlabeled",), "needs a method beside it that works without labels")
    clips = clipping_methods(values["methods"])
    if clips and values.get("max_grad_norm"):
        message = f"must be 0 with {clips[0]}, which is itself the gradient clip; leave it out"
        draft.report(("max_grad_norm",), message)


def _message(detail: Any, known: list[str]) -> str:
    """One of pydantic's errors in our words."""
    if detail["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return unknown("field", str(detail["loc"][-1]), known)
    if detail["type"] in ("missing", "missing_argument", "missing_keyword_only_argument"):
        return "is missing"
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "value_error" or len(repr(detail["input"])) > 80:
        return message
    return f"{message}, not {detail['input']!r}"


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """``unknown method 'lsnr'; did you mean 'lnsr'? Known: ...``."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else "."
    return f"unknown {kind} {name!r}{hint} Known: {', '.join(names)}"


def _plain_data(value: Any) -> Any:
    """Tuples as lists, as YAML and JSON have them, so that a configuration round-trips."""
    if isinstance(value, Mapping):
        return {key: _plain_data(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_data(item) for item in value]
    return value
