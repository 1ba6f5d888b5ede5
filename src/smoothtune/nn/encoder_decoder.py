"""What the decoder of an encoder-decoder reads: the labels, shifted, as the model makes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

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
    given = batch.get("decoder_attention_mask")
    return mask if given is None else mask & given.bool()


def tokens_and_mask(batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """(B, T) what the decoder reads, and which of it is real.

    Raises:
        ValueError: the batch does not say what the decoder reads.
    """
    if batch.get(DECODER_IDS) is None or "labels" not in batch:
        raise ValueError(
            "a perturbation of the decoder needs labels, from which decoder_input_ids are made: "
            'use side="encoder"'
        )
    return batch[DECODER_IDS], decoder_mask(batch)


def joined(parts: list[Tensor]) -> Tensor:
    """(B, T, ...) what the sides hold, the encoder's first."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)
