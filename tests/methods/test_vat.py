"""VAT."""

import pytest
import torch
from torch import nn
from transformers.modeling_outputs import SequenceClassifierOutput

from helpers.adversary import compare, embeddings, length, predict, rows, setting, slope
from helpers.literal import (
    MODELS,
    cross_entropy,
    kl,
    probabilities,
    span_batch,
    squared_error,
    tiny_span_model,
)
from smoothtune import VAT, ForwardPass, Objective
from smoothtune.nn import rng
from smoothtune.testing import fixed_draws, tiny_batch, tiny_model


def from_target(target, logits):
    """KL(p || q) with p constant, or the squared error."""
    if len(target) == 1:
        return (target[0].detach() - logits[0]) ** 2
    return kl([v.detach() for v in probabilities(target)], probabilities(logits))


@pytest.mark.parametrize("num_labels", [3, 1])
@pytest.mark.parametrize("architecture", MODELS)
def test_equals_its_equation(architecture, num_labels):
    model, data = setting(architecture, num_labels)

    def expected(model):
        terms, clean = [], []
        for ids, _ in rows(data):
            x, target = embeddings(model, ids), predict(model, ids, 0)
            d = rng.normal_like(x)
            for _ in range(2):
                probe = (0.05 * length(x) * d / length(d)).requires_grad_()
                d = slope(from_target(target, predict(model, ids, probe)), probe)
            r = 0.2 * length(x) * d / length(d)
            terms.append(from_target(target, predict(model, ids, r)))
            clean.append(target)
        task = (squared_error if num_labels == 1 else cross_entropy)(clean, data["labels"])
        return task + 0.5 * sum(terms) / 4

    method = VAT(weight=0.5, epsilon=0.2, xi=0.05, num_steps=2)
    compare(Objective(method), model, data, expected)


class LinearSoftmax(nn.Module):
    """Logits W x of one token."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(3, 6), nn.Linear(6, 4, bias=False)
        self.double()

    def get_input_embeddings(self):
        return self.embed

    def forward(self, input_ids):
        return SequenceClassifierOutput(logits=self.head(self.embed(input_ids))[:, 0])


def test_iteration_finds_the_top_eigenvector_of_the_fisher_metric():
    model, found = LinearSoftmax(), {}
    clean = ForwardPass(model, {"input_ids": torch.tensor([[1]])}, hidden_states=False)
    original = ForwardPass.at

    def at(self, delta, *args, **kwargs):
        found["r"] = delta.detach()[0, 0]
        return original(self, delta, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ForwardPass, "at", at)
        method = VAT(units="absolute", epsilon=1e-3, xi=1e-4, num_steps=30, weight=1.0)
        value = method.loss(clean)
    p = clean.logits.softmax(-1)[0].detach()
    w = model.head.weight.detach()
    metric = w.T @ (torch.diag(p) - torch.outer(p, p)) @ w
    values, vectors = torch.linalg.eigh(metric)
    r = found["r"]
    torch.testing.assert_close(r.norm(), torch.tensor(1e-3).double())
    assert abs(r @ vectors[:, -1]) / r.norm() > 0.9999
    torch.testing.assert_close(value.detach(), 0.5e-6 * values[-1], rtol=1e-2, atol=0)


def test_the_target_is_constant_and_needs_no_label():
    model = LinearSoftmax()
    batch = {"input_ids": torch.tensor([[1], [2]]), "unlabeled": True}
    Objective(VAT(weight=1.0)).attach(model)(model, batch).backward()
    assert model.head.weight.grad.abs().max() > 0
    torch.testing.assert_close(  # sum_c (q_c - p_c) = 0
        model.head.weight.grad.sum(0), torch.zeros(6).double(), rtol=0, atol=1e-9
    )


def test_direction_survives_float32():
    model, found = tiny_model("bert", dtype=torch.float32), []
    exact = tiny_model("bert")
    exact.load_state_dict(model.state_dict())
    original = ForwardPass.at

    def at(self, delta, *args, **kwargs):
        found.append(delta.detach().double().flatten())
        return original(self, delta, *args, **kwargs)

    with fixed_draws(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(ForwardPass, "at", at)
        for each in (model, exact):
            Objective(VAT(weight=1.0)).attach(each)(each, tiny_batch())
    assert torch.cosine_similarity(found[1], found[3], dim=0) > 0.999


def test_spans_take_the_mean_of_start_and_end():
    model, data = tiny_span_model(), span_batch(tiny_batch())
    objective = Objective(VAT(weight=1.0)).attach(model)
    objective(model, data).backward()
    assert objective.terms["loss/vat"] > 0
    torch.testing.assert_close(
        objective.terms["vat/cos_gradient"], torch.tensor(1.0).double(), rtol=1e-9, atol=0
    )
