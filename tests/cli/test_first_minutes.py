"""What a user meets first: a guessed run file, all problems at once, models of others."""

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification
from typer.testing import CliRunner, Result

from helpers.tiny_folder import tiny_bert
from smoothtune.catalog import described, known_methods
from smoothtune.cli import MAIN_OPTIONS, app
from smoothtune.cli.tools import GROUPS
from smoothtune.config.evaluation import Settings
from smoothtune.config.run import load_config
from smoothtune.data.sources import load_rows
from smoothtune.errors import DataError
from smoothtune.evaluation.calibration_file import CALIBRATION
from smoothtune.files import RESULT, write_json

ROOT = Path(__file__).parents[2]
TICKETS = [("the printer is dead", "high", "it"), ("send the offer", "low", "sales")]
TICKETS += [("the invoice is wrong", "high", "billing"), ("a black screen", "low", "it")]


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def tickets(tmp_path: Path) -> Path:
    file = tmp_path / "tickets.csv"
    rows = [f"{text} {i},{prio},{team}" for i in range(4) for text, prio, team in TICKETS]
    file.write_text("message,priority,team\n" + "\n".join(rows) + "\n")
    return file


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fine-tuned model of transformers, which holds no record of smoothtune's."""
    folder = tmp_path_factory.mktemp("foreign")
    base = tiny_bert(folder / "base")
    torch.manual_seed(0)
    config = BertConfig.from_pretrained(base, num_labels=2, initializer_range=1.0)
    config.id2label, config.label2id = {0: "neg", 1: "pos"}, {"neg": 0, "pos": 1}
    BertForSequenceClassification(config).save_pretrained(folder / "model")
    AutoTokenizer.from_pretrained(base).save_pretrained(folder / "model")
    return folder / "model"


def test_rivals_of_a_guessed_label_are_named(tickets: Path, tmp_path: Path) -> None:
    to = tmp_path / "run.yaml"
    found = call("init", tickets, "--to", to)
    assert found.exit_code == 0, found.output
    assert "guessed label: team" in found.stdout  # not the priority, with its fewer values
    assert "may be the label as well: priority (2 values: high, low)" in found.stdout
    assert "--label-column" in found.stdout


def test_columns_and_types_can_be_given(tickets: Path, tmp_path: Path) -> None:
    to = tmp_path / "run.yaml"
    named = ("--label-column", "priority", "--text-column", "message", "--text-column", "team")
    found = call("init", tickets, "--to", to, *named, "--label-type", "text")
    assert found.exit_code == 0, found.output
    run = load_config(to)
    assert (run.label_column, run.label_type) == ("priority", "text")
    assert run.text_columns == ["message", "team"]
    assert "as well" not in found.stdout


@pytest.mark.parametrize(
    ("content", "options", "wanted"),
    [
        ("text\na b\nb c\nc d\n", (), "--label-column"),
        ("text,label\na b,x\nb c,x\nc d,x\n", (), "every label is 'x'"),
        ("text,label\na b,x\n", (), "label"),
        ("text,label\na b,x\nb c,y\nc d,x\n", ("--label-column", "kind"), "unknown column 'kind'"),
        ("nr,label\n1,x\n2,y\n3,x\n", ("--text-column", "nope"), "unknown column 'nope'"),
    ],
)
def test_no_run_file_that_cannot_train(
    tmp_path: Path, content: str, options: tuple, wanted: str
) -> None:
    file, to = tmp_path / "rows.csv", tmp_path / "run.yaml"
    file.write_text(content)
    found = call("init", file, "--to", to, *options)
    assert found.exit_code in (2, 3), found.output
    assert wanted in found.stderr
    assert not to.exists()


GAPS = "text,label\n,pos\ngood film,\ngood plot,nan\n" + "good film,pos\nbad film,neg\n" * 6


def gaps(tmp_path: Path) -> Path:
    (tmp_path / "rows.csv").write_text(GAPS)
    run, model = tmp_path / "run.yaml", tiny_bert(tmp_path / "model")
    fields = {"data": str(tmp_path / "rows.csv"), "text_columns": ["text"], "model": str(model)}
    run.write_text(json.dumps(fields | {"output_dir": str(tmp_path / "out"), "max_steps": 1}))
    return run


def test_all_kinds_of_problems_come_at_once(tmp_path: Path) -> None:
    run = gaps(tmp_path)
    found = call("validate", run)
    assert found.exit_code == 3
    for wanted in ("line 2, column 'text'", "line 3, column 'label'", "line 4, column 'label'"):
        assert wanted in found.stderr
    run.write_text(run.read_text().replace(str(tmp_path / "model"), "./nowhere"))
    both = call("validate", run)
    assert "./nowhere" in both.stderr
    assert "line 2, column 'text'" in both.stderr


def test_rows_without_label_or_text_are_left_out(tmp_path: Path) -> None:
    run = gaps(tmp_path)
    told = "3 rows without a text or a label left out: line 2, line 3, line 4"
    found = call("validate", run, "--drop-missing")
    assert (found.exit_code, told in found.stderr) == (0, True), found.output
    planned = call("train", run, "--drop-missing", "--dry-run")
    assert (planned.exit_code, told in planned.stdout) == (0, True), planned.output
    guessed = call("init", tmp_path / "rows.csv", "--to", tmp_path / "new.yaml")
    assert told in guessed.stdout
    assert load_config(tmp_path / "new.yaml").drop_missing


