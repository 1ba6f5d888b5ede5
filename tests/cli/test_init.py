"""`init` guesses what a file holds, and its run file is one that `train` takes."""

import json
from pathlib import Path

import pytest
from datasets import Dataset
from typer.testing import CliRunner, Result

from helpers.tiny_folder import tiny_bert
from smoothtune.cli import app
from smoothtune.config.run import load_config
from smoothtune.config.task import configured_task
from smoothtune.tasks.guess import guess

ROWS = [("Sehr gut, Café!", "Pos"), ("ärgerlich", "neg"), ("nie wieder", "neg"), ("fein", "Pos ")]


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_file_of_an_office_program(tmp_path: Path) -> None:
    file, to = tmp_path / "Kunden Meinungen.csv", tmp_path / "run.yaml"
    lines = [f"{i};{text};{label}" for i, (text, label) in enumerate(ROWS)]
    file.write_bytes("\n".join(["nr;kommentar;bewertung", *lines, ""]).encode("cp1252"))
    found = call("init", file, "--to", to)
    assert found.exit_code == 0, found.output
    assert "guessed encoding: 'cp1252'" in found.stdout
    assert "not printed only: 'Pos' (1 row), 'Pos ' (1 row)\n" in found.stdout
    assert "guessed labels: classes Pos, neg" in found.stdout
    assert f"train: smoothtune train {to}" in found.stdout
    run = load_config(to)
    assert (run.sep, run.encoding, run.merge_labels) == (";", "cp1252", True)
    assert (run.text_columns, run.label_column) == (["kommentar"], "bewertung")
    assert (run.task, run.output_dir) == ("kunden-meinungen", "out/kunden-meinungen")
    task = configured_task(run)
    train = task.load_splits(str(file))["train"]
    assert task.with_labels(train).label_names == ("Pos", "neg")
    again = call("init", file, "--to", to)
    assert again.exit_code == 2
    assert "exists" in again.stderr
    replaced = call("init", file, "--to", to, "--overwrite", "--json")
    assert json.loads(replaced.stdout)["fields"]["sep"] == ";"


def test_a_name_that_yaml_has_only_escaped(tmp_path: Path) -> None:
    file, to = tmp_path / "rows.csv", tmp_path / "run.yaml"
    lines = [f"{text};{label.strip()}" for text, label in ROWS]
    file.write_text("\n".join(["caf\x92 \x85;label", *lines]), encoding="utf-8")
    found = call("init", file, "--to", to)
    assert found.exit_code == 0, found.output
    assert load_config(to).text_columns == ["caf\x92 \x85"]
    found = call("init", file, "--to", file / "run.yaml")
    assert (found.exit_code, "cannot be written" in found.output) == (2, True), found.output


def test_a_run_file_in_a_folder_with_a_blank(tmp_path: Path) -> None:
    file, folder = tmp_path / "rows.csv", tmp_path / "my runs"
    file.write_text("text,label\n" + "a b,yes\nb c,no\n" * 4)
    found = call("init", file, "--to", folder / "run.yaml")
    assert f"train: smoothtune train '{folder / 'run.yaml'}'\n" in found.stdout, found.output
    assert f"smoothtune validate '{folder / 'run.yaml'}'\n" in found.stdout
    refused = call("init", tmp_path / "none.csv", "--to", folder, "--overwrite")
    told = f"{folder} is a folder; name a file in it: --to '{folder / 'run.yaml'}'"
    assert (refused.exit_code, told in refused.stderr) == (2, True), refused.output


def test_new_files_are_read_as_those_of_the_training(tmp_path: Path) -> None:
    """A model of a semicolon file in cp1252 predicts another one; what differs is given."""
    model = tiny_bert(tmp_path / "model")
    rows = [f"{text};{label}" for text, label in [("good café", "Pos"), ("bad film", "neg ")] * 6]
    rows.append("good plot;pos")
    (tmp_path / "train.csv").write_bytes("\n".join(["text;label", *rows, ""]).encode("cp1252"))
    run = tmp_path / "run.yaml"
    assert call("init", tmp_path / "train.csv", "--to", run).exit_code == 0
    options = ("--model", model, "--output-dir", tmp_path / "out", "--max-steps", 1)
    trained = call("train", run, *options)
    assert trained.exit_code == 0, trained.output
    (tmp_path / "new.csv").write_bytes("text;nr\nbad café;1\n".encode("cp1252"))
    found = call(
        "predict", tmp_path / "out", "--data", tmp_path / "new.csv", "--to", tmp_path / "p.csv"
    )
    assert found.exit_code == 0, found.output
    assert (tmp_path / "p.csv").read_text("cp1252").splitlines()[0].startswith("text;nr;prediction")
    (tmp_path / "utf8.csv").write_text("text,nr\nbad café,1\n", "utf-8")
    arguments = ("predict", tmp_path / "out", "--data", tmp_path / "utf8.csv")
    refused = call(*arguments, "--to", tmp_path / "q.csv")
    assert refused.exit_code == 3
    assert "give encoding: utf-8" in refused.stderr
    form = ("--encoding", "utf-8", "--sep", ",")
    assert call(*arguments, *form, "--to", tmp_path / "q.csv").exit_code == 0


