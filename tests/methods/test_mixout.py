"""Mixout."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch.optim.swa_utils import AveragedModel
from transformers import AutoModelForSequenceClassification, MixtralConfig, XLNetConfig

from helpers.conformance import CASES, fed
from smoothtune import R4F, SMART, Mixout, Objective
from smoothtune.functional.parametrizations import trained_weight
from smoothtune.testing import tiny_batch, tiny_model


def recorded(compat):
    """The recorded MixLinear: (loss, gradients of weight and bias, output)."""
    case = CASES["mixout_p0.3"]
    layer = nn.Linear(5, 4)
    model = nn.Sequential(layer)
    layer.weight.data = torch.tensor(case["target"]).view(4, 5)
    objective = Objective(Mixout(p=0.3, compat=compat)).attach(model)
    trained_weight(layer).data = torch.tensor(case["weight"]).view(4, 5)
    layer.bias.data = torch.tensor(case["bias"])
    keep = torch.tensor(case["draws"][0]["values"]).view(case["draws"][0]["shape"])
    with fed(keep[:1]):
        out = model(torch.tensor(case["x"]).view(3, 5))
    loss = out.square().sum()
    loss.backward()
    gradient = trained_weight(layer).grad.flatten()
    bias = layer.bias.grad
    objective.detach()
    return case, loss, gradient, bias


def test_equals_the_released_code_forward_and_backward():
    case, loss, gradient, bias = recorded("official")
    assert loss.item() == pytest.approx(case["loss"], rel=1e-5)
    torch.testing.assert_close(gradient, torch.tensor(case["grads"]["weight"]), atol=2e-4, rtol=0)
    torch.testing.assert_close(bias, torch.tensor(case["grads"]["bias"]), atol=2e-4, rtol=0)


def test_exact_backward_has_the_factor_the_released_one_lacks():
    _, _, official, _ = recorded("official")
    _, _, exact, _ = recorded(None)
    torch.testing.assert_close(exact, official / (1 - 0.3))


def mixed(weight, pretrained, keep, p):
    """The paper's equation, entry by entry."""
    out = torch.empty_like(weight)
    for i in range(weight.shape[0]):
        for j in range(weight.shape[1]):
            m = keep[i, j]
            value = (1 - m) * pretrained[i, j] + m * weight[i, j] - p * pretrained[i, j]
            out[i, j] = value / (1 - p)
    return out


@pytest.mark.parametrize("architecture", ["bert", "gpt2"])  # gpt2's Conv1D is (in, out)
def test_every_forward_uses_the_mixed_weight(architecture):
    model = tiny_model(architecture)
    layer = model.bert.encoder.layer[0].output.dense if architecture == "bert" else None
    layer = layer or model.transformer.h[0].mlp.c_fc
    pretrained = layer.weight.detach().clone()
    objective = Objective(Mixout(p=0.6)).attach(model)
    trained = trained_weight(layer)
    trained.data.add_(torch.randn_like(trained))
    used = layer.weight
    per_input = (used - pretrained).abs().sum(0 if architecture == "bert" else 1) > 0
    keep = per_input.double().expand_as(used) if architecture == "bert" else None
    keep = per_input.double()[:, None].expand_as(used) if keep is None else keep
    assert 0 < per_input.sum() < len(per_input)
    torch.testing.assert_close(used, mixed(trained.detach(), pretrained, keep, 0.6))
    objective.detach()


def test_mean_over_masks_is_the_trained_weight():
    torch.manual_seed(0)
    layer = nn.Linear(6, 3).double()
    model = nn.Sequential(layer)
    objective = Objective(Mixout(p=0.7, mask="element")).attach(model)
    trained = trained_weight(layer)
    trained.data.add_(torch.randn_like(trained))
    samples = torch.stack([layer.weight.detach() for _ in range(20000)])
    error = (samples.mean(0) - trained).abs() / (samples.std(0) / 20000**0.5).clamp(min=1e-12)
    assert error.max() < 4.5
    objective.detach()


