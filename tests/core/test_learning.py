"""When the model has begun to learn, and who waits for it."""

import math

import pytest
import torch

from smoothtune import L2SP, LNSR, METHODS, R3F, VAT, FreeLB, JacHess, Mixout, Objective
from smoothtune.config.checks import with_present_names
from smoothtune.core.constant_answer import label_sums
from smoothtune.core.learning import Learning
from smoothtune.testing import fixed_draws, tiny_batch, tiny_model

pytestmark = pytest.mark.waits
MODEL = tiny_model("bert", num_labels=2)
FEW = torch.tensor([0] * 9 + [1])  # a constant answer loses 0.325 in nats
EVEN = torch.tensor([0, 1])  # and 0.693


def fed(*losses, batches=1, labels=None):
    learning = Learning()
    for step, loss in enumerate(losses):
        for part in range(batches):  # of unequal loss, with the same mean
            learning.add(torch.tensor(loss + part - (batches - 1) / 2))
            if labels is not None:
                learning.add_labels(label_sums(MODEL, {"labels": labels}))
        learning.finish(step, MODEL)
    return learning


@pytest.mark.parametrize("batches", [1, 3])
def test_the_mean_of_ten_updates_has_to_fall_by_a_tenth(batches):
    # after the first 10 of 1.0, five of 0.79: (5 * 1.0 + 5 * 0.79) / 10 = 0.895
    assert fed(*[1.0] * 10, *[0.79] * 4, batches=batches).since is None
    assert fed(*[1.0] * 10, *[0.79] * 5, batches=batches).since == 15
    assert fed(*[1.0] * 10, *[0.91] * 50, batches=batches).since is None
    assert fed(*[1.0] * 10, *[0.5] * 2, *[1.0] * 50, batches=batches).since == 12  # for good


@pytest.mark.parametrize("batches", [1, 3])
def test_it_has_to_be_a_tenth_below_that_of_a_constant_answer(batches):
    # 0.9 * 0.325 = 0.2926: a loss that has halved knows no more than how often labels occur
    assert fed(*[0.7] * 10, *[0.33] * 50, batches=batches, labels=FEW).since is None
    assert fed(*[0.7] * 10, *[0.29] * 50, batches=batches, labels=FEW).since == 20
    # a model that has learned before is below it from the first update, and need not fall
    assert fed(*[0.5] * 11, batches=batches, labels=EVEN).since == 11
    assert fed(*[0.5] * 50, batches=batches).since is None
    # above it at first, and then no better: as a head whose scores are all 0 is in regression
    assert fed(*[9.0] * 10, *[0.68] * 50, batches=batches, labels=EVEN).since is None


def test_labels_are_those_of_all_updates():
    learning = fed(*[0.7] * 10, labels=FEW)
    for step in range(10, 50):
        learning.add(torch.tensor(0.5))
        learning.add_labels(label_sums(MODEL, {"labels": EVEN}))
        learning.finish(step, MODEL)
    # the second class is a tenth at first, and ever more of all labels
    shares = [(10 + n) / (100 + 2 * n) for n in range(1, 41)]
    entropies = [-(p * math.log(p) + (1 - p) * math.log(1 - p)) for p in shares]
    means = [(0.7 * max(0, 10 - n) + 0.5 * min(n, 10)) / 10 for n in range(1, 41)]
    steps = range(1, 41)
    first = next(n for n in steps if means[n - 1] <= 0.9 * entropies[n - 1])
    assert learning.since == 10 + first


@pytest.mark.parametrize("share", [0.5, 2.0])
def test_a_loss_is_the_mean_over_the_labeled_rows(share):
    """Two of four batches have labels, and count twice; or what is labeled is the larger half."""
    learning = Learning()
    for step in range(3):
        for loss in (0.4, 0.6):
            learning.add(share * torch.tensor(loss), share)
        learning.finish(step, MODEL)
    assert learning.first == pytest.approx([0.5] * 3)


def test_updates_without_labels_do_not_count():
    learning = fed(*[1.0] * 10)
    learning.finish(10, MODEL)
    assert len(learning.recent) == 10
    assert learning.since is None


def test_it_goes_on_where_it_was_stopped():
    learning = fed(*[1.0] * 10, *[0.79] * 4, batches=3)
    again = Learning()
    again.load_state_dict(learning.state_dict())
    assert (again.first, again.recent) == (learning.first, learning.recent)  # to the last bit
    again.add(torch.tensor(0.79))
    again.finish(14, MODEL)
    assert again.since == 15
    seen = fed(*[0.7] * 14, labels=FEW)
    resumed = Learning()
    resumed.load_state_dict(seen.state_dict())
    assert resumed.labels.tolist() == [140, 0, 126, 14]
    final = Learning()
    final.load_state_dict(again.state_dict())
    assert final.since == 15
    again.load_state_dict(learning.state_dict())
    again.add(torch.tensor(9.0))  # of an update that does not take place
    again.load_state_dict(learning.state_dict())
    again.add(torch.tensor(0.79))
    again.finish(14, MODEL)
    assert again.since == 15
    old = Learning()
    old.load_state_dict({})  # of a run whose terms began at once
    assert old.since == 0


