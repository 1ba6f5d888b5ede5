"""TRL's SFTTrainer and RewardTrainer: checks of their settings, packed batches, metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import Trainer

from smoothtune.core.declarations import IGNORED

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
    classes = (cls for cls in type(trainer).__mro__ if cls.__module__.startswith("trl."))
    return next((cls.__name__ for cls in classes if not cls.__name__.startswith("_")), None)


def trl_problems(trainer: Any) -> list[str]:
    """Reasons why a trainer of TRL is not supported, with what to change; empty if it is."""
    name, args = trl_trainer(trainer), trainer.args
    if name is None:
        return []
    if name == "RewardTrainer":
        return []
    if name != "SFTTrainer":
        return [
            f"TRL's {name} runs the model several times for one loss, or a second model: "
            "SFTTrainer and RewardTrainer work"
        ]
    wrong = []
    if args.loss_type != "nll":
        wrong.append(f"loss_type={args.loss_type!r} of SFTTrainer is not verified: use 'nll'")
    if trainer.aux_loss_enabled:
        wrong.append("router losses are not verified: set router_aux_loss_coef=0")
    if args.packing and args.packing_strategy == "wrapped":
        wrong.append(
            "packing_strategy='wrapped' lets documents attend to one another, so a perturbation "
            "of one reaches the next: use 'bfd', or packing=False"
        )
    return wrong


@contextmanager
def metrics_kept(trainer: Any) -> Iterator[None]:
    """Leave out of a RewardTrainer's metrics what it counts within."""
    metrics, tokens = trainer._metrics["train"], trainer._total_train_tokens
    kept = {name: list(values) for name, values in metrics.items()}
    try:
        yield
    finally:
        metrics.clear()
        metrics.update(kept)
        trainer._total_train_tokens = tokens


def unpacked(batch: Mapping[str, Any]) -> dict[str, Any]:
    """A padded batch from a packed one, with one row per document.

    In a packed row, `position_ids` restart at every document. Without unpacking, terms, norms and
    noise that are meant per example would run over several documents.

    Args:
        batch: `input_ids` and `labels` (1, S) with `position_ids` (1, S) that count from 0 in
            every document; other batches are returned unchanged.

    Returns:
        The same documents in rows (B, T), padded on the right, with an attention mask.
    """
    positions = batch.get("position_ids")
    if positions is None or "attention_mask" in batch:
        return dict(batch)
    starts = (positions == 0).flatten().nonzero().flatten().tolist()
    ends = [*starts, positions.numel()][1:]
    lengths = [end - start for start, end in zip(starts, ends, strict=True)]
    counted = [position for length in lengths for position in range(length)]
    if len(positions) != 1 or positions.flatten().tolist() != counted:
        return dict(batch)  # positions of the user's own, in rows as they are

    def rows(values: Tensor, padding: int) -> Tensor:
        return pad_sequence(list(values.flatten().split(lengths)), True, padding)

    ids = batch["input_ids"]
    padded = {"input_ids": rows(ids, 0), "attention_mask": rows(torch.ones_like(ids), 0)}
    if "labels" in batch:
        padded["labels"] = rows(batch["labels"], IGNORED)
    kept = {key: value for key, value in batch.items() if key not in {*PACKING, *padded}}
    return padded | kept
