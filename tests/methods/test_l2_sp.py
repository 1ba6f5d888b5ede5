"""L2-SP."""

import pytest
import torch

from smoothtune import L2SP, Mixout, Objective
from smoothtune.functional.parametrizations import trained_weight
from smoothtune.testing import tiny_batch, tiny_model


@pytest.mark.parametrize("architecture", ["bert", "deberta", "opt", "llama"])
def test_value_and_gradient_of_the_equation(architecture):
    model = tiny_model(architecture)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    objective = Objective(L2SP(alpha=0.3, beta=0.2)).attach(model)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p))
    expected = 0.0
    for name, p in model.named_parameters():
        new = not name.startswith(("bert.", "deberta.", "model."))
        for w, w0 in zip(p.flatten().tolist(), start[name].flatten().tolist(), strict=True):
            expected += 0.1 * w**2 if new else 0.15 * (w - w0) ** 2
    objective(model, tiny_batch())
    assert objective.terms["loss/l2_sp"].item() == pytest.approx(expected, rel=1e-10)

    plain = Objective()
    for name, p in model.named_parameters():
        task, both = (
            torch.autograd.grad(f(model, tiny_batch()), p, allow_unused=True)[0]
            for f in (plain, objective)
        )
        new = not name.startswith(("bert.", "deberta.", "model."))
        pull = 0.2 * p if new else 0.3 * (p - start[name])
        torch.testing.assert_close(both - (0 if task is None else task), pull.detach())


def test_at_the_start_only_the_head_counts():
    model = tiny_model("bert")
    objective = Objective(L2SP(alpha=5.0, beta=2.0)).attach(model)
    objective(model, tiny_batch())
    head = sum(p.square().sum() for p in model.classifier.parameters())
    torch.testing.assert_close(objective.terms["loss/l2_sp"], head.detach())
    objective.detach()


def test_without_a_head_everything_is_anchored():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    method = L2SP()
    method.attach(model)
    assert set(method.state_dict()) == {"0.weight", "0.bias"}


def test_a_weight_that_another_method_stands_in_for_keeps_its_anchor():
    """Mixout stands in for every linear weight; none of them may be taken for a new head."""
    model = tiny_model("bert")
    objective = Objective(L2SP(alpha=1.0, beta=0.0), Mixout()).attach(model)
    objective(model, tiny_batch())
    assert objective.terms["loss/l2_sp"] == 0
    with torch.no_grad():
        trained_weight(model.bert.encoder.layer[0].output.dense).add_(0.5)
    objective(model, tiny_batch())
    objective.detach()
    assert objective.terms["loss/l2_sp"].item() == pytest.approx(0.5 * 0.25 * 8 * 16)


def test_unlabeled_batches_alone_are_refused():
    with pytest.raises(ValueError, match="l2_sp has no term on batches without labels"):
        L2SP(batches="unlabeled")


def test_without_pre_trained_weights_there_is_an_error():
    model = tiny_model("bert")
    objective = Objective(L2SP())
    with pytest.raises(RuntimeError, match="attach l2_sp to the model first"):
        objective(model, tiny_batch())
    objective.attach(model)
    objective(model, tiny_batch())
    objective.detach()
    with pytest.raises(RuntimeError, match="attach l2_sp to the model first"):
        objective(model, tiny_batch())


def test_a_frozen_backbone_leaves_the_head():
    model = tiny_model("bert")
    model.bert.requires_grad_(False)
    objective = Objective(L2SP(alpha=5.0, beta=2.0)).attach(model)
    objective(model, tiny_batch()).backward()
    head = sum(p.square().sum() for p in model.classifier.parameters())
    torch.testing.assert_close(objective.terms["loss/l2_sp"], head.detach())
    objective.detach()
    with pytest.raises(ValueError, match="no weight to pull: .* beta=0"):
        Objective(L2SP(beta=0)).attach(model)


def half_frozen(model):
    """A model that trains its head alone, and its embeddings and blocks later."""
    model.bert.requires_grad_(False)
    return model


def test_a_weight_that_is_unfrozen_later_is_pulled_to_its_pre_trained_value():
    model = half_frozen(tiny_model("bert"))
    objective = Objective(L2SP(alpha=2.0, beta=1e-12)).attach(model)
    objective(model, tiny_batch())
    model.bert.requires_grad_(True)
    objective(model, tiny_batch())
    assert objective.terms["loss/l2_sp"].item() == pytest.approx(0, abs=1e-9)
    bias = model.bert.encoder.layer[0].output.dense.bias
    with torch.no_grad():
        bias.add_(0.5)
    objective(model, tiny_batch())
    expected = 0.25 * bias.numel()
    assert objective.terms["loss/l2_sp"].item() == pytest.approx(expected)

    state = objective.state_dict()
    objective.detach()
    frozen = half_frozen(tiny_model("bert"))  # as a resumed run makes it
    frozen.load_state_dict(model.state_dict())
    for resumed in (frozen, model):
        again = Objective(L2SP(alpha=2.0, beta=1e-12)).attach(resumed)
        again.load_state_dict(state)
        resumed.bert.requires_grad_(True)
        again(resumed, tiny_batch())
        again.detach()
        assert again.terms["loss/l2_sp"].item() == pytest.approx(expected)


def test_a_weight_that_is_unfrozen_between_two_trainings_has_not_moved():
    model = half_frozen(tiny_model("bert"))
    objective = Objective(L2SP(alpha=2.0, beta=1e-12)).attach(model)
    state = objective.state_dict()
    objective.detach()
    model.bert.requires_grad_(True)
    objective.attach(model).load_state_dict(state)
    objective(model, tiny_batch())
    objective.detach()
    assert objective.terms["loss/l2_sp"].item() == pytest.approx(0, abs=1e-9)
