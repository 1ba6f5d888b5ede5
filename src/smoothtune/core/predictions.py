"""Predictions of a forward pass, in one shape for all heads."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from smoothtune.core.forward import ForwardPass
from smoothtune.nn.architecture import is_embedding_model, unwrap
from smoothtune.nn.causal_lm import label_logits, num_items
from smoothtune.nn.model_facts import (
    IGNORED,
    is_causal,
    is_encoder_decoder,
    labels_at_the_token,
    predicts_tokens,
    with_decoder_inputs,
)

ONE_PREDICTION = "needs exactly one prediction per example, and a language model has many"
CLASS_SCORES = "compares class scores, and an embedding model has none"
ONE_SEQUENCE = (
    "takes derivatives at the one sequence of an example, and multiple choice has several: use "
    "lnsr, r3f or smart"
)


class Head(NamedTuple):
    """One prediction of a model."""

    logits: Tensor  # (B, N, C): N distributions (or N scores, C = 1) for every example
    mask: Tensor  # (B, N): which of them count
    regression: bool
    share: Tensor | float = 1.0  # factor of this batch's mean among the batches of one update


def heads(run: ForwardPass) -> list[Head]:
    """The predictions a pass makes, in one shape for all tasks.

    Sequence classification and regression give one head with N = 1, multi-label classification N
    Bernoulli distributions, extractive question answering two heads (start, end) over the real
    tokens, token classification one distribution per token that has a label. In language
    models every label token counts as an example with one distribution: B is their number, and
    means are over tokens, as the task loss is. An embedding model gives its embedding, which is
    compared like the scores of a regression.

    Raises:
        ValueError: the model predicts none of these, or nothing says what its labels are.
    """
    # embeddings, and both ends of a span
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
    # tokens of a language model
    logits, bare = run.logits, unwrap(run.model)
    if predicts_tokens(bare):
        tokens = label_logits(logits, with_decoder_inputs(bare, run.batch))[:, None]
        return [Head(tokens, _ones(tokens), False, len(tokens) / num_items(run.batch))]
    # several labels, classes, or scores of an example
    if logits.ndim == 1:  # DeBERTa flattens the scores of a regression when it is given labels
        logits = logits[:, None]
    config = getattr(bare, "config", None)
    problem = getattr(config, "problem_type", None)
    if logits.ndim == 2 and problem == "multi_label_classification":
        pairs = torch.stack([logits, torch.zeros_like(logits)], -1)
        return [Head(pairs, torch.ones_like(logits, dtype=torch.bool), False)]
    if logits.ndim == 2:
        if problem is None and _several_labels(run):
            raise ValueError(
                f"labels of shape {tuple(logits.shape)} may be several labels of an example, "
                "several scores, or shares of classes, and a loss of your own does not say which: "
                'set model.config.problem_type to "multi_label_classification", "regression" or '
                '"single_label_classification"'
            )
        regression = problem == "regression" or logits.shape[-1] == 1
        return [Head(logits[:, None], _ones(logits), regression)]
    # classes of tokens
    labels = run.batch.get("labels")
    at_the_token = labels_at_the_token(bare) or not is_causal(bare)
    fitting = labels is None or labels.shape == logits.shape[:2]
    if logits.ndim == 3 and fitting and at_the_token and not is_encoder_decoder(bare):
        return [Head(logits, run.mask if labels is None else labels != IGNORED, False)]
    raise ValueError(
        f"logits of shape {tuple(logits.shape)} from {type(bare).__name__} are not supported: use "
        "a sequence or token classification, regression, extractive QA or language-model head"
    )


def _several_labels(run: ForwardPass) -> bool:
    """Whether an example has a label for each of several outputs, in a loss of the user's own.

    Where a model of transformers computes the loss, it takes them for several labels and says so
    in its configuration, or (DeBERTa) for shares of classes.
    """
    labels, outputs = run.batch.get("labels"), run.outputs
    from transformers import PreTrainedModel  # a second, which reading fields does not need

    its_own = isinstance(unwrap(run.model), PreTrainedModel) and outputs.get("loss") is not None
    if its_own or not isinstance(labels, Tensor):
        return False
    return labels.shape == run.logits.shape and labels.shape[1] > 1


def _ones(logits: Tensor) -> Tensor:
    return torch.ones(len(logits), 1, dtype=torch.bool, device=logits.device)


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


def prediction_mean(run: ForwardPass, sums: Tensor) -> Tensor:
    """() mean of what was summed over each example's predictions (B,).

    It is the mean over examples; in language models the mean over label tokens, each of
    which is a prediction.
    """
    if predicts_tokens(unwrap(run.model)):
        return sums.sum() / num_items(run.batch)
    return sums.mean()


def no_class_scores(model: nn.Module) -> str | None:
    """Why an example has not exactly one prediction with class scores; None if it has."""
    if predicts_tokens(model):
        return ONE_PREDICTION
    return CLASS_SCORES if is_embedding_model(model) else None


def no_compat(model: nn.Module, compat: str | None) -> str | None:
    """Why released code that compares class scores does not support a model; None if it does."""
    reason = no_class_scores(model) if compat else None
    return reason and f"{reason}: leave compat out"
