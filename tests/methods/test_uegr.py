"""UEGR."""

import math

import pytest
import torch

from helpers.conformance import fed
from helpers.literal import (
    MODELS,
    added,
    cross_entropy,
    entropy,
    gradient,
    kl,
    probabilities,
    span_batch,
    squared_error,
    tiny_span_model,
)
from smoothtune import UEGR, ForwardPass, Objective
from smoothtune.functional.divergences import jensen_shannon, squared_deviation
from smoothtune.methods.uegr import even_rates
from smoothtune.nn import rng
from smoothtune.nn.dropout import sites
from smoothtune.testing import fixed_draws, tiny_batch, tiny_model

CPU = torch.device("cpu")
FORWARD_ONLY = {"keep": 1.0, "dropout_range": (0.1, 0.3)}  # no backward stage


def fast_gradient(model, batch, eps, *, relative):
    """delta = eps * g / ||g|| per example, g the gradient of the loss under the next dropout."""
    delta = torch.zeros(4, 6, 8, dtype=torch.float64, requires_grad=True)
    with added(model, delta):
        loss = model(**batch).loss
    (g,) = torch.autograd.grad(loss, delta)
    x = model.get_input_embeddings()(batch["input_ids"]).detach()
    out = torch.zeros_like(g)
    for row, length in enumerate(batch["attention_mask"].sum(1)):
        tokens = [t for t in range(6) if batch["attention_mask"][row, t]]
        assert len(tokens) == length
        size = sum(float(v) ** 2 for t in tokens for v in x[row, t]) ** 0.5 if relative else 1.0
        norm = sum(float(v) ** 2 for t in tokens for v in g[row, t]) ** 0.5
        for t in tokens:
            out[row, t] = eps * size * g[row, t] / norm
    return out


def js(predictions):
    """1/K sum_k KL(P_k || M), a mean over examples; predictions: K logits (B, C)."""
    values = []
    for rows in zip(*predictions, strict=True):
        p = [probabilities(row) for row in rows]
        mean = [sum(column) / len(p) for column in zip(*p, strict=True)]
        values.append(sum(kl(each, mean) for each in p) / len(p))
    return sum(values) / len(values)


def deviation(predictions):
    """Mean squared deviation of K scores from their mean, a mean over examples."""
    values = []
    for rows in zip(*predictions, strict=True):
        mean = sum(row[0] for row in rows) / len(rows)
        values.append(sum((row[0] - mean) ** 2 for row in rows) / len(rows))
    return sum(values) / len(values)


