"""A run whose weights FSDP2 shards: every process holds a part of each."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import Trainer

from smoothtune.config.run import RunConfig
from smoothtune.errors import ConfigError, Problem
from smoothtune.nn.architecture import blocks, unwrap


def prepare_shards(trainer: Trainer, model: nn.Module, config: RunConfig) -> None:
    """Refuse what needs whole weights, and let every block be one unit unless others are named.

    Without names accelerate takes the model's `_no_split_modules`; with BERT's it fails, as it
    would shard the word embeddings twice.

    Raises:
        ConfigError: adapters are to be merged.
    """
    if config.merge_adapter:
        message = (
            "no process has the whole weights that adapters are merged into with FSDP2: leave it "
            "out and merge after the run, with peft's merge_and_unload, or start it with DDP"
        )
        raise ConfigError([Problem("", "merge_adapter", message)])
    plugin: Any = trainer.accelerator.state.fsdp_plugin
    if plugin.transformer_cls_names_to_wrap is None:
        names = {type(block).__name__ for block in blocks(unwrap(model))}
        plugin.transformer_cls_names_to_wrap = sorted(names)


def whole_weights(trainer: Trainer) -> dict[str, Tensor] | None:
    """All weights by name, on the CPU, where every process has parts; None where it has all.

    Every process has to call it; the main one gets the weights.
    """
    if not trainer.is_fsdp_enabled:
        return None
    weights: dict[str, Tensor] = trainer.accelerator.get_state_dict(trainer.model)
    return weights
