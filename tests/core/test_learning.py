"""When the model has begun to learn, and who waits for it."""

import pytest
import torch

from smoothtune import L2SP, LNSR, METHODS, R3F, VAT, JacHess, Mixout, Objective
from smoothtune.config.checks import with_present_names
from smoothtune.core.learning import Learning
from smoothtune.testing import fixed_draws, tiny_batch, tiny_model

pytestmark = pytest.mark.waits
CPU = torch.device("cpu")


def fed(*losses, batches=1):
    learning = Learning()
    for step, loss in enumerate(losses):
        for part in range(batches):  # of unequal loss, with the same mean
            learning.add(torch.tensor(loss + part - (batches - 1) / 2))
        learning.finish(step, CPU)
    return learning


@pytest.mark.parametrize("batches", [1, 3])
def test_the_mean_of_ten_updates_has_to_fall_by_a_tenth(batches):
    # after the first 10 of 1.0, five of 0.79: (5 * 1.0 + 5 * 0.79) / 10 = 0.895
    assert fed(*[1.0] * 10, *[0.79] * 4, batches=batches).since is None
    assert fed(*[1.0] * 10, *[0.79] * 5, batches=batches).since == 15
    assert fed(*[1.0] * 10, *[0.91] * 50, batches=batches).since is None
    assert fed(*[1.0] * 10, *[0.5] * 2, *[1.0] * 50, batches=batches).since == 12  # for good


def test_updates_without_labels_do_not_count():
    learning = fed(*[1.0] * 10)
    learning.finish(10, CPU)
    assert len(learning.recent) == 10
    assert learning.since is None


def test_it_goes_on_where_it_was_stopped():
    learning = fed(*[1.0] * 10, *[0.79] * 4, batches=3)
    again = Learning()
    again.load_state_dict(learning.state_dict())
    assert (again.first, again.recent) == (learning.first, learning.recent)  # to the last bit
    again.add(torch.tensor(0.79))
    again.finish(14, CPU)
    assert again.since == 15
    final = Learning()
    final.load_state_dict(again.state_dict())
    assert final.since == 15
    old = Learning()
    old.load_state_dict({})  # of a run whose terms began at once
    assert old.since == 0