@pytest.mark.parametrize("num_labels", [3, 1])
@pytest.mark.parametrize("architecture", MODELS)
def test_forward_stage_equals_its_equation(architecture, num_labels):
    """Sub-models are models built with their dropout rate, not ones whose rate was changed."""
    batch = tiny_batch(num_labels=num_labels)
    model, low, high = (
        tiny_model(architecture, num_labels=num_labels, dropout=rate) for rate in (0.2, 0.1, 0.3)
    )
    objective = Objective(UEGR(gamma=1.3, alpha=0.7, beta=0.4, epsilon=0.2, **FORWARD_ONLY)).attach(
        model
    )
    torch.manual_seed(7)
    delta = fast_gradient(model, batch, 0.2, relative=True)
    torch.manual_seed(7)
    clean = model(**batch).logits.view(4, num_labels)
    logits = []
    torch.manual_seed(7)
    with added(low, delta):
        logits.append(low(**batch).logits.view(4, num_labels))
    with added(high, delta), rng.stream(CPU, objective.seed, "uegr", 1):
        logits.append(high(**batch).logits.view(4, num_labels))
    task, apart = (squared_error, deviation) if num_labels == 1 else (cross_entropy, js)
    adversarial = sum(task(each, batch["labels"]) for each in logits) / 2
    expected = 1.3 * adversarial + 0.7 * apart(logits) + 0.4 * task(clean, batch["labels"])
    assert apart(logits) > 1e-5

    torch.manual_seed(7)
    total = objective(model, batch)
    torch.testing.assert_close(total, expected, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(
        gradient(total, [model]), gradient(expected, [model, low, high]), rtol=1e-5, atol=1e-8
    )


def test_spans_take_the_mean_of_start_and_end():
    batch = span_batch(tiny_batch())
    model, low, high = (tiny_span_model(dropout=rate) for rate in (0.2, 0.1, 0.3))
    objective = Objective(UEGR(attack="none", **FORWARD_ONLY)).attach(model)
    torch.manual_seed(7)
    outputs = [low(**batch)]
    with rng.stream(CPU, objective.seed, "uegr", 1):
        outputs.append(high(**batch))
    terms = []
    for name in ("start_logits", "end_logits"):
        for row, length in enumerate([6, 4, 5, 3]):
            terms.append(js([out[name][row : row + 1, :length] for out in outputs]))
    expected = (outputs[0].loss + outputs[1].loss) / 2 + sum(terms) / 8
    torch.manual_seed(7)
    total = objective(model, batch)
    torch.testing.assert_close(total, expected, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(
        gradient(total, [model]), gradient(expected, [low, high]), rtol=1e-5, atol=1e-8
    )


@pytest.mark.parametrize("architecture", MODELS)
def test_without_ensemble_and_mask_it_is_adversarial_training(architecture):
    """K=1, alpha=0, rho=1 and the model's own dropout, for three steps of AdamW."""
    weights = []
    for ours in (True, False):
        model = tiny_model(architecture)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        batch = tiny_batch()
        method = UEGR(
            passes=1, alpha=0.0, keep=1.0, combination="model", epsilon=1.0, units="absolute"
        )
        objective = Objective(method).bind(model, optimizer) if ours else None
        for _ in range(3):
            if objective is not None:
                loss = objective(model, batch)
            else:
                delta = fast_gradient(model, batch, 1.0, relative=False)
                with added(model, delta):
                    loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(*weights, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("attack", ["fgm", "pgd"])
@pytest.mark.parametrize("fields", [{}, {"random_start": True}, {"attack_dropout": "off"}])
def test_attack_has_its_norm_raises_the_loss_and_spares_padding(attack, fields):
    model, batch = tiny_model("bert"), tiny_batch()
    method = UEGR(attack=attack, epsilon=0.05, units="absolute", **fields)
    clean = ForwardPass(model, batch, differentiable=True).run()
    delta = method._adversary(clean)
    norms = torch.linalg.vector_norm(delta, dim=(1, 2))
    assert (norms <= 0.05 + 1e-9).all()
    if attack == "fgm":
        torch.testing.assert_close(norms, torch.full((4,), 0.05, dtype=torch.float64))
        assert method.diagnostics["cos_gradient"].item() == pytest.approx(1, abs=1e-6)
    assert (delta[batch["attention_mask"] == 0] == 0).all()
    assert clean.at(delta).loss > clean.loss
    assert method.diagnostics["cos_gradient"] > 0.3


def test_pgd_takes_projected_steps():
    model, batch = tiny_model("bert"), tiny_batch()
    method = UEGR(attack="pgd", num_steps=3, epsilon=0.4, step_size=0.3, units="absolute")
    delta = method._adversary(ForwardPass(model, batch, differentiable=True))
    expected = torch.zeros(4, 6, 8, dtype=torch.float64)
    for _ in range(3):
        leaf = expected.clone().requires_grad_()
        with added(model, leaf):
            (g,) = torch.autograd.grad(model(**batch).loss, leaf)
        for row in range(4):
            real = batch["attention_mask"][row].bool()
            step = g[row] * real[:, None]
            expected[row] += 0.3 * step / step.norm()
            expected[row] *= min(1.0, 0.4 / expected[row].norm().item())
    torch.testing.assert_close(delta, expected, rtol=1e-6, atol=1e-9)


# --- divergence and rates ------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 5])
def test_js_is_the_entropy_form_between_zero_and_log_k(count):
    logits = 3 * torch.randn(count, 7, 4, dtype=torch.float64)
    for row in range(7):
        p = [probabilities(logits[k, row]) for k in range(count)]
        mean = [sum(column) / count for column in zip(*p, strict=True)]
        expected = entropy(mean) - sum(map(entropy, p)) / count
        value = jensen_shannon(logits)[row]
        torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-12)
        assert -1e-12 <= value <= math.log(count) + 1e-12
    certain = 100 * torch.eye(count, dtype=torch.float64)
    assert jensen_shannon(certain).item() == pytest.approx(math.log(count), abs=1e-9)
    same = torch.randn(1, 4).expand(count, 4)
    assert jensen_shannon(same).item() == pytest.approx(0, abs=1e-6)


def test_two_distributions_have_the_textbook_js_divergence():
    from scipy.spatial.distance import jensenshannon

    logits = torch.randn(2, 5, dtype=torch.float64)
    p, q = logits.softmax(-1)
    assert jensen_shannon(logits).item() == pytest.approx(jensenshannon(p, q) ** 2)


def test_squared_deviation_is_the_variance():
    scores = torch.randn(4, 6, 1)
    torch.testing.assert_close(squared_deviation(scores), scores[..., 0].var(0, correction=0))


def test_js_norm_and_clean_prediction():
    def divergence(**fields):
        model = tiny_model("bert", dropout=0.2)
        method = UEGR(attack="none", gamma=0.0, **(FORWARD_ONLY | fields))
        objective = Objective(method).attach(model)
        torch.manual_seed(7)
        return objective(model, tiny_batch()).item()

    assert divergence(js_norm="log_k") == pytest.approx(divergence() / math.log(2))
    assert divergence(passes=1) == 0
    other_rate = {"passes": 1, "dropout_range": (0.4, 0.4)}
    assert divergence(js_over="adversarial+clean", **other_rate) > 0


def rates_of(method, draws=None):
    """Dropout rates that are really set during the passes of one step."""
    model, seen = tiny_model("bert", dropout=0.2), []
    handle = model.register_forward_pre_hook(
        lambda module, *_: seen.append({getattr(owner, name) for owner, name, _ in sites(module)})
    )
    Objective(method).attach(model)(model, tiny_batch())
    handle.remove()
    assert {getattr(owner, name) for owner, name, _ in sites(model)} == {0.2}
    return seen


def test_combinations_of_rates():
    off = {"attack": "none"} | FORWARD_ONLY
    assert rates_of(UEGR(**off | {"passes": 3, "dropout_range": (0.0, 0.5)})) == [
        {0.0},
        {0.25},
        {0.5},
    ]
    listed = UEGR(combination="list", rates=[0.1, 0.4], **off)
    assert rates_of(listed) == [{0.1}, {0.4}]
    assert rates_of(UEGR(combination="model", **off)) == [{0.2}, {0.2}]
    assert rates_of(UEGR(modules=["attention"], **off)) == [{0.1, 0.2}, {0.3, 0.2}]
    drawn = rates_of(UEGR(combination="random", passes=5, **off))
    assert len({next(iter(rates)) for rates in drawn}) == 5
    assert all(0.1 <= rate <= 0.3 for rates in drawn for rate in rates)
    assert even_rates(0.1, 0.3, 1) == [0.2]


@pytest.mark.parametrize("target", [0.0, 5.0])
def test_adaptive_rates_follow_the_divergence_within_the_range(target):
    method = UEGR(adaptive="divergence", target=target, ema=0.0, kappa=0.5, **FORWARD_ONLY)
    model = tiny_model("bert", dropout=0.2)
    objective = Objective(method).attach(model)
    objective(model, tiny_batch())
    js_value = objective.terms["uegr/js"].item()
    objective.after_step()
    factor = 1 + 0.5 * (target - js_value)
    expected = [min(max(rate * factor, 0.1), 0.3) for rate in (0.1, 0.3)]
    assert objective.state_dict()["uegr/rates"].tolist() == pytest.approx(expected)
    assert expected != [0.1, 0.3]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dropout_range": (0.3, 0.1)}, "swap them"),
        ({"rates": [0.1, 0.2]}, "go together"),
        ({"combination": "list"}, "go together"),
        ({"combination": "list", "rates": [0.1]}, "1 entries, but passes is 2"),
        ({"combination": "model", "adaptive": "divergence"}, 'combination="even" or "list"'),
        ({"mask": "bernoulli", "keep": 0.1}, "above p_min"),
    ],
)
def test_settings_that_do_not_fit_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        UEGR(**fields)


