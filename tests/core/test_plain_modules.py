"""Models that are no transformers, with every method: it works, or says what it needs."""

import importlib.util
from pathlib import Path

import pytest
import torch

from helpers.literal import added, kl, probabilities
from helpers.literal import gradient as flat_gradient
from smoothtune import METHODS, Objective
from smoothtune.testing import with_weight

FILE = Path(__file__).parents[2] / "examples" / "plain_modules.py"
SPEC = importlib.util.spec_from_file_location("plain_modules", FILE)
EXAMPLE = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(EXAMPLE)

BLOCKS = "nn.ModuleList of config.num_hidden_layers"
NEEDS = {  # what a method asks for, of a model without blocks and of one with them
    "reinit": ("no transformers model|" + BLOCKS, "no transformers model"),
    "r4f": ("no linear layer outside its base model", "no linear layer outside its base model"),
    **{name: (BLOCKS, None) for name in ("lnsr", "noise", "hype", "sift", "jachess", "llrd")},
}


def model_and_batch(name, dtype=torch.float64):
    torch.manual_seed(0)
    model = getattr(EXAMPLE, name)().to(dtype).train()
    return model, next(EXAMPLE.batches(1))


@pytest.mark.parametrize("architecture", ["LSTM", "TextCNN", "Transformer"])
@pytest.mark.parametrize("name", METHODS)
def test_a_method_trains_or_says_what_it_needs(name, architecture):
    model, batch = model_and_batch(architecture)
    needed = NEEDS.get(name, (None, None))[architecture == "Transformer"]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    objective = Objective(with_weight(METHODS[name]()))

    def update():
        objective.bind(model, optimizer)
        objective(model, batch).backward()
        optimizer.step()

    if needed:
        with pytest.raises(ValueError, match=needed):
            update()
        return
    before = [p.detach().clone() for p in model.parameters()]
    update()
    assert torch.isfinite(torch.stack([value.double() for value in objective.terms.values()])).all()
    objective.detach()
    assert any(not torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize("architecture", ["LSTM", "TextCNN", "Transformer"])
def test_r3f_equals_its_equation(architecture, monkeypatch):
    model, batch = model_and_batch(architecture)
    without_dropout(model)
    z = 0.1 * torch.randn(16, 8, 16, dtype=torch.float64)
    monkeypatch.setattr("smoothtune.nn.rng.normal_like", lambda x: z / 0.1)
    total = Objective(with_weight(METHODS["r3f"](noise="normal", sigma=0.1))).attach(model)(
        model, batch
    )
    model.get_input_embeddings = lambda: model.words
    with added(model, z * batch["attention_mask"][..., None]):
        noisy = model(**batch)["logits"]
    clean = model(**batch)
    rows = [
        (probabilities(p), probabilities(q)) for p, q in zip(clean["logits"], noisy, strict=True)
    ]
    expected = clean["loss"] + sum(kl(p, q) + kl(q, p) for p, q in rows) / 16
    assert expected > clean["loss"] + 1e-5
    torch.testing.assert_close(total, expected, rtol=1e-9, atol=0)
    torch.testing.assert_close(
        flat_gradient(total, [model]), flat_gradient(expected, [model]), rtol=1e-8, atol=1e-11
    )


def without_dropout(model):
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(module, torch.nn.MultiheadAttention):
            module.dropout = 0.0


def test_lnsr_compares_the_outputs_of_the_blocks():
    model, batch = model_and_batch("Transformer")
    without_dropout(model)
    seen = []
    handles = [
        block.register_forward_hook(lambda m, args, out: seen.append(out)) for block in model.blocks
    ]
    objective = Objective(with_weight(METHODS["lnsr"](noise_ratio=0.3)))
    objective.attach(model)(model, batch)
    for handle in handles:
        handle.remove()
    clean, noisy = seen[:2], seen[2:]
    mask = batch["attention_mask"]
    expected = sum(
        (((h - h_).square().sum(-1) * mask).sum(1) / mask.sum(1)).mean()
        for h, h_ in zip(clean, noisy, strict=True)
    )
    assert expected > 1e-6
    torch.testing.assert_close(objective.terms["loss/lnsr"], expected.detach())


def test_a_second_embedding_must_be_told_from_the_words():
    model, _ = model_and_batch("LSTM")
    model.positions = torch.nn.Embedding(8, 16)
    with pytest.raises(ValueError, match="2 nn.Embedding layers.*get_input_embeddings"):
        Objective(with_weight(METHODS["r3f"]())).attach(model)(model, next(EXAMPLE.batches(1)))
    model, _ = model_and_batch("LSTM")
    model.positions = torch.nn.Embedding(8, 16)
    model.get_input_embeddings = lambda: model.words
    Objective(with_weight(METHODS["r3f"]())).attach(model)(model, next(EXAMPLE.batches(1)))


def test_second_derivatives_of_attention_that_a_module_calls_itself():
    class Direct(type(model_and_batch("TextCNN")[0])):
        def forward(self, *args, **kwargs):
            found = super().forward(*args, **kwargs)
            x = found["logits"][None, None]
            attended = torch.nn.functional.scaled_dot_product_attention(x, x, x)[0, 0]
            return found | {"logits": attended}

    torch.manual_seed(0)
    model, batch = Direct().double().train(), model_and_batch("TextCNN")[1]
    objective = Objective(METHODS["jacobian"](num_probes=-1, weight=1.0)).attach(model)
    objective(model, batch).backward()
    assert all(weight.grad is None or weight.grad.isfinite().all() for weight in model.parameters())
    objective.detach()
