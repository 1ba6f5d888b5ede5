"""SMART."""

import pytest
import torch
import torch.nn.functional as F

from helpers.adversary import compare, embeddings, predict, rms, rows, setting, slope
from helpers.conformance import CASES, Tiny, assert_conforms, batch, draws, fed
from helpers.literal import (
    MODELS,
    added,
    cross_entropy,
    gradient,
    kl,
    probabilities,
    span_batch,
    squared_error,
    tiny_span_model,
)
from smoothtune import SMART, ForwardPass, Objective
from smoothtune.functional.divergences import kl as library_kl
from smoothtune.functional.divergences import symmetric_kl_detached
from smoothtune.methods.smart import mt_dnn_js, stable_kl
from smoothtune.nn import rng
from smoothtune.testing import fixed_draws, tiny_batch, tiny_model


def distance(a, b):
    if len(a) == 1:
        return (a[0] - b[0]) ** 2
    p, q = probabilities(a), probabilities(b)
    return kl(p, q) + kl(q, p)


@pytest.mark.parametrize("num_labels", [3, 1])
@pytest.mark.parametrize("architecture", MODELS)
def test_equals_its_equation(architecture, num_labels):
    model, data = setting(architecture, num_labels)

    def expected(model):
        terms, clean = [], []
        for ids, _ in rows(data):
            x = embeddings(model, ids)
            unit = rms(x)
            delta = 0.02 * unit * rng.normal_like(x)
            for _ in range(2):
                delta.requires_grad_()
                target = predict(model, ids, 0).detach()
                g = slope(distance(target, predict(model, ids, delta)), delta)
                moved = delta.detach() + 0.3 * unit * g / max(abs(v) for v in g.flatten())
                delta = moved.clamp(-0.1 * unit, 0.1 * unit)
            clean.append(predict(model, ids, 0))
            terms.append(distance(clean[-1], predict(model, ids, delta)))
        task = (squared_error if num_labels == 1 else cross_entropy)(clean, data["labels"])
        return task + 0.5 * sum(terms) / 4

    method = SMART(weight=0.5, mu=0, sigma=0.02, step_size=0.3, epsilon=0.1, num_steps=2)
    compare(Objective(method), model, data, expected)


@pytest.mark.parametrize("num_labels", [3, 1])
def test_proximal_term_pulls_towards_the_teacher(num_labels):
    model, data = setting("bert", num_labels)
    objective = Objective(SMART(lambda_s=0, mu=0.7, weight=1.0)).attach(model)
    teacher = tiny_model("bert", num_labels=num_labels)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.02)
    terms = [
        distance(predict(model, ids, 0), predict(teacher, ids, 0).detach()) for ids, _ in rows(data)
    ]
    total = objective(model, data)
    expected = 0.7 * sum(terms) / 4
    assert expected > 1e-5
    torch.testing.assert_close(objective.terms["loss/smart"], expected.detach())
    weights = list(model.parameters())
    found = torch.autograd.grad(total - model(**data).loss, weights)
    wanted = torch.autograd.grad(expected, weights)
    for g, w in zip(found, wanted, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-6, atol=1e-9)


def test_proximal_term_vanishes_at_the_teacher():
    model = tiny_model("bert", dropout=0.2)
    method = SMART(lambda_s=0, weight=1.0)
    method.attach(model)
    term = method.loss(ForwardPass(model, tiny_batch(), hidden_states=False))
    assert term == 0
    for slope_ in torch.autograd.grad(term, list(model.parameters())):
        assert slope_.abs().max() < 1e-12


