"""Encoder-decoders: methods on either side and on both, against slow references, and refusals."""

from functools import partial
from itertools import product

import pytest
import torch
import transformers
from transformers import PegasusConfig, PegasusForConditionalGeneration, T5ForTokenClassification

from helpers.literal import gradient
from helpers.seq2seq import (
    SEQ2SEQ,
    classifier_batch,
    seq2seq_batch,
    tiny_seq2seq,
    tiny_seq2seq_classifier,
)
from smoothtune import FGM, L2SP, LLRD, LNSR, METHODS, R3F, FreeLB, HyPe, Objective, ReInit
from smoothtune.core.forward import ForwardPass
from smoothtune.nn import rng
from smoothtune.nn.architecture import blocks
from smoothtune.nn.causal_lm import next_token_loss
from smoothtune.nn.model_facts import is_seq2seq_lm
from smoothtune.testing import (
    CLAUSES,
    all_in_float64,
    fixed_draws,
    has_right_gradient,
    ignores_padding,
    is_mean_over_examples,
    leaves_no_trace,
    tiny_batch,
    with_weight,
)
from smoothtune.testing.contract import Models
from smoothtune.testing.tiny import random_model

SIDES = ["encoder", "decoder", "both"]
PERTURBING = [name for name in METHODS if METHODS[name]().points()]
REFUSED = {"cross_holder": "one prediction per example", "double_backprop": "mean over tokens"}
FIELDS = {
    "jachess": {"c": 0.1},
    # a direction on the sphere depends on the longest labels of a batch, even with fixed draws
    "jacobian": {"weight": 1.0, "probe": "gaussian"},
    "r3f": {"noise": "normal", "sigma": 0.1},
    "r4f": {"noise": "normal", "sigma": 0.1},
    "smart": {"mu": 0.0},
}
LITERAL = {"r3f": "symmetric", "r4f": "symmetric", "smart": "symmetric", "vat": "kl"}
LITERAL |= dict.fromkeys(["neftune", "noise", "fgm", "pgd", "hype"], "loss")


def in_turn(*names, models=SEQ2SEQ):
    """All combinations, each on one of the models in turn; on the others it is a slow test."""
    return [
        pytest.param(*case, model, marks=() if index == number % len(models) else pytest.mark.slow)
        for number, case in enumerate(product(*names))
        for index, model in enumerate(models)
    ]


def embeddings_of(model):
    """The two embedding layers that run."""
    inner = getattr(model, "model", model)
    return inner.encoder.embed_tokens, inner.decoder.embed_tokens


def read_by_decoder(model, labels):
    """What the decoder reads, row by row, as the papers of the models say."""
    config, rows = model.config, []
    for row in labels.tolist():
        ids = [config.pad_token_id if y == -100 else y for y in row]
        start = config.decoder_start_token_id
        if config.model_type == "mbart":  # the last token, which names the language, comes first
            start = [y for y in ids if y != config.pad_token_id][-1]
        rows.append([start, *ids[:-1]])
    return torch.tensor(rows)


def at_embeddings(model, batch, delta=None, side="encoder"):
    """Logits from embeddings that are given to the model, each side's with its part of delta."""
    words, answers = embeddings_of(model)
    x = words(batch["input_ids"])
    y = answers(read_by_decoder(model, batch["labels"]))
    if delta is not None and side != "decoder":
        x = x + delta[:, : x.shape[1]]
    if delta is not None and side != "encoder":
        y = y + delta[:, -y.shape[1] :]
    inputs = {"inputs_embeds": x, "attention_mask": batch["attention_mask"]}
    return model(**inputs, decoder_inputs_embeds=y, use_cache=False).logits


def label_rows(logits, batch):
    """The rows of logits (B, T, V) at labels, and these labels."""
    found = [
        (logits[b, t], y)
        for b, row in enumerate(batch["labels"].tolist())
        for t, y in enumerate(row)
        if y != -100
    ]
    return [row for row, _ in found], [y for _, y in found]


def literal_loss(model, batch, delta=None, side="encoder"):
    return cross_entropy(*label_rows(at_embeddings(model, batch, delta, side), batch))


def probabilities(row):
    return torch.exp(row) / torch.exp(row).sum()


