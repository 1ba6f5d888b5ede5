"""A name wins over a number, wherever labels are read."""

from pathlib import Path

import pytest
from datasets import ClassLabel, Dataset, Features, Sequence, Value

from smoothtune.errors import DataError
from smoothtune.tasks.class_lookup import ClassLookup
from smoothtune.tasks.head import matched_outputs, taken_in_order
from smoothtune.tasks.labels import LabelColumn
from smoothtune.tasks.presets import describe_task

STARS = ("1", "2", "n/a")
TWELVE = ("0", "1", "10", "11", "2", "3", "4", "5", "6", "7", "8", "9")
"""As texts are sorted."""


def column(labels: list, merge: bool | None = None) -> LabelColumn:
    return LabelColumn(Dataset.from_dict({"label": labels}), "label", merge)


@pytest.mark.parametrize(
    ("names", "label", "index"),
    [
        (STARS, 1, 0),
        (STARS, 2, 1),
        (STARS, "2", 1),
        (STARS, 1.0, 0),
        (STARS, 0, None),
        (STARS, "0", None),
        (TWELVE, 2, 4),
        (TWELVE, 10, 2),
        (("-1", "1"), 1, 1),
        (("-1", "1"), 0, None),
        (("00", "01", "02"), 1, None),
        (("00", "01", "02"), "01", 1),
        (("0", "1", "2"), 2, 2),
        (("negative", "positive"), 1, 1),
        (("negative", "positive"), "1", 1),
        (("negative", "positive"), 1.0, 1),
        (("negative", "positive"), "01", None),
        (("negative", "positive"), 2, None),
        (("negative", "positive"), True, None),
        (("False", "True"), True, 1),
        (("1.0", "2.0"), 1.0, 0),
    ],
)
def test_which_class_a_label_means(names: tuple, label: object, index: int | None) -> None:
    lookup = ClassLookup(names)
    assert lookup.index(label) == index
    assert bool(lookup.problem(label)) == (index is None)


def test_classes_tags_and_sets_have_the_same_rule() -> None:
    assert column([1, 2, 1]).class_ids(STARS)[0].tolist() == [0, 1, 0]
    assert column([[1, 2], [1]]).tag_ids(STARS)[0] == [[0, 1], [0]]
    sets, problems = column([[1, 2], [1]]).sets(STARS)
    assert (sets.tolist(), problems) == ([[1, 1, 0], [1, 0, 0]], [])
    told = "no name of a class, and no number of one, since numbers are names here: '1', '2', 'n/a'"
    (problem,) = column([1, 0]).class_ids(STARS)[1]
    assert problem == f"row 1, column 'label': 0 is {told}"
    assert told in column([[1, 0]]).tag_ids(STARS)[1][0]
    assert told in column([[1, 0]]).sets(STARS)[1][0]


def test_whether_rows_have_the_labels_of_a_model() -> None:
    assert column([1, 2]).are_of(STARS)
    assert column(["Yes "], merge=True).are_of(("no", "yes"))
    assert not column(["Yes "]).are_of(("no", "yes"))
    assert not column([0, 1]).are_of(STARS)
    assert not column([[0, 1]]).are_of(STARS)
    assert column([0, 1]).are_of(("no", "yes"))
    assert column([[1], [2]]).are_of(STARS)
    assert not column([[0], [2]]).are_of(STARS)


def test_class_labels_of_the_hub_go_by_name_where_one_is_known() -> None:
    features = Features({"label": ClassLabel(names=["b", "c", "a"])})
    data = Dataset.from_dict({"label": [0, 2]}, features=features)
    assert LabelColumn(data, "label").class_ids(("a", "b"))[0].tolist() == [1, 0]
    tags = Features({"label": Sequence(ClassLabel(names=["b", "a"]))})
    data = Dataset.from_dict({"label": [[0, 1]]}, features=tags)
    assert LabelColumn(data, "label").tag_ids(("a", "b"))[0] == [[1, 0]]


class Config:
    def __init__(self, *names: str) -> None:
        self.num_labels, self.label2id = len(names), {name: i for i, name in enumerate(names)}


def test_outputs_of_a_model_with_other_names() -> None:
    assert matched_outputs(Config("b", "a"), "t", ("a", "b")) == (1, 0)
    assert matched_outputs(Config("LABEL_0", "LABEL_1"), "t", ("a", "b")) is None
    assert matched_outputs(Config("LABEL_0", "LABEL_1"), "t", ("0", "1")) is None
    assert matched_outputs(Config("B", "A"), "t", ("a", "b")) == (1, 0)
    assert matched_outputs(Config("A", "a"), "t", ("a", "A")) == (1, 0)
    others = [(("1", "2", "n/a"), ("0", "1", "2")), (("a", "c", "b"), ("c", "d", "b"))]
    others += [(("A", "C", "B"), ("c", "d", "b"))]
    for outputs, names in others:
        with pytest.raises(ValueError, match="write the labels with the names of the outputs"):
            matched_outputs(Config(*outputs), "t", names)


def test_labels_that_are_taken_in_the_order_of_the_outputs_are_told() -> None:
    told = taken_in_order(Config("negative", "positive"), ("no", "yes"))
    assert "taken in order: negative is 'no', positive is 'yes'." in told
    assert "LABEL_0 is 'no', LABEL_1" in taken_in_order(Config("LABEL_0", "LABEL_1"), ("no", "yes"))
    assert not taken_in_order(Config("No", "Yes"), ("yes", "no"))
    assert not taken_in_order(Config("negative", "positive"), ("0", "1"))
    assert not taken_in_order(Config("LABEL_0"), ())


def test_names_from_one_file_and_numbers_in_another(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\na,1\nb,2\nc,n/a\nd,1\ne,2\nf,n/a\n")
    (tmp_path / "validation.csv").write_text("text,label\na,1\nb,2\nc,1\nd,2\n")
    task = describe_task(text_columns="text")
    splits = task.load_splits(tmp_path)
    task = task.with_labels(splits["train"])
    assert task.label_names == STARS
    assert task.rows.check(splits, "x")["validation"].tolist() == [0, 1, 0, 1]


def test_twelve_classes_that_are_texts_keep_their_numbers() -> None:
    features = Features({"text": Value("string"), "label": Value("string")})
    labels = list(map(str, range(12)))
    data = Dataset.from_dict({"text": labels, "label": labels}, features=features)
    task = describe_task(text_columns="text").with_labels(data)
    assert task.label_names == tuple(labels)
    assert task.rows.check({"train": data}, "x")["train"].tolist() == list(range(12))


def test_tags_that_look_alike_are_an_error_unless_merged() -> None:
    words = Dataset.from_dict({"tokens": [["a", "b"], ["c"]], "tags": [["O", "B-x"], ["o\u200b"]]})
    task = describe_task("t", "token-classification")
    with pytest.raises(DataError, match=r"tags.*'O' \(1 row\), 'o\\u200b' \(1 row\)"):
        task.with_labels(words)
    merged = describe_task("t", "token-classification", merge_labels=True).with_labels(words)
    assert merged.label_names == ("B-x", "O")
    assert merged.rows.check({"train": words}, "x")["train"] == [[1, 0], [1]]
