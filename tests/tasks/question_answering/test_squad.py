import pytest

from smoothtune.evaluation import exact_match, normalize_answer, squad_metrics, token_f1

# What the official scripts give, worked out by hand from their published rules.
TABLE = [
    # prediction, answer, exact match, f1
    ("Denver Broncos", "denver broncos", 1, 1),
    ("the Denver Broncos", "Denver Broncos", 1, 1),
    ("Denver  Broncos.", "An Denver Broncos", 1, 1),
    ("Broncos", "Denver Broncos", 0, 2 / 3),
    ("New York City", "New York", 0, 0.8),
    ("U.S.", "US", 1, 1),
    ("well-known", "wellknown", 1, 1),
    ("well-known", "well known", 0, 0),
    ("theatre", "atre", 0, 0),
    ("a b b", "b b b", 0, 0.8),
    ("1,000", "1000", 1, 1),
    ("Café", "cafe", 0, 0),
    ("“quoted”", "quoted", 0, 0),  # only ASCII punctuation is removed
    ("", "Denver", 0, 0),
    ("", "", 1, 1),
    ("the", "", 1, 1),
]


@pytest.mark.parametrize(("prediction", "answer", "exact", "f1"), TABLE)
def test_edge_cases(prediction, answer, exact, f1):
    assert exact_match(prediction, answer) == exact
    assert token_f1(prediction, answer) == pytest.approx(f1)
    assert token_f1(answer, prediction) == pytest.approx(f1)


def test_normalization():
    assert normalize_answer("  An apple, a DAY & the doctor\n") == "apple day doctor"


def test_the_best_answer_counts_for_each_score():
    answers = {"q": ["Santa Clara, California", "Santa Clara"], "r": ["Levi's Stadium"]}
    found = squad_metrics({"q": "Santa Clara", "r": "stadium"}, answers)
    assert found == pytest.approx({"exact_match": 50, "f1": 100 * (1 + 2 / 3) / 2})


def test_questions_without_answer():
    answers = {"q": [], "r": [], "s": ["the", "Paris"]}
    found = squad_metrics({"q": "", "r": "Rome", "s": ""}, answers)
    assert found == pytest.approx({"exact_match": 100 / 3, "f1": 100 / 3})


def test_what_cannot_be_scored_is_named():
    with pytest.raises(ValueError, match="1 of 2 questions have no prediction, the first is 'r'"):
        squad_metrics({"q": "x"}, {"q": ["x"], "r": ["y"]})
    with pytest.raises(ValueError, match="no questions"):
        squad_metrics({}, {})
