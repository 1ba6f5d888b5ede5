"""Jacobian regularization against rows of the Jacobian, and against the public code."""

import pytest
import torch
from transformers import BertForQuestionAnswering

from helpers.conformance import Tiny, assert_conforms, batch, draws, fed, recorded_bert
from smoothtune import Jacobian, Objective
from smoothtune.nn.higher_order import differentiable_attention
from smoothtune.testing import ARCHITECTURES, all_in_float64, tiny_batch, tiny_model

MODELS = ["bert", "deberta", "opt", "llama"]


def literal(model, inputs, read):
    """1/2 sum over examples and outputs of ||d output / d delta||^2, over the batch size."""
    shape = (*inputs["input_ids"].shape, 8)
    delta = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    handle = model.get_input_embeddings().register_forward_hook(lambda *a: a[2] + delta)
    rows = read(model(**inputs))
    handle.remove()
    total = 0.0
    for example, outputs in enumerate(rows):
        for output in outputs:
            (gradient,) = torch.autograd.grad(output, delta, create_graph=True)
            total = total + 0.5 * gradient[example].square().sum()
    return total / len(rows)


def gradients(value, model):
    found = torch.autograd.grad(value, list(model.parameters()), materialize_grads=True)
    return torch.cat([gradient.flatten() for gradient in found])


def without_labels(**settings):
    inputs = tiny_batch(**settings)
    inputs.pop("labels")
    return inputs


@pytest.mark.parametrize("num_labels", [3, 1])
@pytest.mark.parametrize("architecture", MODELS)
def test_exact_equals_plain_loops(architecture, num_labels):
    with all_in_float64():
        model = tiny_model(architecture, num_labels=num_labels)
        objective = Objective(Jacobian(weight=1.0, num_probes=-1)).attach(model)
        value = objective(model, without_labels())
        with differentiable_attention():
            expected = literal(model, without_labels(), lambda outputs: outputs.logits)
        torch.testing.assert_close(value, expected, rtol=1e-9, atol=0)
        torch.testing.assert_close(
            gradients(value, model), gradients(expected, model), rtol=1e-7, atol=1e-9
        )


@pytest.mark.parametrize("model", ["tiny", "tinybert"])
def test_equals_the_public_code_exactly(model):
    built = Tiny() if model == "tiny" else recorded_bert()
    conforms(f"jacobian_n-1_{model}", built, Jacobian(weight=1.0, num_probes=-1))


def test_equals_the_public_code_with_one_projection():
    with fed(*draws("jacobian_n1_tiny")):
        conforms("jacobian_n1_tiny", Tiny(), Jacobian(weight=1.0))


def conforms(case, model, method):
    inputs = batch()
    inputs.pop("labels")
    loss = Objective(method).attach(model)(model, inputs)
    loss.backward()
    assert_conforms(case, loss, model)


def test_one_score_needs_one_projection():
    """With a single logit every projection is +-1 and the value is exact."""
    model = tiny_model("bert", num_labels=1)
    found = []
    for n in (1, -1):
        objective = Objective(Jacobian(weight=1.0, num_probes=n)).attach(model)
        found.append(objective(model, without_labels()).item())
        objective.detach()
    assert found[0] == pytest.approx(found[1], rel=1e-10)


def fifty_times():
    """The examples again and again, each with draws of its own: the same mean value."""
    return {key: value.repeat(50, 1) for key, value in without_labels().items()}


def test_more_projections_come_closer():
    model = tiny_model("bert")
    exact = Objective(Jacobian(weight=1.0, num_probes=-1)).attach(model)
    expected = exact(model, without_labels()).item()
    exact.detach()
    objective = Objective(Jacobian(weight=1.0, num_probes=16)).attach(model)
    assert objective(model, fifty_times()).item() == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("estimator", ["directional", "finite_difference"])
def test_input_side_estimators_agree(estimator):
    model = tiny_model("bert")
    exact = Objective(Jacobian(weight=1.0, num_probes=-1)).attach(model)
    expected = exact(model, without_labels()).item()
    exact.detach()
    method = Jacobian(weight=1.0, num_probes=12, estimator=estimator, probe="rademacher")
    objective = Objective(method).attach(model)
    assert objective(model, fifty_times()).item() == pytest.approx(expected, rel=0.06)


@pytest.mark.parametrize("padding", [0, 3])
def test_question_answering_counts_real_tokens(padding):
    model = BertForQuestionAnswering(ARCHITECTURES["bert"]()).double().eval()
    inputs = without_labels(padding=padding)

    def real(outputs):
        return [
            [*outputs.start_logits[row][mask.bool()], *outputs.end_logits[row][mask.bool()]]
            for row, mask in enumerate(inputs["attention_mask"])
        ]

    with all_in_float64():
        objective = Objective(Jacobian(weight=1.0, num_probes=-1)).attach(model)
        value = objective(model, inputs)
        expected = literal(model, inputs, real)
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("n", [0, -2])
def test_impossible_number_of_projections(n):
    with pytest.raises(ValueError, match=f"num_probes = {n}: give a number"):
        Jacobian(num_probes=n, weight=0.01)


@pytest.mark.parametrize("estimator", ["directional", "finite_difference"])
def test_an_exact_norm_has_no_directions_to_draw(estimator):
    with pytest.raises(ValueError, match=f'exactly, and estimator="{estimator}" draws'):
        Jacobian(num_probes=-1, estimator=estimator)
