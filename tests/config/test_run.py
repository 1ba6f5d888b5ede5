from pathlib import Path

import pytest

from smoothtune import METHODS
from smoothtune.cli.study import StudyOptions
from smoothtune.config.draft import Draft
from smoothtune.config.evaluation import load_settings
from smoothtune.config.run import RunConfig, load_config
from smoothtune.config.tuning import load_tune
from smoothtune.config.yaml_file import parse_yaml, read_yaml
from smoothtune.errors import ConfigError

MINIMAL = "task: sst2\noutput_dir: out\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "run.yaml"
    path.write_text(text)
    return path


def problems(path: Path, **layers) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(path, **layers)
    return [str(problem).removeprefix(f"{path.parent}/") for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("1E3", 1000.0),
        (".5", 0.5),
        ("-1", -1),
        ("012", 12),
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("True", True),
        ("~", None),
        ("2026-01-01", "2026-01-01"),
        ("12:30:45", "12:30:45"),
        ("'1'", "1"),
    ],
)
def test_scalars(text: str, value: object) -> None:
    found = parse_yaml(f"key: {text}", name="x").value["key"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "x:3: a: is repeated; it is already set in line 1"),
        ("m:\n  k: 1\n  k: 2\n", "x:3: m.k: is repeated; it is already set in line 2"),
        ("a: &big [1]\nb: *big\n", "x:1: anchors and aliases (&big, *big) are not allowed"),
        ("\na: !!python/object/apply:os.system [ls]\n", "x:2: the tag tag:yaml.org,2002:python"),
        ("a: !!str 1\n", "x:1: the tag tag:yaml.org,2002:str is not allowed"),
        ("a: [1\n", "x:2: is not valid YAML"),
        ("a: 1\n---\nb: 2\n", "x:2: is not valid YAML: but found another document"),
        ("? [a]\n: 1\n", "x:1: a key must be a plain word"),
        ("[" * 5000 + "]" * 5000, "x:1: is nested too deeply"),
    ],
)
def test_refused_yaml(text: str, message: str) -> None:
    assert str(parse_yaml(text, name="x").problems[0]).startswith(message)


def test_python_tag_does_nothing(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    path = write(tmp_path, f"a: !!python/object/apply:pathlib.Path.touch [{trace}]\n")
    assert read_yaml(path).problems
    assert not trace.exists()


def test_unreadable_files(tmp_path: Path) -> None:
    assert problems(tmp_path / "none.yaml") == [
        "none.yaml: cannot be read: No such file or directory"
    ]
    assert problems(tmp_path) == [
        f"{tmp_path.name}: is a folder; name the run file, such as {tmp_path / 'run.yaml'}"
    ]
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"task: sst2\ndata: caf\xe9\n")
    assert problems(latin) == ["latin.yaml:2: is not UTF-8 (byte 20); save it as UTF-8"]
    assert problems(write(tmp_path, "- a\n")) == [
        "run.yaml: holds no fields; write key: value lines"
    ]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("epochs", "'num_train_epochs'"),
        ("lr", "'learning_rate'"),
        ("batch_size", "'per_device_eval_batch_size' or 'per_device_train_batch_size'"),
    ],
)
def test_short_names_are_understood(typed: str, meant: str, tmp_path: Path) -> None:
    found = problems(write(tmp_path, f"{MINIMAL}{typed}: 3\n"))
    assert f"unknown field {typed!r}; did you mean {meant}? All are in" in found[0]


def test_defaults_are_those_of_transformers(tmp_path: Path) -> None:
    from transformers import TrainingArguments

    config = load_config(write(tmp_path, MINIMAL))
    theirs = TrainingArguments(str(tmp_path))
    for name in (
        "learning_rate",
        "num_train_epochs",
        "max_steps",
        "seed",
        "per_device_train_batch_size",
        "weight_decay",
        "warmup_steps",
        "lr_scheduler_type",
    ):
        assert getattr(config, name) == getattr(theirs, name), name
    assert config.clip_norm() == theirs.max_grad_norm
    assert list(config.methods) == ["plain"]


