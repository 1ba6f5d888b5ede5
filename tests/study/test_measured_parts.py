"""What a study measures on a trained model, and what is left where it cannot."""

from pathlib import Path

import pytest

from smoothtune.evaluation.drift import weight_distance
from smoothtune.models.lora import merged, merged_copy
from smoothtune.run.train import fit
from smoothtune.study import worker
from smoothtune.study.config import load_study
from smoothtune.study.plan import Plan

STUDY = "methods: [plain]\nmore_epochs: null\nseeds: [0]\nevaluate: [effect, drift]\n"


def cell_of(write, folder: Path, more: str = ""):
    (cell,) = Plan(load_study(write(STUDY + more)), folder).final({})
    return cell


def test_adapters_have_a_distance_to_the_pretrained_weights(write, tmp_path: Path) -> None:
    """That of the merged model; the scores are those of the model as it was trained."""
    cell = cell_of(write, tmp_path, "lora: {r: 2}\n")
    status, content = worker.attempt(cell, tmp_path)
    assert status == "done", content
    parts = content.extras.parts
    numbers = parts["effect"].numbers
    assert numbers["not measured"] == {}
    (tmp_path / "again").mkdir()
    trained = fit(cell.config, tmp_path / "again", resumable=False)
    before, new = worker._subject(trained, cell).pretrained
    expected = weight_distance(merged(trained.model), before, new=new)["weight distance"]
    assert numbers["quantities"]["weight distance"] == pytest.approx(expected)
    assert expected > 0
    distances = parts["drift"].curves["distance"].series["weights"]
    assert [point[1] for point in distances[1:]] != [0, 0]
    assert distances[0][1] == 0  # the embeddings are frozen


def test_a_part_that_cannot_be_measured_does_not_take_the_scores(
    write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    def refuse(*_, **__):
        raise ValueError("the two models have no weights in common")

    monkeypatch.setattr("smoothtune.evaluation.parts.weight_distance", refuse)
    monkeypatch.setattr("smoothtune.evaluation.parts.weight_drift", refuse)
    status, content = worker.attempt(cell_of(write, tmp_path), tmp_path)
    assert status == "done"
    assert "accuracy" in content.result.metrics
    numbers = content.extras.parts["effect"].numbers
    assert numbers["not measured"] == {
        "weight distance": "the two models have no weights in common"
    }
    assert "weight distance" not in numbers["quantities"]
    assert "sharpness" in numbers["quantities"]
    assert "drift" not in content.extras.parts
    assert "drift is not measured: --base-model" in capsys.readouterr().out


def test_quantized_weights_are_not_compared() -> None:
    class Base:
        is_quantized = True

    class Adapted:
        peft_config = {}

        def get_base_model(self) -> Base:
            return Base()

    with pytest.raises(ValueError, match="too few bits"):
        merged_copy(Adapted())