def test_a_term_comes_in_when_the_model_learns():
    model, batch = tiny_model("bert"), tiny_batch()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    objective = Objective(LNSR(), Mixout(p=0.1)).bind(model, optimizer, num_training_steps=1000)
    losses, acting = [], []
    for _ in range(60):
        objective(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(objective.terms["loss/task"].item())
        acting.append("loss/lnsr" in objective.terms)
    learned = next(
        step for step in range(10, 60) if sum(losses[step - 9 : step + 1]) <= 0.9 * sum(losses[:10])
    )
    assert acting.index(True) == learned + 1
    assert all(acting[learned + 1 :])
    objective.detach()


def trained(methods, batches, *, scaler=None, **options):
    """Weights after updates with AdamW, and the terms of each."""
    model = tiny_model("bert")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    objective = Objective(*methods).bind(model, optimizer, **options)
    scaler, terms = scaler or torch.amp.GradScaler(enabled=False), []
    with fixed_draws():
        for group in batches:
            for batch in group if isinstance(group, list) else [group]:
                scaler.scale(objective(model, batch)).backward()
                terms.append(set(objective.terms))
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    objective.detach()
    return model.state_dict(), terms


def assert_equal(weights, expected):
    """But for the rounding of another implementation of attention."""
    for name, weight in weights.items():
        torch.testing.assert_close(weight, expected[name], rtol=0, atol=1e-9, msg=name)


LABELED = tiny_batch()
UNLABELED = {name: LABELED[name] for name in ("input_ids", "attention_mask")}
LATE = ["alum", "cross_holder", "jachess", "jacobian", "lnsr", "sift", "vat"]  # on all batches


def test_who_waits_and_acts_on_all_batches():
    waiting = (name for name, method in METHODS.items() if method.waits_with_share)
    assert [name for name in waiting if METHODS[name]().acts_without_labels] == LATE


@pytest.mark.parametrize("name", LATE)
def test_unlabeled_batches_move_nothing_before_their_terms_come_in(name):
    """Momentum and weight decay do not, either; then the terms act on both kinds of batches."""
    few = {"num_training_steps": 20}  # at the latest in the 7th
    waited, terms = trained([METHODS[name](share=0.3)], [LABELED, UNLABELED] * 3, **few)
    assert not any(f"loss/{name}" in found for found in terms)
    assert_equal(waited, trained([], [LABELED] * 3)[0])
    _, terms = trained([METHODS[name](share=0.3)], [LABELED, UNLABELED] * 5, **few)
    assert [f"loss/{name}" in found for found in terms] == [False] * 6 + [True] * 4


def test_a_scaler_waits_for_no_gradient_of_such_batches():
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    method = VAT(share=0.3)
    found, _ = trained([method], [LABELED, UNLABELED] * 3, scaler=scaler, num_training_steps=20)
    plain, _ = trained([], [LABELED] * 3)
    assert_equal(found, plain)


@pytest.mark.parametrize("group", [[LABELED, UNLABELED], [UNLABELED, LABELED]])
def test_such_a_batch_takes_nothing_from_the_others_of_its_update(group):
    found, _ = trained([VAT(share=0.3)], [group] * 3, num_training_steps=20)
    plain, _ = trained([], [LABELED] * 3)
    assert_equal(found, plain)


def test_a_term_that_never_meets_unlabeled_batches_in_its_turn_is_an_error():
    with pytest.raises(ValueError, match="no method gives a loss without them in update 2"):
        trained([VAT(share=0.3, every=2)], [LABELED, UNLABELED], num_training_steps=20)


def test_its_state_is_part_of_the_objective():
    model, batch = tiny_model("bert"), tiny_batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    first = Objective(L2SP(share=0.3, ramp_start="auto")).bind(model, optimizer)
    for _ in range(3):
        first(model, batch).backward()
        optimizer.step()
    state = first.state_dict()
    first.detach()
    second = Objective(L2SP(share=0.3, ramp_start="auto")).bind(model, optimizer)
    second.load_state_dict(state)
    found = second.strengths._learning
    assert found.recent == first.strengths._learning.recent
    assert len(found.first) == 3
    second.detach()
    fixed = Objective(L2SP(share=0.3, ramp_start=0)).bind(model, optimizer)
    assert not any("learning" in key for key in fixed.state_dict())
    fixed.detach()


@pytest.mark.parametrize(
    ("method", "length", "learned", "acting"),
    [
        (JacHess(), 10, None, [3, 4, 5, 6, 7, 8, 9]),  # at the latest
        (JacHess(), 10, 1, list(range(1, 10))),
        (JacHess(), 10, 8, [3, 4, 5, 6, 7, 8, 9]),
        (JacHess(), None, None, []),
        (JacHess(), None, 4, [4, 5, 6, 7, 8, 9]),
        (JacHess(weight=1.0), 10, None, list(range(10))),  # as in the papers
        (R3F(share=0.3), 10, None, list(range(10))),  # did best at once
        (VAT(share=0.3), 10, None, [3, 4, 5, 6, 7, 8, 9]),
        (VAT(weight=1.0, ramp_start="auto"), 10, None, [3, 4, 5, 6, 7, 8, 9]),
        (JacHess(ramp_start=0), 10, None, list(range(10))),
        (JacHess(ramp_start=5), 10, 1, [5, 6, 7, 8, 9]),
    ],
)
def test_terms_with_a_share_wait_for_the_model_to_learn(method, length, learned, acting):
    method.num_training_steps = length
    assert [step for step in range(10) if method.ramp(step, learned)] == acting
    assert method.ramp(100, learned) == 1  # where the length is not known


def test_a_term_that_waited_rises_from_there():
    method = JacHess(ramp_steps=4)
    assert [method.ramp(step, 5) for step in (4, 5, 6, 7, 8, 9)] == [0, 0.25, 0.5, 0.75, 1, 1]


@pytest.mark.parametrize("strength", [{"weight": 1.0}, {"share": 0.3}])
def test_recorded_methods_from_before_began_at_once(strength):
    assert with_present_names({"lnsr": strength})["lnsr"]["ramp_start"] == 0
    kept = with_present_names({"lnsr": strength | {"ramp_start": "auto"}})
    assert kept["lnsr"]["ramp_start"] == "auto"
