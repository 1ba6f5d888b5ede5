"""LNSR: closed forms, the noise, and the equation taken literally."""

import math

import pytest
import torch
from torch import nn
from transformers import TrainerCallback

from helpers.conformance import fed
from helpers.hub_server import make_tokenizer
from helpers.training import Rows, arguments
from smoothtune import LNSR, ForwardPass, Noise, Objective, SmoothTrainer
from smoothtune.functional.neighbors import audit
from smoothtune.functional.noise import gaussian, rescale
from smoothtune.methods import noise_base
from smoothtune.testing import VOCABULARY, fixed_draws, tiny_batch, tiny_model


class Blocks(nn.Module):
    """Embedding, then a list of blocks: the least that LNSR needs."""

    def __init__(self, blocks, width, vocabulary=9):
        super().__init__()
        self.config = type("Config", (), {"num_hidden_layers": len(blocks), "hidden_size": width})()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(blocks)

    def forward(self, input_ids, attention_mask=None):
        h = self.embedding(input_ids)
        for block in self.blocks:
            h = block(h)
        return {"logits": h.mean(1)}


def ids(batch=1, tokens=1):
    return {"input_ids": torch.zeros(batch, tokens, dtype=torch.long)}


class TestNoise:
    @pytest.mark.parametrize("scale", ["token", "sequence"])
    def test_norm_is_exact_and_zero_on_padding(self, scale):
        x = torch.randn(3, 5, 7, dtype=torch.float64)
        mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 1, 1, 0, 0]]).bool()
        noise = gaussian(x, mask, 0.05, scale)
        assert (noise[~mask] == 0).all()
        for row in range(3):
            tokens = mask[row].nonzero().flatten().tolist()
            if scale == "token":
                for t in tokens:
                    ratio = math.sqrt(sum(noise[row, t] ** 2) / sum(x[row, t] ** 2))
                    assert ratio == pytest.approx(0.05, rel=1e-12)
            else:
                ratio = noise[row, tokens].norm() / x[row, tokens].norm()
                assert ratio.item() == pytest.approx(0.05, rel=1e-12)

    def test_direction_is_that_of_the_draws(self):
        x, draws = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
        noise = rescale(draws, x, torch.ones(2, 3).bool(), 0.1, "token")
        cosine = torch.cosine_similarity(noise, draws, dim=-1)
        torch.testing.assert_close(cosine, torch.ones(2, 3))

    def test_unscaled_noise_has_deviation_ratio(self):
        x = torch.ones(100, 50, 20)
        noise = gaussian(x, torch.ones(100, 50).bool(), 0.3, "none")
        assert noise.std().item() == pytest.approx(0.3, rel=0.02)


class TestClosedForms:
    def mean(self, model, method, draws):
        """Monte-Carlo mean of R with its standard error, one draw per example."""
        with torch.no_grad():
            run = ForwardPass(model, ids(draws), points=method.points()).run()
            h = run.hidden_states
            delta = method.draw(run)
            values = sum(
                (a - b).square().sum(-1).flatten()
                for a, b in zip(h[1:], run.at(delta, 0).hidden_states[1:], strict=True)
            )
            whole = method.loss(ForwardPass(model, ids(draws), points=method.points()))
        error = values.std() / math.sqrt(draws)
        assert abs(whole - values.mean()) < 6 * error  # `loss` averages what we measured
        return values.mean().item(), error.item()

    def test_linear_layer(self):
        """Fixed radius rho: rho^2 ||W||_F^2 / d. Free Gaussian: sigma^2 ||W||_F^2."""
        torch.manual_seed(1)
        model = Blocks([nn.Linear(6, 6)], 6).double()
        squared = model.blocks[0].weight.square().sum().item()
        rho = 0.05 * model.embedding.weight[0].norm().item()
        for scale, expected in [("token", rho**2 * squared / 6), ("none", 0.05**2 * squared)]:
            method = LNSR(reduction="sum", rescale_over=scale, dropout="off", weight=1.0)
            found, error = self.mean(model, method, 40000)
            assert abs(found - expected) < 4 * error
            assert error < 0.02 * expected

    @pytest.mark.parametrize("scale", ["token", "none"])
    def test_quadratic(self, scale):
        """The second-order expansion, with 2 ||H||_F^2 where the paper's eq. 18 lost a part."""
        d = 5
        torch.manual_seed(2)
        gradient = torch.randn(d, dtype=torch.float64)
        root = torch.randn(d, d, dtype=torch.float64)
        hessian = root + root.T

        class Quadratic(nn.Module):
            def forward(self, x):
                y = x @ gradient + 0.5 * ((x @ hessian) * x).sum(-1)
                return torch.cat([y[..., None], torch.zeros_like(x[..., 1:])], -1)

        model = Blocks([Quadratic()], d).double()
        x = model.embedding.weight[0].detach()
        jacobian = gradient + hessian @ x
        first, second = (
            jacobian.square().sum(),
            (hessian.trace().square() + 2 * hessian.square().sum()),
        )
        if scale == "none":
            sigma = 0.5
            expected = sigma**2 * first + sigma**4 / 4 * second
        else:
            rho = 0.5 * x.norm()
            expected = rho**2 * first / d + rho**4 / 4 * second / (d * (d + 2))
        method = LNSR(
            reduction="sum", rescale_over=scale, noise_ratio=0.5, dropout="off", weight=1.0
        )
        found, error = self.mean(model, method, 200000)
        assert abs(found - expected.item()) < 4 * error
        assert error < 0.01 * expected


