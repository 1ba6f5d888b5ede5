"""Regularize models that are no transformers: an LSTM, a TextCNN and a small Transformer."""

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smoothtune import LNSR, R3F, UEGR, Objective

VOCABULARY, WIDTH, CLASSES = 50, 16, 2


def outputs(logits: Tensor, labels: Tensor | None) -> dict[str, Tensor]:
    """What a model has to return: `logits`, and with labels a mean `loss`."""
    found = {"logits": logits}
    return found if labels is None else found | {"loss": F.cross_entropy(logits, labels)}


class LSTM(nn.Module):
    """The state after the last real token. Its one nn.Embedding is what is perturbed."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.dropout = nn.Dropout(0.1)
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.classifier = nn.Linear(WIDTH, CLASSES)

    def forward(self, input_ids, attention_mask, labels=None):
        states, _ = self.lstm(self.dropout(self.words(input_ids)))
        last = attention_mask.sum(1) - 1
        return outputs(self.classifier(states[torch.arange(len(last)), last]), labels)


class TextCNN(nn.Module):
    """The strongest answer of filters over two and three tokens."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.filters = nn.ModuleList([nn.Conv1d(WIDTH, 8, size, padding=1) for size in (2, 3)])
        self.dropout = nn.Dropout(0.1)
        self.classifier = nn.Linear(16, CLASSES)

    def forward(self, input_ids, attention_mask, labels=None):
        x = (self.words(input_ids) * attention_mask[..., None]).transpose(1, 2)
        answers = [F.relu(each(x)).amax(-1) for each in self.filters]
        return outputs(self.classifier(self.dropout(torch.cat(answers, -1))), labels)


class Transformer(nn.Module):
    """Two blocks, which methods on hidden states find by the number of them in `config`."""

    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(num_hidden_layers=2, hidden_size=WIDTH)
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(
            [nn.TransformerEncoderLayer(WIDTH, 2, 32, 0.1, batch_first=True) for _ in range(2)]
        )
        self.classifier = nn.Linear(WIDTH, CLASSES)

    def forward(self, input_ids, attention_mask, labels=None):
        x = self.words(input_ids)
        for block in self.blocks:
            x = block(x, src_key_padding_mask=attention_mask == 0)
        return outputs(self.classifier(x[:, 0]), labels)


def batches(count: int):
    """Made-up texts whose label shows in their tokens."""
    for _ in range(count):
        labels = torch.randint(0, CLASSES, (16,))
        ids = torch.randint(1, 25, (16, 8)) + 24 * labels[:, None]
        mask = torch.arange(8) < torch.randint(4, 9, (16, 1))
        yield {"input_ids": ids * mask, "attention_mask": mask.long(), "labels": labels}


if __name__ == "__main__":
    torch.manual_seed(0)
    # R3F and UEGR need the embeddings and the logits alone, LNSR the blocks.
    for model, methods in [
        (LSTM(), [R3F(sigma=0.01)]),
        (TextCNN(), [UEGR(keep=1.0)]),
        (Transformer(), [LNSR(noise_ratio=0.1)]),
    ]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        objective = Objective(*methods).bind(model.train(), optimizer, num_training_steps=30)
        for batch in batches(30):
            objective(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        terms = {name: round(value.item(), 4) for name, value in objective.terms.items()}
        print(type(model).__name__, terms)
        objective.detach()
