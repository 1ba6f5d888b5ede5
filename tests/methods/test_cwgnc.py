"""CWGNC."""

import torch

from smoothtune import CWGNC, Objective
from smoothtune.testing import tiny_batch, tiny_model


def step(*regularizers):
    """(name -> gradient) as the optimizer sees it."""
    model = tiny_model("bert")
    seen = {}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    objective = Objective(*regularizers).bind(model, optimizer)
    objective(model, tiny_batch()).backward()
    optimizer.register_step_pre_hook(
        lambda *_: seen.update({n: p.grad.clone() for n, p in model.named_parameters()})
    )
    optimizer.step()
    objective.detach()
    return seen


def test_every_component_is_clipped_for_itself():
    plain, clipped = step(), step(CWGNC(max_norm=0.02))
    above = 0
    for name, g in plain.items():
        norm = sum(v * v for v in g.flatten().tolist()) ** 0.5
        expected = g * (0.02 / norm) if norm > 0.02 else g
        above += norm > 0.02
        torch.testing.assert_close(clipped[name], expected)
        assert clipped[name].norm() <= 0.02 * (1 + 1e-6)
    assert 0 < above < len(plain)


def test_a_high_limit_changes_nothing():
    plain, clipped = step(), step(CWGNC(max_norm=1e9))
    assert all(torch.equal(plain[name], clipped[name]) for name in plain)


def test_without_gradients_nothing_is_clipped():
    model = tiny_model("bert")
    objective = Objective(CWGNC()).attach(model)
    objective.before_step()
    assert objective.regularizers["cwgnc"].diagnostics["clipped"] == 0
