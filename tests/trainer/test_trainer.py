"""SmoothTrainer and regularize: exact scaling, logs, resume, refusals."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import Trainer, TrainerCallback

from helpers.training import METHODS_TESTED, Rows, arguments, weights_after
from smoothtune import (
    CWGNC,
    L2SP,
    LNSR,
    R3F,
    R4F,
    SMART,
    LabelSmoothing,
    Mixout,
    NonFiniteLoss,
    Plain,
    SmoothTrainer,
    regularize,
)
from smoothtune.errors import CheckpointError
from smoothtune.testing import tiny_model
from smoothtune.trainer.manifest import STATE_FILE
from smoothtune.trainer.term_means import TermMeans


def plain_collator(rows):
    keys = [key for key in rows[0] if key != "example_id"]
    return {key: torch.stack([row[key] for row in rows]) for key in keys}


def difference(a, b):
    return max((a[name] - b[name]).abs().max().item() for name in a)


def test_without_methods_it_is_the_stock_trainer_bit_for_bit(tmp_path):
    states = []
    for cls in (Trainer, SmoothTrainer):
        model = tiny_model("bert", dropout=0.2)
        trainer = cls(
            model=model,
            **({"regularizers": Plain()} if cls is SmoothTrainer else {}),
            args=arguments(
                tmp_path,
                max_steps=3,
                per_device_train_batch_size=8,
                optim="adamw_torch",
                max_grad_norm=1.0,
                train_sampling_strategy="random",
            ),
            train_dataset=Rows(),
            data_collator=plain_collator,
        )
        trainer.train()
        states.append(model.state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def methods_and_architectures():
    """Every method on one architecture in turn; the rest are slow tests."""
    architectures = ["bert", "roberta", "deberta", "llama"]
    for number, method in enumerate(METHODS_TESTED):
        for architecture in architectures:
            fast = architecture == architectures[number % len(architectures)]
            marks = () if fast else pytest.mark.slow
            yield pytest.param(method, architecture, marks=marks)


@pytest.mark.parametrize(("method", "architecture"), list(methods_and_architectures()))
def test_accumulation_equals_one_big_batch(tmp_path, method, architecture):
    whole = weights_after(tmp_path, method, architecture, max_steps=2)
    parts = weights_after(
        tmp_path,
        method,
        architecture,
        max_steps=2,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=4,
    )
    start = tiny_model(architecture).state_dict()
    assert difference(whole, start) > 1e-3
    assert difference(whole, parts) < 1e-6


def test_a_stock_trainer_would_fail_that_test(tmp_path):
    """The reason for the exact scaling: transformers multiplies this head's gradient by 4."""
    moved = []
    for steps in (1, 4):
        model = tiny_model("bert")
        before = {k: v.clone() for k, v in model.state_dict().items()}
        args = arguments(
            tmp_path, per_device_train_batch_size=32 // steps, gradient_accumulation_steps=steps
        )
        stock = Trainer(model=model, args=args, train_dataset=Rows(), data_collator=plain_collator)
        if not stock.model_accepts_loss_kwargs:
            pytest.skip("in 4.x BERT takes no count, and the Trainer divides")
        stock.train()
        moved.append(difference(model.state_dict(), before))
    assert moved[1] == pytest.approx(4 * moved[0], rel=0.2)