def test_scores_beside_a_gap_are_scores(tmp_path: Path) -> None:
    """What is left decides the type of the label column."""
    file = tmp_path / "rows.csv"
    file.write_text(
        "text,label\n" + "".join(f"good {i},{i / 7:.3f}\n" for i in range(9)) + "a,nan\n"
    )
    found = call("init", file, "--to", tmp_path / "run.yaml")
    assert "guessed labels: scores" in found.stdout, found.output


def test_excel_without_its_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.xlsx").write_bytes(b"PK")
    monkeypatch.setattr("smoothtune.data.csv_rows.find_spec", lambda name: None)
    found = call("init", tmp_path / "rows.xlsx", "--to", tmp_path / "run.yaml")
    assert found.exit_code == 3
    assert "save as CSV, or pip install 'smoothtune[excel]'" in found.stderr


def test_cells_of_excel_are_texts(tmp_path: Path) -> None:
    workbook = pytest.importorskip("openpyxl").Workbook()
    rows = [["text", "label", "code"], ["good", 1, "007"], [None] * 3, ["NA", 0, 2.5]]
    rows += [["bad", 0, None]]
    for row in rows:
        workbook.active.append(row)
    workbook.save(tmp_path / "rows.xlsx")
    found = load_rows(tmp_path / "rows.xlsx")
    assert found["text"][:] == ["good", "NA", "bad"]
    assert found["label"][:] == ["1", "0", "0"]
    assert found["code"][:] == ["007", "2.5", ""]  # as in CSV


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (
            [["My rows"], [], ["text", "label"], ["good", 1]],
            [],
            "row 3 has cells beyond the 1 column of row 1. If a title .*, delete it: they",
        ),
        (
            [["by Anna"]],
            [["text", "label"], ["good", 1]],
            "its first sheet 'Sheet' has no rows. The first sheet is read, not 'More'$",
        ),
    ],
)
def test_sheets_that_are_no_table(tmp_path: Path, first: list, second: list, message: str) -> None:
    workbook = pytest.importorskip("openpyxl").Workbook()
    for row in first:
        workbook.active.append(row)
    if second:
        sheet = workbook.create_sheet("More")
        for row in second:
            sheet.append(row)
    workbook.save(tmp_path / "rows.xlsx")
    with pytest.raises(DataError, match=message):
        load_rows(tmp_path / "rows.xlsx")


