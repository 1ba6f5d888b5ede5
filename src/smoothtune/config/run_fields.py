"""The fields of one run, each with its type and range."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from smoothtune.catalog import described_task_types
from smoothtune.config.fields import (
    DATA,
    METHOD,
    MODEL,
    OUTPUT,
    PROGRESS,
    TRAINING,
    Count,
    DataFields,
    Folder,
    Name,
    Seed,
    SpanFields,
)
from smoothtune.config.names import task_type_of
from smoothtune.models.lora import LoraSettings, Stored

OUTPUT_FIELDS = (
    "output_dir",
    "overwrite_output_dir",
    "report_to",
    "push_to_hub",
    "hub_model_id",
    "hub_private_repo",
)
"""Fields that say where the result goes, and do not change it."""


def _not_zero(value: int) -> int:
    if value == 0:  # which transformers takes for -1
        raise ValueError("must be at least 1, or -1: as num_train_epochs says")
    return value


class RunFields(SpanFields, DataFields):
    """One training run; a name that transformers' `TrainingArguments` has means the same here."""

    task: Annotated[Name, DATA] = "custom"
    """A GLUE task (cola, mrpc, rte, sst2, stsb, ...), squad, or a name for your own data set,
    together with `text_columns` or `task_type`; it may be left out beside one of these alone."""
    unlabeled: Annotated[Name | None, DATA] = None
    """Texts for methods that need no labels: hub id, folder or file with the same text columns."""
    max_train_samples: Annotated[Count | None, DATA] = None
    """Train on a seeded sample of at most this many rows."""
    label_noise: Annotated[float, Field(ge=0, lt=1), DATA] = 0.0
    """Share of the training rows whose label is replaced by another one, drawn with `seed`: to see
    what a method makes of wrong labels."""
    max_eval_samples: Annotated[Count | None, DATA] = None
    """Evaluate on at most this many rows, the first ones."""
    max_train_eval_samples: Annotated[Count | None, DATA] = 2000
    """After training, score a seeded sample of at most this many training rows; of a short run
    fewer, which take 3 % of its time, and 100 at least; null: all."""
    max_unlabeled_samples: Annotated[Count | None, DATA] = None
    """Use a seeded sample of at most this many unlabeled rows."""
    max_seq_length: Annotated[int, Field(ge=4), DATA] = 128
    """Longest input in tokens; longer texts are cut, and counted. Question answering: 384."""
    preprocessing_num_workers: Annotated[Count | None, DATA] = None
    """Processes that tokenize a large data set; unset: this one, with the tokenizer's threads."""

    model: Annotated[Name, MODEL] = "minilm"
    """minilm, a local model folder, the name of one in $SMOOTHTUNE_MODELS, or a hub id."""
    lora: Annotated[LoraSettings | None, MODEL] = None
    """Train low-rank adapters and the head alone: r, alpha, dropout, target_modules,
    modules_to_save. An option has lists in brackets: 'r=8,target_modules=[q_proj,v_proj]'."""
    frozen_weights: Annotated[Stored, MODEL] = "float32"
    """How the weights that `lora` freezes are stored; 8bit and 4bit (NF4) by bitsandbytes. With
    `bf16: true`; methods are those of the same weights in float32."""
    from_scratch: Annotated[bool, MODEL] = False
    """Take the model's architecture and tokenizer alone, with random weights, drawn with `seed`."""
    allow_new_weights: Annotated[bool, MODEL] = False
    """Let weights below the head be random where the model's files lack them, or hold them in
    another size; otherwise such files are refused."""
    regression_bias: Annotated[Literal["mean", "zero"], MODEL] = "mean"
    """Initial bias of a new regression head: the mean of the training scores, or 0 as in
    transformers, which needs many updates to reach the mean."""

    methods: Annotated[dict[str, dict[str, Any]], Field(validate_default=True), METHOD] = {
        "plain": {}
    }
    """Methods by name, each with its fields; see `smoothtune methods`."""
    alternate: Annotated[Literal["batch", "step", "epoch"], METHOD] = "batch"
    """Half the batches of every update are unlabeled (batch; needs an even
    `gradient_accumulation_steps`), or an unlabeled update follows every labeled one (step), or all
    unlabeled ones follow an epoch's labeled ones (epoch)."""
    cost_steps: Annotated[int, Field(ge=0), METHOD] = 3
    """Steps timed with and without the methods before training; 0: no timing. Without this field
    they are not timed where that would take more than 3 % of the run."""

    seed: Annotated[Seed, TRAINING] = 42
    """Seed of the new head, sampling and order of the rows, dropout and the methods' draws."""
    num_train_epochs: Annotated[float, Field(gt=0), TRAINING] = 3.0
    """Number of passes over the training rows."""
    max_steps: Annotated[int, Field(ge=-1), AfterValidator(_not_zero), TRAINING] = -1
    """Number of updates; -1: given by `num_train_epochs`."""
    learning_rate: Annotated[float, Field(gt=0), TRAINING] = 5e-5
    """Peak learning rate of AdamW."""
    lr_scheduler_type: Annotated[
        Literal[
            "linear",
            "cosine",
            "cosine_with_restarts",
            "polynomial",
            "constant",
            "constant_with_warmup",
            "inverse_sqrt",
        ],
        TRAINING,
    ] = "linear"
    """Schedule of the learning rate after the warm-up."""
    warmup_steps: Annotated[float, Field(ge=0), TRAINING] = 0
    """Number of warm-up updates; below 1: share of all updates."""
    weight_decay: Annotated[float, Field(ge=0), TRAINING] = 0.0
    """Weight decay of AdamW."""
    bias_correction: Annotated[bool, TRAINING] = True
    """Correct the bias of AdamW's moments; false: not, as in the original code of BERT, which makes
    the first updates up to 3 times as long and fine-tuning less stable."""
    max_grad_norm: Annotated[Annotated[float, Field(ge=0)] | None, TRAINING] = None
    """Clip the gradient to this norm; 0: no clipping. Unset: 1, or 0 with a method that clips."""
    per_device_train_batch_size: Annotated[Count, TRAINING] = 8
    """Training examples per step and device."""
    per_device_eval_batch_size: Annotated[Count, TRAINING] = 32
    """Validation examples per step and device."""
    gradient_accumulation_steps: Annotated[Count, TRAINING] = 1
    """Steps whose gradients make one update. Unset: 1, or 2 where half of them are unlabeled."""
    train_sampling_strategy: Annotated[Literal["random", "group_by_length"], TRAINING] = (
        "group_by_length"
    )
    """Order of the training rows: random, or in batches of similar length, which need less padding
    and time. Question answering learns less from the latter; its default is random."""
    gradient_checkpointing: Annotated[bool, TRAINING] = False
    """Compute activations again in the backward pass: less memory, more time."""
    class_weights: Annotated[
        list[Annotated[float, Field(gt=0)]] | Literal["balanced"] | None, TRAINING
    ] = None
    """Weight of each class in the task loss, in the order of the classes; balanced: inverse to its
    number of training rows. Multi-label classification: of the rows that have each label, against 1
    for those that have not (pos_weight); balanced: rows without it by rows with it."""
    bf16: Annotated[bool, TRAINING] = False
    """Train in bfloat16 mixed precision; CPUs with its arithmetic (`lscpu`: avx512_bf16) need less
    time for what is not kept in float32, too; those without AVX-512 many times as much."""
    torch_compile: Annotated[bool, TRAINING] = False
    """Compile the transformer blocks for the time of the training; not faster on a CPU."""

    eval_strategy: Annotated[Literal["no", "steps", "epoch"], PROGRESS] = "epoch"
    """When to evaluate on the validation rows during training."""
    eval_steps: Annotated[Count | None, PROGRESS] = None
    """Updates between evaluations with `eval_strategy: steps`; unset: `logging_steps`."""
    logging_steps: Annotated[Count, PROGRESS] = 50
    """Updates between logged losses; unless it is given, `smoothtune train` logs shorter runs about
    ten times."""
    save_strategy: Annotated[Literal["no", "steps", "epoch"], PROGRESS] = "no"
    """When to write a checkpoint to resume from; the last one is kept until the run is done."""
    save_steps: Annotated[Count, PROGRESS] = 500
    """Updates between checkpoints with `save_strategy: steps`."""

    load_best_model_at_end: Annotated[bool, PROGRESS] = False
    """Keep the weights of the best evaluation in place of the last ones; checkpoints are written
    at every evaluation. Evaluations before the term of a method has acted do not count."""
    metric_for_best_model: Annotated[Name | None, PROGRESS] = None
    """Score that says which is best: a metric of the task, brier, nll or loss; unset: the task's
    main metric."""
    greater_is_better: Annotated[bool | None, PROGRESS] = None
    """Whether a greater score is better; unset: not for brier, nll and loss."""
    early_stopping_patience: Annotated[Count | None, PROGRESS] = None
    """End the training after so many evaluations without a better score."""
    early_stopping_threshold: Annotated[float, Field(ge=0), PROGRESS] = 0.0
    """A score that is better by no more than this counts as no better."""
    report_to: Annotated[list[Name] | None, PROGRESS] = None
    """Send logs to these: tensorboard, wandb, mlflow and others of transformers; unset: none."""

    output_dir: Annotated[Folder, OUTPUT]
    """Folder for the model, its README.md and result.json."""
    merge_adapter: Annotated[bool, OUTPUT] = False
    """Write a plain model that holds the adapters, in place of peft's files."""
    overwrite_output_dir: Annotated[bool, OUTPUT] = False
    """Replace the finished or unfinished run in `output_dir`."""
    push_to_hub: Annotated[bool, OUTPUT] = False
    """Upload the finished model folder to the hub, with the token of `hf auth login`."""
    hub_model_id: Annotated[Name | None, OUTPUT] = None
    """Repository on the hub, NAME or ORG/NAME; unset: the name of `output_dir`."""
    hub_private_repo: Annotated[bool | None, OUTPUT] = None
    """Make a new repository private; unset: as your account or organization has it."""

    @field_validator("class_weights", mode="before")
    @classmethod
    def _numbers_of_options(cls, value: Any) -> Any:
        """Options come as texts: --class-weight balanced, or one for each class."""
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            return value
        if value == ["balanced"]:
            return "balanced"
        try:
            return [float(each) for each in value]
        except ValueError:
            return value

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_task_type(cls, values: Any) -> Any:
        described = described_task_types()
        if not isinstance(values, Mapping) or task_type_of(values) not in described:
            return values
        declared = described[task_type_of(values)]
        defaults = dict[str, Any]()
        if declared.max_seq_length != cls.model_fields["max_seq_length"].default:
            defaults["max_seq_length"] = declared.max_seq_length
        if not declared.similar_lengths:
            defaults["train_sampling_strategy"] = "random"
        return defaults | dict(values)
