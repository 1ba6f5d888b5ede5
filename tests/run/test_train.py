import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib.metadata import version
from pathlib import Path
from unittest import mock

import pytest
import torch
from datasets import Dataset
from filelock import FileLock
from rich.console import Console
from safetensors.torch import load_file
from transformers import AutoModel

from smoothtune import METHODS, NonFiniteLoss
from smoothtune.config.run import RunConfig
from smoothtune.core.traits import Traits
from smoothtune.device import SLOW_BFLOAT16
from smoothtune.errors import ConfigError, DataError, OutputError, Stopped
from smoothtune.methods import noise_base
from smoothtune.models.load import load_base
from smoothtune.results import RunResult
from smoothtune.run import train as train_module
from smoothtune.run.callbacks import ProgressCallback
from smoothtune.run.output import newest_checkpoint
from smoothtune.run.result import below_constant
from smoothtune.run.train import train
from smoothtune.run.trainer import some_examples

LOADS_ALONE = """
import sys
sys.modules["smoothtune"] = None
from transformers import AutoModel, AutoModelForSequenceClassification, pipeline
AutoModel.from_pretrained(sys.argv[1])
AutoModelForSequenceClassification.from_pretrained(sys.argv[1])
print(pipeline("text-classification", model=sys.argv[1])("a good film")[0]["label"])
"""


@pytest.fixture
def settings(inputs: Path, tmp_path: Path) -> dict:
    return {
        "task": "quality",
        "data": str(inputs / "data"),
        "text_columns": ["text"],
        "model": str(inputs / "model"),
        "methods": {"lnsr": {"weight": 0.5}, "l2_sp": {}},
        "output_dir": str(tmp_path / "out"),
        "num_train_epochs": 2.0,
        "logging_steps": 2,
        "cost_steps": 0,
        "learning_rate": 1e-2,
        "seed": 7,
    }


def quiet_train(config: RunConfig, **options) -> dict:
    with open(os.devnull, "w") as nothing:
        return train(config, console=Console(file=nothing), **options)