def test_a_term_comes_in_when_the_model_learns():
    model, batch = tiny_model("bert"), tiny_batch()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    objective = Objective(LNSR(), Mixout(p=0.1)).bind(model, optimizer, num_training_steps=1000)
    losses, acting = [], []
    for _ in range(60):  # three labels for three rows
        objective(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(objective.terms["loss/task"].item())
        acting.append("loss/lnsr" in objective.terms)
    parts = torch.bincount(batch["labels"]) / len(batch["labels"])
    constant = torch.special.entr(parts).sum().item()
    learned = next(
        step for step in range(10, 60) if sum(losses[step - 9 : step + 1]) <= 9 * constant
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
    few = {"num_training_steps": 8}  # at the latest in the 7th
    waited, terms = trained([METHODS[name](share=0.3)], [LABELED, UNLABELED] * 3, **few)
    assert not any(f"loss/{name}" in found for found in terms)
    assert_equal(waited, trained([], [LABELED] * 3)[0])
    _, terms = trained([METHODS[name](share=0.3)], [LABELED, UNLABELED] * 5, **few)
    assert [f"loss/{name}" in found for found in terms] == [False] * 6 + [True] * 4


def test_a_scaler_waits_for_no_gradient_of_such_batches():
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    method = VAT(share=0.3)
    found, _ = trained([method], [LABELED, UNLABELED] * 3, scaler=scaler, num_training_steps=8)
    plain, _ = trained([], [LABELED] * 3)
    assert_equal(found, plain)


@pytest.mark.parametrize("group", [[LABELED, UNLABELED], [UNLABELED, LABELED]])
def test_such_a_batch_takes_nothing_from_the_others_of_its_update(group):
    found, _ = trained([VAT(share=0.3)], [group] * 3, num_training_steps=8)
    plain, _ = trained([], [LABELED] * 3)
    assert_equal(found, plain)


def test_a_term_that_never_meets_unlabeled_batches_in_its_turn_is_an_error():
    with pytest.raises(ValueError, match="no method gives a loss without them in update 2"):
        trained([VAT(share=0.3, every=2)], [LABELED, UNLABELED], num_training_steps=8)


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
        (JacHess(), 10, None, [8, 9]),  # at the latest
        (JacHess(), 10, 1, list(range(1, 10))),
        (JacHess(), 10, 9, [8, 9]),
        (JacHess(), None, None, []),
        (JacHess(), None, 4, [4, 5, 6, 7, 8, 9]),
        (JacHess(weight=1.0), 10, None, list(range(10))),  # as in the papers
        (R3F(share=0.3), 10, None, list(range(10))),  # docs/concepts.md says why
        (VAT(share=0.3), 10, None, [8, 9]),
        (VAT(weight=1.0, ramp_start="auto"), 10, None, [8, 9]),
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


@pytest.mark.parametrize("name", [*LATE, "double_backprop"])
def test_what_waits_is_run_anew_by_studies(name):
    make = METHODS[name]
    at_once = make(share=0.3, ramp_start=0).results_version
    assert make(share=0.3).results_version == at_once + 1
    assert (
        make(weight=1.0, ramp_start="auto").results_version == make(weight=1.0).results_version + 1
    )


def labels_seen(objective, *batches, **options):
    """What is known of the labels after an update of these batches."""
    model = tiny_model("bert")
    objective.bind(model, torch.optim.SGD(model.parameters(), lr=0.0), num_training_steps=100)
    for batch in batches:
        objective(model, batch, **options).backward()
    objective.optimizer.step()
    found = objective.strengths._learning.labels.tolist()
    objective.detach()
    return found


def test_labels_are_counted_however_an_update_is_cut():
    rows = len(LABELED["labels"])
    parts = [{name: x[i : i + 1] for name, x in LABELED.items()} for i in range(rows)]
    seen = labels_seen(Objective(LNSR()), LABELED)
    assert seen == [rows, 0, *torch.bincount(LABELED["labels"], minlength=3)]
    assert labels_seen(Objective(LNSR()), *parts) == seen
    mixed = [UNLABELED, LABELED, LABELED | {"unlabeled": True}]
    assert labels_seen(Objective(LNSR(), VAT(share=0.3)), *mixed) == seen


def test_a_term_that_waits_no_longer_is_named(caplog):
    trained([VAT(share=0.3)], [LABELED] * 10, num_training_steps=8)
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("vat waits no longer than 6 updates, and the model has hardly begun")
    caplog.clear()
    trained([VAT(share=0.3)], [LABELED] * 30, num_training_steps=200)  # learned by then
    trained([VAT(share=0.3)], [LABELED] * 5, num_training_steps=8)
    trained([VAT(share=0.3, ramp_start=6)], [LABELED] * 10, num_training_steps=8)
    assert not caplog.records


def own_loss(model, batch):
    outputs = model(**batch)
    return 5 * outputs.loss, outputs


def test_losses_that_the_model_does_not_declare_are_compared_with_their_own_beginning():
    assert labels_seen(Objective(LNSR()), LABELED, compute_loss=own_loss) == []
    told = {"compute_loss": own_loss, "declared_loss": True}
    assert labels_seen(Objective(LNSR()), LABELED, **told) == labels_seen(
        Objective(LNSR()), LABELED
    )
    assert labels_seen(Objective(LNSR(), FreeLB()), LABELED) == []  # the mean over its steps
