"""The findings of an evaluation as sentences: what to do first, then good, fragile, and cost."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from smoothtune.config.evaluation import other_data_set
from smoothtune.evaluation.calibration import error_of
from smoothtune.evaluation.calibration_file import HOTTEST, fits
from smoothtune.evaluation.compare import Run
from smoothtune.evaluation.corruption import JUDGED_RATE
from smoothtune.evaluation.disturbance import CHANGED
from smoothtune.evaluation.smoothness import RATIO
from smoothtune.report.curves import Curve
from smoothtune.report.page import Sentence, Verdict

TOLERATED_LOSS = 0.05  # of the main metric, from which a disturbance is called harmful
LEVELS = {"gaussian": 0.3, "in_manifold": 0.3, "fgm": 0.05, "pgd": 0.05}  # at which it is judged
CALIBRATED = 0.05  # expected calibration error below which a model is called calibrated
COVERAGE = 0.9  # of the sets of classes in the findings
GUIDE = "See Choosing a method in the documentation."
JUDGED = ("calibration", "robustness", "corruption", "substitution")
"""What is to be known of a model before nothing speaks against it."""


class Finding(NamedTuple):
    """A sentence about a run, and what it advises against."""

    verdict: Verdict
    text: str
    advice: str = ""


def sentences(run: Run) -> list[Sentence]:
    """What to do with a run, then the findings about it."""
    against = [*_against(run)]
    others = [*_drift(run), *_other_data(run), *_cost(run)]
    return [
        _verdict(run, "; ".join(each.advice for each in against if each.advice)),
        *(Sentence(each.verdict, each.text) for each in (*against, *others)),
    ]


def _against(run: Run) -> Iterator[Finding]:
    """The findings that may speak against a run.

    Robustness and confidence of a model that is not above the best constant answer say nothing, so
    they are left out.
    """
    yield from _score(run)
    yield from _gap(run)
    if _beats_chance(run):
        yield from _calibration(run)
        yield from _sets(run)
        yield from _disturbance(run)
        yield from _noise(run)


def _beats_chance(run: Run) -> bool:
    """Whether the main metric is above that of the best constant answer, its whole interval."""
    low = run.score["low"]
    return low is not None and low > run.baseline


def _is_ensemble(run: Run) -> bool:
    """Whether several models were evaluated as one, which `smoothtune predict` does not take."""
    return bool(run.content["settings"].get("ensemble"))


def _verdict(run: Run, advice: str) -> Sentence:
    """What to do with a run, of which `advice` is what speaks against it."""
    if not _beats_chance(run):
        return Sentence("fragile", _about_chance(run))
    if advice:
        return Sentence("fragile", f"Better than a constant answer, but: {advice}. {GUIDE}")
    if set(JUDGED) - set(run.content["parts"]) or not _has_room(run):
        return Sentence(
            "note",
            "Better than a constant answer. Not all was measured: add --all, with enough "
            "--max-diagnostic-samples.",
        )
    return Sentence("good", "Use it: nothing that was measured speaks against it.")


def _about_chance(run: Run) -> str:
    """What to do where the main metric is not above that of the best constant answer."""
    metric, baseline = run.score, run.baseline
    if metric["low"] is None:
        return "Evaluate it on more rows: a single one says nothing."
    if baseline >= 1:
        return (
            "Evaluate it on rows of several classes: these have a single one, and a constant "
            "answer is always right."
        )
    if metric["high"] < baseline:
        return (
            f"Do not use it: {run.main_metric} is below that of the best constant answer. Check "
            "whether the labels of model and data mean the same classes, then train again."
        )
    if metric["value"] > baseline:
        rows = run.numbers("metrics")["rows"]
        return (
            f"Evaluate it on about {_rows_needed(rows, metric, baseline)} rows: {run.main_metric} "
            f"{metric['value']:.3f} looks better than the {baseline:.3f} of the best constant "
            f"answer, and {rows} rows are too few to tell. Its robustness and calibration are not "
            "judged."
        )
    return (
        f"Do not use it yet: {run.main_metric} is not above that of the best constant answer. "
        "Train longer, with a higher learning rate or on more rows, or evaluate on more rows. "
        "Its robustness and calibration say nothing, so they are not judged."
    )


def _rows_needed(rows: int, metric: dict[str, float], baseline: float) -> int:
    """Rows whose interval would leave the best constant answer out, in two digits."""
    ratio = (metric["value"] - metric["low"]) / (metric["value"] - baseline)
    needed = math.ceil(rows * max(1.1, ratio**2))
    digits = max(0, len(str(needed)) - 2)
    return math.ceil(needed / 10**digits) * 10**digits


def _score(run: Run) -> Iterator[Finding]:
    metric, baseline, rows = run.score, run.baseline, run.numbers("metrics")["rows"]
    text = f"{run.main_metric} is {metric['value']:.3f}"
    if metric["low"] is None:
        yield Finding("note", f"{text} on a single row, which says nothing.")
        return
    text += f" (95 % interval {metric['low']:.3f} to {metric['high']:.3f}, {rows} rows)"
    above = _beats_chance(run)
    how = "" if above else "not clearly " if metric["value"] > baseline else "not "
    text += f", {how}above the {baseline:.3f} of the best constant"
    yield Finding("good" if above else "fragile", f"{text} answer.")


def _gap(run: Run) -> Iterator[Finding]:
    """A gap counts where the training score is far above the other one, and above its interval."""
    numbers = run.numbers("metrics")
    gap, trained = numbers["generalization_gap"], numbers["train_metrics"]
    if gap is None or trained is None:
        return
    score, high = trained[run.main_metric], run.score["high"]
    known = run.content["training"] is not None  # else the model may have seen few of these rows
    large = known and gap > 2 * TOLERATED_LOSS and high is not None and score > high
    small: Verdict = "good" if gap <= 2 * TOLERATED_LOSS and _beats_chance(run) else "note"
    rows = "training rows" if known else "rows of the train split"
    text = f"On {rows} {run.main_metric} is {score:.3f}: a generalization gap of {gap:+.3f}."
    advice = (
        f"it fits its training rows {100 * gap:.0f} points better than others: take more rows, "
        "fewer epochs, or a regularizer"
    )
    yield Finding("fragile" if large else small, text, advice if large else "")


def _calibration(run: Run) -> Iterator[Finding]:
    """An error is fragile where it is large, and larger than that of a calibrated model."""
    numbers = run.numbers("calibration")
    if not numbers:
        return
    error = error_of(numbers)
    if "mean_ece_of_labels" in numbers:
        text = f"The probability of a label is off by {error:.3f} (ECE, a mean over labels)"
    else:
        text = (
            f"Stated confidence is {numbers['mean_confidence']:.2f} on average, and "
            f"{numbers['mean_correct']:.2f} of the answers are right; bin by bin it is off by "
            f"{error:.3f} (ECE)"
        )
    mean, high = (numbers["ece_by_chance"][name] for name in ("mean", "high"))
    text += (
        f"; a calibrated model that states the same is off by {mean:.3f} on so many "
        f"rows, and by {high:.3f} at most in 95 % of samples.{_about_temperature(numbers)}"
    )
    if error < CALIBRATED or error <= high:
        yield Finding("good" if error < CALIBRATED else "note", text)
        return
    advice = "do not read its probabilities as chances, or train it for calibration"
    if "temperature" in numbers and fits(numbers["temperature"]) and _change(numbers) == "lowers":
        by = f"{numbers['temperature']:.2f}"
        how = f"use smoothtune predict --calibrated, which divides logits by {by}"
        advice = f"for probabilities {f'divide its logits by {by}' if _is_ensemble(run) else how}"
    yield Finding("fragile", text, advice)


def _about_temperature(numbers: dict[str, Any]) -> str:
    temperature = numbers.get("temperature")
    if temperature is None:
        return ""
    if temperature >= HOTTEST:
        return " No temperature mends it: the logits say too little about the labels."
    if not fits(temperature):
        return " No temperature can be fitted: there are too few wrong answers."
    before, after = (numbers[f"judged_rows_{when}"]["nll"] for when in ("before", "after"))
    change = numbers["nll_change"]
    return (
        f" A temperature of {temperature:.2f} {_change(numbers)} the NLL of the "
        f"{numbers['judged_on']} rows it was not fitted on ({before:.3f} to {after:.3f}; 95 % "
        f"interval of the change {change['low']:+.3f} to {change['high']:+.3f})."
    )


def _change(numbers: dict[str, Any]) -> str:
    """What the temperature does to the NLL of rows it was not fitted on."""
    change = numbers["nll_change"]
    if change["high"] < 0:
        return "lowers"
    return "raises" if change["low"] > 0 else "is not shown to lower"


def _sets(run: Run) -> Iterator[Finding]:
    """Sets of one coverage stand for all; the page has a table of the others."""
    numbers = run.numbers("calibration")
    if sets := numbers.get("prediction_sets", {}).get(f"{COVERAGE:g}"):
        yield Finding(
            "note",
            f"Sets of classes with a coverage of {COVERAGE:g} hold the right one for "
            f"{sets['coverage']:.3f} of {numbers['judged_on']} rows that did not set the "
            f"threshold (95 % interval {sets['low']:.3f} to {sets['high']:.3f}), and "
            f"{sets['mean_size']:.2f} classes on average"
            f"{'' if _is_ensemble(run) else ': see smoothtune predict --coverage'}.",
        )


def _clean(run: Run) -> float | None:
    """The main metric on the rows drawn for the diagnostics, as they are."""
    for curve in run.disturbances.values():
        return next(iter(curve.series.values()))[0].y
    return None


def _has_room(run: Run) -> bool:
    """Whether the rows drawn for the diagnostics leave enough to lose."""
    clean = _clean(run)
    return clean is not None and clean - run.baseline >= 2 * TOLERATED_LOSS


def _is_telling(curve: Curve) -> bool:
    """Whether a disturbance changes half of the rows or more."""
    return curve.numbers.get(CHANGED, 1.0) >= 0.5


def _losses(run: Run) -> Iterator[tuple[str, str, float]]:
    """Each disturbance: its name, its name with level and change, and the loss in the metric."""
    for key, curve in run.disturbances.items():
        if not _is_telling(curve):
            continue
        ((name, points),) = curve.series.items()
        if key == "words":
            damaged = points[-1]
            name = text = f"{damaged.x:g} exchanged words"
        else:
            level = LEVELS.get(key, JUDGED_RATE)
            damaged = next(point for point in points if point.x == level)
            text = f"{name} at {level:g}"
        loss = points[0].y - damaged.y
        yield name, f"{text} ({0.0 - loss:+.3f})", loss


def _disturbance(run: Run) -> Iterator[Finding]:
    clean, has_room = _clean(run), _has_room(run)
    if clean is not None and not has_room:
        yield Finding(
            "note",
            f"{run.main_metric} is {clean:.3f} on the rows drawn for the diagnostics, too near "
            "the best constant answer to judge robustness: take more with "
            "--max-diagnostic-samples.",
        )
    idle = [name for name, curve in run.disturbances.items() if not _is_telling(curve)]
    if names := ", ".join(name.replace("_", " ") for name in idle):
        yield Finding("note", f"Most rows have too few words for {names}, which say nothing here.")
    losses = [*_losses(run)] if has_room else []
    harmful = [(name, change) for name, change, loss in losses if loss > TOLERATED_LOSS]
    harmless = [change for _, change, loss in losses if loss <= TOLERATED_LOSS]
    if harmful:
        names = ", ".join(name.partition(",")[0] for name, _ in harmful)
        text = f"{run.main_metric} suffers from {'; '.join(change for _, change in harmful)}."
        advice = f"do not rely on it where inputs are like this: {names}"
        yield Finding("fragile", text, advice)
    if harmless:
        yield Finding("good", f"{run.main_metric} hardly suffers from {'; '.join(harmless)}.")


def _noise(run: Run) -> Iterator[Finding]:
    if curve := run.curves("smoothness").get("attenuation"):
        points = curve.series["noise before block 1"]
        text = (
            f"Noise of {100 * RATIO:.0f} % of the first hidden state is {100 * points[-1].y:.1f} % "
            "of the last."
        )
        yield Finding("good" if points[-1].y <= RATIO else "fragile", text)


def _drift(run: Run) -> Iterator[Finding]:
    if curve := run.curves("drift").get("distance"):
        points = curve.series["weights"]
        far = max(points, key=lambda point: point.y)
        where = "the embeddings" if far.x == 0 else f"block {far.x:.0f}"
        text = f"The weights moved most in {where}: by {100 * far.y:.1f} % of their norm."
        yield Finding("note", text)


def _other_data(run: Run) -> Iterator[Finding]:
    home = run.score
    for name in run.content["parts"]:
        data_set, numbers = other_data_set(name), run.numbers(name)
        if data_set is None or "metrics" not in numbers:
            continue
        metric = numbers["metrics"][run.main_metric]
        if before := numbers.get("metrics_before"):
            yield Finding(
                "note",
                f"Trained further on {numbers['rows_trained_on']} rows of {data_set}, "
                f"{run.main_metric} on its other {numbers['rows']} rows goes from "
                f"{before[run.main_metric]['value']:.3f} to {metric['value']:.3f}.",
            )
            continue
        baseline = numbers["trivial_baseline"]
        text = f"On {data_set} {run.main_metric} is {metric['value']:.3f}"
        basis = f"{numbers['rows']} rows; best constant answer {baseline:.3f}"
        if metric["low"] is None or metric["low"] <= baseline:
            text += f", not clearly above the best constant answer ({basis})."
            yield Finding("fragile", text)
        elif _is_less(metric, home):
            text += f", less than the {home['value']:.3f} of its own data ({basis})."
            yield Finding("fragile", text)
        else:
            yield Finding("good", f"{text} ({basis}).")


def _is_less(metric: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether a metric is below that of other rows by more than the sampling of both explains.

    The interval of their difference is put together from both intervals (Zou, Donner: Construction
    of confidence limits about effect measures, Statistics in Medicine 27, 2008).
    """
    if other["low"] is None:
        return False
    margin = math.hypot(metric["high"] - metric["value"], other["value"] - other["low"])
    return bool(other["value"] - metric["value"] > margin)


def _cost(run: Run) -> Iterator[Finding]:
    seconds = sum(part["seconds"] for part in run.content["parts"].values())
    text = f"This evaluation took {seconds:.0f} s"
    training = run.content["training"]
    if cost := training and training.get("cost"):
        text += f", training {cost['train_seconds']:.0f} s"
        if (ratio := cost.get("ratio_to_plain")) is not None:  # a Trainer measures none
            text += f", a step {ratio:.2f} times a plain one"
    yield Finding("cost", f"{text}.")
