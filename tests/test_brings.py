"""The README's picture."""

import json

import pytest

brings = pytest.importorskip("brings")


def test_pairs_have_the_same_seed(tmp_path):
    runs = [
        ("plain", "sst2", 1, 0.4),
        ("vat", "sst2", 1, 0.3),
        ("vat", "sst2", 2, 0.2),  # without a plain run
        ("plain", "cola", 2, 0.9),
        ("plain", "sst2", 3, 0.6),
        ("vat", "sst2", 3, 0.5),
    ]
    for number, (method, task, seed, brier) in enumerate(runs):
        result = {"task": task, "seed": seed, "methods": {method: {}}, "metrics": {"brier": brier}}
        (tmp_path / f"{number}.json").write_text(json.dumps({"result": result}))
    (tmp_path / "failed.json").write_text(json.dumps({"result": None}))
    assert brings.pairs(tmp_path, "sst2", "vat") == [
        (1, {"brier": 0.4}, {"brier": 0.3}),
        (3, {"brier": 0.6}, {"brier": 0.5}),
    ]
