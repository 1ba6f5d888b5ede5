"""What a study's folder says about it: ``study.json``."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from smoothtune.config.evaluation import OtherData
from smoothtune.files import versions, write_json
from smoothtune.study.files import portable, portable_fields
from smoothtune.study.plan import Choice, Key, Plan
from smoothtune.study.records import STUDY, Cell, read_study


def write_description(
    plan: Plan,
    folder: Path,
    cells: Sequence[Cell],
    choices: Mapping[Key, Choice],
    command: Sequence[str],
) -> None:
    """Write ``study.json``: what was asked for, with the id of every cell.

    What the folder knows of the data of other cells stays.

    Raises:
        OutputError: it cannot be written.
    """
    study = plan.study
    stored = read_study(folder).fingerprints if (folder / STUDY).exists() else {}
    content = {
        "name": study.name,
        "command": [portable(part) for part in command],
        "study": study.config.model_dump(mode="json", exclude={"layout"})
        | {"ood": _portable(study.config.ood)},
        "conditions": [
            asdict(condition)
            | {"fields": portable_fields(condition.fields), "ood": _portable(condition.ood)}
            for condition in study.conditions
        ],
        "choices": [
            choice.condition._asdict()
            | {"label": choice.method, "scores": choice.scores, "chosen": choice.chosen}
            for choice in choices.values()
        ],
        "cells": [
            {"id": cell.id, "title": cell.title, "label": cell.label}
            | cell.condition._asdict()
            | {"method": cell.label, "setting": cell.setting, "seed": cell.seed}
            | {"selection": cell.selection}
            for cell in {cell.id: cell for cell in cells}.values()
        ],
        "choosing": [cell.id for cell in plan.selection_cells()],
        "fingerprints": {key: asdict(each) for key, each in (stored | plan.prints).items()},
        "versions": versions(),
    }
    write_json(folder / STUDY, content)


def _portable(ood: Mapping[str, OtherData]) -> dict[str, dict[str, Any]]:
    """Other data sets without the folders above them."""
    return {name: asdict(other) | {"source": portable(other.source)} for name, other in ood.items()}
