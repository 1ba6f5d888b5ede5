"""What a report needs of a record."""

import pytest

from helpers.study_files import finished
from smoothtune.results import CellRecord, Part
from smoothtune.study.table import row_of


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ({"ood: a": 0.6, "ood: b": 0.9, "ood: a after 10% of it": 0.1, "drift": 0.2}, 0.75),
        ({"ood: a": 0.6, "ood: b": None}, None),  # one of them could not be scored
        ({"drift": 0.2}, None),
        ({}, None),
    ],
)
def test_the_score_on_other_data_is_the_mean_over_the_sets(
    scores: dict[str, float | None], expected: float | None
) -> None:
    content = finished(0.5)
    metric = content.result.headline
    content.extras.parts = {
        name: Part(numbers={"metrics": {metric: {"value": value}} if value else {}}, curves={})
        for name, value in scores.items()
    }
    record = CellRecord(id="1", identity={}, **vars(content))
    assert row_of(record).measures.get("ood") == (expected and pytest.approx(expected))
