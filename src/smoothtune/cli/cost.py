"""`smoothtune cost`: the cost of a training step with each method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from smoothtune.config.run import load_config
from smoothtune.console import quiet
from smoothtune.errors import ConfigError, Problem
from smoothtune.memory import keep_freed_memory, measurable
from smoothtune.models.load import load_base, load_classifier
from smoothtune.models.positions import num_positions
from smoothtune.tasks.presets import TASKS
from smoothtune.trainer.step_cost import measure_step_cost, random_batches


def price_list(
    methods: Sequence[str], model: str, batch_size: int, length: int, rounds: int
) -> list[dict[str, Any]]:
    """What a step costs with each method, for `smoothtune cost`.

    Args:
        methods: ``NAME[:field=value,...]``, one row each.
        model: minilm, a model folder, or a hub id.
        batch_size: B of the random batches.
        length: T.
        rounds: steps measured with and without the method.

    Returns:
        For each method: ratio to plain fine-tuning with its range, seconds of both, and bytes of
        memory beyond plain fine-tuning, or None.

    Raises:
        ConfigError: an unknown method or field, or more tokens than the model has positions.
        ModelError: the model cannot be loaded.
    """
    configs = [
        load_config(options={"task": "sst2", "output_dir": "unused"}, methods=[method])
        for method in methods
    ]
    with quiet():
        classifier, _ = load_classifier(load_base(model), TASKS["sst2"], seed=0)
    limit = num_positions(classifier)
    if limit is not None and length > limit:
        message = f"{model} has {limit} positions: set it to {limit} or less"
        raise ConfigError([Problem("--length", "", message)])
    batches = random_batches(classifier, rounds, batch_size, length)
    keep_freed_memory()
    rows = []
    for method, config in zip(methods, configs, strict=True):
        cost = measure_step_cost(classifier, config.regularizers(), batches, memory=measurable())
        memory = None
        if cost.methods_memory is not None and cost.plain_memory is not None:
            memory = cost.methods_memory - cost.plain_memory
        rows.append(
            {
                "method": method,
                "ratio": cost.ratio,
                "low": min(cost.ratios),
                "high": max(cost.ratios),
                "seconds": cost.seconds,
                "plain_seconds": cost.plain_seconds,
                "extra_bytes": memory,
            }
        )
    return rows


def price_row(price: Mapping[str, Any]) -> list[str]:
    """One row of the table: method, ratio, range, seconds, extra memory."""
    memory = price["extra_bytes"]
    return [
        price["method"],
        f"{price['ratio']:.2f}",
        f"{price['low']:.2f}-{price['high']:.2f}",
        f"{price['seconds']:.3g} ({price['plain_seconds']:.3g})",
        "" if memory is None else f"{memory / 2**20:+.0f} MiB",
    ]
