"""How far two predictions are apart, for every kind of head.

Each function of logits sums over classes in float32 (or wider) and keeps the leading dimensions;
nothing is detached, so gradients flow into both arguments unless the caller detaches one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from smoothtune.next_token import in_chunks, is_next_token_model, label_logits, num_items
from smoothtune.passes import Pass
from smoothtune.taps import is_causal, unwrap

Divergence = Callable[[Tensor, Tensor], Tensor]


def _log_softmax(logits: Tensor) -> Tensor:
    return F.log_softmax(logits, -1, dtype=torch.promote_types(logits.dtype, torch.float32))


def kl(p: Tensor, q: Tensor) -> Tensor:
    """KL(P || Q) of the distributions with logits p, q (..., C); shape (...).

    >>> kl(torch.zeros(2), torch.tensor([0.0, 1.0986123])).item()  # log(2 / sqrt(3))
    0.14384...
    """
    log_p, log_q = _log_softmax(p), _log_softmax(q)
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def symmetric_kl(p: Tensor, q: Tensor) -> Tensor:
    """KL(P || Q) + KL(Q || P), with its full gradient; shape (...)."""
    log_p, log_q = _log_softmax(p), _log_softmax(q)
    return ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(-1)


def constant(x: Tensor) -> Tensor:
    """The value of x without its gradient: the target of a divergence."""
    return x.detach()


def symmetric_kl_detached(p: Tensor, q: Tensor) -> Tensor:
    """`symmetric_kl` with each target a constant, as released code has it; shape (...).

    The value is the same, the gradient about half: softmax(p) - softmax(q) in p, minus it in q.
    """
    return kl(constant(p), q) + kl(constant(q), p)


def squared_error(p: Tensor, q: Tensor) -> Tensor:
    """Sum over the last dimension of (p - q)^2; shape (...)."""
    return (p - q).square().sum(-1)


class Head(NamedTuple):
    """One prediction of a model."""

    logits: Tensor  # (B, N, C): N distributions (or N scores, C = 1) for every example
    mask: Tensor  # (B, N): which of them count
    regression: bool
    share: Tensor | float = 1.0  # of this batch's mean among the batches of one update


def heads(run: Pass) -> list[Head]:
    """The predictions a pass makes, in one shape for all tasks.

    Sequence classification and regression give one head with N = 1, multi-label classification N
    Bernoulli distributions, extractive question answering two heads (start, end) over the real
    tokens, token classification one distribution per token that has a label. In causal language
    models every label token counts as an example with one distribution: B is their number, and
    means are over tokens, as the task loss is. An embedding model gives its embedding, which is
    compared like the scores of a regression.

    Raises:
        ValueError: the model predicts none of these.
    """
    outputs = run.outputs
    if "sentence_embedding" in outputs:
        embedding = outputs["sentence_embedding"]
        return [Head(embedding[:, None], _ones(embedding), True)]
    if "start_logits" in outputs:
        spans = (outputs["start_logits"], outputs["end_logits"])
        low = torch.finfo(spans[0].dtype).min
        return [
            Head(span.masked_fill(~run.mask, low)[:, None], _ones(span), False) for span in spans
        ]
    logits, bare = run.logits, unwrap(run.model)
    if is_next_token_model(bare):
        tokens = label_logits(logits, run.batch)[:, None]
        return [Head(tokens, _ones(tokens), False, len(tokens) / num_items(run.batch))]
    if logits.ndim == 1:  # DeBERTa flattens the scores of a regression when it is given labels
        logits = logits[:, None]
    config = getattr(bare, "config", None)
    problem = getattr(config, "problem_type", None)
    if logits.ndim == 2 and problem == "multi_label_classification":
        pairs = torch.stack([logits, torch.zeros_like(logits)], -1)
        return [Head(pairs, torch.ones_like(logits, dtype=torch.bool), False)]
    if logits.ndim == 2:
        regression = problem == "regression" or logits.shape[-1] == 1
        return [Head(logits[:, None], _ones(logits), regression)]
    if logits.ndim == 3 and not is_causal(bare):
        labels = run.batch.get("labels")
        return [Head(logits, run.mask if labels is None else labels != -100, False)]
    raise ValueError(
        f"logits of shape {tuple(logits.shape)} from {type(bare).__name__} are not supported: use "
        "a sequence or token classification, regression, extractive QA or language-model head"
    )


def _ones(logits: Tensor) -> Tensor:
    return torch.ones(len(logits), 1, dtype=torch.bool, device=logits.device)


def divergence(
    p: Pass, q: Pass, measure: Divergence = symmetric_kl, *, detach_p: bool = False
) -> Tensor:
    """() divergence of two passes over the same batch: a mean over examples (or label tokens).

    Regression heads use the squared error instead of `measure`. With several heads (start and end
    of a span) or several distributions per example (tokens), the mean over them is taken.
    `detach_p` makes `p` a constant.
    """
    values = []
    for head_p, head_q in zip(heads(p), heads(q), strict=True):
        chosen = squared_error if head_p.regression else measure
        logits = constant(head_p.logits) if detach_p else head_p.logits
        values.append(head_mean(in_chunks(chosen, logits, head_q.logits), head_p))
    return torch.stack(values).mean()


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """(B,) mean over an example's unmasked entries; x and mask are (B, N).

    The mean is taken within the example first, so the value does not depend on how a batch is cut.
    """
    return (x * mask).sum(1) / mask.sum(1).clamp(min=1)


def head_mean(x: Tensor, head: Head) -> Tensor:
    """() mean over a head's predictions of x (B, N): within an example, then over examples."""
    if not len(x):  # a batch without a label token
        return x.sum()
    return head.share * masked_mean(x, head.mask).mean()


def prediction_mean(run: Pass, sums: Tensor) -> Tensor:
    """() mean of what was summed over each example's predictions (B,).

    It is the mean over examples; in causal language models the mean over label tokens, each of
    which is a prediction.
    """
    if is_next_token_model(unwrap(run.model)):
        return sums.sum() / num_items(run.batch)
    return sums.mean()
