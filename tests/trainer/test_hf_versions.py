"""What differs between versions of transformers; all of it holds with each of them."""

import os
import sys
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch.nn import functional as F
from transformers import Trainer, TrainingArguments

from helpers.causal import language_weights_after, tiny_language_model
from helpers.seq2seq import tiny_seq2seq
from helpers.training import Rows, arguments
from smoothtune import L2SP, METHODS, R3F, SmoothTrainer
from smoothtune.nn import hf_versions
from smoothtune.nn.hf_versions import (
    enable_checkpointing,
    installed_names,
    settings_of_one_run,
)
from smoothtune.testing import fixed_draws, tiny_model, with_weight
from smoothtune.trainer.run_record import describe_run
from smoothtune.trainer.sentence_transformers import sentence_transformers_problems

METHODS_TESTED = {
    "plain": {},
    "lnsr": {"reduction": "token_sum"},
    "r3f": {"noise": "normal", "sigma": 0.1},
    "smart": {"lambda_s": 5.0},
    "uegr": {},
}


def mean(outputs, labels, num_items_in_batch=None):
    return F.cross_entropy(outputs.logits, labels)


def normalized(outputs, labels, num_items_in_batch=None):
    return F.cross_entropy(outputs.logits, labels, reduction="sum") / num_items_in_batch


LOSSES = {
    "of the model": {},
    "label smoothing": {"label_smoothing_factor": 0.1},
    "a mean": {"compute_loss_func": mean},
    "normalized": {"compute_loss_func": normalized},
}


def weights_after(folder, method, loss, batches):
    """Weights after three updates of 32 rows with a rate that is large, by SGD."""
    options = dict(LOSSES[loss])
    model, function = tiny_model("bert"), options.pop("compute_loss_func", None)
    cut = {
        "per_device_train_batch_size": 32 // batches,
        "gradient_accumulation_steps": batches,
    }
    with fixed_draws():
        SmoothTrainer(
            model=model,
            args=arguments(folder, max_steps=3, **cut, **options),
            train_dataset=Rows(96),
            compute_loss_func=function,
            regularizers=with_weight(METHODS[method](**METHODS_TESTED[method])),
        ).train()
    return torch.cat([weight.detach().flatten() for weight in model.state_dict().values()])


def methods_and_losses():
    """Plain with every loss, every method with one in turn; the rest are slow tests."""
    for number, method in enumerate(METHODS_TESTED):
        for index, loss in enumerate(LOSSES):
            fast = method == "plain" or index == number % len(LOSSES)
            yield pytest.param(method, loss, marks=() if fast else pytest.mark.slow)


@pytest.mark.parametrize(("method", "loss"), list(methods_and_losses()))
def test_four_batches_of_8_make_the_updates_of_one_of_32(tmp_path, method, loss):
    """Up to 5.19 the Trainer divides by their number only where nothing is normalized."""
    whole, parts = (weights_after(tmp_path, method, loss, batches) for batches in (1, 4))
    start = torch.cat([weight.flatten() for weight in tiny_model("bert").state_dict().values()])
    assert (whole - start).abs().max() > 1e-3
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-6)


@pytest.mark.parametrize("method", ["plain", "lnsr", "r3f"])
def test_a_language_model_which_takes_the_number_of_labels_does_too(tmp_path, method):
    """Four batches of two texts make the updates of one of eight."""
    whole, parts = (
        language_weights_after(
            tmp_path, method, max_steps=2, per_device_train_batch_size=size,
            gradient_accumulation_steps=8 // size,
        )
        for size in (8, 2)
    )  # fmt: skip
    for name in whole:
        torch.testing.assert_close(parts[name], whole[name], rtol=0, atol=1e-6)


@pytest.mark.parametrize(("asked", "steps"), [(0.25, 3), (0.05, 1), (4, 4), (0, 0)])
def test_a_warm_up_below_1_is_a_share_of_all_updates(tmp_path, asked, steps):
    args = arguments(tmp_path, warmup_steps=asked)
    assert args.get_warmup_steps(12) == steps
    trainer = SmoothTrainer(
        model=tiny_model("bert"), args=args, train_dataset=Rows(), regularizers=L2SP()
    )
    assert describe_run(trainer, trainer.objective)["warmup_steps"] == asked


