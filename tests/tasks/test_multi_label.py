"""Several labels of a text: how rows name them, and what is wrong with rows."""

import time
from dataclasses import replace

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, Features, Value
from datasets import Sequence as ListOf

from helpers.tiny_tasks import topic_csv, topic_rows, write
from smoothtune.errors import DataError
from smoothtune.models.load import load_base
from smoothtune.tasks.metrics import best_label_set
from smoothtune.tasks.prepare import labeled_splits, prepare, prepare_evaluation
from smoothtune.tasks.presets import describe_task

TYPE = "multi-label-classification"
LISTS = describe_task("topics", TYPE, text_columns="text")
TEXTS = describe_task("topics", TYPE, text_columns="text", label_separator=";")
NAMES = ("film", "good", "not")
TRAIN, VALIDATION = topic_rows(), topic_rows(seed=1)


@pytest.fixture(scope="session")
def tokenizer(bert):
    return load_base(str(bert)).tokenizer


def as_answers(row):
    return {"text": row["text"]} | {name: int(name in row["labels"]) for name in NAMES}


def test_lists_texts_columns_and_numbers_say_the_same(tokenizer, tmp_path) -> None:
    lists = write(tmp_path / "lists", train=TRAIN, validation=VALIDATION)
    expected = prepare(lists, LISTS, tokenizer)
    assert expected.task.label_names == NAMES
    gold = [[float(name in row["labels"]) for name in NAMES] for row in TRAIN]
    assert expected.train["labels"][:] == gold
    assert [0.0, 0.0, 0.0] in gold

    texts = topic_csv(tmp_path / "texts", train=TRAIN, validation=VALIDATION)
    answers = write(
        tmp_path / "answers",
        train=[*map(as_answers, TRAIN)],
        validation=[*map(as_answers, VALIDATION)],
    )
    columns = describe_task("topics", TYPE, text_columns="text", label_columns=NAMES)
    folder = tmp_path / "classes"
    folder.mkdir()
    kind = Features({"text": Value("string"), "labels": ListOf(ClassLabel(names=list(NAMES)))})
    for name, rows in (("train", TRAIN), ("validation", VALIDATION)):
        numbers = [row | {"labels": [NAMES.index(x) for x in row["labels"]]} for row in rows]
        Dataset.from_list(numbers, features=kind).to_parquet(str(folder / f"{name}.parquet"))
    for source, task in ((texts, TEXTS), (answers, columns), (folder, LISTS)):
        found = prepare(source, task, tokenizer)
        assert found.task.label_names == NAMES
        assert found.train.to_dict() == expected.train.to_dict()
        assert found.validation.to_dict() == expected.validation.to_dict()
        assert found.fingerprint == expected.fingerprint


def test_an_empty_cell_of_excel_is_a_row_without_labels(tmp_path) -> None:
    workbook = pytest.importorskip("openpyxl").Workbook()
    for row in (["text", "labels"], ["a", "x;y"], ["b", None], ["c", "y"]):
        workbook.active.append(row)
    workbook.save(tmp_path / "train.xlsx")
    splits, task = labeled_splits(tmp_path, replace(TEXTS, drop_missing=True))
    assert task.rows.check(splits, "source")["train"].tolist() == [[1, 1], [0, 0], [0, 1]]


def test_counts_are_of_rows_with_each_label_and_with_none(tokenizer, tmp_path) -> None:
    data = topic_csv(tmp_path, train=TRAIN, validation=VALIDATION)
    labels = prepare(data, TEXTS, tokenizer).report.splits["train"].labels
    assert labels == {"(no label)": sum(not row["labels"] for row in TRAIN)} | {
        name: sum(name in row["labels"] for row in TRAIN) for name in NAMES
    }


def test_labels_of_digits_stay_as_they_are_written(tokenizer, tmp_path) -> None:
    """Cells with one number alone are no numbers, and blanks around labels do not count."""
    rows = [["007"], ["1"], [" 1 ", "007"], [], ["1"]]
    data = [{"text": "good", "labels": labels} for labels in rows]
    topic_csv(tmp_path, train=data, validation=data)
    found = prepare(tmp_path, TEXTS, tokenizer)
    assert found.task.label_names == ("007", "1")
    assert found.train["labels"][:] == [[1, 0], [0, 1], [1, 1], [0, 0], [0, 1]]


