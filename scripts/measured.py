"""What committed results say of a method: benchmarks/results/ and results/runs.parquet."""

import json
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
from tables import escaped, table

from smoothtune.methods import METHODS
from smoothtune.report.page import number
from smoothtune.report.tables import Effect, Summary
from smoothtune.study.comparison import Comparison, over_conditions, paired
from smoothtune.study.fields import ConditionKey
from smoothtune.study.report.methods import (
    MEASURES,
    MORE_IS_BETTER,
    MethodResult,
    Run,
    by_condition,
    compare_methods,
    compare_quantities,
    over_tasks,
    values_of,
)
from smoothtune.study.report.statistics import TEST
from smoothtune.study.report.tables import verdict

ROOT = Path(__file__).parent.parent
COST = "benchmarks/results/cost-minilm-16x128"
RUNS = ROOT / "results" / "runs.parquet"
STUDIES = [
    "sizes",
    "fit-fresh",
    "fit-encoder",
    "few-sample",
    "fresh-seeds",
    "fresh-seeds-rate",
    "encoder",
    "encoder-rate",
    "decoder",
    "decoder-rate",
    "unlabeled-bound",
    "unlabeled",
    "adverse",
    "adverse-fresh",
    "effect-fresh",
]
UNTIMED = {"effect-fresh", "encoder", "fit-encoder", "fit-fresh", "sizes", "unlabeled-bound"}
"""Studies that shared their machine with other work: their times say nothing."""
MOVES = "Does it move what it is about?"
EFFECTS = {
    "effect": f"{MOVES} [All methods with their defaults]",
    "effect-fresh": f"{MOVES} [Ten fresh seeds]",
    "effect-bound": f"{MOVES} [Held by the bound]",
    "strength": f"{MOVES} [A study of shares]",
    "robustness-bound": "Robustness: [noise, random tokens, exchanged words]",
    "robustness": "Robustness: [the same, in an older study]",
}
SHOWN = {"ece": "ECE", "brier": "Brier"}
SUMMED = {"score": "score", "nll": "NLL", "brier": "Brier"}


@cache
def _all_runs() -> pd.DataFrame:
    return pd.read_parquet(RUNS)


def _runs(study: str) -> pd.DataFrame:
    """The runs that a study reports."""
    runs = _all_runs()
    return runs[(runs["study"] == study) & runs["reported"]]


def _title(study: str) -> str:
    """The heading of a study's page."""
    page = ROOT / "results" / f"{study}.md"
    return page.read_text("utf-8").partition("\n")[0].removeprefix("# ")


def cost(name: str) -> str:
    """Time and memory of a step, as benchmarks/cost.py measured them."""
    content = json.loads((ROOT / f"{COST}.json").read_text("utf-8"))
    rows = [row for row in content["rows"] if row["method"].split(":")[0] == name]
    how = f"`smoothtune cost --method {name} --model MODEL` measures it for your model."
    if not rows:
        return f"Not measured here. {how}"
    cells = [
        [
            f"`{row['method']}`",
            f"{row['ratio']:.2f}",
            f"{row['ratio_range'][0]:.2f} to {row['ratio_range'][1]:.2f}",
            str(row.get("extra_memory_mib", "")),
        ]
        for row in rows
    ]
    titles = ["method", "time of a step, x plain", "range", "extra peak memory, MiB"]
    return (
        f"MiniLM, 16 x 128 tokens, one CPU thread ([all methods](../../{COST}.md)):\n\n"
        f"{table(titles, cells)}\n{how}"
    )


def evidence(name: str) -> str:
    """Every committed comparison with plain fine-tuning that a method is part of."""
    parts = [*_study(name), *_effect(name)]
    return "\n\n".join(parts) or (
        "None: no committed study has this method. [What it brings](../evidence.md) says which "
        "have been compared; `smoothtune tune` and `smoothtune study` compare it on your data."
    )


def evidence_line(name: str) -> str:
    """In how many studies a method, alone and with today's defaults, differs from plain.

    Over all conditions of a study, p below 0.05 after Holm's correction over its methods. Empty for
    plain itself.
    """
    if name == "plain":
        return ""
    studies = [
        [row for row in _over_all(study) if row.method == label and row.differs]
        for study in STUDIES
        for label, ran in _fields(study).items()
        if list(ran) == [name] and not _changed(name, ran[name])
    ]
    if not studies:
        return "not compared"
    of = f" of {len(studies)} {'study' if len(studies) == 1 else 'studies'}"
    parts = []
    for better in (True, False):
        counts = Counter(
            row.measure for rows in studies for row in rows if _is_better(row) == better
        )
        if counts:
            measures = ", ".join(f"{SUMMED[m]} in {counts[m]}" for m in SUMMED if m in counts)
            parts.append(f"{'better' if better else 'worse'} {measures}{of}")
    return "; ".join(parts) or f"no difference shown in {of.removeprefix(' of ')}"


@cache
def _over_all(study: str) -> list[Comparison]:
    """Every method against plain over all conditions of a study."""
    runs = _measured(study)
    if len(by_condition(runs)) > 1:
        rows = [row for rows in over_tasks(runs).values() for row in rows]
    else:
        rows = [row for each in compare_methods(runs) for row in each.against_plain.values()]
    return [row for row in rows if row.measure in SUMMED]


def _is_better(row: Comparison) -> bool:
    return (row.difference.value > 0) == (row.measure in MORE_IS_BETTER)


