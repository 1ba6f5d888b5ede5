"""Derivatives of a pass in its word embeddings, against autograd on the model itself."""

import pytest
import torch
from torch import nn
from transformers import BertForTokenClassification

from helpers.causal import language_batch, tiny_language_model
from helpers.conformance import fed
from helpers.heads import multi_label, token_classification
from helpers.literal import added, span_batch, tiny_span_model
from smoothtune import ForwardPass
from smoothtune.functional.input_derivatives import InputDerivatives, num_scores, scores
from smoothtune.nn.dropout import SharedMasks
from smoothtune.testing import ARCHITECTURES, all_in_float64, tiny_batch, tiny_model
from smoothtune.testing.tiny import random_model

DOUBLE = torch.float64
SHAPE = (4, 6, 8)
INPUTS = {name: tiny_batch()[name] for name in ("input_ids", "attention_mask")}
MASK = INPUTS["attention_mask"][..., None].double()
WEIGHT = torch.tensor([0.7], dtype=DOUBLE)


def derivatives(estimator=None, *, hessian=False, num_probes=1, difference="symmetric"):
    return InputDerivatives(estimator, hessian, num_probes, "rademacher", 0.01, difference)


def attached(model, *arguments, **options):
    found = derivatives(*arguments, **options)
    found.attach(model)
    return found


@pytest.mark.parametrize(
    ("estimator", "hessian", "name", "order"),
    [
        (None, False, "projected", 2),
        (None, True, "finite_difference", 1),
        ("exact", False, "exact", 2),
        ("exact", True, "exact", 3),
        ("projected", True, "projected", 3),
        ("per_layer", False, "per_layer", 2),
        ("directional", False, "directional", 3),
        ("finite_difference", False, "finite_difference", 1),
    ],
)
def test_estimator_and_order(estimator, hessian, name, order):
    found = derivatives(estimator, hessian=hessian)
    assert (found.name, found.order) == (name, order)


class Scaled(nn.Module):
    """A large table, whose module scales what it looks up."""

    class Table(nn.Embedding):
        def forward(self, ids):
            return 10 * super().forward(ids)

    def __init__(self, size):
        super().__init__()
        self.table = self.Table(size, 2, dtype=DOUBLE)

    def get_input_embeddings(self):
        return self.table


@pytest.mark.parametrize(("size", "stride"), [(100, 1), (4096, 1), (8192, 2), (13000, 3)])
def test_unit_is_the_root_mean_square_of_the_embeddings(size, stride):
    model = Scaled(size)
    found = attached(model)
    rows = 10 * model.table.weight.detach()[::stride]
    rms = (rows.square().sum() / (2 * len(rows))).sqrt().item()
    assert found.unit == pytest.approx(rms)
    assert found.absolute_step == pytest.approx(0.01 * rms)
    other = derivatives()
    with pytest.raises(RuntimeError, match="attach the method"):
        _ = other.unit
    other.load_state_dict(found.state_dict())
    assert other.unit == found.unit


def logits_at(model, delta):
    with added(model, delta):
        return model(**INPUTS).logits


def test_exact_norms_are_those_of_autograd():
    model = tiny_model("bert")
    clean = ForwardPass(model, tiny_batch(), differentiable=True).run()
    with all_in_float64():
        found = attached(model, "exact").estimate(clean, lambda run: [run.logits], WEIGHT)
        delta = torch.zeros(SHAPE, dtype=DOUBLE, requires_grad=True)
        logits = logits_at(model, delta)
        rows = [torch.autograd.grad(z.sum(), delta, retain_graph=True)[0] for z in logits.T]
    expected = 0.7 * sum(row.square().sum((1, 2)) for row in rows)
    torch.testing.assert_close(found.jacobian.detach(), expected)
    assert not found.hessian.any()


def two_outputs(run):
    return [run.logits, 2 * run.logits[:, 1:]]