def test_spellings_are_one_label_only_if_asked(tokenizer, tmp_path) -> None:
    rows = [{"text": "good", "labels": labels} for labels in (["A", "b"], ["a"], ["A"])]
    data = write(tmp_path, train=rows, validation=rows)
    with pytest.raises(DataError, match=r"differ in blanks, case or .* only: 'A' \(2 rows\), 'a'"):
        prepare(data, LISTS, tokenizer)
    merged = prepare(data, replace(LISTS, merge_labels=True), tokenizer)
    assert merged.task.label_names == ("A", "b")
    assert merged.train["labels"][:] == [[1, 1], [1, 0], [1, 0]]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["film", "music"], r"line 2, column 'labels': .* holds 'music', which is no label"),
        (None, "line 2, column 'labels': None is a missing label; write an empty list"),
        ([None], "line 2, column 'labels': .* holds None, which is a missing label"),
    ],
)
def test_wrong_labels_are_named(labels, message, tokenizer, tmp_path) -> None:
    wrong = [VALIDATION[0], {"text": "good", "labels": labels}]
    with pytest.raises(DataError, match=message):
        prepare(write(tmp_path, train=TRAIN, validation=wrong), LISTS, tokenizer)


def test_a_missing_text_of_labels_is_to_be_an_empty_one(tokenizer, tmp_path) -> None:
    rows = [{"text": "good", "labels": labels} for labels in ("a;b", "a", None)]
    with pytest.raises(DataError, match="None is a missing label; write an empty text for a row"):
        prepare(write(tmp_path, train=rows, validation=rows), TEXTS, tokenizer)


@pytest.mark.parametrize(
    ("rows", "task", "message"),
    [
        (["good", "bad"], LISTS, "holds no lists of labels; give label_separator, such as ;"),
        ([[1, 0, 1], [0, 0, 1]], LISTS, "holds a number twice.*label_columns"),
        ([[0, 2], [2]], LISTS, r"numbers 0, 1, 2, ... without gaps, found 0, 2"),
        ([[0.0, 1.0], [1.0, 0.0]], LISTS, "labels are names, or numbers"),
        ([["a"], ["a"], []], LISTS, "every label is 'a'.*use text-classification"),
        ([[], []], LISTS, "found none"),
        (["", ""], TEXTS, "found none"),
    ],
)
def test_columns_without_sets_of_labels_are_refused(
    rows, task, message, tokenizer, tmp_path
) -> None:
    made = [{"text": "good", "labels": labels} for labels in rows]
    data = write(tmp_path, train=made, validation=made)
    with pytest.raises(DataError, match=message):
        prepare(data, task, tokenizer)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (2, "line 2, column 'good': 2 is neither 0 nor 1"),
        ("yes", "line 2, column 'good': 'yes' is neither 0 nor 1"),
        (None, "line 2, column 'good': None is a missing label; write 0 or 1"),
    ],
)
def test_columns_of_answers_hold_0_and_1(value, message, tokenizer, tmp_path) -> None:
    task = describe_task("topics", TYPE, text_columns="text", label_columns=NAMES)
    rows = [as_answers(row) for row in TRAIN[:3]]
    rows[1]["good"] = value
    if isinstance(value, str):  # a column of JSON has one type
        rows = [row | {"good": str(row["good"])} for row in rows]
    with pytest.raises(DataError, match=message):
        prepare(write(tmp_path, train=rows, validation=rows), task, tokenizer)


