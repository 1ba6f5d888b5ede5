"""What an evaluation tells its reader to do: never a finding about a model that knows nothing."""

import copy
from pathlib import Path

import pytest

from smoothtune.evaluation.compare import Difference, Run
from smoothtune.evaluation.findings import comparison, sentences
from smoothtune.evaluation.intervals import Interval

GOOD = {"value": 0.9, "low": 0.85, "high": 0.95}
NLL = {"nll": 0.5, "ece": 0.2}


def curve(loss: float) -> dict:
    points = [[0.0, 0.9, None, None], [0.3, 0.9 - loss, None, None], [1.0, 0.5, None, None]]
    return {
        **{"title": "t", "x_label": "x", "y_label": "y", "series": {"Gaussian noise": points}},
        **{"band": "", "log_y": False, "numbers": {}},
    }


def run(accuracy: dict = GOOD, *, gap: float = 0.0, temperature: float = 1.5, **more) -> Run:
    calibration = {
        **{"all_rows": NLL, "mean_confidence": 0.8, "temperature": temperature},
        **{"judged_rows_before": NLL, "judged_rows_after": {"nll": 0.4}},
    }
    parts = {
        "metrics": {
            "numbers": {
                **{"metrics": {"accuracy": accuracy}, "trivial_baseline": 0.5, "rows": 100},
                **{"train_metrics": {"accuracy": 0.9 + gap}, "generalization_gap": gap},
            }
        },
        "calibration": {"numbers": calibration},
        "robustness": {"numbers": {"rows": 9}, "curves": {"gaussian": curve(more.get("loss", 0))}},
    }
    for part in parts.values():
        part.setdefault("curves", {})
        part["seconds"] = 1.0
    return Run("a", Path(), {"headline": "accuracy", "parts": parts, "training": None})


def test_advice_names_what_to_do() -> None:
    said = sentences(run(gap=0.2, loss=0.3))[0]
    assert said.verdict == "fragile"
    for wanted in ("20 points better", "divide its logits by 1.50", "Gaussian noise"):
        assert wanted in said.text


def test_nothing_against_it() -> None:
    found = run()
    parts = found.content["parts"]
    parts["calibration"]["numbers"]["all_rows"] = {"ece": 0.01}
    assert "add --all" in sentences(found)[0].text
    parts["corruption"] = copy.deepcopy(parts["robustness"])
    found_curve = parts["corruption"]["curves"].pop("gaussian")
    found_curve["series"] = {"typos": [[0.0, 0.9], [0.1, 0.9]]}
    parts["corruption"]["curves"]["typos"] = found_curve
    assert sentences(found)[0] == ("good", "Use it: nothing that was measured speaks against it.")


@pytest.mark.parametrize(
    ("accuracy", "wanted"),
    [
        ({"value": 0.52, "low": 0.45, "high": 0.6}, "Do not use it yet"),
        ({"value": 0.2, "low": 0.1, "high": 0.3}, "labels of model and data mean the same"),
        ({"value": 1.0, "low": None, "high": None}, "more rows"),
    ],
)
def test_without_skill_nothing_else_is_judged(accuracy: dict, wanted: str) -> None:
    said = sentences(run(accuracy, loss=0.0))
    assert said[0].verdict == "fragile"
    assert wanted in said[0].text
    text = " ".join(sentence.text for sentence in said[1:])
    assert "hardly suffers" not in text
    assert "temperature" not in text
    assert "confidence" not in text


def test_a_sample_at_chance_does_not_say_what_a_model_bears() -> None:
    found = run(loss=0.3)
    found.content["parts"]["metrics"]["numbers"]["trivial_baseline"] = 0.83
    said = sentences(found)
    text = " ".join(sentence.text for sentence in said)
    assert "accuracy is 0.900 on the rows drawn for the diagnostics, too near" in text
    assert "suffers" not in text
    assert "Gaussian noise" not in said[0].text


@pytest.mark.parametrize(("temperature", "why"), [(148.4, "too little"), (0.007, "too few wrong")])
def test_a_temperature_at_its_bound_is_no_finding(temperature: float, why: str) -> None:
    said = [sentence.text for sentence in sentences(run(temperature=temperature))]
    assert any(why in text for text in said)
    assert not any("148" in text or "0.01" in text for text in said)
    assert "do not read its probabilities" in said[0]


def test_comparisons_say_which_to_prefer() -> None:
    first, other = run(), Run("b", Path(), run().content)
    better = [Difference("accuracy", 0.1, Interval(0.05, 0.15))]
    assert comparison(first, other, better).startswith("Prefer b. ")
    worse = [Difference("accuracy", -0.1, Interval(-0.15, -0.05))]
    assert comparison(first, other, worse).startswith("Prefer a. ")
    same = [Difference("accuracy", 0.0, Interval(-0.15, 0.05))]
    assert "take the cheaper one" in comparison(first, other, same)


@pytest.mark.parametrize(
    ("cost", "wanted"),
    [
        ({"train_seconds": 4.0}, "training 4 s."),  # as a regularized Trainer records it
        ({"train_seconds": 4.0, "ratio_to_plain": None}, "training 4 s."),
        ({"train_seconds": 4.0, "ratio_to_plain": 2.0}, "a step 2.00 times a plain one."),
    ],
)
def test_cost_of_the_training(cost: dict, wanted: str) -> None:
    found = run()
    found.content["training"] = {"cost": cost}
    assert sentences(found)[-1].text.endswith(wanted)
