"""A weight that stands in for another one."""

import pytest
import torch
from torch import nn

from smoothtune.functional.parametrizations import restore, substitute, trained_weight


class Doubled(nn.Module):
    def forward(self, weight):
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
    handles = substitute(module, Doubled(), saves=saves)
    torch.testing.assert_close(module(x), expected)
    assert trained_weight(module) is parameter
    assert sorted(module.state_dict()) == sorted(keys)
    saved = module.state_dict()["weight"]
    assert torch.equal(saved, factor * value)
    assert not saved.requires_grad
    restore(module, handles, keep=saves)
    assert torch.equal(module.weight, factor * value)
    assert isinstance(module.weight, nn.Parameter)
    assert [name for name, _ in module.named_parameters()] == names
    assert list(module.state_dict()) == keys
    if saves == "trained":
        assert module.weight is parameter
    module.load_state_dict({"weight": value + 1, "bias": module.bias})  # no hook is left
    assert torch.equal(module.weight, value + 1)


def test_loads_what_a_plain_layer_saved():
    module, other = layer(), nn.Linear(3, 2)
    substitute(module, Doubled(), saves="trained")
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
    substitute(module, Doubled(), saves="trained")
    module(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    torch.testing.assert_close(trained_weight(module).detach(), before - 0.5 * 2)
