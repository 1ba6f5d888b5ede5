"""FGM."""

import pytest
import torch

from helpers.adversary import compare, embeddings, length, predict, rows, setting
from helpers.literal import MODELS, cross_entropy, span_batch, squared_error, tiny_span_model
from smoothtune import FGM, Objective
from smoothtune.testing import tiny_batch, tiny_model


@pytest.mark.parametrize("num_labels", [3, 1])
@pytest.mark.parametrize("architecture", MODELS)
def test_equals_its_equation(architecture, num_labels):
    model, data = setting(architecture, num_labels)
    error = squared_error if num_labels == 1 else cross_entropy

    def expected(model):
        losses = []
        for ids, label in rows(data):
            x = embeddings(model, ids)
            zero = torch.zeros_like(x, requires_grad=True)
            clean = error([predict(model, ids, zero)], [label])
            (g,) = torch.autograd.grad(clean, zero, retain_graph=True)
            r = 0.2 * length(x) * g / length(g)
            losses.append(clean + 0.5 * error([predict(model, ids, r)], [label]))
        return sum(losses) / 4

    compare(Objective(FGM(weight=0.5, epsilon=0.2)), model, data, expected)


def test_raises_the_loss_along_its_gradient():
    model, data = tiny_model("bert", dropout=0.2), tiny_batch()
    objective = Objective(FGM(units="absolute", epsilon=1e-3)).attach(model)
    objective(model, data)
    assert objective.terms["loss/fgm"] > objective.terms["loss/task"]
    torch.testing.assert_close(objective.terms["fgm/cos_gradient"], torch.tensor(1.0).double())


def test_spans():
    model, data = tiny_span_model(), span_batch(tiny_batch())
    objective = Objective(FGM()).attach(model)
    objective(model, data)
    assert objective.terms["loss/fgm"] > objective.terms["loss/task"]


def test_does_nothing_without_labels():
    model, data = tiny_model("bert"), tiny_batch()
    model.config.problem_type = "single_label_classification"
    del data["labels"]
    with pytest.raises(ValueError, match="no labels"):
        Objective(FGM()).attach(model)(model, data)
