"""Composition, draws, schedules, errors."""

import pytest
import torch

from smoothtune import CWGNC, L2SP, LNSR, R3F, Mixout, Noise, NonFiniteLoss, Objective
from smoothtune.core.regularizer import Regularizer
from smoothtune.testing import tiny_batch, tiny_model


def gradient(objective, model, batch):
    loss = objective(model, batch)
    return torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)


def test_order_does_not_matter_to_the_last_bit():
    results = []
    for methods in [(LNSR(), R3F(sigma=0.1), L2SP()), (L2SP(), R3F(sigma=0.1), LNSR())]:
        model = tiny_model("bert", dropout=0.1)
        objective = Objective(*methods).attach(model)
        torch.manual_seed(2)
        results.append(gradient(objective, model, tiny_batch()))
        objective.detach()
    for a, b in zip(*results, strict=True):
        assert (a is None) == (b is None)
        assert a is None or torch.equal(a, b)


def test_terms_add_up_and_are_named():
    model = tiny_model("bert")
    objective = Objective(LNSR(weight=2.0), R3F(), LNSR(noise_ratio=0.2)).attach(model)
    total = objective(model, tiny_batch())
    parts = {k: v for k, v in objective.terms.items() if k.startswith("loss/")}
    assert set(parts) == {"loss/task", "loss/lnsr", "loss/lnsr_2", "loss/r3f"}
    torch.testing.assert_close(total.detach(), sum(parts.values()))
    assert objective.terms["lnsr/delta_ratio"].item() == pytest.approx(0.05)
    assert objective.terms["lnsr_2/delta_ratio"].item() == pytest.approx(0.2)


def test_methods_leave_the_task_draws_of_plain_training_alone():
    """Same dropout masks, step after step, with and without methods: comparisons are paired."""
    losses = {}
    for name, methods in {
        "plain": (),
        "both": (LNSR(), R3F()),
        "noise": (Noise(noise_ratio=1e-12),),
    }.items():
        model = tiny_model("bert", dropout=0.3)
        objective = Objective(*methods).attach(model)
        torch.manual_seed(4)
        losses[name] = []
        for _ in range(3):
            objective(model, tiny_batch())
            task = objective.terms.get("loss/task", objective.terms.get("loss/noise"))
            losses[name].append(task.item())
        objective.detach()
    assert losses["plain"] == losses["both"]
    assert losses["noise"] == pytest.approx(losses["plain"], rel=1e-9)
    assert len(set(losses["plain"])) == 3


def test_every_applies_the_term_less_often_and_as_strongly():
    model = tiny_model("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    often = Objective(L2SP(beta=1.0)).bind(model, optimizer)
    seldom = Objective(L2SP(beta=1.0, every=3)).bind(model, optimizer)
    often(model, tiny_batch())
    expected = often.terms["loss/l2_sp"].item()
    found = []
    for _ in range(6):
        for _ in range(2):  # accumulation: micro-batches of one update are treated alike
            seldom(model, tiny_batch()).backward()
            found.append(seldom.terms.get("loss/l2_sp", torch.zeros(())).item())
        optimizer.step()
    assert found == pytest.approx(([3 * expected] * 2 + [0] * 4) * 2)


def test_terms_may_be_restricted_to_batches_without_labels():
    model = tiny_model("bert")
    objective = Objective(LNSR(batches="unlabeled")).attach(model)
    labeled = tiny_batch()
    unlabeled = {k: v for k, v in labeled.items() if k != "labels"}
    objective(model, labeled)
    assert set(objective.terms) == {"loss", "loss/task"}
    objective(model, unlabeled)
    assert set(objective.terms) == {"loss", "loss/lnsr", "lnsr/delta_ratio"}
    with pytest.raises(ValueError, match="no labels"):
        Objective(LNSR(batches="labeled")).attach(tiny_model("bert"))(model, unlabeled)


def test_two_methods_cannot_replace_the_task_loss():
    with pytest.raises(ValueError, match="noise and noise"):
        Objective(Noise(), Noise())


def test_attaching_twice_and_acting_unattached_are_errors():
    model = tiny_model("bert")
    objective = Objective(CWGNC())
    with pytest.raises(RuntimeError, match="attach the objective"):
        objective.before_step()
    objective.attach(model)
    with pytest.raises(RuntimeError, match="attached already"):
        objective.attach(model)


class Broken(Regularizer):
    name = "broken"

    def loss(self, clean):
        return clean.run().logits.sum() * torch.inf


@pytest.mark.parametrize("part", ["broken", "task"])
def test_a_term_that_is_not_finite_is_named_with_its_examples(part):
    model = tiny_model("bert")
    batch = tiny_batch() | {"example_id": torch.tensor([7, 42, 3, 11])}
    if part == "task":
        model.classifier.weight.data[0, 0] = torch.nan
    objective = Objective(Broken()) if part == "broken" else Objective()
    objective.step = 5
    with pytest.raises(NonFiniteLoss, match=r"update 6.*\[7, 42, 3, 11\].*" + part):
        objective(model, batch)


def test_state_of_other_methods_is_refused():
    model = tiny_model("bert")
    state = Objective(L2SP()).attach(model).state_dict()
    with pytest.raises(ValueError, match="l2_sp"):
        Objective(LNSR()).attach(model).load_state_dict(state)


def test_detaching_removes_the_optimizer_hooks():
    model = tiny_model("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    objective = Objective(CWGNC(), Mixout()).bind(model, optimizer)
    assert len(optimizer._optimizer_step_pre_hooks) == 1
    objective.detach()
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


def test_plain_modules_with_other_inputs_work_where_nothing_is_perturbed():
    class Regression(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 1)

        def forward(self, x, labels):
            return {"loss": (self.linear(x).squeeze(-1) - labels).square().mean()}

    model = Regression()
    objective = Objective(L2SP(), Mixout(), CWGNC()).attach(model)
    loss = objective(model, {"x": torch.randn(4, 3), "labels": torch.randn(4)})
    loss.backward()
    objective.before_step()
    assert model.linear.parametrizations.weight.original.grad.norm() <= 1 + 1e-6
