from typing import Any

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, Features, Value

from smoothtune.errors import DataError
from smoothtune.tasks.base import Task
from smoothtune.tasks.presets import describe_task

UNKNOWN = describe_task(text_columns="text")
CLASSES = describe_task(text_columns="text", label_names=("no", "yes"))
PAIR = describe_task(text_columns=["text", "other"], label_names=("no", "yes"))
SCORES = describe_task(text_columns="text", label_names=())


def table(labels: list[Any], texts: list[Any] | None = None) -> Dataset:
    return Dataset.from_dict({"text": texts or ["t"] * len(labels), "label": labels})


def labels_of(dataset: Dataset, task: Task) -> np.ndarray:
    return task.rows.check({"train": dataset}, "file.csv")["train"]


@pytest.mark.parametrize(
    ("labels", "task", "expected", "dtype"),
    [
        ([1, 0, 1], CLASSES, [1, 0, 1], np.int64),
        ([1.0, 0.0], CLASSES, [1, 0], np.int64),
        (["yes", "no"], CLASSES, [1, 0], np.int64),
        ([0.5, -2.0], SCORES, [0.5, -2.0], np.float32),
        ([1, 5], SCORES, [1.0, 5.0], np.float32),
    ],
)
def test_good_labels(labels: list[Any], task: Task, expected: list[float], dtype: type) -> None:
    encoded = labels_of(table(labels), task)
    assert encoded.tolist() == expected
    assert encoded.dtype == dtype


def test_class_label_in_another_order_goes_by_name() -> None:
    features = Features({"text": Value("string"), "label": ClassLabel(names=["yes", "no"])})
    dataset = Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]}, features=features)
    assert labels_of(dataset, CLASSES).tolist() == [1, 0]
    unlabeled = Dataset.from_dict({"text": ["a", "b"], "label": [0, -1]}, features=features)
    with pytest.raises(DataError, match="row 1, .* -1 is out of range"):
        labels_of(unlabeled, CLASSES)


@pytest.mark.parametrize(
    ("labels", "task", "message"),
    [
        ([0, 1, 2, 3], CLASSES, r"row 2, .* 2 is out of range; the labels are 0 'no', 1 'yes'"),
        ([0, -1], CLASSES, r"row 1, column 'label': -1 is out of range"),
        ([0, -100], CLASSES, r"row 1, column 'label': -100 is out of range"),
        ([-100, -100], CLASSES, "every label is -100"),
        ([-100.0, -100.0], SCORES, "every label is -100"),
        ([0, None, None], CLASSES, r"row 1, .* None is a missing label; .* \(likewise row 2\)"),
        ([0.0, 1.5], CLASSES, "row 1, .* 1.5 is no class number"),
        ([0.0, float("nan")], CLASSES, "row 1, .* nan is a missing label"),
        (["no", "maybe"], CLASSES, "row 1, .* 'maybe' is no label of this task"),
        (["no", ""], CLASSES, "row 1, .* '' is a missing label; fill it in, or drop the row"),
        (["no", " "], CLASSES, "row 1, .* ' ' is a missing label"),
        (["no", "Yes "], CLASSES, "row 1, .* differs from the label 'yes' in blanks, case or"),
        ([True, False], CLASSES, "row 0, .* True is no label of this task"),
        ([1.0, None], SCORES, "row 1, .* None is a missing label"),
        ([1.0, float("nan")], SCORES, "row 1, .* nan is a missing label"),
        ([1.0, float("inf")], SCORES, "row 1, .* inf is not a finite number"),
        (["4.5", "high"], SCORES, "row 1, .* 'high' is no number"),
    ],
)
def test_bad_labels(labels: list[Any], task: Task, message: str) -> None:
    with pytest.raises(DataError, match=message):
        labels_of(table(labels), task)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a", ""], r"row 1, column 'text': '' is an empty text"),
        (["a", " \n\t"], r"row 1, .* is an empty text"),
        ([None, "a"], r"row 0, column 'text': None is a missing text"),
        ([3, 4], r"row 0, column 'text': 3 is of type int, not text \(likewise row 1: 4\)"),
    ],
)
def test_bad_texts(texts: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        labels_of(table([0, 1], texts), CLASSES)


def test_missing_columns_list_the_known_ones() -> None:
    dataset = Dataset.from_dict({"sentence": ["a"], "label": [0]})
    with pytest.raises(DataError, match="no column 'text', 'other'; .* 'sentence', 'label'"):
        labels_of(dataset, PAIR)


def test_everything_wrong_is_said_at_once() -> None:
    train = table([0, 7, None], ["a", "", None])
    with pytest.raises(DataError) as caught:
        CLASSES.rows.check({"train": train, "validation": table([])}, "file.csv")
    lines = str(caught.value).splitlines()
    assert [line.split(": ")[0] for line in lines] == ["file.csv, split 'train'"] * 4 + [
        "file.csv, split 'validation'"
    ]
    problems = ["empty text", "missing text", "7 is out of range", "missing label", "no rows"]
    assert all(problem in line for problem, line in zip(problems, lines, strict=True))


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ([2, 0, 1, 0], ("0", "1", "2")),
        (["spam", "ham", None, "spam"], ("ham", "spam")),
        ([True, False], ("False", "True")),
        ([0.5, 1.0], ()),
    ],
)
def test_inferred_labels(labels: list[Any], names: tuple[str, ...]) -> None:
    assert UNKNOWN.with_labels(table(labels), "file.csv").label_names == names


