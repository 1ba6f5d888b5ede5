"""UEGR's backward stage: which weights an update changes."""

import math

import pytest
import torch

from smoothtune import UEGR, Objective
from smoothtune.testing import tiny_batch, tiny_model


def step(model, objective, optimizer):
    """(weights before, gradients, weights after) of one update, by name."""
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    objective(model, tiny_batch()).backward()
    optimizer.step()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    optimizer.zero_grad()
    return before, gradients, {name: p.detach() for name, p in model.named_parameters()}


def bound(**fields):
    model = tiny_model("bert")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    method = UEGR(attack="none", combination="model", passes=1, **fields)
    return model, Objective(method).bind(model, optimizer), optimizer


SALIENCY = {
    "taylor": lambda w, g: abs(float(w) * float(g)),
    "grad": lambda w, g: abs(float(g)),
    "fisher": lambda w, g: float(g) ** 2,
}


@pytest.mark.parametrize("kind", SALIENCY)
def test_masked_weights_stay_bit_for_bit_under_adamw(kind):
    model, objective, optimizer = bound(keep=0.4, saliency=kind)
    for _ in range(3):  # with momentum
        before, gradients, after = step(model, objective, optimizer)
    for name, g in gradients.items():
        moved = (before[name] != after[name]).flatten()
        if name.startswith("classifier"):
            assert moved.all()
            continue
        values = [
            SALIENCY[kind](*pair) for pair in zip(before[name].flatten(), g.flatten(), strict=True)
        ]
        count = math.ceil(round(0.4 * len(values), 6))
        if len(set(values)) == len(values):
            best = sorted(range(len(values)), key=lambda i: -values[i])[:count]
            assert set(moved.nonzero().flatten().tolist()) == set(best), name
        else:
            assert moved.sum() <= count


def test_masked_gradients_alone_do_not_hold_weights():
    model, objective, optimizer = bound(keep=0.4, apply_to="gradient")
    for _ in range(3):
        before, gradients, after = step(model, objective, optimizer)
    name = "bert.encoder.layer.0.output.dense.weight"
    masked = gradients[name] == 0
    assert masked.sum() == masked.numel() - math.ceil(0.4 * masked.numel())
    assert (before[name] != after[name])[masked].all()


def test_optimizer_sees_all_gradients_when_the_update_is_masked():
    model, objective, optimizer = bound(keep=0.4)
    plain = tiny_model("bert")
    plain(**tiny_batch()).loss.backward()
    _, gradients, _ = step(model, objective, optimizer)
    for name, g in gradients.items():
        torch.testing.assert_close(g, plain.get_parameter(name).grad)


def test_global_scope_counts_over_all_tensors():
    model, objective, optimizer = bound(keep=0.1, scope="global")
    before, gradients, after = step(model, objective, optimizer)
    names = [name for name in gradients if not name.startswith("classifier")]
    moved = sum((before[name] != after[name]).sum().item() for name in names)
    assert moved == math.ceil(0.1 * sum(before[name].numel() for name in names))


@pytest.mark.parametrize("scope", ["global", "per_tensor"])
def test_a_head_that_alone_trains_is_updated(scope):
    model = tiny_model("bert")
    model.bert.requires_grad_(False)
    before = model.classifier.weight.clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    objective = Objective(UEGR(scope=scope)).bind(model, optimizer)
    objective(model, tiny_batch()).backward()
    optimizer.step()
    assert not torch.isclose(model.classifier.weight, before, rtol=0, atol=1e-12).any()


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft's own
@pytest.mark.parametrize("scope", ["global", "per_tensor"])
def test_adapters_that_begin_at_zero_are_trained(scope):
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query"])
    model = peft.get_peft_model(tiny_model("bert"), settings).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    objective = Objective(UEGR(attack="none", combination="model", scope=scope))
    objective.bind(model, optimizer)
    first = {name: p.detach().clone() for name, p in model.named_parameters()}
    for _ in range(3):
        step(model, objective, optimizer)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            assert (weight != 0).all()
        if "lora_A" in name:
            assert not torch.equal(weight, first[name])


def test_random_mask_is_unbiased():
    """The mean update over many masks is the update without a mask, with SGD's closed form."""
    model = tiny_model("bert")
    method = UEGR(attack="none", mask="bernoulli", keep=0.5, p_min=0.3, apply_to="gradient")
    objective = Objective(method).attach(model)
    name = "bert.encoder.layer.1.output.dense.weight"
    parameter = model.get_parameter(name)
    model(**tiny_batch()).loss.backward()
    plain, rounds = parameter.grad.clone(), 800
    model.zero_grad()
    edited = []
    for _ in range(rounds):
        parameter.grad = plain.clone()
        objective.before_step()
        objective.after_step()
        edited.append(parameter.grad / plain)
    edited = torch.stack(edited)
    kept = (edited != 0).double().mean(0)
    assert kept.mean().item() == pytest.approx(0.5, abs=0.02)
    assert kept.min() > 0.3 - 5 * math.sqrt(0.3 * 0.7 / rounds)
    spread = (1 / 0.3 - 1) ** 0.5 / rounds**0.5  # largest standard deviation of the mean
    assert (edited.mean(0) - 1).abs().max() < 5 * spread
    rank = (parameter * plain).abs().flatten().argsort()
    assert kept.flatten()[rank[-10:]].mean() > kept.flatten()[rank[:10]].mean() + 0.3


def test_rescale():
    for rescale, factor in [("auto", 1.0), ("always", 2.0), ("never", 1.0)]:
        model, objective, optimizer = bound(keep=0.5, apply_to="gradient", rescale=rescale)
        plain = tiny_model("bert")
        plain(**tiny_batch()).loss.backward()
        _, gradients, _ = step(model, objective, optimizer)
        name = "bert.pooler.dense.weight"
        kept = gradients[name] != 0
        expected = factor * plain.get_parameter(name).grad[kept]
        torch.testing.assert_close(gradients[name][kept], expected)


def test_mask_is_kept_and_starts_late():
    model, objective, optimizer = bound(
        keep=0.3, apply_to="gradient", start_step=1, mask_every=2, exclude_head=False
    )
    masks = [
        {name: g == 0 for name, g in step(model, objective, optimizer)[1].items()} for _ in range(5)
    ]
    name = "bert.encoder.layer.0.output.dense.weight"
    assert not masks[0][name].any()
    assert torch.equal(masks[1][name], masks[2][name])
    assert torch.equal(masks[3][name], masks[4][name])
    assert not torch.equal(masks[2][name], masks[3][name])
    assert masks[1]["classifier.weight"].any()


def test_resumes_with_its_mask_and_rates():
    results = []
    for interrupted in (False, True):
        fields = {"keep": 0.3, "mask_every": 3, "mask": "bernoulli"}
        model, objective, optimizer = bound(**fields)
        step(model, objective, optimizer)
        if interrupted:
            state = objective.state_dict()
            objective.detach()
            objective = Objective(UEGR(attack="none", combination="model", passes=1, **fields))
            objective.bind(model, optimizer).load_state_dict(state)
        _, _, after = step(model, objective, optimizer)
        results.append(torch.cat([p.flatten() for p in after.values()]))
    assert torch.equal(*results)
