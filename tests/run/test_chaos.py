"""Commands that are killed at random moments, again and again, end as if nobody had killed them."""

import random
from collections import Counter
from pathlib import Path

import pytest

from helpers.deaths import SAVES, Job, dies_and_goes_on, jobs, training, undisturbed

pytestmark = pytest.mark.slow
RUNS = 2
COMMANDS = (
    *("train", "train, best model", "train, accumulated", "train, best model, accumulated"),
    *("train, two processes", "train, two processes, best model", "evaluate"),
    *("study", "study with checkpoints", "two studies in one folder", "reproduce", "tune"),
)


@pytest.fixture(scope="module")
def commands(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Job]:
    trained = tmp_path_factory.mktemp("trained") / "model"
    undisturbed(training(inputs, **SAVES), trained)
    return jobs(inputs, trained)


def test_all_commands(commands: dict[str, Job]) -> None:
    assert tuple(commands) == COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_deaths(commands: dict[str, Job], tmp_path: Path, name: str) -> None:
    alone = undisturbed(commands[name], tmp_path / "whole")
    counts = Counter[str]()
    for number in range(RUNS):
        draw = random.Random(f"{name} {number}")
        counts += dies_and_goes_on(commands[name], tmp_path / f"killed {number}", alone, draw)
    assert counts["deaths"] > 0
    assert counts["lost"] == counts["failed"] == counts["wrong"] == 0