def literal(model, inputs, delta, point, weights, reduce, *, constant=False):
    """Sum_r lambda_r ||f_r(x + eps) - f_r(x)||^2 with loops over layers, examples and tokens."""

    def states(shift):
        found = []
        layers = next(m for m in model.modules() if isinstance(m, nn.ModuleList))
        hooks = [
            m.register_forward_hook(
                lambda m, a, o: found.append(o[0] if isinstance(o, tuple) else o)
            )
            for m in layers
        ]
        if shift and point == "word":
            hooks.append(
                model.get_input_embeddings().register_forward_hook(lambda m, a, o: o + delta)
            )
        elif shift:
            hooks.append(
                layers[point].register_forward_pre_hook(lambda m, a: (a[0] + delta, *a[1:]))
            )
        model(**inputs)
        for hook in hooks:
            hook.remove()
        return found[0 if point == "word" else point :]

    total = 0.0
    mask = inputs["attention_mask"]
    for weight, clean, noisy in zip(weights, states(False), states(True), strict=True):
        per_example = []
        for i in range(len(mask)):
            real = [t for t in range(mask.shape[1]) if mask[i, t]]
            fixed = [clean[i, t].detach() if constant else clean[i, t] for t in real]
            squares = [((x - noisy[i, t]) ** 2) for x, t in zip(fixed, real, strict=True)]
            if reduce == "mean":
                per_example.append(sum(s.mean() for s in squares) / len(real))
            elif reduce == "token_sum":
                per_example.append(sum(s.sum() for s in squares) / len(real))
            else:
                per_example.append(sum(s.sum() for s in squares))
        total = total + weight * sum(per_example) / len(per_example)
    return total


@pytest.mark.parametrize("architecture", ["bert", "deberta", "opt", "llama"])
@pytest.mark.parametrize("strength", [{"weight": 1.0}, {"share": 0.3}], ids=["weight", "share"])
@pytest.mark.parametrize(
    ("fields", "point", "weights"),
    [
        ({}, 0, [1, 1]),
        ({"reduction": "mean"}, 0, [1, 1]),
        ({"layer": 1, "layer_weights": [0.4], "reduction": "token_sum"}, 1, [0.4]),
        ({"layer": "word", "layer_weights": [0.2, 0.8], "reduction": "sum"}, "word", [0.2, 0.8]),
        ({"noise": "in_manifold", "k": 3}, "word", [1, 1]),
    ],
)
def test_equation_and_its_gradient(architecture, fields, point, weights, strength):
    """With a share, and so a bound, the clean states are constants."""
    model, inputs = tiny_model(architecture), tiny_batch()
    method = LNSR(**fields, **strength)
    method.attach(model)
    with fixed_draws():
        run = ForwardPass(model, inputs, points=method.points())
        value = method.loss(run)
        delta = method.draw(run)
    assert delta.norm() > 0
    constant = "share" in strength
    expected = literal(model, inputs, delta, point, weights, method.reduction, constant=constant)
    torch.testing.assert_close(value, expected, check_dtype=False, rtol=1e-6, atol=1e-12)
    parameters = [p for p in model.parameters() if p.requires_grad]
    for found, wanted in zip(
        torch.autograd.grad(value, parameters, allow_unused=True),
        torch.autograd.grad(expected, parameters, allow_unused=True),
        strict=True,
    ):
        assert (found is None) == (wanted is None)
        if found is not None:
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-9)


