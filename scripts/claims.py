"""docs/claims.md: what the five documents claim, beside the committed runs that speak of it."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from pydantic import BaseModel, ConfigDict
from tables import escaped, table

from smoothtune.methods import METHODS
from smoothtune.study.comparison import (
    Comparison,
    ConditionKey,
    Pairs,
    Value,
    compare,
    over_conditions,
    paired,
)
from smoothtune.study.fields import PLAIN
from smoothtune.study.report.statistics import (
    ENOUGH_SEEDS,
    LEVEL,
    variance_ratio,
    variance_test,
)
from smoothtune.study.table import WORDS

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "claims.md"
RUNS = ROOT / "results" / "runs.parquet"
POINTS = {"score", "generalization_gap", "noise", "ood", "corruption/tokens/area", WORDS}
"""Measures on the scale of a score, shown in points."""
COLUMNS = {"score", "generalization_gap", "noise", "ood", "brier", "nll", "ece"}
HALF = 0.5
NOT_RUN, BORNE_OUT, REFUTED, OPEN = (
    "not decided: not run", "**borne out**", "**refuted for this model**", "not decided"
)  # fmt: skip
INTRODUCTION = """\
# The papers' claims

<!-- Written by `make docs` from results/runs.parquet and scripts/claims.yaml: change those. -->

Every printed claim of the five documents that this library implements, and what our runs say of
it. The models here are smaller than the papers', and mostly see 320 to 1,000 rows: a verdict is
about the model that is named. [Theory, measured](theory.md) has the expansions and bounds, the
[recipes](../recipes/README.md) the protocols, and [What was measured](evidence.md) what follows
for a user.

**How a verdict is found.** Differences are paired by seed, a mean over the tasks, with the 95 %
interval of the paired t-test. p is corrected after Holm over all methods of the study in that
measure; where two methods are compared it is not. A study's page corrects a quantity over the rows
of its table, so its p may be another. *Borne out*: p is below 0.05 in the claim's direction, with
five seeds or more. *Refuted for this model*: p is below 0.05 in the other direction; or a gain is
printed, and the whole interval lies below half of it. Else *not decided*. *Would have been shown*
is the true difference that these seeds find with a chance of 80 %, at 5 % divided by the number of
methods. Of a spread, the ratio of variances is shown, with the test of Brown and Forsythe.

Differences are in points of the score (0.01), of probabilities in their own units, of other
quantities in percent of plain's. Methods ran with the fields that the study's page says, which
are mostly this library's defaults and not the paper's. Of two studies that train alike, a row has
the seeds by which no method was chosen.

**What is marked †.** These runs are of [before the bound](evidence.md): the term waited until the
model had learned, or had a weight that did nothing. Nothing is refuted by them. A claim can be
borne out: it was then despite that.
"""
TEMPERATURE = """\
## Beside temperature scaling

Everyone has a temperature that is fitted on held-out rows. A method whose NLL is not below that of
plain with such a temperature is said not to beat it. Runs of studies that were evaluated with
`--calibration`; of each the half of the validation rows on which no temperature was fitted. *Beats*
and *does not beat* need p below 0.05 after Holm's correction, and five seeds.

"""
BEFORE = "calibration/judged_rows_before/nll"
AFTER = "calibration/judged_rows_after/nll"


class Claim(BaseModel):
    """A row of claims.yaml."""

    model_config = ConfigDict(extra="forbid")

    place: str
    claim: str
    gain: float | None = None
    measure: str = "score"
    beside: str | None = None
    """Another measure of the same runs, in the place of plain's."""
    better: str = "more"
    same: bool = False
    """The claim is that there is no difference, which no test shows."""
    studies: list[str] = []
    method: list[str] = []
    """The method's label in the study; the first that the study has."""
    against: list[str] = [PLAIN]
    """What it is compared with, in the same way."""
    task: list[str] | None = None
    elsewhere: str = ""
    """Where it is measured, if not here."""
    reason: str = ""
    """Why nothing was run."""


class Found(BaseModel):
    """What the runs say of a claim."""

    study: str
    runs_of: str
    """Model, rows and seeds."""
    old: bool
    difference: str
    p: float | None
    smallest: str
    verdict: str


@cache
def runs() -> pd.DataFrame:
    """All reported runs."""
    table_of = pd.read_parquet(RUNS)
    return table_of[table_of["reported"] & (table_of["status"] == "done")]


