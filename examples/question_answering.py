"""Question answering in a Trainer script of your own: one changed line."""

import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertForQuestionAnswering,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)

from smoothtune import SMART, regularize

torch.manual_seed(0)

# A tiny random model and a tokenizer with a few words, so that this runs anywhere in seconds. In
# their place: AutoModelForQuestionAnswering and AutoTokenizer.from_pretrained("bert-base-uncased").
SPECIALS = ["[PAD]", "[UNK]"]
TEXT = "where is the key box desk bag it in red green blue big old"
vocabulary = {word: index for index, word in enumerate([*SPECIALS, *TEXT.split()])}
backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
backend.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]")
model = BertForQuestionAnswering(
    BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
    )
)

# In place of these sentences: your data in the form of SQuAD.
places = ["box", "desk", "bag"]
colors = ["red", "green", "blue", "big", "old"]
contexts = [
    f"{colors[i % 5]} {colors[i % 3]} key is in the {colors[i % 4]} {places[i % 3]} it is the"
    for i in range(128)
]
answers = [places[i % 3] for i in range(128)]


def features(context: str, answer: str) -> dict:
    """Tokens of question and context, and the answer's first and last token."""
    encoded = tokenizer("where is the key", context)
    place = encoded.char_to_token(context.index(answer), sequence_index=1)
    return dict(encoded) | {"start_positions": place, "end_positions": place}


data = Dataset.from_list([features(*row) for row in zip(contexts, answers, strict=True)])

with tempfile.TemporaryDirectory() as folder:
    args = TrainingArguments(
        folder,
        num_train_epochs=6,
        learning_rate=3e-3,
        per_device_train_batch_size=16,
        logging_steps=16,
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=data,
        eval_dataset=data,
        data_collator=DataCollatorWithPadding(tokenizer),
    )

    trainer = regularize(trainer, SMART())  # the changed line

    trainer.train()  # the penalty compares the distributions of start and of end
    start, end = trainer.predict(data).predictions[:2]
    right = (start.argmax(-1) == data["start_positions"]) & (
        end.argmax(-1) == data["end_positions"]
    )
    print(f"exact matches: {right.mean():.2f}")
