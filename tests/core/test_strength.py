"""Weights that follow from a share, and the bound that holds in every update."""

import logging

import pytest
import torch
from peft import LoraConfig, get_peft_model

from smoothtune import (
    CWGNC,
    L2SP,
    LNSR,
    METHODS,
    R3F,
    SAM,
    SMART,
    UEGR,
    VAT,
    FreeLB,
    JacHess,
    Jacobian,
    LabelSmoothing,
    Mixout,
    Objective,
    SiFT,
)
from smoothtune.core.forward import model_loss
from smoothtune.core.regularizer import Penalty
from smoothtune.nn.gradients import norms
from smoothtune.nn.hf_versions import enable_checkpointing, recomputes_hooks
from smoothtune.testing import all_in_float64, fixed_draws, tiny_batch, tiny_model

PENALTIES = {
    name: cls
    for name, cls in METHODS.items()
    if issubclass(cls, Penalty) and cls().share is not None
}


def update(objective, model, optimizer, *batches, **options):
    """One update from some batches."""
    for batch in batches:
        objective(model, batch, **options).backward()
    optimizer.step()
    optimizer.zero_grad()
    return objective.terms


def still(model):
    """An optimizer that moves nothing."""
    weights = model.parameters() if isinstance(model, torch.nn.Module) else model
    return torch.optim.SGD(weights, lr=0.0)


