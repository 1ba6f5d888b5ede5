"""`smoothtune cost`: time and memory of a training step with each method."""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any

import torch
from torch import nn

from smoothtune.config.run import RunConfig, load_config
from smoothtune.console import quiet
from smoothtune.errors import ConfigError, ModelError, Problem
from smoothtune.memory import keep_freed_memory, measurable
from smoothtune.models.load import load_base, load_classifier
from smoothtune.models.lora import add_lora
from smoothtune.models.positions import num_positions
from smoothtune.nn.hf_versions import enable_checkpointing
from smoothtune.run.trainer import as_config_error
from smoothtune.tasks.presets import TASKS
from smoothtune.trainer.cost import (
    MemoryEstimate,
    estimate_memory,
    measure_step_cost,
    random_batches,
)


@dataclass(frozen=True)
class Price:
    """What a step costs with a method."""

    method: str
    ratio: float  # of its time to that of a plain step
    low: float  # of the rounds
    high: float
    seconds: float
    plain_seconds: float
    extra_bytes: int | None  # beyond plain fine-tuning; None where it cannot be measured

    def row(self) -> list[str]:
        """Cells of a table."""
        span = f"{self.low:.2f}-{self.high:.2f}"
        seconds = f"{self.seconds:.3g} ({self.plain_seconds:.3g})"
        memory = "" if self.extra_bytes is None else f"{self.extra_bytes / 2**20:+.0f} MiB"
        return [self.method, f"{self.ratio:.2f}", span, seconds, memory]


@dataclass(frozen=True)
class Fit:
    """The largest batch of a method within a budget of memory."""

    method: str
    gradient_checkpointing: bool
    peak_bytes: dict[str, int] = field(default_factory=dict)  # by rows
    largest_batch: int | None = 0  # None: a row is too small to be seen
    refused: str = ""  # why nothing was measured

    def row(self) -> list[str]:
        """Cells of a table."""
        peaks = [f"{rows}: {size / 2**30:.2f} GiB" for rows, size in self.peak_bytes.items()]
        unseen = self.largest_batch is None
        largest = "too small to measure: raise --batch" if unseen else str(self.largest_batch)
        checkpointing = "yes" if self.gradient_checkpointing else "no"
        return [self.method, checkpointing, ", ".join(peaks), self.refused or largest]


def price_list(
    methods: Sequence[str], model: str, lora: Any, batch_size: int, length: int, rounds: int
) -> list[Price]:
    """What a step costs with each method, for `smoothtune cost`, or ConfigError.

    Args:
        methods: ``NAME[:field=value,...]``, one row each.
        model: minilm, a model folder, the name of one in $SMOOTHTUNE_MODELS, or a hub id.
        lora: adapters as on the command line, with and without the method; None: all weights are
            trained.
        batch_size: B of the random batches.
        length: T.
        rounds: steps measured with and without the method.
    """
    configs = [_configured(method, lora) for method in methods]
    with quiet():
        classifier = _loaded(configs[0], model, length)
    nn.Module.to(classifier, _device())
    batches = random_batches(classifier, rounds, batch_size, length)
    keep_freed_memory()
    prices = []
    for method, config in zip(methods, configs, strict=True):
        with as_config_error():
            regularizers = config.regularizers()
            cost = measure_step_cost(classifier, regularizers, batches, memory=measurable())
        times = (cost.ratio, min(cost.ratios), max(cost.ratios), cost.seconds, cost.plain_seconds)
        memory = None
        if cost.methods_memory is not None and cost.plain_memory is not None:
            memory = cost.methods_memory - cost.plain_memory
        prices.append(Price(method, *times, memory))
    return prices


def batches_that_fit(
    methods: Sequence[str],
    model: str,
    lora: Any,
    batch_size: int,
    length: int,
    budget: int,
    frozen_weights: str | None = None,
) -> list[Fit]:
    """The largest batch of each method within a `budget` in bytes; arguments as `price_list`.

    Every row is measured in a process of its own, without and with gradient checkpointing, at
    `batch_size` rows and at twice as many. `frozen_weights` is how weights that adapters leave
    frozen are stored.
    """
    if not measurable():
        message = "peak memory is measured on Linux and CUDA alone: leave --budget out"
        raise ConfigError([Problem("--budget", "", message)])
    configs = [_configured(method, lora, frozen_weights) for method in methods]
    fits = []
    for method, config in zip(methods, configs, strict=True):
        for checkpointing in (False, True):
            job = (config, model, batch_size, length, checkpointing)
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                try:
                    peak = pool.submit(_measured, *job).result()
                except (BrokenProcessPool, torch.OutOfMemoryError):
                    why = f"too little memory for {2 * batch_size} rows: lower --batch"
                    fit = Fit(method, checkpointing, refused=why)
                except ModelError:
                    raise
                except ValueError as error:
                    fit = Fit(method, checkpointing, refused=" ".join(str(error).split()))
                else:
                    if isinstance(peak, list):
                        raise ConfigError(peak)
                    sizes = {str(rows): size for rows, size in peak.bytes_by_rows.items()}
                    fit = Fit(method, checkpointing, sizes, peak.largest_batch(budget))
            fits.append(fit)
    return fits


def _device() -> torch.device:
    """Where `smoothtune train` trains."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _configured(method: str, lora: Any = None, frozen_weights: str | None = None) -> RunConfig:
    options = {"task": "sst2", "output_dir": "unused", "lora": lora}
    if frozen_weights is not None:
        options |= {"frozen_weights": frozen_weights, "bf16": True}
    return load_config(options=options, methods=[method])


def _loaded(config: RunConfig, model: str, length: int) -> Any:
    """The model, with a head for two classes and the run's adapters."""
    task = TASKS["sst2"]
    classifier, new = load_classifier(
        load_base(model), task, seed=0, frozen_weights=config.frozen_weights
    )
    limit = num_positions(classifier)
    if limit is not None and length > limit:
        message = f"the model has {limit} positions: set it to {limit} or less"
        raise ConfigError([Problem("--length", "", message)])
    if config.lora is None:
        return classifier
    return add_lora(classifier, config.lora, task.peft_type, new, seed=0)


def _measured(
    config: RunConfig, model: str, batch_size: int, length: int, checkpointing: bool
) -> MemoryEstimate | list[Problem]:
    """The peaks of a method, in a process that does nothing else; or what is wrong."""
    torch.set_num_threads(1)
    with quiet():
        try:
            classifier = _loaded(config, model, length)
        except ConfigError as error:  # which another process cannot read
            return error.problems
        if checkpointing:
            classifier.config.use_cache = False
            enable_checkpointing(classifier)
    nn.Module.to(classifier, _device())
    if config.frozen_weights == "float32":  # as training does
        keep_freed_memory()
    with torch.autocast(_device().type, dtype=torch.bfloat16, enabled=config.bf16):
        return estimate_memory(
            classifier,
            config.regularizers(),
            lambda rows: random_batches(classifier, 1, rows, length)[0],
            (batch_size, 2 * batch_size),
        )
