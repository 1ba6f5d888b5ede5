"""Train on few labeled and many unlabeled examples: the dual mode of JacHess."""

import tempfile

import torch
from datasets import Dataset
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

from smoothtune import JacHess, SmoothTrainer

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
labeled = Dataset.from_dict({"input_ids": ids[:64].tolist(), "labels": labels[:64].tolist()})
unlabeled = Dataset.from_dict({"input_ids": ids[64:].tolist()})

with tempfile.TemporaryDirectory() as folder:
    trainer = SmoothTrainer(
        model=model,
        args=TrainingArguments(
            folder,
            num_train_epochs=4,
            learning_rate=1e-3,
            per_device_train_batch_size=16,
            gradient_accumulation_steps=2,  # a labeled batch and an unlabeled one make an update
            logging_steps=8,
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
        ),
        # The penalty on unlabeled batches, the task loss on labeled ones. batches="both", which is
        # the default, takes the penalty on both kinds. c is its strength, the learning rate unless
        # given.
        regularizers=[JacHess(batches="unlabeled", c=1e-5)],
        train_dataset=labeled,
        unlabeled_dataset=unlabeled,
    )
    trainer.train()
