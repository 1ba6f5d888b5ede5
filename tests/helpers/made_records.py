"""Records as finished cells leave them, made up for all that a study's layout reads."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np

from helpers.study_files import content_of, made_result
from smoothtune.config.evaluation import OOD, further_title
from smoothtune.report.curves import Curve, CurvePoint
from smoothtune.study.config import Study
from smoothtune.study.layout import FigureLayout, TableLayout
from smoothtune.study.records import Cell, Extras, Records

METRICS = {
    "stsb": ("pearson", "spearman"),
    "cola": ("matthews_correlation",),
    "mrpc": ("accuracy", "f1"),
    "qqp": ("accuracy", "f1"),
    "squad": ("f1", "exact_match"),
}


def made_cells(study: Study) -> list[Cell]:
    """The cells of a study, without reading data or weights."""
    cells = []
    for seed in study.config.seeds:
        for c, e, s in study.runs:
            if s:  # as if the first setting had been chosen
                continue
            condition, entry = study.conditions[c], study.entries[e]
            run = study.runs[c, e, s].model_copy(update={"seed": seed})
            known = {"condition": c, "entry": e, "seed": seed}
            cells.append(
                Cell(
                    label=entry.label,
                    setting="",
                    condition=condition.key,
                    selection=False,
                    config=run,
                    extras=Extras(),
                    changes={},
                    identity=known,
                )
            )
    return cells


def score_of(cell: Cell, name: str) -> float:
    """A number that depends on the cell alone."""
    task, model, size = cell.condition
    key = f"{task} {cell.label} {model} {size} {cell.seed} {name}"
    return 0.5 + 0.4 * (zlib.crc32(key.encode()) % 1000) / 1000


def write_record(folder: Path, study: Study, cell: Cell, **metrics: float) -> None:
    """Write the record of a cell with all that the layout of its study reads."""
    names = METRICS.get(cell.condition.task, ("accuracy",))
    scores = {name: score_of(cell, name) for name in names} | metrics
    probabilities = {} if cell.condition.task in ("stsb", "squad") else {"brier": 0.3, "nll": 0.5}
    log = [{"step": step, "loss/task": 1 / step} for step in (1, 2, 3)]
    evaluated = {f"eval_{name}": value for name, value in scores.items()} | {"eval_loss": 0.5}
    log += [{"step": step, **evaluated} for step in (1, 2, 3)]
    result: dict[str, Any] = made_result(0.5) | {
        "headline": names[0],
        "metrics": scores | probabilities,
        "train_metrics": {name: value + 0.05 for name, value in scores.items()} | probabilities,
        "trivial_baseline": 0.5,
        "generalization_gap": 0.05,
        "log_history": log,
    }
    extras = {"ece": 0.1, "parts": _parts(study, cell, names)}
    content = content_of({"status": "done", "result": result, "extras": extras})
    Records(folder).write(cell, content)


def _parts(study: Study, cell: Cell, names: tuple[str, ...]) -> dict[str, Any]:
    """Curves and other data sets that the layout names."""
    parts: dict[str, Any] = {}
    for layout in study.config.layout:
        lines = [layout, *(layout.rows + layout.columns)] if isinstance(layout, TableLayout) else []
        paths = {getattr(line, "curve", None) for line in lines}
        series = ["a"]
        if isinstance(layout, FigureLayout):
            paths, series = {layout.curve}, layout.series or ["one", "other"]
        for path in paths - {None}:
            part, _, name = path.partition("/")
            curves = parts.setdefault(part, {"numbers": {}, "curves": {}})["curves"]
            curves[name] = _curve(cell, path, series).to_dict()
    parts["calibration"] = {
        "numbers": {
            "all_rows": {"ece": 0.08},
            "bins": {"confidence": [0.55, 0.9], "accuracy": [0.5, 0.8], "count": [10, 30]},
        },
        "curves": {},
    }
    condition = next(c for c in study.conditions if c.key[:2] == cell.condition[:2])
    for name in condition.ood:
        for title in (OOD + name, *(further_title(name, s) for s in study.config.further_share)):
            metrics = {metric: {"value": score_of(cell, title)} for metric in names}
            parts[title] = {"numbers": {"metrics": metrics}, "curves": {}}
    return parts


def _curve(cell: Cell, path: str, series: list[str]) -> Curve:
    points = {
        name: [
            CurvePoint(x, float(np.exp(-x)) + 0.1 * score_of(cell, name))
            for x in (0.0, 0.05, 0.1, 0.2, 1.0, 20.0)
        ]
        for name in series
    }
    return Curve(path, "x", "y", points, numbers={"logits": score_of(cell, path)})
