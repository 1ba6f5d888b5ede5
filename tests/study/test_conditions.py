"""Fields by task, by model and by method, other data sets, and what the command line leaves out."""

from pathlib import Path

import pytest

from smoothtune.errors import ConfigError
from smoothtune.study.config import load_study
from smoothtune.study.plan import Plan

TASKS = """
task:
  - {name: one, text_columns: [text], method_fields: {in_manifold: {noise_ratio: 0.2}}}
  - {name: two, text_columns: [text], num_train_epochs: 5}
"""


def problems(file: Path, **options) -> str:
    with pytest.raises(ConfigError) as caught:
        load_study(file, **options)
    return str(caught.value)


def runs(study, label: str) -> dict[str, dict]:
    entry = next(i for i, e in enumerate(study.entries) if e.label == label)
    return {study.conditions[c].task: run for (c, e, _), run in study.runs.items() if e == entry}


def test_fields_of_methods_by_task_and_for_all(write) -> None:
    text = (
        TASKS
        + """
methods:
  - lnsr
  - {name: lnsr, label: in_manifold, noise: in_manifold, noise_ratio: 0.1}
  - {methods: [mixout, lnsr], label: both}
method_fields: {lnsr: {weight: 2.0}, mixout: {p: 0.5}}
"""
    )
    study = load_study(write(text, common=""))
    manifold = runs(study, "in_manifold")
    assert [manifold[task].methods["lnsr"]["noise_ratio"] for task in ("one", "two")] == [0.2, 0.1]
    assert [run.methods["lnsr"]["weight"] for run in manifold.values()] == [2.0, 2.0]
    assert runs(study, "lnsr")["one"].methods["lnsr"]["noise_ratio"] is None
    both = runs(study, "both")["two"].methods
    assert (both["mixout"]["p"], both["lnsr"]["weight"], both["lnsr"].get("share")) == (
        0.5,
        2.0,
        None,
    )
    assert runs(study, "plain")["two"].num_train_epochs == 5
    wrong = text.replace("lnsr: {weight", "lnsrr: {weight")
    assert "unknown method 'lnsrr'" in problems(write(wrong, common=""))


def test_a_share_takes_the_place_of_a_weight(write) -> None:
    text = "methods: [{name: lnsr, label: lnsr, weight: 2}]\nmethod_fields: {lnsr: {share: 0.1}}\n"
    fields = runs(load_study(write(text)), "lnsr")["quality"].methods["lnsr"]
    assert (fields.get("weight"), fields["share"]) == (None, 0.1)


