"""Two gloo processes that shard a model with FSDP2 give what one process gives."""

import pytest
import torch

from helpers.fsdp import SHARDED
from helpers.processes import on_two_processes
from helpers.training import FSDP_TESTED, collate
from smoothtune import LNSR, METHODS, Jacobian, Objective
from smoothtune.testing import fixed_draws, tiny_model, with_weight


@pytest.fixture(scope="module")
def on_two(tmp_path_factory):
    """Folder of the whole gradients of one step on two processes."""
    folder = tmp_path_factory.mktemp("two")
    on_two_processes("fsdp_worker.py", folder)
    return folder


@pytest.mark.parametrize("kind", SHARDED)
@pytest.mark.parametrize("method", FSDP_TESTED)
def test_two_processes_equal_one(method, kind, on_two):
    found = torch.load(on_two / f"{kind}-{method}.pt", weights_only=True)
    make, data = SHARDED[kind]
    model = make()
    objective = Objective(with_weight(METHODS[method](**FSDP_TESTED[method]))).attach(model)
    with fixed_draws():
        objective(model, collate([data[i] for i in range(len(data))])).backward()
    graded = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert graded.keys() == found.keys()
    for name, gradient in graded.items():
        torch.testing.assert_close(found[name], gradient, rtol=0, atol=1e-6, msg=name)


def test_refuses_what_it_cannot_do(monkeypatch):
    """Detection needs no second process: any sharded module counts."""

    class Sharded(torch.nn.Linear):
        pass

    monkeypatch.setattr("smoothtune.core.support.FSDPModule", Sharded)
    model = tiny_model("bert")
    model.classifier.__class__ = Sharded
    with pytest.raises(ValueError, match="use DDP"):
        Objective(Jacobian(estimator="projected", weight=0.01)).attach(model)
    with pytest.raises(ValueError, match="use DDP"):
        Objective(LNSR(noise="in_manifold", weight=1.0)).attach(model)
    Objective(LNSR(weight=1.0)).attach(model)
