"""Composition, draws, schedules, errors."""

from dataclasses import replace

import pytest
import torch

from smoothtune import (
    CWGNC,
    L2SP,
    LNSR,
    R3F,
    UEGR,
    ChildTuning,
    JacHess,
    Jacobian,
    Mixout,
    Noise,
    NonFiniteLoss,
    Objective,
)
from smoothtune.core.regularizer import Penalty, method
from smoothtune.core.strength import Solution
from smoothtune.functional.parametrizations import trained_weight
from smoothtune.nn import rng
from smoothtune.nn.model_facts import PROBLEM_TYPES
from smoothtune.testing import tiny_batch, tiny_model


def gradient(objective, model, batch):
    loss = objective(model, batch)
    return torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)


def test_order_does_not_matter_to_the_last_bit():
    results = []
    for methods in [
        (LNSR(weight=1.0), R3F(sigma=0.1, weight=1.0), L2SP()),
        (L2SP(), R3F(sigma=0.1, weight=1.0), LNSR(weight=1.0)),
    ]:
        model = tiny_model("bert", dropout=0.1)
        objective = Objective(*methods).attach(model)
        torch.manual_seed(2)
        results.append(gradient(objective, model, tiny_batch()))
        objective.detach()
    for a, b in zip(*results, strict=True):
        assert (a is None) == (b is None)
        assert a is None or torch.equal(a, b)


def test_terms_add_up_and_are_named():
    model = tiny_model("bert")
    objective = Objective(
        LNSR(weight=2.0), R3F(weight=1.0), LNSR(noise_ratio=0.2, weight=1.0)
    ).attach(model)
    total = objective(model, tiny_batch())
    parts = {k: v for k, v in objective.terms.items() if k.startswith("loss/")}
    assert set(parts) == {"loss/task", "loss/lnsr", "loss/lnsr_2", "loss/r3f"}
    torch.testing.assert_close(total.detach(), sum(parts.values()))
    assert objective.terms["lnsr/delta_ratio"].item() == pytest.approx(0.05)
    assert objective.terms["lnsr_2/delta_ratio"].item() == pytest.approx(0.2)


def test_methods_leave_the_task_draws_of_plain_training_alone():
    """Same dropout masks, step after step, with and without methods: comparisons are paired."""
    losses = {}
    for name, methods in {
        "plain": (),
        "both": (LNSR(weight=1.0), R3F(weight=1.0)),
        "noise": (Noise(noise_ratio=1e-12),),
    }.items():
        model = tiny_model("bert", dropout=0.3)
        objective = Objective(*methods).attach(model)
        torch.manual_seed(4)
        losses[name] = []
        for _ in range(3):
            objective(model, tiny_batch())
            task = objective.terms.get("loss/task", objective.terms.get("loss/noise"))
            losses[name].append(task.item())
        objective.detach()
    assert losses["plain"] == losses["both"]
    assert losses["noise"] == pytest.approx(losses["plain"], rel=1e-9)
    assert len(set(losses["plain"])) == 3


