"""A whole search on a tiny model: what it reads, writes and says."""

import csv
import io
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from helpers.study_files import finished
from helpers.tiny_folder import WORDS
from smoothtune.cli import app
from smoothtune.cli.output import USAGE
from smoothtune.config.run import RunConfig, load_config
from smoothtune.config.tuning import load_auto, load_tune
from smoothtune.device import SLOW_BFLOAT16
from smoothtune.errors import ConfigError, DataError, OutputError
from smoothtune.results import Part
from smoothtune.study.pool import Ended
from smoothtune.study.records import Cell, Records
from smoothtune.tune import run as tune_run
from smoothtune.tune.cells import CALIBRATION
from smoothtune.tune.price import StepTimes, measure
from smoothtune.tune.run import run_tune

SMALL = {
    "budget": 8,
    "folds": 2,
    "confirm_runs": 3,
    "epochs": (1.0,),
    "learning_rates": (1e-3, 3e-2),
}
METHODS = ["lnsr", "mixout"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CSV files of 60 different texts each."""
    return write_data(tmp_path_factory.mktemp("data"), evaluation_seed=0)


def write_data(folder: Path, evaluation_seed: int) -> Path:
    for name, seed in (("train", 7), ("validation", evaluation_seed)):
        draw = random.Random(seed)
        lines = ["text,label"]
        for index in range(60):
            mood = ("good", "bad")[index % 2]
            words = " ".join(draw.choices(WORDS[2:], k=8))
            lines.append(f"{mood} {words},{('fine', 'poor')[index % 2]}")
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@dataclass
class MadeUp:
    """A pool that writes made-up scores in the place of training."""

    folder: Path
    score: Callable[[RunConfig], float]
    left: float = 0.1
    """Part of a gain in NLL that is left with a temperature."""
    size: int = 4
    running: list[Cell] = field(default_factory=list)

    def start(self, cell: Cell) -> None:
        self.running.append(cell)

    def ended(self, seconds: float, stopped: object) -> list[Ended]:
        done, self.running = self.running, []
        for cell in reversed(done):  # in another order than they were started in
            score = self.score(cell.config)
            if math.isnan(score):
                Records(self.folder).end(cell, "nan", "loss/task is not finite")
            else:
                record = finished(score)
                record.result.metrics["nll"] = 1 - score
                if cell.extras == CALIBRATION:
                    record.extras.parts["calibration"] = self.calibration(cell.seed, score)
                record.result.cost.train_seconds = 1.0 + ("lnsr" in cell.config.methods)
                Records(self.folder).end(cell, "done", record)
        return [
            Ended(cell, "nan" if math.isnan(self.score(cell.config)) else "done") for cell in done
        ]

    def calibration(self, seed: int, score: float) -> Part:
        chance = random.Random(seed).uniform(-0.001, 0.001) * score
        errors = {"nll": 0.3 - self.left * score + chance, "brier": 0.1}
        numbers = {"judged_rows_before": errors, "judged_rows_after": errors}
        return Part(numbers=numbers, curves={})

    def stop(self) -> None:
        self.running = []


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch):
    """Lets a function of the run stand for training."""

    def put(score: Callable[[RunConfig], float], left: float = 0.1) -> None:
        times = StepTimes(0.1, dict.fromkeys(METHODS, 2.0), 1.0)
        monkeypatch.setattr(tune_run, "measure", lambda tune: (times, {}))
        monkeypatch.setattr(tune_run, "start_server", lambda: None)
        monkeypatch.setattr(tune_run, "Pool", lambda folder, *_: MadeUp(Path(folder), score, left))

    return put


def lnsr_is_better(config: RunConfig) -> float:
    luck = random.Random(f"{config.seed} {config.methods}").uniform(-0.005, 0.005)
    return 0.7 + 0.1 * ("lnsr" in config.methods) + luck


def all_are_alike(config: RunConfig) -> float:
    better = (config.seed % 2) == ("lnsr" in config.methods)  # in turn
    return 0.7 + 0.01 * better


def asked(data: Path, inputs: Path, folder: Path, **fields):
    options = {
        "task": "quality",
        "text_columns": ["text"],
        "data": str(data),
        "model": str(inputs / "model"),
        "output_dir": str(folder),
    }
    return load_tune(options=options | SMALL | fields, methods=METHODS)


def quiet() -> Console:
    return Console(quiet=True)


def test_the_better_method_is_picked_and_its_run_file_works(
    data: Path, inputs: Path, tmp_path: Path, made_up
) -> None:
    made_up(lnsr_is_better)
    content = run_tune(asked(data, inputs, tmp_path / "out", weight_decay=0.01), console=quiet())
    assert content["use"] == "methods"
    assert 0.05 < content["gain"]["low"] < content["gain"]["mean"] < content["gain"]["high"] < 0.15
    assert content["sentence"].startswith("Use lnsr with share ")
    assert "points of accuracy (90 % interval " in content["sentence"]
    end = "3 fresh seeds) over tuned plain fine-tuning, at 2.0 times the time of a step."
    assert content["sentence"].endswith(end)
    assert content["cost"] == {"step_ratio": 2.0, "training_ratio": 2.0}

    assert "alternate" not in (tmp_path / "out" / "best.yaml").read_text()
    best = load_config(tmp_path / "out" / "best.yaml")
    picked = content["pick"]["changes"]
    assert best.methods["lnsr"]["share"] == picked["methods"]["lnsr"]["share"]
    assert (best.learning_rate, best.num_train_epochs) == (picked["learning_rate"], 1.0)
    assert (best.data, best.weight_decay, best.seed) == (str(data), 0.01, 42)
    assert best.output_dir == str(tmp_path / "out" / "model")

    page = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert "\n**Use lnsr with share" in page  # before all else, as on other pages
    assert ">Fresh runs</h2>" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    with (tmp_path / "out" / "trials.csv").open() as lines:
        trials = list(csv.DictReader(lines))
    assert Counter(trial["arm"] for trial in trials) == {"plain": 4, "methods": 4}


def test_probabilities_may_decide(data: Path, inputs: Path, tmp_path: Path, made_up) -> None:
    made_up(lnsr_is_better)
    by_score = run_tune(asked(data, inputs, tmp_path / "score"), console=quiet())
    by_nll = run_tune(asked(data, inputs, tmp_path / "nll", metric="nll"), console=quiet())
    assert by_nll["gain"] == pytest.approx(by_score["gain"])
    assert (by_nll["metric"], by_nll["use"]) == ("NLL", "methods")
    for run, other in zip(by_nll["runs"], by_score["runs"], strict=True):
        assert run["method"] == pytest.approx(1 - other["method"])
    low, high = (f"{-by_nll['gain'][end]:.3f}" for end in ("high", "low"))
    said = f": {-by_nll['gain']['mean']:.3f} in NLL (90 % interval {low} to {high}, 3 fresh seeds)"
    assert said in by_nll["sentence"]
    with (tmp_path / "nll" / "trials.csv").open() as lines:
        found = [float(trial["nll"]) for trial in csv.DictReader(lines)]
    assert min(found) == pytest.approx(by_nll["method"]["scores"][0], abs=0.02)
    assert 0.19 < min(found) < 0.21
    page = (tmp_path / "nll" / "report.md").read_text(encoding="utf-8")
    assert "In the same runs accuracy differs by 10." in page
    assert "With a temperature for both NLL differs by -0.01" in page
    assert "not shown to help beside one" not in page


def test_a_gain_that_a_temperature_has_as_well_is_told(
    data: Path, inputs: Path, tmp_path: Path, made_up
) -> None:
    made_up(lnsr_is_better, left=0.0)
    content = run_tune(asked(data, inputs, tmp_path / "out", metric="nll"), console=quiet())
    assert content["use"] == "methods"
    page = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert "With a temperature for both NLL differs by -0.000 (" in page
    assert "a method is not shown to help beside one: smoothtune evaluate" in page


def test_probabilities_decide_where_there_are_classes(
    data: Path, inputs: Path, tmp_path: Path, made_up
) -> None:
    (tmp_path / "data").mkdir()
    for name in ("train", "validation"):
        texts = (data / f"{name}.csv").read_text().splitlines()[1:]
        rows = [f"{text.split(',')[0]},{number / 7}" for number, text in enumerate(texts)]
        (tmp_path / "data" / f"{name}.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    made_up(all_are_alike)
    tune = asked(tmp_path / "data", inputs, tmp_path / "out", metric="brier")
    with pytest.raises(ConfigError, match="metric: brier is of one class a row"):
        run_tune(tune, console=quiet())


def test_a_slow_bfloat16_is_named_with_the_price(
    data: Path, inputs: Path, tmp_path: Path, made_up, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up(all_are_alike)
    monkeypatch.setattr(tune_run, "slow_at_bfloat16", lambda: True)
    for number, bf16 in enumerate((True, False)):
        said = io.StringIO()
        tune = asked(data, inputs, tmp_path / f"out{number}", bf16=bf16)
        run_tune(tune, console=Console(file=said, width=300), dry_run=True)
        assert (SLOW_BFLOAT16 in said.getvalue()) == bf16


def test_it_stays_with_plain_where_nothing_is_better(
    data: Path, inputs: Path, tmp_path: Path, made_up
) -> None:
    made_up(all_are_alike)
    content = run_tune(asked(data, inputs, tmp_path / "out"), console=quiet())
    assert content["use"] == "plain"
    assert content["sentence"].startswith("Stay with plain, learning rate ")
    assert "is not shown to be better: +0.3 points of accuracy (90 % i" in content["sentence"]
    half = 100 * (content["gain"]["high"] - content["gain"]["low"]) / 2
    said = f"On 60 rows these runs show only gains above {half:.1f} points."
    assert content["sentence"].endswith(said)
    best = load_config(tmp_path / "out" / "best.yaml")
    assert set(best.methods) == {"plain"}
    assert best.learning_rate == content["plain"]["changes"]["learning_rate"]


def test_a_method_that_diverges_in_a_fresh_run_is_not_used(
    data: Path, inputs: Path, tmp_path: Path, made_up
) -> None:
    made_up(
        lambda run: (
            math.nan if run.seed == 48 and "plain" not in run.methods else lnsr_is_better(run)
        )
    )
    content = run_tune(asked(data, inputs, tmp_path / "out", confirm_runs=5), console=quiet())
    assert content["use"] == "plain"
    assert " is better where it finishes: +" in content["sentence"]
    assert ", 4 of 5 fresh seeds); its loss diverged in 1 of 5 runs, at" in content["sentence"]
    assert "not shown" not in content["sentence"]
    assert content["runs"][1]["method"] is None


def test_plain_that_is_not_above_a_constant_answer_is_told(
    data: Path, inputs: Path, tmp_path: Path, made_up
) -> None:
    """The best constant answer has 0.5."""
    said = {}
    for shift in (0.0, 0.1):
        made_up(lambda run, shift=shift: all_are_alike(run) - 0.21 + shift)
        output = io.StringIO()
        folder = tmp_path / str(shift)
        content = run_tune(asked(data, inputs, folder), console=Console(file=output, width=300))
        assert content["trivial_baseline"] == 0.5
        said[shift] = output.getvalue()
        in_page = "of a constant answer" in (folder / "report.md").read_text(encoding="utf-8")
        assert in_page == (shift == 0.0)
    line = "Tuned plain fine-tuning (0.493) is not above the 0.500 of a constant answer; compar"
    assert line in said[0.0]
    assert "constant answer" not in said[0.1]


def test_a_gain_that_is_the_same_in_all_fresh_runs_is_not_used(
    data: Path, inputs: Path, tmp_path: Path, made_up
) -> None:
    made_up(lambda run: 0.5 + 0.25 * ("lnsr" in run.methods))
    content = run_tune(asked(data, inputs, tmp_path / "out"), console=quiet())
    assert content["use"] == "plain"
    assert content["gain"] == {"mean": 0.25, "low": None, "high": None}
    said = (
        "differs by the same in every run, which says nothing of chance: +25.0 points of accuracy"
    )
    assert said in content["sentence"]


def test_a_method_that_is_worse_is_called_so(
    data: Path, inputs: Path, tmp_path: Path, made_up
) -> None:
    made_up(lambda run: lnsr_is_better(run) - 0.3 * ("plain" not in run.methods))
    content = run_tune(asked(data, inputs, tmp_path / "out"), console=quiet())
    assert content["use"] == "plain"
    assert content["gain"]["high"] < 0
    assert ") is worse: -" in content["sentence"]
    assert "not shown" not in content["sentence"]


def test_evaluation_rows_are_never_read(data: Path, inputs: Path, tmp_path: Path, made_up) -> None:
    """Other evaluation rows change no run, and no part holds one of them."""
    made_up(lnsr_is_better)
    (tmp_path / "other").mkdir()
    other = write_data(tmp_path / "other", evaluation_seed=99)
    found = [
        run_tune(asked(source, inputs, tmp_path / str(number)), console=quiet())
        for number, source in enumerate((data, other))
    ]
    assert found[0]["trials"] == found[1]["trials"]
    cells = [sorted(path.name for path in (tmp_path / n / "cells").iterdir()) for n in "01"]
    assert cells[0] == cells[1]

    train, evaluation = (
        {line.split(",")[0] for line in (data / f"{name}.csv").read_text().splitlines()[1:]}
        for name in ("train", "validation")
    )
    assert not train & evaluation
    parts = list((tmp_path / "0" / "parts").iterdir())
    assert len(parts) == 2 + 3
    for part in parts:
        trained, scored = (
            {row["text"] for row in pq.read_table(part / f"{name}.parquet").to_pylist()}
            for name in ("train", "validation")
        )
        assert trained | scored == train
        assert not trained & scored


def test_trials_read_their_parts_and_leave_nothing(inputs: Path, tmp_path: Path, made_up) -> None:
    """What says how to read the file, and where results go, is for the final run."""
    (tmp_path / "data").mkdir()
    write_data(tmp_path / "data", evaluation_seed=0)
    for name in ("train", "validation"):
        file = tmp_path / "data" / f"{name}.csv"
        file.write_text(file.read_text().replace(",", ";"), encoding="cp1252")
    configs: list[RunConfig] = []

    def keep(config: RunConfig) -> float:
        configs.append(config)
        return lnsr_is_better(config)

    made_up(keep)
    told = {"sep": ";", "encoding": "cp1252", "push_to_hub": True, "report_to": ["tensorboard"]}
    fields = told | {"save_strategy": "epoch", "max_eval_samples": 9, "max_train_samples": 40}
    run_tune(asked(tmp_path / "data", inputs, tmp_path / "out", **fields), console=quiet())
    for config in configs:
        assert (config.sep, config.encoding, config.report_to) == (None, None, None)
        assert (config.push_to_hub, config.save_strategy, config.eval_strategy) == (
            False,
            "no",
            "no",
        )
        assert (config.max_train_samples, config.max_eval_samples) == (None, None)
        train, held_out = (
            pq.read_table(Path(config.data) / f"{name}.parquet").num_rows
            for name in ("train", "validation")
        )
        assert train + held_out == 40
    best = load_config(tmp_path / "out" / "best.yaml")
    assert {name: getattr(best, name) for name in fields} == fields


def test_a_second_call_trains_nothing(data: Path, inputs: Path, tmp_path: Path, made_up) -> None:
    made_up(lnsr_is_better)
    first = run_tune(asked(data, inputs, tmp_path / "out"), console=quiet())
    starts = len(list((tmp_path / "out" / "cells").iterdir()))

    def fail(config: RunConfig) -> float:
        raise AssertionError(f"trained again: {config.methods}")

    made_up(fail)
    assert run_tune(asked(data, inputs, tmp_path / "out"), console=quiet()) == first
    assert len(list((tmp_path / "out" / "cells").iterdir())) == starts


def test_a_dry_run_says_the_price_and_writes_nothing(
    data: Path, inputs: Path, tmp_path: Path
) -> None:
    with open(os.devnull, "w") as nothing:
        console = Console(file=nothing, record=True, width=200)
        assert run_tune(asked(data, inputs, tmp_path / "out"), dry_run=True, console=console) == {}
    told = console.export_text()
    assert "8 trials: 4 of plain fine-tuning, 4 of lnsr and mixout; then 3 fresh runs" in told
    assert "on 48 of 60 training rows, scored on the others; the evaluation rows are not" in told
    assert "a plain step takes" in told
    assert "at once, judged by these steps" in told
    assert "too few" not in told
    assert not (tmp_path / "out").exists()


def test_methods_for_which_there_are_no_trials_are_named(
    data: Path, inputs: Path, tmp_path: Path
) -> None:
    with open(os.devnull, "w") as nothing:
        console = Console(file=nothing, record=True, width=200)
        run_tune(asked(data, inputs, tmp_path / "out", budget=3), dry_run=True, console=console)
    assert "too few trials for mixout, not tried: give a larger budget" in console.export_text()


def test_methods_that_do_not_fit(
    data: Path, inputs: Path, tmp_path: Path, made_up, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Named by the user they are an error, in our own list they are left out."""
    made_up(lnsr_is_better)
    monkeypatch.setattr(tune_run, "measure", measure)
    deep = {"layer_weights": [1.0] * 8}
    named = replace(asked(data, inputs, tmp_path / "out"), methods={"lnsr": deep, "mixout": {}})
    with pytest.raises(ConfigError, match="methods.lnsr: .*layer_weights has 8 entries"):
        run_tune(named, console=quiet())
    content = run_tune(replace(named, chosen_by_user=False), console=quiet())
    assert list(content["methods"]) == ["mixout"]
    assert "layer_weights has 8 entries" in content["left_out"]["lnsr"]
    assert "lnsr was left out" in (tmp_path / "out" / "report.md").read_text(encoding="utf-8")


def test_without_a_single_score_of_plain_there_is_nothing_to_compare(
    data: Path, inputs: Path, tmp_path: Path, made_up
) -> None:
    made_up(lambda run: math.nan)
    with pytest.raises(OutputError, match="diverged: loss/task is not finite"):
        run_tune(asked(data, inputs, tmp_path / "out"), console=quiet())


@pytest.mark.parametrize("dry_run", [False, True])
def test_rows_that_are_too_few_for_a_fresh_run_end_it_before_the_first_training(
    inputs: Path, tmp_path: Path, made_up, dry_run: bool
) -> None:
    """The folds of the search have rows enough; of a later cut one part has not."""
    (tmp_path / "data").mkdir()
    classes = ["ab"[row % 2] for row in range(19)] + ["c", "d", "e"]
    lines = [f"{WORDS[2 + row % 8]} {WORDS[2 + row // 8]},{c}" for row, c in enumerate(classes)]
    for name in ("train", "validation"):
        (tmp_path / "data" / f"{name}.csv").write_text("\n".join(["text,label", *lines]) + "\n")

    def fail(config: RunConfig) -> float:
        raise AssertionError("trained")

    made_up(fail)
    tune = asked(tmp_path / "data", inputs, tmp_path / "out", confirm_runs=5)
    with pytest.raises(DataError, match="22 training rows are too few"):
        run_tune(tune, console=quiet(), dry_run=dry_run)


def test_foreign_folders_are_left_alone(data: Path, inputs: Path, tmp_path: Path, made_up) -> None:
    made_up(lnsr_is_better)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("")
    with pytest.raises(OutputError, match="holds other files"):
        run_tune(asked(data, inputs, tmp_path / "out"), console=quiet())


def test_nothing_that_is_written_names_folders_of_this_machine(
    data: Path, inputs: Path, tmp_path: Path, made_up
) -> None:
    made_up(lnsr_is_better)
    run_tune(asked(data, inputs, tmp_path / "out"), console=quiet(), command=["x", str(data)])
    for name in ("tune.json", "report.md", "report.html", "search.json", "trials.csv"):
        assert str(tmp_path.parent) not in (tmp_path / "out" / name).read_text(encoding="utf-8")


# --- settings --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "methods", "message"),
    [
        ({"learning_rate": 1e-4}, (), "--learning-rate: is searched: give learning_rates"),
        ({"num_train_epochs": 3.0}, (), "--num-train-epochs: is searched: give epochs"),
        ({"max_steps": 10}, (), "does not go with a search over epochs"),
        ({"unlabeled": "x"}, (), "does not work with a search yet"),
        ({"early_stopping_patience": 2}, (), "by the rows that a trial is scored on"),
        ({"load_best_model_at_end": True}, (), "by the rows that a trial is scored on"),
        ({"merge_adapter": True}, (), "--merge-adapter: needs lora"),
        ({"budget": 1}, (), "greater than or equal to 2"),
        ({"metric": "accuracy"}, (), "--metric: must be 'score', 'nll' or 'brier'"),
        ({"folds": 6}, (), "6 disjoint parts of 0.2"),
        ({"learning_rates": "1e-3,1e-5"}, (), "the lowest and the highest"),
        ({"learning_rates": "low,high"}, (), "learning_rates[0]: must be a valid number"),
        ({}, ["lsnr"], "did you mean 'lnsr'"),
        ({}, ["lnsr:noise_ratoi=1"], "noise_ratio"),
        ({}, ["auto"], "which only `smoothtune train` does"),
        ({}, ["plain"], "names nothing to try beside plain"),
    ],
)
def test_mistakes(options: dict, methods: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_tune(options={"task": "sst2", "output_dir": "x"} | options, methods=methods)
    assert message in str(caught.value)


def test_a_file_with_options_over_it(tmp_path: Path) -> None:
    file = tmp_path / "tune.yaml"
    file.write_text(
        "task: sst2\noutput_dir: out\nbudget: 12\nlearning_rates: [1e-5, 1e-4]\nepochs: 3\n"
        "methods: [lnsr, {name: jachess, every: 8}]\nweight_decay: 0.1\n",
        encoding="utf-8",
    )
    found = load_tune(file, ["folds=1"], {"epochs": "2,6"})
    assert (found.settings.budget, found.settings.folds) == (12, 1)
    assert found.settings.learning_rates == (1e-5, 1e-4)
    assert found.settings.epochs == (2.0, 6.0)
    assert found.methods == {"lnsr": {}, "jachess": {"every": 8}}
    assert found.run.weight_decay == 0.1
    file.write_text("task: sst2\noutput_dir: out\nbugdet: 12\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"tune.yaml:3: bugdet: unknown field"):
        load_tune(file)


RUN_FILE = (
    "task: sst2\nmethods: [plain]\nnum_train_epochs: 3\nlearning_rate: 1e-4\noutput_dir: out\n"
)


def test_the_file_of_a_run_may_be_searched_for(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(RUN_FILE, encoding="utf-8")
    found = load_tune(file)
    assert list(found.methods) == list(load_tune(options={"task": "sst2"} | OUT).methods)
    assert found.settings.learning_rates == (1e-5, 5e-4)
    assert found.run.output_dir == str(Path("out", "tune"))
    assert "searched here: learning_rate, num_train_epochs, methods" in found.notes[0]
    assert load_tune(file, options={"output_dir": "mine"}).run.output_dir == "mine"
    with pytest.raises(ConfigError, match="--learning-rate: is searched"):  # asked for here
        load_tune(file, options={"learning_rate": 1e-5})
    file.write_text(RUN_FILE.replace("[plain]", "[smart]"), encoding="utf-8")
    assert list(load_tune(file).methods) == ["smart"]


OUT = {"output_dir": "out"}


def test_auto_of_a_run(tmp_path: Path) -> None:
    options = {"task": "sst2", "output_dir": "out"}
    assert load_auto(options=options, methods=["lnsr"]) is None
    found = load_auto(options=options | {"learning_rate": 2e-5}, methods=["auto:budget=10,folds=1"])
    assert found is not None
    assert (found.settings.budget, found.settings.folds) == (10, 1)
    assert found.settings.learning_rates == (2e-5,)
    assert len(found.settings.epochs) > 1
    named = load_auto(options=options, methods=["auto:methods=[lnsr,r3f]"])
    assert named is not None
    assert list(named.methods) == ["lnsr", "r3f"]
    with pytest.raises(ConfigError, match=r"auto: .* stands alone; .* auto:methods=\[lnsr\]"):
        load_auto(options=options, methods=["auto", "lnsr"])
    with pytest.raises(ConfigError, match="bugdet"):
        load_auto(options=options, methods=["auto:bugdet=10"])
    with pytest.raises(ConfigError, match="epochs: does not go with num_train_epochs"):
        load_auto(options=options | {"num_train_epochs": 3.0}, methods=["auto:epochs=2"])
    with pytest.raises(ConfigError, match="--learning-rate: learning_rates"):
        load_auto(options=options | {"learning_rate": -1.0}, methods=["auto"])
    with pytest.raises(ConfigError, match="only `smoothtune train` does"):
        load_config(options=options, methods=["auto"])


# --- the command line ------------------------------------------------------------------------


def arguments(data: Path, inputs: Path, folder: Path) -> list[str]:
    return [
        *("--task", "quality", "--text-column", "text", "--data", str(data)),
        *("--model", str(inputs / "model"), "--output-dir", str(folder)),
    ]


SEARCH = ["--budget", "6", "--folds", "2", "--confirm-runs", "3", "--epochs", "1"]
SEARCH += ["--learning-rates", "1e-3,3e-2", "--method", "lnsr", "--method", "mixout"]


def smoothtune(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def test_the_command(data: Path, inputs: Path, tmp_path: Path, made_up) -> None:
    made_up(lnsr_is_better)
    found = smoothtune("tune", *arguments(data, inputs, tmp_path / "out"), *SEARCH)
    assert found.exit_code == 0, found.output
    assert "\nUse lnsr with share " in found.output
    best = tmp_path / "out" / "best.yaml"
    assert f"smoothtune train {best}" in found.output
    assert smoothtune("validate", "--fields-only", str(best)).exit_code == 0
    wrong = smoothtune("tune", *arguments(data, inputs, tmp_path / "out"), "--budget", "1")
    assert wrong.exit_code == USAGE
    assert "--budget: must be greater than or equal to 2, not 1" in wrong.output


def test_a_file_with_auto_is_valid(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("task: sst2\noutput_dir: out\nmethods: {auto: {budget: 20}}\n")
    found = smoothtune("validate", "--fields-only", str(file))
    assert found.exit_code == 0
    assert "ok (sst2, auto: vat, label_smoothing, reinit, mixout" in found.output


def test_train_with_auto(data: Path, inputs: Path, tmp_path: Path, made_up) -> None:
    """The search is made up, the training of its pick is real."""
    made_up(lnsr_is_better)
    auto = "auto:budget=4,folds=1,confirm_runs=3,epochs=1,methods=[lnsr]"
    words = ["train", *arguments(data, inputs, tmp_path / "out"), "--method", auto]
    found = smoothtune(*words, "--learning-rate", "1e-3", "--weight-decay", "0.1")
    assert found.exit_code == 0, found.output
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert list(result["methods"]) == ["lnsr"]
    assert (result["config"]["learning_rate"], result["config"]["weight_decay"]) == (1e-3, 0.1)
    assert result["data"]["splits"]["train"]["rows"] == 60
    content = json.loads((tmp_path / "out" / "tune" / "tune.json").read_text())
    assert (
        content["pick"]["changes"]["methods"]["lnsr"]["share"] == result["methods"]["lnsr"]["share"]
    )
    again = smoothtune(*words, "--learning-rate", "1e-3", "--weight-decay", "0.1")
    assert "already holds this run: nothing to do" in again.output


# --- in processes ----------------------------------------------------------------------------


def start(data: Path, inputs: Path, folder: Path, *more: str) -> subprocess.Popen:
    words = ["tune", *arguments(data, inputs, folder), *SEARCH, *more]
    main = [sys.executable, "-m", "smoothtune", *words]
    return subprocess.Popen(main, start_new_session=True, stdout=subprocess.DEVNULL)


def outcome(folder: Path) -> dict:
    """What a search found, without the times it took."""
    content = json.loads((folder / "tune.json").read_text())
    return {key: content[key] for key in ("pick", "gain", "runs", "trials")}


@pytest.mark.slow
def test_a_search_that_is_killed_ends_like_one_that_is_not(
    data: Path, inputs: Path, tmp_path: Path
) -> None:
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    draw = random.Random(1)
    for _ in range(4):
        process = start(data, inputs, killed, "--jobs", "2")
        before = len(Records(killed).log()) if killed.exists() else 0
        lines = draw.randint(2, 7)
        while process.poll() is None and len(Records(killed).log()) < before + lines:
            time.sleep(0.05)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert start(data, inputs, killed, "--jobs", "2").wait(timeout=900) == 0
    assert start(data, inputs, whole, "--jobs", "1").wait(timeout=900) == 0
    assert outcome(killed) == outcome(whole)  # which had another number of workers, too
    log = Records(killed).log()
    assert {n for n in Counter(e["cell"] for e in log if e["event"] == "done").values()} == {1}
    ended: set[str] = set()
    for line in log:
        assert line["event"] != "start" or line["cell"] not in ended, "run again after it was done"
        if line["event"] == "done":
            ended.add(line["cell"])


@pytest.mark.slow
def test_auto_from_start_to_end(data: Path, inputs: Path, tmp_path: Path) -> None:
    auto = "auto:budget=4,folds=1,confirm_runs=3,epochs=1,methods=[lnsr]"
    words = ["train", *arguments(data, inputs, tmp_path / "out"), "--method", auto]
    main = [sys.executable, "-m", "smoothtune", *words, "--learning-rate", "1e-2"]
    done = subprocess.run(main, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    content = json.loads((tmp_path / "out" / "tune" / "tune.json").read_text())
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert list(result["methods"]) == list(content["pick"]["changes"]["methods"])
    assert content["sentence"] in done.stdout
