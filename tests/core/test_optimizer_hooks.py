"""Updates as the methods see them: scalers, closures, wrappers, loops that forget to bind."""

import gc
import weakref

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import GradientState
from accelerate.utils import GradientAccumulationPlugin
from torch.nn.functional import cross_entropy
from torch.optim.optimizer import (
    _global_optimizer_post_hooks,
    register_optimizer_step_post_hook,
)

from smoothtune import (
    CWGNC,
    L2SP,
    LLRD,
    LNSR,
    R3F,
    R4F,
    SMART,
    UEGR,
    ChildTuning,
    Mixout,
    Objective,
    ReInit,
)
from smoothtune.core.optimizer_hooks import WATCHING, _report
from smoothtune.core.regularizer import Regularizer, method
from smoothtune.testing import tiny_batch, tiny_model

FUSED = {
    "adamw": lambda weights: torch.optim.AdamW(weights, lr=0.1, fused=True),
    "sgd": lambda weights: torch.optim.SGD(weights, lr=0.1, fused=True),
}


def weights_of(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def movement(model, before):
    return {name: (p - before[name]).norm().item() for name, p in model.named_parameters()}


@method("recorder")
class Recorder(Regularizer):
    """Notes the gradient that it is given."""

    def attach(self, model):
        self.norms, self.updates = [], 0

    def before_step(self, model):
        gradient = model.classifier.weight.grad
        self.norms.append(None if gradient is None else gradient.norm().item())

    def after_step(self, model):
        self.updates += 1


@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("make", FUSED.values(), ids=FUSED)
def test_a_scaler_with_a_fused_optimizer_makes_the_update_of_none(make, unscale):
    after = []
    for enabled in (False, True):
        model = tiny_model("bert")
        optimizer = make(model.parameters())
        objective = Objective(CWGNC(max_norm=0.01), Recorder()).bind(model, optimizer)
        scaler = torch.amp.GradScaler("cpu", enabled=enabled)
        for _ in range(2):
            scaler.scale(objective(model, tiny_batch())).backward()
            if unscale:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        assert objective.step == 2
        after.append((weights_of(model), objective.regularizers["recorder"].norms))
    (plain, norms), (scaled, scaled_norms) = after
    assert scaled_norms == pytest.approx(norms, rel=1e-5)
    for name, weight in plain.items():
        torch.testing.assert_close(scaled[name], weight, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("make", FUSED.values(), ids=FUSED)
def test_an_update_that_overflows_is_not_seen(make):
    model = tiny_model("bert")
    optimizer = make(model.parameters())
    objective = Objective(ChildTuning(mode="D", fisher_steps=2, keep=0.5), Recorder())
    objective.bind(model, optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    before, recorder = weights_of(model), objective.regularizers["recorder"]
    for overflow in (True, False, True, False, False):
        loss = objective(model, tiny_batch())
        (scaler.scale(loss) * (torch.inf if overflow else 1)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if overflow:
            assert objective.step == recorder.updates == len(recorder.norms)
    assert objective.step == recorder.updates == 3
    masks = objective.regularizers["child_tuning"]._masks
    assert 0.4 < torch.cat([m.flatten() for m in masks.values()]).float().mean() <= 0.5
    moved = movement(model, before)
    assert moved["bert.encoder.layer.0.output.dense.weight"] > 0


def test_gradients_that_no_method_edits_are_left_to_the_optimizer():
    model = tiny_model("bert")
    optimizer = FUSED["adamw"](model.parameters())
    objective = Objective(LNSR(every=2, weight=1.0)).bind(model, optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(objective(model, tiny_batch())).backward()
    scales = []
    optimizer.register_step_pre_hook(lambda *_: scales.append(optimizer.grad_scale.item()))
    scaler.step(optimizer)
    assert scales == [4.0]
    assert objective.step == 1


def test_what_a_closure_has_applied_is_recorded_in_its_update():
    model = tiny_model("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    objective = Objective(LNSR()).bind(model, optimizer)

    def closure():
        optimizer.zero_grad()
        loss = objective(model, tiny_batch())
        loss.backward()
        return loss

    for step in range(2):
        optimizer.step(closure)
        assert objective.strengths.applied()["lnsr"].updates == step + 1
    objective.detach()


@pytest.mark.parametrize("by_name", [False, True])
def test_gradients_of_a_closure_are_edited(by_name):
    model = tiny_model("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    objective = Objective(CWGNC(max_norm=1e-3)).bind(model, optimizer)
    before = weights_of(model)

    def closure():
        optimizer.zero_grad()
        loss = objective(model, tiny_batch())
        loss.backward()
        return loss

    loss = optimizer.step(closure=closure) if by_name else optimizer.step(closure)
    assert loss.item() == pytest.approx(objective.terms["loss"].item())
    moved = movement(model, before)
    assert max(moved.values()) == pytest.approx(1e-3, rel=1e-3)
    assert objective.step == 1


def test_every_gradient_of_lbfgs_is_edited():
    model = tiny_model("bert")
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1e-3, max_iter=3)
    objective = Objective(CWGNC(max_norm=1e-3)).bind(model, optimizer)
    norms = []

    def closure():
        if model.classifier.weight.grad is not None:  # as the optimizer has read it
            norms.append(model.classifier.weight.grad.norm().item())
        optimizer.zero_grad()
        loss = objective(model, tiny_batch())
        loss.backward()
        return loss

    optimizer.step(closure)
    assert len(norms) == 2
    assert max(norms) <= 1e-3 * (1 + 1e-5)
    assert objective.step == 1


def test_methods_that_act_once_in_an_update_refuse_several_gradients():
    for max_iter in (1, 3):
        model = tiny_model("bert")
        optimizer = torch.optim.LBFGS(model.parameters(), lr=1e-3, max_iter=max_iter)
        objective = Objective(ChildTuning(freeze=True)).bind(model, optimizer)

        def closure(optimizer=optimizer, objective=objective, model=model):
            optimizer.zero_grad()
            loss = objective(model, tiny_batch())
            loss.backward()
            return loss

        if max_iter == 1:
            optimizer.step(closure)
        else:
            with pytest.raises(RuntimeError, match="child_tuning.*max_iter=1"):
                optimizer.step(closure)


def test_an_accelerate_loop_with_accumulation():
    """Two updates of two batches each, like one of both batches, clipped and counted once."""
    GradientState._reset_state()  # else at the end of the data of a trainer of another test
    accelerator = Accelerator(
        cpu=True, gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=2)
    )
    model = tiny_model("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    prepared, accelerated = accelerator.prepare(model, optimizer)
    objective = Objective(CWGNC(max_norm=1e-3), L2SP(), Recorder()).bind(prepared, accelerated)
    before = weights_of(model)
    for _ in range(4):
        with accelerator.accumulate(prepared):
            accelerator.backward(objective(prepared, tiny_batch()))
            accelerated.step()
            accelerated.zero_grad()
    assert objective.step == 2
    assert objective.regularizers["recorder"].updates == 2
    moved = movement(model, before)
    assert 1e-3 < max(moved.values()) <= 2e-3 * (1 + 1e-5)
    objective.detach()
    assert not optimizer._optimizer_step_pre_hooks


def test_an_optimizer_without_hooks_is_refused():
    class Wrapper:
        param_groups = ()

    with pytest.raises(TypeError, match="bind the optimizer that it wraps"):
        Objective().attach(tiny_model("bert")).bind_optimizer(Wrapper())


def test_a_second_optimizer_is_refused():
    model = tiny_model("bert")
    head, rest = model.classifier.parameters(), model.bert.parameters()
    objective = Objective(CWGNC()).bind(model, torch.optim.SGD(head, lr=0.1))
    with pytest.raises(RuntimeError, match="one optimizer with several parameter groups"):
        objective.bind_optimizer(torch.optim.SGD(rest, lr=0.1))


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW", "fused", "foreach"])
@pytest.mark.parametrize(
    "make",
    [
        CWGNC,
        LLRD,
        ChildTuning,
        UEGR,
        lambda: LNSR(every=2, weight=1.0),
        lambda: LNSR(weight=1.0, ramp_start=5),
        LNSR,
        lambda: L2SP(ramp_steps=5),
    ],
    ids=["cwgnc", "llrd", "child_tuning", "uegr", "every", "start", "bound", "steps"],
)
def test_updates_that_are_not_seen_are_an_error(make, optimizer):
    model = tiny_model("bert")
    extra = {} if optimizer in ("SGD", "AdamW") else {optimizer: True}
    kind = torch.optim.SGD if optimizer == "SGD" else torch.optim.AdamW
    optimizer = kind(model.parameters(), lr=0.01, **extra)
    objective = Objective(make()).attach(model)
    objective(model, tiny_batch()).backward()
    objective(model, tiny_batch()).backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match=r"objective.bind\(model, optimizer\)"):
        objective(model, tiny_batch())


@pytest.mark.parametrize("make", [Mixout, R4F, ReInit, CWGNC, lambda: R3F(every=2, weight=1.0)])
def test_a_method_that_prepares_nothing_is_an_error(make):
    with pytest.raises(RuntimeError, match=r"call objective.bind\(model, optimizer\)"):
        Objective(make())(tiny_model("bert"), tiny_batch())


def test_what_looks_like_an_unseen_update_and_is_none():
    model = tiny_model("bert", dropout=0.1)
    saved = {key: value.clone() for key, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    objective = Objective(CWGNC(), Mixout(), UEGR()).bind(model, optimizer)
    for _ in range(3):
        for _ in range(3):  # accumulation
            objective(model, tiny_batch()).backward()
        optimizer.step()
        optimizer.zero_grad()
        objective(model, tiny_batch())
        model.load_state_dict(saved)
        objective(model, tiny_batch())
        for weight in model.parameters():
            weight.data.mul_(1.01)
        objective(model, tiny_batch())
        other = tiny_model("bert")
        torch.optim.SGD(other.parameters()).step()
    assert objective.step == 3


def test_updates_may_be_told_by_hand():
    model = tiny_model("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    objective = Objective(CWGNC(max_norm=1e-3)).attach(model)
    before = weights_of(model)
    for _ in range(3):
        objective(model, tiny_batch()).backward()
        objective.before_step()
        optimizer.step()
        objective.after_step()
        optimizer.zero_grad()
    assert max(movement(model, before).values()) <= 3e-4 * (1 + 1e-5)


def test_one_of_two_optimizers_is_not_enough():
    model = tiny_model("bert")
    head = torch.optim.SGD(model.classifier.parameters(), lr=0.1)
    rest = torch.optim.SGD(model.bert.parameters(), lr=0.1)
    objective = Objective(CWGNC()).bind(model, head)
    objective(model, tiny_batch()).backward()
    rest.step()
    head.step()
    with pytest.raises(RuntimeError, match="SGD updates the weights"):
        objective(model, tiny_batch())


class Wrapping(torch.optim.Optimizer):
    """An optimizer around another, as Lookahead is."""

    def __init__(self, inner):
        self.inner = inner
        super().__init__(inner.param_groups, {})

    def step(self, closure=None):
        self.inner.step()


def test_an_optimizer_inside_the_bound_one_is_no_second_one():
    model = tiny_model("bert")
    optimizer = Wrapping(torch.optim.SGD(model.parameters(), lr=1.0))
    objective = Objective(CWGNC(max_norm=1e-3)).bind(model, optimizer)
    before = weights_of(model)
    for _ in range(3):
        objective(model, tiny_batch()).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert objective.step == 3
    assert max(movement(model, before).values()) <= 3e-3 * (1 + 1e-5)


def test_nothing_is_watched_after_detaching():
    of_other_tests = set(WATCHING)
    model = tiny_model("bert")
    objective = Objective(CWGNC()).attach(model)
    assert len(WATCHING - of_other_tests) == 1
    objective.detach()
    assert not WATCHING - of_other_tests
    lost = Objective(CWGNC()).attach(tiny_model("bert"))
    del lost
    gc.collect()
    assert not WATCHING - of_other_tests
    assert list(_global_optimizer_post_hooks.values()).count(_report) == 1


def test_an_objective_may_be_lost_within_an_update():
    model = tiny_model("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lost = [Objective(CWGNC()).attach(tiny_model("bert"))]  # as the garbage collector may end it
    first = register_optimizer_step_post_hook(lambda *_: lost.clear())
    last = register_optimizer_step_post_hook(lambda *_: None)
    try:
        objective = Objective(CWGNC()).bind(model, optimizer)
        objective(model, tiny_batch()).backward()
        optimizer.step()
    finally:
        first.remove(), last.remove()
    assert not lost


def test_pure_loss_terms_need_no_optimizer():
    model = tiny_model("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    objective = Objective(LNSR(weight=1.0), L2SP()).attach(model)
    losses = []
    for _ in range(4):
        loss = objective(model, tiny_batch())
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
    assert len(set(losses)) == 4  # the weights have moved, and nothing was raised


@pytest.mark.parametrize("second", [LNSR, Mixout])
def test_one_model_has_one_objective(second):
    model = tiny_model("bert")
    first = Objective(Mixout()).attach(model)
    with pytest.raises(RuntimeError, match="another objective is attached"):
        Objective(second()).attach(model)
    first.detach()
    Objective(second()).attach(model).detach()


@pytest.mark.parametrize("make", [LNSR, L2SP, SMART, UEGR])
def test_a_method_acts_on_one_model_at_a_time(make):
    method, first, second = make(), tiny_model("bert"), tiny_model("bert")
    before, after = (
        Objective(method).bind(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for model in (first, second)
    )
    with pytest.raises(RuntimeError, match=f"has attached this {method.name} to its model since"):
        before(first, tiny_batch())
    before.detach()  # takes nothing from the other
    after(second, tiny_batch()).backward()
    after.optimizer.step()
    after.detach()
    before.attach(first)(first, tiny_batch())
    before.detach()
    with pytest.raises(ValueError, match="given twice"):
        Objective(method, method)


@pytest.mark.parametrize("lost", [LNSR, Mixout])
def test_a_lost_objective_matters_only_where_its_weights_stayed(lost):
    model = tiny_model("bert")
    Objective(lost()).attach(model)  # the objective is gone, the model is not
    if lost is LNSR:
        Objective(R3F(weight=1.0)).attach(model)
        return
    with pytest.raises(RuntimeError, match="another objective"):
        Objective(R3F(weight=1.0)).attach(model)


def test_an_attached_model_is_not_kept_alive():
    model = tiny_model("bert")
    objective = Objective(LNSR(weight=1.0)).attach(model)
    seen = weakref.ref(model)
    objective.detach()
    del model
    assert seen() is None


@method("zz_failing")
class Failing(Regularizer):
    def attach(self, model):
        raise ValueError("not this model")


def test_attaching_that_fails_leaves_model_and_objective_as_they_were():
    model = tiny_model("bert")
    keys, before = list(model.state_dict()), weights_of(model)
    objective = Objective(Mixout(), ReInit(), Failing())
    with pytest.raises(ValueError, match="not this model"):
        objective.attach(model)
    assert list(model.state_dict()) == keys
    assert not hasattr(model.bert.encoder.layer[0].output.dense, "parametrizations")
    assert max(movement(model, before).values()) == 0
    objective.detach()
    Objective(Mixout()).attach(model)


def test_attaching_again_does_not_initialize_again():
    model = tiny_model("bert")
    objective = Objective(ReInit(), CWGNC()).attach(model)
    objective.detach()
    before = weights_of(model)
    objective.attach(model)
    assert max(movement(model, before).values()) == 0


def test_on_another_model_an_objective_begins_anew():
    def updates(objective, count):
        model = tiny_model("bert", dropout=0.1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        objective.bind(model, optimizer, 10)
        for step in range(count):
            torch.manual_seed(step)
            objective(model, tiny_batch()).backward()
            optimizer.step()
            optimizer.zero_grad()
        objective.detach()
        return model

    used = Objective(LNSR(every=2), R3F(), UEGR(mask_every=3))
    updates(used, 3)
    found = updates(used, 4)
    expected = updates(Objective(LNSR(every=2), R3F(), UEGR(mask_every=3)), 4)
    assert max(movement(found, weights_of(expected)).values()) == 0
    assert used.step == 4
    used.attach(found)  # and goes on where it was with this one
    assert used.step == 4


def test_an_update_before_the_first_batch_of_a_model_is_unseen_too():
    used = Objective(CWGNC())
    for _ in range(2):  # a first model, and another one later
        model = tiny_model("bert")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        used.attach(model)
        model(**tiny_batch()).loss.backward()
        optimizer.step()
        with pytest.raises(RuntimeError, match="SGD updates the weights, and the objective is not"):
            used(model, tiny_batch())
        used.detach()
        used.bind(model, optimizer)
        for _ in range(2):
            used(model, tiny_batch()).backward()
            optimizer.step()
        used(model, tiny_batch())
        used.detach()


def test_the_value_without_methods_needs_nothing():
    model = tiny_model("bert")
    loss = Objective()(model, tiny_batch())
    expected = cross_entropy(model(**tiny_batch())["logits"], tiny_batch()["labels"])
    torch.testing.assert_close(loss, expected)
