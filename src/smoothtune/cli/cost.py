"""`smoothtune cost`: the cost of a training step with each method."""

from __future__ import annotations

from collections.abc import Sequence

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
) -> list[list[str]]:
    """Rows of `smoothtune cost`: method, ratio, range, seconds, extra memory.

    Args:
        methods: ``NAME[:field=value,...]``, one row each.
        model: minilm, a model folder, or a hub id.
        batch_size: B of the random batches.
        length: T.
        rounds: steps measured with and without the method.

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
        low, high = min(cost.ratios), max(cost.ratios)
        memory = ""
        if cost.methods_memory is not None and cost.plain_memory is not None:
            memory = f"{(cost.methods_memory - cost.plain_memory) / 2**20:+.0f} MiB"
        rows.append(
            [
                method,
                f"{cost.ratio:.2f}",
                f"{low:.2f}-{high:.2f}",
                f"{cost.seconds:.3g} ({cost.plain_seconds:.3g})",
                memory,
            ]
        )
    return rows
