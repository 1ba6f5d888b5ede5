"""Gradients of shards, and weights that no loss reaches, in one process."""

import copy

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor

from smoothtune.nn.distributed import UnusedWeights, put_away, shards, unreached
from smoothtune.nn.gradients import gradients_of, multiplied, norms, plus


@pytest.fixture
def mesh(tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    yield torch.distributed.init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


class Two(nn.Module):
    """Two layers, of which a loss may reach the first alone."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 2, bias=False), nn.Linear(2, 1, bias=False)

    def forward(self, x):
        below = self.first(x).tanh()
        return below, self.second(below)


def test_gradients_of_shards_are_those_of_the_whole_model(mesh):
    model, x = Two(), torch.randn(4, 3)
    whole = copy.deepcopy(model)
    fully_shard(model.first, mesh=mesh)
    fully_shard(model, mesh=mesh)
    assert shards(model) == [model, model.first]
    assert shards(whole) == []
    weights = list(model.parameters())
    for reached, loss_of in (
        (2, lambda outputs: outputs[1].square().sum()),
        (1, lambda outputs: outputs[0].square().sum()),
    ):
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        expected = gradients_of(loss_of(whole(x)), list(whole.parameters()), [], keep_graph=False)
        loss = loss_of(model(x))
        put_away(shards(model))
        assert [tuple(weight.shape) for weight in weights] == [(2, 3), (1, 2)]
        found = gradients_of(loss, weights, shards(model), keep_graph=False)
        for mine, given in zip(found[:reached], expected[:reached], strict=True):
            torch.testing.assert_close(mine.full_tensor(), given)
        assert found[reached:] == expected[reached:] == [None] * (2 - reached)
        assert all((weight.grad.full_tensor() == 1).all() for weight in weights)
        own = torch.cat([gradient.flatten() for gradient in expected[:reached]]).norm()
        torch.testing.assert_close(norms([found], weights, mean=True), own[None])


def test_sums_and_products_of_shards(mesh):
    one, other = (distribute_tensor(torch.tensor(x), mesh) for x in ([1.0, 2.0], [3.0, 5.0]))
    (total, first, second) = plus([one, one, None], [other, None, other], factor=4.0)
    assert total.full_tensor().tolist() == [13, 22]
    assert first is one
    assert second.full_tensor().tolist() == [12, 20]
    product, nothing = multiplied([one, None], torch.tensor(4.0))
    assert (product.full_tensor().tolist(), nothing) == ([4, 8], None)


def test_weights_that_a_value_does_not_reach():
    model = Two()
    below, above = model(torch.randn(4, 3))
    both = set(model.parameters())
    assert unreached(below.sum(), both) == {model.second.weight}
    assert unreached(above.sum(), both) == set()
    assert unreached((above + below.sum()).sum().detach(), both) == both


def test_a_weight_that_no_batch_of_an_update_reaches_has_no_gradient():
    model, unused = Two(), UnusedWeights()
    loss = 3 * model(torch.ones(1, 3))[0].sum()
    total = unused.zero_gradients(model, loss)
    assert total.item() == loss.item()
    total.backward()
    assert model.second.weight.grad.tolist() == [[0, 0]]
    assert unused.weights == {model.second.weight}
    unused.forget()
    assert model.second.weight.grad is None
    assert model.first.weight.grad.any()
    with torch.no_grad():
        assert unused.zero_gradients(model, loss) is loss


def test_a_weight_that_one_batch_of_an_update_reaches_keeps_its_gradient():
    model, unused = Two(), UnusedWeights()
    for layer in (0, 1):
        unused.zero_gradients(model, model(torch.ones(1, 3))[layer].sum()).backward()
    unused.forget()
    assert model.second.weight.grad.any()


def test_a_batch_that_is_to_move_nothing_brings_gradients_of_zero():
    model, unused = Two(), UnusedWeights()
    unused.zero_loss(model).backward()
    assert all((weight.grad == 0).all() for weight in model.parameters())
    unused.forget()
    assert all(weight.grad is None for weight in model.parameters())
