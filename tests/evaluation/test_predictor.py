from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import BertConfig, BertForQuestionAnswering, BertForSequenceClassification

from helpers.linear_network import rotation
from smoothtune.errors import ModelError
from smoothtune.evaluation import Predictor, load_predictor
from smoothtune.models.load import load_base
from smoothtune.tasks.presets import describe_task
from smoothtune.testing import PAD, VOCABULARY, tiny_model

THREE = describe_task(text_columns="text", label_names=("a", "b", "c"))


def decoder_rows(count=6):
    generator = torch.Generator().manual_seed(0)
    ids = [torch.randint(5, VOCABULARY, (3 + n,), generator=generator).tolist() for n in (5, 1, 3)]
    return Dataset.from_dict(
        {
            "input_ids": ids,
            "attention_mask": [[1] * len(row) for row in ids],
            "labels": [0, 1, 2],
            "length": [len(row) for row in ids],
        }
    )


def padded_by(side, tokenizer):
    """The tokenizer, with the pad token of the tiny models."""
    tokenizer = type(tokenizer).from_pretrained(tokenizer.name_or_path)
    tokenizer.padding_side = side
    tokenizer.pad = _pad(side)
    return tokenizer


def _pad(side):
    def pad(features, **_):
        length = max(len(row["input_ids"]) for row in features)
        filled = {"input_ids": PAD, "attention_mask": 0}
        batch = {}
        for name, value in filled.items():
            rows = [torch.tensor(row[name]) for row in features]
            size = [
                (length - len(row), 0) if side == "left" else (0, length - len(row)) for row in rows
            ]
            batch[name] = torch.stack(
                [
                    torch.nn.functional.pad(row, pair, value=value)
                    for row, pair in zip(rows, size, strict=True)
                ]
            )
        batch["labels"] = torch.tensor([row["labels"] for row in features])
        return batch

    return pad


@pytest.mark.parametrize("architecture", ["opt", "llama", "bert"])
def test_padding_and_batches_change_nothing(architecture, tokenizer):
    rows = decoder_rows()
    model = tiny_model(architecture).eval()
    sides = ["right"] if architecture == "bert" else ["right", "left"]
    found = [
        Predictor(model, padded_by(side, tokenizer), THREE, batch_size=size).predict(rows)
        for side in sides
        for size in (1, 3)
    ]
    alone = [model(input_ids=torch.tensor([row["input_ids"]])).logits[0].tolist() for row in rows]
    for logits in found:
        np.testing.assert_allclose(logits, alone, atol=2e-6)


def test_rows_keep_their_order_and_dropout_is_off(linear_predictor, rows):
    predictor = linear_predictor([rotation(0)], batch_size=2)
    predictor.model.train()
    model, expected = predictor.model, []
    for row in rows:
        state = model.layers[0](model.embedding(torch.tensor(row["input_ids"][0])))
        expected.append(model.head(state).tolist())
    np.testing.assert_allclose(predictor.predict(rows), expected, rtol=1e-6)
    assert model.training


def test_progress_counts_every_batch(linear_predictor, rows):
    calls = []
    progress = SimpleNamespace(start=lambda *_: None, advance=lambda: calls.append(1))
    predictor = linear_predictor([rotation(0)], batch_size=2, progress=progress)
    predictor.predict(rows)
    assert len(calls) == predictor.num_batches(rows) == 3


def test_perturbation_is_added_to_the_word_embeddings(linear_predictor, rows):
    predictor = linear_predictor([rotation(0)], batch_size=2)
    both = predictor.predict_perturbed(rows, 2, lambda clean, number: [clean.embeddings(), None])
    np.testing.assert_allclose(both[0], 2 * both[1], rtol=1e-6)
    np.testing.assert_array_equal(both[1], predictor.predict(rows))


def saved(folder, base, names=("poor", "fine"), kind=BertForSequenceClassification):
    config = BertConfig.from_pretrained(base, num_labels=len(names))
    config.id2label = dict(enumerate(names))
    config.label2id = {name: index for index, name in enumerate(names)}
    torch.manual_seed(1)
    kind(config).save_pretrained(folder)
    load_base(str(base)).tokenizer.save_pretrained(folder)
    return load_base(str(folder))


def test_outputs_are_matched_by_the_names_of_labels(tmp_path, tiny_folder, rows):
    base = saved(tmp_path, tiny_folder / "model")
    same = load_predictor(base, describe_task(text_columns="text", label_names=("poor", "fine")))
    swapped = load_predictor(base, describe_task(text_columns="text", label_names=("fine", "poor")))
    unknown = load_predictor(base, describe_task(text_columns="text", label_names=("yes", "no")))
    logits = same.predict(rows)
    np.testing.assert_array_equal(swapped.predict(rows), logits[:, ::-1])
    np.testing.assert_array_equal(unknown.predict(rows), logits)
    _, batch = next(swapped.batches(rows))
    assert swapped.clean(batch).run().loss != same.clean(batch).run().loss


def test_question_answering_is_refused_with_advice(tmp_path, tiny_folder):
    base = saved(tmp_path, tiny_folder / "model", kind=BertForQuestionAnswering)
    with pytest.raises(ModelError, match="BertForQuestionAnswering.*--task squad"):
        load_predictor(base, THREE)


def test_a_pretrained_model_without_head_is_refused(tiny_folder):
    with pytest.raises(ModelError, match="no fine-tuned classifier.*classifier.bias"):
        load_predictor(load_base(str(tiny_folder / "model")), THREE)


def test_another_number_of_classes_is_refused(tmp_path, tiny_folder):
    base = saved(tmp_path, tiny_folder / "model")
    with pytest.raises(ModelError, match="has 2 outputs, but task 'custom' needs 3.*take rows"):
        load_predictor(base, THREE)


def test_a_model_that_does_not_say_so_predicts_several_labels(tmp_path, tiny_folder):
    """Its predictions are compared as those of several labels, and one that says no is refused."""
    task = describe_task(
        "topics", "multi-label-classification", text_columns="text", label_names=("poor", "fine")
    )
    base = saved(tmp_path / "a", tiny_folder / "model")
    assert base.config.problem_type is None
    predictor = load_predictor(base, task)
    assert predictor.model.config.problem_type == "multi_label_classification"
    one = BertForSequenceClassification.from_pretrained(tmp_path / "a")
    one.config.problem_type = "single_label_classification"
    one.save_pretrained(tmp_path / "a")
    with pytest.raises(ModelError, match="was trained for single_label_classification"):
        load_predictor(load_base(str(tmp_path / "a")), task)