def page() -> str:
    """The page, from the committed runs."""
    groups = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
    parts, verdicts = [], []
    for group in groups:
        rows = []
        for entry in group["claims"]:
            claim = Claim(**entry)
            found = find(claim, runs())
            verdicts.append(found.verdict if found else claim.elsewhere or NOT_RUN)
            rows.append(_row(claim, found))
        titles = ["place", "claim", "printed", "run here", "difference", "p, Holm"]
        parts.append(
            f"## {group['document']}\n\n"
            + table([*titles, "would have been shown", "verdict"], rows)
        )
    parts.append(TEMPERATURE + temperature_table(runs()))
    counts = ", ".join(
        f"{sum(verdict == kind for verdict in verdicts)} {kind.strip('*')}"
        for kind in (BORNE_OUT, REFUTED, OPEN, NOT_RUN)
    )
    elsewhere = sum(verdict.startswith("[") for verdict in verdicts)
    counts += f", {elsewhere} measured elsewhere"
    return "\n".join([INTRODUCTION, f"**Of {len(verdicts)} claims**: {counts}.\n", *parts])


def find(claim: Claim, all_runs: pd.DataFrame) -> Found | None:
    """What the first study that has runs says; None: nothing was run."""
    for study in claim.studies:
        own = all_runs[all_runs["study"] == study]
        labels = set(own["method"])
        method = next((name for name in claim.method if name in labels), None)
        against = next((name for name in claim.against if name in labels), None)
        if method is not None and against is not None:
            return _found(claim, study, method, against, own)
    return None


def _found(claim: Claim, study: str, method: str, against: str, own: pd.DataFrame) -> Found:
    if claim.task:
        own = own[own["task"].isin(claim.task)]
    old = any(is_old(text) for text in own.loc[own["method"] == method, "methods"])
    pairs = _pairs(claim, method, against, own)
    chosen = "beside" if claim.beside else method
    ours = next((each for each in pairs if each.method == chosen), None)
    assert ours is not None, claim
    others = len({each.split()[0] for each in own["model"].unique()})
    assert others == 1, study
    sizes = sorted({int(size) for size in own["max_train_samples"].dropna()})
    rows = " to ".join(f"{size:,}" for size in sizes[:1] + sizes[1:][-1:]) or "all"
    tasks = ", ".join(own["task"].unique())
    runs_of = f"{own['model'].iloc[0]}, {rows} rows of {tasks}, {len(ours.seeds)} seeds"
    if claim.measure == "variance":
        return _spread(ours, study, runs_of, old)
    relative = claim.measure not in POINTS | COLUMNS
    family = [replace(each, relative=relative) for each in pairs]
    item = next(each for each in compare(family) if each.method == ours.method)
    factor, unit, digits = 1.0, "", 3
    if relative or claim.measure in POINTS:
        factor, unit, digits = 100.0, " %" if relative else "", 1
    form = f"+.{digits}f"
    interval = item.difference.interval
    shown = f"{factor * item.difference.value:{form}}{unit}"
    if interval:
        shown += f" ({factor * interval[0]:{form}} to {factor * interval[1]:{form}})"
    smallest = f"{factor * item.smallest:.{digits}f}{unit}" if item.smallest else "–"
    verdict = verdict_of(claim, item, factor, old=old)
    return Found(
        study=study, runs_of=runs_of, old=old, difference=shown, p=item.p_holm,
        smallest=smallest, verdict=verdict,
    )  # fmt: skip


def is_old(methods: str) -> bool:
    """Whether a run is of before the bound; a weight has none since then either, as the papers."""
    return any(
        hasattr(METHODS[name](), "share") and "max_share" not in fields
        for name, fields in json.loads(methods).items()
    )


def verdict_of(claim: Claim, item: Comparison, factor: float, *, old: bool) -> str:
    """The rule that the page states."""
    sign = 1 if claim.better == "more" else -1
    enough = len(item.seeds) >= ENOUGH_SEEDS
    towards = sign * item.difference.value > 0
    if item.differs and enough and towards and not claim.same:
        return BORNE_OUT
    if old or not enough:
        return OPEN
    if item.differs and (claim.same or not towards):
        return REFUTED
    if claim.gain is not None and item.difference.interval:
        best = max(sign * factor * end for end in item.difference.interval)
        if best < HALF * sign * claim.gain:
            return REFUTED
    return OPEN


def _pairs(claim: Claim, method: str, against: str, own: pd.DataFrame) -> list[Pairs]:
    """The family of comparisons: all methods with plain's runs, or the two that are compared."""
    measure = "score" if claim.measure == "variance" else claim.measure
    names = {against: PLAIN}
    if claim.beside:
        names = {PLAIN: "beside"}
    elif against != PLAIN:
        own = own[own["method"].isin([against, method])]
    values = []
    for run in own.to_dict("records"):
        condition = ConditionKey(run["task"], run["model"], None)
        value = _value(run, measure)
        label = names.get(run["method"], run["method"])
        if value is not None and (not claim.beside or run["method"] == PLAIN):
            values.append(Value(condition, label, run["seed"], measure, value))
            if claim.beside:
                other = _value(run, claim.beside)
                assert other is not None
                values.append(Value(condition, PLAIN, run["seed"], measure, other))
    conditions = list(dict.fromkeys(value.condition for value in values))
    pairs = paired(values)
    labels = dict.fromkeys(value.method for value in values if value.method != PLAIN)
    found = (over_conditions(pairs, conditions, measure, label) for label in labels)
    return [each for each in found if each]