def test_limits_of_p():
    layer = nn.Linear(6, 3)
    model, start = nn.Sequential(layer), layer.weight.detach().clone()
    for p, expect_start in [(0.0, False), (1.0, True)]:
        objective = Objective(Mixout(p=p)).attach(model)
        with torch.no_grad():
            trained_weight(layer).copy_(start + 1)
        used = layer.weight.detach().clone()
        objective.detach()
        torch.testing.assert_close(used, start if expect_start else start + 1)
        layer.weight.data.copy_(start)


def test_evaluation_uses_the_trained_weight_and_keys_stay(tmp_path):
    model = tiny_model("bert", dtype=torch.float32)
    keys = list(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    objective = Objective(Mixout()).bind(model, optimizer)
    objective(model, tiny_batch()).backward()
    optimizer.step()
    expected = model.eval()(**tiny_batch()).logits
    assert list(model.state_dict()) == keys or set(model.state_dict()) == set(keys)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    torch.testing.assert_close(again(**tiny_batch()).logits, expected)
    objective.detach()


def test_needs_a_trained_linear_layer():
    model = tiny_model("bert").requires_grad_(False)
    with pytest.raises(ValueError, match="unfreeze"):
        Objective(Mixout()).attach(model)


@pytest.mark.parametrize(
    ("config", "first"),
    [
        (XLNetConfig(vocab_size=9, d_model=8, n_layer=1, n_head=2, d_inner=8), "rel_attn.q"),
        (
            MixtralConfig(
                vocab_size=9, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                num_attention_heads=2, num_key_value_heads=1, num_local_experts=2, pad_token_id=0,
            ),
            "experts",
        ),
    ],
    ids=["xlnet", "mixtral"],
)  # fmt: skip
def test_matrices_in_no_linear_layer_are_refused(config, first):
    model = AutoModelForSequenceClassification.from_config(config)
    if all(weight.ndim < 3 for weight in model.parameters()):
        pytest.skip("experts are linear layers in transformers 4")
    with pytest.raises(ValueError, match=f"in no linear layer.*{first}.*Leave mixout out"):
        Objective(Mixout()).attach(model)
    for weight in model.parameters():
        weight.requires_grad_(weight.ndim < 3)
    Objective(Mixout()).attach(model).detach()


@pytest.mark.parametrize(
    "methods", [lambda: (Mixout(), Mixout(p=0.5)), lambda: (Mixout(head=True), R4F(weight=1.0))]
)
def test_a_weight_takes_one_stand_in(methods):
    model = tiny_model("bert")
    keys, names = list(model.state_dict()), [name for name, _ in model.named_parameters()]
    objective = Objective(*methods())
    with pytest.raises(ValueError, match=r"already.*: use mixout once; beside r4f leave"):
        objective.attach(model)
    objective.detach()
    assert list(model.state_dict()) == keys
    assert [name for name, _ in model.named_parameters()] == names


@pytest.mark.parametrize("method", [Mixout(p=0.5), R4F(weight=1.0)])
def test_pruned_layers_are_refused(method):
    model = tiny_model("bert")
    for layer in (model.classifier, model.bert.encoder.layer[0].output.dense):
        prune.random_unstructured(layer, "weight", 0.5)
    with pytest.raises(ValueError, match="pruning, or a norm computes the weight of a Linear"):
        Objective(method).attach(model)

    model = tiny_model("bert")  # of which another weight is computed
    prune.random_unstructured(model.classifier, "bias", 0.5)
    prune.random_unstructured(model.bert.encoder.layer[0].output.dense, "bias", 0.5)
    objective = Objective(method).attach(model)
    assert objective(model, tiny_batch()).requires_grad
    objective.detach()


@pytest.mark.parametrize("method", [Mixout(p=0.5, head=True), R4F(weight=1.0)])
def test_copies_of_a_bound_model_outlive_it(method):
    """The best weights so far, and an average of weights."""
    model = tiny_model("bert")
    average = AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    objective = Objective(method).bind(model, optimizer)
    objective(model, tiny_batch()).backward()
    optimizer.step()
    written = pickle.loads(pickle.dumps(model))
    copies = [copy.deepcopy(model), AveragedModel(model).module]
    average.update_parameters(model)  # which takes weights in their order
    expected, weights = model.eval()(**tiny_batch()).logits, dict(model.named_parameters())
    for name, weight in average.module.named_parameters():
        assert torch.equal(weight, weights[name])
    objective.detach()
    for copied in [*copies, written]:
        torch.testing.assert_close(copied.eval()(**tiny_batch()).logits, expected)
        if copied is not written:  # in training mode nothing is mixed any more
            torch.testing.assert_close(copied.train()(**tiny_batch()).logits, expected)
        plain = tiny_model("bert")
        plain.load_state_dict(copied.state_dict())
        torch.testing.assert_close(plain(**tiny_batch()).logits, expected)


def test_beside_r4f_the_body_is_mixed_and_the_head_normalized(tmp_path):
    model = tiny_model("bert", dtype=torch.float32)
    objective = Objective(Mixout(), R4F(weight=1.0)).attach(model)
    model.save_pretrained(tmp_path)
    head = type(model).from_pretrained(tmp_path).classifier.weight
    assert torch.linalg.matrix_norm(head, 2).item() == pytest.approx(1, rel=1e-5)
    objective.detach()


def test_the_state_of_other_layers_is_refused():
    """Layers that train now, and were frozen when the state was written."""
    model = tiny_model("bert")
    layer = model.bert.encoder.layer[0].requires_grad_(False)
    objective = Objective(Mixout()).attach(model)
    state = objective.state_dict()
    objective.detach()
    layer.requires_grad_(True)
    message = "7 pre-trained layers, and the model trains 13"
    with pytest.raises(ValueError, match=message):  # a second training goes on with its state
        objective.attach(model)
    other = Objective(Mixout()).attach(tiny_model("bert"))
    with pytest.raises(ValueError, match=message):
        other.load_state_dict(state)
    other.detach()


def test_layers_that_are_unfrozen_later_are_mixed_from_then_on():
    """Also by a run that is resumed before they are unfrozen again."""
    model = tiny_model("bert")
    model.bert.encoder.layer[0].requires_grad_(False)
    layer = model.bert.encoder.layer[0].output.dense
    objective = Objective(Mixout(p=1.0)).attach(model)
    start = layer.weight.detach().clone()
    assert layer.weight is trained_weight(layer)  # nothing is mixed, and nothing is drawn
    model.bert.encoder.layer[0].requires_grad_(True)
    objective(model, tiny_batch()).backward()
    with torch.no_grad():
        trained_weight(layer).add_(1)
    assert torch.equal(layer.weight, start)
    state = objective.state_dict()
    objective.detach()
    assert torch.equal(layer.weight, start + 1)

    model.bert.encoder.layer[0].requires_grad_(False)
    objective.attach(model).load_state_dict(state)
    model.bert.encoder.layer[0].requires_grad_(True)
    assert torch.equal(layer.weight, start)
    objective.detach()


def test_beside_smart_a_resumed_run_has_the_pre_trained_weights_in_the_teacher_too():
    def bound(offset):
        model = tiny_model("bert", dropout=0.1)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(offset)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        objective = Objective(Mixout(p=0.3), SMART(weight=1.0)).bind(model, optimizer)
        return objective, model, optimizer

    def updated(objective, model, optimizer):
        torch.manual_seed(3)
        objective(model, tiny_batch()).backward()
        optimizer.step()
        optimizer.zero_grad()
        return {name: value.clone() for name, value in model.state_dict().items()}

    run, resumed = bound(0.0), bound(0.01)  # in a process that began elsewhere
    weights = updated(*run)
    state = {name: value.clone() for name, value in run[0].state_dict().items()}
    expected = updated(*run)
    resumed[1].load_state_dict(weights)
    resumed[0].load_state_dict(state)
    for name, value in updated(*resumed).items():
        assert torch.equal(value, expected[name]), name
