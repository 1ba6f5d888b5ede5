"""`smoothtune train` in several gloo processes gives what one process gives."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.launched import (
    EXAMPLES,
    RESUMED,
    RUNS,
    STOP_AT,
    assert_same,
    config_of,
    make_inputs,
    result_of,
    train_fixed,
    train_until,
)
from helpers.processes import PROGRAMS, on_processes
from smoothtune.errors import OutputError

pytestmark = pytest.mark.slow
LAUNCHES = {"two": (2, 1), "four": (4, 1), "two, two batches an update": (2, 2)}
CASES, RESUMED_CASES = (
    [(launch, n) for launch in LAUNCHES for n in names] for names in (RUNS, RESUMED)
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    make_inputs(folder)
    return folder


@pytest.fixture(scope="module")
def one(tiny, tmp_path_factory) -> Path:
    """Folder of the runs of one process."""
    folder = tmp_path_factory.mktemp("one")
    for name in RUNS:
        train_fixed(config_of(name, tiny, folder / name, processes=1))
    return folder


@pytest.fixture(scope="module", params=LAUNCHES)
def several(request, tiny, tmp_path_factory) -> tuple[Path, int]:
    """Folder of the runs of several processes, and their number."""
    processes, parts = LAUNCHES[request.param]
    folder = tmp_path_factory.mktemp("several")
    for name in RESUMED:
        train_until(STOP_AT, config_of(name, tiny, folder / "begun" / name, processes=1))
    on_processes(processes, "train_worker.py", tiny, folder, str(parts))
    return folder, processes


@pytest.mark.parametrize(("several", "name"), CASES, indirect=["several"])
def test_several_processes_equal_one(name, one, several):
    folder, processes = several
    assert_same(one / name, folder / name)
    result = result_of(folder / name)
    assert result["world_size"] == processes
    assert result_of(one / name)["world_size"] == 1
    ours = {"README.md", "config.json", "model.safetensors", "result.json", "tokenizer.json"}
    assert ours <= {path.name for path in (folder / name).iterdir()}
    assert not list((folder / name).glob(".*"))


def test_the_mean_loss_of_an_evaluation_is_that_of_all_rows(one, several):
    folder, _ = several
    for name in ("plain", "best of all evaluations"):
        runs = [result_of(place / name)["log_history"] for place in (one, folder)]
        losses = [[entry["eval_loss"] for entry in log if "eval_loss" in entry] for log in runs]
        assert losses[1] == pytest.approx(losses[0], abs=1e-6)
        likelihoods = [entry["eval_nll"] for entry in runs[1] if "eval_nll" in entry]
        assert losses[1] == pytest.approx(likelihoods, abs=1e-6)


@pytest.mark.parametrize(("several", "name"), RESUMED_CASES, indirect=["several"])
def test_a_run_of_one_process_goes_on_in_several(name, one, several):
    assert_same(one / name, several[0] / "begun" / name)


@pytest.mark.parametrize(("several", "name"), RESUMED_CASES, indirect=["several"])
def test_a_run_of_several_processes_goes_on_in_one(name, one, several, tiny, tmp_path):
    folder, processes = several
    stopped = shutil.copytree(folder / "stopped" / name, tmp_path / "out")
    other = config_of(name, tiny, stopped, processes=1).model_copy(
        update={"per_device_train_batch_size": EXAMPLES // processes}
    )
    if other.per_device_train_batch_size != EXAMPLES:
        with pytest.raises(OutputError, match=f"with its {EXAMPLES} examples per update"):
            train_fixed(other, resume=True)
    train_fixed(config_of(name, tiny, stopped, processes=1), resume=True)
    assert_same(one / name, stopped)


# --- the command line ----------------------------------------------------------------------------


def command(tiny: Path, folder: Path) -> list[str]:
    config = config_of("plain", tiny, folder, processes=2)
    given = ("task", "data", "model", "output_dir", "num_train_epochs", "logging_steps")
    options = [(name, getattr(config, name)) for name in (*given, "per_device_train_batch_size")]
    flags = [part for name, value in options for part in (f"--{name}", str(value))]
    return ["train", *flags, "--text-columns", "text", "--cost-steps", "0"]


def torchrun(*program: str | Path) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return [*launcher, *map(str, program)]


def accelerate(*program: str | Path) -> list[str]:
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu"]
    return [*launcher, "--num_processes=2", *map(str, program)]


@pytest.mark.parametrize("launch", [torchrun, accelerate])
def test_launchers(launch, tiny, tmp_path):
    run = subprocess.run(
        launch("-m", "smoothtune", *command(tiny, tmp_path / "out")),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    lines = run.stdout.splitlines()
    assert len(lines) == len(set(lines)) > 10
    assert "is a model folder" in lines[-1]
    assert "reducer" not in run.stderr
    assert result_of(tmp_path / "out")["world_size"] == 2
    again = subprocess.run(
        launch("-m", "smoothtune", *command(tiny, tmp_path / "out")),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert again.returncode == 0, again.stderr[-3000:]
    assert again.stdout.count("already holds this run: nothing to do") == 1


@pytest.mark.parametrize(
    ("event", "code", "message"),
    [
        ("row", 3, "error: row 3: no text"),
        ("memory", 1, "error: out of memory with per_device_train_batch_size 4"),
        ("nan", 1, "error: the objective is not finite in update 4"),
        ("fault", 1, "KeyError: 'a fault of the code'"),
        ("killed", -9, "error: another process of this run died without a message"),
        ("signal", 75, "error: stopped by a signal after step 3 of 8; continue with the same"),
    ],
)
def test_what_happens_to_one_process_ends_all(event, code, message, tiny, tmp_path):
    """The launcher would kill the others after 30 seconds; they end before that."""
    run = subprocess.run(
        torchrun(PROGRAMS / "cli_worker.py", event, *command(tiny, tmp_path / "out")),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 1
    told = run.stderr.split("torch.distributed.elastic.multiprocessing.errors")[0]
    assert told.count(message) == 1
    assert len(re.findall("^error: |^KeyError", told, re.M)) == 1
    assert f"exitcode  : {code} " in run.stderr
    assert "SIGKILL" not in run.stderr or event == "killed"
    checkpoints = [path.name for path in (tmp_path / "out").glob("checkpoints/checkpoint-*")]
    assert checkpoints == (["checkpoint-3"] if event == "signal" else [])
    assert not (tmp_path / "out" / "result.json").exists()


def test_ctrl_c_saves_once(tiny, tmp_path):
    """A terminal sends it to the launcher and to both processes, and the launcher sends it on."""
    long = [*command(tiny, tmp_path / "out"), "--num-train-epochs", "2000"]
    with subprocess.Popen(
        torchrun("-m", "smoothtune", *long),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as run:
        for line in run.stdout:
            if "step 3/" in line:
                os.killpg(run.pid, signal.SIGINT)
                break
        _, told = run.communicate(timeout=120)
    assert run.returncode != 0
    assert told.count("error: stopped by a signal after step") == 1
    assert len(list((tmp_path / "out").glob("checkpoints/checkpoint-*"))) == 1