def test_a_workbook_that_is_none(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl")
    (tmp_path / "rows.xlsx").write_text("text,label\n")
    with pytest.raises(DataError, match=r"is no Excel workbook; if it is CSV, name it .csv"):
        load_rows(tmp_path / "rows.xlsx")


@pytest.mark.parametrize("of_a_trainer", [False, True])
def test_the_first_message_about_a_foreign_model_is_a_command_that_works(
    foreign: Path, tmp_path: Path, of_a_trainer: bool
) -> None:
    if of_a_trainer:  # which knows the model that it began with, but no task
        foreign = shutil.copytree(foreign, tmp_path / "model")
        config = {"task": None, "model": str(foreign), "seed": 1}
        write_json(foreign / RESULT, {"task": None, "methods": {}, "config": config})
    data = tmp_path / "e.csv"
    data.write_text("nr;prio;review;tone\n" + "1;high;good film;pos\n2;low;bad film;neg\n" * 4)
    refused = call("evaluate", foreign, "--data", data, "--output-dir", tmp_path / "out")
    assert refused.exit_code == 2
    command = shlex.split(refused.stderr.splitlines()[-1])
    assert command[:2] == ["smoothtune", "evaluate"]
    assert command[-6:] == ["--sep", ";", "--text-column", "review", "--label-column", "tone"]
    found = call(*command[1:], "--num-resamples", 20)
    assert found.exit_code == 0, found.output
    refused = call("predict", foreign, "--data", data, "--to", tmp_path / "p.csv")
    assert call(*shlex.split(refused.stderr.splitlines()[-1])[1:]).exit_code == 0
    without = call("evaluate", foreign, "--output-dir", tmp_path / "out")
    assert "--data rows.csv --text-column text --label-column label" in without.stderr


def test_an_evaluation_is_beside_its_model(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("out/tuned").mkdir(parents=True)

    def folder(model: str, *others: str) -> str:
        return str(Settings(model=model, ensemble=others).folder)

    assert folder("out/tuned/") == "out/tuned-evaluation"
    assert folder("out/tuned", "out/other") == "out/tuned-ensemble-evaluation"
    assert folder("org/tuned") == "tuned-evaluation"  # of the hub
    monkeypatch.chdir("out/tuned")
    assert folder(".") == str(tmp_path / "out" / "tuned-evaluation")
    assert str(Settings(model="org/tuned", output_dir="out").folder) == "out"


def labeled_by(model: Path, folder: Path) -> Path:
    """Rows with the labels that a model gives them, every fourth one turned round."""
    words = ("good", "bad", "film", "plot")
    texts = [f"{a} {b} {c}" for a in words for b in words for c in words]
    (folder / "texts.csv").write_text("\n".join(["text", *texts, ""]))
    arguments = ("--data", folder / "texts.csv", "--text-column", "text")
    assert call("predict", model, *arguments, "--to", folder / "texts.jsonl").exit_code == 0
    lines = (folder / "texts.jsonl").read_text().splitlines()
    other, labels = {"neg": "pos", "pos": "neg"}, [json.loads(x)["prediction"] for x in lines]
    labels = [label if row % 4 else other[label] for row, label in enumerate(labels)]
    rows = "".join(f"{text},{label}\n" for text, label in zip(texts, labels, strict=True))
    (folder / "e.csv").write_text(f"text,label\n{rows}")
    return folder / "e.csv"


def test_a_fitted_temperature_can_be_applied(foreign: Path, tmp_path: Path) -> None:
    data = labeled_by(foreign, tmp_path)
    (foreign / "README.md").write_text("# A model\n")
    described = ("--data", data, "--text-column", "text")
    arguments = ("predict", foreign, *described, "--to", tmp_path / "p.jsonl", "--probabilities")
    told = call(*arguments, "--calibrated").stderr
    assert f"holds no {CALIBRATION}" in told
    assert told.strip().endswith("--calibration --data labeled.csv --text-column text")
    out = ("--calibration", "--output-dir", tmp_path / "out", "--num-resamples", 20)
    found = call("evaluate", foreign, *described, *out)
    assert found.exit_code == 0, found.output
    kept = json.loads((foreign / CALIBRATION).read_text())
    card = (foreign / "README.md").read_text()
    assert f"a temperature of {kept['temperature']:.3f}" in card
    assert call(*arguments).exit_code == 0
    assert (
        call(*arguments[:-2], tmp_path / "q.jsonl", "--probabilities", "--calibrated").exit_code
        == 0
    )
    plain, scaled = (
        [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        for name in ("p.jsonl", "q.jsonl")
    )
    for before, after in zip(plain, scaled, strict=True):
        logit = torch.logit(torch.tensor(before["probability_pos"])) / kept["temperature"]
        assert after["probability_pos"] == pytest.approx(logit.sigmoid().item(), abs=1e-4)
    (foreign / CALIBRATION).write_text(json.dumps(kept | {"weights": "0"}))
    assert "belongs to other weights" in call(*arguments, "--calibrated", "--overwrite").stderr
    (foreign / CALIBRATION).unlink()


def _before(text: str, title: str, line: str) -> int:
    """Where a title stands before a line; -1 if it stands after it."""
    return text.index(title) if text.index(title) < text.index(line) else -1


def test_methods_are_listed_by_what_they_do() -> None:
    steps = {name: described(name).step for name in known_methods()}
    text = call("methods").stdout
    starts = [text.index(f"{title}:") for title in GROUPS.values()]
    assert starts == sorted(starts)
    for name in known_methods():
        title = GROUPS[described(name).group]
        assert title == max(GROUPS.values(), key=lambda t: _before(text, f"{t}:", f"  {name} "))
    costs = (ROOT / "docs" / "choosing.md").read_text("utf-8").split("## By what it asks")[1]
    for names, cost in re.findall(r"^\| (`[^|]+) \| ([^|]+) \|", costs, re.M):
        for name in re.findall(r"`(\w+)`", names):
            assert cost == steps[name]
            assert re.search(rf"^  {name} .*\({re.escape(cost)}\)$", text, re.M)
    listed = json.loads(call("methods", "--json").stdout)["methods"]
    assert len({each["title"] for each in listed}) == len(listed)
    for each in listed:  # what was measured of it, on the line below
        line = rf"^  {each['name']} .*\n +measured: {re.escape(each['measured'])}$"
        assert bool(re.search(line, text, re.M)) == (each["name"] != "plain")


@pytest.mark.parametrize("command", list(MAIN_OPTIONS))
def test_help_shows_what_people_need(command: str) -> None:
    short, long = call(command, "--help").stdout, call(command, "--help-all").stdout
    assert len(re.findall(r"^  --", short, re.M)) <= 16
    assert "--help-all" in short
    assert len(short.splitlines()) < len(long.splitlines()) / 1.2
    assert call(command, "--help-all").exit_code == 0


def test_predictions_are_written_as_the_data_are(foreign: Path, tmp_path: Path) -> None:
    data, to = tmp_path / "new.csv", tmp_path / "p.csv"
    data.write_bytes("text;nr\ngood café;1\n".encode("cp1252"))
    form = ("--sep", ";", "--encoding", "cp1252", "--text-column", "text")
    found = call("predict", foreign, "--data", data, *form, "--to", to)
    assert found.exit_code == 0, found.output
    assert "separated by ';' and in cp1252" in found.stdout
    assert (
        to.read_bytes().decode("cp1252").startswith("text;nr;prediction;probability\ngood café;1;")
    )