def weights(config: RunConfig) -> dict[str, torch.Tensor]:
    return load_file(Path(config.output_dir) / "model.safetensors")


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def test_result_and_model_folder(settings: dict, inputs: Path) -> None:
    config = RunConfig(**settings | {"cost_steps": 1})
    returned = quiet_train(config)
    folder = Path(config.output_dir)
    result = json.loads((folder / "result.json").read_text())
    assert {key: result[key] for key in returned} == returned
    assert (result["task"], result["seed"], result["model"]) == ("quality", 7, settings["model"])
    assert result["methods"]["lnsr"]["weight"] == 0.5
    assert result["methods"]["lnsr"]["noise"] == "standard"
    assert result["config"]["learning_rate"] == 1e-2
    assert result["cost"]["steps"] == 6
    assert result["cost"]["ratio_to_plain"] > 0
    assert result["cost"]["peak_rss_bytes"] > 50e6
    assert result["trivial_baseline"] == 0.5
    gap = result["train_metrics"]["accuracy"] - result["metrics"]["accuracy"]
    assert result["generalization_gap"] == pytest.approx(gap)
    content = (inputs / "model" / "model.safetensors").read_bytes()
    assert result["fingerprints"]["base_weights"] == hashlib.sha256(content).hexdigest()
    assert result["versions"]["torch"] == version("torch")
    logged = {key for entry in result["log_history"] for key in entry}
    assert {"loss", "loss/task", "loss/lnsr", "loss/l2_sp", "eval_accuracy"} <= logged
    written_by_4 = {"special_tokens_map.json"}  # transformers 4.x
    assert sorted({path.name for path in folder.iterdir()} - written_by_4) == [
        "README.md",
        "config.json",
        "model.safetensors",
        "result.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def test_a_short_run_shows_its_terms_and_is_the_same_run(settings: dict, tmp_path: Path) -> None:
    """Unless it says `logging_steps`; the defaults would log nothing of 20 updates."""
    del settings["logging_steps"]
    settings |= {"max_steps": 20, "cost_steps": 0, "eval_strategy": "no"}
    short = RunConfig(**settings)
    told = RunConfig(**settings | {"logging_steps": 50, "output_dir": str(tmp_path / "told")})
    results = [quiet_train(short), quiet_train(told)]
    logs = [[e["step"] for e in r["log_history"] if "loss/lnsr" in e] for r in results]
    assert logs == [list(range(2, 21, 2)), []]
    assert results[0]["metrics"] == results[1]["metrics"]
    assert same(weights(short), weights(told))
    again = quiet_train(RunConfig(**settings | {"logging_steps": 50}))
    assert again["log_history"] == results[0]["log_history"]  # it is there already


def test_training_rows_are_scored_on_a_sample(settings: dict) -> None:
    scored, original = [], train_module.evaluate

    def evaluate(trainer, task, rows):
        scored.append(rows)
        return original(trainer, task, rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_module, "evaluate", evaluate)
        result = quiet_train(RunConfig(**settings | {"max_train_eval_samples": 5}))
    validation, seen = scored
    assert (len(validation), len(seen)) == (24, 5)
    assert result["train_rows"] == 5
    card = (Path(settings["output_dir"]) / "README.md").read_text()
    assert "| metric | validation | train, 5 rows |" in card
    assert result["train_metrics"]["accuracy"] * 5 == pytest.approx(
        round(result["train_metrics"]["accuracy"] * 5)
    )


def test_a_sample_holds_all_windows_of_an_example() -> None:
    rows = Dataset.from_dict({"example_id": [0, 0, 1, 2, 2, 2, 5, 7], "row": list(range(8))})
    few, more = (some_examples(rows, count, seed=1) for count in (2, 4))
    assert len(set(few["example_id"][:])) == 2
    assert set(few["row"][:]) < set(more["row"][:])
    windows = {0: 2, 1: 1, 2: 3, 5: 1, 7: 1}
    assert len(more) == sum(windows[number] for number in set(more["example_id"][:]))
    assert some_examples(rows, 5, seed=1) is some_examples(rows, None, seed=1) is rows


@pytest.mark.parametrize(
    "strategy", ["group_by_length", pytest.param("random", marks=pytest.mark.slow)]
)
def test_predictions_meet_the_labels_of_their_own_rows(settings: dict, strategy: str) -> None:
    """The trainer's loss pairs them within batches, metrics after putting rows in order."""
    result = quiet_train(RunConfig(**settings | {"train_sampling_strategy": strategy}))
    evaluations = [entry for entry in result["log_history"] if "eval_nll" in entry]
    assert len(evaluations) == 2
    for entry in evaluations:
        assert entry["eval_nll"] == pytest.approx(entry["eval_loss"], rel=1e-5)
    assert evaluations[-1]["eval_nll"] == pytest.approx(result["metrics"]["nll"], rel=1e-5)


def in_this_process(folder: str) -> str:
    output, modules = io.StringIO(), [name for name in sys.modules if name.startswith("smoothtune")]
    with (
        mock.patch.dict(sys.modules, dict.fromkeys(modules)),
        mock.patch.object(sys, "argv", ["-c", folder]),
        redirect_stdout(output),
    ):
        exec(LOADS_ALONE, {"__name__": "alone"})
    return output.getvalue()


def in_a_new_process(folder: str) -> str:
    command = [sys.executable, "-c", LOADS_ALONE, folder]
    return subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout


@pytest.mark.parametrize(
    "load", [in_this_process, pytest.param(in_a_new_process, marks=pytest.mark.slow)]
)
def test_folder_loads_without_smoothtune(settings: dict, load: Callable[[str], str]) -> None:
    config = RunConfig(**settings | {"max_steps": 1, "methods": {"mixout": {}}})
    quiet_train(config)
    assert load(config.output_dir).split()[-1] in ("fine", "poor")
    suffixes = {path.suffix for path in Path(config.output_dir).iterdir()}
    assert suffixes == {".safetensors", ".json", ".md"}  # no pickle, no code
    assert "auto_map" not in (Path(config.output_dir) / "config.json").read_text()


def test_it_learns(settings: dict) -> None:
    result = quiet_train(
        RunConfig(**settings | {"num_train_epochs": 12.0, "methods": {"lnsr": {"share": 0.01}}})
    )
    assert result["metrics"]["accuracy"] > 0.9


@pytest.mark.skipif(torch.accelerator.is_available(), reason="the CPU has bf16 of its own")
@pytest.mark.parametrize("slow", [False, True])
def test_bf16_without_an_accelerator(
    settings: dict, slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A processor that is many times slower with it says so before the first step."""
    monkeypatch.setattr("smoothtune.run.train.slow_at_bfloat16", lambda: slow)
    said = io.StringIO()
    config = RunConfig(**settings | {"bf16": True, "max_steps": 1})
    result = train(config, console=Console(file=said, width=300))
    assert result["config"]["bf16"]
    assert (SLOW_BFLOAT16 in said.getvalue()) == slow


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.filterwarnings("ignore:.*script_method. is deprecated:DeprecationWarning")
def test_torch_compile(settings: dict, tmp_path: Path) -> None:
    """Without dropout losses are those of a run that compiles nothing."""
    model = AutoModel.from_pretrained(
        settings["model"], hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    shutil.copytree(settings["model"], tmp_path / "model")
    model.save_pretrained(tmp_path / "model")
    settings |= {"model": str(tmp_path / "model"), "max_steps": 4, "logging_steps": 1}
    plain = quiet_train(RunConfig(**settings))
    other = {"torch_compile": True, "output_dir": str(tmp_path / "compiled")}
    compiled = quiet_train(RunConfig(**settings | other))
    assert compiled["cost"]["ratio_to_plain"] is None
    found, expected = (
        [
            [entry[name] for name in ("loss/task", "loss/lnsr")]
            for entry in result["log_history"]
            if "loss/task" in entry
        ]
        for result in (compiled, plain)
    )
    assert len(found) == 4
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3)
    assert compiled["metrics"]["nll"] == pytest.approx(plain["metrics"]["nll"], rel=1e-3)


def test_torch_compile_reaches_the_trainer(settings: dict) -> None:
    """Which refuses what does not work on compiled blocks."""
    config = RunConfig(**settings | {"torch_compile": True, "methods": {"mixout": {}}})
    with pytest.raises(ConfigError, match="mixout with compiled blocks"):
        quiet_train(config)


def test_model_card_tells_the_run_and_escapes(settings: dict) -> None:
    name = "<script>alert(1)</script> | [x](y) `z`"
    quiet_train(RunConfig(**settings | {"task": name, "max_steps": 1}))
    card = (Path(settings["output_dir"]) / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert "Noise Stability Regularization" in card
    assert "| learning\\_rate | 0.01 |" in card
    assert "<script>" not in card
    assert "alert(1)&lt;/script&gt; \\| \\[x\\](y) \\`z\\`" in card


def test_a_model_at_chance_is_told_in_the_terminal(settings: dict) -> None:
    said = io.StringIO()
    few = settings | {"methods": {"plain": {}}, "max_steps": 1, "learning_rate": 1e-9}
    result = train(RunConfig(**few), console=Console(file=said, width=200))
    assert result["metrics"]["accuracy"] <= result["trivial_baseline"] == 0.5
    assert "is not better than the best constant answer, which has 0.5000:" in said.getvalue()
    better = result | {"metrics": {"accuracy": 0.51}}
    assert below_constant(RunResult.parse(better)) == ""


@pytest.mark.parametrize(
    ("methods", "given", "shown"),
    [({"plain": {}}, None, "1.0"), ({"cwgnc": {}}, None, "0.0"), ({"plain": {}}, 0.5, "0.5")],
)
def test_model_card_says_what_was_in_force(
    methods: dict, given: float | None, shown: str, settings: dict
) -> None:
    changes = {"methods": methods, "max_grad_norm": given, "max_steps": 1, "cost_steps": 0}
    strategy = "epoch" if given else "no"
    result = quiet_train(RunConfig(**settings | changes | {"eval_strategy": strategy}))
    assert result["config"]["max_grad_norm"] == given
    card = (Path(settings["output_dir"]) / "README.md").read_text()
    assert f"| max\\_grad\\_norm | {shown} |" in card
    assert card.count("| field | value |") == 1 + (methods != {"plain": {}})  # it has no fields
    assert "| None |" not in card  # what is unset
    assert ("used to watch the training" in card) == (strategy == "epoch")


def test_measuring_the_cost_changes_nothing(settings: dict, tmp_path: Path) -> None:
    measured = RunConfig(**settings | {"cost_steps": 1})
    unmeasured = RunConfig(**settings | {"output_dir": str(tmp_path / "other")})
    assert quiet_train(measured)["cost"]["ratio_to_plain"] is not None
    assert quiet_train(unmeasured)["cost"]["ratio_to_plain"] is None
    assert same(weights(measured), weights(unmeasured))


def test_seed_decides(settings: dict, tmp_path: Path) -> None:
    first = RunConfig(**settings | {"max_steps": 1})
    other = first.model_copy(update={"seed": 8, "output_dir": str(tmp_path / "other")})
    quiet_train(first)
    quiet_train(other)
    assert not same(weights(first), weights(other))


def test_done_run_is_not_repeated(settings: dict) -> None:
    config = RunConfig(**settings | {"max_steps": 1})
    result = quiet_train(config)
    file = Path(config.output_dir) / "model.safetensors"
    before = file.stat().st_mtime_ns
    assert quiet_train(config)["cost"] == result["cost"]
    assert file.stat().st_mtime_ns == before


def test_run_of_an_older_method_is_not_taken_for_this_one(
    settings: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = RunConfig(**settings | {"max_steps": 1})
    quiet_train(config)
    monkeypatch.setattr(METHODS["lnsr"], "declared", Traits(version=99))
    with pytest.raises(OutputError, match=r"versions of methods.lnsr \d, here 99"):
        quiet_train(config)


def test_different_run_is_refused_unless_asked(settings: dict) -> None:
    quiet_train(RunConfig(**settings | {"max_steps": 1}))
    other = RunConfig(**settings | {"max_steps": 2})
    with pytest.raises(OutputError, match="holds a different run .max_steps 1, here 2") as found:
        quiet_train(other)
    assert str(found.value).endswith("or replace that run with --overwrite-output-dir")
    asked = other.model_copy(update={"overwrite_output_dir": True})
    assert quiet_train(asked)["cost"]["steps"] == 2


@pytest.mark.parametrize("overwrite", [False, True])
def test_folder_with_other_files_is_never_written(settings: dict, overwrite: bool) -> None:
    folder = Path(settings["output_dir"])
    folder.mkdir()
    (folder / "thesis.tex").write_text("all my work")
    with pytest.raises(OutputError, match=r"holds other files \(thesis.tex\)"):
        quiet_train(RunConfig(**settings | {"overwrite_output_dir": overwrite}))
    assert [path.name for path in folder.iterdir()] == ["thesis.tex"]


def test_two_processes_on_one_folder(settings: dict) -> None:
    folder = Path(settings["output_dir"])
    folder.mkdir()
    with (
        FileLock(folder / ".lock"),
        pytest.raises(OutputError, match="being written by another process"),
    ):
        quiet_train(RunConfig(**settings))


@pytest.mark.parametrize(
    "strategy", ["group_by_length", pytest.param("random", marks=pytest.mark.slow)]
)
def test_signal_leaves_a_checkpoint_and_the_resumed_run_is_the_same(
    settings: dict, strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings | {"train_sampling_strategy": strategy}
    whole = RunConfig(**settings | {"output_dir": str(tmp_path / "whole")})
    quiet_train(whole)
    config = RunConfig(**settings)
    moved = ProgressCallback.on_step_end

    def stop_at_4(self, args, state, control, **others):
        moved(self, args, state, control, **others)
        if state.global_step == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(ProgressCallback, "on_step_end", stop_at_4)
        with pytest.raises(Stopped, match="after step 4 of 6"):
            quiet_train(config)
    folder = Path(config.output_dir)
    assert not (folder / "result.json").exists()
    assert not (folder / "model.safetensors").exists()
    assert newest_checkpoint(folder).folder.name == "checkpoint-4"
    with pytest.raises(OutputError, match="--resume-from-checkpoint"):
        quiet_train(config)
    result = quiet_train(config, resume=True)
    assert result["cost"]["steps"] == 6
    assert same(weights(config), weights(whole))
    assert not (folder / "checkpoints").exists()


def test_nothing_to_resume(settings: dict) -> None:
    with pytest.raises(OutputError, match="no complete checkpoint to resume from"):
        quiet_train(RunConfig(**settings), resume=True)


def test_not_finite_loss_leaves_no_model(settings: dict) -> None:
    config = RunConfig(**settings | {"learning_rate": 1e30})
    with pytest.raises(NonFiniteLoss, match=r"update 2, examples \[\d+, "):
        quiet_train(config)
    assert not list(Path(config.output_dir).glob("**/*.safetensors"))
    assert not (Path(config.output_dir) / "result.json").exists()
    quiet_train(config.model_copy(update={"learning_rate": 1e-3}))  # nothing was lost: go on


def test_method_that_does_not_fit_the_model(settings: dict) -> None:
    config = RunConfig(**settings | {"methods": {"lnsr": {"layer_weights": [1.0] * 5}}})
    with pytest.raises(ConfigError, match="layer_weights has 5 entries"):
        quiet_train(config)


def test_bad_label_names_the_row_before_the_first_step(settings: dict, tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\na good film,fine\na bad film,\na film,poor\n")
    config = RunConfig(**settings | {"data": str(tmp_path / "train.csv")})
    with pytest.raises(DataError, match="line 3, column 'label'"):
        quiet_train(config)


def test_regression(settings: dict, tmp_path: Path) -> None:
    rows = "".join(f"good film {i} {'very ' * (i % 4)},{i % 4}.5\n" for i in range(24))
    (tmp_path / "train.csv").write_text("text,label\n" + rows)
    config = RunConfig(**settings | {"data": str(tmp_path / "train.csv"), "max_steps": 2})
    result = quiet_train(config)
    assert set(result["metrics"]) == {"pearson", "spearman"}
    assert result["brier"] is None
    saved = json.loads((Path(config.output_dir) / "config.json").read_text())
    assert saved["problem_type"] == "regression"
    biases = {}
    for start in ("mean", "zero"):
        barely = {"max_steps": 1, "learning_rate": 1e-9, "regression_bias": start}
        folder = tmp_path / start
        quiet_train(RunConfig(**config.model_dump() | barely | {"output_dir": str(folder)}))
        biases[start] = load_file(folder / "model.safetensors")["classifier.bias"].item()
    assert biases["zero"] == pytest.approx(0, abs=1e-6)
    assert biases["mean"] == pytest.approx(2, abs=0.5)  # of a seeded part of the rows


def test_what_is_printed(settings: dict, capsys: pytest.CaptureFixture) -> None:
    changes = {"methods": {"cwgnc": {}}, "cost_steps": 1}
    train(RunConfig(**settings | changes), console=Console(file=sys.stdout))
    printed = capsys.readouterr().out
    for part in (
        "train: rows 24; labels fine 12, poor 12; tokens min ",
        "new weights: classifier.bias, classifier.weight",
        "a step with cwgnc takes ",
        "attention: sdpa (",
        "max_grad_norm is 0: cwgnc clips gradients itself",
        "cwgnc step 6/6 evaluation: ",
        "loss/task ",
        "validation: accuracy 0.",
    ):
        assert part in printed


def test_in_manifold_noise_knows_the_texts_from_the_cost_of_a_step_on(
    settings: dict, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    noise_base.warn_once.cache_clear()
    lnsr = {"lnsr": {"noise": "in_manifold", "k": 3}}
    with caplog.at_level("INFO"):
        quiet_train(RunConfig(**settings | {"methods": lnsr, "max_steps": 1, "cost_steps": 1}))
    audits = [text for text in caplog.messages if text.startswith("in-manifold noise: ")]
    assert len(audits) == 2  # of the cost, and of the run
    assert audits[0] == audits[1]
    assert "neighbors of film: " in audits[0]
    assert "[SEP]" not in audits[0]
    assert not [text for text in caplog.messages if "read_training_rows" in text]
    too_many = {"methods": {"lnsr": {"noise": "in_manifold"}}, "output_dir": f"{tmp_path}/other"}
    too_many |= {"cost_steps": 1}
    with pytest.raises(ConfigError, match="k=10 neighbors need .*: lower k"):
        quiet_train(RunConfig(**settings | too_many))


GLUE = os.environ.get("SMOOTHTUNE_DATA")


@pytest.mark.slow
@pytest.mark.skipif(not GLUE, reason="SMOOTHTUNE_DATA is not set")
@pytest.mark.parametrize("methods", [{"plain": {}}, {"lnsr": {"noise": "in_manifold"}}])
def test_sst2_with_minilm(methods: dict, tmp_path: Path) -> None:
    assert load_base("minilm").tokenizer.model_max_length == 512
    config = RunConfig(
        task="sst2",
        data=f"{GLUE}/sst2",
        methods=methods,
        max_train_samples=1000,
        max_eval_samples=400,
        num_train_epochs=2,
        per_device_train_batch_size=16,
        learning_rate=1e-4,
        output_dir=str(tmp_path / "out"),
    )
    result = quiet_train(config)
    assert result["metrics"]["accuracy"] > result["trivial_baseline"] + 0.15
