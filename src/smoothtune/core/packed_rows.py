"""Packed rows: several documents one after the other, each with positions that begin at 0.

Terms, norms and noise are meant per example, and would run over several documents, so that language
models get every document in a row of its own.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from smoothtune.core.regularizer import LossTerm, Regularizer
from smoothtune.nn.model_facts import IGNORED, predicts_tokens

# inputs that describe a packed row, and not the documents in it
PACKING = (
    "position_ids",
    "cu_seq_lens_q",
    "cu_seq_lens_k",
    "max_length_q",
    "max_length_k",
    "seq_idx",
)


def documents(batch: Mapping[str, Any]) -> list[int] | None:
    """Lengths of the documents of a packed batch, one after the other; None if it is not packed.

    Args:
        batch: packed, if it has no mask and `position_ids` (B, S) that count from 0 in every
            document, with several documents in a row.
    """
    positions = batch.get("position_ids")
    if not isinstance(positions, Tensor) or batch.get("attention_mask") is not None:
        return None
    starts = (positions == 0).flatten().nonzero().flatten().tolist()
    lengths = [end - start for start, end in pairwise([*starts, positions.numel()])]
    counted = [position for length in lengths for position in range(length)]
    if positions.ndim != 2 or positions.flatten().tolist() != counted:
        return None  # positions of the user's own
    return lengths if len(positions) == 1 or len(lengths) > len(positions) else None


def unpacked(batch: Mapping[str, Any]) -> dict[str, Any]:
    """A packed batch with every document in a row of its own, padded on the right, and a mask.

    Args:
        batch: `input_ids` and `labels` (B, S) with `position_ids`; one that is not packed is
            returned unchanged.
    """
    lengths = documents(batch)
    if lengths is None:
        return dict(batch)

    def rows(values: Tensor, padding: int) -> Tensor:
        return pad_sequence(list(values.flatten().split(lengths)), True, padding)

    ids = batch["input_ids"]
    padded = {"input_ids": rows(ids, 0), "attention_mask": rows(torch.ones_like(ids), 0)}
    if "labels" in batch:
        padded["labels"] = rows(batch["labels"], IGNORED)
    kept = {key: value for key, value in batch.items() if key not in {*PACKING, *padded}}
    return padded | kept


def uses_passes(method: Regularizer) -> bool:
    """Whether a method has a loss on what the model computes, and not on its weights alone."""
    return isinstance(method, LossTerm) and not method.traits.weights_only


def one_document_a_row(
    batch: dict[str, Any], model: nn.Module, methods: Mapping[str, Regularizer], *, own_loss: bool
) -> dict[str, Any]:
    """The model inputs as methods need them, unless the loop computes a loss of its own from them.

    Raises:
        ValueError: a method would act over several documents, and the batch cannot be taken apart.
    """
    acting = [name for name, each in methods.items() if uses_passes(each)]
    if not acting or len(documents(batch) or []) <= len(batch.get("position_ids", [])):
        return batch
    if own_loss or not predicts_tokens(model) or "input_ids" not in batch:
        raise ValueError(
            f"{', '.join(acting)} with packed rows, whose position_ids begin again within a row: "
            "terms are per example, and the loss is not one that could take the documents apart: "
            "give every document a row of its own, with an attention_mask"
        )
    return unpacked(batch)
