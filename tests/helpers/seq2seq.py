"""Tiny encoder-decoders, and batches for them."""

import torch
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    BartConfig,
    MBartConfig,
    MT5Config,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
)

from helpers.versions import trainer_arguments
from smoothtune import METHODS, regularize
from smoothtune.testing import PAD, VOCABULARY, fixed_draws, tiny_batch, with_weight
from smoothtune.testing.tiny import random_model

EOS = 3
TOKENS = {"pad_token_id": PAD, "eos_token_id": EOS, "decoder_start_token_id": 2}
BART = {
    "vocab_size": VOCABULARY,
    "d_model": 8,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "max_position_embeddings": 32,
    "scale_embedding": True,
    "forced_eos_token_id": None,
    "bos_token_id": 2,
} | TOKENS
T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 8,
    "d_kv": 4,
    "d_ff": 16,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 2,
    "relative_attention_num_buckets": 4,
    "relative_attention_max_distance": 8,
} | TOKENS
CONFIGS = {
    "t5": lambda: T5Config(**T5),
    "bart": lambda: BartConfig(**BART),
    "mbart": lambda: MBartConfig(**BART),
    "mt5": lambda: MT5Config(**T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
}
SEQ2SEQ = ["t5", "bart", "mbart"]


def tiny_seq2seq(architecture, *, dropout=0.0, dtype=torch.float64, cls=None, **changes):
    """A random encoder-decoder of two blocks on each side, a language model, in training mode."""
    config = CONFIGS[architecture]()
    for name, value in changes.items():
        setattr(config, name, value)
    if "t5" in architecture:
        config.dropout_rate = dropout
    return random_model(cls or AutoModelForSeq2SeqLM.from_config, config, dropout, dtype)


def tiny_seq2seq_classifier(architecture, *, dropout=0.0):
    """The same with a head for classes, which reads the decoder's end-of-text token."""
    config = CONFIGS[architecture]()
    config.num_labels = 3
    if "t5" in architecture:
        config.dropout_rate = dropout
    return random_model(AutoModelForSequenceClassification.from_config, config, dropout)


def classifier_batch(**changes):
    """`tiny_batch` with one end-of-text token in every row, the last."""
    batch = tiny_batch(**changes)
    last = batch["attention_mask"].sum(1) - 1
    batch["input_ids"][torch.arange(len(last)), last] = EOS
    return batch


def seq2seq_batch(*, padding=0, left=False, rows=slice(None), num_items=True, pad_texts=True):
    """Four texts of 6, 4, 5 and 3 tokens, to be followed by 4, 2, 3 and 1 label tokens.

    `num_items_in_batch` is given, so that parts of the batch weigh by their label tokens. Without
    `pad_texts`, labels alone get more padding.
    """
    batch = tiny_batch(padding=padding if pad_texts else 0, left=left)
    generator = torch.Generator().manual_seed(2)
    labels = torch.full((4, 4 + padding), -100)
    for row, length in enumerate([4, 2, 3, 1]):
        labels[row, :length] = torch.randint(5, VOCABULARY, (length,), generator=generator)
    batch = {key: value[rows] for key, value in (batch | {"labels": labels}).items()}
    if num_items:
        batch["num_items_in_batch"] = torch.tensor(10.0 * len(batch["labels"]) / 4)
    return batch


SEQ2SEQ_TESTED = {
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


def seq2seq_trainer(output_dir, method, *, architecture="t5", dropout=0.0, dtype=None, **changes):
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
        args=trainer_arguments(Seq2SeqTrainingArguments, **settings | changes),
        train_dataset=Pairs(),
        eval_dataset=Pairs(3),
    )
    return regularize(trainer, with_weight(METHODS[method](**SEQ2SEQ_TESTED[method])))


def seq2seq_weights_after(output_dir, method, **changes):
    """Weights by name after two updates of a tiny T5, eight texts each."""
    with fixed_draws():
        trainer = seq2seq_trainer(output_dir, method, **changes)
        trainer.train()
    trainer.objective.detach()
    return {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}