class TestDropout:
    def test_without_noise_shared_masks_give_zero_and_fresh_ones_do_not(self):
        model = tiny_model("bert", dropout=0.3)
        zero = torch.zeros(4, 6, 8, dtype=torch.float64)
        for dropout, vanishes in [("shared", True), ("independent", False), ("off", None)]:
            method = LNSR(dropout=dropout, weight=1.0)
            with fed(zero):
                value = method.loss(ForwardPass(model, tiny_batch(), points=method.points())).item()
            if vanishes is not None:
                assert (value == 0) == vanishes

    def test_no_dropout_in_evaluation(self):
        model = tiny_model("bert", dropout=0.3).eval()
        method = LNSR(dropout="independent", weight=1.0)
        with fed(torch.zeros(4, 6, 8, dtype=torch.float64)):
            assert method.loss(ForwardPass(model, tiny_batch(), points=method.points())).item() == 0


def test_detach_clean_sends_gradient_through_the_noisy_pass_only():
    model, inputs = tiny_model("bert"), tiny_batch()
    both, one = LNSR(weight=1.0), LNSR(detach_clean=True, weight=1.0)
    values, gradients = [], []
    for method in (both, one):
        with fixed_draws():
            values.append(method.loss(ForwardPass(model, inputs, points=method.points())))
        gradients.append(
            torch.autograd.grad(values[-1], model.bert.encoder.layer[0].output.dense.weight)[0]
        )
    torch.testing.assert_close(*values)
    assert not torch.allclose(*gradients, rtol=1e-2)


def test_pooled_compares_the_token_the_head_reads():
    for architecture, positions in [("bert", [0, 0, 0, 0]), ("opt", [5, 3, 4, 2])]:
        model, inputs = tiny_model(architecture), tiny_batch()
        method = LNSR(tokens="pooled", layer_weights=[0, 1], weight=1.0)
        with fixed_draws():
            run = ForwardPass(model, inputs, points=method.points())
            value = method.loss(run)
            noisy = run.at(method.draw(run), 0)
        last, other = run.hidden_states[-1], noisy.hidden_states[-1]
        rows = [(last[i, t] - other[i, t]).square().sum() for i, t in enumerate(positions)]
        torch.testing.assert_close(value, torch.stack(rows).mean())


def test_layer_weights_must_fit_the_model():
    with pytest.raises(ValueError, match="needs 1"):
        LNSR(layer=1, layer_weights=[1, 1], weight=1.0).attach(tiny_model("bert"))


def test_in_manifold_noise_lives_at_the_word_embeddings():
    with pytest.raises(ValueError, match="word"):
        LNSR(noise="in_manifold", layer=0, weight=1.0)


class TestNoiseAblation:
    """FT+Gaussian and FT+In-manifold: the loss of the noisy forward."""

    @pytest.mark.parametrize("fields", [{}, {"noise": "in_manifold", "k": 3}])
    def test_is_the_loss_of_the_noisy_forward(self, fields):
        model, inputs = tiny_model("bert"), tiny_batch()
        method = Noise(**fields)
        with fixed_draws():
            total = Objective(method)(model, inputs)
            run = ForwardPass(model, inputs, points=method.points())
            delta = method.draw(run)
        point = method.points()[0]
        if point == "word":
            hook = model.get_input_embeddings().register_forward_hook(lambda m, a, o: o + delta)
        else:
            hook = model.bert.encoder.layer[0].register_forward_pre_hook(
                lambda m, a: (a[0] + delta, *a[1:])
            )
        expected = model(**inputs).loss
        hook.remove()
        torch.testing.assert_close(total, expected)
        assert not torch.allclose(expected, model(**inputs).loss, rtol=1e-9)

    def test_relative_norm_is_measured_at_the_true_embeddings_under_dropout(self):
        model = tiny_model("bert", dropout=0.3)
        objective = Objective(Noise(noise_ratio=0.07)).attach(model)
        objective(model, tiny_batch())
        assert objective.terms["noise/delta_ratio"].item() == pytest.approx(0.07, rel=1e-6)