def test_rows_to_evaluate_may_lack_a_label_of_the_model(tokenizer, tmp_path) -> None:
    rows = [{"text": "good", "labels": ["good"]}, {"text": "film", "labels": []}]
    data = topic_csv(tmp_path, validation=rows)
    found = prepare_evaluation(data, TEXTS, tokenizer, model_labels=NAMES)
    assert found.task.label_names == NAMES
    assert found.validation["labels"][:] == [[0, 1, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"text_columns": ()}, "one text column or two"),
        ({"label_columns": ("a",)}, "names one column.*text-classification"),
        ({"label_columns": ("a", "text")}, "must be different columns"),
        ({"label_columns": ("a", "b"), "label_separator": ";"}, "leave label_separator and"),
    ],
)
def test_impossible_descriptions_are_refused(fields, message) -> None:
    with pytest.raises(ValueError, match=message):
        describe_task("topics", TYPE, **{"text_columns": ["text"]} | fields)


GOLD = np.array([[1, 0, 1], [0, 0, 0], [1, 1, 0], [0, 0, 1]], float)
LOGITS = np.array([[2.0, -1.0, -0.5], [-1.0, -2.0, -3.0], [1.0, 0.5, 0.25], [0.5, -1.0, 3.0]])


def test_metrics_follow_from_counts() -> None:
    """By hand: right yes 2, 1, 1; wrong yes 1, 0, 1; missed 0, 0, 1; rows right: 1 of 4."""
    task = describe_task("topics", TYPE, text_columns="text", label_names=NAMES)
    rows = Dataset.from_dict({"labels": GOLD.tolist()})
    scores = task.scorer.scores(task.scorer.example_statistics(LOGITS, rows))
    assert scores["f1_micro"] == pytest.approx(2 * 4 / (2 * 4 + 2 + 1))
    assert scores["f1_macro"] == pytest.approx((4 / 5 + 1 + 2 / 4) / 3)
    assert scores["accuracy"] == pytest.approx(1 / 4)
    p = 1 / (1 + np.exp(-LOGITS))
    assert scores["brier"] == pytest.approx(((p - GOLD) ** 2).mean())
    likelihood = np.where(GOLD == 1, p, 1 - p)
    assert scores["nll"] == pytest.approx(-np.log(likelihood).mean())
    assert task.scorer.answers(LOGITS, rows) == [
        ["film"],
        [],
        ["film", "good", "not"],
        ["film", "not"],
    ]


def test_average_precision_is_over_all_pairs() -> None:
    """Pairs by falling logit: 3 yes, 2 yes, 1 yes, .5 no or yes, .25 no, -.5 yes, ..."""
    task = describe_task("topics", TYPE, text_columns="text", label_names=NAMES)
    rows = Dataset.from_dict({"labels": GOLD.tolist()})
    found = task.scorer.detailed_scores(task.scorer.example_statistics(LOGITS, rows))
    # recall rises at ranks 1, 2, 3, 5 (a tie of one yes and one no) and 7, by a fifth each
    expected = (1 / 1 + 2 / 2 + 3 / 3 + 4 / 5 + 5 / 7) / 5
    assert found["average_precision_micro"] == pytest.approx(expected)


@pytest.mark.parametrize("metric", ["f1_micro", "f1_macro", "accuracy"])
def test_baseline_is_the_best_of_all_constant_sets(metric) -> None:
    draw = np.random.default_rng(0)
    for _ in range(5):
        gold = (draw.random((9, 3)) < [0.7, 0.3, 0.1]).astype(float)
        task = describe_task("topics", TYPE, text_columns="text", label_names=NAMES)
        task = replace(task, metrics=(metric,))
        rows = Dataset.from_dict({"labels": gold.tolist()})
        best = 0.0
        for number in range(8):
            constant = np.array([(number >> label) % 2 for label in range(3)]) * 2.0 - 1.0
            statistics = task.scorer.example_statistics(np.tile(constant, (9, 1)), rows)
            best = max(best, task.scorer.scores(statistics)[metric])
        assert task.scorer.baseline(rows) == pytest.approx(best)


def test_the_baseline_of_thousands_of_labels_is_found_at_once() -> None:
    gold = (np.random.default_rng(0).random((300, 3000)) < 0.01).astype(float)
    start = time.process_time()
    assert 0 < best_label_set("f1_micro", gold) < 0.1
    assert time.process_time() - start < 10
