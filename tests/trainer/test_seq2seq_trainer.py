"""Seq2SeqTrainer: the step of an update however it is cut, generation, saved folders, resuming."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, Seq2SeqTrainer

from helpers.seq2seq import (
    SEQ2SEQ_TESTED,
    Pairs,
    seq2seq_trainer,
    seq2seq_weights_after,
    tiny_seq2seq,
)


@pytest.mark.parametrize(
    ("method", "architecture"),
    [
        pytest.param(method, model, marks=() if fast else pytest.mark.slow)
        for method in SEQ2SEQ_TESTED
        for model in ("t5", "bart")
        for fast in [(method, model) in {("r3f", "t5"), ("mixout", "bart")}]
    ],
)
def test_accumulation_is_exact_although_answers_differ_in_length(method, architecture, tmp_path):
    whole, parts = (
        seq2seq_weights_after(
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
        seq2seq_weights_after(
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
    trainer = seq2seq_trainer(tmp_path, "plain", **changes)
    batch = {k: torch.stack([row[k] for row in Pairs()]) for k in Pairs()[0]}
    batch["decoder_input_ids"] = trainer.model.prepare_decoder_input_ids_from_labels(
        batch["labels"]
    )
    own = Seq2SeqTrainer.compute_loss(trainer, trainer.model, dict(batch))
    ours = trainer.compute_loss(trainer.model.train(), dict(batch))
    torch.testing.assert_close(ours, own, rtol=1e-6, atol=0)


def test_one_batch_gives_the_step_of_plain_transformers(tmp_path):
    plain = seq2seq_trainer(tmp_path, "plain")
    ours = seq2seq_weights_after(tmp_path, "plain")
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

    trainer = seq2seq_trainer(
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
    whole = seq2seq_trainer(tmp_path / "whole", method, **changes)
    whole.train()
    resumed = seq2seq_trainer(tmp_path / "whole", method, **changes)
    resumed.train(resume_from_checkpoint=str(Path(tmp_path, "whole", "checkpoint-2")))
    for (name, weight), other in zip(
        resumed.model.named_parameters(), whole.model.parameters(), strict=True
    ):
        torch.testing.assert_close(weight, other, rtol=0, atol=1e-12, msg=name)