def cross_entropy(rows, labels):
    losses = [-torch.log(probabilities(row)[y]) for row, y in zip(rows, labels, strict=True)]
    return sum(losses) / len(losses)


def kl(p, q):
    return (p * (torch.log(p) - torch.log(q))).sum()


def clean_pass(model, batch, method):
    return ForwardPass(
        model,
        batch,
        compute_loss=next_token_loss,
        points=method.points(),
        differentiable=method.traits.differentiates,
        hidden_states=method.traits.hidden_states,
        side=method.side,
    )


@pytest.fixture
def perturbations(monkeypatch):
    """Every perturbation that methods give to `ForwardPass.at`."""
    seen, original = [], ForwardPass.at

    def at(self, delta=None, *args, **kwargs):
        seen.append(delta)
        return original(self, delta, *args, **kwargs)

    monkeypatch.setattr(ForwardPass, "at", at)
    return seen


def same(found, expected, model):
    """Value and gradient in every weight."""
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-13)
    first, second = (gradient(value, [model]) for value in (found, expected))
    assert second.norm() > 1e-6
    torch.testing.assert_close(first, second, rtol=1e-8, atol=1e-9 * float(second.norm()))


@pytest.mark.parametrize("together", [False, True], ids=["two modules", "one module"])
@pytest.mark.parametrize("architecture", SEQ2SEQ)
def test_task_loss_is_the_models_own(architecture, together):
    """The label tokens are those of the decoder's positions, whatever module embeds them."""
    model, batch = tiny_seq2seq(architecture), seq2seq_batch(num_items=False)
    if together:
        model.set_input_embeddings(model.get_input_embeddings())
    elif architecture == "t5" and transformers.__version__.startswith("4."):
        pytest.skip("T5 of transformers 4 has one module")
    assert is_seq2seq_lm(model)
    assert (embeddings_of(model)[0] is embeddings_of(model)[1]) == together
    with all_in_float64():
        objective = Objective(R3F(weight=1.0)).attach(model)
        objective(model, batch)
        found = objective.terms["loss/task"]
        torch.testing.assert_close(found, model(**batch).loss.detach(), rtol=1e-12, atol=0)
        torch.testing.assert_close(found, literal_loss(model, batch).detach(), rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("name", "side", "architecture"), in_turn([n for n in LITERAL if n != "hype"], SIDES)
)
def test_equals_the_mean_over_label_tokens(name, side, architecture, perturbations):
    """Each side is perturbed alone, although both have the same weights, in one module or two."""
    tied = {"tie_word_embeddings": False} if name == "r4f" else {}
    fields = {"layer": "word"} if name == "noise" else {}
    model, batch = tiny_seq2seq(architecture, **tied), seq2seq_batch()
    if not tied and side != "both":
        model.set_input_embeddings(model.get_input_embeddings())
    method = with_weight(METHODS[name](**FIELDS.get(name, {}), **fields, side=side))
    objective = Objective(method).attach(model)
    with fixed_draws(), all_in_float64():
        term = method.loss(clean_pass(model, batch, method))
        delta = perturbations[-1].detach()
        clean, _ = label_rows(at_embeddings(model, batch), batch)
        noisy, labels = label_rows(at_embeddings(model, batch, delta, side), batch)
        p, q = ([probabilities(row) for row in rows] for rows in (clean, noisy))
        if LITERAL[name] == "loss":
            values = [-torch.log(b[y]) for b, y in zip(q, labels, strict=True)]
        elif LITERAL[name] == "kl":
            values = [kl(a.detach(), b) for a, b in zip(p, q, strict=True)]
        else:
            values = [kl(a, b) + kl(b, a) for a, b in zip(p, q, strict=True)]
        assert delta.shape[1] == {"encoder": 6, "decoder": 4, "both": 10}[side]
        assert delta[0].abs().max() > 1e-4
        same(term, sum(values) / 10, model)
    objective.detach()


def real_tokens(side):
    """(4, T) the tokens that are no padding."""
    texts, answers = (torch.arange(n) < torch.tensor(s)[:, None] for n, s in LENGTHS)
    return {"encoder": texts, "decoder": answers, "both": torch.cat([texts, answers], 1)}[side]


LENGTHS = [(6, [6, 4, 5, 3]), (4, [4, 2, 3, 1])]