def test_teacher_is_the_moving_average():
    model = tiny_model("bert")
    method = SMART(beta=0.8, late_beta=0.5, late_after=2, weight=1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    objective = Objective(method).bind(model, optimizer)
    weight = model.classifier.weight
    history = [weight.detach().clone()]
    for _ in range(3):
        objective(model, tiny_batch()).backward()
        optimizer.step()
        optimizer.zero_grad()
        history.append(weight.detach().clone())
    w0, w1, w2, w3 = history
    expected = 0.5 * (0.8 * (0.8 * w0 + 0.2 * w1) + 0.2 * w2) + 0.5 * w3
    torch.testing.assert_close(method.state_dict()["classifier.weight"], expected)


@pytest.mark.parametrize(("length", "expected"), [(20, 0.999), (None, 0.99)])
def test_the_late_momentum_comes_after_a_tenth_of_the_run(length, expected, caplog):
    model = tiny_model("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = SMART(weight=1.0)
    objective = Objective(method).bind(model, optimizer, length)
    for _ in range(3):
        before = method.state_dict()["classifier.weight"].clone()
        objective(model, tiny_batch()).backward()
        optimizer.step()
    now, weight = method.state_dict()["classifier.weight"], model.classifier.weight.detach()
    torch.testing.assert_close(now, expected * before + (1 - expected) * weight)
    assert ("so smart's teacher keeps beta=0.99" in caplog.text) == (length is None)


def test_the_late_momentum_may_hold_from_the_first_update_on():
    """Also in a run of unknown length, of which 0 is no fraction."""
    model = tiny_model("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = SMART(weight=1.0, late_after=0, beta=0.5, late_beta=0.9)
    objective = Objective(method).bind(model, optimizer)
    before = model.classifier.weight.detach().clone()
    objective(model, tiny_batch()).backward()
    optimizer.step()
    expected = 0.9 * before + 0.1 * model.classifier.weight.detach()
    torch.testing.assert_close(method.state_dict()["classifier.weight"], expected)


def test_frozen_weights_are_not_copied():
    model = tiny_model("bert")
    table = model.get_input_embeddings().weight.requires_grad_(False)
    method = SMART(weight=1.0)
    method.attach(model)
    assert not any("word_embeddings" in name for name in method.state_dict())
    assert any(weight is table for weight in method._teacher.model.parameters())
    assert model.classifier.weight.requires_grad


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_stays_in_the_ball_and_beats_noise(norm):
    model, data = tiny_model("bert"), tiny_batch()
    found = {}
    original = ForwardPass.at

    def at(self, delta=None, *args, **kwargs):
        found["delta"] = delta.detach()
        return original(self, delta, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ForwardPass, "at", at)
        objective = Objective(
            SMART(mu=0, norm=norm, units="absolute", epsilon=0.2, step_size=9.0, weight=1.0)
        )
        term = objective.attach(model)(model, data) - model(**data).loss
    delta = found["delta"]
    size = delta.abs().amax((1, 2)) if norm == "linf" else delta.flatten(1).norm(dim=1)
    torch.testing.assert_close(size, torch.full_like(size, 0.2))
    assert not delta[~data["attention_mask"].bool()].any()
    clean = ForwardPass(model, data, hidden_states=False).run()
    noise = []
    for seed in range(5):
        torch.manual_seed(seed)
        draw = torch.randn_like(delta).sign() if norm == "linf" else torch.randn_like(delta)
        draw = draw * data["attention_mask"][..., None]
        scale = 0.2 / (1 if norm == "linf" else draw.flatten(1).norm(dim=1)[:, None, None])
        other = clean.at(draw * scale).logits
        noise.append(sum(distance(a, b) for a, b in zip(clean.logits, other, strict=True)) / 4)
    assert term > max(noise)


def test_spans_take_the_mean_of_start_and_end():
    model, data = tiny_span_model(), span_batch(tiny_batch())
    with fixed_draws():
        objective = Objective(SMART(mu=0, weight=1.0)).attach(model)
        objective(model, data).backward()
    assert objective.terms["loss/smart"] > 0
    assert objective.terms["smart/cos_gradient"] > 0.3
    assert model.qa_outputs.weight.grad.abs().max() > 0


@pytest.mark.parametrize(
    ("case", "fields", "num_labels"),
    [
        ("smart_mtdnn_inf_K1", {"step_size": 1e-3}, 3),
        ("smart_mtdnn_big_noise", {"step_size": 1.0, "sigma": 1e-3}, 3),
        ("smart_mtdnn_regression", {"step_size": 1e-3}, 1),
        (
            "smart_pytorch_steps1",
            {"inner_criterion": "kl", "step_size": 1e-3 / 3, "weight": 3},
            3,
        ),  # sums the term over the batch of three, and climbs a mean
    ],
)
def test_equals_released_code(case, fields, num_labels):
    model, data = Tiny(num_labels), batch(regression=num_labels == 1)
    method = SMART(compat="mt-dnn", **fields)
    method.attach(model)
    with fed(*draws(case)):
        term = method.weight * method.loss(ForwardPass(model, data, hidden_states=False))
    term.backward()
    assert_conforms(case, term, model)


def test_stable_kl_equals_mt_dnn():
    case = CASES["mtdnn_stable_kl_sum"]
    logits = torch.tensor(case["logit"], requires_grad=True)
    value = stable_kl(torch.tensor(case["target"]), logits).sum()
    value.backward()
    torch.testing.assert_close(value.item(), case["loss"], rtol=1e-5, atol=0)
    torch.testing.assert_close(
        logits.grad.flatten(), torch.tensor(case["grad_logit"]), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    ("criterion", "measure"),
    [
        ("SymKlCriterion", symmetric_kl_detached),
        ("KlCriterion", library_kl),
        ("JSCriterion", mt_dnn_js),
    ],
)
def test_divergences_equal_mt_dnn(criterion, measure):
    case = CASES[f"mtdnn_loss_{criterion}"]
    logits, target = (torch.tensor(case[key], requires_grad=True) for key in ("input", "target"))
    value = measure(target, logits).mean()
    value.backward()
    torch.testing.assert_close(value.item(), case["loss"], rtol=1e-5, atol=0)
    for found, key in [(logits, "grad_input"), (target, "grad_target")]:
        torch.testing.assert_close(
            found.grad.flatten(), torch.tensor(case[key]), rtol=1e-4, atol=1e-6
        )


def test_criterion_of_the_released_code():
    values = {}
    for criterion in ("sym_kl", "js"):
        model, data = Tiny(), batch()
        method = SMART(compat="mt-dnn", step_size=1.0, sigma=1e-3, criterion=criterion, weight=1.0)
        method.attach(model)
        with fed(*draws("smart_mtdnn_big_noise")):
            values[criterion] = method.loss(ForwardPass(model, data, hidden_states=False)).item()
    assert 0 < values["js"] < values["sym_kl"]
    with pytest.raises(ValueError, match="compat"):
        SMART(criterion="js", weight=1.0)


def test_without_any_term_is_refused():
    with pytest.raises(ValueError, match="lambda_s or mu"):
        SMART(lambda_s=0, mu=0, weight=1.0)


def kl_div(a, b, target):
    """F.kl_div of public code: KL of the probabilities `target` to softmax(a); b is unused."""
    return F.kl_div(a.log_softmax(-1), target, reduction="batchmean")


def symmetric(a, b):
    return kl_div(a, b, b.detach().softmax(-1)) + kl_div(b, a, a.detach().softmax(-1))


def jensen_shannon(a, b):
    mean = 0.5 * (a.detach().softmax(-1) + b.detach().softmax(-1))
    return kl_div(a, b, mean) + kl_div(b, a, mean)


def mt_dnn_stable_kl(logit, target):
    p, y = logit.softmax(-1), target.softmax(-1)
    rp = -(1.0 / (p + 1e-6) - 1 + 1e-6).detach().log()
    ry = -(1.0 / (y + 1e-6) - 1 + 1e-6).detach().log()
    return (p * (rp - ry) * 2).sum() / len(logit)


PUBLIC_INNER = {  # (perturbed, clean.detach()), means over the batch
    "sym_kl": symmetric,
    "kl": lambda a, b: kl_div(a, b, b.softmax(-1)),
    "stable_kl": mt_dnn_stable_kl,
    "js": jensen_shannon,
    "mse": F.mse_loss,
}
PUBLIC_OUTER = PUBLIC_INNER | {  # (clean, perturbed), as mt-dnn calls its criteria
    "stable_kl": lambda a, b: mt_dnn_stable_kl(a, b.detach())
}


@pytest.mark.parametrize(
    ("inner", "outer"),
    [
        (None, "sym_kl"),  # mt-dnn
        ("kl", "sym_kl"),  # smart-pytorch, vat-pytorch
        ("stable_kl", "kl"),
        ("stable_kl", "stable_kl"),
        ("js", "js"),
        ("sym_kl", "sym_kl"),
        ("mse", "mse"),
    ],
)
def test_criteria_equal_public_loops(inner, outer):
    """With a step that is large beside the noise, so that what is climbed decides."""
    model, data = Tiny().double(), batch()
    torch.manual_seed(0)
    noise = 1e-3 * torch.randn(3, 4, 6, dtype=torch.float64)
    clean, delta = model(**data).logits, noise.clone().requires_grad_()
    with added(model, delta):
        climbed = PUBLIC_INNER[inner or "stable_kl"](model(**data).logits, clean.detach())
    (slope,) = torch.autograd.grad(climbed, delta)
    # a sum over the batch of 3 and step 50; mt-dnn sums, the others divide both by 3
    step = (noise + 50 * 3 * slope) * data["attention_mask"][..., None]
    step = step / (step.norm(p=torch.inf, dim=-1, keepdim=True) + 1e-6)
    with added(model, step):
        expected = PUBLIC_OUTER[outer](clean, model(**data).logits)

    method = SMART(
        compat="mt-dnn",
        step_size=50,
        sigma=1e-3,
        inner_criterion=inner,
        criterion=outer,
        weight=1.0,
    )
    method.attach(model)
    with fed(noise / 1e-3):
        term = method.loss(ForwardPass(model, data, hidden_states=False))
    torch.testing.assert_close(term, expected)
    torch.testing.assert_close(gradient(term, [model]), gradient(expected, [model]))


@pytest.mark.parametrize("criterion", ["kl", "mse"])
def test_criteria_of_the_equation(criterion):
    """l_s is what is climbed, what the term is, and the distance to the teacher."""
    model, data = setting("bert", 3)

    def distance(a, b):
        squares = sum((x - y) ** 2 for x, y in zip(a, b, strict=True))
        return squares if criterion == "mse" else kl(probabilities(a), probabilities(b))

    def expected(model):
        terms, clean = [], []
        for ids, _ in rows(data):
            x = embeddings(model, ids)
            delta = (0.02 * rms(x) * rng.normal_like(x)).requires_grad_()
            target = predict(model, ids, 0).detach()
            g = slope(distance(target, predict(model, ids, delta)), delta)
            moved = delta.detach() + 0.3 * rms(x) * g / max(abs(v) for v in g.flatten())
            clean.append(predict(model, ids, 0))
            bounded = moved.clamp(-0.1 * rms(x), 0.1 * rms(x))
            terms.append(distance(clean[-1], predict(model, ids, bounded)))
        return cross_entropy(clean, data["labels"]) + sum(terms) / 4

    method = SMART(mu=0, sigma=0.02, step_size=0.3, epsilon=0.1, criterion=criterion, weight=1.0)
    compare(Objective(method), model, data, expected)


def test_released_criteria_need_compat():
    for fields in ({"criterion": "stable_kl"}, {"inner_criterion": "js"}):
        with pytest.raises(ValueError, match='"(stable_kl|js)" is .* set compat="mt-dnn"'):
            SMART(**fields)


def test_proximal_term_vanishes_where_parts_are_in_evaluation_mode():
    model = tiny_model("bert", dropout=0.5)
    method = SMART(lambda_s=0, weight=1.0)
    method.attach(model)
    for part in (model.bert.encoder, model.dropout):
        model.train()
        part.eval()
        assert method.loss(ForwardPass(model, tiny_batch(), hidden_states=False)) == 0


def test_without_a_teacher_it_says_what_to_do():
    with pytest.raises(RuntimeError, match="attach smart to the model first"):
        SMART(weight=1.0).loss(ForwardPass(tiny_model("bert"), tiny_batch(), hidden_states=False))
