"""SAM."""

from contextlib import nullcontext

import pytest
import torch
from transformers import ViTConfig, ViTForImageClassification

from helpers.adversary import compare, predict, rows, setting
from helpers.conformance import CASES, Tiny, batch
from helpers.literal import MODELS, cross_entropy, squared_error
from helpers.training import Rows, arguments
from smoothtune import LNSR, SAM, Objective, SmoothTrainer
from smoothtune.testing import tiny_batch, tiny_model
from smoothtune.testing.tiny import random_model


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("num_labels", [3, 1])
@pytest.mark.parametrize("architecture", MODELS)
def test_equals_its_equation(architecture, num_labels, adaptive):
    model, data = setting(architecture, num_labels)
    task = squared_error if num_labels == 1 else cross_entropy

    def loss(model):
        return task([predict(model, ids, 0) for ids, _ in rows(data)], data["labels"])

    def expected(model):
        weights = list(model.parameters())
        g = torch.autograd.grad(loss(model), weights, allow_unused=True)
        g = [torch.zeros_like(w) if x is None else x for x, w in zip(g, weights, strict=True)]
        t = [abs(w.detach()) if adaptive else torch.ones_like(w) for w in weights]
        norm = sum(((a * b) ** 2).sum() for a, b in zip(t, g, strict=True)) ** 0.5
        moved = {
            name: w + 0.3 * a**2 * b / norm
            for (name, w), a, b in zip(model.named_parameters(), t, g, strict=True)
        }

        class Elsewhere:  # the model at w + e, differentiable in w
            get_input_embeddings = model.get_input_embeddings

            def __call__(self, **inputs):
                return torch.func.functional_call(model, moved, kwargs=inputs)

        return loss(Elsewhere())

    compare(Objective(SAM(rho=0.3, adaptive=adaptive)), model, data, expected)


def test_equals_released_code():
    case, model = CASES["sam_davda54"], Tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    objective = Objective(SAM(rho=case["hyper"]["rho"])).bind(model, optimizer)
    with torch.no_grad():
        torch.testing.assert_close(model(**batch()).loss.item(), case["loss"], rtol=1e-5, atol=0)
    loss = objective(model, batch())
    torch.testing.assert_close(loss.item(), case["perturbed_loss"], rtol=1e-5, atol=0)
    loss.backward()
    optimizer.step()
    for name, weight in model.named_parameters():
        wanted = torch.tensor(case["params_after"][name])
        torch.testing.assert_close(weight.detach().flatten(), wanted, rtol=0, atol=2e-6, msg=name)


def test_weights_come_back_bit_for_bit():
    model = tiny_model("bert", dtype=torch.float32)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    Objective(SAM(rho=3.0)).attach(model)(model, tiny_batch())
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


@pytest.mark.parametrize("adaptive", [False, True])
def test_a_gradient_whose_squares_are_lost_moves_no_weight_far(adaptive, monkeypatch):
    """That of predictions with a margin of 60, in float32."""
    model, data, steps = tiny_model("bert", dtype=torch.float32), tiny_batch(), []
    model.classifier.bias.data[0] = 60.0
    monkeypatch.setattr(
        "smoothtune.methods.sam.moved", lambda weights, step: nullcontext(steps.extend(step))
    )
    objective = Objective(SAM(rho=0.05, adaptive=adaptive)).attach(model)
    objective(model, data | {"labels": torch.zeros(4, dtype=torch.long)})
    assert 0 < torch.cat([part.flatten() for part in steps]).double().norm() <= 0.05


def test_terms_of_other_methods_are_those_at_w():
    """Their graphs, made at w, are back-propagated after the weights were away."""
    found = []
    for methods in ([SAM(rho=2.0)], [LNSR(reduction="token_sum", weight=1.0)], []):
        model = tiny_model("bert")
        torch.manual_seed(0)
        Objective(*methods).attach(model)(model, tiny_batch()).backward()
        found.append(model.bert.encoder.layer[0].output.dense.weight.grad)
    model = tiny_model("bert")
    torch.manual_seed(0)
    both = Objective(SAM(rho=2.0), LNSR(reduction="token_sum", weight=1.0)).attach(model)
    both(model, tiny_batch()).backward()
    sam, lnsr, plain = found
    torch.testing.assert_close(
        model.bert.encoder.layer[0].output.dense.weight.grad, sam + lnsr - plain
    )


def test_several_processes_and_accumulation_are_refused_before_the_first_step(tmp_path):
    class Wrapped(torch.nn.parallel.DistributedDataParallel):
        def __init__(self, module):
            torch.nn.Module.__init__(self)
            self.module = module

    with pytest.raises(ValueError, match="sam with DDP: .* use one process"):
        Objective(SAM()).attach(Wrapped(tiny_model("bert")))
    args = arguments(tmp_path, gradient_accumulation_steps=2)
    with pytest.raises(ValueError, match="sam with gradient_acc.*: .* no accumulation"):
        SmoothTrainer(
            model=tiny_model("bert"), args=args, train_dataset=Rows(), regularizers=[SAM()]
        )


def test_accumulation_is_refused_in_a_plain_loop():
    model = tiny_model("bert")
    objective = Objective(SAM()).attach(model)
    objective(model, tiny_batch()).backward()
    with pytest.raises(ValueError, match="gradient_accumulation_steps=1"):
        objective(model, tiny_batch())
    model.zero_grad(set_to_none=False)
    objective(model, tiny_batch())


def test_gradients_of_an_earlier_batch_in_any_weight_are_refused():
    model = tiny_model("bert")
    objective = Objective(SAM()).attach(model)
    model.bert.encoder.layer[0].output.dense.bias.grad = torch.ones(8).double()
    with pytest.raises(ValueError, match=r"call optimizer\.zero_grad"):
        objective(model, tiny_batch())


def test_images_have_no_tokens():
    """Masks are shared by the number of tokens, where there are some."""
    config = ViTConfig(
        hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        image_size=8, patch_size=4, num_labels=3, hidden_dropout_prob=0.1,
    )  # fmt: skip
    model = random_model(ViTForImageClassification, config, 0.1, torch.float32)
    batch = {"pixel_values": torch.randn(2, 3, 8, 8), "labels": torch.tensor([0, 2])}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    objective = Objective(SAM()).bind(model, optimizer)
    objective(model, batch).backward()
    optimizer.step()
    assert objective.terms["sam/gradient_norm"] > 0
    objective.detach()
