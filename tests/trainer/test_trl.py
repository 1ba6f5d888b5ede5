"""TRL's SFTTrainer with regularizers: packing, completions, LoRA."""

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
)

from helpers.tiny_folder import tiny_tokenizer
from smoothtune import L2SP, LNSR, METHODS, R3F, UEGR, LabelSmoothing, regularize
from smoothtune.core.regularizer import LossTerm, TaskLoss
from smoothtune.testing import all_in_float64, fixed_draws, with_weight
from smoothtune.trainer.compatibility import trl_problems

trl = pytest.importorskip("trl", reason="TRL is not installed: pip install 'smoothtune[trl]'")

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning"),  # TRL's own
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
]
STEEP = {"noise_ratio": 0.5, "weight": 1.0}


def tokenizer():
    return PreTrainedTokenizerFast(
        tokenizer_object=tiny_tokenizer(["<|pad|>", "<|end|>"]),
        eos_token="<|end|>",
        pad_token="<|pad|>",
    )


def tiny_llama(dtype=torch.float32, kind=LlamaForCausalLM, **changes):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=12,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        initializer_range=0.2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
        **changes,
    )
    return kind(config).to(dtype)


def conversations():
    """Sixteen prompts and completions of different lengths."""
    return Dataset.from_list(
        [
            {"prompt": "the film was " + "very " * (i % 4), "completion": "good " * (1 + i % 3)}
            for i in range(16)
        ]
    )


def sft_trainer(output_dir, *, model=None, peft_config=None, cls=None, **changes):
    settings = {
        "output_dir": str(output_dir),
        "max_steps": 1,
        "per_device_train_batch_size": 16,
        "max_length": 32,
        "gradient_checkpointing": False,
        "bf16": False,
        "use_cpu": True,
        "report_to": "none",
        "logging_steps": 1,
        "save_strategy": "no",
        "disable_tqdm": True,
        "max_grad_norm": 0,
    }
    return (cls or trl.SFTTrainer)(
        model=model or tiny_llama(),
        args=trl.SFTConfig(**settings | changes),
        train_dataset=conversations(),
        processing_class=tokenizer(),
        peft_config=peft_config,
    )


@pytest.mark.parametrize(
    "name",
    [  # every other one; the fast tests of sentence-transformers have the others
        pytest.param(name, marks=() if number % 2 else pytest.mark.slow)
        for number, name in enumerate(sorted(METHODS))
        if name not in ("cross_holder", "double_backprop")
    ],
)
def test_every_method_logs_its_terms(name, tmp_path):
    trainer = regularize(
        sft_trainer(tmp_path),
        with_weight(METHODS[name]()),
        *([R3F(weight=1.0)] * (name == "plain")),
    )
    trainer.train()
    logs = trainer.state.log_history[0]
    terms = {key for key in logs if key.startswith("loss/")}
    assert logs["loss"] == pytest.approx(sum(logs[key] for key in terms), rel=1e-4)
    method = METHODS[name]
    assert (f"loss/{name}" in terms) == issubclass(method, LossTerm)
    assert ("loss/task" in terms) != issubclass(method, TaskLoss)


def first_terms(tmp_path, **settings):
    """Logged terms of one update over all conversations."""
    trainer = sft_trainer(tmp_path, model=tiny_llama(torch.float64), **settings)
    methods = [
        LNSR(**STEEP),
        R3F(noise="normal", sigma=0.3, weight=1.0),
        with_weight(METHODS["smart"](mu=0.0)),
    ]
    regularize(trainer, *methods)
    with fixed_draws(), all_in_float64():
        trainer.train()
    logs = trainer.state.log_history[0]
    return {key: value for key, value in logs.items() if key.startswith("loss/")}


@pytest.mark.parametrize(
    "settings", [{"packing": True}, {"padding_free": True, "max_length": None}], ids=str
)
def test_packed_conversations_give_the_terms_of_separate_ones(settings, tmp_path):
    apart, packed = first_terms(tmp_path), first_terms(tmp_path, **settings)
    assert set(apart) == {"loss/lnsr", "loss/r3f", "loss/smart", "loss/task"}
    assert min(apart.values()) > 1e-4
    for name, value in apart.items():
        assert packed[name] == pytest.approx(value, rel=1e-5), name


