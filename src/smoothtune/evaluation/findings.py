"""The findings of an evaluation as sentences: what to do first, then good, fragile, and cost."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from smoothtune.config.part_names import other_data_set
from smoothtune.evaluation.compare import Difference, Run
from smoothtune.evaluation.smoothness import RATIO
from smoothtune.evaluation.temperature import HOTTEST
from smoothtune.report.page import Sentence, Verdict

TOLERATED_LOSS = 0.05  # of the main metric, from which a disturbance is called harmful
NOISE_LEVEL, ATTACK_LEVEL, CORRUPTION_RATE = 0.3, 0.05, 0.1
CALIBRATED = 0.05  # expected calibration error below which a model is called calibrated
GUIDE = "See Choosing a method in the documentation."
JUDGED = ("calibration", "robustness", "corruption", "substitution")
"""What is to be known of a model before nothing speaks against it."""


def sentences(run: Run) -> list[Sentence]:
    """What to do, then the findings about one run.

    Robustness and confidence of a model that is not above the best constant answer say nothing, so
    they are left out.
    """
    parts = [_score, _gap]
    if beats_chance(run):
        parts += [_calibration, _disturbance, _noise]
    found = [sentence for part in (*parts, _drift, _other_data, _cost) for sentence in part(run)]
    return [verdict(run), *found]


def beats_chance(run: Run) -> bool:
    """Whether the main metric is above that of the best constant answer, its whole interval."""
    numbers = run.numbers("metrics")
    low = numbers["metrics"][run.main_metric]["low"]
    return low is not None and low > numbers["trivial_baseline"]


def verdict(run: Run) -> Sentence:
    """What to do with a run."""
    numbers = run.numbers("metrics")
    metric, baseline = numbers["metrics"][run.main_metric], numbers["trivial_baseline"]
    if metric["low"] is None:
        return Sentence("fragile", "Evaluate it on more rows: a single one says nothing.")
    if metric["high"] < baseline:
        return Sentence(
            "fragile",
            f"Do not use it: {run.main_metric} is below that of the best constant answer. Check "
            "whether the labels of model and data mean the same classes, then train again.",
        )
    if metric["value"] > baseline and not beats_chance(run):
        more = _rows_needed(numbers, run.main_metric)
        return Sentence(
            "fragile",
            f"Evaluate it on about {more} rows: {run.main_metric} "
            f"{metric['value']:.3f} looks better than the {baseline:.3f} of the best constant "
            f"answer, and {numbers['rows']} rows are too few to tell. Its robustness and "
            "calibration are not judged.",
        )
    if not beats_chance(run):
        return Sentence(
            "fragile",
            f"Do not use it yet: {run.main_metric} is not above that of the best constant answer. "
            "Train longer, with a higher learning rate or on more rows, or evaluate on more rows. "
            "Its robustness and calibration say nothing, so they are not judged.",
        )
    kinds = (_about_gap, _about_confidence, _about_robustness)
    advice = [text for kind in kinds for text in kind(run)]
    if advice:
        found = f"Better than a constant answer, but: {'; '.join(advice)}."
        return Sentence("fragile", f"{found} {GUIDE}")
    unknown = [name for name in JUDGED if name not in run.content["parts"]]
    clean = _clean(run)
    if unknown or clean is None or not _has_room(run, clean):
        return Sentence(
            "note",
            "Better than a constant answer. Not all was measured: add --all, with enough "
            "--max-diagnostic-samples.",
        )
    return Sentence("good", "Use it: nothing that was measured speaks against it.")


def _rows_needed(numbers: dict[str, Any], metric: str) -> int:
    """Rows whose interval would leave the best constant answer out, in two digits."""
    found = numbers["metrics"][metric]
    ratio = (found["value"] - found["low"]) / (found["value"] - numbers["trivial_baseline"])
    rows = math.ceil(numbers["rows"] * max(1.1, ratio**2))
    digits = max(0, len(str(rows)) - 2)
    return math.ceil(rows / 10**digits) * 10**digits


def _about_gap(run: Run) -> Iterator[str]:
    if _has_gap(run):
        gap = run.numbers("metrics")["generalization_gap"]
        yield (
            f"it fits its training rows {100 * gap:.0f} points better than others: take more rows, "
            "fewer epochs, or a regularizer"
        )


def _has_gap(run: Run) -> bool:
    """Whether the training score is far above the other one, and above its interval."""
    numbers = run.numbers("metrics")
    gap, high = numbers["generalization_gap"], numbers["metrics"][run.main_metric]["high"]
    if gap is None or high is None:
        return False
    return gap > 2 * TOLERATED_LOSS and numbers["train_metrics"][run.main_metric] > high


def _about_confidence(run: Run) -> Iterator[str]:
    numbers = run.numbers("calibration")
    if not numbers or _judged_error(numbers)[1] != "fragile":
        return
    if _helps(numbers):
        by = f"{numbers['temperature']:.2f}"
        yield f"for probabilities use smoothtune predict --calibrated, which divides logits by {by}"
    else:
        yield "do not read its probabilities as chances, or train it for calibration"


def _judged_error(numbers: dict[str, Any]) -> tuple[float, Verdict]:
    """The calibration error, and what it says: nothing where a calibrated model may have it."""
    error = numbers.get("mean_ece_of_labels", numbers["all_rows"]["ece"])
    if error < CALIBRATED:
        return error, "good"
    chance = numbers.get("ece_by_chance")  # not in evaluations of earlier versions
    return error, "fragile" if chance and error > chance["high"] else "note"


def _about_robustness(run: Run) -> Iterator[str]:
    if harmful := [name for name, _, loss in _losses(run) if loss > TOLERATED_LOSS]:
        names = ", ".join(name.partition(",")[0] for name in harmful)
        yield f"do not rely on it where inputs are like this: {names}"


def _helps(numbers: dict[str, Any]) -> bool:
    """Whether a temperature could be fitted, and is shown to lower the NLL of other rows."""
    if not 1 / HOTTEST < numbers.get("temperature", 0.0) < HOTTEST:
        return False
    return bool(numbers["nll_change"]["high"] < 0)


def comparison(first: Run, other: Run, gaps: list[Difference] | None) -> str:
    """The metrics in which two runs differ by more than the sampling error of the examples."""
    if gaps is None:
        return (
            f"{other.name} and {first.name} were not evaluated on the same examples, so their "
            "difference cannot be tested."
        )
    beyond = [gap for gap in gaps if gap.beyond_noise]
    if not beyond:
        return (
            f"{other.name} and {first.name} do not differ beyond the noise of the evaluated "
            f"examples: {_signed(gaps[0])}. Evaluate more rows, or take the cheaper one."
        )
    choice = ""
    if gaps[0].beyond_noise:
        choice = f"Prefer {(other if gaps[0].value > 0 else first).name}. "
    return (
        f"{choice}{other.name} differs from {first.name} beyond the noise of the evaluated "
        f"examples in {'; '.join(map(_signed, beyond))}. Another training seed may change this."
    )


def _signed(gap: Difference) -> str:
    low, high = gap.interval
    return f"{gap.metric} {gap.value:+.3f} (95 % interval {low:+.3f} to {high:+.3f})"


def _score(run: Run) -> Iterator[Sentence]:
    numbers = run.numbers("metrics")
    metric, baseline = numbers["metrics"][run.main_metric], numbers["trivial_baseline"]
    text = f"{run.main_metric} is {metric['value']:.3f}"
    if metric["low"] is None:
        yield Sentence("note", f"{text} on a single row, which says nothing.")
        return
    text += f" (95 % interval {metric['low']:.3f} to {metric['high']:.3f}, {numbers['rows']} rows)"
    if metric["low"] > baseline:
        yield Sentence("good", f"{text}, above the {baseline:.3f} of the best constant answer.")
    else:
        yield Sentence(
            "fragile", f"{text}, not clearly above the {baseline:.3f} of the best constant answer."
        )


def _gap(run: Run) -> Iterator[Sentence]:
    numbers = run.numbers("metrics")
    gap, trained = numbers["generalization_gap"], numbers["train_metrics"]
    if gap is None or trained is None:
        return
    small: Verdict = "good" if gap <= 2 * TOLERATED_LOSS and beats_chance(run) else "note"
    score = trained[run.main_metric]
    yield Sentence(
        "fragile" if _has_gap(run) else small,
        f"On training rows {run.main_metric} is {score:.3f}: a generalization gap of {gap:+.3f}.",
    )


def _calibration(run: Run) -> Iterator[Sentence]:
    numbers = run.numbers("calibration")
    if not numbers:
        return
    error, judged = _judged_error(numbers)
    if "mean_ece_of_labels" in numbers:
        text = f"The probability of a label is off by {error:.3f} (ECE, a mean over labels)"
    else:
        text = f"Stated confidence is {numbers['mean_confidence']:.2f} on average and off by "
        text += f"{error:.3f} (ECE)"
    if chance := numbers.get("ece_by_chance"):
        high = chance["high"]
        text += (
            f"; a calibrated model that states the same is off by {chance['mean']:.3f} on so many "
            f"rows, and by {high:.3f} at most in 95 % of samples"
        )
    text += "."
    temperature = numbers.get("temperature")
    if temperature is not None and temperature >= HOTTEST:
        text += " No temperature mends it: the logits say too little about the labels."
    elif temperature is not None and temperature <= 1 / HOTTEST:
        text += " No temperature can be fitted: there are too few wrong answers."
    elif temperature is not None:
        before = numbers["judged_rows_before"]["nll"]
        after = numbers["judged_rows_after"]["nll"]
        change = numbers["nll_change"]
        helps = "lowers" if _helps(numbers) else "is not shown to lower"
        helps = "raises" if change["low"] > 0 else helps
        text += (
            f" A temperature of {temperature:.2f} {helps} the NLL of the {numbers['judged_on']} "
            f"rows it was not fitted on ({before:.3f} to {after:.3f}; 95 % interval of the change "
            f"{change['low']:+.3f} to {change['high']:+.3f})."
        )
    yield Sentence(judged, text)


def _losses(run: Run) -> Iterator[tuple[str, str, float]]:
    """Each disturbance: its name, its name with level and change, and what the main metric loses.

    Nothing where the rows drawn for the diagnostics leave too little to lose.
    """
    if (clean := _clean(run)) is None or not _has_room(run, clean):
        return
    levels = {"gaussian": NOISE_LEVEL, "in_manifold": NOISE_LEVEL}
    levels |= {"fgm": ATTACK_LEVEL, "pgd": ATTACK_LEVEL}
    for key, curve in (run.curves("robustness") | run.curves("corruption")).items():
        ((name, points),) = curve.series.items()
        level = levels.get(key, CORRUPTION_RATE)
        loss = points[0].y - next(point.y for point in points if point.x == level)
        yield name, f"{name} at {level:g} ({0.0 - loss:+.3f})", loss
    for curve in run.curves("substitution").values():
        (points,) = curve.series.values()
        name = f"{points[-1].x:g} exchanged words"
        loss = points[0].y - points[-1].y
        yield name, f"{name} ({0.0 - loss:+.3f})", loss


def _clean(run: Run) -> float | None:
    """The main metric on the rows drawn for the diagnostics, as they are."""
    for part in ("robustness", "corruption", "substitution"):
        for curve in run.curves(part).values():
            return next(iter(curve.series.values()))[0].y
    return None


def _has_room(run: Run, clean: float) -> bool:
    return clean - run.numbers("metrics")["trivial_baseline"] >= 2 * TOLERATED_LOSS


def _disturbance(run: Run) -> Iterator[Sentence]:
    clean = _clean(run)
    if clean is not None and not _has_room(run, clean):
        yield Sentence(
            "note",
            f"{run.main_metric} is {clean:.3f} on the rows drawn for the diagnostics, too near the "
            "best constant answer to judge robustness: take more with --max-diagnostic-samples.",
        )
    losses = list(_losses(run))
    harmful = [shown for _, shown, loss in losses if loss > TOLERATED_LOSS]
    kept = [shown for _, shown, loss in losses if loss <= TOLERATED_LOSS]
    if harmful:
        yield Sentence("fragile", f"{run.main_metric} suffers from {'; '.join(harmful)}.")
    if kept:
        yield Sentence("good", f"{run.main_metric} hardly suffers from {'; '.join(kept)}.")


def _noise(run: Run) -> Iterator[Sentence]:
    if curve := run.curves("smoothness").get("attenuation"):
        points = curve.series["noise before block 0"]
        verdict: Verdict = "good" if points[-1].y <= RATIO else "fragile"
        yield Sentence(
            verdict,
            f"Noise of {RATIO:.0%} of the first hidden state is {points[-1].y:.1%} of the last.",
        )


def _drift(run: Run) -> Iterator[Sentence]:
    if curve := run.curves("drift").get("distance"):
        points = curve.series["weights"]
        far = max(points, key=lambda point: point.y)
        where = "the embeddings" if far.x == 0 else f"block {far.x:.0f}"
        yield Sentence("note", f"The weights moved most in {where}: by {far.y:.1%} of their norm.")


def _other_data(run: Run) -> Iterator[Sentence]:
    home = run.numbers("metrics")["metrics"][run.main_metric]
    for name in run.content["parts"]:
        data_set, numbers = other_data_set(name), run.numbers(name)
        if data_set is None or "metrics" not in numbers:
            continue
        metric = numbers["metrics"][run.main_metric]
        if before := numbers.get("metrics_before"):
            yield Sentence(
                "note",
                f"Trained further on {numbers['rows_trained_on']} rows of {data_set}, "
                f"{run.main_metric} on its other {numbers['rows']} rows goes from "
                f"{before[run.main_metric]['value']:.3f} to {metric['value']:.3f}.",
            )
            continue
        baseline = numbers["trivial_baseline"]
        text = f"On {data_set} {run.main_metric} is {metric['value']:.3f}"
        known = f"{numbers['rows']} rows; best constant answer {baseline:.3f}"
        if metric["low"] is None or metric["low"] <= baseline:
            text += f", not clearly above the best constant answer ({known})."
            yield Sentence("fragile", text)
        elif _is_less(metric, home):
            text += f", less than the {home['value']:.3f} of its own data ({known})."
            yield Sentence("fragile", text)
        else:
            yield Sentence("good", f"{text} ({known}).")


def _is_less(metric: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether a metric is below that of other rows by more than the sampling of both explains.

    The interval of their difference is put together from both intervals (Zou, Donner: Construction
    of confidence limits about effect measures, Statistics in Medicine 27, 2008).
    """
    if other["low"] is None:
        return False
    margin = math.hypot(metric["high"] - metric["value"], other["value"] - other["low"])
    return bool(other["value"] - metric["value"] > margin)


def _cost(run: Run) -> Iterator[Sentence]:
    seconds = sum(part["seconds"] for part in run.content["parts"].values())
    text = f"This evaluation took {seconds:.0f} s"
    training = run.content["training"]
    cost = training and training.get("cost")
    if cost:
        text += f", training {cost['train_seconds']:.0f} s"
        if (ratio := cost.get("ratio_to_plain")) is not None:  # a Trainer measures none
            text += f", a step {ratio:.2f} times a plain one"
    yield Sentence("cost", f"{text}.")
