"""Seq2SeqTrainer: the step of an update however it is cut, generation, saved folders, resuming."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, Seq2SeqTrainer, Seq2SeqTrainingArguments

from helpers.seq2seq import tiny_seq2seq
from smoothtune import METHODS, regularize
from smoothtune.testing import VOCABULARY, fixed_draws, with_weight

METHODS_TESTED = {
    "plain": {},
    "r3f": {"noise": "normal", "sigma": 0.1, "side": "both"},
    "freelb": {},
    "lnsr": {},
    "mixout": {},
}


class Pairs(torch.utils.data.Dataset):
    """Random texts of one length with answers of 1 to 5 tokens."""

    def __init__(self, count=8):
        generator = torch.Generator().manual_seed(0)
        self.ids = torch.randint(5, VOCABULARY, (count, 6), generator=generator)
        self.answers = torch.randint(5, VOCABULARY, (count, 5), generator=generator)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        labels = self.answers[i].clone()
        labels[1 + i % 5 :] = -100
        ids = self.ids[i]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def trainer_of(output_dir, method, *, architecture="t5", dropout=0.0, dtype=None, **changes):
    """A regularized Seq2SeqTrainer of a tiny model, eight texts an update."""
    settings = {
        "output_dir": str(output_dir),
        "max_steps": 2,
        "per_device_train_batch_size": 8,
        "learning_rate": 0.1,
        "optim": "sgd",
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0,
        "train_sampling_strategy": "sequential",
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_strategy": "no",
    }
    trainer = Seq2SeqTrainer(
        model=tiny_seq2seq(architecture, dropout=dropout, dtype=dtype or torch.float64),
        args=Seq2SeqTrainingArguments(**settings | changes),
        train_dataset=Pairs(),
        eval_dataset=Pairs(3),
    )
    return regularize(trainer, with_weight(METHODS[method](**METHODS_TESTED[method])))


def weights_after(output_dir, method, **changes):
    with fixed_draws():
        trainer = trainer_of(output_dir, method, **changes)
        trainer.train()
    return {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}


@pytest.mark.parametrize("method", METHODS_TESTED)
@pytest.mark.parametrize("architecture", ["t5", pytest.param("bart", marks=pytest.mark.slow)])
def test_accumulation_is_exact_although_answers_differ_in_length(method, architecture, tmp_path):
    whole, parts = (
        weights_after(
            tmp_path,
            method,
            architecture=architecture,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=8 // size,
        )
        for size in (8, 2)
    )
    start = dict(tiny_seq2seq(architecture).named_parameters())
    assert any(not torch.equal(whole[name], start[name]) for name in whole)
    for name, weight in whole.items():
        torch.testing.assert_close(parts[name], weight, rtol=0, atol=1e-7, msg=name)


def test_label_smoothing_of_the_trainer_is_cut_as_exactly(tmp_path):
    """Its loss is transformers' own on one batch, and a term weighs by label tokens beside it."""
    changes = {"label_smoothing_factor": 0.2}
    whole, parts = (
        weights_after(
            tmp_path,
            "r3f",
            per_device_train_batch_size=size,
            gradient_accumulation_steps=8 // size,
            **changes,
        )
        for size in (8, 2)
    )
    for name, weight in whole.items():
        torch.testing.assert_close(parts[name], weight, rtol=0, atol=1e-7, msg=name)
    trainer = trainer_of(tmp_path, "plain", **changes)
    batch = {k: torch.stack([row[k] for row in Pairs()]) for k in Pairs()[0]}
    batch["decoder_input_ids"] = trainer.model.prepare_decoder_input_ids_from_labels(
        batch["labels"]
    )
    own = Seq2SeqTrainer.compute_loss(trainer, trainer.model, dict(batch))
    ours = trainer.compute_loss(trainer.model.train(), dict(batch))
    torch.testing.assert_close(ours, own, rtol=1e-6, atol=0)


def test_one_batch_gives_the_step_of_plain_transformers(tmp_path):
    plain = trainer_of(tmp_path, "plain")
    ours = weights_after(tmp_path, "plain")
    untouched = Seq2SeqTrainer(plain.model, plain.args, train_dataset=Pairs())
    plain.objective.detach()
    untouched.train()
    for name, weight in untouched.model.named_parameters():
        torch.testing.assert_close(ours[name], weight, rtol=0, atol=1e-7, msg=name)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_evaluation_generates_from_clean_embeddings(smoothing, tmp_path):
    """While methods are attached, evaluation is that of the saved folder in plain transformers."""
    seen = []

    def keep(found):
        seen.append(found.predictions)
        return {}

    trainer = trainer_of(
        tmp_path,
        "r3f",
        architecture="bart",
        dropout=0.1,
        dtype=torch.float32,
        predict_with_generate=True,
        generation_max_length=6,
        generation_num_beams=2,
        eval_strategy="steps",
        eval_steps=2,
        label_smoothing_factor=smoothing,
    )
    trainer.compute_metrics = keep
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "saved").eval()
    rows = [Pairs(3)[i] for i in range(3)]
    batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    found = loaded.generate(
        input_ids=batch["input_ids"],
        attention_mask=batch["attention_mask"],
        max_length=6,
        num_beams=2,
    )
    expected = np.full_like(seen[-1], loaded.config.pad_token_id)
    expected[:, : found.shape[1]] = found.numpy()
    assert (seen[-1] == expected).all()
    if not smoothing:
        loss = trainer.evaluate()["eval_loss"]
        assert loss == pytest.approx(loaded(**batch).loss.item(), rel=1e-5)


@pytest.mark.parametrize("method", ["r3f", "mixout"])
def test_a_resumed_run_goes_on_as_the_uninterrupted_one(method, tmp_path):
    changes = {"architecture": "mbart", "dropout": 0.2, "max_steps": 4, "save_strategy": "steps"}
    changes |= {"save_steps": 2, "per_device_train_batch_size": 4}
    whole = trainer_of(tmp_path / "whole", method, **changes)
    whole.train()
    resumed = trainer_of(tmp_path / "whole", method, **changes)
    resumed.train(resume_from_checkpoint=str(Path(tmp_path, "whole", "checkpoint-2")))
    for (name, weight), other in zip(
        resumed.model.named_parameters(), whole.model.parameters(), strict=True
    ):
        torch.testing.assert_close(weight, other, rtol=0, atol=1e-12, msg=name)