def read(model, batch, side):
    """(4, T, 8) the embeddings of a side."""
    words, answers = embeddings_of(model)
    x, y = words(batch["input_ids"]), answers(read_by_decoder(model, batch["labels"]))
    return {"encoder": x, "decoder": y, "both": torch.cat([x, y], 1)}[side].detach()


def slope(model, batch, delta, side):
    """(4, T, 8) gradient of an example's share in the loss, times the number of examples."""
    delta = delta.detach().requires_grad_()
    (found,) = torch.autograd.grad(4 * literal_loss(model, batch, delta, side), delta)
    return found * real_tokens(side)[..., None]


@pytest.mark.parametrize(("side", "architecture"), in_turn(SIDES))
def test_fgm_steps_up_the_gradient_of_all_tokens_of_the_side(side, architecture):
    model, batch = tiny_seq2seq(architecture), seq2seq_batch()
    method = FGM(epsilon=0.3, side=side)
    with all_in_float64():
        term = method.loss(clean_pass(model, batch, method))
        x = read(model, batch, side) * real_tokens(side)[..., None]
        g = slope(model, batch, torch.zeros_like(x), side)
        r = torch.stack([0.3 * x[i].norm() * g[i] / g[i].norm() for i in range(4)])
        same(term, literal_loss(model, batch, r, side), model)


@pytest.mark.parametrize(("side", "architecture"), in_turn(SIDES))
def test_freelb_averages_the_losses_of_its_steps(side, architecture):
    model, batch = tiny_seq2seq(architecture), seq2seq_batch()
    method = FreeLB(step_size=0.2, init_size=0.1, epsilon=0.25, num_steps=3, side=side)
    keep = real_tokens(side)[..., None].double()
    objective = Objective(method).attach(model)
    with fixed_draws(), all_in_float64():
        total = objective(model, batch)
        total.backward()
        found = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        x = read(model, batch, side) * keep
        draws = rng.uniform_like(torch.zeros_like(x))
        delta, losses = [], []
        for i in range(4):
            size = 0.1 * x[i].norm() / (keep[i].sum() * 8).sqrt()
            delta.append(draws[i] * keep[i] * size)
        delta = torch.stack(delta)
        for step in range(3):
            losses.append(literal_loss(model, batch, delta, side))
            if step < 2:
                g, moved = slope(model, batch, delta, side), []
                for i in range(4):
                    d = delta[i] + 0.2 * x[i].norm() * g[i] / g[i].norm()
                    moved.append(d * min(1.0, float(0.25 * x[i].norm() / d.norm())))
                delta = torch.stack(moved)
        expected = sum(losses) / 3
    objective.detach()
    torch.testing.assert_close(total, expected, rtol=1e-9, atol=0)
    weights = [p for p in model.parameters() if p.grad is not None]
    slopes = torch.autograd.grad(expected, weights)
    flat = torch.cat([part.flatten() for part in slopes])
    torch.testing.assert_close(found, flat, rtol=1e-8, atol=1e-9 * float(flat.norm()))


@pytest.mark.parametrize("architecture", SEQ2SEQ)
def test_r_drop_is_the_mean_of_two_losses_and_their_divergence(architecture):
    model, batch = tiny_seq2seq(architecture, dropout=0.3), seq2seq_batch()
    states = []
    with all_in_float64():
        torch.manual_seed(4)
        for _ in range(2):
            states.append(torch.get_rng_state())
            at_embeddings(model, batch)
        torch.manual_seed(4)
        method = METHODS["r_drop"](alpha=2.0)
        term = method.loss(clean_pass(model, batch, method).run())
        runs = []
        for state in states:
            torch.set_rng_state(state)
            runs.append(label_rows(at_embeddings(model, batch), batch))
        (first, labels), (second, _) = runs
        values = []
        for p, q, y in zip(first, second, labels, strict=True):
            p, q = probabilities(p), probabilities(q)
            cross = -0.5 * (torch.log(p[y]) + torch.log(q[y]))
            values.append(cross + 2.0 * 0.5 * (kl(p, q) + kl(q, p)))
        same(term, sum(values) / 10, model)