def test_a_header_alone_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("text,label\n")
    found = call("init", tmp_path / "rows.csv", "--to", tmp_path / "run.yaml")
    assert found.exit_code == 3
    assert "rows.csv: has the columns text, label, and no rows to train on" in found.stderr
    assert not (tmp_path / "run.yaml").exists()


def test_blank_labels_are_told(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("text,label\n" + "a b,yes\nb c,no\n" * 4 + "c d,\n")
    found = call("init", file, "--to", tmp_path / "run.yaml")
    assert "for split 'train': 1 row without a text or a label left out: line 10" in found.stdout


def test_null_may_name_a_class(tmp_path: Path) -> None:
    file, to = tmp_path / "rows.csv", tmp_path / "run.yaml"
    file.write_text("text,label\n" + "a b,pos\nb c,neg\nc d,null\n" * 6)
    found = call("init", file, "--to", to)
    assert "guessed labels: classes neg, null, pos\n" in found.stdout, found.output
    assert "drop_missing" not in to.read_text()
    file.write_text("text,label\n" + "a b,pos\nb c,neg\nc d,null\n" * 6 + "d e,\n")
    assert call("init", file, "--to", to, "--overwrite").exit_code == 0
    assert "drop_missing: true" in to.read_text()  # a gap beside it leaves no other way


def test_a_test_split_that_no_run_reads(tmp_path: Path) -> None:
    folder, to = tmp_path / "rows", tmp_path / "run.yaml"
    folder.mkdir()
    (folder / "train.csv").write_text("text,label\n" + "a b,1\nb c,2\nc d,3\n" * 6)
    (folder / "test.csv").write_text("text,label\n" + "a b,\n" * 6)
    found = call("init", folder, "--to", to)
    assert "no validation file: a tenth of the rows is held out\n" in found.stdout, found.output
    assert "label_type: text" in to.read_text()
    assert "drop_missing" not in to.read_text()
    (folder / "dev.csv").write_text("text,label\na b,1\nb c,\n")
    found = call("init", folder, "--to", to, "--overwrite")
    assert "for split 'validation': 1 row without a text or a label left out" in found.stdout
    assert "no validation file" not in found.stdout


def test_scores_are_a_regression(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("text,score\na b,0.5\nb c,1.25\nc d,3.5\nd e,2.5\n")
    found = call("init", file, "--to", tmp_path / "run.yaml")
    assert "guessed labels: scores, so the task is a regression\n" in found.stdout


def test_a_column_named_text_that_holds_a_number(tmp_path: Path) -> None:
    file, to = tmp_path / "rows.jsonl", tmp_path / "run.yaml"
    rows = [{"text": 5 if i == 3 else "a film", "label": i % 2} for i in range(8)]
    file.write_text("\n".join(map(json.dumps, rows)))
    found = call("init", file, "--to", to)
    told = "column 'text' holds 5, which is no text: mend it, or name one with --text-column, of"
    assert (found.exit_code, told in found.stderr) == (2, True), found.output
    file.write_text(json.dumps({"a": [0, 1], "b": [1, 2]}) + "\n" + json.dumps({"a": 1, "b": 2}))
    found = call("init", file, "--to", to)
    assert "no column looks like it: name one with --text-column, of a, b" in found.stderr


@pytest.mark.parametrize(
    "value",
    [
        {"text": ["a film", "a plot"], "label": [0, 1]},
        {"text": {"0": "a film", "1": "a plot"}, "label": {"0": 0, "1": 1}},
        {"data": [{"text": "a film", "label": 0}, {"text": "a plot", "label": 1}]},
    ],
)
def test_json_of_columns_is_told_to_be_one_of_rows(tmp_path: Path, value: dict) -> None:
    (tmp_path / "rows.json").write_text(json.dumps(value))
    found = call("init", tmp_path / "rows.json", "--to", tmp_path / "run.yaml")
    assert found.exit_code == 3
    assert "to_json(file, orient='records', lines=True)" in found.stderr


def test_a_second_column_of_sentences_is_told(tmp_path: Path) -> None:
    file, columns = tmp_path / "rows.csv", "claim,evidence,place,label\n"
    rows = [f"the film was really good {i},they all say that {i},Rome {i}" for i in range(8)]
    file.write_text(columns + "".join(f"{row},{i % 2}\n" for i, row in enumerate(rows)))
    found = call("init", file, "--to", tmp_path / "run.yaml")
    pair = "--text-column claim --text-column NAME"
    assert f"may be a text as well: evidence; for pairs: {pair}\n" in found.stdout, found.output


def test_a_column_of_different_labels_is_told(tmp_path: Path) -> None:
    file, to = tmp_path / "rows.csv", tmp_path / "run.yaml"
    rows = "".join(f"r{i},good film {i},{i % 2}\n" for i in range(60))
    file.write_text("id,text,label\n" + rows)
    found = call("init", file, "--label-column", "id", "--to", to)
    assert "r26 and 40 more\n60 classes of 60 rows cannot be learned; name another" in found.stdout


def test_rows_in_the_place_of_a_run_file(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_bytes("text,label\nCafé,1\n".encode("cp1252"))
    for command in ("train", "validate"):
        found = call(command, file)
        assert found.exit_code == 2
        assert (
            f"rows.csv: holds rows and is no run file; one is written by: smoothtune init {file}"
            in (found.stderr + found.stdout)
        )


@pytest.mark.parametrize("label", ["yes", "1"])
def test_a_file_without_header_is_told(tmp_path: Path, label: str) -> None:
    model, file, to = tiny_bert(tmp_path / "model"), tmp_path / "rows.csv", tmp_path / "run.yaml"
    other = "no" if label == "yes" else "0"
    rows = "".join(f"good film {i},{label}\nbad film {i},{other}\n" for i in range(6))
    file.write_text(rows)
    told = f"{file} seems to have no header line: the column '{label}' is named like one of its own"
    assert told in call("init", file, "--to", to).stdout
    to.write_text(to.read_text().replace("model: minilm", f"model: {model}"))
    checked = call("validate", to)
    assert (checked.exit_code, told in checked.stderr) == (0, True)
    assert told in call("train", to, "--dry-run").stdout
    file.write_text("text,label\n" + rows)
    assert "no header line" not in call("init", file, "--to", to, "--overwrite").stdout
    (tmp_path / "rows.jsonl").write_text('{"text": "label", "label": "label"}\n' * 3)
    assert "no header line" not in call("init", tmp_path / "rows.jsonl", "--to", to).stdout


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (
            {"id": ["a", "b", "c", "d"], "text": ["x y", "z", "w", "v"], "label": [0, 1, 1, 0]},
            ("text-classification", ["text"], "label"),
        ),
        (
            {"premise": ["a"] * 4, "hypothesis": ["b"] * 4, "gold": [0, 1, 2, 0]},
            ("text-classification", ["premise", "hypothesis"], "gold"),
        ),
        (
            {"note": ["some words", "more", "and", "so on"], "quality": [0.5, 1.25, 3.0, 2.0]},
            ("text-classification", ["note"], "quality"),
        ),
        (
            {"tokens": [["a", "b"]] * 2, "tags": [["O", "B-X"]] * 2, "id": ["1", "2"]},
            ("token-classification", ["tokens"], "tags"),
        ),
        (
            {"id": ["1"], "question": ["q"], "context": ["c"], "answers": [{"text": ["c"]}]},
            ("question-answering", [], None),
        ),
        (
            {"Text A": ["some words", "more"], "Text B": ["so", "on"], "same": ["yes", "no"]},
            ("text-classification", ["Text A", "Text B"], "same"),
        ),
        ({"a": ["one", "two", "three", "four"]}, ("text-classification", ["a"], None)),
    ],
)
def test_guesses(columns: dict, expected: tuple) -> None:
    found = guess(Dataset.from_dict(columns))
    assert (found.task_type, found.text_columns, found.label_column) == expected


@pytest.mark.parametrize(
    ("columns", "label", "separator", "several"),
    [
        ({"labels": ["a;b", "a", "", "b", "a;b"]}, "labels", ";", []),
        ({"topics": ["a, b", "a", "b", "c", "c,a"]}, "topics", ",", []),
        ({"tags": [["a"], ["a", "b"], [], ["b"], ["a"]]}, "tags", None, []),
        ({"a": [0, 1, 0, 1, 0], "b": ["0", "0", "1", "1", "0"]}, None, None, ["a", "b"]),
    ],
)
def test_several_labels_of_a_row_are_guessed(columns, label, separator, several) -> None:
    found = guess(Dataset.from_dict({"text": ["x y", "z w v", "w", "v", "u"]} | columns))
    assert (found.task_type, found.text_columns) == ("multi-label-classification", ["text"])
    assert (found.label_column, found.label_separator) == (label, separator)
    assert found.label_columns == several


@pytest.mark.parametrize(
    "columns",
    [
        {"city": ["Rom, Lazio", "Ulm, Bayern", "Rom, Lazio", "Ulm, Bayern", "Rom, Lazio"]},
        {"label": [0, 1, 1, 0, 1], "seen": [0, 1, 0, 1, 0]},
        {"seen": [0, 1, 0, 1, 0], "stars": [1, 2, 3, 1, 2]},
        {"choices": [["a", "b"], ["c", "d"], ["e", "f"], ["g", "h"], ["i", "j"]]},
    ],
)
def test_one_label_of_a_row_stays_one(columns) -> None:
    found = guess(Dataset.from_dict({"text": ["x y", "z w v", "w", "v", "u"]} | columns))
    assert found.task_type == "text-classification"


@pytest.mark.parametrize(
    "labels",
    [
        ["pos", "neg", "n/a"],
        ["IT/Software", "Sales", "HR", "IT/Hardware"],
        ["Berlin, DE", "Munich, DE", "Paris", "Rome, IT"],
        ["4,5", "3", "2,5", "4", "5", "n/a"],
        ["0,25", "0,5", "0", "5"],
        ["pos", "neg"] * 60 + ["pos/neg"],  # which one of many rows has
    ],
)
@pytest.mark.parametrize("name", ["label", "kind"])
def test_a_sign_within_a_label_makes_no_several(labels: list[str], name: str) -> None:
    rows = {"text": [f"a film {i}" for i in range(6 * len(labels))], name: labels * 6}
    assert guess(Dataset.from_dict(rows)).task_type == "text-classification"


def test_a_run_file_of_several_labels_is_one_that_validates(tmp_path: Path) -> None:
    model, file, to = tiny_bert(tmp_path / "model"), tmp_path / "posts.csv", tmp_path / "run.yaml"
    rows = [
        "good film,good;film",
        "bad plot,",
        "good plot,good",
        "a film,film",
        "good film not,good",
    ]
    file.write_text("text,topics\n" + "\n".join(rows * 3) + "\n")
    found = call("init", file, "--to", to)
    assert found.exit_code == 0, found.output
    assert "guessed task type: multi-label-classification" in found.stdout
    assert "guessed label_separator: ';'" in found.stdout
    to.write_text(to.read_text().replace("model: minilm", f"model: {model}"))
    checked = call("validate", to)
    assert checked.exit_code == 0, checked.output


@pytest.mark.parametrize(
    ("labels", "field"),
    [
        (["1", "2", "3"], "label_type: text"),
        (["-1", "1"], "label_type: text"),
        (["0.0", "1.0"], "label_type: integer"),
    ],
)
def test_numbers_that_may_name_classes(tmp_path: Path, labels: list[str], field: str) -> None:
    file, to = tmp_path / "rows.csv", tmp_path / "run.yaml"
    rows = "".join(f"a film {i},{label}\n" for i, label in enumerate(labels * 6))
    file.write_text(f"text,label\n{rows}")
    found = call("init", file, "--to", to)
    assert f"guessed {field}, for {file}, split 'train', column 'label': " in found.stdout
    assert "if they are scores, write label_type: float" in found.stdout
    scale = "if they are the steps of a scale: --task-type ordinal-classification"
    assert (scale in found.stdout) == (field == "label_type: text")
    assert field in to.read_text().splitlines()
    run = load_config(to)
    task = configured_task(run)
    assert len(task.with_labels(task.load_splits(str(file))["train"]).label_names) == len(labels)


def test_a_usual_name_with_many_values_that_come_again() -> None:
    columns = {"text": [f"a film {i}" for i in range(400)], "lang": ["en", "de"] * 200}
    found = guess(Dataset.from_dict(columns | {"label": [f"intent {i % 77}" for i in range(400)]}))
    assert (found.label_column, list(found.rivals)) == ("label", ["lang"])
    votes = {"score": [i % 101 for i in range(400)]}
    found = guess(Dataset.from_dict(columns | votes | {"label": [0, 1] * 200}))
    assert (found.label_column, list(found.rivals)) == ("label", ["lang", "score"])
    found = guess(Dataset.from_dict(columns | {"topic": [f"{i} {i % 3}" for i in range(400)]}))
    assert (found.label_column, list(found.rivals)) == ("lang", ["topic"])


def test_many_whole_numbers_may_be_scores(tmp_path: Path) -> None:
    rows = [f"a film {i},{i % 101}" for i in range(404)]
    (tmp_path / "rows.csv").write_text("\n".join(["text,score", *rows]))
    found = call("init", tmp_path / "rows.csv", "--to", tmp_path / "run.yaml")
    assert "if they are scores, write label_type: float\n" in found.stdout, found.output


def test_a_file_that_is_sorted_by_its_labels() -> None:
    columns = {"words": [f"a film {i}" for i in range(12_000)], "kind": ["x"] * 6000 + ["y"] * 6000}
    found = guess(Dataset.from_dict(columns))
    assert (found.text_columns, found.label_column) == (["words"], "kind")
