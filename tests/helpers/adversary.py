"""Literal adversaries: one example at a time, unpadded, in float64; calls no library code."""

import torch

from helpers.literal import added, gradient
from smoothtune.testing import all_in_float64, fixed_draws, tiny_batch, tiny_model


def rows(batch):
    """(1, n) unpadded ids and the label of every example."""
    columns = (batch[name] for name in ("input_ids", "attention_mask", "labels"))
    for ids, mask, label in zip(*columns, strict=True):
        yield ids[mask.bool()][None], label


def embeddings(model, ids):
    return model.get_input_embeddings()(ids).detach()


def predict(model, ids, delta):
    """(C,) logits at x + delta."""
    with added(model, delta):
        return model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]


def slope(value, delta):
    return torch.autograd.grad(value, delta)[0]


def rms(x):
    """Root mean square of all numbers of an example."""
    return torch.sqrt(sum(v**2 for v in x.flatten()) / x.numel())


def length(x):
    return torch.sqrt(sum(v**2 for v in x.flatten()))


def into_l2(delta, radius):
    return delta * radius / length(delta) if length(delta) > radius else delta


def setting(architecture, num_labels):
    """A tiny model and its batch."""
    return tiny_model(architecture, num_labels=num_labels), tiny_batch(num_labels=num_labels)


def compare(objective, model, batch, expected):
    """Value and parameter gradient of an objective and of the literal one, both fixed in draws.

    `expected` maps the model to the total.
    """
    with fixed_draws(), all_in_float64():
        total = objective.attach(model)(model, batch)
        literal = expected(model)
        gradients = [gradient(value, [model]) for value in (total, literal)]
    torch.testing.assert_close(total, literal, rtol=1e-7, atol=1e-10)
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-7)
