"""FreeLB."""

import pytest
import torch

from helpers.adversary import compare, embeddings, into_l2, length, predict, rms, rows, setting
from helpers.conformance import Tiny, assert_conforms, batch, draws, fed, recorded_bert
from helpers.literal import MODELS, cross_entropy, span_batch, squared_error, tiny_span_model
from smoothtune import METHODS, ForwardPass, FreeLB, Objective
from smoothtune.nn import rng
from smoothtune.testing import tiny_batch, tiny_model, with_weight


@pytest.mark.parametrize("norm", ["l2", "linf"])
@pytest.mark.parametrize("num_labels", [3, 1])
@pytest.mark.parametrize("architecture", MODELS)
def test_equals_its_equation(architecture, num_labels, norm):
    model, data = setting(architecture, num_labels)
    error = squared_error if num_labels == 1 else cross_entropy

    def expected(model):
        losses = []
        for ids, label in rows(data):
            x = embeddings(model, ids)
            unit = length(x) if norm == "l2" else rms(x)
            delta = 0.2 * unit * rng.uniform_like(x)
            if norm == "l2":
                delta = delta / x.numel() ** 0.5
            for _ in range(3):
                delta.requires_grad_()
                losses.append(error([predict(model, ids, delta)], [label]))
                (g,) = torch.autograd.grad(losses[-1], delta, retain_graph=True)
                if norm == "l2":
                    moved = delta.detach() + 0.1 * unit * g / length(g)
                    delta = into_l2(moved, 0.15 * unit)
                else:
                    moved = delta.detach() + 0.1 * unit * g / max(abs(v) for v in g.flatten())
                    delta = moved.clamp(-0.15 * unit, 0.15 * unit)
        return sum(losses) / len(losses)

    method = FreeLB(norm=norm, step_size=0.1, init_size=0.2, epsilon=0.15, num_steps=3)
    compare(Objective(method), model, data, expected)


@pytest.mark.parametrize(
    ("case", "make", "fields", "draw_size"),
    [
        (
            "freelb_l2_K2_max0.15",
            Tiny,
            {"num_steps": 2, "init_size": 0.05, "epsilon": 0.15},
            1,
        ),
        (
            "freelb_linf_K3_max0.01",
            Tiny,
            {"norm": "linf", "init_size": 0.05, "epsilon": 0.01},
            0.05,
        ),
        (
            "creat_freelb",
            recorded_bert,
            {"num_steps": 2, "init_size": 0, "epsilon": 0.1},
            1,
        ),
    ],
)
def test_equals_released_code(case, make, fields, draw_size):
    model = make()
    method = FreeLB(units="absolute", step_size=0.1, **fields)
    queue = [draw / draw_size for draw in draws(case)] or [torch.zeros(3, 4, 8)]
    with fed(*queue):
        loss = Objective(method)(model, batch())
    loss.backward()
    assert_conforms(case, loss, model)


def perturbations(method, calls=1):
    """What the method adds in its passes."""
    model, found = tiny_model("bert"), []
    original = ForwardPass.at

    def at(self, delta, *args, **kwargs):
        found.append(delta.detach())
        return original(self, delta, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ForwardPass, "at", at)
        objective = Objective(method)
        for _ in range(calls):
            objective(model, tiny_batch())
    return found


def test_first_perturbation_has_the_papers_size():
    method = FreeLB(units="absolute", init_size=0.6, num_steps=1)
    squares = torch.cat([delta.square().sum((1, 2)) for delta in perturbations(method, calls=50)])
    assert abs(squares.mean() - 0.6**2 / 3) < 4 * squares.std() / 200**0.5


def test_a_step_from_zero_has_the_step_size():
    method = FreeLB(units="absolute", init_size=0, step_size=0.3, epsilon=0, num_steps=2)
    second = perturbations(method)[1].flatten(1).norm(dim=1)
    torch.testing.assert_close(second, torch.full((4,), 0.3).double())


def test_one_step_without_noise_is_plain_training():
    model, data = tiny_model("bert", dropout=0.2), tiny_batch()
    gradients = []
    for methods in ([], [FreeLB(num_steps=1, init_size=0)]):
        torch.manual_seed(3)
        total = Objective(*methods).attach(model)(model, data)
        gradients.append(torch.autograd.grad(total, list(model.parameters())))
    for plain, free in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, free)


def test_masks_are_shared_by_the_steps():
    model, data = tiny_model("bert", dropout=0.3), tiny_batch()
    totals = []
    for steps in (1, 3):
        method = FreeLB(num_steps=steps, init_size=0, step_size=1e-9)
        torch.manual_seed(3)
        totals.append(Objective(method)(model, data))
    torch.testing.assert_close(*totals)


def test_raises_the_loss_of_spans():
    model, data = tiny_span_model(), span_batch(tiny_batch())
    objective = Objective(FreeLB(init_size=0)).attach(model)
    total = objective(model, data)
    total.backward()
    assert total > model(**data).loss
    assert model.qa_outputs.weight.grad.abs().max() > 0


@pytest.mark.parametrize("other", ["alice", "alum", "double_backprop", "fgm"])
def test_beside_methods_that_have_run_the_clean_pass(other):
    """Their terms are back-propagated after FreeLB's steps have been: the sum of both alone."""
    found = []
    for methods in (
        [FreeLB(), with_weight(METHODS[other]())],
        [FreeLB()],
        [with_weight(METHODS[other]())],
        [],
    ):
        model = tiny_model("bert")
        torch.manual_seed(0)
        Objective(*methods).attach(model)(model, tiny_batch()).backward()
        found.append([weight.grad for weight in model.parameters()])
    for both, free, alone, plain in zip(*found, strict=True):
        torch.testing.assert_close(both, free + alone - plain)