def test_fields_by_model(write, inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
model: [{name: MODEL, learning_rate: 1e-3, lora: {r: 2}}, minilm]
methods: [lnsr]
"""
    file = write(text.replace("MODEL", str(inputs / "model")))
    lines = file.read_text().splitlines()
    file.write_text("\n".join([lines[0], *lines[2:]]))  # the fixture names a model already
    study = load_study(file)
    assert [c.model for c in study.conditions] == ["model", "minilm"]
    first, second = (study.runs[c, 0, 0] for c in (0, 1))
    assert (first.learning_rate, second.learning_rate) == (1e-3, 1e-2)
    assert first.lora is not None
    assert first.lora.r == 2
    assert second.lora is None
    monkeypatch.setenv("SMOOTHTUNE_MODELS", str(inputs))
    file.write_text(file.read_text().replace(str(inputs / "model"), "model"))
    study = load_study(file)
    assert study.runs[0, 0, 0].model == str(inputs / "model")
    assert study.conditions[0].model == "model"
    searched = file.read_text() + "\nlearning_rate: [1e-3, 1e-4]\n"
    file.write_text(searched.replace("\nlearning_rate: 1e-2\n", "\n"))
    assert "is searched here, and fixed for quality, model" in problems(file)
    file.write_text(file.read_text().replace("lora: {r: 2}", "lorra: {r: 2}"))
    assert "unknown field 'lorra'; did you mean 'lora'" in problems(file)


def test_the_command_line_makes_a_study_smaller(write) -> None:
    tasks = TASKS.replace("in_manifold: {noise_ratio: 0.2}", "lnsr: {weight: 0.2}")
    file = write(tasks + "methods: [lnsr, mixout]\nseeds: [0, 1, 2]\n", common="")
    options = {"seeds": [1], "num_train_epochs": 2.0, "max_train_samples": 4}
    study = load_study(file, options=options, only={"methods": ["mixout"], "tasks": ["two"]})
    assert [entry.label for entry in study.entries] == ["plain", "mixout"]
    assert [c.task for c in study.conditions] == ["two"]
    assert study.config.seeds == [1]
    run = runs(study, "mixout")["two"]
    assert (run.num_train_epochs, run.max_train_samples) == (2.0, 4)  # not the 5 of the task
    text = problems(file, only={"methods": ["mixot"], "tasks": ["two"], "models": ["x"]})
    assert "--methods: unknown method 'mixot'; did you mean 'mixout'?" in text
    assert "--models: unknown model 'x'" in text


def test_other_data_sets_belong_to_a_cell(write, inputs: Path, tmp_path: Path) -> None:
    """By content; without them the identity is what it was."""
    other = tmp_path / "other.csv"
    other.write_text("text,label\ngood film,fine\nbad film,poor\n")
    plain = load_study(write("methods: [plain]\nmore_epochs: null\n"))
    text = f"methods: [plain]\nmore_epochs: null\nood: {{other: {other}}}\nfurther_share: 0.5\n"
    study = load_study(write(text))
    without, first = (Plan(each, None).final({})[0] for each in (plain, study))
    assert "extras" not in without.identity
    assert first.identity["extras"]["further_share"] == [0.5]
    assert str(tmp_path) not in str(first.identity)
    other.write_text("text,label\ngood film,poor\nbad film,poor\n")
    assert Plan(study, None).final({})[0].id != first.id
    assert "is not a plain name" in problems(write("methods: [plain]\nood: {'a/b': x}\n"))


def test_other_data_sets_of_a_task_lie_beside_it(write, inputs: Path, tmp_path: Path) -> None:
    (tmp_path / "sets" / "quality").mkdir(parents=True)
    (tmp_path / "sets" / "adv_rte").mkdir()
    text = """
task: [{name: quality, text_columns: [text], ood: {attacked: adv_rte, hub: {source: adv_sst2}}}]
methods: [plain]
ood: {ignored: nowhere}
"""
    study = load_study(write(text, common=""), options={"data": str(tmp_path / "sets")})
    (condition,) = study.conditions
    assert set(condition.ood) == {"attacked", "hub"}
    attacked, hub = condition.ood["attacked"], condition.ood["hub"]
    assert (attacked.source, attacked.preset) == (str(tmp_path / "sets" / "adv_rte"), "adv_rte")
    assert (hub.source, hub.preset) == ("adv_sst2", "adv_sst2")


def test_a_tasks_own_data_lie_in_the_folder_of_all(write, tmp_path: Path) -> None:
    (tmp_path / "sets" / "quality").mkdir(parents=True)
    text = """
task:
  - {name: few rows, data: quality, text_columns: [text], max_train_samples: 8}
  - {name: elsewhere, data: nowhere, text_columns: [text]}
  - {name: other, data: OTHERS, text_columns: [text]}
methods: [plain]
"""
    others = tmp_path / "others"
    (others / "other").mkdir(parents=True)
    text = text.replace("OTHERS", str(others))
    study = load_study(write(text, common=""), options={"data": str(tmp_path / "sets")})
    few, elsewhere, other = study.conditions
    assert few.fields["data"] == str(tmp_path / "sets" / "quality")
    assert elsewhere.fields["data"] == "nowhere"
    assert other.fields["data"] == str(others / "other")


@pytest.mark.parametrize(
    "text",
    [
        "task: [one, {name: one, num_train_epochs: 5}]\n",
        "task: [one, {name: one, method_fields: {lnsr: {share: 0.1}}}]\n",
        "task: one\nmodel: [MODEL, {name: MODEL, lora: {r: 2}}]\n",
        "task: [{name: one, max_train_samples: 8}, {name: one, num_train_epochs: 5}]\n"
        "max_train_samples: 8\n",
    ],
)
def test_runs_of_two_conditions_are_never_taken_for_each_other(
    text: str, inputs: Path, tmp_path: Path
) -> None:
    file = tmp_path / "study.yaml"
    common = f"data: {inputs / 'data'}\ntext_columns: [text]\nmethods: [lnsr]\n"
    common += f"model: {inputs / 'model'}\n" * ("model:" not in text)
    file.write_text(common + text.replace("MODEL", str(inputs / "model")))
    found = problems(file)
    assert "stands here twice with other fields" in found
    assert found.startswith(f"{file}:5: ")


def test_the_methods_of_a_model_are_labels(write, inputs: Path) -> None:
    file = write("methods: [lnsr]\nmodel: [{name: minilm, methods: [{name: lnsr}]}]\n")
    _, *lines = file.read_text().splitlines()
    file.write_text("\n".join(line for line in lines if not line.startswith(f"model: {inputs}")))
    assert "model[0].methods: is a list of labels" in problems(file)


def test_the_command_line_wins_over_an_entry(write) -> None:
    file = write("methods: [{name: lnsr, max_steps: 50}, {name: mixout, label: m}]\n")
    study = load_study(file, options={"max_steps": 2})
    assert [run.max_steps for run in study.runs.values()] == [2, 4, 2, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("task: {name: one, method_fields: {lnsrr: {weight: 3}}}\n", "unknown method 'lnsrr'"),
        ("task: one\nmethod_fields: {both: {weight: 1}}\n", "both has several methods: name one"),
    ],
)
def test_fields_that_would_have_no_effect_are_refused(write, text: str, message: str) -> None:
    methods = "methods: [lnsr, {methods: [mixout, r3f], label: both}]\n"
    assert message in problems(write(methods + text, common="text_columns: [text]\n"))


def test_fields_of_the_run_are_for_the_label_of_several_methods(write) -> None:
    methods = "methods: [lnsr, {methods: [mixout, r3f], label: both}]\n"
    study = load_study(write(methods + "method_fields: {both: {learning_rate: 1e-3}}\n"))
    assert runs(study, "both")["quality"].learning_rate == 1e-3
    assert runs(study, "lnsr")["quality"].learning_rate == 1e-2


def test_settings_are_compared_with_the_seed_of_the_file(write) -> None:
    """Parts of a study, each with some of the seeds, choose the same settings."""
    file = write("methods: [{name: lnsr, weight: [1, 2]}]\nseeds: [3, 4, 5]\n")
    assert load_study(file, options={"seeds": [5]}).selection_seeds == [3]
    assert load_study(write("methods: [lnsr]\n"), options={"seeds": [5]}).selection_seeds == [0]
    file = write("methods: [lnsr]\nselection_seeds: [7]\nseeds: [3, 4]\n")
    assert load_study(file, options={"seeds": [5]}).selection_seeds == [7]


def test_plain_that_is_longer_already_is_lengthened_too(write) -> None:
    study = load_study(write("methods: [{name: plain, label: plain, epochs_factor: 2}]\n"))
    assert [run.max_steps for run in study.runs.values()] == [6, 12]
