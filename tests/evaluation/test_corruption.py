import re

import datasets
import numpy as np
import pytest
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st

from helpers.linear_network import rotation
from smoothtune.data import tokenizing
from smoothtune.evaluation import (
    corrupt_tokens,
    drop_words,
    swap_words,
    text_corruption_curve,
    token_corruption_curve,
    typos,
)
from smoothtune.evaluation.corruption import damaged_texts

rates = st.sampled_from([0.0, 0.05, 0.1, 0.25, 0.5, 1.0])
seeds = st.integers(0, 10_000)
sentences = st.lists(
    st.sampled_from(["a", "good", "aa", "film", "I", "don't", "2024", "x1", "naïve"]), min_size=1
)


def rounded(rate, count):
    return int(np.floor(rate * count + 0.5 + 1e-9))


def rng(seed):
    return np.random.default_rng(seed)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=60), rates, seeds)
def test_exactly_so_many_ordinary_tokens_change(ids, rate, seed):
    special, ordinary = {0, 1, 2}, np.arange(3, 31)
    found = corrupt_tokens(ids, rate, rng(seed), special=special, ordinary=ordinary)
    changed = [place for place, pair in enumerate(zip(ids, found, strict=True)) if len({*pair}) > 1]
    assert len(changed) == rounded(rate, sum(token > 2 for token in ids))
    assert all(ids[place] > 2 and found[place] > 2 for place in changed)


def test_every_place_and_every_token_is_drawn():
    drawn = [
        corrupt_tokens([0, 5, 6, 7], 0.34, rng(seed), special={0}, ordinary=np.arange(5, 9))
        for seed in range(300)
    ]
    assert {tuple(np.not_equal(row, [0, 5, 6, 7]).tolist()).index(True) for row in drawn} == {
        1,
        2,
        3,
    }
    assert {row[1] for row in drawn} == {5, 6, 7, 8}


@given(sentences, rates, seeds)
def test_exactly_so_many_words_get_one_typo(words, rate, seed):
    found = typos(" ".join(words), rate, rng(seed)).split(" ")
    changed = [pair for pair in zip(words, found, strict=True) if pair[0] != pair[1]]
    eligible = [word for word in words if sum(character.isalpha() for character in word) > 1]
    assert len(changed) == rounded(rate, len(eligible))
    for before, after in changed:
        assert before in eligible
        assert abs(len(before) - len(after)) <= 1


@given(sentences, rates, seeds)
def test_exactly_so_many_words_are_left_out(words, rate, seed):
    found = drop_words(" ".join(words), rate, rng(seed)).split()
    assert len(words) - len(found) == min(rounded(rate, len(words)), len(words) - 1)
    rest = iter(words)
    assert all(word in rest for word in found)  # in the old order