def _value(run: dict[str, Any], measure: str) -> float | None:
    """A measure of a run: a column, or a number of what its evaluation found."""
    if measure in COLUMNS:
        return None if pd.isna(run[measure]) else float(run[measure])
    for column in ("quantities", "robustness", "parts"):
        text = run.get(column)
        numbers = json.loads(text) if isinstance(text, str) else {}
        if measure in numbers:
            return float(numbers[measure])
    return None


def temperature_table(all_runs: pd.DataFrame) -> str:
    """NLL of every method as it is, minus that of plain with a temperature."""
    rows = []
    repeated = all_runs.duplicated("cell")  # studies may share runs: what a study adds, and plain
    shown = all_runs[~repeated | (all_runs["method"] == PLAIN)]
    for study, own in shown.groupby("study", sort=False):
        if repeated[own.index].all():
            continue
        values = [
            Value(ConditionKey(run["task"], run["model"], None), label, run["seed"], "nll", value)
            for run in own.to_dict("records")
            for label, measure in _temperature_labels(run["method"])
            if (value := _value(run, measure)) is not None
        ]
        conditions = list(dict.fromkeys(value.condition for value in values))
        labels = dict.fromkeys(value.method for value in values if value.method != PLAIN)
        pairs = paired(values)
        each = (over_conditions(pairs, conditions, "nll", label) for label in labels)
        rows += [
            _temperature_row(str(study), own, item)
            for item in compare([one for one in each if one])
            if item.difference.interval  # of more than one seed
        ]
    titles = ["study", "model and rows", "method", "seeds", "NLL minus plain's with a temperature"]
    return table([*titles, "p, Holm", "in one sentence"], rows)


def _temperature_labels(method: str) -> list[tuple[str, str]]:
    """What a run counts as: plain as it is, too, is a way to train."""
    if method == PLAIN:
        return [(PLAIN, AFTER), ("plain, no temperature", BEFORE)]
    return [(method, BEFORE)]


def _temperature_row(study: str, own: pd.DataFrame, item: Comparison) -> list[str]:
    assert item.difference.interval is not None
    low, high = item.difference.interval
    sentence = "is not shown to beat temperature scaling"
    if item.is_established:
        sentence = "beats" if item.difference.value < 0 else "does not beat"
        sentence += " temperature scaling in NLL"
    about = f"{own['model'].iloc[0]}, {', '.join(own['task'].unique())}"
    p = "–" if item.p_holm is None else f"{item.p_holm:.2g}"
    return [
        f"[`{study}`](../results/{study}.md)", about, escaped(item.method), str(len(item.seeds)),
        f"{item.difference.value:+.3f} ({low:+.3f} to {high:+.3f})", p, sentence,
    ]  # fmt: skip


def _spread(ours: Pairs, study: str, runs_of: str, old: bool) -> Found:
    ratio = variance_ratio(ours.values[0], ours.plain[0])
    p = variance_test(ours.values[0], ours.plain[0])
    assert ratio is not None
    low, high = ratio.interval or (float("nan"), float("nan"))
    clear = p is not None and p < LEVEL and len(ours.seeds) >= ENOUGH_SEEDS
    verdict = OPEN
    if clear and ratio.value < 1:
        verdict = BORNE_OUT
    elif clear and not old:
        verdict = REFUTED
    return Found(
        study=study, runs_of=runs_of, old=old, p=p, smallest="–", verdict=verdict,
        difference=f"variance x {ratio.value:.2f} ({low:.2f} to {high:.2f})",
    )  # fmt: skip


def _row(claim: Claim, found: Found | None) -> list[str]:
    printed = "a direction" if claim.gain is None else f"{claim.gain:+.2f}"
    if claim.measure == "variance":
        printed = "a ratio"
    if claim.same:
        printed = "+0.0"
    if found is None:
        verdict = f"see {claim.elsewhere}" if claim.elsewhere else NOT_RUN
        verdict += f": {claim.reason}" if claim.reason else ""
        return [claim.place, claim.claim, printed, "–", "–", "–", "–", verdict]
    title = f"[`{found.study}`](../results/{found.study}.md){' †' if found.old else ''}"
    p = "–" if found.p is None else f"{found.p:.2g}"
    return [
        claim.place, claim.claim, printed, f"{title}: {escaped(found.runs_of)}",
        found.difference, p, found.smallest, found.verdict,
    ]  # fmt: skip


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
