"""Regularize a plain PyTorch loop."""

import torch
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification

from smoothtune import SMART, Mixout, Objective

torch.manual_seed(0)

# A tiny random model and made-up token ids, so that this runs anywhere in seconds. In their place:
# AutoModelForSequenceClassification.from_pretrained("bert-base-uncased"), and your tokenized data.
model = BertForSequenceClassification(
    BertConfig(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
    )
).train()
labels = torch.randint(0, 2, (256,))
ids = torch.randint(5, 50, (256, 12)) + 45 * labels[:, None]
rows = [{"input_ids": x, "labels": y} for x, y in zip(ids, labels, strict=True)]
loader = DataLoader(rows, batch_size=16, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

epochs = 2
objective = Objective(SMART(), Mixout(p=0.3))
objective.bind(model, optimizer, num_training_steps=epochs * len(loader))
for epoch in range(epochs):
    for batch in loader:
        objective(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    # smart/cos_gradient: how well the perturbation points where the prediction changes most
    terms = {name: round(value.item(), 4) for name, value in objective.terms.items()}
    print(f"epoch {epoch + 1}: {terms}")

objective.detach()  # the model is an ordinary one again: model.save_pretrained(...)
