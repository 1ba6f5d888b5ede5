"""Numbers that public implementations give, and the tiny models they were recorded on.

`conformance.json` names for every case the repository and commit, the random draws that were fed
and the loss and gradients that came back. The draws are fed to the library instead of sharing a
generator.
"""

import json
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification
from transformers.modeling_outputs import SequenceClassifierOutput

from smoothtune.nn import rng

RECORDED = json.loads((Path(__file__).parent / "conformance.json").read_text())
CASES = RECORDED["cases"]


class Tiny(nn.Module):
    """LayerNorm(E[ids]) -> tanh -> masked mean -> logits; cross entropy, or MSE for one label."""

    def __init__(self, num_labels: int = 3):
        super().__init__()
        self.embeddings = nn.Module()
        self.embeddings.word_embeddings = nn.Embedding(11, 6)
        self.embeddings.LayerNorm = nn.LayerNorm(6, eps=1e-12)
        self.fc1, self.fc2 = nn.Linear(6, 5), nn.Linear(5, num_labels)
        stored = RECORDED["tiny_C1_params" if num_labels == 1 else "tiny_params"]
        self.load_state_dict(
            {name: _tensor(entry["values"], entry["shape"]) for name, entry in stored.items()}
        )

    def get_input_embeddings(self):
        return self.embeddings.word_embeddings

    def forward(self, input_ids, attention_mask, labels=None):
        x = self.embeddings.LayerNorm(self.embeddings.word_embeddings(input_ids))
        mask = attention_mask[..., None].to(x.dtype)
        pooled = (torch.tanh(self.fc1(x)) * mask).sum(1) / mask.sum(1)
        logits = self.fc2(pooled)
        loss = None
        if labels is not None and logits.shape[-1] == 1:
            loss = nn.functional.mse_loss(logits.squeeze(-1), labels)
        elif labels is not None:
            loss = nn.functional.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)


def recorded_bert():
    """BertForSequenceClassification with the recorded deterministic weights, in training mode."""
    config = BertConfig(**RECORDED["tinybert_config"], attn_implementation="eager")
    model = BertForSequenceClassification(config).train()
    weights = dict(model.named_parameters())
    for i, name in enumerate(RECORDED["tinybert_param_names"]):
        k = torch.arange(weights[name].numel(), dtype=torch.float64).view_as(weights[name])
        wave = torch.sin(0.7 * k + 1.3 * (i + 1))
        norm_weight = name.endswith("LayerNorm.weight")
        weights[name].data.copy_(1 + 0.1 * wave if norm_weight else 0.3 * wave)
    return model


def batch(*, regression: bool = False) -> dict[str, torch.Tensor]:
    """The inputs every recorded model was given."""
    inputs = RECORDED["inputs"]
    labels = inputs["regression_labels" if regression else "labels"]
    return {
        "input_ids": torch.tensor(inputs["ids"]),
        "attention_mask": torch.tensor(inputs["mask"]),
        "labels": torch.tensor(labels),
    }


def draws(case: str) -> list[torch.Tensor]:
    """The recorded random draws of a case, in order."""
    return [_tensor(draw["values"], draw["shape"]) for draw in CASES[case]["draws"]]


@contextmanager
def fed(*tensors: torch.Tensor):
    """Give these tensors, in order, to whatever the library draws next."""
    queue = iter(tensors)

    def take(*args):
        return next(queue)

    with (
        mock.patch.object(rng, "normal_like", take),
        mock.patch.object(rng, "uniform_like", take),
        mock.patch.object(rng, "keep_mask", take),
    ):
        yield


def assert_conforms(case: str, loss: torch.Tensor, model: nn.Module) -> None:
    """Loss and parameter gradients (from `.grad`) equal the recorded ones within the tolerance."""
    expected = CASES[case]["loss"]
    assert abs(loss.item() - expected) <= 1e-4 * abs(expected) + 1e-7
    for name, parameter in model.named_parameters():
        if name not in CASES[case]["grads"]:
            continue
        wanted = torch.tensor(CASES[case]["grads"][name])
        found = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        tolerance = 2e-5 + 1e-4 * wanted.abs().max().item()
        torch.testing.assert_close(found.flatten(), wanted, rtol=0, atol=tolerance, msg=name)


def _tensor(values, shape) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32).view(shape)
