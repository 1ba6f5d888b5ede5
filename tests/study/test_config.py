from pathlib import Path

import pytest

from smoothtune.errors import ConfigError
from smoothtune.study.config import StudyConfig, load_study


def labels(study) -> dict[str, list[str]]:
    return {e.label: [setting.describe() for setting in e.settings] for e in study.entries}


def problems(file: Path, **options) -> str:
    with pytest.raises(ConfigError) as caught:
        load_study(file, **options)
    return str(caught.value)


def test_every_form_of_an_entry(write) -> None:
    study = load_study(
        write("""
methods:
  - lnsr
  - lnsr:noise=in_manifold,weight=0.5
  - {name: jachess, every: 8}
  - [mixout, r3f]
  - {methods: [l2_sp, {name: cwgnc, max_norm: 0.5}], label: both, learning_rate: 1e-3}
seeds: [3, 4]
""")
    )
    assert list(labels(study)) == [
        "plain",
        "plain_more_epochs",
        "lnsr",
        "lnsr noise=in_manifold weight=0.5",
        "jachess every=8",
        "mixout+r3f",
        "both",
    ]
    both = study.runs[0, 6, 0]
    assert list(both.methods) == ["cwgnc", "l2_sp"] or list(both.methods) == ["l2_sp", "cwgnc"]
    assert both.methods["cwgnc"]["max_norm"] == 0.5
    assert both.learning_rate == 1e-3
    assert study.runs[0, 2, 0].learning_rate == 1e-2
    assert {run.seed for run in study.runs.values()} == {3}


def test_longer_plain_training(write) -> None:
    study = load_study(write("methods: [lnsr]\nmore_epochs: 3\n"))
    assert [run.max_steps for run in study.runs.values()] == [3, 9, 3]
    common = "task: quality\ntext_columns: [text]\nnum_train_epochs: 2\n"
    study = load_study(write("methods: [lnsr]\n", common=common))
    assert [run.num_train_epochs for run in study.runs.values()] == [2, 4, 2]
    study = load_study(write("methods: [lnsr, plain]\nmore_epochs: null\n"))
    assert list(labels(study)) == ["lnsr", "plain"]


def test_a_plain_entry_with_changes_is_not_the_baseline(write) -> None:
    study = load_study(write("methods: [{name: plain, weight_decay: 0.1}]\nmore_epochs: null\n"))
    assert list(labels(study)) == ["plain", "plain weight_decay=0.1"]


def test_lists_are_grids_unless_the_field_takes_the_list(write) -> None:
    study = load_study(
        write("""
methods:
  - {name: lnsr, weight: [0.5, 1], layer_weights: [1, 2]}
  - {name: uegr, combination: list, rates: [[0.1, 0.2], [0.2, 0.3]]}
weight_decay: [0.0, 0.1]
""")
    )
    lnsr = next(entry for entry in study.entries if "lnsr" in entry.settings[0].methods)
    assert len(lnsr.settings) == 4
    assert all(s.methods["lnsr"]["layer_weights"] == [1, 2] for s in lnsr.settings)
    assert {s.methods["lnsr"]["weight"] for s in lnsr.settings} == {0.5, 1}
    assert [len(entry.settings) for entry in study.entries] == [2, 2, 4, 4]


def test_tasks_and_sizes_make_conditions(write) -> None:
    study = load_study(
        write(
            """
task: [{name: one, text_columns: [text]}, {name: two, text_columns: [text], max_train_samples: 5}]
max_train_samples: [8, 16]
methods: [plain]
""",
            common="",
        )
    )
    found = [(c.task, c.max_train_samples) for c in study.conditions]
    assert found == [("one", 8), ("one", 16), ("two", 5)]


def test_a_folder_of_data_sets_has_one_for_each_task(write, inputs: Path, tmp_path: Path) -> None:
    (tmp_path / "sets").mkdir()
    (tmp_path / "sets" / "quality").symlink_to(inputs / "data")
    study = load_study(write("methods: [plain]\n"), options={"data": str(tmp_path / "sets")})
    assert study.runs[0, 0, 0].data == str(tmp_path / "sets" / "quality")


