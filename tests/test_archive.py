"""What is kept of a study's runs."""

import pytest

archive = pytest.importorskip("archive")


def test_numbers_of_parts_and_of_their_curves_are_kept_by_path():
    curve = {"title": "accuracy", "series": {"tokens": [[0.0, 0.8]]}, "numbers": {"area": 0.7}}
    parts = {
        "corruption": {"numbers": {"rows": 9, "whole": True}, "curves": {"tokens": curve}},
        "effect": {"numbers": {"rows": 9}, "curves": {"x": curve}},
    }
    assert archive.numbers_of(parts) == {"corruption/rows": 9, "corruption/tokens/area": 0.7}
