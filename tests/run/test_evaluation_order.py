"""After training, rows are evaluated in the order of their lengths and scored in their own."""

from types import SimpleNamespace

import numpy as np
from datasets import Dataset

from smoothtune.run.trainer import evaluate
from smoothtune.tasks.presets import TASKS


def test_predictions_come_back_in_the_order_of_the_rows():
    labels, lengths, seen = [0, 1, 1, 0, 1], [9, 3, 7, 3, 5], []
    rows = Dataset.from_dict({"labels": labels, "length": lengths, "example_id": list(range(5))})

    def predict(given):
        seen.extend(given["length"][:])
        return SimpleNamespace(predictions=np.eye(2)[given["labels"][:]])

    metrics, logits = evaluate(SimpleNamespace(predict=predict), TASKS["sst2"], rows)
    assert seen == sorted(lengths)
    assert metrics["accuracy"] == 1
    np.testing.assert_array_equal(logits, np.eye(2)[labels])