def test_everything_wrong_at_once(tmp_path: Path) -> None:
    text = """\
task: sts2
data: 5
learning_rate: 1e-5
learning_rte: 3
bf16: no
output_dir: out
methods:
  - lnsr
  - name: mixout
    p: 3
    q: 1
  - lsnr
max_steps: 1.5
"""
    found = problems(write(tmp_path, text))
    assert [line.split(": ")[:2] for line in found] == [
        ["run.yaml:1", "task"],
        ["run.yaml:2", "data"],
        ["run.yaml:4", "learning_rte"],
        ["run.yaml:5", "bf16"],
        ["run.yaml:11", "methods.mixout.q"],
        ["run.yaml:12", "methods.lsnr"],
        ["run.yaml:13", "max_steps"],
    ]
    assert "did you mean 'stsb'? Known: " in found[0]
    assert "did you mean 'learning_rate'?" in found[2]
    assert "not 'no'" in found[3]
    assert "did you mean 'lnsr'?" in found[5]
    mended = MINIMAL + "methods:\n  mixout: {p: 3}\n  lnsr: {weight: -1, share: no}\n"
    assert [line.split(": ")[:2] for line in problems(write(tmp_path, mended))] == [
        ["run.yaml:4", "methods.mixout.p"],
        ["run.yaml:5", "methods.lnsr.weight"],
        ["run.yaml:5", "methods.lnsr.share"],
    ]


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("reinit", "ramp_start"),
        ("mixout", "weight"),
        ("llrd", "every"),
        ("freelb", "share"),
        ("r_drop", "rows"),
    ],
)
def test_a_field_of_a_penalty_is_none_of_another_method(tmp_path, name, field) -> None:
    text = MINIMAL + f"methods:\n  {name}:\n    {field}: 1\n"
    line = text.splitlines().index(f"    {field}: 1") + 1
    (problem,) = problems(write(tmp_path, text))
    assert problem.startswith(f"run.yaml:{line}: methods.{name}.{field}: unknown field '{field}'")
    with pytest.raises(ValueError, match=field):
        METHODS[name](**{field: 1})


def test_missing_fields(tmp_path: Path) -> None:
    found = problems(write(tmp_path, "seed: 1\n"))
    assert [line.split(":")[1].strip() for line in found] == ["task", "output_dir"]


def test_precedence_file_set_option(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL + "seed: 1\nmax_steps: 1\nlearning_rate: 1e-3\n")
    config = load_config(path, ["seed=2", "max_steps=2"], {"seed": 3, "data": None})
    assert (config.seed, config.max_steps, config.learning_rate) == (3, 2, 1e-3)


def test_a_value_that_replaces_that_of_the_file_has_its_own_origin(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL + "data: x\ntext_columns:\n- a\n- b\n")
    (problem,) = problems(path, overrides=["text_columns=[1]"])
    assert problem.startswith("--set text_columns=[1]: text_columns[0]: ")


def test_a_field_of_two_types_is_one_problem(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL + "class_weights:\n- 1\n- -2\nlora: {target_modules: [q, 3]}\n")
    assert problems(path) == [
        "run.yaml:5: class_weights[1]: must be greater than 0, not -2",
        "run.yaml:6: lora.target_modules[1]: must be a valid string, not 3",
    ]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("eval_steps: 9", "eval_steps: needs eval_strategy: steps"),
        ("save_steps: 9", "save_steps: needs save_strategy: steps"),
        (
            "load_best_model_at_end: true\nsave_steps: 9",
            "save_steps: is eval_steps with load_best_model_at_end",
        ),
        (
            "lr_scheduler_type: constant\nwarmup_steps: 9",
            "warmup_steps: needs another lr_scheduler_type",
        ),
        (
            "load_best_model_at_end: true\nearly_stopping_threshold: 0.1",
            "early_stopping_threshold: needs early_stopping_patience",
        ),
    ],
)
def test_fields_that_would_do_nothing(tmp_path: Path, fields: str, message: str) -> None:
    assert [x for x in problems(write(tmp_path, f"{MINIMAL}{fields}\n")) if message in x]


def test_a_field_of_the_run_that_is_a_default_of_other_types_is_kept() -> None:
    fields = {"task": "squad", "output_dir": "o", "max_seq_length": 128}
    assert load_config(options=fields).in_force(exclude_unset=True)["max_seq_length"] == 128


