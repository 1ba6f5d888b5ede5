"""Cross-Hoelder regularization against loops over pairs, and on quadratic scores."""

import pytest
import torch
from torch import nn
from transformers import BertForQuestionAnswering
from transformers.modeling_outputs import SequenceClassifierOutput

from helpers.conformance import fed
from smoothtune import CrossHolder, Objective
from smoothtune.core.predictions import Head
from smoothtune.nn.higher_order import differentiable_attention
from smoothtune.testing import ARCHITECTURES, all_in_float64, tiny_batch, tiny_model

GAMMA = 0.3


class Quadratic(nn.Module):
    """Scores f_k = a_k . x + 1/2 x^T A_k x of the one embedding x of an example."""

    def __init__(self, classes=3):
        super().__init__()
        torch.manual_seed(3)
        self.embeddings = nn.Embedding(6, 4, dtype=torch.float64)
        self.a = nn.Parameter(torch.randn(classes, 4, dtype=torch.float64))
        self.raw = nn.Parameter(torch.randn(classes, 4, 4, dtype=torch.float64))

    @property
    def matrices(self):
        return self.raw + self.raw.mT

    def get_input_embeddings(self):
        return self.embeddings

    def forward(self, input_ids):
        x = self.embeddings(input_ids)[:, 0]
        logits = x @ self.a.T + 0.5 * torch.einsum("bi,kij,bj->bk", x, self.matrices, x)
        return SequenceClassifierOutput(loss=0 * logits.sum(), logits=logits)


BATCH = {"input_ids": torch.tensor([[1], [4], [2]])}


def closed_form(model, norm):
    """Omega by loops over examples and ordered pairs; operator norms from eigenvalues."""
    count, total = len(model.a), 0.0
    for x in model.embeddings(BATCH["input_ids"])[:, 0]:
        for i in range(count):
            for j in range(count):
                if count > 1:
                    slope, matrix = model.a[i] - model.a[j], model.matrices[i] - model.matrices[j]
                else:
                    slope, matrix = model.a[0], model.matrices[0]
                gradient = slope + matrix @ x
                largest = torch.linalg.eigvalsh(matrix).abs().max()
                curvature = largest**2 if norm == "op" else matrix.square().sum()
                total = total + gradient.square().sum() + GAMMA * curvature
    return total / (count**2 * 3)


@pytest.mark.parametrize("classes", [3, 2, 1])
@pytest.mark.parametrize("norm", ["op", "fro"])
def test_quadratic_scores(norm, classes):
    """Value and parameter gradient: both norms of a constant Hessian are known."""
    model = Quadratic(classes)
    method = CrossHolder(
        weight=1.0, gamma=GAMMA, units="absolute", norm=norm, estimator="exact", iterations=400
    )
    value = Objective(method).attach(model)(model, BATCH)
    expected = closed_form(model, norm)
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=0)
    found, wanted = (torch.autograd.grad(v, list(model.parameters())) for v in (value, expected))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("settings", [{}, {"estimator": "projected"}, {"pairs": "sampled"}])
def test_random_estimates_agree(settings):
    model = Quadratic()
    objective = Objective(
        CrossHolder(weight=1.0, gamma=GAMMA, units="absolute", **settings)
    ).attach(model)
    many = {"input_ids": BATCH["input_ids"].repeat(1000, 1)}
    values = torch.stack([objective(model, many).detach() for _ in range(20)])
    error = values.std() / len(values) ** 0.5
    expected = closed_form(model, "fro")
    assert abs(values.mean() - expected) < 3 * error
    assert error < 0.05 * expected


def test_sampled_pairs_are_different_classes():
    """Ends of the range of the draws included."""
    draws = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [0.0, -1.0]])
    head = Head(torch.zeros(3, 1, 3), torch.ones(3, 1, dtype=torch.bool), False)
    with fed(draws):
        ((i, j),), factor = CrossHolder(pairs="sampled", weight=0.1)._pairs(head)
    assert (i.tolist(), j.tolist(), factor) == ([2, 0, 1], [1, 2, 0], 2 / 3)


@pytest.mark.parametrize("architecture", ["bert", "deberta", "opt", "llama"])
def test_gradient_term_equals_plain_loops(architecture):
    """gamma = 0: loops over examples and pairs on real architectures, value and gradient."""
    inputs = tiny_batch()
    inputs.pop("labels")
    with all_in_float64():
        model = tiny_model(architecture)
        model.config.problem_type = "single_label_classification"
        method = CrossHolder(weight=1.0, gamma=0.0, units="absolute", estimator="exact")
        value = Objective(method).attach(model)(model, inputs)
        delta = torch.zeros(4, 6, 8, dtype=torch.float64, requires_grad=True)
        hook = model.get_input_embeddings().register_forward_hook(lambda *a: a[2] + delta)
        with differentiable_attention():
            logits = model(**inputs).logits
        hook.remove()
        expected = 0.0
        for example in range(4):
            for i in range(3):
                for j in range(3):
                    difference = logits[example, i] - logits[example, j]
                    (row,) = torch.autograd.grad(difference, delta, create_graph=True)
                    expected = expected + row.square().sum() / (9 * 4)
        torch.testing.assert_close(value, expected, rtol=1e-8, atol=0)
        found, wanted = (
            torch.autograd.grad(v, list(model.parameters()), materialize_grads=True)
            for v in (value, expected)
        )
        torch.testing.assert_close(found, wanted, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("norm", ["fro", "op"])
def test_question_answering(norm):
    """All pairs of real tokens with the Frobenius norm; nothing else."""
    torch.manual_seed(0)
    model = BertForQuestionAnswering(ARCHITECTURES["bert"]()).double().eval()
    inputs = tiny_batch()
    inputs.pop("labels")
    objective = Objective(CrossHolder(weight=1.0, norm=norm)).attach(model)
    if norm == "fro":
        assert objective(model, inputs).item() > 0
    else:
        with pytest.raises(ValueError, match='use norm="fro"'):
            objective(model, inputs)


def test_relative_derivatives_do_not_depend_on_the_size_of_the_embeddings():
    """f(c x) at x / c: derivatives in units of the embeddings stay the same."""
    values = []
    for factor in (1.0, 20.0):
        model = Quadratic()
        with torch.no_grad():
            model.embeddings.weight.mul_(factor)
            model.a.div_(factor)
            model.raw.div_(factor**2)
        method = CrossHolder(weight=1.0, gamma=GAMMA, estimator="exact")
        values.append(Objective(method).attach(model)(model, BATCH).item())
    assert values[0] == pytest.approx(values[1], rel=1e-6)


def test_a_resumed_run_keeps_the_unit_of_the_pre_trained_embeddings():
    model, values = tiny_model("bert", dtype=torch.float64), []
    objective = Objective(CrossHolder(weight=1.0, gamma=0.0)).attach(model)
    state = objective.state_dict()
    objective.detach()
    model.get_input_embeddings().weight.data *= 2  # as training has changed them
    for loaded in (False, True):
        objective = Objective(CrossHolder(weight=1.0, gamma=0.0)).attach(model)
        if loaded:
            objective.load_state_dict(state)
        objective.calls = 0
        objective(model, tiny_batch())
        values.append(objective.terms["loss/cross_holder"].item())
        objective.detach()
    assert values[0] == pytest.approx(4 * values[1])