class WeightedTrainer(Trainer):
    """A trainer as users write them: its own loss."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        weight = torch.tensor([1.0, 5.0, 0.2], dtype=outputs.logits.dtype)
        loss = nn.functional.cross_entropy(outputs.logits, labels, weight=weight)
        return (loss, outputs) if return_outputs else loss


def test_an_existing_trainer_keeps_its_own_loss(tmp_path):
    def trainer():
        return WeightedTrainer(
            model=tiny_model("bert"),
            args=arguments(tmp_path),
            train_dataset=Rows(),
            data_collator=plain_collator,
        )

    plain, ours = trainer(), regularize(trainer(), LNSR(weight=1.0), L2SP())
    expected = plain.compute_loss(plain.model, plain_collator([Rows()[i] for i in range(32)]))
    ours.train()
    logs = ours.state.log_history[0]
    assert logs["loss/task"] == pytest.approx(expected.item())
    assert logs["loss"] == pytest.approx(
        logs["loss/task"] + logs["loss/lnsr"] + logs["loss/l2_sp"], rel=1e-3
    )
    assert logs["lnsr/delta_ratio"] == pytest.approx(0.05)
    assert isinstance(ours, WeightedTrainer)


@pytest.mark.parametrize("kind", ["label_smoothing", "compute_loss_func"])
def test_other_ways_to_set_the_loss_are_exact_under_accumulation(tmp_path, kind):
    def moved(steps):
        model = tiny_model("bert")
        extra = {"label_smoothing_factor": 0.1} if kind == "label_smoothing" else {}
        args = arguments(
            tmp_path,
            per_device_train_batch_size=32 // steps,
            gradient_accumulation_steps=steps,
            **extra,
        )
        func = None
        if kind == "compute_loss_func":
            func = lambda outputs, labels, num_items_in_batch=None: nn.functional.cross_entropy(  # noqa: E731
                outputs.logits, labels, label_smoothing=0.3
            )
        SmoothTrainer(
            model=model,
            args=args,
            train_dataset=Rows(),
            compute_loss_func=func,
            regularizers=[L2SP()],
        ).train()
        return model.state_dict()

    assert difference(moved(1), moved(4)) < 1e-6
    assert difference(moved(1), weights_after(tmp_path, "plain")) > 1e-6


@pytest.mark.parametrize("later", [False, True])
def test_a_loss_function_may_be_set_on_the_trainer_later(tmp_path, later):
    counts = []

    def loss(outputs, labels, num_items_in_batch=None):
        counts.append(num_items_in_batch)
        return nn.functional.cross_entropy(outputs.logits, labels, reduction="sum") / (
            num_items_in_batch
        )

    trainer = SmoothTrainer(
        model=tiny_model("bert"),
        args=arguments(tmp_path, per_device_train_batch_size=16, gradient_accumulation_steps=2),
        train_dataset=Rows(),
        compute_loss_func=None if later else loss,
        regularizers=[L2SP()],
    )
    trainer.compute_loss_func = loss
    trainer.train()
    assert counts == [16, 16]
    assert "loss_is_scaled_for_ga" not in vars(trainer)


def test_logged_terms_are_means_since_the_last_log(tmp_path, monkeypatch):
    trainer = SmoothTrainer(
        model=tiny_model("bert", dropout=0.1),
        args=arguments(
            tmp_path,
            max_steps=4,
            logging_steps=2,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
        ),
        train_dataset=Rows(),
        regularizers=[R3F(sigma=0.1, weight=1.0)],
    )
    seen = []
    add = TermMeans.add

    def added(means, terms, *weights):
        seen.append(terms["loss/r3f"].item())
        add(means, terms, *weights)

    monkeypatch.setattr(TermMeans, "add", added)
    trainer.train()
    logged = [entry["loss/r3f"] for entry in trainer.state.log_history if "loss/r3f" in entry]
    assert logged == pytest.approx([sum(seen[:4]) / 4, sum(seen[4:]) / 4], rel=1e-5)


def test_a_ramp_may_be_a_fraction_of_the_run(tmp_path):
    trainer = SmoothTrainer(
        model=tiny_model("bert"),
        args=arguments(tmp_path, max_steps=8, logging_steps=1, per_device_train_batch_size=4),
        train_dataset=Rows(),
        regularizers=[L2SP(share=0.3, ramp_start=0.5, ramp_steps=0.25)],
    )
    trainer.train()
    logs = {e["step"]: e for e in trainer.state.log_history if "loss/task" in e}
    assert [step for step in logs if "loss/l2_sp" in logs[step]] == [5, 6, 7, 8]


def made_anew(folder, **changes):
    """A regularized trainer whose model is made by `model_init`."""

    def model_init():
        with torch.random.fork_rng():  # a tiny model sets the seed
            return tiny_model("bert", dropout=0.1)

    return SmoothTrainer(
        model_init=model_init,
        args=arguments(folder, max_steps=3, per_device_train_batch_size=4, **changes),
        train_dataset=Rows(),
        eval_dataset=Rows(),
        regularizers=[LNSR(weight=1.0), SMART(weight=1.0)],
    )


def test_with_model_init_every_training_begins_anew(tmp_path):
    trainer = made_anew(tmp_path)
    given = SmoothTrainer(
        model=tiny_model("bert", dropout=0.1),
        args=arguments(tmp_path, max_steps=3, per_device_train_batch_size=4),
        train_dataset=Rows(),
        regularizers=[LNSR(weight=1.0), SMART(weight=1.0)],
    )
    given.train()
    for _ in range(2):
        trainer.train()
        assert difference(trainer.model.state_dict(), given.model.state_dict()) == 0
        assert trainer.objective.step == 3
    assert "compute_loss" not in vars(trainer)


def test_hyperparameter_search(tmp_path):
    pytest.importorskip("optuna")
    trainer = made_anew(tmp_path)
    best = trainer.hyperparameter_search(
        hp_space=lambda trial: {
            "learning_rate": trial.suggest_categorical("learning_rate", [0.02, 0.01])
        },
        n_trials=2,
        backend="optuna",
        compute_objective=lambda metrics: metrics["eval_loss"],
    )
    single = made_anew(tmp_path, learning_rate=best.hyperparameters["learning_rate"])
    single.train()
    assert single.evaluate()["eval_loss"] == pytest.approx(best.objective, rel=1e-9)
    single = made_anew(tmp_path, learning_rate=best.hyperparameters["learning_rate"])
    single.objective.regularizers.clear()
    single.train()
    assert single.evaluate()["eval_loss"] != pytest.approx(best.objective, rel=1e-6)


def test_a_trainer_that_has_searched_may_be_regularized(tmp_path):
    """A search leaves its last score as `objective`."""
    pytest.importorskip("optuna")
    trainer = Trainer(
        model_init=lambda: tiny_model("bert"),
        args=arguments(tmp_path),
        train_dataset=Rows(),
        eval_dataset=Rows(),
        data_collator=plain_collator,
    )
    trainer.hyperparameter_search(hp_space=lambda trial: {}, n_trials=1, backend="optuna")
    regularize(trainer, LNSR(weight=1.0)).train()
    assert trainer.state.log_history[0]["loss/lnsr"] > 0
    trainer.objective = 0.5
    with pytest.raises(ValueError, match=r"one call\. To begin again, make model and trainer anew"):
        regularize(trainer, LNSR(weight=1.0))


def test_other_searches_are_refused(tmp_path):
    """Ray and W&B give a trial as a mapping."""
    with pytest.raises(ValueError, match='set backend="optuna"'):
        made_anew(tmp_path).train(trial={"learning_rate": 0.1})


def test_evaluation_is_not_regularized(tmp_path):
    trainer = SmoothTrainer(
        model=tiny_model("bert"),
        args=arguments(tmp_path),
        eval_dataset=Rows(),
        regularizers=[L2SP(beta=1e6)],
    )
    plain = Trainer(
        model=tiny_model("bert"),
        args=arguments(tmp_path),
        eval_dataset=Rows(),
        data_collator=plain_collator,
    )
    assert trainer.evaluate()["eval_loss"] == pytest.approx(plain.evaluate()["eval_loss"])


@pytest.mark.parametrize(
    ("methods", "rows"),
    [
        (
            lambda: [LNSR(weight=1.0), L2SP(alpha=1.0), Mixout(p=0.5), R3F(sigma=0.1, weight=1.0)],
            64,
        ),
        (
            lambda: [LNSR(weight=1.0), L2SP(alpha=1.0), Mixout(p=0.5), R3F(sigma=0.1, weight=1.0)],
            24,
        ),
        pytest.param(lambda: [R4F(sigma=0.1, weight=1.0)], 64, marks=pytest.mark.slow),
    ],
    ids=["within an epoch", "between epochs", "r4f"],
)
def test_a_resumed_run_equals_the_uninterrupted_one(tmp_path, methods, rows):
    """And saving changes nothing."""

    def trainer(save_strategy="steps", seed=42):
        args = arguments(
            tmp_path,
            max_steps=6,
            per_device_train_batch_size=8,
            optim="adamw_torch",
            learning_rate=0.01,
            save_strategy=save_strategy,
            save_steps=3,
            seed=seed,
        )
        return SmoothTrainer(
            model=tiny_model("bert", dropout=0.1),
            args=args,
            train_dataset=Rows(rows),
            regularizers=methods(),
        )

    unsaved = trainer("no")
    unsaved.train()
    whole = trainer()
    whole.train()
    assert difference(whole.model.state_dict(), unsaved.model.state_dict()) == 0
    checkpoint = tmp_path / "checkpoint-3"
    assert (checkpoint / STATE_FILE).exists()
    assert set(load_file(checkpoint / "model.safetensors")) == set(tiny_model("bert").state_dict())
    resumed = trainer()
    with torch.no_grad():  # nothing may depend on the weights the model was made with
        for parameter in resumed.model.parameters():
            parameter.add_(0.01)
    resumed.train(resume_from_checkpoint=str(checkpoint))
    assert difference(whole.model.state_dict(), resumed.model.state_dict()) == 0


class BrokenOff(TrainerCallback):
    """Interrupts, once, within the fifth update."""

    interrupts = True

    def on_substep_end(self, args, state, control, **kwargs):
        if self.interrupts and state.global_step == 4:
            self.interrupts = False
            raise KeyboardInterrupt


@pytest.mark.parametrize("ramp_start", [2, pytest.param(0, marks=pytest.mark.slow)])
def test_a_run_that_is_broken_off_resumes_in_the_same_process(tmp_path, ramp_start):
    """From before the term came in, or the norms were those of the update that was left."""

    def trainer(*callbacks):
        args = arguments(
            tmp_path,
            max_steps=6,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            save_strategy="steps",
            save_steps=1,
        )
        return SmoothTrainer(
            model=tiny_model("bert"),
            args=args,
            train_dataset=Rows(),
            callbacks=list(callbacks),
            regularizers=[R3F(sigma=0.1, share=0.3, ramp_start=ramp_start)],
        )

    whole, broken = trainer(), trainer(BrokenOff())
    whole.train()
    with pytest.raises(KeyboardInterrupt):
        broken.train()
    broken.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert difference(whole.model.state_dict(), broken.model.state_dict()) == 0


def test_a_checkpoint_without_method_state_is_refused(tmp_path):
    args = arguments(tmp_path, save_strategy="steps", save_steps=1, max_steps=1)
    Trainer(
        model=tiny_model("bert"), args=args, train_dataset=Rows(), data_collator=plain_collator
    ).train()
    ours = SmoothTrainer(
        model=tiny_model("bert"), args=args, train_dataset=Rows(), regularizers=[LNSR(weight=1.0)]
    )
    with pytest.raises(CheckpointError, match="checkpoint-1 is passed over: it has no manifest"):
        ours.train(resume_from_checkpoint=True)


@pytest.mark.parametrize(
    ("changes", "updates"),
    [
        ({"max_steps": 5, "logging_steps": 100}, 3),  # known within the fourth
        ({"max_steps": 5, "logging_steps": 1}, 3),  # before the log of the third
        ({"max_steps": 5, "save_strategy": "steps", "save_steps": 3}, 3),
        ({"max_steps": 3, "logging_steps": 100}, 3),  # before the training ends
    ],
)
def test_a_loss_that_is_not_finite_stops_training_before_it_is_saved(tmp_path, changes, updates):
    data = Rows()
    trainer = SmoothTrainer(
        model=tiny_model("bert"),
        train_dataset=data,
        regularizers=[LNSR(weight=1.0)],
        args=arguments(tmp_path, per_device_train_batch_size=4, **changes),
    )
    poison = data.ids[9, 0].item()  # in the third batch, and in none before
    assert (data.ids[:8] != poison).all()
    trainer.model.get_input_embeddings().weight.data[poison] = 1e300  # its square is infinite
    with pytest.raises(NonFiniteLoss, match=r"update 3, examples \[108, 109, 110, 111\]"):
        trainer.train()
    assert trainer.state.global_step == updates
    assert not list(tmp_path.iterdir())


def test_an_error_that_follows_a_loss_that_is_not_finite_does_not_hide_it(tmp_path):
    class Failing(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            raise LookupError

    model = tiny_model("bert")
    model.classifier.weight.data[0, 0] = torch.nan
    trainer = SmoothTrainer(
        model=model,
        train_dataset=Rows(),
        regularizers=Plain(),
        args=arguments(tmp_path),
        callbacks=[Failing()],
    )
    with pytest.raises(NonFiniteLoss, match="update 1"):
        trainer.train()


def test_an_optimizer_made_by_the_user_is_hooked_once(tmp_path):
    model = tiny_model("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = SmoothTrainer(
        model=model,
        args=arguments(tmp_path, max_steps=2),
        optimizers=(optimizer, None),
        train_dataset=Rows(),
        regularizers=[CWGNC(max_norm=1e-3)],
    )
    before = {k: v.clone() for k, v in model.state_dict().items()}
    trainer.train()
    trainer.train()
    assert trainer.objective.step == 4
    for name, weight in model.named_parameters():
        assert (weight - before[name]).norm() <= 4 * 0.1 * 1e-3 * (1 + 1e-6)


@pytest.mark.parametrize(
    ("changes", "methods", "message"),
    [
        ({"max_grad_norm": 1.0}, [CWGNC()], "set max_grad_norm=0"),
        ({"torch_compile": True}, [Mixout()], "torch_compile=False"),
        ({"torch_compile_backend": "eager"}, [L2SP()], "torch_compile_backend='eager' is not"),
        ({"torch_compile_mode": "reduce-overhead"}, [LNSR(weight=1.0)], "mode='reduce-overhead'"),
        ({"optim": "galore_adamw_layerwise"}, [CWGNC()], "during the backward pass"),
        ({"auto_find_batch_size": True}, [LNSR(weight=1.0)], "turn it off"),
        ({"label_smoothing_factor": 0.1}, [LabelSmoothing()], "set label_smoothing_factor=0"),
        (
            {
                "activation_checkpointing": True,
                "activation_checkpointing_kwargs": {"use_reentrant": True},
            },
            [LNSR(weight=1.0)],
            "use_reentrant",
        ),
    ],
)
def test_what_is_not_verified_is_refused_with_what_to_change(tmp_path, changes, methods, message):
    with pytest.raises(ValueError, match=message):
        SmoothTrainer(
            model=tiny_model("bert"),
            args=arguments(tmp_path, **changes),
            train_dataset=Rows(),
            regularizers=methods,
        )


def test_16_bit_weights_are_refused_where_they_swallow_perturbations(tmp_path):
    model = tiny_model("bert", dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="bf16=True"):
        SmoothTrainer(model=model, args=arguments(tmp_path), regularizers=[R3F(weight=1.0)])
    SmoothTrainer(model=model, args=arguments(tmp_path), regularizers=[L2SP()])


def test_a_trainer_that_has_trained_is_taken_with_a_warning(tmp_path, caplog):
    """What it has left is where Mixout and L2-SP pull the weights to."""
    trainer = Trainer(
        model=tiny_model("bert"),
        args=arguments(tmp_path, max_steps=2),
        train_dataset=Rows(),
        data_collator=plain_collator,
    )
    trainer.train()
    regularize(trainer, L2SP())
    assert "this trainer has made 2 updates" in caplog.text
    assert "make model and trainer anew" in caplog.text


def test_regularizing_twice_is_refused(tmp_path):
    args = arguments(tmp_path)
    trainer = SmoothTrainer(model=tiny_model("bert"), args=args, regularizers=[LNSR(weight=1.0)])
    with pytest.raises(ValueError, match=r"one call\. To begin again, make model and trainer anew"):
        regularize(trainer, LNSR(weight=1.0))
