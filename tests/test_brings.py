"""The README's picture."""

import pandas as pd
import pytest

brings = pytest.importorskip("brings")


def test_pairs_have_the_same_seed_and_are_means_over_tasks():
    runs = [
        ("a", 1, "plain", 0.4),
        ("a", 1, "other", 0.3),
        ("b", 1, "plain", 0.6),
        ("b", 1, "other", 0.5),
        ("a", 2, "other", 0.2),  # without a plain run
        ("a", 3, "plain", 0.7),
        ("a", 3, "other", 0.1),
        ("b", 3, "plain", 0.9),  # without the other
    ]
    table = pd.DataFrame(runs, columns=["task", "seed", "method", "ece"])
    found = brings.by_seed(table, "ece", "other")
    assert found.index.tolist() == [1, 3]
    assert found["plain"].tolist() == pytest.approx([0.5, 0.7])
    assert found["other"].tolist() == pytest.approx([0.4, 0.1])
