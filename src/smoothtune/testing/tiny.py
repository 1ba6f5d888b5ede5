"""Tiny random models of every architecture, and a batch for them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    DebertaV2Config,
    GPT2Config,
    LlamaConfig,
    ModernBertConfig,
    OPTConfig,
    PretrainedConfig,
    RobertaConfig,
)

PAD, VOCABULARY = 1, 40
COMMON_CONFIG: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 32,
    "pad_token_id": PAD,
}
ARCHITECTURES: dict[str, Callable[[], PretrainedConfig]] = {
    "bert": lambda: BertConfig(**COMMON_CONFIG),
    "roberta": lambda: RobertaConfig(**COMMON_CONFIG),
    "deberta": lambda: DebertaV2Config(
        **COMMON_CONFIG, relative_attention=True, pos_att_type=["p2c", "c2p"], type_vocab_size=0
    ),
    "modernbert": lambda: ModernBertConfig(
        **COMMON_CONFIG, cls_token_id=2, sep_token_id=3, bos_token_id=2, eos_token_id=3
    ),
    "opt": lambda: OPTConfig(**COMMON_CONFIG, ffn_dim=16, word_embed_proj_dim=8),
    "llama": lambda: LlamaConfig(**COMMON_CONFIG),
    "gpt2": lambda: GPT2Config(
        vocab_size=VOCABULARY, n_embd=8, n_layer=2, n_head=2, n_positions=32, pad_token_id=PAD
    ),
}
LEFT_PADDED = {"opt", "llama"}  # the models that are themselves indifferent to left padding
DROPOUT_FIELDS = [
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "dropout",
    "attention_dropout",
    "embedding_dropout",
    "mlp_dropout",
    "classifier_dropout",
    "pooler_dropout",
    "resid_pdrop",
    "embd_pdrop",
    "attn_pdrop",
]


def tiny_model(
    architecture: str,
    *,
    num_labels: int = 3,
    dropout: float = 0.0,
    dtype=torch.float64,
    attention: str | None = None,
) -> nn.Module:
    """A random two-layer classifier (or regressor, num_labels=1) in training mode."""
    config = ARCHITECTURES[architecture]()
    config.num_labels = num_labels
    if attention is not None:
        config._attn_implementation = attention
    return random_model(AutoModelForSequenceClassification.from_config, config, dropout, dtype)


def random_model(
    make: Callable[[PretrainedConfig], nn.Module],
    config: PretrainedConfig,
    dropout: float = 0.0,
    dtype: torch.dtype = torch.float64,
) -> nn.Module:
    """A model of any class with random weights and one dropout rate, in training mode.

    Args:
        make: the class, or `from_config` of an automatic one.
        config: is changed.
        dropout: rate in [0, 1) of all its dropouts.
        dtype: of its weights.
    """
    for name in DROPOUT_FIELDS:
        if hasattr(config, name):
            setattr(config, name, dropout)
    config.use_cache = False
    torch.manual_seed(0)
    model = make(config).to(dtype)
    for parameter in model.parameters():  # the usual 0.02 makes everything nearly constant
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    return model.train()


def tiny_batch(
    *, padding: int = 0, left: bool = False, num_labels: int = 3, rows: slice = slice(None)
) -> dict[str, Tensor]:
    """Four examples of 6, 4, 5 and 3 tokens, padded to 6 + `padding`."""
    lengths = [6, 4, 5, 3]
    generator = torch.Generator().manual_seed(1)
    ids = torch.full((4, 6 + padding), PAD)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        where = slice(-length, None) if left else slice(0, length)
        ids[row, where] = torch.randint(5, VOCABULARY, (length,), generator=generator)
        mask[row, where] = 1
    labels = torch.tensor([0, 2, 1, 0]) if num_labels > 1 else torch.tensor([0.3, -1, 2, 0.5])
    labels = labels if num_labels > 1 else labels.double()
    batch = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    return {name: tensor[rows] for name, tensor in batch.items()}
