"""The weight of a term from its share of the task's gradient."""

import logging

import pytest
import torch

from smoothtune import (
    CWGNC,
    L2SP,
    LNSR,
    R3F,
    SMART,
    VAT,
    FreeLB,
    JacHess,
    LabelSmoothing,
    Objective,
)
from smoothtune.core.strength import DECAY, FIRST, PERIOD, Strengths
from smoothtune.testing import tiny_batch, tiny_model


def norm(loss, model):
    weights = list(model.parameters())
    found = torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True)
    return sum(g.square().sum() for g in found if g is not None).sqrt().item()


def parts(objective, model, batch):
    """What an update adds up, each with its graph."""
    kept, original = {}, objective._record

    def record(total, losses):
        kept.update(losses)
        original(total, losses)

    objective._record = record
    objective(model, batch)
    objective._record = original
    return kept


@pytest.mark.parametrize("make", [LNSR, R3F, VAT, SMART, JacHess], ids=lambda cls: cls.name)
def test_the_first_update_has_exactly_the_share(make):
    model = tiny_model("bert", dropout=0.1)
    objective = Objective(make(share=0.3)).attach(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)  # which JacHess takes for c
    objective.bind_optimizer(optimizer)
    losses = parts(objective, model, tiny_batch())
    assert norm(losses[make.name], model) / norm(losses["task"], model) == pytest.approx(0.3)
    weight = objective.terms[f"{make.name}/weight"]
    assert weight > 0
    objective.detach()


def test_the_share_does_not_depend_on_how_a_term_is_reduced():
    gradients = []
    for reduction in ("mean", "token_sum", "sum"):
        model = tiny_model("bert")
        objective = Objective(LNSR(reduction=reduction, share=0.5, every=2)).attach(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        objective.bind_optimizer(optimizer)
        loss = parts(objective, model, tiny_batch())["lnsr"]
        gradients.append(norm(loss, model))
        objective.detach()
    torch.testing.assert_close(gradients[1:], gradients[:1] * 2, rtol=0.3, atol=0)


def test_norms_are_averaged_and_measured_now_and_then():
    strengths = Strengths({"lnsr": LNSR(share=0.5), "r3f": R3F(weight=7.0)})
    weight = torch.nn.Parameter(torch.ones(4))
    due = []
    for step in range(3 * PERIOD):
        if strengths.due("lnsr", step):
            due.append(step)
            strengths.measure("lnsr", (step + 1) * weight.sum(), [weight])
        assert not strengths.due("lnsr", step)  # the other batches of an accumulated update
    assert due == [*range(FIRST), PERIOD, 2 * PERIOD]
    expected = 0.0
    for count, step in enumerate(due, start=1):
        rate = max(1 - DECAY, 1 / count)
        expected = (1 - rate) * expected + rate * 4 * (step + 1) ** 2
    assert strengths.squares["lnsr"] == pytest.approx(expected)
    assert strengths.weight("lnsr") == 0.0  # the task was not measured yet
    strengths.measure("task", weight.sum(), [weight])
    assert strengths.weight("lnsr") == pytest.approx(0.5 / (expected / 4) ** 0.5)
    assert strengths.weight("r3f") == 7.0


def test_a_term_on_unlabeled_batches_follows_the_task_of_the_labeled_ones():
    model, batch = tiny_model("bert"), tiny_batch()
    unlabeled = {name: batch[name] for name in ("input_ids", "attention_mask")}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    objective = Objective(VAT(share=0.2, batches="unlabeled")).bind(model, optimizer)
    task = norm(parts(objective, model, batch)["task"], model)
    term = norm(parts(objective, model, unlabeled)["vat"], model)
    assert term == pytest.approx(0.2 * task)
    objective.detach()


def test_the_share_beside_a_method_that_replaces_the_task_loss():
    model = tiny_model("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    objective = Objective(LabelSmoothing(), LNSR(share=0.3)).bind(model, optimizer)
    losses = parts(objective, model, tiny_batch())
    ratio = norm(losses["lnsr"], model) / norm(losses["label_smoothing"], model)
    assert ratio == pytest.approx(0.3)
    objective.detach()
    with pytest.raises(ValueError, match="which freelb replaces by one that it computes itself"):
        Objective(FreeLB(), LNSR(share=0.3))


def test_measuring_changes_nothing_but_the_weight():
    weights = []
    for measured in (True, False):
        model = tiny_model("bert", dropout=0.2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        objective = Objective(LNSR(), R3F()).bind(model, optimizer)
        if not measured:
            objective.strengths.due = lambda name, step: False
        torch.manual_seed(3)
        for _ in range(4):
            objective(model, tiny_batch()).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert bool(objective.strengths.squares) == measured
        weights.append([w.detach().clone() for w in model.parameters()])
        objective.detach()
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


def test_a_resumed_run_goes_on_with_the_weight():
    model = tiny_model("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    objective = Objective(LNSR(share=0.3)).bind(model, optimizer)
    for _ in range(FIRST + 1):
        objective(model, tiny_batch()).backward()
        optimizer.step()
        optimizer.zero_grad()
    state = objective.state_dict()
    objective(model, tiny_batch())
    expected = objective.terms
    objective.detach()
    other = Objective(LNSR(share=0.3)).attach(model)
    other.load_state_dict(state)
    other.bind_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    other(model, tiny_batch())
    assert other.terms["lnsr/weight"] == expected["lnsr/weight"]
    torch.testing.assert_close(other.terms["loss/lnsr"], expected["loss/lnsr"])
    other.detach()


def test_a_share_that_is_not_told_of_updates_is_an_error():
    model = tiny_model("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    objective = Objective(LNSR(share=0.3)).attach(model)
    objective(model, tiny_batch()).backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match=r"lnsr .*call objective\.bind"):
        objective(model, tiny_batch())
    objective.detach()


def test_a_term_of_next_to_nothing_is_told_once(caplog):
    model = tiny_model("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    objective = Objective(LNSR(weight=1e-9), R3F(weight=1e9)).bind(model, optimizer)
    with caplog.at_level(logging.WARNING):
        for _ in range(52):
            objective(model, tiny_batch())
            objective.step += 1
    told = [record.getMessage() for record in caplog.records]
    assert [text.split(" is ")[0] for text in told if "task gradient" in text] == ["lnsr"]
    objective.detach()


def test_what_can_have_no_share_says_so():
    with pytest.raises(ValueError, match="freelb replaces the task loss"):
        FreeLB(share=0.3)
    with pytest.raises(ValueError, match="cwgnc has no loss term"):
        CWGNC(share=0.3)
    with pytest.raises(ValueError, match="both share=0.3 and weight=2.0"):
        L2SP(share=0.3, weight=2.0)
    with pytest.raises(ValueError, match="greater than 0"):
        LNSR(share=0)
    assert "share" not in LNSR().settings()
    assert LNSR(share=0.3).settings()["share"] == 0.3
    model = tiny_model("bert")
    model.activation_checkpointing_enable({"use_reentrant": True})
    with pytest.raises(ValueError, match="share=0.3 and reentrant checkpointing"):
        Objective(L2SP(share=0.3)).attach(model)
