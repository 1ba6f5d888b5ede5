"""The task loss is whatever the user's trainer or loop computes, for every method."""

import pytest
import torch
import torch.nn.functional as F
from transformers import MixtralConfig, MixtralForCausalLM, Trainer

from helpers.causal import language_batch, tiny_language_model, tiny_lora
from helpers.heads import classification, multi_label
from helpers.training import Rows, arguments, collate
from smoothtune import ALICE, L2SP, METHODS, R3F, LabelSmoothing, Objective, Plain, regularize
from smoothtune.testing import VOCABULARY, tiny_batch, tiny_model
from smoothtune.trainer.weighted_losses import ClassWeightedLoss, LabelWeightedLoss

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")

# fields with which a method does next to nothing; by default, a weight
NEXT_TO_NOTHING = {
    "freelb": {"init_size": 1e-12, "step_size": 1e-12, "epsilon": 1e-12},
    "hype": {"sigma": 1e-12},
    "mixout": {"p": 1e-300},
    "neftune": {"alpha": 1e-12},
    "noise": {"noise_ratio": 1e-12},
    "pgd": {"epsilon": 1e-12, "step_size": 1e-12},
    "r_drop": {"alpha": 0.0},
    "reinit": {"layers": 0, "pooler": False},
    "sam": {"rho": 1e-12},
    "uegr": {"epsilon": 1e-12, "alpha": 0.0, "combination": "model", "keep": 1.0},
}
NO_WEIGHT = {"child_tuning", "cwgnc", "llrd", "plain"}  # act on the update, or not at all
NO_LANGUAGE_MODEL = {"cross_holder", "double_backprop"}


def weightless(name):
    default = {} if name in NO_WEIGHT else {"weight": 1e-12}
    return METHODS[name](**NEXT_TO_NOTHING.get(name, default))


def mixture():
    config = MixtralConfig(
        vocab_size=VOCABULARY, hidden_size=8, intermediate_size=8, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, num_local_experts=2, pad_token_id=0,
        output_router_logits=True, attn_implementation="eager", experts_implementation="eager",
    )  # fmt: skip
    torch.manual_seed(0)
    return MixtralForCausalLM(config).double()


def users_loss(model, batch):
    """Weights of classes, a constant, and the loss of the router."""
    outputs = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    weights = torch.linspace(0.5, 5, VOCABULARY, dtype=torch.float64)
    labels = batch["labels"][:, 1:].flatten()
    loss = F.cross_entropy(outputs.logits[:, :-1].flatten(0, 1), labels, weight=weights)
    return loss + 3 + outputs.aux_loss, outputs


def gradients(model):
    return {name: w.grad.clone() for name, w in model.named_parameters() if w.grad is not None}


def own_step(model, batch, compute_loss):
    loss = compute_loss(model, batch)[0]
    loss.backward()
    return loss.item(), gradients(model)


def close(found, expected):
    (loss, grads), (own_loss, own_grads) = found, expected
    assert loss == pytest.approx(own_loss, rel=1e-8)
    assert grads.keys() == own_grads.keys()
    for name, gradient in own_grads.items():
        torch.testing.assert_close(grads[name], gradient, rtol=1e-5, atol=1e-8)


# mixout refuses mixtures of experts
@pytest.mark.parametrize(
    "name", sorted(set(METHODS) - {"label_smoothing", "mixout"} - NO_LANGUAGE_MODEL)
)
def test_every_method_leaves_a_loss_of_a_loop(name):
    model = mixture()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    objective = Objective(weightless(name)).bind(model, optimizer, 4)
    expected = own_step(model, language_batch(), users_loss)
    optimizer.zero_grad()
    loss = objective(model, language_batch(), users_loss)
    loss.backward()
    close((loss.item(), gradients(model)), expected)
    objective.detach()


class Weighted(Trainer):
    """Weights of classes and a constant, in a subclass."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        weights = torch.tensor([1.0, 5.0, 2.0], dtype=torch.float64)
        loss = F.cross_entropy(outputs.logits, labels, weight=weights) + 3
        return (loss, outputs) if return_outputs else loss


class LossAlone(Weighted):
    """As it is enough for training."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return super().compute_loss(model, inputs)


class NoOutputs(Weighted):
    """Knows no outputs at all."""

    def compute_loss(self, model, inputs, num_items_in_batch=None):
        return super().compute_loss(model, inputs)


class OneEntry(Weighted):
    """A tensor of one number, which back-propagates as well."""

    def compute_loss(self, model, inputs, **options):
        return super().compute_loss(model, inputs)[None]


def trainer_of(tmp_path, cls=Trainer, model=None, **changes):
    return cls(
        model=model or tiny_model("bert"),
        args=arguments(tmp_path),
        train_dataset=Rows(6),
        data_collator=plain_collate,
        **changes,
    )


def plain_collate(rows):
    return collate([{k: v for k, v in row.items() if k != "example_id"} for row in rows])


def trained(trainer):
    trainer.train()
    loss = trainer.state.log_history[0]["loss"]
    return loss, {
        name: weight.detach().clone() for name, weight in trainer.model.named_parameters()
    }


