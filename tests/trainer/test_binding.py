"""What regularize connects, for how long, and how it is undone."""

import copy
import pickle

import pytest
import torch
from torch import nn
from transformers import Trainer

from helpers.training import Rows, arguments, collate
from smoothtune import (
    CWGNC,
    L2SP,
    LLRD,
    LNSR,
    R3F,
    JacHess,
    Jacobian,
    Mixout,
    NonFiniteLoss,
    ReInit,
    SmoothTrainer,
    regularize,
)
from smoothtune.nn.hf_versions import can_change_attention, declared_scaling
from smoothtune.testing import fixed_draws, tiny_model


def trainer_of(tmp_path, model=None, cls=Trainer, rows=8, **changes):
    return cls(
        model=model or tiny_model("bert"),
        args=arguments(tmp_path, **changes),
        train_dataset=Rows(rows),
        data_collator=collate,
    )


def weights_of(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def largest_movement(model, before):
    return max((p - before[name]).norm().item() for name, p in model.named_parameters())


def test_an_optimizer_that_is_set_later_is_bound(tmp_path):
    trainer = regularize(trainer_of(tmp_path, max_steps=2), CWGNC(max_norm=1e-3))
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=1.0)
    before = weights_of(trainer.model)
    trainer.train()
    assert trainer.objective.step == 2
    assert 1e-3 < largest_movement(trainer.model, before) <= 2e-3 * (1 + 1e-5)


def test_an_optimizer_that_is_replaced_is_let_go(tmp_path):
    trainer = trainer_of(tmp_path)
    first, second = (torch.optim.SGD(trainer.model.parameters(), lr=lr) for lr in (1.0, 2.0))
    trainer.optimizer = first
    regularize(trainer, CWGNC(max_norm=1e-3))
    assert trainer.objective.optimizer is first
    trainer.optimizer = second
    before = weights_of(trainer.model)
    trainer.train()
    assert trainer.objective.step == 1
    assert not first._optimizer_step_pre_hooks
    assert largest_movement(trainer.model, before) == pytest.approx(2e-3, rel=1e-3)


class Creating(Trainer):
    """Makes optimizer and scheduler in a way of its own."""

    def create_optimizer(self, *args, **kwargs):
        if self.optimizer is None:
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        return self.optimizer


def test_an_optimizer_of_a_subclass_is_bound(tmp_path):
    trainer = regularize(trainer_of(tmp_path, cls=Creating), CWGNC(max_norm=1e-3), LLRD(decay=0.5))
    before = weights_of(trainer.model)
    trainer.train()
    moved = {n: (p - before[n]).norm().item() for n, p in trainer.model.named_parameters()}
    assert moved["classifier.weight"] == pytest.approx(1e-3, rel=1e-3)
    assert moved["bert.encoder.layer.0.output.dense.weight"] == pytest.approx(2.5e-4, rel=1e-3)


def cross_entropy(model, inputs):
    """A task loss, in the shortest form that the Trainer takes."""
    inputs = {key: value for key, value in inputs.items() if key != "example_id"}
    labels = inputs.pop("labels")
    return 3 * nn.functional.cross_entropy(model(**inputs).logits, labels)


class Slotted(Trainer):
    __slots__ = ("factor",)

    def compute_loss(self, model, inputs, *args, **kwargs):
        self.factor = 3
        return cross_entropy(model, inputs)