@pytest.mark.parametrize("estimator", ["projected", "per_layer", "directional"])
def test_one_draw_of_an_estimator(estimator):
    """Of two outputs z and w: the rows of their Jacobians, along signs u, v of z and w, or x."""
    model = tiny_model("bert", attention="eager")
    clean = ForwardPass(model, tiny_batch(), differentiable=True).run()
    drawn = [torch.randn(SHAPE, dtype=DOUBLE)]
    if estimator != "directional":
        drawn = [torch.randn(4, size, dtype=DOUBLE) for size in (3, 2)]
    signs = [draw.sign() for draw in drawn]
    with all_in_float64(), fed(*drawn):
        found = attached(model, estimator).estimate(clean, two_outputs, torch.tensor([0.7, 0.2]))
        delta = torch.zeros(SHAPE, dtype=DOUBLE, requires_grad=True)
        logits = logits_at(model, delta)
        rows = [torch.autograd.grad(z.sum(), delta, retain_graph=True)[0] for z in logits.T]
    for b in range(4):
        of_z = [row[b] for row in rows]
        of_w = [2 * row for row in of_z[1:]]
        if estimator == "directional":
            first, second = (
                sum((row * signs[0][b]).sum() ** 2 for row in each) for each in (of_z, of_w)
            )
            expected = 0.7 * first + 0.2 * second
        else:
            u, v = (
                sum(sign * row for sign, row in zip(each[b], of, strict=True))
                for each, of in zip(signs, (of_z, of_w), strict=True)
            )
            if estimator == "per_layer":
                expected = 0.7 * u.square().sum() + 0.2 * v.square().sum()
            else:
                expected = (0.7**0.5 * u + 0.2**0.5 * v).square().sum()
        torch.testing.assert_close(found.jacobian[b].detach(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("difference", ["symmetric", "forward"])
def test_finite_differences_have_the_masks_of_the_clean_pass(difference):
    """Other masks would move the outputs by far more than a small step does."""
    model = tiny_model("bert", dropout=0.3, attention="eager")
    drawn, start, values = torch.randn(SHAPE, dtype=DOUBLE), (torch.get_rng_state(), None), []
    for estimator in ("finite_difference", "directional"):
        with all_in_float64(), fed(drawn * MASK if estimator == "directional" else drawn):
            clean = ForwardPass(
                model, tiny_batch(), differentiable=True, start=start, shared_masks=SharedMasks()
            ).run()
            found = attached(model, estimator, difference=difference)
            estimate = found.estimate(clean, lambda run: [run.logits], WEIGHT)
            values.append(estimate.jacobian.detach())
    torch.testing.assert_close(*values, rtol=0.05, atol=0)


@pytest.mark.parametrize("estimator", ["projected", "per_layer", "directional"])
def test_number_of_probes_and_hessian_reach_the_estimators(estimator):
    model = tiny_model("bert", attention="eager")  # fused attention has no second derivative
    values = {}
    with all_in_float64():
        for name, probes in (("exact", 1), (estimator, 150)):
            clean = ForwardPass(model, tiny_batch(), differentiable=True).run()
            found = attached(model, name, num_probes=probes)
            estimate = found.estimate(clean, lambda run: [run.logits], WEIGHT)
            values[name] = estimate.jacobian.detach().sum().item()
            clean = ForwardPass(model, tiny_batch(), differentiable=True).run()
        assert values[estimator] == pytest.approx(values["exact"], rel=0.2)
        curved = attached(model, estimator, hessian=True)
        assert curved.estimate(clean, lambda run: [run.logits], WEIGHT).hessian.all()


@pytest.mark.parametrize("difference", ["symmetric", "forward"])
def test_finite_differences_run_the_model_at_real_tokens(difference):
    model = tiny_model("bert")
    found = attached(model, "finite_difference", difference=difference)
    clean = ForwardPass(model, tiny_batch()).run()
    drawn = torch.randn(SHAPE, dtype=DOUBLE)
    with fed(drawn):
        estimate = found.estimate(clean, lambda run: [run.logits], WEIGHT)
    h = 0.01 * model.get_input_embeddings().weight.square().mean().sqrt().item()
    step = h * drawn.sign() * MASK
    if difference == "symmetric":
        along = (logits_at(model, step) - logits_at(model, -step)) / (2 * h)
    else:
        along = (logits_at(model, step) - logits_at(model, 0 * step)) / h
    expected = 0.7 * along.square().sum(1)
    torch.testing.assert_close(estimate.jacobian, expected, rtol=1e-8, atol=0)


def test_norms_of_every_layer():
    """In evaluation mode, the root of the mean over the batch and over the probes."""
    model = tiny_model("bert", dropout=0.3)
    found = attached(model)
    clean = ForwardPass(model, tiny_batch())
    draws = torch.randn(2, *SHAPE, dtype=DOUBLE)
    with fed(*draws):
        norms = found.jacobian_norms(clean, lambda run: [run.logits, 2 * run.logits], probes=2)
    assert model.training
    model.eval()
    h, squares = found.absolute_step, []
    for drawn in draws:
        step = h * drawn.sign() * MASK
        along = (logits_at(model, step) - logits_at(model, -step)) / (2 * h)
        squares.append(along.square().sum(1).mean())
    one = (sum(squares) / 2).sqrt()
    torch.testing.assert_close(norms, torch.stack([one, 2 * one]), rtol=1e-8, atol=0)
    assert not norms.requires_grad


def test_scores_of_every_head():
    run = ForwardPass(tiny_model("bert"), tiny_batch()).run()
    assert torch.equal(scores(run), run.logits)
    spans = ForwardPass(tiny_span_model(), span_batch(tiny_batch())).run()
    found = scores(spans).view(4, 6, 2)
    for column, name in enumerate(("start_logits", "end_logits")):
        assert torch.equal(found[..., column], spans.outputs[name] * MASK[..., 0])
    model = random_model(BertForTokenClassification, ARCHITECTURES["bert"]())
    tokens = ForwardPass(model, INPUTS).run()
    assert torch.equal(scores(tokens), (tokens.logits * MASK).flatten(1))


def test_scores_of_a_language_model_are_those_of_its_label_tokens():
    batch = language_batch()  # 4, 2, 3 and 1 label tokens
    run = ForwardPass(tiny_language_model("gpt2"), batch).run()
    found = scores(run).view(4, 4, 40)
    for row, count in enumerate((4, 2, 3, 1)):
        where = (batch["labels"][row, 1:] != -100).nonzero().flatten()
        assert torch.equal(found[row, :count], run.logits[row, where])
        assert not found[row, count:].any()


def test_numbers_of_a_prediction_are_counted_without_padding():
    lengths = [6, 4, 5, 3]
    classes = ForwardPass(tiny_model("bert"), tiny_batch()).run()
    assert num_scores(classes).tolist() == [3, 3, 3, 3]
    spans = ForwardPass(tiny_span_model(), span_batch(tiny_batch(padding=2))).run()
    assert num_scores(spans).tolist() == [2 * length for length in lengths]
    model, batch = multi_label(0.0)
    assert num_scores(ForwardPass(model, batch).run()).tolist() == [3, 3, 3, 3]
    model, batch = token_classification(0.0)  # the first token has no label
    counted = num_scores(ForwardPass(model, batch).run()).tolist()
    assert counted == [3 * (length - 1) for length in lengths]
