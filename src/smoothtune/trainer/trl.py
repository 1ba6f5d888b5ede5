"""TRL's SFTTrainer: which of its settings keep their meaning, and packed batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import Trainer

from smoothtune.core.causal_lm import IGNORED

# inputs that describe a packed row, and not the documents in it
PACKING = (
    "position_ids",
    "cu_seq_lens_q",
    "cu_seq_lens_k",
    "max_length_q",
    "max_length_k",
    "seq_idx",
)


def trl_trainer(trainer: Trainer) -> str | None:
    """Name of the class of TRL that a trainer is or inherits from; None for other trainers."""
    ours = (cls for cls in type(trainer).__mro__ if cls.__module__.startswith("trl."))
    return next((cls.__name__ for cls in ours if not cls.__name__.startswith("_")), None)


def sft_problems(trainer: Any) -> list[str]:
    """Why a trainer of TRL cannot be regularized, and what to change; empty if it can."""
    name, args = trl_trainer(trainer), trainer.args
    if name is None:
        return []
    if name != "SFTTrainer":
        return [f"TRL's {name} runs the model several times for one loss: only SFTTrainer works"]
    found = []
    if args.loss_type != "nll":
        found.append(f"loss_type={args.loss_type!r} of SFTTrainer is not verified: use 'nll'")
    if trainer.aux_loss_enabled:
        found.append("router losses are not verified: set router_aux_loss_coef=0")
    if args.packing and args.packing_strategy == "wrapped":
        found.append(
            "packing_strategy='wrapped' lets documents attend to one another, so a disturbed one "
            "disturbs the next: use 'bfd', or packing=False"
        )
    return found


def unpacked(batch: Mapping[str, Any]) -> dict[str, Any]:
    """A padded batch from a packed one: every document an example again.

    Documents packed into one row are told apart by `position_ids` that begin anew. A term per
    example, a norm over it or noise scaled by its length would otherwise run over several.

    Args:
        batch: `input_ids` and `labels` (1, S) with `position_ids`; other batches come back as they
            are.

    Returns:
        The same documents in rows (B, T), padded on the right, with an attention mask.
    """
    positions = batch.get("position_ids")
    if positions is None or "attention_mask" in batch:
        return dict(batch)
    starts = (positions == 0).flatten().nonzero().flatten().tolist()
    ends = [*starts[1:], positions.numel()]
    lengths = [end - start for start, end in zip(starts, ends, strict=True)]

    def rows(values: Tensor, padding: int) -> Tensor:
        return pad_sequence(list(values.flatten().split(lengths)), True, padding)

    ids = batch["input_ids"]
    padded = {"input_ids": rows(ids, 0), "attention_mask": rows(torch.ones_like(ids), 0)}
    if "labels" in batch:
        padded["labels"] = rows(batch["labels"], IGNORED)
    kept = {key: value for key, value in batch.items() if key not in {*PACKING, *padded}}
    return padded | kept
