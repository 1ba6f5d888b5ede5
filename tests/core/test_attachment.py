"""The model that methods are attached to, and none other."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from transformers import Trainer

from helpers.training import Rows, arguments, collate
from smoothtune import (
    L2SP,
    LNSR,
    METHODS,
    R3F,
    R4F,
    SMART,
    JacHess,
    Mixout,
    Objective,
    Plain,
    regularize,
)
from smoothtune.nn.hf_versions import enable_checkpointing
from smoothtune.testing import tiny_batch, tiny_model, with_weight


def bound(method, model=None):
    model = model or tiny_model("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Objective(method).bind(model, optimizer, 4), model, optimizer


@pytest.mark.parametrize("name", METHODS)
def test_another_model_is_refused(name):
    objective, model, _ = bound(with_weight(METHODS[name]()))
    for other in (tiny_model("bert"), copy.deepcopy(model)):
        with pytest.raises(RuntimeError, match="attached to another BertForSequence"):
            objective(other, tiny_batch())
    objective(model, tiny_batch()).backward()
    objective.detach()


class Wrapper(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, **batch):
        return self.model(**batch)


@pytest.mark.parametrize("wrap", [Wrapper, lambda model: torch.compile(model, backend="eager")])
def test_a_model_that_holds_it_is_the_same(wrap):
    objective, model, _ = bound(L2SP())
    assert objective(wrap(model), tiny_batch()).requires_grad
    objective.detach()


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("method", [R3F(weight=1.0), Mixout(), SMART(weight=1.0), L2SP()])
def test_adapters_may_be_put_on_later(method):
    peft = pytest.importorskip("peft")
    objective, model, _ = bound(method)
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="SEQ_CLS", r=2)).train()
    objective(adapted, tiny_batch()).backward()
    assert any(w.grad is not None for n, w in adapted.named_parameters() if "lora_B" in n)
    objective.detach()


@pytest.mark.parametrize("trained", [False, True])
def test_a_trainer_that_is_given_another_model_is_refused(trained, tmp_path):
    """Before training, and before it goes on."""
    trainer = Trainer(
        model=tiny_model("bert"),
        args=arguments(tmp_path),
        train_dataset=Rows(6),
        data_collator=collate,
    )
    regularize(trainer, L2SP())
    if trained:
        trainer.train()
    trainer.model = tiny_model("bert")
    with pytest.raises(ValueError, match="another model than the one that the methods were"):
        trainer.train()


@pytest.mark.parametrize("method", [SMART(weight=1.0), L2SP(), Mixout(), LNSR(weight=1.0)])
def test_embeddings_that_are_resized_later_are_told(method):
    objective, model, _ = bound(method)
    rows = model.get_input_embeddings().weight.shape[0]
    model.resize_token_embeddings(rows + 1)
    with pytest.raises(RuntimeError, match=r"word_embeddings.weight .* before regularize\(\) or"):
        objective(model, tiny_batch())
    objective.detach()
    bound(method, model)[0](model, tiny_batch()).backward()  # on the model as it is now


def test_a_weight_that_is_replaced_by_one_of_another_shape_is_told():
    objective, model, _ = bound(L2SP())
    model.classifier.weight = torch.nn.Parameter(torch.zeros(5, model.config.hidden_size))
    with pytest.raises(RuntimeError, match=r"^classifier.weight has the shape \(5, "):
        objective(model, tiny_batch())


def test_nothing_is_asked_of_plain_fine_tuning():
    objective, model, _ = bound(Plain())
    model.resize_token_embeddings(model.get_input_embeddings().weight.shape[0] + 1)
    objective(model, tiny_batch()).backward()
    objective.detach()


@pytest.mark.parametrize("name", METHODS)
def test_parameters_keep_names_and_order(name):
    model = tiny_model("bert")
    names = [key for key, _ in model.named_parameters()]
    keys = list(model.state_dict())
    objective, _, _ = bound(with_weight(METHODS[name]()), model)
    assert [key for key, _ in model.named_parameters()] == names
    assert list(model.state_dict()) == keys
    objective.detach()


def test_a_teacher_of_pruned_layers():
    model = tiny_model("bert")
    prune.random_unstructured(model.classifier, "weight", 0.5)
    objective, _, optimizer = bound(SMART(weight=1.0), model)
    objective(model, tiny_batch()).backward()
    optimizer.step()
    objective(model, tiny_batch())
    assert objective.terms["loss/smart"] > 0
    objective.detach()


def test_a_teacher_follows_weights_that_are_unfrozen_later():
    """It would have been the student's own weight, at no distance from it."""
    model = tiny_model("bert")
    model.bert.requires_grad_(False)
    model.classifier.requires_grad_(False)
    model.classifier.bias.requires_grad_(True)
    method = SMART(weight=1.0, lambda_s=0.0, beta=1.0, late_after=None)
    objective, _, optimizer = bound(method, model)
    objective(model, tiny_batch()).backward()
    model.classifier.weight.requires_grad_(True)
    with torch.no_grad():
        model.classifier.bias.zero_()
    objective(model, tiny_batch())
    start = model.classifier.weight.detach().clone()
    with torch.no_grad():
        model.classifier.weight.add_(torch.randn_like(start))
    objective(model, tiny_batch())
    assert objective.terms["loss/smart"] > 1e-3
    state = objective.state_dict()
    assert torch.equal(state["smart/classifier.weight"], start)

    model.classifier.weight.requires_grad_(False)
    objective.detach()
    objective.attach(model).load_state_dict(state)  # resumed, before it is unfrozen again
    assert torch.equal(objective.state_dict()["smart/classifier.weight"], start)
    objective.detach()


@pytest.mark.parametrize(
    "method", [L2SP(alpha=1.0), SMART(weight=1.0), JacHess(weight=1.0), R4F(weight=1.0)]
)
def test_on_the_same_model_methods_go_on_from_where_they_were(method):
    """Anchors, teacher and smoothness are of the pre-trained weights, not of the present ones."""
    objective, model, optimizer = bound(method)
    for _ in range(2):
        objective(model, tiny_batch()).backward()
        optimizer.step()
        optimizer.zero_grad()
    before = {name: value.clone() for name, value in objective.state_dict().items()}
    objective.detach()
    after = objective.bind(model, optimizer, 4).state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in after.items())
    objective.detach()


def test_detaching_gives_the_model_its_attention_back():
    model = tiny_model("bert")
    before = model.config._attn_implementation
    assert before == "sdpa"
    objective, _, _ = bound(JacHess(weight=1.0, estimator="projected"), model)
    assert model.config._attn_implementation != before
    objective.detach()
    assert model.config._attn_implementation == before


def test_after_detaching_a_model_is_looked_at_anew():
    model = tiny_model("bert")
    objective = Objective(R3F(weight=1.0)).attach(model)
    objective(model, tiny_batch())
    objective.detach()
    enable_checkpointing(model, use_reentrant=True)
    with pytest.raises(ValueError, match="r3f with reentrant checkpointing"):
        objective(model, tiny_batch())
