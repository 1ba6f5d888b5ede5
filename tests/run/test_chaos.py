"""Commands that are killed at random moments, again and again, end as if nobody had killed them."""

import os
import random
import signal
import time
import warnings
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from smoothtune.config.evaluation import Settings
from smoothtune.config.run import RunConfig
from smoothtune.evaluation.run import evaluate
from smoothtune.files import read_json
from smoothtune.run.output import newest_checkpoint
from smoothtune.run.train import train

pytestmark = pytest.mark.slow
RUNS, MOST_KILLS = 4, 6
LOADS_BEST = {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 1}
SETTINGS = {
    "last": {"save_strategy": "steps", "save_steps": 1},
    "best": {**LOADS_BEST, "metric_for_best_model": "nll"},
    "accumulated": {
        "save_strategy": "steps",
        "save_steps": 1,
        "gradient_accumulation_steps": 2,
        "per_device_train_batch_size": 4,
    },
    "best, accumulated": {
        **LOADS_BEST,
        "metric_for_best_model": "nll",
        "gradient_accumulation_steps": 2,
        "per_device_train_batch_size": 4,
    },
}


def forked(work: Callable[[Console], object], log: Path) -> int:
    """Start work in a child process; returns its number."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # threads, which the child does not use
        child = os.fork()
    if child:
        return child
    code = 1
    try:
        warnings.simplefilter("ignore")
        work(Console(file=StringIO()))
        code = 0
    except BaseException as error:
        log.write_text(f"{type(error).__name__}: {error}")
    finally:
        os._exit(code)


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def undisturbed(work: Callable[[Console], object], log: Path) -> float:
    """Seconds that work takes."""
    start = time.monotonic()
    assert ended(forked(work, log)) == 0, log.read_text()
    return time.monotonic() - start


def killed_again_and_again(
    work: Callable[[Console], object], log: Path, seconds: float, draw: random.Random
) -> int:
    """Kill work at random moments, at most so often, then let it end; returns the kills."""
    for kills in range(MOST_KILLS):
        child = forked(work, log)
        time.sleep(draw.uniform(0, seconds))
        os.kill(child, signal.SIGKILL)
        code = ended(child)
        if code != -signal.SIGKILL:
            assert code == 0, log.read_text()
            return kills
    assert ended(forked(work, log)) == 0, log.read_text()
    return MOST_KILLS


def run_in(inputs: Path, folder: Path, changes: dict) -> Callable[[Console], object]:
    """Trains in a folder, from its newest checkpoint if it has one."""
    config = RunConfig(
        task="quality",
        data=str(inputs / "data"),
        text_columns=["text"],
        model=str(inputs / "model"),
        methods={"lnsr": {"weight": 1.0}, "l2_sp": {}},
        output_dir=str(folder),
        max_steps=6,
        learning_rate=3e-2,
        lr_scheduler_type="constant",
        cost_steps=0,
        **changes,
    )

    def work(console: Console) -> None:
        finished = (folder / "result.json").exists()
        resume = not finished and newest_checkpoint(folder).folder is not None
        train(config, resume=resume, console=console)

    return work


@pytest.mark.parametrize("name", SETTINGS)
def test_training(inputs: Path, tmp_path: Path, name: str) -> None:
    draw, log, changes = random.Random(name), tmp_path / "log", SETTINGS[name]
    seconds = undisturbed(run_in(inputs, tmp_path / "whole", changes), log)
    whole, kills = read_json(tmp_path / "whole" / "result.json"), 0
    for number in range(RUNS):
        folder = tmp_path / f"killed {number}"
        kills += killed_again_and_again(run_in(inputs, folder, changes), log, seconds, draw)
        found = read_json(folder / "result.json")
        for key in ("files", "metrics", "kept_step", "best"):
            if key == "files":  # the card tells the time
                found[key].pop("README.md"), whole[key].pop("README.md", None)
            assert found[key] == whole[key], key
        weights = [f / "model.safetensors" for f in (folder, tmp_path / "whole")]
        assert weights[0].read_bytes() == weights[1].read_bytes()
    assert kills > 0


def test_evaluation(inputs: Path, tmp_path: Path) -> None:
    draw, log = random.Random(0), tmp_path / "log"
    assert undisturbed(run_in(inputs, tmp_path / "model", {}), log)

    def work_in(folder: Path) -> Callable[[Console], object]:
        settings = Settings(
            model=str(tmp_path / "model"),
            output_dir=str(folder),
            num_resamples=50,
            parts=("calibration", "robustness", "corruption"),
        )
        return lambda console: evaluate(settings, console=console)

    def numbers(folder: Path) -> dict:
        content = read_json(folder / "evaluation.json")
        return {name: {**part, "seconds": 0} for name, part in content["parts"].items()}

    seconds, kills = undisturbed(work_in(tmp_path / "whole"), log), 0
    for number in range(RUNS):
        folder = tmp_path / f"killed {number}"
        kills += killed_again_and_again(work_in(folder), log, seconds, draw)
        assert numbers(folder) == numbers(tmp_path / "whole")
    assert kills > 0
