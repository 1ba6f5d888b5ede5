"""What an evaluation tells its reader to do: never a finding about a model that knows nothing."""

import copy
from pathlib import Path

import pytest

from smoothtune.evaluation.compare import Run, comparison
from smoothtune.evaluation.findings import sentences
from smoothtune.report.tables import Effect

GOOD = {"value": 0.9, "low": 0.85, "high": 0.95}
NLL = {"nll": 0.5, "ece": 0.2}


def curve(loss: float) -> dict:
    points = [[0.0, 0.9, None, None], [0.3, 0.9 - loss, None, None], [1.0, 0.5, None, None]]
    return {
        **{"title": "t", "x_label": "x", "y_label": "y", "series": {"Gaussian noise": points}},
        **{"band": "", "log_y": False, "numbers": {}},
    }


RECORD = {"cost": {"train_seconds": 4.0}}


def run(accuracy: dict = GOOD, *, gap: float = 0.0, temperature: float = 1.5, **more) -> Run:
    calibration = {
        **{"all_rows": NLL, "mean_confidence": 0.8, "mean_correct": 0.6},
        **{"temperature": temperature},
        **{"judged_rows_before": NLL, "judged_rows_after": {"nll": 0.4}},
        **{"judged_on": 50, "nll_change": {"value": -0.1, "low": -0.15, "high": -0.05}},
        "ece_by_chance": {"mean": 0.05, "high": 0.1},
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
    if "words" in more:
        points = [[float(i), score, None, None] for i, score in enumerate(more["words"])]
        words = curve(0) | {"series": {"word substitutions": points}}
        parts["substitution"] = {"numbers": {"rows": 9}, "curves": {"words": words}}
    if "elsewhere" in more:
        scores = {"metrics": {"accuracy": more["elsewhere"]}, "trivial_baseline": 0.5, "rows": 99}
        parts["ood: val"] = {"numbers": scores}
    for part in parts.values():
        part.setdefault("curves", {})
        part["seconds"] = 1.0
    content = {"headline": "accuracy", "parts": parts, "training": more.get("training")}
    return Run("a", Path(), content | {"settings": {"ensemble": more.get("ensemble", [])}})


def test_an_ensemble_is_not_sent_to_a_command_that_takes_one_model() -> None:
    one, several = (
        " ".join(each.text for each in sentences(run(ensemble=others))) for others in ([], ["b"])
    )
    assert "smoothtune predict --calibrated" in one
    assert "for probabilities divide its logits by 1.50" in several
    assert "smoothtune predict" not in several


def test_confidence_stands_beside_the_share_of_right_answers() -> None:
    (text,) = [each.text for each in sentences(run()) if each.text.startswith("Stated")]
    assert "confidence is 0.80 on average, and 0.60 of the answers are right" in text


def test_advice_names_what_to_do() -> None:
    said = sentences(run(gap=0.2, loss=0.3, training=RECORD))[0]
    assert said.verdict == "fragile"
    for wanted in ("20 points better", "divides logits by 1.50", "Gaussian noise"):
        assert wanted in said.text
    assert said.text.count("Choosing a method") == 1


def test_nothing_against_it() -> None:
    found = run()
    parts = found.content["parts"]
    parts["calibration"]["numbers"]["all_rows"] = {"ece": 0.01}
    assert "add --all" in sentences(found)[0].text
    parts["corruption"] = copy.deepcopy(parts["robustness"])
    found_curve = parts["corruption"]["curves"].pop("gaussian")
    found_curve["series"] = {"typos": [[0.0, 0.9], [0.1, 0.9]]}
    parts["corruption"]["curves"]["typos"] = found_curve
    assert "add --all" in sentences(found)[0].text
    parts["substitution"] = {"skipped": "not for spans", "seconds": 1.0}
    assert sentences(found)[0] == ("good", "Use it: nothing that was measured speaks against it.")


def test_exchanged_words_are_judged_like_other_disturbances() -> None:
    said = sentences(run(words=[0.9, 0.7, 0.6, 0.525]))
    assert "3 exchanged words" in said[0].text
    assert ("fragile", "accuracy suffers from 3 exchanged words (-0.375).") in said
    alone = run(words=[0.9, 0.9, 0.88, 0.88])
    del alone.content["parts"]["robustness"]
    said = sentences(alone)
    assert ("good", "accuracy hardly suffers from 3 exchanged words (-0.020).") in said


def test_a_disturbance_that_changes_few_rows_says_nothing() -> None:
    """A tenth of four words is none."""
    found = run(words=[0.9, 0.9, 0.9, 0.9])
    for part, name in (("corruption", "typos"), ("substitution", "words")):
        numbers = {"share of rows that change": 0.2}
        unchanged = curve(0) | {"series": {name: [[0.0, 0.9], [0.1, 0.9]]}, "numbers": numbers}
        found.content["parts"][part] = {"numbers": {}, "curves": {name: unchanged}, "seconds": 1.0}
    said = sentences(found)
    assert (
        "note",
        "Most rows have too few words for typos, words, which say nothing here.",
    ) in said
    assert not any("suffers from typos" in each.text for each in said)
    assert any("hardly suffers from Gaussian noise at 0.3 (+0.000)." in each.text for each in said)


@pytest.mark.parametrize(
    ("ece", "verdict"), [(0.04, "good"), (0.09, "note"), (0.11, "fragile"), (0.3, "fragile")]
)
def test_an_error_that_a_calibrated_model_may_have_is_not_held_against_one(
    ece: float, verdict: str
) -> None:
    found = run()
    found.content["parts"]["calibration"]["numbers"]["all_rows"] = {"ece": ece}
    advice, *said = sentences(found)
    judged = next(sentence for sentence in said if "ECE" in sentence.text)
    assert judged.verdict == verdict
    assert "off by 0.050 on so many rows, and by 0.100 at most in 95 % of samples" in judged.text
    assert ("probabilities" in advice.text) == (verdict == "fragile")


@pytest.mark.parametrize(
    ("home", "elsewhere", "verdict", "wanted"),
    [
        # the interval of 80 rows holds the score on the 872 of another set
        ((0.775, 0.675, 0.863), (0.735, 0.704, 0.764), "good", "is 0.735 (99 rows"),
        ((0.9, 0.85, 0.95), (0.735, 0.704, 0.764), "fragile", "less than the 0.900"),
        ((0.9, 0.85, 0.95), (0.52, 0.45, 0.6), "fragile", "not clearly above the best constant"),
        ((0.6, 0.55, 0.65), (0.52, None, None), "fragile", "not clearly above"),
    ],
)
def test_other_data(home: tuple, elsewhere: tuple, verdict: str, wanted: str) -> None:
    names = ("value", "low", "high")
    found = run(
        dict(zip(names, home, strict=True)), elsewhere=dict(zip(names, elsewhere, strict=True))
    )
    said = next(sentence for sentence in sentences(found) if "On val" in sentence.text)
    assert said.verdict == verdict
    assert wanted in said.text


def test_a_gap_is_judged_by_the_interval_of_the_score() -> None:
    wide = {"value": 0.78, "low": 0.6, "high": 0.95}
    for accuracy, verdict in ((wide, "note"), (wide | {"high": 0.89}, "fragile")):
        found = run(accuracy, training=RECORD)
        trained = {"train_metrics": {"accuracy": 0.9}, "generalization_gap": 0.12}
        found.content["parts"]["metrics"]["numbers"] |= trained
        said = sentences(found)
        gap = next(sentence for sentence in said if "generalization gap" in sentence.text)
        assert gap.verdict == verdict
        assert ("fits its training rows" in said[0].text) == (verdict == "fragile")


def test_of_a_train_split_that_a_model_may_have_seen_in_part_nothing_follows() -> None:
    said = sentences(run(GOOD, gap=0.2))
    gap = next(sentence for sentence in said if "generalization gap" in sentence.text)
    assert gap.verdict == "note"
    assert gap.text.startswith("On rows of the train split")
    assert "fits its training rows" not in said[0].text


@pytest.mark.parametrize(
    ("accuracy", "wanted"),
    [
        ({"value": 0.49, "low": 0.45, "high": 0.6}, "Do not use it yet"),
        ({"value": 0.55, "low": 0.45, "high": 0.65}, "on about 400 rows: accuracy 0.550 looks"),
        ({"value": 0.2, "low": 0.1, "high": 0.3}, "labels of model and data mean the same"),
        ({"value": 1.0, "low": None, "high": None}, "more rows"),
    ],
)
def test_without_skill_nothing_else_is_judged(accuracy: dict, wanted: str) -> None:
    said = sentences(run(accuracy, loss=0.0))
    assert said[0].verdict == "fragile"
    assert wanted in said[0].text
    assert all(sentence.verdict != "good" for sentence in said)  # no small gap either
    text = " ".join(sentence.text for sentence in said[1:])
    assert "hardly suffers" not in text
    assert "temperature" not in text
    assert "confidence" not in text


@pytest.mark.parametrize("value", [0.8, 1.0])
def test_rows_of_one_class_judge_no_model(value: float) -> None:
    found = run({"value": value, "low": value - 0.1, "high": value})
    found.content["parts"]["metrics"]["numbers"]["trivial_baseline"] = 1.0
    said = sentences(found)[0]
    assert said.verdict == "fragile"
    assert said.text.startswith("Evaluate it on rows of several classes")


@pytest.mark.parametrize(("value", "how"), [(0.55, "not clearly above"), (0.5, "not above")])
def test_a_score_at_a_constant_answer_is_not_above_it(value: float, how: str) -> None:
    said = [each.text for each in sentences(run({"value": value, "low": 0.4, "high": 0.6}))]
    assert any(f"{how} the 0.500 of the best constant answer" in text for text in said)


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
    better = {"accuracy": Effect(0.1, (0.05, 0.15))}
    assert comparison(first, other, better).startswith("Prefer b. ")
    worse = {"accuracy": Effect(-0.1, (-0.15, -0.05))}
    assert comparison(first, other, worse).startswith("Prefer a. ")
    same = {"accuracy": Effect(0.0, (-0.15, 0.05))}
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


@pytest.mark.parametrize(
    ("low", "high", "told"), [(-0.03, 0.01, "is not shown to lower"), (0.01, 0.02, "raises")]
)
def test_a_temperature_is_advised_where_its_interval_says_so(low, high, told) -> None:
    found = run()
    change = {"value": (low + high) / 2, "low": low, "high": high}
    found.content["parts"]["calibration"]["numbers"]["nll_change"] = change
    said = [sentence.text for sentence in sentences(found)]
    assert "predict --calibrated" not in said[0]
    assert any(f"{told} the NLL of the 50 rows" in text for text in said)
