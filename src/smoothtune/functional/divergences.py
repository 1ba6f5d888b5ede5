"""Divergences between two predictions, for every kind of head.

Each function of logits sums over classes in float32 (or wider) and keeps the leading dimensions;
nothing is detached, so gradients flow into both arguments unless the caller detaches one.
"""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from smoothtune.core.forward import ForwardPass
from smoothtune.core.predictions import head_mean, heads
from smoothtune.nn.causal_lm import in_chunks

Divergence = Callable[[Tensor, Tensor], Tensor]


def _wide(logits: Tensor) -> torch.dtype:
    return torch.promote_types(logits.dtype, torch.float32)


def _log_softmax(logits: Tensor) -> Tensor:
    return F.log_softmax(logits, -1, dtype=_wide(logits))


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
    return (p.to(_wide(p)) - q).square().sum(-1)


def check_released(name: str, compat: str, run: ForwardPass, *, regression: bool = True) -> None:
    """Refuse predictions that released code with one row of scores an example does not know.

    With `regression` it knows a single score, too.

    Raises:
        ValueError: spans, tokens, several yes-or-no labels, several scores of a regression.
    """
    predictions = heads(run)
    logits = predictions[0].logits
    alone = len(predictions) == 1 and logits.shape[1] == 1
    if alone and predictions[0].regression:
        fits = regression and logits.shape[-1] == 1
    else:
        fits = alone and logits.numel() == run.logits.numel()  # not (z, 0) of one label
    if not fits:
        raise ValueError(
            f'{name}: compat="{compat}" is code for one class out of several an example'
            f"{', or one score' if regression else ''}, and this model predicts something else "
            "(spans, tokens, several labels or scores): leave compat out"
        )


def divergence(
    p: ForwardPass, q: ForwardPass, measure: Divergence = symmetric_kl, *, detach_p: bool = False
) -> Tensor:
    """() divergence of two passes over the same batch: a mean over examples (or label tokens).

    Regression heads use the squared error instead of `measure`. With several heads (start and end
    of a span) or several distributions per example (tokens), the mean over them is taken.
    `detach_p` makes `p` a constant.
    """
    values = []
    for head_p, head_q in zip(heads(p), heads(q), strict=True):
        head_measure = squared_error if head_p.regression else measure
        logits = constant(head_p.logits) if detach_p else head_p.logits
        values.append(head_mean(in_chunks(head_measure, logits, head_q.logits), head_p))
    return values[0] if len(values) == 1 else torch.stack(values).mean()


def jensen_shannon(logits: Tensor) -> Tensor:
    """Divergence of K distributions with logits (K, ..., C), H(mean) - mean H, in [0, log K]."""
    log_p = _log_softmax(logits)
    log_mean = log_p.logsumexp(0) - math.log(len(log_p))
    return (log_p.exp() * (log_p - log_mean)).sum(-1).mean(0)


def squared_deviation(scores: Tensor) -> Tensor:
    """Mean squared deviation of K scores (K, ..., D) from their mean; sums over D, shape (...)."""
    scores = scores.to(_wide(scores))
    return (scores - scores.mean(0)).square().sum(-1).mean(0)


def ensemble_divergence(passes: Sequence[ForwardPass]) -> Tensor:
    """() divergence of several passes over one batch: a mean over heads and examples."""
    values = []
    for group in zip(*map(heads, passes), strict=True):
        measure = squared_deviation if group[0].regression else jensen_shannon
        apart = measure(torch.stack([head.logits for head in group]))
        values.append(head_mean(apart, group[0]))
    return torch.stack(values).mean()
