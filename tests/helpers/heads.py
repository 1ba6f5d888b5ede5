"""Tiny models of every kind of head, each with its batch: dropout -> (model, batch)."""

from transformers import BertForTokenClassification

from helpers.literal import span_batch, tiny_span_model
from smoothtune.testing import ARCHITECTURES, tiny_batch, tiny_model
from smoothtune.testing.tiny import random_model


def classification(dropout):
    return tiny_model("bert", dropout=dropout), tiny_batch()


def regression(dropout):
    return tiny_model("bert", num_labels=1, dropout=dropout), tiny_batch(num_labels=1)


def question_answering(dropout):
    return tiny_span_model(dropout), span_batch(tiny_batch())


def token_classification(dropout):
    config = ARCHITECTURES["bert"]()
    config.num_labels = 3
    batch = tiny_batch()
    labels = batch["input_ids"] % 3
    labels[:, 0] = -100
    labels = labels.masked_fill(batch["attention_mask"] == 0, -100)
    return random_model(BertForTokenClassification, config, dropout), batch | {"labels": labels}


def multi_label(dropout):
    model = tiny_model("bert", dropout=dropout)
    model.config.problem_type = "multi_label_classification"
    batch = tiny_batch()
    labels = (batch["input_ids"][:, :3] % 2).double()
    return model, batch | {"labels": labels}
