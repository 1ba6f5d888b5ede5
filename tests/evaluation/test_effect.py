"""Quantities that methods are about, on networks where they are known."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from helpers.linear_network import WIDTH, rotation
from smoothtune.core.quantities import QUANTITIES
from smoothtune.evaluation.drift import weight_distance
from smoothtune.evaluation.effect import (
    loss_gradient_norm,
    measure,
    prediction_divergences,
    prediction_scale,
    worst_perturbation,
)
from smoothtune.evaluation.weight_gradients import gradient_spread, task_gradient, weight_side
from smoothtune.functional.divergences import divergence
from smoothtune.methods import METHODS
from smoothtune.tasks.presets import describe_task
from smoothtune.testing import tiny_model


def symmetric_kl(p, q):
    p, q = np.exp(p - p.max()), np.exp(q - q.max())
    p, q = p / p.sum(), q / q.sum()
    return float(((p - q) * np.log(p / q)).sum())


def first_embeddings(predictor, rows):
    table = predictor.model.embedding.weight.detach().numpy()
    return np.stack([table[row[0]] for row in rows["input_ids"]])


def matrix(predictor):
    """(C, D) logits of the first token's embedding."""
    return (predictor.model.head.weight @ predictor.model.layers[0].weight).detach().numpy()


def test_the_worst_perturbation_of_a_linear_model_is_along_the_difference_of_its_rows(
    linear_predictor, rows
):
    """Two logits Wx: the margin moves most along w_0 - w_1 in the first token, all of epsilon."""
    predictor = linear_predictor([rotation(0)], batch_size=2)
    found = prediction_divergences(predictor, rows, epsilon=0.3, num_steps=20)
    w, table = matrix(predictor), predictor.model.embedding.weight.detach().numpy()
    direction = (w[0] - w[1]) / np.linalg.norm(w[0] - w[1])
    expected = []
    for ids, x in zip(rows["input_ids"], first_embeddings(predictor, rows), strict=True):
        size = 0.3 * np.linalg.norm(table[ids])
        sides = [symmetric_kl(w @ x, w @ (x + sign * size * direction)) for sign in (1, -1)]
        expected.append(sorted(sides))
    low, high = np.mean(expected, axis=0)
    assert low - 1e-9 <= found["worst divergence"] <= high + 1e-9
    assert found["worst divergence"] > 5 * found["noise divergence"]
    assert 0 <= found["changed predictions"] <= 1


def test_the_search_beats_random_perturbations_of_its_size(linear_predictor, rows):
    predictor = linear_predictor([rotation(0), rotation(1)], batch_size=5)
    ((_, batch),) = predictor.batches(rows)
    clean = predictor.clean(batch, hidden_states=False)
    with torch.no_grad():
        clean.run()
    delta = worst_perturbation(clean, 0.1, 5)
    x = clean.embeddings() * clean.mask[..., None]
    norms = delta.flatten(1).norm(dim=1) / x.flatten(1).norm(dim=1)
    assert bool((norms <= 0.1 + 1e-9).all())
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        found = divergence(clean, clean.at(delta, dropout="off"))
        for _ in range(50):
            noise = torch.randn(x.shape, generator=generator, dtype=x.dtype) * clean.mask[..., None]
            size = (x.flatten(1).norm(dim=1) / noise.flatten(1).norm(dim=1))[:, None, None]
            assert found > divergence(clean, clean.at(0.1 * size * noise, dropout="off"))


def test_nothing_moves_without_a_perturbation(linear_predictor, rows):
    predictor = linear_predictor([rotation(0)], batch_size=2)
    found = prediction_divergences(predictor, rows, epsilon=0.0, noise_ratio=0.0)
    assert found == {"worst divergence": 0, "noise divergence": 0, "changed predictions": 0}


def test_two_dropout_passes_differ_and_the_mode_comes_back(linear_predictor, rows):
    class Dropping(type(linear_predictor([rotation(0)]).model)):
        def forward(self, input_ids, attention_mask=None, token_type_ids=None):
            out = super().forward(input_ids, attention_mask)
            return {"logits": self.drop(out["logits"])}

    predictor = linear_predictor([rotation(0)], batch_size=2)
    predictor.model.drop = nn.Dropout(0.5)
    predictor.model.__class__ = Dropping
    predictor.model.eval()
    first = prediction_divergences(predictor, rows)
    assert first["dropout divergence"] > 0
    assert prediction_divergences(predictor, rows) == first
    assert not any(module.training for module in predictor.model.modules())
    predictor.model.drop.p = 0.0
    assert "dropout divergence" not in prediction_divergences(predictor, rows)