@pytest.mark.parametrize(
    "name",
    [  # every other one; fast tests have all of them in a loop
        pytest.param(name, marks=pytest.mark.slow if number % 2 else ())
        for number, name in enumerate(sorted(set(METHODS) - {"label_smoothing", "r4f"} - NO_WEIGHT))
    ],
)
def test_every_method_leaves_a_loss_of_a_trainer(name, tmp_path):
    expected = trained(trainer_of(tmp_path, Weighted))
    close(trained(regularize(trainer_of(tmp_path, Weighted), weightless(name))), expected)


@pytest.mark.parametrize("cls", [LossAlone, NoOutputs, OneEntry])
def test_a_loss_without_outputs_trains_where_none_are_compared(cls, tmp_path):
    expected = trained(trainer_of(tmp_path, Weighted))
    for method in (Plain(), L2SP(weight=1e-12), METHODS["lnsr"](weight=1e-12)):
        close(trained(regularize(trainer_of(tmp_path, cls), method)), expected)
    with pytest.raises(ValueError, match="a loss without outputs.*use a method that needs none"):
        regularize(trainer_of(tmp_path, cls), R3F(weight=1.0)).train()


@pytest.mark.parametrize(
    ("value", "what"), [(1.0, "float"), (torch.ones(4), r"of shape \(4,\)"), ({}, "dict")]
)
def test_what_is_no_loss_is_told(value, what):
    model, batch = tiny_model("bert"), tiny_batch()
    with pytest.raises(ValueError, match=f"compute_loss gave a .*{what}.* for the loss: return"):
        Objective(Plain())(model, batch, lambda model, batch: value)


# --- methods that compute the task loss themselves -----------------------------------------------


def adalora(model, task_type="SEQ_CLS"):
    peft = pytest.importorskip("peft")
    config = peft.AdaLoraConfig(task_type=task_type, init_r=2, total_step=9, tinit=1, tfinal=1)
    torch.manual_seed(0)
    return peft.get_peft_model(model, config).train()


@pytest.mark.parametrize("method", [LabelSmoothing(smoothing=1e-9), ALICE(compat="vat-pytorch")])
@pytest.mark.parametrize(
    "make",
    [
        lambda folder: trainer_of(folder, Weighted),
        lambda folder: trainer_of(folder, compute_loss_func=ClassWeightedLoss([1, 5, 2])),
        lambda folder: trainer_of(
            folder, model=multi_label(0.0)[0], compute_loss_func=LabelWeightedLoss([1, 5, 2])
        ),
        lambda folder: trainer_of(folder, model=adalora(tiny_model("bert", dtype=torch.float32))),
    ],
    ids=["subclass", "class weights", "label weights", "adalora"],
)
def test_another_loss_is_refused_at_once(method, make, tmp_path):
    with pytest.raises(ValueError, match=f"{method.name}: .*computes the plain task loss"):
        regularize(make(tmp_path), method)


def test_a_routers_loss_is_refused_at_once():
    with pytest.raises(
        ValueError, match="label_smoothing: Mixtral.* adds the loss that balances its router"
    ):
        Objective(LabelSmoothing()).attach(mixture())
    model = mixture()
    model.config.output_router_logits = False
    objective = Objective(LabelSmoothing()).attach(model)
    with pytest.raises(
        ValueError, match="label_smoothing: Mixtral.* adds the loss that balances its router"
    ):
        objective(model, language_batch() | {"output_router_logits": True})
    objective.detach()


def test_a_loss_of_a_loop_is_refused():
    with pytest.raises(ValueError, match="label_smoothing: your loss is another"):
        Objective(LabelSmoothing())(*classification(0.0), users_loss)


def test_a_loss_inside_the_model_is_refused():
    """Nothing says so but the number."""

    class Penalized(type(tiny_model("bert"))):
        def forward(self, *args, **kwargs):
            outputs = super().forward(*args, **kwargs)
            if outputs.loss is not None:
                outputs.loss = outputs.loss + 0.01 * outputs.logits.square().sum()
            return outputs

    model = tiny_model("bert")
    model.__class__ = Penalized
    with pytest.raises(ValueError, match=r"plain cross entropy, which is .* the task loss is"):
        Objective(LabelSmoothing())(model, tiny_batch())


@pytest.mark.parametrize("name", ["plain", "r3f", "fgm", "l2_sp"])
def test_a_language_model_keeps_what_adalora_adds(name):
    """Its own loss is then computed, from all logits."""
    model = adalora(tiny_language_model("llama", dtype=torch.float32), "CAUSAL_LM")
    batch = language_batch()
    own = model(**batch).loss.item()
    objective = Objective(weightless(name)).attach(model)
    objective(model, batch)
    assert objective.terms["loss/task"].item() == pytest.approx(own, rel=1e-5)
    objective.detach()


def test_adapters_alone_are_smoothed():
    objective = Objective(LabelSmoothing()).attach(model := tiny_lora())
    assert objective(model, tiny_batch()).requires_grad
    objective.detach()