@pytest.mark.parametrize(("side", "architecture"), in_turn(["encoder", "decoder"]))
def test_lnsr_looks_at_the_states_of_its_side(side, architecture, perturbations):
    """The states are those that transformers gives with `output_hidden_states`."""
    model, batch = tiny_seq2seq(architecture), seq2seq_batch(num_items=False)
    method = LNSR(layer="word", weight=1.0, side=side)
    objective = Objective(method).attach(model)
    keep = real_tokens(side)
    with fixed_draws(), all_in_float64():
        term = method.loss(clean_pass(model, batch, method))
        delta = perturbations[-1].detach()
        found = []
        for noise in (None, delta):
            states = []
            layers = blocks(model, side)
            hooks = [
                layer.register_forward_hook(
                    lambda module, args, output, states=states: states.append(
                        output[0] if isinstance(output, tuple) else output
                    )
                )
                for layer in layers
            ]
            at_embeddings(model, batch, noise, side)
            for hook in hooks:
                hook.remove()
            found.append(states)
        values = []
        for h, h_ in zip(*found, strict=True):
            for i in range(4):
                length = int(keep[i].sum())
                squares = (h[i, :length] - h_[i, :length]).square().sum()
                values.append(squares / length)
        expected = sum(values) / 4
        same(term, expected, model)
    objective.detach()
    assert len(found[0]) == 2
    inner = getattr(model, "model", model)
    assert layers is getattr(getattr(inner, side), "block" if "t5" in architecture else "layers")


@pytest.mark.parametrize(
    ("name", "clause", "architecture"),
    [
        pytest.param(name, clause, model, marks=() if fast else pytest.mark.slow)
        for i, name in enumerate(n for n in METHODS if n not in REFUSED)
        for clause in CLAUSES
        if clause.__name__ != "is_unbiased_on_a_part"  # of label tokens: tests/core/test_part.py
        for j, model in enumerate(SEQ2SEQ)
        for fast in [clause is has_right_gradient and i % 2 == 0 and j == i % 3]
    ],
)
def test_contract(name, clause, architecture):
    make = partial(METHODS[name], **FIELDS.get(name, {}))
    make_model = partial(tiny_seq2seq, tie_word_embeddings=name != "r4f")
    clause(make, architecture, Models(make_model, seq2seq_batch))


def on_both_sides():
    """Methods that perturb, on the decoder and on both sides; the slow ones besides two."""
    names = [n for n in PERTURBING if n not in REFUSED]
    clauses = [has_right_gradient, ignores_padding, is_mean_over_examples, leaves_no_trace]
    for (i, name), side, clause in product(enumerate(names), SIDES[1:], clauses):
        if METHODS[name].declared.hidden_states and side == "both":
            continue
        fast = name == "sift" and clause is not leaves_no_trace and side == "both"
        marks = () if fast else pytest.mark.slow
        yield pytest.param(name, side, clause, SEQ2SEQ[i % 3], marks=marks)


@pytest.mark.parametrize(("name", "side", "clause", "architecture"), list(on_both_sides()))
def test_contract_on_the_decoder_and_on_both_sides(name, side, clause, architecture):
    """On both sides padding of texts moves the decoder's places, on which fixed draws depend."""
    make = partial(METHODS[name], **FIELDS.get(name, {}), side=side)
    make_model = partial(tiny_seq2seq, tie_word_embeddings=name != "r4f")
    moves = side == "both" and name != "fgm"
    make_batch = partial(seq2seq_batch, pad_texts=not moves)
    clause(make, architecture, Models(make_model, make_batch))


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        pytest.param(name, model, marks=() if name == "lnsr" else pytest.mark.slow)
        for i, name in enumerate(METHODS)
        for model in [("bart", "t5")[i % 2]]
    ],
)
def test_classifiers_perturb_their_encoder(name, architecture):
    """A classifier whose head reads the decoder, which reads the text once more."""
    make = partial(METHODS[name], **FIELDS.get(name, {}))
    for clause in (has_right_gradient, is_mean_over_examples):
        clause(make, architecture, Models(tiny_seq2seq_classifier, classifier_batch))


def test_encoder_of_t5_alone_is_perturbed_where_it_reads():
    model = tiny_seq2seq("t5", cls=T5ForTokenClassification, num_labels=3)
    batch = tiny_batch()
    batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100) % 3
    batch["labels"][batch["attention_mask"] == 0] = -100
    clean = ForwardPass(model, batch)
    noise = 0.1 * torch.randn(4, 6, 8, dtype=torch.float64)
    with all_in_float64():
        found = clean.at(noise).logits
        x = model.transformer.encoder.embed_tokens(batch["input_ids"]) + noise
        expected = model(inputs_embeds=x, attention_mask=batch["attention_mask"]).logits
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