def test_gradient_of_the_loss_in_the_input(linear_predictor, rows):
    """dL/dx of the first token is W'(softmax(Wx) - onehot(y)), of the others 0."""
    squares = []
    for batch_size in (1, 5):
        predictor = linear_predictor([rotation(0)], batch_size=batch_size)
        w = matrix(predictor)
        squares = []
        pairs = zip(rows["labels"], first_embeddings(predictor, rows), strict=True)
        for label, x in pairs:
            p = np.exp(w @ x) / np.exp(w @ x).sum()
            squares.append(np.sum((w.T @ (p - np.eye(2)[label])) ** 2))
        expected = np.sqrt(np.mean(squares))
        assert loss_gradient_norm(predictor, rows) == pytest.approx(expected, rel=1e-9)


def test_losses_of_words_do_not_depend_on_the_batches(linear_predictor, rows, monkeypatch):
    """A batch's loss is a mean over its words, of which sentences have different numbers."""
    ids = rows["input_ids"][:]
    tags = [[-100, *(token % 2 for token in row[1:])] for row in ids]
    tagged = rows.remove_columns("labels").add_column("labels", tags)
    found = []
    for batch_size in (1, 2, 5):
        predictor = linear_predictor([rotation(0), rotation(1)], batch_size=batch_size)
        columns = {"text_columns": "tokens", "label_column": "tags", "label_names": ("A", "B")}
        predictor.task = describe_task("tags", "token-classification", **columns)
        head = predictor.model.head
        monkeypatch.setattr(predictor.model, "forward", partial(tag_logits, predictor.model, head))
        found.append(
            [loss_gradient_norm(predictor, tagged), *weight_side(predictor, tagged)[0].values()]
        )
    assert found[0] == pytest.approx(found[2], rel=1e-9)
    assert found[1] == pytest.approx(found[2], rel=1e-9)


def tag_logits(model, head, input_ids, attention_mask=None, token_type_ids=None):
    hidden = model.embedding(input_ids)
    for layer in model.layers:
        hidden = layer(hidden)
    return {"logits": head(hidden)}


class Quadratic(nn.Module):
    """Predicts its weights w for every row."""

    def __init__(self):
        super().__init__()
        self.word = nn.Embedding(14, 2, dtype=torch.float64)
        self.word.weight.requires_grad_(False)
        self.w = nn.Parameter(torch.tensor([3.0, 4.0], dtype=torch.float64))
        self.config = None

    def get_input_embeddings(self):
        return self.word

    def forward(self, input_ids, attention_mask=None, token_type_ids=None):
        self.word(input_ids)
        return {"logits": self.w.expand(len(input_ids), 2)}


class SquaredLength:
    """L(w) = 1/2 ||w||^2, whatever the labels; a task that is its own head."""

    def __init__(self, task):
        self.task, self.head = task, self

    def __getattr__(self, name):
        own = self.task if hasattr(self.task, name) else self.task.head
        return getattr(own, name)

    def loss(self, outputs, batch):
        return 0.5 * outputs["logits"].square().sum(1).mean()


def test_sharpness_of_a_quadratic(linear_predictor, rows):
    """L = ||w||^2 / 2 at ||w|| = 5: one step of rho up the gradient gives (5 + rho)^2 / 2."""
    predictor = linear_predictor([rotation(0)], batch_size=2)
    predictor.model, predictor.task = Quadratic(), SquaredLength(predictor.task)
    before = predictor.model.w.detach().clone()
    loss, gradients = task_gradient(predictor, rows)
    assert loss == pytest.approx(12.5)
    assert gradients["w"].tolist() == pytest.approx([3, 4])
    for rho in (0.05, 1.0):
        found, _ = weight_side(predictor, rows, rho=rho)
        assert found["sharpness"] == pytest.approx(((5 + rho) ** 2 - 25) / 2, rel=1e-9)
    assert torch.equal(predictor.model.w, before)
    assert predictor.model.w.grad is None


