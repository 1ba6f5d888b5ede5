"""Sizes of noise, token by token."""

from types import SimpleNamespace

import pytest
import torch

from helpers.conformance import fed
from smoothtune import ForwardPass, Noise
from smoothtune.functional.noise import gaussian, relative_norm, rescale
from smoothtune.nn.architecture import embedding_table
from smoothtune.testing import PAD, VOCABULARY, tiny_batch, tiny_model

MASK = torch.tensor([[True, True, False], [True, False, False]])


def draws(seed):
    return torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(seed))


def test_every_token_gets_its_share_of_its_own_norm():
    noise, x = draws(0), draws(1)
    found = rescale(noise, x, MASK, 0.3, "token")
    for b in range(2):
        for t in range(3):
            expected = 0.3 * x[b, t].norm() * noise[b, t] / noise[b, t].norm() * MASK[b, t]
            torch.testing.assert_close(found[b, t], expected)


def test_norms_of_a_sequence_run_over_its_real_tokens():
    noise, x = draws(0), draws(1)
    found = rescale(noise, x, MASK, 0.3, "sequence")
    for b, length in enumerate((2, 1)):
        factor = 0.3 * x[b, :length].norm() / noise[b, :length].norm()
        torch.testing.assert_close(found[b, :length], factor * noise[b, :length])
        assert not found[b, length:].any()


def test_noise_that_is_not_rescaled_is_zero_on_padding_alone():
    noise = draws(0)
    assert torch.equal(rescale(noise, draws(1), MASK, 0.3, "none"), 0.3 * noise * MASK[..., None])


