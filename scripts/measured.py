"""What committed results say of a method: benchmarks/results/ and results/runs.parquet."""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
from tables import escaped, table

from smoothtune.methods import METHODS
from smoothtune.report.page import number
from smoothtune.report.tables import Effect
from smoothtune.study.comparison import ConditionKey
from smoothtune.study.config import StudyConfig
from smoothtune.study.report.effect import QuantityComparison, compare_quantities
from smoothtune.study.report.effect_rows import MeasuredRun, claims_of
from smoothtune.study.report.methods import MethodResult, compare_methods, table_of_runs
from smoothtune.study.report.statistics import NAMES, TrainingTime

ROOT = Path(__file__).parent.parent
COST = "benchmarks/results/cost-minilm-16x128"
RUNS = ROOT / "results" / "runs.parquet"
STUDIES = [
    "few-sample",
    "fresh-seeds",
    "fresh-seeds-rate",
    "encoder",
    "encoder-rate",
    "decoder",
    "decoder-rate",
    "unlabeled",
    "adverse",
    "adverse-fresh",
    "effect-fresh",
]
UNTIMED = {"effect-fresh", "encoder"}
"""Studies that shared their machine with other work: their times say nothing."""
MOVES = "Does it move what it is about?"
EFFECTS = {
    "effect": f"{MOVES} [All methods with their defaults]",
    "effect-fresh": f"{MOVES} [Ten fresh seeds]",
    "strength": f"{MOVES} [A study of shares]",
    "robustness": "Robustness: [noise, random tokens, exchanged words]",
}
TEST = StudyConfig().test
MEASURES = {"ece": "ECE", "brier": "Brier"}


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


def _study(name: str) -> Iterator[str]:
    for study in STUDIES:
        rows = [row for row in _compared(study) if name in row.configured]
        if name == "plain" or not rows:
            continue
        titles = ["condition", "methods", "score minus plain, points", "p, Holm"]
        titles += [f"{measure} minus plain (p, Holm)" for measure in MEASURES.values()]
        cells = [_row(row) for row in rows]
        if study not in UNTIMED:
            titles.append("time, x plain")
            cells = [[*line, _time(row)] for line, row in zip(cells, rows, strict=True)]
        yield (
            f"[{_title(study)}](../../results/{study}.md). In brackets after a "
            f"difference: 95 % interval over {_runs(study)['seed'].nunique()} seeds; "
            f"p: {NAMES[TEST]}, "
            "after Holm's correction over the methods of a condition.\n\n" + table(titles, cells)
        ).rstrip()
        yield _settings(name, rows)


@cache
def _compared(study: str) -> list[MethodResult]:
    """Every method of a study against plain, with the fields that it ran with."""
    runs = _runs(study)
    fields = dict(zip(runs["method"], map(json.loads, runs["methods"]), strict=True))
    compared = compare_methods(table_of_runs(runs.to_dict("records")), TEST)
    return [replace(row, configured=fields[row.method]) for row in compared if row.against_plain]


def _row(row: MethodResult) -> list[str]:
    against = row.against_plain
    assert against is not None
    assert against.difference.interval is not None
    low, high = (100 * x for x in against.difference.interval)
    cells = [
        row.condition.title,
        escaped(row.method),
        f"{100 * against.difference.value:+.1f} ({low:+.1f} to {high:+.1f})",
        f"{against.p_holm:.2g}",
    ]
    for measure in MEASURES:
        found = against.secondary[measure]
        cells.append(f"{found.difference.value:+.3f} ({found.p_holm:.2g})" if found else "–")
    return cells


def _time(row: MethodResult) -> str:
    return number(row.against_plain and row.against_plain.cost_ratio, ".2f")


def _settings(name: str, rows: list[MethodResult]) -> str:
    """How the fields of those runs differ from the defaults of today."""
    said = {}
    for row in rows:
        now = vars(METHODS[name]())
        then = row.configured[name]
        said[row.method] = [
            f"`{field}={value!r}`"
            for field, value in then.items()
            if field in now and _plain(now[field]) != value
        ]
    texts = [
        f"{escaped(label)} ran with {', '.join(fields) or 'the defaults of today'}"
        for label, fields in said.items()
    ]
    return "Fields that differ from today's defaults: " + "; ".join(texts) + "."


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _effect(name: str) -> Iterator[str]:
    for study, title in EFFECTS.items():
        rows = [row for row in _effects(study) if row.method.split()[0] == name]
        if rows:
            titles = ["condition", "methods", "quantity", "seeds", "change, %", "p", "p, Holm"]
            titles += ["score, points", "verdict"]
            yield (
                f"{title}(../../results/{study}.md), against plain; in brackets: 95 % interval.\n\n"
                + table(titles, [_moved(row) for row in rows])
            ).rstrip()


@cache
def _effects(study: str) -> list[QuantityComparison]:
    """Every method of a study against plain in the quantities that it is about."""
    runs = map(_measured, _runs(study).to_dict("records"))
    return compare_quantities([run for run in runs if run.values]).rows


def _measured(run: dict[str, Any]) -> MeasuredRun:
    quantities, robustness = (
        json.loads(run[name]) if isinstance(run[name], str) else None
        for name in ("quantities", "robustness")
    )
    size = run["max_train_samples"]
    return MeasuredRun(
        condition=ConditionKey(run["task"], run["model"], None if pd.isna(size) else int(size)),
        method=run["method"],
        seed=run["seed"],
        claims=claims_of(json.loads(run["methods"]), {}) if quantities is not None else None,
        score=run["score"],
        time=TrainingTime(run["train_seconds"], run["device"]),
        values=(quantities or {}) | (robustness or {}),
        layers={},
        missing={},
    )


def _moved(row: QuantityComparison) -> list[str]:
    return [
        row.condition,
        escaped(row.method),
        row.quantity,
        str(len(row.seeds)),
        _percent(row.change, ".0f"),
        *(number(value, ".2g") for value in (row.p, row.p_holm)),
        _percent(row.score, ".1f"),
        row.verdict,
    ]


def _percent(effect: Effect, form: str) -> str:
    """A mean difference in percent, with its interval where there is one."""
    shown = " to ".join(f"{100 * end:+{form}}" for end in effect.interval or ())
    return f"{100 * effect.value:+{form}}" + (f" ({shown})" if shown else "")
