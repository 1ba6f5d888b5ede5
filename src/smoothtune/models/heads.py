"""What a head begins with."""

import statistics
from collections.abc import Collection, Iterable
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from smoothtune.tasks.base import Task
from smoothtune.tasks.head import output_names


def order_outputs(
    model: PreTrainedModel, new_weights: Collection[str], config: Any, task: Task
) -> None:
    """Put the outputs of a head that is kept into the order of the task's labels, by their names.

    A model for ``contradiction, neutral, entailment`` would begin with the wrong answers where a
    task has them the other way round. `config` is that of the files, with the names of their
    outputs.
    """
    try:
        output_names(config)
        order = task.head.fit_outputs(config)
    except ValueError:  # which output is which label is not known
        return
    if order is None:
        return
    for name, weight in model.named_parameters():
        is_kept = not name.startswith(f"{model.base_model_prefix}.") and name not in new_weights
        if is_kept and weight.shape[:1] == (len(order),):
            weight.data = weight.data[list(order)]


def start_at_mean(
    model: PreTrainedModel, new_weights: Collection[str], scores: Iterable[float]
) -> bool:
    """Set the bias of a new regression head, of one output, to the mean of the training scores.

    From a bias of zero, reaching the mean takes many updates at usual learning rates, during which
    the gradients of all examples point the same way.

    Returns:
        Whether the head is new and has a bias; without one (GPT-2, Llama) nothing is changed.
    """
    biases = [
        weight
        for name, weight in model.named_parameters()
        if name in new_weights and name.endswith("bias") and weight.shape == (1,)
    ]
    for bias in biases:
        nn.init.constant_(bias, statistics.fmean(scores))
    return bool(biases)
