"""Several models that predict as one."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit, softmax
from typer.testing import CliRunner

from helpers.linear_network import rotation
from helpers.tiny_folder import tiny_gpt2
from smoothtune.cli import app
from smoothtune.errors import ModelError
from smoothtune.evaluation.ensemble import Ensemble, mean_prediction
from smoothtune.models.load import load_base
from smoothtune.tasks.presets import describe_task


def task_of(labels: tuple[str, ...], **options):
    return describe_task(text_columns="text", label_names=labels, **options)


def test_probabilities_are_averaged() -> None:
    logits = np.random.default_rng(0).normal(0, 5, (3, 4, 2))
    mean = mean_prediction(logits, task_of(("a", "b")))
    np.testing.assert_allclose(softmax(mean, axis=1), softmax(logits, axis=2).mean(0))
    several = task_of(("a", "b"), task_type="multi-label-classification")
    np.testing.assert_allclose(expit(mean_prediction(logits, several)), expit(logits).mean(0))
    np.testing.assert_allclose(
        mean_prediction(logits[..., :1], task_of(())), logits[..., :1].mean(0)
    )
    sure = np.array([[[1e4, 0.0]], [[0.0, 1e4]]])
    np.testing.assert_allclose(mean_prediction(sure, task_of(("a", "b"))), np.log([[0.5, 0.5]]))


def test_an_ensemble_predicts_the_mean_and_counts_all_batches(linear_predictor, rows) -> None:
    members = [linear_predictor([rotation(angle)], batch_size=2) for angle in (0, 1)]
    ensemble = Ensemble.of(members, ["a", "b"])
    shares = [softmax(member.predict(rows), axis=1) for member in members]
    np.testing.assert_allclose(softmax(ensemble.predict(rows), axis=1), np.mean(shares, axis=0))
    assert ensemble.num_batches(rows) == 2 * members[0].num_batches(rows)


def test_models_that_read_texts_otherwise_are_refused(linear_predictor, tmp_path: Path) -> None:
    first, other = (linear_predictor([rotation(0)]) for _ in range(2))
    other.tokenizer = load_base(str(tiny_gpt2(tmp_path))).tokenizer
    with pytest.raises(ModelError, match="b has another vocabulary than a"):
        Ensemble.of([first, other], ["a", "b"])


def test_evaluation_of_an_ensemble(tiny_folder: Path, tmp_path: Path, no_plots) -> None:
    def call(*models: Path, out: str) -> tuple[dict, str]:
        options = ["--calibration", "--robustness", "--num-resamples", 20]
        arguments = ["evaluate", *models, *options, "--output-dir", tmp_path / out]
        result = CliRunner().invoke(app, [*map(str, arguments)])
        assert result.exit_code == 0, result.output
        return json.loads((tmp_path / out / "evaluation.json").read_text()), result.stdout

    tuned = tiny_folder / "tuned"
    (tuned / "calibration.json").unlink(missing_ok=True)
    twice, told = call(tuned, tuned, out="twice")
    assert "one ensemble of 2 models" in told
    assert "robustness: left out: not for an ensemble" in told
    assert not (tuned / "calibration.json").exists()
    alone, _ = call(tuned, out="alone")
    for part in ("metrics", "calibration"):
        numbers = [content["parts"][part]["numbers"] for content in (twice, alone)]
        same = "metrics" if part == "metrics" else "all_rows"
        assert json.dumps(numbers[0][same]) != "{}"
        for name, value in numbers[1][same].items():
            assert numbers[0][same][name] == pytest.approx(value)
    assert twice["model"] == f"{tuned} + {tuned}"
    assert twice["fingerprints"]["weights"] != alone["fingerprints"]["weights"]
    assert twice["training"] is None
    assert (tuned / "calibration.json").exists()