def _study(name: str) -> Iterator[str]:
    for study in STUDIES:
        fields = _fields(study)
        rows = [row for row in _compared(study) if name in fields[row.method]]
        if name == "plain" or not rows:
            continue
        titles = ["condition", "methods", "score minus plain, points", "p, Holm"]
        titles += [f"{measure} minus plain (p, Holm)" for measure in SHOWN.values()]
        cells = [_row(row) for row in rows]
        if study not in UNTIMED:
            titles.append("time, x plain")
            cells = [[*line, _time(row)] for line, row in zip(cells, rows, strict=True)]
        yield (
            f"[{_title(study)}](../../results/{study}.md). In brackets after a "
            f"difference: 95 % interval over {_runs(study)['seed'].nunique()} seeds; "
            f"p: {TEST}, "
            "after Holm's correction over the methods of a condition.\n\n" + table(titles, cells)
        ).rstrip()
        yield _settings(name, {row.method: fields[row.method][name] for row in rows})


@cache
def _compared(study: str) -> list[MethodResult]:
    """Every method of a study against plain, where more than one seed has run."""
    compared = compare_methods(_measured(study))
    against = [(row, row.score_against_plain) for row in compared]
    return [row for row, item in against if item and item.difference.interval]


@cache
def _fields(study: str) -> dict[str, dict[str, dict[str, Any]]]:
    """The fields that the methods of each way to train ran with."""
    runs = _runs(study)
    return dict(zip(runs["method"], map(json.loads, runs["methods"]), strict=True))


def _row(row: MethodResult) -> list[str]:
    against = row.score_against_plain
    assert against is not None
    assert against.difference.interval is not None
    low, high = (100 * x for x in against.difference.interval)
    cells = [
        row.condition.title,
        escaped(row.method),
        f"{100 * against.difference.value:+.1f} ({low:+.1f} to {high:+.1f})",
        f"{against.p_holm:.2g}",
    ]
    for measure in SHOWN:
        found = row.against_plain.get(measure)
        cells.append(f"{found.difference.value:+.3f} ({found.p_holm:.2g})" if found else "–")
    return cells


def _time(row: MethodResult) -> str:
    return number(row.cost_ratio, ".2f")


def _settings(name: str, ran: dict[str, dict[str, Any]]) -> str:
    """How the fields of runs differ from the defaults of today.

    Args:
        name: the method.
        ran: its fields by the label of the study's entry.
    """
    said = {}
    for label, then in ran.items():
        said[label] = [f"`{field}={value!r}`" for field, value in _changed(name, then).items()]
    texts = [
        f"{escaped(label)} ran with {', '.join(fields) or 'the defaults of today'}"
        for label, fields in said.items()
    ]
    return "Fields that differ from today's defaults: " + "; ".join(texts) + "."


def _changed(name: str, then: dict[str, Any]) -> dict[str, Any]:
    """The fields of a run that are not today's defaults."""
    now = vars(METHODS[name]())
    return {
        field: value
        for field, value in then.items()
        if field in now and _plain(now[field]) != value
    }


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _effect(name: str) -> Iterator[str]:
    for study, title in EFFECTS.items():
        rows = [row for row, _ in _effects(study) if row.method.split()[0] == name]
        if rows:
            titles = ["condition", "methods", "quantity", "seeds", "change, %", "p", "p, Holm"]
            titles += ["score, points", "verdict"]
            cells = [_moved(*each) for each in _effects(study) if each[0] in rows]
            yield (
                f"{title}(../../results/{study}.md), against plain; in brackets: 95 % interval.\n\n"
                + table(titles, cells)
            ).rstrip()


@cache
def _effects(study: str) -> list[tuple[Comparison, Effect]]:
    """Every method of a study in the quantities that it is about, and in the score."""
    runs = [run for run in _measured(study) if run.measures.keys() - set(MEASURES)]
    pairs, conditions = paired(values_of(runs)), {c.title: c for c in by_condition(runs)}
    found = []
    for row in compare_quantities(runs):
        group = [conditions[title] for title in row.conditions]
        scores = over_conditions(pairs, group, "score", row.method)
        assert scores is not None
        found.append((row, Summary.of(scores.on(row.seeds).gaps).effect))
    return found


@cache
def _measured(study: str) -> list[Run]:
    return [_run(row) for row in _runs(study).to_dict("records")]


def _run(row: dict[str, Any]) -> Run:
    """A row of the table of all runs."""
    plain = {name: None if pd.isna(value) else value for name, value in row.items()}
    measures = {name: plain[name] for name in MEASURES if plain.get(name) is not None}
    quantities = json.loads(plain["quantities"] or "null")
    measures |= (quantities or {}) | json.loads(plain["robustness"] or "{}")
    names = json.loads(plain["methods"]) if quantities is not None else []
    claims = dict.fromkeys(claim for name in names for claim in METHODS[name].declared.lowers)
    size = plain["max_train_samples"]
    return Run(
        condition=ConditionKey(plain["task"], plain["model"], size and int(size)),
        method=plain["method"],
        seed=plain["seed"],
        status=plain["status"],
        metric=plain["metric"],
        trivial_baseline=plain["trivial_baseline"],
        measures=measures,
        claims=tuple(claims),
        device=plain["device"],
    )


def _moved(row: Comparison, score: Effect) -> list[str]:
    return [
        row.condition,
        escaped(row.method),
        row.measure,
        str(len(row.seeds)),
        _percent(row.difference, ".0f"),
        *(number(value, ".2g") for value in (row.p, row.p_holm)),
        _percent(score, ".1f"),
        verdict(row),
    ]


def _percent(effect: Effect, form: str) -> str:
    """A mean difference in percent, with its interval where there is one."""
    shown = " to ".join(f"{100 * end:+{form}}" for end in effect.interval or ())
    return f"{100 * effect.value:+{form}}" + (f" ({shown})" if shown else "")
