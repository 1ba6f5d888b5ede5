"""What a label column holds: what its cells say, or what the user says."""

from pathlib import Path

import pytest
from datasets import Dataset, Features, Json, Value

from smoothtune.data.label_types import of_type
from smoothtune.errors import DataError
from smoothtune.tasks.base import Task
from smoothtune.tasks.presets import describe_task


def csv_file(folder: Path, labels: list[str], quoted: bool = False) -> Path:
    cells = [f'"{label}"' if quoted else label for label in labels]
    rows = "".join(f"text {i};{cell}\n" for i, cell in enumerate(cells))
    (folder / "a.csv").write_text("text;label\n" + rows)
    return folder / "a.csv"


def read(file: Path, label_type: str | None = None) -> tuple[Task, list]:
    task = describe_task(text_columns="text", label_type=label_type, sep=";")
    train = task.load_splits(file)["train"]
    task = task.with_labels(train, "a.csv")
    return task, task.rows.check({"train": train}, "a.csv")["train"].tolist()


@pytest.mark.parametrize(
    ("labels", "names", "ids"),
    [
        (["0", "1", "2", "0"], ("0", "1", "2"), [0, 1, 2, 0]),
        (["0", "00", "01", "1"], ("0", "00", "01", "1"), [0, 1, 2, 3]),
        (["00", "01", "02"], ("00", "01", "02"), [0, 1, 2]),
        (["1", "2", "other"] * 2, ("1", "2", "other"), [0, 1, 2] * 2),
        (["1", "2", "01"] * 2 + ["1"], ("01", "1", "2"), [1, 2, 0] * 2 + [1]),
        (["True", "False"], ("False", "True"), [1, 0]),
        (["none", "other"] * 3, ("none", "other"), [0, 1] * 3),
        (["0.5", "2", "-1"], (), [0.5, 2.0, -1.0]),
    ],
)
def test_what_cells_say(tmp_path: Path, labels: list, names: tuple, ids: list) -> None:
    task, found = read(csv_file(tmp_path, labels))
    assert (task.label_names, found) == (names, ids)


@pytest.mark.parametrize("quoted", [False, True])
@pytest.mark.parametrize(
    "labels", [["1", "2", "3", "4", "5"], ["-1", "1"], ["1", "10"], ["2", "4", "10"]]
)
def test_numbers_that_name_classes(tmp_path: Path, labels: list, quoted: bool) -> None:
    file = csv_file(tmp_path, labels, quoted)
    with pytest.raises(DataError, match=r"found .*give label_type: text \(--label-type text\)"):
        read(file)
    task, ids = read(file, "text")
    assert (task.label_names, ids) == (tuple(labels), list(range(len(labels))))
    task, scores = read(file, "float")
    assert (task.label_names, scores) == ((), list(map(float, labels)))


def test_a_type_holds_for_files_that_have_types_too() -> None:
    data = Dataset.from_dict({"text": list("abc"), "label": [1, 5, 5]})
    task = describe_task(text_columns="text", label_type="text")
    assert task.with_labels(of_type(data, "label", "text")).label_names == ("1", "5")
    data = Dataset.from_dict({"labels": [[1, 5], [5]]})
    assert of_type(data, "labels", "text")["labels"][:] == [["1", "5"], ["5"]]
    data = Dataset.from_dict({"label": [5.0, float("nan"), 1.5]})
    assert of_type(data, "label", "text")["label"][:] == ["5", None, "1.5"]
    data = Dataset.from_dict({"label": [0.0, None, 1.0]})
    assert of_type(data, "label", "integer")["label"][:] == [0, None, 1]


@pytest.mark.parametrize("number", ["1", "0.5", "true"])
def test_texts_that_look_like_the_values_beside_them(tmp_path: Path, number: str) -> None:
    (file := tmp_path / "rows.jsonl").write_text(
        f'{{"text": "a", "label": {number}}}\n{{"text": "b", "label": "{number}"}}\n'
    )
    told = r"line 2, column 'label': '.*' is of type str; 1 row hold .*: .*label_type: text"
    with pytest.raises(DataError, match=told):
        read(file)