def test_task_loss_is_that_of_an_sft_trainer_without_methods(tmp_path):
    plain = sft_trainer(tmp_path)
    plain.train()
    ours = regularize(sft_trainer(tmp_path), LNSR(weight=1e-12))
    ours.train()
    expected = plain.state.log_history[0]["loss"]
    assert ours.state.log_history[0]["loss/task"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.filterwarnings("ignore:.*return_outputs=True:FutureWarning")  # TRL's own
def test_a_loss_of_a_subclass_stays(tmp_path):
    """TRL runs the model once more for its outputs, so methods that perturb it are refused."""

    class Raised(trl.SFTTrainer):
        def compute_loss(self, *args, **kwargs):
            found = super().compute_loss(*args, **kwargs)
            return (found[0] + 3, found[1]) if isinstance(found, tuple) else found + 3

    plain, ours = (
        sft_trainer(tmp_path),
        regularize(sft_trainer(tmp_path, cls=Raised), L2SP(weight=1e-12)),
    )
    for trainer in (plain, ours):
        trainer.train()
    expected = plain.state.log_history[0]["loss"] + 3
    assert ours.state.log_history[0]["loss/task"] == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ValueError, match="label_smoothing: your loss is another"):
        regularize(sft_trainer(tmp_path, cls=Raised), LabelSmoothing())


def test_unlabeled_text_in_the_updates_of_labeled_text(tmp_path):
    """All conversations in one batch, and all of them once more without labels in the other."""
    plain = sft_trainer(tmp_path)
    ours = regularize(
        sft_trainer(tmp_path, gradient_accumulation_steps=2),
        R3F(noise="normal", sigma=0.3, weight=1.0),
        unlabeled_dataset=plain.train_dataset,
        alternate="batch",
    )
    plain.train()
    ours.train()
    expected, logs = plain.state.log_history[0]["loss"], ours.state.log_history[0]
    assert logs["loss/task"] == pytest.approx(expected, rel=1e-5)
    assert logs["loss/r3f"] > 1e-3
    assert logs["loss"] == pytest.approx(logs["loss/task"] + logs["loss/r3f"], rel=1e-5)


def test_unlabeled_text_that_is_not_tokenized_is_told(tmp_path):
    trainer = sft_trainer(tmp_path, gradient_accumulation_steps=2)
    with pytest.raises(ValueError, match="unlabeled_dataset has no input_ids, which train_dataset"):
        regularize(trainer, R3F(weight=1.0), unlabeled_dataset=conversations())


def test_only_completions_are_labels(tmp_path):
    trainer = regularize(sft_trainer(tmp_path), R3F(weight=1.0))
    batch = next(iter(trainer.get_train_dataloader()))
    given = trainer._binding.task.prepare(batch, None).batch
    prompts = given["attention_mask"].sum() - (given["labels"] != -100).sum()
    assert prompts == sum(3 + i % 4 for i in range(16))


@pytest.mark.parametrize("checkpointing", [False, True])
def test_lora_through_peft_config(checkpointing, tmp_path):
    lora = LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj", "v_proj"])
    trainer = sft_trainer(
        tmp_path, peft_config=lora, gradient_checkpointing=checkpointing, max_steps=2
    )
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    regularize(trainer, LNSR(**STEEP), L2SP()).train()
    moved = {
        name for name, p in trainer.model.named_parameters() if not torch.equal(p, before[name])
    }
    assert moved
    assert all("lora" in name for name in moved)
    assert trainer.state.log_history[0]["loss/lnsr"] > 0