class TestTrainingTexts:
    """Neighbors of in-manifold noise are tokens of the training texts."""

    def test_the_trainer_counts_them_by_itself(self, tmp_path, caplog):
        noise_base.warn_once.cache_clear()
        seen = []

        class Look(TrainerCallback):
            def on_step_end(self, *args, **kwargs):
                seen.append(method._neighbors.candidates.nonzero().flatten().tolist())

        method, rows = LNSR(noise="in_manifold", k=3, weight=1.0), Rows(4)
        trainer = SmoothTrainer(
            model=tiny_model("bert"),
            args=arguments(tmp_path, per_device_train_batch_size=4),
            train_dataset=rows,
            regularizers=[method],
            callbacks=[Look()],
        )
        with caplog.at_level("INFO"):
            trainer.train()
        assert seen == [rows.ids.unique().tolist()]
        assert len(seen[0]) < VOCABULARY - 5
        (audited,) = [text for text in caplog.messages if "in-manifold noise" in text]
        assert f"candidates: {len(seen[0])} of 40 tokens" in audited
        assert not [text for text in caplog.messages if "read_training_rows" in text]

    def test_without_texts_a_warning_says_what_to_call(self, caplog):
        noise_base.warn_once.cache_clear()
        rows = Rows(8)
        for read in (False, True):
            caplog.clear()
            method = LNSR(noise="in_manifold", k=3, weight=1.0)
            if read:
                method.read_training_rows(rows)
            model = tiny_model("bert")
            objective = Objective(method).attach(model)
            for _ in range(2):
                objective(model, tiny_batch())
            warned = [text for text in caplog.messages if "call read_training_rows" in text]
            assert len(warned) == (not read)

    def test_a_resumed_run_has_the_neighbors_of_the_first(self):
        """Its model has moved, and nobody gave it the texts."""
        first, again = (LNSR(noise="in_manifold", k=3, weight=1.0) for _ in range(2))
        first.read_training_rows(Rows(8))
        model = tiny_model("bert")
        first.attach(model)
        tokens = torch.arange(VOCABULARY)
        expected = first._neighbors.of(tokens)
        state = {key: value.clone() for key, value in first.state_dict().items()}
        torch.manual_seed(0)
        table = model.get_input_embeddings().weight
        with torch.no_grad():
            table.add_(torch.randn_like(table))
        again.attach(model)
        assert not torch.equal(again._neighbors.of(tokens), expected)
        again.load_state_dict(state)
        assert torch.equal(again._neighbors.of(tokens), expected)

    def test_tokenizers_name_the_special_tokens(self):
        tokenizer = make_tokenizer()
        method = LNSR(noise="in_manifold", k=3, weight=1.0)
        rows = [tokenizer("the cat sat on a mat . the dog [MASK] ran")]
        method.read_training_rows(rows, tokenizer)
        method.attach(tiny_model("bert"))
        chosen = method._neighbors.candidates.nonzero().flatten().tolist()
        assert sorted(tokenizer.convert_ids_to_tokens(chosen)) == sorted(
            ["the", "cat", "sat", "on", "a", "mat", ".", "dog", "ran"]
        )
        assert "most frequent neighbor" in dict(audit(method._neighbors, method._decode))

    def test_models_name_special_tokens_too(self):
        model = tiny_model("bert")
        model.config.pad_token_id, model.config.eos_token_id = 0, [7, 9]
        method = LNSR(noise="in_manifold", k=3, weight=1.0)
        method.attach(model)
        candidates = method._neighbors.candidates
        assert not candidates[[0, 7, 9]].any()
        assert candidates[[6, 8, 10]].all()
