"""Two gloo processes give what one process gives."""

import pytest
import torch

from helpers.processes import on_two_processes
from helpers.training import FSDP_TESTED, METHODS_TESTED, Rows, collate, weights_after
from smoothtune import LNSR, METHODS, Jacobian, Objective
from smoothtune.testing import fixed_draws, tiny_model


@pytest.mark.parametrize(("per_device", "accumulation"), [(16, 1), (4, 4)])
def test_ddp_equals_one_process(tmp_path, per_device, accumulation):
    on_two_processes("worker.py", tmp_path, str(per_device), str(accumulation), *METHODS_TESTED)
    for method in METHODS_TESTED:
        found = torch.load(tmp_path / f"{method}.pt", weights_only=True)
        expected = weights_after(tmp_path / "single", method, max_steps=2, data=Rows(32))
        for name, weight in expected.items():
            message = f"{method}: {name}"
            torch.testing.assert_close(found[name], weight, rtol=0, atol=1e-6, msg=message)


def test_fsdp2_equals_one_process(tmp_path):
    on_two_processes("fsdp_worker.py", tmp_path)
    for method, fields in FSDP_TESTED.items():
        found = torch.load(tmp_path / f"{method}.pt", weights_only=True)
        model, rows = tiny_model("bert"), Rows()
        objective = Objective(METHODS[method](**fields)).attach(model)
        with fixed_draws():
            objective(model, collate([rows[i] for i in range(32)])).backward()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                message = f"{method}: {name}"
                torch.testing.assert_close(
                    found[name], parameter.grad, rtol=0, atol=1e-6, msg=message
                )


def test_fsdp2_refuses_what_it_cannot_do(monkeypatch):
    """Detection needs no second process: any sharded module counts."""

    class Sharded(torch.nn.Linear):
        pass

    monkeypatch.setattr("smoothtune.core.support.FSDPModule", Sharded)
    model = tiny_model("bert")
    model.classifier.__class__ = Sharded
    with pytest.raises(ValueError, match="use DDP"):
        Objective(Jacobian(estimator="projected")).attach(model)
    with pytest.raises(ValueError, match="use DDP"):
        Objective(LNSR(noise="in_manifold")).attach(model)
    Objective(LNSR()).attach(model)