def test_batches_without_labels_have_no_term():
    batch = tiny_batch()
    del batch["labels"]
    model = tiny_model("bert")
    with fixed_draws(), pytest.raises(ValueError, match="no labels"):
        Objective(UEGR()).attach(model)(model, batch)


def attack(model, batch, monkeypatch, **fields):
    """The perturbation that the sub-models are given."""
    seen, original = [], ForwardPass.at

    def at(self, delta=None, *args, **kwargs):
        seen.append(delta)
        return original(self, delta, *args, **kwargs)

    monkeypatch.setattr(ForwardPass, "at", at)
    method = UEGR(combination="model", passes=1, **fields)
    clean = ForwardPass(model, batch, points=("word",), differentiable=True).run()
    method.loss(clean)
    return clean, seen[-1].detach()


@pytest.mark.parametrize("mode", ["model", "off"])
def test_dropout_of_the_attack(mode, monkeypatch):
    """The direction is the gradient under the masks of the clean pass, or without dropout."""
    model, batch = tiny_model("bert", dropout=0.4), tiny_batch()
    clean, delta = attack(model, batch, monkeypatch, attack="fgm", attack_dropout=mode)
    cosines = {}
    for name in ("model", "off"):
        run = clean.at(
            clean.zeros().requires_grad_(), dropout="shared" if name == "model" else "off"
        )
        (gradient,) = torch.autograd.grad(run.loss, run.delta())
        gradient = gradient * batch["attention_mask"][..., None]
        cosines[name] = torch.cosine_similarity(delta.flatten(1), gradient.flatten(1))
    torch.testing.assert_close(cosines[mode], torch.ones(4, dtype=torch.float64))
    assert all(values.max() < 0.99 for name, values in cosines.items() if name != mode)


