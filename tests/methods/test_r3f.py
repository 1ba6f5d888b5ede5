"""R3F and R4F."""

import math

import pytest
import torch

from helpers.conformance import Tiny, assert_conforms, batch, draws, fed
from smoothtune import R3F, R4F, ForwardPass, Objective
from smoothtune.testing import fixed_draws, tiny_batch, tiny_model


@pytest.mark.parametrize(
    ("case", "noise", "sigma"),
    [("r3f_normal_eps1e-05", "normal", 1e-5), ("r3f_uniform_eps0.5", "uniform", 0.5)],
)
def test_equals_fairseq(case, noise, sigma):
    model = Tiny()
    (draw,) = draws(case)
    with fed(draw if noise == "normal" else 2 * draw - 1):
        mean = Objective(R3F(noise=noise, sigma=sigma, compat="fairseq", weight=1.0))(
            model, batch()
        )
    loss = 3 * mean  # fairseq sums over the three examples
    loss.backward()
    assert_conforms(case, loss, model)


def test_equals_fairseq_in_regression():
    """There the released code has no term, whatever its weight."""
    for weight in (1.0, 100.0):
        model = Tiny(1)
        method = R3F(weight=weight, sigma=0.5, compat="fairseq")
        loss = 3 * Objective(method)(model, batch(regression=True))
        loss.backward()
        assert_conforms("r3f_uniform_eps0.5_regression", loss, model)
    own = 3 * Objective(R3F(weight=100.0, sigma=0.5))(Tiny(1), batch(regression=True))
    assert own > loss + 0.01


@pytest.mark.parametrize("architecture", ["bert", "deberta", "opt", "llama"])
def test_is_the_symmetric_kl_of_the_paper(architecture):
    model = tiny_model(architecture)
    inputs = tiny_batch()
    with fixed_draws():
        run = ForwardPass(model, inputs)
        term = R3F(noise="normal", sigma=0.1, weight=1.0).loss(run)
        z = run.at(None).zeros()
        with fixed_draws():
            from smoothtune.nn import rng

            z = 0.1 * rng.normal_like(z) * inputs["attention_mask"][..., None]
    handle = model.get_input_embeddings().register_forward_hook(lambda m, a, out: out + z)
    noisy = model(**inputs).logits.double()
    handle.remove()
    clean = model(**inputs).logits.double()
    expected = 0.0
    for row in range(4):
        p = [math.exp(v) for v in clean[row].tolist()]
        q = [math.exp(v) for v in noisy[row].tolist()]
        p, q = [v / sum(p) for v in p], [v / sum(q) for v in q]
        expected += (
            sum(a * math.log(a / b) + b * math.log(b / a) for a, b in zip(p, q, strict=True)) / 4
        )
    assert expected > 1e-6
    assert term.item() == pytest.approx(expected, rel=1e-5)


def test_no_noise_no_penalty_without_dropout():
    model = tiny_model("bert", dropout=0.3).eval()
    assert R3F(sigma=1e-300, weight=1.0).loss(ForwardPass(model, tiny_batch())).item() == 0


def test_small_noise_gives_the_fisher_quadratic_form():
    """SymKL = z'Gz to second order, G = J'(diag p - pp')J."""
    model = tiny_model("bert")
    inputs = tiny_batch(rows=slice(0, 1))
    run = ForwardPass(model, inputs, differentiable=True).run()
    p = run.logits[0].softmax(-1)
    z = 1e-4 * torch.randn(1, 6, 8, dtype=torch.float64)
    jz = torch.stack(
        [
            (torch.autograd.grad(y, run.delta(), retain_graph=True)[0] * z).sum()
            for y in run.logits[0]
        ]
    )
    expected = (p * jz.square()).sum() - (p * jz).sum().square()
    with fed(z / 1e-4):
        term = R3F(noise="normal", sigma=1e-4, weight=1.0).loss(ForwardPass(model, inputs))
    assert term.item() == pytest.approx(expected.item(), rel=1e-3)


def test_regression_uses_the_squared_difference_and_trains():
    model = tiny_model("bert", num_labels=1)
    inputs = tiny_batch(num_labels=1)
    z = 0.1 * torch.randn(4, 6, 8, dtype=torch.float64)
    with fed(z / 0.1):
        run = ForwardPass(model, inputs)
        term = R3F(noise="normal", sigma=0.1, weight=1.0).loss(run)
    masked = z * inputs["attention_mask"][..., None]
    noisy = run.at(masked).logits
    assert term.item() == pytest.approx((run.logits - noisy).square().sum(1).mean().item())
    term.backward()
    assert model.classifier.weight.grad.abs().max() > 0


def test_r4f_head_is_lipschitz_one_and_saved_as_such(tmp_path):
    model = tiny_model("roberta")
    before = {k: v.clone() for k, v in model.state_dict().items()}
    objective = Objective(R4F(weight=1.0)).attach(model)
    x = torch.randn(64, 8, dtype=torch.float64)
    moved = model.classifier.out_proj(x) - model.classifier.out_proj(torch.zeros_like(x))
    assert (moved.norm(dim=1) <= x.norm(dim=1) + 1e-12).all()
    saved = model.state_dict()
    assert saved.keys() == before.keys()
    norm = torch.linalg.matrix_norm(saved["classifier.out_proj.weight"], 2)
    assert norm.item() == pytest.approx(1.0)
    logits = model.eval()(**tiny_batch()).logits
    objective.detach()
    torch.testing.assert_close(model(**tiny_batch()).logits, logits)


def test_r4f_needs_a_head():
    model = tiny_model("bert").bert
    with pytest.raises(ValueError, match="use r3f"):
        Objective(R4F(weight=1.0)).attach(model)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_the_head_that_adapters_stand_in_for_stays_as_it_was():
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(tiny_model("bert"), peft.LoraConfig(task_type="SEQ_CLS", r=2))
    (copies,) = (each for each in model.modules() if hasattr(each, "original_module"))
    before = copies.original_module.weight.detach().clone()
    objective = Objective(R4F(weight=1.0)).attach(model.train())
    objective(model, tiny_batch())
    objective.detach()
    assert torch.equal(copies.original_module.weight, before)
    trained = copies.modules_to_save["default"].weight
    assert torch.linalg.matrix_norm(trained, 2).item() == pytest.approx(1)


def test_size_of_the_noise_is_logged():
    model, inputs = tiny_model("bert"), tiny_batch()
    draws = torch.randn(4, 6, 8, dtype=torch.float64)
    objective = Objective(R3F(noise="normal", sigma=0.1, weight=1.0)).attach(model)
    with fed(draws):
        objective(model, inputs)
    real = inputs["attention_mask"].bool()
    x = model.get_input_embeddings()(inputs["input_ids"])[real]
    expected = 0.1 * draws[real].norm() / x.norm()
    assert objective.terms["r3f/delta_ratio"].item() == pytest.approx(expected.item())
