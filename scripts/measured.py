"""What committed results say of a method: benchmarks/results/ and results/."""

import csv
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from tables import escaped, table

from smoothtune.methods import METHODS
from smoothtune.report.page import number

ROOT = Path(__file__).parent.parent
COST = "benchmarks/results/cost-minilm-16x128"
STUDIES = [
    "results/few-sample",
    "results/fresh-seeds",
    "results/fresh-seeds-rate",
    "results/encoder",
    "results/encoder-rate",
    "results/decoder",
    "results/decoder-rate",
    "results/unlabeled",
    "results/adverse",
    "results/adverse-fresh",
    "results/effect-fresh",
]
UNTIMED = {"results/effect-fresh", "results/encoder"}
"""Studies that shared their machine with other work: their times say nothing."""
MOVES = "Does it move what it is about?"
EFFECTS = {
    "results/effect/effect": f"{MOVES} [All methods with their defaults]",
    "results/effect-fresh/effect": f"{MOVES} [Ten fresh seeds]",
    "results/strength/effect": f"{MOVES} [A study of shares]",
    "results/robustness/effect": "What do models bear? [Noise, random tokens, exchanged words]",
}
MEASURES = {"ece": "ECE", "brier": "Brier"}


@cache
def _json(path: str) -> Any:
    return json.loads((ROOT / path).read_text("utf-8"))


def cost(name: str) -> str:
    """Time and memory of a step, as benchmarks/cost.py measured them."""
    content = _json(f"{COST}.json")
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
        content = _json(f"{study}/results.json")
        compared = [row for row in content["methods"] if row["against_plain"]]
        rows = [row for row in compared if name in (row["configured"] or {})]
        if name == "plain" or not rows:
            continue
        titles = ["condition", "methods", "score minus plain, points", "p, Holm"]
        titles += [f"{measure} minus plain (p, Holm)" for measure in MEASURES.values()]
        cells = [_row(row) for row in rows]
        if study not in UNTIMED:
            titles.append("time, x plain")
            cells = [[*line, _time(row)] for line, row in zip(cells, rows, strict=True)]
        yield (
            f"[{escaped(content['title'])}](../../{study}/report.md). In brackets after a "
            f"difference: 95 % interval over {len(content['seeds'])} seeds; p: {content['test']}, "
            "after Holm's correction over the methods of a condition.\n\n" + table(titles, cells)
        ).rstrip()
        yield _settings(name, rows)


def _row(row: dict[str, Any]) -> list[str]:
    against = row["against_plain"]
    low, high = (100 * x for x in against["difference"]["interval"])
    cells = [
        f"{row['task']}, {row['model']}, {row['max_train_samples']} examples",
        escaped(row["method"]),
        f"{100 * against['difference']['value']:+.1f} ({low:+.1f} to {high:+.1f})",
        f"{against['p_holm']:.2g}",
    ]
    for measure in MEASURES:
        found = against["secondary"].get(measure)
        cells.append(
            f"{found['difference']['value']:+.3f} ({found['p_holm']:.2g})" if found else "–"
        )
    return cells


def _time(row: dict[str, Any]) -> str:
    return number(row["against_plain"]["cost_ratio"], ".2f")


def _settings(name: str, rows: list[dict[str, Any]]) -> str:
    """How the fields of those runs differ from the defaults of today."""
    said = {}
    for row in rows:
        now = vars(METHODS[name]())
        then = row["configured"][name]
        said[row["method"]] = [
            f"`{field}={value!r}`"
            for field, value in then.items()
            if _plain(now.get(field)) != value
        ]
    texts = [
        f"{escaped(label)} ran with {', '.join(fields) or 'the defaults of today'}"
        for label, fields in said.items()
    ]
    return "Fields that differ from today's defaults: " + "; ".join(texts) + "."


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _effect(name: str) -> Iterator[str]:
    for path, title in EFFECTS.items():
        with (ROOT / f"{path}.csv").open(encoding="utf-8", newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["method"].split()[0] == name]
        if rows:
            titles = ["condition", "methods", "quantity", "seeds", "change, %", "p", "p, Holm"]
            titles += ["score, points", "verdict"]
            yield (
                f"{title}(../../{path}.md), against plain; in brackets: 95 % interval.\n\n"
                + table(titles, [_moved(row) for row in rows])
            ).rstrip()


def _moved(row: dict[str, str]) -> list[str]:
    return [
        row["condition"],
        escaped(row["method"]),
        row["quantity"],
        row["seeds"],
        _percent(row, "change", ".0f"),
        *(f"{float(row[name]):.2g}" if row[name] else "–" for name in ("p", "p_holm")),
        _percent(row, "score", ".1f", value="score_difference"),
        row["verdict"],
    ]


def _percent(row: dict[str, str], name: str, form: str, value: str | None = None) -> str:
    """A number of a row in percent, with its interval where there is one."""
    ends = [row[f"{name}_{end}"] for end in ("low", "high")]
    shown = " to ".join(f"{100 * float(end):+{form}}" for end in ends if end)
    return f"{100 * float(row[value or name]):+{form}}" + (f" ({shown})" if shown else "")
