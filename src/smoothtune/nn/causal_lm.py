"""Language models: the prediction after every token whose next token is a label.

Causal ones read the labels themselves, so labels and tokens are shifted by one. The decoder of an
encoder-decoder reads `decoder_input_ids`, labels that are shifted already; a batch that holds them
is one of an encoder-decoder, and `with_decoder_inputs` makes them as the model itself does.

N counts these label tokens over the whole batch. Only they are given to the language-model head, so
the (B, T, V) logits of the whole batch never exist. A loss over them is a sum divided by
`num_items_in_batch`, where a batch holds it under that name, and by N where it does not.

A model that adds another loss, as a mixture of experts that of its router, computes its own, from
all logits.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from smoothtune.nn import rng
from smoothtune.nn.architecture import unwrap
from smoothtune.nn.autocast import autocast_dtype
from smoothtune.nn.dropout import evaluating
from smoothtune.nn.model_facts import DECODER_IDS, IGNORED, added_loss, with_decoder_inputs

CHUNK = 2**24
"""Number of logits converted to float32 at a time: 64 MiB."""


def target_mask(batch: Mapping[str, Any]) -> Tensor:
    """(B, T-1) True where the next token is a label; without labels, where it is a real token.

    Of an encoder-decoder's batch (B, T), as its labels are those of the decoder's positions.
    """
    labels = batch.get("labels")
    if DECODER_IDS in batch:
        return batch["labels"] != IGNORED
    if labels is not None:
        return labels[:, 1:] != IGNORED
    mask = batch.get("attention_mask")
    if mask is None:
        words = batch.get("input_ids", batch.get("inputs_embeds"))
        mask = torch.ones(words.shape[:2], device=words.device)
    return (mask[:, 1:] != 0) & (mask[:, :-1] != 0)


def targets(batch: Mapping[str, Any]) -> Tensor:
    """(N,) the label tokens, in the order of the logits of `next_token_loss`."""
    labels = batch["labels"] if DECODER_IDS in batch else batch["labels"][:, 1:]
    return labels[target_mask(batch)]


def num_items(batch: Mapping[str, Any]) -> Tensor:
    """() divisor of sums over label tokens, 1 in place of 0.

    `num_items_in_batch`, if the batch holds it: with gradient accumulation or several processes,
    the label tokens of one update divided by its number of batches.
    """
    counted = batch.get("num_items_in_batch")
    mask = target_mask(batch)
    count = mask.sum() if counted is None else torch.as_tensor(counted)
    count = count.to(mask.device)
    return count.where(count > 0, 1)


@dataclass(frozen=True)
class NextTokenLoss:
    """Runs a language model with its head on the label tokens only.

    Called with a model and a batch, as any loss function. The outputs alone are what a pass needs
    whose predictions are compared, and whose loss nobody asks for.
    """

    smoothing: float = 0.0
    """Probability that label smoothing spreads over all tokens, in [0, 1)."""

    def __call__(self, model: nn.Module, batch: dict[str, Any]) -> tuple[Tensor | None, Any]:
        """Loss and outputs.

        Args:
            model: as the loop holds it, wrappers included.
            batch: model inputs by name.

        Returns:
            () sum of the cross entropies over `num_items`, None without labels; and the outputs,
            whose `logits` are (N, V), or (B, T, V) where the model adds another loss.

        Raises:
            ValueError: the batch holds `shift_labels`, labels that are shifted already; or the
                model has other positions than the batch's tokens.
        """
        outputs = self.outputs(model, batch)
        return self.loss(outputs, with_decoder_inputs(unwrap(model), batch)), outputs

    def outputs(self, model: nn.Module, batch: dict[str, Any]) -> Any:
        """The outputs alone."""
        if "shift_labels" in batch:
            raise ValueError(
                "shift_labels are not supported: give the batch `labels`, which the loss shifts"
            )
        if added_loss(unwrap(model), batch):
            return model(**{"use_cache": False} | batch)
        batch = with_decoder_inputs(unwrap(model), batch)
        inputs = {k: v for k, v in batch.items() if k not in ("labels", "num_items_in_batch")}

        def choose(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return (_before_labels(args[0], batch)[None], *args[1:])

        head: Any = unwrap(model)
        handle = head.get_output_embeddings().register_forward_pre_hook(choose)
        try:
            outputs = model(**{"use_cache": False} | inputs)
        finally:
            handle.remove()
        return {"logits": outputs["logits"][0]}

    def loss(self, outputs: Any, batch: Mapping[str, Any]) -> Tensor | None:
        """() the loss of outputs, of a batch that holds what a decoder reads."""
        if "labels" not in batch or "loss" in outputs:
            return outputs.get("loss")
        of_labels = partial(label_losses, smoothing=self.smoothing)
        losses = in_chunks(of_labels, outputs["logits"], targets(batch))
        return losses.sum() / num_items(batch)


next_token_loss = NextTokenLoss()
"""Without label smoothing."""


def check_next_token_loss(model: nn.Module, batch: Mapping[str, Any]) -> None:
    """Compare `next_token_loss` with an unwrapped model's own loss, on the first row with labels.

    Raises:
        ValueError: the model's loss is another one than it declares.
    """
    batch = with_decoder_inputs(model, batch)
    labeled = target_mask(batch).any(1).nonzero().flatten()[:1]
    if not len(labeled):
        return
    rows = len(batch["labels"])
    one = {
        name: value[labeled] if isinstance(value, Tensor) and value.shape[:1] == (rows,) else value
        for name, value in batch.items()
        if name != "num_items_in_batch"
    }
    with torch.no_grad(), evaluating(model), rng.isolated(labeled.device):
        expected = next_token_loss(model, dict(one))[0]
        own = model(**{"use_cache": False} | one).get("loss")
    torch.clear_autocast_cache()  # older torch keeps casts of weights that have no graph
    assert expected is not None
    rtol = 0.05 if model_is_rounded(model, labeled.device) else 1e-3
    if own is None or not torch.isclose(expected.float(), own.float(), rtol=rtol):
        computed = "none" if own is None else f"{own.item():.6g}"
        raise ValueError(
            f"{type(model).__name__} declares the loss of language models, {expected:.6g} on the "
            f"first row, but computes {computed}: give "
            "`objective(model, batch, compute_loss)` a loss of your own"
        )


def model_is_rounded(model: nn.Module, device: torch.device) -> bool:
    """Whether a model computes in 16 bits."""
    half = any(p.dtype in (torch.float16, torch.bfloat16) for p in model.parameters())
    return half or autocast_dtype(model, device) is not None


def label_logits(logits: Tensor, batch: Mapping[str, Any]) -> Tensor:
    """(N, V) logits of the label tokens, from all logits (B, T, V) or from (N, V) themselves."""
    return logits if logits.ndim == 2 else _before_labels(logits, batch)


def _before_labels(values: Tensor, batch: Mapping[str, Any]) -> Tensor:
    """(N, ...) what (B, T, ...) holds at the positions whose next token is a label."""
    keep = target_mask(batch)
    last = DECODER_IDS not in batch  # has no next token
    if values.shape[1] != keep.shape[1] + last:
        raise ValueError(
            f"the model has {values.shape[1]} positions for {keep.shape[1] + last} tokens (of an "
            "image?), so which of them predict the labels is not known: use a weight-side method "
            "such as mixout or l2_sp, and give `objective(model, batch, compute_loss)` a loss of "
            "your own"
        )
    return values[:, : keep.shape[1]][keep]


def by_example(logits: Tensor, batch: Mapping[str, Any]) -> Tensor:
    """(B, M, V) logits (N, V) of every example's label tokens, M the largest number, then zeros."""
    keep = target_mask(batch)
    rows, _ = keep.nonzero(as_tuple=True)
    columns = (keep.cumsum(1) - 1)[keep]
    filled = logits.new_zeros(len(keep), int(keep.sum(1).max()), logits.shape[-1])
    return filled.index_put((rows, columns), logits)


def label_losses(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """(N,) -log p of the labels, smoothed or not, in float32 or wider."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    return F.cross_entropy(logits.to(wide), labels, reduction="none", label_smoothing=smoothing)


def in_chunks(function: Callable[..., Tensor], first: Tensor, *others: Tensor) -> Tensor:
    """Apply a row-wise function to chunks of rows, recomputed in the backward pass.

    Intermediate values (float32 logits, softmax, logarithm) then exist for one chunk only.

    Args:
        function: tensors (n, ...) -> (n, ...), row by row.
        first: (N, ..., V), whose rows have the size that decides how many a chunk holds.
        others: (N, ...).
    """
    rows = max(1, CHUNK // max(1, math.prod(first.shape[1:])))
    if len(first) <= rows:
        return function(first, *others)
    parts = zip(*(tensor.split(rows) for tensor in (first, *others)), strict=True)
    return torch.cat([checkpoint(function, *part, use_reentrant=False) for part in parts])