def test_evaluation_is_trls_own(tmp_path):
    trainer = sft_trainer(tmp_path)
    trainer.eval_dataset = trainer.train_dataset
    expected = trainer.evaluate()
    found = regularize(trainer, LNSR(weight=1.0)).evaluate()
    for name in ("eval_loss", "eval_mean_token_accuracy"):
        assert found[name] == pytest.approx(expected[name])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"packing": True, "packing_strategy": "wrapped"}, "attend to one another"),
        ({"loss_type": "dft"}, "use 'nll'"),
    ],
)
def test_what_is_not_verified_is_refused(settings, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        regularize(sft_trainer(tmp_path, **settings), LNSR(weight=1.0))


def test_checkpointing_is_refused_where_methods_change_dropout(tmp_path):
    with pytest.raises(ValueError, match="turn checkpointing off"):
        regularize(sft_trainer(tmp_path, gradient_checkpointing=True), UEGR())


def test_other_trainers_of_trl_are_refused():
    kind = type("DPOTrainer", (), {"__module__": "trl.trainer.dpo_trainer", "args": None})
    assert "DPOTrainer runs the model several times" in trl_problems(kind())[0]
    assert trl_problems(object.__new__(type("Mine", (), {"args": None}))) == []


def reward_trainer(folder, dtype=torch.float32, **changes):
    pairs = [
        {"chosen": "the film was " + "very " * (i % 3) + "good", "rejected": "the film was bad"}
        for i in range(8)
    ]
    settings = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 4,
        "max_steps": 2,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "disable_tqdm": True,
    }
    return trl.RewardTrainer(
        model=tiny_llama(dtype, LlamaForSequenceClassification, num_labels=1),
        args=trl.RewardConfig(**settings | changes),
        train_dataset=Dataset.from_list(pairs),
        processing_class=tokenizer(),
    )


@pytest.mark.filterwarnings("ignore")
def test_rewards_must_not_move_with_noise(tmp_path):
    """R3F adds the mean squared difference of the rewards, chosen and rejected ones alike."""
    trainer = regularize(reward_trainer(tmp_path), R3F(sigma=0.5, weight=2.0))
    model, batch = trainer.model, next(iter(trainer.get_train_dataloader()))
    trainer.current_gradient_accumulation_steps = 1  # train() would set it
    found, original = [], type(model).forward

    def forward(self, *args, **kwargs):
        found.append(original(self, *args, **kwargs))
        return found[-1]

    with pytest.MonkeyPatch.context() as patch, fixed_draws():
        patch.setattr(type(model), "forward", forward)
        loss = trainer.compute_loss(model.train(), dict(batch))
    clean, noisy = (each.logits[:, 0] for each in found)
    chosen, rejected = clean.chunk(2)
    expected = torch.nn.functional.softplus(rejected - chosen).mean()
    expected = expected + 2 * (clean - noisy).square().mean()
    torch.testing.assert_close(loss, expected)
    assert (clean - noisy).abs().max() > 0


@pytest.mark.filterwarnings("ignore")
def test_rewards_are_not_compared_on_a_part_of_the_batch(tmp_path):
    trainer = regularize(reward_trainer(tmp_path), R3F(rows=0.5, weight=1.0))
    with pytest.raises(ValueError, match="rows below 1 does not work with RewardTrainer"):
        trainer.train()


@pytest.mark.filterwarnings("ignore")
def test_rewards_have_no_labels_to_smooth(tmp_path):
    with pytest.raises(ValueError, match="label_smoothing: your loss is another"):
        regularize(reward_trainer(tmp_path), LabelSmoothing())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(METHODS) - {"label_smoothing"}))
def test_every_method_trains_a_reward_model(name, tmp_path):
    changes = {"max_grad_norm": 0} if METHODS[name].declared.clips_gradients else {}
    trainer = regularize(reward_trainer(tmp_path, **changes), METHODS[name]())
    before = trainer.model.score.weight.detach().clone()
    trainer.train()
    assert all(entry["loss"] > 0 for entry in trainer.state.log_history[:2])
    assert not torch.equal(trainer.model.score.weight, before)


@pytest.mark.filterwarnings("ignore")
def test_reward_metrics_are_those_of_the_clean_pass(tmp_path):
    plain, weightless = reward_trainer(tmp_path / "a"), reward_trainer(tmp_path / "b")
    plain.train()
    regularize(weightless, R3F(weight=1e-12)).train()
    for name in ("num_tokens", "mean_reward", "accuracy", "margin"):
        pairs = zip(plain.state.log_history[:2], weightless.state.log_history[:2], strict=True)
        for one, other in pairs:
            assert other[name] == pytest.approx(one[name], rel=1e-6)
