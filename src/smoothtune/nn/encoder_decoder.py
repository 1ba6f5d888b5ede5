"""The tokens that a model reads; the decoder of an encoder-decoder reads its labels, shifted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from smoothtune.nn.architecture import Side, sides_of
from smoothtune.nn.model_facts import IGNORED, declaring, is_seq2seq_lm

DECODER_IDS = "decoder_input_ids"


def with_decoder_inputs(model: nn.Module, batch: Mapping[str, Any]) -> dict[str, Any]:
    """The batch of an encoder-decoder language model with `decoder_input_ids`; others as they are.

    Args:
        model: unwrapped.
        batch: model inputs by name; `decoder_input_ids` that are there stay.

    Raises:
        ValueError: it has no labels, so nothing says what the decoder predicts.
    """
    if not is_seq2seq_lm(model):
        return dict(batch)
    if batch.get("labels") is None:
        raise ValueError(
            "an encoder-decoder language model predicts its labels, and the batch has none: give "
            'it labels (with batch["unlabeled"] = True they are compared, and not learned)'
        )
    if batch.get(DECODER_IDS) is not None:
        return dict(batch)
    make: Any = declaring(model).prepare_decoder_input_ids_from_labels
    return {**batch, DECODER_IDS: make(batch["labels"])}


def decoder_mask(batch: Mapping[str, Any]) -> Tensor:
    """(B, T) True up to the last label: later tokens of the decoder reach no prediction."""
    labeled = (batch["labels"] != IGNORED).int()
    mask = labeled.flip(1).cummax(1).values.flip(1).bool()
    attended = batch.get("decoder_attention_mask")
    return mask if attended is None else mask & attended.bool()


def tokens_and_mask(
    model: nn.Module, batch: Mapping[str, Any], side: Side
) -> tuple[Tensor, Tensor]:
    """(B, T) what is read on a side, both together or any model, and which of it is real.

    Models for multiple choice put all their sequences into one batch.

    Args:
        model: unwrapped.
        batch: model inputs by name.
        side: of an encoder-decoder.

    Raises:
        ValueError: the batch has no `input_ids`, or does not say what the decoder reads.
    """
    parts = [
        _of_encoder(batch) if one == "encoder" else _of_decoder(batch)
        for one in sides_of(model, side)
    ]
    return joined([ids for ids, _ in parts]), joined([mask for _, mask in parts])


def _of_encoder(batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    if "input_ids" not in batch:
        raise ValueError(
            f"a perturbation needs `input_ids`, and the batch has {', '.join(batch)}: use a "
            "weight-side method such as mixout or l2_sp"
        )
    ids, mask = batch["input_ids"].flatten(0, -2), batch.get("attention_mask")
    return ids, torch.ones_like(ids).bool() if mask is None else mask.flatten(0, -2).bool()


def _of_decoder(batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    if batch.get(DECODER_IDS) is None or "labels" not in batch:
        raise ValueError(
            "a perturbation of the decoder needs labels, from which decoder_input_ids are made: "
            'use side="encoder"'
        )
    return batch[DECODER_IDS], decoder_mask(batch)


def joined(parts: list[Tensor]) -> Tensor:
    """(B, T, ...) what the sides hold, the encoder's first."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)