def test_every_applies_the_term_less_often_and_as_strongly():
    model = tiny_model("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    often = Objective(L2SP(beta=1.0)).bind(model, optimizer)
    often(model, tiny_batch())
    expected = often.terms["loss/l2_sp"].item()
    often.detach()
    seldom = Objective(L2SP(beta=1.0, every=3)).bind(model, optimizer)
    found = []
    for _ in range(6):
        for _ in range(2):  # accumulation: micro-batches of one update are treated alike
            seldom(model, tiny_batch()).backward()
            found.append(seldom.terms.get("loss/l2_sp", torch.zeros(())).item())
        optimizer.step()
    assert found == pytest.approx(([3 * expected] * 2 + [0] * 4) * 2)


def test_terms_may_be_restricted_to_batches_without_labels():
    model = tiny_model("bert")
    objective = Objective(LNSR(batches="unlabeled", weight=1.0)).attach(model)
    labeled = tiny_batch()
    unlabeled = {k: v for k, v in labeled.items() if k != "labels"}
    objective(model, labeled)
    assert set(objective.terms) == {"loss", "loss/task"}
    objective(model, unlabeled)
    assert set(objective.terms) == {"loss", "loss/lnsr", "lnsr/delta_ratio"}
    objective.detach()
    with pytest.raises(ValueError, match="no labels"):
        Objective(LNSR(batches="labeled", weight=1.0)).attach(model)(model, unlabeled)


def test_two_methods_cannot_replace_the_task_loss():
    with pytest.raises(ValueError, match="noise and noise"):
        Objective(Noise(), Noise())


def test_attaching_twice_and_acting_unattached_are_errors():
    model = tiny_model("bert")
    objective = Objective(CWGNC())
    with pytest.raises(RuntimeError, match="attach the objective"):
        objective.before_step()
    objective.attach(model)
    with pytest.raises(RuntimeError, match="attached already"):
        objective.attach(model)


@method("broken")
class Broken(Penalty):
    def loss(self, clean):
        return clean.run().logits.sum() * torch.inf


@pytest.mark.parametrize("part", ["broken", "task"])
def test_a_term_that_is_not_finite_is_named_with_its_examples(part):
    model = tiny_model("bert")
    batch = tiny_batch() | {"example_id": torch.tensor([7, 42, 3, 11])}
    if part == "task":
        model.classifier.weight.data[0, 0] = torch.nan
    objective = Objective(Broken()) if part == "broken" else Objective()
    objective.step = 5
    with pytest.raises(NonFiniteLoss, match=r"update 6.*\[7, 42, 3, 11\].*" + part):
        objective(model, batch)


@method("recorder")
class Recorder(Penalty):
    """Notes what it is called with, and draws wherever it may."""

    def attach(self, model):
        self.seen = []

    def loss(self, clean):
        self.seen.append(("loss", torch.rand(1).item()))
        return clean.run().logits.sum()

    def detach(self, model):
        self.seen.append(("detached", model))

    def before_step(self, model):
        self.seen.append(("before", torch.rand(1).item()))

    def after_step(self, model):
        self.seen.append(("after", model))

    def state_dict(self):
        return {"kept": torch.tensor(5.0), "a/b": torch.tensor(6.0)}

    def load_state_dict(self, state):
        self.seen.append(("loaded", state))


def updated(objective, model, count=2):
    """What the recorder notes in some updates of two batches each."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    objective.bind(model, optimizer)
    for _ in range(count):
        for _ in range(2):
            objective(model, tiny_batch()).backward()
        optimizer.step()
    return objective.regularizers["recorder"].seen


def test_the_moments_of_an_update_come_in_their_order():
    model, objective = tiny_model("bert"), Objective(Recorder())
    seen = updated(objective, model)
    assert [moment for moment, _ in seen] == ["loss", "loss", "before", "after"] * 2
    assert all(value is model for moment, value in seen if moment == "after")
    draws = [value for moment, value in seen if moment != "after"]
    assert len(set(draws)) == 6
    assert (objective.step, objective.calls) == (2, 4)


def test_detaching_is_told_to_every_method_once():
    model, objective = tiny_model("bert"), Objective(Recorder(), Recorder())
    objective.detach()  # of nothing
    objective.attach(model)
    objective.detach()
    objective.detach()
    assert [r.seen for r in objective.regularizers.values()] == [[("detached", model)]] * 2


def test_draws_belong_to_the_seed_the_method_and_the_call():
    """Recorded results are those of these streams, so their names are part of the interface."""
    model, objective = tiny_model("bert"), Objective(Recorder())
    torch.manual_seed(9)  # counts when the objective is attached
    seen = [value for moment, value in updated(objective, model) if moment != "after"]
    assert objective.seed == 9
    expected = []
    for step in range(2):
        names = [("recorder", 2 * step + 1), ("recorder", 2 * step + 2)]
        for name, call in [*names, ("recorder/gradients", step)]:
            with rng.stream(torch.device("cpu"), 9, name, call):
                expected.append(torch.rand(1).item())
    assert seen == expected


def test_edits_of_the_gradients_draw_the_same_in_every_process(monkeypatch):
    seen = []
    for rank in (0, 1):
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        objective = Objective(Recorder()).attach(tiny_model("bert"))
        objective.seed = 9
        objective(objective.model, tiny_batch())
        objective.before_step()
        seen.append([value for _, value in objective.regularizers["recorder"].seen])
    (loss, before), (other_loss, other_before) = seen
    assert before == other_before
    assert loss != other_loss


def test_state_round_trip():
    objective = Objective(Recorder(), Recorder())
    updated(objective, tiny_model("bert"))
    state = objective.state_dict()
    assert {name: value.item() for name, value in state.items()} == {
        "seed": objective.seed,
        "step": 2,
        "calls": 4,
        "problem_type": PROBLEM_TYPES.index("single_label_classification"),
        "strength.seen.recorder": 2,
        "strength.seen.recorder_2": 2,
        "recorder/kept": 5,
        "recorder/a/b": 6,
        "recorder_2/kept": 5,
        "recorder_2/a/b": 6,
    }
    state["recorder_2/kept"] = torch.tensor(7.0)
    state["seed"] = torch.tensor(11)
    fresh = tiny_model("bert")
    other = Objective(Recorder(), Recorder()).attach(fresh)
    other.load_state_dict(state)
    assert fresh.config.problem_type == "single_label_classification"
    assert (other.seed, other.step, other.calls) == (11, 2, 4)
    loaded = [r.seen[-1][1] for r in other.regularizers.values()]
    assert [(state["kept"].item(), state["a/b"].item()) for state in loaded] == [(5, 6), (7, 6)]


def test_a_state_is_not_lost_by_binding_after_it():
    model = tiny_model("bert")
    objective = Objective(L2SP()).attach(model)
    state = objective.state_dict()
    objective.detach()
    for early in (Objective(L2SP()), objective):
        with pytest.raises(RuntimeError, match=r"to a model first: objective\.bind\(model"):
            early.load_state_dict(state)


def test_a_problem_type_of_ones_own_is_left_alone():
    model = tiny_model("bert")
    model.config.problem_type = "ordinal"
    objective = Objective(Recorder()).attach(model)
    objective.load_state_dict(objective.state_dict())
    objective.detach()
    assert model.config.problem_type == "ordinal"


@pytest.mark.parametrize("seed", [0, 2**63 - 1, 2**63, 2**64 - 1, -1])
def test_every_seed_of_torch_comes_back(seed):
    torch.manual_seed(seed)
    model = tiny_model("bert")
    torch.manual_seed(seed)
    objective = Objective(Recorder()).attach(model)
    assert objective.seed == seed % 2**64
    other = Objective(Recorder()).attach(tiny_model("bert"))
    other.load_state_dict(objective.state_dict())
    assert other.seed == objective.seed


def test_diagnostics_are_those_of_the_last_batch():
    @method("diagnosed")
    class Diagnosed(Recorder):
        def loss(self, clean):
            self.diagnostics["size"] = clean.run().logits.abs().sum()
            return

    objective = Objective(Diagnosed(every=2)).attach(tiny_model("bert"))
    objective(objective.model, tiny_batch())
    assert set(objective.terms) == {"loss", "loss/task", "diagnosed/size"}
    assert not objective.terms["diagnosed/size"].requires_grad
    objective.step = 1
    objective(objective.model, tiny_batch())
    assert set(objective.terms) == {"loss", "loss/task"}


def test_state_of_other_methods_is_refused():
    model = tiny_model("bert")
    state = Objective(L2SP()).attach(model).state_dict()
    with pytest.raises(ValueError, match="l2_sp"):
        Objective(LNSR(weight=1.0)).attach(tiny_model("bert")).load_state_dict(state)


def test_state_of_other_fields_is_refused():
    """Without a clip a state has no running mean."""
    state = Objective(JacHess(weight=1.0)).attach(tiny_model("bert")).state_dict()
    with pytest.raises(ValueError, match="lacks 'mean' of jachess: .*with other fields"):
        Objective(JacHess(weight=1.0, clip=10.0)).attach(tiny_model("bert")).load_state_dict(state)


def test_detaching_removes_the_optimizer_hooks():
    model = tiny_model("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    objective = Objective(CWGNC(), Mixout()).bind(model, optimizer)
    assert len(optimizer._optimizer_step_pre_hooks) == 1
    objective.detach()
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


def test_plain_modules_with_other_inputs_work_where_nothing_is_perturbed():
    class Regression(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 1)

        def forward(self, x, labels):
            return {"loss": (self.linear(x).squeeze(-1) - labels).square().mean()}

    model = Regression()
    objective = Objective(L2SP(), Mixout(), CWGNC()).attach(model)
    loss = objective(model, {"x": torch.randn(4, 3), "labels": torch.randn(4)})
    loss.backward()
    objective.before_step()
    assert trained_weight(model.linear).grad.norm() <= 1 + 1e-6


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (LNSR, r"^LNSR is a class: write LNSR\(\)"),
        ("lnsr", "^'lnsr' is a name"),
        (3, "^3 is no method"),
    ],
)
def test_what_is_no_method_is_told(value, message):
    with pytest.raises(TypeError, match=message):
        Objective(value)


def test_methods_may_come_in_lists():
    assert list(Objective([LNSR(), [L2SP()]], CWGNC()).regularizers) == ["cwgnc", "l2_sp", "lnsr"]


def test_a_batch_without_tensors_is_told():
    batch = {name: value.tolist() for name, value in tiny_batch().items()}
    with pytest.raises(ValueError, match="no input of the batch is a tensor: .* input_ids, att"):
        Objective()(tiny_model("bert"), batch)


def test_outputs_without_names_are_told():
    model = tiny_model("bert")
    model.config.return_dict = False
    with pytest.raises(ValueError, match="gives a tuple, .* set model.config.return_dict = True"):
        Objective()(model, tiny_batch())


@pytest.mark.parametrize(
    "method", [LNSR(), ChildTuning(mode="D", fisher_steps=9), UEGR(attack="none", mask_every=9)]
)
def test_a_state_is_loaded_to_where_the_model_is(method):
    """A checkpoint is read to the host, and meta tensors mix with those of no other device."""
    model = tiny_model("bert")
    objective = Objective(method).bind(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(2):
        objective(model, tiny_batch()).backward()
        objective.optimizer.step()
    state = objective.state_dict()
    objective.detach()
    model = tiny_model("bert").to("meta")
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    objective = Objective(replace(method)).attach(model)
    objective.load_state_dict(state)
    norm = torch.zeros((), device="meta")
    zeros = {name: norm for name in objective.strengths.bounded}
    losses = dict.fromkeys(zeros, torch.zeros(2, device="meta"))
    held = dict.fromkeys(zeros, norm > 0)
    objective.strengths.finish(Solution(zeros, zeros, held, norm, norm, {}, losses))
    for each in objective.regularizers.values():
        each.before_step(model)
        each.after_step(model)
    tensors = list(objective.strengths.sums.values())
    for each in objective.regularizers.values():  # but uegr's mask, which every update moves
        state = each.state_dict()
        tensors += [x for key, x in state.items() if key.startswith(("fisher/", "mask/"))]
    assert all(x.device.type == "meta" for x in tensors)


def test_a_loss_of_the_loops_own_is_the_task_loss():
    model, batch = tiny_model("bert"), tiny_batch()

    def loss(model, batch):
        outputs = model(**batch)
        return 3 * outputs.loss, outputs

    expected = 3 * model(**batch).loss
    for methods in ((), (LNSR(weight=1.0),)):
        objective = Objective(*methods).attach(model)
        objective(model, batch, loss)
        torch.testing.assert_close(objective.terms["loss/task"], expected.detach())
        objective.detach()


def test_the_length_of_the_run_is_told_in_bind():
    model = tiny_model("bert")
    objective = Objective(R3F(weight=1.0, ramp_start=0.25))
    objective.bind(model, torch.optim.SGD(model.parameters(), lr=0.0), 8)
    found = []
    for _ in range(4):
        objective(model, tiny_batch()).backward()
        objective.optimizer.step()
        found.append("loss/r3f" in objective.terms)
    assert found == [False, False, True, True]


@pytest.mark.parametrize(("method", "fused"), [(R3F(weight=1.0), True), (Jacobian(), False)])
def test_attention_has_fused_kernels_unless_a_method_differentiates_twice(method, fused):
    model = tiny_model("bert")
    seen = set()
    model.bert.register_forward_pre_hook(
        lambda *_: seen.add(torch.backends.cuda.flash_sdp_enabled())
    )
    before = torch.backends.cuda.flash_sdp_enabled()
    objective = Objective(method).attach(model)
    objective(model, tiny_batch())
    assert seen == {fused}
    assert torch.backends.cuda.flash_sdp_enabled() == before
