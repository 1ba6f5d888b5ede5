"""Tiny causal language models, and batches whose prompts are no labels."""

import torch
from transformers import AutoModelForCausalLM

from helpers.training import Rows, arguments
from smoothtune import METHODS, SmoothTrainer
from smoothtune.models.lora import LoraSettings, add_lora
from smoothtune.testing import (
    ARCHITECTURES,
    VOCABULARY,
    fixed_draws,
    tiny_batch,
    tiny_model,
    with_weight,
)
from smoothtune.testing.tiny import random_model

LANGUAGE_MODELS = ["llama", "opt", "gpt2"]


def tiny_language_model(architecture, *, dropout=0.0, dtype=torch.float64, tied=None):
    """A random two-layer causal language model in training mode."""
    config = ARCHITECTURES[architecture]()
    if tied is not None:
        config.tie_word_embeddings = tied
    return random_model(AutoModelForCausalLM.from_config, config, dropout, dtype)


def language_batch(*, rows=slice(None), **changes):
    """Four texts of 6, 4, 5 and 3 tokens; 4, 2, 3 and 1 of them are labels.

    `num_items_in_batch` is given, so that parts of the batch weigh by their label tokens.
    """
    batch = tiny_batch(**changes)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    for row, first in zip(labels, batch["attention_mask"].argmax(1).tolist(), strict=True):
        row[first : first + 2] = -100
    batch = {key: value[rows] for key, value in (batch | {"labels": labels}).items()}
    return batch | {"num_items_in_batch": torch.tensor(10.0 * len(batch["labels"]) / 4)}


LANGUAGE_TESTED = {  # one method of each kind, name -> fields
    "plain": {},
    "lnsr": {"reduction": "token_sum"},
    "r3f": {"noise": "normal", "sigma": 0.1},
    "smart": {"lambda_s": 5.0},
    "jacobian": {"estimator": "projected", "probe": "rademacher"},
    "freelb": {},
    "mixout": {},
    "cwgnc": {"max_norm": 0.02},
    "uegr": {},
}
NARROW_TESTED = ["lnsr", "r3f", "smart"]  # those whose passes are in float32


class Texts(torch.utils.data.Dataset):
    """Random texts of one length, of which different numbers of tokens are labels."""

    def __init__(self, count=8):
        generator = torch.Generator().manual_seed(0)
        self.ids = torch.randint(5, VOCABULARY, (count, 6), generator=generator)

    @staticmethod
    def label_tokens(count):
        """Label tokens of the first texts."""
        return sum(5 - i % 5 for i in range(count))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        labels = self.ids[i].clone()
        labels[: 1 + i % 5] = -100
        return {
            "input_ids": self.ids[i],
            "attention_mask": torch.ones_like(labels),
            "labels": labels,
            "example_id": torch.tensor(i),
        }


def language_weights_after(output_dir, method, **changes):
    """Weights by name after two updates of a tiny OPT in the Trainer, eight texts each."""
    return _weights_after(tiny_language_model("opt"), Texts(), output_dir, method, **changes)


def lora_weights_after(output_dir, method, **changes):
    """The same of the adapters and the head of a tiny Llama classifier with LoRA."""
    return _weights_after(tiny_lora(), Rows(8), output_dir, method, **changes)


def narrow_weights_after(output_dir, method, **changes):
    """The same with adapters in float32 on frozen weights in bfloat16."""
    model = tiny_lora().float()
    for weight in model.parameters():
        if not weight.requires_grad:
            weight.data = weight.data.bfloat16()
    return _weights_after(model, Rows(8), output_dir, method, **changes)


def tiny_lora():
    """A tiny Llama classifier with LoRA whose adapters do something."""
    settings = LoraSettings(r=2, target_modules=["q_proj", "v_proj"])
    model = add_lora(tiny_model("llama"), settings, "SEQ_CLS", ["score.weight"], seed=0)
    model = model.double().train()
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.copy_(0.1 * torch.randn_like(parameter))
    return model


def _weights_after(model, rows, output_dir, method, **changes):
    settings = {"per_device_train_batch_size": 8, "max_steps": 2} | changes
    with fixed_draws():
        trainer = SmoothTrainer(
            model=model,
            args=arguments(output_dir, **settings),
            train_dataset=rows,
            regularizers=[with_weight(METHODS[method](**LANGUAGE_TESTED[method]))],
        )
        trainer.train()
        trainer.objective.detach()
    return {
        name: weight.detach().clone()
        for name, weight in model.named_parameters()
        if weight.requires_grad
    }