def test_texts_that_datasets_stores_as_the_values_beside_them() -> None:
    features = Features({"text": Value("string"), "label": Json(decode=False)})
    data = Dataset.from_dict({"text": ["a", "b"], "label": ["1", "1"]}, features)
    with pytest.raises(DataError, match=r"column 'label' holds texts that look .*label_type: text"):
        describe_task(text_columns="text").with_labels(data)


@pytest.mark.parametrize(
    "missing", ["nan", "NaN", "NA", "N/A", "null", "None", "-", "?", "1,5", "x"]
)
@pytest.mark.parametrize("scores", [["1.5", "2.25", "3", "4", "5"], ["1", "2", "3", "4", "5"]])
def test_a_missing_score_does_not_make_classes(
    tmp_path: Path, missing: str, scores: list[str]
) -> None:
    file = csv_file(tmp_path, [*scores * 5, missing][1:])
    with pytest.raises(DataError, match=r"line 26, column 'label': '.*' is no number, and 24 rows"):
        read(file)
    with pytest.raises(DataError, match=r"line 26, column 'label': '.*' is no number; fill it in"):
        read(file, "float")
    assert len(read(file, "text")[0].label_names) == 6


def test_a_missing_class_is_no_class(tmp_path: Path) -> None:
    file = csv_file(tmp_path, ["pos", "neg"] * 6 + ["nan"])
    with pytest.raises(DataError, match=r"line 14, .*'nan' seems to be a missing label; .*text"):
        read(file)
    assert read(file, "text")[0].label_names == ("nan", "neg", "pos")


def test_whole_real_numbers_are_classes_or_scores_as_the_user_says(tmp_path: Path) -> None:
    file = csv_file(tmp_path, ["1.0", "0.0"] * 5)
    with pytest.raises(DataError, match=r"labels are 0.0, 1.0, whole.*integer .*label_type: float"):
        read(file)
    task, ids = read(file, "integer")
    assert (task.label_names, ids) == (("0", "1"), [1, 0] * 5)
    assert read(file, "float")[1] == [1.0, 0.0] * 5
    with pytest.raises(DataError, match="line 12, column 'label': None is a missing label"):
        read(csv_file(tmp_path, [*["1.0", "0.0"] * 5, ""]), "integer")
    pandas_wrote = Dataset.from_dict({"text": ["a"] * 3, "label": [1.0, float("nan"), 0.0]})
    with pytest.raises(DataError, match=r"labels are 0.0, 1.0, whole"):
        describe_task(text_columns="text").with_labels(pandas_wrote)


def test_an_integer_that_is_none(tmp_path: Path) -> None:
    file = csv_file(tmp_path, ["0", "1", "two", "1.5"])
    with pytest.raises(DataError, match=r"line 4, .*'two' is no integer.*likewise line 5: '1.5'"):
        read(file, "integer")


def test_numbers_that_are_stored_as_text() -> None:
    data = Dataset.from_dict({"text": ["a", "b"], "label": ["0.5", "1.5"]})
    with pytest.raises(DataError, match=r"row 0, .*'0.5' is a number that is stored as text"):
        describe_task(text_columns="text").with_labels(data)


def test_labels_that_look_alike(tmp_path: Path) -> None:
    unseen = ["\u200b", "\ufeff", "\u00ad", "\u2060", "\u202e", "\u200d", "\u3164", "\ufe0f"]
    for character in unseen:
        file = csv_file(tmp_path, ["pos", f"po{character}s", "neg"])
        with pytest.raises(
            DataError, match=r"not printed only: 'po.*s' \(1 row\), .* merge_labels"
        ):
            read(file)
    blank = csv_file(tmp_path, ["pos", "neg", "\u200b"])
    with pytest.raises(DataError, match="line 4, .* is a missing label"):
        read(blank)


def test_the_first_ten_lines_of_a_problem_are_named(tmp_path: Path) -> None:
    file = csv_file(tmp_path, ["a", "b"] + [""] * 13)
    with pytest.raises(DataError) as caught:
        read(file)
    told = "likewise line 5, line 6, line 7, line 8, line 9, line 10, line 11, line 12, line 13, "
    assert "line 4, column 'label': '' is a missing label; fill it in" in str(caught.value)
    assert f"({told}and 3 more rows)" in str(caught.value)