def test_set_reaches_into_methods(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL + "methods: [lnsr]\n")
    config = load_config(path, ["methods.lnsr.noise_ratio=0.1", "methods.l2_sp={alpha: 0.5}"])
    assert config.methods["lnsr"]["noise_ratio"] == 0.1
    assert config.methods["l2_sp"]["alpha"] == 0.5
    alone = load_config(write(tmp_path, MINIMAL), ["methods.l2_sp.alpha=0.5"])
    assert list(alone.methods) == ["l2_sp"]  # in the place of plain
    assert problems(path, overrides=["seed"]) == ["--set: 'seed' is not key=value"]
    assert problems(path, overrides=["methods.lnsr.noise_ratio=-1"]) == [
        "--set methods.lnsr.noise_ratio=-1: methods.lnsr.noise_ratio: "
        "must be greater than 0, not -1",
    ]


def test_method_option_replaces_the_methods_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL + "methods: [mixout]\n")
    config = load_config(path, methods=["lnsr:weight=2", "l2_sp"])
    assert list(config.methods) == ["lnsr", "l2_sp"]
    assert config.methods["lnsr"]["weight"] == 2


def test_method_option() -> None:
    draft = Draft()
    spec = "lnsr:noise=in_manifold,layer_weights=[1,2e-1],weight=2"
    assert draft.parse_method(spec, "--method") == {
        "name": "lnsr",
        "noise": "in_manifold",
        "layer_weights": [1, 0.2],
        "weight": 2,
    }
    assert draft.parse_method("plain", "--method") == {"name": "plain"}
    draft.stop_at_problems()
    draft.parse_method("lnsr:noise=standard,weight", "--method")
    draft.parse_method("l2_sp:alpha=1,alpha=2", "--method")
    with pytest.raises(ConfigError) as caught:
        draft.stop_at_problems()
    assert "--method: methods.lnsr: 'weight' is not field=value" in str(caught.value)
    assert "--method: methods.l2_sp: alpha is repeated" in str(caught.value)


@pytest.mark.parametrize(
    "methods", ["methods: lnsr", "methods: [lnsr]", "methods: {lnsr: }", "methods: [{name: lnsr}]"]
)
def test_ways_to_write_one_method(tmp_path: Path, methods: str) -> None:
    assert list(load_config(write(tmp_path, MINIMAL + methods)).methods) == ["lnsr"]


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ("[lnsr, lnsr]", "lnsr is repeated"),
        ("[]", "is empty"),
        ("[3]", "is not a method"),
        ("{lnsr: 5}", "the fields of lnsr must be a mapping"),
    ],
)
def test_refused_methods(tmp_path: Path, methods: str, message: str) -> None:
    (found,) = problems(write(tmp_path, f"{MINIMAL}methods: {methods}\n"))
    assert message in found


def test_methods_round_trip_with_every_field() -> None:
    from smoothtune import LNSR

    config = RunConfig(task="rte", output_dir="out", methods={"lnsr": {"layer_weights": [1, 2]}})
    assert RunConfig.model_validate(config.model_dump(mode="json")) == config
    (regularizer,) = config.regularizers()
    assert regularizer == LNSR(layer_weights=[1.0, 2.0])
    assert set(config.methods["lnsr"]) == set(regularizer.settings()) >= {"share"}


def test_gradient_clip_is_off_with_a_method_that_clips(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL + "methods: [cwgnc]\n")
    assert load_config(path).clip_norm() == 0
    (found,) = problems(path, overrides=["max_grad_norm=1"])
    assert found.startswith("--set max_grad_norm=1: max_grad_norm: must be 0 with cwgnc")


def test_a_task_that_is_missing_says_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "my rows.csv"
    file.touch()
    options = {"data": str(file), "output_dir": "out"}
    with pytest.raises(ConfigError, match="task: is missing. For data of your own, name ") as found:
        load_config(options=options)
    assert f"`smoothtune init '{file}'` guesses" in str(found.value)
    with pytest.raises(ConfigError, match="unknown task 'mine'.*`smoothtune init FILE`"):
        load_config(options={"task": "mine", "output_dir": "out"})


def test_a_close_name_is_named_alone() -> None:
    options = {"task": "rte", "output_dir": "out"}
    with pytest.raises(ConfigError) as found:
        load_config(None, ["sede=1"], options, ["lnsr:nose=1"])
    assert str(found.value).splitlines() == [
        "--method: methods.lnsr.nose: unknown field 'nose'; did you mean 'noise'? All are in the "
        "list of `smoothtune methods lnsr`",
        "--set sede=1: sede: unknown field 'sede'; did you mean 'seed'? All are in "
        "docs/settings.md",
    ]
    with pytest.raises(ConfigError, match="unknown field 'zz'. Known: allow_new_weights, alte"):
        load_config(None, ["zz=1"], options)
    with pytest.raises(ConfigError, match="did you mean 'dropout'. Known: alpha, dropout, "):
        load_config(options=options | {"lora": "droput=0.1"})


