"""Every recipe from data to page, with tiny random models on the real kinds of tasks."""

import os
from pathlib import Path

import pytest
from rich.console import Console

from helpers.tiny_folder import tiny_bert
from helpers.tiny_sets import tiny_sets
from smoothtune.errors import ConfigError
from smoothtune.reproduce.run import reproduce
from smoothtune.study.config import load_study
from smoothtune.study.files import list_recipes, recipes

DRAWN = [recipe.name for recipe in list_recipes() if recipe.draws]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("inputs")
    return tiny_bert(folder / "model"), tiny_sets(folder / "sets", rows=32)


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWN)
def test_a_recipe_end_to_end(name: str, folders: tuple[Path, Path], tmp_path: Path) -> None:
    model, data = folders
    options = {
        "model": str(model),
        "data": str(data),
        # the tiny vocabulary has no ten neighbors
        "method_fields": {"lnsr": {"k": 3}, "noise": {"k": 3}},
    }
    study = load_study(recipes()[name], scale="smoke", options=options)
    with open(os.devnull, "w") as nothing:
        results, content = reproduce(study, tmp_path / "out", jobs=2, console=Console(file=nothing))
    assert results["failures"] == []
    assert content["runs"]["done"] == content["runs"]["planned"] > 0
    assert all(figure["file"] for figure in content["figures"])
    for table in content["tables"][:1]:
        assert any(cell["ours"] for cell in table["cells"]), table["table"]
    assert str(data) not in (tmp_path / "out" / "reproduction.json").read_text()


def test_a_study_without_a_layout_draws_nothing(write, tmp_path: Path) -> None:
    study = load_study(write("methods: [plain]\n"))
    with pytest.raises(ConfigError, match="says no layout, so there is nothing to draw"):
        reproduce(study, tmp_path / "out")
