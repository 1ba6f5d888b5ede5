"""The README's picture."""

import pandas as pd
import pytest

brings = pytest.importorskip("brings")


def test_a_row_is_a_seed_that_all_have_and_a_mean_over_tasks():
    runs = [
        ("a", 1, "plain", 0.4),
        ("a", 1, "lnsr", 0.3),
        ("a", 1, "vat", 0.2),
        ("b", 1, "plain", 0.6),
        ("b", 1, "lnsr", 0.5),
        ("b", 1, "vat", 0.4),
        ("a", 2, "lnsr", 0.2),  # without a plain run
        ("a", 2, "vat", 0.2),
        ("a", 3, "plain", 0.7),
        ("a", 3, "lnsr", 0.1),
        ("a", 3, "vat", 0.2),
        ("b", 3, "plain", 0.9),  # without the others
    ]
    table = pd.DataFrame(runs, columns=["task", "seed", "method", "ece"])
    means = brings.by_seed(table, "ece")
    assert means.index.tolist() == [1, 3]
    assert means["plain"].tolist() == pytest.approx([0.5, 0.7])
    assert means["lnsr"].tolist() == pytest.approx([0.4, 0.1])
    assert means["vat"].tolist() == pytest.approx([0.3, 0.2])