class OwnSmooth(SmoothTrainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        loss = cross_entropy(model, inputs)
        return (loss, None) if return_outputs else loss


def on_the_instance(**options):
    trainer = Trainer(**options)
    trainer.compute_loss = lambda model, inputs, num_items_in_batch=None: cross_entropy(
        model, inputs
    )
    return trainer


@pytest.mark.parametrize("make", [Slotted, OwnSmooth, on_the_instance])
def test_a_loss_of_the_users_is_the_task_loss_wherever_it_is_written(tmp_path, make):
    """In a class with slots, in a subclass of SmoothTrainer, on the trainer itself."""
    methods = {"regularizers": L2SP()} if make is OwnSmooth else {}
    model = tiny_model("bert")
    trainer = make(
        model=model,
        args=arguments(tmp_path),
        train_dataset=Rows(8),
        data_collator=collate,
        **methods,
    )
    if not methods:
        regularize(trainer, L2SP())
    batch = collate([Rows(8)[i] for i in range(8)])
    expected = cross_entropy(model, batch).item()
    trainer.train()
    logs = trainer.state.log_history[0]
    assert logs["loss/task"] == pytest.approx(expected)
    assert "loss/l2_sp" in logs
    after = trainer.compute_loss(model, batch)
    torch.testing.assert_close(after, cross_entropy(model, batch))


class Watching(Trainer):
    """Has a step and a log of its own, as users write them."""

    steps, logged = 0, ()

    def training_step(self, *args, **kwargs):
        self.steps += 1
        return super().training_step(*args, **kwargs)

    def log(self, logs, start_time=None):
        self.logged = (*self.logged, *logs)
        super().log({name: value for name, value in logs.items() if name != "grad_norm"})


def test_a_step_and_a_log_of_the_users_go_on_being_called(tmp_path):
    trainer = regularize(trainer_of(tmp_path, cls=Watching, max_steps=3, max_grad_norm=1e3), L2SP())
    trainer.train()
    assert trainer.steps == 3
    assert {"loss", "loss/l2_sp", "grad_norm"} <= set(trainer.logged)
    assert "grad_norm" not in trainer.state.log_history[0]
    assert "loss/l2_sp" in trainer.state.log_history[0]


def test_a_trainer_that_is_refused_keeps_its_class_and_its_own_loss(tmp_path):
    trainer = on_the_instance(model=tiny_model("bert"), args=arguments(tmp_path, max_grad_norm=1.0))
    own = trainer.compute_loss
    with pytest.raises(ValueError, match="max_grad_norm=0"):
        regularize(trainer, CWGNC())
    assert type(trainer) is Trainer
    assert trainer.compute_loss is own


def test_a_regularized_trainer_can_be_copied_and_its_arguments_pickled(tmp_path):
    trainer = regularize(trainer_of(tmp_path), LNSR(weight=1.0))
    trainer.train()
    assert pickle.loads(pickle.dumps(trainer.args)).learning_rate == trainer.args.learning_rate
    copied = copy.deepcopy(trainer)
    assert copied.model is not trainer.model
    assert copied.objective is not trainer.objective


def sdpa_model():
    model = tiny_model("bert")
    model.set_attn_implementation("sdpa")
    return model


@pytest.mark.parametrize("ends", ["well", "by an error"])
def test_after_training_all_is_as_it_was(tmp_path, ends):
    trainer = trainer_of(tmp_path, sdpa_model())
    own, keys = dict(vars(trainer)), list(trainer.model.state_dict())
    regularize(trainer, Jacobian(weight=0.01), JacHess(c=0.1, weight=1.0), Mixout(p=0.5))
    own_attention = "eager" if can_change_attention(trainer.model) else "sdpa"
    assert trainer.model.config._attn_implementation == own_attention
    if ends == "well":
        trainer.train()
    else:
        trainer.model.classifier.weight.data[0, 0] = torch.nan
        with pytest.raises(NonFiniteLoss):
            trainer.train()
    model = trainer.model
    assert model.config._attn_implementation == "sdpa"
    assert list(model.state_dict()) == keys
    assert {type(m) for m in model.modules() if isinstance(m, nn.LayerNorm)} == {nn.LayerNorm}
    assert not any(hasattr(m, "parametrizations") for m in model.modules())
    replaced = ("compute_loss", "create_optimizer", "log", "get_batch_samples")
    assert not set(replaced) & set(vars(trainer))
    assert trainer.model_accepts_loss_kwargs == own["model_accepts_loss_kwargs"]
    assert declared_scaling(trainer) is None
    batch = collate([Rows(8)[i] for i in range(8)])
    del batch["example_id"]
    if ends == "well":
        expected = model.train()(**batch).loss
        torch.testing.assert_close(trainer.compute_loss(model, batch), expected)


def test_training_goes_on_in_a_second_call(tmp_path):
    """Two calls with the methods' state kept: the anchor stays that of the start."""

    def trained(calls):
        torch.manual_seed(0)
        trainer = trainer_of(tmp_path, max_steps=2 // calls, learning_rate=0.01)
        methods = [L2SP(alpha=1.0), ReInit(), CWGNC(), LLRD(decay=0.5)]
        regularize(trainer, *methods)
        before = weights_of(trainer.model)
        for _ in range(calls):
            trainer.train()
        assert trainer.objective.step == 2
        return before, weights_of(trainer.model)

    (_, once), (_, twice) = trained(1), trained(2)
    assert max((once[name] - twice[name]).abs().max().item() for name in once) < 1e-9


def test_a_second_trainer_waits_until_the_first_has_trained(tmp_path):
    model = tiny_model("bert")
    first = regularize(trainer_of(tmp_path, model), Mixout())
    second = trainer_of(tmp_path, model)
    before = set(vars(second))
    with pytest.raises(RuntimeError, match="another objective"):
        regularize(second, Mixout())
    assert set(vars(second)) == before
    first.train()
    regularize(second, Mixout()).train()


def test_a_scheduler_that_would_undo_llrd_is_refused_and_leaves_nothing(tmp_path):
    trainer = trainer_of(tmp_path)
    trainer.create_optimizer_and_scheduler(2)
    before = set(vars(trainer))
    with pytest.raises(ValueError, match="scheduler already"):
        regularize(trainer, LLRD(), Mixout())
    assert set(vars(trainer)) == before
    assert not any(hasattr(m, "parametrizations") for m in trainer.model.modules())


def test_evaluation_between_two_calls_of_train_is_the_trainers_own(tmp_path):
    class Strict(type(tiny_model("bert"))):
        def forward(self, input_ids, attention_mask, labels):
            return super().forward(input_ids, attention_mask, labels=labels)

    model = tiny_model("bert")
    model.__class__ = Strict
    trainer = SmoothTrainer(
        model=model,
        args=arguments(tmp_path),
        train_dataset=Rows(8),
        eval_dataset=Rows(8),
        regularizers=[L2SP(beta=1e6), LNSR(weight=1.0)],
    )
    trainer.train()
    after = trainer.evaluate()["eval_loss"]
    plain = trainer_of(tmp_path, trainer.model)
    plain.eval_dataset = [
        {key: value for key, value in row.items() if key != "example_id"}
        for row in (Rows(8)[i] for i in range(8))
    ]
    assert after == pytest.approx(plain.evaluate()["eval_loss"])


def test_relative_steps_of_adafactor_are_refused_where_the_learning_rate_is_c(tmp_path):
    from transformers.optimization import Adafactor

    trainer = trainer_of(tmp_path)
    trainer.optimizer = Adafactor(trainer.model.parameters(), lr=None)
    with pytest.raises(ValueError, match="jachess takes the learning rate as c.*give c"):
        regularize(trainer, JacHess(weight=1.0))


def test_a_loss_that_is_set_later_and_leaves_the_methods_out_is_an_error(tmp_path):
    """It hides the class that trains with the methods; once it is gone, all is well."""
    trainer = regularize(trainer_of(tmp_path, max_steps=1), L2SP())
    trainer.compute_loss = lambda model, inputs, **_: cross_entropy(model, inputs)
    with pytest.raises(RuntimeError, match=r"an update was made without the methods"):
        trainer.train()
    del trainer.compute_loss
    trainer.train()


def test_a_resumed_run_logs_the_share_of_its_own_updates(tmp_path):
    """And not that of the updates before, whose sums it goes on with."""
    settings = {"max_steps": 4, "logging_steps": 2, "save_strategy": "steps", "save_steps": 2}
    logged = []
    for resumes in (False, True):
        trainer = trainer_of(tmp_path, learning_rate=0.01, **settings)
        regularize(trainer, LNSR())
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2") if resumes else None)
        logged.append([e["lnsr/share"] for e in trainer.state.log_history if "lnsr/share" in e])
    assert logged[0][0] != logged[0][1]
    assert logged[0] == logged[1]


def test_logs_are_those_of_what_was_applied_however_an_update_is_cut(tmp_path):
    """A batch alone would have another weight, and so would one process of several."""
    logged = []
    for batches in (1, 4):
        cut = {"per_device_train_batch_size": 8 // batches, "gradient_accumulation_steps": batches}
        torch.manual_seed(0)
        trainer = trainer_of(tmp_path / str(batches), max_steps=3, logging_steps=1, **cut)
        with fixed_draws():
            regularize(trainer, LNSR(share=0.5)).train()
        logged.append([entry for entry in trainer.state.log_history if "loss" in entry])
    names = {"loss", "loss/task", "loss/lnsr", "lnsr/weight", "lnsr/share", "lnsr/bounded"}
    for one, several in zip(*logged, strict=True):
        for name in names - {"loss"}:
            assert several[name] == pytest.approx(one[name], rel=1e-4), name
        for entry in (one, several):  # 4.x rounds the loss to four digits
            whole = entry["loss/task"] + entry["loss/lnsr"]
            assert entry["loss"] == pytest.approx(whole, abs=1e-4)
        assert one["lnsr/share"] > 0


def test_an_update_of_fewer_batches_counts_like_the_others_in_the_log(tmp_path):
    """The last one of an epoch: 2 + 1 batches, of 8 rows and of 4."""
    cut = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    logged = []
    for steps in (1, 2):
        torch.manual_seed(0)
        trainer = trainer_of(
            tmp_path / str(steps), rows=12, max_steps=2, logging_steps=steps, **cut
        )
        with fixed_draws():
            regularize(trainer, R3F(weight=1.0)).train()
        logged.append([e for e in trainer.state.log_history if "loss" in e])
    each, (both,) = logged
    for name in ("loss/task", "loss/r3f"):
        assert both[name] == pytest.approx(sum(e[name] for e in each) / 2, rel=1e-5), name
    assert both["loss"] == pytest.approx(both["loss/task"] + both["loss/r3f"], abs=1e-4)


@pytest.mark.parametrize("logging_steps", [1, 2, 9])
def test_the_loss_of_a_training_is_that_of_what_was_applied(tmp_path, logging_steps):
    """Whether updates were logged or not: the mean of their task's loss and term."""
    settings = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    torch.manual_seed(0)
    trainer = trainer_of(tmp_path, max_steps=3, logging_steps=logging_steps, **settings)
    with fixed_draws():
        output = regularize(trainer, LNSR(share=0.5)).train()
    torch.manual_seed(0)
    each = trainer_of(tmp_path, max_steps=3, logging_steps=1, **settings)
    with fixed_draws():
        regularize(each, LNSR(share=0.5)).train()
    logged = [e["loss/task"] + e["loss/lnsr"] for e in each.state.log_history if "loss" in e]
    assert output.training_loss == pytest.approx(sum(logged) / 3, rel=1e-5)
    assert output.metrics["train_loss"] == output.training_loss
    assert trainer.state.log_history[-1]["train_loss"] == output.training_loss
