"""What one run is made of: a validated `RunConfig`, read from a file, ``--set`` and options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from smoothtune.config.draft import Draft, check_methods, clipping_methods, message_of, parse_method
from smoothtune.errors import ConfigError, Problem, unknown
from smoothtune.models.lora import LoraSettings
from smoothtune.tasks.question_answering.task import SPAN_FIELDS

if TYPE_CHECKING:
    from smoothtune.core.regularizer import Regularizer


TaskType = Literal[
    "text-classification", "question-answering", "token-classification", "multiple-choice"
]
WINDOW_LENGTH = 384  # max_seq_length of question answering, as in transformers' example
Count = Annotated[int, Field(ge=1)]
Name = Annotated[str, Field(min_length=1)]

__all__ = ["RunConfig", "clipping_methods", "load_config", "parse_method", "unknown"]


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
    """A GLUE task (cola, mrpc, rte, sst2, stsb, ...), squad, or the name of another data set
    together with `text_columns` or `task_type`."""
    task_type: TaskType | None = None
    """Kind of another data set's task; unset: text-classification."""
    regression_bias: Literal["mean", "zero"] = "mean"
    """First bias of a new head for scores: the mean of the training scores, or 0 as transformers
    has it, which spends the first updates on reaching the mean."""
    data: Name | None = None
    """Hub id, folder, or Parquet, CSV, TSV or JSONL file; unset: the task's data on the hub."""
    model: Name = "minilm"
    """minilm, a local model folder, or a hub id."""
    methods: dict[str, dict[str, Any]] = {"plain": {}}
    """Methods by name, each with its fields; see `smoothtune methods`."""
    lora: LoraSettings | None = None
    """Train low-rank adapters and the head alone: r, alpha, dropout, target_modules,
    modules_to_save."""
    merge_adapter: bool = False
    """Write a plain model that holds the adapters, in place of peft's files."""
    text_columns: Annotated[list[Name], Field(min_length=1, max_length=2)] | None = None
    """One or two text columns of a data set that is not a GLUE task."""
    label_column: Name | None = None
    """Label column of a data set that is not a GLUE task; unset: label, for tokens tags."""
    choice_columns: Annotated[list[Name], Field(min_length=1)] | None = None
    """Columns of the choices of multiple choice, or one that holds lists of them."""
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
    """Longest input in tokens; longer texts are cut, and counted. Question answering: 384."""
    preprocessing_num_workers: Count | None = None
    """Processes that tokenize a large data set; unset: this one, with the tokenizer's threads."""
    doc_stride: Count | None = None
    """Question answering: tokens that two windows of a long context share; unset: 128."""
    n_best_size: Count | None = None
    """Question answering: best starts and ends that are combined; unset: 20."""
    max_answer_length: Count | None = None
    """Question answering: longest answer in tokens; unset: 30."""
    version_2_with_negative: bool | None = None
    """Question answering: whether questions may have no answer; unset: only with squad_v2."""
    null_score_diff_threshold: float | None = None
    """Question answering: how much higher no answer must score to be given; unset: 0."""
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
    train_sampling_strategy: Literal["random", "group_by_length"] = "group_by_length"
    """Order of the training rows: random, or batches of similar length, which are padded less and
    so take less time. Question answering, which learns less from those: random."""
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

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_question_answering(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and _task_type(values) == "question-answering":
            own = {"max_seq_length": WINDOW_LENGTH, "train_sampling_strategy": "random"}
            return own | dict(values)
        return values

    @field_validator("methods", mode="before")
    @classmethod
    def _complete_methods(cls, value: Any) -> Any:
        draft = Draft()
        draft.put("methods", value, "")
        check_methods(draft)
        if draft.problems:
            raise ValueError("; ".join(str(problem) for problem in draft.problems))
        return draft.values["methods"]

    def spans(self) -> dict[str, Any]:
        """The fields of question answering that are set."""
        given = {name: getattr(self, name) for name in SPAN_FIELDS}
        return {name: value for name, value in given.items() if value is not None}

    def regularizers(self) -> list[Regularizer]:
        """New instances of the configured methods."""
        from smoothtune.methods import METHODS

        return [
            TypeAdapter(METHODS[name]).validate_python(fields)
            for name, fields in self.methods.items()
        ]

    def method_versions(self) -> dict[str, int]:
        """Which code of each method makes the result; a default may change with it."""
        from smoothtune.methods import METHODS

        return {name: METHODS[name].version for name in self.methods}

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
    draft = Draft()
    if file is not None:
        draft.read(file)
    if draft.problems and not draft.values:  # an unreadable file: nothing else is worth saying
        raise ConfigError(draft.problems)
    for override in overrides:
        draft.override(override)
    for key, value in (options or {}).items():
        if value is not None:
            place = "--" + key.replace("_", "-")
            draft.put(key, _fields(value, draft) if key == "lora" else value, place)
    if methods:
        draft.put("methods", [parse_method(spec, draft) for spec in methods], "--method")
    check_methods(draft)
    return _validated(draft)


def _fields(text: str, draft: Draft) -> dict[str, Any]:
    """``r=8,alpha=32`` as a mapping."""
    fields = parse_method(f"lora:{text}", draft)
    return {key: value for key, value in fields.items() if key != "name"}


def _validated(draft: Draft) -> RunConfig:
    """The draft as RunConfig, or all its problems."""
    _check_combinations(draft)
    try:
        config = RunConfig.model_validate(draft.values)
    except ValidationError as error:
        for detail in error.errors():
            if (
                detail["loc"][0] != "methods"
            ):  # those are reported already, with more precise places
                model = LoraSettings if detail["loc"][0] == "lora" else RunConfig
                draft.report(detail["loc"], message_of(detail, list(model.model_fields)))
    if draft.problems:
        raise ConfigError(sorted(draft.problems, key=_line))
    return config


def _task_type(values: Mapping[str, Any]) -> str:
    """Kind of the task that a draft of a run names."""
    from smoothtune.tasks.presets import TASKS

    task = values.get("task")
    preset = TASKS.get(task) if isinstance(task, str) else None
    if values.get("task_type") is None and preset and values.get("text_columns") is None:
        return preset.task_type
    return str(values.get("task_type") or "text-classification")


def _line(problem: Problem) -> int:
    """Line of a problem in the file; 0 for one that comes from elsewhere."""
    line = problem.where.rpartition(":")[2]
    return int(line) if line.isdecimal() else 0


def _check_combinations(draft: Draft) -> None:
    """What no single field shows: unknown tasks, and fields that exclude each other."""
    from smoothtune.tasks.presets import TASKS

    values = draft.values
    task = values.get("task")
    hint = "; for another data set give text_columns or task_type"
    kind = _task_type(values)
    if kind != "text-classification":
        if (task is None or task not in TASKS) and values.get("data") is None:
            draft.report(("data",), "is missing: a hub id, a folder or a file")
        if values.get("unlabeled") is not None:
            draft.report(("unlabeled",), f"works with text classification, not with {kind}")
    elif values.get("text_columns") is None:
        if task is None:
            draft.report(("task",), f"is missing. Known: {', '.join(sorted(TASKS))}{hint}")
        elif isinstance(task, str) and task not in TASKS:
            draft.report(("task",), unknown("task", task, TASKS) + hint)
        if values.get("label_column") is not None:
            draft.report(("label_column",), "needs text_columns beside it")
    elif values.get("data") is None:
        draft.report(("data",), "is missing: a hub id, a folder or a file")
    for name in (name for name in SPAN_FIELDS if values.get(name) is not None):
        if kind != "question-answering":
            draft.report((name,), f"is for question answering, and the task is {kind}")
    if values.get("choice_columns") is not None and kind != "multiple-choice":
        draft.report(("choice_columns",), "needs task_type: multiple-choice")
    if values.get("unlabeled") is not None and set(values["methods"]) <= {"plain"}:
        draft.report(("unlabeled",), "needs a method beside it that works without labels")
    if values.get("merge_adapter") and values.get("lora") is None:
        draft.report(("merge_adapter",), "needs lora beside it")
    clips = clipping_methods(values["methods"])
    if clips and values.get("max_grad_norm"):
        message = f"must be 0 with {clips[0]}, which is itself the gradient clip; leave it out"
        draft.report(("max_grad_norm",), message)