@given(st.integers(1, 40), rates, seeds)
def test_exactly_so_many_words_change_places(count, rate, seed):
    words = [f"w{index}" for index in range(count)]
    found = swap_words(" ".join(words), rate, rng(seed)).split()
    assert sorted(found) == sorted(words)
    moved = sum(before != after for before, after in zip(words, found, strict=True))
    assert moved == 2 * min(rounded(rate / 2, count), count // 2)


@pytest.mark.parametrize("damage", [typos, drop_words, swap_words])
@pytest.mark.parametrize("text", ["a  good\tfilm . ", "\n a good film", "film", " ", ""])
def test_a_rate_of_zero_changes_no_character(damage, text):
    assert damage(text, 0.0, rng(0)) == text


def test_white_space_stays_where_it_was():
    text = " a  good\tfilm . "
    assert re.sub(r"\S+", "w", typos(text, 1.0, rng(0))) == " w  w\tw w "
    assert re.sub(r"\S+", "w", swap_words(text, 1.0, rng(0))) == " w  w\tw w "
    assert drop_words(text, 1.0, rng(0)) in (" a ", " good ", " film ", " . ")
    left = {drop_words(text, 0.25, rng(seed)) for seed in range(50)}
    assert left == {" good\tfilm . ", " a\tfilm . ", " a  good . ", " a  good\tfilm "}


def test_curve_of_tokens(linear_predictor, rows):
    predictor = linear_predictor([rotation(0)], batch_size=2, seed=3)
    labels = predictor.predict(rows).argmax(1)
    right = rows.remove_columns("labels").add_column("labels", labels.tolist())
    curve = token_corruption_curve(predictor, right, vocab_size=14, rates=(0.0, 1.0), num_samples=5)
    ((start, end),) = curve.series.values()
    assert (start.y, start.low, start.high) == (1, 1, 1)
    assert end.low < end.high <= 1  # the draws differ
    assert curve == token_corruption_curve(
        predictor, right, vocab_size=14, rates=(0.0, 1.0), num_samples=5
    )
    assert right["input_ids"] == rows["input_ids"]


def test_tokens_are_corrupted_until_ten_points_are_lost(linear_predictor, rows):
    predictor = linear_predictor([rotation(0)], batch_size=2, seed=3)
    labels = predictor.predict(rows).argmax(1)
    right = rows.remove_columns("labels").add_column("labels", labels.tolist())
    rates = {"rates": (0.0, 1e-3), "further": (2e-3, 1.0, 1.0)}
    curve = token_corruption_curve(predictor, right, vocab_size=14, num_samples=5, **rates)
    (points,) = curve.series.values()
    assert [point.x for point in points] == [0, 1e-3, 2e-3, 1.0]
    assert points[-2].y == 1 > 0.9 >= points[-1].y
    assert curve.numbers["area"] == 1
    assert 2e-3 < curve.numbers["loses 10 points at"] < 1
    whole = token_corruption_curve(predictor, right, vocab_size=14, rates=(0.0, 1e-3))
    assert whole.numbers == {"area": 1, "clean": 1}


@pytest.mark.parametrize(("words", "share"), [(4, 0), (5, 1)])
def test_the_share_of_rows_that_change_is_counted(linear_predictor, words, share):
    """A tenth of four words is none."""
    texts = Dataset.from_dict(
        {"text": ["good " * words] * 3, "labels": [1, 0, 0], "example_id": [0, 1, 2]}
    )
    predictor = linear_predictor([rotation(0)], batch_size=2)
    rates = {"rates": (0.0, 0.1), "max_seq_length": 16}
    curve = text_corruption_curve(predictor, texts, "dropped words", **rates)
    assert curve.numbers["share of rows that change"] == share


def test_cached_rows_are_those_of_the_texts(linear_predictor, monkeypatch, tmp_path):
    """Labels that were corrected, and words beyond the first row, are no cached ones."""
    monkeypatch.setattr(tokenizing, "MIN_CACHED_ROWS", 1)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    predictor, found = linear_predictor([rotation(0)]), []
    for word, label in (("good", 0), ("bad", 1)):
        texts = Dataset.from_dict(
            {"text": ["the film", f"a {word}"], "labels": [1, label], "example_id": [0, 1]}
        )
        options = {"max_seq_length": 16}
        rows = damaged_texts(predictor, texts, "typos", 0.0, rng(0), **options)[1]
        found.append((rows["input_ids"][1], rows["labels"][1]))
    assert found[0][0] != found[1][0]
    assert [label for _, label in found] == [0, 1]


@pytest.mark.parametrize("damage", ["typos", "dropped words", "swapped words"])
def test_curves_of_text(linear_predictor, damage):
    texts = Dataset.from_dict(
        {
            "text": ["good film", "bad plot and film", "the film was not good"],
            "text_pair": ["a plot", "a very good film", "bad"],
            "labels": [1, 0, 0],
            "example_id": [0, 1, 2],
        }
    )
    predictor = linear_predictor([rotation(0)], batch_size=2)
    curve = text_corruption_curve(
        predictor, texts, damage, max_seq_length=16, rates=(0.0, 0.5), num_samples=2
    )
    (points,) = curve.series.values()
    assert [point.x for point in points] == [0, 0.5]
    assert points[0].y == curve.numbers["clean"]
    assert curve.x_label == f"{damage} (share)"
