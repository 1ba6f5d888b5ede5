"""Regularize a Trainer that you have already: one changed line."""

import tempfile

import torch
from datasets import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from smoothtune import L2SP, LNSR, regularize

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
)
labels = torch.randint(0, 2, (256,))
ids = torch.randint(5, 50, (256, 12)) + 45 * labels[:, None]
data = Dataset.from_dict({"input_ids": ids.tolist(), "labels": labels.tolist()})

with tempfile.TemporaryDirectory() as folder:
    args = TrainingArguments(
        folder,
        num_train_epochs=2,
        learning_rate=1e-3,
        per_device_train_batch_size=16,
        logging_steps=16,
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(model=model, args=args, train_dataset=data, eval_dataset=data)

    trainer = regularize(trainer, LNSR(noise_ratio=0.1), L2SP(alpha=1e-3))  # the changed line

    trainer.train()  # logs loss, loss/task, loss/lnsr, loss/l2_sp and lnsr/delta_ratio
    print(trainer.evaluate())  # the evaluation is not regularized