def test_inferred_booleans_are_encoded() -> None:
    dataset = table([True, False])
    task = UNKNOWN.with_labels(dataset, "file.csv")
    assert labels_of(dataset, task).tolist() == [1, 0]


def test_inferred_class_label_keeps_its_names() -> None:
    features = Features({"text": Value("string"), "label": ClassLabel(names=["yes", "no"])})
    dataset = Dataset.from_dict({"text": ["a", "b"], "label": [0, 0]}, features=features)
    assert UNKNOWN.with_labels(dataset, "x").label_names == ("yes", "no")


def test_known_labels_are_kept() -> None:
    assert CLASSES.with_labels(table([5, 6]), "file.csv") is CLASSES


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([1, 2, 5], "must count 0, 1, 2, ... without gaps, found 1, 2, 5"),
        ([-1, 0], "without gaps, found -1, 0"),
        ([-100, -100], "every label is -100"),
        ([0, 0], "every label is '0'"),
        (["a", "a"], "every label is 'a'"),
        ([None, None], "no label in any row"),
        (
            [["a"], ["b"]],
            "labels are text, integers or real numbers; where a row has several labels, give "
            "--task-type multi-label-classification",
        ),
        ([{"name": "a"}, {"name": "b"}], "labels are text, integers or real numbers$"),
    ],
)
def test_labels_that_cannot_be_inferred(labels: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=f"file.csv, split 'train', column 'label': .*{message}"):
        UNKNOWN.with_labels(table(labels), "file.csv")


def test_missing_label_column() -> None:
    task = describe_task(text_columns="text", label_column="gold")
    with pytest.raises(DataError, match="file.csv, .*: has no column 'gold'; .* 'text', 'label'"):
        task.with_labels(table([0, 1]), "file.csv")


MESSY = ["Pos", "Pos ", "pos", "Pos", "Neg", " neg", "Neg", "fair"]


def test_labels_spelled_in_two_ways_are_named() -> None:
    message = (
        "labels differ in blanks, case or characters that are not printed only: "
        "'Neg' (2 rows), ' neg' (1 row); "
        "'Pos' (2 rows), 'Pos ' (1 row), 'pos' (1 row). Give merge_labels: true"
    )
    with pytest.raises(DataError) as caught:
        UNKNOWN.with_labels(table(MESSY))
    assert message in str(caught.value)


def test_labels_spelled_in_two_ways_are_merged_or_kept_as_asked() -> None:
    merged = describe_task(text_columns="text", merge_labels=True).with_labels(table(MESSY))
    assert merged.label_names == ("Neg", "Pos", "fair")
    assert labels_of(table(MESSY), merged).tolist() == [1, 1, 1, 1, 0, 0, 0, 2]
    assert labels_of(table([" POS", "neg"]), merged).tolist() == [1, 0]  # of another split
    apart = describe_task(text_columns="text", merge_labels=False).with_labels(table(MESSY))
    assert apart.label_names == tuple(sorted(set(MESSY)))


def test_blank_labels_are_missing_and_no_class() -> None:
    task = UNKNOWN.with_labels(table(["yes", "no", "  "]))
    assert task.label_names == ("no", "yes")
    with pytest.raises(DataError, match="row 2, .* is a missing label"):
        labels_of(table(["yes", "no", "  "]), task)


def test_scores_with_a_decimal_comma_are_no_classes() -> None:
    with pytest.raises(
        DataError,
        match="'4,5' is no number, and 2 rows hold one; write it with a decimal point, as 4.5",
    ):
        UNKNOWN.with_labels(table(["3", "4,5", "1"]))
    assert UNKNOWN.with_labels(table(["3,x", "4,5"])).label_names == ("3,x", "4,5")