@pytest.mark.parametrize("kwargs", [None, {"use_reentrant": True}, {"use_reentrant": False}])
def test_whether_checkpointing_will_be_reentrant_is_known(tmp_path, kwargs):
    """Before 5.0 it is, unless the arguments say otherwise; a method would fail there late."""
    args = arguments(
        tmp_path, activation_checkpointing=True, activation_checkpointing_kwargs=kwargs
    )
    model = tiny_model("bert")
    if kwargs is None:
        getattr(model, f"{hf_versions._CHECKPOINTING}_enable")()
    else:
        enable_checkpointing(model, **kwargs)
    (function,) = {
        module._gradient_checkpointing_func
        for module in model.modules()
        if hasattr(module, "_gradient_checkpointing_func")
    }
    used = function.keywords["use_reentrant"]
    assert hf_versions.checkpointing_kwargs(args) == {"use_reentrant": used}
    assert hf_versions.checkpoints_activations(args)
    build = lambda: SmoothTrainer(  # noqa: E731
        model=model, args=args, train_dataset=Rows(), regularizers=R3F(weight=1.0)
    )
    if not used:
        build()
        return
    with pytest.raises(ValueError, match="use_reentrant"):
        build()


def test_an_order_of_rows_that_the_installed_version_lacks_is_refused(tmp_path):
    with (
        mock.patch.object(hf_versions, "_SAMPLING_STRATEGY", False),
        pytest.raises(ValueError, match="'batch_rebalance' needs transformers 5.2"),
    ):
        installed_names({"train_sampling_strategy": "batch_rebalance"})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"train_sampling_strategy": "group_by_length"}, {"group_by_length": True}),
        ({"train_sampling_strategy": "random"}, {"group_by_length": False}),
        ({"warmup_steps": 0.25}, {"warmup_ratio": 0.25}),
        ({"warmup_steps": 4.0}, {"warmup_steps": 4}),
        ({"seed": 3}, {"seed": 3}),
    ],
)
def test_an_old_version_is_given_the_names_it_knows(given, expected):
    with (
        mock.patch.object(hf_versions, "_SAMPLING_STRATEGY", False),
        mock.patch.object(hf_versions, "_BEFORE_5", True),
    ):
        assert installed_names(given) == expected


@pytest.mark.parametrize("strategy", ["random", "group_by_length"])
def test_the_order_of_rows_is_read_as_it_was_set(tmp_path, strategy):
    args = TrainingArguments(
        str(tmp_path), **installed_names({"train_sampling_strategy": strategy})
    )
    assert hf_versions.sampling_strategy(args) == strategy


@pytest.mark.parametrize(
    ("make", "shifts"),
    [
        (lambda: tiny_language_model("opt"), True),
        (lambda: tiny_model("bert"), False),
        (lambda: tiny_model("llama"), False),
        (lambda: tiny_seq2seq("t5"), False),
    ],
)
def test_what_shifts_its_labels_is_known_as_the_trainer_knows_it_since_5_10(tmp_path, make, shifts):
    model = make()
    assert hf_versions.loss_shifts_labels(SimpleNamespace(model=model)) == shifts
    trainer = Trainer(model=model, args=arguments(tmp_path))
    assert getattr(trainer, "_loss_shifts_labels", shifts) == shifts


def test_an_old_sentence_transformers_is_refused_with_what_to_change(monkeypatch):
    class SentenceTransformerTrainer:
        model = None

    newest = "sentence_transformers.base.losses.merged_forward"
    monkeypatch.setitem(sys.modules, newest, None)
    problems = sentence_transformers_problems({}, SentenceTransformerTrainer())
    assert problems == ["this trainer needs sentence-transformers 6.2 or newer: upgrade it"]


def test_bfloat16_is_not_passed_on_to_later_runs(tmp_path, monkeypatch):
    """In 4.x the arguments write it into the environment, where the next trainer reads it."""
    monkeypatch.setenv("ACCELERATE_DYNAMO_MODE", "default")
    with settings_of_one_run():
        trainer = Trainer(model=tiny_model("bert"), args=arguments(tmp_path, bf16=True))
        assert trainer.accelerator.mixed_precision == "bf16"
        os.environ["ACCELERATE_MIXED_PRECISION"] = "bf16"
        os.environ["ACCELERATE_DYNAMO_MODE"] = "max-autotune"
    assert os.environ["ACCELERATE_DYNAMO_MODE"] == "default"
    trainer = Trainer(model=tiny_model("bert"), args=arguments(tmp_path))
    assert trainer.accelerator.mixed_precision == "no"
