"""A weight that stands in for another one."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm

from smoothtune.functional.parametrizations import (
    computed_weights,
    substitute,
    trained_weight,
)

COMPUTING = {
    "pruned": lambda module: prune.random_unstructured(module, "weight", 0.5),
    "weight norm": parametrizations.weight_norm,
    "spectral norm": parametrizations.spectral_norm,
    "old weight norm": weight_norm,
    "old spectral norm": spectral_norm,
    "substituted": lambda module: substitute(module, doubled, saves="trained"),
}


def doubled(weight, training):
    return 2 * weight


def layer():
    torch.manual_seed(0)
    return nn.Linear(3, 2)


@pytest.mark.parametrize(("saves", "factor"), [("trained", 1), ("effective", 2)])
def test_substituted_and_back(saves, factor):
    module = layer()
    parameter, value = module.weight, module.weight.detach().clone()
    names = [name for name, _ in module.named_parameters()]
    keys = list(module.state_dict())
    x = torch.ones(1, 3)
    expected = x @ (2 * value).T + module.bias
    undo = substitute(module, doubled, saves=saves)
    torch.testing.assert_close(module(x), expected)
    assert trained_weight(module) is parameter
    assert list(module.state_dict()) == keys
    assert [name for name, _ in module.named_parameters()] == names
    saved = module.state_dict()["weight"]
    assert torch.equal(saved, factor * value)
    assert not saved.requires_grad
    undo()
    assert torch.equal(module.weight, factor * value)
    assert isinstance(module.weight, nn.Parameter)
    assert [name for name, _ in module.named_parameters()] == names
    assert list(module.state_dict()) == keys
    assert module.weight is parameter
    assert type(module) is nn.Linear
    module.load_state_dict({"weight": value + 1, "bias": module.bias})  # no hook is left
    assert torch.equal(module.weight, value + 1)


def test_loads_what_a_plain_layer_saved():
    module, other = layer(), nn.Linear(3, 2)
    substitute(module, doubled, saves="trained")
    module.load_state_dict(other.state_dict())
    assert torch.equal(trained_weight(module), other.weight)
    assert torch.equal(module.weight, 2 * other.weight)
    assert torch.equal(module.bias, other.bias)
    with pytest.raises(RuntimeError, match="Missing key"):
        module.load_state_dict({"bias": other.bias})


def test_the_parameter_that_trains_is_the_same_as_before():
    module = layer()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    before = module.weight.detach().clone()
    substitute(module, doubled, saves="trained")
    module(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    torch.testing.assert_close(trained_weight(module).detach(), before - 0.5 * 2)


def test_a_copy_outlives_what_it_was_made_of():
    module, x = layer(), torch.ones(1, 3)
    undo = substitute(module, doubled, saves="effective")
    copied, expected = copy.deepcopy(module), module(x)
    undo()
    torch.testing.assert_close(copied(x), expected)
    assert torch.equal(copied.state_dict()["weight"], module.weight)
    assert not torch.equal(trained_weight(copied), module.weight)


def test_an_average_made_before_takes_each_weight_for_its_own():
    module = layer()
    average = torch.optim.swa_utils.AveragedModel(module)
    expected = {name: weight.clone() for name, weight in module.state_dict().items()}
    substitute(module, doubled, saves="trained")
    average.update_parameters(module)
    for name, weight in expected.items():
        assert torch.equal(average.module.state_dict()[name], weight)


OLD_NORM = "ignore:.*torch.nn.utils.*is deprecated:FutureWarning"


@pytest.mark.filterwarnings(OLD_NORM)
@pytest.mark.parametrize("dress", COMPUTING)
def test_computed_weights_are_known(dress):
    module = layer()
    assert not computed_weights(module)
    COMPUTING[dress](module)
    assert set(computed_weights(module)) == {"weight"}
    with pytest.raises(ValueError, match="computes the weight of a .*Linear .*already"):
        substitute(module, doubled, saves="trained")
