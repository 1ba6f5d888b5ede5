"""Child-Tuning."""

import pytest
import torch

from smoothtune import ChildTuning, Objective
from smoothtune.methods.child_tuning import clipped_square
from smoothtune.testing import tiny_batch, tiny_model


def gradients(model, batch=None):
    """Plain gradients by name."""
    loss = model(**(batch or tiny_batch())).loss
    names = [name for name, _ in model.named_parameters()]
    parts = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    return {name: g for name, g in zip(names, parts, strict=True) if g is not None}


def bound(model, **fields):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    return Objective(ChildTuning(**fields)).bind(model, optimizer), optimizer


def step(objective, model, optimizer):
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    objective(model, tiny_batch()).backward()
    optimizer.step()
    edited = {n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}
    optimizer.zero_grad()
    moved = {name: p.detach() != before[name] for name, p in model.named_parameters()}
    return edited, moved


def test_f_draws_a_new_mask_in_every_update_and_is_unbiased():
    model = tiny_model("bert")
    plain = gradients(model)
    objective = Objective(ChildTuning(keep=0.3)).attach(model)
    weight = "bert.encoder.layer.0.output.dense.weight"
    parameter, total, masks = model.get_parameter(weight), 0, []
    for _ in range(600):
        parameter.grad = plain[weight].clone()
        objective.before_step()
        objective.after_step()
        kept = parameter.grad != 0
        torch.testing.assert_close(parameter.grad[kept], plain[weight][kept] / 0.3)
        total = total + parameter.grad
        masks.append(kept)
    share = torch.stack(masks).double().mean(0)
    assert share.mean().item() == pytest.approx(0.3, abs=0.01)
    assert not torch.equal(masks[0], masks[1])
    ratio = (total / 600 / plain[weight]).flatten()
    standard_error = ((1 - 0.3) / 0.3 / 600) ** 0.5
    assert (ratio - 1).abs().max() < 5 * standard_error
    assert (ratio - 1).pow(2).mean().sqrt().item() == pytest.approx(standard_error, rel=0.25)


def test_d_keeps_the_largest_fisher_information_of_the_blocks():
    model = tiny_model("bert")
    objective, optimizer = bound(model, mode="D", keep=0.2, fisher_steps=2)
    plain = gradients(model)
    edited, moved = step(objective, model, optimizer)
    assert all(gradient is None for gradient in edited.values())
    assert not any(each.any() for each in moved.values())
    assert not optimizer.state

    edited, moved = step(objective, model, optimizer)
    fisher = {}
    for name, g in plain.items():
        if ".layer." in name:
            norm = sum(float(v) ** 2 for v in g.flatten()) ** 0.5
            scale = min(1.0, 1.0 / norm) if norm else 1.0
            fisher[name] = 2 * (scale * g) ** 2
    threshold = torch.cat([f.flatten() for f in fisher.values()]).sort(descending=True).values
    threshold = threshold[-(-len(threshold) * 2 // 10) - 1]
    for name, g in plain.items():
        kept = fisher[name] >= threshold if name in fisher else torch.ones_like(g)
        torch.testing.assert_close(edited[name], g * kept, msg=name)
    share = sum((edited[n] != 0).sum().item() for n in fisher) / sum(
        f.numel() for f in fisher.values()
    )
    assert share == pytest.approx(0.2, abs=0.002)


def test_d_fixes_its_mask():
    model = tiny_model("bert")
    objective, optimizer = bound(model, mode="D", keep=0.2, fisher_steps=1)
    (first, _), (second, _) = (step(objective, model, optimizer) for _ in range(2))
    for name in first:
        if ".layer." in name:
            assert torch.equal(first[name] != 0, second[name] != 0), name


@pytest.mark.parametrize("freeze", [True, False])
@pytest.mark.parametrize("mode", ["F", "D"])
def test_freeze_holds_masked_weights_under_adamw(mode, freeze):
    model = tiny_model("bert")
    objective, optimizer = bound(model, mode=mode, keep=0.3, fisher_steps=1, freeze=freeze)
    name = "bert.encoder.layer.1.output.dense.weight"
    for _ in range(3):
        edited, moved = step(objective, model, optimizer)
    masked = edited[name] == 0
    assert 0.3 < masked.double().mean() < 1
    assert moved[name][masked].any() != freeze  # momentum and weight decay move them otherwise
    assert moved[name][~masked].all()


def test_d_where_no_block_trains_is_refused():
    model = tiny_model("bert")
    model.bert.requires_grad_(False)
    Objective(ChildTuning()).attach(model).detach()
    with pytest.raises(ValueError, match="masks the blocks, of which none trains"):
        Objective(ChildTuning(mode="D")).attach(model)
    next(model.bert.encoder.layer[1].parameters()).requires_grad_(True)
    Objective(ChildTuning(mode="D")).attach(model)


def test_clipped_square():
    torch.testing.assert_close(clipped_square(torch.tensor([3.0, 4.0])), torch.tensor([0.36, 0.64]))
    torch.testing.assert_close(clipped_square(torch.tensor([0.3, 0.4])), torch.tensor([0.09, 0.16]))


@pytest.mark.parametrize("fisher_steps", [1, 2])
def test_d_resumes_with_its_mask_or_in_the_middle_of_the_fisher_sum(fisher_steps):
    results = []
    for interrupted in (False, True):
        model = tiny_model("bert")
        objective, optimizer = bound(model, mode="D", fisher_steps=fisher_steps)
        step(objective, model, optimizer)
        if interrupted:
            state, moments = objective.state_dict(), optimizer.state_dict()
            objective.detach()
            objective, optimizer = bound(model, mode="D", fisher_steps=fisher_steps)
            objective.load_state_dict(state)
            optimizer.load_state_dict(moments)
        step(objective, model, optimizer)
        results.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(*results)


@pytest.mark.parametrize("steps", [1, 2])
def test_d_forgets_its_mask_with_the_model(steps):
    """What one model learned is no mask of the next."""
    model, method = tiny_model("bert"), ChildTuning(mode="D", fisher_steps=2)
    optimizer = torch.optim.AdamW(model.parameters())
    objective = Objective(method).bind(model, optimizer)
    for _ in range(steps):
        step(objective, model, optimizer)
    assert len(method.state_dict()) > 1
    objective.detach()
    assert method.state_dict() == {"seen": 0}