def test_zero_noise_stays_zero():
    assert not rescale(torch.zeros(2, 3, 4), draws(1), MASK, 0.3, "token").any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_gaussian(dtype):
    x = draws(1).to(dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    drawn = draws(0).to(wide)
    for scale, expected in (
        ("none", 0.3 * drawn * MASK[..., None]),
        ("token", rescale(drawn, x, MASK, 0.3, "token")),
    ):
        with fed(drawn):
            found = gaussian(x, MASK, 0.3, scale)
        assert found.dtype == wide
        torch.testing.assert_close(found, expected)
    with fed(drawn):
        assert torch.equal(gaussian(x, MASK, 0.3), expected)


def test_the_ratio_that_is_logged_counts_real_tokens():
    delta, x = draws(0), draws(1)
    expected = delta[MASK].norm() / x[MASK].norm()
    torch.testing.assert_close(relative_norm(delta, x, MASK), expected)


@pytest.mark.parametrize(
    ("kind", "layer", "point", "ratio"),
    [
        ("standard", None, 0, 0.05),
        ("standard", "word", "word", 0.05),
        ("standard", 1, 1, 0.05),
        ("in_manifold", None, "word", 0.10),
    ],
)
def test_noise_of_the_papers_by_default(kind, layer, point, ratio):
    noise = Noise(noise=kind, layer=layer, k=3)
    assert (noise._point, noise._ratio) == (point, ratio)
    model, batch = tiny_model("bert"), tiny_batch()
    noise.attach(model)
    clean = ForwardPass(model, batch, points=(point,)).run()
    delta, x = noise.draw(clean), clean.embeddings(point)
    sizes = delta.norm(dim=-1) / x.norm(dim=-1)
    torch.testing.assert_close(sizes, ratio * batch["attention_mask"].double())


def test_noise_without_rescaling_and_with_another_ratio():
    noise = Noise(noise_ratio=0.3, layer="word", rescale_over="none")
    drawn = torch.randn(4, 6, 8, dtype=torch.float64)
    with fed(drawn):
        delta = noise.draw(ForwardPass(tiny_model("bert"), tiny_batch()).run())
    mask = tiny_batch()["attention_mask"][..., None]
    torch.testing.assert_close(delta, 0.3 * drawn * mask)


@pytest.mark.parametrize("ratio", [0.1, 0.5])
def test_in_manifold_noise_without_rescaling_has_the_deviation_of_its_ratio(ratio):
    model, batch = tiny_model("bert"), tiny_batch()
    noise = Noise(noise="in_manifold", noise_ratio=ratio, k=3, rescale_over="none")
    noise.attach(model)
    clean = ForwardPass(model, batch)
    squares = torch.stack([noise.draw(clean).square().sum(-1) for _ in range(500)])
    found = squares[:, batch["attention_mask"].bool()].mean().item()
    assert found == pytest.approx(3 * ratio**2, rel=0.05)  # N(0, ratio^2) in three directions


def test_neighbors_are_those_of_the_model_at_hand():
    noise = Noise(noise="in_manifold", k=3)
    for factor in (1, -2):
        model = tiny_model("bert")
        with torch.no_grad():
            model.get_input_embeddings().weight.mul_(factor)
        noise.attach(model)
        assert torch.equal(noise._neighbors.table, embedding_table(model).float())
        noise.detach(model)
        assert noise._neighbors is None


def test_in_manifold_noise_elsewhere_is_refused():
    with pytest.raises(ValueError, match="lives in the word-embedding space"):
        Noise(noise="in_manifold", layer=1)


def texts(counts):
    """Rows that hold every token so often."""
    return [{"input_ids": torch.arange(len(counts)).repeat_interleave(counts)}]


def candidates(noise):
    return noise._neighbors.candidates.nonzero().flatten().tolist()


def test_neighbors_are_tokens_of_the_texts_and_no_special_ones():
    noise = Noise(noise="in_manifold", k=3, metric="cosine", min_count=2)
    counts = torch.zeros(30, dtype=torch.long)
    counts[[PAD, 5, 6, 7, 8, 9, 10, 20]] = torch.tensor([9, 2, 2, 3, 4, 9, 1, 2])
    noise.read_training_rows(texts(counts), SimpleNamespace(all_special_ids=[9, 2]))
    noise.attach(tiny_model("bert"))
    assert candidates(noise) == [5, 6, 7, 8, 20]
    found = noise._neighbors.of(torch.arange(VOCABULARY))
    assert set(found.flatten().tolist()) <= {5, 6, 7, 8, 20}
    counts[11] = 5
    noise.read_training_rows(texts(counts))  # of a model that is attached
    assert candidates(noise) == [5, 6, 7, 8, 11, 20]
    assert noise._neighbors.metric == "cosine"


def test_texts_and_special_tokens_of_an_earlier_model_are_forgotten():
    noise = Noise(noise="in_manifold", k=3)
    larger = tiny_model("bert")
    larger.resize_token_embeddings(60)
    larger.config.cls_token_id = 30
    noise.read_training_rows(texts(torch.ones(60, dtype=torch.long)), SimpleNamespace())
    noise.attach(larger)
    noise.detach(larger)
    noise.attach(larger)  # the same model has the same texts
    assert candidates(noise) == [0, *range(2, 30), *range(31, 60)]
    noise.detach(larger)

    noise.attach(tiny_model("bert"))  # no text is known
    assert candidates(noise) == [0, *range(2, VOCABULARY)]
    assert not noise._counted
    noise.detach(larger)
    counts = torch.ones(35, dtype=torch.long)
    noise.read_training_rows(texts(counts), SimpleNamespace(all_special_ids=[9]))
    noise.attach(tiny_model("bert"))  # they were read for it
    assert candidates(noise) == [0, *range(2, 9), *range(10, 35)]


def test_without_counts_the_special_tokens_of_the_configuration_are_left_out():
    noise = Noise(noise="in_manifold", k=3)
    model = tiny_model("modernbert")
    noise.attach(model)
    assert candidates(noise) == [0, *range(4, VOCABULARY)]  # 1, 2, 3: padding, start and end


def test_texts_of_another_tokenizer_are_refused():
    noise = Noise(noise="in_manifold", k=3)
    noise.read_training_rows(texts(torch.ones(VOCABULARY + 3, dtype=torch.long)))
    with pytest.raises(ValueError, match="hold token 42, .* 40 word embeddings: tokenize with"):
        noise.attach(tiny_model("bert"))
