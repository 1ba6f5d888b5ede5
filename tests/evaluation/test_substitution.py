"""Word substitutions on a network that reads the first word alone."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from helpers.linear_network import rotation
from smoothtune.evaluation.disturbance import CHANGED
from smoothtune.evaluation.substitution import substitution_curve, vocabulary, word_positions
from smoothtune.tasks.presets import describe_task

WORDS = np.arange(4, 14)
"""Ids of the words of the tiny tokenizer; below are its special tokens."""


def with_right_labels(predictor, rows):
    labels = predictor.predict(rows).argmax(1)
    return rows.remove_columns("labels").add_column("labels", labels.tolist())


def logits_of_words(predictor):
    model = predictor.model
    weights = model.head.weight @ model.layers[0].weight
    return (model.embedding.weight @ weights.T).detach().numpy()


def test_an_example_falls_where_a_word_can_make_it_wrong(linear_predictor, rows):
    """Every word may stand in the first place, which alone decides and is tried at some time."""
    predictor = linear_predictor([rotation(0)], batch_size=2)
    right = with_right_labels(predictor, rows)
    classes = logits_of_words(predictor)[WORDS].argmax(1)
    can_fall = [bool((classes != label).any()) for label in right["labels"][:]]
    assert any(can_fall)
    longest = max(right["length"][:])
    curve = substitution_curve(predictor, right, vocab_size=14, num_neighbors=9, max_words=longest)
    (points,) = curve.series.values()
    heights = [point.y for point in points]
    assert [point.x for point in points] == list(range(longest + 1))
    assert heights[0] == 1
    assert heights == sorted(heights, reverse=True)
    assert heights[-1] == 1 - np.mean(can_fall)
    # one for the text, one for each word, and nine for at least one word
    least = 1 + np.mean(right["length"][:]) + 9
    assert least <= curve.numbers["queries"] < 1 + 10 * longest
    assert right["input_ids"][:] == rows["input_ids"][:]


def test_fewer_neighbors_are_the_nearest_by_the_cosine(linear_predictor, rows):
    predictor = linear_predictor([rotation(0)], batch_size=5)
    right = with_right_labels(predictor, rows)
    logits = logits_of_words(predictor)
    table = predictor.model.embedding.weight.detach().numpy()
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    stands = []
    for ids, label in zip(right["input_ids"][:], right["labels"][:], strict=True):
        others = [word for word in WORDS if word != ids[0]]
        near = sorted(others, key=lambda word, first=ids[0]: -(unit[word] @ unit[first]))[:2]
        stands.append(all(logits[word].argmax() == label for word in near))
    curve = substitution_curve(predictor, right, vocab_size=14, num_neighbors=2, max_words=1)
    ((_, after),) = curve.series.values()
    assert after.y == np.mean(stands)
    again = substitution_curve(predictor, right, vocab_size=14, num_neighbors=2, max_words=1)
    assert again == curve


def test_wrong_examples_are_not_attacked(linear_predictor, rows):
    predictor = linear_predictor([rotation(0)], batch_size=5)
    labels = [1 - label for label in with_right_labels(predictor, rows)["labels"][:]]
    wrong = rows.remove_columns("labels").add_column("labels", labels)
    curve = substitution_curve(predictor, wrong, vocab_size=14)
    (points,) = curve.series.values()
    assert [point.y for point in points] == [0, 0, 0, 0]
    assert curve.numbers["queries"] == 1
    assert "share of rows that change" not in curve.numbers


def test_texts_without_words_of_one_token_do_not_change(linear_predictor, rows, monkeypatch):
    predictor = linear_predictor([rotation(0)], batch_size=5)
    right = with_right_labels(predictor, rows)
    assert substitution_curve(predictor, right, vocab_size=14).numbers[CHANGED] == 1
    monkeypatch.setattr("smoothtune.evaluation.substitution.word_positions", lambda *_: [])
    assert substitution_curve(predictor, right, vocab_size=14).numbers[CHANGED] == 0


def test_scores_of_a_regression_move_as_far_as_words_can(linear_predictor, rows):
    predictor = linear_predictor([rotation(0)], batch_size=5, outputs=(0,))
    predictor.task = describe_task(text_columns="text", label_names=())
    scores = predictor.predict(rows)[:, 0]
    right = rows.remove_columns("labels").add_column("labels", scores.tolist())
    curve = substitution_curve(predictor, right, vocab_size=14, num_neighbors=9, max_words=1)
    ((before, after),) = curve.series.values()
    assert before.y == pytest.approx(1)
    words = logits_of_words(predictor)[WORDS, 0]
    worst = [words[np.argmax((words - score) ** 2)] for score in scores]
    assert after.y == pytest.approx(np.corrcoef(worst, scores)[0, 1])


def tokenizer_of(*names):
    ids = {name: i for i, name in enumerate(names)}
    return SimpleNamespace(get_vocab=lambda: ids, all_special_ids=[0])


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["[CLS]", "good", "##ly", "film", ",", "12", "films"], [3]),
        (["<s>", "Ġgood", "ly", "Ġfilm", ",", "Ġ12", "Ġfilms"], [3]),
        (["<s>", "▁good", "ly", "▁film", ",", "▁12", "▁films"], [3]),
    ],
)
def test_words_of_several_tokens_and_other_signs_stay(names, words):
    """Token 1 goes on in token 2; token 6 lies beyond the embeddings."""
    known = vocabulary(tokenizer_of(*names), 6)
    assert word_positions(range(6), known) == words
    assert np.flatnonzero(known.words).tolist() == [1, 3]
    assert np.flatnonzero(known.parts).tolist() == [2]


def test_several_labels_fall_where_a_word_can_change_one(linear_predictor, rows):
    """Only the first word counts, and an example stands while all its labels are right."""
    predictor = linear_predictor([rotation(0)], batch_size=2)
    predictor.task = describe_task(
        "topics", "multi-label-classification", text_columns="text", label_names=("a", "b")
    )
    predictor.task = replace(predictor.task, metrics=("accuracy",))
    rows = rows.remove_columns("labels")
    gold = (predictor.predict(rows) > 0).astype(float)
    right = rows.add_column("labels", gold.tolist())
    yes = logits_of_words(predictor)[WORDS] > 0
    can_fall = [bool((yes != label).any()) for label in gold.astype(bool)]
    assert any(can_fall)
    longest = max(right["length"][:])
    curve = substitution_curve(predictor, right, vocab_size=14, num_neighbors=9, max_words=longest)
    (points,) = curve.series.values()
    assert points[0].y == 1
    assert points[-1].y <= points[0].y
    # the word with the greatest loss is taken, and a loss above log 2 means a wrong label
    losses = [_greatest_loss(logits_of_words(predictor)[WORDS], label) for label in gold]
    wrong = [bool(((row > 0) != label).any()) for row, label in zip(losses, gold, strict=True)]
    assert points[-1].y == 1 - np.mean(wrong)


def _greatest_loss(logits, label):
    """The logits of the word whose mean binary cross entropy is the greatest."""
    p = 1 / (1 + np.exp(-logits))
    loss = -np.log(np.where(label == 1, p, 1 - p)).mean(axis=1)
    return logits[loss.argmax()]
