"""SiFT."""

import pytest
import torch

from helpers.adversary import compare, rows, setting, slope
from helpers.conformance import Tiny, assert_conforms, batch, draws, fed
from helpers.literal import (
    MODELS,
    cross_entropy,
    kl,
    probabilities,
    span_batch,
    squared_error,
    tiny_span_model,
)
from smoothtune import ForwardPass, Objective, SiFT
from smoothtune.nn import rng
from smoothtune.nn.architecture import embedding_norm
from smoothtune.testing import ARCHITECTURES, fixed_draws, tiny_batch, tiny_model

PLACES = {
    "bert": lambda m: m.bert.embeddings.LayerNorm,
    "deberta": lambda m: m.deberta.embeddings.LayerNorm,
    "opt": lambda m: m.model.decoder.layers[0],
    "llama": lambda m: m.model.layers[0],
}


def predict(model, ids, delta, place):
    """(C,) logits with x -> mean + std * (normalized x + delta) in front of `place`."""

    def disturb(module, args):
        tokens = []
        for token, d in zip(args[0][0], delta[0], strict=True):
            mean = sum(token) / len(token)
            std = torch.sqrt(sum((v - mean) ** 2 for v in token) / len(token) + 1e-7)
            tokens.append(mean + std * ((token - mean) / std + d))
        return (torch.stack(tokens)[None], *args[1:])

    handle = place.register_forward_pre_hook(disturb)
    try:
        return model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]
    finally:
        handle.remove()


def distance(a, b):
    if len(a) == 1:
        return (a[0] - b[0]) ** 2
    p, q = probabilities(a), probabilities(b)
    return kl(p, q) + kl(q, p)


@pytest.mark.parametrize("num_labels", [3, 1])
@pytest.mark.parametrize("architecture", MODELS)
def test_equals_its_equation(architecture, num_labels):
    model, data = setting(architecture, num_labels)
    place = PLACES[architecture](model)

    def expected(model):
        terms, clean = [], []
        for ids, _ in rows(data):
            delta = 0.02 * rng.normal_like(torch.zeros(1, ids.shape[1], 8).double())
            target = predict(model, ids, torch.zeros_like(delta), place)
            delta.requires_grad_()
            g = slope(distance(target.detach(), predict(model, ids, delta, place)), delta)
            with torch.no_grad():
                for token, row in zip(delta[0], g[0], strict=True):
                    token += 0.3 * row / max(abs(v) for v in row)
                delta.clamp_(-0.1, 0.1)
            clean.append(target)
            terms.append(distance(target, predict(model, ids, delta.detach(), place)))
        task = (squared_error if num_labels == 1 else cross_entropy)(clean, data["labels"])
        return task + sum(terms) / 4

    compare(
        Objective(SiFT(sigma=0.02, step_size=0.3, epsilon=0.1, weight=1.0)), model, data, expected
    )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_perturbs_before_the_norm_of_the_embeddings(architecture):
    place = embedding_norm(tiny_model(architecture))
    post_norm = architecture in ("bert", "roberta", "deberta", "modernbert")
    assert isinstance(place, torch.nn.LayerNorm) == post_norm


def test_does_not_depend_on_the_size_of_the_embeddings():
    values = []
    for factor in (1, 10):
        model = tiny_model("bert")
        with torch.no_grad():
            for table in ("word", "position", "token_type"):
                getattr(model.bert.embeddings, f"{table}_embeddings").weight.mul_(factor)
        with fixed_draws():
            values.append(Objective(SiFT(weight=1.0)).attach(model)(model, tiny_batch()))
    torch.testing.assert_close(*values, rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("case", "step_size"), [("sift_deberta_symmetric-kl", 1e-4), ("sift_deberta_lr1", 1.0)]
)
def test_equals_released_code(case, step_size):
    model, (draw,) = Tiny(), draws(case)
    with fed(draw / 0.01):  # recorded with its deviation
        term = SiFT(compat="deberta", step_size=step_size, weight=1.0).loss(
            ForwardPass(model, batch(), hidden_states=False)
        )
    term.backward()
    assert_conforms(case, term, model)


def test_the_place_of_the_report_is_the_output_of_the_norm():
    model, data = setting("bert", 3)

    def predict_at_output(ids, delta):
        """(C,) logits with x + rms(x) * delta at the input of the first block."""

        def disturb(module, args, kwargs):
            rms = args[0].detach().square().mean(-1, keepdim=True).sqrt()
            return (args[0] + rms * delta, *args[1:]), kwargs

        block = model.bert.encoder.layer[0]
        handle = block.register_forward_pre_hook(disturb, with_kwargs=True)
        try:
            return model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]
        finally:
            handle.remove()

    def expected(model):
        terms, clean = [], []
        for ids, _ in rows(data):
            delta = 0.02 * rng.normal_like(torch.zeros(1, ids.shape[1], 8).double())
            target = predict_at_output(ids, torch.zeros_like(delta))
            delta.requires_grad_()
            g = slope(distance(target.detach(), predict_at_output(ids, delta)), delta)
            found = (delta + 0.3 * g / g.abs().amax(-1, keepdim=True)).clamp(-0.1, 0.1).detach()
            clean.append(target)
            terms.append(distance(target, predict_at_output(ids, found)))
        return cross_entropy(clean, data["labels"]) + sum(terms) / 4

    method = SiFT(sigma=0.02, step_size=0.3, epsilon=0.1, weight=1.0, place="output")
    compare(Objective(method), model, data, expected)
    with pytest.raises(ValueError, match="place: normalized"):
        SiFT(compat="deberta", place="output")


def test_spans_take_the_mean_of_start_and_end():
    model, data = tiny_span_model(), span_batch(tiny_batch())
    objective = Objective(SiFT(weight=1.0)).attach(model)
    objective(model, data).backward()
    assert objective.terms["loss/sift"] > 0
    assert objective.terms["sift/cos_gradient"] > 0.3
    assert model.qa_outputs.weight.grad.abs().max() > 0
