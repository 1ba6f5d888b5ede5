"""A network whose diagnostics have closed forms."""

from types import SimpleNamespace

import torch
from torch import nn

WIDTH = 8


class LinearBlock(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, hidden):
        return hidden @ self.weight.T


class LinearNetwork(nn.Module):
    """Every block multiplies every token by its matrix; the first token is classified."""

    def __init__(self, weights, vocabulary=14, num_labels=2):
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.config = SimpleNamespace(
            num_hidden_layers=len(weights), hidden_size=WIDTH, problem_type=None
        )
        self.embedding = nn.Embedding(vocabulary, WIDTH, dtype=torch.float64)
        self.embedding.weight.data.normal_(generator=generator)
        self.layers = nn.ModuleList(LinearBlock(weight) for weight in weights)
        self.head = nn.Linear(WIDTH, num_labels, bias=False, dtype=torch.float64)
        self.head.weight.data.normal_(generator=generator)

    def get_input_embeddings(self):
        return self.embedding

    def forward(self, input_ids, attention_mask=None, token_type_ids=None):
        hidden = self.embedding(input_ids)
        for layer in self.layers:
            hidden = layer(hidden)
        first = attention_mask.argmax(1)
        return {"logits": self.head(hidden[torch.arange(len(hidden)), first])}


def rotation(seed, scale=1.0):
    draws = torch.randn(
        WIDTH, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    return scale * torch.linalg.qr(draws).Q