def test_random_start_of_the_attack(monkeypatch):
    """At a share of the radius, (u + 1) / 2, along the draws; the step is too small to matter."""
    model, batch = tiny_model("bert"), tiny_batch()
    noise = torch.randn(4, 6, 8, dtype=torch.float64)
    share = torch.tensor([0.5, -1.0, 1.0, 0.0], dtype=torch.float64).view(4, 1, 1)
    fields = {"attack": "pgd", "random_start": True, "num_steps": 1, "step_size": 1e-9}
    with fed(noise, share):
        _, delta = attack(model, batch, monkeypatch, epsilon=0.2, units="relative", **fields)
    mask = batch["attention_mask"][..., None]
    x = model.get_input_embeddings()(batch["input_ids"]).detach() * mask
    for b, part in enumerate((0.75, 0.0, 1.0, 0.5)):
        direction = noise[b] * mask[b] / (noise[b] * mask[b]).norm()
        expected = part * 0.2 * x[b].norm() * direction
        torch.testing.assert_close(delta[b], expected, rtol=0, atol=1e-7)


def test_running_mean_of_the_divergence_starts_at_its_target():
    fields = {"target": 0.2, "ema": 0.75, "kappa": 0.5, "dropout_range": (0.01, 0.9)}
    method = UEGR(adaptive="divergence", keep=1.0, **fields)
    model = tiny_model("bert", dropout=0.2)
    objective = Objective(method).attach(model)
    running, rates = 0.2, [0.01, 0.9]
    for _ in range(3):
        objective(model, tiny_batch())
        objective.after_step()
        running = 0.75 * running + 0.25 * objective.terms["uegr/js"].item()
        factor = 1 + 0.5 * (0.2 - running)
        rates = [min(max(rate * factor, 0.01), 0.9) for rate in rates]
        state = objective.state_dict()
        assert state["uegr/running"].item() == pytest.approx(running)
        assert state["uegr/rates"].tolist() == pytest.approx(rates)
    assert running != 0.2


def test_a_model_of_its_own_starts_at_the_first_rates():
    """What was adapted to one model is forgotten with it."""
    method = UEGR(adaptive="divergence", target=5.0, ema=0.0, kappa=0.5, **FORWARD_ONLY)
    first = method.state_dict()
    model = tiny_model("bert", dropout=0.2)
    objective = Objective(method).attach(model)
    objective(model, tiny_batch())
    objective.after_step()
    assert not torch.equal(method.state_dict()["rates"], first["rates"])
    objective.detach()
    again = method.state_dict()
    assert again.keys() == first.keys()
    assert all(torch.equal(again[name], value) for name, value in first.items())
