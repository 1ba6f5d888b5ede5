"""The price of a search, before it starts."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from rich.console import Console

from smoothtune.config.tuning import load_tune
from smoothtune.tune.price import measure

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
    times, misfits = measure(load_tune(options=options, methods=["r3f"]), Console(quiet=True))
    assert times is not None
    assert times.plain > 0
    assert (list(times.ratios), misfits) == (["r3f"], {})
    times, misfits = measure(load_tune(options=options, methods=[deep]), Console(quiet=True))
    assert times is None
    assert "layer_weights has 8 entries" in misfits["lnsr"]
