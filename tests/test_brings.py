"""The README's picture."""

import pandas as pd
import pytest

brings = pytest.importorskip("brings")


def test_differences_are_paired_by_seed_and_averaged_over_tasks():
    rows = [
        {"task": task, "seed": seed, "method": method, "ece": value}
        for task, seed, plain, other in (
            ("a", 0, 0.10, 0.08),
            ("b", 0, 0.20, 0.16),  # seed 0: (-0.02 - 0.04) / 2 = -0.03
            ("a", 1, 0.30, 0.29),
            ("b", 1, 0.10, 0.10),  # seed 1: -0.005
            ("c", 1, 0.50, None),  # has none
        )
        for method, value in (("plain", plain), ("other", other))
    ]
    found = brings.differences(pd.DataFrame(rows), "ece").loc["other"]
    assert found["mean"] == pytest.approx(-0.0175)
    # 12.706 times the standard error 0.025 / sqrt(2) / sqrt(2) of two values
    assert found["high"] - found["mean"] == pytest.approx(12.706 * 0.0125, rel=1e-4)