# --- weights -----------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", SEQ2SEQ)
def test_llrd_counts_from_the_top_of_either_stack(architecture):
    changes = {"num_layers": 3} if architecture == "t5" else {"encoder_layers": 3}
    if architecture != "t5":
        changes["num_hidden_layers"] = 3
    model = tiny_seq2seq(architecture, **changes)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    Objective(LLRD(decay=0.5)).bind(model, optimizer)
    rates = {p: g["lr"] for g in optimizer.param_groups for p in g["params"]}
    encoder, decoder = blocks(model, "encoder"), blocks(model, "decoder")
    for layers, expected in ((encoder, [0.125, 0.25, 0.5]), (decoder, [0.25, 0.5])):
        assert [{rates[p] for p in layer.parameters()} for layer in layers] == [
            {rate} for rate in expected
        ]
    assert rates[model.get_input_embeddings().weight] == 0.0625
    inner = getattr(model, "model", model)
    if architecture != "t5":
        for stack in (inner.encoder, inner.decoder):
            assert rates[stack.layernorm_embedding.weight] == 0.0625
            assert rates[stack.embed_positions.weight] == 0.0625
    norm = {"t5": "final_layer_norm", "mbart": "layer_norm"}.get(architecture)
    if norm:
        assert rates[getattr(inner.decoder, norm).weight] == 1.0


def test_reinit_draws_the_top_of_the_decoder_anew():
    model, before = tiny_seq2seq("bart"), tiny_seq2seq("bart")
    Objective(ReInit(layers=1)).attach(model)
    changed = {
        name.split(".layers.")[0] + name.split(".layers.")[1][:2]
        for (name, new), old in zip(model.named_parameters(), before.parameters(), strict=True)
        if not torch.equal(new, old)
    }
    assert changed == {"model.decoder1."}


# --- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_one_prediction_is_refused(name):
    with pytest.raises(ValueError, match=REFUSED[name]):
        Objective(METHODS[name]()).attach(tiny_seq2seq("t5"))


@pytest.mark.parametrize(
    ("methods", "make", "message"),
    [
        ([LNSR(side="both")], tiny_seq2seq, 'the hidden states of one stack: give side="enc'),
        ([L2SP(side="decoder")], tiny_seq2seq, "l2_sp perturbs no tokens: leave side out"),
        ([R3F(side="both")], tiny_seq2seq_classifier, "no encoder-decoder language model"),
        ([R3F(side="both"), FGM()], tiny_seq2seq, "side=both and encoder: give them one side"),
        (
            [HyPe(side="both")],
            partial(tiny_seq2seq, decoder_layers=1),
            "as many blocks in the encoder as in the decoder: give one side",
        ),
    ],
)
def test_sides_that_have_no_meaning_are_refused(methods, make, message):
    with pytest.raises(ValueError, match=message):
        Objective(*methods).attach(make("bart"))


def test_other_encoder_decoders_are_refused_by_their_type():
    config = PegasusConfig(
        vocab_size=40,
        d_model=8,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
    )
    model = random_model(PegasusForConditionalGeneration, config)
    with pytest.raises(ValueError, match="'pegasus': perturbations are verified in bart, mbart"):
        Objective(R3F()).attach(model)
    Objective(L2SP()).attach(model)


def test_no_token_of_a_stack_is_pooled():
    model = tiny_seq2seq_classifier("bart")
    objective = Objective(LNSR(weight=1.0, tokens="pooled")).attach(model)
    with pytest.raises(ValueError, match="reads the decoder's tokens"):
        objective(model, classifier_batch())


def test_a_batch_without_labels_predicts_nothing():
    model, batch = tiny_seq2seq("bart"), seq2seq_batch(num_items=False)
    labels = batch.pop("labels")
    objective = Objective(R3F(weight=1.0)).attach(model)
    with pytest.raises(ValueError, match="predicts its labels, and the batch has none"):
        objective(model, batch)
    objective(model, batch | {"labels": labels, "unlabeled": True})
    assert set(objective.terms) == {"loss", "loss/r3f", "r3f/delta_ratio"}
