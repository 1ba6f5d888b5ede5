"""Regularize sentence-transformers' trainer: embeddings must not move when the input is noisy."""

import tempfile
from pathlib import Path

import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from smoothtune import LNSR, R3F, regularize

torch.manual_seed(0)


def tiny_bert(folder: Path) -> str:
    """A random model and tokenizer, so that this runs anywhere in seconds."""
    words = ["[PAD]", "[UNK]", *(f"word{i}" for i in range(60))]
    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]"
    ).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
    )
    BertModel(config).save_pretrained(folder)
    return str(folder)


with tempfile.TemporaryDirectory() as folder:
    # In its place: SentenceTransformer("sentence-transformers/all-MiniLM-L6-v2").
    words = Transformer(tiny_bert(Path(folder) / "bert"))
    model = SentenceTransformer(modules=[words, Pooling(32)], device="cpu")
    data = Dataset.from_dict(
        {
            "anchor": [f"word{i} word{i + 1}" for i in range(48)],
            "positive": [f"word{i + 1} word{i} word{i}" for i in range(48)],
        }
    )
    trainer = SentenceTransformerTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(
            folder,
            num_train_epochs=2,
            learning_rate=1e-3,
            per_device_train_batch_size=8,
            logging_steps=6,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=data,
        loss=MultipleNegativesRankingLoss(model),
    )

    # The changed line. LNSR looks at the hidden states, R3F at the squared distance of embeddings.
    trainer = regularize(trainer, LNSR(noise_ratio=0.1), R3F(sigma=1e-2, dropout="shared"))

    trainer.train()  # logs loss, loss/task, loss/lnsr, loss/r3f and lnsr/delta_ratio