def test_spread_is_the_largest_norm_over_the_median(linear_predictor, rows):
    predictor = linear_predictor([rotation(0), rotation(1), rotation(2)], batch_size=2)
    model = copy.deepcopy(predictor.model)
    losses = []
    for ids, label in zip(rows["input_ids"], rows["labels"], strict=True):
        out = model(torch.tensor([ids]), torch.ones(1, len(ids)))["logits"]
        losses.append(nn.functional.cross_entropy(out, torch.tensor([label])))
    torch.stack(losses).mean().backward()
    norms = [float(weight.grad.norm()) for weight in model.parameters()]
    expected = max(norms) / np.median(norms)
    found, by_name = weight_side(predictor, rows)
    assert found["gradient spread"] == pytest.approx(expected)
    assert sorted(by_name.values()) == pytest.approx(sorted(norms))
    assert all(weight.grad is None for weight in predictor.model.parameters())


def test_a_model_of_merged_adapters_says_what_is_not_measured(linear_predictor, rows):
    predictor = linear_predictor([rotation(0)], batch_size=2)
    predictor.model.requires_grad_(False)
    found = measure(predictor, rows)
    assert found.missing["sharpness"] == "no weight is trained: adapters are merged"
    assert "gradient spread" not in found.values
    assert "worst divergence" in found.values


def test_the_spread_by_layer_begins_at_the_embeddings_and_ends_above_the_blocks():
    model = tiny_model("bert")
    norms = {name: 1.0 for name, _ in model.named_parameters() if "pooler" not in name}
    norms["bert.embeddings.position_embeddings.weight"] = 3.0
    norms["bert.encoder.layer.1.attention.self.query.weight"] = 8.0
    norms["bert.encoder.layer.1.output.dense.weight"] = 4.0
    norms["classifier.bias"] = 0.25
    largest, median = gradient_spread(model, norms).series.values()
    last = len(model.bert.encoder.layer) + 1
    assert [point.x for point in largest] == list(range(last + 1))
    assert [point.y for point in largest][:3] == [3, 1, 8]
    assert median[last].y == pytest.approx((1 + 0.25) / 2)  # weight and bias of the classifier


@pytest.mark.parametrize("architecture", ["bert", "llama"])
def test_distance_leaves_the_head_out(architecture):
    before = tiny_model(architecture)
    tuned = copy.deepcopy(before)
    head = [n for n, _ in tuned.named_parameters() if n.startswith(("classifier", "score"))]
    assert head
    with torch.no_grad():
        for name, weight in tuned.named_parameters():
            weight.mul_(1.25 if name not in head else 7)
    found = weight_distance(tuned, before)
    assert found["weight distance"] == pytest.approx(0.25)
    kept = [w.detach().double() for n, w in before.named_parameters() if n not in head]
    size = torch.cat([w.flatten() for w in kept]).norm().item()
    assert found["absolute"] == pytest.approx(0.25 * size)
    assert weight_distance(before, before)["weight distance"] == 0
    with pytest.raises(ValueError, match="no weights in common"):
        weight_distance(tuned, nn.Linear(2, 2))


def test_scale_of_the_logits(linear_predictor, rows):
    predictor = linear_predictor([rotation(0)], batch_size=2)
    logits = first_embeddings(predictor, rows) @ matrix(predictor).T
    centered = logits - logits.mean(1, keepdims=True)
    expected = np.sqrt((centered**2).sum(1).mean())
    assert prediction_scale(predictor, rows) == pytest.approx(expected)


def test_a_model_with_half_the_logits_has_half_the_jacobian_and_the_same_relative_one(
    linear_predictor, rows
):
    whole = measure(linear_predictor([rotation(0)], batch_size=2), rows)
    half = linear_predictor([rotation(0)], batch_size=2)
    with torch.no_grad():
        half.model.head.weight.mul_(0.5)
    small = measure(half, rows)
    ratio = small.values["logit Jacobian"] / whole.values["logit Jacobian"]
    assert ratio == pytest.approx(0.5, rel=1e-6)
    name = "logit Jacobian, relative to the logits"
    assert small.supplementary[name] == pytest.approx(whole.supplementary[name], rel=1e-6)
    assert small.values["layer Jacobian"] == pytest.approx(np.sqrt(WIDTH), rel=0.5)
    assert small.values["noise sensitivity"] == pytest.approx(0.05, rel=1e-9)
    assert small.missing == {"dropout divergence": "the model has no dropout"}


def test_methods_are_about_what_is_measured():
    claimed = {claim for method in METHODS.values() for claim in method.declared.lowers}
    assert claimed == set(QUANTITIES)
    assert {name for name, method in METHODS.items() if not method.declared.lowers} == {
        "plain",
        "reinit",
        "child_tuning",
    }