def test_custom_data_set(tmp_path: Path) -> None:
    path = write(tmp_path, "output_dir: out\ntext_columns: [title, body]\n")
    assert problems(path) == ["run.yaml: data: is missing: a hub id, a folder or a file"]
    assert load_config(path, ["data=my.csv"]).task == "custom"
    path = write(tmp_path, MINIMAL + "label_column: stars\n")
    assert problems(path) == ["run.yaml:3: label_column: needs text_columns"]


def test_identity_ignores_where_the_result_goes() -> None:
    first = RunConfig(task="rte", output_dir="a")
    assert first.identity() == RunConfig(task="rte", output_dir="b").identity()
    assert first.identity() != RunConfig(task="rte", output_dir="a", seed=7).identity()


def test_a_run_that_names_no_method_is_the_run_with_plain(tmp_path: Path) -> None:
    silent = RunConfig(task="sst2", output_dir="a").identity()
    assert silent == RunConfig(task="sst2", output_dir="a", methods={"plain": {}}).identity()
    assert silent == load_config(write(tmp_path, MINIMAL)).identity()


def test_no_updates_are_none_of_all_epochs(tmp_path: Path) -> None:
    file = write(tmp_path, MINIMAL + "max_steps: 0\n")
    told = "run.yaml:3: max_steps: must be at least 1, or -1: as num_train_epochs says"
    assert problems(file) == [told]
    assert load_config(file, ["max_steps=-1"]).max_steps == -1


def test_folders_of_results_may_be_in_the_home(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))  # of Windows
    options = {"task": "rte", "output_dir": "~/out"}
    assert Path(load_config(options=options).output_dir) == tmp_path / "out"
    assert Path(load_tune(options=options).run.output_dir) == tmp_path / "out"
    settings = load_settings(options={"model": "m", "output_dir": "~/out"})
    assert settings.folder == tmp_path / "out"
    assert StudyOptions(output_dir="~/out").output_dir == tmp_path / "out"


@pytest.mark.parametrize("text", ['"\\ud800"', '"a\\0b"'])
def test_what_is_no_text(text: str, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(f"task: rte\noutput_dir: {text}\n")
    with pytest.raises(ConfigError, match=r"run.yaml:2: holds .* which is no text"):
        load_config(tmp_path / "run.yaml")


@pytest.mark.parametrize("field", ["data", "model", "output_dir"])
def test_names_that_no_file_can_have(field: str) -> None:
    options = {"task": "rte", "output_dir": "out"} | {field: "x" * 256}
    with pytest.raises(ConfigError, match="longer than the 255 bytes"):
        load_config(options=options)


@pytest.mark.parametrize(
    ("given", "alternate", "steps"),
    [
        ({}, "batch", 2),
        ({"alternate": "batch"}, "batch", 2),
        ({"gradient_accumulation_steps": 4}, "batch", 4),
        ({"alternate": "step"}, "step", 1),
        ({"alternate": "epoch"}, "epoch", 1),
    ],
)
def test_unlabeled_rows_add_a_batch_to_every_update(given, alternate, steps) -> None:
    config = RunConfig(task="sst2", output_dir="a", unlabeled="texts.csv", **given)
    assert (config.alternate, config.gradient_accumulation_steps) == (alternate, steps)
    assert RunConfig.model_validate(config.model_dump()) == config


def test_runs_without_unlabeled_rows_do_not_say_how_these_alternate() -> None:
    config = RunConfig(task="sst2", output_dir="a")
    assert config.gradient_accumulation_steps == 1
    assert config.identity() == RunConfig(task="sst2", output_dir="a", alternate="step").identity()
    assert "alternate" not in config.in_force() | config.identity()
    assert RunConfig.model_validate(config.in_force()) == config
    dual = config.model_copy(update={"unlabeled": "texts.csv"})
    assert dual.in_force()["alternate"] == dual.identity()["alternate"] == "batch"
