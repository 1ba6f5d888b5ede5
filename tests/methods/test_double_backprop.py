"""Double backpropagation against loops over single examples."""

import pytest
import torch
from torch import nn
from transformers import BertForQuestionAnswering
from transformers.modeling_outputs import SequenceClassifierOutput

from smoothtune import DoubleBackprop, Objective
from smoothtune.nn.higher_order import differentiable_attention
from smoothtune.testing import ARCHITECTURES, all_in_float64, tiny_batch, tiny_model


def literal(model, inputs):
    """1/2 ||d loss_b / d x_b||^2, the loss of every example computed alone; mean over examples."""
    total = 0.0
    for row in range(4):
        one = {name: value[row : row + 1] for name, value in inputs.items()}
        shape = (*one["input_ids"].shape, 8)
        delta = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
        hook = model.get_input_embeddings().register_forward_hook(
            lambda m, i, o, delta=delta: o + delta
        )
        (gradient,) = torch.autograd.grad(model(**one).loss, delta, create_graph=True)
        hook.remove()
        total = total + 0.5 * gradient.square().sum()
    return total / 4


def compare(model, inputs):
    with all_in_float64():
        objective = Objective(DoubleBackprop(weight=1.0)).attach(model)
        total = objective(model, inputs)
        value = total - model(**inputs).loss
        with differentiable_attention():
            expected = literal(model, inputs)
        torch.testing.assert_close(value, expected, rtol=1e-8, atol=0)
        found, wanted = (
            torch.autograd.grad(v, list(model.parameters()), materialize_grads=True)
            for v in (value, expected)
        )
        torch.testing.assert_close(found, wanted, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("num_labels", [3, 1])
@pytest.mark.parametrize("architecture", ["bert", "deberta", "opt", "llama"])
def test_equals_plain_loops(architecture, num_labels):
    compare(tiny_model(architecture, num_labels=num_labels), tiny_batch(num_labels=num_labels))


def test_question_answering():
    config = ARCHITECTURES["bert"]()
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    torch.manual_seed(0)
    model = BertForQuestionAnswering(config).double().train()
    inputs = tiny_batch() | {
        "start_positions": torch.tensor([0, 1, 2, 0]),
        "end_positions": torch.tensor([3, 2, 4, 1]),
    }
    inputs.pop("labels")
    compare(model, inputs)


class Logistic(nn.Module):
    """One token, one score: p = sigmoid(w . x)."""

    def __init__(self):
        super().__init__()
        self.embeddings = nn.Embedding(5, 3, dtype=torch.float64)
        self.w = nn.Parameter(torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64))

    def get_input_embeddings(self):
        return self.embeddings

    def forward(self, input_ids, labels):
        logits = self.embeddings(input_ids)[:, 0] @ self.w
        loss = nn.functional.binary_cross_entropy_with_logits(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits[:, None])


def test_closed_form_of_logistic_regression():
    """dL/dx = (p - y) w, so the term is 1/2 (p - y)^2 ||w||^2."""
    model = Logistic()
    ids, labels = torch.tensor([[1], [4], [2]]), torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    objective = Objective(DoubleBackprop(weight=1.0)).attach(model)
    objective(model, {"input_ids": ids, "labels": labels})
    p = torch.sigmoid(model.embeddings(ids)[:, 0] @ model.w)
    expected = (0.5 * (p - labels).square() * 5.25).mean()  # ||w||^2 = 1 + 4 + 1/4
    torch.testing.assert_close(objective.terms["loss/double_backprop"], expected.detach())


def test_needs_labels():
    model, inputs = tiny_model("bert"), tiny_batch()
    model.config.problem_type = "single_label_classification"
    inputs.pop("labels")
    with pytest.raises(ValueError, match="no labels"):
        Objective(DoubleBackprop(weight=0.003)).attach(model)(model, inputs)
