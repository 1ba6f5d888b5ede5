"""The weight of a term from its share of the task's gradient."""

import logging

import pytest
import torch
from peft import LoraConfig, get_peft_model

from smoothtune import (
    ALUM,
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
    LabelSmoothing,
    Mixout,
    Objective,
    SiFT,
)
from smoothtune.core.strength import DECAY, Strengths
from smoothtune.testing import all_in_float64, fixed_draws, tiny_batch, tiny_model


def norm(loss, model):
    weights = list(model.parameters())
    found = torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True)
    return sum(g.square().sum() for g in found if g is not None).sqrt().item()


def parts(objective, model, batch):
    """The losses of a batch without their weights, each with its graph."""
    kept, original = {}, objective.strengths.due

    def due(losses):
        kept.update(losses)
        return original(losses) and set()  # their graphs are used once

    objective.strengths.due = due
    objective(model, batch)
    objective.strengths.due = original
    objective.strengths._batches -= 1  # it is of no update
    return kept


def update(objective, model, optimizer, *batches, **options):
    """One update from some batches."""
    for batch in batches:
        objective(model, batch, **options).backward()
    optimizer.step()
    optimizer.zero_grad()
    return objective.terms


def still(model):
    """An optimizer that moves nothing."""
    return torch.optim.SGD(model.parameters(), lr=0.0)


@pytest.mark.parametrize("make", [LNSR, R3F, VAT, SMART, JacHess, L2SP], ids=lambda cls: cls.name)
def test_the_weight_of_the_second_update_follows_from_the_norms_of_the_first(make):
    with fixed_draws(), all_in_float64():
        model = tiny_model("bert", dropout=0.1, dtype=torch.float64)
        bound = {} if make is not JacHess else {"clip": 0}  # which begins an update later
        objective = Objective(make(share=0.3, **bound)).attach(model)
        objective.bind_optimizer(optimizer := still(model))
        for weight in model.parameters():
            weight.data += 0.01  # away from where L2-SP holds it
        losses = parts(objective, model, tiny_batch())
        task, term = norm(losses["task"], model), norm(losses[make.name], model)
        objective.calls = 0  # the same draws once more
        assert update(objective, model, optimizer, tiny_batch())[f"{make.name}/weight"] == 0
        terms = update(objective, model, optimizer, tiny_batch())
        assert terms[f"{make.name}/weight"].item() == pytest.approx(0.3 * task / term)
        objective.detach()


def test_the_share_does_not_depend_on_how_a_term_is_reduced():
    gradients = []
    for reduction in ("mean", "token_sum", "sum"):
        model = tiny_model("bert")
        objective = Objective(LNSR(reduction=reduction, share=0.5))
        objective.bind(model, optimizer := still(model))
        update(objective, model, optimizer, tiny_batch())
        loss = parts(objective, model, tiny_batch())["lnsr"]
        gradients.append(objective.strengths.factor("lnsr") * norm(loss, model))
        objective.detach()
    torch.testing.assert_close(gradients[1:], gradients[:1] * 2, rtol=0.3, atol=0)


