"""Slow, literal pieces of the equations, one number at a time, for tests to compare with.

No equation here calls the library. Values are float64 tensors, so that they can be differentiated.
"""

from contextlib import contextmanager

import torch
from transformers import BertForQuestionAnswering

from smoothtune.testing import ARCHITECTURES
from smoothtune.testing.tiny import random_model

MODELS = ["bert", "deberta", "opt", "llama"]


def probabilities(logits):
    """Softmax of one row of logits, as a list of () tensors."""
    exponentials = [torch.exp(z - max(logits).detach()) for z in logits]
    return [e / sum(exponentials) for e in exponentials]


def cross_entropy(logits, labels):
    """Mean over examples of -log p_y; logits (B, C)."""
    rows = [-torch.log(probabilities(row)[y]) for row, y in zip(logits, labels, strict=True)]
    return sum(rows) / len(rows)


def squared_error(scores, labels):
    """Mean over examples of (f - y)^2; scores (B, 1)."""
    rows = [(row[0] - y) ** 2 for row, y in zip(scores, labels, strict=True)]
    return sum(rows) / len(rows)


def kl(p, q):
    """KL of two lists of probabilities."""
    return sum(a * (torch.log(a) - torch.log(b)) for a, b in zip(p, q, strict=True))


def entropy(p):
    return -sum(a * torch.log(a) for a in p)


@contextmanager
def added(model, delta):
    """The word-embedding layer returns x + delta."""
    layer = model.get_input_embeddings()
    handle = layer.register_forward_hook(lambda module, args, output: output + delta)
    try:
        yield
    finally:
        handle.remove()


def gradient(value, models):
    """Gradient of a value, summed over models with the same parameters, flat."""
    total = 0
    for model in models:
        weights = list(model.parameters())
        parts = torch.autograd.grad(value, weights, retain_graph=True, allow_unused=True)
        filled = [
            torch.zeros_like(w) if g is None else g for g, w in zip(parts, weights, strict=True)
        ]
        total = total + torch.cat([g.flatten() for g in filled])
    return total


def tiny_span_model(dropout=0.0):
    """A random two-layer BERT for extractive question answering in float64, in training mode."""
    return random_model(BertForQuestionAnswering, ARCHITECTURES["bert"](), dropout)


def span_batch(batch):
    """The inputs of a classification batch with start and end positions."""
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    return inputs | {
        "start_positions": torch.tensor([0, 1, 2, 0]),
        "end_positions": torch.tensor([3, 2, 4, 1]),
    }
