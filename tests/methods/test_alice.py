"""ALICE."""

import pytest
import torch

from helpers.adversary import compare, embeddings, predict, rms, rows, setting, slope
from helpers.conformance import Tiny, assert_conforms, batch, draws, fed
from helpers.heads import multi_label, question_answering, regression, token_classification
from helpers.literal import MODELS, cross_entropy, kl, probabilities, squared_error
from smoothtune import ALICE, METHODS, SMART, ForwardPass, Objective
from smoothtune.nn import rng
from smoothtune.testing import fixed_draws, tiny_batch, tiny_model


def distance(a, b):
    if len(a) == 1:
        return (a[0] - b[0]) ** 2
    p, q = probabilities(a), probabilities(b)
    return kl(p, q) + kl(q, p)


def worst(model, ids, loss):
    """The loss one step of 0.3 rms up the gradient, from noise of 0.02 rms, within 0.1 rms."""
    x = embeddings(model, ids)
    unit = rms(x)
    delta = (0.02 * unit * rng.normal_like(x)).requires_grad_()
    g = slope(loss(predict(model, ids, delta), constant=True), delta)
    moved = delta.detach() + 0.3 * unit * g / max(abs(v) for v in g.flatten())
    return loss(predict(model, ids, moved.clamp(-0.1 * unit, 0.1 * unit)), constant=False)


@pytest.mark.parametrize("num_labels", [3, 1])
@pytest.mark.parametrize("architecture", MODELS)
def test_equals_its_equation(architecture, num_labels):
    model, data = setting(architecture, num_labels)
    task = squared_error if num_labels == 1 else cross_entropy

    def expected(model):
        gold, virtual, clean = [], [], []
        for ids, label in rows(data):
            target = predict(model, ids, 0)

            def away(logits, constant, target=target):
                return distance(target.detach() if constant else target, logits)

            def wrong(logits, constant, label=label):
                return task([logits], [label])

            virtual.append(worst(model, ids, away))
            gold.append(worst(model, ids, wrong))
            clean.append(target)
        return task(clean, data["labels"]) + 2 * (sum(gold) + 3 * sum(virtual)) / 4

    method = ALICE(weight=2, alpha=3, sigma=0.02, step_size=0.3, epsilon=0.1)
    compare(Objective(method), model, data, expected)


def test_equals_public_code():
    model = Tiny()
    method = ALICE(compat="vat-pytorch")
    method.attach(model)
    with fed(*draws("alice_vat_pytorch")):
        term = method.loss(ForwardPass(model, batch(), hidden_states=False))
    term.backward()
    assert_conforms("alice_vat_pytorch", term, model)


def test_without_labels_it_is_the_term_of_smart():
    data = tiny_batch()
    del data["labels"]
    values = []
    for method in (ALICE(alpha=2), SMART(mu=0, lambda_s=2, weight=1.0)):
        model = tiny_model("bert")
        model.config.problem_type = "single_label_classification"
        with fixed_draws():
            values.append(Objective(method).attach(model)(model, data))
    torch.testing.assert_close(*values)


def test_alpha_zero_is_adversarial_training():
    found = {}
    for alpha in (0.0, 1.0):
        model = tiny_model("bert")
        method = ALICE(alpha=alpha)
        with fixed_draws():
            Objective(method).attach(model)(model, tiny_batch())
            found[alpha] = method.loss(ForwardPass(model, tiny_batch(), hidden_states=False))
    assert found[0.0] < found[1.0]


@pytest.mark.parametrize(
    "make", [regression, question_answering, token_classification, multi_label]
)
@pytest.mark.parametrize("name", ["alice", "smart", "sift"])
def test_released_code_on_a_task_that_it_does_not_know_is_refused(name, make):
    """Its gold loss is over one class number, its divergences over one row of scores."""
    compat = {"alice": "vat-pytorch", "smart": "mt-dnn", "sift": "deberta"}[name]
    model, data = make(0.0)
    method = METHODS[name](compat=compat)
    objective = Objective(method).attach(model)
    if make is regression and name != "alice":
        assert objective(model, data).isfinite()
        return
    with pytest.raises(ValueError, match=f"{name}: compat=.*: leave compat out"):
        objective(model, data)


@pytest.mark.parametrize("name", ["smart", "sift"])
@pytest.mark.parametrize(("num_labels", "kind"), [(3, "regression"), (3, None), (1, None)])
def test_released_code_knows_one_class_or_one_score(name, num_labels, kind):
    """And not several scores, whose divergence it would take over their softmax."""
    model, data = tiny_model("bert", num_labels=num_labels), tiny_batch(num_labels=num_labels)
    if kind is not None:
        model.config.problem_type = kind
        data["labels"] = torch.zeros(4, num_labels, dtype=torch.float64)
    method = METHODS[name](compat={"smart": "mt-dnn", "sift": "deberta"}[name])
    objective = Objective(method).attach(model)
    if kind is None:
        assert objective(model, data).isfinite()
        return
    with pytest.raises(ValueError, match=f"{name}: compat=.*: leave compat out"):
        objective(model, data)


def test_with_a_bound_no_graph_is_shared_with_the_task():
    model = tiny_model("bert", dropout=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    objective = Objective(ALICE(share=0.3)).bind(model, optimizer)
    for _ in range(2):
        objective(model, tiny_batch()).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert 0 < objective.strengths.applied()["alice"].share <= 1