def test_errors_name_file_line_and_field(write) -> None:
    file = write("""
methods:
  - lnsrr
  - {name: jachess, evry: 8}
  - {name: smart, weight: -1}
  - mixout
  - mixout
seeds: [0, 0]
per_device_eval_batch_size: 0
seed: 3
color: red
evaluate: [calibratoin]
""")
    text = problems(file)
    assert f"{file}:22: evaluate[0]: must be 'calibration', 'robustness'" in text
    assert f"{file}:20: seed: write seeds" in text
    assert f"{file}:21: color: unknown field 'color'" in text
    assert f"{file}:18: seeds: holds a seed twice" in text
    assert f"{file}:16: methods[3]: 'mixout' is repeated; give one of them a label" in text
    assert f"{file}:13: methods.lnsrr: unknown method 'lnsrr'; did you mean 'lnsr'?" in text
    assert f"{file}:14: methods.jachess.evry: unknown field 'evry'; did you mean 'every'?" in text
    assert f"{file}:19: per_device_eval_batch_size: must be greater" in text
    assert text.count(": per_device_eval_batch_size: ") == 1
    file = write("\nmethods:\n  - {name: smart, weight: -1}\n")
    assert f"{file}:13: methods.smart.weight: must be greater" in problems(file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("methods: lnsr\n", "must be a list"),
        ("methods: [3]\n", "3 is not a method"),
        ("methods: [{name: lnsr, label: 3}]\n", "label: must be a valid string, not 3"),
        ("methods: [{name: lnsr, label: plain}]\n", "the label plain belongs to"),
        (
            "methods: [{name: lnsr, label: plain_more_epochs}]\n",
            "the label plain_more_epochs belongs to plain fine-tuning",
        ),
        (
            "methods: [{name: lnsr, epochs_factor: -1}]\n",
            "epochs_factor: must be greater than 0, not -1",
        ),
        ("methods: [{methods: {lnsr: {weight: 2}}}]\n", "methods: must be a valid list"),
        ("methods: [[lnsr, lnsr]]\n", "lnsr is repeated"),
        ("methods: ['lnsr:weight']\n", "is not field=value"),
        ("seeds: [-1]\n", "greater than or equal to 0"),
        ("seeds: []\n", "seeds: write which ones: seeds: [0, 1, 2]"),
        ("seeds: 3\n", "seeds: write which ones: seeds: [0, 1, 2]"),
        ("test: anova\n", "unknown field 'test'"),
        ("task: [{nam: x}]\n", "unknown field 'nam'"),
        ("model: [3]\n", "must be a name"),
        ("methods: [{name: mixout, max_grad_norm: 1.0}, cwgnc]\nmax_grad_norm: 1.0\n", "must be 0"),
    ],
)
def test_mistakes(write, text: str, message: str) -> None:
    common = "" if text.startswith("task") else "task: quality\n"
    file = write(text, common=common + "text_columns: [text]\n")
    if text.startswith("model"):  # the fixture has named one already
        lines = file.read_text(encoding="utf-8").splitlines()
        file.write_text("\n".join([lines[0], *lines[2:]]), encoding="utf-8")
    assert message in problems(file)


def test_scales_and_includes(write, tmp_path: Path) -> None:
    write(
        "seeds: [1]\nscales:\n  big: {max_steps: 9}\n  small: {max_steps: 2, seeds: [7]}\n",
        name="_base.yaml",
    )
    child = tmp_path / "child.yaml"
    child.write_text(
        "include: _base.yaml\nmethods: [lnsr]\nlogging_steps: 2\nscales:\n  small: {seeds: [8]}\n"
    )
    small = load_study(child, scale="small")
    assert small.config.seeds == [8]
    assert small.runs[0, 0, 0].max_steps == 2
    assert small.runs[0, 0, 0].logging_steps == 2
    assert load_study(child, scale="big").config.seeds == [1]
    assert small.name == "child (small)"
    assert "give --scale: big, small" in problems(child)
    assert "unknown scale 'tiny'" in problems(child, scale="tiny")
    assert "has no scales" in problems(write("methods: [lnsr]\n"), scale="small")
    child.write_text("include: ../x.yaml\n")
    assert "name of one file in the same folder" in problems(child)
    child.write_text("include: child.yaml\n")
    assert "name of one file" in problems(child)


def test_options_win_over_the_file(write) -> None:
    study = load_study(write("methods: [plain]\n"), options={"data": "elsewhere", "model": None})
    assert study.runs[0, 0, 0].data == "elsewhere"


def test_the_file_in_the_documentation_is_valid(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "study.md").read_text(encoding="utf-8")
    file = tmp_path / "study.yaml"
    file.write_text(page.split("```yaml\n")[1].split("```")[0], encoding="utf-8")
    study = load_study(file)
    assert list(labels(study)) == [
        "plain",
        "plain_more_epochs",
        "lnsr",
        "jachess every=8",
        "mixout+r3f",
    ]


def test_every_key_of_a_study_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "study.md").read_text(encoding="utf-8")
    table = page.split("## The file")[1].split("## Choosing settings")[0]
    assert {key for key in StudyConfig.model_fields if f"`{key}`" not in table} == set()


@pytest.mark.parametrize("model", ["x" * 256, "~nobody-of-this-name/x"])
def test_a_model_that_cannot_be_a_path(model: str, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(f"task: rte\nmodel: {model}\nmethods: [lnsr]\n")
    if len(model) > 255:
        with pytest.raises(ConfigError, match="longer than the 255 bytes"):
            load_study(tmp_path / "study.yaml")
    else:
        assert load_study(tmp_path / "study.yaml").conditions[0].model == model