@pytest.mark.parametrize(
    "methods",
    [
        [LNSR(share=0.5), R3F(weight=2.0, sigma=0.1)],
        [VAT(share=0.2), L2SP(weight=1.0), JacHess(share=0.1)],
        [FreeLB(), SiFT(share=0.4)],
        [SAM(), LNSR(share=0.4)],
        [LabelSmoothing(), ALUM(share=0.4)],
    ],
    ids=lambda methods: "+".join(method.name for method in methods),
)
def test_measuring_leaves_the_gradient_as_it_is(methods):
    gradients = []
    for measured in (True, False):
        with fixed_draws(), all_in_float64():
            model = tiny_model("bert", dropout=0.1, dtype=torch.float64)
            objective = Objective(*methods)
            objective.bind(model, optimizer := still(model))
            update(objective, model, optimizer, tiny_batch())
            if not measured:
                objective.strengths.due = lambda losses: set()
            objective(model, tiny_batch()).backward()
            assert bool(objective.strengths._sums) == measured
            gradients.append([weight.grad for weight in model.parameters()])
            objective.detach()
    for one, other in zip(*gradients, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("sizes", [(4,), (2, 2), (1, 3), (1, 1, 2)])
def test_batches_of_an_update_are_measured_together(sizes):
    with fixed_draws(), all_in_float64():
        model = tiny_model("bert", dtype=torch.float64)
        objective = Objective(LNSR(share=0.5, dropout="shared"), VAT(share=0.2))
        objective.bind(model, optimizer := still(model))
        whole, start = tiny_batch(), 0
        for size in sizes:
            part = {key: value[start : start + size] for key, value in whole.items()}
            loss = objective(model, part, row_share=size * len(sizes) / 4)
            (loss / len(sizes)).backward()
            start += size
        optimizer.step()
        losses = parts(objective, model, whole)
        for name in ("task", "lnsr", "vat"):
            square = objective.strengths.squares[name]
            assert square == pytest.approx(norm(losses[name], model) ** 2)
        objective.detach()


def test_norms_are_averaged_and_measured_now_and_then():
    strengths = Strengths({"lnsr": LNSR(share=0.5), "r3f": R3F(weight=7.0)})
    model = torch.nn.Linear(4, 1, bias=False)
    looks = []
    for step in range(1, 200):
        losses = {"lnsr": step * model.weight.sum(), "r3f": model.weight.square().sum()}
        strengths.see(losses, 1.0)
        if due := strengths.due(losses):
            strengths.measure(model, sum(losses.values()), losses, due)
            looks += [step] * ("lnsr" in due)
            assert ("r3f" in due) == (step in (3, 51))
        assert strengths.due(losses) == due  # the other batches of an accumulated update
        strengths.finish(model)
    assert looks == [1, 2, 4, 8, *range(16, 129, 16), 160, 192]
    expected = 0.0
    for count, step in enumerate(looks, start=1):
        rate = max(1 - DECAY, 1 / count)
        expected = (1 - rate) * expected + rate * 4 * step**2
    assert strengths.squares["lnsr"] == pytest.approx(expected)
    assert strengths.weight("lnsr") == 0.0  # the task was not measured yet
    losses = {"task": model.weight.sum()}
    strengths.see(losses, 1.0)
    strengths.measure(model, losses["task"], losses, strengths.due(losses))
    strengths.finish(model)
    assert strengths.weight("lnsr") == pytest.approx(0.5 / (expected / 4) ** 0.5)
    assert strengths.weight("r3f") == 7.0


def test_a_term_on_unlabeled_batches_follows_the_task_of_the_labeled_ones():
    model, batch = tiny_model("bert"), tiny_batch()
    unlabeled = {name: batch[name] for name in ("input_ids", "attention_mask")}
    objective = Objective(VAT(share=0.2, batches="unlabeled"))
    objective.bind(model, optimizer := still(model))
    task = norm(parts(objective, model, batch)["task"], model)
    update(objective, model, optimizer, batch)
    assert update(objective, model, optimizer, unlabeled)["vat/weight"] == 0
    term = objective.strengths.squares["vat"] ** 0.5
    found = update(objective, model, optimizer, unlabeled)["vat/weight"]
    assert found.item() == pytest.approx(0.2 * task / term)
    objective.detach()


@pytest.mark.parametrize("replacing", [LabelSmoothing, FreeLB])
def test_the_share_is_of_what_replaces_the_task_loss(replacing):
    with fixed_draws(), all_in_float64():
        model = tiny_model("bert", dtype=torch.float64)
        objective = Objective(replacing(), LNSR(share=0.3))
        objective.bind(model, optimizer := still(model))
        alone = Objective(replacing())
        update(objective, model, optimizer, tiny_batch())
        square = objective.strengths.squares["task"]
        objective.detach()
        alone.bind(model, still(model))(model, tiny_batch()).backward()
        gradients = [w.grad for w in model.parameters() if w.grad is not None]
        assert square == pytest.approx(sum(g.square().sum().item() for g in gradients))
        alone.detach()


def test_a_resumed_run_goes_on_with_the_weight():
    model = tiny_model("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    objective = Objective(LNSR(share=0.3)).bind(model, optimizer)
    for _ in range(5):
        update(objective, model, optimizer, tiny_batch())
    state = objective.state_dict()
    objective(model, tiny_batch())
    expected = objective.terms
    objective.detach()
    other = Objective(LNSR(share=0.3)).attach(model)
    other.load_state_dict(state)
    other.bind_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    other(model, tiny_batch())
    assert other.terms["lnsr/weight"] == expected["lnsr/weight"] > 0
    torch.testing.assert_close(other.terms["loss/lnsr"], expected["loss/lnsr"])
    other.detach()


@pytest.mark.parametrize("updates", [0, 2, 3])
@pytest.mark.parametrize("method", [LNSR(), JacHess(clip=1.0), UEGR(adaptive="divergence")])
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


def test_weight_and_share_take_each_others_place():
    for name, cls in METHODS.items():
        method = cls()
        if method.share is not None:
            assert method.settings().keys() & {"weight", "share"} == {"share"}
            assert cls(weight=2.0).settings().keys() & {"weight", "share"} == {"weight"}, name
            assert cls(weight=0.0).is_on is False
        assert cls(**method.settings()) == method
    assert L2SP(share=0.3).settings()["share"] == 0.3
    assert "weight" not in L2SP(share=0.3).settings()
    with pytest.raises(ValueError, match="both share=0.3 and weight=2.0"):
        L2SP(share=0.3, weight=2.0)
    with pytest.raises(ValueError, match="lnsr needs weight or share"):
        LNSR(weight=None, share=None)


def test_what_can_have_no_share_says_so():
    with pytest.raises(ValueError, match="freelb replaces the task loss"):
        FreeLB(share=0.3)
    with pytest.raises(ValueError, match="cwgnc has no loss term"):
        CWGNC(share=0.3)
    with pytest.raises(ValueError, match="greater than 0"):
        LNSR(share=0)
    model = tiny_model("bert")
    model.activation_checkpointing_enable({"use_reentrant": True})
    with pytest.raises(
        ValueError, match="l2_sp with reentrant checkpointing: a share .* give a weight"
    ):
        Objective(L2SP(share=0.3)).attach(model)


def test_a_gradient_of_nothing_is_no_measurement():
    """L2-SP begins where its term and gradient are 0."""
    model = tiny_model("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    objective = Objective(L2SP(share=0.3, beta=0.0)).bind(model, optimizer)
    update(objective, model, optimizer, tiny_batch())
    assert objective.strengths.measured == {"task": 1}
    losses = parts(objective, model, tiny_batch())
    update(objective, model, optimizer, tiny_batch())
    square = objective.strengths.squares["l2_sp"]
    assert square == pytest.approx(norm(losses["l2_sp"], model) ** 2, rel=0.5)
    assert objective.strengths.weight("l2_sp") > 0
    objective.detach()


def test_in_float16_the_task_is_measured_where_no_term_acts():
    model, batch = tiny_model("bert", dtype=torch.float32), tiny_batch()
    unlabeled = {name: batch[name] for name in ("input_ids", "attention_mask")}
    objective = Objective(VAT(share=0.2, batches="unlabeled"))
    objective.bind(model, optimizer := still(model))
    for _ in range(2):
        for each in (batch, unlabeled):
            with torch.autocast("cpu", torch.float16):
                loss = objective(model, each)
            loss.backward()
            optimizer.step()
    assert objective.strengths.measured == {"task": 2, "vat": 2}
    assert objective.terms["vat/weight"] > 0
    objective.detach()


def test_a_share_rises_over_a_ramp():
    model, batch = tiny_model("bert"), tiny_batch()
    objective = Objective(L2SP(share=0.4, ramp_start=0.2, ramp_steps=0.4))
    objective.bind(model, still(model), num_training_steps=10)
    with torch.no_grad():
        model.classifier.weight.add_(0.1)
    optimizer, weights = objective.optimizer, []
    for _ in range(8):
        terms = update(objective, model, optimizer, batch)
        weights.append(terms.get("l2_sp/weight", torch.zeros(())).item())
    # two updates without, the third measures, then 2/4, 3/4 and all of it
    assert weights[:3] == [0, 0, 0]
    rise = [weight / weights[-1] for weight in weights[3:]]
    assert rise == pytest.approx([0.5, 0.75, 1, 1, 1], rel=1e-3)
    objective.detach()


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
        with pytest.raises(ValueError, match="adds no term to the task loss, so ramp_start"):
            method(ramp_steps=3)


@pytest.mark.slow
def test_a_compiled_model_is_measured():
    model = torch.compile(tiny_model("bert"), backend="aot_eager")
    objective = Objective(L2SP(share=0.3))
    objective.bind(model, optimizer := torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(3):
        terms = update(objective, model, optimizer, tiny_batch())
    assert terms["l2_sp/weight"] > 0
    objective.detach()


def checkpointed(model):
    model.activation_checkpointing_enable({"use_reentrant": False})
    return model


def adapted(model):
    return get_peft_model(model, LoraConfig(target_modules="all-linear", r=2))


@pytest.mark.parametrize("method", [LNSR(share=0.3), VAT(share=0.3), JacHess(share=0.3, clip=0)])
@pytest.mark.parametrize("change", [checkpointed, adapted])
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_norms_are_those_of_the_backward_pass(method, change):
    """With recomputed blocks, and with adapters alone."""
    found = []
    for name in ("task", method.name):
        with fixed_draws(), all_in_float64():
            model = change(tiny_model("bert"))
            objective = Objective(method)
            objective.bind(model, optimizer := still(model))
            factor = objective.strengths.factor
            objective.strengths.factor = lambda of, name=name: float(of == name)
            if found:
                objective.strengths.due = lambda losses: set()
            objective(model, tiny_batch()).backward()
            gradients = [w.grad for w in model.parameters() if w.grad is not None]
            square = sum(gradient.square().sum().item() for gradient in gradients)
            objective.strengths.factor = factor
            optimizer.step()
            found.append((square, dict(objective.strengths.squares)))
            objective.detach()
    (task, squares), (term, _) = found
    assert squares == pytest.approx({"task": task, method.name: term})


@pytest.mark.parametrize("method", [LNSR, VAT, JacHess, L2SP])
def test_in_bfloat16_weights_are_those_of_float32(method):
    found = []
    for bf16 in (False, True):
        model = tiny_model("bert", dtype=torch.float32)
        objective = Objective(method(share=0.3))
        with fixed_draws():
            objective.bind(model, optimizer := still(model))
            for weight in model.parameters():
                weight.data += 0.01
            for _ in range(2):
                with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                    loss = objective(model, tiny_batch())
                loss.backward()
                optimizer.step()
        found.append(objective.terms[f"{method.name}/weight"].item())
        objective.detach()
    assert found[1] == pytest.approx(found[0], rel=0.02)


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


def test_the_norm_of_the_task_has_the_weights_of_the_loss():
    with fixed_draws():
        model, head = tiny_model("bert"), torch.nn.Linear(3, 3).double()

        def compute_loss(model, batch):
            outputs = model(**batch)
            return torch.nn.functional.cross_entropy(head(outputs.logits), batch["labels"]), outputs

        weights = [*model.parameters(), *head.parameters()]
        loss, _ = compute_loss(model, tiny_batch())
        found = torch.autograd.grad(loss, weights, allow_unused=True)
        expected = sum(g.square().sum().item() for g in found if g is not None)
        objective = Objective(LNSR(share=0.3))
        objective.bind(model, optimizer := torch.optim.SGD(weights, lr=0.0))
        update(objective, model, optimizer, tiny_batch(), compute_loss=compute_loss)
        assert objective.strengths.squares["task"] == pytest.approx(expected)
        objective.detach()


@pytest.mark.parametrize("method", [LNSR(), LNSR(weight=1.0), JacHess(), JacHess(weight=1.0)])
def test_a_term_that_reaches_no_trained_weight_is_told(method, caplog):
    model = tiny_model("bert")
    model.base_model.requires_grad_(False)
    objective = Objective(method).bind(model, optimizer := still(model))
    with caplog.at_level(logging.WARNING):
        for _ in range(12):
            update(objective, model, optimizer, tiny_batch())
    told = [
        record.getMessage() for record in caplog.records if "no gradient" in record.getMessage()
    ]
    assert len(told) == 1
    assert told[0].startswith(f"{method.name} had no gradient in a trained weight in 8 updates")
    objective.detach()


def test_a_ramp_does_not_make_a_term_next_to_nothing(caplog):
    model = tiny_model("bert")
    objective = Objective(LNSR(weight=1.0, ramp_steps=10_000), L2SP(weight=1e-9))
    objective.bind(model, optimizer := still(model))
    with caplog.at_level(logging.WARNING):
        for _ in range(4):
            update(objective, model, optimizer, tiny_batch())
    assert objective.strengths.weight("lnsr") * objective.strengths.ratio("lnsr") < 0.001
    assert not [text for text in caplog.messages if text.startswith("lnsr")]
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