def gradient(model):
    """Of all trained weights, flat; zero where there is none."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    return torch.cat(
        [(torch.zeros_like(w) if w.grad is None else w.grad).flatten() for w in weights]
    )


def unlabeled(batch):
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


def part(batch, rows):
    return {key: value[rows] for key, value in batch.items()}


def adapted(model):
    torch.manual_seed(0)
    return get_peft_model(model, LoraConfig(target_modules="all-linear", r=2))


def checkpointed(model):
    if recomputes_hooks(model.bert.encoder.layer[0]):
        pytest.skip("methods in blocks need transformers 5.23")
    enable_checkpointing(model)
    return model


# --- the bound ---------------------------------------------------------------------------------


def ratios(methods, make_model, updates, batches, scale=1.0):
    """||what is applied - the task's gradient|| / ||the task's gradient|| of every update."""
    model = make_model()
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=3e-3)
    objective = Objective(*methods).bind(model, optimizer, updates)
    plain, found = Objective(), []
    for step in range(updates):
        parts = batches(step)
        sums = []
        for either in (plain, objective):
            torch.manual_seed(step)  # the same dropout masks
            for batch in parts:
                (scale * either(model, batch) / len(parts)).backward()
            sums.append(gradient(model))
            if either is plain:
                optimizer.zero_grad()
        task, whole = sums
        found.append(((whole - task).norm() / task.norm()).item())
        for weight in weights:
            if weight.grad is not None:
                weight.grad /= scale
        optimizer.step()
        optimizer.zero_grad()
    applied = objective.strengths.applied()
    objective.detach()
    return found, applied


def bert():
    return tiny_model("bert", dropout=0.1, dtype=torch.float32)


def llama():
    return adapted(tiny_model("llama", dropout=0.1, dtype=torch.float32))


def one_batch(step):
    return [tiny_batch()]


def four_batches(step):
    return [part(tiny_batch(), slice(i, i + 1)) for i in range(4)]


CASES = [
    *((name, [cls], bert, one_batch) for name, cls in PENALTIES.items()),
    ("lnsr+r3f", [LNSR, R3F], bert, one_batch),
    ("in_manifold", [lambda: LNSR(noise="in_manifold", min_count=0)], bert, one_batch),
    ("lora", [LNSR, VAT], llama, one_batch),
    ("accumulated", [LNSR, SMART], bert, four_batches),
    ("strong", [lambda: R3F(share=30.0)], bert, one_batch),
    ("narrower", [lambda: LNSR(share=3.0, max_share=0.2)], bert, four_batches),
    ("weight", [lambda: LNSR(weight=100.0, max_share=0.5)], bert, one_batch),
    ("of_each", [lambda: LNSR(share=9.0, max_share=0.2), lambda: VAT(share=9.0)], bert, one_batch),
]


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize(
    "updates", [6, pytest.param(200, marks=pytest.mark.slow)], ids="{}updates".format
)
@pytest.mark.parametrize(
    ("methods", "make_model", "batches"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
def test_the_bound_holds_in_every_update(methods, make_model, batches, updates):
    methods = [make() for make in methods]
    bound = max(method.max_share for method in methods)
    found, applied = ratios(methods, make_model, updates, batches)
    assert max(found) <= bound + 1e-3
    assert found[0] > 0.01  # from the first update on
    assert all(applied[m.name].largest <= m.max_share + 1e-3 for m in methods)
    largest = sum(of.largest for of in applied.values())
    assert max(found) <= largest + 1e-3  # of a sum, at most the sum of the parts
    if len(methods) == 1:
        assert max(found) == pytest.approx(applied[methods[0].name].largest, abs=2e-3)
        mean = sum(found) / len(found)
        assert mean == pytest.approx(applied[methods[0].name].share, rel=0.01)


def test_a_scaled_loss_is_bounded_alike():
    """As by a gradient scaler, whose factor is in `.grad` until the update."""
    plain, _ = ratios([LNSR()], bert, 6, four_batches)
    scaled, _ = ratios([LNSR()], bert, 6, four_batches, scale=2.0**12)
    assert scaled == pytest.approx(plain, rel=1e-3)


@pytest.mark.parametrize("grown", [False, True])
def test_in_float16_a_scaler_that_skips_updates_leaves_nothing_behind(grown):
    found = []
    for skipped in (False, True):
        model = bert()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        objective = Objective(LNSR(), R3F()).bind(model, optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
        for step in range(4):
            for again in [True, False] if skipped and step == 2 else [False]:
                objective.calls = step
                torch.manual_seed(step)
                with torch.autocast("cpu", torch.float16):
                    loss = objective(model, tiny_batch())
                scaler.scale(loss * float("inf") if again else loss).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad(set_to_none=not grown)
                if again:
                    scaler.update(2.0**8)
        found.append([weight.detach().clone() for weight in model.parameters()])
        assert objective.step == 4
        objective.detach()
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


# --- what an update is made of -------------------------------------------------------------------


def methods_and_sizes():
    """Every method with one way to cut a batch, in turn; the rest are slow tests."""
    cuts = [(2, 2), (1, 3), (1, 1, 2)]
    for number, name in enumerate(name for name in METHODS if name != "sam"):
        for index, sizes in enumerate(cuts):
            marks = () if index == number % len(cuts) else pytest.mark.slow
            yield pytest.param(name, sizes, marks=marks)


@pytest.mark.parametrize(("name", "sizes"), list(methods_and_sizes()))
def test_batches_of_an_update_are_one_batch(name, sizes):
    """Of all methods at their defaults, in the first updates, as the mean over their rows."""
    found = []
    for cuts in [(4,), sizes]:
        with fixed_draws(), all_in_float64():
            torch.manual_seed(0)
            model = tiny_model("bert", dtype=torch.float64)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            options = {"min_count": 0} if name == "in_manifold" else {}
            objective = Objective(METHODS[name](**options)).bind(model, optimizer, 10)
            objective.calibrate(model, tiny_batch())
            for step in range(3):
                start = 0
                objective.calls = 100 * step
                for size in cuts:
                    batch = part(tiny_batch(), slice(start, start + size))
                    (objective(model, batch) * size / 4).backward()
                    objective.calls = 100 * step
                    start += size
                optimizer.step()
                optimizer.zero_grad()
            found.append([weight.detach().clone() for weight in model.parameters()])
            objective.detach()
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)


def test_what_is_clipped_is_what_is_applied():
    model = bert()
    objective = Objective(LNSR(share=0.8)).bind(model, optimizer := still(model))
    for _ in range(3):
        for batch in four_batches(0):
            objective(model, batch).backward()
        before = gradient(model).norm()
        assert torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01) == pytest.approx(before)
        optimizer.step()
        assert gradient(model).norm() == pytest.approx(0.01, rel=1e-3)
        optimizer.zero_grad()
    objective.detach()


def test_a_batch_that_is_given_up_is_not_counted():
    """Its gradients are put to zero before the update."""
    found = []
    for given_up in (False, True):
        model = bert()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        objective = Objective(LNSR()).bind(model, optimizer)
        for step in range(3):
            if given_up:
                (100 * objective(model, part(tiny_batch(), slice(0, 1)))).backward()
                optimizer.zero_grad()
            objective.calls = step
            torch.manual_seed(step)
            update(objective, model, optimizer, tiny_batch())
        found.append(gradient_of_weights(model))
        objective.detach()
    assert torch.equal(*found)


@pytest.mark.parametrize("methods", [[LNSR()], [LNSR(weight=1.0)], [FreeLB()]], ids=str)
def test_hooks_of_weights_act_once(methods):
    model = bert()
    table = model.get_input_embeddings().weight
    objective = Objective(*methods).bind(model, optimizer := still(model))
    for _ in range(3):
        sizes = []
        for hooks in (0, 1):
            handle = table.register_hook(lambda gradient: 0.1 * gradient) if hooks else None
            objective.calls = 0
            torch.manual_seed(0)
            objective(model, tiny_batch()).backward()
            sizes.append(table.grad.norm().item())
            optimizer.zero_grad()
        handle.remove()
        optimizer.step()
        assert sizes[1] == pytest.approx(0.1 * sizes[0], rel=1e-3)
    objective.detach()


def test_an_unlabeled_batch_that_is_given_up_is_not_counted():
    found = []
    for given_up in (False, True):
        model = bert()
        model.config.problem_type = "single_label_classification"
        objective = Objective(VAT(ramp_start=0.0)).bind(model, optimizer := still(model))
        if given_up:
            objective(model, unlabeled(tiny_batch())).backward()
            optimizer.zero_grad()
        objective.calls = 0
        torch.manual_seed(0)
        objective(model, tiny_batch()).backward()
        found.append(gradient(model))
        objective.detach()
    assert torch.equal(*found)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_in_float16_a_weight_without_gradient_does_not_begin_an_update():
    """As half the weights of new adapters: an update of two batches is that of one."""
    found = []
    for batches in ([tiny_batch()], [part(tiny_batch(), slice(i, i + 2)) for i in (0, 2)]):
        with fixed_draws():
            model = adapted(tiny_model("llama", dtype=torch.float32))
            optimizer = still([w for w in model.parameters() if w.requires_grad])
            objective = Objective(LNSR(weight=100.0, max_share=0.5)).bind(model, optimizer)
            for batch in batches:
                with torch.autocast("cpu", torch.float16):
                    loss = objective(model, batch)
                (loss / len(batches)).backward()
            found.append(gradient(model))
            objective.detach()
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-7)


def gradient_of_weights(model):
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


@pytest.mark.parametrize("keeps", [True, False])
def test_nothing_is_kept_of_an_update_of_one_batch(keeps):
    model = bert()
    objective = Objective(LNSR()).bind(model, optimizer := still(model))
    objective.expect(10, accumulates=keeps)
    objective(model, tiny_batch()).backward()
    assert bool(objective._sum._sums.task) == keeps
    optimizer.step()
    assert not objective._sum._sums.task
    objective.detach()


def test_a_loss_is_back_propagated_once():
    model = bert()
    objective = Objective(LNSR()).bind(model, still(model))
    loss = objective(model, tiny_batch())
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="back-propagate this loss once"):
        loss.backward()
    objective.detach()


def unchanged(model):
    return model


def methods_and_changes():
    """Every method on one model, in turn; the rest are slow tests."""
    changes = [checkpointed, adapted, unchanged]
    for number, make in enumerate([LNSR, R3F, SMART, VAT, SiFT, JacHess, Jacobian]):
        for index, change in enumerate(changes):
            marks = () if index == number % len(changes) else pytest.mark.slow
            yield pytest.param(make, change, marks=marks, id=f"{make.name}-{change.__name__}")


@pytest.mark.parametrize(("make", "change"), list(methods_and_changes()))
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_the_two_gradients_are_those_of_their_losses(make, change):
    """With recomputed blocks, and with adapters alone."""
    with fixed_draws(), all_in_float64():
        model = change(tiny_model("bert", dtype=torch.float64))
        objective = Objective(make()).bind(model, still(model))
        objective.calibrate(model, tiny_batch())
        state, kept = objective.state_dict(), {}
        objective._sum._with_gradient = lambda value, weights, batch, _: (
            kept.update(task=batch.task, term=batch.terms[make.name], weights=weights) or value
        )
        objective(model, tiny_batch())
        objective.detach()
        same(kept["task"], gradients(Objective()(model, tiny_batch()), kept["weights"]))
        alone = Objective(make()).attach(model)
        alone.load_state_dict(state)
        clean = alone._terms.clean_pass(model, tiny_batch(), model_loss, True)
        losses = alone._terms.losses(clean, alone.seed, alone.calls)
        same(kept["term"], gradients(losses[make.name], kept["weights"]))
        alone.detach()


def gradients(loss, weights):
    return torch.autograd.grad(loss, weights, allow_unused=True)


def same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-11)


# --- the weight ----------------------------------------------------------------------------------


def norms_of(make, model, batch):
    """||grad task||, ||grad term|| of a batch."""
    objective, kept = Objective(make).bind(model, still(model)), []
    objective._sum._with_gradient = lambda value, weights, batch, _: (
        kept.append(norms([batch.task, *batch.terms.values()], weights, mean=False)) or value
    )
    objective(model, batch)
    objective.detach()
    return kept[0]


@pytest.mark.parametrize("make", [LNSR, R3F, VAT, SMART, JacHess], ids=lambda cls: cls.name)
def test_the_weight_is_a_mean_of_logarithms(make):
    """Over the updates so far, this one among them; here of losses that differ a thousandfold."""
    with fixed_draws(), all_in_float64():
        model = tiny_model("bert", dtype=torch.float64)
        objective = Objective(make(share=0.3, max_share=1e9)).bind(model, optimizer := still(model))
        logs = []
        for scale in (1.0, 1000.0, 0.01):

            def loss(model, batch, scale=scale):
                outputs = model(**batch)
                return scale * outputs.loss, outputs

            terms = update(objective, model, optimizer, tiny_batch(), compute_loss=loss)
            weight, share = terms[f"{make.name}/weight"], terms[f"{make.name}/share"]
            logs.append((weight / share).log().item())  # log(||grad task|| / ||grad term||)
            if make is not SMART:  # whose teacher's term is 0 at the start
                expected = torch.tensor(logs, dtype=torch.float64).mean().exp()
                assert weight.item() == pytest.approx(0.3 * expected.item(), rel=1e-6)
        assert logs[1] - logs[0] == pytest.approx(torch.tensor(1000.0).log().item(), rel=0.3)
        objective.detach()


def test_the_share_does_not_depend_on_how_a_term_is_reduced():
    found = []
    for reduction in ("mean", "token_sum", "sum"):
        model = tiny_model("bert")
        objective = Objective(LNSR(reduction=reduction, share=0.5))
        objective.bind(model, optimizer := still(model))
        terms = update(objective, model, optimizer, tiny_batch())
        found.append(terms["lnsr/share"].item())
        objective.detach()
    assert found == pytest.approx([0.5] * 3)


def test_a_fixed_weight_trains_as_without_a_bound():
    """Bit for bit as the sum of the losses, and in the updates that look at the term nearly."""
    model = tiny_model("bert", dropout=0.1)
    objective = Objective(R3F(weight=2.0)).bind(model, optimizer := still(model))
    for step in range(4):
        torch.manual_seed(step)
        objective(model, tiny_batch()).backward()
        found = gradient(model)
        optimizer.zero_grad()
        objective.calls -= 1
        torch.manual_seed(step)
        clean = objective._terms.clean_pass(model, tiny_batch(), model_loss, True)
        objective.calls += 1
        losses = objective._terms.losses(clean, objective.seed, objective.calls)
        torch.stack([2.0 * losses["r3f"], losses["task"]]).sum().backward()
        if step == 2:
            torch.testing.assert_close(found, gradient(model), rtol=1e-6, atol=1e-9)
        else:
            assert torch.equal(found, gradient(model))
        optimizer.step()
        optimizer.zero_grad()
    objective.detach()


def test_a_bound_that_is_far_away_leaves_the_weight_as_given():
    model = tiny_model("bert")
    objective = Objective(LNSR(weight=3.0, every=2, max_share=1e9))
    objective.bind(model, optimizer := still(model))
    assert update(objective, model, optimizer, tiny_batch())["lnsr/weight"] == 6
    objective.detach()


def test_the_gradient_is_that_of_the_sum_whichever_terms_are_looked_at():
    """In the third update the first, in the fifth the second, in the others both or none."""
    model = tiny_model("bert")
    objective = Objective(L2SP(alpha=0.5, beta=0.0), L2SP(alpha=0.25, beta=0.0, every=2))
    objective.bind(model, optimizer := still(model))
    start = [weight.detach().clone() for weight in model.parameters()]
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.5)
    Objective()(model, tiny_batch()).backward()
    pulled = [name.startswith("bert.") for name, _ in model.named_parameters()]
    task = [torch.zeros_like(w) if w.grad is None else w.grad.clone() for w in model.parameters()]
    for step in range(6):
        optimizer.zero_grad()
        objective(model, tiny_batch()).backward()
        alpha = 0.5 + (2 * 0.25 if step % 2 == 0 else 0.0)
        for weight, before, of_task, is_old in zip(
            model.parameters(), start, task, pulled, strict=True
        ):
            expected = of_task + is_old * alpha * (weight.detach() - before)
            torch.testing.assert_close(weight.grad, expected)
        optimizer.step()
    objective.detach()


def test_what_was_applied_in_several_batches_is_their_mean():
    model = tiny_model("bert")
    objective = Objective(LNSR(weight=0.5, max_share=1e9)).bind(model, optimizer := still(model))
    losses = []
    for batch in four_batches(0):
        objective(model, batch).backward()
        losses.append(objective.terms["loss/lnsr"].item())
    optimizer.step()
    mean = pytest.approx(sum(losses) / 4, rel=1e-6)
    assert objective.strengths.sums["lnsr"][-2:].tolist() == [mean, mean]
    objective.detach()


def test_a_term_of_fixed_weight_counts_as_the_task_of_a_bounded_one():
    model = tiny_model("bert", dropout=0.1)
    strong = Objective(R3F(weight=50.0, sigma=0.5), LNSR()).bind(model, optimizer := still(model))
    terms = update(strong, model, optimizer, tiny_batch())
    assert terms["lnsr/share"].item() == pytest.approx(0.3, rel=1e-4)
    weight = terms["lnsr/weight"].item()
    strong.detach()
    alone = Objective(LNSR()).bind(model, optimizer := still(model))
    assert update(alone, model, optimizer, tiny_batch())["lnsr/weight"].item() < 0.9 * weight
    alone.detach()


def test_an_update_without_labels_is_held_to_the_usual_norm_of_the_task():
    model, batch = tiny_model("bert"), tiny_batch()
    model.config.problem_type = "single_label_classification"
    objective = Objective(VAT(share=0.2, batches="unlabeled"))
    objective.bind(model, optimizer := still(model))
    assert update(objective, model, optimizer, unlabeled(batch))["vat/weight"] == 0
    objective(model, batch).backward()
    usual = gradient(model).norm().item()
    optimizer.step()
    optimizer.zero_grad()
    for _ in range(2):
        objective(model, unlabeled(batch)).backward()
        assert gradient(model).norm().item() == pytest.approx(0.2 * usual, rel=0.5)
        optimizer.step()
        optimizer.zero_grad()
    strong = Objective(VAT(share=50.0, batches="unlabeled", max_share=0.7))
    objective.detach()
    strong.bind(model, optimizer := still(model))
    update(strong, model, optimizer, batch)
    (3 * strong(model, unlabeled(batch))).backward()  # as the loop weighs it
    assert gradient(model).norm().item() == pytest.approx(3 * 0.7 * usual, rel=1e-4)
    strong.detach()


@pytest.mark.parametrize("method", [VAT(share=0.2), VAT(weight=1.0, max_share=0.5)])
def test_before_the_first_labels_nothing_is_applied(method, caplog):
    model, batch = tiny_model("bert"), tiny_batch()
    model.config.problem_type = "single_label_classification"
    objective = Objective(method)
    objective.bind(model, optimizer := still(model))
    for _ in range(10):
        objective(model, unlabeled(batch)).backward()
        assert not gradient(model).any()
        terms = update(objective, model, optimizer)
        assert terms["vat/weight"] == terms["loss/vat"] == 0
    (told,) = caplog.messages
    assert told.startswith("vat has changed nothing in 8 updates")
    assert "no batch had labels yet" in told
    state = objective.state_dict()
    objective.detach()
    again = Objective(method).bind(model, optimizer := still(model))
    again.load_state_dict(state)
    update(again, model, optimizer, unlabeled(batch))
    assert again.terms["vat/weight"] == 0
    update(again, model, optimizer, batch)
    again(model, unlabeled(batch)).backward()
    assert gradient(model).any()
    again.detach()


def test_the_usual_norm_is_that_of_a_batch_where_updates_have_several():
    model, batch = tiny_model("bert"), tiny_batch()
    model.config.problem_type = "single_label_classification"
    Objective()(model, batch).backward()
    usual = gradient(model).norm().item()
    model.zero_grad()
    objective = Objective(VAT(share=50.0, batches="unlabeled", max_share=0.7))
    objective.bind(model, optimizer := still(model))
    update(objective, model, optimizer, part(batch, slice(0, 2)), part(batch, slice(2, 4)))
    objective(model, unlabeled(batch)).backward()
    assert gradient(model).norm().item() == pytest.approx(0.7 * usual, rel=1e-4)
    objective.detach()


@pytest.mark.parametrize("replacing", [LabelSmoothing, FreeLB])
def test_the_share_is_of_what_replaces_the_task_loss(replacing):
    with fixed_draws(), all_in_float64():
        model = tiny_model("bert", dtype=torch.float64)
        alone = Objective(replacing()).bind(model, optimizer := still(model))
        alone(model, tiny_batch()).backward()
        task = gradient(model)
        alone.detach()
        optimizer.zero_grad()
        objective = Objective(replacing(), LNSR(share=0.3)).bind(model, still(model))
        objective(model, tiny_batch()).backward()
        assert (gradient(model) - task).norm() == pytest.approx(0.3 * task.norm().item())
        objective.detach()


def test_a_gradient_of_nothing_is_not_counted():
    """L2-SP begins where its term and gradient are 0."""
    model = tiny_model("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    objective = Objective(L2SP(share=0.3, beta=0.0)).bind(model, optimizer)
    assert update(objective, model, optimizer, tiny_batch())["l2_sp/weight"] == 0
    assert update(objective, model, optimizer, tiny_batch())["l2_sp/share"] == pytest.approx(0.3)
    assert objective.strengths.applied()["l2_sp"].updates == 1
    objective.detach()


def test_a_share_rises_over_a_ramp():
    model, batch = tiny_model("bert"), tiny_batch()
    objective = Objective(LNSR(share=0.4, ramp_start=0.2, ramp_steps=0.4))
    objective.bind(model, optimizer := still(model), num_training_steps=10)
    with fixed_draws():
        found = [
            update(objective, model, optimizer, batch).get("lnsr/share", torch.zeros(())).item()
            for _ in range(8)
        ]
    assert found == pytest.approx([0, 0, 0.1, 0.2, 0.3, 0.4, 0.4, 0.4], rel=1e-3)
    objective.detach()


@pytest.mark.parametrize("method", [LNSR, VAT, JacHess])
def test_in_bfloat16_weights_are_those_of_float32(method):
    found = []
    for bf16 in (False, True):
        model = tiny_model("bert", dtype=torch.float32)
        objective = Objective(method(share=0.3))
        with fixed_draws():
            objective.bind(model, optimizer := still(model))
            for _ in range(2):
                with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                    loss = objective(model, tiny_batch())
                loss.backward()
                optimizer.step()
        found.append(objective.terms[f"{method.name}/weight"].item())
        objective.detach()
    assert found[1] == pytest.approx(found[0], rel=0.02)


@pytest.mark.slow
def test_a_compiled_model_is_held():
    model = torch.compile(tiny_model("bert"), backend="aot_eager")
    objective = Objective(L2SP(share=0.3))
    objective.bind(model, optimizer := torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(3):
        terms = update(objective, model, optimizer, tiny_batch())
    assert terms["l2_sp/weight"] > 0
    objective.detach()


# --- state ---------------------------------------------------------------------------------------


def test_a_resumed_run_goes_on_with_the_weight():
    model = tiny_model("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    objective = Objective(LNSR(share=0.3)).bind(model, optimizer)
    for _ in range(5):
        update(objective, model, optimizer, tiny_batch())
    state = objective.state_dict()
    objective(model, tiny_batch())
    expected = objective.terms
    applied = objective.strengths.applied()
    objective.detach()
    other = Objective(LNSR(share=0.3)).attach(model)
    other.load_state_dict(state)
    other.bind_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    other(model, tiny_batch())
    assert other.terms["lnsr/weight"] == expected["lnsr/weight"] > 0
    assert other.strengths.applied() == applied
    assert applied["lnsr"].updates == 5
    torch.testing.assert_close(other.terms["loss/lnsr"], expected["loss/lnsr"])
    other.detach()


RETURNING = [LNSR(), JacHess(clip=1.0), UEGR(adaptive="divergence")]


@pytest.mark.parametrize(
    ("method", "updates"),
    [  # fast: every method once
        pytest.param(method, updates, marks=() if i == j else pytest.mark.slow)
        for i, updates in enumerate([0, 2, 3])
        for j, method in enumerate(RETURNING)
    ],
)
def test_a_run_that_goes_back_to_a_state_forgets_what_came_after(method, updates):
    model = tiny_model("bert", dropout=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    objective = Objective(method).bind(model, optimizer)

    def went_on(count):
        for _ in range(count):
            torch.manual_seed(7)
            update(objective, model, optimizer, tiny_batch())
        return {name: value.clone() for name, value in model.state_dict().items()}

    weights, state = went_on(updates), objective.state_dict()
    expected = went_on(4)
    objective(model, tiny_batch()).backward()  # of an update that does not take place
    optimizer.zero_grad()
    model.load_state_dict(weights)
    objective.load_state_dict(state)
    for name, value in went_on(4).items():
        assert torch.equal(value, expected[name]), name
    objective.detach()


def test_a_share_that_is_not_told_of_updates_is_an_error():
    model = tiny_model("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    objective = Objective(LNSR(share=0.3)).attach(model)
    objective(model, tiny_batch()).backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match=r"lnsr .*call objective\.bind"):
        objective(model, tiny_batch())
    objective.detach()


# --- what is said --------------------------------------------------------------------------------


def test_a_term_of_next_to_nothing_is_told_once(caplog):
    model = tiny_model("bert")
    objective = Objective(LNSR(weight=1e-9), R3F(weight=1e9))
    objective.bind(model, optimizer := still(model))
    with caplog.at_level(logging.WARNING):
        for _ in range(52):
            update(objective, model, optimizer, tiny_batch())
    told = [record.getMessage() for record in caplog.records]
    assert [text.split(" is ")[0] for text in told if "task gradient" in text] == ["lnsr"]
    objective.detach()


def test_how_little_a_term_is_is_told_in_percent(caplog):
    """Of what L2-SP adds in the updates that it acts in, every * weight * alpha * (w - w^0)."""
    model = tiny_model("bert")
    objective = Objective(L2SP(alpha=0.5, beta=0.0, weight=1e-3, every=2))
    objective.bind(model, optimizer := still(model))
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.5)
    Objective()(model, tiny_batch()).backward()
    task = gradient(model).norm()
    optimizer.zero_grad()
    moved = torch.cat([w.detach().flatten() for w in model.base_model.parameters()]).norm() / 3
    with caplog.at_level(logging.WARNING):
        for _ in range(6):
            update(objective, model, optimizer, tiny_batch())
    objective.detach()
    percent = f"{100 * 2 * 1e-3 * 0.5 * moved / task:.2g}"
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith(f"l2_sp is {percent} % of the task gradient")


def test_a_term_that_is_held_nearly_always_is_told_at_the_end():
    model = tiny_model("bert")
    objective = Objective(LNSR(share=20.0), VAT(share=1e-3)).bind(model, optimizer := still(model))
    for _ in range(3):
        update(objective, model, optimizer, tiny_batch())
    held, little = objective.strengths.remarks()
    assert held.startswith("lnsr was held by its bound in 100 % of the updates: it was 1 times")
    assert little.startswith("vat was ")
    assert "it changed almost nothing" in little
    objective.detach()
    fine = Objective(LNSR()).bind(model, optimizer := still(model))
    update(fine, model, optimizer, tiny_batch())
    assert fine.strengths.remarks() == []
    fine.detach()


def test_a_term_within_its_bounds_is_not_held():
    """The narrower of two bounds, and that of the sum."""
    model = tiny_model("bert")
    narrow, wide = LNSR(share=0.1, max_share=0.2), VAT(share=0.1, max_share=1.0)
    objective = Objective(narrow, wide).bind(model, optimizer := still(model))
    update(objective, model, optimizer, tiny_batch())
    applied = objective.strengths.applied()
    assert [applied[name].bounded for name in ("lnsr", "vat")] == [0, 0]
    objective.detach()


@pytest.mark.parametrize(
    ("method", "updates"),
    [(LNSR(), 8), (LNSR(weight=1.0), 3), (JacHess(), 8), (JacHess(weight=1.0), 3)],
)
def test_a_term_that_reaches_no_trained_weight_is_told(method, updates, caplog):
    model = tiny_model("bert")
    model.base_model.requires_grad_(False)
    objective = Objective(method).bind(model, optimizer := still(model))
    with caplog.at_level(logging.WARNING):
        for number in range(1, 13):
            update(objective, model, optimizer, tiny_batch())
            told = [text for text in caplog.messages if "no gradient" in text]
            assert len(told) == (number >= updates)
    assert told[0].startswith(
        f"{method.name} had no gradient in a trained weight in {updates} updates"
    )
    objective.detach()


# --- fields --------------------------------------------------------------------------------------


def test_weight_and_share_take_each_others_place():
    for name, cls in METHODS.items():
        method = cls()
        if isinstance(method, Penalty) and method.share is not None:
            assert method.settings().keys() & {"weight", "share"} == {"share"}
            assert cls(weight=2.0).settings().keys() & {"weight", "share"} == {"weight"}, name
            assert cls(weight=0.0).is_on is False
            assert method.max_share == cls.usual_bound
            assert cls(weight=2.0).max_share is None
            assert cls(weight=2.0, max_share=0.5).max_share == 0.5
        assert cls(**method.settings()) == method
    assert L2SP(share=0.3).settings()["share"] == 0.3
    assert "weight" not in L2SP(share=0.3).settings()
    with pytest.raises(ValueError, match="both share=0.3 and weight=2.0"):
        L2SP(share=0.3, weight=2.0)
    with pytest.raises(ValueError, match="lnsr needs weight or share"):
        LNSR(weight=None, share=None)


def test_what_can_have_no_share_says_so():
    for cls, field in ((FreeLB, "share"), (CWGNC, "share"), (SAM, "max_share")):
        with pytest.raises(ValueError, match=f"{field}: unknown field"):
            cls(**{field: 0.3})
    with pytest.raises(ValueError, match="greater than 0"):
        LNSR(share=0)
    model = tiny_model("bert")
    enable_checkpointing(model, use_reentrant=True)
    with pytest.raises(
        ValueError, match="l2_sp with reentrant checkpointing: the gradients .* or give a weight"
    ):
        Objective(L2SP(share=0.3)).attach(model)


def test_a_fraction_of_a_run_needs_its_length():
    objective = Objective(VAT(weight=1.0, ramp_steps=0.1))
    model = tiny_model("bert")
    objective.bind(model, still(model))
    with pytest.raises(ValueError, match="vat has a field of 0.1.*num_training_steps to bind"):
        objective(model, tiny_batch())
    objective.expect(20)
    objective(model, tiny_batch())
    assert VAT(ramp_steps=2.0).updates(2.0) == 2
    objective.detach()


def test_what_adds_no_term_has_no_ramp():
    for method in (FreeLB, Mixout):
        with pytest.raises(ValueError, match="ramp_steps: unknown field"):
            method(ramp_steps=3)


@pytest.mark.parametrize(
    "method",
    [
        LNSR(share=0.3),
        VAT(share=0.3),
        R3F(weight=1.0),
        SAM(rho=1e-6),
        FreeLB(init_size=1e-6, step_size=1e-6),
    ],
    ids=lambda method: method.name,
)
def test_weights_of_a_loss_outside_the_model_are_trained_in_every_update(method):
    """A perturbation of next to nothing leaves their gradient what it is in plain training."""
    with fixed_draws():
        model, head = tiny_model("bert"), torch.nn.Linear(3, 3).double()

        def compute_loss(model, batch):
            outputs = model(**batch)
            return torch.nn.functional.cross_entropy(head(outputs.logits), batch["labels"]), outputs

        compute_loss(model, tiny_batch())[0].backward()
        expected = head.weight.grad.clone()
        weights = [*model.parameters(), *head.parameters()]
        for weight in weights:
            weight.grad = None
        objective = Objective(method).bind(model, optimizer := torch.optim.SGD(weights, lr=0.0))
        for _ in range(4):  # of which the 1st, 2nd and 4th measure a share, the 3rd a fixed weight
            objective(model, tiny_batch(), compute_loss).backward()
            torch.testing.assert_close(head.weight.grad, expected, rtol=1e-4, atol=1e-6)
            optimizer.step()
            optimizer.zero_grad()
        objective.detach()


@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains_weights_of_a_loss_outside_the_model_or_refuses_them(name):
    model, head = tiny_model("bert"), torch.nn.Linear(3, 3).double()
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.0)

    def compute_loss(model, batch):
        outputs = model(**batch)
        return torch.nn.functional.cross_entropy(head(outputs.logits), batch["labels"]), outputs

    objective = Objective(METHODS[name]())
    if name == "llrd":
        with pytest.raises(ValueError, match="do not belong to the model"):
            objective.bind(model, optimizer)
        return
    objective.bind(model, optimizer)
    if name == "label_smoothing":
        with pytest.raises(ValueError, match="label_smoothing: your loss is another"):
            objective(model, tiny_batch(), compute_loss)
        return
    for _ in range(4):
        objective(model, tiny_batch(), compute_loss).backward()
        assert head.weight.grad.norm() > 0.01
        optimizer.step()
        optimizer.zero_grad()
    objective.detach()
