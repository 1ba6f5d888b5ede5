"""The price of a search, before it starts."""

import random
from importlib.util import find_spec
from pathlib import Path

import pytest

from smoothtune.config.tuning import load_tune
from smoothtune.tune.price import expected_trainings, measure
from smoothtune.tune.search import Outcome, search_all

QUANTIZED = pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="needs bitsandbytes")


@pytest.mark.parametrize(
    "stored", ["bfloat16", *(pytest.param(name, marks=QUANTIZED) for name in ("8bit", "4bit"))]
)
def test_steps_on_frozen_weights_are_timed_as_they_are_trained(inputs: Path, stored: str) -> None:
    options = {
        "task": "quality",
        "text_columns": ["text"],
        "data": str(inputs / "data"),
        "model": str(inputs / "model"),
        "output_dir": "unset",
        "lora": {"r": 2},
        "frozen_weights": stored,
        "bf16": True,
    }
    deep = "lnsr:layer_weights=[1.0,1.0,1.0,1.0,1.0,1.0,1.0,1.0]"
    times, misfits = measure(load_tune(options=options, methods=["r3f"]))
    assert times is not None
    assert times.plain > 0
    assert (list(times.ratios), misfits) == (["r3f"], {})
    times, misfits = measure(load_tune(options=options, methods=[deep]))
    assert times is None
    assert "layer_weights has 8 entries" in misfits["lnsr"]


@pytest.mark.parametrize(("budget", "folds"), [(2, 3), (3, 3), (6, 3), (20, 3), (20, 5), (6, 1)])
def test_as_many_trainings_as_were_said(budget: int, folds: int) -> None:
    """Of searches whose scores are luck."""
    counts = []
    for seed in range(12):
        options = {"task": "sst2", "output_dir": "unset", "seed": seed}
        tune = load_tune(options=options | {"budget": budget, "folds": folds}, methods=["lnsr"])
        draw, fresh = random.Random(seed), 2 * tune.settings.confirm_runs
        trained: list[int] = []

        def run(work, draw=draw, trained=trained):
            trained.append(len(work))
            return [Outcome(draw.random()) for _ in work]

        search_all(tune, run=run)
        counts.append(sum(trained) + fresh)
    assert set(counts) == {expected_trainings(tune)}
