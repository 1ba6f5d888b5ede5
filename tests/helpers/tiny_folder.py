"""A tiny random model folder and data files for it, made without a download."""

import csv
import json
import random
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    AutoConfig,
    AutoModel,
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2Model,
    PreTrainedTokenizerFast,
)

WORDS = ["good", "bad", "film", "plot", "the", "a", "was", "and", "very", "not"]


def tiny_tokenizer(specials: list[str]) -> Tokenizer:
    vocabulary = {word: index for index, word in enumerate([*specials, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=specials[-1]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def tiny_bert(folder: Path) -> Path:
    tokenizer = tiny_tokenizer(["[PAD]", "[CLS]", "[SEP]", "[UNK]"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        unk_token="[UNK]",
    ).save_pretrained(folder)
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        initializer_range=0.1,  # so that it learns in a few steps
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        BertModel(config).save_pretrained(folder)
    return folder


def tiny_gpt2(folder: Path) -> Path:
    """A decoder whose tokenizer has no pad token."""
    tokenizer = tiny_tokenizer(["<|end|>"])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|end|>",
        padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
    ).save_pretrained(folder)
    config = GPT2Config(
        vocab_size=tokenizer.get_vocab_size(), n_positions=32, n_embd=16, n_layer=2, n_head=2
    )
    GPT2Model(config).save_pretrained(folder)
    return folder


def tiny_data(folder: Path, rows: int = 24) -> Path:
    """CSV files with `text` and `label`, which says whether "good" occurs."""
    folder.mkdir()
    draw = random.Random(0)
    for name in ("train", "validation"):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label"])
            for index in range(rows):
                words = draw.choices(WORDS[2:], k=draw.randint(2, 8))
                words.insert(0, "good" if index % 2 else "bad")
                writer.writerow([" ".join(words), "fine" if index % 2 else "poor"])
    return folder


END = "<|endoftext|>"
_DECODER = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
_GROUPED = _DECODER | {"num_key_value_heads": 1, "head_dim": 8}
DECODERS = {
    "gpt2": {
        "n_embd": 16,
        "n_layer": 2,
        "n_head": 2,
        "n_positions": 64,
        "bos_token_id": 0,
        "eos_token_id": 0,
    },
    "opt": _DECODER | {"ffn_dim": 32, "word_embed_proj_dim": 16, "pad_token_id": 0},
    "llama": _DECODER,
    "qwen2": _GROUPED,
    "qwen3": _GROUPED,
    "mistral": _GROUPED | {"sliding_window": None},
    "gemma2": _GROUPED | {"sliding_window": 64, "pad_token_id": 0},
    "gemma3_text": _GROUPED | {"sliding_window": 64, "pad_token_id": 0},
}
# Gemma 3's text model classifies from transformers 4.57 on
DECODERS = {
    family: settings
    for family, settings in DECODERS.items()
    if CONFIG_MAPPING[family] in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
}


def tiny_decoder(folder: Path, family: str) -> Path:
    """A random decoder whose tokenizer has an end-of-text token and nothing else special."""
    tokenizer = tiny_tokenizer([END])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, model_input_names=["input_ids", "attention_mask"]
    ).save_pretrained(folder)
    config = AutoConfig.for_model(
        family, vocab_size=tokenizer.get_vocab_size(), **DECODERS[family], initializer_range=0.2
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModel.from_config(config).save_pretrained(folder)
    return folder


def tiny_pairs(folder: Path, rows: int = 24) -> Path:
    """JSONL files of RTE's form: `sentence1` entails `sentence2` if both have the same mood."""
    folder.mkdir()
    for name in ("train", "validation"):
        with (folder / f"{name}.jsonl").open("w") as file:
            for index in range(rows):
                mood, other = WORDS[index % 2], WORDS[index // 2 % 2]
                row = {
                    "sentence1": f"the film was {'very ' * (index % 4)}{mood}",
                    "sentence2": f"a plot was {other}",
                    "label": int(mood != other),
                    "idx": index,
                }
                file.write(json.dumps(row) + "\n")
    return folder
